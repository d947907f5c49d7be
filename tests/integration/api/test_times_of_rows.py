"""Where a reader starts that asks for a time, and what a trim by time leaves, on streams of rows."""

import datetime as dt

import pyarrow as pa
import pytest

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COUNT = 1_000
SAMPLES = {
    "int": (pa.int64(), 7),
    "text": (pa.string(), "text"),
    "bool": (pa.bool_(), True),
    "list": (pa.list_(pa.int8()), [1, 2]),
}


@pytest.mark.parametrize("names", [("int", "int"), ("text", "text"), ("bool",), ("list", "bool", "text")], ids="-".join)
def test_a_time_is_that_of_the_row(hub, names):
    fields = [(f"column {place}", *SAMPLES[name]) for place, name in enumerate(names)]
    hub.streams.create("rows", schema=pa.schema([(name, kind) for name, kind, _ in fields]))
    with hub.producer() as producer:
        for second in range(COUNT):
            producer.send(
                "rows", {name: value for name, _, value in fields}, timestamp=BEGIN + dt.timedelta(seconds=second)
            )
    for second in (0, 1, 500, COUNT - 1, COUNT):
        with hub.consumer("rows", start=BEGIN + dt.timedelta(seconds=second), follow=False) as consumer:
            assert [record.offset for record in consumer] == list(range(second, COUNT))
    hub.streams.trim("rows", before=BEGIN + dt.timedelta(seconds=500))
    with hub.consumer("rows", start="earliest", follow=False) as consumer:
        assert [record.offset for record in consumer] == list(range(500, COUNT))
