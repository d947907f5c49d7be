"""One group, step by step: what its members are told, and when."""

from collections import Counter

import pytest

from mainstem.cluster.assignment import Unit
from mainstem.cluster.events import (
    Answer,
    Beat,
    ChangeOwners,
    Committed,
    End,
    Forget,
    Join,
    JoinAnew,
    Leave,
    OwnersChanged,
    OwnersRefused,
    SharedStream,
    StreamChange,
    StreamsChanged,
    Subscription,
    Tick,
)
from mainstem.cluster.group import Group
from mainstem.cluster.options import GroupOptions
from mainstem.core.errors import InvalidSetting
from tests.unit.cluster.experiments import Shell

ORDERS = SharedStream(1, "orders", 8)


def counts(shell: Shell) -> list[int]:
    return sorted(Counter(shell.group.owners.values()).values(), reverse=True)


def test_the_shares_of_one_two_four_and_three_members():
    shell = Shell((ORDERS,))
    for newcomers, shares in (((1,), [8]), ((2,), [4, 4]), ((3, 4), [2, 2, 2, 2])):
        shell.join(*newcomers)
        shell.run(5.0)
        assert counts(shell) == shares
    shell.happened(Leave(4))
    shell.run(5.0)
    assert counts(shell) == [3, 3, 2]


def test_a_unit_is_asked_back_and_given_when_it_was_let_go():
    shell = Shell((ORDERS,))
    shell.join(1)
    assert len(shell.answers[1].hold) == 8
    shell.beat(1)
    shell.now += 0.1
    shell.join(2)
    asked = shell.answers[1].let_go
    assert len(asked) == 4
    assert set(shell.group.owners.values()) == {1}
    # A beat from before it heard says nothing, although it names none of them.
    shell.happened(Beat(1, shell.group.generation, 1, frozenset()))
    assert set(shell.group.owners.values()) == {1}
    shell.beat(1)
    assert counts(shell) == [4, 4]
    assert set(shell.answers[2].hold) == set(asked) == {unit for unit, _ in shell.answers[2].cursors}


def test_what_is_not_let_go_is_taken_ledger_first():
    shell = Shell((ORDERS,))
    shell.join(1)
    first = shell.answers[1]
    shell.now += 0.1
    shell.join(2)
    for _ in range(70):
        shell.now += 0.5
        shell.happened(Tick())
        shell.happened(Beat(1, shell.group.generation, shell.answers[1].version, frozenset(first.hold)))
        if 2 in shell.answers:
            shell.beat(2)
    assert counts(shell) == [4, 4]
    changes = [action.assigned for action in shell.log if isinstance(action, ChangeOwners)][-2:]
    assert [{owner for _, owner in change} for change in changes] == [{0}, {2}]


def test_a_silent_member_is_forgotten_and_told_to_join_anew():
    shell = Shell((ORDERS,))
    shell.join(1, 2)
    shell.run(5.0)
    shell.run(10.5, silent=frozenset({2}))
    assert Forget(2) in shell.log
    assert counts(shell) == [8]
    assert shell.beat(2) == [JoinAnew(2)]


def test_a_killed_member_is_replaced_within_ten_seconds():
    """Though it was heard of just before, and ticks come as seldom as they do where all is quiet."""
    shell = Shell((ORDERS,))
    shell.join(1, 2)
    shell.run(5.0)
    shell.run(10.0 - shell.group._options.heartbeat / 4, silent=frozenset({2}))
    assert counts(shell) == [8]


def test_a_coordinator_that_slept_gives_members_time():
    shell = Shell((ORDERS,))
    shell.join(1)
    shell.now += 60.0
    shell.happened(Tick())
    assert shell.group.members == (1,)


def test_a_restart_fences_all_then_members_get_back_what_they_held():
    units = [Unit(1, shard) for shard in range(8)]
    group = Group(GroupOptions(), 7, units, dict.fromkeys(units, 10), 0.0)
    (change,) = group.start()
    assert change == ChangeOwners(8, tuple((unit, 0) for unit in units))
    group.handle(StreamsChanged((ORDERS,)), 0.0)
    assert group.handle(Beat(1, 7, 3), 0.0) == [JoinAnew(1)]
    group.handle(Join(11, Subscription(frozenset({"orders"})), frozenset(units[:4]), 7), 0.1)
    actions = group.handle(OwnersChanged(8, {}), 0.2)
    # What nobody has claimed yet is kept for who held it.
    assert actions == [ChangeOwners(9, tuple((unit, 11) for unit in units[:4]))]
    answers = group.handle(OwnersChanged(9, dict.fromkeys(units[:4], 10)), 0.3)
    assert isinstance(answers[0], Answer)
    assert answers[0].cursors == tuple((unit, 10) for unit in units[:4])
    actions = group.handle(Join(12, Subscription(frozenset({"orders"})), frozenset(units[4:]), 7), 0.4)
    assert actions == [ChangeOwners(10, tuple((unit, 12) for unit in units[4:]))]


def test_a_coordinator_that_is_refused_ends():
    group = Group(GroupOptions(), 3, (), {}, 0.0)
    group.start()
    group.handle(Join(1, Subscription(pattern="*")), 0.0)
    assert group.handle(OwnersRefused(), 0.1) == [JoinAnew(1), End()]
    assert group.handle(Beat(1, 4, 1), 0.2) == [JoinAnew(1)]


def test_new_shards_are_given_out_when_the_group_has_passed_the_barriers():
    shell = Shell((SharedStream(1, "orders", 2),))
    shell.join(1)
    shell.run(1.0)
    changed = SharedStream(1, "orders", 3, (StreamChange(1, 3, (100, 50)),))
    shell.happened(StreamsChanged((changed,)))
    shell.run(1.0)
    assert len(shell.group.owners) == 2
    assert shell.answers[1].passed == ((1, 0),)
    shell.happened(Committed({Unit(1, 0): 100}))
    shell.run(1.0)
    assert len(shell.group.owners) == 2
    shell.happened(Committed({Unit(1, 1): 50}))
    shell.run(1.0)
    assert len(shell.group.owners) == 3
    assert shell.answers[1].passed == ((1, 1),)


def test_streams_that_come_and_go():
    shell = Shell((ORDERS,))
    shell.join(1, subscription=Subscription(pattern="orders*"))
    shell.run(1.0)
    shell.happened(StreamsChanged((ORDERS, SharedStream(2, "orders-2", 1), SharedStream(3, "clicks", 1))))
    shell.run(1.0)
    assert {unit.stream for unit in shell.answers[1].hold} == {1, 2}
    shell.happened(StreamsChanged((SharedStream(2, "orders-2", 1),)))
    shell.run(1.0)
    assert shell.answers[1].hold == (Unit(2, 0),)


def test_a_quiet_request_is_answered_after_a_heartbeat():
    shell = Shell((ORDERS,))
    shell.join(1)
    assert shell.beat(1) == []
    shell.now += 2.9
    assert shell.happened(Tick()) == []
    shell.now += 0.2
    assert [type(action) for action in shell.happened(Tick())] == [Answer]


def test_patterns_leave_our_own_streams_alone():
    assert not Subscription(pattern="*").wants("_sequence.orders")
    assert Subscription(pattern="_*").wants("_sequence.orders")
    assert Subscription(frozenset({"_x"})).wants("_x")


@pytest.mark.parametrize("times", [{"heartbeat": 0.0}, {"heartbeat": 3.0, "session_timeout": 5.0}], ids=str)
def test_times_that_cannot_work_are_refused(times):
    with pytest.raises(InvalidSetting):
        GroupOptions(**times)
