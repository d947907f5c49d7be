"""Placement: which shard a record belongs to, decided by its key, and a batch cut up accordingly.

A stream names its key hash once and every writer follows it, so that one key is always found in one shard:

    crc32     crc32(key) mod shards                        as librdkafka's consistent partitioner
    murmur2   (murmur2(key) & 0x7fffffff) mod shards       as Kafka's Java client

A record without a key goes to the *sticky* shard, which the caller changes from chunk to chunk.

Keys are hashed by columns, all of them a word at a time, in a third of the time that one after the other takes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.core.errors import InvalidSetting
from mainstem.core.layouts import binary_array

U32 = npt.NDArray[np.uint32]


class Split(NamedTuple):
    """A batch cut up by shard.

    `rank[i]` is the place of the original row i inside its shard: its offset is the shard's base + rank[i].
    `pieces` holds (shard, records), ascending, in the original order inside each; shards without records are left out.
    """

    rank: U32
    pieces: list[tuple[int, pa.RecordBatch]]


def shards_for(keys: Sequence[bytes | None] | pa.BinaryArray, shards: int, hash: str, sticky: int) -> U32:  # noqa: A002
    """The shard of each key, 0 to `shards` - 1."""
    assert 0 <= sticky < shards
    if hash not in HASHES:
        raise InvalidSetting(f"hash {hash!r} is not known; use one of {', '.join(HASHES)}")
    if shards == 1:
        return np.zeros(len(keys), np.uint32)
    column = keys if isinstance(keys, pa.Array) else binary_array(keys)
    if not column.null_count:
        return HASHES[hash](column) % np.uint32(shards)
    placed = np.full(len(keys), sticky, np.uint32)
    is_key = column.is_valid().to_numpy(zero_copy_only=False)
    placed[is_key] = HASHES[hash](column.drop_null()) % np.uint32(shards)
    return placed


def split(batch: pa.RecordBatch, shard_of: U32, shards: int) -> Split:
    """Cut `batch` by the shard of each row: one sort, one copy, and slices of it."""
    assert len(shard_of) == batch.num_rows
    counts = np.bincount(shard_of, minlength=shards)
    assert len(counts) == shards, "a row's shard is out of range"
    ends = np.cumsum(counts)
    starts = ends - counts
    used = np.flatnonzero(counts)
    if len(used) == 1:  # nothing to move
        return Split(np.arange(batch.num_rows, dtype=np.uint32), [(int(used[0]), batch)])
    # numpy sorts integers of 16 bits by radix, eight times faster than wider ones.
    order = np.argsort(shard_of.astype(np.uint16) if shards <= 1 << 16 else shard_of, kind="stable")
    rank = np.empty(len(order), np.uint32)
    rank[order] = np.arange(len(order)) - np.repeat(starts, counts)
    moved = batch.take(pa.array(order))
    return Split(rank, [(int(s), moved.slice(int(starts[s]), int(counts[s]))) for s in used])


# crc32, as in zlib. It is linear: zeros before a key change nothing as long as the register is zero too, so that all
# keys are as long as the longest, and what the register begins with is added at the end, by the length of each.

_POLYNOMIAL: Final = 0xEDB88320
_ONES: Final = 0xFFFFFFFF
# Longer keys are hashed one by one.
_COLUMN_LENGTH_MAX: Final = 64


def _crc32(keys: pa.BinaryArray) -> U32:
    """The crc32 of each key."""
    count = len(keys)
    ends = np.frombuffer(keys.buffers()[1], np.int32, count + 1, 4 * keys.offset).astype(np.int64) if count else _ZERO
    lengths = np.diff(ends)
    shortest, longest = (int(lengths.min()), int(lengths.max())) if count else (0, 0)
    if longest > _COLUMN_LENGTH_MAX:
        return np.fromiter(map(crc32, keys.to_pylist()), np.uint32, count)
    first, last = int(ends[0]), int(ends[-1])
    width = -(-longest // 8) * 8
    # A word that ends with a key may begin before it, that of the first key before all.
    data = np.zeros(width + last - first, np.uint8)
    if longest:
        data[width:] = np.frombuffer(keys.buffers()[2], np.uint8, last - first, first)
    words = np.ndarray((max(0, len(data) - 7),), "<u8", data, strides=(1,))
    at = ends[1:] - first
    found = np.zeros(count, np.uint32)
    for left in range(width, 0, -8):
        word = words[at + (width - left)]
        if left > shortest:
            word &= _OF_KEY.take(left - lengths, mode="clip")
        word ^= found
        # By place and then by key, and with no question whether a byte is within its table: twice as fast.
        places = np.ascontiguousarray(word.view(np.uint8).reshape(count, 8).T).astype(np.intp)
        found = _AFTER[7].take(places[0], mode="wrap")
        for place in range(1, 8):
            found ^= _AFTER[7 - place].take(places[place], mode="wrap")
    return found ^ _BEGUN[lengths]


def _make_after() -> npt.NDArray[np.uint32]:
    """What each value of a byte adds to the register after the byte itself and 0 to 7 others."""
    after = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        after = np.where(after & 1, (after >> 1) ^ np.uint32(_POLYNOMIAL), after >> 1)
    rows = [after]
    for _ in range(7):
        rows.append(after[rows[-1] & 0xFF] ^ (rows[-1] >> 8))
    return np.array(rows, np.uint32)


def _make_begun() -> npt.NDArray[np.uint32]:
    """What a register that begins and ends inverted adds to keys of each length."""
    begun = [_ONES]
    for _ in range(_COLUMN_LENGTH_MAX):
        begun.append(int(_AFTER[0][begun[-1] & 0xFF]) ^ begun[-1] >> 8)
    return np.array(begun, np.uint32) ^ np.uint32(_ONES)


_ZERO: Final = np.zeros(1, np.int64)
_AFTER: Final = _make_after()
_BEGUN: Final = _make_begun()
# What is the key's of a word of which so many bytes lie before it.
_OF_KEY: Final = np.array([((1 << 64) - 1) >> 8 * before << 8 * before for before in range(9)], np.uint64)


# murmur2, as in Kafka's Utils.java: 32 bits, little-endian words. Keys of one length go through the same steps, so a
# column of words is mixed at a time.

_SEED: Final = 0x9747B28C
_M: Final = np.uint32(0x5BD1E995)


def _positive_murmur2(keys: pa.BinaryArray) -> U32:
    return murmur2(keys.to_pylist()) & np.uint32(0x7FFFFFFF)


def murmur2(keys: Sequence[Any]) -> U32:
    """The murmur2 hash of each key."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    order = np.argsort(lengths, kind="stable")
    joined = b"".join([keys[i] for i in order.tolist()])
    sizes, counts = np.unique(lengths, return_counts=True)
    hashes = np.empty(len(keys), np.uint32)
    row = position = 0
    for length, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        data = np.frombuffer(joined, np.uint8, count * length, position).reshape(count, length)
        hashes[order[row : row + count]] = _murmur2_of_length(data)
        row, position = row + count, position + count * length
    return hashes


def _murmur2_of_length(data: npt.NDArray[np.uint8]) -> U32:
    count, length = data.shape
    words = length // 4
    whole = np.ascontiguousarray(data[:, : 4 * words]).view("<u4").T if words else ()
    hashes = np.full(count, (_SEED ^ length) & 0xFFFFFFFF, np.uint32)
    for word in whole:
        mixed = word * _M
        mixed ^= mixed >> np.uint32(24)
        hashes = (hashes * _M) ^ (mixed * _M)
    if length % 4:
        for place in range(length % 4):
            hashes ^= data[:, 4 * words + place].astype(np.uint32) << np.uint32(8 * place)
        hashes *= _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    return hashes ^ (hashes >> np.uint32(15))


HASHES: Final[dict[str, Callable[[pa.BinaryArray], U32]]] = {"crc32": _crc32, "murmur2": _positive_murmur2}
