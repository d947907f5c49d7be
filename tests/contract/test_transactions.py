"""What transactions do to the rows: all or nothing, the same in every ledger and in every replay."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from mainstem.core.errors import (
    Fenced,
    InvalidCursor,
    InvalidPayload,
    InvalidRequest,
    MainstemError,
    Refused,
    StaleGeneration,
    StreamDeleted,
    UnknownGroup,
    UnknownStream,
    UnknownTransaction,
    WriterForgotten,
)
from mainstem.core.statistics import collect, summary
from mainstem.log.flush import (
    AlterStream,
    AssignShards,
    CommitTransaction,
    CreateStream,
    DeleteStream,
    Done,
    DropEntries,
    ForgetBlock,
    ForgetStream,
    ForgetTransactions,
    GroupCursors,
    OpenWriter,
    Rejected,
    Staged,
    StagedFrame,
    TransactionCommitted,
    TrimShard,
    WriterOpened,
    WrittenStaged,
)
from mainstem.log.ledger.base import TransactionRow, WriterRow
from tests.contract.test_upkeep_commands import LATER, LENGTH, Ledgers, _rows
from tests.unit.log.parts import NOW_US

TIME = NOW_US + 700
ANN = 7


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[Ledgers]:
    found = Ledgers(tmp_path)
    yield found
    found.close()


def stage(ledgers: Ledgers, *places: tuple[int, int, int], **other: Any) -> list[StagedFrame]:
    """One flush of staged batches, each as (stream, shard, count)."""
    batches = [ledgers.frame(count, stream=stream, shard=shard, **other) for stream, shard, count in places]
    outcomes = ledgers.flush(*map(WrittenStaged, batches))
    assert outcomes == [Staged(ledgers.block, batch.position, batch.length) for batch in batches]
    return [
        StagedFrame(
            ledgers.block, each.position, each.length, *(each.header.stream, each.header.shard, each.header.count),
            each.header.generation, each.header.schema_id, each.header.time_high,
        )
        for each in batches
    ]  # fmt: skip


def committing(
    frames: Sequence[StagedFrame], number: int = 1, cursors: Sequence[GroupCursors] = (), **other: Any
) -> CommitTransaction:
    values: dict[str, Any] = {"batches": len(frames), "time_us": TIME} | other
    return CommitTransaction(number, staged=tuple(frames), cursors=tuple(cursors), **values)


def commit(ledgers: Ledgers, frames: Sequence[StagedFrame], number: int = 1, **other: Any) -> Any:
    (outcome,) = ledgers.flush(committing(frames, number, **other))
    return outcome


def refused(ledgers: Ledgers, command: CommitTransaction) -> MainstemError:
    """The error, and that nothing at all has changed but the number of the flush."""
    before = _rows(ledgers.memory)
    (outcome,) = ledgers.flush(command)
    assert isinstance(outcome, Rejected), outcome
    assert _rows(ledgers.memory) | {"applied": before["applied"]} == before
    return outcome.error


def test_what_is_staged_is_nobodys(ledgers):
    ledgers.write(2)
    stage(ledgers, (1, 0, 3), (1, 1, 4))
    assert [entry.span for entry in ledgers.entries()] == [2]
    assert ledgers.memory.load_shard(1, 0).next == 2
    assert ledgers.memory.load_shard(1, 1).next == 0
    # Its bytes are dead until it is committed, which may be never.
    assert ledgers.memory.dead_bytes(1) == {1: 2 * LENGTH}
    assert ledgers.blocks()[1].live_bytes == LENGTH


def test_a_commit_gives_offsets_in_the_order_of_staging(ledgers):
    ledgers.write(2)
    first = stage(ledgers, (1, 0, 3), (1, 1, 4))
    ledgers.write(1)
    second = stage(ledgers, (1, 0, 5))
    assert commit(ledgers, [*first, *second]) == TransactionCommitted(((1, 0, 3, 8), (1, 1, 0, 4)))
    made = ledgers.entries()
    assert [(entry.base, entry.span, entry.count, entry.transaction) for entry in made] == [
        (0, 2, 2, 0), (2, 1, 1, 0), (3, 3, 3, 0), (6, 5, 5, 0),
    ]  # fmt: skip
    assert [entry.position for entry in made[2:]] == [first[0].position, second[0].position]
    row = ledgers.memory.load_shard(1, 0)
    assert (row.next, row.stable, row.bytes) == (11, 11, 4 * LENGTH)
    assert ledgers.memory.dead_bytes(1) == {}
    assert ledgers.blocks()[1].live_bytes == 5 * LENGTH
    assert ledgers.memory.load_transaction(1) == TransactionRow(TIME, ((1, 0, 3, 8), (1, 1, 0, 4)))
    ledgers.write(1)
    assert ledgers.entries()[-1].base == 11


def test_neighbours_of_one_shard_become_one_entry(ledgers):
    frames = stage(ledgers, (1, 0, 1), (1, 0, 2), (1, 1, 1), (1, 0, 4))
    commit(ledgers, frames)
    assert [(entry.base, entry.span, entry.length) for entry in ledgers.entries()] == [
        (0, 3, 2 * LENGTH),
        (3, 4, LENGTH),
    ]


def test_a_batch_with_statistics_is_an_entry_of_its_own(ledgers):
    known = summary(collect(None, key=pa.array([b"key"]), times=(1, 2)))
    frames = stage(ledgers, (1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 0, 4))
    frames[1] = msgspec.structs.replace(frames[1], summary=known)
    commit(ledgers, frames)
    assert [(entry.span, entry.statistics) for entry in ledgers.entries()] == [(1, b""), (2, known), (7, b"")]


def test_times_never_fall(ledgers):
    """A seek by time is a bisection over them."""
    old = stage(ledgers, (1, 0, 1))
    ledgers.write(1)
    high = ledgers.memory.load_shard(1, 0).time_high
    assert old[0].time_high < high
    new = [msgspec.structs.replace(stage(ledgers, (1, 0, 1))[0], time_high=high + 50)]
    commit(ledgers, [*old, *new])
    assert [entry.time_high for entry in ledgers.entries()] == [high, high, high + 50]
    assert ledgers.memory.load_shard(1, 0).time_high == high + 50


def test_a_repeated_commit_gets_the_same_offsets(ledgers):
    frames = stage(ledgers, (1, 0, 3))
    first = commit(ledgers, frames)
    ledgers.write(2)
    before = _rows(ledgers.memory)
    for again in (frames, []):
        assert commit(ledgers, again) == TransactionCommitted(first.offsets, duplicate=True)
    # Also if what it was written for has changed, and its writer is another.
    ledgers.do(AlterStream(1, shards=3))
    assert commit(ledgers, frames, writer="a", epoch=5) == TransactionCommitted(first.offsets, duplicate=True)
    assert _rows(ledgers.memory)["entries"] == before["entries"]


def test_twice_in_one_flush(ledgers):
    frames = stage(ledgers, (1, 0, 3))
    outcomes = ledgers.flush(committing(frames), committing(frames))
    offsets = ((1, 0, 0, 3),)
    assert outcomes == [TransactionCommitted(offsets), TransactionCommitted(offsets, duplicate=True)]
    assert len(ledgers.entries()) == 1


def test_several_transactions_and_appends_in_one_flush(ledgers):
    one, other = stage(ledgers, (1, 0, 3)), stage(ledgers, (1, 0, 2))
    outcomes = ledgers.flush(committing(other, 1), ledgers.frame(1), committing(one, 2), ledgers.frame(1))
    assert [outcome.offsets for outcome in outcomes[::2]] == [((1, 0, 0, 2),), ((1, 0, 3, 3),)]
    assert [(entry.base, entry.span) for entry in ledgers.entries()] == [(0, 2), (2, 1), (3, 3), (6, 1)]


def test_one_that_the_log_has_lost_a_part_of_is_refused(ledgers):
    frames = stage(ledgers, (1, 0, 3), (1, 1, 1))
    for there in ([], frames[:1]):
        assert isinstance(refused(ledgers, committing(there, batches=2)), UnknownTransaction)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"stream": 9}, UnknownStream),
        ({"shard": 2}, InvalidRequest),
        ({"shard": -1}, InvalidRequest),
        ({"generation": 1}, StaleGeneration),
        ({"schema_id": 3}, InvalidPayload),
        ({"block": 44}, Refused),
        ({"count": 0}, Refused),
    ],
    ids=str,
)
def test_a_batch_that_cannot_be_committed_refuses_all(ledgers, change, kind):
    frames = stage(ledgers, (1, 0, 3), (1, 1, 1))
    frames[1] = msgspec.structs.replace(frames[1], **change)
    assert type(refused(ledgers, committing(frames))) is kind


def test_more_shards_or_a_deleted_stream_refuse_all(ledgers):
    ledgers.do(CreateStream("b" * 32, "b", 1, "crc32", 1_000_000, NOW_US))
    frames = stage(ledgers, (2, 0, 1), (1, 0, 3))
    ledgers.do(AlterStream(1, shards=3))
    found = refused(ledgers, committing(frames))
    assert isinstance(found, StaleGeneration)
    assert (found.generation, found.shards) == (1, 3)
    assert "do its work again in a new one" in str(found)
    frames = stage(ledgers, (2, 0, 1), (1, 0, 3), generation=0)
    ledgers.do(DeleteStream(1, NOW_US))
    assert type(refused(ledgers, committing(frames, 2))) is StreamDeleted
    assert ledgers.memory.load_shard(2, 0).next == 0


# Cursors.


def shared(ledgers: Ledgers) -> None:
    """Two groups that read both shards of stream 1, which have five records each."""
    ledgers.write(5)
    ledgers.write(5, shard=1)
    for name in ("g", "h"):
        ledgers.flush(AssignShards(name, 1, ((1, 0, ANN), (1, 1, ANN)), NOW_US))


def offsets_of(ledgers: Ledgers, group: int) -> list[int]:
    return [row.offset for _, row in ledgers.memory.list_group_shards(group)]


def test_cursors_of_several_groups_move_with_it(ledgers):
    shared(ledgers)
    frames = stage(ledgers, (1, 0, 3))
    moved = [GroupCursors("g", ANN, ((1, 0, 4), (1, 1, 2))), GroupCursors("h", ANN, ((1, 1, 5),))]
    assert commit(ledgers, frames, cursors=moved) == TransactionCommitted(((1, 0, 5, 3),))
    assert (offsets_of(ledgers, 1), offsets_of(ledgers, 2)) == ([4, 2], [0, 5])
    # And without a record.
    assert commit(ledgers, [], 2, cursors=[GroupCursors("g", ANN, ((1, 0, 5),))]) == TransactionCommitted(())
    assert commit(ledgers, [], 2) == TransactionCommitted((), duplicate=True)
    assert offsets_of(ledgers, 1) == [5, 2]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (GroupCursors("h", 8, ((1, 0, 1),)), Fenced),
        (GroupCursors("h", ANN, ((1, 0, 1),), 0), Fenced),
        (GroupCursors("h", ANN, ((1, 0, 6),)), InvalidCursor),
        (GroupCursors("h", ANN, ((9, 0, 1),)), UnknownStream),
        (GroupCursors("i", ANN, ((1, 0, 1),)), UnknownGroup),
    ],
    ids=["member", "generation", "beyond", "stream", "group"],
)
def test_a_cursor_that_may_not_move_refuses_all(ledgers, wrong, kind):
    """Also one beyond the end before this transaction: nobody can have read what is not there yet."""
    shared(ledgers)
    frames = stage(ledgers, (1, 0, 3))
    good = GroupCursors("g", ANN, ((1, 0, 4),))
    assert type(refused(ledgers, committing(frames, 1, [good, wrong]))) is kind


# Writers.


def test_a_newer_writer_of_the_same_name_fences_the_older(ledgers):
    (first,) = ledgers.flush(OpenWriter("a", TIME))
    frames = stage(ledgers, (1, 0, 3))
    assert isinstance(commit(ledgers, frames[:1], writer="a", epoch=first.epoch), TransactionCommitted)
    (second,) = ledgers.flush(OpenWriter("a", TIME))
    assert second.epoch > first.epoch
    frames = stage(ledgers, (1, 0, 3))
    for epoch in (first.epoch, 0, second.epoch + 1):
        assert isinstance(refused(ledgers, committing(frames, 2, writer="a", epoch=epoch)), Fenced)
    assert isinstance(refused(ledgers, committing(frames, 2, writer="b", epoch=1)), WriterForgotten)
    assert isinstance(commit(ledgers, frames, 2, writer="a", epoch=second.epoch), TransactionCommitted)


def test_two_writers_open_in_one_flush(ledgers):
    first, second = ledgers.flush(OpenWriter("a", TIME), OpenWriter("a", TIME))
    assert isinstance(first, WriterOpened)
    assert first.epoch < second.epoch


def test_a_writer_that_was_forgotten_never_gets_an_epoch_again(ledgers):
    (first,) = ledgers.flush(OpenWriter("a", TIME))
    ledgers.flush(OpenWriter("b", TIME + 90))
    ledgers.do(ForgetTransactions(1, 10, TIME + 50))
    assert (ledgers.memory.load_writer("a"), ledgers.memory.load_writer("b")) == (
        None,
        WriterRow(TIME + 90, TIME + 90),
    )
    frames = stage(ledgers, (1, 0, 3))
    found = refused(ledgers, committing(frames, writer="a", epoch=first.epoch))
    assert isinstance(found, WriterForgotten)
    assert "was forgotten" in str(found)
    (again,) = ledgers.flush(OpenWriter("a", TIME + 100))
    assert again.epoch > first.epoch


def test_there_is_a_limit_of_writers(monkeypatch, ledgers):
    monkeypatch.setattr("mainstem.log.ledger.rules.transactions.WRITERS_MAX", 2)
    ledgers.flush(OpenWriter("a", TIME), OpenWriter("b", TIME))
    (outcome,) = ledgers.flush(OpenWriter("c", TIME))
    assert isinstance(outcome, Rejected)
    assert type(outcome.error) is InvalidRequest
    assert isinstance(ledgers.flush(OpenWriter("b", TIME))[0], WriterOpened)


# What becomes of what ended, and of the bytes.


def test_transactions_are_forgotten_the_oldest_first(ledgers):
    for number in range(1, 6):
        commit(ledgers, [], number, time_us=TIME + number)
    assert ledgers.memory.transactions_before(TIME + 5, 100) == 4
    assert ledgers.do(ForgetTransactions(TIME + 5, 3, 0)) == Done(rows=3)
    assert [ledgers.memory.transaction_ended_us(others) for others in (0, 1, 2)] == [TIME + 5, TIME + 4, 0]
    known = [number for number in range(1, 6) if ledgers.memory.load_transaction(number)]
    assert known == [4, 5]
    assert ledgers.do(ForgetTransactions(TIME + 5, 3, 0)) == Done(rows=1)
    assert ledgers.do(ForgetTransactions(TIME + 5, 3, 0)) == Done(rows=0)


def test_a_block_with_nothing_but_staged_batches_is_dead_and_lives_again_by_a_commit(ledgers):
    ledgers.roll()
    frames = stage(ledgers, (1, 0, 3), (1, 0, 1))
    ledgers.roll()
    assert ledgers.blocks()[2].dead_us
    commit(ledgers, frames[:1])
    row = ledgers.blocks()[2]
    assert (row.dead_us, row.live_bytes) == (0, LENGTH)
    assert ledgers.memory.dead_bytes(1) == {2: LENGTH}
    (outcome,) = ledgers.flush(ForgetBlock(2))
    assert isinstance(outcome, Rejected)
    # When what was committed goes, it is dead for good.
    ledgers.do(TrimShard(1, 0, 3))
    ledgers.do(DropEntries(1, 0, 9, LATER))
    assert ledgers.blocks()[2].dead_us
    ledgers.do(ForgetBlock(2))
    assert ledgers.memory.dead_bytes(1) == {}


def test_entries_of_a_transaction_are_replaced_like_others(ledgers):
    ledgers.write(2)
    commit(ledgers, stage(ledgers, (1, 0, 3), (1, 0, 1)))
    ledgers.do(ledgers.replacing(ledgers.entries(), (6, 6)))
    assert [(entry.base, entry.span) for entry in ledgers.entries()] == [(0, 6)]


def test_a_stream_with_staged_batches_is_forgotten_when_they_are_gone(ledgers):
    stage(ledgers, (1, 0, 3))
    ledgers.do(DeleteStream(1, NOW_US))
    assert ledgers.memory.dead_bytes(1) == {1: LENGTH}
    ledgers.roll()
    ledgers.do(ForgetBlock(1))
    ledgers.do(ForgetStream(1))
    assert ledgers.memory.list_streams() == []
