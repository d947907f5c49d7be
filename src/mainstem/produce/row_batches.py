"""Batches of rows: the columns of a schema, and behind them what every record has beside its row."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core import tables
from mainstem.core.errors import InvalidRecord
from mainstem.core.keys import key_column
from mainstem.core.layouts import (
    ROW_HEADERS,
    ROW_KEY,
    ROW_TIMESTAMP,
    TIMESTAMP_TYPE,
    binary_array,
    refuse,
)
from mainstem.core.schema import METADATA_COLUMNS, Schema
from mainstem.registry.rows import RowConverter
from mainstem.transport.port import StreamInfo

# What a table that was read from a stream may have beside its rows. `_shard` and `_offset` are passed over.
_ENVELOPE: Final = ("_key", "_headers", "_timestamp")


def with_envelope(
    batch: pa.RecordBatch,
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Any] | None,
    times: Sequence[int] | None,
) -> pa.RecordBatch:
    """The rows with those of these columns that are given and not null throughout."""
    arrays, fields = list(batch.columns), list(batch.schema)
    if keys is not None and any(key is not None for key in keys):
        arrays.append(binary_array(keys))
        fields.append(ROW_KEY)
    if headers is not None:
        arrays.append(pa.array(headers, ROW_HEADERS.type))
        fields.append(ROW_HEADERS)
    if times is not None:
        arrays.append(pa.array(times, TIMESTAMP_TYPE))
        fields.append(ROW_TIMESTAMP)
    return batch if len(arrays) == batch.num_columns else pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def keys_of(stream: StreamInfo, batch: pa.RecordBatch, *, is_rows: bool) -> pa.BinaryArray | None:
    """The keys of the records of a batch; None if none has one."""
    if is_rows and stream.key:
        return key_column(batch, stream.key)
    name = "_key" if is_rows else "key"
    return batch.column(name) if name in batch.schema.names else None


def as_row_batches(stream: StreamInfo, rows: RowConverter, table: pa.Table) -> list[pa.RecordBatch]:
    """A user's table as batches of rows, each small enough to be one payload; SchemaMismatch with the path of what does
    not fit. Columns `_key`, `_headers` and `_timestamp` are those of the records."""
    names = table.schema.names
    envelope = {name: tables.cast_envelope(name, table.column(name)) for name in _ENVELOPE if name in names}
    try:
        cast = rows.cast(table.drop_columns([name for name in METADATA_COLUMNS if name in names]))
    except pa.ArrowException as error:
        refuse(error)
    for name, column in envelope.items():
        cast = cast.append_column(name, column)
    pieces = [_narrow(piece) for piece in tables.as_pieces(cast)]
    return [_without_own_key(stream, piece) for piece in pieces] if stream.key else pieces


def goes_as_it_is(stream: StreamInfo, table: pa.Table) -> bool:
    """Whether a user's table is sent without reading what its offsets point to: no cast, no keys, nothing nested."""
    if not stream.schema_bytes or stream.key:
        return False
    schema = Schema.parse(stream.schema_bytes).arrow
    is_same = table.schema.names == schema.names and table.schema.types == schema.types
    return is_same and not any(map(pa.types.is_nested, schema.types))


def rows_schema(table: pa.Table) -> pa.Schema:
    """The columns of a user's table that are those of its rows."""
    return pa.schema([field for field in table.schema if field.name not in METADATA_COLUMNS])


def _narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the columns of an envelope that are null throughout."""
    empty = [
        name for name in _ENVELOPE if name in batch.schema.names and batch.column(name).null_count == batch.num_rows
    ]
    return batch.drop_columns(empty) if empty else batch


def _without_own_key(stream: StreamInfo, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The key of these rows is made of their columns: one that is given must be that one, and is not stored."""
    if "_key" not in batch.schema.names:
        return batch
    if not batch.column("_key").equals(key_column(batch, stream.key)):
        raise InvalidRecord(
            f"stream {stream.name!r}: the key of a row is made of {', '.join(stream.key)}, and column '_key' has "
            "another; leave it out"
        )
    return batch.drop_columns(["_key"])


def longest(keys: pa.BinaryArray) -> int:
    """The bytes of the longest key."""
    return pc.max(pc.binary_length(keys)).as_py() or 0
