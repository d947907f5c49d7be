"""The committed rows of a ledger file, for any reader."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw

from mainstem.core.errors import FolderUnusable, LedgerDamaged
from mainstem.core.schema import Schema
from mainstem.core.statistics import length_of
from mainstem.log.ledger.base import (
    AccessKey,
    AppliedPlace,
    BlockRow,
    BlockTotals,
    DeliveriesRow,
    Entry,
    GenerationRow,
    GroupRow,
    GroupShardKey,
    GroupShardRow,
    JobKey,
    MomentRow,
    OldestEntries,
    ProducerKey,
    ProducerRow,
    ShardKey,
    ShardRow,
    StreamRow,
    TransactionRow,
    VersionRow,
    WriterRow,
)
from mainstem.log.ledger.sqlite.connections import READ_BUSY_MS, Translated, load_checksum_vfs
from mainstem.log.ledger.sqlite.tables import (
    BLOCK_COLUMNS,
    ENTRY_COLUMNS,
    GROUP_COLUMNS,
    GROUP_SHARD_COLUMNS,
    LEDGER_FORMAT,
    SHARD_COLUMNS,
    STREAM_COLUMNS,
    deliveries_row,
    entry_row,
    producer_row,
    stream_row,
    transaction_row,
    unpack_barriers,
)

_CACHE_KIB = 8 * 1_024
# Prepared statements kept: of inserts, one for each number of rows of each table.
_STATEMENTS_CACHED = 512


class SqliteLedgerReader:
    """Committed rows of a ledger file. Any thread: calls take turns. No read transaction outlives a call.

    A writer that rebuilds the ledger puts another file in its place. A reader that only reads goes over to it.
    """

    def __init__(self, path: Path, *, read_only: bool = True, vfs: str | None = None) -> None:
        load_checksum_vfs()
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
        with Translated(self.path):
            db = apsw.Connection(str(self.path), flags=flags, vfs=self._vfs, statementcachesize=_STATEMENTS_CACHED)
            db.set_busy_timeout(READ_BUSY_MS)
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
        sql = f"SELECT {STREAM_COLUMNS} FROM streams WHERE name = ? AND deleted_us = 0"
        rows = self._rows(sql, (name,))
        return stream_row(rows[0]) if rows else None

    def load_stream(self, stream: int) -> StreamRow | None:
        rows = self._rows(f"SELECT {STREAM_COLUMNS} FROM streams WHERE id = ?", (stream,))
        return stream_row(rows[0]) if rows else None

    def list_streams(self) -> list[StreamRow]:
        return [stream_row(row) for row in self._rows(f"SELECT {STREAM_COLUMNS} FROM streams ORDER BY id")]

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

    def load_moments(self, stream: int, after_us: int, limit: int) -> list[MomentRow]:
        sql = "SELECT stream, time_us, ends FROM moments WHERE stream = ? AND time_us > ? ORDER BY time_us LIMIT ?"
        return [_moment_row(row) for row in self._rows(sql, (stream, after_us, limit))]

    def newest_moment(self, stream: int, before_us: int) -> MomentRow | None:
        sql = "SELECT stream, time_us, ends FROM moments WHERE stream = ? AND time_us < ? ORDER BY time_us DESC LIMIT 1"
        rows = self._rows(sql, (stream, before_us))
        return _moment_row(rows[0]) if rows else None

    def list_shards(self) -> list[tuple[ShardKey, ShardRow]]:
        rows = self._rows(f"SELECT stream, shard, {SHARD_COLUMNS} FROM shards")
        return [((row[0], row[1]), ShardRow._make(row[2:])) for row in rows]

    def load_shard(self, stream: int, shard: int) -> ShardRow:
        sql = f"SELECT {SHARD_COLUMNS} FROM shards WHERE stream = ? AND shard = ?"
        rows = self._rows(sql, (stream, shard))
        return ShardRow._make(rows[0]) if rows else ShardRow()

    def load_producer(self, key: ProducerKey) -> ProducerRow | None:
        sql = "SELECT epoch, recent, seen_us FROM producers WHERE pid = ? AND stream = ? AND shard = ?"
        rows = self._rows(sql, key)
        return producer_row(rows[0]) if rows else None

    def load_block(self, block: int) -> BlockRow | None:
        rows = self._rows(f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE id = ?", (block,))
        return BlockRow._make(rows[0]) if rows else None

    def list_blocks(self) -> list[BlockRow]:
        return [BlockRow._make(row) for row in self._rows(f"SELECT {BLOCK_COLUMNS} FROM blocks ORDER BY id")]

    def block_totals(self) -> BlockTotals:
        sql = "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(live_bytes), 0) FROM blocks"
        blocks, size, live = self._rows(sql)[0]
        sql = "SELECT coalesce(sum(bytes), 0) FROM shards WHERE stream IN (SELECT id FROM streams WHERE deleted_us)"
        live -= self._value(sql)
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

    def group_named(self, name: str) -> GroupRow | None:
        rows = self._rows(f"SELECT {GROUP_COLUMNS} FROM groups WHERE name = ?", (name,))
        return GroupRow._make(rows[0]) if rows else None

    def list_groups(self) -> list[GroupRow]:
        return [GroupRow._make(row) for row in self._rows(f"SELECT {GROUP_COLUMNS} FROM groups ORDER BY name")]

    def list_group_shards(self, group: int) -> list[tuple[ShardKey, GroupShardRow]]:
        sql = f"SELECT stream, shard, {GROUP_SHARD_COLUMNS} FROM group_shards WHERE group_id = ? ORDER BY stream, shard"
        return [((row[0], row[1]), GroupShardRow._make(row[2:])) for row in self._rows(sql, (group,))]

    def group_id_max(self) -> int:
        noted = self._rows("SELECT v FROM meta WHERE k = 'group_id_max'")
        return max(int(self._value("SELECT coalesce(max(id), 0) FROM groups")), *(int(row[0]) for row in noted), 0)

    def load_group_shard(self, key: GroupShardKey) -> GroupShardRow | None:
        sql = f"SELECT {GROUP_SHARD_COLUMNS} FROM group_shards WHERE group_id = ? AND stream = ? AND shard = ?"
        rows = self._rows(sql, key)
        return GroupShardRow._make(rows[0]) if rows else None

    def load_transaction(self, transaction: int) -> TransactionRow | None:
        rows = self._rows("SELECT ended_us, offsets FROM transactions WHERE id = ?", (transaction,))
        return transaction_row(rows[0]) if rows else None

    def transactions_before(self, time_us: int, limit: int) -> int:
        sql = "SELECT count(*) FROM (SELECT 1 FROM transactions WHERE ended_us < ? LIMIT ?)"
        return int(self._rows(sql, (time_us, limit))[0][0])

    def transaction_ended_us(self, others: int) -> int:
        rows = self._rows("SELECT ended_us FROM transactions ORDER BY ended_us DESC LIMIT 1 OFFSET ?", (others,))
        return int(rows[0][0]) if rows else 0

    def load_writer(self, name: str) -> WriterRow | None:
        rows = self._rows("SELECT epoch, seen_us FROM writers WHERE name = ?", (name,))
        return WriterRow._make(rows[0]) if rows else None

    def writers_before(self, time_us: int) -> int:
        return int(self._rows("SELECT count(*) FROM writers WHERE seen_us < ?", (time_us,))[0][0])

    def load_deliveries(self, key: JobKey) -> DeliveriesRow | None:
        rows = self._rows("SELECT seen_us, recent FROM deliveries WHERE stream = ? AND job = ?", key)
        return deliveries_row(rows[0]) if rows else None

    def job_seen_us(self, others: int) -> int:
        rows = self._rows("SELECT seen_us FROM deliveries ORDER BY seen_us DESC LIMIT 1 OFFSET ?", (others,))
        return int(rows[0][0]) if rows else 0

    def load_access(self) -> dict[AccessKey, bytes]:
        return {(row[0], row[1]): row[2] for row in self._rows("SELECT kind, name, value FROM access")}

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
            f"SELECT {ENTRY_COLUMNS} FROM entries WHERE stream = ? AND (shard, base) > (?, ?) AND block IN ({marks}) "
            "ORDER BY shard, base LIMIT ?"
        )
        return [entry_row(row) for row in self._rows(sql, (stream, *after, *blocks, limit))]

    def blocks_in_use(self, blocks: Sequence[int]) -> set[int]:
        """Those of these blocks that entries point into. Looks at every entry."""
        sql = "SELECT DISTINCT block FROM entries WHERE block IN (SELECT value FROM json_each(?))"
        # As one value: there may be more of them than a statement can have.
        rows = self._rows(sql, (json.dumps(list(blocks)),))
        return {row[0] for row in rows}

    def writer_epoch_max(self) -> int:
        return int(self._value("SELECT coalesce(max(writer_epoch), 0) FROM blocks"))

    def entries_from(self, stream: int, shard: int, offset: int, limit: int) -> list[Entry]:
        # The entry that holds `offset` is the last one at or below it; spans are dense, so it ends above it.
        sql = (
            f"SELECT {ENTRY_COLUMNS} FROM entries WHERE stream = ?1 AND shard = ?2 AND base >= coalesce("
            "(SELECT max(base) FROM entries WHERE stream = ?1 AND shard = ?2 AND base <= ?3), 0) ORDER BY base LIMIT ?4"
        )
        found = [entry_row(row) for row in self._rows(sql, (stream, shard, offset, limit))]
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
            with self._lock, Translated(self.path, self._db):
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


def _moment_row(row: tuple[Any, ...]) -> MomentRow:
    return MomentRow(row[0], row[1], unpack_barriers(row[2]))


def _inode_of(path: Path) -> int:
    """Which file is at the path; 0 if none is."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0
