"""How much of a stream goes into one commit: a stretch of history cut into loads.

A load is what becomes visible together, and what is done again if its run is killed. The records of a key stay in order
from load to load: where a stream got more shards, no load has records from after the change before all from before it
are in earlier loads, or in the same one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# As StreamInfo has them: how many shards there are since a change, and where those from before it ended.
Generations = Sequence[tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Load:
    """Offsets `start` to before `end` of every shard."""

    start: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def offsets(self) -> int:
        return sum(self.end) - sum(self.start)


def plan_loads(start: Sequence[int], end: Sequence[int], generations: Generations, offsets_max: int) -> Iterator[Load]:
    """The loads from `start` to `end`, none of more than `offsets_max`, one after the other. A load ends where the
    number of shards changed, so that a later load has what came after it."""
    assert len(start) == len(end)
    place = tuple(start)
    stops = [_barrier(generation, end) for generation in generations]
    for stop in (*stops, tuple(end)):
        while any(at < limit for at, limit in zip(place, stop, strict=True)):
            load = Load(place, _step(place, stop, offsets_max))
            yield load
            place = load.end


def generation_of(shard: int, offset: int, generations: Generations) -> int:
    """How many changes of the number of shards came before what stands at an offset."""
    return sum(shard >= len(barriers) or offset >= barriers[shard] for _, barriers in generations)


def _barrier(generation: tuple[int, tuple[int, ...]], end: Sequence[int]) -> tuple[int, ...]:
    """Where a load has to stop before a change; shards that it brought have nothing before it."""
    barriers = generation[1]
    return tuple(min(limit, barriers[shard] if shard < len(barriers) else 0) for shard, limit in enumerate(end))


def _step(place: Sequence[int], stop: Sequence[int], offsets_max: int) -> tuple[int, ...]:
    """As far as one load goes: of every shard the same part of what is left."""
    left = [max(0, limit - at) for at, limit in zip(place, stop, strict=True)]
    total = sum(left)
    if total <= offsets_max:
        return tuple(at + much for at, much in zip(place, left, strict=True))
    parts = [much * offsets_max // total for much in left]
    if not any(parts):  # more shards than offsets: one shard, so that there is an end
        parts[left.index(max(left))] = min(offsets_max, max(left))
    return tuple(at + part for at, part in zip(place, parts, strict=True))
