"""Moments of streams: the same rows on every backend, noted by the flushes themselves."""

import pytest

from mainstem.core.batch import TIME_US_MAX
from mainstem.core.limits import MOMENT_US_MAX, MOMENT_US_MIN
from mainstem.log.flush import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    Flush,
    ForgetStream,
    NoteMoment,
    OpenBlock,
    Outcome,
    Rejected,
    TrimShard,
    WrittenBatch,
)
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import Ledger, MomentRow
from mainstem.log.ledger.memory import MemoryLedger
from mainstem.log.ledger.sqlite import SqliteLedger
from tests.unit.log.parts import LOG_UUID, NOW_US, make_batch

SECOND = 1_000_000


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request, tmp_path):
    if request.param == "memory":
        ledger: Ledger = MemoryLedger(epoch=1)
    else:
        ledger = SqliteLedger.create(tmp_path / "ledger.db", log_uuid=LOG_UUID, epoch=1)
    yield ledger
    ledger.close()


class Log:
    """Flushes at chosen times. After each the applier is made anew: memory holds no truth."""

    def __init__(self, ledger: Ledger, shards: int = 2) -> None:
        self.ledger = ledger
        self.time_us = NOW_US
        self.flush(OpenBlock(1, 1, NOW_US), CreateStream("0" * 32, "orders", shards, "crc32", 0, NOW_US))

    def flush(self, *items: Command | WrittenBatch, seconds: float = 0.0) -> list[Outcome]:
        self.time_us += round(seconds * SECOND)
        applier = Applier(self.ledger)
        number = applier.applied + 1
        return applier.apply(Flush(number, 1, 64 * number, self.time_us, tuple(items)))[1]

    def write(self, *shards: int, seconds: float = 0.0, generation: int = 0) -> None:
        """A flush of one record for each of these shards."""
        batches = [make_batch(shard=shard, generation=generation).header for shard in shards]
        outcomes = self.flush(*(WrittenBatch(header, 64, 200) for header in batches), seconds=seconds)
        assert not any(isinstance(outcome, Rejected) for outcome in outcomes)

    def moments(self) -> list[tuple[float, tuple[int, ...]]]:
        """In seconds since the stream was created."""
        return [((row.time_us - NOW_US) / SECOND, row.ends) for row in self.ledger.load_moments(1, 0, 1_000)]


@pytest.fixture
def log(ledger):
    return Log(ledger)


def test_a_moment_is_where_the_shards_stood_before_the_flush(log):
    log.write(0, 0, 1, seconds=1)
    log.write(1, seconds=30)
    log.write(0, seconds=29.999)
    assert log.moments() == [(1, (0, 0))]
    log.write(0, 1, seconds=0.001)
    assert log.moments() == [(1, (0, 0)), (61, (3, 2))]
    log.write(1, seconds=4_000)
    assert log.moments()[2:] == [(4_061, (4, 3))]


def test_flushes_that_add_nothing_note_nothing(log):
    log.write(0)
    for _ in range(3):
        log.flush(TrimShard(1, 0, 1), seconds=100)
        log.flush(seconds=100)
    assert len(log.moments()) == 1


def test_a_stream_of_one_shard_has_its_order_without(ledger):
    log = Log(ledger, shards=1)
    for _ in range(3):
        log.write(0, seconds=100)
    assert log.moments() == []
    log.flush(AlterStream(1, shards=2))
    log.write(0, 1, seconds=100, generation=1)
    assert log.moments() == [(400, (3, 0))]


def test_a_reader_may_ask_for_one(log):
    log.write(0, 1, seconds=1)
    log.flush(NoteMoment(1), seconds=MOMENT_US_MIN / 2 / SECOND)
    assert log.moments() == [(1, (0, 0))], "too soon"
    log.flush(NoteMoment(1), NoteMoment(1), seconds=1)
    assert log.moments() == [(1, (0, 0)), (2.05, (1, 1))]
    log.flush(NoteMoment(1), seconds=100)
    assert len(log.moments()) == 2, "nothing is new"
    log.write(1, seconds=MOMENT_US_MAX / SECOND - 100.001)
    assert len(log.moments()) == 2


def test_times_of_moments_go_on_when_the_clock_is_put_back(log):
    log.write(0, 1, seconds=1_000)
    log.write(0, seconds=-500)
    log.flush(NoteMoment(1))
    assert log.moments() == [(1_000, (0, 0)), (1_000.000001, (2, 1))]
    log.write(0, seconds=561)
    assert log.moments()[2:] == [(1_061, (2, 1))]


def test_the_last_before_a_time_is_found(log, ledger):
    for _ in range(5):
        log.write(0, seconds=100)
    rows = list(ledger.load_moments(1, 0, 100))
    assert [row.time_us - NOW_US for row in rows] == [number * 100 * SECOND for number in range(1, 6)]
    assert ledger.newest_moment(1, TIME_US_MAX) == rows[-1]
    assert ledger.newest_moment(1, rows[2].time_us) == rows[1]
    assert ledger.newest_moment(1, rows[0].time_us) is None
    assert ledger.newest_moment(2, TIME_US_MAX) is None
    assert list(ledger.load_moments(1, rows[1].time_us, 2)) == rows[2:4]


def test_moments_before_what_is_left_go(log, ledger):
    for _ in range(12):
        log.write(0, 1, seconds=100)
    assert len(log.moments()) == 12
    # Of shard 1 everything is still there.
    log.flush(TrimShard(1, 0, 10))
    log.write(0, seconds=100)
    assert len(log.moments()) == 13
    log.flush(TrimShard(1, 1, 5))
    log.write(0, seconds=100)
    assert log.moments()[0] == (600, (5, 5)), "the last that nothing stands before any more"
    assert len(log.moments()) == 9
    log.flush(TrimShard(1, 0, 12), TrimShard(1, 1, 12))
    for _ in range(3):
        log.write(0, seconds=100)
    assert [ends for _, ends in log.moments()] == [(12, 12), (13, 12), (14, 12), (15, 12), (16, 12)]


def test_they_go_with_their_stream(log, ledger):
    log.write(0, 1)
    log.flush(DeleteStream(1, NOW_US))
    (outcome,) = log.flush(NoteMoment(1), seconds=100)
    assert isinstance(outcome, Rejected)
    applier = Applier(ledger)
    for key, row in applier.written_shards().items():
        applier._shards[key] = row._replace(bytes=0)
    applier.apply(Flush(applier.applied + 1, 1, 9_999, log.time_us, (ForgetStream(1),)))
    assert list(ledger.load_moments(1, 0, 10)) == []


def test_rows_of_moments_come_back(ledger):
    log = Log(ledger, shards=64)
    log.write(*range(64))
    log.write(0, 63, seconds=100)
    assert ledger.load_moments(1, NOW_US, 10) == [MomentRow(1, NOW_US + 100 * SECOND, (1,) * 64)]
