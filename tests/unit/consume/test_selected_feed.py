"""A feed with a selection: what can be skipped is not read, and every offset is accounted for exactly once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from mainstem.consume.feed import Feed
from mainstem.consume.selection import Selected, Selection
from mainstem.consume.selections import Selections
from mainstem.consume.view import View
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss, InternalError, InvalidPredicate
from mainstem.core.schema import Schema
from mainstem.log.contents import Contents
from mainstem.log.flush import SetSchema, TrimShard
from mainstem.log.log import Log, LogOptions
from mainstem.log.shared_reads import SharedReads
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.port import Query
from tests.unit.log.parts import append, append_values, make_batch, make_keyed_batch, make_stream

LARGE = 1 << 20
NOW = 1_767_225_600_000_000


@pytest.fixture(params=["memory", "disk"])
def log(request, tmp_path):
    log = Log(tmp_path, LogOptions(hot_tail_bytes=0 if request.param == "disk" else LARGE))
    make_stream(log, shards=2)
    yield log
    log.close()


def feed_of(log: Log, where: str, offsets=(0, 0), ends=None, **options) -> Feed:
    selections = Selections(log.schema)
    query = Query(where)
    row = log.reader.require_stream(1)
    return Feed(log.reader, row, offsets, ends, lambda: selections.get(row, query), **options)


def drained(feed: Feed, bytes_max: int = LARGE) -> list[FetchedBatch]:
    found = []
    while batches := feed.read(bytes_max):
        found += batches
    return found


def values(batches: list[FetchedBatch]) -> list[bytes | None]:
    return [value for batch in batches if batch.header.count for value in values_of_any(batch)]


def values_of_any(batch: FetchedBatch) -> list[bytes | None]:
    seen: list[bytes | None] = View(None).decode(batch).columns.column("value").to_pylist()
    return seen


def assert_whole(batches: list[FetchedBatch], ends: tuple[int, ...]) -> None:
    """Every offset of every shard is covered once, in order."""
    at = [0] * len(ends)
    for batch in batches:
        assert batch.base == at[batch.header.shard]
        at[batch.header.shard] = batch.end
    assert tuple(at) == ends


def test_only_what_matches_comes(log):
    append_values(log, 1, b"a", b"b", b"a")
    append_values(log, 1, b"b", shard=1)
    append_values(log, 1, b"a", shard=1)
    found = drained(feed_of(log, "value = 'a'"))
    assert values(found) == [b"a", b"a", b"a"]
    assert_whole(found, (3, 2))


def test_what_is_passed_over_is_one_batch_for_each_run(log):
    for number in range(20):
        append_values(log, 1, b"%d" % number)
    found = drained(feed_of(log, "value = '7'"))
    assert [(batch.base, batch.end, batch.header.count) for batch in found] == [(0, 7, 0), (7, 8, 1), (8, 20, 0)]


def test_what_cannot_match_is_not_read(log):
    for number in range(10):
        append_values(log, 1, b"%d" % number)
    feed = feed_of(log, "_offset = 4")
    assert values(drained(feed)) == [b"4"]
    assert (feed.counts.opened, feed.counts.skipped) == (1, 9)


def test_what_is_skipped_is_counted_once(log):
    """Whoever stops before it is asked about again, whatever was skipped elsewhere in between."""
    for shard in (0, 1):
        for number in range(6):
            append_values(log, 1, b"%d" % number, shard=shard)
    feed = feed_of(log, "_offset = 0 OR _offset = 3")
    assert len(values(drained(feed, 1))) == 4
    assert (feed.counts.opened, feed.counts.skipped) == (4, 8)


def test_many_batches_are_one_question_to_the_ledger(log, monkeypatch):
    for number in range(12):
        append_values(log, 1, b"%d" % number, b"x" * 600_000)
    asked: list[int] = []
    entries_from = log.reader._ledger.entries_from

    def watched(*args: int) -> object:
        asked.append(args[2])
        return entries_from(*args)

    monkeypatch.setattr(log.reader._ledger, "entries_from", watched)
    found = drained(feed_of(log, "value = '7' OR value = '11'"))
    assert values(found) == [b"7", b"11"]
    assert len(asked) <= 3


def test_a_bounded_feed_is_not_read_beyond_its_end(log):
    for number in range(5):
        append_values(log, 1, b"%d" % number)
    feed = feed_of(log, "value <> 'x'", ends=[2, 0])
    assert values(drained(feed)) == [b"0", b"1"]
    assert feed.is_done


def test_a_look_ends_after_a_moment(log):
    """However much there is without a match: the reader learns how far it came."""
    for number in range(300):
        append_values(log, 1, b"%d" % number)

    class Slow(SimulatedClock):
        def monotonic(self) -> float:
            self.advance(1.0)
            return super().monotonic()

    feed = feed_of(log, "value = 'none'", clock=Slow())
    first = feed.read(LARGE)
    assert [batch.header.count for batch in first] == [0]
    assert 0 < first[0].end < 300
    assert_whole([*first, *drained(feed)], (300, 0))


def test_a_bounded_feed_ends(log):
    append_values(log, 1, b"a", b"b")
    feed = feed_of(log, "value = 'none'", ends=[2, 0])
    drained(feed)
    assert feed.is_done


def test_a_feed_looks_again_when_a_shard_grew(log):
    feed = feed_of(log, "value = 'b'")
    assert drained(feed) == []
    append_values(log, 1, b"a", b"b")
    feed.touch([0])
    assert values(drained(feed)) == [b"b"]


def test_memory_is_not_looked_through_in_the_loop(log):
    append_values(log, 1, b"a")
    feed = feed_of(log, "value = 'a'")
    assert feed.hot(log.hot, LARGE) == []
    assert feed.is_ready
    assert values(drained(feed)) == [b"a"]


def test_a_loss_comes_after_what_was_found_before_it(log):
    for number in range(6):
        append_values(log, 1, b"%d" % number, shard=number % 2)
    log.execute(TrimShard(1, 0, 2))
    feed = feed_of(log, "value = '1' OR value = '4'")
    with pytest.raises(DataLoss) as caught:
        drained(feed)
    assert (caught.value.shard, caught.value.first, caught.value.last) == (0, 0, 1)
    assert sorted(map(bytes, filter(None, values(drained(feed))))) == [b"1", b"4"]


def drain(feed: Feed, into: list[FetchedBatch]) -> None:
    while batches := feed.read(LARGE):
        into += batches


@pytest.mark.parametrize("where", ["_offset >= 0", ""])
def test_after_an_error_nothing_is_missing(log, monkeypatch, where):
    """What was found before it comes, then the error, as often as it is met, and what failed is still to come."""
    for number in range(6):
        append_values(log, 1, b"%d" % number)
        append_values(log, 1, b"other", shard=1)
    feed = feed_of(log, where, is_plain=not where)
    apply, failing = Selection.apply, True

    def fail(selection: Selection, batch: FetchedBatch) -> Selected:
        if failing and (batch.header.shard, batch.base) == (0, 3):
            raise InternalError("this one cannot be made")
        return apply(selection, batch)

    monkeypatch.setattr(Selection, "apply", fail)
    found: list[FetchedBatch] = []
    with pytest.raises(InternalError):
        drain(feed, found)
    assert max(batch.end for batch in found if batch.header.shard == 0) == 3
    with pytest.raises(InternalError):
        drain(feed, found)
    failing = False
    assert_whole(found + drained(feed), (6, 6))


def test_an_error_of_the_disk_waits_for_what_was_found(log, monkeypatch):
    append_values(log, 1, b"a")
    append_values(log, 1, b"b", shard=1)
    walk, failing = log.reader.walk, True

    def fail(stream, shard, *args, **options):
        if failing and shard == 1:
            raise OSError("no such disk")
        return walk(stream, shard, *args, **options)

    monkeypatch.setattr(log.reader, "walk", fail)
    feed = feed_of(log, "_offset >= 0")
    found = feed.read(LARGE)
    assert values(found) == [b"a"]
    with pytest.raises(OSError, match="no such disk"):
        feed.read(LARGE)
    failing = False
    assert_whole(found + drained(feed), (1, 1))


def test_a_predicate_that_cannot_be_bound_is_told_by_the_first_read(log):
    append_values(log, 1, b"a")
    with pytest.raises(InvalidPredicate):
        feed_of(log, "nothing = 1").read(LARGE)


def test_everything_is_accounted_for_whatever_is_skipped(log):
    """Random sizes, random verdicts on what may be skipped, reads of every size, a hot tail that begins anywhere."""
    chance = random.Random(5)
    written: dict[int, list[bytes]] = {0: [], 1: []}
    for _ in range(60):
        shard = chance.randrange(2)
        made = [chance.randbytes(chance.choice((1, 50, 3_000))) for _ in range(chance.randrange(1, 5))]
        append(log, *(make_batch([value], stream=1, shard=shard) for value in made))
        written[shard] += made
    ends = (len(written[0]), len(written[1]))
    for trial in range(40):
        skips = {(shard, base) for shard in (0, 1) for base in range(ends[shard]) if chance.random() < 0.5}
        feed = feed_of(log, "_offset >= 0")
        selection = feed._bound()
        skipped: set[tuple[int, int]] = set()

        def can_skip(place, filters, skips=skips, skipped=skipped):
            if (place.shard, place.base) in skips:
                skipped.update((place.shard, offset) for offset in range(place.base, place.end))
                return True
            return False

        selection.can_skip = can_skip  # type: ignore[method-assign]
        # Feeds that ask the same share what was read, and here each has its own verdicts.
        for shard in (0, 1):
            log.reader.shared.forget((1, shard))
        found = drained(feed, chance.choice((1, 100, 5_000, LARGE)))
        assert_whole(found, ends)
        for batch in found:
            if batch.header.count:
                values_there = values_of_any(batch)
                assert values_there == written[batch.header.shard][batch.base : batch.end], trial
        there = {
            (batch.header.shard, offset)
            for batch in found
            if batch.header.count
            for offset in range(batch.base, batch.end)
        }
        assert there | skipped == {(shard, offset) for shard in (0, 1) for offset in range(ends[shard])}


def test_filters_keep_batches_from_being_opened(log):
    """Two thousand records of a batch are worth a filter of their keys; a key that is not there opens none."""
    for first in range(0, 16_000, 2_000):
        records = [(b"key %d" % n, b"v", NOW) for n in range(first, first + 2_000)]
        append(log, Contents().described(make_keyed_batch(records)))
    feed = feed_of(log, "key = 'key 4321'")
    assert values(drained(feed)) == [b"v"]
    assert feed.counts.opened + feed.counts.skipped == 8
    assert feed.counts.opened <= 2
    absent = feed_of(log, "key = 'nobody'")
    assert values(drained(absent)) == []
    assert absent.counts.opened <= 1


def test_selections_are_plain_or_not():
    assert Selection(View(None)).is_plain
    assert not Selection(View(None), "key = 'a'").is_plain


IDS = Schema(pa.schema([("id", pa.int64())]))


def test_json_is_made_rows_of_once_for_several_readers(log):
    """Also around what is no row; when the batches are other ones, because a record was erased, they are made anew."""
    for at in range(0, 40, 4):
        append_values(log, 1, *[b'{"id": %d}' % number for number in range(at, at + 3)], b"no row")
    log.execute(SetSchema(1, IDS.serialized, IDS.fingerprint, 1, 0))
    row = log.reader.require_stream(1)
    selections = Selections(log.schema)

    def open_feed() -> Feed:
        return Feed(
            log.reader, row, (0, 0), None, lambda: selections.get(row, Query("", None, row.schema_id)), is_plain=True
        )

    def numbers(batches: list[FetchedBatch]) -> list[int]:
        view = View(IDS, row.schema_id, schema_of=log.schema)
        rows = [view.decode(batch).columns.column("id").to_pylist() for batch in batches]
        return [number for found in rows for number in found if number is not None]

    alone = drained(open_feed())
    assert {batch.header.schema_id for batch in alone} == {0}
    assert (selections.tally.made, log.reader.shared.made_bytes) == (0, 0)
    first, second, third = feeds = [open_feed() for _ in range(3)]
    for feed in feeds:
        feed._bound()
    found = drained(first)
    assert {batch.header.schema_id for batch in found} == {0, row.schema_id}
    assert selections.tally.made == 10
    assert log.reader.shared.made_bytes > 0
    assert drained(second) == found
    assert (selections.tally.made, selections.tally.shared) == (10, len(found))
    assert numbers(found) == [number for number in range(39) if number % 4 != 3]
    log.reader.shared.forget((1, 0))
    assert drained(third) == found
    assert selections.tally.made == 20
    # Who has read nothing yet does not know that rows must be made, and does not make them again.
    assert drained(open_feed()) == found
    assert selections.tally.made == 20


def test_readers_who_want_the_same_look_once(log, monkeypatch):
    """Whoever comes while another looks waits for what he finds, and one who is behind reads up to what is known."""
    for number in range(12):
        append_values(log, 1, b"%d" % number, b"x" * 100_000)
    selections, row = Selections(log.schema), log.reader.require_stream(1)

    def feed(offset: int) -> Feed:
        return Feed(log.reader, row, (offset, 0), None, lambda: selections.get(row, Query("value = '7'")))

    opened: list[int] = []
    second, looks = threading.Event(), threading.Event()
    apply = Selection.apply

    def watched(self: Selection, batch: FetchedBatch) -> Selected:
        opened.append(batch.base)
        looks.set()
        assert second.wait(10)
        return apply(self, batch)

    monkeypatch.setattr(Selection, "apply", watched)
    looking = SharedReads.looking

    def counted(*args: Any) -> Any:
        # Both are here: the second has nothing left to do but to look, or to wait.
        if looks.is_set():
            second.set()
        return looking(*args)

    monkeypatch.setattr(SharedReads, "looking", counted)
    first, other, behind = feed(8), feed(8), feed(0)
    with ThreadPoolExecutor(2) as pool:
        mine = pool.submit(drained, first)
        assert looks.wait(10)
        assert values(pool.submit(drained, other).result(10)) == values(mine.result(10)) == [b"7"]
    assert opened == list(range(8, 24, 2))
    found = drained(behind)
    assert values(found) == [b"7"]
    assert_whole(found, (24, 0))
    assert opened == [*range(8, 24, 2), *range(0, 8, 2)]
