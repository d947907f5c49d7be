"""A consumer in its own process reads what was written before the server was last started.

Batches are let go as they come, and compared in a second reading that is not measured: to keep 330 MB of them takes
memory the process never had, and what the kernel asks for that varied tenfold from run to run on a virtual machine
(0.09 to 0.86 s; the reading itself takes 0.2 s).
"""

from __future__ import annotations

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Stopwatch, check, rss_peak_bytes, run_child, scratch
from benchmarks.payload import Receipt
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

SIZE = 100
COUNT = 3_000_000


def run(settings: Settings, function: str) -> Metrics:
    count = settings.count(COUNT)
    with scratch(settings.data, "backlog") as folder:
        with product.Server(folder) as server:
            product.create_stream(server.url)
            run_child("benchmarks.product:fill", url=server.url, count=count, size=SIZE)
        # A new server has nothing in memory: what is read comes from its files.
        with product.Server(folder) as server:
            took = run_child(
                f"benchmarks.scenarios.backlog:{function}", url=server.url, count=count, watch=[server.pid]
            )
            memory = rss_peak_bytes(server.pid) / 1e6
    return {
        "msg_per_s": count / took["wall_s"],
        "msg_per_cpu_s": count / took["cpu_s"],
        "client_cores": took["client_cpu_s"] / took["wall_s"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
        "server_rss_mb": memory,
    }


def read_batches(talk: Talk, url: str, count: int, watch: list[int]) -> dict[str, float]:
    import mainstem

    with mainstem.connect(url) as hub:
        settle()
        watch_ = Stopwatch(watch)
        with hub.consumer(product.STREAM, start="earliest", follow=False) as consumer:
            rows = sum(batch.to_arrow().num_rows for batch in consumer.batches())
        took = watch_.stop()
        check(rows == count, f"{rows:,} messages received, {count:,} written")
        receipt = Receipt(SIZE)
        with hub.consumer(product.STREAM, start="earliest", follow=False) as consumer:
            for batch in consumer.batches():
                receipt.add_arrow(batch.shard, batch.to_arrow().column("value"))
    receipt.verify(count)
    return took


def read_records(talk: Talk, url: str, count: int, watch: list[int]) -> dict[str, float]:
    import mainstem

    with mainstem.connect(url) as hub:
        settle()
        watch_ = Stopwatch(watch)
        with hub.consumer(product.STREAM, start="earliest", follow=False) as consumer:
            values = [record.value for record in consumer]
        took = watch_.stop()
    receipt = Receipt(SIZE)
    receipt.add_values(0, [value or b"" for value in values])
    receipt.verify(count)
    return took


SCENARIO = Scenario(
    name="backlog",
    title="One consumer reads a backlog of messages of 100 bytes",
    cases=(
        ours("batches", lambda settings: run(settings, "read_batches"), "each batch as Arrow"),
        ours("records", lambda settings: run(settings, "read_records"), "one Python record per message"),
    ),
    shown=("msg_per_s", "msg_per_cpu_s", "client_cores", "server_cores", "server_rss_mb"),
    targets=(Target("batches", "msg_per_s", 6e6), Target("records", "msg_per_s", 2e6)),
)
