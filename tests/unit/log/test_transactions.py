"""Transactions of a real log: staged without effect, committed as one, ended by an abort, their time or a restart."""

import random
import threading
import tracemalloc
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from mainstem.core.batch import Batch
from mainstem.core.errors import (
    Busy,
    Closed,
    Fenced,
    InvalidName,
    InvalidRequest,
    MainstemError,
    Refused,
    StaleGeneration,
    TransactionAborted,
    UnknownTransaction,
)
from mainstem.core.limits import COMMAND_BYTES_MAX, TRANSACTION_BATCHES_MAX, TRANSACTION_CURSORS_MAX
from mainstem.log import transactions as module
from mainstem.log.backup import back_up
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.compaction import DIRTY_SECONDS_MAX
from mainstem.log.flush import (
    AlterStream,
    Assigned,
    CommitTransaction,
    DeleteStream,
    GroupCursors,
    Outcome,
    Rejected,
    Staged,
    StagedFrame,
    TransactionCommitted,
    encode_command,
)
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.log.restore import restore
from mainstem.log.transactions import NO_WRITER, TRANSACTION_ID_MAX, DeliveryNumber, Transactions, Writer
from mainstem.testing.clock import SimulatedClock
from tests.unit.log.keeping import DAY, HOUR, OPTIONS, Keeping, marker, pass_time
from tests.unit.log.parts import append_values, make_batch, make_keyed_batch, make_stream, values_of


@pytest.fixture
def keeping(tmp_path):
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


@pytest.fixture
def log(keeping):
    """With stream 1 of two shards and stream 2 of one."""
    make_stream(keeping.log, "orders", shards=2)
    make_stream(keeping.log, "totals")
    return keeping.log


def stage(log: Log, transaction: int, index: int, *batches: Batch, **other: Any) -> Outcomes:
    waiter = Waiter()
    log.stage(transaction, index, batches, waiter.set, **other)
    return waiter.wait(log.batcher)


def commit(
    log: Log, transaction: int, batches: int, cursors: Sequence[GroupCursors] = (), **other: Any
) -> TransactionCommitted:
    waiter = Waiter()
    log.commit_transaction(transaction, batches, cursors, waiter.set, **other)
    (outcome,) = waiter.wait(log.batcher)
    if isinstance(outcome, Rejected):
        raise outcome.error
    assert isinstance(outcome, TransactionCommitted)
    return outcome


def commit_whole(
    log: Log, transaction: int, *batches: Batch, cursors: Sequence[GroupCursors] = (), **other: Any
) -> TransactionCommitted:
    waiter = Waiter()
    log.commit_whole(transaction, batches, cursors, waiter.set, **other)
    (outcome,) = waiter.wait(log.batcher)
    if isinstance(outcome, Rejected):
        raise outcome.error
    assert isinstance(outcome, TransactionCommitted)
    return outcome


def assign(log: Log, name: str, generation: int, *owners: tuple[int, int, int]) -> Outcome:
    waiter = Waiter()
    log.groups.assign(name, generation, owners, waiter.set)
    return waiter.wait(log.batcher)[0]


def read(log: Log, stream: int, shard: int = 0) -> list[bytes | None]:
    """Everything, as a reader gets it."""
    row = log.reader.require_stream(stream)
    offset, found = log.reader.shard(stream, shard).start, []
    while batches := log.reader.read(row, shard, offset):
        for batch in batches:
            assert batch.base == offset
            assert (batch.header.transaction, batch.header.producer) == (0, 0)
            found += values_of(batch)
            offset = batch.end
    return found


# Staging and committing.


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(log):
    append_values(log, 1, b"before")
    outcomes = stage(log, 5, 0, make_batch([b"a", b"b"]), make_batch([b"c"], shard=1))
    assert all(isinstance(outcome, Staged) for outcome in outcomes)
    stage(log, 5, 1, make_batch([b"d"], stream=2), make_batch([b"e"]))
    append_values(log, 1, b"between")
    assert (read(log, 1), read(log, 1, 1), read(log, 2)) == ([b"before", b"between"], [], [])
    assert commit(log, 5, 4) == TransactionCommitted(((1, 0, 2, 3), (1, 1, 0, 1), (2, 0, 0, 1)))
    append_values(log, 1, b"after")
    assert read(log, 1) == [b"before", b"between", b"a", b"b", b"e", b"after"]
    assert (read(log, 1, 1), read(log, 2)) == ([b"c"], [b"d"])
    assert log.transactions.listing() == []


def test_it_is_the_same_from_memory_from_disk_and_after_a_rebuild(keeping, log):
    for turn in range(30):
        append_values(log, 1, b"plain %d" % turn)
        stage(log, turn + 1, 0, make_batch([b"staged %d" % turn] * 3, compression="lz4"))
        if turn % 3:
            commit(log, turn + 1, 1)
    hot = read(log, 1)
    assert len(hot) == 30 + 20 * 3
    keeping.reopen()
    assert read(keeping.log, 1) == hot
    keeping.reopen(without_ledger=True)
    assert read(keeping.log, 1) == hot
    assert append_values(keeping.log, 1, b"next") == len(hot)


def test_a_follower_sees_a_commit_at_once(log):
    """The listeners of a flush are told of the new ends."""
    told = []
    log.batcher.add_listener(lambda notice: told.append(dict(notice.ends)))
    stage(log, 5, 0, make_batch([b"a", b"b"]))
    commit(log, 5, 1)
    assert told == [{}, {(1, 0): 2}]


def test_producers_of_staged_batches_are_not_remembered(log):
    """They are recognised by their place in the transaction."""
    stage(log, 5, 0, make_batch([b"a"], producer=9, sequence=4))
    commit(log, 5, 1)
    assert log._ledger.load_producer((9, 1, 0)) is None


def test_an_answer_that_got_lost(log):
    first = stage(log, 5, 0, make_batch([b"a"]), make_batch([b"b"], shard=1))
    written = log._file.bytes_written
    assert stage(log, 5, 0, make_batch([b"a"]), make_batch([b"b"], shard=1)) == first
    assert log._file.bytes_written == written
    done = commit(log, 5, 2)
    assert commit(log, 5, 2) == TransactionCommitted(done.offsets, duplicate=True)
    assert read(log, 1) == [b"a"]


def test_a_repeated_commit_gets_its_offsets_after_a_restart(keeping, log):
    stage(log, 5, 0, make_batch([b"a"]))
    done = commit(log, 5, 1)
    stage(log, 6, 0, make_batch([b"never"]))
    for without_ledger in (False, True):
        keeping.reopen(without_ledger=without_ledger)
        assert commit(keeping.log, 5, 1) == TransactionCommitted(done.offsets, duplicate=True)
    with pytest.raises(UnknownTransaction, match="do its work again"):
        commit(keeping.log, 6, 1)
    with pytest.raises(UnknownTransaction):
        stage(keeping.log, 7, 1, make_batch())
    assert read(keeping.log, 1) == [b"a"]


def test_what_is_under_way_is_waited_for(log):
    """A client may send its last batches and its commit without waiting between them."""
    answers: list[Any] = []
    log.stage(5, 0, [make_batch([b"a"])], lambda result: answers.append(("staged", result)))
    log.stage(5, 0, [make_batch([b"a"])], lambda result: answers.append(("again", result)))
    log.commit_transaction(5, 1, (), lambda result: answers.append(("committed", result)))
    log.commit_transaction(5, 1, (), lambda result: answers.append(("repeated", result)))
    with pytest.raises(InvalidRequest, match="is being committed"):
        log.stage(5, 1, [make_batch()], answers.append)
    with pytest.raises(Refused, match="is being committed"):
        log.abort_transaction(5)
    while len(answers) < 4:
        log.batcher.drive()
    assert [what for what, _ in answers] == ["staged", "again", "committed", "repeated"]
    assert answers[2][1] == answers[3][1] == [TransactionCommitted(((1, 0, 0, 1),))]
    assert read(log, 1) == [b"a"]


def test_of_two_that_write_to_one_shard_the_first_to_commit_comes_first(log):
    stage(log, 5, 0, make_batch([b"a"]))
    stage(log, 6, 0, make_batch([b"b"]))
    stage(log, 5, 1, make_batch([b"c"]))
    commit(log, 6, 1)
    commit(log, 5, 2)
    assert read(log, 1) == [b"b", b"a", b"c"]


def test_cursors_move_with_it_or_not_at_all(log):
    append_values(log, 1, b"1", b"2", b"3")
    assert isinstance(assign(log, "g", 1, (1, 0, 77)), Assigned)
    stage(log, 5, 0, make_batch([b"sum"], stream=2))
    commit(log, 5, 1, [GroupCursors("g", 77, ((1, 0, 2),))])
    assert log.groups.get("g").shards[1, 0].offset == 2
    stage(log, 6, 0, make_batch([b"zombie"], stream=2))
    assign(log, "g", 2, (1, 0, 78))
    with pytest.raises(Fenced, match="shard 0 of stream 'orders'"):
        commit(log, 6, 1, [GroupCursors("g", 77, ((1, 0, 3),))])
    assert log.groups.get("g").shards[1, 0].offset == 2
    assert read(log, 2) == [b"sum"]
    # It is over, also for who has not heard the answer.
    with pytest.raises(TransactionAborted, match="its commit was refused"):
        commit(log, 6, 1)
    with pytest.raises(TransactionAborted):
        stage(log, 6, 1, make_batch())


def test_cursors_without_a_record(log):
    append_values(log, 1, b"1", b"2", b"3")
    assign(log, "g", 1, (1, 0, 77))
    assert commit(log, 5, 0, [GroupCursors("g", 77, ((1, 0, 2),))]) == TransactionCommitted(())
    assert commit(log, 5, 0, [GroupCursors("g", 77, ((1, 0, 2),))]) == TransactionCommitted((), duplicate=True)


def test_more_shards_and_deleted_streams_refuse_the_whole(log):
    stage(log, 5, 0, make_batch([b"a"], stream=2), make_batch([b"b"]))
    stage(log, 6, 0, make_batch([b"a"], stream=2), make_batch([b"b"]))
    log.execute(AlterStream(1, shards=4))
    with pytest.raises(StaleGeneration):
        commit(log, 5, 2)
    with pytest.raises(TransactionAborted) as again:
        commit(log, 5, 2)
    assert str(again.value).count("Nothing of it was kept") == 1
    log.execute(DeleteStream(1, 1))
    with pytest.raises(MainstemError, match="was deleted"):
        commit(log, 6, 2)
    assert read(log, 2) == []


# Ending.


def test_what_was_aborted_is_never_seen(log):
    stage(log, 5, 0, make_batch([b"a"]))
    assert log.abort_transaction(5)
    assert not log.abort_transaction(5)
    assert not log.abort_transaction(99)
    for _ in range(2):
        with pytest.raises(TransactionAborted, match="it was aborted"):
            commit(log, 5, 1)
    with pytest.raises(TransactionAborted):
        stage(log, 5, 0, make_batch([b"a"]))
    assert read(log, 1) == []


def test_one_that_was_committed_is_not_aborted_by_a_late_abort(log):
    stage(log, 5, 0, make_batch([b"a"]))
    done = commit(log, 5, 1)
    assert not log.abort_transaction(5)
    assert commit(log, 5, 1).offsets == done.offsets


def test_a_staging_that_comes_again_after_the_commit_does_not_undo_it(keeping, log):
    """It may have been under way on a connection that was given up. What it begins is over by its time."""
    stage(log, 5, 0, make_batch([b"a"]))
    done = commit(log, 5, 1)
    for _ in range(2):
        stage(log, 5, 0, make_batch([b"a"]))
        assert commit(log, 5, 1) == TransactionCommitted(done.offsets, duplicate=True)
    stage(log, 5, 0, make_batch([b"a"]))
    keeping.clock.advance(61)
    log.transactions.tick()
    assert commit(log, 5, 1) == TransactionCommitted(done.offsets, duplicate=True)
    assert read(log, 1) == [b"a"]


def test_an_abort_while_something_is_being_staged(log):
    answers: list[Any] = []
    log.stage(5, 0, [make_batch([b"a"])], answers.append)
    assert log.abort_transaction(5)
    log.batcher.drive()
    assert isinstance(answers[0], TransactionAborted)
    assert log.transactions.counters()["transactions_staged_bytes"] == 0


@pytest.mark.parametrize("how", ["stage", "commit", "tick"])
def test_one_that_takes_too_long_is_over(keeping, log, how):
    stage(log, 5, 0, make_batch([b"a"]), timeout=30)
    keeping.clock.advance(29)
    stage(log, 5, 1, make_batch([b"b"]))
    keeping.clock.advance(1)
    if how == "tick":
        log.transactions.tick()
        assert log.transactions.listing() == []
    call = partial(stage, log, 5, 2, make_batch([b"c"])) if how == "stage" else partial(commit, log, 5, 2)
    with pytest.raises(TransactionAborted, match="its time was over"):
        call()
    counters = log.counters()
    assert (counters["transactions_timed_out"], counters["transactions_aborted"]) == (1, 1)
    assert read(log, 1) == []


def test_a_commit_that_is_under_way_is_in_time(keeping, log):
    answers: list[Any] = []
    log.stage(5, 0, [make_batch([b"a"])], lambda result: None, timeout=30)
    log.commit_transaction(5, 1, (), answers.append)
    keeping.clock.advance(31)
    log.transactions.tick()
    while not answers:
        log.batcher.drive()
    assert answers == [[TransactionCommitted(((1, 0, 0, 1),))]]


def test_a_newer_writer_ends_what_the_older_has_begun(log):
    first = log.open_writer("loader")
    stage(log, 5, 0, make_batch([b"a"]), writer=first)
    stage(log, 6, 0, make_batch([b"b"]))
    second = log.open_writer("loader")
    assert second.name == "loader"
    assert second.epoch > first.epoch
    assert [each.id for each in log.transactions.listing()] == [6]
    with pytest.raises(Fenced, match="another hub writes under this name"):
        commit(log, 5, 1, writer=first)
    with pytest.raises(TransactionAborted, match="another hub writes as 'loader'"):
        stage(log, 5, 1, make_batch([b"a"]), writer=first)
    stage(log, 7, 0, make_batch([b"c"]), writer=first)
    with pytest.raises(Fenced):
        commit(log, 7, 1, writer=first)
    stage(log, 8, 0, make_batch([b"d"]), writer=second)
    commit(log, 8, 1, writer=second)
    assert read(log, 1) == [b"d"]


def test_a_writer_is_fenced_across_a_restart(keeping, log):
    first = log.open_writer("loader")
    keeping.reopen()
    keeping.log.open_writer("loader")
    stage(keeping.log, 5, 0, make_batch([b"a"]), writer=first)
    with pytest.raises(Fenced):
        commit(keeping.log, 5, 1, writer=first)


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, "ü", "a\n"])
def test_names_that_no_writer_has(log, name):
    with pytest.raises(InvalidName):
        log.open_writer(name)


# Limits.


@pytest.mark.parametrize("transaction", [0, -1, 1 << 63, 1 << 80])
def test_ids_that_no_transaction_has(log, transaction):
    with pytest.raises(InvalidRequest, match="id of a transaction"):
        stage(log, transaction, 0, make_batch())
    with pytest.raises(InvalidRequest, match="id of a transaction"):
        commit(log, transaction, 0)
    assert not log.abort_transaction(transaction)
    stage(log, TRANSACTION_ID_MAX, 0, make_batch())
    commit(log, TRANSACTION_ID_MAX, 1)


def test_stagings_come_in_their_order(log):
    stage(log, 5, 0, make_batch([b"a"]))
    with pytest.raises(InvalidRequest, match="1 is the next"):
        stage(log, 5, 2, make_batch([b"b"]))
    with pytest.raises(InvalidRequest, match="with other batches"):
        stage(log, 5, 0, make_batch([b"b"]), make_batch([b"b"]))
    with pytest.raises(UnknownTransaction):
        stage(log, 6, 1, make_batch([b"a"]))
    # What the client counts, the log must have.
    with pytest.raises(UnknownTransaction):
        commit(log, 5, 2)
    assert read(log, 1) == []


@pytest.mark.parametrize("timeout", [0, -1, 901, float("inf"), float("nan")])
def test_times_that_no_transaction_has(log, timeout):
    with pytest.raises(InvalidRequest, match="900 seconds"):
        stage(log, 5, 0, make_batch(), timeout=timeout)
    assert log.transactions.listing() == []


def test_there_is_a_limit_of_batches_of_one_transaction(log, monkeypatch):
    monkeypatch.setattr(module, "TRANSACTION_BATCHES_MAX", 3)
    stage(log, 5, 0, *[make_batch([b"a"])] * 2)
    with pytest.raises(InvalidRequest, match="up to 3 batches"):
        stage(log, 5, 1, *[make_batch([b"b"])] * 2)
    assert log.transactions.counters()["transactions_staged_batches"] == 2
    commit(log, 5, 2)
    assert read(log, 1) == [b"a", b"a"]


@pytest.mark.parametrize(
    ("limit", "error"),
    [("TRANSACTION_BYTES_MAX", InvalidRequest), ("TRANSACTIONS_BYTES_MAX", Busy), ("TRANSACTIONS_BATCHES_MAX", Busy)],
)
def test_what_is_staged_is_limited(log, monkeypatch, limit, error):
    batch = make_batch([b"a" * 100])
    monkeypatch.setattr(module, limit, 1 if "BATCHES" in limit else 2 * batch.header.stored_len - 1)
    stage(log, 5, 0, batch)
    with pytest.raises(error):
        stage(log, 5, 1, batch)
    commit(log, 5, 1)
    # What is over does not count.
    stage(log, 6, 0, batch)


def test_only_so_many_are_open(keeping, log, monkeypatch):
    monkeypatch.setattr(module, "TRANSACTIONS_OPEN_MAX", 3)
    for number in (5, 6, 7):
        stage(log, number, 0, make_batch(), timeout=10 * number)
    with pytest.raises(Busy, match="3 transactions are open"):
        stage(log, 8, 0, make_batch())
    # One whose time is over makes room.
    keeping.clock.advance(51)
    stage(log, 8, 0, make_batch())
    assert [each.id for each in log.transactions.listing()] == [6, 7, 8]


def test_what_is_remembered_of_aborted_ones_is_limited(log, monkeypatch):
    monkeypatch.setattr(module, "_ENDED_MAX", 2)
    for number in (5, 6, 7):
        stage(log, number, 0, make_batch())
        log.abort_transaction(number)
    with pytest.raises(UnknownTransaction):
        commit(log, 5, 1)
    with pytest.raises(TransactionAborted, match="it was aborted"):
        commit(log, 7, 1)


def test_cursors_are_limited(log):
    many = tuple((1, 0, 0) for _ in range(TRANSACTION_CURSORS_MAX + 1))
    with pytest.raises(InvalidRequest, match="cursors"):
        commit(log, 5, 0, [GroupCursors("g", 1, many)])
    with pytest.raises(InvalidRequest, match="64 groups"):
        commit(log, 5, 0, [GroupCursors(f"g{number}", 1, ()) for number in range(65)])
    with pytest.raises(InvalidName):
        commit(log, 5, 0, [GroupCursors("no name", 1, ())])


@pytest.mark.parametrize(
    ("batches", "cursors", "writer"),
    [
        (-1, [], NO_WRITER),
        (TRANSACTION_BATCHES_MAX + 1, [], NO_WRITER),
        (0, [GroupCursors("g", 1 << 64, ())], NO_WRITER),
        (0, [GroupCursors("g", 1, ((1, 0, 1 << 64),))], NO_WRITER),
        (0, [GroupCursors("g", 1, ((-1, 0, 0),))], NO_WRITER),
        (0, [GroupCursors("g", 1, (), -1)], NO_WRITER),
        (0, [], Writer("w", 1 << 64)),
        (0, [], Writer("no name", 1)),
        (0, [], Writer("", 1)),
    ],
    ids=range(9),
)
def test_numbers_that_no_command_can_carry_are_refused_before_it_is_written(log, batches, cursors, writer):
    with pytest.raises(InvalidRequest):
        commit(log, 5, batches, cursors, writer=writer)
    commit(log, 5, 0)


def test_the_largest_transaction_is_one_command():
    big = (1 << 63) - 1
    frame = StagedFrame(big, (1 << 32) - 1, (1 << 32) - 1, big, 4_095, 1 << 20, 1 << 31, 1 << 31, big, b"s" * 300)
    frames = module._that_fit((frame,) * TRANSACTION_BATCHES_MAX, [])
    places = ((big, 4_095, big),) * (TRANSACTION_CURSORS_MAX // 64)
    cursors = [GroupCursors("g" * 249, big, places, big)] * 64
    command = CommitTransaction(big, len(frames), frames, tuple(cursors), big, "w" * 249, big)
    assert len(encode_command(command)) < COMMAND_BYTES_MAX
    assert frames[0].summary == b""
    # Where there is room, summaries stay.
    few = module._that_fit((frame,) * 2_000, [])
    assert few[0].summary
    command = CommitTransaction(big, len(few), few, (), big, "w" * 249, big)
    assert len(encode_command(command)) < COMMAND_BYTES_MAX


def test_the_largest_transaction_is_committed(log):
    half = [make_batch([b"x"]), make_batch([b"y"], shard=1)] * (TRANSACTION_BATCHES_MAX // 4)
    for index in range(2):
        stage(log, 5, index, *half)
    done = commit(log, 5, TRANSACTION_BATCHES_MAX)
    assert done.offsets == ((1, 0, 0, 4_096), (1, 1, 0, 4_096))
    # Those of one staging and shard lie next to each other.
    assert len(log.ledger.entries_from(1, 0, 0, 10)) == 2
    assert read(log, 1) == [b"x"] * 4_096


def test_a_transaction_larger_than_memory(tmp_path):
    """What is staged is not held: 48 MiB go through a log whose buffers are small."""
    log = Log(tmp_path / "data", LogOptions(hot_tail_bytes=1 << 20, block_bytes=16 << 20))
    make_stream(log)
    value = random.Random(1).randbytes(1 << 20)
    batch = make_batch([value])
    tracemalloc.start()
    try:
        for index in range(48):
            stage(log, 5, index, batch)
        commit(log, 5, 48)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20
    assert log.ledger.load_shard(1, 0).next == 48
    assert values_of(log.reader.read(log.reader.require_stream(1), 0, 40)[0]) == [value]
    log.close()


# A registry whose batcher fails.


class Failing:
    """Takes submissions and answers them as the test says."""

    def __init__(self) -> None:
        self.error: MainstemError | None = None
        self.submitted: list[Submission] = []

    def submit(self, submission: Submission) -> None:
        if self.error is not None:
            raise self.error
        self.submitted.append(submission)

    def answer(self, result: Outcomes | MainstemError) -> None:
        self.submitted.pop(0).done(result)


@pytest.fixture
def failing():
    return Failing()


@pytest.fixture
def registry(failing):
    return Transactions(failing.submit, lambda: 3, SimulatedClock())


def test_a_staging_that_was_not_taken_can_be_repeated(registry, failing):
    answers: list[Any] = []
    failing.error = Busy("too much")
    for _ in range(2):
        with pytest.raises(Busy):
            registry.stage(5, 0, [make_batch()], answers.append)
    assert registry.counters()["transactions_staged_batches"] == 0
    assert registry.pinned(range(9)) == set()
    failing.error = None
    registry.stage(5, 0, [make_batch()], answers.append)
    failing.answer([Staged(3, 64, 200)])
    assert answers == [[Staged(3, 64, 200)]]


def test_a_staging_that_failed_takes_the_commit_behind_it_along(registry, failing):
    """The transaction stays open: both can be repeated."""
    answers: list[Any] = []
    registry.stage(5, 0, [make_batch()], answers.append)
    registry.commit(5, 1, (), answers.append)
    error = Busy("no room")
    failing.answer(error)
    assert answers == [error, error]
    registry.stage(5, 0, [make_batch()], answers.append)
    registry.commit(5, 1, (), answers.append)
    failing.answer([Staged(3, 64, 200)])
    (command,) = failing.submitted[0].items
    assert [frame.position for frame in command.staged] == [64]
    failing.answer([TransactionCommitted(((1, 0, 0, 1),))])
    assert answers[2:] == [[Staged(3, 64, 200)], [TransactionCommitted(((1, 0, 0, 1),))]]


def test_what_is_staged_beyond_some_megabytes_is_read_late(registry, failing, monkeypatch):
    batch = make_batch([b"x" * 1000])
    monkeypatch.setattr(module, "_LARGE_BYTES", 2 * batch.header.stored_len)
    for index in range(4):
        registry.stage(5, index, [batch], lambda result: None)
    registry.stage(6, 0, [batch], lambda result: None)
    for part in (7, 8, 9):
        registry.stage(part, 0, [batch], lambda result: None, delivery=DeliveryNumber("job", 1))
    staged = [item for submission in failing.submitted for item in submission.items]
    assert [each.read_late for each in staged] == [False, False, True, True, False, False, False, True]


def test_what_was_staged_for_a_delivery_can_be_aborted_together(log):
    """Whoever staged it; not what is for a later one, for another job or stream, or for none."""
    places = [(1, "job", 3), (1, "job", 2), (1, "job", 4), (1, "other", 3), (2, "job", 3), (1, "", 0)]
    for transaction, (stream, job, number) in enumerate(places, 5):
        stage(log, transaction, 0, make_batch(stream=stream), delivery=DeliveryNumber(job, number))
    log.abort_delivery(1, DeliveryNumber("job", 3))
    assert [each.id for each in log.transactions.listing()] == [7, 8, 9, 10]
    with pytest.raises(TransactionAborted, match="its delivery was aborted"):
        stage(log, 5, 1, make_batch(), delivery=DeliveryNumber("job", 3))
    stage(log, 11, 0, make_batch(), delivery=DeliveryNumber("job", 3))
    assert len(log.transactions.listing()) == 5, "the same delivery may be made again"


def test_what_writes_to_other_streams_too_is_not_aborted_with_a_delivery(log):
    stage(log, 5, 0, make_batch(), make_batch(stream=2), delivery=DeliveryNumber("job", 1))
    log.abort_delivery(1, DeliveryNumber("job", 1))
    assert [each.id for each in log.transactions.listing()] == [5]


def test_what_is_being_staged_is_aborted_with_its_delivery(registry, failing):
    answers: list[Any] = []
    registry.stage(5, 0, [make_batch()], answers.append, delivery=DeliveryNumber("job", 1))
    registry.abort_delivery(1, DeliveryNumber("job", 1))
    failing.answer([Staged(3, 64, 200)])
    assert [type(answer) for answer in answers] == [TransactionAborted]
    counters = registry.counters()
    assert (counters["transactions_open"], counters["transactions_staged_bytes"]) == (0, 0)


def test_parts_whose_commit_failed_are_aborted_with_their_delivery(registry, failing):
    answers: list[Any] = []
    for part in (5, 6):
        registry.stage(part, 0, [make_batch()], answers.append, delivery=DeliveryNumber("job", 1))
        failing.answer([Staged(3, 64 * part, 200)])
    failing.error = Busy("no room")
    with pytest.raises(Busy):
        registry.commit_parts(7, [(5, 1), (6, 1)], answers.append)
    assert [each.id for each in registry.listing()] == [7]
    registry.abort_delivery(1, DeliveryNumber("job", 1))
    assert registry.listing() == []


def test_who_commits_parts_that_were_aborted_hears_that(log):
    stage(log, 5, 0, make_batch(), delivery=DeliveryNumber("job", 1))
    log.abort_delivery(1, DeliveryNumber("job", 1))
    waiter = Waiter()
    log.commit_parts(7, [(5, 1)], waiter.set)
    (outcome,) = waiter.wait(log.batcher)
    assert isinstance(outcome, Rejected)
    assert str(outcome.error).startswith("transaction 5 was aborted: its delivery was aborted")


def test_so_many_deliveries_that_are_over_are_remembered(registry, failing, monkeypatch):
    monkeypatch.setattr(module, "_ENDED_MAX", 2)
    for job in ("a", "b", "c"):
        registry.abort_delivery(1, DeliveryNumber(job, 1), for_good=True)
    registry.stage(5, 0, [make_batch()], lambda result: None, delivery=DeliveryNumber("a", 1))
    for job in ("b", "c"):
        with pytest.raises(TransactionAborted):
            registry.stage(6, 0, [make_batch()], lambda result: None, delivery=DeliveryNumber(job, 1))


def test_for_a_delivery_that_is_over_for_good_nothing_can_be_staged(log):
    log.abort_delivery(1, DeliveryNumber("run", 2), for_good=True)
    for number in (0, 2):
        with pytest.raises(TransactionAborted, match=f"delivery {number} of 'run' was aborted"):
            stage(log, 5, 0, make_batch(), delivery=DeliveryNumber("run", number))
    assert log.transactions.listing() == []
    stage(log, 5, 0, make_batch(), delivery=DeliveryNumber("run", 3))
    stage(log, 6, 0, make_batch(), delivery=DeliveryNumber("another", 0))
    assert [each.id for each in log.transactions.listing()] == [5, 6]


def test_a_delivery_that_is_being_committed_is_not_aborted(registry, failing):
    answers: list[Any] = []
    registry.stage(5, 0, [make_batch()], answers.append, delivery=DeliveryNumber("job", 1))
    failing.answer([Staged(3, 64, 200)])
    registry.commit(5, 1, (), answers.append)
    registry.abort_delivery(1, DeliveryNumber("job", 1))
    failing.answer([TransactionCommitted(((1, 0, 0, 1),))])
    assert answers[1:] == [[TransactionCommitted(((1, 0, 0, 1),))]]


def test_a_commit_that_was_not_taken_can_be_repeated(registry, failing):
    answers: list[Any] = []
    registry.stage(5, 0, [make_batch()], answers.append)
    failing.answer([Staged(3, 64, 200)])
    failing.error = Closed("closed")
    with pytest.raises(Closed):
        registry.commit(5, 1, (), answers.append)
    assert len(answers) == 1
    failing.error = None
    registry.commit(5, 1, (), answers.append)
    failing.answer(Busy("later"))
    assert isinstance(answers[1], Busy)
    registry.commit(5, 1, (), answers.append)
    failing.answer([TransactionCommitted(((1, 0, 0, 1),))])
    assert registry.listing() == []


def test_blocks_are_pinned_from_the_submission_to_the_end(registry, failing):
    registry.stage(5, 0, [make_batch()], lambda result: None)
    # It may come to any block from the one of now on.
    assert registry.pinned(range(7)) == {3, 4, 5, 6}
    failing.answer([Staged(4, 64, 200)])
    assert registry.pinned(range(7)) == {4}
    registry.commit(5, 1, (), lambda result: None)
    assert registry.pinned(range(7)) == {4}
    failing.answer([TransactionCommitted(((1, 0, 0, 1),))])
    assert registry.pinned(range(7)) == set()


def test_threads_that_stage_and_commit_at_once(tmp_path):
    """Each transaction is whole, and its records stand next to each other in the order in which they were staged. Who
    follows meanwhile gets every offset once, from memory or from disk, and never half of a transaction."""
    log = Log(tmp_path / "data", OPTIONS)
    make_stream(log, shards=2)
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for turn in range(10):
                append_values(log, 1, *[b"0 plain"] * 6)
                number = worker * 100 + turn + 1
                for index in range(3):
                    values = [b"%d %d" % (number, index)] * 2
                    stage(log, number, index, make_batch(values), make_batch(values, shard=1))
                if turn % 4 == 3:
                    log.abort_transaction(number)
                else:
                    commit(log, number, 6)
        except BaseException as error:  # told by the test's own thread
            errors.append(error)

    followed: list[bytes | None] = []

    def follow() -> None:
        try:
            row = log.reader.require_stream(1)
            while len(followed) < 4 * (8 + 10) * 6 and not errors:
                end = log.reader.shard(1, 0).stable
                assert end % 6 == 0
                for batch in log.reader.read(row, 0, len(followed)):
                    assert batch.base == len(followed)
                    followed.extend(values_of(batch))
        except BaseException as error:  # as above
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    threads.append(threading.Thread(target=follow))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert followed == read(log, 1)
    for found in (followed, read(log, 1, 1)):
        whole = [found[first : first + 6] for first in range(0, len(found), 6)]
        bound = [values for values in whole if values != [b"0 plain"] * 6]
        assert len(bound) == 4 * 8
        for values in bound:
            number = int((values[0] or b"").split()[0])
            assert values == [b"%d %d" % (number, index) for index in range(3) for _ in range(2)]
    log.close()


# Upkeep.


def test_the_block_of_a_long_transaction_is_not_freed(keeping, log):
    """Nothing points into it, and another such block goes meanwhile."""
    keeping.roll()
    stage(log, 5, 0, make_batch([marker(1)]), timeout=900)
    keeping.roll()
    stage(log, 6, 0, make_batch([marker(2)]))
    log.abort_transaction(6)
    keeping.roll()
    pass_time(keeping, 880.0)
    assert (keeping.on_disk(marker(1)), keeping.on_disk(marker(2))) == (True, False)
    commit(log, 5, 1)
    pass_time(keeping, 2 * HOUR)
    assert read(log, 1) == [marker(1)]


def test_the_space_of_an_abandoned_transaction_comes_back(keeping, log):
    keeping.roll()
    stage(log, 5, 0, make_batch([marker(1)]))
    keeping.roll()
    assert keeping.on_disk(marker(1))
    pass_time(keeping, 2 * HOUR)
    assert log.transactions.listing() == []
    assert not keeping.on_disk(marker(1))


def test_what_is_left_of_a_transaction_after_a_restart_goes_too(keeping, log):
    append_values(log, 1, b"kept")
    stage(log, 5, 0, make_batch([marker(1)]))
    keeping.reopen()
    keeping.roll()
    keeping.log.execute(DeleteStream(1, keeping.clock.now_us()))
    keeping.collect()
    assert not keeping.on_disk(marker(1))


@pytest.mark.slow("stages a thousand transactions")
def test_a_thousand_abandoned_transactions_give_their_space_back(keeping, log):
    for number in range(1, 1_001):
        stage(log, number, 0, make_batch([marker(number, 2_000)]))
        if number % 100 == 0:
            append_values(log, 2, b"kept %d" % number)
    size = sum(path.stat().st_size for path in (keeping.path / "blocks").iterdir())
    assert size > 2_000_000
    assert len(log.transactions.listing()) == 1_000
    keeping.clock.advance(61)
    keeping.collect()
    size = sum(path.stat().st_size for path in (keeping.path / "blocks").iterdir())
    assert size < 200_000
    assert log.transactions.counters() == {
        "transactions_committed": 0,
        "transactions_aborted": 1_000,
        "transactions_timed_out": 1_000,
        "transactions_open": 0,
        "transactions_staged_batches": 0,
        "transactions_staged_bytes": 0,
    }
    assert len(read(log, 2)) == 10


@pytest.mark.slow("commits a thousand transactions")
def test_entries_of_transactions_are_merged_and_moved_like_others(keeping, log):
    for number in range(1, 1_101):
        stage(log, number, 0, make_batch([b"v%d" % number]))
        commit(log, number, 1)
    assert len(keeping.entries(1)) == 1_100
    keeping.keep(60)
    assert len(keeping.entries(1)) < 200
    keeping.collect()
    assert read(log, 1) == [b"v%d" % number for number in range(1, 1_101)]
    keeping.reopen(without_ledger=True)
    assert len(read(keeping.log, 1)) == 1_100


def test_what_was_staged_is_compacted_and_expires_like_the_rest(keeping):
    compacted = keeping.create("compacted", cleanup="compact")
    expiring = keeping.create("expiring", retention_us=round(HOUR * 1e6))
    for turn in range(3):
        now = keeping.clock.now_us()
        records = [(b"same", b"%d" % turn, now), (b"k%d" % turn, b"v", now)]
        batches = [make_keyed_batch(records, stream=stream) for stream in (compacted, expiring)]
        stage(keeping.log, turn + 1, 0, *batches)
        commit(keeping.log, turn + 1, 2)
        keeping.roll()
        keeping.clock.advance(0.7 * HOUR)
    keeping.keep(60)
    assert list(keeping.read(expiring)) == [4, 5]
    keeping.keep(DIRTY_SECONDS_MAX)
    found = keeping.read(compacted)
    assert list(found.values()) == [(b"k0", b"v"), (b"k1", b"v"), (b"same", b"2"), (b"k2", b"v")]


def test_a_backup_has_what_is_committed_and_nothing_else(keeping, log, tmp_path):
    keeping.roll()
    stage(log, 5, 0, make_batch([b"a"]))
    stage(log, 6, 0, make_batch([b"b"]))
    keeping.roll()
    # Nothing in that block is alive before this.
    done = commit(log, 5, 1)
    back_up(keeping.path, tmp_path / "backup")
    commit(log, 6, 1)
    restore(tmp_path / "backup", tmp_path / "restored")
    restored = Log(tmp_path / "restored")
    assert read(restored, 1) == [b"a"]
    assert commit(restored, 5, 1) == TransactionCommitted(done.offsets, duplicate=True)
    with pytest.raises(UnknownTransaction):
        commit(restored, 6, 1)
    restored.close()


def test_keys_are_erased_from_what_was_staged(keeping):
    """Also from what was never committed."""
    stream = keeping.create()
    now = keeping.clock.now_us()
    stage(keeping.log, 5, 0, make_keyed_batch([(b"k", marker(1), now), (b"l", b"stays", now)], stream=stream))
    stage(keeping.log, 6, 0, make_keyed_batch([(b"k", marker(2), now)], stream=stream))
    commit(keeping.log, 5, 1)
    keeping.log.abort_transaction(6)
    assert keeping.log.upkeep.erase(keeping.row(stream), b"k") == 1
    assert list(keeping.read(stream, cold=False).values()) == [(b"l", b"stays")]
    keeping.collect()
    assert not keeping.on_disk(marker(1))
    assert not keeping.on_disk(marker(2))
    assert list(keeping.read(stream).values()) == [(b"l", b"stays")]


def test_only_so_many_transactions_are_remembered(keeping, log, monkeypatch):
    monkeypatch.setattr("mainstem.log.upkeep.forgetting.TRANSACTIONS_REMEMBERED_MAX", 3)
    for number in range(1, 6):
        commit(log, number, 0)
        keeping.clock.advance(1)
    keeping.keep(60)
    assert [number for number in range(1, 6) if log._ledger.load_transaction(number)] == [3, 4, 5]


def test_transactions_are_remembered_for_a_day(keeping, log):
    for number in range(1, 4):
        commit(log, number, 0)
        log.open_writer(f"w{number}")
        keeping.clock.advance(HOUR)
    keeping.keep(DAY - 2.5 * HOUR)
    known = [number for number in range(1, 4) if log._ledger.load_transaction(number)]
    assert known == [2, 3]
    keeping.keep(6 * DAY)
    assert [number for number in range(1, 4) if log._ledger.load_transaction(number)] == []
    assert [number for number in range(1, 4) if log._ledger.load_writer(f"w{number}")] == [2, 3]


# Whole ones, in one flush.


def test_a_whole_transaction_is_one_flush(log):
    append_values(log, 1, b"before")
    flushes = log.batcher._written
    found = commit_whole(
        log, 5, make_batch([b"a", b"b"]), make_batch([b"c"], shard=1), make_batch([b"d"]), make_batch([b"e"], stream=2)
    )
    assert log.batcher._written == flushes + 1
    assert found == TransactionCommitted(((1, 0, 1, 3), (1, 1, 0, 1), (2, 0, 0, 1)))
    assert (read(log, 1), read(log, 1, 1), read(log, 2)) == ([b"before", b"a", b"b", b"d"], [b"c"], [b"e"])
    append_values(log, 1, b"after")
    assert read(log, 1) == [b"before", b"a", b"b", b"d", b"after"]
    assert log.transactions.counters()["transactions_open"] == 0
    assert log.transactions.counters()["transactions_committed"] == 1
    assert log.ledger.dead_totals() == {}


def test_a_whole_transaction_is_in_the_hot_tail(log):
    commit_whole(log, 5, make_batch([b"a"]), make_batch([b"b"]))
    (first, second) = log.hot.find(1, 0, 0, 1 << 20)
    assert (values_of(first), values_of(second)) == ([b"a"], [b"b"])
    assert (first.base, second.base, first.header.transaction) == (0, 1, 0)


def test_a_whole_transaction_that_is_repeated_has_the_same_answer(log):
    found = commit_whole(log, 5, make_batch([b"a"]))
    append_values(log, 1, b"between")
    again = commit_whole(log, 5, make_batch([b"a"]))
    assert (again.offsets, again.duplicate) == (found.offsets, True)
    assert read(log, 1) == [b"a", b"between"]
    assert commit(log, 5, 1).offsets == found.offsets


def test_a_whole_transaction_moves_cursors_or_does_nothing(log):
    append_values(log, 1, b"x", b"y")
    assert isinstance(assign(log, "g", 1, (1, 0, 77)), Assigned)
    with pytest.raises(Fenced):
        commit_whole(log, 5, make_batch([b"a"], stream=2), cursors=[GroupCursors("g", 78, ((1, 0, 1),))])
    assert read(log, 2) == []
    assert sum(log.ledger.dead_totals().values()) > 0
    with pytest.raises(TransactionAborted):
        commit_whole(log, 5, make_batch([b"a"], stream=2))
    commit_whole(log, 6, make_batch([b"a"], stream=2), cursors=[GroupCursors("g", 77, ((1, 0, 1),))])
    assert read(log, 2) == [b"a"]
    assert log.groups.get("g").shards[1, 0].offset == 1


def test_a_whole_transaction_of_a_deleted_stream_or_an_older_writer_is_refused(log):
    old = log.open_writer("w")
    log.open_writer("w")
    with pytest.raises(Fenced):
        commit_whole(log, 4, make_batch([b"a"]), writer=old)
    log.execute(DeleteStream(2, log.clock.now_us()))
    with pytest.raises(MainstemError):
        commit_whole(log, 5, make_batch([b"a"]), make_batch([b"b"], stream=2))
    assert read(log, 1) == []


def test_what_was_begun_cannot_be_committed_whole(log):
    stage(log, 5, 0, make_batch([b"a"]))
    with pytest.raises(InvalidRequest):
        commit_whole(log, 5, make_batch([b"b"]))
    commit(log, 5, 1)
    assert read(log, 1) == [b"a"]


def test_whole_staged_and_plain_in_one_flush(log):
    """The hot tail has no gaps, whatever comes together."""
    stage(log, 5, 0, make_batch([b"b"]))
    done: list[object] = []
    log.commit_whole(6, [make_batch([b"a"]), make_batch([b"a2"], stream=2)], (), done.append)
    log.commit_transaction(5, 1, (), done.append)
    log.commit_whole(7, [make_batch([b"c"])], (), done.append)
    log.append([make_batch([b"d"])], done.append)
    log.batcher.drive()
    assert len(done) == 4
    assert read(log, 1) == [b"a", b"b", b"c", b"d"]
    assert read(log, 2) == [b"a2"]
    assert [batch.base for batch in log.hot.find(1, 0, 2, 1 << 20)] == [2, 3]
    assert log.hot.find(1, 0, 0, 1 << 20) == []


def test_whole_transactions_are_the_same_when_the_ledger_is_rebuilt(keeping, log):
    commit_whole(log, 5, make_batch([b"a"]), make_batch([b"b"], shard=1), make_batch([b"c"]))
    with pytest.raises(MainstemError):
        commit_whole(log, 6, make_batch([b"no"], shard=9))
    append_values(log, 1, b"d")
    before = (read(log, 1), read(log, 1, 1), log.ledger.dead_totals())
    keeping.reopen(without_ledger=True)
    again = keeping.log
    assert (read(again, 1), read(again, 1, 1), again.ledger.dead_totals()) == before
    assert commit_whole(again, 5, make_batch([b"a"])).duplicate
