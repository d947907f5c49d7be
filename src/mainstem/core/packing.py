"""Packing: a message of flat columns whose buffers are each compressed by themselves, where that pays.

Arrow's own writer compresses all buffers of a message or none. Here each is looked at: numbers that are as good as
random stay as they are, so that nobody spends time on them when they are written, and readers use them where they lie.
"""

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from mainstem.core.message import Template

_SAMPLE_WINDOWS: Final = 4
_SAMPLE_WINDOW_BYTES: Final = 4 << 10
# From this size on a sample says whether it is worth to compress the whole.
_SAMPLED_BYTES_MIN: Final = 16 * _SAMPLE_WINDOWS * _SAMPLE_WINDOW_BYTES
_SIZE: Final = struct.Struct("<q")
# Instead of its length, before a buffer that is not compressed.
_AS_IT_IS: Final = -1
_ZEROS: Final = [bytes(count) for count in range(8)]


def pack(
    batch: pa.RecordBatch, buffers: Sequence[pa.Buffer | None], codec: pa.Codec, template: Template
) -> tuple[bytes, int]:
    """The message of a batch with these buffers, and how long it is uncompressed: its head, and every buffer.
    `template` is that of its messages."""
    spans: list[int] = []
    body: list[bytes | pa.Buffer] = []
    at, raw_len = 0, len(template.head)
    for buffer in buffers:
        if buffer is None or not buffer.size:
            spans += (at, 0)
            continue
        packed = _compressed(buffer, codec)
        data, claimed = (buffer, _AS_IT_IS) if packed is None else (packed, buffer.size)
        length = _SIZE.size + data.size
        padding = _ZEROS[-length & 7]
        spans += (at, length)
        body += (_SIZE.pack(claimed), data, padding)
        at += length + len(padding)
        raw_len += buffer.size
    nodes = [number for column in batch.columns for number in (len(column), column.null_count)]
    return b"".join((template.filled(batch.num_rows, nodes, spans, at), *body)), raw_len


def flat_buffers(batch: pa.RecordBatch) -> list[pa.Buffer | None] | None:
    """The buffers of a batch as its message has them; None if a column has parts, or is cut out of a longer one in a
    way that takes a copy: that is for Arrow."""
    found: list[pa.Buffer | None] = []
    for column in batch.columns:
        buffers = _flat_buffers(column)
        if buffers is None:
            return None
        found += buffers
    return found


def _flat_buffers(column: pa.Array) -> list[pa.Buffer | None] | None:
    kind, count, offset = column.type, len(column), column.offset
    if kind.num_fields or not count:
        return None
    validity, *rest = column.buffers()
    if not column.null_count:
        validity = None
    elif offset & 7:
        return None
    else:
        validity = validity.slice(offset >> 3, (count + 7) >> 3)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets, data = rest
        begin, end = np.frombuffer(offsets, np.int32, count + 1, 4 * offset)[[0, -1]].tolist()
        if offset or begin:
            return None
        return [validity, offsets.slice(0, 4 * (count + 1)), data and data.slice(0, end)]
    try:
        width = kind.bit_width
    except ValueError:
        return None
    if width * offset & 7 or len(rest) != 1:
        return None
    return [validity, rest[0].slice(width * offset >> 3, (width * count + 7) >> 3)]


def _compressed(buffer: pa.Buffer, codec: pa.Codec) -> pa.Buffer | None:
    """The buffer compressed; None where that does not pay."""
    if buffer.size >= _SAMPLED_BYTES_MIN and not shrinks(buffer, codec):
        return None
    packed = codec.compress(buffer)
    return packed if is_worth(packed.size, buffer.size) else None


def shrinks(data: pa.Buffer, codec: pa.Codec) -> bool:
    """Whether a sample of a large buffer says that it is worth to compress it."""
    step = (data.size - _SAMPLE_WINDOW_BYTES) // (_SAMPLE_WINDOWS - 1)
    sample = b"".join(data.slice(i * step, _SAMPLE_WINDOW_BYTES) for i in range(_SAMPLE_WINDOWS))
    return is_worth(codec.compress(sample).size, len(sample))


def is_worth(compressed_len: int, raw_len: int) -> bool:
    """Whether it became smaller by a tenth."""
    return compressed_len * 10 <= raw_len * 9
