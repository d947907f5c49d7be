"""Retention: what is too old can no longer be read, and its space comes back, though other streams share its blocks."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import mainstem
from mainstem.core.limits import MIB
from mainstem.log.log import LogOptions
from mainstem.log.upkeep import Pace, freeing, merging, trimming
from tests.integration.mechanisms.rig import read_all
from tests.unit.log.keeping import DAY, SECOND_US, Keeping

# S32: two streams share blocks, and one of them is kept for a tenth of the time.

SHORT, LONG, WRITING = 60, 600, 180
INTERVAL = 5.0


@dataclass(frozen=True)
class Outcome:
    """What readers find after three minutes of writing, in seconds since it was written, and what the disk holds."""

    short_ages: list[float]
    long_ages: list[float]
    loss: mainstem.DataLoss | None
    disk_per_live: float


def write_for_three_minutes(path: Path) -> Outcome:
    """Both streams get a record a second, retention is looked after every five, on a clock of its own."""
    pace = Pace(interval=INTERVAL, free_after=10.0, rewrite_after=30.0, share=1.0)
    keeping = Keeping(path, LogOptions(block_bytes=MIB // 8, hot_tail_bytes=0, pace=pace))
    short = keeping.create("short", retention_us=SHORT * SECOND_US)
    long = keeping.create("long", retention_us=LONG * SECOND_US)
    rng = random.Random(32)
    for second in range(WRITING):
        for stream in (short, long):
            keeping.write(stream, (b"%d" % second, rng.randbytes(6_000)))
        keeping.clock.advance(1)
        if second % INTERVAL == 0:
            for _ in keeping.log.upkeep.round():
                pass
            keeping.log._maintenance.close()
    for _ in range(4):
        keeping.keep()
    now_us = keeping.clock.now_us()
    with mainstem.open(path, read_only=True) as beside:
        ages = [
            [(now_us - record.timestamp_us) / SECOND_US for record in read_all(beside, name)]
            for name in ("short", "long")
        ]
        live = sum(beside.streams.get(name).bytes for name in ("short", "long"))
        loss = loss_of_one_that_is_behind(beside)
    disk = sum(file.stat().st_size for file in (path / "blocks").iterdir())
    keeping.log.close()
    return Outcome(ages[0], ages[1], loss, disk / live)


def loss_of_one_that_is_behind(hub: mainstem.Hub) -> mainstem.DataLoss | None:
    """What a reader is told that stands at the first record ever written."""
    with hub.consumer("short", start="earliest", follow=False) as consumer:
        consumer.seek_shard(0, 0)
        try:
            next(consumer)
        except mainstem.DataLoss as loss:
            return loss
    return None


@pytest.mark.mechanism("S32")
def test_s32_two_retentions_in_shared_blocks(tmp_path, monkeypatch):
    """The stream kept for a minute has the last minute and no more, the other one everything, and the disk holds at
    most half as much again as can be read. Without the trimmer the first one has everything; where blocks are not
    rewritten, what is dead stays beside what is alive."""
    found = write_for_three_minutes(tmp_path / "right")
    assert SHORT - 1 <= len(found.short_ages) <= SHORT + INTERVAL
    assert max(found.short_ages) <= SHORT + INTERVAL
    assert len(found.long_ages) == WRITING
    assert found.disk_per_live <= 1.5
    assert found.loss is not None
    assert (found.loss.first, found.loss.last) == (0, WRITING - len(found.short_ages) - 1)
    with monkeypatch.context() as control:
        control.setattr(trimming, "expired", lambda *_: iter(()))
        without = write_for_three_minutes(tmp_path / "no trimmer")
        assert len(without.short_ages) == WRITING
        assert without.loss is None
    with monkeypatch.context() as control:
        control.setattr(freeing, "_is_to_rewrite", lambda *_: False)
        without = write_for_three_minutes(tmp_path / "no rewriting")
        assert len(without.short_ages) == len(found.short_ages)
        assert without.disk_per_live > found.disk_per_live
        assert without.disk_per_live > 1.4


# K15: seven days, read or not.

OLD, NEW = 400, 20


@dataclass
class Aged:
    """A stream of a week that has grown eight days old, and a reader that was paused all the while."""

    old_blocks: set[int]
    new_block: int
    files: set[int]
    start: int
    got: list[int]
    lost: int


def age(path: Path) -> Aged:
    keeping = Keeping(path, LogOptions(block_bytes=MIB // 8, hot_tail_bytes=0, pace=Pace(share=1.0)))
    stream = keeping.create(retention_us=round(7 * DAY) * SECOND_US)
    rng = random.Random(15)
    for number in range(OLD):
        keeping.write(stream, (b"%d" % number, rng.randbytes(2_000)))
    old_blocks = {entry.block for entry in keeping.entries(stream)}
    with mainstem.open(path, read_only=True) as beside, beside.consumer("orders", start="earliest") as paused:
        got = [next(paused).offset for _ in range(10)]
        paused.seek_shard(0, 10)  # what was fetched ahead is let go, so that the pause is a pause
        keeping.roll()
        keeping.clock.advance(8 * DAY)
        for number in range(NEW):
            keeping.write(stream, (b"%d" % number, b"new"))
        new_block = keeping.entries(stream)[-1].block
        keeping.keep()
        for _ in range(4):
            keeping.keep(700)
        rest = list(read_on(paused, OLD + NEW))
        found = Aged(
            old_blocks=old_blocks,
            new_block=new_block,
            files=set(keeping.files()),
            start=keeping.log.reader.shard(stream, 0).start,
            got=[*got, *(offset for offset in rest if isinstance(offset, int))],
            lost=sum(loss.last - loss.first + 1 for loss in rest if isinstance(loss, mainstem.DataLoss)),
        )
    keeping.log.close()
    return found


def read_on(consumer: mainstem.Consumer, end: int) -> Iterator[int | mainstem.DataLoss]:
    """The offsets up to the end, and what the reader is told on the way."""
    while True:
        try:
            offset = next(consumer).offset
        except mainstem.DataLoss as loss:
            yield loss
            continue
        yield offset
        if offset == end - 1:
            return


@pytest.mark.mechanism("K15")
def test_k15_a_week(tmp_path, monkeypatch):
    """After eight days every old file is gone, the one that is written to is there, the stream starts with the first
    record that is left, and a paused reader learns exactly how many it has missed and goes on with the oldest. Without
    retention it would find them all."""
    # What is merged moves to other files.
    monkeypatch.setattr(merging, "_QUIET_SECONDS", math.inf)
    found = age(tmp_path / "right")
    assert found.start == OLD
    assert not found.old_blocks & found.files
    assert found.new_block in found.files
    assert found.lost == OLD - 10
    assert found.got == [*range(10), *range(OLD, OLD + NEW)]
    monkeypatch.setattr(trimming, "expired", lambda *_: iter(()))
    without = age(tmp_path / "control")
    assert without.start == without.lost == 0
    assert without.old_blocks <= without.files
    assert without.got == list(range(OLD + NEW))
