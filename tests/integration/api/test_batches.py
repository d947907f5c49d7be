"""Tables in and tables out: Arrow, pandas, polars; what is refused; what atomic means."""

import threading
from datetime import UTC, datetime, timedelta

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import mainstem
from mainstem.core import placement
from mainstem.core.limits import HEADER_BYTES_MAX, HEADERS_PER_RECORD_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX
from tests.integration.api.conftest import read_all, values

MOMENT = datetime(2026, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC)
HEADERS = pa.map_(pa.string(), pa.binary())
COLUMNS = ["key", "value", "headers", "timestamp"]


@pytest.fixture
def orders(hub):
    return hub.streams.create("orders")


@pytest.fixture
def wide(hub):
    return hub.streams.create("wide", shards=4)


def rows(hub, stream="orders"):
    return [(r.key, r.value, r.headers, r.timestamp) for r in read_all(hub, stream)]


# In.


def test_send_many(hub, orders):
    with hub.producer() as producer:
        ack = producer.send_many("orders", (b"%d" % number for number in range(1_000)))
        assert ack.result(10) == [(0, 0, 1_000)]
        assert ack.done()
        assert ack.exception() is None
    assert values(hub, "orders") == [b"%d" % number for number in range(1_000)]


def test_send_many_with_keys_and_tombstones(hub, wide):
    keys = [b"a", b"b", None, b"c"] * 50
    sent = [None if number % 7 == 0 else b"%d" % number for number in range(200)]
    with hub.producer() as producer:
        runs = producer.send_many("wide", sent, keys).result(10)
    assert sum(count for _, _, count in runs) == 200
    assert all(base == 0 for _, base, _ in runs)
    found = {(record.shard, record.offset): (record.key, record.value) for record in read_all(hub, "wide")}
    assert sorted(found.values(), key=repr) == sorted(zip(keys, sent, strict=True), key=repr)


def test_send_many_of_nothing(hub, orders):
    with hub.producer() as producer:
        ack = producer.send_many("orders", [])
        assert ack.result() == []
        assert ack.done()


@pytest.mark.parametrize("values_", [["text"], [1], [b"x", "y"], [bytearray(b"x")]])
def test_send_many_takes_bytes(hub, orders, values_):
    with hub.producer() as producer, pytest.raises(mainstem.InvalidRecord):
        producer.send_many("orders", values_)


def test_send_many_needs_a_key_for_each_value(hub, orders):
    with hub.producer() as producer, pytest.raises(mainstem.InvalidRecord, match="2 values and 1 keys"):
        producer.send_many("orders", [b"a", b"b"], [b"k"])


def test_an_arrow_table(hub, orders):
    table = pa.table(
        {
            "value": [b"a", None, b"c"],
            "key": ["x", None, "z"],
            "headers": pa.array([[("h", b"1")], None, []], HEADERS),
            "timestamp": pa.array([MOMENT] * 3, pa.timestamp("us", "UTC")),
        }
    )
    with hub.producer() as producer:
        assert producer.send_batch("orders", table).result(10) == [(0, 0, 3)]
    assert rows(hub) == [(b"x", b"a", {"h": b"1"}, MOMENT), (None, None, None, MOMENT), (b"z", b"c", {}, MOMENT)]


def test_a_record_batch_and_a_table_of_many_chunks(hub, orders):
    batch = pa.record_batch({"value": [b"a", b"b"]})
    with hub.producer() as producer:
        producer.send_batch("orders", batch)
        producer.send_batch("orders", pa.Table.from_batches([batch] * 100))
    assert values(hub, "orders") == [b"a", b"b"] * 101


@pytest.mark.parametrize(
    "type_", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()]
)
def test_every_kind_of_bytes_and_text(hub, orders, type_):
    sent = ["a", "größe", None] if "string" in str(type_) else [b"a", "größe".encode(), None]
    with hub.producer() as producer:
        producer.send_batch("orders", pa.table({"value": pa.array(sent, type_), "key": pa.array(sent, type_)}))
    assert [(record.key, record.value) for record in read_all(hub, "orders")] == [
        (b"a", b"a"),
        ("größe".encode(), "größe".encode()),
        (None, None),
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", None])
def test_every_kind_of_timestamp(hub, orders, unit, zone):
    whole = MOMENT.replace(microsecond=0)
    column = pa.array([whole, None], pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"))
    column = column.cast(pa.timestamp(unit, zone)) if zone else column.cast(pa.timestamp(unit))
    before = datetime.now(UTC) - timedelta(seconds=1)
    with hub.producer() as producer:
        producer.send_batch("orders", pa.table({"value": [b"a", b"b"], "timestamp": column}))
    first, second = read_all(hub, "orders")
    assert first.timestamp == whole
    assert before <= second.timestamp <= datetime.now(UTC) + timedelta(seconds=1)


def test_a_pandas_frame(hub, orders):
    frame = pd.DataFrame(
        {
            "value": [b"a", b"b", None],
            "key": ["x", "y", None],
            "headers": [{"h": b"1"}, None, {}],
            "timestamp": pd.to_datetime([MOMENT] * 3),
        },
        index=[7, 8, 9],
    )
    with hub.producer() as producer:
        producer.send_batch("orders", frame)
    assert rows(hub) == [(b"x", b"a", {"h": b"1"}, MOMENT), (b"y", b"b", None, MOMENT), (None, None, {}, MOMENT)]


def test_a_slice_of_a_pandas_frame(hub, orders):
    frame = pd.DataFrame({"value": [b"%d" % number for number in range(10)]})
    with hub.producer() as producer:
        producer.send_batch("orders", frame[3:6])
    assert values(hub, "orders") == [b"3", b"4", b"5"]


def test_a_polars_frame(hub, orders):
    frame = pl.DataFrame({"value": [b"a", b"b", None], "key": ["x", "y", None], "timestamp": [MOMENT, MOMENT, MOMENT]})
    with hub.producer() as producer:
        producer.send_batch("orders", frame)
        producer.send_batch("orders", frame[1:2])
    expected = [(b"x", b"a", None, MOMENT), (b"y", b"b", None, MOMENT), (None, None, None, MOMENT)]
    assert rows(hub) == [*expected, expected[1]]


def test_a_table_of_no_rows(hub, orders):
    with hub.producer() as producer:
        assert producer.send_batch("orders", pa.table({"value": pa.array([], pa.binary())})).result(10) == []
    assert values(hub, "orders") == []


def test_a_table_larger_than_a_batch_is_cut_and_keeps_its_order(hub, orders):
    rows_ = [bytes([number]) * 1_000_000 for number in range(30)]
    with hub.producer() as producer:
        runs = producer.send_batch("orders", pa.table({"value": rows_})).result(20)
    assert len(runs) > 1
    assert [base for _, base, _ in runs] == [sum(count for _, _, count in runs[:n]) for n in range(len(runs))]
    assert values(hub, "orders") == rows_


def test_a_keyed_table_is_spread_by_its_keys(hub, wide):
    keys = [b"k%d" % number for number in range(300)]
    with hub.producer() as producer:
        runs = producer.send_batch("wide", pa.table({"value": keys, "key": keys})).result(10)
    expected = placement.shards_for(keys, 4, "crc32", 0).tolist()
    assert {shard: count for shard, _, count in runs} == {shard: expected.count(shard) for shard in set(expected)}
    found = read_all(hub, "wide")
    assert {record.key: record.shard for record in found} == dict(zip(keys, expected, strict=True))
    # Inside a shard the order of the table stays.
    for shard in range(4):
        mine = [key for key, place in zip(keys, expected, strict=True) if place == shard]
        assert [record.value for record in found if record.shard == shard] == mine


def test_a_table_comes_after_what_was_sent_before(hub, orders):
    with hub.producer(linger=60) as producer:
        producer.send("orders", b"first")
        producer.send_batch("orders", pa.table({"value": [b"second"]}))
        producer.send("orders", b"third")
    assert values(hub, "orders") == [b"first", b"second", b"third"]


def test_a_record_sent_while_another_thread_sends_a_table_is_its_own(tmp_path):
    """The thread that sends record by record takes no lock. The moment that matters is made long: the other thread's
    table is made and not queued yet."""
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        producer = hub.producer(linger=60)
        producer.send("orders", b"first")
        begun, sent = threading.Event(), threading.Event()
        encode = producer._shipping.encode_ahead

        def encode_slowly(chunk):
            encode(chunk)
            begun.set()
            sent.wait(0.3)

        producer._shipping.encode_ahead = encode_slowly  # type: ignore[method-assign]
        table = threading.Thread(target=lambda: producer.send_many("orders", [b"table"] * 3))
        table.start()
        assert begun.wait(5)
        ack = producer.send("orders", b"mine")
        sent.set()
        table.join()
        offset = ack.result(10)[1]
        producer.close()
        assert sorted(values(hub, "orders"), key=str) == [b"first", b"mine", *[b"table"] * 3]
        assert values(hub, "orders")[offset] == b"mine"


# What is refused, in the call.


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        b"bytes",
        {"value": [b"x"]},
        [b"x"],
        pa.table({"key": [b"x"]}),
        pa.table({"value": [b"x"], "extra": [1]}),
        pa.table({"value": [1]}),
        pa.table({"value": [{"a": 1}]}),
        pa.table({"value": [b"x"], "timestamp": ["yesterday"]}),
        pa.table({"value": [b"x"], "timestamp": [1]}),
        pa.table({"value": [b"x"], "headers": ["h"]}),
        pa.table([pa.array([b"x"]), pa.array([b"y"])], names=["value", "value"]),
        pd.DataFrame({"value": [1.5]}),
        pl.DataFrame({"value": [1]}),
    ],
    ids=lambda data: str(type(data).__name__),
)
def test_what_is_no_table_of_records_is_refused(hub, orders, data):
    with hub.producer() as producer:
        with pytest.raises(mainstem.InvalidRequest):
            producer.send_batch("orders", data)
        assert producer.send("orders", b"fine").result(10) == (0, 0)


def header_table(pairs: list[tuple[str, bytes]]) -> pa.Table:
    return pa.table({"value": [b"v"] * 2, "headers": pa.array([[("a", b"")], pairs], HEADERS)})


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"value": [b"v", b"v" * (RECORD_BYTES_MAX + 1)]}),
        pa.table({"value": [b"v"], "key": [b"k" * (KEY_BYTES_MAX + 1)]}),
        header_table([(f"{n}", b"") for n in range(HEADERS_PER_RECORD_MAX + 1)]),
        header_table([("h", b"x" * HEADER_BYTES_MAX)]),
    ],
    ids=["record", "key", "headers", "header bytes"],
)
def test_the_limits_of_a_record_hold_for_the_rows_of_a_table(hub, orders, table):
    with hub.producer() as producer:
        with pytest.raises(mainstem.RecordTooLarge):
            producer.send_batch("orders", table)
        assert producer.send("orders", b"fine").result(10) == (0, 0)


def test_rows_at_their_limits_are_taken(hub, orders):
    table = pa.table(
        {
            "value": [b"v" * 1_000] * 3,
            "key": [b"k" * KEY_BYTES_MAX, None, b""],
            "headers": pa.array(
                [[(f"{n}", b"") for n in range(HEADERS_PER_RECORD_MAX)], [("h", b"x" * (HEADER_BYTES_MAX - 1))], None],
                HEADERS,
            ),
        }
    )
    with hub.producer() as producer:
        producer.send_batch("orders", table)
        producer.send_batch("orders", pa.table({"value": [b"v" * RECORD_BYTES_MAX]}))
    assert [len(record.value or b"") for record in read_all(hub, "orders")] == [1_000] * 3 + [RECORD_BYTES_MAX]


@pytest.mark.parametrize("moment", [-(2**62) - 1, 2**62 + 1, 2**63 - 1, 253_402_300_800_000_000])
def test_times_that_no_reader_could_have_are_refused(hub, orders, moment):
    column = pa.array([0, moment], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with hub.producer() as producer:
        with pytest.raises(mainstem.InvalidRecord, match="timestamp"):
            producer.send_batch("orders", pa.table({"value": [b"a", b"b"], "timestamp": column}))
        assert producer.send("orders", b"fine").result(10) == (0, 0)


# Atomic.


def test_an_atomic_table_is_contiguous_among_others(hub, orders):
    """Four threads, half of what they send in atomic tables of 50: no stranger among the members."""

    def write(worker: int) -> None:
        with hub.producer() as producer:
            for number in range(20):
                group = [b"%d:%d:%d" % (worker, number, member) for member in range(50)]
                producer.send_batch("orders", pa.table({"value": group}), atomic=True)
                for _ in range(20):
                    producer.send("orders", b"loose")

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(hub, "orders")
    assert len(found) == 4 * 20 * 70
    starts = [index for index, value in enumerate(found) if (value or b"").endswith(b":0")]
    assert len(starts) == 80
    for start in starts:
        worker, number, _ = (found[start] or b"").split(b":")
        assert found[start : start + 50] == [b"%s:%s:%d" % (worker, number, member) for member in range(50)]


def test_an_atomic_table_is_one_batch_of_one_shard(hub, wide):
    with hub.producer() as producer:
        runs = producer.send_batch("wide", pa.table({"value": [b"x"] * 1_000}), atomic=True).result(10)
    assert len(runs) == 1
    with hub.consumer("wide", start="earliest", follow=False) as consumer:
        assert [batch.count for batch in consumer.batches()] == [1_000]


def test_an_atomic_table_with_keys_of_several_shards_is_refused(hub, wide):
    keys = [b"k%d" % number for number in range(100)]
    with hub.producer() as producer, pytest.raises(mainstem.InvalidRequest, match="one shard"):
        producer.send_batch("wide", pa.table({"value": keys, "key": keys}), atomic=True)
    assert hub.streams.get("wide").records == 0


def test_an_atomic_table_with_keys_of_one_shard_goes_there(hub, wide):
    keys = [
        key for key in (b"k%d" % number for number in range(100)) if placement.shards_for([key], 4, "crc32", 0) == [2]
    ]
    with hub.producer() as producer:
        (run,) = producer.send_batch("wide", pa.table({"value": keys, "key": keys}), atomic=True).result(10)
    assert run == (2, 0, len(keys))


def test_rows_without_a_key_stay_with_the_others_of_an_atomic_table(hub, wide):
    """Alone they could go anywhere: here they go where the keys are, whatever shard is next in turn."""
    key = next(key for key in (b"k%d" % n for n in range(100)) if placement.shards_for([key], 4, "crc32", 0) == [1])
    table = pa.table({"value": [b"a", b"b", b"c"], "key": [key, None, key]})
    with hub.producer() as producer:
        runs = [producer.send_batch("wide", table, atomic=True).result(10) for _ in range(8)]
    assert runs == [[(1, 3 * number, 3)] for number in range(8)]


def test_an_atomic_table_over_the_limit_is_refused(hub, orders):
    table = pa.table({"value": [b"x" * 1_000_000] * 20})
    with hub.producer() as producer, pytest.raises(mainstem.RecordTooLarge, match="split the table"):
        producer.send_batch("orders", table, atomic=True)
    assert hub.streams.get("orders").records == 0


def test_an_empty_atomic_table(hub, wide):
    with hub.producer() as producer:
        assert producer.send_batch("wide", pa.table({"value": pa.array([], pa.binary())}), atomic=True).result(5) == []


# Out.


def test_to_arrow_has_the_four_columns(hub, orders):
    with hub.producer() as producer:
        producer.send_many("orders", [b"a", None])
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        (batch,) = consumer.batches()
    table = batch.to_arrow()
    assert table.schema == pa.schema(
        [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("timestamp", pa.timestamp("us", "UTC"))]
    )
    assert table.column("value").to_pylist() == [b"a", None]
    assert table.column("key").null_count == table.column("headers").null_count == 2
    assert table.column("timestamp").null_count == 0


def test_to_arrow_with_metadata(hub, wide):
    with hub.producer() as producer:
        producer.send("wide", b"a", key=b"k", headers={"h": b"1"}, timestamp=MOMENT).result(10)
        shard, offset = producer.send("wide", b"b", key=b"k", timestamp=MOMENT).result(10)
    with hub.consumer("wide", start="earliest", follow=False) as consumer:
        tables = [batch.to_arrow(metadata=True) for batch in consumer.batches()]
    table = pa.Table.from_batches(tables)
    assert table.schema.names == [*COLUMNS, "_shard", "_offset", "_timestamp", "_key", "_headers"]
    assert table.schema.field("_shard").type == pa.int32()
    assert table.schema.field("_offset").type == pa.int64()
    assert table.column("_shard").to_pylist() == [shard] * 2
    assert table.column("_offset").to_pylist() == [offset - 1, offset]
    assert table.column("_key").to_pylist() == table.column("key").to_pylist() == [b"k", b"k"]
    assert table.column("_timestamp") == table.column("timestamp")
    assert table.column("_headers").to_pylist() == [[("h", b"1")], None]


def test_every_batch_has_the_same_schema_whatever_it_holds(hub, orders):
    with hub.producer() as producer:
        producer.send("orders", b"plain").result(10)
        producer.send("orders", b"key", key=b"k").result(10)
        producer.send("orders", b"headers", headers={"h": b"1"}).result(10)
        producer.send("orders", b"time", timestamp=MOMENT).result(10)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        tables = [batch.to_arrow(metadata=True) for batch in consumer.batches()]
    assert len(tables) == 4
    assert pa.Table.from_batches(tables).num_rows == 4


def test_a_batch_says_where_it_stands(hub, orders):
    with hub.producer() as producer:
        producer.send_many("orders", [b"a", b"b", b"c"]).result(10)
        producer.send_many("orders", [b"d"]).result(10)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        batches = list(consumer.batches())
    assert [(batch.shard, batch.offset, batch.count, batch.end) for batch in batches] == [(0, 0, 3, 3), (0, 3, 1, 4)]
    assert [len(batch) for batch in batches] == [3, 1]
    assert [batch.values() for batch in batches] == [[b"a", b"b", b"c"], [b"d"]]
    assert "orders" in repr(batches[0])
    assert "0 to 2" in repr(batches[0])


def test_to_pandas(hub, orders):
    with hub.producer() as producer:
        producer.send("orders", b"a", key=b"k", timestamp=MOMENT)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        (batch,) = consumer.batches()
    frame = batch.to_pandas()
    assert list(frame.columns) == COLUMNS
    assert frame["value"][0] == b"a"
    assert frame["timestamp"][0] == pd.Timestamp(MOMENT)


def test_what_was_read_can_be_sent(hub, orders):
    """Out of one stream and into another, by batch: the same records."""
    hub.streams.create("copy")
    with hub.producer() as producer:
        producer.send("orders", b"a", key=b"k", headers={"h": b"1"}, timestamp=MOMENT)
        producer.send("orders", None)
    with hub.consumer("orders", start="earliest", follow=False) as consumer, hub.producer() as producer:
        for batch in consumer.batches():
            producer.send_batch("copy", batch.to_arrow())
    assert rows(hub, "copy") == rows(hub, "orders")


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("size", [10, 2_000, 100_000])
def test_every_compression_gives_the_same_records(hub, orders, compression, size):
    sent = [(b"%06d" % number) * (size // 6) for number in range(20)]
    with hub.producer(compression=compression) as producer:
        producer.send_many("orders", sent)
    assert values(hub, "orders") == sent


# Tables whose buffers are not what Arrow says they are.

FAR_OFFSET = pa.py_buffer(b"\0\0\0\0\xff\xff\xff\x7f\x05\0\0\0")
NO_UNICODE = pa.py_buffer(b"\0\0\0\0\x02\0\0\0\x05\0\0\0")
UNSOUND = {
    "an offset far behind the end": pa.StringArray.from_buffers(2, FAR_OFFSET, pa.py_buffer(b"abcde")),
    "text that is not Unicode": pa.StringArray.from_buffers(2, NO_UNICODE, pa.py_buffer(b"\xff\xffabc")),
    "an index behind the dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 9]), ["a"], safe=False),
}


@pytest.mark.parametrize("key", [None, "c", ("c", "id")], ids=str)
@pytest.mark.parametrize("column", UNSOUND.values(), ids=UNSOUND)
def test_a_table_that_is_not_sound_is_refused_and_never_stored(hub, column, key):
    hub.streams.create("u", schema={"id": "int", "c": "text"}, key=key, shards=2)
    with hub.producer() as producer:
        with pytest.raises(mainstem.InvalidPayload):
            producer.send_batch("u", pa.table({"id": [7, 8], "c": column})).result(10)
        producer.send_batch("u", pa.table({"id": [9], "c": ["fine"]})).result(10)
    assert [record.value for record in read_all(hub, "u")] == [{"id": 9, "c": "fine"}]


def test_records_that_are_not_sound_are_refused(hub, orders):
    column = pa.BinaryArray.from_buffers(pa.binary(), 2, [None, FAR_OFFSET, pa.py_buffer(b"abcde")])
    with hub.producer() as producer, pytest.raises(mainstem.InvalidPayload):
        producer.send_batch("orders", pa.table({"value": column})).result(10)
    assert values(hub, "orders") == []


def test_a_decimal_with_more_digits_than_its_type_is_refused(hub):
    hub.streams.create("u", schema={"d": "decimal(5, 2)"})
    number = pa.py_buffer((10**28).to_bytes(16, "little"))
    column = pa.Array.from_buffers(pa.decimal128(5, 2), 1, [None, number])
    with hub.producer() as producer, pytest.raises(mainstem.InvalidPayload):
        producer.send_batch("u", pa.table({"d": column})).result(10)
    assert values(hub, "u") == []
