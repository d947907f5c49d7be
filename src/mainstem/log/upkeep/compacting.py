"""Compacting: of every key only the newest record stays, and no tombstone that was there for long.

How long is counted from when compaction first came past it: its own time is what a user says, and a copy of another
stream brings tombstones that are old already, of which no reader has heard yet. It is not stored; after a restart it is
counted anew.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from mainstem.core.errors import Refused, StreamDeleted, UnknownStream
from mainstem.log.compaction import KeyIndex, is_due, tombstones
from mainstem.log.flush import NoteUpkeep
from mainstem.log.ledger.base import ShardKey, StreamRow
from mainstem.log.replacement import Records
from mainstem.log.upkeep.thinning import leave, pieces
from mainstem.log.upkeep.work import Work

# Behind any offset.
_NOWHERE: Final = 1 << 62
# Of the time that tombstones are kept: they may stay longer by one part in so many.
_PASSES_KEPT: Final = 64


@dataclass(slots=True)
class _Passes:
    """When compaction has gone through a shard, and up to where; where the first tombstone is that it has left."""

    ended: deque[tuple[int, int]] = field(default_factory=deque)
    first_left: int = 0

    def note(self, time_us: int, end: int, apart_us: int) -> None:
        """One is over. Of those that follow each other closely the last one stands for all."""
        if len(self.ended) > 1 and time_us - self.ended[-2][0] < apart_us:
            self.ended.pop()
        self.ended.append((time_us, end))

    def end_before(self, time_us: int) -> int:
        """Up to where the last of those that were over by then went. The ones before it are forgotten."""
        while len(self.ended) > 1 and self.ended[1][0] <= time_us:
            self.ended.popleft()
        return self.ended[0][1] if self.ended and self.ended[0][0] <= time_us else 0


class Compacting:
    """Goes through the shards of compacted streams when enough in them is new. One thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        # When a shard that is to be compacted was first seen with something new.
        self._dirty_since: dict[ShardKey, float] = {}
        self._passes: dict[ShardKey, _Passes] = {}

    def compact(self) -> Iterator[None]:
        for stream in self._work.commits.streams():
            if stream.deleted_us or not stream.compacts:
                continue
            for shard in range(stream.shards):
                with contextlib.suppress(StreamDeleted, UnknownStream, Refused):
                    if self._should_compact(stream, shard):
                        yield from self._compact_shard(stream, shard)

    def _should_compact(self, stream: StreamRow, shard: int) -> bool:
        key = (stream.id, shard)
        row = self._work.commits.shard(key)
        now = self._work.clock.monotonic()
        begin = max(row.compacted, row.start)
        if begin >= row.stable:
            self._dirty_since.pop(key, None)
            passes = self._passes_of(key, row.compacted)
            return row.start < row.stable and passes.first_left < passes.end_before(self._over_us(stream))
        waited = now - self._dirty_since.setdefault(key, now)
        clean_bytes = sum(self._work.ledger.oldest_entries(*key, begin, -1).blocks.values())
        return is_due(row.bytes - clean_bytes, clean_bytes, waited)

    def _passes_of(self, key: ShardKey, end: int) -> _Passes:
        """Those since the start; what was compacted before counts as passed by now."""
        if key not in self._passes:
            self._passes[key] = _Passes(deque([(self._work.clock.now_us(), end)]))
        return self._passes[key]

    def _over_us(self, stream: StreamRow) -> int:
        """Tombstones that were passed by then have been there for long enough."""
        return self._work.clock.now_us() - stream.tombstone_us

    def _compact_shard(self, stream: StreamRow, shard: int) -> Iterator[None]:
        key = (stream.id, shard)
        row = self._work.commits.shard(key)
        self._dirty_since.pop(key, None)
        contents = self._work.contents(stream)
        index = KeyIndex()
        index.end = max(row.compacted, row.start)
        for entries, groups in pieces(self._work, stream, shard, index.end, row.stable):
            for group in groups or ():
                index.learn(self._work.records(group, contents))
            # What cannot be read is passed over, or the shard would look as if it had not been compacted, for ever.
            index.end = entries[-1].end
            yield
            if index.is_full:
                break
        passes = self._passes_of(key, row.compacted)
        passes.note(self._work.clock.now_us(), index.end, stream.tombstone_us // _PASSES_KEPT)
        over = passes.end_before(self._over_us(stream))
        first_left = _NOWHERE

        def kept(records: Records) -> np.ndarray:
            nonlocal first_left
            found = index.kept(records, over)
            left = records.offsets[found & tombstones(records)]
            first_left = min(first_left, int(left[0])) if len(left) else first_left
            return found

        for entries, groups in pieces(self._work, stream, shard, row.start, index.end):
            if groups is not None:
                gone = leave(self._work, entries, groups, contents, kept, self._work.upshot(), joins=True)
                self._work.counts["records_compacted"] += gone
                if gone:
                    # At once: a pass may be left at any piece and never come to its end.
                    self._work.commits.forget_shared((stream.id, shard))
                yield
        self._work.execute(NoteUpkeep(stream.id, shard, compacted=index.end))
        passes.first_left = first_left
        yield
