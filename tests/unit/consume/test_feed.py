"""The feed: every shard gets its turn, nothing is looked at without need, and nothing is delivered twice."""

import pytest

from mainstem.consume.feed import Feed
from mainstem.core.errors import DataLoss, InvalidRequest
from mainstem.log.flush import TrimShard
from mainstem.log.log import Log
from tests.unit.log.parts import append, append_values, make_batch, make_stream

LARGE = 1 << 20


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path)
    make_stream(log, shards=3)
    yield log
    log.close()


def feed_of(log: Log, offsets=(0, 0, 0), ends=None) -> Feed:
    return Feed(log.reader, log.reader.require_stream(1), offsets, ends)


def drained(feed: Feed, bytes_max: int = LARGE) -> list[tuple[int, int, int]]:
    """(shard, base, end) of everything there is now."""
    found = []
    while batches := feed.read(bytes_max):
        found += [(batch.header.shard, batch.base, batch.end) for batch in batches]
    return found


def state(feed: Feed) -> tuple[bool, bool]:
    """Whether there may be something to read, and whether it is over."""
    return feed.is_ready, feed.is_done


def test_an_empty_stream_gives_nothing(log):
    feed = feed_of(log)
    assert state(feed) == (True, False)
    assert feed.read(LARGE) == []
    assert state(feed) == (False, False)


def test_every_shard_gets_its_turn(log):
    for shard in (0, 0, 0, 0, 1, 1, 2):
        append_values(log, 1, b"x", shard=shard)
    found = drained(feed_of(log), bytes_max=1)
    assert [shard for shard, _, _ in found] == [0, 1, 2, 0, 1, 0, 0]


def test_a_shard_is_looked_at_again_when_it_grew(log):
    feed = feed_of(log)
    assert drained(feed) == []
    append_values(log, 1, b"x", shard=1)
    assert feed.read(LARGE) == []  # nobody said so
    feed.touch([1])
    assert feed.is_ready
    assert drained(feed) == [(1, 0, 1)]
    feed.touch([1, 1, 2])
    assert drained(feed) == []


def test_a_touch_of_a_shard_that_is_not_ours_is_passed_over(log):
    feed = feed_of(log)
    drained(feed)
    feed.touch([3, 99])
    assert not feed.is_ready


def test_it_goes_on_from_any_offsets(log):
    for _ in range(4):
        append(log, *(make_batch([b"x"] * 2, stream=1, shard=shard) for shard in range(3)))
    found = drained(feed_of(log, (8, 3, 5)))
    assert sorted(found) == [(1, 2, 4), (1, 4, 6), (1, 6, 8), (2, 4, 6), (2, 6, 8)]


def test_a_bounded_feed_is_done_at_its_ends(log):
    for shard in range(3):
        append_values(log, 1, *[b"x"] * 4, shard=shard)
    feed = feed_of(log, (0, 0, 4), (4, 2, 4))
    append_values(log, 1, b"later", shard=0)
    assert state(feed) == (True, False)
    # A run of batches may reach behind an end; the reader cuts it.
    assert {(0, 0, 4), (1, 0, 4)} <= set(drained(feed)) <= {(0, 0, 4), (0, 4, 5), (1, 0, 4)}
    assert state(feed) == (False, True)
    feed.touch([0, 1, 2])
    assert drained(feed) == []
    assert state(feed) == (False, True)


def test_a_feed_of_nothing_is_done_from_the_start(log):
    assert feed_of(log, (0, 0, 0), (0, 0, 0)).is_done


def test_memory_is_asked_first_and_says_when_the_disk_must_be(log):
    append_values(log, 1, b"x")
    feed = feed_of(log)
    assert [batch.base for batch in feed.hot(log.hot, LARGE)] == [0]
    assert feed.hot(log.hot, LARGE) == []
    assert not feed.is_ready
    cold = type(log.hot)(0)
    feed = feed_of(log)
    assert feed.hot(cold, LARGE) == []
    assert feed.is_ready
    assert drained(feed) == [(0, 0, 1)]


def test_memory_does_not_answer_for_what_was_trimmed(log):
    append_values(log, 1, b"a", b"b")
    log.execute(TrimShard(1, 0, 1))
    feed = feed_of(log)
    assert feed.hot(log.hot, LARGE) == []
    assert feed.is_ready
    with pytest.raises(DataLoss):
        feed.read(LARGE)
    assert [batch.base for batch in feed.hot(log.hot, LARGE)] == [0]


def test_a_loss_is_raised_once_and_the_feed_stands_behind_it(log):
    for _ in range(3):
        append_values(log, 1, b"x", shard=1)
    log.execute(TrimShard(1, 1, 2))
    feed = feed_of(log)
    with pytest.raises(DataLoss) as caught:
        drained(feed)
    assert (caught.value.shard, caught.value.first, caught.value.last) == (1, 0, 1)
    assert drained(feed) == [(1, 2, 3)]


@pytest.mark.parametrize(("offsets", "ends"), [((0,), None), ((0,) * 4, None), ((0,) * 3, (1,)), ((), ())])
def test_one_offset_for_each_shard(log, offsets, ends):
    with pytest.raises(InvalidRequest, match="3 shards"):
        feed_of(log, offsets, ends)
