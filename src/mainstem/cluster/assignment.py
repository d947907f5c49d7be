"""Assignment: which member of a group reads which unit. Decides only.

A unit is a shard of a stream and weighs what was measured of it, in bytes per second. Units stay where they are as far
as the loads allow. What nobody has goes, the heaviest first, to whoever has least. Then units move from the most to the
least loaded member while that lowers the larger of the two loads, until nobody has more than 15 % over the mean or less
than 15 % under it: without the second half a newcomer could stay idle. Of units that all weigh the same, or of which
nothing is known, every member gets the same number, give or take one.

Members may read different streams. Streams that the same members read are one pool: a unit can move inside its pool.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

# How far from the mean a load may be before units move.
TOLERANCE: Final = 0.15
# An idle unit counts as this part of the mean, so that idle ones are spread too: they may wake up.
_IDLE_SHARE: Final = 1 / 32
# Differences below this part are arithmetic.
_NOISE: Final = 1e-9

_Pool = frozenset[int]


class Unit(NamedTuple):
    """What one member reads alone: a shard of a stream."""

    stream: int
    shard: int


def assign(weights: Mapping[Unit, float], wishes: Mapping[int, Set[int]], held: Mapping[Unit, int]) -> dict[Unit, int]:
    """The member that reads each unit; units that nobody wants are left out. The same arguments give the same answer.

    `weights` names all units, `wishes` the streams that each member reads, `held` who has a unit now.
    """
    pools = _pools(wishes, {unit.stream for unit in weights})
    # In one order, because sums of the same numbers in another may differ.
    wanted = {unit: weights[unit] for unit in sorted(weights) if unit.stream in pools}
    if not wanted:
        return {}
    is_even = min(wanted.values()) == max(wanted.values())
    idle = _IDLE_SHARE * sum(wanted.values()) / len(wanted)
    sharing = _Sharing(wishes, pools)
    free = []
    for unit, weight in wanted.items():
        item = (1.0 if is_even else weight + idle, unit)
        member = held.get(unit)
        if member in pools[unit.stream]:
            sharing.put(item, member)
        else:
            free.append(item)
    sharing.give(free)
    sharing.level(0.0 if is_even else TOLERANCE)
    return sharing.owners()


def _pools(wishes: Mapping[int, Set[int]], streams: Iterable[int]) -> dict[int, _Pool]:
    """Who may read each stream. Members mostly wish for the same, so they are taken together."""
    alike: dict[frozenset[int], list[int]] = defaultdict(list)
    for member, wish in wishes.items():
        alike[frozenset(wish)].append(member)
    known: dict[tuple[int, ...], _Pool] = {}
    pools: dict[int, _Pool] = {}
    groups = list(alike.items())
    for stream in streams:
        readers = tuple(index for index, (wish, _) in enumerate(groups) if stream in wish)
        if readers and readers not in known:
            known[readers] = frozenset(member for index in readers for member in groups[index][1])
        if readers:
            pools[stream] = known[readers]
    return pools


class _Sharing:
    """Members, what each has, and how much that weighs."""

    def __init__(self, wishes: Mapping[int, Set[int]], pools: Mapping[int, _Pool]) -> None:
        self._pools = pools
        self._distinct = set(pools.values())
        self._loads = dict.fromkeys(sorted(wishes), 0.0)
        # Of every member by pool, the lightest first.
        self._units: dict[int, dict[_Pool, list[tuple[float, Unit]]]] = {member: {} for member in self._loads}
        self._count = 0

    def put(self, item: tuple[float, Unit], member: int) -> None:
        self._units[member].setdefault(self._pools[item[1].stream], []).append(item)
        self._loads[member] += item[0]
        self._count += 1

    def give(self, items: list[tuple[float, Unit]]) -> None:
        """Each to the least loaded who may have it. Loads only grow here, so an outdated one is found on top."""
        heaps = {pool: [(self._loads[member], member) for member in pool] for pool in self._distinct}
        for heap in heaps.values():
            heapify(heap)
        for item in sorted(items, key=lambda item: (-item[0], item[1])):
            heap = heaps[self._pools[item[1].stream]]
            while heap[0][0] != self._loads[heap[0][1]]:
                heapreplace(heap, (self._loads[heap[0][1]], heap[0][1]))
            member = heap[0][1]
            self.put(item, member)
            heapreplace(heap, (self._loads[member], member))

    def level(self, tolerance: float) -> None:
        for by_pool in self._units.values():
            for units in by_pool.values():
                units.sort()
        # From the least to the most loaded.
        ladder = sorted((load, member) for member, load in self._loads.items())
        peers = {
            member: dict.fromkeys(sorted(frozenset[int]().union(*(pool for pool in self._distinct if member in pool))))
            for member in self._loads
        }
        # Those who have nothing to give, and of them those who have too much all the same: one large unit.
        settled: set[int] = set()
        stuck: set[int] = set()
        # Every move lowers the sum of squares, so there is an end; the bound is for arithmetic only.
        for _ in range(4 * self._count):
            if not self._move_one(ladder, peers, settled, stuck, tolerance):
                break
            if len(self._distinct) > 1:  # a member that has less now may be able to take from others
                settled.clear()
                stuck.clear()

    def owners(self) -> dict[Unit, int]:
        return {
            unit: member for member, by_pool in self._units.items() for units in by_pool.values() for _, unit in units
        }

    def _move_one(
        self,
        ladder: list[tuple[float, int]],
        peers: Mapping[int, Mapping[int, None]],
        settled: set[int],
        stuck: set[int],
        tolerance: float,
    ) -> bool:
        for load, donor in reversed(ladder):
            if donor in settled:
                continue
            counted = [self._loads[member] for member in peers[donor] if member not in stuck]
            mean = sum(counted) / len(counted) if counted else load
            for low, taker in ladder:
                if taker not in peers[donor]:
                    continue
                is_fair = load <= mean * (1 + tolerance) and low >= mean * (1 - tolerance)
                if low >= load or is_fair:
                    break
                if self._move(donor, taker, ladder):
                    return True
            else:
                is_fair = False
            settled.add(donor)
            if not is_fair:
                stuck.add(donor)
        return False

    def _move(self, donor: int, taker: int, ladder: list[tuple[float, int]]) -> bool:
        """Move the unit that brings the two closest together, if one does."""
        gap = self._loads[donor] - self._loads[taker]
        best: tuple[float, Unit, _Pool, int] | None = None
        for pool, units in self._units[donor].items():
            if taker in pool:
                middle = bisect_left(units, (gap / 2,))
                for index in range(max(middle - 1, 0), min(middle + 1, len(units))):
                    weight, unit = units[index]
                    distance = abs(weight - gap / 2)
                    if weight < gap * (1 - _NOISE) and (best is None or (distance, unit) < best[:2]):
                        best = distance, unit, pool, index
        if best is None:
            return False
        _, _, pool, index = best
        for member in (donor, taker):
            del ladder[bisect_left(ladder, (self._loads[member], member))]
        item = self._units[donor][pool].pop(index)
        insort(self._units[taker].setdefault(pool, []), item)
        self._loads[donor] -= item[0]
        self._loads[taker] += item[0]
        for member in (donor, taker):
            insort(ladder, (self._loads[member], member))
        return True
