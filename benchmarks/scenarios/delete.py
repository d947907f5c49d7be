"""Deleting a stream of a million entries: how long that keeps commits waiting at a time.

The log runs in one process. The time is that of applying a flush to the ledger, checkpoints included, which is when
commits wait: for each of the flushes that take the stream's rows away.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.entries import build
from benchmarks.harness import check, percentiles, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

if TYPE_CHECKING:
    from benchmarks.child import Talk

ENTRIES = 1_000_000
STREAM = "long"


def run(settings: Settings) -> Metrics:
    count = settings.count(ENTRIES)
    with scratch(settings.data, "delete") as folder:
        found = run_child("benchmarks.scenarios.delete:delete", timeout_s=600, folder=str(folder / "data"), count=count)
    waited = percentiles(found["applied_ms"])
    return {"max_ms": waited["max"], "p99_ms": waited["p99"], "p50_ms": waited["p50"], "seconds": found["seconds"]}


def delete(talk: Talk, folder: str, count: int) -> dict[str, Any]:
    from mainstem.log.batcher import Batcher
    from mainstem.log.flush import DeleteStream
    from mainstem.log.log import Log

    build(talk, folder, STREAM, count)
    applied: list[float] = []
    apply = Batcher._apply

    def timed(self: Batcher, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return apply(self, *arguments)
        finally:
            applied.append((time.perf_counter() - start) * 1e3)

    log = Log(Path(folder))
    Batcher._apply = timed  # type: ignore[assignment, method-assign]
    start = time.perf_counter()
    log.execute(DeleteStream(1, log.clock.now_us()))
    for _ in log.upkeep.round():
        pass
    seconds = time.perf_counter() - start
    check(log.upkeep.counters()["rows_dropped"] == count, "not all rows are gone")
    log.close()
    return {"applied_ms": applied, "seconds": seconds}


SCENARIO = Scenario(
    name="delete",
    title="Deleting a stream of 1,000,000 entries: how long commits wait at a time",
    cases=(ours("delete", run, "at the pace of a server, a fifth of the time"),),
    shown=("max_ms", "p99_ms", "p50_ms", "seconds"),
    targets=(Target("delete", "max_ms", 10, at_most=True),),
    rounds_max=3,
)
