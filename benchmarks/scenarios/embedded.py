"""An embedded hub beside a busy thread: how long a single send waits for its durable acknowledgement."""

from __future__ import annotations

import struct
import threading
import time

from benchmarks import product
from benchmarks.child import Talk
from benchmarks.harness import check, percentiles, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

COUNT = 500
PAUSE_S = 0.005
NUMBER = struct.Struct("<Q")
FILLER = bytes(100 - NUMBER.size)
ACK_TIMEOUT_S = 30


def run(settings: Settings, *, busy: bool) -> Metrics:
    with scratch(settings.data, "embedded") as folder:
        function, place = "benchmarks.scenarios.embedded:send", str(folder / "data")
        waited = percentiles(run_child(function, folder=place, count=settings.count(COUNT), busy=busy)["waited_ms"])
    return {"p50_ms": waited["p50"], "p99_ms": waited["p99"], "max_ms": waited["max"]}


def send(talk: Talk, folder: str, count: int, busy: bool) -> dict[str, list[float]]:
    import mainstem

    ended = threading.Event()
    if busy:
        threading.Thread(target=_spin, args=(ended,), daemon=True).start()
    waited = []
    with mainstem.open(folder) as hub:
        hub.streams.create(product.STREAM)
        with hub.producer() as producer:
            for number in range(count):
                start = time.perf_counter()
                producer.send(product.STREAM, NUMBER.pack(number) + FILLER).result(ACK_TIMEOUT_S)
                waited.append((time.perf_counter() - start) * 1e3)
                time.sleep(PAUSE_S)
        ended.set()
        with hub.consumer(product.STREAM, start="earliest", follow=False) as consumer:
            numbers = [NUMBER.unpack_from(record.value or b"")[0] for record in consumer]
    check(numbers == list(range(count)), "what was read back is not what was sent")
    return {"waited_ms": waited}


def _spin(ended: threading.Event) -> None:
    """A user's own computation: pure Python that never lets go of the interpreter by itself."""
    number = 0
    while not ended.is_set():
        for _ in range(10_000):
            number += 1


SCENARIO = Scenario(
    name="embedded",
    title="Embedded hub, one send at a time, waiting for each durable acknowledgement",
    cases=(
        ours(
            "busy thread",
            lambda settings: run(settings, busy=True),
            "another thread of the process computes without pause",
        ),
        ours("idle", lambda settings: run(settings, busy=False)),
    ),
    shown=("p50_ms", "p99_ms", "max_ms"),
    targets=(Target("busy thread", "p50_ms", 10, at_most=True),),
)
