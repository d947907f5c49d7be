"""Admission: what a client sent is checked here, once, before it may reach the disk.

The client made the bytes and the server stores the same bytes, so everything a reader will rely on is proven now: the
checksum, the Arrow message, the number of records, the range of their times, the limits of a record. Rows have a schema
of their stream, any version of it, and keep what it promises. Records without one in a stream that has a schema, from
clients that know nothing of rows, are JSON that fits, or tombstones. What is to be known of a batch without reading it
is found out here too, while it is open.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core import payload, pieces
from mainstem.core.batch import TIME_US_MAX, TIME_US_MIN, Batch, BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import (
    InvalidPayload,
    InvalidRecord,
    InvalidRequest,
    InvalidSchema,
    MainstemError,
    RecordTooLarge,
    SchemaMismatch,
    StreamDeleted,
    UnknownStream,
)
from mainstem.core.identity import is_of_key
from mainstem.core.keys import is_number, key_column
from mainstem.core.layouts import HAS_HEADERS, HAS_KEY
from mainstem.core.limits import (
    JSON_BATCH_BYTES_MAX,
    JSON_BATCH_RECORDS_MAX,
    JSON_ROWS_BYTES_MAX,
    KEY_BYTES_MAX,
    KIB,
    MIB,
)
from mainstem.core.schema import Schema
from mainstem.log.contents import Contents, SchemaOf, is_worth_statistics, no_schema
from mainstem.log.ledger.base import StreamRow, VersionRow
from mainstem.produce.admission import check_batches, check_keyed, check_row_batch, has_keys
from mainstem.registry.rows import converter_of, verify

# How many streams and schemas of theirs are remembered.
_KNOWN_MAX: Final = 10_000
# What a field of a row in JSON counts beside its size: making the smallest takes half a microsecond.
_VALUE_BYTES: Final = 32
# Batches that are larger take a millisecond or more to look through: plain values are gone over a few times, keys and
# headers are looked at one by one, and rows are proven column by column. What is shorter is looked at at once: a thread
# beside others that work waits for the interpreter again and again.
_LONG_VALUES_BYTES: Final = 2 * MIB
_LONG_ROWS_BYTES: Final = 512 * KIB
_LONG_BYTES: Final = 256 * KIB
_LONG_WIDE_BYTES: Final = 64 * KIB
# Rows are wide if their schema is longer: that is about forty columns.
_WIDE_SCHEMA_BYTES: Final = 4 * KIB


def _no_versions(stream: int) -> Sequence[VersionRow]:
    return ()


class _Opened(NamedTuple):
    """A batch that is safe to use, the keys of its records if they had to be made, and its pieces."""

    batch: pa.RecordBatch
    keys: pa.BinaryArray | None = None
    pieces: bytes = b""


class _Known(NamedTuple):
    """The schemas that a stream has had up to a version."""

    version: int
    schemas: frozenset[int]


class Gateway:
    """Says no to batches that must not be stored. Any thread. `stream_of` looks a stream up by id, `schema_of` a
    schema, `versions_of` the versions of a stream's schema."""

    def __init__(
        self,
        stream_of: Callable[[int], StreamRow | None],
        record_bytes_max: int,
        schema_of: SchemaOf = no_schema,
        versions_of: Callable[[int], Sequence[VersionRow]] = _no_versions,
    ) -> None:
        self._stream_of = stream_of
        self._schema_of = schema_of
        self._versions_of = versions_of
        # By stream: which schemas are its own, and so which are not, however often a client names them.
        self._known: dict[int, _Known] = {}
        self._remembered = 0
        self._record_bytes_max = record_bytes_max
        # Guards what is remembered and counted here.
        self._lock = threading.Lock()
        self.unknown_streams = 0
        self.refused = 0

    def is_long(self, header: BatchHeader) -> bool:
        """Whether a batch takes so long to admit that others should not wait for it."""
        size = header.raw_len
        if header.schema_id:
            return size > _LONG_ROWS_BYTES or (size > _LONG_WIDE_BYTES and self._is_wide(header))
        if size > (_LONG_BYTES if header.layout & (HAS_KEY | HAS_HEADERS) else _LONG_VALUES_BYTES):
            return True
        row = self._stream_of(header.stream)
        # JSON is to be read, and a single `{}` may be a row of two thousand columns.
        return row is not None and row.schema_id != 0

    def _is_wide(self, header: BatchHeader) -> bool:
        """Whether rows of the stream have many columns; which schema a header names is not checked yet."""
        row = self._stream_of(header.stream)
        if row is None or not row.schema_id:
            return False
        return len(self._schema_of(row.schema_id).serialized) > _WIDE_SCHEMA_BYTES

    def admit(self, header: BatchHeader, data: bytes, *, acknowledge: bool) -> Batch | MainstemError:
        """The batch, safe to store, or why not. What will be acknowledged may be repeated and so needs a number."""
        try:
            row = self._check_place(header)
            if (header.producer == 0) == acknowledge:
                raise InvalidRequest("a batch has a producer id and a sequence exactly if it is to be acknowledged")
            if is_of_key(header.producer):
                raise InvalidRequest("a producer id is odd: the even ones stand for keys of requests over HTTP")
            opened = self._check_payload(row, header, data)
        except MainstemError as error:
            self.note_refused(1)
            return error
        if is_worth_statistics(header):
            batch, keys, table = (None, None, b"") if opened is None else opened
            header = Contents.of(row, self._schema_of).with_statistics(header, batch, keys, pieces=table)
        return Batch(header, data)

    def note_refused(self, count: int) -> None:
        with self._lock:
            self.refused += count

    def note_unknown(self) -> None:
        """Somebody asked for a stream that is not there."""
        with self._lock:
            self.unknown_streams += 1

    def _check_place(self, header: BatchHeader) -> StreamRow:
        row = self._stream_of(header.stream)
        if row is None:
            self.note_unknown()
            raise UnknownStream(f"no stream has id {header.stream}; look it up by name again")
        if row.deleted_us:
            raise StreamDeleted(f"stream {row.name!r} was deleted")
        if header.shard >= row.shards:
            raise InvalidRequest(f"stream {row.name!r} has {row.shards} shards; there is no shard {header.shard}")
        if header.transaction or header.statistics or header.span:
            raise InvalidRequest("transaction, statistics and span are the server's to give")
        if header.schema_id and not self._has_schema(row, header.schema_id):
            raise InvalidSchema(
                f"stream {row.name!r} has no version of its schema with id {header.schema_id}; look it up again"
            )
        return row

    def _has_schema(self, row: StreamRow, schema: int) -> bool:
        if schema == row.schema_id:
            return True
        known = self._known.get(row.id)
        if known is None or known.version != row.schema_version:
            versions = self._versions_of(row.id)
            known = _Known(row.schema_version, frozenset(version.schema_id for version in versions))
            # A version that is being written may not be among them yet.
            if len(versions) >= row.schema_version:
                self._remember(row.id, known)
        return schema in known.schemas

    def _remember(self, stream: int, known: _Known) -> None:
        with self._lock:
            self._remembered += 1 + len(known.schemas)
            if self._remembered > _KNOWN_MAX:
                self._known.clear()
                self._remembered = 1 + len(known.schemas)
            self._known[stream] = known

    def _check_payload(self, row: StreamRow, header: BatchHeader, data: bytes) -> _Opened | None:
        """The batch, safe to use; None of a small one that did not have to be opened."""
        # Where there are pieces, the checksum comes with theirs: the bytes are gone over once.
        table = Contents.of(row, self._schema_of).pieces(header, data) if header.schema_id else b""
        if (pieces.checksum(table) if table else crc32c(data)) != header.payload_crc:
            raise InvalidPayload("the payload was changed on the way: its checksum does not match")
        # In a payload that is not longer than the longest key no key is too long.
        has_long_key = header.layout & HAS_KEY and header.raw_len > KEY_BYTES_MAX
        opened: _Opened | None = None
        if header.schema_id:
            opened = self._check_rows(row, header, data)._replace(pieces=table)
            times = payload.row_time_range(opened.batch)
        elif header.layout & HAS_HEADERS or has_long_key or row.compacts or row.schema_id:
            opened = _Opened(self._check_records(row, header, data))
            times = payload.time_range(opened.batch)
        elif is_worth_statistics(header):
            opened = _Opened(self._opened(header, data))
            times = payload.time_range(opened.batch)
        else:
            times = payload.verify(
                header.encoding, header.layout, header.count, header.raw_len, data, self._record_bytes_max
            )
        times = times or (header.time_high, header.time_high)
        if header.time_low < TIME_US_MIN or header.time_high > TIME_US_MAX:
            raise InvalidPayload(
                f"times are {header.time_low} to {header.time_high} microseconds since 1970; a time is in the years 1 "
                "to 9999"
            )
        if times != (header.time_low, header.time_high):
            raise InvalidPayload(
                f"times are {times[0]} to {times[1]}, the header says {header.time_low} to {header.time_high}"
            )
        return opened

    def _check_records(self, row: StreamRow, header: BatchHeader, data: bytes) -> pa.RecordBatch:
        """Check keys and headers too, by whole columns."""
        batch = self._opened(header, data)
        check_batches(row.name, (batch,))
        check_keyed(row.name, row.cleanup, has_keys(batch))
        if row.schema_id:
            self._check_json(row, header, batch)
        return batch

    def _opened(self, header: BatchHeader, data: bytes, schema: Schema | None = None) -> pa.RecordBatch:
        sizes = (header.encoding, header.layout, header.count, header.raw_len)
        return payload.check(*sizes, data, self._record_bytes_max, schema=schema)

    def _check_rows(self, row: StreamRow, header: BatchHeader, data: bytes) -> _Opened:
        """A batch of rows: what its schema promises, its keys and headers."""
        schema = self._schema_of(header.schema_id)
        batch = self._opened(header, data, schema)
        if row.key and header.layout & HAS_KEY:
            raise InvalidRecord(f"stream {row.name!r}: the key of a row is made of {', '.join(row.key)}")
        try:
            verify(schema, batch)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"stream {row.name!r}: {error}", path=error.path) from None
        contents = Contents.of(row, self._schema_of)
        named = contents.names_in(header.schema_id, row.key)
        if is_number(batch.schema, named):
            # Its text, which nobody needs here, would take as long as all the other checks.
            keys, nulls = None, batch.column(named[0]).null_count
        else:
            keys = contents.keys(header.schema_id, batch)
            nulls = batch.num_rows if keys is None else keys.null_count
        check_row_batch(row.name, batch, keys)
        check_keyed(row.name, row.cleanup, not nulls)
        return _Opened(batch, keys)

    def _check_json(self, row: StreamRow, header: BatchHeader, batch: pa.RecordBatch) -> None:
        """Records without a schema in a stream that has one: JSON that fits its newest, or tombstones with a key."""
        values = batch.column("value")
        if values.null_count and not (header.layout & HAS_KEY and not _count_empty(batch.column("key"), values)):
            raise InvalidRecord(f"stream {row.name!r}: a tombstone says which row is gone: it needs a key")
        if values.null_count == len(values):
            return
        # Reading JSON takes a hundred times as long as looking through a message.
        if header.raw_len > JSON_BATCH_BYTES_MAX or header.count > JSON_BATCH_RECORDS_MAX:
            raise RecordTooLarge(
                f"stream {row.name!r} has a schema: batches of JSON are at most {JSON_BATCH_BYTES_MAX} bytes and "
                f"{JSON_BATCH_RECORDS_MAX} records; send smaller ones, or rows"
            )
        converter = converter_of(self._schema_of(row.schema_id))
        if (size := converter.json_size(values, _VALUE_BYTES)) > JSON_ROWS_BYTES_MAX:
            raise RecordTooLarge(
                f"stream {row.name!r}: these {header.count} records are rows of about {size} bytes, {_VALUE_BYTES} for "
                f"each field and what they leave out; at most {JSON_ROWS_BYTES_MAX} are made of JSON at once; send "
                "fewer, or rows"
            )
        rows, bad = converter.from_json(values, is_first_enough=True)
        if bad:
            raise SchemaMismatch(f"stream {row.name!r}: record {bad[0].index}: {bad[0]}", path=bad[0].path)
        if row.key:
            self._check_own_keys(row, batch, rows)

    def _check_own_keys(self, row: StreamRow, batch: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        """Whoever sends JSON chose the shard by a key of its own: it must be the one that the row has."""
        is_row = batch.column("value").is_valid()
        given = batch.column("key") if "key" in batch.schema.names else pa.nulls(len(rows), pa.binary())
        if not given.filter(is_row).equals(key_column(rows, row.key).filter(is_row)):
            raise InvalidRecord(
                f"stream {row.name!r}: the key of a row is made of {', '.join(row.key)}, and a record has another"
            )


def _count_empty(keys: pa.Array, values: pa.Array) -> int:
    """How many records have neither a key nor a value."""
    return int(pc.sum(pc.and_(keys.is_null(), values.is_null())).as_py() or 0)
