"""The bloom filter: whether a value may be among many, in at most 16 bits for each of them.

A filter is a row of blocks of 32 bytes; a value sets 4 bits, all of one block, so that asking touches one cache line.
Fewer than would be best for its size, because setting them is what takes time. A value's hash h is a number of 64 bits:

    block    (h >> 32) * blocks >> 32
    bits     for i = 0 to 3: bit 64 * i + (byte i of h & 63) of the block, byte 0 being the lowest

Bit n of a block is bit n & 7 of its byte n >> 3. The hash of bytes goes through them in pairs of little-endian words of
8 bytes. What does not fill the last word is read as the last 8 bytes, some of them again; fewer than 8 bytes are a word
filled up with zeros, and to a word that is left alone belongs a zero:

    h = 0x243F6A8885A308D3 ^ length
    for each pair (a, b): h = (h ^ a) * 0xA0761D6478BD642F ^ b * 0xE7037ED1A0B428DB, then h ^= h >> 32
    at the end: h = h * 0x9E3779B97F4A7C15, then h ^= h >> 32

all in 64 bits. More than 256 bytes are hashed as their BLAKE2b digest of 16 bytes. A whole number is hashed as one
word, two's complement, of length 8; a floating-point number like the bytes of its double, -0.0 as 0.0; NaN is equal to
nothing and not in any filter.

Neighbouring blocks joined by `or` make the filter of half as many blocks. So one is made as if all values were
different, and halved as long as it stays mostly empty: nobody has to count how many are different.
"""

import hashlib
import struct
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.core.batch import Buffer

U64 = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

BLOCK_BYTES: Final = 32
_BLOCK_BITS: Final = 8 * BLOCK_BYTES
_BITS_PER_VALUE: Final = 16
# With more bits set than this, a value that is not there is taken for one that is more often than once in 10 times: not
# worth its bytes.
_FILL_MAX: Final = 0.55
# With 16 bits for a value so many bits are set; halved, a filter must not have more.
_FILL_WANTED: Final = 0.23
# A number of blocks has so many significant bits, so that it can be halved often.
_SIGNIFICANT_BITS: Final = 5

_LENGTH_MAX: Final = 256
_DIGEST_BYTES: Final = 16
_MASK: Final = (1 << 64) - 1
_SEED: Final = 0x243F6A8885A308D3
_ONE: Final = 0xA0761D6478BD642F
_OTHER: Final = 0xE7037ED1A0B428DB
_LAST: Final = 0x9E3779B97F4A7C15
_PAIR_BYTES: Final = 16
_DOUBLE: Final = struct.Struct("<d")
_U32: Final = np.uint64(32)
# What is kept of a word of which only so many bytes are the value's.
_KEPT: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
# Where in a block each of the bits of a value is looked for.
_BITS_SET: Final = 4
_AT_ONCE: Final = 4_096
_PLACES: Final = np.arange(0, 256, 64, dtype=np.uint8)[:, None]


def build(hashes: U64, bytes_max: int) -> bytes:
    """The filter of these values, at most `bytes_max` long; b"" if that is too short to be of use."""
    blocks = _blocks_for(len(hashes), bytes_max)
    if not blocks:
        return b""
    bits = np.zeros(blocks * _BLOCK_BITS, bool)
    # Some at a time: what is made on the way then stays in the processor's cache.
    for begin in range(0, len(hashes), _AT_ONCE):
        _set(bits, blocks, hashes[begin : begin + _AT_ONCE])
    fill = _fill(bits)
    # Two neighbours have no more bits in common than chance gives them.
    while not blocks & 1 and 1 - (1 - fill) ** 2 <= _FILL_WANTED:
        pairs = bits.reshape(blocks // 2, 2, _BLOCK_BITS)
        bits, blocks = (pairs[:, 0] | pairs[:, 1]).ravel(), blocks // 2
        fill = _fill(bits)
    if fill > _FILL_MAX:
        return b""
    return np.packbits(bits, bitorder="little").tobytes()


def _set(bits: npt.NDArray[np.bool_], blocks: int, hashes: U64) -> None:
    at = ((hashes >> _U32) * np.uint64(blocks) >> _U32).astype(np.intp) << 8
    lowest = hashes.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :_BITS_SET]
    # By bit and then by value: numpy is fast where the last dimension is long.
    places = (np.ascontiguousarray(lowest.T) & np.uint8(63)) | _PLACES
    bits[(at + places).ravel()] = True


def _fill(bits: npt.NDArray[np.bool_]) -> float:
    return np.count_nonzero(bits) / len(bits)


def _blocks_for(count: int, bytes_max: int) -> int:
    wanted = min(max(1, count * _BITS_PER_VALUE // _BLOCK_BITS), bytes_max // BLOCK_BYTES)
    halvings = max(0, wanted.bit_length() - _SIGNIFICANT_BITS)
    return wanted >> halvings << halvings


def may_contain(data: Buffer, at: int, length: int, value_hash: int) -> bool:
    """Whether a value of this hash may be in the filter at `data[at : at + length]`."""
    blocks = length // BLOCK_BYTES
    begin = at + ((value_hash >> 32) * blocks >> 32) * BLOCK_BYTES
    for place in range(0, BLOCK_BYTES, 8):
        bit = value_hash & 63
        if not data[begin + place + (bit >> 3)] >> (bit & 7) & 1:
            return False
        value_hash >>= 8
    return True


# The hash of one value.


def hash_bytes(value: bytes) -> int:
    if len(value) > _LENGTH_MAX:
        value = hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
    length = len(value)
    words = [int.from_bytes(value[at : at + 8], "little") for at in range(0, length, 8)]
    if length > 8:
        words[-1] = int.from_bytes(value[-8:], "little")
    found = _SEED ^ length
    for one, other in zip_longest(words[::2], words[1::2], fillvalue=0):
        found = ((found ^ one) * _ONE ^ other * _OTHER) & _MASK
        found ^= found >> 32
    return _finished(found)


def hash_int(value: int) -> int:
    found = (_SEED ^ 8 ^ (value & _MASK)) * _ONE & _MASK
    return _finished(found ^ found >> 32)


def hash_float(value: float) -> int:
    # Adding 0.0 turns -0.0 into it.
    return hash_bytes(_DOUBLE.pack(value + 0.0))


def _finished(found: int) -> int:
    found = found * _LAST & _MASK
    return found ^ found >> 32


# The hashes of a column, without its nulls.


def hashes_of_bytes(column: pa.Array) -> U64:
    """Of a column of text or bytes."""
    if column.null_count:
        column = column.drop_null()
    count = len(column)
    if not count:
        return np.zeros(0, np.uint64)
    ends = np.frombuffer(column.buffers()[1], np.int32, count + 1, 4 * column.offset).astype(np.int64)
    lengths = np.diff(ends)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest > _LENGTH_MAX:
        return _with_digests(column, lengths)
    first, last = int(ends[0]), int(ends[-1])
    data = np.frombuffer(column.buffers()[2], np.uint8, last - first, first) if longest else np.zeros(0, np.uint8)
    if shortest == longest >= 8:
        return _hash_even(data, count, longest)
    if shortest < 8:
        # The only word of a value may reach beyond it, that of the last value beyond all.
        data = np.concatenate((data, np.zeros(8, np.uint8)))
    return _hash_uneven(data, ends[:-1] - first, lengths, shortest, longest)


def hashes_of_ints(values: npt.NDArray[Any]) -> U64:
    """Of whole numbers, signed or not, of at most 64 bits."""
    words = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    found = np.full(len(words), _SEED ^ 8, np.uint64)
    _mix(found, words)
    return _finish(found)


def hashes_of_floats(values: npt.NDArray[Any]) -> U64:
    """Of floating-point numbers; those that are not a number are left out."""
    doubles = values.astype(np.float64)
    doubles = doubles[~np.isnan(doubles)] + 0.0
    return hashes_of_ints(doubles.view(np.int64))


def _hash_even(data: npt.NDArray[np.uint8], count: int, length: int) -> U64:
    """Values of one length, at least a word, lie at even distances, so that no word has to be looked up."""
    found = np.full(count, _SEED ^ length, np.uint64)
    words = [np.ndarray((count,), "<u8", data, min(at, length - 8), (length,)) for at in range(0, length, 8)]
    for at in range(0, len(words), 2):
        _mix(found, words[at], words[at + 1] if at + 1 < len(words) else None)
    return _finish(found)


def _hash_uneven(data: npt.NDArray[np.uint8], starts: Places, lengths: Places, shortest: int, longest: int) -> U64:
    """One pair of words of all values after the other. A word can be taken from any byte on."""
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    found = np.uint64(_SEED) ^ lengths.astype(np.uint64)
    for done in range(0, longest, _PAIR_BYTES):
        if done < shortest:
            _mix(found, *_pair(words, starts, lengths, done, shortest, longest))
            continue
        longer = np.flatnonzero(lengths > done)
        part = found[longer]
        _mix(part, *_pair(words, starts[longer], lengths[longer], done, done + 1, longest))
        found[longer] = part
    return _finish(found)


def _pair(
    words: U64, starts: Places, lengths: Places, done: int, shortest: int, longest: int
) -> tuple[U64, U64 | None]:
    """The two words of each value of which the first begins after `done` bytes, or where the last 8 do. All values are
    longer than that; the second is left out if none is as long."""
    one = words[starts + np.minimum(lengths - 8, done)] if done else words[starts]
    if shortest < 8:
        one &= _KEPT.take(lengths, mode="clip")
    if longest <= done + 8:
        return one, None
    at = np.minimum(lengths - 8, done + 8)
    if shortest > done + 8:
        return one, words[starts + at]
    other = words[starts + np.maximum(at, 0)]
    other[lengths <= done + 8] = 0
    return one, other


def _with_digests(column: pa.Array, lengths: npt.NDArray[np.int64]) -> U64:
    """Those that are long one by one, the others together."""
    is_long = lengths > _LENGTH_MAX
    found = np.empty(len(column), np.uint64)
    found[~is_long] = hashes_of_bytes(column.filter(pa.array(~is_long)))
    rest = column.filter(pa.array(is_long)).cast(pa.binary())
    found[is_long] = [hash_bytes(value.as_buffer().to_pybytes()) for value in rest]
    return found


def _mix(found: U64, one: U64, other: U64 | None = None) -> None:
    found ^= one
    found *= np.uint64(_ONE)
    if other is not None:
        found ^= other * np.uint64(_OTHER)
    found ^= found >> _U32


def _finish(found: U64) -> U64:
    found *= np.uint64(_LAST)
    found ^= found >> _U32
    return found
