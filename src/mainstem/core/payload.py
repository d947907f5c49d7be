"""The payload: how a batch of records becomes bytes, and how bytes become a batch again.

Which columns a batch may have is said in `layouts`.

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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.batch import BatchHeader, Buffer
from mainstem.core.checksum import crc32c
from mainstem.core.errors import InvalidPayload, RecordTooLarge
from mainstem.core.kept import kept
from mainstem.core.layouts import (
    ARROW_ERRORS,
    FEW,
    HAS_KEY,
    SENT_LAYOUTS,
    Shape,
    layout_of,
    refuse,
    row_layout,
    shape_of,
)
from mainstem.core.limits import (
    BATCH_RECORDS_MAX,
    PAYLOAD_COMPRESS_MIN,
    PAYLOAD_RAW_BYTES_MAX,
    PAYLOAD_STORED_BYTES_MAX,
    PAYLOAD_WHOLE_ZSTD_MAX,
    RECORD_BYTES_MAX,
)
from mainstem.core.message import (
    Located,
    Template,
    inspect,
    is_plain,
    locate,
    plain_message,
    template_of,
)
from mainstem.core.packing import flat_buffers, is_worth, pack, shrinks
from mainstem.core.schema import Schema, size_of

RAW: Final = 1
ZSTD: Final = 2
ZSTD_BUFFERS: Final = 3
LZ4: Final = 4
LZ4_BUFFERS: Final = 5
# What Arrow needs to say where a value of variable length ends.
OFFSET_BYTES: Final = 4
# Up to this size a message of a few records is looked through in Python.
_SMALL_BYTES: Final = 64 << 10
# From this size on the columns of a message are opened one by one: Arrow would need a copy of it.
_APART_BYTES_MIN: Final = 512 << 10


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A batch as bytes, and what a reader must be told to read them."""

    encoding: int
    layout: int
    count: int
    raw_len: int
    payload: bytes

    def header(
        self,
        *,
        stream: int,
        shard: int,
        schema_id: int,
        generation: int,
        time_low: int,
        time_high: int,
        span: int = 0,
    ) -> BatchHeader:
        """What is known of these bytes as a batch of a shard. It has no producer yet."""
        return BatchHeader(
            stream=stream,
            shard=shard,
            count=self.count,
            encoding=self.encoding,
            layout=self.layout,
            schema_id=schema_id,
            raw_len=self.raw_len,
            stored_len=len(self.payload),
            payload_crc=crc32c(self.payload),
            producer=0,
            producer_epoch=0,
            sequence=0,
            generation=generation,
            time_low=time_low,
            time_high=time_high,
            span=span,
        )

    def header_like(self, header: BatchHeader) -> BatchHeader:
        """The header of a batch that was made of another, and of which nothing is known unread."""
        return msgspec.structs.replace(
            header,
            count=self.count,
            encoding=self.encoding,
            layout=self.layout,
            raw_len=self.raw_len,
            stored_len=len(self.payload),
            payload_crc=crc32c(self.payload),
            statistics=b"",
        )


def encode(
    batch: pa.RecordBatch,
    compression: str | None,
    schema: Schema | None = None,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Encoded:
    """The bytes of `batch`: records whose columns are those of a layout, or rows of `schema`. `compression` is "zstd",
    "lz4" or None.

    What would not shrink by a tenth is stored as it is. Any thread may call this; the GIL is free while bytes move.
    """
    layout = layout_of(batch.schema) if schema is None else row_layout(batch)
    shape = shape_of(layout, schema)
    if schema is not None and not batch.schema.equals(shape.schema):
        raise InvalidPayload(f"a batch of rows has the columns of its schema, {shape.schema.names}, with their types")
    count = batch.num_rows
    _check_count(count)
    is_large = schema is not None and compression is not None and batch.nbytes > PAYLOAD_WHOLE_ZSTD_MAX
    flat = flat_buffers(batch) if is_large else None
    if flat is not None and schema is not None and compression is not None:
        packed = _pack(batch, flat, _codec_named(compression), layout, schema, record_bytes_max)
        if packed is not None:
            return packed
    message = batch.serialize()
    _check_raw_len(message.size)
    if message.size > record_bytes_max:
        check_record_bytes(batch, record_bytes_max)
    if compression is not None and flat is None and message.size >= PAYLOAD_COMPRESS_MIN:
        compressed = _compress(batch, _codec_named(compression), shape, message)
        if compressed is not None:
            return compressed
    return Encoded(RAW, layout, count, message.size, message.to_pybytes())


def encode_few(values: Sequence[Any], keys: Sequence[Any] | None, compression: str | None) -> Encoded | None:
    """Like `encode`, for a few records that are not worth a call into pyarrow; None for any others."""
    columns = (values,) if keys is None else (keys, values)
    layout = 0 if keys is None else HAS_KEY
    if not 0 < len(values) < FEW:
        return None
    try:
        message = plain_message(layout, columns)
    except TypeError:  # a None among them
        return None
    if len(message) >= (PAYLOAD_COMPRESS_MIN if compression is not None else _SMALL_BYTES):
        return None
    return Encoded(RAW, layout, len(values), len(message), message)


def check(
    encoding: int,
    layout: int,
    count: int,
    raw_len: int,
    payload: Buffer | pa.Buffer,
    record_bytes_max: int = RECORD_BYTES_MAX,
    *,
    layouts: int = SENT_LAYOUTS,
    schema: Schema | None = None,
) -> pa.RecordBatch:
    """The batch in a payload that nobody has looked at yet, safe to use afterwards, or `InvalidPayload`.

    Layouts from `layouts` on are refused: those that only the log itself writes, unless its files are looked at.
    """
    if layout >= layouts:
        raise InvalidPayload(f"layout {layout} is not for sending; use one of 0 to {layouts - 1}")
    shape = shape_of(layout, schema)
    codec = _codec_of(encoding)
    _check_count(count)
    _check_raw_len(raw_len)
    message = _message(encoding, raw_len, payload)
    by_buffer = codec.flatbuffer_id if codec is not None and encoding in _BY_BUFFER else None
    try:
        claimed = inspect(message, shape, by_buffer, count)
    except struct.error:
        raise InvalidPayload("the message's metadata points outside itself") from None
    if claimed != raw_len:
        raise InvalidPayload(f"the message is {claimed} bytes, its header says {raw_len}")
    batch = _read(message, shape, count, encoding)
    try:
        batch.validate(full=True)
    except ARROW_ERRORS as error:
        refuse(error)
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
    is_small = 0 < count < FEW and raw_len <= min(_SMALL_BYTES, record_bytes_max)
    if is_small and encoding == RAW and layout in (0, HAS_KEY):
        try:
            if is_plain(layout, count, raw_len, payload):
                return None
        except struct.error:
            raise InvalidPayload("the message's metadata points outside itself") from None
    return time_range(check(encoding, layout, count, raw_len, payload, record_bytes_max))


def time_range(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """The lowest and highest timestamp of a batch of records without a schema that has them, in microseconds."""
    return _range_of(batch, "timestamp")


def row_time_range(batch: pa.RecordBatch) -> tuple[int, int] | None:
    """The same of a batch of rows."""
    return _range_of(batch, "_timestamp")


def _range_of(batch: pa.RecordBatch, name: str) -> tuple[int, int] | None:
    if name not in batch.schema.names:
        return None
    found = pc.min_max(batch.column(name).cast(pa.int64()))
    return found["min"].as_py(), found["max"].as_py()


def decode(
    encoding: int,
    layout: int,
    count: int,
    raw_len: int,
    payload: Buffer | pa.Buffer,
    schema: Schema | None = None,
) -> pa.RecordBatch:
    """The batch in a payload that was checked when it was stored and whose checksum is right. Raw ones are shared."""
    shape = shape_of(layout, schema)
    codec = _codec_of(encoding)
    _check_raw_len(raw_len)
    message = _message(encoding, raw_len, payload)
    if codec is not None and encoding in _BY_BUFFER and message.size >= _APART_BYTES_MIN:
        return _read_columns(message, shape, count, codec, shape.schema.names)
    return _read(message, shape, count, encoding)


def decode_columns(
    encoding: int,
    layout: int,
    count: int,
    raw_len: int,
    payload: Buffer | pa.Buffer,
    schema: Schema | None,
    names: Collection[str],
) -> pa.RecordBatch:
    """Like `decode`, but only these columns, in the order of the layout: others are not even decompressed, where each
    buffer was compressed by itself. At least one must be among the batch's."""
    shape = shape_of(layout, schema)
    codec = _codec_of(encoding)
    _check_raw_len(raw_len)
    message = _message(encoding, raw_len, payload)
    if codec is None or encoding not in _BY_BUFFER:
        whole = _read(message, shape, count, encoding)
        return whole.select([name for name in shape.schema.names if name in names])
    return _read_columns(message, shape, count, codec, names)


def _read_columns(
    message: pa.Buffer, shape: Shape, count: int, codec: "_Codec", names: Collection[str]
) -> pa.RecordBatch:
    """Columns of a message whose buffers are each compressed by themselves."""
    parts = _Parts(message, locate(message, message.size, shape, codec.flatbuffer_id, count), codec)
    arrays, fields = [], []
    for field in shape.schema:
        if field.name in names:
            arrays.append(parts.take(field.type))
            fields.append(field)
        else:
            parts.leave(field.type)
    schema = shape.schema if len(fields) == len(shape.schema) else pa.schema(fields)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def has_columns_apart(encoding: int) -> bool:
    """Whether a column can be read alone: it is not compressed, or by itself."""
    return encoding == RAW or encoding in _BY_BUFFER


def is_by_buffer(encoding: int) -> bool:
    """Whether a column can be decompressed alone."""
    return encoding in _BY_BUFFER


def codec_id_of(encoding: int) -> int | None:
    """How a payload is compressed, as Arrow numbers it; None: not at all."""
    codec = _codec_of(encoding)
    return None if codec is None else codec.flatbuffer_id


@kept(lambda encoding, layout, schema: size_of(schema))
def row_template(encoding: int, layout: int, schema: Schema) -> Template:
    """What all messages of rows have in common whose columns can be read alone."""
    shape, codec = shape_of(layout, schema), _CODEC_OF[encoding]
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in shape.schema], schema=shape.schema)
    message = nothing.serialize() if codec is None else _compress_buffers(nothing, codec, shape)
    return template_of(message.to_pybytes(), shape)


class _Parts:
    """The nodes and compressed buffers of a message, taken column by column in their order. Used once."""

    def __init__(self, message: pa.Buffer, found: Located, codec: "_Codec") -> None:
        self._message = message
        self._found = found
        self._codec = codec
        self._node = 0
        self._buffer = 0

    def take(self, kind: pa.DataType) -> pa.Array:
        length, nulls = self._found.nodes[2 * self._node : 2 * self._node + 2]
        if not length:
            # Arrow may leave out the offsets of an empty array, and then would not take them back.
            self.leave(kind)
            return pa.nulls(0, kind)
        self._node += 1
        buffers: list[pa.Buffer | None] = [self._next() for _ in range(_buffers_of(kind))]
        if not nulls:
            # Arrow leaves it out: then it must not be there.
            buffers[0] = None
        if pa.types.is_map(kind):
            children = [self.take(pa.struct([kind.key_field, kind.item_field]))]
        else:
            children = [self.take(kind.field(index).type) for index in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, length, buffers, nulls, 0, children or None)

    def leave(self, kind: pa.DataType) -> None:
        nodes, buffers = _parts_of(kind)
        self._node += nodes
        self._buffer += buffers

    def _next(self) -> pa.Buffer:
        at, length = self._found.buffers[2 * self._buffer : 2 * self._buffer + 2]
        self._buffer += 1
        if not length:
            return _NOTHING
        stored = self._message.slice(self._found.body_at + at, length)
        size = _SIZE.unpack_from(stored)[0]
        return stored.slice(8) if size == -1 else self._codec.codec.decompress(stored.slice(8), size)


_SIZE: Final = struct.Struct("<q")
_NOTHING: Final = pa.py_buffer(b"")


def _buffers_of(kind: pa.DataType) -> int:
    """How many buffers an array has itself, without those of its parts."""
    if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind):
        return 1
    return 3 if pa.types.is_string(kind) or pa.types.is_binary(kind) else 2


@functools.lru_cache(maxsize=256)
def _parts_of(kind: pa.DataType) -> tuple[int, int]:
    """How many nodes and buffers a column of this type has, its parts included."""
    nodes, buffers = 1, _buffers_of(kind)
    if pa.types.is_map(kind):
        inner = [_parts_of(pa.struct([kind.key_field, kind.item_field]))]
    else:
        inner = [_parts_of(kind.field(index).type) for index in range(kind.num_fields)]
    return nodes + sum(found[0] for found in inner), buffers + sum(found[1] for found in inner)


# Codecs


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
    """Whether a record is over the limit, all of its columns together. Only batches above it need asking."""
    sizes = record_sizes(batch)
    largest = int(sizes.max())
    if largest > bytes_max:
        raise RecordTooLarge(f"record {int(sizes.argmax())} is {largest} bytes; record_bytes_max is {bytes_max}")


def record_sizes(batch: pa.RecordBatch, offset_bytes: int = 0) -> np.ndarray:
    """The bytes of every record: key, value and headers of one without a schema, the columns of a row. With
    `offset_bytes` for every value of variable length, by which Arrow tells those apart: OFFSET_BYTES, or nothing."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        # A record has these whoever made it; the limit is for what its sender chose.
        if name not in ("timestamp", "offset", "_timestamp", "_offset"):
            sizes += _sizes(column, offset_bytes)
    return sizes


def _sizes(array: pa.Array, apart: int) -> np.ndarray:
    """The bytes of every value of an array, and `apart` for every one of variable length in it."""
    kind, count = array.type, len(array)
    if not count:
        return np.zeros(0, np.int64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.diff(_offsets(array)) + apart
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        # Parts that a slice cut off are still there: offsets count from the first of all.
        is_map = pa.types.is_map(kind)
        parts = _sizes(array.keys, apart) + _sizes(array.items, apart) if is_map else _sizes(array.values, apart)
        sizes: np.ndarray = np.diff(np.concatenate(([0], np.cumsum(parts)))[_offsets(array)]) + apart
        return sizes
    if pa.types.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, count * kind.list_size)
        folded: np.ndarray = _sizes(values, apart).reshape(count, kind.list_size).sum(axis=1)
        return folded
    if pa.types.is_struct(kind):
        fields = (_sizes(array.field(index), apart) for index in range(kind.num_fields))
        total: np.ndarray = sum(fields, np.zeros(count, int))
        return total
    return np.full(count, (kind.bit_width + 7) // 8, np.int64)


def _offsets(array: pa.Array) -> np.ndarray:
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)


# Compressing


def _compress(batch: pa.RecordBatch, codec: _Codec, shape: Shape, message: pa.Buffer) -> Encoded | None:
    """The batch in the codec's encoding for its size, or None where that does not pay."""
    if message.size <= PAYLOAD_WHOLE_ZSTD_MAX:
        payload = codec.codec.compress(message, asbytes=True)
        encoding, raw_len = codec.whole, message.size
    elif shrinks(message, codec.codec):
        packed = _compress_buffers(batch, codec, shape)
        encoding, raw_len = codec.by_buffer, inspect(packed, shape, codec.flatbuffer_id, batch.num_rows)
        payload = packed.to_pybytes()
    else:
        return None
    # The metadata of a compressed body is a little longer, so at the very limit only the plain message fits.
    if is_worth(len(payload), message.size) and raw_len <= PAYLOAD_RAW_BYTES_MAX:
        return Encoded(encoding, shape.layout, batch.num_rows, raw_len, payload)
    return None


def _pack(
    batch: pa.RecordBatch,
    buffers: Sequence[pa.Buffer | None],
    codec: _Codec,
    layout: int,
    schema: Schema,
    record_bytes_max: int,
) -> Encoded | None:
    """The same of a large batch of flat columns, without making its message first."""
    payload, raw_len = pack(batch, buffers, codec.codec, row_template(codec.by_buffer, layout, schema))
    if raw_len > PAYLOAD_RAW_BYTES_MAX or not is_worth(len(payload), raw_len):
        return None
    if raw_len > record_bytes_max:
        check_record_bytes(batch, record_bytes_max)
    return Encoded(codec.by_buffer, layout, batch.num_rows, raw_len, payload)


def _compress_buffers(batch: pa.RecordBatch, codec: _Codec, shape: Shape) -> pa.Buffer:
    # Only a stream writer takes write options. It puts the schema first and an end mark of 8 bytes last.
    sink = pa.BufferOutputStream()
    with pa.ipc.RecordBatchStreamWriter(sink, shape.schema, options=codec.options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    return stream.slice(len(shape.opening), stream.size - len(shape.opening) - 8)


# Reading

_READ_OPTIONS: Final = pa.ipc.IpcReadOptions(use_threads=False)


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
    except ARROW_ERRORS as error:
        raise InvalidPayload(f"the payload does not decompress to {raw_len} bytes: {error}") from None
    return buffer


def _unpack_lz4(buffer: pa.Buffer, raw_len: int) -> pa.Buffer:
    # Not Codec.decompress: for LZ4 it takes a length that is too long and leaves the rest of the memory as it was.
    with pa.CompressedInputStream(pa.BufferReader(buffer), "lz4") as stream:
        message = stream.read_buffer(raw_len + 1)
    if message.size != raw_len:
        raise InvalidPayload(f"the payload does not decompress to {raw_len} bytes")
    return message


def _read(message: pa.Buffer, shape: Shape, count: int, encoding: int) -> pa.RecordBatch:
    try:
        if encoding in _BY_BUFFER:
            # Only a stream reader takes read options. Copying the compressed bytes behind a schema is cheaper than to
            # have Arrow's own threads decompress a buffer each, on cores that are busy.
            stream = pa.py_buffer(b"".join((shape.opening, message)))
            batch = pa.ipc.open_stream(stream, options=_READ_OPTIONS).read_next_batch()
        else:
            batch = pa.ipc.read_record_batch(message, shape.schema)
    except ARROW_ERRORS as error:
        refuse(error)
    if batch.num_rows != count:
        raise InvalidPayload(f"the payload has {batch.num_rows} records, its header says {count}")
    return batch
