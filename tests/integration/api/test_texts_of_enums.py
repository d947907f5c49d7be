"""An Enum whose members are texts is stored as those, not as what it shows to people."""

from enum import Enum

import pyarrow as pa


class Colour(str, Enum):  # noqa: UP042  # a StrEnum shows its value
    RED = "red"
    GREEN = "grün"


def test_the_text_of_an_enum_is_its_value(hub):
    hub.streams.create(
        "paint", schema=pa.schema([("id", pa.int64()), ("colour", pa.string())]), shards=4, key=["colour"]
    )
    with hub.producer(on_bad="dead_letter") as producer:
        alone = [producer.send("paint", {"id": 1, "colour": colour}).result() for colour in (Colour.GREEN, "grün")]
        producer.send_many("paint", [{"id": 2, Colour.RED: 1}, {"id": 3, "colour": Colour.RED}])
        producer.send("paint", {"id": "none", "colour": Colour.RED})
    assert alone[0][0] == alone[1][0], "the same key is in the same shard"
    with hub.consumer("paint", start="earliest", follow=False) as consumer:
        assert sorted(record.value["colour"] for record in consumer) == ["grün", "grün", "red"]
    with hub.consumer("paint.dead", start="earliest", follow=False) as consumer:
        assert sorted(record.value for record in consumer) == [
            b'{"id": "none", "colour": "red"}',
            b'{"id": 2, "red": 1}',
        ]
