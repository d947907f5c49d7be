"""The server is killed and comes back under queries that read and write through it: every row once, none missing."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import mainstem
from mainstem.hub.hub import Hub
from tests.spark.parts import SCHEMA, append, fill

pytestmark = pytest.mark.xdist_group("spark")

KILLS = 3
DOWN_SECONDS = 2.0
SECONDS_MAX = 180


def ids_of(hub: Hub, stream: str) -> Counter[int]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return Counter(number for batch in consumer.batches() for number in batch.to_arrow()["id"].to_pylist())


def come_to(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_copied(hub: Hub, query, count: int) -> bool:
    """Whether so many rows have come through, or never will."""
    return hub.streams.get("copies").records >= count or not query.isActive


class Reads:
    """Batch reads one after the other, in a thread, until it is told to stop; each has everything that was there."""

    def __init__(self, spark, url: str) -> None:
        self._rows = spark.read.format("mainstem").option("hub", url).option("partitions", 4).load("orders")
        self._is_stopping = threading.Event()
        self.found: list[tuple[int, int, int]] = []
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                count, distinct, highest = self._rows.agg(f.count("id"), f.count_distinct("id"), f.max("id")).first()
                self.found.append((count, distinct, highest))
            except Exception as error:  # what Spark says is looked at by the test
                self.errors.append(error)

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()


@pytest.mark.slow("a streaming query and reads while the server is killed three times")
def test_nothing_is_lost_and_nothing_twice_when_the_server_is_killed_under_queries(spark, server, tmp_path):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=4_000)
        hub.streams.create("copies", shards=2, schema=SCHEMA)
        options = {"hub": server.url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000", "group": "copier"}
        rows = spark.readStream.format("mainstem").options(**options).load("orders")
        writing = rows.writeStream.format("mainstem").option("hub", server.url)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.trigger(processingTime="100 milliseconds").start("copies")
        reads = Reads(spark, server.url)
        try:
            come_to(lambda: bool(reads.found) and bool(query.recentProgress))
            for kill in range(KILLS):
                server.kill()
                time.sleep(DOWN_SECONDS)
                server.start()
                expected = 4_000 + (kill + 1) * 1_000
                append(hub, "orders", expected - 1_000, 1_000)
                come_to(partial(is_copied, hub, query, expected - 500))
                assert query.exception() is None
            total = 4_000 + KILLS * 1_000
            come_to(partial(is_copied, hub, query, total))
            query.processAllAvailable()
        finally:
            query.stop()
            reads.stop()
        assert query.exception() is None
        assert ids_of(hub, "copies") == dict.fromkeys(range(total), 1)
        assert reads.errors == []
        # Each read has what there was when it was planned, whole: rows go into the stream in the order of their ids.
        assert all(count == distinct for count, distinct, _ in reads.found)
        assert all(count >= highest + 1 - 500 for count, _, highest in reads.found)
        assert reads.found[-1][0] <= total

    # A server that stays away is named, by a process that looked for it anew or by one that was connected.
    server.kill()
    named = f"(no Mainstem server answered at {server.address}|{server.address} did not answer)"
    with pytest.raises(PySparkException, match=named):
        spark.read.format("mainstem").option("hub", server.url).load("orders")
