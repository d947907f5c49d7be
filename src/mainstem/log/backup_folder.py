"""A backup folder: what lies in it, and the manifest that says so.

manifest.json                     which log, after which flush, and every file with its size and checksum
ledger-<flush>-<crc32c>.db        the ledger after that flush, in one file that needs no WAL
blocks/<number>-<crc32c>.block    the blocks it points into; the newest ends with that flush

The manifest is replaced last, in one step: until then the folder is the backup it was before. Files are named by their
content, so one of the new backup never takes the place of one of the old. What the manifest does not name counts for
nothing: a backup that was cut short left it, and the next one takes what it can use of it and removes the rest.

The manifest holds no names: they follow from numbers and checksums, so it cannot lead anywhere else. Its own checksum
covers every byte of it.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mainstem.core.checksum import crc32c, crc32c_extended
from mainstem.core.errors import BackupUnusable
from mainstem.core.limits import MIB
from mainstem.core.plain import size_text
from mainstem.log.disk import Disk
from mainstem.log.folder import BACKUP_MANIFEST

FORMAT: Final = 1
# A block takes about 150 bytes: enough for 50 TB in blocks of the default size.
_MANIFEST_BYTES_MAX: Final = 64 * MIB
_PIECE_BYTES: Final = MIB
# How many damaged files one refusal names.
_NAMED_MAX: Final = 5

_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Number = Annotated[int, Meta(ge=0, lt=10**16)]
_Checksum = Annotated[int, Meta(ge=0, lt=1 << 32)]

_LEDGER_NAME = re.compile(r"ledger-[0-9]{16}-[0-9a-f]{8}\.db|ledger\.part")
_BLOCK_NAME = re.compile(r"([0-9]{16})-([0-9a-f]{8})\.block")
_BLOCK_PART_NAME = re.compile(r"[0-9]{16}\.part")
_MANIFEST_PART: Final = "manifest.part"


class StoredLedger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The copy of the ledger."""

    bytes: _Count
    crc32c: _Checksum


class StoredBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The copy of a block up to `bytes`. When and by which life of a writer it was opened tells it from a block of the
    same number that was written after a restore."""

    number: _Number
    bytes: _Count
    crc32c: _Checksum
    created_us: int
    writer_epoch: _Count

    @property
    def name(self) -> str:
        return f"blocks/{self.number:016d}-{self.crc32c:08x}.block"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup holds: the log `log` in epoch `epoch` of its ledger after flush `flush`."""

    format: int
    program: Annotated[str, Meta(max_length=100)]
    log: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    epoch: Annotated[int, Meta(ge=1, lt=1 << 31)]
    flush: _Number
    created_us: int
    ledger: StoredLedger
    blocks: tuple[StoredBlock, ...]

    @property
    def ledger_name(self) -> str:
        return f"ledger-{self.flush:016d}-{self.ledger.crc32c:08x}.db"

    def files(self) -> list[tuple[str, StoredLedger | StoredBlock]]:
        """The name and the facts of every file."""
        return [(self.ledger_name, self.ledger), *((block.name, block) for block in self.blocks)]

    @property
    def bytes(self) -> int:
        return sum(stored.bytes for _, stored in self.files())


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: the manifest behind its checksum."""

    crc32c: Annotated[str, Meta(pattern="^[0-9a-f]{8}$")]
    manifest: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True):
    """Of any version of a manifest, what all of them have."""

    format: int


class BackupFolder:
    """The files of one backup folder. One thread; `locked` keeps other processes away."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._manifest = path / BACKUP_MANIFEST

    @contextmanager
    def locked(self, *, writes: bool) -> Iterator[None]:
        """One process writes a backup folder, or several read it. The kernel lets go if the process ends."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if writes else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise BackupUnusable(
                f"{self.path} is in use by another backup or restore; try again when that has ended"
            ) from None
        finally:
            os.close(descriptor)

    # The manifest.

    def manifest(self) -> Manifest | None:
        """What the folder holds; None if no backup was completed in it. Refused if it cannot be trusted."""
        try:
            with _open_plain(self._manifest) as descriptor:
                size = os.fstat(descriptor).st_size
                content = b"" if size > _MANIFEST_BYTES_MAX else b"".join(_pieces(descriptor))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackupUnusable(f"{self._manifest} cannot be read: {_reason(error)}") from error
        return _parse(content, str(self._manifest))

    def require_manifest(self) -> Manifest:
        found = self.manifest()
        if found is None:
            raise BackupUnusable(
                f"{self.path} is not a complete backup: it has no {BACKUP_MANIFEST}; make one with: mainstem backup"
            )
        return found

    def write_manifest(self, manifest: Manifest) -> None:
        """From now on, durably, this is what the folder holds."""
        part = self.path / _MANIFEST_PART
        self._disk.write_new(part, [_render(manifest)])
        self._disk.replace(part, self._manifest)

    # Files.

    def prepare(self) -> None:
        """Make the folder if it is not there; refuse one that is something else."""
        self._disk.make_dirs(self.path)
        if not self._manifest.exists():
            strange = [name for name in sorted(os.listdir(self.path)) if not self._is_ours(name)]
            if strange:
                raise BackupUnusable(
                    f"{self.path} is not empty and not a backup (it has {strange[0]!r}); choose an empty folder, or a "
                    "new one"
                )
        self._require_folder()
        self._disk.make_dirs(self.path / "blocks")

    def _is_ours(self, name: str) -> bool:
        """Whether a backup that was cut short may have left this."""
        if name != "blocks":
            return bool(_LEDGER_NAME.fullmatch(name)) or name == _MANIFEST_PART
        blocks = self.path / name
        return blocks.is_dir() and all(map(_is_block_name, os.listdir(blocks)))

    def _require_folder(self) -> None:
        blocks = self.path / "blocks"
        if blocks.is_symlink() or (blocks.exists() and not blocks.is_dir()):
            raise BackupUnusable(f"{blocks} is not a folder of its own; a backup has no links")

    def part(self, block: int | None = None) -> Path:
        """Where a file is written until it is whole: that of a block, or the ledger's."""
        return self.path / ("ledger.part" if block is None else f"blocks/{block:016d}.part")

    def keep(self, part: Path, name: str) -> None:
        """The part is whole: durably under its name."""
        self._disk.replace(part, self.path / name)

    def has(self, name: str, size: int) -> bool:
        """Whether a plain file of this size is there."""
        try:
            found = os.lstat(self.path / name)
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == size

    def unnamed_blocks(self, manifest: Manifest | None) -> dict[int, list[tuple[str, int]]]:
        """Blocks that a backup which was cut short has left: for each number the names and the checksums in them."""
        named = set() if manifest is None else {block.name for block in manifest.blocks}
        found: dict[int, list[tuple[str, int]]] = {}
        for name in sorted(os.listdir(self.path / "blocks")):
            match = _BLOCK_NAME.fullmatch(name)
            if match and f"blocks/{name}" not in named:
                found.setdefault(int(match[1]), []).append((f"blocks/{name}", int(match[2], 16)))
        return found

    def remove_others(self, manifest: Manifest) -> int:
        """Remove the files of a backup that this manifest does not name; how many. Strange files are left alone."""
        named = {name for name, _ in manifest.files()}
        found = [name for name in os.listdir(self.path) if _LEDGER_NAME.fullmatch(name) or name == _MANIFEST_PART]
        found += [f"blocks/{name}" for name in os.listdir(self.path / "blocks") if _is_block_name(name)]
        others = [name for name in found if name not in named]
        for name in others:
            (self.path / name).unlink()
        return len(others)

    # Reading.

    def require_files(self, manifest: Manifest) -> None:
        """Every file is there, a file, and of its size; their content is checked when it is read."""
        self._require_folder()
        require_no_problems([self._problem(name, stored.bytes) for name, stored in manifest.files()], self.path)

    def _problem(self, name: str, size: int) -> str | None:
        try:
            with _open_plain(self.path / name) as descriptor:
                found = os.fstat(descriptor).st_size
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {_reason(error)}"
        return None if found == size else f"{name} has {found} bytes, not {size}"

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file; one that cannot be read is named."""
        try:
            with _open_plain(self.path / name) as descriptor:
                yield from _pieces(descriptor)
        except OSError as error:
            raise BackupUnusable(f"{self.path / name} cannot be read: {_reason(error)}") from error

    def is_sound(self, name: str, checksum: int) -> bool:
        """Whether the content of a file can be read and is what was written."""
        found = 0
        try:
            for piece in self.pieces(name):
                found = crc32c_extended(found, piece)
        except BackupUnusable:
            return False
        return found == checksum


def require_free(path: Path, needed: int, disk: Disk) -> None:
    """Refuse before anything is copied what cannot end well."""
    free = disk.free_bytes(path)
    if needed > free:
        raise BackupUnusable(f"{path} has {size_text(free)} free, {size_text(needed)} are needed")


def require_no_problems(found: Iterable[str | None], path: Path) -> None:
    """Refuse a backup that has any, naming the first of them."""
    problems = [problem for problem in found if problem is not None]
    if problems:
        more = f"; and {len(problems) - _NAMED_MAX} more" if len(problems) > _NAMED_MAX else ""
        raise BackupUnusable(
            f"the backup {path} is damaged: {'; '.join(problems[:_NAMED_MAX])}{more}. Nothing was restored; use "
            "another backup"
        )


def _is_block_name(name: str) -> bool:
    return bool(_BLOCK_NAME.fullmatch(name) or _BLOCK_PART_NAME.fullmatch(name))


def _render(manifest: Manifest) -> bytes:
    inner = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return msgspec.json.encode(_Sealed(f"{crc32c(inner):08x}", msgspec.Raw(inner))) + b"\n"


def _parse(content: bytes, where: str) -> Manifest:
    advice = "the backup cannot be trusted; use another, or make a new one in an empty folder"
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        inner = bytes(sealed.manifest)
        if sealed.crc32c != f"{crc32c(inner):08x}":
            raise BackupUnusable(f"{where} is damaged: its checksum does not fit; {advice}")
        version = msgspec.json.decode(inner, type=_Versioned).format
        if version > FORMAT:
            raise BackupUnusable(
                f"{where} has format {version}, this program reads up to format {FORMAT}; use a newer Mainstem"
            )
        manifest = msgspec.json.decode(inner, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupUnusable(f"{where} is damaged: {error}; {advice}") from None
    if _render(manifest) != content:
        raise BackupUnusable(f"{where} is damaged: it is not as it was written; {advice}")
    numbers = [block.number for block in manifest.blocks]
    if numbers != sorted(set(numbers)):
        raise BackupUnusable(f"{where} is damaged: it names a block twice or out of order; {advice}")
    return manifest


@contextmanager
def _open_plain(path: Path) -> Iterator[int]:
    """A file to read. What is a link, a pipe or a device is refused: it is not what a backup wrote."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _pieces(descriptor: int) -> Iterator[bytes]:
    while piece := os.read(descriptor, _PIECE_BYTES):
        yield piece


def _reason(error: OSError) -> str:
    return "it is a link" if error.errno == errno.ELOOP else str(error.strerror or error)
