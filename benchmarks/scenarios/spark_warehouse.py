"""The job `warehouse`: a stream into a Delta table, where rows are only moved and where they go through a query.

A case is a session on two cores that loads the stream into new tables, some of them to warm up. The time is that of the
whole job: planning, writing, commit, and the compaction of what it wrote.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

from benchmarks import sparks
from benchmarks.child import Talk
from benchmarks.harness import check
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

ROWS = 10_000_000
SQL = f"SELECT id, x + 0 AS x, v FROM {sparks.STREAM} WHERE id >= 0"
HERE = "benchmarks.scenarios.spark_warehouse"


def run_moved(settings: Settings) -> Metrics:
    return _run(settings)


def run_by_shard(settings: Settings) -> Metrics:
    return _run(settings, partition="shard")


def run_queried(settings: Settings) -> Metrics:
    return _run(settings, sql=SQL)


def _run(settings: Settings, **options: str) -> Metrics:
    count = settings.count(ROWS)
    folder = sparks.narrow(settings.data, count, "parquet", "json")
    return sparks.measured(f"{HERE}:load", folder=str(folder), count=count, options=options)


def load(talk: Talk, folder: str, count: int, options: dict[str, Any]) -> dict[str, float]:
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    from mainstem.spark.jobs.warehouse import warehouse

    spark = sparks.session(folder)
    tables = Path(folder) / "tables"
    numbers = itertools.count()
    last = tables / "none"

    def loaded() -> int:
        nonlocal last
        shutil.rmtree(last, ignore_errors=True)
        last = tables / str(next(numbers))
        last.mkdir(parents=True)
        return warehouse(f"{folder}/log", sparks.STREAM, last, spark=spark, **options).rows_written

    taken = sparks.in_turn({"load": loaded})["load"]
    table = DeltaTable(str(last)).to_pyarrow_table(columns=["id", "x", "v"])
    found = (
        len(table),
        pc.sum(table["id"]).as_py(),
        pc.sum(table["x"]).as_py(),
        pc.sum(pc.binary_length(table["v"])).as_py(),
    )
    check(taken.returned == count, f"{taken.returned:,} rows written of {count:,}")
    check(found == sparks.expected_sums(count), f"not the rows of the stream: {found}")
    shutil.rmtree(tables, ignore_errors=True)
    return {"rows_per_s": count / taken.seconds, "rows_per_spark_cpu_s": count / taken.cpu_seconds}


SCENARIO = Scenario(
    name="spark_warehouse",
    title="The job warehouse: a stream into a Delta table, on two cores",
    cases=(
        ours("moved", run_moved, "with shard, offset and time of every row"),
        ours("by shard", run_by_shard, "the same, partitioned by the stream's shards"),
        ours("through SQL", run_queried, SQL),
    ),
    shown=("rows_per_s", "rows_per_spark_cpu_s"),
    targets=(Target("moved", "rows_per_s", 2_500_000), Target("through SQL", "rows_per_s", 1_000_000)),
)
