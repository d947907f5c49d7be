"""Batches that were read a moment ago, for the other readers who come by: one read, one check, one look for many.

After Scribe's read stream service and Wormhole's caravans. What a reader has read is kept as a *stretch*: batches of
one shard that follow each other. Whoever stands in it takes its next batches from there and stands at its end then, as
the one before did; so readers who begin anywhere near each other soon read the same stretches, and the first of them
reads for all. Nobody waits for another: who is further behind than what is kept reads for himself, and for those who
follow him closely.

    a read ─▶ | stretch | stretch | stretch | ◀─ the first reader
                   ▲         ▲  ▲
                   others, each at its own pace

Readers who want only some records share in the same way what is left of the batches, with those who want the same.

How much is kept depends on who comes: for a reader alone little, so that its memory is used again while it is in the
processor's caches; when somebody asks for what has just been let go, twice as much from then on.

Stretches are found by their offsets. What stands there may be stored anew, with fewer records, at any time, and a
reader may get what was there before for as long as it is kept; but not what was erased: then `forget` is called.
"""

import bisect
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from mainstem.core.batch import FetchedBatch
from mainstem.core.limits import BATCH_OVERHEAD_BYTES
from mainstem.log.ledger.base import ShardKey

# What a batch costs beside its payload, and a stretch beside its batches.
_OVERHEAD_BYTES: Final = 512
# For so many bytes that nobody else came for, one byte less is kept.
_SHRINKING: Final = 8

# What readers want the same of: None is everything.
Wanted = Hashable
_Key = tuple[ShardKey, Wanted]


class Stretch(NamedTuple):
    """Batches that follow each other, at least one. `told` is what was counted when they were looked for: batches
    opened, batches skipped, records that could not be decoded."""

    batches: Sequence[FetchedBatch]
    size: int
    told: tuple[int, int, int] = (0, 0, 0)

    @property
    def base(self) -> int:
        return self.batches[0].base

    def after(self, offset: int, bytes_max: int) -> list[FetchedBatch]:
        """The batches from the one that holds `offset`, about `bytes_max` of them, at least one."""
        first = bisect.bisect_right(self.batches, offset, key=_base) - 1
        return about(self.batches, bytes_max, first)


class SharedReads:
    """Stretches by shard and by what is wanted of it, the most recently used within a room that grows from `bytes_min`
    (if not given, `bytes_max`) to `bytes_max` while readers share. Any thread."""

    def __init__(self, bytes_max: int, bytes_min: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._bytes_min = self._room = bytes_max if bytes_min is None else min(bytes_min, bytes_max)
        self._bytes = 0
        # Of these, what was made of batches for who does not want them as they are.
        self.made_bytes = 0
        # Of each, where its stretches begin, ascending. They may overlap.
        self._bases: dict[_Key, list[int]] = {}
        # The least recently used first.
        self._kept: OrderedDict[tuple[_Key, int], Stretch] = OrderedDict()
        # Those that a second reader has come to.
        self._met: set[tuple[_Key, int]] = set()
        # Sizes of those that were let go and would still be here if there was all the room.
        self._gone: OrderedDict[tuple[_Key, int], int] = OrderedDict()
        self._gone_bytes = 0
        # Where somebody is looking for something now; set when he is done.
        self._looking: dict[tuple[_Key, int], threading.Event] = {}
        self._lock = threading.Lock()
        # How often something was forgotten: what was looked up before that is not kept after it.
        self.version = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def find(self, shard: ShardKey, wanted: Wanted, offset: int) -> Stretch | None:
        """A stretch that holds `offset`."""
        key = shard, wanted
        with self._lock:
            bases = self._bases.get(key, [])
            index = bisect.bisect_right(bases, offset) - 1
            found = self._kept[key, bases[index]] if index >= 0 else None
            if found is None or found.batches[-1].end <= offset:
                self._miss(key, offset)
                return None
            place = key, found.base
            self._kept.move_to_end(place)
            if offset == found.base:
                # Who has read it himself stands further on.
                self._met.add(place)
            return found

    def _miss(self, key: _Key, offset: int) -> None:
        size = self._gone.pop((key, offset), None)
        if size is not None:
            self._gone_bytes -= size
            self._room = min(2 * self._room, self._bytes_max)

    @contextmanager
    def looking(self, shard: ShardKey, wanted: Wanted, offset: int) -> Iterator[bool]:
        """Look for what is wanted from `offset` on. If it says no, somebody was doing that and is done now."""
        place = (shard, wanted), offset
        mine = threading.Event()
        with self._lock:
            other = self._looking.setdefault(place, mine)
        if other is not mine:
            other.wait()
            yield False
            return
        try:
            yield True
        finally:
            with self._lock:
                del self._looking[place]
            mine.set()

    def next_base(self, shard: ShardKey, wanted: Wanted, offset: int) -> int | None:
        """Where the first stretch behind `offset` begins: no need to read further."""
        with self._lock:
            bases = self._bases.get((shard, wanted), [])
            index = bisect.bisect_right(bases, offset)
            return bases[index] if index < len(bases) else None

    def keep(
        self,
        shard: ShardKey,
        wanted: Wanted,
        batches: Sequence[FetchedBatch],
        version: int,
        told: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Keep what was read, for others. `version` is that of before the ledger was asked for it."""
        stretch = Stretch(batches, _held_bytes(batches), told)
        # One that would push out all others is shared with nobody.
        if 2 * stretch.size > self._bytes_max:
            return
        key = shard, wanted
        with self._lock:
            if version != self.version:
                return
            self._gone_bytes -= self._gone.pop((key, stretch.base), 0)
            before = self._kept.pop((key, stretch.base), None)
            if before is None:
                bisect.insort(self._bases.setdefault(key, []), stretch.base)
            else:
                self._count(key, -before.size)
            self._kept[key, stretch.base] = stretch
            self._count(key, stretch.size)
            while self._bytes > self._room and len(self._kept) > 1:
                self._let_go(*next(iter(self._kept)))

    def close(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self.version += 1
            self._bytes_max = self._bytes_min = self._room = 0
            self._bytes = self.made_bytes = self._gone_bytes = 0
            for kept in (self._bases, self._kept, self._met, self._gone):
                kept.clear()

    def forget(self, shard: ShardKey) -> None:
        """Let go of all that was read of a shard: something of it is no longer to be seen."""
        with self._lock:
            self.version += 1
            for key in [key for key in self._bases if key[0] == shard]:
                for base in tuple(self._bases[key]):
                    self._drop(key, base)

    def _let_go(self, key: _Key, base: int) -> None:
        """Make room. If nobody else came for it, there was more than enough."""
        size = self._kept[key, base].size
        if (key, base) not in self._met:
            self._room = max(self._room - size // _SHRINKING, self._bytes_min)
        self._drop(key, base)
        self._gone[key, base] = size
        self._gone_bytes += size
        while self._gone and self._gone_bytes > self._bytes_max - self._room:
            self._gone_bytes -= self._gone.popitem(last=False)[1]

    def _drop(self, key: _Key, base: int) -> None:
        self._count(key, -self._kept.pop((key, base)).size)
        self._met.discard((key, base))
        bases = self._bases[key]
        del bases[bisect.bisect_left(bases, base)]
        if not bases:
            del self._bases[key]

    def _count(self, key: _Key, size: int) -> None:
        self._bytes += size
        if key[1] is not None:
            self.made_bytes += size


def about(batches: Sequence[FetchedBatch], bytes_max: int, first: int = 0) -> list[FetchedBatch]:
    """The batches from `first` on, about `bytes_max` of them, at least one."""
    size = 0
    for index in range(first, len(batches)):
        size += len(batches[index].payload) + BATCH_OVERHEAD_BYTES
        if size >= bytes_max:
            return list(batches[first : index + 1])
    return list(batches[first:])


def _held_bytes(batches: Sequence[FetchedBatch]) -> int:
    """What is in memory because of these batches: of one that was read with its neighbours, all that was read."""
    wholes = {id(whole): len(whole) for whole in (_whole(batch) for batch in batches)}
    return sum(wholes.values()) + _OVERHEAD_BYTES * (1 + len(batches))


def _whole(batch: FetchedBatch) -> bytes | bytearray:
    payload = batch.payload
    whole: bytes | bytearray = payload.obj if isinstance(payload, memoryview) else payload  # type: ignore[assignment]
    return whole


def _base(batch: FetchedBatch) -> int:
    return batch.base
