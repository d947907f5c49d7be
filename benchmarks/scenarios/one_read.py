"""50 groups read the same gigabyte: what that costs the server, against one group alone."""

from __future__ import annotations

import functools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Child, Stopwatch, check, rss_peak_bytes, run_child
from benchmarks.payload import Receipt, messages
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

GROUPS = 50
PROCESSES = 2
SIZE = 1_000
COUNT = 1_000_000
ROWS = 10_000_000
TABLE_ROWS = 20_000
MATCHING = "percent = 7"
CONTENT_EVERY = 64  # every byte of each so many batches is compared; places and counts are, of all

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def run(settings: Settings, *, shared: bool) -> Metrics:
    count = settings.count(COUNT)
    return _compare(_folder(settings.data, count), count, {"shared": shared})


def run_filtered(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    return _compare(_rows_folder(settings.data, count), count, {"where": MATCHING})


def _compare(folder: Path, count: int, asked: dict[str, Any]) -> Metrics:
    """One group, then all of them, each with a server that has nothing in memory."""
    one = _read(folder, count, 1, asked)
    many = _read(folder, count, GROUPS, asked)
    per_gb = [found["cpu_s"] / found["looked_at_gb"] for found in (one, many)]
    return {
        "reads_ratio": many["read_gb"] / one["read_gb"],
        "cpu_ratio": per_gb[1] / per_gb[0],
        "cpu_s_per_gb": per_gb[1],
        "one_cpu_s_per_gb": per_gb[0],
        "mb_per_s": many["looked_at_gb"] * 1e3 / many["wall_s"],
        "server_rss_mb": many["rss_mb"],
    }


def _read(folder: Path, count: int, groups: int, asked: dict[str, Any]) -> dict[str, float]:
    processes = min(groups, PROCESSES)
    with product.Server(folder) as server, ExitStack() as stack:
        watch = Stopwatch([server.pid])
        readers = [
            stack.enter_context(
                Child(
                    "benchmarks.scenarios.one_read:read",
                    url=server.url,
                    count=count,
                    groups=[f"{groups}-{number}" for number in range(index, groups, processes)],
                    **asked,
                )
            )
            for index in range(processes)
        ]
        for reader in readers:
            reader.expect("ready")
        began = time.perf_counter()
        for reader in readers:
            reader.send({})
        results = [reader.result(600) for reader in readers]
        wall_s, took = time.perf_counter() - began, watch.stop()
        memory = rss_peak_bytes(server.pid)
        found = run_child("benchmarks.scenarios.one_read:forget", url=server.url)
    # What was matched is less than what was looked at: that is the stream, once for each group.
    stored = found["stored_bytes"] / 1e9
    check(len({result["matched"] for result in results}) == 1, "groups with the same predicate got different records")
    return {
        "cpu_s": took["server_cpu_s"],
        "wall_s": wall_s,
        "read_gb": found["read_bytes"] / 1e9,
        "looked_at_gb": groups * stored,
        "rss_mb": memory / 1e6,
    }


def read(
    talk: Talk, url: str, count: int, groups: list[str], shared: bool = True, where: str | None = None
) -> dict[str, int]:
    """Some groups of one member each, on one hub or on one each."""
    import mainstem

    results: list[Any] = [None] * len(groups)
    with ExitStack() as stack:
        hubs = [stack.enter_context(mainstem.connect(url)) for _ in range(1 if shared else len(groups))]
        consumers = [
            stack.enter_context(
                hubs[index % len(hubs)].consumer(
                    product.STREAM, group=group, start="earliest", follow=False, where=where
                )
            )
            for index, group in enumerate(groups)
        ]
        # All of them have joined and have something to read before the first goes on.
        begun = [(each.batches(), each.poll_batch(None)) for each in consumers]
        threads = [
            threading.Thread(target=_read_all, args=(*each, count, where is not None, results, index))
            for index, each in enumerate(begun)
        ]
        settle()
        talk.say("ready")
        talk.hear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    check(len(set(results)) == 1, "groups got different numbers of records")
    return {"matched": results[0]}


def _read_all(
    batches: Iterator[Any], first: Any, count: int, is_filtered: bool, results: list[Any], index: int
) -> None:
    """Take every batch and open few: what readers do with them is not what is measured."""
    try:
        receipt = Receipt(SIZE)
        at = matched = 0
        for number, batch in enumerate(chain((first,), batches)):
            if is_filtered:
                check(batch.offset >= at, f"offset {batch.offset:,} came behind {at:,}")
            else:
                check(batch.offset == at, f"offset {batch.offset:,} came where {at:,} was due")
                if number % CONTENT_EVERY == 0:
                    product.add_batch(receipt, batch)
            at = batch.offset + batch.count
            matched += batch.count
        check(is_filtered or at == count, f"{at:,} messages received, {count:,} sent")
        results[index] = matched
    except Exception as error:
        results[index] = error


def forget(talk: Talk, url: str) -> dict[str, int]:
    """Delete all groups, for the next run; what the server has read until now, and what there is to read."""
    import mainstem

    with mainstem.connect(url) as hub:
        found = hub.statistics()
        for group in hub.groups.list():
            hub.groups.delete(group.name)
    return {"read_bytes": found["block_read_bytes"], "stored_bytes": found["live_bytes"]}


@functools.cache
def _folder(data: Path, count: int) -> Path:
    return _build(data, "fill", count)


@functools.cache
def _rows_folder(data: Path, count: int) -> Path:
    return _build(data, "fill_rows", count)


def _build(data: Path, function: str, count: int) -> Path:
    """Built once an invocation and only read; removed when the interpreter ends."""
    folder = tempfile.TemporaryDirectory(prefix="bench-one-read-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(folder)
    with product.Server(Path(folder.name)) as server:
        run_child(f"benchmarks.scenarios.one_read:{function}", timeout_s=600, url=server.url, count=count)
    return Path(folder.name)


def fill(talk: Talk, url: str, count: int) -> None:
    import mainstem

    with mainstem.connect(url) as hub, hub.producer(compression=None) as producer:
        hub.streams.create(product.STREAM)
        for value in messages(count, SIZE):
            producer.send(product.STREAM, value)
        producer.flush()


def fill_rows(talk: Talk, url: str, count: int) -> None:
    import numpy as np
    import pyarrow as pa

    import mainstem

    schema = pa.schema([("number", pa.int64()), ("percent", pa.int32()), ("amount", pa.float64())])
    random = np.random.default_rng(3)
    with mainstem.connect(url) as hub, hub.producer() as producer:
        hub.streams.create(product.STREAM, schema=schema)
        for first in range(0, count, TABLE_ROWS):
            columns = {
                "number": np.arange(first, first + TABLE_ROWS),
                "percent": random.integers(0, 100, TABLE_ROWS, dtype=np.int32),
                "amount": random.random(TABLE_ROWS),
            }
            producer.send_batch(product.STREAM, pa.table(columns, schema=schema))
        producer.flush()


SCENARIO = Scenario(
    name="one_read",
    title=f"{GROUPS} groups read the same gigabyte, against one group",
    cases=(
        ours("shared hubs", lambda settings: run(settings, shared=True), "2 processes, one hub with 25 groups each"),
        ours("own hubs", lambda settings: run(settings, shared=False), "2 processes, 25 hubs with one group each"),
        ours("filtered", run_filtered, f"the same, of {ROWS:,} rows those with {MATCHING}; per GB looked at"),
    ),
    shown=("reads_ratio", "cpu_ratio", "cpu_s_per_gb", "one_cpu_s_per_gb", "mb_per_s", "server_rss_mb"),
    targets=tuple(
        Target(case, metric, bound, at_most=True)
        for case in ("shared hubs", "own hubs", "filtered")
        for metric, bound in (("reads_ratio", 1.2), ("cpu_ratio", 0.6))
    ),
)
