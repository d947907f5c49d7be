"""A log with a stream of rows that a test keeps step by step, and everything its readers see."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from mainstem.core import statistics
from mainstem.core.batch import Batch, FetchedBatch
from mainstem.core.identity import new_stream_uuid
from mainstem.core.keys import key_of
from mainstem.core.schema import Schema
from mainstem.log.administration import Administration
from mainstem.log.contents import Contents
from mainstem.log.flush import Appended, CreateStream, SetSchema
from mainstem.log.ledger.base import Entry
from mainstem.log.reader import LogReader
from mainstem.registry import compatibility
from mainstem.transport.port import OffsetsAtTimeCall
from tests.unit.log.keeping import HOUR, SECOND_US, Keeping
from tests.unit.log.parts import FOREVER_US, append, make_keyed_batch, make_row_batch

FIRST = Schema(pa.schema([("id", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))]))
SECOND = Schema(
    pa.schema([("id", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string())), ("x", pa.float64())])
)

Row = Mapping[str, Any]


class Seen(NamedTuple):
    """What a reader sees of a record: its value is a row, or bytes, or nothing."""

    key: bytes | None
    value: Any
    time: int
    headers: Any = None


def row_batch(
    rows: Sequence[Row], schema: Schema, schema_id: int, *, stream: int, times: Sequence[int], **beside: Any
) -> Batch:
    """Rows as a producer would encode them: without a column of times if all have the same."""
    own = times if len(set(times)) > 1 else None
    return make_row_batch(
        rows, schema, schema_id, times=own, stream=stream, time_low=min(times), time_high=max(times), **beside
    )


class Rows:
    """A stream of rows in a log that is kept, and what was written to it."""

    def __init__(
        self, keeping: Keeping, *, cleanup: str = "delete", key: tuple[str, ...] = ("id",), tombstones: float = HOUR
    ) -> None:
        self.keeping = keeping
        self.key = key
        self.written: dict[int, Seen] = {}
        command = CreateStream(
            new_stream_uuid(),
            "rows",
            1,
            "crc32",
            FOREVER_US,
            keeping.clock.now_us(),
            cleanup=cleanup,
            tombstone_us=round(tombstones * SECOND_US),
            schema=FIRST.serialized,
            fingerprint=FIRST.fingerprint,
            key=key,
            index=("n",),
        )
        self.stream = keeping.log.execute(command).stream
        self._schemas = {FIRST: keeping.row(self.stream).schema_id}

    def set_second(self) -> None:
        if SECOND not in self._schemas:
            self.set_schema(SECOND)

    def set_schema(self, schema: Schema) -> None:
        version = self.keeping.row(self.stream).schema_version + 1
        now = self.keeping.clock.now_us()
        self.keeping.log.execute(SetSchema(self.stream, schema.serialized, schema.fingerprint, version, now))
        self._schemas[schema] = self.keeping.row(self.stream).schema_id

    @property
    def contents(self) -> Contents:
        return Contents.of(self.keeping.row(self.stream), self.keeping.log.schema)

    def write(self, *rows: Row, schema: Schema = FIRST, **beside: Any) -> None:
        """One flush with one batch of rows."""
        now = self.keeping.clock.now_us()
        times = beside.pop("times", [now] * len(rows))
        full = [{name: row.get(name) for name in schema.names} for row in rows]
        batch = row_batch(full, schema, self._schemas[schema], stream=self.stream, times=times, **beside)
        keys = beside.get("keys") or [key_of(row, self.key) if self.key else None for row in full]
        headers = beside.get("headers") or [None] * len(rows)
        self._append(batch, [Seen(*seen) for seen in zip(keys, map(_known, full), times, headers, strict=True)])

    def write_together(self, *batches: Sequence[Row]) -> None:
        """One flush with many batches."""
        now = self.keeping.clock.now_us()
        made, seen = [], []
        for rows in batches:
            full = [{name: row.get(name) for name in FIRST.names} for row in rows]
            made.append(row_batch(full, FIRST, self._schemas[FIRST], stream=self.stream, times=[now] * len(rows)))
            seen += [Seen(key_of(row, self.key), row, now) for row in full]
        append(self.keeping.log, *made)
        self.written.update(enumerate(seen, len(self.written)))

    def write_json(self, *rows: Row) -> None:
        """Rows as clients send them that know nothing of the schema."""
        now = self.keeping.clock.now_us()
        seen = [Seen(key_of(row, self.key), json.dumps(row).encode(), now) for row in rows]
        self._append(make_keyed_batch([(one.key, one.value, now) for one in seen], stream=self.stream), seen)

    def write_tombstones(self, *keys: bytes) -> None:
        now = self.keeping.clock.now_us()
        batch = make_keyed_batch([(key, None, now) for key in keys], stream=self.stream)
        self._append(batch, [Seen(key, None, now) for key in keys])

    def _append(self, batch: Batch, seen: Sequence[Seen]) -> None:
        (outcome,) = append(self.keeping.log, self.contents.described(batch))
        assert isinstance(outcome, Appended)
        assert outcome.base == len(self.written)
        self.written.update(enumerate(seen, outcome.base))

    # Looking.

    def entries(self) -> Sequence[Entry]:
        return self.keeping.entries(self.stream)

    def read(self, *, cold: bool = True) -> dict[int, Seen]:
        log = self.keeping.log
        reader = LogReader(log.ledger, log._folder.blocks) if cold else log.reader
        row = self.keeping.row(self.stream)
        offset = reader.shard(self.stream, 0).start
        found: dict[int, Seen] = {}
        while batches := reader.read(row, 0, offset):
            for fetched in batches:
                assert fetched.base <= offset < fetched.end
                assert not fetched.header.statistics
                if fetched.header.count:
                    found.update(self._seen(fetched))
                offset = fetched.end
        assert offset == reader.shard(self.stream, 0).stable
        return found

    def check_times(self, found: Mapping[int, Seen], times: Iterable[int]) -> None:
        """Whether a reader that starts at one of these times begins with the first record of it or later."""
        administration = Administration(self.keeping.log, check_schema=compatibility.check)
        for time in times:
            (begin,) = administration.handle(OffsetsAtTimeCall("rows", time)).offsets
            late = [offset for offset, seen in found.items() if seen.time >= time]
            first = min(late, default=len(self.written))
            assert begin <= first
            assert not [offset for offset in found if begin <= offset < first]

    def _seen(self, fetched: FetchedBatch) -> Iterator[tuple[int, Seen]]:
        header = fetched.header
        batch = self.contents.decode(header, fetched.payload)
        batch.validate(full=True)
        prefix = "_" if header.schema_id else ""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        nothing = [None] * header.count
        distances = columns.get(f"{prefix}offset", range(header.count))
        keys = self.contents.keys(header.schema_id, batch)
        names = self.contents.schema_of(header.schema_id).names if header.schema_id else []
        for at in range(header.count):
            row = {name: columns[name][at] for name in names}
            value = _known(row) if header.schema_id else columns["value"][at]
            own = batch.column(f"{prefix}timestamp").cast(pa.int64())[at].as_py() if header.layout & 4 else None
            yield (
                fetched.base + distances[at],
                Seen(
                    None if keys is None else keys[at].as_py(),
                    value,
                    header.time_low if own is None else own,
                    columns.get(f"{prefix}headers", nothing)[at],
                ),
            )

    def check_statistics(self) -> int:
        """Whether what is known of entries is true of the records in them; how many have any."""
        log = self.keeping.log
        row = self.keeping.row(self.stream)
        described = 0
        entries = self.entries()
        for before, after in pairwise(entries):
            assert before.end == after.base
        for entry in entries:
            if not entry.statistics:
                continue
            described += 1
            whole = log.reader.statistics_of(entry)
            assert statistics.summary(whole) == entry.statistics
            (fetched,) = log.reader.load(row, [entry])
            assert fetched.header.statistics == whole
            schema = self.contents.schema(entry.schema_id)
            known = statistics.parse(whole, None if schema is None else schema.arrow)
            assert (known["_timestamp"].low, known["_timestamp"].high) == (
                fetched.header.time_low,
                fetched.header.time_high,
            )
            for _, seen in self._seen(fetched):
                if seen.key is not None:
                    assert known["_key"].may_contain is not None
                    assert known["_key"].may_contain(seen.key)
                if schema is not None:
                    _check_row(known, seen.value)
        return described


def _known(row: Row) -> Row:
    """A row without the columns that it may lack, or have as null: merging may give it those of a newer schema."""
    return {name: value for name, value in row.items() if name in FIRST.names or value is not None}


def _check_row(known: Mapping[str, statistics.Range], row: Row) -> None:
    number = known["n"]
    if row["n"] is None:
        assert number.has_null
    else:
        assert number.low <= row["n"] <= number.high
        assert number.may_contain is not None
        assert number.may_contain(row["n"])
    # Where it is the key, it has a filter; it has no bounds, for it is text.
    may_contain = known["id"].may_contain if "id" in known else None
    assert row["id"] is None or may_contain is None or may_contain(row["id"].encode())


def make_rows(chance: Any, count: int, keys: int = 20) -> list[Row]:
    """Rows of few keys, some without one."""
    return [
        {
            "id": None if chance.random() < 0.1 else f"key {chance.randrange(keys)}",
            "n": None if chance.random() < 0.1 else chance.randrange(-100, 100),
            "tags": chance.choice([None, [], ["a", None, "b"]]),
            "x": chance.choice([None, 0.5, -1.0]),
        }
        for _ in range(count)
    ]


def kept_by_compaction(written: Mapping[int, Seen]) -> dict[int, Seen]:
    """What compaction leaves at least, when no tombstone is old: of every key the newest, and what has no key."""
    newest = {seen.key: offset for offset, seen in written.items() if seen.key is not None}
    return {offset: seen for offset, seen in written.items() if seen.key is None or newest[seen.key] == offset}
