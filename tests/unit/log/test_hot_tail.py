"""The hot tail: what it holds, what it lets go, and what it never answers."""

from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.core.batch import FetchedBatch
from mainstem.core.limits import BATCH_OVERHEAD_BYTES
from mainstem.log.hot_tail import HotTail
from tests.unit.log.parts import make_batch

OVERHEAD = 512


def fetched(base: int, count: int, *, stream: int = 1, shard: int = 0) -> FetchedBatch:
    batch = make_batch([b"v"] * count, stream=stream, shard=shard)
    return FetchedBatch(base, batch.header, batch.payload)


def cost(batch: FetchedBatch) -> int:
    return batch.header.stored_len + OVERHEAD


def find(tail: HotTail, offset: int, *, stream: int = 1, shard: int = 0) -> FetchedBatch | None:
    """The one batch that holds `offset`."""
    found = tail.find(stream, shard, offset, 0)
    assert len(found) <= 1
    return found[0] if found else None


def test_a_batch_is_found_by_any_of_its_offsets():
    tail = HotTail(1 << 20)
    first, second = fetched(10, 5), fetched(15, 1)
    tail.append([first, second])
    assert [find(tail, offset) for offset in range(9, 17)] == [None, *[first] * 5, second, None]


def test_a_run_of_batches_is_about_as_long_as_was_asked_for():
    tail = HotTail(1 << 20)
    batches = [fetched(number, 1) for number in range(10)]
    tail.append(batches)
    size = batches[0].header.stored_len + BATCH_OVERHEAD_BYTES
    assert tail.find(1, 0, 3, 1) == batches[3:4]
    assert tail.find(1, 0, 3, 2 * size) == batches[3:5]
    assert tail.find(1, 0, 3, 2 * size + 1) == batches[3:6]
    assert tail.find(1, 0, 3, 1 << 20) == batches[3:]


def test_shards_and_streams_are_apart():
    tail = HotTail(1 << 20)
    batches = [fetched(0, 1), fetched(0, 1, shard=1), fetched(0, 1, stream=2)]
    tail.append(batches)
    assert [find(tail, 0), find(tail, 0, shard=1), find(tail, 0, stream=2)] == batches
    assert find(tail, 0, stream=2, shard=1) is find(tail, 0, stream=3) is None


def test_the_oldest_of_all_shards_goes_first():
    batches = [fetched(0, 1), fetched(0, 1, shard=1), fetched(1, 1), fetched(1, 1, shard=1)]
    tail = HotTail(3 * cost(batches[0]))
    for batch in batches:
        tail.append([batch])
    assert find(tail, 0) is None
    assert find(tail, 0, shard=1) is not None
    assert find(tail, 1) is not None
    assert tail.bytes == 3 * cost(batches[0])


def test_a_batch_over_the_whole_budget_is_not_kept_and_does_no_harm():
    tail = HotTail(2_000)
    big = fetched(0, 4_000)
    tail.append([big])
    assert tail.bytes == 0
    assert find(tail, 0) is None
    tail.append([fetched(4_000, 1)])
    assert find(tail, 4_000) is not None


def test_with_no_budget_nothing_is_kept():
    tail = HotTail(0)
    tail.append([fetched(0, 1), fetched(1, 1)])
    assert tail.bytes == 0
    assert find(tail, 1) is None


def test_a_gap_is_a_bug_and_stops():
    tail = HotTail(1 << 20)
    tail.append([fetched(0, 2)])
    with pytest.raises(AssertionError, match="no gaps"):
        tail.append([fetched(3, 1)])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=60), st.integers(0, 12_000))
@example([(0, 1)] * 300, 9_000)
def test_it_is_the_suffix_of_what_was_appended_that_fits(appends, budget):
    """Against a plain list: the newest batches that fit the budget, all of them and only they."""
    tail = HotTail(budget)
    ends = [0, 0, 0]
    kept: deque[FetchedBatch] = deque()
    for shard, count in appends:
        batch = fetched(ends[shard], count, shard=shard)
        ends[shard] += count
        tail.append([batch])
        kept.append(batch)
        while sum(map(cost, kept)) > budget:
            kept.popleft()
    assert tail.bytes == sum(map(cost, kept)) <= budget
    for shard in range(3):
        for offset in range(ends[shard] + 1):
            expected = [batch for batch in kept if batch.header.shard == shard and batch.base <= offset < batch.end]
            assert find(tail, offset, shard=shard) is (expected[0] if expected else None)
            everything = tail.find(1, shard, offset, 1 << 30)
            assert everything == [
                batch for batch in kept if expected and batch.header.shard == shard and batch.end > offset
            ]


def test_what_was_broken_off_is_not_found_and_the_shard_goes_on_anywhere():
    tail = HotTail(1 << 20)
    kept = fetched(0, 1, shard=1)
    tail.append([fetched(0, 2), kept, fetched(2, 2)])
    tail.break_off((1, 0))
    tail.break_off((1, 5))
    assert [find(tail, offset) for offset in range(4)] == [None] * 4
    assert (find(tail, 0, shard=1), tail.bytes) == (kept, cost(kept))
    later = fetched(9, 2)
    tail.append([later])
    assert [find(tail, offset) for offset in (3, 8, 9, 10)] == [None, None, later, later]
    assert tail.bytes == cost(kept) + cost(later)


def test_room_is_made_behind_what_was_broken_off():
    one = cost(fetched(0, 1))
    tail = HotTail(3 * one)
    tail.append([fetched(0, 1), fetched(1, 1), fetched(0, 1, shard=1)])
    tail.break_off((1, 0))
    batches = [fetched(base, 1, shard=1) for base in range(1, 5)]
    tail.append(batches)
    assert [find(tail, offset, shard=1) for offset in range(5)] == [None, None, *batches[1:]]
    assert tail.bytes == 3 * one


def test_breaking_off_again_and_again_leaves_nothing_behind():
    tail = HotTail(1 << 20)
    tail.append([fetched(0, 1, shard=1)])
    for base in range(1_000):
        tail.append([fetched(base * 10, 1)])
        tail.break_off((1, 0))
    assert tail.bytes == cost(fetched(0, 1, shard=1))
    assert len(tail._order) < 200
    assert find(tail, 0, shard=1) is not None
