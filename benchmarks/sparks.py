"""What the scenarios of Spark share: a session, frames over streams, readers timed in turn, and the rows they read.

A case is one child process with one session on two cores. What is compared runs in that session in turn (A, B, A, B,
...): the first turns warm up the JVM and do not count, of the others the median does.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.child import Talk
from benchmarks.harness import AT_END, REPOSITORY, check, cpu_seconds, run_child

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

STREAM = "narrow"
COLUMNS = "id LONG, x DOUBLE, v STRING"
SUMS = ("count(*)", "sum(id)", "sum(x)", "sum(octet_length(v))")
# With an id and a number of 8 bytes each, about 100 bytes a row.
TEXT_BYTES = 84
TABLE_ROWS = 50_000
WARM_UPS = 2
TURNS = 3
# So often each case runs.
RUNS = WARM_UPS + TURNS
TIMEOUT_S = 1_800.0

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def measured(function: str, **arguments: Any) -> dict[str, float]:
    """The metrics that a function of a scenario returns, run in a process of its own."""
    found = run_child(function, timeout_s=TIMEOUT_S, **arguments)
    return {name: float(value) for name, value in found.items() if name != "event"}


def session(folder: str, **config: object) -> SparkSession:
    """On two cores; what Spark spills goes to the disk under measurement."""
    import mainstem.spark

    # Workers find this package, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    )
    ours = {"spark.ui.enabled": False, "spark.driver.memory": "3g", "spark.local.dir": f"{folder}/spark"}
    # So that what Spark used is known as this benchmark's, and not taken for that of others.
    if _reap not in AT_END:
        AT_END.append(_reap)
    return mainstem.spark.session("benchmark", "local[2,4]", {**ours, **config})


def _reap() -> None:
    """End the session of this process and its JVM, and wait for that."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def stream(spark: SparkSession, hub: str, name: str = STREAM, **options: Any) -> DataFrame:
    return spark.read.format("mainstem").options(hub=hub, **options).load(name)


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians of one case: seconds, and CPU seconds of the session's processes (driver, JVM, workers); what it returned
    last."""

    seconds: float
    cpu_seconds: float
    returned: Any


def in_turn(cases: dict[str, Callable[[], Any]]) -> dict[str, Timed]:
    """Run all cases in turn, some times to warm up, then those that count."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    returned: dict[str, Any] = {}
    for _ in range(RUNS):
        for name, run in cases.items():
            cpu, began = cpu_seconds(os.getpid()), time.perf_counter()
            returned[name] = run()
            taken[name].append((time.perf_counter() - began, cpu_seconds(os.getpid()) - cpu))
    medians = {name: np.median(each[WARM_UPS:], axis=0) for name, each in taken.items()}
    return {name: Timed(float(each[0]), float(each[1]), returned[name]) for name, each in medians.items()}


def check_sums(timed: Timed, count: int) -> None:
    """Void the run unless the case returned the sums of so many rows."""
    found = tuple(timed.returned)
    check(found == expected_sums(count), f"not the rows that were written: {found}")


def expected_sums(count: int) -> tuple[int, int, float, int]:
    """What `SUMS` of the rows is. The halves add up without rounding."""
    ids = count * (count - 1) // 2
    return count, ids, ids * 0.5, count * TEXT_BYTES


# The rows -------------------------------------------------------------------------------------------------------------


@functools.cache
def narrow(data: Path, count: int, *forms: str) -> Path:
    """A folder with a log, in `log`, whose stream has `count` rows; the same rows as files in each of these forms of
    Spark's. Built once an invocation, because it is only read; gone when that ends."""
    kept = tempfile.TemporaryDirectory(prefix="bench-spark-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(kept)
    run_child("benchmarks.sparks:build", timeout_s=TIMEOUT_S, folder=kept.name, count=count, forms=forms)
    return Path(kept.name)


def build(talk: Talk, folder: str, count: int, forms: Sequence[str]) -> None:
    import mainstem

    with mainstem.open(f"{folder}/log") as hub:
        fill(hub, STREAM, count)
    if forms:
        spark = session(folder)
        for form in forms:
            stream(spark, f"{folder}/log").write.format(form).save(f"{folder}/{form}")
        spark.stop()


def fill(hub: Any, name: str, count: int) -> None:
    """A stream of `count` rows: ids from 0, half of each, and texts of which no two are alike, as those of events."""
    import pyarrow as pa

    random = np.random.default_rng(3)
    hub.streams.create(name, schema=arrow_schema(), retention="300000d")
    with hub.producer() as producer:
        for first in range(0, count, TABLE_ROWS):
            ids = np.arange(first, min(first + TABLE_ROWS, count))
            columns: list[Any] = [pa.array(ids), pa.array(ids * 0.5), _texts(random, len(ids))]
            producer.send_batch(name, pa.table(columns, schema=arrow_schema()))
        producer.flush()


def _texts(random: np.random.Generator, count: int) -> Any:
    """Hexadecimal digits, which a compressor could halve."""
    import pyarrow as pa

    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    bytes_ = digits[random.integers(0, len(digits), count * TEXT_BYTES, dtype=np.uint8)]
    ends = np.arange(0, (count + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(bytes_))


def arrow_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string())])
