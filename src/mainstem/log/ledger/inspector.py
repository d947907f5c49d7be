"""Looks at a ledger without changing a byte of its files, beside a running writer or when nobody runs.

SQLite would write even for a reader: it makes a missing `-wal` or `-shm`, and the first to open a stopped ledger begins
its `-shm` anew. So the shared memory is opened for reading only; where no writer has it in use, SQLite then keeps the
index of the WAL in memory. A ledger without a WAL is read as a file that does not change, and one whose `-shm` was lost
is copied first: no process can be writing it.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import apsw

from mainstem.core.errors import InvalidSchema, LedgerDamaged
from mainstem.core.schema import Schema
from mainstem.log.ledger import wal
from mainstem.log.ledger.base import AppliedPlace, BlockRow, Entry, ShardKey, ShardRow, StreamRow
from mainstem.log.ledger.sqlite.reader import SqliteLedgerReader
from mainstem.log.ledger.sqlite.tables import LEDGER_FORMAT, stream_row

# A writer that is just restarting its WAL turns a reader away for a moment.
_BUSY_MS = 1_000
_TRIES = 100
_TRY_SECONDS = 0.02
# Wrong rows that are named one by one.
_FLAWS_MAX = 20

# The columns by format; what a format had not has its default value.
_BLOCKS_1: Final = "id, writer_epoch, state, bytes, live_bytes, created_us"
_STREAMS_1: Final = "id, uuid, name, shards, hash, generation, schema_id, retention_us, created_us, deleted_us"
_BLOCKS_2: Final = f"{_BLOCKS_1}, dead_us, rewrite_us"
_STREAMS_2: Final = f"{_STREAMS_1}, retention_bytes, cleanup, tombstone_us"
_STREAMS_3: Final = f"{_STREAMS_2}, schema_version, key_columns, index_columns, compatibility"
_BLOCK_COLUMNS: Final = {1: _BLOCKS_1, 2: _BLOCKS_2, 3: _BLOCKS_2, 4: _BLOCKS_2, 5: _BLOCKS_2, 6: _BLOCKS_2}
_STREAM_COLUMNS: Final = {1: _STREAMS_1, 2: _STREAMS_2, 3: _STREAMS_3, 4: _STREAMS_3, 5: _STREAMS_3, 6: _STREAMS_3}
_SHARD_COLUMNS: Final = "start, next, stable, time_high, bytes"
_ENTRY_COLUMNS: Final = "stream, shard, base, span, count, block, position, length, time_high, schema_id, txn, stats"
# Rows that no flush can have made, and rows that do not begin where the one before them ends. -1: the first of a shard.
_FLAWS_SQL: Final = f"""
SELECT stream, shard, base, span, count, length, before FROM (
    SELECT stream, shard, base, span, count, block, position, length,
        lag(base + span, 1, -1) OVER (PARTITION BY stream, shard ORDER BY base) AS before FROM entries)
WHERE span < 1 OR count < 0 OR count > span OR length < 0 OR base < 0 OR (count = 0) != (length = 0)
    OR (length = 0) != (block = 0) OR position < 0 OR (before != -1 AND before != base) LIMIT {_FLAWS_MAX}
"""


_UNKNOWN_SCHEMAS_SQL: Final = f"""
SELECT DISTINCT entries.stream, entries.schema_id FROM entries
WHERE entries.schema_id != 0 AND NOT EXISTS (
    SELECT 1 FROM stream_schemas JOIN schemas ON schemas.id = stream_schemas.schema_id
    WHERE stream_schemas.stream = entries.stream AND stream_schemas.schema_id = entries.schema_id)
LIMIT {_FLAWS_MAX}
"""
_VERSIONS_SQL: Final = f"""
SELECT id, schema_version, (SELECT count(*) FROM stream_schemas WHERE stream = streams.id) AS versions FROM streams
WHERE versions != schema_version OR (schema_version != 0 AND schema_id IS NOT (
    SELECT schema_id FROM stream_schemas WHERE stream = streams.id AND version = schema_version))
LIMIT {_FLAWS_MAX}
"""
_GENERATIONS_SQL: Final = f"""
SELECT id, generation, (SELECT count(*) FROM generations WHERE stream = streams.id) AS changes FROM streams
WHERE changes != generation LIMIT {_FLAWS_MAX}
"""
# Cursors of groups that are not there, in streams that are not there, and behind the end of a shard.
_CURSORS_SQL: Final = f"""
SELECT group_id, stream, shard, offset FROM group_shards
WHERE NOT EXISTS (SELECT 1 FROM groups WHERE id = group_id)
    OR NOT EXISTS (
        SELECT 1 FROM streams WHERE id = group_shards.stream AND deleted_us = 0 AND group_shards.shard < streams.shards)
    OR offset NOT BETWEEN 0 AND coalesce((
        SELECT next FROM shards WHERE stream = group_shards.stream AND shard = group_shards.shard), 0)
LIMIT {_FLAWS_MAX}
"""


class ShardSum(NamedTuple):
    """The rows of a shard together."""

    first: int
    end: int
    bytes: int
    records: int


class BlockSum(NamedTuple):
    """The rows that point into a block together."""

    bytes: int
    first_position: int
    end_position: int


class Share(NamedTuple):
    """What one shard has in a block: offsets `first` to `last` at most, `records` of them."""

    stream: int
    shard: int
    first: int
    last: int
    records: int


@dataclass(frozen=True, slots=True)
class LedgerView:
    """All that can be compared."""

    applied: AppliedPlace
    streams: dict[int, StreamRow]
    shards: dict[ShardKey, ShardRow]
    blocks: dict[int, BlockRow]
    shard_sums: dict[ShardKey, ShardSum]
    block_sums: dict[int, BlockSum]
    # The first and the last entry of every block.
    samples: tuple[Entry, ...]
    dead_bytes: int
    # Rows of entries that contradict themselves or their neighbours, and of schemas that are missing, as sentences.
    flaws: tuple[str, ...]

    @property
    def deleted_bytes(self) -> int:
        """What entries of deleted streams point to, until upkeep drops their rows."""
        deleted = {row.id for row in self.streams.values() if row.deleted_us}
        return sum(row.bytes for (stream, _), row in self.shards.items() if stream in deleted)

    @property
    def waiting_bytes(self) -> int:
        """What nobody can read any more and is still on the disk."""
        return self.dead_bytes + self.deleted_bytes


class LedgerInspector(SqliteLedgerReader):
    """A reader that leaves the files as they are. One thread. `close` it: it may hold a temporary copy."""

    def __init__(self, path: Path) -> None:
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._found_format = LEDGER_FORMAT
        super().__init__(path)

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        try:
            db = apsw.Connection(self._uri(), flags=flags)
            db.set_busy_timeout(_BUSY_MS)
            db.execute("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY")
        except (apsw.Error, OSError) as error:
            raise LedgerDamaged(f"{self.path.name}: {error}") from error
        return db

    def _uri(self) -> str:
        log = self.path.with_name(self.path.name + "-wal")
        if not wal.read_header(log):
            # SQLite would make a missing one, and try for ten seconds to make sense of one whose header is damaged.
            return f"file:{quote(str(self.path))}?immutable=1"
        if self.path.with_name(self.path.name + "-shm").exists():
            return f"file:{quote(str(self.path))}?readonly_shm=1"
        if self._copy is None:
            self._copy = tempfile.TemporaryDirectory(prefix="mainstem-doctor-")
            for source in (self.path, log):
                shutil.copyfile(source, Path(self._copy.name) / source.name)
        return f"file:{quote(str(Path(self._copy.name) / self.path.name))}"

    def _follow(self) -> None:
        """Stay with the file that was opened: whoever looks again opens anew."""

    def close(self) -> None:
        super().close()
        if self._copy is not None:
            self._copy.cleanup()

    def _rows(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        for _ in range(_TRIES):
            try:
                return super()._rows(sql, bindings)
            except (apsw.ReadOnlyError, apsw.BusyError):
                time.sleep(_TRY_SECONDS)
            except apsw.ProtocolError as error:  # SQLite has tried for ten seconds
                raise LedgerDamaged(f"{self.path.name}: {error}") from error
        raise LedgerDamaged(f"{self.path.name} could not be read for a while: another process holds it")

    def check_pages(self) -> None:
        """Read every page; LedgerDamaged if one does not match its checksum or the tree is not sound."""
        if str(self._rows("PRAGMA checksum_verification")[0][0]) != "1":
            raise LedgerDamaged(f"{self.path.name} was written without page checksums")
        rows = self._rows("PRAGMA quick_check(1)")
        if rows != [("ok",)]:
            raise LedgerDamaged(f"{self.path.name}: {rows[0][0] if rows else 'unreadable'}")

    def format(self) -> int:
        """The format of the rows; those of another one cannot be looked at."""
        self._found_format = int(self._value("SELECT v FROM meta WHERE k = 'format'"))
        return self._found_format

    def wal_base(self) -> int:
        """See SqliteLedger."""
        rows = self._rows("SELECT v FROM meta WHERE k = 'wal_base'")
        return int(rows[0][0]) if rows else 0

    def list_blocks(self) -> list[BlockRow]:
        sql = f"SELECT {_BLOCK_COLUMNS[self._found_format]} FROM blocks ORDER BY id"
        return [BlockRow(*row) for row in self._rows(sql)]

    def load_block(self, block: int) -> BlockRow | None:
        rows = self._rows(f"SELECT {_BLOCK_COLUMNS[self._found_format]} FROM blocks WHERE id = ?", (block,))
        return BlockRow(*rows[0]) if rows else None

    def list_streams(self) -> list[StreamRow]:
        return [
            stream_row(row)
            for row in self._rows(f"SELECT {_STREAM_COLUMNS[self._found_format]} FROM streams ORDER BY id")
        ]

    def list_schemas(self) -> dict[int, Schema]:
        """Every schema by its id. Those that cannot be read are left out."""
        found: dict[int, Schema] = {}
        for schema, arrow in self._rows("SELECT id, arrow FROM schemas") if self._found_format >= 3 else ():
            with contextlib.suppress(InvalidSchema):
                found[schema] = Schema.parse(arrow)
        return found

    def load_shard(self, stream: int, shard: int) -> ShardRow:
        sql = f"SELECT {_SHARD_COLUMNS} FROM shards WHERE stream = ? AND shard = ?"
        rows = self._rows(sql, (stream, shard))
        return ShardRow(*rows[0]) if rows else ShardRow()

    def look(self) -> LedgerView:
        """What must agree is read in one transaction, so that nothing moves meanwhile. Commits go on; checkpoints wait.

        Rows of one shard are compared with each other before that, in a single statement.
        """
        flaws = (*map(_flaw, self._rows(_FLAWS_SQL)), *self._shape_flaws())
        samples = tuple(self._samples())
        with self._one_moment():
            shards = self._rows(f"SELECT stream, shard, {_SHARD_COLUMNS} FROM shards")
            by_shard = self._rows(
                "SELECT stream, shard, min(base), max(base + span), sum(length), sum(count) FROM entries "
                "GROUP BY stream, shard"
            )
            by_block = self._rows(
                "SELECT block, sum(length), min(position), max(position + length) FROM entries WHERE length > 0 "
                "GROUP BY block"
            )
            return LedgerView(
                self.applied(),
                {row.id: row for row in self.list_streams()},
                {(row[0], row[1]): ShardRow(*row[2:]) for row in shards},
                {row.id: row for row in self.list_blocks()},
                {(row[0], row[1]): ShardSum._make(row[2:]) for row in by_shard},
                {row[0]: BlockSum._make(row[1:]) for row in by_block},
                samples,
                self._dead_bytes(),
                flaws,
            )

    def _shape_flaws(self) -> Iterator[str]:
        """What contradicts itself about the schemas and the shards of streams. Each is one statement: nothing moves."""
        if self._found_format < 3:
            return
        for schema, arrow in self._rows("SELECT id, arrow FROM schemas"):
            try:
                Schema.parse(arrow)
            except InvalidSchema as error:
                yield f"schema {schema} cannot be read: {error}"
        for stream, schema in self._rows(_UNKNOWN_SCHEMAS_SQL):
            yield f"entries of stream {stream} have schema {schema}, which the stream never had"
        for stream, version, count in self._rows(_VERSIONS_SQL):
            yield f"stream {stream} has version {version} of its schema, and {count} of the versions up to it"
        for stream, generation, count in self._rows(_GENERATIONS_SQL):
            yield f"stream {stream} is of generation {generation}, and {count} of its changes are noted"
        for group, stream, shard, offset in self._rows(_CURSORS_SQL) if self._found_format >= 4 else ():
            yield f"group {group} has a cursor at {offset} of stream {stream} shard {shard}, which cannot be"

    def shares(self, block: int) -> list[Share]:
        """Which records point into a block."""
        sql = (
            "SELECT stream, shard, min(base), max(base + span) - 1, sum(count) FROM entries WHERE block = ? "
            "GROUP BY stream, shard"
        )
        return [Share._make(row) for row in self._rows(sql, (block,))]

    def entries_at(self, block: int, begin: int, end: int, limit: int) -> list[Entry]:
        """Entries with a byte in `begin` to `end - 1` of a block."""
        sql = (
            f"SELECT {_ENTRY_COLUMNS} FROM entries WHERE block = ? AND position < ? AND position + length > ? "
            "ORDER BY stream, shard, base LIMIT ?"
        )
        return list(map(_entry, self._rows(sql, (block, end, begin, limit))))

    def _samples(self) -> Iterator[Entry]:
        # SQLite takes the other columns from the row with the lowest, or highest, position.
        for chosen in ("min", "max"):
            sql = f"SELECT {_ENTRY_COLUMNS}, {chosen}(position) FROM entries WHERE length > 0 GROUP BY block"
            yield from (_entry(row[:-1]) for row in self._rows(sql))

    def _dead_bytes(self) -> int:
        return int(self._value("SELECT coalesce(sum(bytes), 0) FROM dead")) if self._found_format > 1 else 0

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        self._rows("BEGIN")
        try:
            yield
        finally:
            self._rows("ROLLBACK")


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry._make((*row[:-1], row[-1] or b""))


def _flaw(row: tuple[Any, ...]) -> str:
    stream, shard, base, span, count, length, before = row
    where = f"the entry at offset {base} of stream {stream} shard {shard}"
    if before not in (-1, base):
        return f"{where} does not begin where the one before it ends, at {before}"
    return f"{where} cannot be: span {span}, {count} records, {length} bytes"


def snapshot_number(path: Path) -> int:
    """The last flush in a copy of the ledger that stands alone, after reading every page of it; else LedgerDamaged."""
    copy = LedgerInspector(path)
    try:
        copy.check_pages()
        return copy.applied().number
    finally:
        copy.close()
