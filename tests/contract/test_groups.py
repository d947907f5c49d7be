"""What the commands of groups do to the rows: the same in every ledger and in every replay, and nothing if refused.

The last test compares them with a model that is written from the rules alone: a group has a generation that every
change of owners and every reset raises by one, an owner and a cursor for each shard; a cursor moves forward, by its
owner only.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.errors import (
    Fenced,
    GroupBusy,
    InvalidCursor,
    InvalidRequest,
    StreamDeleted,
    UnknownGroup,
    UnknownStream,
)
from mainstem.log.flush import (
    AlterStream,
    Assigned,
    AssignShards,
    BeginEpoch,
    Command,
    CommitCursors,
    CreateStream,
    DeleteGroup,
    DeleteStream,
    Done,
    DropEntries,
    ForgetStream,
    HoldGroup,
    Outcome,
    Position,
    Rejected,
    ResetGroup,
    TrimShard,
)
from mainstem.log.ledger.base import GroupRow, GroupShardRow
from tests.contract.test_upkeep_commands import LATER, Ledgers
from tests.unit.log.parts import NOW_US

# Members.
ANN, BOB = 7, (1 << 63) - 1
TIME = NOW_US + 500


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Ledgers]:
    """Stream 1 has two shards; the first has ten records, the second five."""
    found = Ledgers(tmp_path)
    found.write(10)
    found.write(5, shard=1)
    yield found
    found.close()


def assign(ledgers: Ledgers, generation: int, *owners: tuple[int, int, int], name: str = "g", **other: Any) -> Outcome:
    (outcome,) = ledgers.flush(AssignShards(name, generation, owners, TIME, **other))
    return outcome


def commit(ledgers: Ledgers, member: int, *offsets: Position, name: str = "g") -> Outcome:
    (outcome,) = ledgers.flush(CommitCursors(name, member, offsets, TIME + 1))
    return outcome


def shards(ledgers: Ledgers, name: str = "g") -> dict[tuple[int, int], GroupShardRow]:
    row = ledgers.memory.group_named(name)
    assert row is not None
    return dict(ledgers.memory.list_group_shards(row.id))


def error(outcome: Outcome) -> Exception:
    assert isinstance(outcome, Rejected), outcome
    return outcome.error


def test_a_group_comes_into_being_with_its_first_owners(ledgers):
    assert ledgers.memory.group_named("g") is None
    assert assign(ledgers, 1, (1, 0, ANN), (1, 1, BOB)) == Assigned(1, ((1, 0, 0), (1, 1, 0)))
    assert ledgers.memory.list_groups() == [GroupRow(1, "g", 1, TIME, TIME)]
    assert shards(ledgers) == {(1, 0): GroupShardRow(0, 0, ANN, 1), (1, 1): GroupShardRow(0, 0, BOB, 1)}


def test_a_group_may_begin_without_owners(ledgers):
    assert assign(ledgers, 1) == Assigned(1, ())
    assert shards(ledgers) == {}
    # Nobody for a shard that the group never had is nothing to note.
    assert assign(ledgers, 2, (1, 0, 0)) == Assigned(2, ())
    assert shards(ledgers) == {}


def test_a_shard_gets_its_cursor_when_it_is_first_given_out(ledgers):
    ledgers.do(TrimShard(1, 0, 4))
    assert assign(ledgers, 1, (1, 0, ANN)) == Assigned(1, ((1, 0, 4),))
    # What is trimmed later is the reader's to meet.
    ledgers.do(TrimShard(1, 0, 6))
    assert assign(ledgers, 2, (1, 0, BOB), (1, 1, BOB), starts=((1, 0, 9), (1, 1, 3))) == Assigned(
        2, ((1, 0, 4), (1, 1, 3))
    )


@pytest.mark.parametrize(("start", "cursor"), [(0, 2), (3, 3), (5, 5), (99, 5)])
def test_a_start_is_within_the_shard(ledgers, start, cursor):
    ledgers.do(TrimShard(1, 1, 2))
    assert assign(ledgers, 1, (1, 1, ANN), starts=((1, 1, start),)) == Assigned(1, ((1, 1, cursor),))


@pytest.mark.parametrize("generation", [0, 2, 4, -1])
def test_only_the_next_generation_is_taken(ledgers, generation):
    """An older coordinator does not know what another has done."""
    assign(ledgers, 1, (1, 0, ANN))
    assign(ledgers, 2, (1, 1, ANN))
    before = shards(ledgers)
    assert isinstance(error(assign(ledgers, generation, (1, 0, BOB))), Fenced)
    assert shards(ledgers) == before


def test_a_new_group_begins_at_1(ledgers):
    assert isinstance(error(assign(ledgers, 2, (1, 0, ANN))), Fenced)
    assert list(ledgers.memory.list_groups()) == []


def test_two_coordinators_in_one_flush(ledgers):
    outcomes = ledgers.flush(AssignShards("g", 1, ((1, 0, ANN),), TIME), AssignShards("g", 1, ((1, 0, BOB),), TIME))
    assert [type(outcome) for outcome in outcomes] == [Assigned, Rejected]
    assert shards(ledgers)[1, 0].owner == ANN


def test_who_keeps_a_shard_has_it_since_it_got_it(ledgers):
    assign(ledgers, 1, (1, 0, ANN), (1, 1, ANN))
    assign(ledgers, 2, (1, 0, ANN), (1, 1, BOB))
    assert [(row.owner, row.since) for row in shards(ledgers).values()] == [(ANN, 1), (BOB, 2)]
    assign(ledgers, 3, (1, 0, 0))
    assert shards(ledgers)[1, 0] == GroupShardRow(0, 0, 0, 3)


def test_a_member_commits_what_it_owns(ledgers):
    assign(ledgers, 1, (1, 0, ANN), (1, 1, ANN))
    assert commit(ledgers, ANN, (1, 0, 10), (1, 1, 2)) == Done(rows=2)
    assert shards(ledgers)[1, 0] == GroupShardRow(10, TIME + 1, ANN, 1)
    # Again, because its answer got lost.
    assert commit(ledgers, ANN, (1, 0, 10), (1, 1, 2)) == Done(rows=2)
    assert assign(ledgers, 2, (1, 1, BOB)) == Assigned(2, ((1, 1, 2),))


def test_a_member_that_lost_a_shard_commits_nothing(ledgers):
    assign(ledgers, 1, (1, 0, ANN), (1, 1, ANN))
    assign(ledgers, 2, (1, 1, BOB))
    found = error(commit(ledgers, ANN, (1, 0, 3), (1, 1, 3)))
    assert isinstance(found, Fenced)
    assert "shard 1 of stream 'a'" in str(found)
    assert {row.offset for row in shards(ledgers).values()} == {0}
    # Also if nobody has it yet.
    assign(ledgers, 3, (1, 1, 0))
    assert isinstance(error(commit(ledgers, BOB, (1, 1, 3))), Fenced)
    assert isinstance(error(commit(ledgers, BOB, (1, 0, 3))), Fenced)


def test_what_was_read_before_a_shard_was_lost_is_not_committed_when_it_comes_back(ledgers):
    """Meanwhile another has read the same, and perhaps written what came of it."""
    assign(ledgers, 1, (1, 0, ANN), (1, 1, ANN))
    assign(ledgers, 2, (1, 0, BOB))
    commit(ledgers, BOB, (1, 0, 5))
    assign(ledgers, 3, (1, 0, ANN))
    for generation in (1, 2):
        (late,) = ledgers.flush(CommitCursors("g", ANN, ((1, 1, 1), (1, 0, 8)), TIME, generation))
        found = error(late)
        assert isinstance(found, Fenced)
        assert "it was lost, and given to it anew" in str(found)
    assert [row.offset for row in shards(ledgers).values()] == [5, 0]
    # What it had all the time it has since then.
    for generation, offsets in ((1, ((1, 1, 1),)), (3, ((1, 1, 2), (1, 0, 8)))):
        (outcome,) = ledgers.flush(CommitCursors("g", ANN, offsets, TIME, generation))
        assert outcome == Done(rows=len(offsets))


def test_a_change_of_owners_before_a_commit_in_one_flush_fences_it(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    late = CommitCursors("g", ANN, ((1, 0, 3),), TIME)
    outcomes = ledgers.flush(AssignShards("g", 2, ((1, 0, BOB),), TIME), late)
    assert isinstance(error(outcomes[1]), Fenced)
    early = CommitCursors("g", BOB, ((1, 0, 4),), TIME)
    outcomes = ledgers.flush(early, AssignShards("g", 3, ((1, 0, ANN),), TIME))
    assert outcomes == [Done(rows=1), Assigned(3, ((1, 0, 4),))]


@pytest.mark.parametrize("offset", [2, -1, 11, 1 << 70])
def test_cursors_never_go_back_and_never_beyond_the_end(ledgers, offset):
    assign(ledgers, 1, (1, 0, ANN), (1, 1, ANN))
    commit(ledgers, ANN, (1, 0, 3))
    assert isinstance(error(commit(ledgers, ANN, (1, 1, 1), (1, 0, offset))), InvalidCursor)
    assert [row.offset for row in shards(ledgers).values()] == [3, 0]


def test_the_end_is_that_after_the_batches_before_it_in_its_flush(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    assert ledgers.flush(ledgers.frame(2), CommitCursors("g", ANN, ((1, 0, 12),), TIME))[1] == Done(rows=1)


def test_without_members_a_tool_may_commit(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    assert isinstance(error(commit(ledgers, 0, (1, 0, 3))), Fenced)
    assert commit(ledgers, 0, (1, 1, 3)) == Done(rows=1)
    assert shards(ledgers)[1, 1] == GroupShardRow(3, TIME + 1, 0, 1)


def test_who_knew_the_group_before_a_reset_does_not_undo_it(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    assign(ledgers, 2, (1, 0, 0))
    assert ledgers.do(CommitCursors("g", 0, ((1, 0, 8),), TIME, 2)) == Done(rows=1)
    ledgers.do(ResetGroup("g", ((1, 0, 2),), TIME))
    late = CommitCursors("g", 0, ((1, 0, 9),), TIME, 2)
    assert isinstance(error(ledgers.flush(late)[0]), Fenced)
    assert shards(ledgers)[1, 0].offset == 2
    assert ledgers.do(CommitCursors("g", 0, ((1, 0, 9),), TIME, 3)) == Done(rows=1)


@pytest.mark.parametrize(
    ("place", "kind"),
    [((9, 0, 0), UnknownStream), ((1, 2, 0), InvalidRequest), ((1, -1, 0), InvalidRequest)],
    ids=["stream", "shard", "negative"],
)
def test_what_is_not_there_has_no_cursor(ledgers, place, kind):
    assign(ledgers, 1, (1, 0, ANN))
    assert type(error(commit(ledgers, ANN, place))) is kind
    assert type(error(ledgers.flush(ResetGroup("g", (place,), TIME))[0])) in (kind, GroupBusy)


def test_a_shard_that_is_not_there_has_no_owner(ledgers):
    assert type(error(assign(ledgers, 1, (1, 0, ANN), (1, 2, ANN)))) is InvalidRequest
    assert list(ledgers.memory.list_groups()) == []


@pytest.mark.parametrize("member", [-1, 1 << 63, 1 << 70])
def test_ids_that_no_member_has(ledgers, member):
    assert type(error(assign(ledgers, 1, (1, 0, member)))) is InvalidRequest
    assign(ledgers, 1, (1, 0, ANN))
    assert isinstance(error(commit(ledgers, member, (1, 0, 1))), Fenced)


def test_groups_that_are_not_there(ledgers):
    for command in (CommitCursors("h", 0, (), TIME), ResetGroup("h", (), TIME), DeleteGroup("h")):
        assert isinstance(error(ledgers.flush(command)[0]), UnknownGroup)


def test_a_group_is_reset_in_any_direction(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    commit(ledgers, ANN, (1, 0, 8))
    reset = ResetGroup("g", ((1, 0, 2), (1, 1, 5)), TIME + 2)
    assert isinstance(error(ledgers.flush(reset)[0]), GroupBusy)
    assign(ledgers, 2, (1, 0, 0))
    assert ledgers.do(reset) == Done(rows=2)
    assert shards(ledgers) == {(1, 0): GroupShardRow(2, TIME + 2, 0, 2), (1, 1): GroupShardRow(5, TIME + 2, 0, 3)}
    assert ledgers.memory.list_groups() == [GroupRow(1, "g", 3, TIME, TIME + 2)]
    # A coordinator that had not heard of it is refused.
    assert isinstance(error(assign(ledgers, 3, (1, 0, BOB))), Fenced)
    for offset in (-1, 11):
        assert isinstance(error(ledgers.flush(ResetGroup("g", ((1, 0, offset),), TIME))[0]), InvalidCursor)


def test_a_group_is_deleted_and_made_again(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    assign(ledgers, 1, (1, 0, BOB), name="h")
    commit(ledgers, ANN, (1, 0, 8))
    assert isinstance(error(ledgers.flush(DeleteGroup("g"))[0]), GroupBusy)
    assign(ledgers, 2, (1, 0, 0))
    assert ledgers.do(DeleteGroup("g")) == Done()
    assert [row.name for row in ledgers.memory.list_groups()] == ["h"]
    assert ledgers.memory.list_group_shards(1) == []
    assert assign(ledgers, 1, (1, 0, ANN)) == Assigned(1, ((1, 0, 0),))
    # No number is given twice.
    assert [row.id for row in ledgers.memory.list_groups()] == [3, 2]


def test_deleted_and_made_again_in_one_flush(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    assign(ledgers, 2, (1, 0, 0))
    outcomes = ledgers.flush(
        CommitCursors("g", 0, ((1, 0, 2),), TIME),
        DeleteGroup("g"),
        CommitCursors("g", 0, ((1, 0, 3),), TIME),
        AssignShards("g", 1, ((1, 1, ANN),), TIME),
        CommitCursors("g", ANN, ((1, 1, 4),), TIME),
    )
    assert [type(outcome) for outcome in outcomes] == [Done, Done, Rejected, Assigned, Done]
    assert shards(ledgers) == {(1, 1): GroupShardRow(4, TIME, ANN, 1)}
    assert [row.id for row in ledgers.memory.list_groups()] == [2]


def test_no_number_is_given_twice_in_one_flush_either(ledgers):
    names = ("g", "h", "g", "h")
    made = [AssignShards(name, 1, ((1, 0, 0),), TIME) for name in names]
    outcomes = ledgers.flush(made[0], made[1], DeleteGroup("h"), DeleteGroup("g"), made[2], DeleteGroup("g"), made[3])
    assert [type(outcome) for outcome in outcomes] == [Assigned, Assigned, Done, Done, Assigned, Done, Assigned]
    assert [(row.id, row.name) for row in ledgers.memory.list_groups()] == [(4, "h")]
    ledgers.do(DeleteGroup("h"))
    assign(ledgers, 1)
    assert [(row.id, row.name) for row in ledgers.memory.list_groups()] == [(5, "g")]


def test_a_group_holds_retention_until_it_is_told_otherwise_or_goes(ledgers):
    day = 86_400_000_000
    assert isinstance(error(ledgers.flush(HoldGroup("g", day))[0]), UnknownGroup)
    assign(ledgers, 1, (1, 0, ANN))
    # Also while it has members; nothing else of it changes.
    assert ledgers.do(HoldGroup("g", 3 * day)) == Done()
    assert ledgers.memory.list_groups() == [GroupRow(1, "g", 1, TIME, TIME, 3 * day)]
    for hold_us in (-1, 30 * day + 1, 1 << 70):
        found = error(ledgers.flush(HoldGroup("g", hold_us))[0])
        assert isinstance(found, InvalidRequest)
        assert "up to 30 days" in str(found)
    assign(ledgers, 2, (1, 0, 0))
    ledgers.do(ResetGroup("g", ((1, 0, 2),), TIME))
    assert ledgers.memory.list_groups()[0].hold_us == 3 * day
    ledgers.do(HoldGroup("g", 0))
    assert ledgers.memory.list_groups()[0].hold_us == 0
    ledgers.flush(HoldGroup("g", day), DeleteGroup("g"))
    assign(ledgers, 1, (1, 0, ANN))
    assert ledgers.memory.list_groups()[0].hold_us == 0


def test_the_cursors_of_a_deleted_stream_go_from_all_groups(ledgers):
    ledgers.do(CreateStream("b" * 32, "b", 1, "crc32", 1_000_000, NOW_US))
    for name in ("g", "h"):
        assign(ledgers, 1, (1, 0, ANN), (2, 0, ANN), name=name)
    outcomes = ledgers.flush(
        CommitCursors("g", ANN, ((1, 0, 2),), TIME),
        DeleteStream(1, NOW_US),
        CommitCursors("g", ANN, ((1, 0, 3),), TIME),
        AssignShards("h", 2, ((1, 0, BOB), (1, 1, BOB), (2, 0, BOB)), TIME),
    )
    assert isinstance(error(outcomes[2]), StreamDeleted)
    # Who coordinates has not heard of it yet, and is not stopped by it.
    assert outcomes[3] == Assigned(2, ((1, 0, 0), (1, 1, 0), (2, 0, 0)))
    assert list(shards(ledgers)) == list(shards(ledgers, "h")) == [(2, 0)]
    # Nobody owns anything of it any more.
    assign(ledgers, 2, (2, 0, 0))
    ledgers.do(ResetGroup("g", ((2, 0, 0),), TIME))
    for shard in range(2):
        ledgers.do(DropEntries(1, shard, 9, LATER))
    ledgers.do(ForgetStream(1))


def test_a_restore_keeps_groups_as_they_were(ledgers):
    """Their cursors are of the same flush as the ends of the shards."""
    assign(ledgers, 1, (1, 0, ANN))
    commit(ledgers, ANN, (1, 0, 10))
    ledgers.do(BeginEpoch(2, NOW_US))
    assert shards(ledgers)[1, 0].offset == 10
    assert isinstance(error(commit(ledgers, ANN, (1, 0, 11))), InvalidCursor)


def test_shards_that_a_stream_got_later(ledgers):
    assign(ledgers, 1, (1, 0, ANN))
    ledgers.do(AlterStream(1, shards=3))
    assert assign(ledgers, 2, (1, 2, ANN)) == Assigned(2, ((1, 2, 0),))


def test_there_is_a_limit_of_groups(monkeypatch, ledgers):
    monkeypatch.setattr("mainstem.log.ledger.rules.groups.GROUPS_MAX", 2)
    for name in ("g", "h"):
        assign(ledgers, 1, name=name)
    assert type(error(assign(ledgers, 1, name="i"))) is InvalidRequest
    assert assign(ledgers, 2, name="g") == Assigned(2, ())


# Against a model.


@dataclass
class Model:
    """One group by the rules."""

    ends: dict[tuple[int, int], int]
    generation: int = 0
    cursors: dict[tuple[int, int], int] = field(default_factory=dict)
    owners: dict[tuple[int, int], int] = field(default_factory=dict)

    def do(self, command: Command) -> type:
        match command:
            case AssignShards():
                return self._assign(command)
            case CommitCursors():
                return self._commit(command)
            case ResetGroup():
                return self._reset(command)
            case DeleteGroup():
                return self._delete()
        raise AssertionError(command)

    def _assign(self, command: AssignShards) -> type:
        if command.generation != self.generation + 1:
            return Fenced
        self.generation += 1
        for stream, shard, owner in command.assigned:
            if owner or (stream, shard) in self.cursors:
                self.cursors.setdefault((stream, shard), 0)
                self.owners[stream, shard] = owner
        return Assigned

    def _commit(self, command: CommitCursors) -> type:
        if not self.generation:
            return UnknownGroup
        for stream, shard, offset in command.offsets:
            key = (stream, shard)
            if self.owners.get(key, 0) != command.member:
                return Fenced
            if not self.cursors.get(key, 0) <= offset <= self.ends[key]:
                return InvalidCursor
        self.cursors.update({(stream, shard): offset for stream, shard, offset in command.offsets})
        return Done

    def _reset(self, command: ResetGroup) -> type:
        if not self.generation:
            return UnknownGroup
        if any(self.owners.values()):
            return GroupBusy
        if any(not 0 <= offset <= self.ends[stream, shard] for stream, shard, offset in command.offsets):
            return InvalidCursor
        self.generation += 1
        self.cursors.update({(stream, shard): offset for stream, shard, offset in command.offsets})
        return Done

    def _delete(self) -> type:
        if not self.generation:
            return UnknownGroup
        if any(self.owners.values()):
            return GroupBusy
        self.generation = 0
        self.cursors.clear()
        self.owners.clear()
        return Done


def random_command(draw: random.Random, model: Model) -> Command:
    keys = draw.sample(sorted(model.ends), draw.randint(1, len(model.ends)))
    chance = draw.random()
    if chance < 0.35:
        owners = tuple((*key, draw.choice((0, 0, ANN, BOB))) for key in keys)
        return AssignShards("g", model.generation + draw.choice((1, 1, 1, 1, 0, 2)), owners, TIME)
    if chance < 0.85:
        member = draw.choice((ANN, BOB, 0))
        mine = [key for key in keys if model.owners.get(key, 0) == member or draw.random() < 0.1]
        offsets = tuple((*key, model.cursors.get(key, 0) + draw.choice((0, 1, 1, 2, -1))) for key in mine)
        return CommitCursors("g", member, offsets, TIME)
    if chance < 0.97:
        return ResetGroup("g", tuple((*key, draw.randint(-1, 8)) for key in keys), TIME)
    return DeleteGroup("g")


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_commands_follows_the_rules(tmp_path, seed):
    """`Ledgers` compares the backends after every flush, and a replay with restarts at the end."""
    draw = random.Random(f"groups {seed}")
    ledgers = Ledgers(tmp_path)
    for shard, count in enumerate((7, 4)):
        ledgers.write(count, shard=shard)
    model = Model({(1, 0): 7, (1, 1): 4})
    for _ in range(60):
        commands: list[Command] = []
        expected: list[type] = []
        for _ in range(draw.randint(1, 3)):
            commands.append(random_command(draw, model))
            expected.append(model.do(commands[-1]))
        outcomes = ledgers.flush(*commands)
        found = [type(each.error) if isinstance(each, Rejected) else type(each) for each in outcomes]
        assert found == expected
        assert bool(ledgers.memory.list_groups()) == bool(model.generation)
        if model.generation:
            rows = shards(ledgers)
            assert {key: row.offset for key, row in rows.items()} == model.cursors
            assert {key: row.owner for key, row in rows.items() if row.owner} == {
                key: owner for key, owner in model.owners.items() if owner
            }
    ledgers.close()
