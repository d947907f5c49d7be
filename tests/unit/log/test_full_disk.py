"""A log on a disk that gets full: what is refused, what waits, what still works, and that it goes on by itself."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.batch import Buffer
from mainstem.core.errors import DiskFull, FolderUnusable, MainstemError
from mainstem.core.limits import MIB
from mainstem.hub.embedded import FolderPort
from mainstem.log import batcher
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.disk import DiskFile
from mainstem.log.flush import (
    Appended,
    CreateStream,
    DeleteStream,
    ReplaceEntries,
    Replacement,
    Staged,
    TransactionCommitted,
    TrimShard,
)
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.log.log import Log, LogOptions
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.disk import BudgetDisk, DiskLayer, FailingDisk
from tests.unit.log.parts import FOREVER_US, NOW_US, append, append_values, make_batch, make_stream, values_of

PLENTY = 1 << 39
# Nothing is refused before the disk is really full.
TO_THE_BYTE = LogOptions(block_bytes=64 << 10, checkpoint_bytes=64 << 10, free_bytes_min=0)


class Rig:
    """A log with one stream on a counted disk and a clock that moves only when somebody waits."""

    def __init__(self, path: Path, options: LogOptions = TO_THE_BYTE, disk: BudgetDisk | None = None) -> None:
        self.path = path
        self.clock = SimulatedClock(autojump=True)
        self.disk = disk or BudgetDisk(free=PLENTY)
        self.log = Log(path, options, clock=self.clock, disk=self.disk)
        self.stream = make_stream(self.log)
        self.told: list[tuple[int, Outcomes | MainstemError]] = []

    def submit(self, number: int, patience: float = 60.0, **facts: Any) -> None:
        """A batch that waits for room for so many seconds."""

        def done(result: Outcomes | MainstemError) -> None:
            self.told.append((number, result))

        batch = make_batch([b"%d" % number * 100], stream=self.stream, **facts)
        until = self.clock.monotonic() + patience if patience else 0.0
        self.log.batcher.submit(Submission([batch], done, until))

    def free(self) -> None:
        self.disk.free = PLENTY
        self.clock.advance(5.0)
        self.log.batcher.drive()

    def bases(self) -> list[int]:
        return [result[0].base for _, result in self.told if not isinstance(result, MainstemError)]  # type: ignore[union-attr]

    def values(self) -> list[bytes | None]:
        row = self.log.reader.require_stream(self.stream)
        end = self.log.reader.shard(self.stream, 0).stable
        found: list[bytes | None] = []
        offset = 0
        while offset < end:
            for batch in self.log.reader.read(row, 0, offset):
                found += values_of(batch)
                offset = batch.end
        return found


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.disk.free = PLENTY
    rig.log.close()


@pytest.fixture
def watched(tmp_path):
    """A log that refuses below 256 MiB."""
    rig = Rig(tmp_path, LogOptions())
    yield rig
    rig.disk.free = PLENTY
    rig.log.close()


# The watermark.


def test_below_the_watermark_appends_are_refused_and_everything_else_goes_on(watched):
    log, stream = watched.log, watched.stream
    append_values(log, stream, b"a", b"b", b"c")
    watched.disk.free = 255 * MIB
    watched.clock.advance(1.0)
    log.space.look()
    with pytest.raises(DiskFull, match="free_bytes_min"):
        append_values(log, stream, b"refused")
    assert watched.values() == [b"a", b"b", b"c"]
    log.execute(TrimShard(stream, 0, 2))
    other = log.execute(CreateStream("ab" * 16, "other", 1, "crc32", FOREVER_US, NOW_US)).stream
    log.execute(DeleteStream(other, NOW_US))
    assert log.reader.shard(stream, 0).start == 2
    watched.disk.free = 1024 * MIB
    with pytest.raises(DiskFull):
        append_values(log, stream, b"refused")  # it was asked a moment ago
    watched.clock.advance(0.1)
    assert append_values(log, stream, b"d") == 3
    assert watched.disk.free < 1024 * MIB


def test_the_counters_say_so(watched):
    def counters() -> tuple[int, ...]:
        found = watched.log.counters()
        names = ("free_bytes", "disk_full", "appends_refused_full", "seconds_until_full")
        return tuple(found[name] for name in names)

    assert counters() == (watched.disk.free, 0, 0, -1)
    watched.disk.free = 100
    assert counters() == (100, 1, 0, 0)
    with pytest.raises(DiskFull):
        append_values(watched.log, watched.stream, b"refused")
    assert counters() == (100, 1, 1, 0)


def test_upkeep_is_refused_only_what_would_not_fit(watched):
    batch = make_batch([bytes(2 * MIB)], stream=watched.stream)
    replaced = Replacement(ReplaceEntries(watched.stream, 0, 0, 1, 1, 0, ((1, 1),)), ())
    submission = Submission([replaced], lambda result: None)
    submission.size = batch.header.stored_len
    watched.disk.free = 4 * MIB
    watched.clock.advance(1.0)
    watched.log.space.look()
    watched.log.batcher.submit(submission)
    watched.disk.free = 2 * MIB
    watched.clock.advance(1.0)
    with pytest.raises(DiskFull):
        watched.log.batcher.submit(submission)
    watched.log.batcher.drive()


# No room at all.


def test_at_every_byte_at_which_the_disk_is_full_the_append_waits_and_is_written_once(rig):
    """The rooms are those of everything between no room for a block's header and room for a footer and the flush."""
    for number, room in enumerate(range(0, 2_000, 13)):
        rig.disk.free = room
        rig.submit(number)
        rig.log.batcher.drive()
        rig.free()
    assert rig.bases() == list(range(len(rig.told)))
    assert rig.disk.refused > 10
    expected = [b"%d" % number * 100 for number in range(len(rig.told))]
    assert rig.values() == expected
    rig.log.close()
    again = Rig.__new__(Rig)
    again.log = Log(rig.path, TO_THE_BYTE)
    again.stream = rig.stream
    assert again.values() == expected
    again.log.close()


def test_what_waits_keeps_its_order_and_what_comes_later_is_refused(rig):
    rig.disk.free = 0
    for sequence in range(3):
        rig.submit(sequence, producer=7, sequence=sequence)
    rig.log.batcher.drive()
    rig.log.batcher.drive()
    assert rig.log.batcher.is_holding
    assert rig.told == []
    with pytest.raises(DiskFull):
        rig.submit(3, producer=7, sequence=3)
    rig.disk.free = PLENTY
    rig.clock.advance(5.0)
    rig.log.space.look()
    # Before what waits was queued again: it still comes after.
    rig.submit(3, producer=7, sequence=3)
    rig.log.batcher.drive()
    assert [number for number, _ in rig.told] == [0, 1, 2, 3]
    assert rig.bases() == [0, 1, 2, 3]
    assert rig.log.batcher.pending_bytes == 0


def test_who_has_no_patience_is_refused_at_once_and_may_come_again(rig):
    rig.disk.free = 100
    with pytest.raises(DiskFull):
        append(rig.log, make_batch(stream=rig.stream, producer=7))
    rig.free()
    (outcome,) = append(rig.log, make_batch(stream=rig.stream, producer=7))
    assert outcome == Appended(0)


def test_who_has_waited_long_enough_is_told_why(rig):
    rig.disk.free = 0
    rig.submit(0, patience=10.0)
    rig.submit(1, patience=30.0)
    rig.log.batcher.drive()
    for _ in range(100):
        rig.clock.advance(0.2)
        rig.log.batcher.drive()
    ((number, result),) = rig.told
    assert number == 0
    assert isinstance(result, DiskFull)
    rig.free()
    assert rig.bases() == [0]


def test_a_log_that_is_closed_does_not_wait_for_room(rig):
    rig.disk.free = 0
    rig.submit(0)
    rig.log.batcher.drive()
    rig.log.close()
    assert isinstance(rig.told[0][1], DiskFull)


def test_a_block_for_which_there_is_no_room_leaves_no_file(tmp_path):
    rig = Rig(tmp_path)
    rig.log.close()
    before = os.listdir(tmp_path / "blocks")
    for room in (0, 30, 63, 64, 70):
        disk = BudgetDisk(free=room)
        log = Log(tmp_path, TO_THE_BYTE, disk=disk)
        with pytest.raises(DiskFull):
            append_values(log, rig.stream, b"x")
        assert log.batcher.failure is None
        assert os.listdir(tmp_path / "blocks") == before
        log.close()


def test_the_block_that_got_full_is_cut_back_and_sealed(rig):
    append_values(rig.log, rig.stream, b"kept")
    path = rig.path / "blocks" / f"{1:016d}.block"
    size = path.stat().st_size
    rig.disk.free = 100
    rig.submit(1)
    rig.log.batcher.drive()
    assert path.stat().st_size == size
    assert rig.disk.free == 100
    rig.free()
    assert rig.bases() == [1]
    blocks = rig.log.ledger.list_blocks()
    assert [(row.id, row.state, row.bytes) for row in blocks[:1]] == [(1, "sealed", size)]
    assert blocks[-1].state == "open"


def test_a_footer_lists_only_what_its_own_block_holds(rig, monkeypatch):
    """The flush before may still be on its way to the ledger when its block is given up."""
    append_values(rig.log, rig.stream, b"a")
    entries = rig.log.ledger.entries_from(rig.stream, 0, 0, 1)
    rig.disk.free = 100
    rig.submit(1)
    rig.log.batcher.drive()
    rig.log._file.note_entries(entries)
    assert len(rig.log._file._footer) == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_is_a_full_disk_too(tmp_path, error):
    log = Log(tmp_path)
    stream = make_stream(log)
    log.close()
    log = Log(tmp_path, disk=FailingDisk(at=2, error=error, kinds=("write",), leaves="part"))
    with pytest.raises(DiskFull, match="a quota"):
        append_values(log, stream, b"x")
    assert log.batcher.failure is None
    log.close()


def test_any_other_error_of_the_disk_still_ends_the_log(tmp_path):
    log = Log(tmp_path, disk=FailingDisk(at=2, error=errno.EIO, kinds=("write",)))
    with pytest.raises(FolderUnusable):
        make_stream(log)
    with pytest.raises(FolderUnusable):
        make_stream(log)
    log.close()


# What a crash may make of a refused flush.


class StubbornDisk(DiskLayer):
    """Once it is armed, the next write leaves everything and finds no room, and what it left cannot be cut off."""

    is_armed = False

    def write(self, path: Path, file: DiskFile, buffers: Sequence[Buffer], position: int) -> None:
        file.write_durably(buffers, position)
        if self.is_armed:
            self.is_armed = False
            raise OSError(errno.ENOSPC, "No space left on device (injected)", str(path))

    def truncate(self, path: Path, file: DiskFile, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device (injected)", str(path))


def test_a_refused_batch_that_a_crash_brings_back_is_recognised_when_it_is_sent_again(tmp_path):
    disk = StubbornDisk()
    log = Log(tmp_path / "data", TO_THE_BYTE, disk=disk)
    stream = make_stream(log)
    append(log, make_batch([b"0"], stream=stream, producer=7, sequence=0))
    disk.is_armed = True
    with pytest.raises(DiskFull):
        append(log, make_batch([b"1"], stream=stream, producer=7, sequence=1))
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    log.close()
    again = Log(tmp_path / "crashed", TO_THE_BYTE)
    (outcome,) = append(again, make_batch([b"1"], stream=stream, producer=7, sequence=1))
    assert outcome == Appended(1, duplicate=True)
    assert again.reader.shard(stream, 0).next == 2
    again.close()


def test_what_a_full_disk_left_of_a_flush_does_not_count_once_the_next_block_is_there(tmp_path):
    disk = StubbornDisk()
    clock = SimulatedClock(autojump=True)
    log = Log(tmp_path / "data", TO_THE_BYTE, clock=clock, disk=disk)
    stream = make_stream(log)
    disk.is_armed = True
    with pytest.raises(DiskFull):
        append(log, make_batch([b"refused"], stream=stream))
    clock.advance(1.0)
    assert append_values(log, stream, b"other") == 0
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    log.close()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "crashed" / name).unlink()
    again = Log(tmp_path / "crashed", TO_THE_BYTE)
    row = again.reader.require_stream(stream)
    assert values_of(again.reader.read(row, 0, 0)[0]) == [b"other"]
    assert again.reader.shard(stream, 0).next == 1
    again.close()


# The ballast.


def test_a_command_gets_the_room_of_the_ballast(tmp_path):
    rig = Rig(tmp_path, LogOptions(block_bytes=64 << 10, free_bytes_min=0, ballast_bytes=1 * MIB))
    append_values(rig.log, rig.stream, b"a", b"b")
    assert (tmp_path / "ballast").exists()
    rig.disk.free = 0
    rig.submit(9)
    rig.log.execute(TrimShard(rig.stream, 0, 1))
    assert rig.log.reader.shard(rig.stream, 0).start == 1
    assert not (tmp_path / "ballast").exists()
    assert rig.told == [] or rig.bases() == [2]
    rig.free()
    rig.log.execute(TrimShard(rig.stream, 0, 2))
    assert rig.bases() == [2]
    assert (tmp_path / "ballast").exists()
    rig.log.close()


def test_appends_do_not_take_the_room_that_the_ballast_left(tmp_path):
    rig = Rig(tmp_path, LogOptions(block_bytes=64 << 10, free_bytes_min=0, ballast_bytes=1 * MIB))
    rig.disk.free = 0
    rig.log.execute(TrimShard(rig.stream, 0, 0))
    assert not (tmp_path / "ballast").exists()
    room = rig.disk.free
    for number in range(20):
        rig.clock.advance(1.0)
        with pytest.raises(DiskFull):
            rig.submit(number)
        rig.log.execute(TrimShard(rig.stream, 0, 0))
    assert room - 20 * 1_000 < rig.disk.free < room
    rig.disk.free = 3 * MIB
    rig.clock.advance(1.0)
    rig.submit(20)
    rig.log.batcher.drive()
    assert rig.bases() == [0]
    assert (tmp_path / "ballast").exists()
    rig.log.close()


def test_a_command_for_which_there_is_no_room_at_all_is_refused_and_the_log_lives(rig):
    rig.disk.free = 0
    with pytest.raises(DiskFull):
        rig.log.execute(TrimShard(rig.stream, 0, 1))
    rig.free()
    rig.log.execute(TrimShard(rig.stream, 0, 0))


# Transactions.


def test_what_is_staged_waits_for_room_and_the_commit_waits_for_it(rig):
    answers: list[Any] = []
    rig.disk.free = 0
    batches = [make_batch([b"a" * 100], stream=rig.stream)]
    rig.log.stage(5, 0, batches, answers.append, patience=rig.clock.monotonic() + 60.0)
    rig.log.commit_transaction(5, 1, (), answers.append)
    rig.log.batcher.drive()
    assert rig.log.batcher.is_holding
    assert answers == []
    rig.free()
    rig.log.batcher.drive()
    (staged,), committed = answers
    assert isinstance(staged, Staged)
    assert committed == [TransactionCommitted(((rig.stream, 0, 0, 1),))]
    assert rig.values() == [b"a" * 100]


def test_a_whole_transaction_waits_for_room_or_is_refused(rig):
    answers: list[Any] = []
    rig.disk.free = 0
    batches = [make_batch([b"a" * 100], stream=rig.stream), make_batch([b"b" * 100], stream=rig.stream)]
    rig.log.commit_whole(5, batches, (), answers.append)
    rig.log.batcher.drive()
    assert isinstance(answers.pop(), DiskFull)
    rig.free()
    rig.log.space.look()
    rig.disk.free = 0
    rig.log.commit_whole(6, batches, (), answers.append, patience=rig.clock.monotonic() + 60.0)
    rig.log.batcher.drive()
    assert rig.log.batcher.is_holding
    assert (answers, rig.values()) == ([], [])
    rig.free()
    rig.log.batcher.drive()
    assert answers == [[TransactionCommitted(((rig.stream, 0, 0, 2),))]]
    assert rig.values() == [b"a" * 100, b"b" * 100]


def test_nothing_is_staged_on_a_full_disk_and_what_was_can_be_committed(watched):
    log, answers = watched.log, list[Any]()
    batches = [make_batch([b"a"], stream=watched.stream)]
    log.stage(5, 0, batches, answers.append)
    log.batcher.drive()
    watched.disk.free = 255 * MIB
    watched.clock.advance(1.0)
    log.space.look()
    with pytest.raises(DiskFull):
        log.stage(5, 1, batches, answers.append)
    assert log.transactions.counters()["transactions_staged_batches"] == 1
    log.commit_transaction(5, 1, (), answers.append)
    log.batcher.drive()
    assert answers[1:] == [[TransactionCommitted(((watched.stream, 0, 0, 1),))]]
    assert watched.values() == [b"a"]


def test_a_commit_for_which_there_is_no_room_leaves_the_transaction_open(rig):
    answers: list[Any] = []
    rig.log.stage(5, 0, [make_batch([b"a"], stream=rig.stream)], answers.append)
    rig.log.batcher.drive()
    rig.disk.free = 0
    rig.log.commit_transaction(5, 1, (), answers.append)
    rig.log.batcher.drive()
    assert isinstance(answers[1], DiskFull)
    assert [each.is_committing for each in rig.log.transactions.listing()] == [False]
    assert rig.values() == []
    rig.free()
    rig.log.commit_transaction(5, 1, (), answers.append)
    rig.log.batcher.drive()
    assert answers[2] == [TransactionCommitted(((rig.stream, 0, 0, 1),))]
    assert rig.values() == [b"a"]


# The ledger.


@contextmanager
def full_ledger(is_full: Callable[[], bool], method: str) -> Iterator[None]:
    """SQLite finds no room as long as somebody says so."""
    original = getattr(SqliteLedger, method)

    def failing(self: SqliteLedger, *args: Any) -> Any:
        if is_full():
            raise OSError(errno.ENOSPC, "No space left on device (injected)", str(self.path))
        return original(self, *args)

    setattr(SqliteLedger, method, failing)
    try:
        yield
    finally:
        setattr(SqliteLedger, method, original)


def test_a_durable_flush_is_applied_when_the_ledger_has_room_again(rig):
    until = rig.clock.monotonic() + 20.0
    with full_ledger(lambda: rig.clock.monotonic() < until, "store"):
        assert append_values(rig.log, rig.stream, b"a") == 0
    assert rig.clock.monotonic() >= until
    assert rig.values() == [b"a"]


def test_the_ledger_gets_the_ballast(tmp_path):
    rig = Rig(tmp_path, LogOptions(free_bytes_min=0, ballast_bytes=1 * MIB))
    with full_ledger((tmp_path / "ballast").exists, "store"):
        begun = rig.clock.monotonic()
        assert append_values(rig.log, rig.stream, b"a") == 0
        assert rig.clock.monotonic() == begun
    rig.log.close()


def test_a_ledger_that_stays_full_ends_the_log_and_nothing_is_lost(tmp_path):
    rig = Rig(tmp_path)
    with full_ledger(lambda: True, "store"), pytest.raises(FolderUnusable, match="stayed full"):
        append_values(rig.log, rig.stream, b"a")
    assert rig.clock.monotonic() >= batcher._LEDGER_SECONDS_MAX
    with pytest.raises(FolderUnusable):
        append_values(rig.log, rig.stream, b"b")
    rig.log.close()
    log = Log(tmp_path)
    assert log.reader.shard(rig.stream, 0).next == 1
    log.close()


def test_sqlite_without_room_is_a_full_disk_and_works_again(rig):
    """A limit on its pages gives the error that a full disk gives."""
    db = rig.log._ledger._db
    pages = int(db.pragma("page_count"))
    tries = 0

    class Watch(SimulatedClock):
        def sleep(self, seconds: float) -> None:
            nonlocal tries
            tries += 1
            if tries == 3:
                db.pragma("max_page_count", 1 << 30)
            super().sleep(seconds)

    rig.log.batcher._clock = Watch(autojump=True)
    db.pragma("max_page_count", pages)
    for number in range(400):
        append_values(rig.log, rig.stream, b"%d" % number)
    assert tries == 3
    assert rig.log.reader.shard(rig.stream, 0).next == 400
    rig.log.close()
    log = Log(rig.path)
    assert log.reader.shard(rig.stream, 0).next == 400
    assert not list(rig.path.glob("damaged-*"))
    log.close()


def test_a_checkpoint_without_room_is_put_off(rig, caplog):
    with full_ledger(lambda: True, "checkpoint"):
        for number in range(60):
            append_values(rig.log, rig.stream, b"%d" % number)
    assert "no room for the checkpoint" in caplog.text
    assert rig.log.batcher.failure is None
    assert len(rig.values()) == 60


# The start.


def test_a_log_is_opened_and_read_on_a_full_disk_and_takes_nothing(tmp_path):
    rig = Rig(tmp_path)
    append_values(rig.log, rig.stream, b"a")
    rig.log.close()
    log = Log(tmp_path, disk=BudgetDisk(free=0))
    row = log.reader.require_stream(rig.stream)
    assert values_of(log.reader.read(row, 0, 0)[0]) == [b"a"]
    with pytest.raises(DiskFull):
        append_values(log, rig.stream, b"b")
    log.close()


def unapplied(path: Path) -> None:
    """A folder whose last flush is in no ledger."""
    rig = Rig(path / "one")
    shutil.copytree(path / "one", path / "two")
    append_values(rig.log, rig.stream, b"a")
    shutil.rmtree(path / "two" / "blocks")
    shutil.copytree(path / "one" / "blocks", path / "two" / "blocks")
    rig.log.close()


def test_a_start_that_needs_room_says_how_much_and_a_reader_needs_none(tmp_path):
    unapplied(tmp_path)
    with full_ledger(lambda: True, "store"), pytest.raises(DiskFull, match=r"16 MiB.*read_only"):
        Log(tmp_path / "two")
    FolderPort(tmp_path / "two").close()
    log = Log(tmp_path / "two")
    assert log.counters()["flushes_replayed"] == 1
    log.close()


def test_a_start_gets_the_ballast(tmp_path):
    unapplied(tmp_path)
    ballast = tmp_path / "two" / "ballast"
    ballast.write_bytes(bytes(100))
    with full_ledger(ballast.exists, "store"):
        log = Log(tmp_path / "two")
    assert log.counters()["flushes_replayed"] == 1
    log.close()


def test_a_new_folder_on_a_full_disk_is_refused_with_the_reason(tmp_path):
    with pytest.raises(DiskFull):
        Log(tmp_path / "new", disk=BudgetDisk(free=0))
