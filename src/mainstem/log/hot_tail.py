"""The newest batches in memory, so that a follower is served without touching the disk.

After Scribe's ephemeral tier: most readers want what was written milliseconds ago. One ring for all streams, bounded
in bytes; what falls out of it is read from its block.
"""

import threading
from collections import deque
from typing import Final

from mainstem.core.batch import FetchedBatch

# What a batch costs beside its payload.
_OVERHEAD_BYTES: Final = 512

ShardKey = tuple[int, int]


class HotTail:
    """Recent batches per shard, contiguous up to the shard's end. One thread appends; any thread reads.

    Invariant: the batches of one shard have no gap between them, and the last one ends at the shard's end.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._shards: dict[ShardKey, deque[FetchedBatch]] = {}
        self._order: deque[ShardKey] = deque()
        self._lock = threading.Lock()

    def append(self, batches: list[FetchedBatch]) -> None:
        """Add the batches of one flush and let the oldest of all go."""
        with self._lock:
            for batch in batches:
                key = (batch.header.stream, batch.header.shard)
                shard = self._shards.get(key)
                if shard is None:
                    shard = self._shards[key] = deque()
                assert not shard or shard[-1].end == batch.base, "the hot tail has no gaps"
                shard.append(batch)
                self._order.append(key)
                self._bytes += batch.header.stored_len + _OVERHEAD_BYTES
            while self._bytes > self._bytes_max:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        key = self._order.popleft()
        shard = self._shards[key]
        self._bytes -= shard.popleft().header.stored_len + _OVERHEAD_BYTES
        if not shard:
            del self._shards[key]

    def find(self, stream: int, shard: int, offset: int) -> FetchedBatch | None:
        """The batch that holds `offset`, if it is still here."""
        with self._lock:
            batches = self._shards.get((stream, shard))
            if not batches or offset < batches[0].base or offset >= batches[-1].end:
                return None
            # Followers want the newest: search from the end.
            for batch in reversed(batches):
                if batch.base <= offset:
                    return batch
        return None

    @property
    def bytes(self) -> int:
        return self._bytes
