"""A streaming query of Spark: how long a row takes from stream to stream, and how fast a query catches up.

Rows are sent in pieces, on time whatever became of the ones before, by one process; a query carries them from one
stream to another; a third process follows that. A piece counts from its acknowledgement until its last row was received
from the second stream. The load begins when some rows have gone through the query, one micro-batch after the other, so
that Spark has its workers; its first seconds do not count.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from benchmarks import product, sparks
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, check, percentiles, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

RATE = 50_000
PIECE = 500
SECONDS = 30
WARM_UP_S = 10
WARM_UP_BATCHES = 5
# Of a row that only warms up.
NO_ID = -1
CATCH_UP_ROWS = 10_000_000
SOURCE, SINK = "source", "sink"
SCHEMA = {"id": "int64", "x": "float64", "v": "string"}
HERE = "benchmarks.scenarios.spark_stream"
PATIENCE_S = 120.0


def run_latency(settings: Settings) -> Metrics:
    warm_up = RATE // PIECE * WARM_UP_S
    pieces = RATE // PIECE * settings.count(SECONDS) + warm_up
    with scratch(settings.data, "spark-stream") as folder, product.Server(folder) as server:
        given: dict[str, Any] = {"url": server.url, "pieces": pieces}
        with (
            Child(f"{HERE}:query", url=server.url, folder=str(folder)) as query,
            Child(f"{HERE}:follow", **given) as follower,
            Child(f"{HERE}:send", **given) as sender,
        ):
            query.expect("ready", 2 * PATIENCE_S)
            follower.expect("ready", PATIENCE_S)
            sender.expect("ready")
            sender.send({})
            sent = sender.result(PATIENCE_S + pieces * PIECE / RATE)
            seen = follower.result(PATIENCE_S)
            query.send({})
            query.result()
    took = (np.array(seen["seen_ns"]) - np.array(sent["acknowledged_ns"]))[warm_up:] / 1e6
    check(len(took) == pieces - warm_up, "not every piece was acknowledged")
    found = percentiles(took)
    return {"p50_ms": found["p50"], "p99_ms": found["p99"], "max_ms": found["max"]}


def send(talk: Talk, url: str, pieces: int) -> dict[str, Any]:
    import pyarrow as pa

    import mainstem

    text = pa.array(["x" * sparks.TEXT_BYTES] * PIECE)
    acknowledged = [0] * pieces
    acks: list[Any] = []

    def wait() -> None:
        """In the order of sending; who waits for one is told at once."""
        for number in range(pieces):
            while number >= len(acks):
                time.sleep(0.000_5)
            acks[number].result()
            acknowledged[number] = time.monotonic_ns()

    with mainstem.connect(url) as hub, hub.producer() as producer:
        ids = [np.arange(number * PIECE, (number + 1) * PIECE) for number in range(pieces)]
        tables = [pa.table({"id": each, "x": each * 0.5, "v": text}) for each in ids]
        waiter = threading.Thread(target=wait, daemon=True)
        settle()
        talk.say("ready")
        talk.hear()
        waiter.start()
        start = time.monotonic_ns()
        for number, table in enumerate(tables):
            due = start + number * PIECE * 1_000_000_000 // RATE
            if (ahead := due - time.monotonic_ns()) > 0:
                time.sleep(ahead / 1e9)
            acks.append(producer.send_batch(SOURCE, table))
        producer.flush()
        waiter.join()
    return {"acknowledged_ns": acknowledged}


def follow(talk: Talk, url: str, pieces: int) -> dict[str, Any]:
    """When the last row of each piece was received; every row once, with its own number."""
    import pyarrow.compute as pc

    import mainstem

    missing = np.full(pieces, PIECE)
    seen = np.zeros(pieces, dtype=np.int64)
    unseen = np.ones(pieces * PIECE, dtype=bool)
    with mainstem.connect(url) as hub:
        while not any(stream.name == SINK for stream in hub.streams.list()):
            time.sleep(0.1)
        with hub.consumer(SINK, start="earliest") as consumer:
            talk.say("ready")
            for batch in consumer.batches():
                rows = batch.to_arrow()
                now = time.monotonic_ns()
                ids = rows.column("id").to_numpy()
                if (ids == NO_ID).any():
                    rows = rows.filter(pc.not_equal(rows.column("id"), NO_ID))
                    ids = rows.column("id").to_numpy()
                check(bool(unseen[ids].all()), "a row came twice")
                check(bool(np.array_equal(rows.column("x").to_numpy(), ids * 0.5)), "a row is not what was sent")
                unseen[ids] = False
                touched, counts = np.unique(ids // PIECE, return_counts=True)
                missing[touched] -= counts
                seen[touched] = now
                if not missing.any():
                    break
    return {"seen_ns": seen.tolist()}


def query(talk: Talk, url: str, folder: str) -> None:
    """From stream to stream, until it is told to stop."""
    import pyarrow as pa

    import mainstem

    with mainstem.connect(url) as hub:
        for name in (SOURCE, SINK):
            hub.streams.create(name, schema=SCHEMA)
    spark = sparks.session(folder)
    rows = spark.readStream.format("mainstem").options(hub=url, startingOffsets="earliest").load(SOURCE)
    running = (
        rows.writeStream.format("mainstem")
        .options(hub=url, checkpointLocation=f"{folder}/checkpoint")
        .option("stream", SINK)
        .start()
    )
    with mainstem.connect(url) as hub, hub.producer() as producer:
        for number in range(1, WARM_UP_BATCHES + 1):
            producer.send_batch(SOURCE, pa.table({"id": [NO_ID], "x": [0.0], "v": [""]})).result()
            while hub.streams.get(SINK).records < number:
                check(running.isActive, f"the query ended: {running.exception()}")
                time.sleep(0.05)
    talk.say("ready")
    talk.hear()
    failure = running.exception()
    check(failure is None, f"the query ended: {failure}")
    running.stop()
    spark.stop()


def run_catch_up(settings: Settings) -> Metrics:
    count = settings.count(CATCH_UP_ROWS)
    folder = sparks.narrow(settings.data, count, "parquet", "json")
    return sparks.measured(f"{HERE}:catch_up", folder=str(folder), count=count)


def catch_up(talk: Talk, folder: str, count: int) -> dict[str, float]:
    """From the start of a query to its end, which comes when it has everything."""
    spark = sparks.session(folder)

    def caught_up() -> Any:
        rows = spark.readStream.format("mainstem").options(hub=f"{folder}/log", startingOffsets="earliest")
        sums = rows.load(sparks.STREAM).selectExpr(
            "count(*) AS n", *(f"{sum_} AS `{sum_}`" for sum_ in sparks.SUMS[1:])
        )
        writer = sums.writeStream.format("memory").queryName("sums").outputMode("complete")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return spark.table("sums").first()

    taken = sparks.in_turn({"caught up": caught_up})["caught up"]
    sparks.check_sums(taken, count)
    return {"rows_per_s": count / taken.seconds, "rows_per_spark_cpu_s": count / taken.cpu_seconds}


SCENARIO = Scenario(
    name="spark_stream",
    title="A streaming query of Spark, on two cores with the server and both clients",
    cases=(
        ours("stream to stream", run_latency, f"{RATE:,} rows/s in pieces of {PIECE}, from acknowledged to received"),
        ours("catch-up", run_catch_up, f"{CATCH_UP_ROWS:,} rows into an aggregate, the query's start included"),
    ),
    shown=("p50_ms", "p99_ms", "max_ms", "rows_per_s", "rows_per_spark_cpu_s"),
    targets=(
        Target("stream to stream", "p50_ms", 300, at_most=True),
        Target("stream to stream", "p99_ms", 1_000, at_most=True),
        Target("catch-up", "rows_per_s", 2_500_000),
    ),
)
