"""Transactions of one client: how long a commit takes, and how many records pass in small ones.

A commit over several streams and groups is timed as a worker makes it: it has read from two groups, has written to five
streams, and waits. The rate is that of transactions of 200 records, one after the other in one thread; beside it stand
the same records, flushed 200 at a time without a transaction, and four threads of one hub.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from itertools import islice
from typing import Any

from benchmarks import product
from benchmarks.child import Talk, settle
from benchmarks.harness import Stopwatch, check, percentiles, run_child, scratch
from benchmarks.payload import Receipt, messages
from benchmarks.scenarios import disk
from benchmarks.scenarios.base import Metrics, Ratio, Scenario, Settings, Target, ours

SIZE = 100
STREAMS = 5
GROUPS = 2
COMMITS = 1_000
RECORDS = 200
TRANSACTIONS = 2_500
WARM_UP = 50
THREADS = 4
HERE = "benchmarks.scenarios.transactions"


def run_commits(settings: Settings) -> Metrics:
    count = settings.count(COMMITS)
    with scratch(settings.data, "transactions") as folder, product.Server(folder) as server:
        for number in range(GROUPS):
            product.create_stream(server.url, name=f"in-{number}")
        for number in range(STREAMS):
            product.create_stream(server.url, name=f"out-{number}")
        took = run_child(f"{HERE}:commit_many", url=server.url, count=count, watch=[server.pid])
    commits, whole = percentiles(took["commit_ms"]), percentiles(took["whole_ms"])
    return {
        "p50_ms": commits["p50"],
        "p99_ms": commits["p99"],
        "max_ms": commits["max"],
        "whole_p50_ms": whole["p50"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
    }


def commit_many(talk: Talk, url: str, count: int, watch: list[int]) -> dict[str, Any]:
    """Read a record from each of two groups, write one to each of five streams, move both cursors."""
    import mainstem

    commits: list[float] = []
    whole: list[float] = []
    with mainstem.connect(url) as hub, ExitStack() as stack:
        with hub.producer() as producer:
            for number in range(GROUPS):
                producer.send_many(f"in-{number}", messages(count + WARM_UP, SIZE))
        consumers = [
            stack.enter_context(hub.consumer(f"in-{number}", group=f"g-{number}", start="earliest", commit="manual"))
            for number in range(GROUPS)
        ]
        for turn in range(-WARM_UP, count):
            if not turn:
                settle()
                watch_ = Stopwatch(watch)
            begun = time.perf_counter()
            with hub.transaction() as tx:
                values = [_value(consumer) for consumer in consumers]
                for number in range(STREAMS):
                    tx.send(f"out-{number}", values[number % GROUPS])
                for consumer in consumers:
                    tx.advance(consumer)
                ready = time.perf_counter()
                tx.commit()
            if turn >= 0:
                commits.append((time.perf_counter() - ready) * 1e3)
                whole.append((time.perf_counter() - begun) * 1e3)
        took = watch_.stop()
        _verify_commits(hub, count + WARM_UP)
    return {**took, "commit_ms": commits, "whole_ms": whole}


def _value(consumer: Any) -> bytes:
    record = consumer.poll(30)
    check(record is not None, "nothing to read within 30 s")
    return bytes(record.value)


def _verify_commits(hub: Any, count: int) -> None:
    for number in range(STREAMS):
        receipt = Receipt(SIZE)
        with hub.consumer(f"out-{number}", start="earliest", follow=False) as consumer:
            for batch in consumer.batches():
                product.add_batch(receipt, batch)
        receipt.verify(count)
    for number in range(GROUPS):
        (shard,) = hub.groups.get(f"g-{number}").shards
        check(shard.offset == count, f"a group stands at {shard.offset:,} and has read {count:,}")


def run_records(settings: Settings, function: str, threads: int = 1) -> Metrics:
    transactions = settings.count(TRANSACTIONS)
    with scratch(settings.data, "transactions") as folder, product.Server(folder) as server:
        for number in range(threads):
            product.create_stream(server.url, name=f"{product.STREAM}-{number}")
        took = run_child(f"{HERE}:{function}", url=server.url, count=transactions, threads=threads, watch=[server.pid])
    count = transactions * RECORDS
    return {
        "msg_per_s": count / took["wall_s"],
        "msg_per_cpu_s": count / took["cpu_s"],
        "p50_ms": percentiles(took["took_ms"])["p50"],
        "client_cores": took["client_cpu_s"] / took["wall_s"],
        "server_cores": took["server_cpu_s"] / took["wall_s"],
    }


def write_transactions(talk: Talk, url: str, count: int, threads: int, watch: list[int]) -> dict[str, Any]:
    """Records in transactions, one after the other in each thread."""
    import mainstem

    def write(hub: Any, stream: str, values: list[bytes]) -> None:
        with hub.transaction() as tx:
            for value in values:
                tx.send(stream, value)

    with mainstem.connect(url) as hub:
        return _write(hub, count, threads, watch, write)


def write_flushed(talk: Talk, url: str, count: int, threads: int, watch: list[int]) -> dict[str, Any]:
    """As many records at a time, acknowledged, by a producer."""
    import mainstem

    with mainstem.connect(url) as hub, hub.producer() as producer:

        def write(hub: Any, stream: str, values: list[bytes]) -> None:
            for value in values:
                producer.send(stream, value)
            producer.flush()

        return _write(hub, count, threads, watch, write)


def _write(hub: Any, count: int, threads: int, watch: list[int], write: Any) -> dict[str, Any]:
    took_ms: list[float] = []
    errors: list[Exception] = []
    each = count // threads
    begin = threading.Barrier(threads + 1)

    def work(stream: str) -> None:
        try:
            values = messages((WARM_UP + each) * RECORDS, SIZE)
            for turn in range(WARM_UP + each):
                if turn == WARM_UP:
                    begin.wait()
                    begin.wait()
                some = list(islice(values, RECORDS))
                begun = time.perf_counter()
                write(hub, stream, some)
                took_ms.append((time.perf_counter() - begun) * 1e3)
        except Exception as error:
            errors.append(error)
            begin.abort()

    workers = [threading.Thread(target=work, args=(f"{product.STREAM}-{number}",)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        begin.wait()
        settle()
        watch_ = Stopwatch(watch)
        begin.wait()
    except threading.BrokenBarrierError:
        raise errors[0] from None
    for worker in workers:
        worker.join()
    took = watch_.stop()
    check(not errors, f"{len(errors)} threads failed, the first: {errors[:1]}")
    for number in range(threads):
        _verify_records(hub, f"{product.STREAM}-{number}", (WARM_UP + each) * RECORDS)
    return {**took, "took_ms": took_ms[threads * WARM_UP :]}


def _verify_records(hub: Any, stream: str, count: int) -> None:
    receipt = Receipt(SIZE)
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            product.add_batch(receipt, batch)
    receipt.verify(count)


SCENARIO = Scenario(
    name="transactions",
    title="Transactions of one client: the wait for a commit, and the rate of small ones",
    cases=(
        ours("5 streams, 2 groups", run_commits, "one record to each stream, both cursors moved; p50 is the commit's"),
        ours(
            "200 records",
            lambda settings: run_records(settings, "write_transactions"),
            "one thread, one transaction after the other",
        ),
        ours(
            "200 records, 4 threads",
            lambda settings: run_records(settings, "write_transactions", THREADS),
            "of one hub, each with its own transactions",
        ),
        ours(
            "200 records, flushed",
            lambda settings: run_records(settings, "write_flushed"),
            "without transactions, for comparison",
        ),
        disk.one_by_one(TRANSACTIONS, RECORDS, SIZE),
    ),
    shown=("p50_ms", "msg_per_s", "p99_ms", "max_ms", "whole_p50_ms", "msg_per_cpu_s", "client_cores", "server_cores"),
    targets=(
        Target("5 streams, 2 groups", "p50_ms", 10, at_most=True),
        Target("200 records", "msg_per_s", 1e5),
    ),
    ratios=(Ratio("200 records", "200 records, flushed"), Ratio("200 records", "disk alone")),
)
