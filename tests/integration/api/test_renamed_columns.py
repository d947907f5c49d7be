"""Columns of the key and of the index get another name, or go: rows from before and after are of one stream."""

import pytest

from mainstem.core.errors import IncompatibleSchema, InvalidSchema

FIRST = {"id": "int64", "city": "string", "note": "string"}
SECOND = {
    "number": {"type": "int64", "aliases": ["id"]},
    "town": {"type": "string", "aliases": ["city"]},
    "note": "string",
}
THIRD = {
    "order": {"type": "int64", "aliases": ["number", "id"]},
    "town": {"type": "string", "aliases": ["city"]},
    "note": "string",
}


def write(hub, *rows):
    with hub.producer() as producer:
        for row in rows:
            producer.send("orders", row).result(10)


def test_rows_from_before_and_after_a_rename_are_found_by_one_name(hub):
    hub.streams.create("orders", schema=FIRST, key="id", index="city")
    write(hub, {"id": 1, "city": "Ulm", "note": "a"}, {"id": 2, "city": "Rom", "note": "b"})
    changed = hub.streams.set_schema("orders", SECOND)
    assert (changed.key, changed.index) == (("number",), ("town",))
    write(hub, {"number": 1, "town": "Ulm", "note": "c"})
    hub.streams.set_schema("orders", THIRD)
    assert hub.streams.get("orders").key == ("order",)
    write(hub, {"order": 1, "town": "Rom", "note": "d"})
    assert [record.value["note"] for record in hub.find("orders", '"order" = 1')] == ["a", "c", "d"]
    assert [record.value["note"] for record in hub.find("orders", "_key = '1'")] == ["a", "c", "d"]
    assert [record.value["note"] for record in hub.find("orders", "town = 'Rom'")] == ["b", "d"]
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert [record.key for record in consumer] == [b"1", b"2", b"1", b"1"]
    assert hub.streams.erase("orders", b"1").records == 3
    assert [record.value["note"] for record in hub.find("orders", "_offset >= 0")] == ["b"]


def test_large_batches_of_every_name_have_statistics_by_which_they_are_passed_over(hub):
    hub.streams.create("orders", schema=FIRST, key="id", index="city")
    for version, (schema, names) in enumerate([(FIRST, ("id", "city")), (SECOND, ("number", "town"))]):
        hub.streams.set_schema("orders", schema)
        with hub.producer() as producer:
            rows = [{names[0]: version * 5000 + n, names[1]: f"t{version}{n}", "note": "n"} for n in range(5000)]
            producer.send_many("orders", rows).result(10)
    for where in ("number = 7500", "town = 't12500'", "number = 2500", "town = 't02500'", "_key = '2500'"):
        found = hub.find("orders", where)
        assert (len(found), found.opened) == (1, 1), where


def test_writers_and_readers_from_before_a_rename_go_on(hub):
    hub.streams.create("orders", schema=FIRST, key="id", cleanup="compact")
    with hub.producer() as producer, hub.consumer("orders", start="earliest", where="_key = '1'") as consumer:
        producer.send("orders", {"id": 1, "city": "Ulm", "note": "a"}).result(10)
        assert consumer.poll(10).value["id"] == 1
        hub.streams.set_schema("orders", SECOND)
        producer.send("orders", {"id": 1, "city": "Ulm", "note": "b"}).result(10)
        producer.send("orders", None, key=1).result(10)
        found = consumer.poll(10)
        assert (found.key, found.value["note"]) == (b"1", "b")
        assert consumer.poll(10).value is None
    assert hub.streams.create("orders", schema=FIRST, key="id", cleanup="compact", exist_ok=True).schema_version == 2


@pytest.mark.parametrize("mode", ["backward", "forward", "full", "none"])
def test_a_column_of_the_key_stays(hub, mode):
    hub.streams.create("orders", schema=FIRST, key=["id", "city"], index="note", compatibility=mode)
    before = hub.streams.get("orders")
    for dry_run in (True, False):
        with pytest.raises(IncompatibleSchema, match="'city' is part of the key of stream 'orders' and cannot go"):
            hub.streams.set_schema("orders", {"id": "int64", "note": "string"}, dry_run=dry_run)
        with pytest.raises(InvalidSchema, match="'id'"):
            hub.streams.set_schema("orders", FIRST | {"id": "float64"}, dry_run=dry_run)
    assert hub.streams.get("orders") == before


def test_every_name_of_a_key_stays_known(hub):
    hub.streams.create("orders", schema=FIRST, key="id", compatibility="none")
    hub.streams.set_schema("orders", SECOND)
    with pytest.raises(IncompatibleSchema, match="rows of version 1 have it as 'id'; keep that as an alias"):
        hub.streams.set_schema("orders", THIRD | {"order": {"type": "int64", "aliases": ["number"]}})


def test_a_column_that_goes_leaves_the_index(hub):
    hub.streams.create("orders", schema=FIRST, key="id", index=["city", "note"])
    write(hub, {"id": 1, "city": "Ulm", "note": "a"})
    smaller = {"id": "int64", "note": "string"}
    assert hub.streams.set_schema("orders", smaller, dry_run=True).index == ("note",)
    assert hub.streams.get("orders").index == ("city", "note")
    assert hub.streams.set_schema("orders", smaller).index == ("note",)
    write(hub, {"id": 2, "note": "b"})
    assert [record.value for record in hub.find("orders", "id <= 2")] == [
        {"id": 1, "note": "a"},
        {"id": 2, "note": "b"},
    ]
    assert hub.streams.create("orders", schema=FIRST, index=["city", "note"], exist_ok=True).index == ("note",)
