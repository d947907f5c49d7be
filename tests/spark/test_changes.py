"""What happens to a stream under a query that runs: it is trimmed, and it gets another schema."""

import re
import time

import pytest
from pyspark.errors import PySparkException

import mainstem
from mainstem.testing.server import ServerProcess
from tests.spark.parts import fill
from tests.spark.queries import Query

pytestmark = pytest.mark.xdist_group("spark")

# What nobody can read any more is off the disk at once.
SETTINGS = ("--upkeep-interval", "50ms", "--upkeep-percent", "100", "--free-after", "0s", "--block-bytes", "1MiB")


@pytest.mark.slow("two streaming queries, seconds each")
def test_blocks_that_go_under_a_running_query(spark, tmp_path):
    """It fails with the range that is gone, having written each row before it once; told to, it goes on after it."""
    with ServerProcess(tmp_path / "data", *SETTINGS) as server, mainstem.connect(server.url) as hub:
        fill(hub, count=2_000, shards=1, batch=10)
        query = Query(spark, server.url, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="20")
        running = query.start().trigger(processingTime="0 seconds").start()
        query.come_to(20)
        hub.streams.trim("orders", offset=1_900)
        with pytest.raises(PySparkException, match=r"records \d+ to \d+ are gone") as failed:
            running.awaitTermination(100)
        found = re.search(r"records (\d+) to (\d+) are gone", str(failed.value))
        assert found is not None
        # Of a batch that was planned before the trim, and has written nothing, or of all that is gone.
        first, last = map(int, found.groups())
        done = query.ids()
        assert done == list(range(first))
        assert last in (first + 19, 1_899)
        assert query.run(failOnDataLoss="false", maxOffsetsPerTrigger="100000") == [*done, *range(1_900, 2_000)]


@pytest.mark.slow("two streaming queries, seconds each")
def test_a_schema_that_changes_under_a_running_query(spark, server, tmp_path):
    """It goes on with the columns that it began with, in every row; the next start sees the new one."""
    with mainstem.connect(server.url) as hub, hub.producer() as producer:
        hub.streams.create("orders", schema={"id": "int64"}, compatibility="none")
        producer.send("orders", {"id": 0}).result(10)
        query = Query(spark, server.url, tmp_path, startingOffsets="earliest")
        running = query.start().trigger(processingTime="0 seconds").start()
        try:
            query.come_to(1)
            hub.streams.set_schema("orders", {"id": "int64", "note": "string"})
            for number in range(1, 5):
                producer.send("orders", {"id": number, "note": "new"}).result(10)
                query.come_to(number + 1)
        finally:
            running.stop()
        assert running.exception() is None
        assert query.ids() == list(range(5))
        table = spark.readStream.format("mainstem").option("hub", server.url).load("orders")
        assert table.columns == ["id", "note"]
        producer.send("orders", {"id": 5, "note": "newer"}).result(10)
        deadline = time.monotonic() + 30
        while hub.streams.get("orders").ends != (6,):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert query.run(where="note <> 'none'") == list(range(6))
        # A column that goes away stops it, by name, with everything before written once.
        running = query.start().trigger(processingTime="0 seconds").start()
        producer.send("orders", {"id": 6, "note": "last"}).result(10)
        query.come_to(7)
        hub.streams.set_schema("orders", {"number": "int64", "note": "string"})
        producer.send("orders", {"number": 7, "note": "other"}).result(10)
        with pytest.raises(PySparkException, match="there is no column 'id'"):
            running.awaitTermination(100)
        assert query.ids() == list(range(7))
