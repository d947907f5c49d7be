"""Generations of a stream's shards: what was written before it got more of them, and what after.

From a change on most keys are in another shard. Where the shards ended at that moment are its barriers: the records of
a key are in order for whoever takes nothing from behind the barriers before all that stands in front of them.
"""

from collections.abc import Iterator, Sequence

# As StreamInfo has them: how many shards there are since a change, and where those from before it ended.
Generations = Sequence[tuple[int, tuple[int, ...]]]


def generation_of(shard: int, offset: int, generations: Generations) -> int:
    """How many changes of the number of shards came before what stands at an offset."""
    return sum(shard >= len(barriers) or offset >= barriers[shard] for _, barriers in generations)


def stops(end: Sequence[int], generations: Generations) -> Iterator[tuple[int, ...]]:
    """Where to stop on the way to `end`, one after the other: before each change, and at the end. Shards that a change
    brought have nothing before it."""
    for _, barriers in generations:
        yield tuple(min(limit, _barrier(barriers, shard)) for shard, limit in enumerate(end))
    yield tuple(end)


def held_back(begins: Sequence[int], ends: Sequence[int], generations: Generations) -> tuple[int, ...]:
    """How far to read at once on the way from `begins` to `ends`: not beyond the barriers of a change, as long as a
    shard has not come to its own."""
    for _, barriers in generations:
        if any(begin < barrier for begin, barrier in zip(begins, barriers, strict=False)):
            return tuple(min(end, _barrier(barriers, shard)) for shard, end in enumerate(ends))
    return tuple(ends)


def _barrier(barriers: Sequence[int], shard: int) -> int:
    return barriers[shard] if shard < len(barriers) else 0
