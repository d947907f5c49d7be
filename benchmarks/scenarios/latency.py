"""1,000 messages a second, one at a time, from a producer process to a consumer process.

The load is open: each message is due at a time of the schedule, whatever became of the ones before, and its latency
counts from that time, so a stall is charged to every message it delays. The time from the send itself is shown too.
"""

from __future__ import annotations

import struct
import time

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, Stopwatch, check, percentiles, scratch
from benchmarks.scenarios import disk
from benchmarks.scenarios.base import Metrics, Ratio, Scenario, Settings, Target, ours

RATE = 1_000
SECONDS = 10
LEAD_NS = 200_000_000
STAMP = struct.Struct("<QQQ")  # number, due, sent; CLOCK_MONOTONIC nanoseconds
FILLER = bytes(100 - STAMP.size)


def run(settings: Settings) -> Metrics:
    count = RATE * settings.count(SECONDS)
    with scratch(settings.data, "latency") as folder, product.Server(folder) as server:
        product.create_stream(server.url)
        with (
            Child("benchmarks.scenarios.latency:receive", url=server.url, count=count) as consumer,
            Child("benchmarks.scenarios.latency:send", url=server.url, count=count) as producer,
        ):
            consumer.expect("ready")
            producer.expect("ready")
            watch = Stopwatch([server.pid])
            producer.send({})
            producer.result()
            received = consumer.result()
            took = watch.stop()
    due, sent = percentiles(received["from_due_ms"]), percentiles(received["from_sent_ms"])
    return {
        "p50_ms": due["p50"],
        "p99_ms": due["p99"],
        "p99_9_ms": due["p99.9"],
        "max_ms": due["max"],
        "sent_p50_ms": sent["p50"],
        "sent_p99_ms": sent["p99"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
    }


def send(talk: Talk, url: str, count: int) -> None:
    import mainstem

    with mainstem.connect(url) as hub, hub.producer() as producer:
        settle()
        talk.say("ready")
        talk.hear()
        start = time.monotonic_ns() + LEAD_NS
        for number in range(count):
            due = start + number * 1_000_000_000 // RATE
            sleep_until(due)
            producer.send(product.STREAM, STAMP.pack(number, due, time.monotonic_ns()) + FILLER)
        producer.flush()


def receive(talk: Talk, url: str, count: int) -> dict[str, list[float]]:
    import mainstem

    from_due: list[float] = []
    from_sent: list[float] = []
    with mainstem.connect(url) as hub, hub.consumer(product.STREAM, start="earliest") as consumer:
        settle()
        talk.say("ready")
        for record in consumer:
            now = time.monotonic_ns()
            number, due, sent = STAMP.unpack_from(record.value or b"")
            check(number == len(from_due), f"message {number:,} came where {len(from_due):,} was due")
            from_due.append((now - due) / 1e6)
            from_sent.append((now - sent) / 1e6)
            if len(from_due) == count:
                break
    return {"from_due_ms": from_due, "from_sent_ms": from_sent}


def sleep_until(due_ns: int) -> None:
    """Sleep, once, until a time of the schedule; a late sleeper goes on at once."""
    left = due_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


SCENARIO = Scenario(
    name="latency",
    title="1,000 messages a second, one at a time, from due time to receipt",
    cases=(
        ours("send to receive", run, "producer and consumer in two processes, acknowledgements durable"),
        disk.paced(RATE, SECONDS),
    ),
    shown=("p50_ms", "p99_ms", "p99_9_ms", "max_ms", "sent_p50_ms", "sent_p99_ms", "server_cores"),
    targets=(
        Target("send to receive", "p50_ms", 3, at_most=True),
        Target("send to receive", "p99_ms", 10, at_most=True),
    ),
    ratios=(Ratio("send to receive", "disk alone", "p99_ms"),),
)
