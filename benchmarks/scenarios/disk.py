"""The disk alone: what is left of a durable acknowledgement when there is no server, no network and no second process.

Beside a scenario that waits for single commits, it tells the disk's hour from ours: messages fall due by the same open
schedule, whatever is due goes into one synced write of a file that was made before, and the next write begins when that
one is done. A log that syncs before it acknowledges cannot wait less on this disk at this minute.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.child import Talk, settle
from benchmarks.harness import percentiles, run_child, scratch
from benchmarks.scenarios.base import Case, Metrics, Settings

FILE_BYTES = 64 << 20
PAGE_BYTES = 4096
LEAD_NS = 200_000_000
HERE = "benchmarks.scenarios.disk"


def paced(rate: int, seconds: int, message_bytes: int = 100) -> Case:
    """Messages due at a rate, each waited for until the write that took it is synced."""

    def run(settings: Settings) -> Metrics:
        count = rate * settings.count(seconds)
        with scratch(settings.data, "disk") as folder:
            path = str(folder / "disk")
            took = run_child(
                "benchmarks.scenarios.disk:write_due", path=path, rate=rate, count=count, size=message_bytes
            )
        found = percentiles(took["waited_ms"])
        return {
            "p50_ms": found["p50"],
            "p99_ms": found["p99"],
            "p99_9_ms": found["p99.9"],
            "max_ms": found["max"],
        }

    return Case("disk alone", run, note="the same messages, due in one process, each in a synced write")


def write_due(talk: Talk, path: str, rate: int, count: int, size: int) -> dict[str, Any]:
    waited: list[float] = []
    with _File(path) as file:
        settle()
        start = time.monotonic_ns() + LEAD_NS
        while len(waited) < count:
            first = len(waited)
            left = start + first * 1_000_000_000 // rate - time.monotonic_ns()
            if left > 0:
                time.sleep(left / 1e9)
            last = min(count, (time.monotonic_ns() - start) * rate // 1_000_000_000 + 1)
            file.write(max(1, last - first) * size)
            done = time.monotonic_ns()
            waited += [
                (done - start - number * 1_000_000_000 // rate) / 1e6 for number in range(first, max(first + 1, last))
            ]
    return {"waited_ms": waited}


def one_by_one(count: int, messages: int, message_bytes: int = 100) -> Case:
    """So many messages a write, one write after the other."""

    def run(settings: Settings) -> Metrics:
        writes = settings.count(count)
        with scratch(settings.data, "disk") as folder:
            path = str(folder / "disk")
            took = run_child(
                "benchmarks.scenarios.disk:write_all", path=path, count=writes, size=messages * message_bytes
            )
        return {
            "msg_per_s": writes * messages / took["wall_s"],
            "p50_ms": percentiles(took["took_ms"])["p50"],
            "p99_ms": percentiles(took["took_ms"])["p99"],
            "max_ms": max(took["took_ms"]),
        }

    return Case("disk alone", run, note=f"{messages} messages in a synced write, one write after the other")


def write_all(talk: Talk, path: str, count: int, size: int) -> dict[str, Any]:
    took: list[float] = []
    with _File(path) as file:
        settle()
        begun = time.perf_counter()
        for _ in range(count):
            before = time.perf_counter()
            file.write(size)
            took.append((time.perf_counter() - before) * 1e3)
        return {"wall_s": time.perf_counter() - begun, "took_ms": took}


class _File:
    """Written from front to end in whole pages, again and again; every page of it was on the disk before."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._at = 0

    def __enter__(self) -> _File:
        self._path.write_bytes(bytes(FILE_BYTES))
        self._descriptor = os.open(self._path, os.O_WRONLY)
        os.fsync(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, size: int) -> None:
        pages = -(-size // PAGE_BYTES) * PAGE_BYTES
        if self._at + pages > FILE_BYTES:
            self._at = 0
        os.pwritev(self._descriptor, [bytes(pages)], self._at, os.RWF_DSYNC)
        self._at += pages
