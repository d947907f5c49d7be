"""`mainstem demo` with its Spark job: revenue to the cent as it is read, and a fault that is found."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import mainstem
from mainstem.core.clock import SYSTEM_CLOCK as CLOCK
from mainstem.demo.demonstration import Demonstration, DemoOptions
from mainstem.demo.pipeline import LATE_SECONDS, LATE_SECONDS_KILLED, Outputs, PipelineOptions
from mainstem.demo.revenue import Takings
from mainstem.demo.revenue_reader import StreamWatch, TableWatch, Windows

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow("a server, three producers and a Spark of its own"),
]


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "mainstem", "demo", "--rate", "1000", *arguments],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_is_shown_is_what_is_in_the_table_and_in_the_stream(tmp_path):
    table = tmp_path / "revenue"
    first, second = (
        pa.table(
            {
                "start": pa.array([number * 5_000_000], pa.timestamp("us", "UTC")),
                "orders": [2],
                "revenue": pa.array([Decimal("7.50")], pa.decimal128(20, 2)),
                "in_sessions": pa.array([part], pa.decimal128(20, 2)),
            }
        )
        for number, part in ((1, Decimal("2.50")), (2, None))
    )
    with mainstem.open(tmp_path / "data") as hub, hub.producer() as producer:
        hub.streams.create("demo.revenue", schema=first.schema)
        watches = StreamWatch(hub.consumer("demo.revenue", start="earliest")), TableWatch(table)
        for watch in watches:
            watch.start()
        expected = {5_000_000: Takings(2, 750)}
        write_deltalake(str(table), first, mode="append")
        producer.send_batch("demo.revenue", first)
        for watch in watches:
            await_windows(watch, expected)
            assert watch.windows[5_000_000].session_cents == 250
        # What comes at the very end is read too; the same window twice is not taken for one.
        for rows in (second, second):
            write_deltalake(str(table), rows, mode="append")
            producer.send_batch("demo.revenue", rows)
        producer.flush()
        for watch in watches:
            watch.stop()
            assert watch.error is None
            assert watch.windows == expected | {10_000_000: Takings(4, 1_500)}


def await_windows(watch: StreamWatch | TableWatch, expected: Windows) -> None:
    await_true(lambda: watch.windows == expected, 30)


def await_true(is_so: Callable[[], bool], seconds: float = 150) -> None:
    deadline = CLOCK.monotonic() + seconds
    while not is_so():
        assert CLOCK.monotonic() < deadline
        CLOCK.sleep(0.05)


def test_every_batch_is_taken_once_and_the_query_remembered_as_one(tmp_path, spark, server):
    """Whatever is tried twice, also a batch without rows. Of the jobs that the log remembers the query is one."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create(
            "demo.revenue",
            schema={
                "start": "timestamp",
                "orders": "int64",
                "revenue": "decimal(20, 2)",
                "in_sessions": "decimal(20, 2)",
            },
        )
        outputs = Outputs(PipelineOptions(server.url, (), str(tmp_path / "table"), ""))
        context = spark.sparkContext
        context.setLocalProperty("sql.streaming.queryId", "query")
        try:
            for number, orders in ((0, 0), (0, 0), (1, 2), (1, 2), (2, 0), (3, 5), (3, 5)):
                text = f"SELECT timestamp_seconds({number}) start, {orders}L orders, 7.5BD revenue, 2.5BD in_sessions"
                outputs.write(spark.sql(text), number)
        finally:
            context.setLocalProperty("sql.streaming.queryId", None)
        with hub.consumer("demo.revenue", start="earliest", follow=False) as consumer:
            assert [record.value["orders"] for record in consumer] == [2, 5]
        assert sorted(DeltaTable(tmp_path / "table").to_pyarrow_table()["orders"].to_pylist()) == [2, 5]
    with closing(sqlite3.connect(tmp_path / "data" / "ledger.db")) as ledger:
        assert ledger.execute("SELECT job FROM deliveries").fetchall() == [("query",)]


@pytest.mark.timeout(400)
def test_the_table_agrees_with_the_producers_to_the_cent(tmp_path):
    """Revenue is shown while the producers write, which here is until it is."""
    shown = re.compile(r" *Spark: [\d,]+ events read; table: \d+ windows?, .*; stream: \d+ windows?, .*\n")
    with start(tmp_path, "--seconds", "300") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if shown.fullmatch(line):
                break
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=200)
    assert process.returncode == 0, error
    before, out = "".join(lines), "".join([*lines, rest])
    # The view moves before Spark is up.
    moving = r" *\d+\.\d s +[1-9][\d,]* acknowledged, .*\n"
    assert re.search(rf"Spark is starting; it joins when it is up.*\n(.*\n)*{moving} *Spark: starting; ", before)
    assert re.search(rf"Spark has joined after .*\n(.*\n)*{moving}{shown.pattern}", before)
    assert "stopping the producers" in rest
    told = re.search(r"wrote (\d+) windows? of revenue to a Delta table, and (\d+) to the stream demo.revenue", out)
    assert told is not None
    assert told[1] == told[2]
    pattern = r"the (\w+).* agrees with the producers to the cent: ([\d,]+) orders, ([\d,.]+) in (\d+) windows?"
    table, stream = re.findall(pattern, out)
    assert (table[0], stream[0]) == ("table", "stream")
    assert table[1:] == stream[1:]
    assert int(table[1].replace(",", "")) > 100
    # What is shown last was read from both, and is all of it.
    (*_, orders, cents, windows) = table
    read = rf"{windows} windows?, {orders} orders, {cents}"
    assert re.search(rf"Spark: [\d,]+ events read; table: {read}; stream: {read}\n", out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(400)
def test_a_server_that_is_killed_under_spark_costs_no_cent(tmp_path, monkeypatch):
    """Nor does a producer that finds it again so much later than the others that what it has still would be late."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # On a busy machine Spark reads by leaps, and may have come much further than it has said.
    late_seconds = LATE_SECONDS_KILLED + 8
    monkeypatch.setattr("mainstem.demo.demonstration.LATE_SECONDS_KILLED", late_seconds)
    with Demonstration(DemoOptions(rate=1_000)) as show:
        show.start()
        show.start_pipeline(is_killed=True)
        await_true(lambda: has_read(show, 0))
        show.server.kill()
        # What it sends now stays with it.
        CLOCK.sleep(0.5)
        slow = show._writers[0]._process
        slow.send_signal(signal.SIGSTOP)
        stopped_us = CLOCK.now_us()
        show.server.restart()
        newest_us = stopped_us + (LATE_SECONDS + 2) * 1_000_000
        await_true(lambda: has_read(show, newest_us - late_seconds * 1_000_000))
        slow.send_signal(signal.SIGCONT)
        show.finish_writing()
        assert show.read_back().is_good
        show.close_streams()
        await_true(lambda: show.has_pipeline_ended(0.1))
        for place in show.compare_revenue():
            assert place.is_good, place.findings
            assert place.total.orders > 100


def has_read(show: Demonstration, watermark_us: int) -> bool:
    """Whether Spark has read events, and its watermark has come so far."""
    state = show.pipeline
    assert state is not None
    assert not state.failure
    return state.rows > 0 and state.watermark_us >= watermark_us


@pytest.mark.timeout(400)
def test_an_order_that_is_left_out_is_found(tmp_path):
    with start(tmp_path, "--seconds", "6", "--break") as process:
        out, error = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "mainstem: 1 record is missing" in error
    pattern = r"revenue from [\d:]+ on: the producers took ([\d,]+) orders, .*, the (\w+) says ([\d,]+)"
    found = re.findall(pattern, error)
    assert [place for _, place, _ in found] == ["table", "stream"]
    for took, _, told in found:
        assert int(took.replace(",", "")) - int(told.replace(",", "")) == 1
    assert "--break: Spark left one order out" in out
