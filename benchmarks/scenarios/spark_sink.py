"""A frame of Spark into a stream: through a server, into a folder, and beside them Spark's own Parquet writer.

Rows of an id, a number and a text of about 80 characters are computed by Spark while they are written; the same for
all, which take turns in one session. Streams are durable when the write returns; Parquet files are not, unless somebody
syncs them: both are measured.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks import product, sparks
from benchmarks.child import Talk
from benchmarks.harness import check, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

ROWS = 10_000_000
PARTITIONS = 4
SERVED, FOLDER, PARQUET, SYNCED, NOWHERE = "served", "folder", "parquet", "synced", "nowhere"
SCHEMA = {"id": "int64", "x": "float64", "v": "string"}
HERE = "benchmarks.scenarios.spark_sink"


def run(settings: Settings) -> Metrics:
    with scratch(settings.data, "spark-sink") as folder, product.Server(folder) as server:
        rows = settings.count(ROWS)
        return sparks.measured(f"{HERE}:write", folder=str(folder), url=server.url, rows=rows)


def write(talk: Talk, folder: str, url: str, rows: int) -> dict[str, float]:
    import mainstem

    hubs = {SERVED: url, FOLDER: f"{folder}/log"}
    with mainstem.connect(url) as served, mainstem.open(hubs[FOLDER]) as local:
        for hub in (served, local):
            hub.streams.create(sparks.STREAM, schema=SCHEMA)
    spark = sparks.session(folder)
    text = "concat(" + ", ".join(f"hex(xxhash64(id, {part}))" for part in range(5)) + ")"
    frame = spark.range(0, rows, 1, PARTITIONS).selectExpr("id", "id * 0.25D AS x", f"{text} AS v")

    def into(hub: str) -> Any:
        return frame.write.format("mainstem").mode("append").options(hub=hub, stream=sparks.STREAM).save()

    found = sparks.in_turn(
        {
            SERVED: lambda: into(url),
            FOLDER: lambda: into(hubs[FOLDER]),
            PARQUET: lambda: frame.write.mode("append").parquet(f"{folder}/{PARQUET}"),
            SYNCED: lambda: _write_synced(frame, Path(folder, SYNCED)),
            NOWHERE: lambda: frame.write.format("noop").mode("overwrite").save(),
        }
    )
    written = {
        SERVED: (sparks.stream(spark, url), sparks.RUNS),
        FOLDER: (sparks.stream(spark, hubs[FOLDER]), sparks.RUNS),
        PARQUET: (spark.read.parquet(f"{folder}/{PARQUET}"), sparks.RUNS),
        SYNCED: (spark.read.parquet(f"{folder}/{SYNCED}"), 1),
    }
    sums = _sums(frame)
    for name, (there, times) in written.items():
        told, expected = _sums(there), tuple(times * each for each in sums)
        check(told == expected, f"{name}: not the rows that were written, {told} in the place of {expected}")
    spark.stop()
    parquet = found[PARQUET]
    return {
        "rows_per_s": rows / found[SERVED].seconds,
        "times_parquet": parquet.seconds / found[SERVED].seconds,
        "times_parquet_synced": found[SYNCED].seconds / found[SERVED].seconds,
        "folder_rows_per_s": rows / found[FOLDER].seconds,
        "folder_times_parquet": parquet.seconds / found[FOLDER].seconds,
        "computed_rows_per_s": rows / found[NOWHERE].seconds,
        "rows_per_spark_cpu_s": rows / found[SERVED].cpu_seconds,
        "times_parquet_cpu": parquet.cpu_seconds / found[SERVED].cpu_seconds,
    }


def _sums(frame: Any) -> tuple[float, ...]:
    """Numbers add up without rounding: the halves and quarters of them are few."""
    return tuple(frame.selectExpr(*sparks.SUMS).first())


def _write_synced(frame: Any, folder: Path) -> None:
    """Spark's files, as durable as a stream."""
    frame.write.mode("overwrite").parquet(str(folder))
    for path in (*folder.iterdir(), folder):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


SCENARIO = Scenario(
    name="spark_sink",
    title="A frame of Spark into a stream: rows per second, durable, on two cores",
    cases=(
        ours(
            "10 million rows",
            run,
            "through a server, where tasks stage and the driver commits, and into a folder that nobody serves; Parquet "
            "is Spark's own writer, snappy, and the same, synced; the server's CPU is not in that of Spark",
        ),
    ),
    shown=(
        "rows_per_s",
        "times_parquet",
        "times_parquet_synced",
        "folder_rows_per_s",
        "folder_times_parquet",
        "computed_rows_per_s",
        "rows_per_spark_cpu_s",
        "times_parquet_cpu",
    ),
    targets=(
        Target("10 million rows", "rows_per_s", 1e6),
        Target("10 million rows", "times_parquet", 0.9),
        Target("10 million rows", "folder_rows_per_s", 1e6),
    ),
)
