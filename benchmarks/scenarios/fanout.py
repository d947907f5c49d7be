"""50 followers of one stream that carries a little over 4 MB/s: 200 MB/s delivered, and what that costs the server."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, Stopwatch, rss_peak_bytes, scratch
from benchmarks.payload import Receipt, messages
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours
from benchmarks.scenarios.latency import sleep_until

PROCESSES = 2
FOLLOWERS = 25
SIZE = 100
# A little more than 4 MB/s: until the last follower has the last message, 200 MB/s were delivered.
RATE = 42_000
BURST = 420  # messages that are due together, every 10 ms
SECONDS = 10
LEAD_NS = 200_000_000
CONTENT_EVERY = 16  # every byte of each so many batches is compared; places and counts are, of all


def run(settings: Settings, *, shared: bool) -> Metrics:
    count = RATE * settings.count(SECONDS)
    with scratch(settings.data, "fanout") as folder, product.Server(folder) as server, ExitStack() as stack:
        product.create_stream(server.url)
        follow = "benchmarks.scenarios.fanout:follow"
        followers = [
            stack.enter_context(Child(follow, url=server.url, count=count, shared=shared)) for _ in range(PROCESSES)
        ]
        producer = stack.enter_context(Child("benchmarks.scenarios.fanout:send", url=server.url, count=count))
        for child in (*followers, producer):
            child.expect("ready")
        watch = Stopwatch([server.pid])
        producer.send({})
        start_ns = producer.result()["start_ns"]
        results = [child.result() for child in followers]
        took = watch.stop()
        memory = rss_peak_bytes(server.pid) / 1e6
    seconds = (max(result["finished_ns"] for result in results) - start_ns) / 1e9
    return {
        "server_cores": took["server_cpu_s"] / took["wall_s"],
        "delivered_mb_per_s": PROCESSES * FOLLOWERS * count * SIZE / 1e6 / seconds,
        "client_cores": sum(result["client_cpu_s"] for result in results) / took["wall_s"],
        "server_rss_mb": memory,
    }


def send(talk: Talk, url: str, count: int) -> dict[str, int]:
    import mainstem

    values = messages(count, SIZE)
    with mainstem.connect(url) as hub, hub.producer() as producer:
        settle()
        talk.say("ready")
        talk.hear()
        start = time.monotonic_ns() + LEAD_NS
        for number in range(0, count, BURST):
            sleep_until(start + number * 1_000_000_000 // RATE)
            for _ in range(min(BURST, count - number)):
                producer.send(product.STREAM, next(values))
        producer.flush()
    return {"start_ns": start}


def follow(talk: Talk, url: str, count: int, shared: bool) -> dict[str, float]:
    """25 consumers, each in a thread, on one hub or on one each."""
    import mainstem

    results: list[Any] = [None] * FOLLOWERS
    with ExitStack() as stack:
        hubs = [stack.enter_context(mainstem.connect(url)) for _ in range(1 if shared else FOLLOWERS)]
        consumers = [
            stack.enter_context(hubs[index % len(hubs)].consumer(product.STREAM, start="earliest"))
            for index in range(FOLLOWERS)
        ]
        threads = [
            threading.Thread(target=_read, args=(each, count, results, index)) for index, each in enumerate(consumers)
        ]
        settle()
        watch = Stopwatch()
        for thread in threads:
            thread.start()
        talk.say("ready")
        for thread in threads:
            thread.join()
        took = watch.stop()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return {"finished_ns": max(results), "client_cpu_s": took["client_cpu_s"]}


def _read(consumer: Any, count: int, results: list[Any], index: int) -> None:
    try:
        receipt = Receipt(SIZE, CONTENT_EVERY)
        for batch in consumer.batches():
            product.add_batch(receipt, batch)
            if receipt.count >= count:
                break
        finished_ns = time.monotonic_ns()
        receipt.verify(count)
        results[index] = finished_ns
    except Exception as error:
        results[index] = error


SCENARIO = Scenario(
    name="fanout",
    title="50 followers of one stream, 200 MB/s delivered in total",
    cases=(
        ours("shared hubs", lambda settings: run(settings, shared=True), "2 processes, one hub with 25 consumers each"),
        ours("own hubs", lambda settings: run(settings, shared=False), "2 processes, 25 hubs with one consumer each"),
    ),
    shown=("server_cores", "delivered_mb_per_s", "client_cores", "server_rss_mb"),
    targets=(
        Target("shared hubs", "server_cores", 0.5, at_most=True),
        Target("shared hubs", "delivered_mb_per_s", 200),
        # 50 I/O threads in two client processes are the limit here, not the server.
        Target("own hubs", "server_cores", 0.5, at_most=True),
        Target("own hubs", "delivered_mb_per_s", 190),
    ),
)
