"""A stream into a Delta table: rows that are only moved, rows through a query, and a row for each key.

The rows are those of `spark_read`: an id, a number and a text, about 100 bytes. A case is a session on two cores that
loads once to warm up, then into a table of its own; files and commits are synced.
"""

from __future__ import annotations

import shutil
import time
from typing import Any

from benchmarks.child import Talk, settle
from benchmarks.harness import check, run_child
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours
from benchmarks.scenarios.spark_read import NARROW, ROWS, WIDE_ROWS, data_folder, session

HERE = "benchmarks.scenarios.spark_warehouse"


def run_moved(settings: Settings) -> Metrics:
    return _run(settings)


def run_by_shard(settings: Settings) -> Metrics:
    return _run(settings, partition="shard")


def run_queried(settings: Settings) -> Metrics:
    return _run(settings, sql=f"SELECT id, x * 2 AS x, v FROM {NARROW}")


def _run(settings: Settings, **options: Any) -> Metrics:
    folder = data_folder(settings.data, settings.count(ROWS), settings.count(WIDE_ROWS))
    return run_child(f"{HERE}:load", timeout_s=1_800, folder=str(folder), rows=settings.count(ROWS), options=options)


def load(talk: Talk, folder: str, rows: int, options: dict[str, Any]) -> Metrics:
    import pyarrow as pa
    from deltalake import DeltaTable

    from mainstem.spark.jobs.warehouse import warehouse

    spark = session(folder)
    seconds = 0.0
    for attempt in range(2):
        table = f"{folder}/table-{attempt}"
        settle()
        began = time.perf_counter()
        done = warehouse(f"{folder}/log", NARROW, table, spark=spark, **options)
        seconds = time.perf_counter() - began
        found = sum(pa.table(DeltaTable(table).get_add_actions(flatten=True))["num_records"].to_pylist())
        check(done.rows_written == found == rows, f"{found:,} rows are in the table, {rows:,} in the stream")
        shutil.rmtree(table)
    spark.stop()
    return {"rows_per_s": rows / seconds}


SCENARIO = Scenario(
    name="spark_warehouse",
    title="A stream into a Delta table: rows per second, on two cores",
    cases=(
        ours("moved", run_moved, "tasks read blocks and write Parquet; no row goes through the JVM"),
        ours("by shard", run_by_shard, "the same, partitioned by the stream's shards"),
        ours("through SQL", run_queried, "a query of Spark between reading and writing"),
    ),
    shown=("rows_per_s",),
    targets=(Target("moved", "rows_per_s", 2_500_000), Target("through SQL", "rows_per_s", 1_000_000)),
)
