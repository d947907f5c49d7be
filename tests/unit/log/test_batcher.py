"""Group commit: what gathers while the disk is busy, in which order it lands, and how it ends."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.batch import Batch
from mainstem.core.errors import Busy, Closed, FolderUnusable, MainstemError
from mainstem.log import batcher as batcher_module
from mainstem.log.batcher import FlushNotice, Outcomes, Submission
from mainstem.log.flush import Appended, DeleteStream, Done, Rejected
from mainstem.log.log import Log, Waiter
from tests.unit.log.parts import WatchedDisk, append, append_values, make_batch, make_stream, values_of


class Gate:
    """Holds every write to a block while it is closed."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.arrived = threading.Event()
        self.writes = 0

    def __call__(self, path: Path) -> None:
        self.writes += 1
        self.arrived.set()
        assert self.is_open.wait(10)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def log(tmp_path, gate):
    log = Log(tmp_path, disk=WatchedDisk(gate))
    yield log
    gate.is_open.set()
    log.close()


class Results:
    """What became of submissions, in the order in which it became known."""

    def __init__(self) -> None:
        self.all: list[tuple[int, Outcomes | MainstemError]] = []
        self._changed = threading.Condition()

    def taker(self, number: int) -> Callable[[Outcomes | MainstemError], None]:
        def take(result: Outcomes | MainstemError) -> None:
            with self._changed:
                self.all.append((number, result))
                self._changed.notify_all()

        return take

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, 10)


def running(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def applied(log: Log) -> int:
    return log.counters()["flushes_applied"]


def test_what_gathers_while_a_flush_is_on_disk_becomes_one_flush(log, gate):
    """Fifty threads submit and wait while the disk holds the first flush: two flushes in all."""
    stream = make_stream(log)
    before = applied(log)
    gate.arrived.clear()
    gate.is_open.clear()
    first = running(lambda: append_values(log, stream, b"first"))
    assert gate.arrived.wait(5)
    results = Results()
    for number in range(50):
        log.append([make_batch([b"%d" % number], stream=stream)], results.taker(number))
    drivers = [running(log.batcher.drive) for _ in range(50)]
    gate.is_open.set()
    results.wait(50)
    for thread in (first, *drivers):
        thread.join(5)
    assert applied(log) - before == 2
    assert gate.writes >= 2
    row = log.reader.shard(stream, 0)
    assert row.next == 51


def test_threads_that_wait_for_their_own_record_share_flushes(log, gate):
    stream = make_stream(log)
    before = applied(log)
    barrier = threading.Barrier(16)

    def write(number: int) -> None:
        barrier.wait()
        for _ in range(20):
            append_values(log, stream, b"%d" % number)

    threads = [running(partial(write, number)) for number in range(16)]
    for thread in threads:
        thread.join(20)
    assert log.reader.shard(stream, 0).next == 320
    assert applied(log) - before < 320


def test_each_shard_keeps_the_order_of_submission(log, gate):
    stream = make_stream(log, shards=3)
    results = Results()
    for number in range(60):
        batch = make_batch([b"%d" % number], stream=stream, shard=number % 3)
        log.append([batch], results.taker(number))
    log.batcher.drive()
    results.wait(60)
    found = dict(results.all)
    assert found == {number: [Appended(number // 3)] for number in range(60)}
    row = log.reader.require_stream(stream)
    for shard in range(3):
        stored = [value for batch in log.reader.read(row, shard, 0) for value in values_of(batch)]
        assert stored == [b"%d" % number for number in range(shard, 60, 3)]


def test_one_flush_is_one_entry_per_shard_and_one_write(log, gate):
    stream = make_stream(log, shards=2)
    writes = gate.writes
    append(log, *(make_batch([b"x"], stream=stream, shard=number % 2) for number in range(40)))
    assert gate.writes == writes + 1
    for shard in range(2):
        assert [entry.span for entry in log.ledger.entries_from(stream, shard, 0, 99)] == [20]


def test_outcomes_come_in_the_order_of_the_items_of_each_submission(log):
    stream = make_stream(log, shards=2)
    outcomes = append(
        log,
        make_batch([b"a"], stream=stream, shard=1),
        make_batch([b"b"], stream=99),
        make_batch([b"c"], stream=stream, shard=0),
        make_batch([b"d"], stream=stream, shard=1),
    )
    assert [type(outcome) for outcome in outcomes] == [Appended, Rejected, Appended, Appended]
    assert [outcome.base for outcome in outcomes if isinstance(outcome, Appended)] == [0, 0, 1]


def test_a_flush_takes_no_more_than_its_limits(log, monkeypatch):
    stream = make_stream(log)
    monkeypatch.setattr(batcher_module, "FLUSH_BATCHES_MAX", 10)
    before = applied(log)
    results = Results()
    for number in range(7):
        log.append(
            [make_batch([b"x"], stream=stream)] * 1 + [make_batch([b"y"], stream=stream)] * 1, results.taker(number)
        )
    while len(results.all) < 7:
        log.batcher.drive()
    assert applied(log) - before == 2
    monkeypatch.setattr(batcher_module, "FLUSH_BYTES_MAX", 5_000)
    before = applied(log)
    for number in range(4):
        log.append([make_batch([b"z" * 3_000], stream=stream)], results.taker(number))
    while len(results.all) < 11:
        log.batcher.drive()
    assert applied(log) - before == 4


def test_too_much_waiting_is_busy_and_passes(log, monkeypatch):
    stream = make_stream(log)
    monkeypatch.setattr(batcher_module, "PENDING_BYTES_MAX", 10_000)
    results = Results()
    large = make_batch([b"z" * 9_000], stream=stream)
    log.append([large], results.taker(0))
    assert log.batcher.pending_bytes == large.header.stored_len
    with pytest.raises(Busy) as caught:
        log.append([large], results.taker(1))
    assert caught.value.retriable
    log.batcher.drive()
    assert log.batcher.pending_bytes == 0
    log.append([large], results.taker(2))
    log.batcher.drive()
    assert [number for number, _ in results.all] == [0, 2]


def test_a_submission_larger_than_all_that_may_wait_is_taken_when_nothing_waits(log, monkeypatch):
    stream = make_stream(log)
    monkeypatch.setattr(batcher_module, "PENDING_BYTES_MAX", 100)
    assert append_values(log, stream, b"z" * 9_000) == 0


def test_commands_and_batches_of_one_flush_take_effect_together(log, gate):
    stream = make_stream(log)
    waiting, deleting = Waiter(), Waiter()
    log.append([make_batch([b"x"], stream=stream)], waiting.set)
    log.batcher.submit(Submission((DeleteStream(stream, 5),), deleting.set))
    before = applied(log)
    assert isinstance(deleting.wait(log.batcher)[0], Done)
    assert applied(log) - before == 1
    assert isinstance(waiting.wait(log.batcher)[0], Appended | Rejected)


def test_listeners_hear_of_ends_and_deletions_after_they_can_be_read(log):
    stream = make_stream(log, shards=2)
    heard: list[tuple[FlushNotice, int]] = []

    def listen(notice: FlushNotice) -> None:
        heard.append((notice, log.reader.shard(stream, 1).next))

    log.batcher.add_listener(listen)
    append(log, make_batch([b"x", b"y"], stream=stream, shard=1))
    log.execute(DeleteStream(stream, 5))
    assert heard == [(FlushNotice({(stream, 1): 2}, ()), 2), (FlushNotice({}, (stream,)), 2)]


# Completions are somebody else's code.


def in_time(work: Callable[[], object], seconds: float = 5.0) -> None:
    """Run in a thread, so that a deadlock is a failure and not a test that never ends."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = running(run)
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for itself"
    if errors:
        raise errors[0]


def test_a_completion_may_submit_and_commit_more(log):
    """A producer ships what gathered as soon as it is answered, and may have to wait for room: in the completion."""
    stream = make_stream(log)
    followed = Waiter()

    def go_on(_: Any) -> None:
        log.append([make_batch([b"second"], stream=stream)], followed.set)
        followed.wait(log.batcher)

    def work() -> None:
        log.append([make_batch([b"first"], stream=stream)], go_on)
        log.batcher.drive()

    in_time(work)
    assert log.reader.shard(stream, 0).next == 2


def test_a_completion_of_a_failed_flush_may_submit_and_drive(tmp_path):
    """It is refused, at once, and nobody waits for anybody."""
    broken = False

    def fail(path: Path) -> None:
        if broken:
            raise OSError(5, "Input/output error")

    log = Log(tmp_path, disk=WatchedDisk(fail))
    stream = make_stream(log)
    broken = True
    refused: list[MainstemError] = []

    def go_on(_: Any) -> None:
        try:
            log.append([make_batch([b"second"], stream=stream)], lambda result: None)
        except MainstemError as error:
            refused.append(error)
        log.batcher.drive()

    def work() -> None:
        log.append([make_batch([b"first"], stream=stream)], go_on)
        log.batcher.drive()

    in_time(work)
    assert [type(error) for error in refused] == [FolderUnusable]
    log.close()


# The disk fails.


class Failing:
    """A log whose disk fails once it is told to."""

    def __init__(self, path: Path) -> None:
        self.is_broken = False
        self.error: BaseException = OSError(5, "Input/output error")
        self.log = Log(path, disk=WatchedDisk(self._fail))
        self.stream = make_stream(self.log)

    def _fail(self, path: Path) -> None:
        if self.is_broken:
            raise self.error


@pytest.fixture
def failing(tmp_path):
    failing = Failing(tmp_path)
    yield failing
    failing.log.close()


def test_after_the_first_error_of_the_disk_nothing_is_acknowledged(failing, tmp_path):
    log, stream = failing.log, failing.stream
    told: list[MainstemError] = []
    log.batcher.on_failure = told.append
    assert append_values(log, stream, b"kept") == 0
    results = Results()
    failing.is_broken = True
    for number in range(3):
        log.append([make_batch([b"lost"], stream=stream)], results.taker(number))
    log.batcher.drive()
    assert [type(result) for _, result in results.all] == [FolderUnusable] * 3
    assert "Input/output error" in str(results.all[0][1])
    failing.is_broken = False
    with pytest.raises(FolderUnusable, match="nothing more is acknowledged"):
        log.append([make_batch([b"refused"], stream=stream)], results.taker(9))
    log.batcher.drive()
    assert len(results.all) == 3
    assert told == [log.batcher.failure]
    assert log.reader.shard(stream, 0).next == 1
    log.close()
    again = Log(tmp_path)
    assert again.reader.shard(stream, 0).next == 1
    assert append_values(again, stream, b"more") == 1
    again.close()


def test_what_waited_behind_a_failing_flush_is_refused_too(tmp_path, monkeypatch):
    monkeypatch.setattr(batcher_module, "FLUSH_BATCHES_MAX", 1)
    failing = Failing(tmp_path)
    results = Results()
    failing.is_broken = True
    for number in range(5):
        failing.log.append([make_batch([b"x"], stream=failing.stream)], results.taker(number))
    failing.log.batcher.drive()
    assert [(number, type(result)) for number, result in results.all] == [(n, FolderUnusable) for n in range(5)]
    failing.log.close()


def test_a_ledger_that_fails_fences_as_well(failing, monkeypatch):
    log = failing.log

    def fail(changes: Any) -> None:
        raise RuntimeError("out of cheese")

    monkeypatch.setattr(log._ledger, "store", fail)
    with pytest.raises(FolderUnusable, match="out of cheese"):
        append_values(log, failing.stream, b"x")
    monkeypatch.undo()
    with pytest.raises(FolderUnusable):
        append_values(log, failing.stream, b"y")


@pytest.mark.parametrize("error", [RuntimeError("out of cheese"), KeyboardInterrupt()])
def test_a_flush_on_disk_behind_one_that_fails_late_is_not_acknowledged(log, gate, monkeypatch, error):
    """The first is in the ledger when it fails; nothing of the second is wrong, and still nobody may rely on it."""
    stream = make_stream(log)
    told: list[MainstemError] = []
    log.batcher.on_failure = told.append
    results = Results()
    second_errors: list[BaseException] = []

    def drive_second() -> None:
        try:
            log.batcher.drive()
        except BaseException as raised:
            second_errors.append(raised)

    threads: list[threading.Thread] = []

    def fail(batches: Any) -> None:
        gate.arrived.clear()
        log.append([make_batch([b"second"], stream=stream)], results.taker(2))
        threads.append(running(drive_second))
        assert gate.arrived.wait(5), "the second is written while the first is applied"
        raise error

    monkeypatch.setattr(log.hot, "append", fail)
    log.append([make_batch([b"first"], stream=stream)], results.taker(1))
    if isinstance(error, Exception):
        log.batcher.drive()
    else:
        with pytest.raises(type(error)):
            log.batcher.drive()
    results.wait(2)
    threads[0].join(5)
    assert [(number, type(result)) for number, result in sorted(results.all)] == [
        (1, FolderUnusable),
        (2, FolderUnusable),
    ]
    assert told == [log.batcher.failure]
    assert second_errors == []


def test_who_waits_for_a_commit_of_another_thread_sleeps(log, monkeypatch):
    """What it waits for was taken: going around would only take the interpreter from the thread that applies it."""
    stream = make_stream(log)
    applying, may_apply, sleeps = threading.Event(), threading.Event(), threading.Event()
    apply = log._applier.apply

    def held(flush: Any) -> Any:
        applying.set()
        assert may_apply.wait(10)
        return apply(flush)

    class Watched(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            sleeps.set()
            return super().wait(timeout)

    monkeypatch.setattr(log._applier, "apply", held)
    waiter = Waiter()
    waiter._event = Watched()
    log.append([make_batch([b"x"], stream=stream)], waiter.set)
    driver = running(log.batcher.drive)
    assert applying.wait(5)
    waiting = running(lambda: waiter.wait(log.batcher))
    has_slept = sleeps.wait(5)
    may_apply.set()
    for thread in (driver, waiting):
        thread.join(5)
        assert not thread.is_alive()
    assert has_slept


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_thread_that_commits_fences_and_is_not_swallowed(failing, interrupt):
    """Ctrl-C while a thread commits for itself: what was under way is unknown, and the user still gets out."""
    failing.error = interrupt()
    failing.is_broken = True
    waiter = Waiter()
    failing.log.append([make_batch([b"x"], stream=failing.stream)], waiter.set)
    with pytest.raises(interrupt):
        failing.log.batcher.drive()
    assert waiter.is_set
    assert isinstance(failing.log.batcher.failure, FolderUnusable)


# Ending.


def test_close_commits_what_is_pending(tmp_path):
    log = Log(tmp_path)
    stream = make_stream(log)
    results = Results()
    for number in range(10):
        log.append([make_batch([b"%d" % number], stream=stream)], results.taker(number))
    log.close()
    assert len(results.all) == 10
    assert all(isinstance(result, list) for _, result in results.all)
    again = Log(tmp_path)
    assert again.reader.shard(stream, 0).next == 10
    again.close()


def test_after_close_nothing_is_taken(tmp_path):
    log = Log(tmp_path)
    stream = make_stream(log)
    log.close()
    log.close()
    with pytest.raises(Closed):
        log.append([make_batch([b"x"], stream=stream)], lambda result: None)


def test_the_commit_threads_of_a_server_end_when_the_log_closes(tmp_path):
    log = Log(tmp_path)
    stream = make_stream(log)
    threads = [running(log.batcher.run) for _ in range(2)]
    results = Results()
    for number in range(100):
        log.append([make_batch([b"%d" % number], stream=stream)], results.taker(number))
    results.wait(100)
    log.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_two_commit_threads_keep_the_order_of_every_producer(tmp_path):
    """Sequences are checked by the ledger, so one swap of two flushes would be refused."""
    log = Log(tmp_path)
    stream = make_stream(log)
    threads = [running(log.batcher.run) for _ in range(2)]
    results = Results()
    for number in range(300):
        batch = make_batch([b"%d" % number], stream=stream, producer=7, sequence=number)
        log.append([batch], results.taker(number))
        if number % 7 == 0:
            results.wait(max(0, number - 20))
    results.wait(300)
    found = {number: result[0] for number, result in results.all if isinstance(result, list)}
    assert found == {number: Appended(number) for number in range(300)}
    log.close()
    for thread in threads:
        thread.join(5)


def test_a_batch_submitted_twice_in_one_flush_is_one(log):
    stream = make_stream(log)
    batch = make_batch([b"x"], stream=stream, producer=7, sequence=0)
    again = Batch(batch.header, batch.payload)
    assert append(log, batch, again) == [Appended(0), Appended(0, duplicate=True)]
    assert log.reader.shard(stream, 0).next == 1
