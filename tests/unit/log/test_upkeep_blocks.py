"""Space comes back: what is alive in a block moves, its file goes, and at every moment the ledger can be rebuilt."""

import math
import random
import threading
import time

import pytest

from mainstem.core.errors import DataLoss, Refused, StreamDeleted
from mainstem.log.flush import DeleteStream, ForgetBlock, ForgetStream, Rejected, TrimShard
from mainstem.log.log import LogOptions
from mainstem.log.reader import LogReader
from mainstem.log.upkeep import Pace, freeing, merging, upkeep
from tests.unit.log.keeping import DAY, HOUR, OPTIONS, PACE, SECOND_US, Keeping, damage, marker, pass_time, set_barrier
from tests.unit.log.parts import append, append_values, make_keyed_batch, make_stream


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    """Nothing is merged, which would move it to other blocks."""
    monkeypatch.setattr(merging, "_QUIET_SECONDS", math.inf)
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


def fill(keeping: Keeping, stream: int, count: int, *, size: int = 5_000, first: int = 0) -> None:
    for number in range(first, first + count):
        keeping.write(stream, (b"k%d" % number, marker(number, size)))


def trim(keeping: Keeping, stream: int, before: int) -> None:
    keeping.log.execute(TrimShard(stream, 0, before))
    keeping.log.upkeep.look_at((stream, 0))


# Rewriting.


def test_what_is_alive_in_a_block_that_is_mostly_dead_moves(keeping):
    stream = keeping.create()
    fill(keeping, stream, 10)
    keeping.roll()
    (block,) = {entry.block for entry in keeping.entries(stream)}
    trim(keeping, stream, 4)
    keeping.keep()
    assert {entry.block for entry in keeping.entries(stream)} == {block}
    trim(keeping, stream, 6)
    keeping.keep()
    assert block not in {entry.block for entry in keeping.entries(stream)}
    assert sorted(keeping.read(stream)) == [6, 7, 8, 9]
    assert keeping.blocks()[block].live_bytes == 0
    assert keeping.blocks()[block].dead_us == keeping.clock.now_us()
    assert keeping.counts()["bytes_rewritten"] > 4 * 5_000
    assert keeping.rebuilt() == list(keeping.all())


def test_a_batch_over_a_barrier_moves_in_pieces(keeping, monkeypatch):
    """No writer makes one any more; earlier versions did. As it is it would be refused, in every round anew."""
    stream, other = keeping.create(), keeping.create("other")
    keeping.write(stream, *((b"k%d" % number, marker(number)) for number in range(10)))
    keeping.write(stream, *((b"k%d" % number, marker(number)) for number in range(10, 15)))
    fill(keeping, other, 5)
    keeping.roll()
    seen, (block,) = keeping.read(stream), {entry.block for entry in keeping.entries(stream)}
    set_barrier(keeping, monkeypatch, stream, 5)
    trim(keeping, other, 5)
    keeping.keep()
    entries = keeping.entries(stream)
    assert (entries[0].base, entries[0].end, entries[-1].end) == (0, 5, 15)
    assert block not in {entry.block for entry in entries}
    assert keeping.read(stream) == seen
    before = keeping.log.counters()["flushes_applied"]
    pass_time(keeping, HOUR)
    assert keeping.log.counters()["flushes_applied"] <= before + 10


def test_many_entries_of_a_block_are_looked_up_some_at_a_time(keeping, monkeypatch):
    monkeypatch.setattr(freeing, "_PAGE_ROWS", 7)
    streams = [keeping.create("a", shards=3), keeping.create("b")]
    for number in range(40):
        keeping.write(streams[0], (b"k", marker(number)), shard=number % 3)
        keeping.write(streams[1], (b"k", marker(number)))
    keeping.roll()
    (block,) = {entry.block for stream in streams for entry in keeping.entries(stream)}
    seen = [keeping.read(streams[0], shard=shard) for shard in range(3)], keeping.read(streams[1])
    asked: list[int] = []
    found = keeping.log._upkeep_ledger.entries_in

    def noted(*place):
        entries = found(*place)
        asked.append(len(entries))
        return entries

    monkeypatch.setattr(keeping.log._upkeep_ledger, "entries_in", noted)
    for _ in keeping.log.upkeep._freeing._rewrite({block}):
        pass
    assert max(asked) == 7
    assert sum(asked) == 80
    assert block not in {entry.block for stream in streams for entry in keeping.entries(stream)}
    assert ([keeping.read(streams[0], shard=shard) for shard in range(3)], keeping.read(streams[1])) == seen


def test_a_block_that_is_mostly_alive_moves_when_the_time_is_over(keeping):
    stream = keeping.create()
    fill(keeping, stream, 10)
    keeping.roll()
    trim(keeping, stream, 1)
    keeping.keep()
    old = keeping.entries(stream)[0].block
    assert keeping.on_disk(marker(0, 5_000))
    keeping.keep(DAY - 1)
    assert keeping.entries(stream)[0].block == old
    keeping.keep(1)
    assert keeping.entries(stream)[0].block != old
    pass_time(keeping, 800)
    assert old not in keeping.files()
    assert not keeping.on_disk(marker(0, 5_000))
    assert sorted(keeping.read(stream)) == list(range(1, 10))


def test_an_open_block_is_closed_when_something_in_it_is_to_go(keeping):
    stream = keeping.create()
    fill(keeping, stream, 3)
    (block,) = keeping.files()
    assert keeping.log.upkeep.erase(keeping.row(stream), b"k1") == 1
    assert keeping.blocks()[block].state == "open"
    keeping.keep()
    assert keeping.blocks()[block].state == "sealed"
    assert sorted(keeping.read(stream)) == [0, 2]
    pass_time(keeping, 800)
    assert not keeping.on_disk(marker(1, 5_000))


def test_a_damaged_block_stays_and_is_reported_once(keeping, caplog):
    stream, other = keeping.create(), keeping.create("other")
    for number in range(5):
        fill(keeping, stream, 1, first=number)
        fill(keeping, other, 1, first=number)
    keeping.roll()
    trim(keeping, stream, 4)
    trim(keeping, other, 3)
    damage(keeping, keeping.entries(stream)[4])
    block = keeping.entries(stream)[4].block
    for _ in range(5):
        keeping.keep(60)
    assert caplog.text.count("cannot be freed: what is alive in it cannot be read") == 1
    assert keeping.counts()["upkeep_errors"] == 1
    # What could be read has moved all the same.
    assert [entry.block for entry in keeping.entries(stream)] == [block]
    assert block not in {entry.block for entry in keeping.entries(other)}
    keeping.collect()
    assert block in keeping.files()
    with pytest.raises(DataLoss, match="damaged"):
        keeping.read(stream)
    assert sorted(keeping.read(other)) == [3, 4]


# Freeing.


def test_a_file_goes_after_its_time_and_when_two_snapshots_are_beyond_it(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    keeping.roll()
    fill(keeping, stream, 5, first=5)
    first = keeping.entries(stream)[0].block
    trim(keeping, stream, 5)
    keeping.keep()
    assert keeping.blocks()[first].dead_us
    # Two snapshots are not enough before its time,
    for _ in range(3):
        fill(keeping, stream, 1, first=10)
        keeping.log._maintenance.request_snapshot()
        keeping.log.commit_nothing()
        keeping.log.commit_nothing()
        keeping.log._maintenance.close()
    assert keeping.log._folder.snapshots.needed_from() > first
    keeping.keep(599)
    assert first in keeping.files()
    keeping.keep(1)
    assert first not in keeping.files()
    assert first not in keeping.blocks()
    assert keeping.counts()["blocks_freed"] == 1
    assert keeping.counts()["bytes_freed"] > 25_000


def test_a_file_whose_time_is_over_waits_for_two_snapshots(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    keeping.roll()
    first = keeping.entries(stream)[0].block
    trim(keeping, stream, 5)
    keeping.keep()
    keeping.clock.advance(601)
    assert keeping.log._folder.snapshots.needed_from() <= first
    for _ in keeping.log.upkeep._freeing.keep_blocks():
        pass
    assert first in keeping.files()
    # It asks for them, and does not wait for another gigabyte to be written.
    pass_time(keeping, 4 * PACE.interval)
    assert first not in keeping.files()
    assert keeping.log._folder.snapshots.needed_from() > first
    assert keeping.rebuilt() == list(keeping.all())


def test_a_block_that_is_in_use_is_never_freed(keeping, monkeypatch, caplog):
    """Even if a row says that nothing is alive in it."""
    stream = keeping.create()
    fill(keeping, stream, 5)
    keeping.roll()
    (block,) = {entry.block for entry in keeping.entries(stream)}
    lie = keeping.blocks()[block]._replace(live_bytes=0, dead_us=1)
    monkeypatch.setattr(keeping.log._folder.snapshots, "needed_from", lambda: 1 << 40)
    freeing = keeping.log.upkeep._freeing
    monkeypatch.setattr(freeing._work.ledger, "list_blocks", lambda: [lie])
    for _ in freeing._free([lie]):
        pass
    assert block in keeping.files()
    assert "it is kept" in caplog.text
    with pytest.raises(Refused, match="in use"):
        keeping.log.execute(ForgetBlock(block))
    assert len(keeping.read(stream)) == 5


def test_files_that_no_row_knows_are_freed(keeping):
    """A start that was killed leaves a block that no flush speaks of."""
    stream = keeping.create()
    fill(keeping, stream, 3)
    keeping.log.close()
    path = keeping.path / "blocks"
    newest = max(path.iterdir())
    stray = path / f"{int(newest.stem) + 1:016d}.block"
    stray.write_bytes(newest.read_bytes()[:64])
    keeping.reopen()
    fill(keeping, stream, 1, first=3)
    number = int(stray.stem)
    assert keeping.blocks()[number].state == "sealed"
    pass_time(keeping, 800)
    assert not stray.exists()
    assert number not in keeping.blocks()
    assert len(keeping.read(stream)) == 4
    assert sorted(keeping.files()) == sorted(keeping.blocks())


@pytest.mark.parametrize("how", ["trim", "delete"])
def test_what_nobody_can_read_is_off_the_disk_when_it_was_said(keeping, how):
    stream, other = keeping.create(), keeping.create("other")
    for number in range(8):
        fill(keeping, stream, 1, first=number)
        fill(keeping, other, 5, first=100 + 5 * number)
    assert keeping.info(stream).gone_by_us == keeping.info(stream).waiting_bytes == 0
    trim(keeping, stream, 8)
    info = keeping.info(stream)
    assert info.waiting_bytes > 8 * 5_000
    assert info.bytes == 0
    if how == "delete":
        keeping.log.execute(DeleteStream(stream, keeping.clock.now_us()))
    assert info.gone_by_us - keeping.clock.now_us() < 1.1 * DAY * SECOND_US
    # Where it is nearly all of a block it is gone soon; here most of every block is alive.
    pass_time(keeping, HOUR)
    assert keeping.on_disk(marker(1, 5_000))
    keeping.clock.advance(DAY - HOUR - 60)
    pass_time(keeping, (info.gone_by_us - keeping.clock.now_us()) / SECOND_US)
    for number in range(8):
        assert not keeping.on_disk(marker(number, 5_000))
    assert len(keeping.read(other)) == 40
    if how == "trim":
        assert (keeping.info(stream).gone_by_us, keeping.info(stream).waiting_bytes) == (0, 0)


# Deleted streams.


def test_a_deleted_stream_vanishes_and_its_id_is_not_used_again(keeping):
    kept = keeping.create("kept")
    stream = keeping.create(shards=2)
    fill(keeping, stream, 5)
    keeping.write(stream, (b"k", b"v"), shard=1)
    fill(keeping, kept, 1)
    keeping.log.execute(DeleteStream(stream, keeping.clock.now_us()))
    with pytest.raises(Refused, match="in use"):
        keeping.log.execute(ForgetStream(stream))
    keeping.keep()
    assert not keeping.entries(stream)
    assert keeping.log.ledger.load_stream(stream) is not None
    keeping.collect()
    assert [row.id for row in keeping.log.ledger.list_streams()] == [kept]
    assert not keeping.log.ledger.dead_bytes(stream)
    assert not keeping.on_disk(marker(4, 5_000))
    again = keeping.create()
    assert again == stream + 1
    keeping.log.execute(DeleteStream(again, keeping.clock.now_us()))
    keeping.keep()
    assert keeping.log.ledger.load_stream(again) is None
    keeping.reopen()
    assert keeping.create() == again + 1
    keeping.reopen(without_ledger=True)
    assert [row.id for row in keeping.log.ledger.list_streams()] == [kept, again + 1]
    assert keeping.create("more") == again + 2
    with pytest.raises(Refused, match="in use"):
        keeping.log.execute(ForgetStream(kept))


def test_what_came_too_late_for_a_deleted_stream_goes_with_it(keeping):
    """Written twice, or after the deletion: it never had a row, and lies among what is kept."""
    stream, kept = keeping.create(), keeping.create("kept")
    now_us = keeping.clock.now_us()
    twice = make_keyed_batch([(b"k", marker(1), now_us)], stream=stream, producer=7)
    late = make_keyed_batch([(b"k", marker(2), now_us)], stream=stream, producer=7, sequence=1)
    append(keeping.log, twice)
    trim(keeping, stream, 1)
    keeping.keep()
    keeping.roll()
    fill(keeping, kept, 5, first=10)
    append(keeping.log, twice)
    keeping.log.execute(DeleteStream(stream, now_us))
    keeping.keep()
    assert isinstance(append(keeping.log, late)[0], Rejected)
    fill(keeping, kept, 2, first=20)
    assert keeping.on_disk(marker(1))
    assert keeping.on_disk(marker(2))
    keeping.keep()
    keeping.collect()
    assert not keeping.on_disk(marker(1))
    assert not keeping.on_disk(marker(2))
    assert [row.id for row in keeping.log.ledger.list_streams()] == [kept]
    assert len(keeping.read(kept)) == 7


# A rebuild at every moment.


def test_the_ledger_can_be_rebuilt_at_every_moment(tmp_path):
    """After every step of upkeep, with blocks freed as soon as they may be: a copy without its ledger is the same."""
    options = LogOptions(
        block_bytes=16 << 10, hot_tail_bytes=0, pace=Pace(interval=30.0, free_after=0.0, rewrite_after=60.0, share=1.0)
    )
    keeping = Keeping(tmp_path / "data", options)
    rng = random.Random(5)
    streams = [keeping.create("a"), keeping.create("b", cleanup="compact"), keeping.create("c")]
    freed = moments = 0
    for turn in range(25):
        for _ in range(6):
            stream = rng.choice(streams)
            keeping.write(
                stream, *((b"k%d" % rng.randrange(5), rng.randbytes(300)) for _ in range(rng.randrange(1, 5)))
            )
        trim(keeping, streams[0], keeping.log.reader.shard(streams[0], 0).next)
        keeping.log.upkeep.erase(keeping.row(streams[2]), b"k%d" % rng.randrange(5))
        keeping.clock.advance(40)
        for _ in keeping.log.upkeep.round():
            keeping.log._maintenance.close()
            if rng.random() < 0.1:
                moments += 1
                assert keeping.rebuilt() == list(keeping.all()), f"turn {turn}"
        freed = keeping.counts()["blocks_freed"]
    keeping.log.close()
    assert freed > 10
    assert moments > 5


# Readers meanwhile.


class Between:
    """A ledger in which something happens once, right after somebody has looked entries up, or right before."""

    def __init__(self, ledger, act, *, before: bool = False):
        self._ledger, self._act, self._before = ledger, act, before

    def __getattr__(self, name):
        return getattr(self._ledger, name)

    def entries_from(self, *args):
        act, self._act = self._act, lambda: None
        if self._before:
            act()
        found = self._ledger.entries_from(*args)
        if not self._before:
            act()
        return found


@pytest.fixture
def hasty(tmp_path):
    """A log whose blocks are freed at once, with ten records in a sealed block and some more after it."""
    pace = Pace(interval=30.0, free_after=0.0, rewrite_after=60.0, share=1.0)
    keeping = Keeping(tmp_path / "data", LogOptions(block_bytes=64 << 10, hot_tail_bytes=0, pace=pace))
    stream = keeping.create()
    fill(keeping, stream, 10)
    keeping.roll()
    fill(keeping, stream, 2, first=10)
    yield keeping, stream
    keeping.log.close()


def free(keeping: Keeping, stream: int, before: int) -> None:
    """Trim, and let everything happen that follows from it, until the first block is gone."""
    first = keeping.entries(stream)[0].block
    trim(keeping, stream, before)
    pass_time(keeping, 300)
    assert first not in keeping.files()


def test_a_reader_that_had_looked_up_what_is_trimmed_and_freed_is_told(hasty):
    keeping, stream = hasty
    ledger = Between(keeping.log.ledger, lambda: free(keeping, stream, 11))
    reader = LogReader(ledger, keeping.log._folder.blocks)
    with pytest.raises(DataLoss) as caught:
        reader.read(keeping.row(stream), 0, 3)
    assert (caught.value.reason, caught.value.first, caught.value.last) == ("trimmed", 3, 10)


def test_a_reader_that_had_looked_up_what_is_moved_gets_it(hasty):
    keeping, stream = hasty
    ledger = Between(keeping.log.ledger, lambda: free(keeping, stream, 6))
    reader = LogReader(ledger, keeping.log._folder.blocks)
    found = reader.read(keeping.row(stream), 0, 8)
    assert found[0].base <= 8
    assert found[-1].end >= 10


def test_a_reader_of_a_file_that_is_really_missing_is_told_that(hasty):
    keeping, stream = hasty
    block = keeping.entries(stream)[0].block
    keeping.log._folder.blocks.remove(block)
    reader = LogReader(keeping.log.ledger, keeping.log._folder.blocks)
    with pytest.raises(DataLoss) as caught:
        reader.read(keeping.row(stream), 0, 3)
    assert (caught.value.reason, caught.value.first, caught.value.last) == ("damaged", 3, 9)


def test_rows_dropped_between_two_looks_are_a_loss_and_no_gap(hasty):
    """The reader saw the old start; the rows it looks up then begin after the new one."""
    keeping, stream = hasty
    for offset, before, last in ((3, 11, 10), (11, 12, 11)):

        def drop(before: int = before) -> None:
            trim(keeping, stream, before)
            keeping.keep()

        reader = LogReader(Between(keeping.log.ledger, drop, before=True), keeping.log._folder.blocks)
        with pytest.raises(DataLoss) as caught:
            reader.read(keeping.row(stream), 0, offset)
        assert (caught.value.reason, caught.value.first, caught.value.last) == ("trimmed", offset, last)


def test_a_reader_of_a_stream_that_is_deleted_meanwhile_gets_nothing(hasty):
    keeping, stream = hasty
    row = keeping.row(stream)

    def delete() -> None:
        keeping.log.execute(DeleteStream(stream, keeping.clock.now_us()))
        keeping.keep()

    reader = LogReader(Between(keeping.log.ledger, delete, before=True), keeping.log._folder.blocks)
    assert reader.read(row, 0, 3) == []
    with pytest.raises(StreamDeleted):
        reader.require_stream(stream)


# The thread.


def test_a_rest_does_not_hold_up_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(upkeep, "_ROUND_SECONDS", 0.001)
    options = LogOptions(pace=Pace(interval=0.001, share=0.001))
    keeping = Keeping(tmp_path / "data", options)
    stream = make_stream(keeping.log)
    append_values(keeping.log, stream, b"v")
    resting = threading.Event()

    def slow_step():
        # On this clock the step took an hour; the rest after it is as long as rests get.
        keeping.clock.advance(HOUR)
        resting.set()
        yield

    monkeypatch.setattr(keeping.log.upkeep._trimming, "drop", slow_step)
    keeping.log.upkeep.start()
    assert resting.wait(5)
    time.sleep(0.05)
    began = time.monotonic()
    keeping.log.close()
    assert time.monotonic() - began < 2.5


def test_a_close_that_is_interrupted_leaves_the_folder_free(keeping, monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(keeping.log.batcher, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keeping.log.close()
    keeping.reopen()
    assert keeping.create()


def test_counters_have_what_upkeep_did(keeping):
    assert set(keeping.counts()) <= set(keeping.log.counters())
    assert set(keeping.counts().values()) == {0}
    assert OPTIONS.pace is PACE
