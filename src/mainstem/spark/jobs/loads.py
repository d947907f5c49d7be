"""How much of a stream goes into one commit: a stretch of history cut into loads.

A load is what becomes visible together, and what is done again if its run is killed. The records of a key stay in order
from load to load: where a stream got more shards, no load has records from after the change before all from before it
are in earlier loads, or in the same one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mainstem.core.errors import InvalidSetting
from mainstem.spark.generations import Generations, stops


@dataclass(frozen=True, slots=True)
class Load:
    """Offsets `start` to before `end` of every shard."""

    start: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def offsets(self) -> int:
        return sum(self.end) - sum(self.start)


@dataclass(frozen=True, slots=True)
class Bound:
    """How much one load may have: offsets, and bytes as `bytes_of` says how many are in one."""

    offsets_max: int
    bytes_max: int | None = None
    bytes_of: Callable[[Load], int] = lambda load: 0


def check_load_rows(load_rows: int | None) -> None:
    """InvalidSetting for loads that would have nothing, of which there would be no end."""
    if load_rows is not None and load_rows < 1:
        raise InvalidSetting(f"load_rows (--load-rows) must be at least 1, not {load_rows:,}")


def plan_loads(start: Sequence[int], end: Sequence[int], generations: Generations, bound: Bound) -> Iterator[Load]:
    """The loads from `start` to `end`, none of more than `bound`, one after the other. A load ends where the number of
    shards changed, so that a later load has what came after it."""
    assert len(start) == len(end)
    assert bound.offsets_max > 0
    place = tuple(start)
    for stop in stops(end, generations):
        while any(at < limit for at, limit in zip(place, stop, strict=True)):
            load = _bounded(place, stop, bound)
            yield load
            place = load.end


def _bounded(place: tuple[int, ...], stop: Sequence[int], bound: Bound) -> Load:
    load = Load(place, _step(place, stop, bound.offsets_max))
    if bound.bytes_max is None:
        return load
    while load.offsets > 1 and (size := bound.bytes_of(load)) > bound.bytes_max:
        # By what a record has here; records are of any size, so perhaps more than once.
        fitting = load.offsets * bound.bytes_max // size
        load = Load(place, _step(place, stop, max(1, min(fitting, load.offsets - 1))))
    return load


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
