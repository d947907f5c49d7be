"""Some shards of a stream, for a consumer that holds these and not the others."""

from collections import Counter
from typing import Final

from mainstem.consume.consumer import Consumer
from mainstem.consume.places import Start, offsets_at
from mainstem.consume.record import RecordBatch
from mainstem.consume.several import ReadOptions
from mainstem.core.batch import FetchedBatch
from mainstem.core.cursor import Cursors
from mainstem.transport.port import Port, StreamInfo

# A shard that is not held stands at its end, wherever that is.
_NOWHERE: Final = (1 << 63) - 1


class Restored(Exception):
    """The log was restored from a backup: offsets may be of other records now."""


class Part(Consumer):
    """The shards that are held, each from an offset on, as far as the stream's generations allow. One thread.

    When a stream gets more shards, the records of a key may go on in another one, which another member may hold. So
    what was written after such a change waits until `allow` says that everybody has read what was before it.
    """

    def __init__(self, port: Port, stream: str, options: ReadOptions) -> None:
        super().__init__(
            port,
            stream,
            "earliest",
            follow=options.follow,
            prefetch_bytes=options.prefetch_bytes,
            where=options.where,
            columns=options.columns,
            on_bad=options.on_bad,
            clock=options.clock,
        )
        # Where it ends if it does not follow, by shard; shards that came later are not read then.
        self.final: tuple[int, ...] | None = self._ends
        self._held: set[int] = set()
        self._allowed = 0
        # Where shards wait because of what was written after a change.
        self._limits: dict[int, int] = {}
        # Shards of which nothing more is to come.
        self._paused: set[int] = set()
        self.read_bytes: Counter[int] = Counter()
        self._offsets = []
        # Whether it is read as far as this says. Many shards change at a time: it is bound once, before it is read.
        self._is_bound = False

    def offsets_at(self, start: Start | Cursors) -> tuple[int, ...]:
        """Where every shard of the stream would begin."""
        if isinstance(start, Cursors):
            start = start.of(self._info.uuid) or "earliest"
        return tuple(offsets_at(self._port, start, self._info))

    def hold(self, shard: int, offset: int) -> None:
        """Read this shard, from here on."""
        self.drop(shard)
        self._held.add(shard)
        if shard >= self._info.shards:
            self._info = self._look_up()
        self._offsets += [_NOWHERE] * (shard + 1 - len(self._offsets))
        self._offsets[shard] = offset

    def drop(self, shard: int) -> None:
        """Read this shard no more."""
        self._held.discard(shard)
        self._paused.discard(shard)
        self._limits.pop(shard, None)
        if self._parts and _shard_of(self._parts[0]) == shard:
            self._parts.clear()
        if shard < len(self._offsets):
            self._offsets[shard] = _NOWHERE
        self._unbind()

    def pause(self, shard: int) -> None:
        """Hold this shard, and read no more of it."""
        if shard not in self._paused:
            self._paused.add(shard)
            self._unbind()

    def allow(self, generation: int) -> None:
        """What was written in this generation of the stream can be read."""
        if generation != self._allowed:
            self._allowed = generation
            if generation > self._info.generation:
                self._info = self._look_up()
            self._limits.clear()
            self._unbind()

    def position(self, shard: int) -> int:
        """The offset after what was yielded last."""
        return self._offsets[shard]

    @property
    def waits_at_barrier(self) -> bool:
        return bool(self._limits)

    @property
    def is_at_end(self) -> bool:
        """Whether what is held was read to where it ends."""
        return self.final is not None and all(self._offsets[shard] >= self._end(shard) for shard in self._held)

    def _take(self, timeout: float | None) -> RecordBatch | None:
        if not self._is_bound:
            self._bound()
        return super()._take(timeout)

    def _unbind(self) -> None:
        self._drop_subscription()
        self._is_bound = False

    def _bound(self) -> None:
        """Begin anew with what is held now."""
        self._drop_subscription()
        self._is_bound = True
        shards = max(self._info.shards, *(shard + 1 for shard in self._held), 1)
        offsets = [*self._offsets, *[_NOWHERE] * (shards - len(self._offsets))]
        self._offsets = [offset if shard in self._held else _NOWHERE for shard, offset in enumerate(offsets)]
        self._ends = tuple(
            min(self._end(shard), self._limits.get(shard, _NOWHERE)) if shard in self._held else _NOWHERE
            for shard in range(shards)
        )
        if self._paused:
            ends = enumerate(self._ends)
            self._ends = tuple(self._offsets[shard] if shard in self._paused else end for shard, end in ends)

    def _end(self, shard: int) -> int:
        if self.final is None:
            return _NOWHERE
        return self.final[shard] if shard < len(self.final) else 0

    def _is_early(self, fetched: FetchedBatch) -> bool:
        header = fetched.header
        if header.count and header.generation > self._allowed:
            self._limits[header.shard] = fetched.base
            self._bound()
            return True
        self.read_bytes[header.shard] += len(fetched.payload)
        return False

    def _enter_epoch(self) -> None:
        raise Restored

    def adopt(self, info: StreamInfo) -> None:
        """The stream as it is after a restore; nothing is held."""
        self._held.clear()
        self._paused.clear()
        self._limits.clear()
        self._parts.clear()
        self._info = info
        self._unbind()


def _shard_of(part: object) -> int:
    shard: int = part.shard  # type: ignore[attr-defined]
    return shard
