"""A group of two processes reads a backlog, and so does a group of one, from the same server.

Both read what was written before the server was started. A member joins first and waits until it holds its share, so
that what is timed is reading. Every round reads with one and with two, in turn; `times_one` is the ratio of the two.

The server has its share of the cores. `times_possible` says what that leaves for two, from the processor time that the
reader and the server took for one: with as many cores as there are, and no other loss.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, Stopwatch, check, run_child, scratch
from benchmarks.payload import pool_array
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

SIZE = 100
COUNT = 3_000_000
SHARDS = 8
HELD_SECONDS = 30
_WARM_BYTES = 1 << 30
_PAGE_BYTES = 4096
HERE = "benchmarks.scenarios.group_of_two"


def run(settings: Settings, mode: str) -> Metrics:
    count = settings.count(COUNT)
    with scratch(settings.data, "group-of-two") as folder:
        with product.Server(folder) as server:
            product.create_stream(server.url, shards=SHARDS)
            run_child(f"{HERE}:fill", url=server.url, count=count)
        # A new server has nothing in memory: what is read comes from its files.
        with product.Server(folder) as server:
            # Nobody is timed who reads the files into the cache of the system for the other.
            _warm(folder)
            one = _read(server, 1, count, mode)
            two = _read(server, 2, count, mode)
    return {
        "times_one": one["wall_s"] / two["wall_s"],
        "times_possible": _possible(one),
        "msg_per_s": count / two["wall_s"],
        "one_msg_per_s": count / one["wall_s"],
        "client_cores": two["client_cpu_s"] / two["wall_s"],
        "server_cores": two["server_cpu_s"] / two["wall_s"],
        "one_client_cores": one["client_cpu_s"] / one["wall_s"],
        "one_server_cores": one["server_cpu_s"] / one["wall_s"],
    }


def _possible(one: dict[str, float]) -> float:
    cores = len(os.sched_getaffinity(0))
    return min(2.0, cores * one["client_cpu_s"] / (one["client_cpu_s"] + one["server_cpu_s"]))


def _warm(folder: Path) -> None:
    for path in folder.glob("data/blocks/*"):
        path.read_bytes()


def _warm_memory() -> None:
    """Memory that a virtual machine has not used for a while comes slowly the next time: not to whoever reads first."""
    memory = np.empty(_WARM_BYTES, np.uint8)
    memory[::_PAGE_BYTES] = 1


def fill(talk: Talk, url: str, count: int) -> None:
    """As many messages in every shard, in batches of the size that a busy producer makes."""
    import mainstem

    pool = pool_array(SIZE)
    with mainstem.connect(url) as hub, hub.producer() as producer:
        for first in range(0, count, 5_000):
            places = np.arange(first, min(first + 5_000, count)) % len(pool)
            producer.send_many(product.STREAM, [row.tobytes() for row in pool[places]], shard=first // 5_000 % SHARDS)
        producer.flush()


def _read(server: product.Server, members: int, count: int, mode: str) -> dict[str, float]:
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(f"{HERE}:read", url=server.url, group=f"{mode}-{members}", share=SHARDS // members, mode=mode)
            )
            for _ in range(members)
        ]
        for child in children:
            child.expect("ready")
        _warm_memory()
        start = time.monotonic_ns()
        watch = Stopwatch([server.pid])
        for child in children:
            child.send({})
        results = [child.result() for child in children]
        took = watch.stop()
    check(sum(result["count"] for result in results) == count, "messages are missing or were read twice")
    places = np.bincount(np.arange(count) % len(pool_array(SIZE)), minlength=len(pool_array(SIZE)))
    digest = int((places * np.arange(len(places)) ** 2).sum())
    check(sum(result["digest"] for result in results) == digest, "other messages were read than were written")
    return {
        "wall_s": (max(result["finished_ns"] for result in results) - start) / 1e9,
        "client_cpu_s": sum(result["client_cpu_s"] for result in results),
        "server_cpu_s": took["server_cpu_s"],
    }


def read(talk: Talk, url: str, group: str, share: int, mode: str) -> dict[str, Any]:
    import mainstem

    with (
        mainstem.connect(url) as hub,
        hub.consumer(product.STREAM, group=group, start="earliest", follow=False) as consumer,
    ):
        values = [_first(consumer)]
        deadline = time.monotonic() + HELD_SECONDS
        while len(consumer.positions) != share:
            # Asking for a record is how a member hears what it shall hold.
            check(time.monotonic() < deadline, f"{len(consumer.positions)} shards are held, {share} are its share")
            values.append(_first(consumer))
            time.sleep(0.02)
        settle()
        talk.say("ready")
        talk.hear()
        watch = Stopwatch()
        columns: list[Any] = []
        if mode == "batches":
            columns = [batch.to_arrow().column("value") for batch in consumer.batches()]
        elif mode == "work":
            for record in consumer:
                hashlib.sha256(record.value).hexdigest()
                values.append(record.value)
        else:
            values += [record.value for record in consumer]
        finished_ns = time.monotonic_ns()
        took = watch.stop()
    values += [value for column in columns for value in column.to_pylist()]
    data = np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, SIZE)
    places = np.ascontiguousarray(data[:, :4]).view("<u4").reshape(-1).astype(np.int64)
    return {**took, "count": len(values), "digest": int((places**2).sum()), "finished_ns": finished_ns}


def _first(consumer: Any) -> bytes:
    record = consumer.poll(HELD_SECONDS)
    check(record is not None, "nothing to read")
    return bytes(record.value)


SCENARIO = Scenario(
    name="group_of_two",
    title="A group of two processes reads a backlog of messages of 100 bytes",
    cases=(
        ours("records", lambda settings: run(settings, "records"), "one Python record per message"),
        ours("work", lambda settings: run(settings, "work"), "the same, and a SHA-256 of each"),
        ours("batches", lambda settings: run(settings, "batches"), "each batch as Arrow"),
    ),
    shown=(
        "times_one",
        "times_possible",
        "msg_per_s",
        "one_msg_per_s",
        "client_cores",
        "server_cores",
        "one_client_cores",
        "one_server_cores",
    ),
    targets=(Target("records", "times_one", 1.6), Target("work", "times_one", 1.6)),
)
