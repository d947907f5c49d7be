"""Feeds in order: what upkeep does to a stream changes nothing about it, and only what must wait is cut off."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from mainstem.consume.feed import Feed
from mainstem.consume.record import RecordBatch
from mainstem.consume.selections import Selections
from mainstem.consume.view import View
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss
from mainstem.core.schema import Schema
from mainstem.log import frame, merger
from mainstem.log.flush import AlterStream, NoteMoment, SetSchema, TrimShard
from mainstem.log.reader import LogReader
from mainstem.log.upkeep import merging
from mainstem.transport.port import Query
from tests.unit.log.keeping import Keeping
from tests.unit.log.parts import append, make_batch, make_row_batch

LARGE = 1 << 20
MINUTE_US = 60_000_000
# Where a record stands.
Place = tuple[int, int]


@pytest.fixture
def keeping(tmp_path):
    keeping = Keeping(tmp_path)
    yield keeping
    keeping.log.close()


@pytest.fixture
def short_runs(monkeypatch):
    """As if nobody wrote less than this at a time."""
    monkeypatch.setattr(merger, "RUN_ENTRIES", 32)
    monkeypatch.setattr(merging, "RUN_ENTRIES", 32)


def feed_of(keeping: Keeping, window_us: int | None, offsets=(0, 0, 0), ends=None, *, cold=False, **other) -> Feed:
    log = keeping.log
    reader = LogReader(log.ledger, log._folder.blocks) if cold else log.reader
    return Feed(reader, reader.require_stream(1), offsets, ends, window_us=window_us, schema_of=log.schema, **other)


def batches_of(feed: Feed) -> Iterator[FetchedBatch]:
    while batches := feed.read(LARGE):
        yield from batches


def drained(feed: Feed, offsets=(0, 0, 0)) -> list[Place]:
    """The places of everything there is now, in the order in which they come."""
    found, at = [], dict(enumerate(offsets))
    for fetched in batches_of(feed):
        shard = fetched.header.shard
        assert fetched.base <= at.get(shard, 0) < fetched.end, "offsets are covered without a gap"
        if fetched.header.count:
            batch = RecordBatch("orders", fetched, at.get(shard, 0), None)
            found += [(shard, record.offset) for record in batch.records()]
        at[shard] = fetched.end
    return found


def write_minutes(
    keeping: Keeping, minutes: int, *, seed: int = 1, first: int = 0, shards: int = 3
) -> dict[Place, int]:
    """Tiny flushes over so many minutes; the minute of every record."""
    rng = random.Random(seed)
    written: dict[Place, int] = {}
    ends = [0] * shards
    for minute in range(first, first + minutes):
        for _ in range(rng.randrange(4)):
            shard = rng.randrange(shards)
            keeping.write(1, (b"k%d" % rng.randrange(20), b"%d" % minute), shard=shard)
            written[shard, keeping.log.reader.shard(1, shard).stable - 1] = minute
            ends[shard] += 1
        keeping.clock.advance(60)
    return written


def disorder(order: list[Place], minutes: dict[Place, int]) -> int:
    newest = worst = 0
    for place in order:
        worst = max(worst, newest - minutes[place])
        newest = max(newest, minutes[place])
    return worst


def test_merging_changes_nothing_about_the_order(keeping, short_runs):
    keeping.create(shards=3)
    minutes = write_minutes(keeping, 200)
    keeping.log.execute(NoteMoment(1))
    windows = (0, MINUTE_US, 10 * MINUTE_US)
    before = [drained(feed_of(keeping, window, cold=True)) for window in windows]
    assert all(sorted(order) == sorted(minutes) for order in before)
    rows = sum(len(keeping.entries(1, shard)) for shard in range(3))
    keeping.roll()
    keeping.keep(3_600)
    assert sum(len(keeping.entries(1, shard)) for shard in range(3)) < rows / 2, "most are merged"
    after = [drained(feed_of(keeping, window, cold=True)) for window in windows]
    assert after[0] == before[0], "a single order"
    for order, bound in zip(after, (1, 1, 10), strict=True):
        assert sorted(order) == sorted(minutes)
        assert disorder(order, minutes) <= bound
    # Without an order a merged batch comes whole.
    assert disorder(drained(feed_of(keeping, None, cold=True)), minutes) > 30


@pytest.mark.parametrize("without_ledger", [False, True], ids=["restarted", "rebuilt"])
def test_a_single_order_survives_a_restart_and_a_rebuild(keeping, without_ledger):
    keeping.create(shards=3)
    write_minutes(keeping, 60)
    keeping.log.execute(NoteMoment(1))
    before = drained(feed_of(keeping, 0))
    moments = keeping.log.ledger.load_moments(1, 0, 1_000)
    keeping.reopen(without_ledger=without_ledger)
    assert keeping.log.ledger.load_moments(1, 0, 1_000) == moments
    assert drained(feed_of(keeping, 0)) == before


def test_flushes_of_an_earlier_program_have_no_moments_however_often_they_are_applied(keeping, monkeypatch):
    monkeypatch.setattr(frame, "_NOTES_MOMENTS", 0)
    keeping.create(shards=3)
    write_minutes(keeping, 20)
    keeping.reopen(without_ledger=True)
    monkeypatch.undo()
    keeping.reopen(without_ledger=True)
    assert keeping.log.ledger.load_moments(1, 0, 1_000) == []
    early = sum(keeping.log.reader.shard(1, shard).stable for shard in range(3))
    write_minutes(keeping, 20, seed=2, first=20)
    keeping.log.execute(NoteMoment(1))
    before = drained(feed_of(keeping, 0))
    assert [shard for shard, _ in before[:early]] == sorted(shard for shard, _ in before[:early])
    keeping.reopen(without_ledger=True)
    assert drained(feed_of(keeping, 0)) == before


def test_compaction_leaves_the_order_of_what_is_left(keeping):
    keeping.create(shards=3, cleanup="compact")
    write_minutes(keeping, 150)
    keeping.log.execute(NoteMoment(1))
    before = drained(feed_of(keeping, 0, cold=True))
    keeping.keep()
    keeping.keep(7_200)
    after = drained(feed_of(keeping, 0, cold=True))
    assert 0 < len(after) < len(before)
    assert after == [place for place in before if place in after]


def test_rows_are_cut_too(keeping, short_runs):
    keeping.create(shards=2)
    schema = Schema(pa.schema([("id", pa.int64()), ("city", pa.string())]))
    keeping.log.execute(SetSchema(1, schema.serialized, schema.fingerprint, 1, keeping.clock.now_us()))
    for minute in range(32):
        for shard in range(2):
            rows = [{"id": minute, "city": "x"}, {"id": minute, "city": "y"}]
            append(keeping.log, make_row_batch(rows, schema, 1, shard=shard))
        keeping.clock.advance(60)
    keeping.log.execute(NoteMoment(1))
    keeping.roll()
    keeping.keep(3_600)
    assert len(keeping.entries(1, 0)) == 1

    def ids(feed: Feed, columns: tuple[str, ...] | None = None) -> list[int]:
        view = View(schema, 1, columns=columns)
        found, at = [], [0, 0]
        for each in batches_of(feed):
            shard = each.header.shard
            if each.header.count:
                found += [row["id"] for row in RecordBatch("orders", each, at[shard], None, view).values()]
            at[shard] = each.end
        return found

    assert ids(feed_of(keeping, 0, (0, 0), cold=True)) == [minute for minute in range(32) for _ in range(4)]
    select = Selections(keeping.log.schema)
    query = Query("id % 10 = 3", ("id",), 1)
    wanted = feed_of(keeping, MINUTE_US, (0, 0), cold=True, select=lambda: select.get(keeping.row(1), query))
    assert ids(wanted, ("id",)) == [minute for minute in (3, 13, 23) for _ in range(4)]


def test_only_what_must_wait_is_cut(keeping):
    """What was written stays as it is."""
    keeping.create(shards=2)
    for _ in range(3):
        append(keeping.log, make_batch([b"a"] * 5), make_batch([b"b"] * 5, shard=1))
        keeping.clock.advance(60)
    written = {bytes(batch.payload) for batch in batches_of(feed_of(keeping, None, (0, 0)))}
    keeping.log.execute(NoteMoment(1))
    for window in (0, MINUTE_US):
        assert {bytes(batch.payload) for batch in batches_of(feed_of(keeping, window, (0, 0)))} == written


def test_memory_answers_in_order(keeping):
    keeping.create(shards=2)
    for _ in range(3):
        append(keeping.log, make_batch(), make_batch(shard=1))
        keeping.clock.advance(60)
    keeping.log.execute(NoteMoment(1))
    feed = feed_of(keeping, 0, (0, 0))
    found = []
    while batches := feed.hot(keeping.log.hot, LARGE):
        found += [(batch.header.shard, batch.base) for batch in batches]
    assert found == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert not feed.is_ready


def test_a_follower_goes_on_when_there_is_a_moment(keeping):
    keeping.create(shards=2)
    feed = feed_of(keeping, 0, (0, 0))
    append(keeping.log, make_batch(), make_batch(shard=1))
    feed.touch([0, 1])
    assert drained(feed) == []
    assert feed.behind() == 2
    keeping.clock.advance(1)
    keeping.log.execute(NoteMoment(1))
    # As a flush does in which a shard grew.
    feed.touch([0])
    assert drained(feed) == [(0, 0), (1, 0)]
    assert feed.behind() == 0


def test_a_moment_that_nobody_told_of_is_found_before_a_shard_waits(keeping):
    keeping.create(shards=2)
    feed = feed_of(keeping, 0, (0, 0))
    append(keeping.log, make_batch(), make_batch(shard=1))
    keeping.clock.advance(1)
    keeping.log.execute(NoteMoment(1))
    assert drained(feed) == [(0, 0), (1, 0)]


def test_shards_that_are_added_keep_to_the_order(keeping):
    keeping.create(shards=2)
    windows = (0, MINUTE_US, 10 * MINUTE_US)
    feeds = [feed_of(keeping, window, (0, 0)) for window in windows]
    expected = []
    for minute in range(20):
        shards = 2 if minute < 10 else 4
        if minute == 10:
            keeping.log.execute(AlterStream(1, shards=4))
        for shard in reversed(range(shards)):
            append(keeping.log, make_batch(shard=shard, generation=minute // 10))
        expected += [(shard, minute if shard < 2 else minute - 10) for shard in range(shards)]
        keeping.clock.advance(60)
    keeping.log.execute(NoteMoment(1))
    feeds += [feed_of(keeping, window, (0, 0, 0, 0)) for window in windows]
    minutes = {(shard, offset): offset if shard < 2 else offset + 10 for shard, offset in expected}
    for feed, window in zip(feeds, windows * 2, strict=True):
        feed.touch(range(4))
        found = drained(feed)
        assert sorted(found) == sorted(expected)
        assert disorder(found, minutes) <= max(1, window // MINUTE_US)
        if not window:
            assert found == expected


def test_losses_in_a_single_order_are_told_as_far_as_it_is_their_turn(keeping):
    keeping.create(shards=2)
    for _ in range(4):
        append(keeping.log, make_batch([b"x"] * 2), make_batch([b"x"] * 2, shard=1))
        keeping.clock.advance(60)
    keeping.log.execute(NoteMoment(1))
    keeping.log.execute(TrimShard(1, 1, 5))
    feed, told, found = feed_of(keeping, 0, (0, 0)), [], []
    while feed.is_ready:
        try:
            found += [(batch.header.shard, batch.base) for batch in feed.read(LARGE)]
        except DataLoss as loss:
            found.append((loss.shard, -1))
            told.append((loss.shard, loss.first, loss.last))
    assert told == [(1, 0, 1), (1, 2, 3), (1, 4, 4)]
    assert found == [(0, 0), (1, -1), (0, 2), (1, -1), (0, 4), (1, -1), (1, 4), (0, 6), (1, 6)]


def test_a_bounded_feed_in_order_comes_to_its_end(keeping, short_runs):
    keeping.create(shards=3)
    minutes = write_minutes(keeping, 50)
    keeping.log.execute(NoteMoment(1))
    ends = tuple(keeping.log.reader.shard(1, shard).stable for shard in range(3))
    keeping.roll()
    keeping.keep(3_600)
    write_minutes(keeping, 20, seed=2, first=50)
    for window in (0, MINUTE_US):
        feed = feed_of(keeping, window, ends=ends)
        found = [place for place in drained(feed) if place[1] < ends[place[0]]]
        assert sorted(found) == sorted(minutes)
        assert feed.is_done
    feed = feed_of(keeping, 5 * MINUTE_US, ends=(ends[0], 1, 0))
    assert len([place for place in drained(feed) if place[1] < (ends[0], 1, 0)[place[0]]]) == ends[0] + 1


def test_the_watermark_of_a_follower(keeping):
    keeping.create(shards=3)
    feed = feed_of(keeping, 5 * MINUTE_US)
    settled = keeping.log.batcher.settled_us
    assert feed.watermark(settled) == keeping.clock.now_us(), "nothing was ever written"
    keeping.clock.advance(1)
    append(keeping.log, make_batch())
    written_us = keeping.clock.now_us()
    keeping.clock.advance(10)
    assert feed.watermark(settled) < written_us, "a record is still to come"
    feed.touch([0])
    assert drained(feed) == [(0, 0)]
    assert feed.watermark(settled) == keeping.clock.now_us()
    append(keeping.log, make_batch(shard=1))
    assert keeping.log.ledger.newest_moment(1, 1 << 60).time_us <= feed.watermark(settled) <= keeping.clock.now_us()


def test_no_flush_is_older_than_a_time_that_was_told(keeping):
    keeping.create(shards=2)
    told = keeping.log.batcher.settled_us()
    keeping.log.batcher._file._clock = type("Back", (), {"now_us": lambda self: told - 10_000_000})()
    append(keeping.log, make_batch())
    assert keeping.log.ledger.newest_moment(1, 1 << 60).time_us >= told


def test_what_is_read_again_after_an_erasure_comes_in_the_same_order(keeping):
    keeping.create(shards=3)
    write_minutes(keeping, 30)
    keeping.log.execute(NoteMoment(1))
    expected = drained(feed_of(keeping, 0))
    feed = feed_of(keeping, 0)
    taken: list[FetchedBatch] = []
    while len(taken) < 10:
        taken += feed.read(LARGE)
    again = feed.before(taken[5:])
    assert again.is_ordered
    at = [max((batch.end for batch in taken[:5] if batch.header.shard == shard), default=0) for shard in range(3)]
    first = [(batch.header.shard, offset) for batch in taken[:5] for offset in range(batch.base, batch.end)]
    assert first + drained(again, at) == expected


def test_what_matches_comes_in_the_same_order(keeping, short_runs):
    """Also out of batches of which a part has to wait."""
    keeping.create(shards=3)
    minutes = write_minutes(keeping, 100)
    keeping.log.execute(NoteMoment(1))
    keeping.roll()
    keeping.keep(3_600)
    row = keeping.log.reader.require_stream(1)
    selections = Selections(keeping.log.schema)
    for window, bound in ((0, 1), (MINUTE_US, 1), (10 * MINUTE_US, 10)):
        expected = [place for place in drained(feed_of(keeping, window, cold=True)) if place[1] % 3 == 0]
        query = Query("_offset % 3 = 0")
        found = drained(feed_of(keeping, window, cold=True, select=lambda query=query: selections.get(row, query)))
        assert sorted(found) == sorted(expected)
        assert disorder(found, minutes) <= bound
        if not window:
            assert found == expected
