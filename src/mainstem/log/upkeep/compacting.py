"""Compacting: of every key only the newest record stays, and no tombstone that is old."""

import contextlib
from collections.abc import Iterator

import numpy as np

from mainstem.core.errors import Refused, StreamDeleted, UnknownStream
from mainstem.log.compaction import KeyIndex, is_due, tombstones
from mainstem.log.flush import NoteUpkeep
from mainstem.log.ledger.base import ShardKey, StreamRow
from mainstem.log.replacement import Records
from mainstem.log.upkeep.pace import NEVER_US
from mainstem.log.upkeep.thinning import leave, pieces
from mainstem.log.upkeep.work import Work


class Compacting:
    """Goes through the shards of compacted streams when enough in them is new. One thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        # When a shard that is to be compacted was first seen with something new, and the time of its oldest tombstone.
        self._dirty_since: dict[ShardKey, float] = {}
        self._oldest_tombstone_us: dict[ShardKey, int] = {}

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
            oldest_us = self._oldest_tombstone_us.setdefault(key, self._work.clock.now_us())
            return row.start < row.stable and self._work.clock.now_us() > oldest_us + stream.tombstone_us
        waited = now - self._dirty_since.setdefault(key, now)
        clean_bytes = sum(self._work.ledger.oldest_entries(*key, begin, -1).blocks.values())
        return is_due(row.bytes - clean_bytes, clean_bytes, waited)

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
        before_us = self._work.clock.now_us() - stream.tombstone_us
        oldest_us = NEVER_US

        def kept(records: Records) -> np.ndarray:
            nonlocal oldest_us
            found = index.kept(records, before_us)
            left = records.times[found & tombstones(records)]
            oldest_us = min(oldest_us, int(left.min())) if len(left) else oldest_us
            return found

        for entries, groups in pieces(self._work, stream, shard, row.start, index.end):
            if groups is not None:
                gone = leave(self._work, entries, groups, contents, kept, self._work.upshot(), joins=True)
                self._work.counts["records_compacted"] += gone
                yield
        self._work.execute(NoteUpkeep(stream.id, shard, compacted=index.end))
        self._oldest_tombstone_us[key] = oldest_us
        yield
