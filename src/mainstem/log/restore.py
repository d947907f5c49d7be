"""Brings a data folder back from a backup, as a new epoch of its log.

Everything is checked while it is copied into a folder beside the target, and only when all of it is sound does that
folder get the target's name. What was written after the backup is not in the log any more, and what comes now gets the
same offsets: so the ledger begins a new epoch and notes where every shard ended, by which a cursor from after the
backup is recognised.

A restore that fails leaves nothing. One that is killed leaves the target as it was, and its own folder, which a file in
it says; the next one removes it.
"""

import fcntl
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstem.core.checksum import crc32c_extended
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import BackupUnusable, LedgerDamaged
from mainstem.log.backup_folder import BackupFolder, Manifest, require_free, require_no_problems
from mainstem.log.blocks.local import block_name
from mainstem.log.disk import Disk, LocalDisk, sync_dir
from mainstem.log.flush import BeginEpoch, ForgetBlock
from mainstem.log.folder import BACKUP_MANIFEST, IDENTITY, identity_content
from mainstem.log.ledger.sqlite import LedgerCopy, read_copy
from mainstem.log.log import Log

Progress = Callable[[int, int], None]

_BUILDING_SUFFIX: Final = ".restoring"
# In the folder that is being built, so that nothing else is ever taken for one and removed.
_MARKER: Final = "restoring"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore brought back: the log after `flush`, now in `epoch` of its ledger."""

    log: str
    epoch: int
    flush: int
    created_us: int
    files: int
    bytes: int
    seconds: float


def restore(
    source: Path,
    target: Path,
    progress: Progress = lambda done, total: None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    disk: Disk | None = None,
) -> RestoreReport:
    """Make the data folder `target`, which must be missing or empty, from the backup in `source`.

    `progress` is told how many bytes of how many are copied. `created_us` of the report is when the backup was made.
    """
    disk = disk or LocalDisk()
    began = clock.monotonic()
    if not source.is_dir():
        raise BackupUnusable(f"there is no backup in {source}")
    _require_backup(source)
    store = BackupFolder(source, disk)
    target = target.resolve()
    _require_apart(source.resolve(), target)
    _require_empty(target)
    with store.locked(writes=False):
        manifest = store.require_manifest()
        store.require_files(manifest)
        with _building(target, manifest, disk) as building:
            _Restore(store, manifest, building, progress, disk).run()
            epoch = _begin_epoch(building, manifest, clock, disk)
            _put_in_place(building, target)
    seconds = clock.monotonic() - began
    return RestoreReport(
        manifest.log, epoch, manifest.flush, manifest.created_us, len(manifest.files()), manifest.bytes, seconds
    )


def _require_backup(source: Path) -> None:
    """A data folder has blocks and a ledger too, and is locked while somebody writes it."""
    if (source / IDENTITY).exists() and not (source / BACKUP_MANIFEST).exists():
        raise BackupUnusable(
            f"{source} is a data folder, not a backup; serve it as it is, or copy it with: mainstem backup DIR --data "
            f"{shlex.quote(str(source))}"
        )


def _require_apart(source: Path, target: Path) -> None:
    if target == source or source in target.parents or target in source.parents:
        raise BackupUnusable(f"{target} and the backup {source} lie in each other; restore to a folder elsewhere")


def _require_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or os.listdir(target)):
        raise BackupUnusable(
            f"{target} is there and not empty; a restore never writes over anything: move it away, or name another "
            "folder"
        )


@contextmanager
def _building(target: Path, manifest: Manifest, disk: Disk) -> Iterator[Path]:
    """A folder beside the target with nothing in it, and no other restore at work there."""
    building = target.with_name(target.name + _BUILDING_SUFFIX)
    _require_space(target.parent, manifest, disk)
    if building.exists() and not (building / _MARKER).is_file() and os.listdir(building):
        raise BackupUnusable(f"{building} is in the way, and no restore has made it; move it elsewhere")
    disk.make_dirs(building)
    marker = os.open(building / _MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(marker, building)
        for left in building.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != _MARKER:
                left.unlink()
        try:
            for name in ("blocks", "snapshots"):
                disk.make_dirs(building / name)
            yield building
        except BaseException as error:
            _remove(building, error)
            raise
    finally:
        os.close(marker)


def _remove(building: Path, error: BaseException) -> None:
    """Nothing in it is of use: what failed once is made from its beginning again."""
    shutil.rmtree(building, ignore_errors=True)
    if building.exists():
        error.add_note(f"{building} could not be removed; the next restore does it, or: rm -r {building}")


def _lock(marker: int, building: Path) -> None:
    """The kernel lets go of it if the process ends."""
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(marker), os.stat(building / _MARKER))
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    if not is_ours:
        raise BackupUnusable(f"another restore is at work in {building}; let it end")


def _require_space(folder: Path, manifest: Manifest, disk: Disk) -> None:
    disk.make_dirs(folder)
    # The ledger is stored twice, as itself and as the snapshot from which it could be rebuilt.
    needed = manifest.bytes + manifest.ledger.bytes
    require_free(folder, needed, disk)


class _Restore:
    """The copy from the backup to the folder that is being built."""

    def __init__(self, store: BackupFolder, manifest: Manifest, building: Path, progress: Progress, disk: Disk) -> None:
        self._store = store
        self._manifest = manifest
        self._building = building
        self._progress = progress
        self._disk = disk
        self._done = 0

    def run(self) -> None:
        manifest, building = self._manifest, self._building
        problems = [self._copy(manifest.ledger_name, manifest.ledger.crc32c, building / "ledger.db")]
        problems += [
            self._copy(block.name, block.crc32c, building / "blocks" / block_name(block.number))
            for block in manifest.blocks
        ]
        require_no_problems(problems, self._store.path)
        self._check_ledger(_read_ledger(building / "ledger.db", manifest.ledger_name))
        if manifest.flush:
            # Without one, a ledger that is damaged later could not be rebuilt: blocks of before may be gone.
            snapshot = building / "snapshots" / f"ledger-{manifest.flush:016d}.db"
            self._write(self._store.pieces(manifest.ledger_name), snapshot)
        identity = identity_content(manifest.log, has_blocks=bool(manifest.blocks))
        self._write(iter([identity]), building / "mainstem.json")

    def _copy(self, name: str, expected: int, target: Path) -> str | None:
        """Copy a file; what is wrong with it, if anything."""
        checksum = 0

        def checked() -> Iterator[bytes]:
            nonlocal checksum
            for piece in self._store.pieces(name):
                checksum = crc32c_extended(checksum, piece)
                self._done += len(piece)
                self._progress(min(self._done, self._manifest.bytes), self._manifest.bytes)
                yield piece

        self._write(checked(), target)
        return None if checksum == expected else f"{name} is not what was written: its checksum does not fit"

    def _write(self, pieces: Iterator[bytes], target: Path) -> None:
        part = target.with_name(target.name + ".part")
        self._disk.write_new(part, pieces)
        self._disk.replace(part, target)

    def _check_ledger(self, found: LedgerCopy) -> None:
        """Manifest and ledger are of one backup."""
        manifest, name = self._manifest, self._manifest.ledger_name
        problems: list[str | None] = []
        if (found.log_uuid, found.epoch, found.applied.number) != (manifest.log, manifest.epoch, manifest.flush):
            problems.append(f"{name} is the ledger of another backup")
        there = {block.number: block.bytes for block in manifest.blocks}
        needed = [row for row in found.blocks if not row.dead_us or row.id == found.applied.block]
        problems += [
            f"manifest.json lacks block {row.id}, which {name} needs"
            for row in needed
            if row.id not in there or there[row.id] < row.bytes
        ]
        require_no_problems(problems, self._store.path)


def _read_ledger(path: Path, name: str) -> LedgerCopy:
    """What the copied ledger holds."""
    try:
        return read_copy(path)
    except LedgerDamaged as error:
        raise BackupUnusable(f"{name} of the backup is no ledger: {error}") from error


def _begin_epoch(building: Path, manifest: Manifest, clock: Clock, disk: Disk) -> int:
    """Open the log as it was, so that it proves itself, and let it begin the next epoch."""
    there = {block.number for block in manifest.blocks}
    with closing(Log(building, clock=clock, disk=disk)) as log:
        epoch = manifest.epoch + 1
        log.execute(BeginEpoch(epoch, clock.now_us()))
        # Blocks in which nothing was alive were left out: their rows are all there is of them.
        for row in log.ledger.list_blocks():
            if row.dead_us and row.id not in there:
                log.execute(ForgetBlock(row.id))
    return epoch


def _put_in_place(building: Path, target: Path) -> None:
    """All of it is durable: give it its name."""
    for folder in (building / "blocks", building / "snapshots", building):
        sync_dir(folder)
    os.rename(building, target)
    sync_dir(target.parent)
    (target / _MARKER).unlink()
