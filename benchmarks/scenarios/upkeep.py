"""What the upkeep of a log costs those who write and read it meanwhile.

Each case prepares a folder in which upkeep has work for longer than the measurement, and runs the same load twice in
turn: beside that work, and on an empty folder. The load is one producer at full rate and one follower of what it sends;
then, for the latency, 1,000 messages a second, one at a time. At the end the server's counters must say that upkeep has
worked, and that it was not through.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, check, percentiles, run_child, scratch
from benchmarks.payload import messages
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours
from benchmarks.scenarios.latency import sleep_until

SIZE = 100
COUNT = 4_000_000
RATE = 1_000
SECONDS = 6
LEAD_NS = 200_000_000
# Of the stream that upkeep works on.
TINY_ENTRIES = 150_000
BULK_BYTES = 800_000_000
KEYS = 50_000
OLD = "old"
# Which counter says that upkeep is at it.
COUNTERS = {"merging": "entries_merged", "rewriting": "bytes_rewritten", "compacting": "records_compacted"}


def run(settings: Settings, *, kind: str) -> Metrics:
    prepared = _prepared(settings.data, kind, settings.quick)
    count = settings.count(COUNT)
    with scratch(settings.data, "upkeep-idle") as folder:
        idle = _measure(folder, count, settings)
    with scratch(settings.data, f"upkeep-{kind}") as folder:
        _clone(prepared, folder / "data")
        busy = _measure(folder, count, settings, COUNTERS[kind])
    return {
        "share_of_idle": busy["msg_per_s"] / idle["msg_per_s"],
        "msg_per_s": busy["msg_per_s"],
        "p99_ms": busy["p99_ms"],
        "idle_p99_ms": idle["p99_ms"],
        "max_ms": busy["max_ms"],
        "work_per_s": busy["work_per_s"],
    }


def _measure(folder: Path, count: int, settings: Settings, counter: str = "") -> dict[str, float]:
    with product.Server(folder) as server:
        product.create_stream(server.url)
        if counter:
            run_child("benchmarks.scenarios.upkeep:await_work", url=server.url, counter=counter)
        began = _counter(server.url, counter)
        with (
            Child("benchmarks.scenarios.upkeep:follow", url=server.url, count=count) as follower,
            Child("benchmarks.scenarios.upkeep:produce", url=server.url, count=count) as producer,
        ):
            follower.expect("ready")
            producer.expect("ready")
            start = time.perf_counter()
            producer.send({})
            producer.result()
            follower.result()
            wall = time.perf_counter() - start
        seconds = settings.count(SECONDS)
        waits = run_child("benchmarks.scenarios.upkeep:one_at_a_time", url=server.url, count=RATE * seconds)
        done = _counter(server.url, counter)
    if counter:
        check(done > began, f"upkeep did nothing meanwhile: {counter} stayed at {began}")
    waited = percentiles(waits["waited_ms"])
    return {
        "msg_per_s": count / wall,
        "p99_ms": waited["p99"],
        "max_ms": waited["max"],
        "work_per_s": (done - began) / (wall + seconds),
    }


def _counter(url: str, counter: str) -> int:
    if not counter:
        return 0
    value: int = run_child("benchmarks.scenarios.upkeep:read_counter", url=url, counter=counter)["value"]
    return value


def read_counter(talk: Talk, url: str, counter: str) -> dict[str, int]:
    import mainstem

    with mainstem.connect(url) as hub:
        return {"value": hub.statistics()[counter]}


def await_work(talk: Talk, url: str, counter: str) -> None:
    """Wait until upkeep has begun."""
    import mainstem

    with mainstem.connect(url) as hub:
        if counter == "bytes_rewritten":
            hub.streams.delete(OLD)
        deadline = time.monotonic() + 90
        while not hub.statistics()[counter]:
            check(time.monotonic() < deadline, f"upkeep did not begin: {hub.statistics()}")
            time.sleep(0.05)


def produce(talk: Talk, url: str, count: int) -> None:
    import mainstem

    with mainstem.connect(url) as hub, hub.producer() as producer:
        values = messages(count, SIZE)
        settle()
        talk.say("ready")
        talk.hear()
        send = producer.send
        for value in values:
            send(product.STREAM, value)
        producer.flush()


def follow(talk: Talk, url: str, count: int) -> None:
    import mainstem

    with mainstem.connect(url) as hub, hub.consumer(product.STREAM, start="earliest") as consumer:
        settle()
        talk.say("ready")
        got = 0
        for batch in consumer.batches():
            got += batch.count
            if got >= count:
                return


def one_at_a_time(talk: Talk, url: str, count: int) -> dict[str, list[float]]:
    """From the time a message is due until it is acknowledged."""
    import mainstem

    waited: list[float] = []
    with mainstem.connect(url) as hub, hub.producer() as producer:
        settle()
        start = time.monotonic_ns() + LEAD_NS

        def note(due: int) -> Any:
            return lambda ack: waited.append((time.monotonic_ns() - due) / 1e6)

        for number in range(count):
            due = start + number * 1_000_000_000 // RATE
            sleep_until(due)
            producer.send(product.STREAM, bytes(SIZE)).add_done_callback(note(due))
        producer.flush()
    check(len(waited) == count, f"{len(waited)} of {count} messages were acknowledged")
    return {"waited_ms": waited}


# Folders in which upkeep has work.

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def _prepared(data: Path, kind: str, quick: bool) -> Path:
    """Built once an invocation, because it takes long; each run gets a copy of its own."""
    folder = tempfile.TemporaryDirectory(prefix=f"bench-{kind}-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(folder)
    run_child("benchmarks.scenarios.upkeep:prepare", timeout_s=1_800, folder=folder.name, kind=kind, quick=quick)
    return Path(folder.name)


def _clone(source: Path, target: Path) -> None:
    """A copy of a stopped data folder. Blocks are never changed, so a link will do."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.block"))
    for block in (source / "blocks").iterdir():
        os.link(block, target / "blocks" / block.name)


def prepare(talk: Talk, folder: str, kind: str, quick: bool) -> None:
    import mainstem

    with mainstem.open(folder) as hub, hub.producer() as producer:
        if kind == "merging":
            # Without its upkeep, or there would be nothing left to merge.
            hub._port.log.upkeep.close()  # type: ignore[attr-defined]
            hub.streams.create(OLD)
            for _ in range(TINY_ENTRIES // (5 if quick else 1)):
                producer.send(OLD, bytes(SIZE)).result()
            return
        hub.streams.create(OLD)
        hub.streams.create("kept")
        hub._port.log.upkeep.close()  # type: ignore[attr-defined]
        values = [os.urandom(SIZE) for _ in range(10_000)]
        keys = [[b"key-%d" % ((turn * 10_000 + index) % KEYS) for index in range(10_000)] for turn in range(5)]
        for turn in range(BULK_BYTES // (5 if quick else 1) // (SIZE * 10_000)):
            if kind == "compacting":
                producer.send_many("kept", values, keys[turn % 5])
            else:
                producer.send_many(OLD if turn % 5 < 3 else "kept", values)
        producer.flush()
        if kind == "compacting":
            hub.streams.alter("kept", cleanup="compact")


NOTES = {
    "merging": f"{TINY_ENTRIES:,} messages that were written one at a time",
    "rewriting": "blocks of which a deleted stream had 60 %",
    "compacting": f"{BULK_BYTES // 1_000_000} MB of {KEYS:,} keys",
}

SCENARIO = Scenario(
    name="upkeep",
    title="One producer and one follower beside the upkeep of the log, against the same without",
    cases=tuple(
        ours(kind, functools.partial(run, kind=kind), note)  # the load is the same in all
        for kind, note in NOTES.items()
    ),
    shown=("share_of_idle", "msg_per_s", "p99_ms", "idle_p99_ms", "max_ms", "work_per_s"),
    targets=tuple(
        target
        for kind in NOTES
        for target in (Target(kind, "share_of_idle", 0.8), Target(kind, "p99_ms", 25, at_most=True))
    ),
)
