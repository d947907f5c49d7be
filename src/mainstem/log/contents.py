"""What is in the batches of a stream: how they are read, what their keys are, what is to be known of them unread.

A batch holds rows of the schema that its header names, or, where that names none, records with bytes as values. In a
stream of rows these are tombstones, or rows as JSON; they have their keys beside them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.core import layouts, payload, pieces, statistics
from mainstem.core.batch import Batch, BatchHeader, Buffer, FetchedBatch
from mainstem.core.errors import InvalidSchema
from mainstem.core.keys import key_column
from mainstem.core.limits import STATISTICS_RECORDS_MIN, STATISTICS_STORED_BYTES_MIN
from mainstem.core.matching import names_before
from mainstem.core.schema import Schema
from mainstem.log.ledger.base import StreamRow

SchemaOf = Callable[[int], Schema]
# How rows of one schema become rows of another in which they are the same; None if they cannot.
Promote = Callable[[Schema, Schema], Callable[[pa.RecordBatch], pa.RecordBatch] | None]


def no_schema(schema: int) -> Schema:
    """For logs that have none."""
    raise InvalidSchema(f"no schema has id {schema}")


def never_promoted(old: Schema, new: Schema) -> None:
    """For who leaves rows in the schema they were written with."""


class Contents(NamedTuple):
    """The batches of one stream. Any thread. `key` and `indexed` are names of the schema `schema_id`; batches of others
    may have other names for the same columns."""

    schema_of: SchemaOf = no_schema
    key: tuple[str, ...] = ()
    indexed: tuple[str, ...] = ()
    schema_id: int = 0
    # In which of these schemas, the newest first, rows of an older one may be stored anew.
    versions: Sequence[int] = ()
    promote: Promote = never_promoted

    @classmethod
    def of(cls, stream: StreamRow, schema_of: SchemaOf) -> "Contents":
        return cls(schema_of, stream.key, stream.index, stream.schema_id)

    def schema(self, schema_id: int) -> Schema | None:
        """The schema of this id; None if it is that of records without one."""
        return self.schema_of(schema_id) if schema_id else None

    def names_in(self, schema_id: int, names: tuple[str, ...]) -> tuple[str, ...]:
        """What columns of the stream are called in another of its schemas; those that it lacks are left out."""
        if not names or schema_id in (0, self.schema_id) or not self.schema_id:
            return names
        called = names_before(self.schema_of(self.schema_id), self.schema_of(schema_id))
        return tuple(called[name] for name in names if name in called)

    def target(self, schema_id: int) -> int:
        """The newest schema in which rows of this one are the same; what has the same one can be in one batch."""
        if not schema_id:
            return schema_id
        older = self.schema_of(schema_id)
        for newer in self.versions:
            if newer == schema_id or self.promote(older, self.schema_of(newer)) is not None:
                return newer
        return schema_id

    def decode_as(self, schema_id: int, header: BatchHeader, data: Buffer) -> pa.RecordBatch:
        """The batch as rows of the target of its schema."""
        batch = self.decode(header, data)
        if header.schema_id == schema_id:
            return batch
        way = self.promote(self.schema_of(header.schema_id), self.schema_of(schema_id))
        assert way is not None, "a group has one target"
        return way(batch)

    def decode(self, header: BatchHeader, data: Buffer) -> pa.RecordBatch:
        """The batch, which was checked when it was stored."""
        schema = self.schema(header.schema_id)
        return payload.decode(header.encoding, header.layout, header.count, header.raw_len, data, schema)

    def first_at(self, batch: FetchedBatch, time_us: int) -> int:
        """The offset of the first record of `time_us` or later in a batch that has one."""
        header = batch.header
        prefix = "_" if header.schema_id else ""
        flags = {layouts.HAS_TIMESTAMP: f"{prefix}timestamp", layouts.HAS_OFFSETS: f"{prefix}offset"}
        names = [name for flag, name in flags.items() if header.layout & flag]
        if not names:
            return batch.base
        sizes = (header.encoding, header.layout, header.count, header.raw_len)
        columns = payload.decode_columns(*sizes, batch.payload, self.schema(header.schema_id), names)
        index = int(np.argmax(times_of(header, columns) >= time_us))
        return int(offsets_of(batch, columns)[index])

    def keys(self, schema_id: int, batch: pa.RecordBatch) -> pa.BinaryArray | None:
        """The key of every record of a batch, null where it has none; None if none has."""
        if schema_id and self.key:
            return key_column(batch, self.names_in(schema_id, self.key))
        name = "_key" if schema_id else "key"
        return batch.column(name) if name in batch.schema.names else None

    def described(self, batch: Batch) -> Batch:
        """The batch with its statistics, if it is worth them."""
        header = batch.header
        if not is_worth_statistics(header):
            return Batch(header, batch.payload)
        columns = batch.columns
        if columns is None:
            columns = self._described_columns(header, batch.payload)
        table = self.pieces(header, batch.payload)
        return Batch(self.with_statistics(header, columns, pieces=table), batch.payload)

    def pieces(self, header: BatchHeader, data: Buffer) -> bytes:
        """The pieces of a batch, if it is one of rows and worth them; they also say what its checksum is."""
        return pieces.collect(header, data, self.schema_of(header.schema_id)) if header.schema_id else b""

    def _described_columns(self, header: BatchHeader, data: Buffer) -> pa.RecordBatch | None:
        """Of a batch, what statistics are made of: some columns of rows, or the keys of records without a schema."""
        schema, names = self.schema(header.schema_id), {"key"}
        if schema is not None:
            has = layouts.shape_of(header.layout, schema).schema.names
            key, indexed = (self.names_in(header.schema_id, named) for named in (self.key, self.indexed))
            names = statistics.needed(schema.arrow, key, indexed).intersection(has)
            if 2 * len(names) > len(has):
                # Arrow opens all of it sooner than we most of it.
                return self.decode(header, data)
        elif not header.layout & layouts.HAS_KEY:
            return None
        sizes = (header.encoding, header.layout, header.count, header.raw_len)
        return payload.decode_columns(*sizes, data, schema, names) if names else None

    def with_statistics(
        self,
        header: BatchHeader,
        batch: pa.RecordBatch | None,
        keys: pa.BinaryArray | None = None,
        *,
        pieces: bytes = b"",
    ) -> BatchHeader:
        """The header with the statistics of its batch, which is only needed if it has rows or keys, and its pieces.
        `keys` are those of its records, if somebody has made them already."""
        if keys is None and batch is not None and not (header.schema_id and len(self.key) == 1):
            keys = self.keys(header.schema_id, batch)
        schema = self.schema(header.schema_id)
        known = statistics.collect(
            batch if header.schema_id else None,
            key=keys,
            index=self.names_in(header.schema_id, self.indexed),
            columns=self.names_in(header.schema_id, self.key),
            times=(header.time_low, header.time_high),
            pieces=pieces,
            schema=None if schema is None else schema.arrow,
            described_bytes=header.raw_len,
        )
        return msgspec.structs.replace(header, statistics=known)


def is_worth_statistics(header: BatchHeader) -> bool:
    """Whether a batch is large enough: for tiny ones they would cost more than they save."""
    return header.count >= STATISTICS_RECORDS_MIN or header.stored_len >= STATISTICS_STORED_BYTES_MIN


def offsets_of(source: FetchedBatch, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The offset of each record of a batch, or of some of its columns."""
    if source.header.layout & layouts.HAS_OFFSETS:
        name = layouts.ROW_OFFSET.name if source.header.schema_id else "offset"
        distances: npt.NDArray[np.int64] = batch.column(name).to_numpy().astype(np.int64)
        return source.base + distances
    return np.arange(source.base, source.base + batch.num_rows, dtype=np.int64)


def times_of(header: BatchHeader, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The time of each, in microseconds."""
    if not header.layout & layouts.HAS_TIMESTAMP:
        return np.full(batch.num_rows, header.time_low, np.int64)
    column = batch.column(layouts.ROW_TIMESTAMP.name if header.schema_id else "timestamp").cast(pa.int64())
    # A record without a time of its own has that of its batch.
    times: npt.NDArray[np.int64] = column.fill_null(header.time_low).to_numpy()
    return times
