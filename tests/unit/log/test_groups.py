"""Groups of a real log: owners and cursors through restarts, backups and rebuilds, and what is refused at the door."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.errors import Fenced, GroupBusy, InvalidCursor, InvalidName, InvalidRequest, UnknownGroup
from mainstem.core.limits import COMMAND_BYTES_MAX, GROUP_CHANGE_UNITS_MAX
from mainstem.log.backup import back_up
from mainstem.log.flush import (
    Assigned,
    AssignShards,
    CommitCursors,
    DeleteStream,
    Done,
    Outcome,
    Rejected,
    encode_command,
)
from mainstem.log.ledger.base import GroupShardRow
from mainstem.log.ledger.inspector import LedgerInspector
from mainstem.log.log import Log, Waiter
from mainstem.log.restore import restore
from tests.unit.log.keeping import Keeping
from tests.unit.log.parts import append_values, make_stream

ANN, BOB = 11, 12


@pytest.fixture
def keeping(tmp_path):
    """Stream 1 has two shards; the first has three records."""
    found = Keeping(tmp_path / "data")
    make_stream(found.log, "orders", shards=2)
    append_values(found.log, 1, b"1", b"2", b"3")
    yield found
    found.log.close()


def outcome(log: Log, call: Callable[..., None], *arguments: Any, **other: Any) -> Outcome:
    waiter = Waiter()
    call(*arguments, waiter.set, **other)
    (found,) = waiter.wait(log.batcher)
    return found


def assign(log: Log, generation: int, *owners: tuple[int, int, int], **other: Any) -> Outcome:
    return outcome(log, log.groups.assign, "billing", generation, owners, **other)


def commit(log: Log, member: int, *offsets: tuple[int, int, int]) -> Outcome:
    return outcome(log, log.groups.commit, "billing", member, offsets)


def fenced(found: Outcome) -> bool:
    return isinstance(found, Rejected) and isinstance(found.error, Fenced)


def test_owners_and_cursors_outlive_restarts_and_a_lost_ledger(keeping):
    assert assign(keeping.log, 1, (1, 0, ANN), (1, 1, BOB)) == Assigned(1, ((1, 0, 0), (1, 1, 0)))
    assert commit(keeping.log, ANN, (1, 0, 2)) == Done(rows=1)
    now = keeping.clock.now_us()
    for without_ledger in (False, True):
        keeping.reopen(without_ledger=without_ledger)
        group = keeping.log.groups.get("billing")
        assert (group.row.generation, group.row.created_us) == (1, now)
        assert group.shards == {(1, 0): GroupShardRow(2, now, ANN, 1), (1, 1): GroupShardRow(0, 0, BOB, 1)}
    assert fenced(commit(keeping.log, BOB, (1, 0, 3)))
    assert commit(keeping.log, ANN, (1, 0, 3)) == Done(rows=1)
    assert keeping.log.groups.names() == ["billing"]


def test_a_new_coordinator_fences_whoever_was_a_member_before(keeping):
    assign(keeping.log, 1, (1, 0, ANN))
    keeping.reopen()
    generation = keeping.log.groups.get("billing").row.generation
    assign(keeping.log, generation + 1, (1, 0, 0))
    assert fenced(commit(keeping.log, ANN, (1, 0, 3)))
    assert fenced(assign(keeping.log, 2, (1, 0, ANN)))


def test_a_group_that_starts_elsewhere(keeping):
    assert assign(keeping.log, 1, (1, 0, ANN), starts=[(1, 0, 2)]) == Assigned(1, ((1, 0, 2),))


def test_reset_and_delete(keeping):
    assign(keeping.log, 1, (1, 0, ANN))
    groups = keeping.log.groups
    for call in (lambda: groups.reset("billing", [(1, 0, 0)]), lambda: groups.delete("billing")):
        with pytest.raises(GroupBusy, match="stop them first"):
            call()
    assign(keeping.log, 2, (1, 0, 0))
    keeping.log.groups.reset("billing", [(1, 0, 1)])
    assert keeping.log.groups.get("billing").shards[1, 0].offset == 1
    with pytest.raises(InvalidCursor):
        keeping.log.groups.reset("billing", [(1, 0, 4)])
    keeping.log.groups.delete("billing")
    for call in (lambda: keeping.log.groups.delete("billing"), lambda: keeping.log.groups.get("billing")):
        with pytest.raises(UnknownGroup):
            call()


def test_a_deleted_stream_takes_its_cursors_along(keeping):
    assign(keeping.log, 1, (1, 0, ANN))
    keeping.log.execute(DeleteStream(1, keeping.clock.now_us()))
    assert keeping.log.groups.get("billing").shards == {}
    keeping.log.groups.delete("billing")


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, "ü", "a\n", 5])
def test_names_that_no_group_has(keeping, name):
    groups = keeping.log.groups
    for call in (
        lambda: groups.assign(name, 1, [], print),
        lambda: groups.commit(name, 0, [], print),
        lambda: groups.reset(name, []),
        lambda: groups.delete(name),
    ):
        with pytest.raises(InvalidName):
            call()


@pytest.mark.parametrize("place", [(1, 0, 1 << 63), (1, -1, 0), (1 << 64, 0, 0), (1, 0, -1)], ids=str)
def test_numbers_that_nothing_has(keeping, place):
    """They are refused before they are written: no ledger could hold them."""
    groups = keeping.log.groups
    for call in (
        lambda: groups.assign("billing", 1, [place], print),
        lambda: groups.assign("billing", 1, [], print, starts=[place]),
        lambda: groups.commit("billing", 0, [place], print),
        lambda: groups.reset("billing", [place]),
        lambda: groups.commit("billing", 1 << 63, [], print),
        lambda: groups.commit("billing", 1, [], print, generation=-1),
        lambda: groups.assign("billing", 1 << 64, [], print),
    ):
        with pytest.raises(InvalidRequest):
            call()


def test_the_largest_change_is_one_command(keeping):
    big = (1 << 63) - 1
    units = ((big, 4_095, big),) * GROUP_CHANGE_UNITS_MAX
    name = "g" * 249
    for command in (CommitCursors(name, big, units, big), AssignShards(name, big, units, big)):
        assert len(encode_command(command)) < COMMAND_BYTES_MAX
    too_many = [(1, 0, 0)] * (GROUP_CHANGE_UNITS_MAX + 1)
    with pytest.raises(InvalidRequest, match="in one step"):
        keeping.log.groups.commit("billing", 0, too_many, print)


def test_a_backup_has_the_cursors_of_its_flush(keeping, tmp_path):
    """So none of them is behind the end of its shard after a restore, whatever was committed since."""
    assign(keeping.log, 1, (1, 0, ANN))
    commit(keeping.log, ANN, (1, 0, 2))
    back_up(keeping.path, tmp_path / "backup")
    append_values(keeping.log, 1, b"4", b"5")
    commit(keeping.log, ANN, (1, 0, 5))
    restore(tmp_path / "backup", tmp_path / "restored")
    log = Log(tmp_path / "restored")
    assert log.groups.get("billing").shards[1, 0].offset == 2
    assert log.ledger.load_shard(1, 0).next == 3
    # Who was a member before the restore is one as long as no coordinator has said otherwise, and cannot say more than
    # what is there.
    late = commit(log, ANN, (1, 0, 5))
    assert isinstance(late, Rejected)
    assert isinstance(late.error, InvalidCursor)
    log.close()


def test_the_doctor_looks_at_cursors(keeping):
    assign(keeping.log, 1, (1, 0, ANN))
    assert flaws(keeping.path) == ()
    keeping.log._ledger._db.execute("UPDATE group_shards SET offset = 4")
    assert flaws(keeping.path) == ("group 1 has a cursor at 4 of stream 1 shard 0, which cannot be",)
    keeping.log._ledger._db.execute("UPDATE group_shards SET offset = 0")
    keeping.log._ledger._db.execute("UPDATE group_shards SET group_id = 9")
    assert len(flaws(keeping.path)) == 1


def flaws(folder: Path) -> tuple[str, ...]:
    ledger = LedgerInspector(folder / "ledger.db")
    try:
        ledger.format()
        return ledger.look().flaws
    finally:
        ledger.close()
