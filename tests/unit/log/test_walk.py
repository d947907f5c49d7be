"""Walking along a shard: one batch after the other, the next read meanwhile, and what is lost told in its place."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss, MainstemError
from mainstem.log.ledger.base import Entry, StreamRow
from mainstem.log.log import Log
from mainstem.log.read_ahead import ReadAhead
from mainstem.log.reader import LogReader
from tests.unit.log.parts import append, append_values, make_batch, make_stream, values_of

LARGE = 600_000
COUNT = 6


class Watched(LogReader):
    """Notes which thread reads what."""

    def __init__(self, log: Log) -> None:
        super().__init__(log.ledger, log._folder.blocks)
        self.reads: list[tuple[int, str]] = []

    def _read_block(self, block: int, position: int, length: int) -> bytes:
        self.reads.append((position, threading.current_thread().name))
        return super()._read_block(block, position, length)

    @property
    def is_ahead(self) -> bool:
        return any(name.startswith("mainstem-ahead") for _, name in self.reads)


class Shard:
    """Large batches of one record each, too large to be read two at a time."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.row = log.ledger.load_stream(make_stream(log)) or _none()
        self.reader = Watched(log)

    def write(self, size: int = LARGE, count: int = COUNT) -> None:
        for number in range(count):
            append_values(self.log, self.row.id, bytes([number]) * size)

    def entries(self) -> Sequence[Entry]:
        return self.log.ledger.entries_from(self.row.id, 0, 0, 100)

    def walk(self, offset: int = 0, skipped: Callable[[int], bool] = lambda base: False) -> Iterator[FetchedBatch]:
        return self.reader.walk(self.row, 0, offset, can_skip=lambda entry, filters: skipped(entry.base))

    def flip(self, entry: Entry) -> None:
        path = self.log.path / "blocks" / f"{entry.block:016d}.block"
        data = bytearray(path.read_bytes())
        data[entry.position + entry.length - 100] ^= 1
        path.write_bytes(data)


def _none() -> StreamRow:
    raise AssertionError("the stream is there")


@pytest.fixture
def shard(tmp_path):
    log = Log(tmp_path)
    shard = Shard(log)
    yield shard
    shard.reader.close()
    log.close()


def wait_for(reached: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if reached():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to this")


def test_everything_comes_in_order_and_is_read_once(shard):
    shard.write()
    found = list(shard.walk())
    assert [batch.base for batch in found] == list(range(COUNT))
    assert [values_of(batch) for batch in found] == [[bytes([n]) * LARGE] for n in range(COUNT)]
    assert len(shard.reader.reads) == len(set(shard.reader.reads)) == COUNT


def test_one_is_read_while_the_one_before_is_looked_at(shard):
    shard.write()
    walk = shard.walk()
    assert (next(walk).base, next(walk).base) == (0, 1)
    wait_for(lambda: len(shard.reader.reads) == 3)
    assert shard.reader.is_ahead
    # And no more than one.
    assert not threading.Event().wait(0.05)
    assert len(shard.reader.reads) == 3
    walk.close()


def test_nothing_is_read_ahead_for_who_takes_but_one(shard):
    shard.write()
    walk = shard.walk()
    next(walk)
    assert not threading.Event().wait(0.05)
    assert len(shard.reader.reads) == 1
    walk.close()


def test_who_stops_is_not_read_for_any_more(shard):
    shard.write()
    walk = shard.walk()
    assert (next(walk).base, next(walk).base) == (0, 1)
    walk.close()
    assert not threading.Event().wait(0.05)
    assert len(shard.reader.reads) <= 3


def test_small_batches_are_not_worth_another_thread(shard):
    shard.write(size=1_000)
    assert len(list(shard.walk())) == COUNT
    assert not shard.reader.is_ahead
    assert len(shard.reader.reads) == 1


def test_nobody_waits_for_the_reading_of_others(shard):
    """The thread is held up by a slow disk: who needs something else reads it himself."""
    shard.write()
    held, begun = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        held.wait(10)

    shard.reader._ahead.begin(slow)
    assert begun.wait(10)
    assert [batch.base for batch in shard.walk()] == list(range(COUNT))
    assert not shard.reader.is_ahead
    held.set()


def test_what_is_passed_over_is_asked_about_only_when_it_is_its_turn(shard):
    shard.write(count=4)
    shard.write(size=10, count=4)
    asked: list[int] = []

    def is_skipped(base: int) -> bool:
        asked.append(base)
        return base >= 2

    walk = shard.walk(skipped=is_skipped)
    assert next(walk).base == 0
    assert asked == [0, 1]
    assert [(batch.base, batch.end, batch.header.count) for batch in walk] == [(1, 2, 1), (2, 8, 0)]
    assert asked == list(range(8))
    assert len(shard.reader.reads) == 2


@pytest.mark.parametrize("lost", range(COUNT))
def test_damage_is_told_in_its_place(shard, lost):
    shard.write()
    shard.flip(shard.entries()[lost])
    if lost:
        assert [batch.base for batch in shard.walk()] == list(range(lost))
    with pytest.raises(DataLoss) as told:
        list(shard.walk(lost))
    assert (told.value.first, told.value.last, told.value.reason) == (lost, lost, "damaged")
    assert [batch.base for batch in shard.walk(lost + 1)] == list(range(lost + 1, COUNT))


def test_damage_within_a_run_leaves_what_stands_before_it(shard):
    shard.write(size=100)
    shard.flip(shard.entries()[3])
    assert [batch.base for batch in shard.walk()] == [0, 1, 2]
    assert [batch.base for batch in shard.walk(4)] == [4, 5]


def test_a_file_that_went_is_a_loss_when_it_is_met(shard):
    shard.write()
    walk = shard.walk()
    assert (next(walk).base, next(walk).base) == (0, 1)
    wait_for(lambda: len(shard.reader.reads) == 3)
    entry = shard.entries()[3]
    (shard.log.path / "blocks" / f"{entry.block:016d}.block").unlink()
    shard.log._folder.blocks._open.clear()
    assert [batch.base for batch in walk] == [2]
    with pytest.raises(DataLoss, match="the file is missing"):
        list(shard.walk(3))


def test_a_closed_reader_still_reads_what_it_is_asked_for(shard):
    shard.write()
    shard.reader.close()
    assert [batch.base for batch in shard.walk()] == list(range(COUNT))
    assert not shard.reader.is_ahead


def test_memory_is_walked_along_like_the_disk(tmp_path):
    log = Log(tmp_path)
    row = log.ledger.load_stream(make_stream(log)) or _none()
    for number in range(COUNT):
        append(log, make_batch([bytes([number]) * LARGE], stream=row.id))
    reads = log.reader.disk_reads
    found = list(log.reader.walk(row, 0, 2, can_skip=lambda entry, filters: entry.base == 4))
    assert [(batch.base, batch.header.count) for batch in found] == [(2, 1), (3, 1), (4, 0), (5, 1)]
    assert log.reader.disk_reads == reads
    log.close()


def test_work_is_done_by_whoever_is_first():
    ahead = ReadAhead()
    assert ahead.begin(lambda: 7).result() == 7

    def fail() -> int:
        raise MainstemError("no")

    with pytest.raises(MainstemError):
        ahead.begin(fail).result()
    ahead.close()
    assert ahead.begin(lambda: 8).result() == 8
    ahead.begin(lambda: 9).drop()
