"""The ledger in SQLite, with a checksum on every page.

Files: `ledger.db`, `ledger.db-wal`, `ledger.db-shm`. One process writes; others on the same machine may read, also
without the right to write in the folder, because the WAL files are kept when the writer stops.

SQLite never syncs on commit here: the blocks hold every flush, and recovery applies again what SQLite lost. It syncs
only around a checkpoint (synchronous=NORMAL), which is ours to start: before one, the chain of checksums of the WAL is
verified, because SQLite's page checksums do not cover the WAL and a checkpoint would give a flipped bit a valid one.
"""

import ctypes
import errno
import functools
import json
import os
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import apsw
import apsw.sqlite_extra

from mainstem.core.errors import Closed, FolderUnusable, LedgerDamaged
from mainstem.core.limits import PRODUCER_RECENT_MAX
from mainstem.core.schema import Schema
from mainstem.core.statistics import length_of
from mainstem.log.ledger import wal
from mainstem.log.ledger.base import (
    AppliedPlace,
    BlockRow,
    BlockTotals,
    Changes,
    Entry,
    GenerationRow,
    OldestEntries,
    ProducerKey,
    ProducerRow,
    ShardKey,
    ShardRow,
    StreamRow,
    VersionRow,
)

LEDGER_FORMAT: Final = 3

_SCHEMA = """
CREATE TABLE meta(k TEXT PRIMARY KEY, v) WITHOUT ROWID;
CREATE TABLE applied(number INTEGER NOT NULL, block INTEGER NOT NULL, commit_position INTEGER NOT NULL);
CREATE TABLE streams(
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, name TEXT NOT NULL, shards INTEGER NOT NULL, hash TEXT NOT NULL,
    generation INTEGER NOT NULL, schema_id INTEGER NOT NULL, retention_us INTEGER NOT NULL, created_us INTEGER NOT NULL,
    deleted_us INTEGER NOT NULL, retention_bytes INTEGER NOT NULL, cleanup TEXT NOT NULL,
    tombstone_us INTEGER NOT NULL, schema_version INTEGER NOT NULL, key_columns TEXT NOT NULL,
    index_columns TEXT NOT NULL, compatibility TEXT NOT NULL);
CREATE UNIQUE INDEX streams_by_name ON streams(name) WHERE deleted_us = 0;
CREATE TABLE schemas(id INTEGER PRIMARY KEY, arrow BLOB NOT NULL, fingerprint BLOB NOT NULL UNIQUE);
CREATE TABLE generations(
    stream INTEGER, generation INTEGER, shards INTEGER NOT NULL, barriers BLOB NOT NULL,
    PRIMARY KEY(stream, generation)) WITHOUT ROWID;
CREATE TABLE shards(
    stream INTEGER, shard INTEGER, start INTEGER NOT NULL, next INTEGER NOT NULL, stable INTEGER NOT NULL,
    time_high INTEGER NOT NULL, bytes INTEGER NOT NULL, merged INTEGER NOT NULL, compacted INTEGER NOT NULL,
    PRIMARY KEY(stream, shard)) WITHOUT ROWID;
CREATE TABLE blocks(
    id INTEGER PRIMARY KEY, writer_epoch INTEGER NOT NULL, state TEXT NOT NULL, bytes INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL, created_us INTEGER NOT NULL, dead_us INTEGER NOT NULL, rewrite_us INTEGER NOT NULL);
CREATE TABLE entries(
    stream INTEGER, shard INTEGER, base INTEGER, span INTEGER NOT NULL, count INTEGER NOT NULL, block INTEGER NOT NULL,
    position INTEGER NOT NULL, length INTEGER NOT NULL, time_high INTEGER NOT NULL, schema_id INTEGER NOT NULL,
    txn INTEGER NOT NULL, stats BLOB, PRIMARY KEY(stream, shard, base)) WITHOUT ROWID;
CREATE TABLE producers(
    pid INTEGER, stream INTEGER, shard INTEGER, epoch INTEGER NOT NULL, recent BLOB NOT NULL, seen_us INTEGER NOT NULL,
    PRIMARY KEY(pid, stream, shard)) WITHOUT ROWID;
CREATE TABLE txns(
    id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, epoch INTEGER NOT NULL, state TEXT NOT NULL,
    deadline_us INTEGER NOT NULL, touched BLOB NOT NULL);
CREATE TABLE cursors(
    grp TEXT, stream INTEGER, shard INTEGER, offset INTEGER NOT NULL, generation INTEGER NOT NULL,
    at_us INTEGER NOT NULL, PRIMARY KEY(grp, stream, shard)) WITHOUT ROWID;
"""
# What a ledger of format 2 has and one of format 1 had not, beside more columns.
_SCHEMA_2 = """
CREATE TABLE dead(
    block INTEGER, stream INTEGER, bytes INTEGER NOT NULL, PRIMARY KEY(block, stream)) WITHOUT ROWID;
CREATE TABLE restored(
    epoch INTEGER, stream INTEGER, shard INTEGER, stop INTEGER NOT NULL,
    PRIMARY KEY(epoch, stream, shard)) WITHOUT ROWID;
"""
# The same of format 3.
_SCHEMA_3 = """
CREATE TABLE stream_schemas(
    stream INTEGER, version INTEGER, schema_id INTEGER NOT NULL, created_us INTEGER NOT NULL,
    PRIMARY KEY(stream, version)) WITHOUT ROWID;
"""
# From format 1 to 2. The database puts new columns last, which is where the schema above has them.
_UPGRADE_1 = (
    """
ALTER TABLE streams ADD COLUMN retention_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN cleanup TEXT NOT NULL DEFAULT 'delete';
ALTER TABLE streams ADD COLUMN tombstone_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE shards ADD COLUMN merged INTEGER NOT NULL DEFAULT 0;
ALTER TABLE shards ADD COLUMN compacted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE blocks ADD COLUMN dead_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE blocks ADD COLUMN rewrite_us INTEGER NOT NULL DEFAULT 0;
"""
    + _SCHEMA_2
    # A block that nothing points into says since when. It was sealed by now; nothing asks for the exact time.
    + "UPDATE blocks SET dead_us = created_us WHERE state = 'sealed' AND live_bytes = 0;"
)

# From format 2 to 3.
_UPGRADE_2 = (
    """
ALTER TABLE streams ADD COLUMN schema_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE streams ADD COLUMN key_columns TEXT NOT NULL DEFAULT '[]';
ALTER TABLE streams ADD COLUMN index_columns TEXT NOT NULL DEFAULT '[]';
ALTER TABLE streams ADD COLUMN compatibility TEXT NOT NULL DEFAULT 'backward';
"""
    + _SCHEMA_3
)
_UPGRADES = {1: _UPGRADE_1, 2: _UPGRADE_2}

_ENTRY_COLUMNS = "stream, shard, base, span, count, block, position, length, time_high, schema_id, txn, stats"
_STREAM_COLUMNS = (
    "id, uuid, name, shards, hash, generation, schema_id, retention_us, created_us, deleted_us, retention_bytes, "
    "cleanup, tombstone_us, schema_version, key_columns, index_columns, compatibility"
)
_SHARD_COLUMNS = "start, next, stable, time_high, bytes, merged, compacted"
_BLOCK_COLUMNS = "id, writer_epoch, state, bytes, live_bytes, created_us, dead_us, rewrite_us"
# The index of the WAL is a file too, and has an error of its own for not being able to grow.
_NO_ROOM = (apsw.SQLITE_IOERR_SHMSIZE,)
_PAIR = struct.Struct("<QQ")
_PAIRS = tuple(struct.Struct(f"<{2 * count}Q") for count in range(PRODUCER_RECENT_MAX + 1))
_READ_BUSY_MS = 5_000
_CHECKPOINT_BUSY_MS = 50
_CACHE_KIB = 8 * 1_024
_PAGE_BYTES = 4_096
_WAL_FRAME_BYTES = wal.FRAME_HEADER_BYTES + _PAGE_BYTES
# Rows in one INSERT, and prepared statements kept: one for each number of rows of each table.
_ROWS_PER_STATEMENT = 64
_STATEMENTS_CACHED = 512
# How often a WAL that somebody writes is read again before it is called damaged.
_WAL_LOOKS_MAX = 10


@functools.cache
def _load_checksum_vfs() -> None:
    """Make SQLite's checksum extension the default file system layer of this process, once."""
    connection = apsw.Connection(":memory:")
    apsw.sqlite_extra.load(connection, "cksumvfs")
    connection.close()


def place_without_wal(path: Path) -> AppliedPlace:
    """The last flush in the database file alone, as the last checkpoint left it."""
    _load_checksum_vfs()
    with _Translated(path):
        db = _connect_unchanging(path)
        try:
            rows = db.execute("SELECT number, block, commit_position FROM applied")
            return AppliedPlace._make(next(iter(rows), (0, 0, 0)))
        finally:
            db.close()


def format_without_wal(path: Path) -> int | None:
    """The format of the database file alone; None if it is not there or cannot be read."""
    _load_checksum_vfs()
    try:
        db = _connect_unchanging(path)
        try:
            return int(next(iter(db.execute("SELECT v FROM meta WHERE k = 'format'")))[0])
        finally:
            db.close()
    except (apsw.Error, StopIteration, TypeError, ValueError):
        return None


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
    _load_checksum_vfs()
    with _Translated(source), closing(_connect_to_copy(source)) as db, closing(apsw.Connection(str(target))) as made:
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
    with _Translated(source), closing(_connect_unchanging(target)) as copied:
        # A cut file is copied as if the rest had never been: a copy that is not whole must not take a good one's place.
        found = [row[0] for row in copied.execute("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise LedgerDamaged(f"{source.name} is damaged: {' '.join(str(found[0]).split())}; run mainstem doctor")
    return read_copy(target)


def read_copy(path: Path) -> LedgerCopy:
    """What a file that `copy_ledger` made holds. Nothing is written beside it."""
    _load_checksum_vfs()
    with _Translated(path), closing(_connect_unchanging(path)) as db:
        meta = dict(db.execute("SELECT k, v FROM meta"))
        if meta["format"] != LEDGER_FORMAT:
            raise FolderUnusable(
                f"{path} has ledger format {meta['format']}; this program works with format {LEDGER_FORMAT}. "
                "Serving an older folder once (mainstem serve) brings it up to date"
            )
        applied = AppliedPlace._make(next(iter(db.execute("SELECT number, block, commit_position FROM applied"))))
        rows = db.execute(f"SELECT {_BLOCK_COLUMNS} FROM blocks ORDER BY id")
        return LedgerCopy(meta["uuid"], meta["epoch"], applied, tuple(BlockRow._make(row) for row in rows))


def _connect_to_copy(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(_READ_BUSY_MS)
    return db


def _connect_unchanging(path: Path) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags)


def _require_sound_wal(ledger: Path) -> None:
    """A flipped bit in the WAL would get a valid page checksum in the copy."""
    path = ledger.with_name(ledger.name + "-wal")
    for _ in range(_WAL_LOOKS_MAX):
        # A frame that was being written while we read looks like damage; then it does not the next time.
        damaged_at = wal.verify(path).damaged_at
        if damaged_at is None:
            return
    raise LedgerDamaged(f"{path.name} is damaged at byte {damaged_at}")


class SqliteLedgerReader:
    """Committed rows of a ledger file. Any thread: calls take turns. No read transaction outlives a call.

    A writer that rebuilds the ledger puts another file in its place. A reader that only reads goes over to it.
    """

    def __init__(self, path: Path, *, read_only: bool = True, vfs: str | None = None) -> None:
        _load_checksum_vfs()
        self.path = path
        self._read_only = read_only
        self._vfs = vfs
        self._lock = threading.Lock()
        self._inode = _inode_of(path)
        self._replaced = 0
        # Told of damage that a read meets, before the reader is. It must not wait.
        self.on_damage: Callable[[LedgerDamaged], None] = lambda error: None
        self._db = self._connect()

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if self._read_only else apsw.SQLITE_OPEN_READWRITE
        with _Translated(self.path):
            db = apsw.Connection(str(self.path), flags=flags, vfs=self._vfs, statementcachesize=_STATEMENTS_CACHED)
            db.set_busy_timeout(_READ_BUSY_MS)
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}; PRAGMA query_only = ON;" if self._read_only else "")
        return db

    def _follow(self) -> None:
        """Go over to the file that is at the path now. Called with the lock held."""
        inode = _inode_of(self.path)
        if inode in (0, self._inode):
            return
        try:
            db = self._connect()
            list(db.execute("SELECT number FROM applied"))
        except (apsw.Error, LedgerDamaged):
            return  # not complete yet: the old one still answers
        self._db.close()
        self._db, self._inode = db, inode
        self._replaced += 1

    def applied(self) -> AppliedPlace:
        rows = self._rows("SELECT number, block, commit_position FROM applied")
        if len(rows) != 1:
            raise LedgerDamaged(f"{self.path.name} does not say what was applied to it")
        return AppliedPlace._make(rows[0])

    def epoch(self) -> int:
        return int(self._value("SELECT v FROM meta WHERE k = 'epoch'"))

    def require_format(self) -> None:
        """FolderUnusable if this is a ledger that has to be upgraded, or one that a newer program wrote."""
        found = self._format()
        if found != LEDGER_FORMAT:
            raise FolderUnusable(
                f"{self.path} has ledger format {found}, this program reads format {LEDGER_FORMAT}; "
                + ("open the folder once for writing" if found < LEDGER_FORMAT else "use a newer Mainstem")
            )

    def _format(self) -> int:
        return int(self._value("SELECT v FROM meta WHERE k = 'format'"))

    def log_uuid(self) -> str:
        return str(self._value("SELECT v FROM meta WHERE k = 'uuid'"))

    @property
    def replaced(self) -> int:
        """How often another file has come into this one's place."""
        return self._replaced

    def data_version(self) -> int:
        """Changes whenever another connection committed, or another file came into this one's place."""
        version = int(self._value("PRAGMA data_version"))
        return (self._replaced << 32) + version

    def stream_named(self, name: str) -> StreamRow | None:
        sql = f"SELECT {_STREAM_COLUMNS} FROM streams WHERE name = ? AND deleted_us = 0"
        rows = self._rows(sql, (name,))
        return stream_row(rows[0]) if rows else None

    def load_stream(self, stream: int) -> StreamRow | None:
        rows = self._rows(f"SELECT {_STREAM_COLUMNS} FROM streams WHERE id = ?", (stream,))
        return stream_row(rows[0]) if rows else None

    def list_streams(self) -> list[StreamRow]:
        return [stream_row(row) for row in self._rows(f"SELECT {_STREAM_COLUMNS} FROM streams ORDER BY id")]

    def stream_id_max(self) -> int:
        # The last one may be forgotten; its number is not given again.
        noted = self._rows("SELECT v FROM meta WHERE k = 'stream_id_max'")
        return max(int(self._value("SELECT coalesce(max(id), 0) FROM streams")), *(int(row[0]) for row in noted), 0)

    def load_schema(self, schema: int) -> Schema | None:
        rows = self._rows("SELECT arrow FROM schemas WHERE id = ?", (schema,))
        return Schema.parse(rows[0][0]) if rows else None

    def schema_with(self, fingerprint: bytes) -> int | None:
        rows = self._rows("SELECT id FROM schemas WHERE fingerprint = ?", (fingerprint,))
        return int(rows[0][0]) if rows else None

    def schema_id_max(self) -> int:
        # Those of before a restore are not given again.
        noted = self._rows("SELECT v FROM meta WHERE k = 'schema_id_max'")
        return max(int(self._value("SELECT coalesce(max(id), 0) FROM schemas")), *(int(row[0]) for row in noted), 0)

    def load_versions(self, stream: int) -> list[VersionRow]:
        sql = "SELECT stream, version, schema_id, created_us FROM stream_schemas WHERE stream = ? ORDER BY version"
        return [VersionRow._make(row) for row in self._rows(sql, (stream,))]

    def load_generations(self, stream: int) -> list[GenerationRow]:
        sql = "SELECT stream, generation, shards, barriers FROM generations WHERE stream = ? ORDER BY generation"
        rows = self._rows(sql, (stream,))
        return [GenerationRow(row[0], row[1], row[2], unpack_barriers(row[3])) for row in rows]

    def list_shards(self) -> list[tuple[ShardKey, ShardRow]]:
        rows = self._rows(f"SELECT stream, shard, {_SHARD_COLUMNS} FROM shards")
        return [((row[0], row[1]), ShardRow._make(row[2:])) for row in rows]

    def load_shard(self, stream: int, shard: int) -> ShardRow:
        sql = f"SELECT {_SHARD_COLUMNS} FROM shards WHERE stream = ? AND shard = ?"
        rows = self._rows(sql, (stream, shard))
        return ShardRow._make(rows[0]) if rows else ShardRow()

    def load_producer(self, key: ProducerKey) -> ProducerRow | None:
        sql = "SELECT epoch, recent, seen_us FROM producers WHERE pid = ? AND stream = ? AND shard = ?"
        rows = self._rows(sql, key)
        if not rows:
            return None
        epoch, recent, seen = rows[0]
        return ProducerRow(epoch, tuple(_PAIR.iter_unpack(recent)), seen)

    def load_block(self, block: int) -> BlockRow | None:
        rows = self._rows(f"SELECT {_BLOCK_COLUMNS} FROM blocks WHERE id = ?", (block,))
        return BlockRow._make(rows[0]) if rows else None

    def list_blocks(self) -> list[BlockRow]:
        return [BlockRow._make(row) for row in self._rows(f"SELECT {_BLOCK_COLUMNS} FROM blocks ORDER BY id")]

    def block_totals(self) -> BlockTotals:
        sql = "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(live_bytes), 0) FROM blocks"
        blocks, size, live = self._rows(sql)[0]
        growing = self._rows("SELECT id FROM blocks WHERE state = 'open'")
        return BlockTotals(blocks, size, live, tuple(row[0] for row in growing))

    def dead_totals(self) -> dict[int, int]:
        return dict(self._rows("SELECT stream, sum(bytes) FROM dead GROUP BY stream"))

    def dead_bytes(self, stream: int) -> dict[int, int]:
        rows = self._rows("SELECT block, bytes FROM dead WHERE stream = ?", (stream,))
        return {row[0]: row[1] for row in rows}

    def statistics_bytes(self, stream: int) -> int:
        # A summary begins with how long the whole is.
        sql = "SELECT substr(stats, 1, 8) FROM entries WHERE stream = ? AND length(stats) > 0"
        return sum(length_of(row[0]) for row in self._rows(sql, (stream,)))

    def restored(self) -> dict[int, dict[ShardKey, int]]:
        found: dict[int, dict[ShardKey, int]] = {}
        for epoch, stream, shard, stop in self._rows("SELECT epoch, stream, shard, stop FROM restored"):
            found.setdefault(epoch, {})[stream, shard] = stop
        return found

    def oldest_entries(self, stream: int, shard: int, before: int, limit: int) -> OldestEntries:
        sql = (
            "SELECT block, sum(length), count(*), max(base + span) FROM (SELECT block, length, base, span "
            "FROM entries WHERE stream = ?1 AND shard = ?2 AND base < ?3 AND base + span <= ?3 ORDER BY base LIMIT ?4) "
            "GROUP BY block"
        )
        rows = self._rows(sql, (stream, shard, before, limit))
        blocks = {row[0]: row[1] for row in rows}
        return OldestEntries(sum(row[2] for row in rows), max((row[3] for row in rows), default=0), blocks)

    def missing_records(self, stream: int, shard: int) -> int:
        start = self.load_shard(stream, shard).start
        sql = (
            "SELECT coalesce(sum((span - count) * (base + span - max(base, ?3)) / span), 0) FROM entries "
            "WHERE stream = ?1 AND shard = ?2 AND base >= coalesce("
            "(SELECT max(base) FROM entries WHERE stream = ?1 AND shard = ?2 AND base <= ?3), 0) "
            "AND base + span > ?3 AND count < span"
        )
        return int(self._rows(sql, (stream, shard, start))[0][0])

    def entries_in(self, stream: int, blocks: Sequence[int], after: tuple[int, int], limit: int) -> list[Entry]:
        """The first entries of a stream behind shard and offset `after` that point into these blocks, in the order of
        shards and offsets."""
        marks = ",".join("?" * len(blocks))
        sql = (
            f"SELECT {_ENTRY_COLUMNS} FROM entries WHERE stream = ? AND (shard, base) > (?, ?) AND block IN ({marks}) "
            "ORDER BY shard, base LIMIT ?"
        )
        return [_entry(row) for row in self._rows(sql, (stream, *after, *blocks, limit))]

    def blocks_in_use(self, blocks: Sequence[int]) -> set[int]:
        """Those of these blocks that entries point into. Looks at every entry."""
        marks = ",".join("?" * len(blocks))
        rows = self._rows(f"SELECT DISTINCT block FROM entries WHERE block IN ({marks})", tuple(blocks))
        return {row[0] for row in rows}

    def writer_epoch_max(self) -> int:
        return int(self._value("SELECT coalesce(max(writer_epoch), 0) FROM blocks"))

    def entries_from(self, stream: int, shard: int, offset: int, limit: int) -> list[Entry]:
        # The entry that holds `offset` is the last one at or below it; spans are dense, so it ends above it.
        sql = (
            f"SELECT {_ENTRY_COLUMNS} FROM entries WHERE stream = ?1 AND shard = ?2 AND base >= coalesce("
            "(SELECT max(base) FROM entries WHERE stream = ?1 AND shard = ?2 AND base <= ?3), 0) ORDER BY base LIMIT ?4"
        )
        found = [_entry(row) for row in self._rows(sql, (stream, shard, offset, limit))]
        return [entry for entry in found if entry.end > offset]

    def entry_at_time(self, stream: int, shard: int, time_us: int) -> Entry | None:
        """By bisection over offsets: `time_high` of an entry is the highest time up to it, so it never falls."""
        row = self.load_shard(stream, shard)
        low, high = row.start, row.next
        found: Entry | None = None
        while low < high:
            middle = (low + high) // 2
            entries = self.entries_from(stream, shard, middle, 1)
            if not entries:
                return found  # all of it was trimmed and dropped meanwhile
            entry = entries[0]
            if entry.time_high >= time_us:
                # Rows below it may have been dropped since the shard was looked at.
                found, high = entry, min(entry.base, middle)
            else:
                low = entry.end
        return found

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock, _Translated(self.path, self._db):
                if self._read_only:
                    self._follow()
                return list(self._db.execute(sql, bindings))
        except LedgerDamaged as error:
            self.on_damage(error)
            raise

    def _value(self, sql: str) -> Any:
        rows = self._rows(sql)
        if not rows:
            raise LedgerDamaged(f"{self.path.name} has no answer to {sql!r}")
        return rows[0][0]


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
            with _Translated(path):
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def create(cls, path: Path, *, log_uuid: str, epoch: int, vfs: str | None = None) -> "SqliteLedger":
        """A new, empty ledger. The path must not exist."""
        assert not path.exists()
        _load_checksum_vfs()
        with _Translated(path):
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
            db.execute(_SCHEMA + _SCHEMA_2 + _SCHEMA_3)
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
        with self._lock, _Translated(self.path, self._db):
            with self._db:
                for older in range(found, LEDGER_FORMAT):
                    self._db.execute(_UPGRADES[older])
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
        with self._lock, _Translated(self.path, self._db):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._store(changes)
                self._db.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite may have rolled back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._wal_base = None

    def _store(self, changes: Changes) -> None:
        execute = self._db.execute
        for dropped in changes.dropped:
            execute("DELETE FROM entries WHERE stream = ? AND shard = ? AND base >= ? AND base < ?", dropped)
        _insert(execute, f"INSERT INTO entries({_ENTRY_COLUMNS})", changes.entries)
        _insert(execute, "INSERT OR REPLACE INTO shards", [(*key, *row) for key, row in changes.shards.items()])
        _insert(
            execute, "INSERT OR REPLACE INTO producers", [_producer_values(item) for item in changes.producers.items()]
        )
        _insert(execute, "INSERT OR REPLACE INTO streams", [_stream_values(row) for row in changes.streams.values()])
        _insert(execute, "INSERT OR REPLACE INTO blocks", list(changes.blocks.values()))
        if changes.forget_producers_before_us:
            idle = (*changes.forget_producers_ids, changes.forget_producers_before_us)
            execute("DELETE FROM producers WHERE pid BETWEEN ? AND ? AND seen_us < ?", idle)
        if changes.versions or changes.generations:
            self._store_shape(changes)
        if changes.dead or changes.forgotten_blocks or changes.forgotten_streams or changes.epoch:
            self._store_rarities(changes)
        if self._wal_base is not None:
            execute("INSERT OR REPLACE INTO meta VALUES ('wal_base', ?)", (self._wal_base,))
        execute("UPDATE applied SET number = ?, block = ?, commit_position = ?", changes.applied)

    def _store_shape(self, changes: Changes) -> None:
        """What streams look like: their schemas and their shards."""
        execute = self._db.execute
        _insert(execute, "INSERT INTO schemas", list(changes.schemas.values()))
        _insert(execute, "INSERT INTO stream_schemas", changes.versions)
        rows = [(*row[:3], struct.pack(f"<{len(row.barriers)}Q", *row.barriers)) for row in changes.generations]
        _insert(execute, "INSERT INTO generations", rows)

    def _store_rarities(self, changes: Changes) -> None:
        execute = self._db.execute
        for (stream, block), size in changes.dead.items():
            sql = "INSERT INTO dead VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes"
            execute(sql, (block, stream, size))
        for block in changes.forgotten_blocks:
            execute("DELETE FROM blocks WHERE id = ?", (block,))
            execute("DELETE FROM dead WHERE block = ?", (block,))
        for stream in changes.forgotten_streams:
            execute("DELETE FROM streams WHERE id = ?", (stream,))
            # Schemas stay: a reader may know one by its id, which then must not be another's.
            for table in ("shards", "dead", "restored", "stream_schemas", "generations"):
                execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
        for name, noted in (("stream_id_max", changes.stream_id_max), ("schema_id_max", changes.schema_id_max)):
            if noted:
                execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, noted))
        if changes.epoch:
            rows = [(changes.epoch - 1, *key, stop) for key, stop in changes.epoch_ends.items()]
            _insert(execute, "INSERT OR REPLACE INTO restored", rows)
            execute("UPDATE meta SET v = ? WHERE k = 'epoch'", (changes.epoch,))

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
        with self._lock, _Translated(self.path, self._db):
            self._verify_wal()
            # Readers hold it up for moments only; one that was stopped in the middle must not hold up commits.
            self._db.set_busy_timeout(_CHECKPOINT_BUSY_MS)
            try:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            except apsw.BusyError:
                return False
            finally:
                self._db.set_busy_timeout(_READ_BUSY_MS)
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


def _insert(execute: Callable[[str, Sequence[Any]], Any], into: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert many rows in few statements: every statement lets go of the interpreter, and beside a busy thread it
    takes a switch interval to get it back."""
    for begin in range(0, len(rows), _ROWS_PER_STATEMENT):
        some = rows[begin : begin + _ROWS_PER_STATEMENT]
        execute(_insert_sql(into, len(some), len(some[0])), list(chain.from_iterable(some)))


@functools.cache
def _insert_sql(into: str, rows: int, columns: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"{into} VALUES {','.join([row] * rows)}"


def _inode_of(path: Path) -> int:
    """Which file is at the path; 0 if none is."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


def stream_row(row: Sequence[Any]) -> StreamRow:
    """The row of a stream from its columns, in which lists of names are JSON; those of an older format are fewer."""
    return StreamRow(*row[:14], *(tuple(json.loads(names)) for names in row[14:16]), *row[16:])


def _stream_values(row: StreamRow) -> tuple[Any, ...]:
    return (*row[:14], json.dumps(row.key), json.dumps(row.index), *row[16:])


def unpack_barriers(barriers: bytes) -> tuple[int, ...]:
    """The offsets of a row of generations."""
    return struct.unpack(f"<{len(barriers) // 8}Q", barriers)


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry._make((*row[:-1], row[-1] or b""))


def _producer_values(item: tuple[ProducerKey, ProducerRow]) -> tuple[Any, ...]:
    (pid, stream, shard), row = item
    recent = _PAIRS[len(row.recent)].pack(*chain.from_iterable(row.recent))
    return (pid, stream, shard, row.epoch, recent, row.seen_us)


class _Translated:
    """Turns SQLite's errors about bytes on disk into LedgerDamaged, those about room into what the system says when
    there is none, and a connection closed meanwhile into Closed."""

    def __init__(self, path: Path, db: apsw.Connection | None = None) -> None:
        self._path = path
        self._db = db

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            return
        if isinstance(error, apsw.ConnectionClosedError):
            raise Closed("the log was closed") from error
        if self._is_lack_of_room(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
        if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.IOError | apsw.SQLError | apsw.CantOpenError):
            raise LedgerDamaged(
                f"{self._path.name} is damaged ({error}); the next start of a writer rebuilds it from the blocks, or: "
                "mainstem doctor --rebuild"
            ) from error

    def _is_lack_of_room(self, error: Any) -> bool:
        if isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _NO_ROOM:
            return True
        # SQLite knows a full disk, but takes a quota that is used up for a broken one.
        return isinstance(error, apsw.IOError) and self._db is not None and self._db.system_errno == errno.EDQUOT
