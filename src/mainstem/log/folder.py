"""The data folder: what is where, whose it is, and that only one process writes it.

mainstem.json              format version, the log's UUID and a checksum of both; whether there are blocks
lock                       says which process writes, and a word that it drew when it began
ballast                    holds nothing but room, which is given up when the disk is full
ledger.db, -wal, -shm      the ledger
snapshots/ledger-<n>.db    copies of it
blocks/<n>.block           the blocks
before-format-<n>/         the folder as it was before it was upgraded to that format
"""

import errno
import fcntl
import json
import logging
import os
import shlex
import uuid
from pathlib import Path
from typing import Final, NoReturn

from mainstem.core.checksum import crc32c
from mainstem.core.errors import FolderLocked, FolderUnusable
from mainstem.core.events import Event
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.disk import Disk, is_out_of_space
from mainstem.log.frame import FrameDamaged
from mainstem.log.ledger.sqlite import format_without_wal
from mainstem.log.scan import BlockScanner
from mainstem.log.snapshots import Snapshots
from mainstem.log.upgrade import Backup

logger = logging.getLogger("mainstem.log")

FORMAT: Final = 6
# What says which log a data folder holds.
IDENTITY: Final = "mainstem.json"
# What says who writes a data folder.
LOCK_NOTE: Final = "lock"
# What a backup folder has and a data folder has not.
BACKUP_MANIFEST: Final = "manifest.json"


class Folder:
    """Paths and identity of one data folder."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.disk = disk
        self.ledger = path / "ledger.db"
        self.blocks = LocalBlocks(path / "blocks", disk)
        self.snapshots = Snapshots(path / "snapshots", disk)
        self._identity = path / IDENTITY
        self._log_uuid = ""
        # Whether mainstem.json says that there are blocks.
        self._has_noted_blocks = False
        # The format that it says; None if there is none, or if it is damaged.
        self._format: int | None = None

    def prepare(self) -> str:
        """Make the folder if it is new, upgrade it if it is of an older format; return the log's UUID. The caller holds
        the lock."""
        require_no_backup(self.path)
        for name in ("blocks", "snapshots"):
            self.disk.make_dirs(self.path / name)
        found = self._read_identity() or self._identity_of_blocks()
        if not self.blocks.list():
            self._require_new()
        if found is None:
            if self.ledger.exists():
                raise FolderUnusable(
                    f"{self.path} has a ledger.db and neither mainstem.json nor blocks: the records are gone; "
                    "bring the blocks folder back, or choose an empty folder"
                )
            found = uuid.uuid4().hex
        self._log_uuid = found
        if self._found_format() < FORMAT:
            self._upgrade()
        elif not self._identity.exists():
            self._write_identity()
        return found

    def _found_format(self) -> int:
        """What mainstem.json says; without it, what the ledger says, which is always of the folder's format or the one
        before."""
        if self._format is not None:
            return self._format
        return min(format_without_wal(self.ledger) or FORMAT, FORMAT)

    def _upgrade(self) -> None:
        """Keep the folder as it is, then say the new format. The ledger follows when it is opened."""
        old, backup = self._found_format(), Backup(self.path, self.disk, FORMAT)
        backup.take()
        try:
            self._write_identity()
        except OSError as error:
            raise FolderUnusable(
                f"{self.path} cannot be upgraded from format {old} to {FORMAT}: {error.strerror or error}; start again "
                f"when that is mended, it goes on from {backup.path.name}"
            ) from error
        logger.warning(
            Event(
                f"data folder upgraded from format {old} to {FORMAT}; as it was before it is kept until you delete it",
                folder=self.path,
                command=f"rm -r {shlex.quote(str(backup.path.absolute()))}",
            )
        )

    def note_block(self) -> None:
        """A block is there, durably: from now on a folder without any is one that somebody took them from.

        Before that it is one whose first start was cut short.
        """
        if not self._has_noted_blocks:
            self._has_noted_blocks = True
            try:
                self._write_identity()
            except OSError:
                self._has_noted_blocks = False
                raise

    def _require_new(self) -> None:
        """Without a block there is nothing that only a log which had blocks leaves behind."""
        snapshot = max(self.snapshots.numbers(), default=0)
        if not snapshot and not self._has_noted_blocks:
            return
        what = f"flushes 1 to {snapshot} at least" if snapshot else "flush 1 and what came after it"
        source = self.snapshots.path(snapshot).name if snapshot else self._identity.name
        raise FolderUnusable(
            f"{self.blocks.where(1)} and all blocks after it are missing, though {source} says that they were "
            f"written: {what} are gone. Bring the files back, or choose an empty folder; nothing was changed"
        )

    def require(self) -> str:
        """The UUID of an existing log, for readers."""
        found = self._read_identity()
        if found is None:
            require_no_backup(self.path)
            self._refuse_without_identity()
        if self._format is not None and self._format < FORMAT:
            raise FolderUnusable(
                f"{self.path} has format {self._format}, this program reads format {FORMAT}, and who only reads cannot "
                f"upgrade it: open the folder once for writing (mainstem serve --data {shlex.quote(str(self.path))})"
            )
        return found

    def _refuse_without_identity(self) -> NoReturn:
        if not has_log(self.path):
            raise FolderUnusable(f"{self.path} is not a Mainstem data folder: it has no mainstem.json")
        folder = shlex.quote(str(self.path))
        if (self.path / "blocks").exists() and self._identity_of_blocks() is not None:
            raise FolderUnusable(
                f"there is a log in {self.path}, and its mainstem.json is missing; the blocks say which log this is, "
                f"and the next start writes it anew: mainstem serve --data {folder}"
            )
        raise FolderUnusable(
            f"there is a log in {self.path}, but its mainstem.json is missing, and no block says which log this is; "
            f"mainstem doctor --data {folder} says more"
        )

    def _read_identity(self) -> str | None:
        try:
            content = self._identity.read_bytes()
        except FileNotFoundError:
            return None
        identity = parse_identity(content)
        if identity is None:
            # The file only repeats what every block says of itself.
            logger.warning(Event("identity file damaged; the blocks say which log this is", file=self._identity))
            return self._identity_of_blocks() or _unreadable(self._identity)
        self._format, log_uuid, self._has_noted_blocks = identity
        if self._format > FORMAT:
            raise FolderUnusable(
                f"{self.path} has format {self._format}, this program reads up to format {FORMAT}; use a newer Mainstem"
            )
        return log_uuid

    def _identity_of_blocks(self) -> str | None:
        for block in self.blocks.list():
            try:
                return BlockScanner(self.blocks, block).header().log_uuid.hex()
            except FrameDamaged:
                continue
        return None

    def _write_identity(self) -> None:
        part = self._identity.with_suffix(".part")
        self.disk.write_new(part, [identity_content(self._log_uuid, has_blocks=self._has_noted_blocks)])
        self.disk.replace(part, self._identity)


def word_of_writer(path: Path) -> str:
    """The word that the writer of a folder drew, or the last one; "" if there is none to be seen."""
    try:
        return (path / LOCK_NOTE).read_text(errors="replace").partition("\n")[2].strip()
    except OSError:
        return ""


def has_log(path: Path) -> bool:
    """Whether something of a log is in a folder, though perhaps not all of it."""
    return any((path / name).exists() for name in (IDENTITY, "ledger.db", "blocks"))


def require_no_backup(path: Path) -> None:
    """Refuse a backup where a data folder is wanted: it cannot be served as it is, and must not be changed."""
    if (path / BACKUP_MANIFEST).exists() and not (path / IDENTITY).exists():
        raise FolderUnusable(
            f"{path} is a backup, not a data folder; bring it back with: mainstem restore {shlex.quote(str(path))} "
            "--data FOLDER"
        )


def identity_content(log_uuid: str, *, has_blocks: bool) -> bytes:
    """What mainstem.json says of a log."""
    content = {"format": FORMAT, "uuid": log_uuid, "check": _identity_check(FORMAT, log_uuid), "blocks": has_blocks}
    return json.dumps(content).encode() + b"\n"


def parse_identity(content: bytes) -> tuple[int, str, bool] | None:
    """Format, UUID and whether there are blocks, or None if this is not what was written."""
    try:
        fields = json.loads(content)
        version, log_uuid = int(fields["format"]), uuid.UUID(fields["uuid"]).hex
        is_sound = fields["check"] == _identity_check(version, log_uuid)
        # Folders that were made before this was noted do not say it until their next block.
        has_blocks = fields.get("blocks") is True
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return (version, log_uuid, has_blocks) if is_sound else None


def _identity_check(version: int, log_uuid: str) -> str:
    return f"{crc32c(f'{version} {log_uuid}'.encode()):08x}"


def _unreadable(path: Path) -> str:
    raise FolderUnusable(f"{path} cannot be read and no block says which log this is; bring the file back from a copy")


class FolderLock:
    """Held by the one process that writes a folder. Released by the kernel when that process ends, however it ends.

    It is the folder itself that is locked: a file in it could be deleted and made anew under a running writer. The file
    `lock` only says who that is, and a word that this writer drew: whoever is told the word and finds it in a folder
    sees the folder that is being written, and not a copy that somebody else writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.word = uuid.uuid4().hex
        note = path / LOCK_NOTE
        try:
            with open(note, "ab"):
                pass  # whether we may write here at all
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise FolderLocked(
                f"{path} may not be written by this user ({error.strerror}); open it with read_only=True"
            ) from None
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise FolderLocked(_who_writes(path, note)) from None
        try:
            note.write_text(f"process {os.getpid()}\n{self.word}\n")
        except OSError as error:
            # The lock is held; a full disk is no reason not to say so to nobody.
            if not is_out_of_space(error):
                raise

    def release(self) -> None:
        """Let another process write. In a child made by fork: let go of the copy without releasing the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _who_writes(path: Path, note: Path) -> str:
    holder = note.read_text(errors="replace").partition("\n")[0].strip()[:64] or "another process"
    if holder == f"process {os.getpid()}":
        return f"{path} is open in this process already; use that hub, or open the folder with read_only=True"
    return (
        f"{path} is being written by {holder}; only one process writes a data folder. If that is a server (mainstem "
        "serve), go through it by its address, such as mainstem://127.0.0.1:7070 (in Python mainstem.connect); else "
        "open the folder with read_only=True, or stop that process first"
    )
