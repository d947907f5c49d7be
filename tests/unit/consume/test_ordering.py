"""Order across shards: no window is ever exceeded, nobody waits for nobody, and a single order is the same every time.

The log is a model here: flushes of records with a time, and moments by the rule that the ledger follows.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.consume.ordering import Ordering, Sequenced, Window
from mainstem.consume.watermark import Watermark
from mainstem.core.limits import MOMENT_US_MAX
from mainstem.log.ledger.base import MomentRow

SECOND = 1_000_000
MINUTE = 60 * SECOND


class Model:
    """A stream: the time of every record of every shard, and its moments."""

    def __init__(self, shards: int) -> None:
        self.times: list[list[int]] = [[] for _ in range(shards)]
        self.moments: list[MomentRow] = []
        self.now = MINUTE

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(map(len, self.times))

    def flush(self, counts: Sequence[int], seconds: float = 0.0) -> None:
        """So many records for each shard, so long after the flush before."""
        self.now += round(seconds * SECOND)
        if any(counts) and (not self.moments or self.now - self.moments[-1].time_us >= MOMENT_US_MAX):
            self.note()
        for times, count in zip(self.times, counts, strict=True):
            times += [self.now] * count

    def note(self) -> None:
        last = self.moments[-1].time_us if self.moments else 0
        self.moments.append(MomentRow(1, max(self.now, last + 1), self.ends))

    # The timeline.

    def after(self, time_us: int, limit: int) -> list[MomentRow]:
        return [row for row in self.moments if row.time_us > time_us][:limit]

    def before(self, time_us: int) -> MomentRow | None:
        place = bisect_left(self.moments, time_us, key=lambda row: row.time_us)
        return self.moments[place - 1] if place else None


class Reader:
    """Takes what it may of a model, as a feed does."""

    def __init__(self, model: Model, window_us: int, offsets: Sequence[int] | None = None, ends=None) -> None:
        self.model = model
        self.offsets = list(offsets or [0] * len(model.times))
        self.ends = ends
        self.order: Ordering = (
            Window(model, self.offsets, self.is_done, window_us)
            if window_us
            else Sequenced(model, self.offsets, self.is_done)
        )
        self.taken: list[tuple[int, int, int]] = []

    def is_done(self, shard: int) -> bool:
        return self.ends is not None and self.offsets[shard] >= self.ends[shard]

    def may_take(self, shard: int) -> int:
        """How many records of a shard it may take now."""
        self.order.look(self.offsets)
        end = len(self.model.times[shard]) if self.ends is None else self.ends[shard]
        stop = self.order.stop(shard)
        return max(0, (end if stop is None else min(stop, end)) - self.offsets[shard])

    def take(self, shard: int, count: int) -> int:
        count = min(count, self.may_take(shard))
        for _ in range(count):
            offset = self.offsets[shard]
            self.taken.append((self.model.times[shard][offset], shard, offset))
            self.offsets[shard] += 1
        self.order.move(self.offsets)
        return count

    def drain(self, rng: random.Random, speeds: Sequence[int] | None = None) -> None:
        """Take everything there is, the shards in any order."""
        shards = list(range(len(self.offsets)))
        while True:
            rng.shuffle(shards)
            most = speeds or [rng.randrange(1, 9) for _ in shards]
            if not sum(self.take(shard, most[shard]) for shard in shards):
                return

    def disorder(self) -> int:
        """By how much the newest record before another was newer."""
        newest = worst = 0
        for time_us, _, _ in self.taken:
            worst = max(worst, newest - time_us)
            newest = max(newest, time_us)
        return worst


flushes = st.tuples(
    st.lists(st.integers(0, 3), min_size=3, max_size=3), st.sampled_from([0, 0.001, 1, 20, 59, 60, 61, 300, 4000])
)


@settings(max_examples=60)
@given(
    before=st.lists(flushes, max_size=25),
    meanwhile=st.lists(flushes, max_size=25),
    window=st.sampled_from([MINUTE, 2 * MINUTE, 10 * MINUTE, 10_000 * MINUTE]),
    seed=st.integers(0, 1 << 30),
)
def test_no_record_comes_after_one_that_is_newer_by_more_than_the_window(before, meanwhile, window, seed):
    rng = random.Random(seed)
    model = Model(3)
    for counts, seconds in before:
        model.flush(counts, seconds)
    # One that is far behind on some shards gets no further apart, and what it catches up on is old for everybody.
    reader = Reader(model, window)
    for counts, seconds in meanwhile:
        for _ in range(rng.randrange(4)):
            reader.take(rng.randrange(3), rng.randrange(1, 6))
        model.flush(counts, seconds)
    reader.drain(rng)
    assert reader.disorder() <= window
    assert reader.offsets == list(model.ends)


@settings(max_examples=40)
@given(
    before=st.lists(flushes, max_size=25),
    meanwhile=st.lists(flushes, max_size=15),
    seed=st.integers(0, 1 << 30),
)
def test_a_single_order_is_the_same_for_every_reader(before, meanwhile, seed):
    rng = random.Random(seed)
    model = Model(3)
    for counts, seconds in before:
        model.flush(counts, seconds)
    early = Reader(model, 0)
    for counts, seconds in meanwhile:
        early.take(rng.randrange(3), rng.randrange(1, 6))
        model.flush(counts, seconds)
        if rng.random() < 0.2:
            model.note()
    model.note()
    early.drain(rng)
    late = Reader(model, 0)
    late.drain(rng)
    assert early.taken == late.taken
    assert late.offsets == list(model.ends)
    times = [time_us for time_us, _, _ in late.taken]
    assert late.disorder() <= MOMENT_US_MAX
    # Whoever begins in the middle goes on as the others did.
    place = rng.randrange(len(times) + 1)
    middle = Reader(model, 0, [sum(shard == of for _, of, _ in late.taken[:place]) for shard in range(3)])
    middle.drain(rng)
    assert middle.taken == late.taken[place:]


def test_the_window_is_used_to_the_full():
    """Shards of a thousand minutes, one of which is read ten times slower: the others come as far ahead as they may."""
    rng = random.Random(1)
    model = Model(4)
    for _ in range(1_000):
        model.flush([1, 1, 1, 1], 60)
    slow = [10, 10, 10, 1]
    reached = {}
    for window in (10, 100, 1_000_000):
        reader = Reader(model, window * MINUTE)
        reader.drain(rng, slow)
        assert reader.disorder() <= window * MINUTE
        reached[window] = reader.disorder() // MINUTE
    assert 9 <= reached[10] <= 10
    assert 99 <= reached[100] <= 100
    assert reached[1_000_000] > 800


def test_an_idle_shard_holds_nobody_up():
    model = Model(3)
    for _ in range(100):
        model.flush([5, 0, 5], 60)
    reader = Reader(model, MINUTE)
    reader.drain(random.Random(1))
    assert reader.offsets == [500, 0, 500]


def test_a_shard_that_is_read_to_its_end_holds_nobody_up():
    model = Model(2)
    for _ in range(100):
        model.flush([1, 1], 60)
    reader = Reader(model, MINUTE, ends=[100, 3])
    reader.drain(random.Random(1))
    assert reader.offsets == [100, 3]


def test_shards_that_were_added_later_take_part():
    model = Model(2)
    for _ in range(10):
        model.flush([1, 1], 60)
    model.times += [[], []]
    for _ in range(10):
        model.flush([1, 1, 1, 1], 60)
    model.note()
    reader = Reader(model, 0)
    reader.drain(random.Random(1))
    assert reader.offsets == [20, 20, 10, 10]
    assert reader.disorder() < 2 * MINUTE


def test_what_has_no_moment_behind_it_waits_for_its_place():
    model = Model(2)
    model.flush([2, 2])
    reader = Reader(model, 0)
    assert [reader.may_take(shard) for shard in (0, 1)] == [0, 0]
    model.note()
    assert [reader.may_take(shard) for shard in (0, 1)] == [2, 0]
    reader.take(0, 2)
    assert [reader.may_take(shard) for shard in (0, 1)] == [0, 2]


def test_records_from_before_the_first_moment_come_first():
    """As in a folder that an earlier program wrote."""
    model = Model(2)
    model.times = [[0] * 5, [0] * 5]
    for _ in range(5):
        model.flush([1, 1], 60)
    model.note()
    for window in (0, MINUTE, 1_000 * MINUTE):
        reader = Reader(model, window)
        reader.drain(random.Random(1))
        assert all(time_us == 0 for time_us, _, _ in reader.taken[:10])
        assert reader.offsets == [10, 10]


@pytest.mark.parametrize("count", [0, 1, 2, 17, 200])
def test_a_reader_begins_at_the_last_moment_that_it_has_passed(count):
    model = Model(2)
    for _ in range(count):
        model.flush([1, 1], 60)
    for at in range(count):
        reader = Reader(model, MINUTE, [at, at])
        assert reader.order.frontier_us == model.moments[at].time_us


@settings(max_examples=40)
@given(plan=st.lists(flushes, min_size=1, max_size=30), seed=st.integers(0, 1 << 30))
def test_nothing_comes_that_is_older_than_the_watermark(plan, seed):
    rng = random.Random(seed)
    model = Model(3)
    reader, watermark = Reader(model, 2 * MINUTE), Watermark()

    def look() -> int:
        has_passed = lambda ends: all(at >= end for at, end in zip(reader.offsets, ends, strict=True))  # noqa: E731
        return watermark.look(reader.order.frontier_us, has_passed, lambda: (model.now, model.ends))

    for counts, seconds in plan:
        model.flush(counts, seconds)
        for _ in range(rng.randrange(6)):
            begun = len(reader.taken)
            known = look()
            reader.take(rng.randrange(3), rng.randrange(1, 6))
            assert all(time_us >= known for time_us, _, _ in reader.taken[begun:])
    reader.drain(rng)
    model.now += 1_000 * SECOND
    look()
    assert look() == model.now, "all was read, and nothing is on its way"
