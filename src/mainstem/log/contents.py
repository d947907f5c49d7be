"""What is in the batches of a stream: how they are read, what their keys are, what is to be known of them unread.

A batch holds rows of the schema that its header names, or, where that names none, records with bytes as values. In a
stream of rows these are tombstones, or rows as JSON; they have their keys beside them.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pyarrow as pa

from mainstem.core import layouts, payload, pieces, statistics
from mainstem.core.batch import Batch, BatchHeader, Buffer
from mainstem.core.errors import InvalidSchema
from mainstem.core.keys import key_column
from mainstem.core.limits import STATISTICS_RECORDS_MIN, STATISTICS_STORED_BYTES_MIN
from mainstem.core.schema import Schema
from mainstem.log.ledger.base import StreamRow

SchemaOf = Callable[[int], Schema]


def no_schema(schema: int) -> Schema:
    """For logs that have none."""
    raise InvalidSchema(f"no schema has id {schema}")


class Contents(NamedTuple):
    """The batches of one stream. Any thread."""

    schema_of: SchemaOf = no_schema
    key: tuple[str, ...] = ()
    indexed: tuple[str, ...] = ()

    @classmethod
    def of(cls, stream: StreamRow, schema_of: SchemaOf) -> "Contents":
        return cls(schema_of, stream.key, stream.index)

    def schema(self, schema_id: int) -> Schema | None:
        """The schema of this id; None if it is that of records without one."""
        return self.schema_of(schema_id) if schema_id else None

    def decode(self, header: BatchHeader, data: Buffer) -> pa.RecordBatch:
        """The batch, which was checked when it was stored."""
        schema = self.schema(header.schema_id)
        return payload.decode(header.encoding, header.layout, header.count, header.raw_len, data, schema)

    def keys(self, schema_id: int, batch: pa.RecordBatch) -> pa.BinaryArray | None:
        """The key of every record of a batch, null where it has none; None if none has."""
        if schema_id and self.key:
            return key_column(batch, self.key)
        name = "_key" if schema_id else "key"
        return batch.column(name) if name in batch.schema.names else None

    def described(self, batch: Batch) -> Batch:
        """The batch with its statistics, if it is worth them."""
        header = batch.header
        if not is_worth_statistics(header):
            return batch
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
            names = statistics.needed(schema.arrow, self.key, self.indexed).intersection(has)
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
        if keys is None and batch is not None:
            keys = self.keys(header.schema_id, batch)
        schema = self.schema(header.schema_id)
        known = statistics.collect(
            batch if header.schema_id else None,
            key=keys,
            index=self.indexed,
            columns=self.key,
            times=(header.time_low, header.time_high),
            pieces=pieces,
            schema=None if schema is None else schema.arrow,
            described_bytes=header.raw_len,
        )
        return msgspec.structs.replace(header, statistics=known)


def is_worth_statistics(header: BatchHeader) -> bool:
    """Whether a batch is large enough: for tiny ones they would cost more than they save."""
    return header.count >= STATISTICS_RECORDS_MIN or header.stored_len >= STATISTICS_STORED_BYTES_MIN
