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
# Of a source that yields one row at a time: enough to know its rate.
YIELDED_ROWS = 1_000_000
YIELDING_PARTS = 4
WIDE_ROWS = 4_000_000
WIDE_COLUMNS = 20
WIDE = "wide"
DAYS = 30
CPU = ("rows_per_spark_cpu_s", "times_parquet_cpu")
HERE = "benchmarks.scenarios.spark_read"


def run_narrow(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    folder = sparks.narrow(settings.data, count, "parquet", "json")
    return sparks.measured(f"{HERE}:narrow", folder=str(folder), count=count, yielded=settings.count(YIELDED_ROWS))


def run_wide(settings: Settings) -> Metrics:
    count = settings.count(WIDE_ROWS)
    return sparks.measured(f"{HERE}:wide", folder=str(_wide(settings.data, count)), count=count)


def run_day(settings: Settings) -> Metrics:
    count = settings.count(ROWS)
    folder = sparks.narrow(settings.data, count, "parquet", "json")
    return sparks.measured(f"{HERE}:day", folder=str(folder), count=count)


# In a process of its own ----------------------------------------------------------------------------------------------


def narrow(talk: Talk, folder: str, count: int, yielded: int) -> dict[str, float]:
    spark = sparks.session(folder)
    spark.dataSource.register(_row_source())
    schema = sparks.COLUMNS
    found = sparks.in_turn(
        {
            "ours": lambda: sparks.stream(spark, f"{folder}/log").selectExpr(*sparks.SUMS).first(),
            "parquet": lambda: spark.read.parquet(f"{folder}/parquet").selectExpr(*sparks.SUMS).first(),
            "json": lambda: spark.read.schema(schema).json(f"{folder}/json").selectExpr(*sparks.SUMS).first(),
            "rows": lambda: (
                spark.read.format("rows_of_benchmark").option("count", yielded).load().selectExpr(*sparks.SUMS).first()
            ),
        }
    )
    for name, timed in found.items():
        sparks.check_sums(timed, yielded if name == "rows" else count)
    taken, parquet, json, rows = found["ours"], found["parquet"], found["json"], found["rows"]
    return {
        "rows_per_s": count / taken.seconds,
        "times_parquet": parquet.seconds / taken.seconds,
        "times_json": json.seconds / taken.seconds,
        "times_rows": (count / taken.seconds) / (yielded / rows.seconds),
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
    """The share of the bytes that is in the plan of a query for one day of thirty, and that the query has its rows."""
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
    for each in ("", where):
        given = {"hub": f"{folder}/log", "stream": sparks.STREAM, "where": each}
        parts: list[Any] = list(BatchReader(read_options(given, streaming=False), schema).partitions())
        opened.append(sum(piece.bytes for part in parts for piece in part.slices))
    return {"opened_percent": 100 * opened[1] / opened[0]}


def _row_source() -> type[Any]:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class RowReader(DataSourceReader):
        def __init__(self, count: int) -> None:
            self._count = count

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(part) for part in range(YIELDING_PARTS)]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            text, part = "x" * sparks.TEXT_BYTES, partition.value
            for number in range(part * self._count // YIELDING_PARTS, (part + 1) * self._count // YIELDING_PARTS):
                yield number, number * 0.5, text

    class RowSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "rows_of_benchmark"

        def schema(self) -> str:
            return sparks.COLUMNS

        def reader(self, schema: Any) -> DataSourceReader:
            return RowReader(int(self.options["count"]))

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
        ours("one day of thirty", run_day, "by option where; the share of bytes that is in the plan"),
    ),
    shown=("rows_per_s", "times_parquet", "times_json", "times_rows", "times_all", "opened_percent", *CPU),
    targets=(
        Target("3 columns", "rows_per_s", 5_000_000),
        Target("3 columns", "times_parquet", 0.8),
        Target("3 columns", "times_json", 2.5),
        Target("3 columns", "times_rows", 3),
        Target("2 of 20 columns", "times_all", 4),
        Target("2 of 20 columns", "times_json", 5),
        Target("one day of thirty", "opened_percent", 10, at_most=True),
    ),
)
