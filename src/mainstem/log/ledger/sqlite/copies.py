"""Copies of a ledger, and what its database file says without its WAL."""

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import apsw

from mainstem.core.errors import FolderUnusable, LedgerDamaged
from mainstem.log.ledger import wal
from mainstem.log.ledger.base import AppliedPlace, BlockRow
from mainstem.log.ledger.sqlite.connections import READ_BUSY_MS, Translated, connect_unchanging, load_checksum_vfs
from mainstem.log.ledger.sqlite.tables import BLOCK_COLUMNS, LEDGER_FORMAT

# How often a WAL that somebody writes is read again before it is called damaged.
_WAL_LOOKS_MAX = 10


class LedgerCopy(NamedTuple):
    """What a copy of a ledger holds: after which flush, of which log, and the blocks it knows."""

    log_uuid: str
    epoch: int
    applied: AppliedPlace
    blocks: tuple[BlockRow, ...]


def copy_ledger(source: Path, target: Path) -> LedgerCopy:
    """The ledger as it is after one flush, as one file that needs no WAL, also beside a process that writes it.

    `target` must not exist; it is not durable when this returns.
    """
    load_checksum_vfs()
    with Translated(source), closing(_connect_to_copy(source)) as db, closing(apsw.Connection(str(target))) as made:
        # Nothing reads the copy before it is complete, and the caller makes it durable.
        made.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF")
        with db:
            # While this transaction reads, nothing that it needs of the WAL is overwritten.
            list(db.execute("SELECT number FROM applied"))
            _require_sound_wal(source)
            with made.backup("main", db, "main") as copying:
                try:
                    copying.step(-1)
                except apsw.FullError:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from None
    with Translated(source), closing(connect_unchanging(target)) as copied:
        # A cut file is copied as if the rest had never been: a copy that is not whole must not take a good one's place.
        found = [row[0] for row in copied.execute("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise LedgerDamaged(f"{source.name} is damaged: {' '.join(str(found[0]).split())}; run mainstem doctor")
    return read_copy(target)


def read_copy(path: Path) -> LedgerCopy:
    """What a file that `copy_ledger` made holds. Nothing is written beside it."""
    load_checksum_vfs()
    with Translated(path), closing(connect_unchanging(path)) as db:
        meta = dict(db.execute("SELECT k, v FROM meta"))
        if meta["format"] != LEDGER_FORMAT:
            raise FolderUnusable(
                f"{path} has ledger format {meta['format']}; this program works with format {LEDGER_FORMAT}. "
                "Serving an older folder once (mainstem serve) brings it up to date"
            )
        applied = AppliedPlace._make(next(iter(db.execute("SELECT number, block, commit_position FROM applied"))))
        rows = db.execute(f"SELECT {BLOCK_COLUMNS} FROM blocks ORDER BY id")
        return LedgerCopy(meta["uuid"], meta["epoch"], applied, tuple(BlockRow._make(row) for row in rows))


def place_without_wal(path: Path) -> AppliedPlace:
    """The last flush in the database file alone, as the last checkpoint left it."""
    load_checksum_vfs()
    with Translated(path):
        db = connect_unchanging(path)
        try:
            rows = db.execute("SELECT number, block, commit_position FROM applied")
            return AppliedPlace._make(next(iter(rows), (0, 0, 0)))
        finally:
            db.close()


def format_without_wal(path: Path) -> int | None:
    """The format of the database file alone; None if it is not there or cannot be read."""
    load_checksum_vfs()
    try:
        db = connect_unchanging(path)
        try:
            return int(next(iter(db.execute("SELECT v FROM meta WHERE k = 'format'")))[0])
        finally:
            db.close()
    except (apsw.Error, StopIteration, TypeError, ValueError):
        return None


def _connect_to_copy(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(READ_BUSY_MS)
    return db


def _require_sound_wal(ledger: Path) -> None:
    """A flipped bit in the WAL would get a valid page checksum in the copy."""
    path = ledger.with_name(ledger.name + "-wal")
    for _ in range(_WAL_LOOKS_MAX):
        # A frame that was being written while we read looks like damage; then it does not the next time.
        damaged_at = wal.verify(path).damaged_at
        if damaged_at is None:
            return
    raise LedgerDamaged(f"{path.name} is damaged at byte {damaged_at}")
