"""The ledger that one process writes: commits, checkpoints, and the way from an older format."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from mainstem.core.errors import FolderUnusable, LedgerDamaged
from mainstem.log.ledger import wal
from mainstem.log.ledger.base import Changes
from mainstem.log.ledger.sqlite.changes import store_changes
from mainstem.log.ledger.sqlite.connections import READ_BUSY_MS, Translated, load_checksum_vfs
from mainstem.log.ledger.sqlite.reader import SqliteLedgerReader
from mainstem.log.ledger.sqlite.tables import LEDGER_FORMAT, SCHEMA, UPGRADES

_CHECKPOINT_BUSY_MS = 50
_PAGE_BYTES = 4_096
_WAL_FRAME_BYTES = wal.FRAME_HEADER_BYTES + _PAGE_BYTES


class SqliteLedger(SqliteLedgerReader):
    """The writer's connection. One thread calls `store` and `checkpoint`."""

    def __init__(self, path: Path, vfs: str | None = None) -> None:
        super().__init__(path, read_only=False, vfs=vfs)
        self._wal = path.with_name(path.name + "-wal")
        # Frames in the WAL that wait for a checkpoint; None before our first commit.
        self._wal_frames: int | None = None
        # The last flush in the database file, if the next commit is to say that the WAL builds on it.
        self._wal_base: int | None = None
        try:
            with Translated(path):
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def create(cls, path: Path, *, log_uuid: str, epoch: int, vfs: str | None = None) -> "SqliteLedger":
        """A new, empty ledger. The path must not exist."""
        assert not path.exists()
        load_checksum_vfs()
        with Translated(path):
            db = apsw.Connection(str(path), vfs=vfs)
            try:
                cls._fill(db, [("format", LEDGER_FORMAT), ("uuid", log_uuid), ("epoch", epoch)])
            finally:
                db.close()
        return cls(path, vfs)

    @staticmethod
    def _fill(db: apsw.Connection, meta: Sequence[tuple[str, object]]) -> None:
        db.reserve_bytes(reserve=8)
        db.pragma("page_size", _PAGE_BYTES)
        db.pragma("journal_mode", "wal")
        with db:
            db.execute(SCHEMA)
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta)
            db.execute("INSERT INTO applied VALUES (0, 0, 0)")
        # The schema goes into the database file at once: until then the file alone is not a ledger.
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _prepare(self) -> None:
        db = self._db
        if str(db.pragma("checksum_verification")) != "1":
            raise LedgerDamaged(f"{self.path.name} was written without page checksums")
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "normal")
        db.pragma("wal_autocheckpoint", 0)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_wal_hook(self._on_wal)
        keep = ctypes.c_int(1)
        db.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))
        found = self._format()
        if not 1 <= found <= LEDGER_FORMAT:
            raise FolderUnusable(
                f"{self.path} has ledger format {found}, this program reads up to format {LEDGER_FORMAT}; use a newer "
                "Mainstem"
            )

    def upgrade(self) -> None:
        """Bring a ledger of an earlier format to the present one. Before that, only what it says of itself can be
        asked: `applied`, `epoch`, `log_uuid`, `wal_base`, `check_pages`.

        This may be the first commit of a WAL, and says what that builds on: the files are known to be sound by then.
        """
        found = self._format()
        if found == LEDGER_FORMAT:
            return
        with self._lock, Translated(self.path, self._db):
            with self._db:
                for older in range(found, LEDGER_FORMAT):
                    self._db.execute(UPGRADES[older])
                self._db.execute("UPDATE meta SET v = ? WHERE k = 'format'", (LEDGER_FORMAT,))
                if self._wal_base is not None:
                    self._db.execute("INSERT OR REPLACE INTO meta VALUES ('wal_base', ?)", (self._wal_base,))
            self._wal_base = None

    def wal_base(self) -> int:
        """The WAL is of use only on a database file that holds this flush; 0 if it does not say."""
        rows = self._rows("SELECT v FROM meta WHERE k = 'wal_base'")
        return int(rows[0][0]) if rows else 0

    def builds_on(self, number: int) -> None:
        """The database file holds flush `number`: the next commit says that the WAL builds on that."""
        self._wal_base = number

    def _on_wal(self, db: Any, name: str, frames: int) -> int:
        self._wal_frames = frames
        return apsw.SQLITE_OK

    def store(self, changes: Changes) -> None:
        with self._lock, Translated(self.path, self._db):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                store_changes(self._db.execute, changes)
                if self._wal_base is not None:
                    self._db.execute("INSERT OR REPLACE INTO meta VALUES ('wal_base', ?)", (self._wal_base,))
                self._db.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite may have rolled back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._wal_base = None

    def wal_bytes(self) -> int:
        """Bytes of the WAL that wait for a checkpoint."""
        if self._wal_frames is not None:
            return self._wal_frames * _WAL_FRAME_BYTES
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self) -> bool:
        """Copy the WAL into the database file, after verifying it; True if all of it is there now, durably.

        The WAL is left as it is, and written from its beginning by the next commit: a database file that a checkpoint
        was writing to, beside a WAL without a frame, is never what this leaves.
        """
        with self._lock, Translated(self.path, self._db):
            self._verify_wal()
            # Readers hold it up for moments only; one that was stopped in the middle must not hold up commits.
            self._db.set_busy_timeout(_CHECKPOINT_BUSY_MS)
            try:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            except apsw.BusyError:
                return False
            finally:
                self._db.set_busy_timeout(READ_BUSY_MS)
            self._wal_frames = 0
            self.builds_on(int(next(iter(self._db.execute("SELECT number FROM applied")))[0]))
            return True

    def _verify_wal(self) -> None:
        report = wal.verify(self._wal, frames_expected=self._wal_frames)
        if report.damaged_at is not None:
            raise LedgerDamaged(f"{self._wal.name} is damaged at byte {report.damaged_at}")

    def check_pages(self) -> None:
        """Read every page; LedgerDamaged if one does not match its checksum or the tree is not sound."""
        rows = self._rows("PRAGMA quick_check(1)")
        if rows != [("ok",)]:
            raise LedgerDamaged(f"{self.path.name}: {rows[0][0] if rows else 'unreadable'}")
