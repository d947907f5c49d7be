"""Spark reads a stream: against its own readers of Parquet and of JSON lines, and against a source that yields rows."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.child import Talk
from benchmarks.harness import check, run_child
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000_000
WIDE_ROWS = 4_000_000
WIDE_COLUMNS = 20
TABLE_ROWS = 50_000
TEXT_BYTES = 84
NARROW, WIDE = "narrow", "wide"
ROOT = Path(__file__).parents[2]


def run_narrow(settings: Settings) -> Metrics:
    return _measured("narrow", settings)


def run_wide(settings: Settings) -> Metrics:
    return _measured("wide", settings)


def run_day(settings: Settings) -> Metrics:
    return _measured("day", settings)


def run_catch_up(settings: Settings) -> Metrics:
    return _measured("catch_up", settings)


def _measured(what: str, settings: Settings) -> Metrics:
    folder = data_folder(settings.data, settings.count(ROWS), settings.count(WIDE_ROWS))
    found = run_child(f"benchmarks.scenarios.spark_read:{what}", timeout_s=1_800, folder=str(folder))
    return {name: float(value) for name, value in found.items() if name != "event"}


# In a process of its own.


def narrow(talk: Talk, folder: str) -> dict[str, float]:
    spark = session(folder)
    sums = ["count(*)", "sum(id)", "sum(x)", "sum(octet_length(v))"]
    seconds = _compared(
        {
            "ours": lambda: _stream(spark, folder, NARROW).selectExpr(*sums),
            "parquet": lambda: spark.read.parquet(f"{folder}/{NARROW}.parquet").selectExpr(*sums),
            "json": lambda: (
                spark.read.schema("id LONG, x DOUBLE, v STRING").json(f"{folder}/{NARROW}.json").selectExpr(*sums)
            ),
            "rows": lambda: (
                spark.read.format("rows_of_benchmark").option("count", 1_000_000).load().selectExpr(*sums[1:])
            ),
        }
    )
    count = _stream(spark, folder, NARROW, columns="id").count()
    return {
        "rows_per_s": count / seconds["ours"],
        "times_parquet": seconds["parquet"] / seconds["ours"],
        "times_json": seconds["json"] / seconds["ours"],
        "times_rows": (count / seconds["ours"]) / (1_000_000 / seconds["rows"]),
    }


def wide(talk: Talk, folder: str) -> dict[str, float]:
    spark = session(folder)
    two = ["sum(c1)", "sum(octet_length(c2))"]
    every = [f"sum({f'c{n}' if n % 2 else f'octet_length(c{n})'})" for n in range(WIDE_COLUMNS)]
    schema = ", ".join(f"c{n} {'LONG' if n % 2 else 'STRING'}" for n in range(WIDE_COLUMNS))
    seconds = _compared(
        {
            "two": lambda: _stream(spark, folder, WIDE, columns="c1, c2").selectExpr(*two),
            "every": lambda: _stream(spark, folder, WIDE).selectExpr(*every),
            "json": lambda: spark.read.schema(schema).json(f"{folder}/{WIDE}.json").selectExpr(*two),
        },
        checked=False,
    )
    count = _stream(spark, folder, WIDE, columns="c1").count()
    return {
        "rows_per_s": count / seconds["two"],
        "times_all": seconds["every"] / seconds["two"],
        "times_json": seconds["json"] / seconds["two"],
    }


def day(talk: Talk, folder: str) -> dict[str, float]:
    """A predicate that keeps one day of thirty: how much of the bytes is in its plan."""
    from mainstem.spark.origin import Access
    from mainstem.spark.slices import list_slices

    access = Access.to(f"{folder}/log")
    whole = list_slices(access, NARROW)
    high = max(piece.end for piece in whole)
    some = list_slices(access, NARROW, where=f"id >= {high // 2} AND id < {high // 2 + high // 30}")
    return {"opened_percent": 100 * sum(piece.bytes for piece in some) / sum(piece.bytes for piece in whole)}


def catch_up(talk: Talk, folder: str) -> dict[str, float]:
    """From the start of a query to its end, which comes when it has everything."""
    spark = session(folder)
    count = _stream(spark, folder, NARROW, columns="id").count()
    seconds = 0.0
    for attempt in range(2):
        began = time.perf_counter()
        rows = spark.readStream.format("mainstem").options(hub=f"{folder}/log", startingOffsets="earliest").load(NARROW)
        sums = rows.selectExpr("count(*) AS n", "sum(id)", "sum(x)", "sum(octet_length(v))")
        query = (
            sums.writeStream.format("memory")
            .queryName(f"sums{attempt}")
            .outputMode("complete")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - began
        check(spark.table(f"sums{attempt}").first()["n"] == count, "the query has not all rows")  # type: ignore[index]
    return {"rows_per_s": count / seconds}


def session(folder: str) -> SparkSession:
    import mainstem.spark

    # The tasks of the row source find this module.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    config = {"spark.ui.enabled": False, "spark.driver.memory": "3g", "spark.local.dir": folder}
    spark = mainstem.spark.session("benchmark", "local[2,4]", config)
    spark.dataSource.register(_row_source())
    return spark


def _stream(spark: SparkSession, folder: str, stream: str, **options: Any) -> DataFrame:
    return spark.read.format("mainstem").options(hub=f"{folder}/log", **options).load(stream)


def _compared(cases: dict[str, Callable[[], DataFrame]], *, checked: bool = True) -> dict[str, float]:
    """Each twice to warm up, then in turn; the median of three."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    results: dict[str, Any] = {}
    for _ in range(5):
        for name, make in cases.items():
            began = time.perf_counter()
            results[name] = make().collect()
            found[name].append(time.perf_counter() - began)
    same = [results[name] for name in ("ours", "parquet", "json") if name in results]
    check(not checked or all(result == same[0] for result in same), f"readers disagree: {results}")
    return {name: float(np.median(seconds[2:])) for name, seconds in found.items()}


def _row_source() -> type[Any]:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class RowReader(DataSourceReader):
        def __init__(self, count: int) -> None:
            self._count = count

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(part) for part in range(4)]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            text = "x" * TEXT_BYTES
            for number in range(partition.value * self._count // 4, (partition.value + 1) * self._count // 4):
                yield number, number * 0.5, text

    class RowSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rows_of_benchmark"

        def schema(self) -> str:
            return "id LONG, x DOUBLE, v STRING"

        def reader(self, schema: Any) -> DataSourceReader:
            return RowReader(int(self.options["count"]))

    return RowSource


@functools.cache
def data_folder(data: Path, count: int, wide_count: int) -> Path:
    """Built once an invocation, because it takes long and is only read; removed when the interpreter ends."""
    folder = tempfile.TemporaryDirectory(prefix="bench-spark-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(folder)
    run_child(
        "benchmarks.scenarios.spark_read:build", timeout_s=1_800, folder=folder.name, count=count, wide_count=wide_count
    )
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def build(talk: Talk, folder: str, count: int, wide_count: int) -> None:
    """The streams, and the same rows as Parquet and as JSON lines."""
    import pyarrow as pa

    import mainstem

    narrow_schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string())])
    wide_schema = pa.schema([(f"c{n}", pa.int64() if n % 2 else pa.string()) for n in range(WIDE_COLUMNS)])
    random = np.random.default_rng(3)
    with mainstem.open(f"{folder}/log") as hub, hub.producer(compression="zstd") as producer:
        hub.streams.create(NARROW, schema=narrow_schema, retention="300000d")
        words = np.array([random.bytes(TEXT_BYTES // 2).hex() for _ in range(10_000)])
        for first in range(0, count, TABLE_ROWS):
            ids = np.arange(first, min(first + TABLE_ROWS, count))
            texts = pa.array(words[random.integers(0, len(words), len(ids))])
            producer.send_batch(NARROW, pa.table([pa.array(ids), pa.array(ids * 0.5), texts], schema=narrow_schema))
        hub.streams.create(WIDE, schema=wide_schema, retention="300000d")
        for first in range(0, wide_count, TABLE_ROWS):
            numbers = random.integers(0, 5_000, min(TABLE_ROWS, wide_count - first))
            texts = pa.array(np.array([f"customer-{n:08}" for n in range(5_000)])[numbers])
            columns = [pa.array(numbers) if n % 2 else texts for n in range(WIDE_COLUMNS)]
            producer.send_batch(WIDE, pa.table(columns, schema=wide_schema))
        producer.flush()
    spark = session(folder)
    _stream(spark, folder, NARROW).write.parquet(f"{folder}/{NARROW}.parquet")
    _stream(spark, folder, NARROW).write.json(f"{folder}/{NARROW}.json")
    _stream(spark, folder, WIDE).write.json(f"{folder}/{WIDE}.json")
    spark.stop()


SCENARIO = Scenario(
    name="spark_read",
    title="Spark reads a stream, on two cores, against its own readers",
    cases=(
        ours("3 columns", run_narrow, f"sum(id), sum(x), sum(octet_length(v)) of {ROWS:,} rows of about 100 bytes"),
        ours("2 of 20 columns", run_wide, f"of {WIDE_ROWS:,} rows"),
        ours("a thirtieth of the ids", run_day, "the share of bytes that is in the plan"),
        ours("catch-up", run_catch_up, f"a streaming query over {ROWS:,} rows into an aggregate, its start included"),
    ),
    shown=("rows_per_s", "times_parquet", "times_json", "times_rows", "times_all", "opened_percent"),
    targets=(
        Target("3 columns", "rows_per_s", 5_000_000),
        Target("3 columns", "times_parquet", 0.8),
        Target("3 columns", "times_json", 2.5),
        Target("3 columns", "times_rows", 3),
        Target("2 of 20 columns", "times_all", 4),
        Target("2 of 20 columns", "times_json", 5),
        Target("a thirtieth of the ids", "opened_percent", 10, at_most=True),
        Target("catch-up", "rows_per_s", 2_500_000),
    ),
)
