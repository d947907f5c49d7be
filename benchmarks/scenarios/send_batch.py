"""One producer sends Arrow tables of 1 MB; time from the first ``send_batch`` until ``flush`` returns."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Stopwatch, check, rss_peak_bytes, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 10_000
VALUE_BYTES = 100
POOL_COUNT = 61
TABLE_COUNT = 600


def run(settings: Settings) -> Metrics:
    count = settings.count(TABLE_COUNT)
    with scratch(settings.data, "send-batch") as folder, product.Server(folder) as server:
        product.create_stream(server.url)
        took = run_child("benchmarks.scenarios.send_batch:produce", url=server.url, count=count, watch=[server.pid])
        memory = rss_peak_bytes(server.pid) / 1e6
        run_child("benchmarks.scenarios.send_batch:verify", url=server.url, count=count)
    return {
        "mb_per_s": took["bytes"] / 1e6 / took["wall_s"],
        "msg_per_s": count * ROWS / took["wall_s"],
        "msg_per_cpu_s": count * ROWS / took["cpu_s"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
        "server_rss_mb": memory,
    }


def produce(talk: Talk, url: str, count: int, watch: list[int]) -> dict[str, float]:
    import mainstem

    tables = list(islice(cycle(_pool()), count))
    with mainstem.connect(url) as hub, hub.producer() as producer:
        settle()
        watch_ = Stopwatch(watch)
        for table in tables:
            producer.send_batch(product.STREAM, table)
        producer.flush()
        took = watch_.stop()
    return {**took, "bytes": sum(table.nbytes for table in tables)}


def verify(talk: Talk, url: str, count: int) -> None:
    """Every row came back, in order and equal, however the tables were cut into batches."""
    import pyarrow as pa

    import mainstem

    pieces = []
    with mainstem.connect(url) as hub, hub.consumer(product.STREAM, start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            piece = batch.to_arrow()
            pieces.append(pa.Table.from_batches([piece]).select(["value"]))
    received = pa.concat_tables(pieces)
    check(received.num_rows == count * ROWS, f"{received.num_rows:,} rows received, {count * ROWS:,} sent")
    for index, table in enumerate(islice(cycle(_pool()), count)):
        check(received.slice(index * ROWS, ROWS).equals(table), f"table {index:,} is not the one sent")


def _pool() -> list[pa.Table]:
    """Distinct tables, half of whose text is random."""
    import pyarrow as pa

    random = np.random.default_rng(7)
    tables = []
    for _ in range(POOL_COUNT):
        text = np.full((ROWS, VALUE_BYTES), ord("."), dtype=np.uint8)
        text[:, : VALUE_BYTES // 2] = random.integers(ord("0"), ord("z"), (ROWS, VALUE_BYTES // 2), dtype=np.uint8)
        offsets = np.arange(0, (ROWS + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32)
        values = pa.BinaryArray.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        tables.append(pa.table({"value": values}))
    return tables


SCENARIO = Scenario(
    name="send_batch",
    title="One producer, Arrow tables of 1 MB, acknowledged",
    cases=(ours("tables", run, f"{ROWS:,} values of {VALUE_BYTES} bytes a table, 1 shard"),),
    shown=("mb_per_s", "msg_per_s", "msg_per_cpu_s", "server_cores", "server_rss_mb"),
    targets=(Target("tables", "mb_per_s", 500),),
)
