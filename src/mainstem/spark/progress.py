"""How far a streaming query has come: the offset that Spark writes into its checkpoint, and what comes next.

Spark asks for the end of the next micro-batch, writes it down, and only then plans it; after a crash it plans the same
batch again from what it wrote. So everything that a plan depends on stands in its end: also where the batch begins, if
that is not where the one before ended, as with the first batch, and after the group was reset.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mainstem.core.errors import InvalidCursor
from mainstem.transport.port import Run

# What a query begins with, before it has looked: always the same, however often Spark asks.
INITIAL: Final = {"mainstem": 1}

# Offsets `first` to `last` of a shard.
Range = tuple[int, int, int]
# A group: its name, and when it was made, in microseconds since 1970. One that is deleted and made again is another.
Group = tuple[str, int]


@dataclass(frozen=True, slots=True)
class QueryOffset:
    """The end of a micro-batch: an offset for each shard of the stream with this UUID, in this epoch of the log.

    `begins`: where the batch begins, if not where the one before ended. `lost`: ranges that the query does without
    since the end before, as (shard, first, last); `trimmed`: those that went while the batch before was read, so that
    some of them may be lost. `published`: where the `group` stood when this end was found, and its generation then.
    `group` is None also where it was not noted yet, by older versions.
    """

    stream: str
    epoch: int
    offsets: tuple[int, ...]
    begins: tuple[int, ...] | None = None
    lost: tuple[Range, ...] = ()
    published: tuple[int, ...] | None = None
    generation: int = 0
    trimmed: tuple[Range, ...] = ()
    group: Group | None = None

    def to_json(self) -> dict[str, Any]:
        """For Spark, which compares offsets as texts: what is not needed is left out."""
        found: dict[str, Any] = {"stream": self.stream, "epoch": self.epoch, "offsets": list(self.offsets)}
        if self.begins is not None:
            found["begins"] = list(self.begins)
        for name, ranges in (("lost", self.lost), ("trimmed", self.trimmed)):
            if ranges:
                found[name] = [f"shard {shard}: {first} to {last}" for shard, first, last in ranges]
        if self.published is not None:
            found["published"] = list(self.published)
            found["generation"] = self.generation
            if self.group is not None:
                found["group"] = list(self.group)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "QueryOffset | None":
        """None for the offset that a query begins with; InvalidCursor for what is none."""
        if found == INITIAL:
            return None
        try:
            published = found.get("published")
            begins = found.get("begins")
            group = found.get("group")
            return cls(
                stream=str(found["stream"]),
                epoch=int(found["epoch"]),
                offsets=_offsets(found["offsets"]),
                begins=None if begins is None else _offsets(begins),
                published=None if published is None else _offsets(published),
                generation=int(found.get("generation", 0)),
                group=None if group is None else _group(group),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidCursor(
                f"the checkpoint has no offset of a stream: {str(found)[:200]}. It is another source's, or was "
                "changed; use another checkpointLocation, with startingOffsets for where to begin"
            ) from None


def _offsets(found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(offset) is int and 0 <= offset < 1 << 63 for offset in found):
        raise ValueError
    return tuple(found)


def _group(found: Any) -> Group:
    name, made_us = found
    return str(name), int(made_us)


def shared_out(begins: Sequence[int], ends: Sequence[int], rows_max: int) -> tuple[int, ...]:
    """Where a batch of at most `rows_max` offsets ends: each shard by its share of what there is, so that none is left
    behind."""
    waiting = [max(0, end - begin) for begin, end in zip(begins, ends, strict=True)]
    total = sum(waiting)
    if total <= rows_max:
        return tuple(map(max, begins, ends))
    taken = [count * rows_max // total for count in waiting]
    # What rounding left over goes to those that wait with most.
    over = rows_max - sum(taken)
    for shard in sorted(range(len(waiting)), key=lambda shard: taken[shard] - waiting[shard])[:over]:
        taken[shard] += taken[shard] < waiting[shard]
    return tuple(begin + count for begin, count in zip(begins, taken, strict=True))


def within_bytes(begin: int, end: int, runs: Iterable[Run], bytes_max: int) -> int:
    """Where a shard's part of a batch ends that shall have at most so many bytes; behind one record at least, if there
    is one. `runs` are all from `begin` to before `end`: where there is none, there are no records."""
    left = bytes_max
    at = begin
    for run in runs:
        if run.bytes > left:
            records = (run.end - run.first) * left // run.bytes
            return max(at, run.first + records) if at > begin else run.first + max(1, records)
        left -= run.bytes
        at = run.end
    return end


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands in each shard of a stream, and its generation: if that began with a reset, `reset` are the
    shards that it moved, and of which nothing was published since."""

    offsets: tuple[int, ...]
    generation: int
    reset: frozenset[int]
    group: Group


def knows(offset: QueryOffset, standing: Standing) -> bool:
    """Whether an offset says where this group stood when it was found, and not another group or none."""
    return offset.published is not None and offset.group in (None, standing.group)


def was_reset(offset: QueryOffset, standing: Standing) -> bool:
    """Whether somebody has set the group elsewhere since this offset was found.

    A reset is a new generation of the group, but so is another owner of a shard, where somebody else reads as this
    group. Then it stands where it was when this offset was found, or at the offset itself if Spark asks again.
    """
    cursors = standing.offsets
    if offset.published is None or not knows(offset, standing) or standing.generation == offset.generation:
        return False
    if cursors == _padded(offset.offsets, cursors):
        return False
    return bool(standing.reset) or cursors != _padded(offset.published, cursors)


def moved_to(since: QueryOffset, place: Sequence[int], standing: Standing) -> tuple[int, ...]:
    """Where a query goes on that stands at `place` and whose group was reset: in shards that nobody has moved it is
    ahead of the group, which learns of a batch with the next one.

    Of several resets since, all are seen but one: before the last, of other shards, to just where the group stood. When
    the query committed is not known here, and so not whether a cursor that is where it was has been set there since.
    """
    published = _padded(since.published or (), standing.offsets)
    shards = enumerate(zip(standing.offsets, published, _padded(place, published), strict=True))
    return tuple(at if shard in standing.reset or at != known else mine for shard, (at, known, mine) in shards)


def gone_since(planned: Mapping[int, tuple[int, int]], starts: Sequence[int]) -> tuple[Range, ...]:
    """What was trimmed of a plan, which has the first offset of a shard and where it ends."""
    found = ((shard, first, min(starts[shard], end) - 1) for shard, (first, end) in sorted(planned.items()))
    return tuple((shard, first, last) for shard, first, last in found if first <= last)


def _padded(offsets: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    return (*offsets, *(0,) * (len(like) - len(offsets)))
