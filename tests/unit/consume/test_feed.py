"""The feed: every shard gets its turn, nothing is looked at without need, and nothing is delivered twice."""

import pytest

from mainstem.consume.feed import Feed
from mainstem.core.errors import DataLoss, InvalidRequest
from mainstem.log.flush import AlterStream, TrimShard
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


@pytest.mark.parametrize(("offsets", "ends"), [((0,) * 4, None), ((0,) * 3, (1,) * 4)])
def test_no_more_than_one_offset_for_each_shard(log, offsets, ends):
    with pytest.raises(InvalidRequest, match="3 shards"):
        feed_of(log, offsets, ends)


# More shards.


def reshard(log: Log, shards: int) -> None:
    log.execute(AlterStream(1, shards=shards))


def put(log: Log, shard: int, count: int = 1) -> None:
    """Records of the present generation."""
    row = log.reader.require_stream(1)
    for _ in range(count):
        append(log, make_batch(shard=shard, generation=row.generation))


def test_offsets_that_are_not_given_are_0(log):
    put(log, 2)
    assert drained(feed_of(log, (0,))) == [(2, 0, 1)]


def test_nothing_from_behind_a_barrier_comes_before_all_from_before_the_barriers(log):
    put(log, 0, 3)
    put(log, 1, 1)
    reshard(log, 5)
    put(log, 1, 2)
    put(log, 4, 2)
    reshard(log, 6)
    put(log, 0, 1)
    put(log, 5, 1)
    found = drained(feed_of(log, (0,) * 6), bytes_max=1)
    assert sorted(found[:4]) == [(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 0, 1)]
    assert sorted(found[4:8]) == [(1, 1, 2), (1, 2, 3), (4, 0, 1), (4, 1, 2)]
    assert sorted(found[8:]) == [(0, 3, 4), (5, 0, 1)]


def test_a_feed_learns_of_new_shards_from_a_batch_behind_a_barrier(log):
    """Nobody has to tell it: records behind a barrier are of another generation."""
    put(log, 0, 2)
    feed = feed_of(log)
    assert [batch.base for batch in feed.read(1)] == [0]
    reshard(log, 4)
    put(log, 1, 1)
    put(log, 3, 1)
    feed.touch([1])
    found = drained(feed)
    assert (found[0], sorted(found[1:])) == ((0, 1, 2), [(1, 0, 1), (3, 0, 1)])
    assert feed.stream.shards == 4


def test_a_feed_learns_of_new_shards_when_one_of_them_grows(log):
    feed = feed_of(log)
    assert drained(feed) == []
    reshard(log, 4)
    put(log, 3, 1)
    feed.touch([3])
    assert drained(feed) == [(3, 0, 1)]


def test_a_feed_from_the_hot_tail_waits_at_barriers_too(log):
    put(log, 0, 2)
    reshard(log, 4)
    put(log, 3, 1)
    put(log, 0, 1)
    feed = feed_of(log, (0,) * 4)
    found = []
    while batches := feed.hot(log.hot, 1):
        found += [(batch.header.shard, batch.base) for batch in batches]
    assert found[:2] == [(0, 0), (0, 1)]
    assert sorted(found[2:]) == [(0, 2), (3, 0)]


def test_a_reader_that_is_behind_a_barrier_in_one_shard_waits_for_the_others(log):
    put(log, 0, 1)
    put(log, 1, 1)
    reshard(log, 4)
    put(log, 0, 1)
    assert drained(feed_of(log, (1, 0, 0, 0))) == [(1, 0, 1), (0, 1, 2)]
    assert drained(feed_of(log, (2, 0, 0, 0))) == [(1, 0, 1)]


def test_ends_that_were_looked_up_while_the_shards_changed_are_those_from_before(log):
    """Else a reader that goes on from there would get older records of a key after newer ones."""
    put(log, 0, 2)
    reshard(log, 4)
    put(log, 3, 1)
    put(log, 1, 1)
    feed = feed_of(log, (0,) * 4, (1, 1, 0, 1))
    assert drained(feed, bytes_max=1) == [(0, 0, 1)]
    assert feed.is_done


def test_a_bounded_feed_reads_no_shards_that_come_later(log):
    put(log, 0, 2)
    feed = feed_of(log, (0,) * 3, (2, 0, 0))
    reshard(log, 4)
    put(log, 3, 1)
    feed.touch([3])
    assert drained(feed) == [(0, 0, 1), (0, 1, 2)]
    assert feed.is_done


def test_how_far_a_reader_is_behind_counts_what_waits(log):
    put(log, 0, 1)
    reshard(log, 4)
    put(log, 3, 5)
    feed = feed_of(log, (0,) * 4)
    assert feed.behind() == 6
    feed.read(1)
    assert feed.behind() == 5
