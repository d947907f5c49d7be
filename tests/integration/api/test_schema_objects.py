"""What a hub gives is shown in one line, schemas are objects, and keys are given by their values."""

import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidRecord, InvalidSetting, SchemaMismatch

COLUMNS = {"country": "string", "id": "int64", "note": "string"}


def test_schemas_are_objects(hub):
    made = hub.streams.create("orders", schema=COLUMNS)
    assert made.schema.arrow == pa.schema([("country", pa.string()), ("id", pa.int64()), ("note", pa.string())])
    (version,) = hub.streams.schemas("orders")
    assert version.schema == made.schema
    assert repr(version) == "<SchemaInfo version 1: <Schema country: string, id: int64, note: string>>"
    assert "<td>country</td>" in version._repr_html_()
    assert hub.streams.create("bytes").schema is None


def test_objects_are_shown_in_one_line(hub):
    hub.streams.create("orders", schema=COLUMNS)
    with hub.producer(on_bad="dead_letter") as producer:
        assert repr(producer) == "<Producer acks=durable, on_bad=dead_letter>"
        ack = producer.send("orders", {"id": 1})
        many = producer.send_many("orders", [{"id": 2}, {"id": "x"}])
        many.result(10)
        assert repr(ack) == "<Ack orders: shard 0, offset 0>"
        assert repr(many) == "<BatchAck: done, 1 dead letters>"
    with hub.consumer("orders", start="earliest", where="id > 0") as consumer:
        assert consumer.poll(10).value["id"] == 1
        assert repr(consumer) == "<Consumer orders where id > 0: at 1>"
    assert repr(consumer).endswith(", closed>")
    assert repr(hub.redrive("orders")) == "<Redriven 0 put back, 0 fitting, 1 failing, 0 earlier>"


def test_a_key_of_several_columns_is_erased_by_its_values(hub):
    hub.streams.create("orders", schema=COLUMNS, key=["country", "id"])
    with hub.producer() as producer:
        for number in (7, 7, 8):
            producer.send("orders", {"country": "a", "id": number}).result(10)
    assert hub.streams.erase("orders", ("a", 7)).records == 2
    assert [record.value["id"] for record in hub.find("orders", "_offset >= 0")] == [8]
    with pytest.raises(InvalidRecord, match=r"the key is made of country, id, not of 1 value$"):
        hub.streams.erase("orders", "a")
    hub.streams.create("plain")
    with pytest.raises(InvalidRecord, match=r"stream 'plain': the key is one value, not 2 values$"):
        hub.streams.erase("plain", ("a", "b"))
    with pytest.raises(InvalidRecord, match="has no key"):
        hub.streams.erase("orders", ("a", None))
    with pytest.raises(SchemaMismatch, match="'id' is int64 and cannot be 'x'"):
        hub.streams.erase("orders", ("a", "x"))


@pytest.mark.parametrize("corrections", [{"0": {}}, {-1: {}}, {0: [1]}, [1]], ids=["text", "below", "list", "rows"])
def test_corrections_that_cannot_be_are_refused(hub, corrections):
    hub.streams.create("orders", schema=COLUMNS)
    with pytest.raises(InvalidSetting, match="corrections"):
        hub.redrive("orders", corrections=corrections)
