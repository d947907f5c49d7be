"""A frame of Spark into a stream: through a server, into a folder, and beside them Spark's own Parquet writer.

Rows of an id, a number and a text of 80 characters, about 100 bytes, are computed by Spark while they are written; the
same rows for all. A case is a session on two cores that writes once to warm up, then the rows that count. Streams are
durable when the write returns, Parquet files are not synced.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import check, run_child, scratch
from benchmarks.scenarios.base import Metrics, Ratio, Scenario, Settings, Target, ours

ROWS = 10_000_000
WARM_UP = 1_000_000
PARTITIONS = 4
STREAM = "bench"
HERE = "benchmarks.scenarios.spark_sink"


def run_served(settings: Settings) -> Metrics:
    with scratch(settings.data, "spark-sink") as folder, product.Server(folder) as server:
        return _run("write_stream", settings, hub=server.url, files=str(folder / "spark"))


def run_folder(settings: Settings) -> Metrics:
    with scratch(settings.data, "spark-sink") as folder:
        return _run("write_stream", settings, hub=str(folder / "data"), files=str(folder / "spark"))


def run_parquet(settings: Settings) -> Metrics:
    with scratch(settings.data, "spark-sink") as folder:
        return _run("write_parquet", settings, hub=str(folder / "parquet"), files=str(folder / "spark"))


def _run(function: str, settings: Settings, **arguments: Any) -> Metrics:
    rows = settings.count(ROWS)
    took = run_child(f"{HERE}:{function}", rows=rows, warm_up=settings.count(WARM_UP), **arguments)
    return {"rows_per_s": rows / took["wall_s"]}


def write_stream(talk: Talk, rows: int, warm_up: int, hub: str, files: str) -> dict[str, Any]:
    import mainstem

    def opened() -> Any:
        return mainstem.connect(hub) if "://" in hub else mainstem.open(hub)

    with opened() as made:
        made.streams.create(STREAM, schema={"id": "int64", "x": "float64", "v": "string"})
    took = _write(
        files,
        [warm_up, rows],
        lambda frame: frame.write.format("mainstem").mode("append").options(hub=hub, stream=STREAM).save(),
    )
    with opened() as made:
        found = made.streams.get(STREAM).records
    check(found == rows + warm_up, f"{found:,} rows are in the stream, {rows + warm_up:,} were written")
    return took


def write_parquet(talk: Talk, rows: int, warm_up: int, hub: str, files: str) -> dict[str, Any]:
    return _write(files, [warm_up, rows], lambda frame: frame.write.mode("append").parquet(hub))


def _write(files: str, counts: list[int], write: Any) -> dict[str, Any]:
    import mainstem.spark

    Path(files).mkdir()
    config = {"spark.ui.enabled": False, "spark.local.dir": files, "spark.driver.memory": "2g"}
    spark = mainstem.spark.session("spark-sink", "local[2]", config)
    first = 0
    for count in counts:
        ids = spark.range(first, first + count, 1, PARTITIONS)
        text = "concat(" + ", ".join(f"lpad(hex(xxhash64(id, {part})), 16, '0')" for part in range(5)) + ")"
        frame = ids.selectExpr("id", "id * 0.25 AS x", f"{text} AS v")
        settle()
        begun = time.perf_counter()
        write(frame)
        wall = time.perf_counter() - begun
        first += count
    spark.stop()
    return {"wall_s": wall}


SCENARIO = Scenario(
    name="spark_sink",
    title="A frame of Spark into a stream: rows per second, durable, on two cores",
    cases=(
        ours("through a server", run_served, "tasks stage with the server, the driver commits"),
        ours("into a folder", run_folder, "tasks write files, the driver copies them into the log"),
        ours("Parquet", run_parquet, "Spark's own writer, snappy, not synced"),
    ),
    shown=("rows_per_s",),
    targets=(Target("through a server", "rows_per_s", 1e6), Target("into a folder", "rows_per_s", 1e6)),
    ratios=(
        Ratio("through a server", "Parquet", "rows_per_s", 0.9),
        Ratio("into a folder", "Parquet", "rows_per_s", 0.9),
    ),
)
