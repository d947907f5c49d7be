"""Consumers: where they start, what they yield, where their cursor stands, and how they end."""

import itertools
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import mainstem
from tests.integration.api.conftest import read_all, values

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def orders(hub):
    """Ten batches of ten records: 0 to 99."""
    info = hub.streams.create("orders")
    with hub.producer() as producer:
        for first in range(0, 100, 10):
            producer.send_many("orders", numbers(first, first + 10)).result(10)
    return info


@pytest.fixture
def wide(hub):
    """Three hundred records in four shards, by key."""
    info = hub.streams.create("wide", shards=4)
    with hub.producer() as producer:
        for first in range(0, 300, 50):
            group = numbers(first, first + 50)
            producer.send_many("wide", group, group).result(10)
    return info


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


# Where it starts.


def test_earliest_begins_with_the_first_record(hub, orders):
    assert values(hub, "orders") == numbers(0, 100)


def test_latest_is_the_default_and_yields_only_what_comes_after(hub, orders):
    with hub.consumer("orders") as consumer:
        assert consumer.poll(0) is None
        with hub.producer() as producer:
            producer.send("orders", b"new")
        record = consumer.poll(10)
        assert (record.value, record.offset) == (b"new", 100)


def test_follow_false_at_the_end_is_over_at_once(hub, orders):
    with hub.consumer("orders", start="latest", follow=False) as consumer:
        assert list(consumer) == []


def test_a_time_begins_with_the_first_record_of_that_time(hub):
    hub.streams.create("timed")
    with hub.producer() as producer:
        for group in range(10):
            times = [MOMENT + timedelta(seconds=10 * group + second) for second in range(10)]
            column = pa.array(times, pa.timestamp("us", "UTC"))
            producer.send_batch("timed", pa.table({"value": numbers(10 * group, 10 * group + 10), "timestamp": column}))
    for second, first in (
        (-5, 0),
        (0, 0),
        (0.5, 1),
        (1, 1),
        (42, 42),
        (42.000_001, 43),
        (99, 99),
        (99.5, 100),
        (1e6, 100),
    ):
        start = MOMENT + timedelta(seconds=second)
        with hub.consumer("timed", start=start, follow=False) as consumer:
            assert [record.value for record in consumer] == numbers(first, 100), second


def test_a_time_to_come_is_the_end_and_not_waited_for(hub, orders):
    with hub.consumer("orders", start=datetime.now(UTC) + timedelta(days=1)) as consumer:
        assert consumer.cursor.offsets == (100,)
        with hub.producer() as producer:
            producer.send("orders", b"before that time")
        assert consumer.poll(10).value == b"before that time"


def test_a_time_is_exact_to_the_microsecond(hub):
    """Seconds as a float would lose the last digit of a time in this century."""
    hub.streams.create("timed")
    moments = [datetime(2026, 1, 1, 12, 0, 0, 999_990 + number, tzinfo=UTC) for number in range(10)]
    with hub.producer() as producer:
        for number, moment in enumerate(moments):
            producer.send("timed", b"%d" % number, timestamp=moment)
    for number, moment in enumerate(moments):
        with hub.consumer("timed", start=moment, follow=False) as consumer:
            assert next(consumer).value == b"%d" % number


def test_a_time_is_found_in_every_shard(hub):
    hub.streams.create("timed", shards=3)
    with hub.producer() as producer:
        for number in range(90):
            producer.send("timed", b"%d" % number, key=b"%d" % number, timestamp=MOMENT + timedelta(seconds=number))
            if number % 10 == 9:
                producer.flush()
    with hub.consumer("timed", start=MOMENT + timedelta(seconds=60), follow=False) as consumer:
        assert sorted(int(record.value) for record in consumer) == list(range(60, 90))


def test_times_that_go_back_hide_nothing_newer(hub):
    """Clocks differ: a record may be older than the one before. Every record of the time or later is delivered."""
    hub.streams.create("timed")
    offsets = [0, 50, 20, 70, 10, 90, 30]
    with hub.producer() as producer:
        for second in offsets:
            producer.send("timed", b"%d" % second, timestamp=MOMENT + timedelta(seconds=second)).result(10)
    with hub.consumer("timed", start=MOMENT + timedelta(seconds=60), follow=False) as consumer:
        found = [int(record.value) for record in consumer]
    assert {70, 90} <= set(found)


@pytest.mark.parametrize("start", ["newest", "", None, 7, b"earliest", "ms1:abc", datetime(2026, 1, 1), 1.5])  # noqa: DTZ001
def test_a_start_that_makes_no_sense_is_refused(hub, orders, start):
    with pytest.raises(mainstem.InvalidSetting):
        hub.consumer("orders", start=start)


@pytest.mark.parametrize("name", [None, 7, [7], "../orders", "\ud800"])
def test_a_name_that_cannot_be_is_refused_in_words(hub, name):
    with pytest.raises(mainstem.InvalidName, match=r"stream.* name"):
        hub.consumer(name)


@pytest.mark.parametrize("follow", ["no", None, 0])
def test_a_follow_that_is_neither_yes_nor_no_is_refused(hub, orders, follow):
    with pytest.raises(mainstem.InvalidSetting, match="follow must be True or False"):
        hub.consumer("orders", follow=follow)


@pytest.mark.parametrize("prefetch", [0, -1, 1 << 40, "8 MiB", None])
def test_a_prefetch_that_makes_no_sense_is_refused(hub, orders, prefetch):
    with pytest.raises(mainstem.InvalidSetting):
        hub.consumer("orders", prefetch_bytes=prefetch)


# What it yields.


def test_a_record_says_where_it_stands(hub, wide):
    for record in read_all(hub, "wide"):
        assert isinstance(record.offset, int)
        assert record.key == record.value
    ends = hub.streams.get("wide").ends
    found = {(record.shard, record.offset) for record in read_all(hub, "wide")}
    assert found == {(shard, offset) for shard, end in enumerate(ends) for offset in range(end)}


def test_each_shard_is_in_order(hub, wide):
    by_shard: dict[int, list[int]] = {}
    for record in read_all(hub, "wide"):
        by_shard.setdefault(record.shard, []).append(int(record.value or b""))
        assert record.offset == len(by_shard[record.shard]) - 1
    assert all(found == sorted(found) for found in by_shard.values())


def test_follow_false_ends_where_the_stream_ended_when_it_was_opened(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        with hub.producer() as producer:
            producer.send_many("orders", numbers(100, 200))
        assert [record.value for record in consumer] == numbers(0, 100)
        assert consumer.poll(0) is None
        assert list(consumer) == []


def test_follow_false_ends_in_the_middle_of_a_batch(hub):
    """The batch that holds the end is larger than what was there: a second producer's records joined its flush."""
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send_many("orders", numbers(0, 10))
    cursor = mainstem.Cursor(hub.streams.get("orders").uuid, 1, (3,))
    with hub.consumer("orders", start=cursor, follow=False) as consumer:
        assert [record.offset for record in consumer] == list(range(3, 10))


def test_a_follower_gets_records_as_they_come(hub, orders):
    with hub.consumer("orders", start="earliest") as consumer, hub.producer() as producer:
        assert [record.value for record in itertools.islice(consumer, 100)] == numbers(0, 100)
        for number in range(100, 120):
            producer.send("orders", b"%d" % number).result(10)
            assert consumer.poll(10).value == b"%d" % number


def test_a_follower_in_another_thread_sees_everything_once_in_order(hub):
    hub.streams.create("live")
    got: list[bytes] = []
    opened = threading.Event()

    def follow() -> None:
        with hub.consumer("live", start="earliest") as consumer:
            opened.set()
            for record in consumer:
                got.append(record.value)
                if record.value == b"end":
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    assert opened.wait(10)
    with hub.producer(batch_bytes=2_048) as producer:
        for number in range(5_000):
            producer.send("live", b"%d" % number)
        producer.send("live", b"end")
    thread.join(20)
    assert got == [*numbers(0, 5_000), b"end"]


def test_poll_waits_no_longer_than_told(hub, orders):
    with hub.consumer("orders") as consumer:
        for timeout in (0, 0.05):
            began = time.monotonic()
            assert consumer.poll(timeout) is None
            assert consumer.poll_batch(timeout) is None
            assert timeout <= time.monotonic() - began < timeout + 2


def test_poll_gives_what_is_there_without_waiting(hub, orders):
    with hub.consumer("orders", start="earliest") as consumer:
        found = [consumer.poll(10).value for _ in range(100)]
    assert found == numbers(0, 100)


def test_next_is_poll_without_end(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert next(consumer).value == b"0"
        assert [record.value for record in consumer] == numbers(1, 100)
        with pytest.raises(StopIteration):
            next(consumer)


def test_batches_are_those_that_were_written(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert [batch.values() for batch in consumer.batches()] == [numbers(n, n + 10) for n in range(0, 100, 10)]


def test_records_and_batches_may_be_mixed(hub, orders):
    found: list[bytes] = []
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        found += [record.value for record in itertools.islice(consumer, 13)]
        batch = consumer.poll_batch(10)
        assert (batch.offset, batch.count) == (13, 7)
        found += batch.values()
        found.append(consumer.poll(10).value)
        found += next(iter(consumer.batches())).values()
        found += [record.value for record in consumer]
    assert found == numbers(0, 100)


def test_the_rest_of_a_batch_is_a_batch(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        consumer.poll(10)
        rest = consumer.poll_batch(10)
        assert (rest.offset, rest.count) == (1, 9)
        assert rest.to_arrow().column("value").to_pylist() == numbers(1, 10)
        assert rest.to_arrow(metadata=True).column("_offset").to_pylist() == list(range(1, 10))
        assert [record.offset for record in rest.records()] == list(range(1, 10))


def test_two_iterators_share_the_position(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        first, second = iter(consumer), iter(consumer)
        found = [next(first).value, next(second).value, next(first).value]
    assert found == numbers(0, 3)


def test_two_consumers_do_not_know_of_each_other(hub, orders):
    with (
        hub.consumer("orders", start="earliest", follow=False) as one,
        hub.consumer("orders", start="earliest", follow=False) as two,
    ):
        mixed = [(next(one).value, next(two).value) for _ in range(50)]
        assert mixed == list(zip(numbers(0, 50), numbers(0, 50), strict=True))
        one.seek("earliest")
        assert next(one).value == b"0"
        assert next(two).value == b"50"


def test_many_consumers_at_once(hub, orders):
    consumers = [hub.consumer("orders", start="earliest", follow=False) for _ in range(50)]
    assert all([record.value for record in consumer] == numbers(0, 100) for consumer in consumers)
    for consumer in consumers:
        consumer.close()


def test_a_small_prefetch_loses_nothing(hub):
    hub.streams.create("large")
    sent = [bytes([number]) * 20_000 for number in range(60)]
    with hub.producer(compression=None) as producer:
        for value in sent:
            producer.send("large", value).result(10)
    with hub.consumer("large", start="earliest", follow=False, prefetch_bytes=4_096) as consumer:
        assert [record.value for record in consumer] == sent


# Where the cursor stands.


def test_the_cursor_stands_after_each_record(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert consumer.cursor.offsets == (0,)
        for number, record in enumerate(consumer):
            assert record.offset == number
            assert consumer.cursor.offsets == (number + 1,)
        assert consumer.cursor.offsets == (100,)
        assert consumer.cursor.stream == orders.uuid


def test_the_cursor_stands_after_each_batch(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            assert consumer.cursor.offsets == (batch.end,)


def test_the_cursor_of_many_shards_is_exact_after_each_record(hub, wide):
    seen = [0, 0, 0, 0]
    with hub.consumer("wide", start="earliest", follow=False) as consumer:
        for record in consumer:
            seen[record.shard] += 1
            assert consumer.cursor.offsets == tuple(seen)


def test_the_cursor_at_latest_and_at_a_time(hub, orders):
    with hub.consumer("orders") as consumer:
        assert consumer.cursor.offsets == (100,)
    with hub.consumer("orders", start=MOMENT) as consumer:
        assert consumer.cursor.offsets == (0,)


def test_a_consumer_resumed_anywhere_yields_exactly_the_rest(hub, wide):
    whole = [(record.shard, record.offset, record.value) for record in read_all(hub, "wide")]
    for count in (0, 1, 49, 50, 51, 137, 299, 300):
        with hub.consumer("wide", start="earliest", follow=False) as consumer:
            first = [(r.shard, r.offset, r.value) for r in itertools.islice(consumer, count)]
            text = str(consumer.cursor)
        with hub.consumer("wide", start=mainstem.Cursor.parse(text), follow=False) as consumer:
            rest = [(r.shard, r.offset, r.value) for r in consumer]
        assert len(first) == count
        assert sorted(first + rest) == sorted(whole)


def test_the_same_cursor_gives_the_same_records(hub, wide):
    with hub.consumer("wide", start="earliest", follow=False) as consumer:
        list(itertools.islice(consumer, 77))
        cursor = consumer.cursor

    def by_shard() -> dict[int, list[tuple[int, bytes | None]]]:
        found: dict[int, list[tuple[int, bytes | None]]] = {}
        with hub.consumer("wide", start=cursor, follow=False) as consumer:
            for record in consumer:
                found.setdefault(record.shard, []).append((record.offset, record.value))
        return found

    first = by_shard()
    with hub.producer() as producer:
        producer.send_many("wide", [b"x"] * 50, [b"%d" % n for n in range(50)]).result(10)
    second = by_shard()
    assert {shard: rows[: len(first[shard])] for shard, rows in second.items() if shard in first} == first


def test_a_cursor_of_another_stream_is_refused(hub, orders, wide):
    with hub.consumer("wide") as consumer:
        cursor = consumer.cursor
    with pytest.raises(mainstem.InvalidCursor, match="another stream"):
        hub.consumer("orders", start=cursor)


@pytest.mark.parametrize(
    ("epoch", "offsets", "reason"),
    [(2, (0,), "epoch"), (1, (0, 0), "shards"), (1, (101,), "ends at"), (1, (2**63 - 1,), "ends")],
)
def test_a_cursor_that_cannot_be_is_refused(hub, orders, epoch, offsets, reason):
    with pytest.raises(mainstem.InvalidCursor, match=reason):
        hub.consumer("orders", start=mainstem.Cursor(orders.uuid, epoch, offsets))


def test_a_cursor_that_does_not_name_a_shard_starts_it_at_its_beginning(hub, wide):
    ends = hub.streams.get("wide").ends
    with hub.consumer("wide", start=mainstem.Cursor(wide.uuid, 1, ends[:2]), follow=False) as consumer:
        assert {record.shard for record in consumer} == {2, 3}


def test_what_was_trimmed_of_a_shard_that_came_after_the_cursor_is_told(hub):
    hub.streams.create("grown")
    with hub.consumer("grown", start="latest") as consumer:
        saved = consumer.cursor
    hub.streams.alter("grown", shards=2)
    with hub.producer() as producer:
        producer.send_many("grown", numbers(0, 100), shard=1)
    hub.streams.trim("grown", offset=50, shard=1)
    with hub.consumer("grown", start=saved, follow=False) as consumer:
        with pytest.raises(mainstem.DataLoss) as told:
            list(consumer)
        assert (told.value.shard, told.value.first, told.value.last) == (1, 0, 49)
        assert [record.value for record in consumer] == numbers(50, 100)


# Seeking.


def test_seek(hub, orders):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert [record.value for record in itertools.islice(consumer, 25)] == numbers(0, 25)
        middle = consumer.cursor
        list(consumer)
        consumer.seek(middle)
        assert consumer.cursor == middle
        assert [record.value for record in consumer] == numbers(25, 100)
        consumer.seek("earliest")
        assert [record.value for record in consumer] == numbers(0, 100)
        consumer.seek("latest")
        assert list(consumer) == []


def test_seek_in_the_middle_of_a_batch_forgets_the_rest_of_it(hub, orders):
    with hub.consumer("orders", start="earliest") as consumer:
        consumer.poll(10)
        consumer.seek_shard(0, 55)
        assert consumer.cursor.offsets == (55,)
        assert consumer.poll(10).offset == 55
        assert consumer.poll_batch(10).offset == 56


def test_seek_while_iterating(hub, orders):
    seen = []
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 5:
                consumer.seek_shard(0, 90)
    assert seen == [*range(5), *range(90, 100)]


def test_seek_shard_leaves_the_others(hub, wide):
    ends = hub.streams.get("wide").ends
    with hub.consumer("wide", start="earliest", follow=False) as consumer:
        list(consumer)
        consumer.seek_shard(2, ends[2] - 3)
        assert consumer.cursor.offsets == (*ends[:2], ends[2] - 3, ends[3])
        assert [(record.shard, record.offset) for record in consumer] == [(2, ends[2] - n) for n in (3, 2, 1)]


@pytest.mark.parametrize(("shard", "offset"), [(4, 0), (-1, 0), (0, -1), ("0", 0), (0, None), (0, 1.5), (0, 2**63)])
def test_a_place_that_cannot_be_is_refused(hub, wide, shard, offset):
    with hub.consumer("wide", start="earliest", follow=False) as consumer:
        with pytest.raises(mainstem.InvalidSetting):
            consumer.seek_shard(shard, offset)
        assert len(list(consumer)) == 300


def test_an_offset_after_the_end_is_refused_and_moves_nothing(hub, orders):
    with hub.consumer("orders", start="earliest") as consumer:
        consumer.seek_shard(0, 100)
        assert consumer.poll(0) is None
        with pytest.raises(mainstem.InvalidCursor, match="offset 101 of shard 0 of 'orders', which ends at 100"):
            consumer.seek_shard(0, 101)
        assert consumer.cursor.offsets == (100,)


def test_a_seek_goes_by_what_the_stream_is_now(hub, orders):
    with hub.consumer("orders", start="earliest") as consumer, hub.producer() as producer:
        producer.send_many("orders", numbers(100, 110)).result(10)
        consumer.seek(mainstem.Cursor(orders.uuid, orders.epoch, (105,)))
        assert consumer.poll(10).value == b"105"
        consumer.seek_shard(0, 109)
        assert consumer.poll(10).value == b"109"
        consumer.seek("latest")
        assert consumer.cursor.offsets == (110,)


def test_a_seek_in_a_stream_that_took_the_name_of_another_is_refused(hub, orders):
    with hub.consumer("orders", start="earliest") as consumer:
        hub.streams.delete("orders")
        with pytest.raises(mainstem.UnknownStream):
            consumer.seek("earliest")
        hub.streams.create("orders")
        with pytest.raises(mainstem.StreamDeleted):
            consumer.seek("earliest")


@pytest.mark.parametrize("to", ["newest", None, 7, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_a_seek_that_makes_no_sense_is_refused_and_moves_nothing(hub, orders, to):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        consumer.poll(10)
        with pytest.raises(mainstem.InvalidSetting):
            consumer.seek(to)
        assert consumer.poll(10).value == b"1"


def test_seek_by_time_while_following(hub):
    hub.streams.create("timed")
    with hub.producer() as producer:
        for number in range(20):
            producer.send("timed", b"%d" % number, timestamp=MOMENT + timedelta(seconds=number))
    with hub.consumer("timed") as consumer:
        consumer.seek(MOMENT + timedelta(seconds=15))
        assert [consumer.poll(10).value for _ in range(5)] == numbers(15, 20)
        assert consumer.poll(0) is None


# Ending.


def test_after_close_nothing_is_read(hub, orders):
    consumer = hub.consumer("orders", start="earliest")
    consumer.poll(10)
    consumer.close()
    for ask in (
        consumer.poll,
        consumer.poll_batch,
        lambda: next(iter(consumer.batches())),
        lambda: consumer.seek("earliest"),
    ):
        with pytest.raises(mainstem.Closed):
            ask()
    consumer.close()
    assert str(consumer.cursor).startswith("ms1:")


def in_thread(work) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def test_closing_the_hub_ends_those_who_wait(hub, orders):
    consumer = hub.consumer("orders")
    consumer.poll(0)
    waiting = threading.Event()

    def follow() -> None:
        waiting.set()
        list(consumer)

    thread, errors = in_thread(follow)
    assert waiting.wait(5)
    hub.close()
    thread.join(10)
    assert not thread.is_alive(), "it still waits"
    assert [type(error) for error in errors] == [mainstem.Closed]


def test_closing_a_consumer_ends_the_thread_that_waits_for_it(hub, orders):
    consumer = hub.consumer("orders")
    consumer.poll(0)
    waiting = threading.Event()

    def follow() -> None:
        waiting.set()
        list(consumer)

    thread, errors = in_thread(follow)
    assert waiting.wait(5)
    consumer.close()
    thread.join(10)
    assert not thread.is_alive(), "it still waits"
    assert all(isinstance(error, mainstem.Closed) for error in errors)


def test_a_consumer_that_was_forgotten_holds_nothing(hub, orders):
    """Not closed, no longer referenced: the hub closes without it."""
    for _ in range(20):
        next(hub.consumer("orders", start="earliest"))
    assert values(hub, "orders") == numbers(0, 100)


def test_an_interrupted_wait_can_go_on(hub, orders):
    """Polling with timeouts for a while, then records: none is lost in between."""
    with hub.consumer("orders") as consumer, hub.producer() as producer:
        for number in range(100, 130):
            assert consumer.poll(0.001) is None
            producer.send("orders", b"%d" % number).result(10)
            assert consumer.poll(10).value == b"%d" % number


def test_a_record_is_a_value(hub, orders):
    first, again = read_all(hub, "orders")[5], read_all(hub, "orders")[5]
    assert first == again
    with pytest.raises(AttributeError):
        first.value = b"other"  # type: ignore[misc]
    assert sys.getsizeof(first) < 200
