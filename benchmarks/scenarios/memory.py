"""The most memory the server ever held while a producer, alone or with a follower, went at full rate for a minute."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import cycle, islice

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, check, rss_peak_bytes, run_child, scratch
from benchmarks.payload import pool
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

SIZE = 100
SECONDS = 60
SECONDS_QUICK = 10
STEP = 10_000  # messages between two looks at the clock
END = b"end"


def run(settings: Settings, *, followed: bool) -> Metrics:
    seconds = SECONDS_QUICK if settings.quick else SECONDS
    read = "benchmarks.scenarios.memory:read"
    with scratch(settings.data, "memory") as folder, product.Server(folder) as server, ExitStack() as stack:
        product.create_stream(server.url)
        reader = stack.enter_context(Child(read, url=server.url)) if followed else None
        sent = run_child("benchmarks.scenarios.memory:send", url=server.url, seconds=seconds)
        received = reader.result() if reader else None
        memory = rss_peak_bytes(server.pid) / 1e6
        received = received or run_child(read, url=server.url)
        check(received["count"] == sent["count"], f"{received['count']:,} messages received, {sent['count']:,} sent")
    return {"server_rss_mb": memory, "msg_per_s": sent["count"] / sent["wall_s"]}


def send(talk: Talk, url: str, seconds: int) -> dict[str, float]:
    import mainstem

    values, count = cycle(pool(SIZE)), 0
    with mainstem.connect(url) as hub, hub.producer() as producer:
        settle()
        send_ = producer.send
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for value in islice(values, STEP):
                send_(product.STREAM, value)
            count += STEP
        producer.flush()
        wall_s = time.perf_counter() - start
        send_(product.STREAM, END)
        producer.flush()
    return {"count": count, "wall_s": wall_s}


def read(talk: Talk, url: str) -> dict[str, int]:
    """Follows until the marked last record; proves that offsets leave no gap and counts what came before the mark."""
    import mainstem

    count = 0
    with mainstem.connect(url) as hub, hub.consumer(product.STREAM, start="earliest") as consumer:
        for batch in consumer.batches():
            check(batch.offset == count, f"offset {batch.offset:,} came where {count:,} was due")
            count += batch.count
            if batch.to_arrow().column("value")[-1].as_py() == END:
                break
    return {"count": count - 1}


SCENARIO = Scenario(
    name="memory",
    title="Server memory while one producer goes at full rate",
    cases=(
        ours("produce", lambda settings: run(settings, followed=False)),
        ours(
            "produce and follow", lambda settings: run(settings, followed=True), "one follower reads batches meanwhile"
        ),
    ),
    shown=("server_rss_mb", "msg_per_s"),
    targets=(
        Target("produce", "server_rss_mb", 250, at_most=True),
        Target("produce and follow", "server_rss_mb", 250, at_most=True),
    ),
    rounds_max=1,
)
