"""The account of an intake: what was sent, what is durable, and the first failure."""

import pyarrow as pa
import pytest

import mainstem
from mainstem.produce.intake import Intake
from mainstem.produce.rows import Row


def test_rows_and_tables_are_counted_and_placed(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s", shards=2)
        with hub.producer(batch_bytes=1024, buffer_bytes=4096) as producer:
            intake = Intake(producer, "s")
            intake.take(Row(b"v" * 50, b"%d" % (number % 7)) for number in range(500))
            intake.take([pa.table({"value": [b"a", b"b"]})])
            intake.finish()
        info = hub.streams.get("s")
    assert (intake.sent, intake.acknowledged, info.records) == (502, 502, 502)
    assert intake.newest == {shard: end - 1 for shard, end in enumerate(info.ends)}


def test_a_chunk_that_fails_ends_the_intake(tmp_path):
    def rows(hub):
        yield Row(b"kept")
        intake.finish()
        hub.streams.delete("s")
        for _ in range(100_000):
            yield Row(b"refused" * 100)

    with mainstem.open(tmp_path) as hub:
        hub.streams.create("s")
        producer = hub.producer(batch_bytes=1024, buffer_bytes=4096)
        intake = Intake(producer, "s")
        with pytest.raises(mainstem.StreamDeleted):
            intake.take(rows(hub))
        with pytest.raises(mainstem.StreamDeleted):
            producer.close()
    assert intake.acknowledged == 1
    assert intake.sent < 100_000
