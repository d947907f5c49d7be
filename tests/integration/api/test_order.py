"""Order across shards: windows and watermarks, and a single order that is the same for every reader."""

import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidCursor, InvalidSetting, ReadOnly
from tests.integration.api.conftest import read_all

SHARDS = 5


def write(hub, count, first=0, stream="orders"):
    with hub.producer() as producer:
        producer.send_many(
            stream, [b"%d" % number for number in range(first, first + count)], [b"%d" % n for n in range(count)]
        )


def write_in_moments(hub, times=4, count=1_000):
    """Records of which the order is settled now and then."""
    hub.streams.create("orders", shards=SHARDS)
    for number in range(times):
        write(hub, count, number * count)
        if number < times - 1:
            places(hub, batch=10)
            time.sleep(0.11)


def places(hub, **options):
    """For every batch of the single order, where its records stand."""
    with hub.sequence("orders", **{"follow": False, **options}) as ordered:
        return [[(record.shard, record.offset) for record in batch.records()] for batch in ordered]


def flat(batches):
    return [place for batch in batches for place in batch]


def wait_until(holds, seconds=15.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


# Windows.


def test_a_consumer_with_a_window_reads_everything(hub):
    write_in_moments(hub)
    expected = {(record.shard, record.offset) for record in read_all(hub, "orders")}
    with hub.consumer("orders", start="earliest", follow=False, ordering_window="5m") as consumer:
        found = [(record.shard, record.offset) for record in consumer]
    assert len(found) == len(expected) == 4_000
    assert set(found) == expected


def test_it_goes_on_from_its_cursor(hub):
    write_in_moments(hub)
    found = []
    cursor = "earliest"
    for _ in range(8):
        with hub.consumer("orders", start=cursor, follow=False, ordering_window=timedelta(minutes=1)) as consumer:
            for record in consumer:
                found.append((record.shard, record.offset))
                if len(found) % 700 == 0:
                    break
            cursor = consumer.cursor
    assert len(found) == len(set(found)) == 4_000


def test_with_a_predicate(hub):
    write_in_moments(hub)
    with hub.consumer(
        "orders", start="earliest", follow=False, where="_offset % 10 = 0", ordering_window="1h"
    ) as found:
        offsets = [record.offset for record in found]
    assert offsets
    assert all(offset % 10 == 0 for offset in offsets)
    assert len(offsets) == sum(-(-end // 10) for end in hub.streams.get("orders").ends)


def test_the_watermark_comes_forward_while_a_shard_is_idle(hub):
    hub.streams.create("orders", shards=SHARDS)
    with hub.producer() as producer, hub.consumer("orders", start="earliest", ordering_window="5m") as consumer:
        begun = datetime.now(UTC)
        for shard in range(SHARDS - 1):
            producer.send("orders", b"x", shard=shard).result(10)
        for _ in range(SHARDS - 1):
            assert consumer.poll(10) is not None
        assert consumer.poll(0) is None
        wait_until(lambda: consumer.watermark is not None and consumer.watermark > begun)
        assert consumer.watermark <= datetime.now(UTC)
        before = consumer.watermark
        wait_until(lambda: consumer.watermark > before)


def test_nothing_comes_that_was_stored_before_the_watermark(hub):
    """A record was stored no later than it was acknowledged: what comes after a watermark was acknowledged after it."""
    hub.streams.create("orders", shards=SHARDS)
    acknowledged: dict[tuple[int, int], datetime] = {}
    looks = set()
    with hub.producer() as producer, hub.consumer("orders", start="earliest", ordering_window="5m") as consumer:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            acks = [producer.send("orders", b"x", key=b"%d" % key) for key in range(20)]
            found = [ack.result(10) for ack in acks]
            acknowledged.update(dict.fromkeys(found, datetime.now(UTC)))
            watermark = consumer.watermark
            looks.add(watermark)
            while (record := consumer.poll(0)) is not None:
                if watermark is not None:
                    assert acknowledged[record.shard, record.offset] >= watermark
                watermark = consumer.watermark
    assert len(looks) > 2


def test_without_a_window_there_is_no_watermark(hub):
    hub.streams.create("orders", shards=2)
    write(hub, 10)
    with hub.consumer("orders", start="earliest") as consumer:
        consumer.poll(10)
        assert consumer.watermark is None


@pytest.mark.parametrize("window", ["1s", "59s", "0s", "-5m", "20000d", 5, "soon"])
def test_a_window_that_cannot_be_kept_is_refused(hub, window):
    hub.streams.create("orders", shards=2)
    with pytest.raises(InvalidSetting):
        hub.consumer("orders", ordering_window=window)


# A single order.


def test_every_reader_gets_the_same(hub):
    write_in_moments(hub)
    first = places(hub, batch=300)
    assert [len(batch) for batch in first] == [300] * 13 + [100]
    assert places(hub, batch=300) == first
    assert flat(places(hub, batch=1_000)) == flat(places(hub, batch=7)) == flat(first)
    assert len(set(flat(first))) == 4_000
    # What is written later has its place behind.
    write(hub, 500, 4_000)
    assert flat(places(hub, batch=300))[:4_000] == flat(first)
    shards = [shard for shard, _ in flat(first)]
    assert shards != sorted(shards), "it is not one shard after the other"


def test_a_reader_goes_on_where_it_was(hub):
    write_in_moments(hub)
    whole = places(hub, batch=300)
    cursor: Cursor | str = "earliest"
    found: list[list[tuple[int, int]]] = []
    while len(found) < len(whole):
        with hub.sequence("orders", batch=300, start=cursor, follow=False) as ordered:
            for batch in ordered:
                found.append([(record.shard, record.offset) for record in batch.records()])
                assert str(batch.cursor) == str(ordered.cursor)
                if len(found) % 4 == 0:
                    break
            cursor = Cursor.parse(str(ordered.cursor))
    assert found == whole
    # With another size it goes on too, to where batches of that size end.
    with hub.sequence("orders", batch=300, follow=False) as ordered:
        next(iter(ordered))
        cursor = ordered.cursor
    sizes = [len(batch) for batch in places(hub, batch=1_000, start=cursor)]
    assert sizes == [700, 1_000, 1_000, 1_000]


@pytest.mark.slow("waits for batches to become full")
def test_a_follower_gets_what_is_written_within_seconds(hub):
    hub.streams.create("orders", shards=SHARDS)
    with hub.sequence("orders", batch=100) as ordered:
        assert ordered.poll(0) is None
        for number in range(3):
            write(hub, 100, number * 100)
            batch = ordered.poll(15)
            assert batch is not None
            assert (batch.first, batch.end, len(batch)) == (number * 100, number * 100 + 100, 100)
        write(hub, 99)
        assert ordered.poll(2) is None, "a batch that is not full"
        write(hub, 1)
        assert ordered.poll(15) is not None
    assert [len(batch) for batch in places(hub, batch=100)] == [100] * 4


def test_from_the_end_and_from_a_time(hub):
    write_in_moments(hub, times=2)
    between = datetime.now(UTC)
    whole = places(hub)
    assert places(hub, start="latest") == []
    time.sleep(0.11)
    write(hub, 10, 2_000)
    assert len(flat(places(hub, start="earliest"))) == 2_010
    later = flat(places(hub, start=datetime.now(UTC)))
    assert later == []
    assert flat(places(hub, start=between - timedelta(days=1))) == flat(places(hub))
    since = flat(places(hub, start=between))
    assert 10 <= len(since) < 2_010
    assert flat(places(hub))[-len(since) :] == since
    assert flat(places(hub))[:2_000] == flat(whole)


def test_batches_are_tables(hub):
    hub.streams.create("orders", shards=3, schema={"id": pa.int64(), "city": pa.string()}, key="id")
    with hub.producer() as producer:
        producer.send_many("orders", [{"id": number, "city": "x"} for number in range(100)])
    with hub.sequence("orders", batch=40, follow=False) as ordered:
        batches = list(ordered)
    assert [batch.to_arrow().num_rows for batch in batches] == [40, 40, 20]
    assert {part.shard for batch in batches for part in batch.parts} == {0, 1, 2}
    assert sorted(row["id"] for batch in batches for row in batch.to_dicts()) == list(range(100))
    assert batches[0].to_arrow(metadata=True).column("_shard").to_pylist() == [0] * 40 or len(batches[0].parts) > 1


def test_more_shards(hub):
    write_in_moments(hub, times=2)
    before = flat(places(hub))
    with hub.sequence("orders", batch=10) as follower:
        found = [follower.poll(10) for _ in range(100)]
        hub.streams.alter("orders", shards=SHARDS + 3)
        write(hub, 1_000, 2_000)
        found += [follower.poll(15) for _ in range(200)]
    seen = [(record.shard, record.offset) for batch in found for record in batch.records()]
    assert seen[:2_000] == before
    assert seen == flat(places(hub))
    assert {shard for shard, _ in seen} == set(range(SHARDS + 3))


def test_what_was_trimmed_is_told_once_for_each_shard(hub):
    write_in_moments(hub)
    whole = places(hub, batch=300)
    with hub.sequence("orders", batch=300, follow=False) as ordered:
        next(iter(ordered))
        cursor = ordered.cursor
    for shard in range(SHARDS):
        hub.streams.trim("orders", offset=250 + shard, shard=shard)
    starts = hub.streams.get("orders").starts
    assert sum(starts) > 500
    told: list[tuple[int, int, int]] = []
    found: list[list[tuple[int, int]]] = []
    with hub.sequence("orders", batch=300, start=cursor, follow=False) as ordered:
        while True:
            try:
                found += ([(record.shard, record.offset) for record in batch.records()] for batch in ordered)
                break
            except DataLoss as loss:
                told.append((loss.shard, loss.first, loss.last))
    lost = [(shard, first, start - 1) for shard, (first, start) in enumerate(zip(cursor.offsets, starts, strict=True))]
    assert sorted(told) == [loss for loss in lost if loss[1] <= loss[2]]
    left = [[place for place in batch if place[1] >= starts[place[0]]] for batch in whole[1:]]
    assert found == [batch for batch in left if batch], "the others are where they were"
    # Who begins now is told of nothing, and has the same batches.
    left[:0] = [[place for place in whole[0] if place[1] >= starts[place[0]]]]
    assert places(hub, batch=300) == [batch for batch in left if batch]


@pytest.mark.parametrize("batch", [0, -1, 1_000_001, True, 2.0, "all"])
def test_a_size_that_is_none_is_refused(hub, batch):
    hub.streams.create("orders")
    with pytest.raises(InvalidSetting):
        hub.sequence("orders", batch=batch)


def test_a_start_that_is_none_is_refused(hub):
    hub.streams.create("orders")
    other = hub.streams.create("other")
    for start in ("now", datetime(2026, 1, 1), None):  # noqa: DTZ001
        with pytest.raises(InvalidSetting):
            hub.sequence("orders", start=start)
    with pytest.raises(InvalidCursor):
        hub.sequence("orders", start=Cursor(other.uuid, 1, (0,)))


def test_a_stream_of_one_shard_and_one_without_records(hub):
    hub.streams.create("orders")
    assert places(hub) == []
    write(hub, 25)
    assert places(hub, batch=10) == [
        [(0, offset) for offset in range(first, min(25, first + 10))] for first in (0, 10, 20)
    ]


def test_who_only_reads_a_folder_sees_the_order_as_far_as_it_is_noted(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        write_in_moments(hub)
        with mainstem.open(tmp_path / "data", read_only=True) as reader:
            with reader.sequence("orders", follow=False) as ordered:
                found = ordered.poll(10)
                assert found is not None
                assert len(found) == 3_000
                with pytest.raises(ReadOnly, match="newest 1000 records"):
                    ordered.poll(10)
                assert list(ordered) == []  # it is told once
            whole = flat(places(hub))
            assert flat(places(reader)) == whole
            with reader.consumer("orders", start="earliest", follow=False, ordering_window="5m") as consumer:
                assert len(list(consumer)) == 4_000
                assert consumer.watermark is not None


def test_a_batch_with_rows_of_two_schemas(hub):
    hub.streams.create("orders", shards=2, schema={"id": pa.int64()}, key="id")
    with hub.producer() as producer:
        producer.send_many("orders", [{"id": number} for number in range(50)])
        producer.flush()
        hub.streams.set_schema("orders", pa.schema([("id", pa.int64()), ("city", pa.string())]))
        producer.send_many("orders", [{"id": number, "city": "x"} for number in range(50, 100)])
    with hub.sequence("orders", follow=False) as ordered:
        (batch,) = ordered
    table = batch.to_arrow()
    assert table.schema.names == ["id", "city"]
    assert sorted(table.column("id").to_pylist()) == list(range(100))
    assert table.column("city").null_count == 50


def test_erased_records_leave_their_places(hub):
    """Batches have fewer records then, and the others stay in theirs."""
    hub.streams.create("orders", shards=3)
    write(hub, 1_000)
    whole = places(hub, batch=100)
    gone = {(record.shard, record.offset) for record in read_all(hub, "orders") if record.key in (b"7", b"500", b"501")}
    for key in (b"7", b"500", b"501"):
        hub.streams.erase("orders", key)
    assert len(gone) == 3
    assert places(hub, batch=100) == [[place for place in batch if place not in gone] for batch in whole]
    alone = [[place] for place in flat(whole) if place not in gone]
    assert places(hub, batch=1) == alone


def test_transactions_have_their_place_in_the_order(hub):
    hub.streams.create("orders", shards=SHARDS)
    for number in range(4):
        write(hub, 10, 20 * number)
        with hub.transaction() as tx:
            for record in range(20 * number + 10, 20 * number + 20):
                tx.send("orders", b"%d" % record, key=b"%d" % record)
        aborted = hub.transaction()
        aborted.send("orders", b"never")
        aborted.abort()
        places(hub, batch=10)
        time.sleep(0.11)
    with hub.sequence("orders", batch=20, follow=False) as ordered:
        batches = [sorted(int(record.value) for record in batch.records()) for batch in ordered]
    assert batches == [list(range(20 * number, 20 * number + 20)) for number in range(4)]
    assert places(hub, batch=7) == places(hub, batch=7)


@pytest.mark.parametrize("options", [{"group": "g"}, {"pattern": "ord*"}, {"stream": ["orders"]}], ids=str)
def test_a_window_is_for_one_stream_without_a_group(hub, options):
    hub.streams.create("orders", shards=SHARDS)
    stream = None if "pattern" in options else "orders"
    with pytest.raises(InvalidSetting, match="all shards of one stream"):
        hub.consumer(**{"stream": stream, "ordering_window": "5m", **options})
    assert hub.groups.list() == []
