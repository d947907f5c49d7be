"""The layouts: which columns a batch of records has, and how columns become such a batch.

A record without a schema is a row of `key: binary, value: binary, headers: map<string, binary>, timestamp:
timestamp[us, UTC]`. Most batches use only some of these, so there are *layouts*, each a fixed Arrow schema that is
never written down:

    layout   bit 1: has a key column, bit 2: has headers, bit 4: has timestamps; value is always there; order as above

Bit 8 is set only in what the log itself has stored anew, where records between others were compacted away or erased:
a last column `offset: uint32` then says for each record how far it is from the batch's first offset.

A column that is absent means: no key, no headers, the batch's `time_low` as timestamp. A null timestamp means the same.
A null value is a tombstone. A header has a name, always, and a value that may be null; a name may occur twice.

A batch of rows has the columns of its schema in place of `value`, and behind them, by the same bits, `_key`,
`_headers`, `_timestamp` and `_offset`. Where the key is made of columns of the row, `_key` is absent.
"""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from mainstem.core.errors import InvalidPayload
from mainstem.core.kept import kept
from mainstem.core.schema import Schema, size_of

HAS_KEY: Final = 1
HAS_HEADERS: Final = 2
HAS_TIMESTAMP: Final = 4
HAS_OFFSETS: Final = 8

HEADERS_TYPE: Final = pa.map_(pa.string(), pa.binary())
TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")
FULL_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE), ("timestamp", TIMESTAMP_TYPE)]
)
# Below this many values numpy costs more than it saves.
FEW: Final = 32
# Arrow's offsets of binary columns are signed 32-bit numbers.
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1
BIT_OF: Final = {"key": HAS_KEY, "value": 0, "headers": HAS_HEADERS, "timestamp": HAS_TIMESTAMP, "offset": HAS_OFFSETS}
_STORED_SCHEMA: Final = FULL_SCHEMA.append(pa.field("offset", pa.uint32()))
Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]


# Everything pyarrow raises for bad data; its errors share no root of their own.
ARROW_ERRORS: Final = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError)


def refuse(error: Exception) -> NoReturn:
    raise InvalidPayload(f"not a batch of records: {error}") from None


class Node(NamedTuple):
    """A column of a message, or a part of one, as Arrow lists them: each before its parts."""

    parent: int  # the node it is a part of, -1 for a column
    per_parent: int  # how many values it has for each of its parent; 0: as many as the parent's offsets say
    is_map_part: bool  # the entries of a map, or their keys: never null, or Arrow ends the process
    buffer: int  # the first of its buffers, which says what is null
    has_offsets: bool  # and the second where each value begins
    bits: int  # or how many bits of the second buffer a value takes, 0 if it has none


@dataclass(frozen=True, slots=True)
class Shape:
    """What a message of one layout contains: its field nodes and buffers."""

    layout: int
    schema: pa.Schema
    columns: tuple[Node, ...]
    nodes: struct.Struct
    buffers: struct.Struct
    node_count: int
    buffer_count: int
    starts: tuple[tuple[int, int], ...]  # the first node and the first buffer of each column, and those after the last
    opening: bytes  # the schema message with which Arrow opens a stream
    metadata_bytes_max: int


# Our own writer needs 700 bytes for the widest layout without a schema; other flatbuffer writers may lay theirs out
# with more room.
_METADATA_BYTES_MAX: Final = 4 << 10


def _make_shape(layout: int, schema: pa.Schema) -> Shape:
    nodes: list[Node] = []
    buffer_count = 0
    for field in schema:
        buffer_count = _add_nodes(nodes, field.type, -1, 1, False, buffer_count)
    return Shape(
        layout=layout,
        schema=schema,
        columns=tuple(nodes),
        nodes=struct.Struct(f"<{2 * len(nodes)}q"),
        buffers=struct.Struct(f"<{2 * buffer_count}q"),
        node_count=len(nodes),
        buffer_count=buffer_count,
        starts=(*((at, node.buffer) for at, node in enumerate(nodes) if node.parent < 0), (len(nodes), buffer_count)),
        opening=schema.serialize().to_pybytes(),
        metadata_bytes_max=_METADATA_BYTES_MAX + 2 * 16 * (len(nodes) + buffer_count),
    )


def _add_nodes(
    nodes: list[Node], kind: pa.DataType, parent: int, per_parent: int, is_map_part: bool, buffer: int
) -> int:
    """Add the nodes of a type, the first of whose buffers is `buffer`; the number of buffers so far."""
    at = len(nodes)
    is_map = pa.types.is_map(kind)
    if is_map or pa.types.is_list(kind):
        nodes.append(Node(parent, per_parent, is_map_part, buffer, True, 0))
        if not is_map:
            return _add_nodes(nodes, kind.value_type, at, 0, False, buffer + 2)
        nodes.append(Node(at, 0, True, buffer + 2, False, 0))
        following = _add_nodes(nodes, kind.key_type, at + 1, 1, True, buffer + 3)
        return _add_nodes(nodes, kind.item_type, at + 1, 1, False, following)
    if pa.types.is_struct(kind):
        nodes.append(Node(parent, per_parent, is_map_part, buffer, False, 0))
        buffer += 1
        for index in range(kind.num_fields):
            buffer = _add_nodes(nodes, kind.field(index).type, at, 1, False, buffer)
        return buffer
    if pa.types.is_fixed_size_list(kind):
        nodes.append(Node(parent, per_parent, is_map_part, buffer, False, 0))
        return _add_nodes(nodes, kind.value_type, at, kind.list_size, False, buffer + 1)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        nodes.append(Node(parent, per_parent, is_map_part, buffer, True, 0))
        return buffer + 3
    nodes.append(Node(parent, per_parent, is_map_part, buffer, False, kind.bit_width))
    return buffer + 2


def _fields_of(layout: int) -> list[pa.Field]:
    return [field for field in _STORED_SCHEMA if field.name == "value" or layout & BIT_OF[field.name]]


SHAPES: Final = tuple(_make_shape(layout, pa.schema(_fields_of(layout))) for layout in range(16))
# Layouts below this are what a producer may send.
SENT_LAYOUTS: Final = 8
SCHEMAS: Final = tuple(shape.schema for shape in SHAPES)


def layout_of(schema: pa.Schema) -> int:
    """The layout that has exactly this schema."""
    layout = sum(BIT_OF.get(name, -16) for name in schema.names)
    if 0 <= layout < len(SCHEMAS) and schema.equals(SCHEMAS[layout]):
        return layout
    raise InvalidPayload(f"a batch has some of the columns {FULL_SCHEMA.names} with their types, not {schema.names}")


def shape_of(layout: int, schema: Schema | None = None) -> Shape:
    """The shape of a layout, of records without a schema or of rows."""
    if not 0 <= layout < len(SHAPES):
        raise InvalidPayload(f"layout {layout} is not known; the layouts are 0 to {len(SHAPES) - 1}")
    return SHAPES[layout] if schema is None else _row_shape(layout, schema)


# Rows: a batch of them has the columns of its schema, then those of what every record has, as far as its layout says.
ROW_KEY: Final = pa.field("_key", pa.binary())
ROW_HEADERS: Final = pa.field("_headers", HEADERS_TYPE)
ROW_TIMESTAMP: Final = pa.field("_timestamp", TIMESTAMP_TYPE)
ROW_OFFSET: Final = pa.field("_offset", pa.uint32())
ROW_FIELDS: Final = (
    (HAS_KEY, ROW_KEY),
    (HAS_HEADERS, ROW_HEADERS),
    (HAS_TIMESTAMP, ROW_TIMESTAMP),
    (HAS_OFFSETS, ROW_OFFSET),
)


# What every record has beside its row, as columns of a user's table.
METADATA_FIELDS: Final = {
    "_shard": pa.int32(),
    "_offset": pa.int64(),
    **{field.name: field.type for field in (ROW_TIMESTAMP, ROW_KEY, ROW_HEADERS)},
}


def shape_of_columns(schema: pa.Schema) -> Shape:
    """The shape of a message of these columns, whatever layout they are."""
    return _make_shape(0, schema)


@kept(lambda layout, schema: size_of(schema))
def _row_shape(layout: int, schema: Schema) -> Shape:
    # Without the metadata of the fields: what is only for people and for promotion is no part of a batch.
    fields = [field.remove_metadata() for field in schema.arrow]
    return _make_shape(layout, pa.schema(fields + [field for bit, field in ROW_FIELDS if layout & bit]))


def row_layout(batch: pa.RecordBatch) -> int:
    """The layout of a batch of rows, by its last columns."""
    names = set(batch.schema.names)
    return sum(bit for bit, field in ROW_FIELDS if field.name in names)


def build(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    timestamps: Sequence[int] | pa.Array | None = None,
) -> pa.RecordBatch:
    """Records given by column, as a batch in the narrowest layout; timestamps are microseconds since 1970.

    The elements must be `bytes`: a memoryview inside a list given to pyarrow is never freed.
    """
    try:
        value = binary_array(values)
        if keys is None and headers is None and timestamps is None:
            return pa.RecordBatch.from_arrays([value], schema=SCHEMAS[0])
        columns = {"value": value}
        if keys is not None:
            columns["key"] = binary_array(keys)
        if headers is not None:
            columns["headers"] = pa.array(headers, HEADERS_TYPE)
        if timestamps is not None:
            columns["timestamp"] = pa.array(timestamps, TIMESTAMP_TYPE)
        return narrow(columns)
    except ARROW_ERRORS as error:
        refuse(error)


def binary_array(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """An Arrow array of bytes. `pa.array` would do, but its first call imports pandas where that is installed."""
    try:
        data = b"".join(values)  # type: ignore[arg-type]
    except TypeError:  # a None among them
        return _with_nulls(values)
    if len(data) > _COLUMN_BYTES_MAX:
        raise InvalidPayload(f"a column of {len(data)} bytes; at most {_COLUMN_BYTES_MAX} are possible")
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), [None, _offsets_of(values), pa.py_buffer(data)])


def _with_nulls(values: Sequence[bytes | None]) -> pa.BinaryArray:
    present = [value or b"" for value in values]
    validity = np.packbits([value is not None for value in values], bitorder="little")
    buffers = [pa.py_buffer(validity.tobytes()), _offsets_of(present), pa.py_buffer(b"".join(present))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(values), buffers)


def _offsets_of(values: Sequence[Any]) -> pa.Buffer:
    """Where each value begins in the column, as Arrow stores it: signed 32-bit numbers."""
    count = len(values)
    if count < FEW:
        return pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, count), out=offsets[1:])
    return pa.py_buffer(offsets)


def narrow(columns: dict[str, Any]) -> pa.RecordBatch:
    """A batch of these columns without the optional ones that are null throughout."""
    columns = {name: column for name, column in columns.items() if name == "value" or column.null_count < len(column)}
    schema = SCHEMAS[sum(BIT_OF[name] for name in columns)]
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def narrow_rows(columns: dict[str, Any], schema: Schema) -> pa.RecordBatch:
    """A batch of rows with these columns, and without those beside its schema's that are null throughout."""
    layout = sum(
        bit for bit, field in ROW_FIELDS if (own := columns.get(field.name)) is not None and own.null_count < len(own)
    )
    shape = shape_of(layout, schema)
    return pa.RecordBatch.from_arrays([columns[name] for name in shape.schema.names], schema=shape.schema)


def widen(batch: pa.RecordBatch, layout: int, time_us: int) -> pa.RecordBatch:
    """The same records with all four columns. Columns that are there are shared, not copied."""
    count = batch.num_rows
    columns = dict(zip(shape_of(layout).schema.names, batch.columns, strict=True))
    if "timestamp" not in columns:
        # Not pa.repeat of a scalar: making one imports pandas where that is installed.
        times = pa.py_buffer(np.full(count, time_us, np.int64))
        columns["timestamp"] = pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, times])
    elif columns["timestamp"].null_count:
        columns["timestamp"] = columns["timestamp"].fill_null(pa.scalar(time_us, TIMESTAMP_TYPE))
    for name in ("key", "headers"):
        if name not in columns:
            columns[name] = pa.nulls(count, FULL_SCHEMA.field(name).type)
    return pa.RecordBatch.from_arrays([columns[name] for name in FULL_SCHEMA.names], schema=FULL_SCHEMA)


def widen_rows(batch: pa.RecordBatch, schema: Schema, time_us: int) -> pa.RecordBatch:
    """The same rows with `_key`, `_headers` and `_timestamp`, whatever their layout has; `_offset` stays if it is
    there. Columns that are there are shared, not copied."""
    count, own = batch.num_rows, len(schema.names)
    extra = dict(zip(batch.schema.names[own:], batch.columns[own:], strict=True))
    times = extra.get("_timestamp")
    if times is None:
        times = pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, pa.py_buffer(np.full(count, time_us, np.int64))])
    elif times.null_count:
        times = times.fill_null(pa.scalar(time_us, TIMESTAMP_TYPE))
    fields = [batch.schema.field(index) for index in range(own)]
    columns = batch.columns[:own]
    for field, column in (
        (ROW_KEY, extra.get("_key")),
        (ROW_HEADERS, extra.get("_headers")),
        (ROW_TIMESTAMP, times),
        (ROW_OFFSET, extra.get("_offset")),
    ):
        if column is None and field is not ROW_OFFSET:
            column = pa.nulls(count, field.type)
        if column is not None:
            fields.append(field)
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
