"""Spreading a shard: every offset is done once, whoever dies on the way, and the cursor never skips one."""

import timeit

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mainstem.cluster.assignment import Unit
from mainstem.cluster.spread import Lease, Spread

UNITS = (Unit(1, 0), Unit(1, 1))
members = st.integers(1, 4)


class Spreading(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.spread = Spread(3, lease_bytes=100, ahead_bytes_max=1_000)
        self.out: dict[int, Lease] = {}
        self.lost: set[int] = set()
        self.done: dict[Unit, set[int]] = {unit: set() for unit in UNITS}
        self.low = dict.fromkeys(UNITS, 0)
        for unit in UNITS:
            self.spread.open(unit, 0)

    @rule(unit=st.sampled_from(UNITS), sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 150)), max_size=4))
    def extend(self, unit, sizes):
        entries, base = [], self.spread.next_offset(unit)
        room = self.spread.room(unit)
        for span, size in sizes:
            if room > 0:
                entries.append((base, base + span, size))
                base, room = base + span, room - size
        self.spread.extend(unit, entries)

    @rule(member=members)
    def lease(self, member):
        lease = self.spread.lease(member)
        if lease is not None:
            assert lease.number not in self.out
            self.out[lease.number] = lease

    @rule(data=st.data())
    def finish(self, data):
        if not self.out:
            return
        lease = self.out.pop(data.draw(st.sampled_from(sorted(self.out))))
        at = data.draw(st.integers(lease.first, lease.end))
        found = self.spread.advance(lease.member, lease.number, at)
        assert (found is None) == (lease.number in self.lost)
        if found is not None:
            offsets = set(range(lease.first, at))
            if at < lease.end:
                self.out[lease.number] = lease._replace(first=at)
            assert not offsets & self.done[lease.unit]
            self.done[lease.unit] |= offsets
            assert found[1] >= self.low[lease.unit]
            self.low[lease.unit] = found[1]

    @rule(member=members)
    def die(self, member):
        self.spread.drop(member)
        self.lost |= {number for number, lease in self.out.items() if lease.member == member}

    @rule(data=st.data())
    def give_back(self, data):
        held = sorted(self.out.keys() - self.lost)
        if held:
            number = data.draw(st.sampled_from(held))
            self.spread.give_back(self.out[number])
            self.lost.add(number)

    @invariant()
    def the_cursor_is_the_end_of_what_is_done(self):
        for unit in UNITS:
            low = 0
            while low in self.done[unit]:
                low += 1
            assert self.low[unit] == low

    def teardown(self):
        """Whoever is left does the rest."""
        for member in range(1, 5):
            self.spread.drop(member)
        while (lease := self.spread.lease(9)) is not None:
            found = self.spread.advance(9, lease.number, lease.end)
            assert found is not None
            self.low[lease.unit] = found[1]
        assert all(self.low[unit] == self.spread.next_offset(unit) for unit in UNITS)


Spreading.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSpreading = Spreading.TestCase


def test_another_member_cannot_finish_a_lease():
    spread = Spread(1)
    spread.open(UNITS[0], 5)
    spread.extend(UNITS[0], [(5, 8, 10)])
    lease = spread.lease(1)
    assert lease is not None
    assert spread.advance(2, lease.number, 8) is None
    assert spread.advance(1, lease.number, 8) == (UNITS[0], 8)
    assert spread.advance(1, lease.number, 8) is None


def test_what_is_ahead_is_bounded():
    spread = Spread(1, lease_bytes=10, ahead_bytes_max=100)
    spread.open(UNITS[0], 0)
    stuck, offset = None, 0
    while spread.room(UNITS[0]):
        spread.extend(UNITS[0], [(offset, offset + 1, 10)])
        lease = spread.lease(1)
        assert lease is not None
        if stuck is None:
            stuck = lease
        else:
            assert spread.advance(1, lease.number, lease.end) == (UNITS[0], 0)
        offset += 1
    assert offset == 10
    assert stuck is not None
    assert spread.advance(1, stuck.number, stuck.end) == (UNITS[0], 10)
    assert spread.room(UNITS[0]) == 100


def seconds_to_serve_one(count):
    """One of so many members asks for a lease, and gives it back."""
    spread = Spread(1, lease_bytes=1)
    units = [Unit(1, shard) for shard in range(count)]
    for unit in units:
        spread.open(unit, 0)
    for member in range(count - 1):
        spread.extend(units[member], [(0, 1, 10)])
        assert spread.lease(member) is not None
    spread.extend(units[-1], [(0, 1, 10)])

    def serve() -> None:
        lease = spread.lease(count)
        assert lease is not None
        assert list(spread.held_by(count)) == [lease.number]
        spread.give_back(lease)

    return min(timeit.repeat(serve, number=20, repeat=5))


def test_members_and_shards_that_have_nothing_to_do_with_it_cost_nothing():
    assert seconds_to_serve_one(4_000) < 20 * seconds_to_serve_one(10)
