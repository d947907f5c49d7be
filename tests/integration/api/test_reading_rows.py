"""Rows read back: by predicate, by column, of several schemas, and what is no row among them. Near and far alike."""

import itertools
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mainstem
from mainstem.core.errors import IncompatibleSchema, InvalidPredicate, InvalidSetting, UndecodedRecords
from mainstem.core.schema import described
from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("amount", pa.float64())])
COUNTRIES = ("DE", "FR", "US", "BR")
# Rows enough to be worth statistics, and four batches of them.
BATCH = 1_250
COUNT = 4 * BATCH


def rows(count: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {"id": numbers, "country": [COUNTRIES[n % 4] for n in numbers], "amount": [n / 2 for n in numbers]},
        schema=SCHEMA,
    )


def orders(hub: Hub, count: int = COUNT, **options: Any) -> None:
    """A stream of rows, written in several batches."""
    hub.streams.create("orders", schema=SCHEMA, **{"key": "id", **options})
    with hub.producer() as producer:
        for first in range(0, count, BATCH):
            producer.send_batch("orders", rows(min(BATCH, count - first), first))
            producer.flush()


def read(hub: Hub, **options: Any) -> list[Any]:
    with hub.consumer("orders", start="earliest", follow=False, **options) as consumer:
        return [record.value for record in consumer]


def test_rows_come_as_dicts_and_as_columns(hub):
    orders(hub, 10)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        records = list(consumer)
    assert records[3].value == {"id": 3, "country": "BR", "amount": 1.5}
    assert [record.key for record in records] == [b"%d" % n for n in range(10)]
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        table = pa.Table.from_batches([batch.to_arrow() for batch in consumer.batches()])
    assert table.equals(rows(10))


def test_formats_of_a_batch(hub):
    orders(hub, 3)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        (batch,) = consumer.batches()
    assert batch.to_dicts() == rows(3).to_pylist()
    assert [json.loads(line) for line in batch.to_ndjson().splitlines()] == rows(3).to_pylist()
    assert batch.to_csv().splitlines()[0].replace(b'"', b"") == b"id,country,amount"
    assert batch.to_pandas()["id"].tolist() == [0, 1, 2]
    names = batch.to_arrow(metadata=True).schema.names
    assert names == ["id", "country", "amount", "_shard", "_offset", "_timestamp", "_key", "_headers"]


def test_where_and_columns(hub):
    orders(hub)
    found = read(hub, where="country = 'DE' AND amount >= 2490", columns=["id", "_offset"])
    assert found == [{"id": n, "_offset": n} for n in range(4_980, COUNT, 4)]


def test_batches_that_cannot_match_are_not_opened(hub):
    orders(hub)
    with hub.consumer("orders", start="earliest", follow=False, where="id BETWEEN 2600 AND 2602") as consumer:
        assert [record.value["id"] for record in consumer] == [2600, 2601, 2602]
        assert (consumer.opened, consumer.skipped) == (1, 3)


def test_the_cursor_moves_on_where_nothing_matches(hub):
    orders(hub)
    with hub.consumer("orders", start="earliest", follow=False, where="id < 0") as consumer:
        assert list(consumer) == []
        assert consumer.cursor.offsets == (COUNT,)


def test_a_cursor_in_the_middle_of_what_matches(hub):
    orders(hub)
    options: dict[str, Any] = {"where": "id % 3 = 0", "columns": ["id"], "follow": False}
    with hub.consumer("orders", start="earliest", **options) as consumer:
        first = [next(consumer).value["id"] for _ in range(500)]
        cursor = mainstem.Cursor.parse(str(consumer.cursor))
    with hub.consumer("orders", start=cursor, **options) as consumer:
        rest = [record.value["id"] for record in consumer]
    assert first + rest == list(range(0, COUNT, 3))


def test_a_follower_gets_what_matches_as_it_comes(hub):
    orders(hub, 100)
    with hub.consumer("orders", where="country = 'US'", columns=["id"]) as consumer, hub.producer() as producer:
        assert consumer.poll(0.1) is None
        producer.send_batch("orders", rows(8, 100))
        producer.flush()
        assert [consumer.poll(5).value["id"] for _ in range(2)] == [102, 106]
        assert consumer.poll(0.2) is None
        assert consumer.cursor.offsets == (108,)


def test_several_shards(hub):
    orders(hub, 1_000, shards=4)
    assert sorted(row["id"] for row in read(hub, where="amount < 50")) == list(range(100))


def test_what_cannot_be_asked_is_refused_when_it_is_asked(hub):
    orders(hub, 1)
    for options, error, text in (
        ({"where": "amuont > 1"}, InvalidPredicate, "amount"),
        ({"where": "amount > 'x'"}, InvalidPredicate, "amount"),
        ({"where": "amount >"}, InvalidPredicate, "."),
        ({"where": 7}, InvalidPredicate, "must be text"),
        ({"where": ""}, InvalidPredicate, "None, to get every record"),
        ({"where": " \n"}, InvalidPredicate, "None, to get every record"),
        ({"columns": ["id", "totl"]}, InvalidSetting, "totl"),
        ({"columns": "id"}, InvalidSetting, "list of names"),
        ({"on_bad": "ignore"}, InvalidSetting, "on_bad"),
    ):
        with pytest.raises(error, match=text):
            hub.consumer("orders", **options)


def test_a_column_that_is_not_there_is_told_in_sentences(hub):
    orders(hub, 1)
    with pytest.raises(InvalidSetting, match=r"there is no column 'nope'\. The columns are id, country"):
        hub.consumer("orders", columns=["nope"])
    with pytest.raises(InvalidSetting, match=r"there is no column 'idd'; did you mean 'id'\? The columns are id, "):
        hub.consumer("orders", columns=["idd"])


def test_streams_without_a_schema(hub):
    hub.streams.create("raw")
    with hub.producer() as producer:
        for n in range(100):
            producer.send("raw", b"value %d" % n, key=b"k%d" % (n % 5), headers={"tenant": f"t{n % 10}"})
    with hub.consumer("raw", start="earliest", follow=False, where="headers['tenant'] = 't3'") as consumer:
        found = list(consumer)
    assert [record.offset for record in found] == list(range(3, 100, 10))
    assert (found[0].value, found[0].key, found[0].headers) == (b"value 3", b"k3", {"tenant": b"t3"})
    with hub.consumer("raw", start="earliest", follow=False, where="_key = 'k1'", columns=["value"]) as consumer:
        (batch,) = consumer.batches()
    assert batch.to_arrow().schema.names == ["value"]
    assert batch.values()[:2] == [b"value 1", b"value 6"]


# Finding.


def test_finding_one_row(hub):
    orders(hub, index=["country"])
    found = hub.find("orders", "id = 3210")
    assert [record.value["id"] for record in found] == [3210]
    assert (found.opened, found.skipped) == (1, 3)
    assert found.seconds > 0
    assert found.to_arrow().to_pylist() == [{"id": 3210, "country": "US", "amount": 1605.0}]
    assert repr(found).startswith("<Found 1 record, 1 batch opened, 3 skipped, ")
    assert "3210" in found._repr_html_()


def test_finding_nothing(hub):
    orders(hub)
    found = hub.find("orders", "id = 100000", columns=["amount"])
    assert (len(found), found.opened, found.skipped) == (0, 0, 4)
    assert found.to_arrow().schema.names == ["amount"]
    assert not list(found)


def test_a_predicate_without_columns(hub):
    orders(hub, 5)
    assert [row["id"] for row in read(hub, where="1 = 1")] == list(range(5))
    assert len(hub.find("orders", "TRUE", columns=["id"])) == 5
    assert not hub.find("orders", "FALSE")


def test_finding_where_something_is(hub):
    orders(hub, 8)
    assert hub.find("orders", "amount >= 3", columns=["_offset"]).to_dicts() == [{"_offset": 6}, {"_offset": 7}]
    assert read(hub, where="country = 'BR'", columns=["_key", "_shard"])[0] == {"_key": b"3", "_shard": 0}


def test_finding_no_more_than_asked(hub):
    orders(hub)
    found = hub.find("orders", "country = 'FR'", limit=3)
    assert [record.value["id"] for record in found] == [1, 5, 9]
    assert found[-1].value["id"] == 9
    assert len(found[:2]) == 2
    for limit in (0, -1, True, "3"):
        with pytest.raises(InvalidSetting):
            hub.find("orders", "id = 1", limit=limit)
    with pytest.raises(InvalidPredicate):
        hub.find("orders", " ")


# Schemas that change.

WIDER = pa.schema(
    [
        ("id", pa.int64()),
        described(pa.field("land", pa.string()), aliases=("country",)),
        ("amount", pa.float64()),
        described(pa.field("paid", pa.bool_()), default=False),
    ]
)


def test_a_consumer_goes_over_to_a_newer_schema(hub):
    orders(hub, 2)
    with hub.consumer("orders", start="earliest") as consumer:
        assert consumer.poll(5).value == {"id": 0, "country": "DE", "amount": 0.0}
        hub.streams.set_schema("orders", WIDER)
        with hub.producer() as producer:
            producer.send("orders", {"id": 2, "land": "US", "amount": 1.0, "paid": True})
        assert consumer.poll(5).value == {"id": 1, "country": "FR", "amount": 0.5}
        assert consumer.poll(5).value == {"id": 2, "land": "US", "amount": 1.0, "paid": True}
    assert read(hub)[0] == {"id": 0, "land": "DE", "amount": 0.0, "paid": False}
    assert read(hub, where="land = 'FR' AND NOT paid", columns=["id"]) == [{"id": 1}]


def test_a_predicate_goes_over_to_a_newer_schema(hub):
    """Columns that were added come, too."""
    orders(hub, 2)
    with hub.consumer("orders", start="earliest", where="amount >= 0") as consumer:
        assert consumer.poll(5).value["id"] == 0
        hub.streams.set_schema("orders", SCHEMA.append(pa.field("paid", pa.bool_())))
        with hub.producer() as producer:
            producer.send("orders", {"id": 2, "country": "US", "amount": -1.0, "paid": True}).result()
            producer.send("orders", {"id": 3, "country": "US", "amount": 1.0, "paid": True}).result()
        assert consumer.poll(5).value == {"id": 1, "country": "FR", "amount": 0.5}
        assert consumer.poll(5).value == {"id": 3, "country": "US", "amount": 1.0, "paid": True}
        assert consumer.poll(0.1) is None
        assert consumer.cursor.offsets == (4,)
        assert "paid" in consumer.columns.names


NARROW = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("c", pa.string())])
WIDE = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("c", pa.string())])
WIDEST = WIDE.append(pa.field("more", pa.string()))


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"columns": ["c"]}, [{"c": "a"}, {"c": "b"}, {"c": "c"}]),
        ({"columns": ["_offset"], "where": "n > 0"}, [{"_offset": 0}, {"_offset": 1}, {"_offset": 2}]),
        ({"columns": ["n"], "where": "c = 'b' OR n > 1"}, [None, {"n": 1 << 40}, {"n": 3}]),
        (
            {"where": "id > 0"},
            [{"id": 1, "n": 1, "c": "a"}, {"id": 2, "n": 1 << 40, "c": "b"}, {"id": 3, "n": 3, "c": "c", "more": "x"}],
        ),
    ],
)
def test_a_wider_column_does_not_end_a_reader(hub, options, values):
    hub.streams.create("orders", schema=NARROW, shards=2)
    with hub.consumer("orders", start="earliest", **options) as consumer:
        rows = (
            {"id": 1, "n": 1, "c": "a"},
            {"id": 2, "n": 1 << 40, "c": "b"},
            {"id": 3, "n": 3, "c": "c", "more": "x"},
        )
        for row, schema, wanted in zip(rows, (NARROW, WIDE, WIDEST), values, strict=True):
            hub.streams.set_schema("orders", schema)
            with hub.producer() as producer:
                producer.send("orders", row, shard=0).result()
            found = consumer.poll(5 if wanted else 0.2)
            assert (found and found.value) == wanted
        assert consumer.poll(0.1) is None
        assert consumer.cursor.offsets == (3, 0)


def test_rows_of_before_and_after_are_read_with_the_newest_schema(hub):
    """One that stands before all of them when the schema changes: nothing is lost, and nothing comes twice."""
    hub.streams.create("orders", schema=NARROW)
    with hub.consumer("orders", start="earliest", where="id % 2 = 0", columns=["id"]) as consumer:
        for schema, first in ((NARROW, 0), (WIDE, 100), (WIDEST, 200)):
            hub.streams.set_schema("orders", schema)
            with hub.producer() as producer:
                for n in range(first, first + 100):
                    producer.send("orders", {"id": n, "n": n, "c": "c"})
        assert [consumer.poll(5).value["id"] for _ in range(150)] == list(range(0, 300, 2))
        assert consumer.poll(0.1) is None
        assert consumer.cursor.offsets == (300,)


def test_columns_that_a_newer_schema_does_not_have_are_named_each_time(hub):
    orders(hub, 1, compatibility="none", key=None)
    with hub.consumer("orders", start="earliest", columns=["country"]) as consumer:
        assert consumer.poll(5).value == {"country": "DE"}
        hub.streams.set_schema("orders", pa.schema([("id", pa.int64())]))
        with hub.producer() as producer:
            producer.send("orders", {"id": 2}).result()
        for _ in range(2):
            with pytest.raises(InvalidSetting, match=r"'orders' has version 2 of its schema.*'country'"):
                consumer.poll(5)
        assert consumer.cursor.offsets == (1,)


def test_rows_that_a_predicate_can_no_longer_read_end_it(hub):
    orders(hub, 2, compatibility="none", key=None)
    with hub.consumer("orders", start="earliest", where="amount >= 0") as consumer:
        assert consumer.poll(5).value["id"] == 0
        hub.streams.set_schema("orders", pa.schema([("id", pa.int64()), ("amount", pa.string())]))
        with hub.producer() as producer:
            producer.send("orders", {"id": 2, "amount": "much"})
        assert consumer.poll(5).value["id"] == 1
        for _ in range(2):
            with pytest.raises(InvalidPredicate, match=r"'orders' has version 2 of its schema.*amount"):
                consumer.poll(5)
        assert consumer.cursor.offsets == (2,)


# Bytes among rows.


def mixed(hub: Hub) -> None:
    """Records from before there was a schema: rows in JSON, a tombstone, and two that are none."""
    hub.streams.create("orders")
    with hub.producer() as producer:
        for value in (b'{"id": 0, "country": "DE"}', b"no json", b'{"id": "x"}', b'{"id": 3}', None):
            producer.send("orders", value, key=b"k")
    hub.streams.set_schema("orders", SCHEMA)
    with hub.producer() as producer:
        producer.send("orders", {"id": 5, "country": "US", "amount": 2.5})


EMPTY = {"country": None, "amount": None}


def test_what_is_no_row_is_said_once_and_passed(hub):
    mixed(hub)
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert next(consumer).value == {"id": 0, "country": "DE", "amount": None}
        with pytest.raises(UndecodedRecords) as caught:
            next(consumer)
        error = caught.value
        assert (error.stream, error.shard, error.first, error.last) == ("orders", 0, 1, 2)
        assert consumer.cursor.offsets == (3,)
        assert [record.value for record in consumer] == [
            {"id": 3, **EMPTY},
            None,
            {"id": 5, "country": "US", "amount": 2.5},
        ]
        assert consumer.undecoded == 2


def test_what_is_no_row_may_be_skipped_or_kept(hub):
    mixed(hub)
    with hub.consumer("orders", start="earliest", follow=False, on_bad="skip") as consumer:
        assert [record.offset for record in consumer] == [0, 3, 4, 5]
        assert consumer.undecoded == 2
    with hub.consumer("orders", start="earliest", follow=False, on_bad="keep") as consumer:
        found = list(consumer)
    assert [record.undecoded for record in found] == [None, b"no json", b'{"id": "x"}', None, None, None]
    assert [record.value for record in found[1:3]] == [None, None]


def test_what_is_no_row_is_said_under_a_predicate_too(hub):
    mixed(hub)
    with hub.consumer("orders", start="earliest", follow=False, where="id >= 3") as consumer:
        with pytest.raises(UndecodedRecords) as caught:
            next(consumer)
        assert (caught.value.stream, caught.value.shard, caught.value.first, caught.value.last) == ("orders", 0, 1, 2)
        assert [record.value["id"] for record in consumer] == [3, 5]
        assert consumer.undecoded == 2
    with hub.consumer("orders", start="earliest", follow=False, where="id >= 3", on_bad="skip") as consumer:
        assert [record.value["id"] for record in consumer] == [3, 5]
        assert consumer.undecoded == 2
    with hub.consumer("orders", start="earliest", follow=False, where="id >= 3", on_bad="keep") as consumer:
        assert [record.undecoded for record in consumer] == [b"no json", b'{"id": "x"}', None, None]
    found = hub.find("orders", "id >= 3")
    assert (len(found), found.undecoded) == (2, 2)


def test_what_is_no_row_is_not_said_where_it_cannot_be_meant(hub):
    mixed(hub)
    with hub.consumer("orders", start="earliest", follow=False, where="_offset > 2 AND id >= 0") as consumer:
        assert [record.offset for record in consumer] == [3, 5]
        assert consumer.undecoded == 0


@pytest.mark.parametrize("where", [None, "_offset >= 0", "n <> 'x'"])
def test_rows_that_the_newest_schema_cannot_have_are_said_once_with_their_place(hub, where):
    hub.streams.create("orders", schema={"n": "int64", "note": "string"}, compatibility="none")
    with hub.producer() as producer:
        producer.send_many("orders", [{"n": 1, "note": "a"}, {"n": 2, "note": "b"}]).result(10)
        hub.streams.set_schema("orders", {"n": "string", "note": "string"})
        producer.send("orders", {"n": "three", "note": "c"}).result(10)
    with hub.consumer("orders", start="earliest", follow=False, where=where) as consumer:
        said = r"stream 'orders' shard 0: rows 0 to 1 .* column 'n' is int64 in these rows and cannot be read as string"
        with pytest.raises(IncompatibleSchema, match=said):
            next(consumer)
        assert [record.value["n"] for record in consumer] == ["three"]
    with hub.consumer("orders", start="earliest", follow=False, where=where, on_bad="skip") as consumer:
        assert [record.offset for record in consumer] == [2]
        assert consumer.undecoded == 2
    with hub.consumer("orders", start="earliest", follow=False, columns=["note"]) as consumer:
        assert [record.value["note"] for record in consumer] == ["a", "b", "c"]


def test_rows_that_match_and_cannot_be_read_are_left_out_with_their_reason(hub):
    hub.streams.create("orders", schema={"a": "int8", "o": "string"}, compatibility="none")
    with hub.producer() as producer:
        producer.send_batch("orders", pa.table({"a": pa.array([1, 2, 3], pa.int8()), "o": ["x", "y", "z"]}))
        producer.flush()
        hub.streams.set_schema("orders", {"a": "int16", "o": "int64"})
        producer.send("orders", {"a": 2, "o": 7}).result(10)
    found = hub.find("orders", "a = 2")
    # Those that do not match are not counted.
    assert ([record.value for record in found], found.undecoded) == ([{"a": 2, "o": 7}], 1)
    why = "row 1 cannot be read in the newest schema: column 'o' is string in these rows and cannot be read as int64"
    assert repr(found).endswith(f"ms; 1 left out: stream 'orders' shard 0: {why}>")
    assert isinstance(found.why_undecoded, IncompatibleSchema)
    narrow = hub.find("orders", "a = 2", columns=["a", "_offset"])
    assert ([record.value["_offset"] for record in narrow], narrow.undecoded, narrow.why_undecoded) == ([1, 3], 0, None)
    unknown = hub.find("orders", "o = 7")
    assert (len(unknown), unknown.undecoded) == (1, 3)  # nobody can say whether they match
    with hub.consumer("orders", start="earliest", follow=False, where="a = 2") as consumer:
        with pytest.raises(IncompatibleSchema, match=r"row 1 cannot .* column 'o'"):
            consumer.poll(10)
        assert [record.offset for record in consumer] == [3]


def test_what_is_no_row_leaves_with_columns(hub):
    mixed(hub)
    with hub.consumer("orders", start="earliest", follow=False, columns=["id"]) as consumer:
        assert next(consumer).value == {"id": 0}
        with pytest.raises(UndecodedRecords):
            next(consumer)
        assert [record.offset for record in consumer] == [3, 4, 5]


def test_a_predicate_on_bytes_meets_rows(hub):
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send("orders", b"{}", key=b"k")
        producer.flush()
        with hub.consumer("orders", start="earliest", where="key = 'k'") as consumer:
            assert consumer.poll(5).value == b"{}"
            hub.streams.set_schema("orders", SCHEMA)
            with hub.producer() as other:
                other.send("orders", {"id": 5, "country": "US", "amount": 2.5})
            with pytest.raises(InvalidPredicate, match=r"has version 1 of its schema.*'key'"):
                consumer.poll(5)
        with hub.consumer(
            "orders", start="earliest", where="_key IS NOT NULL OR TRUE", columns=["_offset"]
        ) as consumer:
            assert [consumer.poll(5).value["_offset"] for _ in range(2)] == [0, 1]


# A folder that another process writes.


def test_a_folder_is_read_in_the_same_way(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as remote:
        orders(remote)
        with mainstem.open(tmp_path / "data", read_only=True) as hub:
            assert read(hub, where="id = 77", columns=["amount"]) == [{"amount": 38.5}]
            found = hub.find("orders", "id = 4999")
            assert (len(found), found.opened, found.skipped) == (1, 1, 3)


def test_a_reader_of_a_folder_goes_over_to_a_newer_schema(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as remote:
        remote.streams.create("orders", schema=NARROW)
        with (
            mainstem.open(tmp_path / "data", read_only=True) as hub,
            hub.consumer("orders", start="earliest", where="n > 0") as consumer,
        ):
            for number, schema in ((1, NARROW), (1 << 40, WIDE)):
                remote.streams.set_schema("orders", schema)
                with remote.producer() as producer:
                    producer.send("orders", {"id": number, "n": number, "c": "c"})
                assert next(consumer).value["n"] == number


# What happens to servers and readers.


def test_a_killed_server_costs_a_filtered_reader_nothing(tmp_path):
    """It goes on behind what it had: no gap, nothing twice."""
    with ServerProcess(tmp_path / "data", "--hot-tail-bytes", "1MiB") as server, mainstem.connect(server.url) as hub:
        orders(hub, 20_000)
        options: dict[str, Any] = {"where": "id % 2 = 1", "columns": ["id"], "prefetch_bytes": 8 << 10}
        with hub.consumer("orders", start="earliest", follow=False, **options) as consumer:
            found = [next(consumer).value["id"] for _ in range(3_000)]
            server.kill()
            server.start()
            found += [record.value["id"] for record in consumer]
        assert found == list(range(1, 20_000, 2))


def test_a_filtered_reader_that_takes_nothing_holds_up_nobody(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        orders(hub, 40_000)
        with mainstem.connect(server.url) as other:
            stuck = other.consumer("orders", start="earliest", where="amount >= 0", prefetch_bytes=4 << 10)
            assert stuck.poll(5) is not None
            began = time.monotonic()
            assert len(read(hub, where="id < 100")) == 100
            assert len(read(hub)) == 40_000
            assert time.monotonic() - began < 10
            assert hub.statistics()["bytes_pushed"] > 0


_READ_AND_WAIT = """
    import sys, mainstem
    hub = mainstem.connect(sys.argv[1])
    with hub.consumer("orders", start="earliest", where="amount >= 0") as consumer:
        for number, record in enumerate(consumer):
            if number == 10:
                print("reading", flush=True)
            if number == int(sys.argv[2]) - 1:
                print("done", flush=True)
                break
"""


def test_a_stopped_reader_goes_on_where_it_was(tmp_path):
    """A process that is stopped takes nothing and holds nothing up; continued, it gets the rest."""
    count = 60_000
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        orders(hub, count, key=None)
        script = [sys.executable, "-c", textwrap.dedent(_READ_AND_WAIT), server.url, str(count)]
        with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
            reader.send_signal(signal.SIGSTOP)
            before = server.memory_bytes()
            assert len(read(hub, where="id >= 59900")) == 100
            assert server.memory_bytes() - before < 64 << 20
            reader.send_signal(signal.SIGCONT)
            assert reader.stdout.readline() == "done\n"


def test_a_predicate_that_rarely_matches_does_not_hold_the_loop(tmp_path):
    """While one reader has everything searched, another's calls are answered."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        orders(hub, 100_000)
        stop = threading.Event()

        def search() -> None:
            with mainstem.connect(server.url) as other:
                while not stop.is_set():
                    assert read(other, where="country LIKE '%Q%' OR amount * 2 <> id") == []

        thread = threading.Thread(target=search)
        thread.start()
        try:
            longest = 0.0
            for _ in range(50):
                began = time.monotonic()
                hub.streams.list()
                longest = max(longest, time.monotonic() - began)
        finally:
            stop.set()
            thread.join()
        assert longest < 1.0


def test_an_older_server_is_not_asked_for_rows(tmp_path, monkeypatch):
    """It would send everything."""
    with ServerProcess(tmp_path / "data") as server:
        monkeypatch.setattr("mainstem.hub.link.VERSION", 2)
        with mainstem.connect(server.url) as hub:
            hub.streams.create("raw")
            consumer = hub.consumer("raw", start="earliest", where="key = 'x'")
            with pytest.raises(mainstem.MainstemError, match="needs version 3: upgrade the server"):
                consumer.poll(5)


def test_a_row_that_outgrows_a_payload_is_made_by_its_reader(hub):
    """Next to the data it only has to be found."""
    old = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int8()))])
    hub.streams.create("s", schema=old)
    values = pa.array([[1], b"\x01" * 2_500_000, [2, 2]], pa.list_(pa.int8()))
    with hub.producer() as producer:
        producer.send_batch("s", pa.table([pa.array([1, 2, 3]), values], schema=old)).result(10)
    hub.streams.set_schema("s", pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int64()))]))
    for columns in (None, ["v"]):
        found = hub.find("s", "id > 1", columns=columns)
        assert found.to_arrow()["v"].type == pa.list_(pa.int64())
        assert found.to_arrow(metadata=True)["_offset"].to_pylist() == [1, 2]
        assert pc.list_value_length(found.to_arrow()["v"]).to_pylist() == [2_500_000, 2]


def test_json_of_which_little_becomes_much_comes_in_pieces(hub):
    """Empty objects from before the stream had a schema, every row of which takes much room."""
    count = 5_000
    hub.streams.create("sparse")
    with hub.producer() as producer:
        producer.send_many("sparse", [b"{}"] * count)
    hub.streams.set_schema("sparse", pa.schema([("id", pa.int64()), ("wide", pa.binary(60_000))]))
    with hub.consumer("sparse", start="earliest", follow=False) as consumer:
        offsets = [batch.to_arrow(metadata=True).column("_offset").to_pylist() for batch in consumer.batches()]
    assert len(offsets) > 1
    assert [offset for batch in offsets for offset in batch] == list(range(count))
    asked = {"where": "id IS NULL AND _offset IN (5, 4999)", "columns": ["id", "_offset"]}
    with hub.consumer("sparse", start="earliest", follow=False, **asked) as consumer:
        assert [record.offset for record in consumer] == [5, 4_999]


@pytest.mark.parametrize(
    "options",
    [{}, {"where": "id >= 0"}, {"columns": ["id"]}],
    ids=["all", "where", "columns"],
)
def test_what_was_pushed_before_a_reader_knew_a_newer_schema_is_not_lost(tmp_path, options):
    """A server is ahead of its reader by what fits the reader's prefetch: batches of newer schemas arrive before it has
    asked for them as such."""
    columns = [pa.field("id", pa.int64())]
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("s", schema=pa.schema(columns))
        with hub.consumer("s", start="earliest", **options) as consumer, hub.producer() as producer:
            producer.send("s", {"id": 0}).result()
            first = consumer.poll(10)
            assert first is not None
            ids = [first.value["id"]]
            for version in range(1, 4):
                columns.append(described(pa.field(f"c{version}", pa.int64()), default=version))
                hub.streams.set_schema("s", pa.schema(columns))
                producer.prepare("s")
                for number in range(10):
                    producer.send("s", {"id": 10 * version + number, f"c{version}": -number}).result()
            time.sleep(0.2)
            while (record := consumer.poll(1)) is not None:
                ids.append(record.value["id"])
                if not options.get("columns"):
                    version, number = divmod(record.value["id"], 10)
                    assert record.value[f"c{version}"] == -number
            assert ids == [0, *range(10, 40)]


def test_large_batches_from_disk_are_what_the_client_would_have_filtered(tmp_path):
    """Batches that are read ahead, some of which have no match: the same rows, at the same offsets, also for a reader
    that stops in the middle and goes on."""
    schema = pa.schema([("id", pa.string()), ("number", pa.int64()), ("percent", pa.int32())])
    random = np.random.default_rng(7)
    with mainstem.open(tmp_path) as hub, hub.producer() as producer:
        hub.streams.create("orders", schema=schema)
        for batch in range(12):
            percent = random.integers(0, 100, 10_000, dtype=np.int32)
            ids = random.integers(0, 1 << 62, 10_000).astype(str)
            if batch % 5 == 3:
                percent[percent == 7] = 8
            numbers = np.arange(batch * 10_000, (batch + 1) * 10_000)
            producer.send_batch("orders", pa.table([ids, numbers, percent], schema=schema))
            producer.flush()
    # Opened anew, nothing is in memory.
    with mainstem.open(tmp_path) as hub:
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            whole = pa.Table.from_batches([batch.to_arrow(metadata=True) for batch in consumer.batches()])
        wanted = whole.filter(pc.equal(whole["percent"], 7))
        found: list[pa.RecordBatch] = []
        cursor: Any = "earliest"
        for taken in (1, 4, 100):
            with hub.consumer("orders", start=cursor, follow=False, where="percent = 7") as consumer:
                found += [batch.to_arrow(metadata=True) for batch in itertools.islice(consumer.batches(), taken)]
                cursor = consumer.cursor
        assert pa.Table.from_batches(found).equals(wanted)


@pytest.mark.parametrize("asked", [{"columns": ["id"]}, {"where": "id > 0"}], ids=["columns", "where"])
def test_rows_of_a_schema_that_cannot_be_asked_for_come_when_it_can(hub, asked, monkeypatch):
    """A consumer meets a newer schema while nobody answers: it says so, and stands before the rows, not behind them."""
    hub.streams.create("rows", schema={"id": "int64"})
    with hub.producer() as producer, hub.consumer("rows", start="earliest", **asked) as consumer:
        producer.send("rows", {"id": 1}).result(10)
        assert consumer.poll(10).offset == 0
        hub.streams.set_schema("rows", {"id": "int64", "more": "int64"})
        for number in (2, 3):
            producer.send("rows", {"id": number, "more": number}).result(10)

        def unanswered(*_: object) -> None:
            raise mainstem.DeadlineExceeded("nobody answers")

        with monkeypatch.context() as outage:
            outage.setattr(type(hub._port), "call", unanswered)
            for _ in range(2):
                with pytest.raises(mainstem.DeadlineExceeded, match="nobody answers"):
                    consumer.poll(10)
                assert consumer.cursor.offsets == (1,)
        assert [consumer.poll(10).value["id"] for _ in range(2)] == [2, 3]


def test_a_batch_is_not_lost_when_its_schema_cannot_be_asked_for(hub, monkeypatch):
    """The server is away for a moment, just when a batch of a schema that the consumer does not know has come."""
    hub.streams.create("s", schema={"id": "int64"})
    with hub.producer() as producer, hub.consumer("s", start="earliest") as consumer:
        producer.send("s", {"id": 1}).result(10)
        assert consumer.poll(10).value == {"id": 1}
        hub.streams.set_schema("s", {"id": "int64", "name": "string"}, compatibility="none")
        producer.send("s", {"id": 2, "name": "two"}).result(10)

        def away(call, timeout=None):
            raise mainstem.ConnectionLost("away")

        with monkeypatch.context() as patch:
            patch.setattr(hub._port, "call", away)
            for _ in range(2):
                with pytest.raises(mainstem.ConnectionLost):
                    consumer.poll(10)
        assert consumer.cursor.offsets == (1,)
        assert consumer.poll(10).value == {"id": 2, "name": "two"}
