"""Makes the ledger of a stopped data folder anew, as a start does when it cannot trust the one that is there."""

from dataclasses import dataclass
from pathlib import Path

from mainstem.core.errors import FolderUnusable
from mainstem.log.disk import LocalDisk
from mainstem.log.folder import Folder, FolderLock
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.log.log import LEDGER_EPOCH_FIRST
from mainstem.log.recovery import Recovery


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How many flushes were read from the blocks, the last one, and where the old ledger is kept, if there was one."""

    flushes: int
    applied: int
    kept_in: str


def rebuild(path: Path) -> Rebuilt:
    """FolderLocked while a process writes the folder; FolderUnusable, and nothing changed, if flushes are missing."""
    if not (path / "blocks").is_dir():
        raise FolderUnusable(f"{path} has no blocks to make a ledger from")
    lock = FolderLock(path)
    try:
        folder = Folder(path, LocalDisk())
        try:
            return _rebuild(folder)
        finally:
            folder.blocks.close()
    finally:
        lock.release()


def _rebuild(folder: Folder) -> Rebuilt:
    log_uuid = folder.prepare()
    if not folder.blocks.list():
        raise FolderUnusable(f"{folder.path} has no blocks to make a ledger from")
    aside_before = set(_put_aside(folder.path))
    recovery = Recovery(folder.ledger, folder.snapshots, folder.blocks, log_uuid, LEDGER_EPOCH_FIRST)
    flushes = recovery.rebuild()
    ledger = SqliteLedger(folder.ledger)
    try:
        applied = ledger.applied().number
    finally:
        ledger.close()
    kept_in = next(iter(set(_put_aside(folder.path)) - aside_before), "")
    return Rebuilt(flushes, applied, kept_in)


def _put_aside(path: Path) -> list[str]:
    return [found.name for found in path.glob("damaged-*")]
