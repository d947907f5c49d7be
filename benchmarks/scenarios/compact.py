"""A stream that was written in batches of 100 rows, read from end to end before its records are cold and after.

The log is written on a disk that does not wait for the platter, and nobody merges its entries. Both are read through
the public API as batches, by a process that has the folder for reading only; the files are made in one process, by what
the tasks of the job run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import check, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

if TYPE_CHECKING:
    from benchmarks.child import Talk

ROWS = 2_000_000
BATCH_ROWS = 100
STREAM = "readings"


def run(settings: Settings) -> Metrics:
    here = "benchmarks.scenarios.compact"
    rows = settings.count(ROWS)
    with scratch(settings.data, "compact") as folder:
        written = run_child(f"{here}:write", timeout_s=1_800, folder=str(folder), rows=rows)
        before = run_child(f"{here}:read", timeout_s=600, folder=str(folder), rows=rows)
        made = run_child(f"{here}:cool", timeout_s=1_800, folder=str(folder), rows=rows)
        after = run_child(f"{here}:read", timeout_s=600, folder=str(folder), rows=rows)
    return {
        "times_tiny": after["rows_per_s"] / before["rows_per_s"],
        "rows_per_s": after["rows_per_s"],
        "made_rows_per_s": made["rows_per_s"],
        "share_of_bytes": made["bytes"] / written["bytes"],
    }


def write(talk: Talk, folder: str, rows: int) -> dict[str, float]:
    import numpy as np
    import pyarrow as pa

    from mainstem.core import layouts, payload
    from mainstem.core.batch import Batch
    from mainstem.core.identity import new_stream_uuid
    from mainstem.core.schema import Schema
    from mainstem.log.flush import CreateStream
    from mainstem.log.log import Log, Waiter
    from mainstem.testing.clock import SimulatedClock
    from mainstem.testing.disk import UnsyncedDisk

    clock = SimulatedClock()
    schema = Schema(pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string())]))
    log = Log(Path(folder), clock=clock, disk=UnsyncedDisk())
    log.execute(
        CreateStream(
            new_stream_uuid(),
            STREAM,
            1,
            "crc32",
            10**15,
            clock.now_us(),
            schema=schema.serialized,
            fingerprint=schema.fingerprint,
            key=("id",),
        )
    )
    row = log.ledger.load_stream(1)
    assert row is not None
    chance = np.random.default_rng(1)
    for _ in range(0, rows, BATCH_ROWS):
        ids = chance.integers(0, 1 << 40, BATCH_ROWS)
        columns = [pa.array(ids), pa.array(chance.random(BATCH_ROWS)), pa.array([f"{number:076d}" for number in ids])]
        batch = layouts.narrow_rows(dict(zip(schema.names, columns, strict=True)), schema)
        encoded = payload.encode(batch, "zstd", schema)
        now_us = clock.now_us()
        header = encoded.header(
            stream=1, shard=0, schema_id=row.schema_id, generation=0, time_low=now_us, time_high=now_us
        )
        waiter = Waiter()
        log.append((Batch(header, encoded.payload),), waiter.set)
        waiter.wait(log.batcher)
        clock.advance(0.01)
    size = log.ledger.load_shard(1, 0).bytes
    log.close()
    return {"bytes": size}


def cool(talk: Talk, folder: str, rows: int) -> dict[str, float]:
    from mainstem.log.cold_maker import open_cooler
    from mainstem.log.log import Log

    log = Log(Path(folder))
    row = log.ledger.load_stream(1)
    assert row is not None
    start = time.perf_counter()
    plan = log.cooling.plan(row, 1 << 60)
    files = []
    with open_cooler(Path(folder), plan.log) as maker:
        for task in plan.tasks:
            for file in maker.make(plan, task):
                log.cooling.commit(file)
                files.append(file)
    took = time.perf_counter() - start
    log.close()
    count = sum(file.records for file in files)
    check(count > 0.9 * rows, f"{count:,} of {rows:,} rows are cold")
    return {"rows_per_s": count / took, "bytes": sum(file.bytes for file in files)}


def read(talk: Talk, folder: str, rows: int) -> dict[str, float]:
    import mainstem

    got = total = 0
    with mainstem.open(folder, read_only=True) as hub:
        start = time.perf_counter()
        with hub.consumer(STREAM, start="earliest", follow=False) as consumer:
            for batch in consumer.batches():
                table = batch.to_arrow()
                got += table.num_rows
                total += table.column("v").nbytes
        took = time.perf_counter() - start
    check(got == rows, f"{got:,} of {rows:,} rows came back")
    check(total >= 76 * rows, "values came back cut short")
    return {"rows_per_s": got / took}


SCENARIO = Scenario(
    name="compact",
    title="2 million rows in batches of 100, read before and after they are in Parquet files",
    cases=(ours("batches of 100", run, "compared with the same rows as they were written"),),
    shown=("times_tiny", "rows_per_s", "made_rows_per_s", "share_of_bytes"),
    targets=(Target("batches of 100", "times_tiny", 2),),
)
