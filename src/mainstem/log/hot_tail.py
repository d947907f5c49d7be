"""The newest batches in memory, so that a follower is served without touching the disk.

After Scribe's ephemeral tier: most readers want what was written milliseconds ago. One ring for all streams, bounded
in bytes; what falls out of it is read from its block.
"""

import bisect
import threading
from collections import deque
from typing import Final

from mainstem.core.batch import BatchHeader, FetchedBatch
from mainstem.core.limits import BATCH_OVERHEAD_BYTES
from mainstem.log.ledger.base import ShardKey

# What a batch costs beside its payload.
_OVERHEAD_BYTES: Final = 512
# Dropped batches are cut off a shard's list when there are this many, so that dropping one is cheap.
_CUT_COUNT: Final = 64

_GONE: Final = FetchedBatch(0, BatchHeader(*(0,) * 15), b"")


class _ShardTail:
    """The batches of one shard, oldest first, from `head` on."""

    __slots__ = ("batches", "head", "key")

    def __init__(self, key: ShardKey) -> None:
        self.key = key
        self.batches: list[FetchedBatch] = []
        self.head = 0

    def drop_oldest(self) -> FetchedBatch:
        oldest = self.batches[self.head]
        # The slot must not keep the payload alive until the list is cut.
        self.batches[self.head] = _GONE
        self.head += 1
        if self.head >= _CUT_COUNT and self.head * 2 >= len(self.batches):
            del self.batches[: self.head]
            self.head = 0
        return oldest

    @property
    def is_empty(self) -> bool:
        return self.head >= len(self.batches)


class HotTail:
    """Recent batches per shard, contiguous up to the shard's end. One thread appends; any thread reads and forgets.

    Invariant: the batches of one shard have no gap between them, and the last one ends at the shard's end.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._shards: dict[ShardKey, _ShardTail] = {}
        # The tail of every batch, oldest first; of those that were broken off, some still.
        self._order: deque[_ShardTail] = deque()
        self._broken_off = 0
        self._lock = threading.Lock()

    def append(self, batches: list[FetchedBatch]) -> None:
        """Add the batches of one flush and let the oldest of all go."""
        with self._lock:
            for batch in batches:
                key = (batch.header.stream, batch.header.shard)
                tail = self._shards.get(key)
                if tail is None:
                    tail = self._shards[key] = _ShardTail(key)
                assert tail.is_empty or tail.batches[-1].end == batch.base, "the hot tail has no gaps"
                tail.batches.append(batch)
                self._order.append(tail)
                self._bytes += batch.header.stored_len + _OVERHEAD_BYTES
            while self._bytes > self._bytes_max:
                self._drop_oldest()

    def break_off(self, key: ShardKey) -> None:
        """Let go of all batches of a shard: others stand behind them that are not here."""
        with self._lock:
            tail = self._shards.pop(key, None)
            if tail is None:
                return
            left = tail.batches[tail.head :]
            self._bytes -= sum(batch.header.stored_len + _OVERHEAD_BYTES for batch in left)
            tail.batches, tail.head = [], 0
            # Their places in the order are given up many at a time, so that this costs what the shard has.
            self._broken_off += len(left)
            if 2 * self._broken_off > len(self._order) + _CUT_COUNT:
                self._order = deque(other for other in self._order if not other.is_empty)
                self._broken_off = 0

    def forget(self, key: ShardKey, before: int) -> None:
        """Let go of the batches of a shard that begin below `before`: what they hold is no longer to be seen."""
        with self._lock:
            tail = self._shards.get(key)
            if tail is None:
                return
            kept = [batch for batch in tail.batches[tail.head :] if batch.base >= before]
            gone = tail.batches[tail.head : len(tail.batches) - len(kept)]
            self._bytes -= sum(batch.header.stored_len + _OVERHEAD_BYTES for batch in gone)
            tail.batches, tail.head = kept, 0
            left = len(gone)
            order: deque[_ShardTail] = deque()
            for other in self._order:
                if other is tail and left:
                    left -= 1
                else:
                    order.append(other)
            self._order = order
            if tail.is_empty:
                del self._shards[key]

    def _drop_oldest(self) -> None:
        tail = self._order.popleft()
        if not tail.batches:
            self._broken_off -= 1
            return
        self._bytes -= tail.drop_oldest().header.stored_len + _OVERHEAD_BYTES
        if tail.is_empty:
            del self._shards[tail.key]

    def find(self, stream: int, shard: int, offset: int, bytes_max: int) -> list[FetchedBatch]:
        """Batches from the one that holds `offset`, about `bytes_max` of them, at least one; [] if it is not here."""
        with self._lock:
            tail = self._shards.get((stream, shard))
            if tail is None:
                return []
            batches = tail.batches
            if offset < batches[tail.head].base or offset >= batches[-1].end:
                return []
            first = bisect.bisect_right(batches, offset, lo=tail.head, key=_base) - 1
            last = first
            size = batches[first].header.stored_len + BATCH_OVERHEAD_BYTES
            while last + 1 < len(batches) and size < bytes_max:
                last += 1
                size += batches[last].header.stored_len + BATCH_OVERHEAD_BYTES
            return batches[first : last + 1]

    @property
    def bytes(self) -> int:
        return self._bytes


def _base(batch: FetchedBatch) -> int:
    return batch.base
