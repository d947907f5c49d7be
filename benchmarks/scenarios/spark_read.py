"""Spark reads a stream: against its own readers of Parquet and of JSON lines, and against a source that yields rows."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import sparks
from benchmarks.child import Talk
from benchmarks.harness import check, run_child
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

ROWS = 10_000_000
WIDE_ROWS = 4_000_000
WIDE_COLUMNS = 20
WIDE = "wide"
DAYS = 30
CPU = ("rows_per_spark_cpu_s", "times_parquet_cpu")
HERE = "benchmarks.scenarios.spark_read"


def run_narrow(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    folder = sparks.narrow(settings.data, count, "parquet", "json")
    return sparks.measured(f"{HERE}:narrow", folder=str(folder), count=count)


def run_wide(settings: Settings) -> Metrics:
    count = settings.count(WIDE_ROWS)
    return sparks.measured(f"{HERE}:wide", folder=str(_wide(settings.data, count)), count=count)


def run_day(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    folder = sparks.narrow(settings.data, count, "parquet", "json")
    return sparks.measured(f"{HERE}:day", folder=str(folder), count=count)


# In a process of its own ----------------------------------------------------------------------------------------------


def narrow(talk: Talk, folder: str, count: int) -> dict[str, float]:
    spark = sparks.session(folder)
    spark.dataSource.register(_row_source())
    schema = sparks.COLUMNS
    found = sparks.in_turn(
        {
            "ours": lambda: sparks.stream(spark, f"{folder}/log").selectExpr(*sparks.SUMS).first(),
            "parquet": lambda: spark.read.parquet(f"{folder}/parquet").selectExpr(*sparks.SUMS).first(),
            "json": lambda: spark.read.schema(schema).json(f"{folder}/json").selectExpr(*sparks.SUMS).first(),
            "rows": lambda: (
                spark.read.format("rows_of_benchmark").load(f"{folder}/parquet").selectExpr(*sparks.SUMS).first()
            ),
        }
    )
    for timed in found.values():
        sparks.check_sums(timed, count)
    taken, parquet, json, rows = found["ours"], found["parquet"], found["json"], found["rows"]
    return {
        "rows_per_s": count / taken.seconds,
        "times_parquet": parquet.seconds / taken.seconds,
        "times_json": json.seconds / taken.seconds,
        "times_rows": rows.seconds / taken.seconds,
        "rows_per_spark_cpu_s": count / taken.cpu_seconds,
        "times_parquet_cpu": parquet.cpu_seconds / taken.cpu_seconds,
    }


def wide(talk: Talk, folder: str, count: int) -> dict[str, float]:
    spark = sparks.session(folder)
    two = ["count(*)", "sum(c1)", "sum(octet_length(c2))"]
    every = ["count(*)", *(f"sum({f'c{n}' if n % 2 else f'octet_length(c{n})'})" for n in range(WIDE_COLUMNS))]
    schema = ", ".join(f"c{n} {'LONG' if n % 2 else 'STRING'}" for n in range(WIDE_COLUMNS))
    log = f"{folder}/log"
    found = sparks.in_turn(
        {
            "two": lambda: sparks.stream(spark, log, WIDE, columns="c1,c2").selectExpr(*two).first(),
            "every": lambda: sparks.stream(spark, log, WIDE).selectExpr(*every).first(),
            "json": lambda: spark.read.schema(schema).json(f"{folder}/json").selectExpr(*two).first(),
        }
    )
    taken, all_, json = found["two"], found["every"], found["json"]
    # Of all columns: the count, and the sums of c1 and c2, which follow that of c0.
    among = tuple(all_.returned[place] for place in (0, 2, 3))
    check(tuple(taken.returned) == tuple(json.returned) == among, f"not all have read the same: {found}")
    check(among[0] == count, f"{among[0]:,} rows were read, {count:,} written")
    return {
        "rows_per_s": count / taken.seconds,
        "times_all": all_.seconds / taken.seconds,
        "times_json": json.seconds / taken.seconds,
        "rows_per_spark_cpu_s": count / taken.cpu_seconds,
    }


def day(talk: Talk, folder: str, count: int) -> dict[str, float]:
    """Of the bytes, the share that is in the plan of a query for one day of thirty, and the share that is read by what
    reads it: in this process, where the kernel counts it. That the query has its rows is checked with Spark."""
    from mainstem.spark import types
    from mainstem.spark.options import read_options
    from mainstem.spark.source import BatchReader

    first, end = count // 2, count // 2 + count // DAYS
    spark = sparks.session(folder)
    where = f"id >= {first} AND id < {end}"
    kept = sparks.stream(spark, f"{folder}/log", where=where).count()
    check(kept == end - first, f"{kept:,} rows of the day, {end - first:,} were written")
    schema = types.to_spark(sparks.arrow_schema())
    opened: list[int] = []
    read: list[int] = []
    # The day comes first, while nothing is in memory.
    for each, rows in ((where, kept), ("", count)):
        given = {"hub": f"{folder}/log", "stream": sparks.STREAM, "where": each}
        reader = BatchReader(read_options(given, streaming=False), schema)
        parts: list[Any] = list(reader.partitions())
        opened.append(sum(piece.bytes for part in parts for piece in part.slices))
        before = _bytes_read()
        there = sum(batch.num_rows for part in parts for batch in reader.read(part))
        read.append(_bytes_read() - before)
        check(there == rows, f"{there:,} rows were read, and {rows:,} are there")
    return {"opened_percent": 100 * opened[0] / opened[1], "read_percent": 100 * read[0] / read[1]}


def _bytes_read() -> int:
    """What this process has read so far, from disk or from the kernel's memory."""
    (count,) = (line.split()[1] for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar"))
    return int(count)


def _row_source() -> type[Any]:
    """What most write who write a source: one that gives Spark a row at a time. It has them from Parquet files."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class RowReader(DataSourceReader):
        def __init__(self, folder: str) -> None:
            self._folder = folder

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(str(path)) for path in sorted(Path(self._folder).glob("*.parquet"))]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            import pyarrow.parquet as pq

            for batch in pq.ParquetFile(partition.value).iter_batches():
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    class RowSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rows_of_benchmark"

        def schema(self) -> str:
            return sparks.COLUMNS

        def reader(self, schema: Any) -> DataSourceReader:
            return RowReader(self.options["path"])

    return RowSource


# The wide rows --------------------------------------------------------------------------------------------------------

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def _wide(data: Path, count: int) -> Path:
    kept = tempfile.TemporaryDirectory(prefix="bench-spark-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(kept)
    run_child(f"{HERE}:build_wide", timeout_s=sparks.TIMEOUT_S, folder=kept.name, count=count)
    return Path(kept.name)


def build_wide(talk: Talk, folder: str, count: int) -> None:
    """A stream of texts and numbers in turn, and the same rows as JSON lines."""
    import pyarrow as pa

    import mainstem

    schema = pa.schema([(f"c{n}", pa.int64() if n % 2 else pa.string()) for n in range(WIDE_COLUMNS)])
    random = np.random.default_rng(3)
    names = pa.array([f"customer-{n:08}" for n in range(5_000)])
    with mainstem.open(f"{folder}/log") as hub, hub.producer() as producer:
        hub.streams.create(WIDE, schema=schema, retention="300000d")
        for first in range(0, count, sparks.TABLE_ROWS):
            numbers = pa.array(random.integers(0, len(names), min(sparks.TABLE_ROWS, count - first)))
            texts = names.take(numbers)
            columns: list[Any] = [numbers if n % 2 else texts for n in range(WIDE_COLUMNS)]
            producer.send_batch(WIDE, pa.table(columns, schema=schema))
        producer.flush()
    spark = sparks.session(folder)
    sparks.stream(spark, f"{folder}/log", WIDE).write.json(f"{folder}/json")
    spark.stop()


SCENARIO = Scenario(
    name="spark_read",
    title="Spark reads a stream, on two cores, against its own readers",
    cases=(
        ours("3 columns", run_narrow, f"sum(id), sum(x), sum(octet_length(v)) of {ROWS:,} rows of about 100 bytes"),
        ours("2 of 20 columns", run_wide, f"of {WIDE_ROWS:,} rows"),
        ours("one day of thirty", run_day, "by option where; the share of bytes in the plan, and read"),
    ),
    shown=(
        "rows_per_s",
        "times_parquet",
        "times_json",
        "times_rows",
        "times_all",
        "opened_percent",
        "read_percent",
        *CPU,
    ),
    targets=(
        Target("3 columns", "rows_per_s", 5_000_000),
        Target("3 columns", "times_parquet", 0.8),
        Target("3 columns", "times_json", 2.5),
        Target("3 columns", "times_rows", 3),
        Target("2 of 20 columns", "times_all", 4),
        Target("2 of 20 columns", "times_json", 5),
        Target("one day of thirty", "opened_percent", 10, at_most=True),
        Target("one day of thirty", "read_percent", 10, at_most=True),
    ),
)
