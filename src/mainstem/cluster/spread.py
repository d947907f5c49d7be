"""Spreading: the batches of a shard shared by all members of a group, for streams in which order does not matter.

Ranges of offsets are leased to members, about so many bytes at a time and never a part of a batch. What is done is
merged; the group's cursor in a shard is the end of what is done without a gap. A lease that its member gives back, or
whose member is gone, is given to another under a new number, and the old number is refused. Only the cursor is kept in
the ledger: a coordinator that starts over gives out again what was done beyond it, so that is bounded.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mainstem.cluster.assignment import Unit
from mainstem.core.limits import MIB, SPREAD_DONE_RANGES_MAX, SPREAD_OPEN_RANGES_MAX

LEASE_BYTES: Final = 1 * MIB
AHEAD_BYTES_MAX: Final = 256 * MIB
# Lease numbers of one generation of the group: never the same as those of another.
_NUMBERS_PER_GENERATION: Final = 1 << 32


class Lease(NamedTuple):
    """The offsets from `first` to before `end` of a unit are one member's to read."""

    number: int
    member: int
    unit: Unit
    first: int
    end: int
    bytes: int


class _Range(NamedTuple):
    first: int
    end: int
    bytes: int


class Spread:
    """The leases of one group in the shards that it spreads. One thread.

    Entries are planned as they come (`extend`), as far as `room` says; members ask for leases, and finish them or give
    them back.
    """

    def __init__(
        self,
        generation: int,
        *,
        lease_bytes: int = LEASE_BYTES,
        ahead_bytes_max: int = AHEAD_BYTES_MAX,
    ) -> None:
        self._number = generation * _NUMBERS_PER_GENERATION
        self._lease_bytes = lease_bytes
        self._ahead_bytes_max = ahead_bytes_max
        self._shards: dict[Unit, _SpreadShard] = {}
        # Shards in which something is free.
        self._ready: set[Unit] = set()
        # By member and number.
        self._leases: defaultdict[int, dict[int, Lease]] = defaultdict(dict)

    def open(self, unit: Unit, cursor: int) -> None:
        """Begin with a shard, where the group stands in it."""
        self._shards.setdefault(unit, _SpreadShard(cursor))

    def close(self, unit: Unit) -> None:
        """The shard is gone, and all leases in it."""
        self._shards.pop(unit, None)
        self._ready.discard(unit)
        for leases in self._leases.values():
            for number in [number for number, lease in leases.items() if lease.unit == unit]:
                del leases[number]

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
        shard = self._shards[unit]
        shard.extend(entries, self._lease_bytes)
        if shard.free:
            self._ready.add(unit)

    def lease(self, member: int) -> Lease | None:
        """The next range for a member: where least is under way, so that all shards advance."""
        shards = self._shards
        ready = [(shards[unit].open_count, unit) for unit in self._ready if shards[unit].can_open]
        if not ready:
            return None
        unit = min(ready)[1]
        first, end, size = shards[unit].take()
        if not shards[unit].free:
            self._ready.discard(unit)
        self._number += 1
        lease = Lease(self._number, member, unit, first, end, size)
        self._leases[member][lease.number] = lease
        return lease

    def advance(self, member: int, number: int, at: int) -> tuple[Unit, int] | None:
        """A range is done up to here: the unit and the group's cursor in it, to be committed. None if the lease was
        lost; one that is done to its end is over."""
        leases = self._leases.get(member, {})
        lease = leases.get(number)
        if lease is None:
            return None
        shard = self._shards[lease.unit]
        if at >= lease.end:
            del leases[number]
            shard.open_count -= 1
            shard.finish(_Range(lease.first, lease.end, lease.bytes))
        elif at > lease.first:
            size = lease.bytes * (at - lease.first) // (lease.end - lease.first)
            leases[number] = lease._replace(first=at, bytes=lease.bytes - size)
            shard.finish(_Range(lease.first, at, size))
        return lease.unit, shard.low

    def held_by(self, member: int) -> Mapping[int, Lease]:
        """The leases that a member has, by number."""
        return self._leases.get(member, {})

    def give_back(self, lease: Lease) -> None:
        """Others get what is not done of it."""
        found = self._leases[lease.member].pop(lease.number)
        self._shards[found.unit].give_back(_Range(found.first, found.end, found.bytes))
        self._ready.add(found.unit)

    def drop(self, member: int) -> None:
        """The member is gone: others get what it had."""
        for lease in tuple(self.held_by(member).values()):
            self.give_back(lease)
        self._leases.pop(member, None)


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
