"""Stamps: values of which each says who sent it and as which of its values, under a checksum.

Nothing else could tell a lost record from one that was never sent, or a changed one from another. One at a time for
tests that look at single records, and as Arrow arrays for those that look at millions.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

U64: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = int | Sequence[int] | npt.NDArray[Any]

# Producer and sequence fit into one 64-bit number, which is what a history keeps of a value.
PRODUCER_BITS: Final = 24
SEQUENCE_BITS: Final = 40
assert PRODUCER_BITS + SEQUENCE_BITS == 64

STAMP_BYTES: Final = 16
_STAMP: Final = struct.Struct("<IQI")
_IDENTITY: Final = struct.Struct("<IQ")
_STAMP_DTYPE: Final = np.dtype([("producer", "<u4"), ("sequence", "<u8"), ("crc", "<u4")])
assert _STAMP.size == STAMP_BYTES == _STAMP_DTYPE.itemsize
assert _IDENTITY.size == STAMP_BYTES - 4

# The filler of a value is a window into this, at a place its identity decides: it does not compress away, and two
# values rarely share it. The table's size is a prime, so that neighbouring sequences are far apart in it.
_FILLER_SIZE: Final = 65_521
_FILLER: Final = hashlib.shake_256(b"mainstem").digest(_FILLER_SIZE)
_FILLER_ARRAY: Final = np.frombuffer(_FILLER, dtype=np.uint8)


class Stamp(NamedTuple):
    """Who sent a value, and as which of its values."""

    producer: int
    sequence: int


def stamp(producer: int, sequence: int, size: int = STAMP_BYTES) -> bytes:
    """The value `sequence` of `producer`, exactly `size` bytes long and the same every time.

    bytes 0..3    producer, u32 little endian
    bytes 4..11   sequence, u64
    bytes 12..15  crc32 of everything else
    bytes 16..    filler
    """
    _check_size(size)
    check_range("producer", producer, PRODUCER_BITS)
    check_range("sequence", sequence, SEQUENCE_BITS)
    filler = _filler(producer, sequence, size - STAMP_BYTES)
    crc = zlib.crc32(filler, zlib.crc32(_IDENTITY.pack(producer, sequence)))
    return _STAMP.pack(producer, sequence, crc) + filler


def read_stamp(value: bytes | memoryview) -> Stamp | None:
    """Who sent this value, or None if it is not a whole, undamaged stamp."""
    if len(value) < STAMP_BYTES:
        return None
    producer, sequence, crc = _STAMP.unpack_from(value)
    if zlib.crc32(value[STAMP_BYTES:], zlib.crc32(value[: STAMP_BYTES - 4])) != crc:
        return None
    if producer >> PRODUCER_BITS or sequence >> SEQUENCE_BITS:
        return None
    return Stamp(producer, sequence)


def stamps(producer: int, sequences: Numbers, size: int = STAMP_BYTES) -> pa.BinaryArray:
    """`stamp` of each sequence, as one Arrow array."""
    _check_size(size)
    check_range("producer", producer, PRODUCER_BITS)
    numbers = as_numbers("sequence", sequences, SEQUENCE_BITS)
    rows = np.empty((len(numbers), size), dtype=np.uint8)
    head = np.empty(len(numbers), dtype=_STAMP_DTYPE)
    head["producer"], head["sequence"], head["crc"] = producer, numbers, 0
    begin = (producer * 7_919 + numbers * np.uint64(104_729)) % np.uint64(_FILLER_SIZE)
    if size > STAMP_BYTES:
        around = np.resize(_FILLER_ARRAY, _FILLER_SIZE + size)
        rows[:, STAMP_BYTES:] = np.lib.stride_tricks.sliding_window_view(around, size - STAMP_BYTES)[begin]
    ends = np.arange(1, len(numbers) + 1, dtype=np.int64) * size
    head["crc"] = _crcs(head, memoryview(rows.data).cast("B"), ends - size + STAMP_BYTES, ends)
    rows[:, :STAMP_BYTES] = head.view(np.uint8).reshape(len(numbers), STAMP_BYTES)
    offsets = np.arange(len(numbers) + 1, dtype=np.int64) * size
    large = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    )
    return large.cast(pa.binary())


def read_stamps(values: pa.Array | pa.ChunkedArray) -> tuple[U64, U64, Flags]:
    """(producers, sequences, intact) of an Arrow array of binary. Where `intact` is false the other two are 0."""
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(
            [chunk.cast(pa.large_binary()) for chunk in values.chunks] or [pa.array([], pa.binary())]
        )
    values = values.cast(pa.large_binary())
    bounds = _bounds(values)
    content = values.buffers()[2]
    view = memoryview(content) if content is not None else memoryview(b"")
    begins, ends = bounds[:-1], bounds[1:]
    whole = np.flatnonzero((ends - begins >= STAMP_BYTES) & ~np.asarray(values.is_null(), dtype=np.bool_))
    head = _heads(view, begins[whole])
    good = head["crc"] == _crcs(head, view, begins[whole] + STAMP_BYTES, ends[whole])
    good &= (head["producer"] >> np.uint32(PRODUCER_BITS) == 0) & (head["sequence"] >> np.uint64(SEQUENCE_BITS) == 0)
    producers, sequences = np.zeros(len(values), np.uint64), np.zeros(len(values), np.uint64)
    intact = np.zeros(len(values), np.bool_)
    kept = whole[good]
    producers[kept], sequences[kept], intact[kept] = head["producer"][good], head["sequence"][good], True
    return producers, sequences, intact


def _bounds(values: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    if len(values) == 0:
        return np.zeros(1, np.int64)
    every = np.frombuffer(values.buffers()[1], dtype=np.int64)
    return every[values.offset : values.offset + len(values) + 1]


def _heads(view: memoryview, begins: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    content = np.frombuffer(view, dtype=np.uint8)
    rows = content[begins[:, None] + np.arange(STAMP_BYTES)]
    return np.ascontiguousarray(rows).view(_STAMP_DTYPE).reshape(len(begins))


def _crcs(
    heads: npt.NDArray[Any], view: memoryview, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """The crc32 of each head's identity followed by its filler. zlib is called once per record, on the filler."""
    identity = np.ascontiguousarray(heads).view(np.uint8).reshape(len(heads), STAMP_BYTES)[:, : STAMP_BYTES - 4]
    starts = _crc32_rows(identity).tolist()
    crc32 = zlib.crc32
    found = [
        crc32(view[begin:end], start) for begin, end, start in zip(begins.tolist(), ends.tolist(), starts, strict=True)
    ]
    return np.array(found, dtype=np.uint32)


def _crc32_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & np.uint32(1), np.uint32(0xEDB88320) ^ (table >> np.uint32(1)), table >> np.uint32(1))
    return table


_CRC32_TABLE: Final = _crc32_table()


def _crc32_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """zlib's crc32 of every row, a column at a time."""
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in range(rows.shape[1]):
        crc = _CRC32_TABLE[(crc ^ rows[:, column]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


def _filler(producer: int, sequence: int, size: int) -> bytes:
    begin = (producer * 7_919 + sequence * 104_729) % _FILLER_SIZE
    piece = _FILLER[begin : begin + size]
    while len(piece) < size:
        piece += _FILLER[: size - len(piece)]
    return piece


def _check_size(size: int) -> None:
    if size < STAMP_BYTES:
        raise ValueError(f"a stamped value has at least {STAMP_BYTES} bytes, not {size}")


def check_range(name: str, number: int, bits: int) -> None:
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{name} {number} is not within 0 and 2^{bits} - 1, which is all a history can hold")


def as_numbers(name: str, numbers: Numbers, bits: int) -> U64:
    array = np.atleast_1d(np.asarray(numbers))
    if len(array):
        check_range(name, int(array.min()), bits)
        check_range(name, int(array.max()), bits)
    return array.astype(np.uint64)
