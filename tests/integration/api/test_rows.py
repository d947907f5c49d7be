"""Writing rows, over both hubs: what is taken, what is refused where, and what becomes of rows that do not fit."""

import json
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import (
    InvalidRecord,
    InvalidRequest,
    RecordTooLarge,
    SchemaMismatch,
    UnknownStream,
)
from mainstem.core.placement import shards_for
from mainstem.core.schema import described
from mainstem.hub.hub import Hub
from mainstem.hub.redrive import Redrive
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Producer
from mainstem.testing.clock import SimulatedClock
from tests.integration.api.conftest import read_all

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
    ]
)


@pytest.fixture
def orders(hub: Hub) -> str:
    hub.streams.create("orders", schema=SCHEMA)
    return "orders"


def rows(hub: Hub, stream: str) -> list[Any]:
    return [record.value for record in read_all(hub, stream)]


def row(number: int, customer: str | None = None, amount: float | None = None) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount}


def test_a_row_is_a_dict_or_json_and_comes_back_as_a_dict(hub, orders):
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    with hub.producer() as producer:
        places = [
            producer.send(orders, row(1, "Zoë", 9.5)).result(),
            producer.send(orders, {"id": 2}, key=b"k", headers={"trace": "1"}, timestamp=moment).result(),
            producer.send(orders, b'{"id": 3, "customer": "x"}').result(),
            producer.send(orders, '{"id": 4, "amount": 1}').result(),
        ]
    assert places == [(0, offset) for offset in range(4)]
    records = read_all(hub, orders)
    assert [record.value for record in records] == [row(1, "Zoë", 9.5), row(2), row(3, "x"), row(4, None, 1.0)]
    assert [record.key for record in records] == [None, b"k", None, None]
    assert records[1].headers == {"trace": b"1"}
    assert records[1].timestamp == moment


def test_many_rows_by_the_fast_way_keep_their_order(hub, orders):
    with hub.producer(batch_bytes=8 << 10) as producer:
        acks = [producer.send(orders, row(number, f"c{number % 7}", number / 2)) for number in range(3_000)]
        assert [ack.result() for ack in acks] == [(0, offset) for offset in range(3_000)]
    assert rows(hub, orders) == [row(number, f"c{number % 7}", number / 2) for number in range(3_000)]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"id": "x"}, "id"),
        ({"id": 1, "custmer": "x"}, "custmer"),
        ({"customer": "x"}, "id"),
        ({"id": 1, "amount": "much"}, "amount"),
        (b'{"id": 1, "id": 2}', "id"),
        (b"not json", ""),
        (17, ""),
    ],
)
def test_a_row_that_does_not_fit_is_refused_in_the_call(hub, orders, value, path):
    with hub.producer() as producer:
        producer.send(orders, row(1))
        with pytest.raises(SchemaMismatch, match="stream 'orders'") as caught:
            producer.send(orders, value)
        assert caught.value.path == path
        producer.send(orders, row(2)).result()
    assert rows(hub, orders) == [row(1), row(2)]


def test_a_dict_needs_a_schema_and_the_error_says_how_to_get_one(hub):
    hub.streams.create("plain")
    with hub.producer() as producer:
        with pytest.raises(InvalidRecord, match=r"hub\.streams\.set_schema\('plain', \.\.\.\)"):
            producer.send("plain", {"id": 1})
        with pytest.raises(InvalidRecord, match="bytes"):
            producer.send("plain", "text")
        # The producer finds out by itself once somebody has given it one.
        hub.streams.set_schema("plain", SCHEMA)
        producer.send("plain", {"id": 1}).result()
    assert rows(hub, "plain") == [row(1)]


def test_the_key_is_made_of_columns_and_places_the_row(hub):
    hub.streams.create("keyed", schema=SCHEMA, key="customer", shards=4)
    with hub.producer() as producer:
        places = {name: producer.send("keyed", row(1, name)).result()[0] for name in "abcdefgh"}
        assert places == {name: shards_for([name.encode()], 4, "crc32", 0)[0] for name in "abcdefgh"}
        with pytest.raises(InvalidRecord, match="made of customer, and the one that is given is another"):
            producer.send("keyed", row(1, "a"), key=b"b")
        for name in "abcdefgh":
            assert producer.send("keyed", b'{"id": 2, "customer": "%s"}' % name.encode()).result()[0] == places[name]
        table = pa.table({"id": [3] * 8, "customer": list("abcdefgh")})
        assert sum(count for _, _, count in producer.send_batch("keyed", table).result()) == 8
    for record in read_all(hub, "keyed"):
        assert record.key == record.value["customer"].encode()
        assert record.shard == places[record.value["customer"]]


def test_several_key_columns(hub):
    hub.streams.create("keyed", schema=SCHEMA, key=("customer", "id"), shards=3)
    with hub.producer() as producer:
        shard, _ = producer.send("keyed", row(7, "ab")).result()
        assert producer.send("keyed", None, key=("ab", 7)).result()[0] == shard
        with pytest.raises(InvalidRecord, match="customer, id"):
            producer.send("keyed", None, key=("ab",))
    first, second = read_all(hub, "keyed")
    assert first.key == second.key == b"\0\0\0\2ab\0\0\0\x017"
    assert second.value is None


def test_tombstones_keep_their_place_among_rows_of_their_key(hub):
    hub.streams.create("keyed", schema=SCHEMA, key="customer", shards=2)
    with hub.producer() as producer:
        acks = []
        for number in range(50):
            acks += [producer.send("keyed", row(number, "a")), producer.send("keyed", None, key="a")]
        places = [ack.result() for ack in acks]
        with pytest.raises(InvalidRecord, match="tombstone"):
            producer.send("keyed", None)
    assert [offset for _, offset in places] == list(range(100))
    values = [record.value for record in read_all(hub, "keyed")]
    assert values == [value for number in range(50) for value in (row(number, "a"), None)]


def test_a_compacted_stream_wants_a_key_in_every_row(hub):
    hub.streams.create("state", schema=SCHEMA, key="customer", cleanup="compact")
    with hub.producer() as producer:
        producer.send("state", row(1, "a")).result()
        with pytest.raises(InvalidRecord, match="needs a key"):
            producer.send("state", row(1))
        with pytest.raises(InvalidRecord, match="needs a key"):
            producer.send_batch("state", pa.table({"id": [1]}))
        with pytest.raises(InvalidRecord, match="needs a key"):
            producer.send_many("state", [row(1)])


def test_a_key_made_of_columns_has_the_limit_of_a_key(hub):
    hub.streams.create("keyed", schema=SCHEMA, key="customer")
    with hub.producer() as producer:
        for value in (row(1, "x" * 70_000), b'{"id": 1, "customer": "%s"}' % (b"x" * 70_000)):
            with pytest.raises(RecordTooLarge, match="key"):
                producer.send("keyed", value)
        with pytest.raises(RecordTooLarge, match="key"):
            producer.send_batch("keyed", pa.table({"id": [1], "customer": ["x" * 70_000]}))


def test_tables_by_the_names_of_their_columns(hub, orders):
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    table = pa.table(
        {
            "amount": [1, 2],
            "id": pa.array([1, 2], pa.int32()),
            "_key": ["a", None],
            "_timestamp": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "_headers": pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary())),
            "_offset": [7, 8],
        }
    )
    with hub.producer() as producer:
        assert producer.send_batch(orders, table).result() == [(0, 0, 2)]
        assert producer.send_batch(orders, pd.DataFrame({"id": [3], "customer": ["c"]})).result() == [(0, 2, 1)]
        for bad, path in (
            ({"id": ["x"]}, "id"),
            ({"id": [1], "other": [1]}, "other"),
            ({"customer": ["x"]}, "id"),
            ({"id": pa.array([None, 1])}, "id"),
        ):
            with pytest.raises(SchemaMismatch, match="stream 'orders'") as caught:
                producer.send_batch(orders, pa.table(bad))
            assert caught.value.path == path
    first, second, third = read_all(hub, orders)
    assert (first.value, first.key, first.timestamp, first.headers) == (row(1, None, 1.0), b"a", moment, {"h": b"1"})
    assert (second.value, second.key, second.headers) == (row(2, None, 2.0), None, None)
    assert third.value == row(3, "c")


def test_what_was_read_as_a_table_can_be_sent_as_one(hub):
    hub.streams.create("keyed", schema=SCHEMA, key="customer", shards=2)
    hub.streams.create("copy", schema=SCHEMA, key="customer", shards=3)
    with hub.producer() as producer:
        producer.send_many("keyed", [row(number, f"c{number}") for number in range(20)]).result()
        with hub.consumer("keyed", start="earliest", follow=False) as consumer:
            for batch in consumer.batches():
                producer.send_batch("copy", batch.to_arrow(metadata=True)).result()
        with pytest.raises(InvalidRecord, match="'_key' has another"):
            producer.send_batch("copy", pa.table({"id": [1], "customer": ["a"], "_key": ["b"]}))
    by_id = {record.value["id"]: record for record in read_all(hub, "copy")}
    assert sorted(by_id) == list(range(20))
    assert all(record.key == b"c%d" % number for number, record in by_id.items())


def test_an_atomic_table_is_one_batch_of_one_shard(hub):
    hub.streams.create("keyed", schema=SCHEMA, key="customer", shards=8)
    with hub.producer() as producer:
        assert (
            len(producer.send_batch("keyed", pa.table({"id": [1, 2], "customer": ["a", "a"]}), atomic=True).result())
            == 1
        )
        with pytest.raises(InvalidRequest, match="one shard"):
            producer.send_batch(
                "keyed", pa.table({"id": range(50), "customer": list(map(str, range(50)))}), atomic=True
            )


def test_a_table_can_give_a_stream_its_schema(hub):
    hub.streams.create("fresh")
    with hub.producer() as producer:
        producer.send_batch("fresh", pa.table({"a": [1], "b": ["x"], "_key": [b"k"]}), infer=True).result()
        producer.send_batch("fresh", pa.table({"a": [2], "b": ["y"]}), infer=True).result()
        with pytest.raises(SchemaMismatch):
            producer.send_batch("fresh", pa.table({"c": [1]}), infer=True)
    assert rows(hub, "fresh") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert len(hub.streams.schemas("fresh")) == 1


def test_send_many_takes_dicts_json_and_tombstones(hub):
    hub.streams.create("keyed", schema=SCHEMA, key="customer")
    with hub.producer() as producer:
        ack = producer.send_many(
            "keyed", [row(1, "a"), b'{"id": 2, "customer": "b"}', None, row(3, "a")], keys=[None, None, "a", None]
        )
        assert ack.result() == [(0, 0, 2), (0, 2, 1), (0, 3, 1)]
        with pytest.raises(SchemaMismatch, match="row 1: id must be int64") as caught:
            producer.send_many("keyed", [row(1), {"id": "x"}, {"id": None}])
        assert caught.value.path == "id"
        with pytest.raises(SchemaMismatch, match="row 700"):
            producer.send_many("keyed", [b'{"id": 1}'] * 700 + [b"{}"])
    assert rows(hub, "keyed") == [row(1, "a"), row(2, "b"), None, row(3, "a")]


def test_a_producer_goes_on_with_the_schema_it_knows(hub, orders):
    newer = SCHEMA.append(described(pa.field("country", pa.string()), default="DE"))
    with hub.producer() as producer:
        producer.send(orders, row(1)).result()
        hub.streams.set_schema(orders, newer)
        producer.send(orders, row(2)).result()
        producer.prepare(orders)
        producer.send(orders, {**row(3), "country": "FR"}).result()
        producer.send(orders, row(4)).result()
    assert [value["country"] for value in rows(hub, orders)] == ["DE", "DE", "FR", "DE"]


@pytest.mark.parametrize("on_bad", ["raise", "dead_letter"])
@pytest.mark.parametrize("way", ["send", "send_json", "send_many", "send_batch"])
def test_a_row_that_fits_a_newer_schema_is_taken_by_a_producer_that_knows_an_older_one(hub, orders, way, on_bad):
    new = {**row(2), "country": "FR"}
    with hub.producer(on_bad=on_bad) as producer:
        producer.send(orders, row(1)).result()
        hub.streams.set_schema(orders, SCHEMA.append(pa.field("country", pa.string())))
        if way == "send":
            producer.send(orders, new).result()
        elif way == "send_json":
            producer.send(orders, json.dumps(new)).result()
        elif way == "send_many":
            producer.send_many(orders, [new]).result()
        else:
            producer.send_batch(orders, pa.Table.from_pylist([new])).result()
        producer.send(orders, {**row(3), "country": "IT"}).result()
    assert [value["country"] for value in rows(hub, orders)] == [None, "FR", "IT"]
    assert [stream.name for stream in hub.streams.list()] == [orders]


def test_a_row_that_fits_no_schema_leaves_a_producer_with_the_one_it_knows(hub):
    hub.streams.create("orders", schema={"id": "int", "old": "text"})
    with hub.producer() as producer:
        producer.send("orders", {"id": 1, "old": "a"}).result()
        hub.streams.set_schema("orders", {"id": "int"})
        for send in (producer.send, lambda name, value: producer.send_many(name, [value])):
            with pytest.raises(SchemaMismatch, match="id must be int64"):
                send("orders", {"id": "x", "old": "a"})
        with pytest.raises(SchemaMismatch, match="other is not a field"):
            producer.send_batch("orders", pa.table({"id": [1], "other": [1]}))
        producer.send("orders", {"id": 2, "old": "b"}).result()
    assert rows(hub, "orders") == [{"id": 1}, {"id": 2}]


def test_json_from_before_the_schema_is_a_row_without_fields_that_were_dropped(hub):
    """Its bytes stay, so a field that comes back brings its values back."""
    hub.streams.create("orders")
    with hub.producer() as producer:
        producer.send_many("orders", [b'{"id": %d, "old": "a"}' % number for number in range(100)]).result()
    hub.streams.set_schema("orders", {"id": "int", "old": "text"})
    assert rows(hub, "orders")[7] == {"id": 7, "old": "a"}
    hub.streams.set_schema("orders", {"id": "int"})
    assert rows(hub, "orders") == [{"id": number} for number in range(100)]
    assert [record.value for record in hub.find("orders", "id = 99")] == [{"id": 99}]
    with hub.producer() as producer, pytest.raises(SchemaMismatch, match="old is not a field"):
        producer.send("orders", b'{"id": 100, "old": "a"}')
    hub.streams.set_schema("orders", {"id": "int", "older": {"type": "text", "aliases": ["old"]}})
    assert rows(hub, "orders")[99] == {"id": 99, "older": "a"}


def test_a_name_that_comes_back_and_is_never_null_finds_its_default_in_nulls_from_before(hub):
    hub.streams.create("orders", schema={"id": "int", "n": "int8"})
    with hub.producer() as producer:
        producer.send_many("orders", [{"id": 1, "n": None}, {"id": 2, "n": 7}]).result()
    hub.streams.set_schema("orders", {"id": "int"})
    back = {"type": "float32", "nullable": False, "default": 0.5}
    hub.streams.set_schema("orders", {"id": "int", "n": back})
    assert rows(hub, "orders") == [{"id": 1, "n": 0.5}, {"id": 2, "n": 7.0}]
    for where, ids in (("n = 0.5", [1]), ("n IS NULL", []), ("n > 1", [2])):
        with hub.consumer("orders", start="earliest", follow=False, where=where) as consumer:
            assert [record.value["id"] for record in consumer] == ids


def test_a_flood_of_rows_that_do_not_fit_looks_for_a_newer_schema_once_a_second(tmp_path, monkeypatch):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders", schema=SCHEMA)
        clock = SimulatedClock()
        producer = Producer(hub._port, ProducerOptions(), clock)
        producer.send("orders", row(1))
        calls: list[Any] = []
        call = hub._port.call

        def counted(what: Any, timeout: float | None = None) -> Any:
            calls.append(what)
            return call(what, timeout)

        monkeypatch.setattr(hub._port, "call", counted)
        for count in (1, 2):
            for _ in range(50):
                with pytest.raises(SchemaMismatch):
                    producer.send("orders", {"id": "x"})
            assert len(calls) == count
            clock.advance(1.1)


def test_a_callback_does_not_look_for_a_newer_schema(hub, orders):
    seen: list[Exception] = []
    with hub.producer() as producer:
        producer.send(orders, row(1)).result()
        hub.streams.set_schema(orders, SCHEMA.append(pa.field("country", pa.string())))

        def send_again(ack: Any) -> None:
            try:
                producer.send(orders, {**row(2), "country": "FR"})
            except Exception as error:
                seen.append(error)

        producer.send(orders, row(1)).add_done_callback(send_again)
        producer.flush()
    assert [type(error) for error in seen] == [SchemaMismatch]


def test_records_from_before_the_schema_are_rows_if_they_are_json(hub):
    hub.streams.create("grown")
    with hub.producer() as producer:
        producer.send("grown", b'{"id": 1, "customer": "a"}').result()
        hub.streams.set_schema("grown", SCHEMA)
        # It knows of no schema: the server looks at what comes.
        producer.send("grown", b'{"id": 2}').result()
    assert rows(hub, "grown") == [row(1, "a"), row(2)]


def test_a_row_over_the_limit_is_refused(hub, orders):
    with hub.producer() as producer, pytest.raises(RecordTooLarge):
        producer.send(orders, row(1, "x" * (9 << 20)))


# Dead letters


def test_rows_that_do_not_fit_are_kept_with_the_reason(hub, orders):
    with hub.producer(on_bad="dead_letter") as producer:
        good = producer.send(orders, row(1))
        dead = producer.send(orders, {"id": "x", "when": datetime(2026, 1, 1, tzinfo=UTC)}, headers={"h": "1"}, key="k")
        raw = producer.send(orders, b"\xff")
        assert (good.result(), good.stream) == ((0, 0), "orders")
        assert (dead.result(), dead.stream) == ((0, 0), "orders.dead")
        assert (raw.result(), raw.stream) == ((0, 1), "orders.dead")
        many = producer.send_many(orders, [row(2), {"id": None}, row(3)])
        assert many.result() == [(0, 1, 2)]
        assert [ack.result() for ack in many.dead] == [(0, 2)]
    assert rows(hub, orders) == [row(1), row(2), row(3)]
    first, second, third = read_all(hub, "orders.dead")
    assert json.loads(first.value) == {"id": "x", "when": "2026-01-01T00:00:00Z"}
    assert first.key == b"k"
    said = {name: text.decode() for name, text in (first.headers or {}).items()}
    assert said.pop("dead.time").startswith("20")
    assert said == {
        "h": "1",
        "dead.error": "when is not a field of the schema",
        "dead.path": "when",
        "dead.stream": "orders",
        "dead.schema": "1",
    }
    assert second.value == b"\xff"
    assert (third.headers or {})["dead.path"] == b"id"
    assert hub.streams.get("orders.dead").retention_us == 30 * 86_400 * 1_000_000


def test_tables_do_not_become_dead_letters(hub, orders):
    with hub.producer(on_bad="dead_letter") as producer, pytest.raises(SchemaMismatch):
        producer.send_batch(orders, pa.table({"id": ["x"]}))


def test_a_row_that_cannot_even_be_a_dead_letter_is_refused(hub):
    name = "s" * 249
    hub.streams.create(name, schema=SCHEMA)
    with hub.producer(on_bad="dead_letter") as producer:
        with pytest.raises(SchemaMismatch, match="cannot be kept as a dead letter"):
            producer.send(name, {"id": "x"})
        producer.send(name, row(1)).result()


def test_why_a_row_is_bad_is_said_also_where_dead_letters_cannot_be_kept(hub):
    hub.streams.create("q", schema=SCHEMA)
    hub.streams.create("q.dead", schema={"z": "int64 not null"})
    why = r"'q': id must be int64.*; it cannot be kept as a dead letter: stream 'q.dead' has a schema of its own"
    with hub.producer(on_bad="dead_letter") as producer, pytest.raises(SchemaMismatch, match=why) as caught:
        producer.send("q", {"id": "x"}).result(10)
    assert caught.value.path == "id"


def kill_letters(hub: Hub, stream: str, *bad: Any) -> None:
    with hub.producer(on_bad="dead_letter") as producer:
        for value in bad:
            producer.send(stream, value, headers={"h": "1"})


def test_redrive_puts_back_once_what_fits_by_now(hub, orders):
    kill_letters(hub, orders, {"id": 1, "country": "DE"}, {"id": "x"}, {"id": 2, "country": "FR"})
    report = hub.redrive(orders)
    assert (report.redriven, dict(report.fitting), sum(report.failing.values())) == (0, {}, 3)
    hub.streams.set_schema(orders, SCHEMA.append(pa.field("country", pa.string())))
    report = hub.redrive(orders)
    assert dict(report.fitting) == {"country is not a field of the schema": 2}
    assert dict(report.failing) == {"id must be int64, not text 'x'": 1}
    assert rows(hub, orders) == []
    assert hub.redrive(orders, dry_run=False).redriven == 2
    again = hub.redrive(orders, dry_run=False)
    assert (again.redriven, again.earlier) == (0, 2)
    records = read_all(hub, orders)
    assert [record.value["country"] for record in records] == ["DE", "FR"]
    assert [set(record.headers or ()) for record in records] == [{"h", "redriven_from"}] * 2


def test_redrive_takes_corrected_rows(hub, orders):
    kill_letters(hub, orders, {"id": "x"}, {"id": "y"})
    report = hub.redrive(orders, dry_run=False, corrections={1: {"id": 8}, 9: {"id": 9}})
    assert (report.redriven, report.unused, sum(report.failing.values())) == (1, [9], 1)
    assert rows(hub, orders) == [row(8)]


@pytest.mark.parametrize("cut", ["redriving", "redriven"])
def test_a_redrive_that_was_cut_short_repeats_nothing(hub, orders, cut, monkeypatch):
    """Killed after the page was begun but before anything was sent, and after everything was sent but not noted."""
    kill_letters(hub, orders, {"id": 1, "country": "DE"}, {"id": 2, "country": "FR"})
    hub.streams.set_schema(orders, SCHEMA.append(pa.field("country", pa.string())))
    note = Redrive._note

    def cut_short(self: Redrive, kind: str, what: Any) -> None:
        if kind == "redriving" or cut == "redriving":
            note(self, kind, what)
        if kind == cut:
            raise KeyboardInterrupt

    monkeypatch.setattr(Redrive, "_note", cut_short)
    with pytest.raises(KeyboardInterrupt):
        hub.redrive(orders, dry_run=False)
    monkeypatch.undo()
    missing = 0 if cut == "redriven" else 2
    assert sum(hub.redrive(orders).fitting.values()) == missing
    assert hub.redrive(orders, dry_run=False).redriven == missing
    assert hub.redrive(orders, dry_run=False).redriven == 0
    assert [value["id"] for value in rows(hub, orders)] == [1, 2]


@pytest.mark.parametrize("said", ["redriving", "redriven"])
def test_headers_with_the_names_of_ours_stay_out_of_a_letter(hub, orders, said):
    with hub.producer(on_bad="dead_letter") as producer:
        producer.send(orders, {"id": "x"}, headers={"h": "1", "dead.kind": said, "dead.error": "mine"})
    (letter,) = read_all(hub, "orders.dead")
    assert "dead.kind" not in (letter.headers or {})
    assert (letter.headers or {})["dead.error"] == b"id must be int64, not text 'x'"
    assert hub.redrive(orders, dry_run=False, corrections={0: {"id": 1}}).redriven == 1
    assert rows(hub, orders) == [row(1)]


@pytest.mark.parametrize(
    "note",
    [None, b"", b"{", b"[]", b'{"page": 1}', b'{"page": "0", "ends": "nowhere"}', b'{"page": "0", "offsets": ["x"]}'],
)
@pytest.mark.parametrize("said", ["redriving", "redriven", "\N{BLACK HEART SUIT}"])
def test_redrive_passes_over_notes_that_are_none(hub, orders, said, note):
    """Anybody may write to the dead stream; letters of older producers may have such a header, too."""
    kill_letters(hub, orders, {"id": "x"})
    with hub.producer() as producer:
        producer.send("orders.dead", note, headers={"dead.kind": said})
        producer.send("orders.dead", b'{"id": 2}', headers={"dead.kind": said, "dead.error": "it did not fit"})
    assert dict(hub.redrive(orders).fitting) == {"it did not fit": 1}
    assert hub.redrive(orders, dry_run=False, corrections={0: {"id": 1}}).redriven == 2
    assert hub.redrive(orders, dry_run=False).redriven == 0
    assert rows(hub, orders) == [row(1), row(2)]
    assert not any("dead.kind" in (record.headers or {}) for record in read_all(hub, orders))


@pytest.mark.parametrize("ends", ["nowhere", str(mainstem.Cursor("0" * 32, 1, (0,)))])
def test_redrive_passes_over_origins_that_are_none(hub, orders, ends):
    """While it looks for what a run that was cut short has put back: everywhere, if nobody knows from where on."""
    kill_letters(hub, orders, {"id": "x"}, {"id": "y"})
    corrections: dict[int, Any] = {0: {"id": 1}, 1: {"id": 2}}
    uuid = hub.streams.get("orders.dead").uuid
    with hub.producer() as producer:
        producer.send(
            "orders.dead", json.dumps({"page": "0", "ends": ends}).encode(), headers={"dead.kind": "redriving"}
        )
        for number, text in enumerate(("x", "", "-1", "0x0", "1_0", "9" * 5000, "\N{ARABIC-INDIC DIGIT ONE}", "0")):
            producer.send(orders, row(number), headers={"redriven_from": f"{uuid}:{text}"})
    report = hub.redrive(orders, dry_run=False, corrections=corrections)
    assert (report.earlier, report.redriven, report.unused) == (1, 1, [0])


def test_a_letter_that_fits_the_schema_but_not_the_stream_stays_dead(hub):
    hub.streams.create("kept", schema=SCHEMA, key="customer", cleanup="compact")
    kill_letters(hub, "kept", {"id": "a"}, {"id": "b"}, {"id": "c"})
    corrections: dict[int, Any] = {0: row(1, "x" * 70_000), 1: row(2), 2: row(3, "c")}
    for dry_run in (True, False):
        report = hub.redrive("kept", dry_run=dry_run, corrections=corrections)
        assert sorted(report.failing.items()) == [
            ("stream 'kept' is compacted by key: every record needs a key", 1),
            ("stream 'kept': a key of 70000 bytes; at most 65536 are allowed", 1),
        ]
        assert (sum(report.fitting.values()), report.redriven) == (1, 0 if dry_run else 1)
    assert rows(hub, "kept") == [row(3, "c")]


def test_redrive_needs_a_schema_and_dead_letters(hub, orders):
    hub.streams.create("plain")
    with pytest.raises(InvalidRequest, match="has no schema"):
        hub.redrive("plain")
    with pytest.raises(UnknownStream, match="has no dead letters"):
        hub.redrive(orders)


def test_the_choice_of_what_happens_to_bad_rows_is_checked(hub):
    with pytest.raises(mainstem.InvalidSetting, match="on_bad is one of 'raise', 'dead_letter'"):
        hub.producer(on_bad="ignore")


def test_rows_follow_a_stream_that_gets_more_shards(hub):
    hub.streams.create("keyed", schema=SCHEMA, key="customer", shards=2)
    with hub.producer() as producer:
        for number in range(400):
            if number == 200:
                hub.streams.alter("keyed", shards=5)
            producer.send("keyed", row(number, f"c{number % 10}"))
        producer.send("keyed", None, key="c3")
    by_key: dict[bytes | None, list[Any]] = {}
    for record in read_all(hub, "keyed"):
        by_key.setdefault(record.key, []).append(None if record.value is None else record.value["id"])
    assert by_key[b"c3"] == [*range(3, 400, 10), None]
    assert all(by_key[b"c%d" % key] == list(range(key, 400, 10)) for key in range(10) if key != 3)


def test_rows_without_acknowledgements(hub, orders):
    with hub.producer(acks="none", on_bad="dead_letter") as producer:
        for number in range(100):
            producer.send(orders, row(number))
        producer.send(orders, {"id": "x"})
    assert sorted(value["id"] for value in wait_for(hub, orders, 100)) == list(range(100))
    assert len(wait_for(hub, "orders.dead", 1)) == 1


def wait_for(hub: Hub, stream: str, count: int) -> list[Any]:
    with hub.consumer(stream, start="earliest") as consumer:
        return [record.value for _, record in zip(range(count), consumer, strict=False)]


def test_bytes_in_a_dead_letter_come_back_as_they_were(hub):
    hub.streams.create("raw", schema={"id": "int", "b": "bytes"})
    with hub.producer(on_bad="dead_letter") as producer:
        producer.send("raw", {"id": 1, "b": b"\xff\x00", "later": 0.5}).result()
    hub.streams.set_schema("raw", {"id": "int", "b": "bytes", "later": "float"})
    assert hub.redrive("raw", dry_run=False).redriven == 1
    assert rows(hub, "raw") == [{"id": 1, "b": b"\xff\x00", "later": 0.5}]


def test_a_letter_that_only_shows_its_row_is_not_put_back_but_by_a_correction(hub, orders):
    class Number:
        def __repr__(self) -> str:
            return "7"

    with hub.producer(on_bad="dead_letter") as producer:
        # Its repr is JSON, and would fit.
        producer.send(orders, {"it's": Number()}).result()
    hub.streams.set_schema(orders, SCHEMA.append(pa.field("it's", pa.int64())).remove(0))
    (letter,) = read_all(hub, "orders.dead")
    assert letter.value == b'{"it\'s": 7}'
    assert (letter.headers or {})["dead.unreadable"] == b"there is no JSON for Number"
    report = hub.redrive(orders, dry_run=False)
    assert (report.redriven, sum(report.failing.values())) == (0, 1)
    assert hub.redrive(orders, dry_run=False, corrections={0: {"it's": 8}}).redriven == 1
    (put_back,) = read_all(hub, orders)
    assert put_back.value == {"customer": None, "amount": None, "it's": 8}
    assert "dead.unreadable" not in (put_back.headers or {})


@pytest.mark.parametrize(
    ("columns", "key", "said"),
    [
        (("customer", "id"), "x", "made of customer, id, not of 1 value"),
        (("customer", "id"), b"x", "made of customer, id"),
        (("customer", "id"), ("a", "b"), "key column 'id' is int64 and cannot be 'b'"),
        (("customer", "id"), b"\0\0\0\x01a\0\0\0\x01b", "key column 'id' is int64 and cannot be 'b'"),
        ("id", "abc", "key column 'id' is int64 and cannot be 'abc'"),
        ("id", b"007", "key column 'id' is int64 and cannot be '007'"),
        ("id", 2**70, "column 'id' has no number of 71 bits"),
        pytest.param("id", 10**5_000, "column 'id' has no number of", id="huge"),
        ("id", 2**63, "key column 'id' is int64 and cannot be '9223372036854775808'"),
        ("customer", b"\xff", "key column 'customer' is string and cannot be"),
    ],
)
def test_a_tombstone_whose_key_no_row_can_have_is_refused(hub, columns, key, said):
    hub.streams.create("keyed", schema=SCHEMA, key=columns)
    with hub.producer() as producer:
        for send in (producer.send, lambda name, value, key: producer.send_many(name, [value], [key])):
            with pytest.raises((SchemaMismatch, InvalidRecord), match=said):
                send("keyed", None, key=key)
    assert read_all(hub, "keyed") == []


@pytest.mark.parametrize(
    ("columns", "keys", "stored"),
    [
        ("id", [7, "7", b"7", (7,)], b"7"),
        ("id", [-(2**63), str(-(2**63))], b"-9223372036854775808"),
        ("customer", ["Zoë", "Zoë".encode()], "Zoë".encode()),
        (("customer", "id"), [("a", 7), b"\0\0\0\x01a\0\0\0\x017"], b"\0\0\0\x01a\0\0\0\x017"),
        (("customer", "id"), [("", 0)], b"\0\0\0\0\0\0\0\x010"),
    ],
)
def test_a_tombstone_names_its_row_in_any_way_that_its_key_is_written(hub, columns, keys, stored):
    hub.streams.create("keyed", schema=SCHEMA, key=columns)
    with hub.producer() as producer:
        for key in keys:
            producer.send("keyed", None, key=key).result()
    assert [record.key for record in read_all(hub, "keyed")] == [stored] * len(keys)
