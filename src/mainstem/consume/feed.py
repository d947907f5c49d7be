"""The feed: which batch a reader gets next. The server's side of a consumer, without I/O of its own.

After Scribe's Read Stream Service: it knows positions, not readers. A feed looks at a shard only when something may be
there: all shards at first, later those that a flush has touched.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss, InvalidRequest
from mainstem.core.limits import READ_ENTRIES_MAX
from mainstem.log.hot_tail import HotTail
from mainstem.log.ledger.base import StreamRow
from mainstem.log.reader import LogReader

_ENTRIES_FIRST: Final = 4


class Feed:
    """The shards of one stream, each from an offset on. One thread at a time."""

    def __init__(
        self, reader: LogReader, stream: StreamRow, offsets: Sequence[int], ends: Sequence[int] | None
    ) -> None:
        if len(offsets) != stream.shards or (ends is not None and len(ends) != stream.shards):
            raise InvalidRequest(f"stream {stream.name!r} has {stream.shards} shards; give one offset for each")
        self.stream = stream
        self._reader = reader
        self._offsets = list(offsets)
        self._ends = None if ends is None else list(ends)
        # A reader that wants one record does not wait for hundreds; one that goes on soon gets them.
        self._entries_max = _ENTRIES_FIRST
        # Shards that may have something to read, each at most once.
        self._ready = deque(shard for shard in range(stream.shards) if not self._is_done(shard))
        self._is_ready = [not self._is_done(shard) for shard in range(stream.shards)]
        self._open = sum(self._is_ready)

    @property
    def is_ready(self) -> bool:
        """Whether some shard may have something to read."""
        return bool(self._ready)

    @property
    def is_done(self) -> bool:
        """Whether every shard of a bounded feed was read to its end."""
        return self._ends is not None and self._open == 0

    def behind(self) -> int:
        """How many records its shards have that were not taken from here yet. Any thread, at about this moment.

        Only shards that may have something are looked at: for a reader that keeps up there are none.
        """
        ends = self._ends
        behind = 0
        for shard in tuple(self._ready):
            end = self._reader.shard(self.stream.id, shard).stable
            behind += max(0, (end if ends is None else min(end, ends[shard])) - self._offsets[shard])
        return behind

    def touch(self, shards: Iterable[int]) -> None:
        """These shards grew."""
        for shard in shards:
            if shard < len(self._is_ready) and not self._is_ready[shard] and not self._is_done(shard):
                self._is_ready[shard] = True
                self._ready.append(shard)

    def hot(self, tail: HotTail, bytes_max: int) -> list[FetchedBatch]:
        """The next batches if memory holds them; [] if there are none or the disk must be asked (`is_ready` tells)."""
        while self._ready:
            shard = self._ready[0]
            offset = self._offsets[shard]
            row = self._reader.shard(self.stream.id, shard)
            if offset >= row.stable:
                self._rest(shard)
                continue
            batches = tail.find(self.stream.id, shard, offset, bytes_max) if offset >= row.start else []
            if batches:
                self._advance(shard, batches[-1].end)
            return batches
        return []

    def read(self, bytes_max: int) -> list[FetchedBatch]:
        """The next batches of one shard, from memory or disk; [] when there is nothing now. DataLoss moves on behind
        the lost range."""
        while self._ready:
            shard = self._ready[0]
            try:
                batches = self._reader.read(self.stream, shard, self._offsets[shard], bytes_max, self._entries_max)
            except DataLoss as loss:
                self._advance(shard, loss.last + 1)
                raise
            if batches:
                self._entries_max = min(2 * self._entries_max, READ_ENTRIES_MAX)
                self._advance(shard, batches[-1].end)
                return batches
            self._rest(shard)
        return []

    def _rest(self, shard: int) -> None:
        """Nothing to read in the first shard: a flush that adds to it is announced by `touch` after it can be read."""
        self._ready.popleft()
        self._is_ready[shard] = False

    def _advance(self, shard: int, offset: int) -> None:
        """The shard was read up to `offset`: let the others have their turn."""
        self._offsets[shard] = offset
        self._ready.popleft()
        if self._is_done(shard):
            self._is_ready[shard] = False
            self._open -= 1
        else:
            self._ready.append(shard)

    def _is_done(self, shard: int) -> bool:
        return self._ends is not None and self._offsets[shard] >= self._ends[shard]
