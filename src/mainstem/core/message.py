"""An Arrow record-batch message, looked at and made without pyarrow.

Looked at, because bytes from outside must be inspected before pyarrow sees them. Made, because a lone record costs
less that way: a call into pyarrow lets go of the interpreter, and beside a busy thread it takes a while to get it back.

    continuation  u32 = 0xFFFFFFFF
    metadata_len  i32, of the flatbuffer with its padding
    metadata      table Message { version, header_type, header, body_length, custom_metadata }
                    header: table RecordBatch { length, nodes, buffers, compression, variadic_counts }
                      nodes: [{ length i64, null_count i64 }], buffers: [{ offset i64, length i64 }]
                      compression: table BodyCompression { codec, method }
    body          buffers, each 8-aligned; a compressed one starts with its uncompressed length, i64, or -1 for "not"

A flatbuffer table starts with the distance to its vtable, which holds the place of each field, 0 for absent. Every
read goes through struct, which refuses to leave `metadata`; only a negative position would count from the end, and
the one subtraction is checked.
"""

import functools
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import gt
from typing import Final, NamedTuple

import pyarrow as pa

from mainstem.core.batch import Buffer
from mainstem.core.errors import InvalidPayload
from mainstem.core.layouts import FEW, HAS_KEY, SHAPES, Shape, build

_PREFIX: Final = struct.Struct("<Ii")
_I16: Final = struct.Struct("<h")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_VTABLE: Final = struct.Struct("<HH")
_SLOTS_MAX: Final = 5
_SLOTS: Final = tuple(struct.Struct(f"<{n}H") for n in range(_SLOTS_MAX + 1))
_OFFSETS: Final = tuple(struct.Struct(f"<{count + 1}i") for count in range(FEW))
_ABSENT: Final = tuple((0,) * (_SLOTS_MAX - n) for n in range(_SLOTS_MAX + 1))

_ZEROS: Final = tuple(bytes(count) for count in range(8))
# A value shorter than this that is sent alone has a head that is kept.
_LONE_SIZES: Final = 4_096

_CONTINUATION: Final = 0xFFFFFFFF
_METADATA_V5: Final = 4
_SCHEMA: Final = 1
_DICTIONARY: Final = 2
_RECORD_BATCH: Final = 3


def inspect(message: pa.Buffer, shape: Shape, codec_id: int | None, count: int) -> int:
    """Check every number in the message's metadata; return its `raw_len`.

    `codec_id` is how its buffers are compressed, if they are: a CompressionType of Arrow's Message.fbs.

    Raises `InvalidPayload`, or `struct.error` where a position lies outside the metadata.
    """
    body_at, numbers, spans = locate(message, message.size, shape, codec_id, count)
    sizes = spans[1::2] if codec_id is None else _claimed(message, body_at, spans)
    _inspect_nodes(shape, count, numbers, sizes)
    return int(message.size) if codec_id is None else body_at + sum(sizes)


class Peeked(NamedTuple):
    """What a message says that it is; nothing of it is checked."""

    kind: int
    body_len: int
    rows: int
    codec_id: int | None

    @property
    def is_schema(self) -> bool:
        return self.kind == _SCHEMA

    @property
    def is_dictionary(self) -> bool:
        return self.kind == _DICTIONARY

    @property
    def is_batch(self) -> bool:
        return self.kind == _RECORD_BATCH


def peek(metadata: bytes) -> Peeked:
    """What the metadata of a message of a stream says. Raises as `inspect` does."""
    version, kind_at, header, length, _ = _fields(metadata, _U32.unpack_from(metadata)[0])
    if not (version and kind_at and header):
        raise InvalidPayload("a message of the Arrow stream says nothing")
    kind = metadata[kind_at] if kind_at < len(metadata) else -1
    body_len = _I64.unpack_from(metadata, length)[0] if length else 0
    if kind != _RECORD_BATCH:
        return Peeked(kind, body_len, 0, None)
    count, _, _, compression, _ = _fields(metadata, header + _U32.unpack_from(metadata, header)[0])
    codec_id: int | None = None
    if compression:
        codec, _, *_ = _fields(metadata, compression + _U32.unpack_from(metadata, compression)[0])
        codec_id = metadata[codec] if codec else 0
    return Peeked(kind, body_len, _I64.unpack_from(metadata, count)[0] if count else 0, codec_id)


class Located(NamedTuple):
    """Where the parts of a message are: each node's length and null count, each buffer's offset and length, as Arrow
    lists them, and where its body begins."""

    body_at: int
    nodes: tuple[int, ...]
    buffers: tuple[int, ...]


def locate(message: pa.Buffer, size: int, shape: Shape, codec_id: int | None, count: int) -> Located:
    """The parts of a message of `size` bytes, of which all before its body must be there, each inside of it. Raises as
    `inspect` does; what the nodes say is not checked."""
    continuation, metadata_len = _PREFIX.unpack_from(message)
    body_at = 8 + metadata_len
    if continuation != _CONTINUATION or not 0 < metadata_len <= shape.metadata_bytes_max or metadata_len & 7:
        raise InvalidPayload("the payload does not start like an Arrow message")
    if body_at > message.size:
        raise InvalidPayload("the message ends inside its metadata")
    metadata = message.slice(8, metadata_len).to_pybytes()
    return Located(body_at, *_inspect_metadata(metadata, size - body_at, shape, codec_id, count))


def column_bounds(found: Located, shape: Shape, size: int) -> list[int]:
    """Where each column begins in a message of `size` bytes, and its end. Those of a column lie together"""
    return [*(found.body_at + found.buffers[2 * buffer] for _, buffer in shape.starts[:-1]), size]


def _inspect_metadata(
    metadata: bytes, body_len: int, shape: Shape, codec_id: int | None, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check the tables; return the numbers of the field nodes, still to be checked, and where the buffers are."""
    batch_at = _inspect_message(metadata, body_len)
    length, nodes, buffers, compression, variadic = _fields(metadata, batch_at)
    if variadic or not (length and nodes and buffers) or _I64.unpack_from(metadata, length)[0] != count:
        raise InvalidPayload("the message's record batch lacks what its layout has, or has another number of records")
    _inspect_compression(metadata, compression, codec_id)
    numbers = shape.nodes.unpack_from(metadata, _vector(metadata, nodes, shape.node_count))
    spans = shape.buffers.unpack_from(metadata, _vector(metadata, buffers, shape.buffer_count))
    _inspect_spans(spans, body_len)
    return numbers, spans


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


def _inspect_compression(metadata: bytes, at: int, codec_id: int | None) -> None:
    if (codec_id is not None) != (at != 0):
        raise InvalidPayload("the message's buffers are compressed, or not, unlike its encoding")
    if codec_id is not None:
        kind, method, *_ = _fields(metadata, at + _U32.unpack_from(metadata, at)[0])
        if (kind and metadata[kind]) != codec_id or (method and metadata[method]):
            raise InvalidPayload("the message's buffers are compressed in another way than its encoding says")


def _inspect_nodes(shape: Shape, count: int, numbers: tuple[int, ...], sizes: Sequence[int]) -> None:
    """Check lengths and null counts, against each other and against what buffers of these sizes can hold."""
    lengths = numbers[::2]
    for node, length, nulls in zip(shape.columns, lengths, numbers[1::2], strict=True):
        if node.parent < 0:
            if length != count:
                raise InvalidPayload(f"a column does not have {count} records")
        elif node.per_parent and length != lengths[node.parent] * node.per_parent:
            raise InvalidPayload("the parts of a column differ in number")
        if not 0 <= nulls <= length:
            raise InvalidPayload("a column has more nulls than values")
        if node.is_map_part and nulls:
            raise InvalidPayload("an entry of a map, or of headers, has no name")
        second = 4 * (length + 1) if node.has_offsets and length else (length * node.bits + 7) >> 3
        if (nulls and 8 * sizes[node.buffer] < length) or (second and sizes[node.buffer + 1] < second):
            raise InvalidPayload(f"a column of {length} values is larger than its bytes")


def _inspect_spans(spans: tuple[int, ...], body_len: int) -> None:
    """Each buffer starts 8-aligned after the one before, and the last ends inside the body."""
    end = 0
    for offset, length in zip(spans[::2], spans[1::2], strict=True):
        if offset < end or offset & 7 or length < 0:
            raise InvalidPayload("the message's buffers overlap or are not aligned")
        end = offset + length
    if end > body_len:
        raise InvalidPayload("a buffer of the message ends outside its body")


def _claimed(message: pa.Buffer, body_at: int, spans: tuple[int, ...]) -> list[int]:
    """How long the compressed buffers say they will be."""
    sizes = []
    for offset, length in zip(spans[::2], spans[1::2], strict=True):
        size = 0
        if length:
            size = _I64.unpack_from(message, body_at + offset)[0] if length >= 8 else -2
            size = length - 8 if size == -1 else size
            if size < 0:
                raise InvalidPayload("a compressed buffer does not say how long it will be")
        sizes.append(size)
    return sizes


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


def is_plain(layout: int, count: int, raw_len: int, message: bytes) -> bool:
    """Whether a raw message holds what its layout says, no value of it null; False where that takes a closer look."""
    if len(message) != raw_len:
        raise InvalidPayload(f"the message is {len(message)} bytes, its header says {raw_len}")
    if count == 1 and not layout and _is_lone(message):
        return True
    continuation, metadata_len = _PREFIX.unpack_from(message)
    if (
        continuation != _CONTINUATION
        or not 0 < metadata_len <= min(SHAPES[layout].metadata_bytes_max, raw_len - 8)
        or metadata_len & 7
    ):
        raise InvalidPayload("the payload does not start like an Arrow message")
    spans = _plain_spans(message[: 8 + metadata_len], raw_len, layout, count)
    if spans is None:
        return False
    body_at = 8 + metadata_len
    for column in range(0, len(spans), 6):
        _, _, offsets_at, offsets_len, _, data_len = spans[column : column + 6]
        if offsets_len < 4 * (count + 1):
            raise InvalidPayload("a column has fewer offsets than records")
        offsets = _OFFSETS[count].unpack_from(message, body_at + offsets_at)
        if offsets[0] < 0 or offsets[-1] > data_len or any(map(gt, offsets, offsets[1:])):
            raise InvalidPayload("a column's offsets do not follow each other inside its data")
    return True


@functools.lru_cache(maxsize=4096)
def _plain_spans(head: bytes, size: int, layout: int, count: int) -> tuple[int, ...] | None:
    """Where the buffers of a message are that starts with `head`; None if it has nulls. Batches of one size and shape
    have the same metadata, so most of them were inspected before."""
    shape = SHAPES[layout]
    numbers, spans = _inspect_metadata(head[8:], size - len(head), shape, None, count)
    _inspect_nodes(shape, count, numbers, spans[1::2])
    return None if any(numbers[1::2]) else spans


def plain_columns(layout: int, count: int, message: bytes) -> list[list[bytes]] | None:
    """The columns of a raw message of a few records, no value of it null; None for any other. The message was checked
    when it was stored."""
    body_at = 8 + _PREFIX.unpack_from(message)[1]
    spans = _plain_spans(message[:body_at], len(message), layout, count)
    if spans is None:
        return None
    columns = []
    for column in range(0, len(spans), 6):
        offsets = _OFFSETS[count].unpack_from(message, body_at + spans[column + 2])
        data_at = body_at + spans[column + 4]
        columns.append([message[data_at + begin : data_at + end] for begin, end in pairwise(offsets)])
    return columns


# Making


def plain_message(layout: int, columns: Sequence[Sequence[bytes]]) -> bytes:
    """The message of a few records without nulls: columns of bytes, in the order of their layout.

    Byte for byte what pyarrow would make. TypeError if a value is None.
    """
    count = len(columns[0])
    if count == 1 and not layout and len(columns[0][0]) < _LONE_SIZES:
        (value,) = columns[0]
        return _lone_head(len(value)) + value + _ZEROS[-len(value) & 7]
    return _message_of(layout, columns)


@functools.lru_cache(maxsize=_LONE_SIZES)
def _lone_head(size: int) -> bytes:
    """What comes before a lone value of this size: the same for all that are sent one at a time."""
    message = _message_of(0, ((bytes(size),),))
    return message[: len(message) - size - (-size & 7)]


def _is_lone(message: bytes) -> bool:
    """Whether a message is a lone value, and byte for byte as it is made here."""
    head_len = len(_lone_head(0))
    size = int.from_bytes(message[head_len - 4 : head_len], "little")
    if size >= _LONE_SIZES or len(message) != head_len + size + (-size & 7):
        return False
    return message.startswith(_lone_head(size))


def _message_of(layout: int, columns: Sequence[Sequence[bytes]]) -> bytes:
    count = len(columns[0])
    template = _plain_template(layout)
    body: list[bytes] = []
    spans: list[int] = []
    at = 0
    for column in columns:
        data = b"".join(column)
        offsets = _OFFSETS[count].pack(*accumulate(map(len, column), initial=0))
        data_at = at + len(offsets) + (-len(offsets) & 7)
        spans += (at, 0, at, len(offsets), data_at, len(data))
        body += (offsets, _ZEROS[-len(offsets) & 7], data, _ZEROS[-len(data) & 7])
        at = data_at + len(data) + (-len(data) & 7)
    return b"".join((template.filled(count, (count, 0) * len(columns), spans, at), *body))


class Template(NamedTuple):
    """Prefix and metadata of a message, and where the numbers are that differ from message to message."""

    shape: Shape
    head: bytes
    body_len_at: int
    count_at: int
    nodes_at: int
    buffers_at: int

    def filled(self, count: int, nodes: Sequence[int], spans: Sequence[int], body_len: int) -> bytearray:
        """The same for a message with these numbers."""
        head = bytearray(self.head)
        _I64.pack_into(head, self.body_len_at, body_len)
        _I64.pack_into(head, self.count_at, count)
        self.shape.nodes.pack_into(head, self.nodes_at, *nodes)
        self.shape.buffers.pack_into(head, self.buffers_at, *spans)
        return head


def template_of(message: bytes, shape: Shape) -> Template:
    """What all messages of this shape have in common, from one that has records and a body."""
    head = message[: 8 + _PREFIX.unpack_from(message)[1]]
    metadata = head[8:]
    _, _, header, body_len, _ = _fields(metadata, _U32.unpack_from(metadata)[0])
    count, nodes, buffers, *_ = _fields(metadata, header + _U32.unpack_from(metadata, header)[0])
    return Template(
        shape,
        head,
        8 + body_len,
        8 + count,
        8 + _vector(metadata, nodes, shape.node_count),
        8 + _vector(metadata, buffers, shape.buffer_count),
    )


@functools.cache
def _plain_template(layout: int) -> Template:
    message = build([b"x"], [b"x"] if layout == HAS_KEY else None).serialize().to_pybytes()
    return template_of(message, SHAPES[layout])


def narrowed(found: Located, shape: Shape, count: int, template: Template, column_of: Callable[[int], Buffer]) -> bytes:
    """A message with only the columns that `template` has, of one that has those of `shape`. `column_of` gives the
    bytes of the column at a place, as `column_bounds` has them; they stay as they are."""
    nodes: list[int] = []
    spans: list[int] = []
    body: list[Buffer] = []
    at = 0
    for name in template.shape.schema.names:
        place = shape.schema.get_field_index(name)
        (node, buffer), (node_end, buffer_end) = shape.starts[place : place + 2]
        nodes += found.nodes[2 * node : 2 * node_end]
        moved = at - found.buffers[2 * buffer]
        for number in range(buffer, buffer_end):
            spans += (found.buffers[2 * number] + moved, found.buffers[2 * number + 1])
        data = column_of(place)
        padding = -len(data) & 7
        body += (data, _ZEROS[padding])
        at += len(data) + padding
    return b"".join((template.filled(count, nodes, spans, at), *body))
