"""Placement: which shard a record belongs to, decided by its key, and a batch cut up accordingly.

A stream names its key hash once and every writer follows it, so that one key is always found in one shard:

    crc32     crc32(key) mod shards                        as librdkafka's consistent partitioner
    murmur2   (murmur2(key) & 0x7fffffff) mod shards       as Kafka's Java client

A record without a key goes to the *sticky* shard, which the caller changes from chunk to chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.core.errors import InvalidSetting

U32 = npt.NDArray[np.uint32]


class Split(NamedTuple):
    """A batch cut up by shard.

    `rank[i]` is the place of the original row i inside its shard: its offset is the shard's base + rank[i].
    `pieces` holds (shard, records), ascending, in the original order inside each; shards without records are left out.
    """

    rank: U32
    pieces: list[tuple[int, pa.RecordBatch]]


def shards_for(keys: Sequence[bytes | None], shards: int, hash: str, sticky: int) -> U32:  # noqa: A002
    """The shard of each key, 0 to `shards` - 1."""
    assert 0 <= sticky < shards
    if hash not in HASHES:
        raise InvalidSetting(f"hash {hash!r} is not known; use one of {', '.join(HASHES)}")
    if shards == 1:
        return np.zeros(len(keys), np.uint32)
    try:
        return HASHES[hash](keys) % np.uint32(shards)
    except TypeError:  # a None among them: rarer than none at all, and the hash of a whole list is what must be fast
        return _with_sticky(keys, shards, hash, sticky)


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


def _crc32(keys: Sequence[Any]) -> U32:
    return np.fromiter(map(crc32, keys), np.uint32, len(keys))


def _with_sticky(keys: Sequence[bytes | None], shards: int, hash: str, sticky: int) -> U32:  # noqa: A002
    placed = np.full(len(keys), sticky, np.uint32)
    present = [i for i, key in enumerate(keys) if key is not None]
    placed[present] = HASHES[hash]([keys[i] for i in present]) % np.uint32(shards)
    return placed


# murmur2, as in Kafka's Utils.java: 32 bits, little-endian words. Keys of one length go through the same steps, so a
# column of words is mixed at a time.

_SEED: Final = 0x9747B28C
_M: Final = np.uint32(0x5BD1E995)


def _positive_murmur2(keys: Sequence[Any]) -> U32:
    return murmur2(keys) & np.uint32(0x7FFFFFFF)


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


HASHES: Final[dict[str, Callable[[Sequence[Any]], U32]]] = {"crc32": _crc32, "murmur2": _positive_murmur2}
