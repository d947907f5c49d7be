"""500 rebalances of 50 members, on good days and bad ones; and that the simulation sees what is broken on purpose."""

import pytest

from mainstem.cluster.assignment import Unit
from mainstem.cluster.events import Beat, SharedStream
from mainstem.cluster.group import Group
from mainstem.cluster.streams import GroupStreams
from tests.unit.cluster.simulation import CALM, ROUGH, Violation, World, rebalances


@pytest.mark.slow("50 rebalances of 50 members")
@pytest.mark.parametrize("seed", range(10))
def test_rebalances_on_bad_days_never_hang_skip_or_go_backwards(seed):
    rebalances(World(seed, ROUGH, members=50, shards=200), 50, members=50)


@pytest.mark.slow("50 rebalances of 50 members")
@pytest.mark.parametrize("seed", range(2))
def test_rebalances_on_good_days_interrupt_nobody_and_move_little(seed):
    world = World(seed, CALM, members=50, shards=200)
    world.run(20.0)
    before = world.ledger.moves
    rebalances(world, 50, members=50)
    # A member has about four of the 200 units, which move when it comes or goes; overlapping changes may add some.
    assert world.ledger.moves - before <= 50 * 6


class TellsTooEarly(Group):
    """Tells a member what it shall have before the ledger has noted it."""

    def _plan(self):
        super()._plan()
        for unit, member in self._target.items():
            if unit not in self._owners:
                self._members[member].holds.add(unit)


class HurriesOn(Group):
    """Takes what it has asked for as let go when anybody beats."""

    def _on_beat(self, event: Beat):
        super()._on_beat(event)
        for unit in list(self._recalls):
            if self._recalls[unit].version and not self._recalls[unit].is_over:
                self._release(self._members[self._owners[unit]], unit)


class WaitsForever(Group):
    """Never gives up a member that is silent."""

    def _on_tick(self):
        for member in self._members.values():
            member.heard_at = self._now
        super()._on_tick()


class ForgetsCommits(Group):
    """Gives units at the cursor that it knew when it started."""

    def _note_owner(self, unit, owner, cursors):
        super()._note_owner(unit, owner, dict.fromkeys(cursors, 0))

    def _on_committed(self, event):
        pass


class KeepsRevoked(Group):
    """Believes that what was asked for is never lost: no revocation timeout, no release."""

    def _release(self, member, unit):
        pass

    def _ask_back(self, member, unit):
        super()._ask_back(member, unit)
        self._recalls[unit].deadline = float("inf")


@pytest.mark.parametrize(
    ("kind", "weather"),
    [
        (TellsTooEarly, ROUGH),
        (HurriesOn, CALM),
        (WaitsForever, ROUGH),
        (ForgetsCommits, ROUGH),
        (KeepsRevoked, CALM),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.slow("runs until the planted bug shows")
def test_a_planted_bug_is_seen(kind, weather):
    with pytest.raises(Violation):
        rebalances(World(1, weather, members=20, shards=80, kind=kind), 50, members=20)


@pytest.mark.slow("runs until the planted bug shows")
def test_barriers_that_are_not_waited_for_are_seen(monkeypatch):
    def passed(self: GroupStreams, stream: SharedStream, cursors: dict[Unit, int]) -> bool:
        before = self._passed[stream.id]
        self._passed[stream.id] = len(stream.changes)
        return before < len(stream.changes)

    monkeypatch.setattr(GroupStreams, "_pass", passed)
    with pytest.raises(Violation, match="barrier"):
        rebalances(World(1, ROUGH, members=20, shards=80), 50, members=20)
