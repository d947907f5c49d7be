"""The payload: how a batch of records without a schema becomes bytes, and how bytes become a batch again.

A record is a row of `key: binary, value: binary, headers: map<string, binary>, timestamp: timestamp[us, UTC]`. Most
batches use only some of these, so a payload has one of eight *layouts*, each a fixed Arrow schema that is never
written down:

    layout   bit 1: has a key column, bit 2: has headers, bit 4: has timestamps; value is always there; order as above

A column that is absent means: no key, no headers, the batch's `time_low` as timestamp. A null timestamp means the same.
A null value is a tombstone. A header has a name, always, and a value that may be null; a name may occur twice.

    encoding   payload                                                                      raw_len
    1          one Arrow IPC record-batch message (prefix, metadata, body), no schema       length of the payload
    2, 4       the same as a whole in one zstd (2) or LZ4 (4) frame                         length of the message
    3, 5       a message whose body buffers are each compressed with zstd (3) or LZ4 (5)    prefix and metadata as they
                                                                                            are, plus the uncompressed
                                                                                            length of every buffer

`raw_len` is exact in all of them and so bounds what decoding allocates. Small payloads are compressed as a whole,
because one frame finds more to share; large ones by buffer, so that a column can be read alone.

Two ways lead back to a batch. `decode` is for bytes that this system wrote and whose checksum was verified. `check` is
for bytes from outside: it reads the message's flatbuffer itself before pyarrow sees it, so that no claimed length,
offset, count or uncompressed size can make pyarrow reserve or touch what is not there; then it validates every value.
Bad input is `InvalidPayload`, always. Batches alias the payload they came from: its bytes must not change afterwards.
"""

import functools
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import gt
from typing import Any, Final, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.batch import Buffer
from mainstem.core.errors import InvalidPayload, RecordTooLarge
from mainstem.core.limits import (
    BATCH_RECORDS_MAX,
    PAYLOAD_COMPRESS_MIN,
    PAYLOAD_RAW_BYTES_MAX,
    PAYLOAD_STORED_BYTES_MAX,
    PAYLOAD_WHOLE_ZSTD_MAX,
    RECORD_BYTES_MAX,
)

RAW: Final = 1
ZSTD: Final = 2
ZSTD_BUFFERS: Final = 3
LZ4: Final = 4
LZ4_BUFFERS: Final = 5

HAS_KEY: Final = 1
HAS_HEADERS: Final = 2
HAS_TIMESTAMP: Final = 4

HEADERS_TYPE: Final = pa.map_(pa.string(), pa.binary())
TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")
FULL_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE), ("timestamp", TIMESTAMP_TYPE)]
)
# Below this many values numpy costs more than it saves.
_FEW: Final = 32
# Up to this size a message of a few records is looked through in Python.
_SMALL_BYTES: Final = 64 << 10
# Arrow's offsets of binary columns are signed 32-bit numbers.
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1
_BIT_OF: Final = {"key": HAS_KEY, "value": 0, "headers": HAS_HEADERS, "timestamp": HAS_TIMESTAMP}

Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A batch as bytes, and what a reader must be told to read them."""

    encoding: int
    layout: int
    count: int
    raw_len: int
    payload: bytes


def encode(batch: pa.RecordBatch, compression: str | None) -> Encoded:
    """The bytes of `batch`, whose schema must be one of `SCHEMAS`. `compression` is "zstd", "lz4" or None.

    What would not shrink by a tenth is stored as it is. Any thread may call this; the GIL is free while bytes move.
    """
    layout = layout_of(batch.schema)
    count = batch.num_rows
    _check_count(count)
    message = batch.serialize()
    _check_raw_len(message.size)
    if message.size > RECORD_BYTES_MAX:
        check_record_bytes(batch)
    if compression is not None and message.size >= PAYLOAD_COMPRESS_MIN:
        compressed = _compress(batch, _codec_named(compression), layout, message)
        if compressed is not None:
            return compressed
    return Encoded(RAW, layout, count, message.size, message.to_pybytes())


def check(
    encoding: int,
    layout: int,
    count: int,
    raw_len: int,
    payload: Buffer | pa.Buffer,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> pa.RecordBatch:
    """The batch in a payload that nobody has looked at yet, safe to use afterwards, or `InvalidPayload`."""
    shape = _shape_of(layout)
    codec = _codec_of(encoding)
    _check_count(count)
    _check_raw_len(raw_len)
    message = _message(encoding, raw_len, payload)
    by_buffer = codec if encoding in _BY_BUFFER else None
    try:
        claimed = _inspect(message, shape, by_buffer, count)
    except struct.error:
        raise InvalidPayload("the message's metadata points outside itself") from None
    if claimed != raw_len:
        raise InvalidPayload(f"the message is {claimed} bytes, its header says {raw_len}")
    batch = _read(message, shape.schema, count)
    try:
        batch.validate(full=True)
    except _ARROW_ERRORS as error:
        _refuse(error)
    if raw_len > record_bytes_max:
        check_record_bytes(batch, record_bytes_max)
    return batch


def verify(
    encoding: int,
    layout: int,
    count: int,
    raw_len: int,
    payload: bytes,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> tuple[int, int] | None:
    """Check like `check`, for whoever needs only the range of times, None if the batch has none of its own.

    A handful of plain records is looked through here, without pyarrow: a call into it lets go of the interpreter,
    and a server that gets thousands of tiny batches a second would spend its time getting it back.
    """
    is_small = 0 < count < _FEW and raw_len <= min(_SMALL_BYTES, record_bytes_max)
    if is_small and encoding == RAW and layout in (0, HAS_KEY):
        try:
            if _is_plain(layout, count, raw_len, payload):
                return None
        except struct.error:
            raise InvalidPayload("the message's metadata points outside itself") from None
    return time_range(check(encoding, layout, count, raw_len, payload, record_bytes_max))


def time_range(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """The lowest and highest timestamp of a batch that has them, in microseconds."""
    if "timestamp" not in batch.schema.names:
        return None
    found = pc.min_max(batch.column("timestamp").cast(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()


def decode(encoding: int, layout: int, count: int, raw_len: int, payload: Buffer | pa.Buffer) -> pa.RecordBatch:
    """The batch in a payload that was checked when it was stored and whose checksum is right. Raw ones are shared."""
    schema = _shape_of(layout).schema
    _codec_of(encoding)
    _check_raw_len(raw_len)
    return _read(_message(encoding, raw_len, payload), schema, count)


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
        return _narrow(columns)
    except _ARROW_ERRORS as error:
        _refuse(error)


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
    if count < _FEW:
        return pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, count), out=offsets[1:])
    return pa.py_buffer(offsets)


def widen(batch: pa.RecordBatch, layout: int, time_us: int) -> pa.RecordBatch:
    """The same records with all four columns. Columns that are there are shared, not copied."""
    count = batch.num_rows
    columns = dict(zip(_shape_of(layout).schema.names, batch.columns, strict=True))
    if "timestamp" not in columns:
        columns["timestamp"] = pa.repeat(pa.scalar(time_us, TIMESTAMP_TYPE), count)
    elif columns["timestamp"].null_count:
        columns["timestamp"] = columns["timestamp"].fill_null(pa.scalar(time_us, TIMESTAMP_TYPE))
    for name in ("key", "headers"):
        if name not in columns:
            columns[name] = pa.nulls(count, FULL_SCHEMA.field(name).type)
    return pa.RecordBatch.from_arrays([columns[name] for name in FULL_SCHEMA.names], schema=FULL_SCHEMA)


def as_batches(data: Any) -> list[pa.RecordBatch]:
    """A table of any kind as batches, each in its narrowest layout and small enough to be one payload.

    Takes pyarrow tables and batches, pandas and polars frames and whatever else speaks the Arrow C stream interface.
    Columns: `value`, required; `key`, `headers` and `timestamp` if wanted; no others.
    """
    try:
        table = _as_table(data)
        names = table.schema.names
        if "value" not in names:
            raise InvalidPayload(f"column 'value' is missing; the columns are {names}")
        if len(set(names)) != len(names):
            raise InvalidPayload(f"a column occurs twice; the columns are {names}")
        columns = {name: _cast(name, table.column(name)) for name in names}
        table = pa.table({name: columns[name] for name in FULL_SCHEMA.names if name in columns})
        table.validate()
        if table.nbytes <= PAYLOAD_RAW_BYTES_MAX:
            table = table.combine_chunks()  # many tiny batches would cost more than one copy
        pieces = [piece for batch in table.to_batches(max_chunksize=BATCH_RECORDS_MAX) for piece in _halves(batch)]
        return [_narrow(dict(zip(piece.schema.names, piece.columns, strict=True))) for piece in pieces]
    except _ARROW_ERRORS as error:
        _refuse(error)


def layout_of(schema: pa.Schema) -> int:
    """The layout that has exactly this schema."""
    layout = sum(_BIT_OF.get(name, -8) for name in schema.names)
    if 0 <= layout <= 7 and schema.equals(SCHEMAS[layout]):
        return layout
    raise InvalidPayload(f"a batch has some of the columns {FULL_SCHEMA.names} with their types, not {schema.names}")


# Layouts and codecs


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a message of one layout contains: how many field nodes and buffers, and which nodes are whole columns."""

    schema: pa.Schema
    nodes: struct.Struct
    buffers: struct.Struct
    node_count: int
    buffer_count: int
    rows: tuple[int, ...]  # the nodes as long as the batch
    entries: int | None  # the node of the map's entries; its names and values are the two after it
    schema_len: int  # of the schema message with which Arrow opens a stream


def _make_shape(layout: int) -> _Shape:
    fields = [field for field in FULL_SCHEMA if field.name == "value" or layout & _BIT_OF[field.name]]
    schema = pa.schema(fields)
    nodes = {"key": 1, "value": 1, "headers": 4, "timestamp": 1}
    buffers = {"key": 3, "value": 3, "headers": 9, "timestamp": 2}
    rows = tuple(sum(nodes[name] for name in schema.names[:i]) for i in range(len(fields)))
    node_count = sum(nodes[name] for name in schema.names)
    buffer_count = sum(buffers[name] for name in schema.names)
    return _Shape(
        schema=schema,
        nodes=struct.Struct(f"<{2 * node_count}q"),
        buffers=struct.Struct(f"<{2 * buffer_count}q"),
        node_count=node_count,
        buffer_count=buffer_count,
        rows=rows,
        entries=rows[schema.names.index("headers")] + 1 if layout & HAS_HEADERS else None,
        schema_len=schema.serialize().size,
    )


_SHAPES: Final = tuple(_make_shape(layout) for layout in range(8))
SCHEMAS: Final = tuple(shape.schema for shape in _SHAPES)


@dataclass(frozen=True, slots=True)
class _Codec:
    """One way of compressing, with the encodings that use it."""

    whole: int
    by_buffer: int
    flatbuffer_id: int  # CompressionType in Arrow's Message.fbs
    codec: pa.Codec
    options: pa.ipc.IpcWriteOptions


def _make_codec(whole: int, by_buffer: int, flatbuffer_id: int, codec: pa.Codec) -> _Codec:
    # One thread: the producers, or the server, already keep the cores busy.
    return _Codec(whole, by_buffer, flatbuffer_id, codec, pa.ipc.IpcWriteOptions(compression=codec, use_threads=False))


_CODECS: Final = {
    "zstd": _make_codec(ZSTD, ZSTD_BUFFERS, 1, pa.Codec("zstd", compression_level=1)),
    "lz4": _make_codec(LZ4, LZ4_BUFFERS, 0, pa.Codec("lz4")),
}
_CODEC_OF: Final = {
    RAW: None,
    ZSTD: _CODECS["zstd"],
    ZSTD_BUFFERS: _CODECS["zstd"],
    LZ4: _CODECS["lz4"],
    LZ4_BUFFERS: _CODECS["lz4"],
}
_BY_BUFFER: Final = frozenset((ZSTD_BUFFERS, LZ4_BUFFERS))

# Everything pyarrow raises for bad data; its errors share no root of their own.
_ARROW_ERRORS: Final = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError)


def _refuse(error: Exception) -> NoReturn:
    raise InvalidPayload(f"not a batch of records: {error}") from None


def _shape_of(layout: int) -> _Shape:
    if not 0 <= layout <= 7:
        raise InvalidPayload(f"layout {layout} is not known; the layouts are 0 to 7")
    return _SHAPES[layout]


def _codec_of(encoding: int) -> _Codec | None:
    if encoding not in _CODEC_OF:
        raise InvalidPayload(f"encoding {encoding} is not known; the encodings are 1 to 5")
    return _CODEC_OF[encoding]


def _codec_named(compression: str) -> _Codec:
    if compression not in _CODECS:
        raise InvalidPayload(f"compression {compression!r} is not known; use 'zstd', 'lz4' or None")
    return _CODECS[compression]


def _check_count(count: int) -> None:
    if not 0 < count <= BATCH_RECORDS_MAX:
        raise InvalidPayload(f"a batch has 1 to {BATCH_RECORDS_MAX} records, not {count}")


def _check_raw_len(raw_len: int) -> None:
    if not 0 < raw_len <= PAYLOAD_RAW_BYTES_MAX:
        raise InvalidPayload(f"a payload is at most {PAYLOAD_RAW_BYTES_MAX} bytes uncompressed, not {raw_len}")


def check_record_bytes(batch: pa.RecordBatch, bytes_max: int = RECORD_BYTES_MAX) -> None:
    """Whether a record's key, value and headers are together over the limit. Only batches above it need asking."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for name in ("key", "value"):
        if name in batch.schema.names:
            sizes += np.diff(_offsets(batch.column(name)))
    if "headers" in batch.schema.names:
        headers = batch.column("headers")
        bounds = headers.offsets.to_numpy()
        for part in (headers.keys, headers.items) if len(headers.keys) else ():
            sizes += np.diff(_offsets(part)[bounds])
    largest = int(sizes.max())
    if largest > bytes_max:
        raise RecordTooLarge(f"record {int(sizes.argmax())} is {largest} bytes; the limit is {bytes_max}")


def _offsets(array: pa.Array) -> np.ndarray:
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)


# Compressing

_SAMPLE_WINDOWS: Final = 4
_SAMPLE_WINDOW_BYTES: Final = 4 << 10


def _compress(batch: pa.RecordBatch, codec: _Codec, layout: int, message: pa.Buffer) -> Encoded | None:
    """The batch in the codec's encoding for its size, or None where that does not pay."""
    if message.size <= PAYLOAD_WHOLE_ZSTD_MAX:
        payload = codec.codec.compress(message, asbytes=True)
        encoding, raw_len = codec.whole, message.size
    elif _shrinks(_sample(message), codec):
        packed = _compress_buffers(batch, codec, _SHAPES[layout])
        encoding, raw_len = codec.by_buffer, _inspect(packed, _SHAPES[layout], codec, batch.num_rows)
        payload = packed.to_pybytes()
    else:
        return None
    # The metadata of a compressed body is a little longer, so at the very limit only the plain message fits.
    if _worth(len(payload), message.size) and raw_len <= PAYLOAD_RAW_BYTES_MAX:
        return Encoded(encoding, layout, batch.num_rows, raw_len, payload)
    return None


def _compress_buffers(batch: pa.RecordBatch, codec: _Codec, shape: _Shape) -> pa.Buffer:
    # Only a stream writer takes write options. It puts the schema first and an end mark of 8 bytes last.
    sink = pa.BufferOutputStream()
    with pa.ipc.RecordBatchStreamWriter(sink, shape.schema, options=codec.options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    return stream.slice(shape.schema_len, stream.size - shape.schema_len - 8)


def _sample(message: pa.Buffer) -> bytes:
    step = (message.size - _SAMPLE_WINDOW_BYTES) // (_SAMPLE_WINDOWS - 1)
    return b"".join(message.slice(i * step, _SAMPLE_WINDOW_BYTES).to_pybytes() for i in range(_SAMPLE_WINDOWS))


def _shrinks(sample: bytes, codec: _Codec) -> bool:
    return _worth(codec.codec.compress(sample).size, len(sample))


def _worth(compressed_len: int, raw_len: int) -> bool:
    return compressed_len * 10 <= raw_len * 9


# Reading


def _message(encoding: int, raw_len: int, payload: Buffer | pa.Buffer) -> pa.Buffer:
    """The IPC message in a payload: the payload itself, or what it decompresses to, `raw_len` bytes exactly."""
    buffer = payload if isinstance(payload, pa.Buffer) else pa.py_buffer(payload)
    if buffer.size > PAYLOAD_STORED_BYTES_MAX:
        raise InvalidPayload(f"a payload is at most {PAYLOAD_STORED_BYTES_MAX} bytes, not {buffer.size}")
    try:
        if encoding == ZSTD:
            return _CODECS["zstd"].codec.decompress(buffer, raw_len)
        if encoding == LZ4:
            return _unpack_lz4(buffer, raw_len)
    except _ARROW_ERRORS as error:
        raise InvalidPayload(f"the payload does not decompress to {raw_len} bytes: {error}") from None
    return buffer


def _unpack_lz4(buffer: pa.Buffer, raw_len: int) -> pa.Buffer:
    # Not Codec.decompress: for LZ4 it takes a length that is too long and leaves the rest of the memory as it was.
    with pa.CompressedInputStream(pa.BufferReader(buffer), "lz4") as stream:
        message = stream.read_buffer(raw_len + 1)
    if message.size != raw_len:
        raise InvalidPayload(f"the payload does not decompress to {raw_len} bytes")
    return message


def _read(message: pa.Buffer, schema: pa.Schema, count: int) -> pa.RecordBatch:
    try:
        batch = pa.ipc.read_record_batch(message, schema)
    except _ARROW_ERRORS as error:
        _refuse(error)
    if batch.num_rows != count:
        raise InvalidPayload(f"the payload has {batch.num_rows} records, its header says {count}")
    return batch


# The message, looked at before pyarrow does
#
#   continuation  u32 = 0xFFFFFFFF
#   metadata_len  i32, of the flatbuffer with its padding
#   metadata      table Message { version, header_type, header, body_length, custom_metadata }
#                   header: table RecordBatch { length, nodes, buffers, compression, variadic_counts }
#                     nodes: [{ length i64, null_count i64 }], buffers: [{ offset i64, length i64 }]
#                     compression: table BodyCompression { codec, method }
#   body          buffers, each 8-aligned; a compressed one starts with its uncompressed length, i64, or -1 for "not"
#
# A flatbuffer table starts with the distance to its vtable, which holds the place of each field, 0 for absent. Every
# read goes through struct, which refuses to leave `metadata`; only a negative position would count from the end, and
# the one subtraction is checked.

_PREFIX: Final = struct.Struct("<Ii")
_I16: Final = struct.Struct("<h")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_VTABLE: Final = struct.Struct("<HH")
_SLOTS_MAX: Final = 5
_SLOTS: Final = tuple(struct.Struct(f"<{n}H") for n in range(_SLOTS_MAX + 1))
_OFFSETS: Final = tuple(struct.Struct(f"<{count + 1}i") for count in range(_FEW))
_ABSENT: Final = tuple((0,) * (_SLOTS_MAX - n) for n in range(_SLOTS_MAX + 1))

_CONTINUATION: Final = 0xFFFFFFFF
_METADATA_V5: Final = 4
_RECORD_BATCH: Final = 3
# Our own writer needs 700 bytes for the widest layout; other flatbuffer writers may lay theirs out with more room.
_METADATA_BYTES_MAX: Final = 4 << 10


def _inspect(message: pa.Buffer, shape: _Shape, codec: _Codec | None, count: int) -> int:
    """Check every number in the message's metadata; return its `raw_len`. `codec` is that of its buffers, if any.

    Raises `InvalidPayload`, or `struct.error` where a position lies outside the metadata.
    """
    continuation, metadata_len = _PREFIX.unpack_from(message)
    body_at = 8 + metadata_len
    if continuation != _CONTINUATION or not 0 < metadata_len <= _METADATA_BYTES_MAX or metadata_len & 7:
        raise InvalidPayload("the payload does not start like an Arrow message")
    if body_at > message.size:
        raise InvalidPayload("the message ends inside its metadata")
    metadata = message.slice(8, metadata_len).to_pybytes()
    batch_at = _inspect_message(metadata, message.size - body_at)
    length, nodes, buffers, compression, variadic = _fields(metadata, batch_at)
    if variadic or not (length and nodes and buffers) or _I64.unpack_from(metadata, length)[0] != count:
        raise InvalidPayload("the message's record batch lacks what its layout has, or has another number of records")
    _inspect_compression(metadata, compression, codec)
    numbers = shape.nodes.unpack_from(metadata, _vector(metadata, nodes, shape.node_count))
    entries = _inspect_nodes(shape, count, numbers)
    spans = shape.buffers.unpack_from(metadata, _vector(metadata, buffers, shape.buffer_count))
    _inspect_spans(spans, message.size - body_at)
    raw_len: int = message.size if codec is None else body_at + _claimed(message, body_at, spans)
    # Offsets take 4 bytes a value: two arrays of them for the entries of headers, one for the values.
    if 4 * count + 8 * entries > raw_len:
        raise InvalidPayload(f"{raw_len} bytes cannot hold {count} records with {entries} headers")
    return raw_len


def _inspect_message(metadata: bytes, body_len: int) -> int:
    """Check the outer table; return where the record batch's table is."""
    version, kind, header, length, custom = _fields(metadata, _U32.unpack_from(metadata)[0])
    if not (version and kind and header) or custom:
        raise InvalidPayload("the message is not a plain record batch")
    if _I16.unpack_from(metadata, version)[0] != _METADATA_V5 or metadata[kind : kind + 1] != bytes((_RECORD_BATCH,)):
        raise InvalidPayload("the message is not a record batch of metadata version 5")
    if (_I64.unpack_from(metadata, length)[0] if length else 0) != body_len:
        raise InvalidPayload(f"the message's body is {body_len} bytes, not what its metadata says")
    return int(header + _U32.unpack_from(metadata, header)[0])


def _inspect_compression(metadata: bytes, at: int, codec: _Codec | None) -> None:
    if (codec is not None) != (at != 0):
        raise InvalidPayload("the message's buffers are compressed, or not, unlike its encoding")
    if codec is not None:
        kind, method, *_ = _fields(metadata, at + _U32.unpack_from(metadata, at)[0])
        if (kind and metadata[kind]) != codec.flatbuffer_id or (method and metadata[method]):
            raise InvalidPayload("the message's buffers are compressed in another way than its encoding says")


def _inspect_nodes(shape: _Shape, count: int, numbers: tuple[int, ...]) -> int:
    """Check lengths and null counts; return how many headers all records have together."""
    lengths, nulls = numbers[::2], numbers[1::2]
    for row in shape.rows:
        if lengths[row] != count or not 0 <= nulls[row] <= count:
            raise InvalidPayload(f"a column does not have {count} records")
    if shape.entries is None:
        return 0
    entry = shape.entries
    entries = lengths[entry]
    if not 0 <= entries == lengths[entry + 1] == lengths[entry + 2] or not 0 <= nulls[entry + 2] <= entries:
        raise InvalidPayload("the headers' names and values differ in number")
    if nulls[entry] or nulls[entry + 1]:
        raise InvalidPayload("a header has no name")
    return entries


def _inspect_spans(spans: tuple[int, ...], body_len: int) -> None:
    """Each buffer starts 8-aligned after the one before, and the last ends inside the body."""
    end = 0
    for offset, length in zip(spans[::2], spans[1::2], strict=True):
        if offset < end or offset & 7 or length < 0:
            raise InvalidPayload("the message's buffers overlap or are not aligned")
        end = offset + length
    if end > body_len:
        raise InvalidPayload("a buffer of the message ends outside its body")


def _claimed(message: pa.Buffer, body_at: int, spans: tuple[int, ...]) -> int:
    """The sum of what the compressed buffers say they will be."""
    total = 0
    for offset, length in zip(spans[::2], spans[1::2], strict=True):
        if length:
            size = _I64.unpack_from(message, body_at + offset)[0] if length >= 8 else -2
            size = length - 8 if size == -1 else size
            if size < 0:
                raise InvalidPayload("a compressed buffer does not say how long it will be")
            total += size
    return total


def _fields(metadata: bytes, at: int) -> tuple[int, ...]:
    """Where the five fields of the table at `at` are, 0 for each that is absent."""
    vtable = at - _I32.unpack_from(metadata, at)[0]
    if vtable < 0:
        raise InvalidPayload("the message's metadata points outside itself")
    vtable_len, table_len = _VTABLE.unpack_from(metadata, vtable)
    slots = (vtable_len >> 1) - 2
    if vtable_len & 1 or not 0 <= slots <= _SLOTS_MAX or at + table_len > len(metadata):
        raise InvalidPayload("the message's metadata has a table of another kind")
    places = _SLOTS[slots].unpack_from(metadata, vtable + 4)
    if slots and max(places) >= table_len:
        raise InvalidPayload("the message's metadata points outside itself")
    return tuple([place and at + place for place in places]) + _ABSENT[slots]


def _vector(metadata: bytes, at: int, count: int) -> int:
    """Where the elements of the vector begin that the field at `at` points to; it must have `count` of them."""
    vector: int = at + _U32.unpack_from(metadata, at)[0]
    if _U32.unpack_from(metadata, vector)[0] != count:
        raise InvalidPayload("the message has more or fewer columns than its layout")
    return vector + 4


def _is_plain(layout: int, count: int, raw_len: int, payload: bytes) -> bool:
    """Whether a raw message holds what its layout says, no value of it null; False where that takes a closer look."""
    if len(payload) != raw_len:
        raise InvalidPayload(f"the message is {len(payload)} bytes, its header says {raw_len}")
    continuation, metadata_len = _PREFIX.unpack_from(payload)
    if (
        continuation != _CONTINUATION
        or not 0 < metadata_len <= min(_METADATA_BYTES_MAX, raw_len - 8)
        or metadata_len & 7
    ):
        raise InvalidPayload("the payload does not start like an Arrow message")
    spans = _plain_spans(payload[: 8 + metadata_len], raw_len, layout, count)
    if spans is None:
        return False
    body_at = 8 + metadata_len
    for column in range(0, len(spans), 6):
        _, _, offsets_at, offsets_len, _, data_len = spans[column : column + 6]
        if offsets_len < 4 * (count + 1):
            raise InvalidPayload("a column has fewer offsets than records")
        offsets = _OFFSETS[count].unpack_from(payload, body_at + offsets_at)
        if offsets[0] < 0 or offsets[-1] > data_len or any(map(gt, offsets, offsets[1:])):
            raise InvalidPayload("a column's offsets do not follow each other inside its data")
    return True


@functools.lru_cache(maxsize=4096)
def _plain_spans(head: bytes, size: int, layout: int, count: int) -> tuple[int, ...] | None:
    """Where the buffers of a message are that starts with `head`; None if it has nulls. Batches of one size and shape
    have the same metadata, so most of them were inspected before."""
    shape = _SHAPES[layout]
    metadata = head[8:]
    batch_at = _inspect_message(metadata, size - len(head))
    length, nodes, buffers, compression, variadic = _fields(metadata, batch_at)
    if variadic or not (length and nodes and buffers) or _I64.unpack_from(metadata, length)[0] != count:
        raise InvalidPayload("the message's record batch lacks what its layout has, or has another number of records")
    _inspect_compression(metadata, compression, None)
    numbers = shape.nodes.unpack_from(metadata, _vector(metadata, nodes, shape.node_count))
    _inspect_nodes(shape, count, numbers)
    spans: tuple[int, ...] = shape.buffers.unpack_from(metadata, _vector(metadata, buffers, shape.buffer_count))
    _inspect_spans(spans, size - len(head))
    return None if any(numbers[1::2]) else spans


# Tables


def _narrow(columns: dict[str, Any]) -> pa.RecordBatch:
    """A batch of these columns without the optional ones that are null throughout."""
    columns = {name: column for name, column in columns.items() if name == "value" or column.null_count < len(column)}
    schema = SCHEMAS[sum(_BIT_OF[name] for name in columns)]
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _halves(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch in pieces that fit one payload; a single record that does not is refused later, by its size."""
    if batch.nbytes <= PAYLOAD_RAW_BYTES_MAX // 2 or batch.num_rows == 1:
        return [batch]
    half = batch.num_rows // 2
    return _halves(batch.slice(0, half)) + _halves(batch.slice(half))


def _as_table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    # Before the stream interface, which pandas speaks too but then adds its index as a column.
    if any(kind.__module__.partition(".")[0] == "pandas" for kind in type(data).__mro__) and hasattr(data, "columns"):
        return _from_pandas(data)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    raise InvalidPayload(f"expected a pyarrow table or batch, a pandas or polars frame, not {type(data).__name__}")


def _from_pandas(frame: Any) -> pa.Table:
    # pandas has no map type: left to itself pyarrow would make a struct with a field for every header name.
    if "headers" not in frame.columns or frame["headers"].dtype != object:
        return pa.Table.from_pandas(frame, preserve_index=False)
    column = frame["headers"]
    headers = [None if missing else each for each, missing in zip(column, column.isna(), strict=True)]
    table = pa.Table.from_pandas(frame.drop(columns=["headers"]), preserve_index=False)
    return table.append_column("headers", pa.array(headers, HEADERS_TYPE))


def _cast(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """One column in the type it has in a batch."""
    kind = column.type
    if name not in _BIT_OF:
        raise InvalidPayload(f"column {name!r} is not accepted; the columns are {', '.join(FULL_SCHEMA.names)}")
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), FULL_SCHEMA.field(name).type)])
    if name == "timestamp":
        return _cast_timestamp(column)
    if name == "headers":
        return pa.chunked_array([_cast_headers(chunk) for chunk in column.chunks], HEADERS_TYPE)
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if not any(accepts(kind) for accepts in _BYTES_LIKE):
        raise InvalidPayload(f"column {name!r} is {kind}; accepted are binary and string of any kind")
    return column.cast(pa.binary())


_BYTES_LIKE: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)


def _cast_timestamp(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        raise InvalidPayload(f"column 'timestamp' is {column.type}; accepted are timestamps of any unit and zone")
    # Nanoseconds may lose digits; from seconds and milliseconds only an overflow could, and that is an error.
    return column.cast(TIMESTAMP_TYPE, safe=column.type.unit != "ns")


_ENTRY_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])


def _cast_headers(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_map(kind):
        return array.cast(HEADERS_TYPE)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or kind.value_type.names != ["key", "value"]:
        raise InvalidPayload(
            f"column 'headers' is {kind}; accepted are map<string, binary> and list<struct<key, value>>"
        )
    pairs = array.cast(pa.list_(_ENTRY_TYPE))
    # pyarrow ends the process when it makes a map whose entries or names are null.
    if pairs.values.null_count or pairs.values.field("key").null_count:
        raise InvalidPayload("column 'headers' has an entry without a name")
    # A map is stored as just such a list; only the type differs.
    headers = pa.Array.from_buffers(
        HEADERS_TYPE, len(pairs), pairs.buffers()[:2], pairs.null_count, pairs.offset, [pairs.values]
    )
    headers.validate(full=True)
    return headers
