"""100 producers in 4 processes, 100 messages a second each: the wait for acknowledgements and the server's CPU.

Each process has one hub and one thread that sends for its 25 producers by a staggered, open schedule. Acknowledgements
are taken by callback; a message's wait counts from when it was due.
"""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, Stopwatch, check, percentiles, run_child, scratch
from benchmarks.scenarios import disk
from benchmarks.scenarios.base import Metrics, Ratio, Scenario, Settings, Target, ours
from benchmarks.scenarios.latency import sleep_until

PROCESSES = 4
PRODUCERS = 25
RATE = 100
SECONDS = 10
LEAD_NS = 300_000_000
ACK_TIMEOUT_S = 30
NUMBERS = struct.Struct("<II")  # producer, its message's number
FILLER = bytes(100 - NUMBERS.size)


def run(settings: Settings) -> Metrics:
    count = RATE * settings.count(SECONDS)
    with scratch(settings.data, "many-producers") as folder, product.Server(folder) as server, ExitStack() as stack:
        product.create_stream(server.url)
        function = "benchmarks.scenarios.many_producers:send"
        children = [
            stack.enter_context(Child(function, url=server.url, first=index * PRODUCERS, count=count))
            for index in range(PROCESSES)
        ]
        for child in children:
            child.expect("ready")
        start_ns = time.monotonic_ns() + LEAD_NS
        watch = Stopwatch([server.pid])
        for child in children:
            child.send({"start_ns": start_ns})
        waited = [wait for child in children for wait in child.result()["waited_ms"]]
        took = watch.stop()
        run_child("benchmarks.scenarios.many_producers:verify", url=server.url, count=count)
    found = percentiles(waited)
    return {
        "p50_ms": found["p50"],
        "p99_ms": found["p99"],
        "p99_9_ms": found["p99.9"],
        "max_ms": found["max"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
    }


def send(talk: Talk, url: str, first: int, count: int) -> dict[str, list[float]]:
    import mainstem

    waited: list[float] = []
    errors: list[Exception] = []

    def acknowledged(due: int, ack: Any) -> None:
        waited.append((time.monotonic_ns() - due) / 1e6)
        error = ack.exception()
        if error is not None:
            errors.append(error)

    with mainstem.connect(url) as hub, ExitStack() as stack:
        producers = [stack.enter_context(hub.producer()) for _ in range(PRODUCERS)]
        settle()
        talk.say("ready")
        start = talk.hear()["start_ns"]
        for step in range(count * PRODUCERS):
            number, index = divmod(step, PRODUCERS)
            due = start + step * 1_000_000_000 // (RATE * PRODUCERS)
            sleep_until(due)
            ack = producers[index].send(product.STREAM, NUMBERS.pack(first + index, number) + FILLER)
            ack.add_done_callback(partial(acknowledged, due))
        for producer in producers:
            producer.flush(ACK_TIMEOUT_S)
    check(not errors, f"{len(errors):,} messages failed, the first: {errors[:1]}")
    check(len(waited) == count * PRODUCERS, "some messages were not acknowledged")
    return {"waited_ms": waited}


def verify(talk: Talk, url: str, count: int) -> None:
    """Every producer's messages are there once, in the order it sent them."""
    import mainstem

    with mainstem.connect(url) as hub, hub.consumer(product.STREAM, start="earliest", follow=False) as consumer:
        values = [record.value for record in consumer]
    total = PROCESSES * PRODUCERS
    check(len(values) == total * count, f"{len(values):,} messages received, {total * count:,} sent")
    found = np.array([NUMBERS.unpack_from(value or b"") for value in values])
    by_producer = found[np.argsort(found[:, 0], kind="stable")]
    check(
        bool(np.array_equal(by_producer[:, 0], np.repeat(np.arange(total), count))), "messages are missing or repeated"
    )
    check(
        bool(np.array_equal(by_producer[:, 1], np.tile(np.arange(count), total))),
        "a producer's messages are out of order",
    )


SCENARIO = Scenario(
    name="many_producers",
    title="100 producers, 100 messages a second each: wait for the durable acknowledgement",
    cases=(
        ours("4 processes of 25", run, "one hub a process"),
        disk.paced(PROCESSES * PRODUCERS * RATE, SECONDS),
    ),
    shown=("p50_ms", "p99_ms", "p99_9_ms", "max_ms", "server_cores"),
    targets=(
        Target("4 processes of 25", "p99_ms", 20, at_most=True),
        Target("4 processes of 25", "server_cores", 0.5, at_most=True),
    ),
    ratios=(Ratio("4 processes of 25", "disk alone", "p99_ms"),),
)
