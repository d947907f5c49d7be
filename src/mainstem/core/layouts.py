"""The layouts: which columns a batch of records without a schema has, and how columns become such a batch.

A record is a row of `key: binary, value: binary, headers: map<string, binary>, timestamp: timestamp[us, UTC]`. Most
batches use only some of these, so there are *layouts*, each a fixed Arrow schema that is never written down:

    layout   bit 1: has a key column, bit 2: has headers, bit 4: has timestamps; value is always there; order as above

Bit 8 is set only in what the log itself has stored anew, where records between others were compacted away or erased:
a last column `offset: uint32` then says for each record how far it is from the batch's first offset.

A column that is absent means: no key, no headers, the batch's `time_low` as timestamp. A null timestamp means the same.
A null value is a tombstone. A header has a name, always, and a value that may be null; a name may occur twice.
"""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from mainstem.core.errors import InvalidPayload

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


@dataclass(frozen=True, slots=True)
class Shape:
    """What a message of one layout contains: how many field nodes and buffers, and which nodes are whole columns."""

    schema: pa.Schema
    nodes: struct.Struct
    buffers: struct.Struct
    node_count: int
    buffer_count: int
    rows: tuple[int, ...]  # the nodes as long as the batch
    entries: int | None  # the node of the map's entries; its names and values are the two after it
    schema_len: int  # of the schema message with which Arrow opens a stream


def _make_shape(layout: int) -> Shape:
    fields = [field for field in _STORED_SCHEMA if field.name == "value" or layout & BIT_OF[field.name]]
    schema = pa.schema(fields)
    nodes = {"key": 1, "value": 1, "headers": 4, "timestamp": 1, "offset": 1}
    buffers = {"key": 3, "value": 3, "headers": 9, "timestamp": 2, "offset": 2}
    rows = tuple(sum(nodes[name] for name in schema.names[:i]) for i in range(len(fields)))
    node_count = sum(nodes[name] for name in schema.names)
    buffer_count = sum(buffers[name] for name in schema.names)
    return Shape(
        schema=schema,
        nodes=struct.Struct(f"<{2 * node_count}q"),
        buffers=struct.Struct(f"<{2 * buffer_count}q"),
        node_count=node_count,
        buffer_count=buffer_count,
        rows=rows,
        entries=rows[schema.names.index("headers")] + 1 if layout & HAS_HEADERS else None,
        schema_len=schema.serialize().size,
    )


SHAPES: Final = tuple(_make_shape(layout) for layout in range(16))
# Layouts below this are what a producer may send.
SENT_LAYOUTS: Final = 8
SCHEMAS: Final = tuple(shape.schema for shape in SHAPES)


def layout_of(schema: pa.Schema) -> int:
    """The layout that has exactly this schema."""
    layout = sum(BIT_OF.get(name, -16) for name in schema.names)
    if 0 <= layout < len(SCHEMAS) and schema.equals(SCHEMAS[layout]):
        return layout
    raise InvalidPayload(f"a batch has some of the columns {FULL_SCHEMA.names} with their types, not {schema.names}")


def shape_of(layout: int) -> Shape:
    if not 0 <= layout < len(SHAPES):
        raise InvalidPayload(f"layout {layout} is not known; the layouts are 0 to {len(SHAPES) - 1}")
    return SHAPES[layout]


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
