"""Spreading: the batches of a shard shared by all members of a group, for streams in which order does not matter.

Ranges of offsets are leased to members, about so many bytes at a time and never a part of a batch. What is done is
merged; the group's cursor in a shard is the end of what is done without a gap. A lease that is not finished in time, or
whose member is gone, is given to another under a new number, and the old number is refused. Only the cursor is kept in
the ledger: a coordinator that starts over gives out again what was done beyond it, so that is bounded.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from mainstem.cluster.assignment import Unit
from mainstem.core.limits import MIB, SPREAD_DONE_RANGES_MAX, SPREAD_OPEN_RANGES_MAX

LEASE_BYTES: Final = 1 * MIB
LEASE_SECONDS: Final = 30.0
AHEAD_BYTES_MAX: Final = 256 * MIB
# Lease numbers of one generation of the group: never the same as those of another.
_NUMBERS_PER_GENERATION: Final = 1 << 32


class Lease(NamedTuple):
    """The offsets from `first` to before `end` of a unit are one member's to read, until the deadline."""

    number: int
    member: int
    unit: Unit
    first: int
    end: int
    bytes: int
    deadline: float


class _Range(NamedTuple):
    first: int
    end: int
    bytes: int


class Spread:
    """The leases of one group in the shards that it spreads. One thread.

    Entries are planned as they come (`extend`), as far as `room` says; members ask for leases, finish them, and prolong
    all they have by their beats.
    """

    def __init__(
        self,
        generation: int,
        *,
        lease_bytes: int = LEASE_BYTES,
        lease_seconds: float = LEASE_SECONDS,
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
    ) -> None:
        self._number = generation * _NUMBERS_PER_GENERATION
        self._lease_bytes = lease_bytes
        self._lease_seconds = lease_seconds
        self._ahead_bytes_max = ahead_bytes_max
        self._shards: dict[Unit, _SpreadShard] = {}
        self._leases: dict[int, Lease] = {}

    def open(self, unit: Unit, cursor: int) -> None:
        """Begin with a shard, where the group stands in it."""
        self._shards.setdefault(unit, _SpreadShard(cursor))

    def close(self, unit: Unit) -> None:
        """The shard is gone, and all leases in it."""
        self._shards.pop(unit, None)
        self._leases = {number: lease for number, lease in self._leases.items() if lease.unit != unit}

    def next_offset(self, unit: Unit) -> int:
        """Where the next entry to plan begins."""
        return self._shards[unit].planned_end

    def room(self, unit: Unit) -> int:
        """How many bytes may be planned now."""
        shard = self._shards[unit]
        if len(shard.free) + shard.open_count >= SPREAD_OPEN_RANGES_MAX or len(shard.done) >= SPREAD_DONE_RANGES_MAX:
            return 0
        return max(self._ahead_bytes_max - shard.ahead_bytes, 0)

    def extend(self, unit: Unit, entries: Iterable[tuple[int, int, int]]) -> None:
        """Entries that follow what is planned: base, end and bytes of each."""
        self._shards[unit].extend(entries, self._lease_bytes)

    def lease(self, member: int, now: float) -> Lease | None:
        """The next range for a member: where least is under way, so that all shards advance."""
        ready = [(shard.open_count, unit) for unit, shard in self._shards.items() if shard.can_open]
        if not ready:
            return None
        unit = min(ready)[1]
        first, end, size = self._shards[unit].take()
        self._number += 1
        lease = Lease(self._number, member, unit, first, end, size, now + self._lease_seconds)
        self._leases[lease.number] = lease
        return lease

    def advance(self, member: int, number: int, at: int) -> tuple[Unit, int] | None:
        """A range is done up to here: the unit and the group's cursor in it, to be committed. None if the lease was
        lost; one that is done to its end is over."""
        lease = self._leases.get(number)
        if lease is None or lease.member != member:
            return None
        shard = self._shards[lease.unit]
        if at >= lease.end:
            del self._leases[number]
            shard.open_count -= 1
            shard.finish(_Range(lease.first, lease.end, lease.bytes))
        elif at > lease.first:
            size = lease.bytes * (at - lease.first) // (lease.end - lease.first)
            self._leases[number] = lease._replace(first=at, bytes=lease.bytes - size)
            shard.finish(_Range(lease.first, at, size))
        return lease.unit, shard.low

    def held_by(self, member: int) -> list[Lease]:
        """The leases that a member has."""
        return [lease for lease in self._leases.values() if lease.member == member]

    def give_back(self, lease: Lease) -> None:
        """Others get what is not done of it."""
        self._give_back([lease])

    @property
    def is_idle(self) -> bool:
        """Whether nobody has a lease."""
        return not self._leases

    def prolong(self, member: int, now: float) -> None:
        """The member lives."""
        for number, lease in self._leases.items():
            if lease.member == member:
                self._leases[number] = lease._replace(deadline=now + self._lease_seconds)

    def drop(self, member: int) -> None:
        """The member is gone: others get what it had."""
        self._give_back([lease for lease in self._leases.values() if lease.member == member])

    def expire(self, now: float) -> None:
        """Others get what took too long."""
        self._give_back([lease for lease in self._leases.values() if lease.deadline <= now])

    def _give_back(self, leases: list[Lease]) -> None:
        for lease in leases:
            del self._leases[lease.number]
            self._shards[lease.unit].give_back(_Range(lease.first, lease.end, lease.bytes))


@dataclass(slots=True)
class _SpreadShard:
    """One shard: done up to `low`; above it are ranges that are free, open or done, without a gap to `planned_end`."""

    low: int
    planned_end: int
    free: deque[_Range]
    done: list[_Range]
    open_count: int
    ahead_bytes: int

    def __init__(self, cursor: int) -> None:
        self.low = self.planned_end = cursor
        # In the order of offsets, as `done` is.
        self.free = deque()
        self.done = []
        self.open_count = self.ahead_bytes = 0

    @property
    def can_open(self) -> bool:
        """What is first of all may always go on: everything waits for it."""
        if not self.free:
            return False
        has_room = self.open_count < SPREAD_OPEN_RANGES_MAX and len(self.done) < SPREAD_DONE_RANGES_MAX
        return has_room or self.free[0].first == self.low

    def extend(self, entries: Iterable[tuple[int, int, int]], lease_bytes: int) -> None:
        first, size = self.planned_end, 0
        for base, end, length in entries:
            assert base <= self.planned_end < end, "entries follow each other"
            self.planned_end, size = end, size + length
            if size >= lease_bytes:
                self._plan(_Range(first, end, size))
                first, size = end, 0
        if first < self.planned_end:
            self._plan(_Range(first, self.planned_end, size))

    def take(self) -> _Range:
        self.open_count += 1
        return self.free.popleft()

    def give_back(self, found: _Range) -> None:
        self.open_count -= 1
        self.free.insert(bisect_left(self.free, found), found)

    def finish(self, found: _Range) -> None:
        index = bisect_left(self.done, found)
        if index < len(self.done) and self.done[index].first == found.end:
            after = self.done.pop(index)
            found = _Range(found.first, after.end, found.bytes + after.bytes)
        if index and self.done[index - 1].end == found.first:
            before = self.done.pop(index - 1)
            index -= 1
            found = _Range(before.first, found.end, before.bytes + found.bytes)
        if found.first == self.low:
            self.low = found.end
            self.ahead_bytes -= found.bytes
        else:
            self.done.insert(index, found)

    def _plan(self, found: _Range) -> None:
        self.free.append(found)
        self.ahead_bytes += found.bytes
