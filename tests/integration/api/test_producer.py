"""Producers: what can be sent, what is refused where, and what an acknowledgement says."""

import random
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.core import placement, tables
from mainstem.core.limits import HEADER_BYTES_MAX, HEADERS_PER_RECORD_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.produce.chunk import Ack
from tests.integration.api.conftest import read_all, values


@pytest.fixture
def orders(hub):
    return hub.streams.create("orders")


@pytest.fixture
def wide(hub):
    return hub.streams.create("wide", shards=4)


# One record.


def test_a_record_is_acknowledged_with_its_place(hub, orders):
    with hub.producer() as producer:
        acks = [producer.send("orders", b"%d" % number) for number in range(100)]
        assert [ack.result(10) for ack in acks] == [(0, number) for number in range(100)]
        assert all(ack.done() and ack.exception() is None for ack in acks)
    assert values(hub, "orders") == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("value", [b"", b"x", b"\0" * 1_000, bytes(range(256)), b"y" * 3_000_000])
def test_any_bytes_come_back(hub, orders, value):
    with hub.producer() as producer:
        producer.send("orders", value)
    assert values(hub, "orders") == [value]


def test_bytearray_and_memoryview_are_copied_when_sent(hub, orders):
    buffer = bytearray(b"first")
    with hub.producer() as producer:
        producer.send("orders", buffer)
        producer.send("orders", memoryview(buffer)[1:3])
        buffer[:] = b"wrong"
    assert values(hub, "orders") == [b"first", b"ir"]


def test_a_tombstone_is_not_an_empty_value(hub, orders):
    with hub.producer() as producer:
        producer.send("orders", None, key=b"k")
        producer.send("orders", b"", key=b"k")
    assert values(hub, "orders") == [None, b""]


@pytest.mark.parametrize(
    ("key", "stored"), [(b"k", b"k"), ("größe", "größe".encode()), (7, b"7"), (-12, b"-12"), (b"", b""), (None, None)]
)
def test_keys(hub, orders, key, stored):
    with hub.producer() as producer:
        producer.send("orders", b"v", key=key)
    assert [record.key for record in read_all(hub, "orders")] == [stored]


@pytest.mark.parametrize("hash_", ["crc32", "murmur2"])
def test_a_key_is_always_in_the_shard_that_its_hash_says(hub, hash_):
    hub.streams.create("keyed", shards=8, hash=hash_)
    keys = [b"customer-%d" % number for number in range(200)]
    with hub.producer() as producer:
        acks = [producer.send("keyed", key, key=key) for key in keys * 2]
        found = [ack.result(10) for ack in acks]
    expected = placement.shards_for(keys * 2, 8, hash_, 0).tolist()
    assert [shard for shard, _ in found] == expected
    assert {record.key: record.shard for record in read_all(hub, "keyed")} == dict(zip(keys, expected, strict=False))


def test_equal_keys_keep_their_order(hub, wide):
    with hub.producer() as producer:
        for number in range(500):
            producer.send("wide", b"%d" % number, key=b"%d" % (number % 10))
    found: dict[bytes, list[int]] = {}
    for record in read_all(hub, "wide"):
        found.setdefault(record.key or b"", []).append(int(record.value or b""))
    assert found == {b"%d" % key: list(range(key, 500, 10)) for key in range(10)}


def test_a_text_an_integer_and_bytes_that_look_alike_are_one_key(hub, wide):
    with hub.producer() as producer:
        shards = {producer.send("wide", b"v", key=key).result(10)[0] for key in (7, "7", b"7")}
    assert len(shards) == 1


def test_records_without_a_key_reach_every_shard_in_the_end(hub, wide):
    with hub.producer() as producer:
        shards = Counter(producer.send("wide", b"v").result(10)[0] for _ in range(40))
    assert set(shards) == {0, 1, 2, 3}


def test_producers_that_live_for_one_record_do_not_all_choose_the_same_shard(hub, wide):
    shards = set()
    for _ in range(48):
        with hub.producer() as producer:
            shards.add(producer.send("wide", b"v").result(10)[0])
    assert shards == {0, 1, 2, 3}


def test_a_seed_repeats_the_shards_of_records_without_a_key(tmp_path):
    def shards(name: str, seed: int) -> list[int]:
        with Hub(LogPort(tmp_path / name), name, random.Random(seed)) as hub:
            hub.streams.create("wide", shards=100)
            for _ in range(5):
                with hub.producer() as producer:
                    producer.send("wide", b"v")
            with hub.transaction() as tx:
                tx.send("wide", b"v")
            return [record.shard for record in read_all(hub, "wide")]

    assert shards("a", 1) == shards("b", 1) != shards("c", 2)


def test_headers(hub, orders):
    sent = {"trace": b"\x00\x01", "text": "größe", "": b"", "n" * 100: b"v"}
    with hub.producer() as producer:
        producer.send("orders", b"with", headers=sent)
        producer.send("orders", b"without")
        producer.send("orders", b"empty", headers={})
    found = [record.headers for record in read_all(hub, "orders")]
    assert found == [{**sent, "text": "größe".encode()}, None, None]


def test_timestamps(hub, orders):
    moment = datetime(2026, 2, 3, 4, 5, 6, 789_123, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=9)))
    with hub.producer() as producer:
        producer.send("orders", b"datetime", timestamp=moment)
        producer.send("orders", b"zone", timestamp=elsewhere)
        producer.send("orders", b"number", timestamp=1_770_091_506_789_123)
        producer.send("orders", b"before 1970", timestamp=-1)
    found = [(record.timestamp, record.timestamp_us) for record in read_all(hub, "orders")]
    assert found == [(moment, 1_770_091_506_789_123)] * 3 + [
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1)
    ]


def test_without_a_timestamp_it_is_the_time_of_sending(hub, orders):
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    with hub.producer() as producer:
        producer.send("orders", b"v")
        producer.send("orders", b"v", headers={"a": b"b"})
    after = datetime.now(UTC) + timedelta(milliseconds=1)
    assert all(before <= record.timestamp <= after for record in read_all(hub, "orders"))


def test_all_kinds_of_records_in_one_go(hub, wide):
    """Keys, headers and times begin in the middle of a batch; what came before has none."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with hub.producer(linger=0.05) as producer:
        producer.send("wide", b"0")
        producer.send("wide", b"1", key=b"k")
        producer.send("wide", b"2", headers={"h": b"v"})
        producer.send("wide", b"3", timestamp=moment)
        producer.send("wide", None, b"k", {"h": b"w"}, moment)
        producer.send("wide", b"5", key=b"k")
        producer.send("wide", b"6")
    found = {record.value: (record.key, record.headers) for record in read_all(hub, "wide")}
    assert found == {
        b"0": (None, None),
        b"1": (b"k", None),
        b"2": (None, {"h": b"v"}),
        b"3": (None, None),
        None: (b"k", {"h": b"w"}),
        b"5": (b"k", None),
        b"6": (None, None),
    }
    times = {record.value: record.timestamp for record in read_all(hub, "wide")}
    assert times[b"3"] == times[None] == moment != times[b"0"]


# What is refused, in the call itself.


@pytest.mark.parametrize("value", ["text", 7, 1.5, {"a": 1}, [b"x"], object()])
def test_a_value_is_bytes(hub, orders, value):
    with hub.producer() as producer, pytest.raises(mainstem.InvalidRecord, match="bytes"):
        producer.send("orders", value)
    assert values(hub, "orders") == []


@pytest.mark.parametrize("key", [1.5, True, ["k"], {"a": 1}, object()])
def test_a_key_is_bytes_text_or_a_whole_number(hub, orders, key):
    with hub.producer() as producer, pytest.raises(mainstem.InvalidRecord, match="key"):
        producer.send("orders", b"v", key=key)


@pytest.mark.parametrize("headers", [b"x", ["a"], 7, {1: b"v"}, {b"a": b"v"}, {"a": 7}, {"a": None}, {"a": ["v"]}])
def test_headers_are_text_to_bytes(hub, orders, headers):
    with hub.producer() as producer, pytest.raises(mainstem.InvalidRecord, match="header"):
        producer.send("orders", b"v", headers=headers)


@pytest.mark.parametrize("field", ["key", "name", "value"])
def test_text_that_is_no_unicode_is_refused(hub, orders, field):
    bad = "\ud800"
    choices: dict[str, dict[str, Any]] = {
        "key": {"key": bad},
        "name": {"headers": {bad: b"v"}},
        "value": {"headers": {"a": bad}},
    }
    arguments = choices[field]
    with hub.producer() as producer:
        with pytest.raises(mainstem.InvalidRecord):
            producer.send("orders", b"v", **arguments)
        assert producer.send("orders", b"fine").result(10) == (0, 0)


@pytest.mark.parametrize(
    "timestamp",
    [datetime(2026, 1, 1), "2026-01-01", 1.5, True, 2**63, -(2**63), 2**70, [1]],  # noqa: DTZ001
)
def test_a_timestamp_is_an_aware_datetime_or_microseconds(hub, orders, timestamp):
    with hub.producer() as producer, pytest.raises(mainstem.InvalidRecord, match="timestamp"):
        producer.send("orders", b"v", timestamp=timestamp)


def test_nanoseconds_are_not_taken_for_microseconds(hub, orders):
    """A time after the year 9999 could be stored, but no reader could have it as a datetime."""
    nanoseconds = 1_770_091_506_789_123_000
    with hub.producer() as producer:
        with pytest.raises(mainstem.InvalidRecord, match="microseconds"):
            producer.send("orders", b"v", timestamp=nanoseconds)
        producer.send("orders", b"v", timestamp=datetime.max.replace(tzinfo=UTC))
        producer.send("orders", b"v", timestamp=datetime.min.replace(tzinfo=UTC))
    found = [record.timestamp for record in read_all(hub, "orders")]
    assert found == [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)]


@pytest.mark.parametrize("stream", [None, 7, b"orders", ["orders"], {"a": 1}, {"orders"}])
def test_a_stream_is_named_by_text_and_the_producer_works_on(hub, orders, stream):
    """Arguments swapped by mistake: a dict where the name belongs."""
    with hub.producer() as producer:
        producer.send("orders", b"first")
        for send in (producer.send, producer.send_many):
            with pytest.raises(mainstem.InvalidRequest):
                send(stream, b"value")
        assert producer.send("orders", b"second").result(10) == (0, 1)


def test_an_unknown_stream_is_refused_with_the_command(hub):
    with hub.producer() as producer:
        for send in (lambda: producer.send("nope", b"v"), lambda: producer.send_many("nope", [b"v"])):
            with pytest.raises(mainstem.UnknownStream, match="mainstem stream create nope"):
                send()


def test_limits_of_one_record(hub, orders):
    with hub.producer() as producer:
        producer.send("orders", b"v" * RECORD_BYTES_MAX)
        producer.send("orders", b"v", key=b"k" * KEY_BYTES_MAX)
        producer.send("orders", b"v", headers={f"{n}": b"" for n in range(HEADERS_PER_RECORD_MAX)})
        producer.send("orders", b"v", headers={"h": b"x" * (HEADER_BYTES_MAX - 1)})
        for arguments, what in (
            (("orders", b"v" * (RECORD_BYTES_MAX + 1)), str(RECORD_BYTES_MAX)),
            (("orders", b"v" * RECORD_BYTES_MAX, b"k"), str(RECORD_BYTES_MAX)),
            (("orders", b"v", b"k" * (KEY_BYTES_MAX + 1)), str(KEY_BYTES_MAX)),
            (("orders", b"v", "k" * (KEY_BYTES_MAX + 1)), str(KEY_BYTES_MAX)),
            (("orders", b"v", None, {f"{n}": b"" for n in range(HEADERS_PER_RECORD_MAX + 1)}), "headers"),
            (("orders", b"v", None, {"h": b"x" * HEADER_BYTES_MAX}), str(HEADER_BYTES_MAX)),
        ):
            with pytest.raises(mainstem.RecordTooLarge, match=what):
                producer.send(*arguments)
    assert [len(record.value or b"") for record in read_all(hub, "orders")] == [RECORD_BYTES_MAX, 1, 1, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"acks": "all"},
        {"acks": None},
        {"batch_bytes": 0},
        {"batch_bytes": 1 << 30},
        {"batch_bytes": "1 MiB"},
        {"batch_bytes": 10_000.5},
        {"buffer_bytes": 1_000},
        {"buffer_bytes": None},
        {"linger": -1},
        {"linger": "5 ms"},
        {"linger": float("nan")},
        {"delivery_timeout": 0},
        {"delivery_timeout": float("nan")},
        {"compression": "gzip"},
        {"on_full": "drop"},
    ],
)
def test_options_that_make_no_sense_are_refused(hub, options):
    with pytest.raises(mainstem.InvalidSetting):
        hub.producer(**options)


# Acknowledgements.


@pytest.mark.parametrize("timeout", ["x", float("nan"), float("inf"), b""], ids=repr)
def test_no_time_to_wait(hub, orders, timeout):
    with hub.producer() as producer:
        ack, many = producer.send("orders", b"1"), producer.send_many("orders", [b"2"])
        for wait in (ack.result, ack.exception, many.result, many.exception, producer.flush):
            with pytest.raises(mainstem.InvalidSetting, match="timeout is in seconds"):
                wait(timeout)
        assert ack.result(10) == (0, 0)


def test_a_callback_hears_of_every_record(hub, orders):
    heard: list[tuple[int, int]] = []
    with hub.producer() as producer:
        for number in range(50):
            producer.send("orders", b"%d" % number).add_done_callback(lambda ack: heard.append(ack.result()))
    assert heard == [(0, number) for number in range(50)]


def test_a_callback_added_late_is_called_at_once(hub, orders):
    with hub.producer() as producer:
        ack = producer.send("orders", b"v")
        ack.result(10)
        heard: list[Ack] = []
        ack.add_done_callback(heard.append)
        assert heard == [ack]


def test_a_callback_hears_of_failure(hub, orders):
    heard: list[object] = []
    done = threading.Event()
    producer = hub.producer()
    producer.send("orders", b"first").result(10)
    hub.streams.delete("orders")

    def take(ack: Ack) -> None:
        heard.append(ack.exception())
        done.set()

    producer.send("orders", b"second").add_done_callback(take)
    assert done.wait(10)
    assert [type(error) for error in heard] == [mainstem.StreamDeleted]


def test_a_callback_that_raises_hurts_nobody(hub, orders, caplog):
    """It runs in a thread of the hub, where its exception has nowhere to go but the log."""
    heard: list[Ack] = []
    with hub.producer() as producer:
        ack = producer.send("orders", b"0")
        ack.add_done_callback(lambda ack: 1 / 0)
        ack.add_done_callback(heard.append)
        assert ack.result(10) == (0, 0)
        assert producer.send("orders", b"1").result(10) == (0, 1)
    assert heard == [ack]
    assert any("callback" in record.getMessage() for record in caplog.records)
    assert values(hub, "orders") == [b"0", b"1"]


def test_a_callback_may_send(hub, orders):
    """A chain: each acknowledgement sends the next record."""
    finished = threading.Event()
    producer = hub.producer()

    def go_on(ack: Ack) -> None:
        offset = ack.result()[1]
        if offset < 20:
            producer.send("orders", b"%d" % (offset + 1)).add_done_callback(go_on)
        else:
            finished.set()

    producer.send("orders", b"0").add_done_callback(go_on)
    assert finished.wait(10)
    producer.close()
    assert values(hub, "orders") == [b"%d" % number for number in range(21)]


def test_results_may_be_asked_for_by_many_threads(hub, orders):
    with hub.producer() as producer:
        found: list[tuple[int, int]] = []

        def send() -> None:
            for _ in range(20):
                place = producer.send("orders", b"v").result(10)
                found.append(place)

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [(0, number) for number in range(160)]


# Flush and close.


def test_flush_means_everything_is_there(hub, orders):
    producer = hub.producer(linger=60)
    acks = [producer.send("orders", b"%d" % number) for number in range(10)]
    assert not any(ack.done() for ack in acks)
    producer.flush()
    assert all(ack.done() for ack in acks)
    assert values(hub, "orders") == [b"%d" % number for number in range(10)]
    producer.flush()
    producer.close()


def test_flush_raises_what_nobody_was_told(hub, orders):
    """Whether the answer came before or during the flush makes no difference."""
    for is_waiting in (False, True):
        hub.streams.create("doomed")
        producer = hub.producer()
        producer.send("doomed", b"fine").result(10)
        hub.streams.delete("doomed")
        ack = producer.send("doomed", b"lost")
        if is_waiting:
            done = threading.Event()
            ack.add_done_callback(lambda ack, done=done: done.set())
            assert done.wait(10)
        with pytest.raises(mainstem.StreamDeleted):
            producer.flush()
        producer.flush()
        producer.close()


def test_flush_does_not_repeat_what_somebody_was_told(hub, orders):
    producer = hub.producer()
    producer.send("orders", b"fine").result(10)
    hub.streams.delete("orders")
    with pytest.raises(mainstem.StreamDeleted):
        producer.send("orders", b"lost").result(10)
    producer.flush()
    producer.close()


def test_close_flushes(hub, orders):
    producer = hub.producer(linger=60)
    ack = producer.send("orders", b"v")
    producer.close()
    assert ack.done()
    assert values(hub, "orders") == [b"v"]
    producer.close()


def test_the_end_of_the_block_flushes_also_when_it_raises(hub, orders):
    def fail() -> None:
        with hub.producer(linger=60) as producer:
            producer.send("orders", b"v")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert values(hub, "orders") == [b"v"]


def test_the_end_of_the_block_raises_what_nobody_was_told(hub, orders):
    def lose() -> None:
        with hub.producer(linger=60) as producer:
            producer.send("orders", b"v")
            hub.streams.delete("orders")

    with pytest.raises(mainstem.StreamDeleted):
        lose()


def test_after_close_nothing_is_taken(hub, orders):
    producer = hub.producer()
    producer.send("orders", b"v")
    producer.close()
    for send in (
        lambda: producer.send("orders", b"w"),
        lambda: producer.send("orders", b"w", key=b"k"),
        lambda: producer.send_many("orders", [b"w"]),
    ):
        with pytest.raises(mainstem.Closed):
            send()
    assert values(hub, "orders") == [b"v"]


def test_closing_the_hub_flushes_its_producers(hub, kind, orders, tmp_path):
    producers = [hub.producer(linger=60) for _ in range(3)]
    acks = [producer.send("orders", b"v") for producer in producers]
    hub.close()
    assert [ack.result() for ack in acks] == [(0, 0), (0, 1), (0, 2)] or {ack.result() for ack in acks} == {
        (0, 0),
        (0, 1),
        (0, 2),
    }
    with pytest.raises(mainstem.Closed):
        hub.producer()
    with pytest.raises(mainstem.Closed):
        producers[0].send("orders", b"w")
    hub.close()


def test_a_result_may_be_waited_for_in_vain(hub, orders):
    producer = hub.producer(linger=60)
    ack = producer.send("orders", b"v")
    assert ack.result(10) == (0, 0)  # whoever waits does not wait for the linger
    producer.close()


# A full buffer.


def test_a_full_buffer_blocks_until_there_is_room(hub, orders):
    with hub.producer(batch_bytes=4_096, buffer_bytes=16_384) as producer:
        acks = [producer.send("orders", b"x" * 1_000) for _ in range(2_000)]
        assert len({ack.result(20) for ack in acks}) == 2_000
    assert hub.streams.get("orders").records == 2_000


def test_a_full_buffer_raises_for_those_who_chose_it(hub, orders):
    refused = 0
    with hub.producer(batch_bytes=4_096, buffer_bytes=8_192, on_full="raise") as producer:
        acks = []
        for _ in range(3_000):
            try:
                acks.append(producer.send("orders", b"x" * 2_000))
            except mainstem.BufferFull as error:
                assert error.retriable  # noqa: PT017  # some are refused and some are not
                refused += 1
        offsets = [ack.result(20)[1] for ack in acks]
    assert refused > 0
    assert sorted(offsets) == list(range(3_000 - refused))
    assert hub.streams.get("orders").records == 3_000 - refused


def test_a_table_is_refused_whole_or_taken_whole(hub, orders):
    """Who is refused sends the same table again: nothing of it may be in the stream already."""
    table = pa.table({"value": [b"x" * 200] * 200_000})
    assert len(tables.as_batches(table)) > 1
    with hub.producer(batch_bytes=4_096, buffer_bytes=8_192, on_full="raise") as producer:
        for number in range(20):
            producer.send("orders", b"%d" % number * 100)
        refused = 0
        while True:
            try:
                ack = producer.send_batch("orders", table)
            except mainstem.BufferFull:
                refused += 1
                producer.flush()
            else:
                break
        assert sum(count for _, _, count in ack.result(30)) == 200_000
    assert hub.streams.get("orders").records == 20 + 200_000


# Without acknowledgements.


def test_without_acknowledgements_nobody_knows_the_place(hub, orders):
    with hub.producer(acks="none") as producer:
        acks = [producer.send("orders", b"x"), producer.send_many("orders", [b"y"])]
        producer.flush()
        for ack in acks:
            with pytest.raises(mainstem.InvalidRequest, match="acks='none'"):
                ack.result(10)


def test_acks_none_delivers_when_nothing_is_wrong(hub, orders):
    with hub.producer(acks="none") as producer:
        for number in range(5_000):
            producer.send("orders", b"%d" % number)
        assert producer.dropped == 0
    with hub.consumer("orders", start="earliest") as consumer:
        found = [consumer.poll(10) for _ in range(5_000)]
    assert [record.value for record in found if record] == [b"%d" % number for number in range(5_000)]


def test_acks_none_drops_the_oldest_of_a_full_buffer_and_counts(hub, orders):
    producer = hub.producer(acks="none", batch_bytes=4_096, buffer_bytes=8_192)
    for number in range(5_000):
        producer.send("orders", b"%d" % number * 200)
    producer.close()
    with hub.producer() as marker:
        marker.send("orders", b"end")
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        found = [record.value for record in consumer]
    assert found[-1] == b"end"
    assert len(found) - 1 + producer.dropped == 5_000
    assert len(set(found)) == len(found)


# Many at once.


def test_producers_of_many_threads_and_streams(hub):
    names = [f"s{number}" for number in range(20)]
    for name in names:
        hub.streams.create(name, shards=2)

    def write(worker: int) -> None:
        with hub.producer() as producer:
            for number in range(100):
                for name in names:
                    producer.send(name, b"%d:%d" % (worker, number), key=b"%d" % worker)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        found: dict[bytes, list[bytes]] = {}
        for record in read_all(hub, name):
            worker, number = (record.value or b"").split(b":")
            found.setdefault(worker, []).append(number)
        assert found == {b"%d" % worker: [b"%d" % number for number in range(100)] for worker in range(4)}


def test_one_producer_used_by_many_threads_keeps_the_order_of_each(hub, orders):
    with hub.producer(batch_bytes=4_096) as producer:

        def write(worker: int) -> None:
            for number in range(1_000):
                producer.send("orders", b"%d:%d" % (worker, number))

        threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found: dict[bytes, list[bytes]] = {}
    for record in read_all(hub, "orders"):
        worker, number = (record.value or b"").split(b":")
        found.setdefault(worker, []).append(number)
    assert found == {b"%d" % worker: [b"%d" % number for number in range(1_000)] for worker in range(4)}


# Callbacks, and several threads.


def test_a_callback_may_send_to_a_stream_the_producer_knows(hub, orders):
    hub.streams.create("dead-letters")
    with hub.producer() as producer:
        producer.prepare("dead-letters")
        again: list[Ack] = []
        producer.send("orders", b"x").add_done_callback(lambda ack: again.append(producer.send("dead-letters", b"y")))
        producer.flush(20)
        assert again[0].result(20) == (0, 0)
    assert values(hub, "dead-letters") == [b"y"]


def test_a_callback_that_would_wait_is_refused_and_the_hub_goes_on(hub, orders, caplog):
    hub.streams.create("dead-letters")
    with hub.producer() as producer:
        waits = {
            "send": lambda: producer.send("dead-letters", b"x"),
            "flush": producer.flush,
            "result": lambda: producer.send("orders", b"x").result(),
        }
        told: dict[str, object] = {}

        def try_each(ack: Ack) -> None:
            for name, wait in waits.items():
                try:
                    wait()
                except mainstem.InvalidRequest as error:
                    told[name] = str(error)
            raise RuntimeError("and one of the user's own")

        producer.send("orders", b"x").add_done_callback(try_each)
        producer.flush(20)
        assert told.keys() == waits.keys()
        assert all("prepare" in str(text) for text in told.values())
        assert "code of the user raised" in caplog.text
        assert "'orders'" in caplog.text
        producer.send("orders", b"after").result(20)
    assert len(hub.streams.list()) == 2


def test_flush_returns_after_the_callbacks(hub, orders):
    called: list[int] = []

    def slowly(number: int, ack: Ack) -> None:
        time.sleep(0.001)
        called.append(number)

    with hub.producer() as producer:
        for number in range(200):
            producer.send("orders", b"x").add_done_callback(partial(slowly, number))
            if number % 20 == 0:
                producer.flush(30)
                assert called == list(range(number + 1))


def test_a_callback_of_a_dropped_record_may_send(hub, orders):
    """acks="none": what makes room is told after the lock is given back."""
    producer = hub.producer(acks="none", batch_bytes=1_024, buffer_bytes=2_048)
    told: list[object] = []

    def again(ack: Ack) -> None:
        told.append(ack.exception())
        if len(told) < 50:
            producer.send("orders", b"again")

    producer.prepare("orders")
    for _ in range(2_000):
        producer.send("orders", b"x" * 900).add_done_callback(again)
    producer.close()
    assert told


def test_threads_that_flush_one_producer_all_return(hub, orders):
    producer = hub.producer()
    ended = []

    def work() -> None:
        for _ in range(150):
            producer.send("orders", b"x")
            producer.flush(60)
        ended.append(True)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 8
    producer.close()
    assert hub.streams.get("orders").records == 8 * 150


def test_acks_none_of_a_large_buffer_arrive_before_a_clean_close_returns(hub, orders):
    """Nothing is wrong, so nothing may be lost: not what the connection had no room for, not what was on its way."""
    with hub.producer(acks="none", compression=None, buffer_bytes=256 << 20) as producer:
        for number in range(600):
            producer.send("orders", b"%06d" % number * 10_000)
    assert producer.dropped == 0
    hub.close()
    again = reopen(hub)
    try:
        with again.consumer("orders", start="earliest") as consumer:
            found = [consumer.poll(20) for _ in range(600)]
    finally:
        again.close()
    assert [record.value[:6] for record in found if record and record.value] == [b"%06d" % n for n in range(600)]


def reopen(hub: Hub) -> Hub:
    where = hub._where
    return mainstem.connect(where) if "://" in where else mainstem.open(where)


def test_acks_none_finds_a_stream_that_was_made_anew(hub, orders, monkeypatch):
    monkeypatch.setattr("mainstem.produce.known_streams._LOOKUP_SECONDS", 0.05)
    with hub.producer(acks="none") as producer:
        producer.send("orders", b"old")
        producer.flush()
        hub.streams.delete("orders")
        hub.streams.create("orders")
        time.sleep(0.1)
        producer.send("orders", b"new")
    with hub.consumer("orders", start="earliest") as consumer:
        record = consumer.poll(10)
        assert record is not None
        assert record.value == b"new"
