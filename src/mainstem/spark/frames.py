"""Frames of Spark as tables that a stream takes: which columns mean what, and whether they fit."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core import tables
from mainstem.core.errors import InvalidPayload, InvalidRecord, SchemaMismatch
from mainstem.core.limits import MIB, PAYLOAD_RAW_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.produce.admission import check_shard
from mainstem.produce.row_batches import as_row_batches
from mainstem.registry.rows import converter_of
from mainstem.spark import types
from mainstem.transport.port import StreamInfo

# The columns of a stream without a schema, beside the shard.
_RECORD: Final = ("value", "key", "headers", "timestamp")
# What is gathered of a frame before it is sent: enough for a batch of some size in each shard.
_GATHERED_BYTES_MIN: Final = 4 * MIB
_GATHERED_BYTES_MAX: Final = 8 * MIB


def shard_column(stream: StreamInfo) -> str:
    """The column that says to which shard a row goes."""
    return "_shard" if stream.schema_bytes else "shard"


def check_frame(stream: StreamInfo, schema: pa.Schema) -> None:
    """Refuse a frame that does not fit its stream, naming the column. Values are looked at when they come."""
    column = shard_column(stream)
    if column in schema.names:
        kind = schema.field(column).type
        if not pa.types.is_integer(kind):
            raise SchemaMismatch(
                f"stream {stream.name!r}: column {column!r} is {kind}; a shard is an integer", path=column
            )
        schema = schema.remove(schema.get_field_index(column))
        # Whether this stream takes a chosen shard at all.
        check_shard(stream, 0)
    if stream.schema_bytes:
        try:
            as_row_batches(
                stream, converter_of(Schema.parse(stream.schema_bytes)), fitted(stream, schema.empty_table())
            )
        except SchemaMismatch as error:
            raise SchemaMismatch(f"stream {stream.name!r}: {error}", path=error.path) from None
        return
    others = [name for name in schema.names if name not in _RECORD]
    if others:
        raise InvalidPayload(
            f"stream {stream.name!r} has no schema: its columns are value, key, headers, timestamp and shard, not "
            f"{others[0]!r}. Give it one (mainstem schema), or make one column of the row, such as "
            "to_json(struct(*)) AS value"
        )
    tables.as_batches(schema.empty_table())


def gathered(stream: StreamInfo, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches as few larger tables."""
    bytes_max = min(max(_GATHERED_BYTES_MIN, stream.shards * MIB), _GATHERED_BYTES_MAX)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= bytes_max:
            yield fitted(stream, _joined(held, size))
            held, size = [], 0
    if any(batch.num_rows for batch in held):
        yield fitted(stream, _joined(held, size))


def _joined(batches: list[pa.RecordBatch], size: int) -> pa.Table:
    """Batches as one table, and as one batch: what is done with each costs more than a copy. Large ones are left."""
    table = pa.Table.from_batches(batches)
    return table.combine_chunks() if size <= PAYLOAD_RAW_BYTES_MAX else table


def fitted(stream: StreamInfo, table: pa.Table) -> pa.Table:
    """The table, with whole decimals as what they were read from, where that is a number without a sign of 64 bits:
    Spark has no other type for it. SchemaMismatch names the column that has a value which is none."""
    if not stream.schema_bytes:
        return table
    for field in types.unsigned_of(Schema.parse(stream.schema_bytes).arrow, table.schema):
        place = table.schema.get_field_index(field.name)
        table = table.set_column(place, pa.field(field.name, field.type), types.cast(table.column(place), field))
    return table


def by_shard(stream: StreamInfo, table: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
    """The rows of each shard that the frame names, and under None those for which it names none."""
    name = shard_column(stream)
    if name not in table.schema.names:
        yield None, table
        return
    shards = table.column(name)
    table = table.drop_columns([name])
    for shard in pc.unique(shards).to_pylist():
        mask = pc.is_null(shards) if shard is None else pc.equal(shards, shard)
        if shard is not None and not 0 <= shard < stream.shards:
            raise InvalidRecord(
                f"stream {stream.name!r} has {stream.shards} shards, 0 to {stream.shards - 1}; column {name!r} says "
                f"{shard}"
            )
        yield shard, table.filter(mask)
