"""The Spark job of the demonstration, in a process of its own: revenue per few seconds, to a table and to a stream.

Clicks become sessions: those of a customer with less than a second between them. Orders find the session they were made
in. What they come to is summed by windows of a few seconds, which are written when the watermark has passed them: once,
to a Delta table and to the stream `demo.revenue`, whatever is tried twice. docs/pipeline.md explains it step by step.

Standard output has a line of JSON for each thing that happens. A line on standard input, a time in microseconds, says
that nothing comes before it any more: the job goes on until its watermark is there, and ends.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mainstem.core.clock import SYSTEM_CLOCK as CLOCK
from mainstem.core.errors import MainstemError
from mainstem.demo.events import CLICKS, ORDERS, STREAMS
from mainstem.demo.revenue import WINDOW_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REVENUE_STREAM: Final = "demo.revenue"
# A pause of this length ends a session; one that lasts longer than so many seconds is not waited for.
_GAP: Final = "1 second"
_SESSION_MAX: Final = "INTERVAL 5 SECONDS"
# How much later than others an event may come; where the server is killed, a producer may be back seconds after others,
# and has what it sent before that still.
LATE_SECONDS: Final = 4
LATE_SECONDS_KILLED: Final = 20
_END_SECONDS: Final = 180.0
_EVENT: Final = "writer INT, number LONG, customer STRING, amount DECIMAL(10, 2)"


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Where the job reads and writes. `starts` are cursors of the streams; `drop` is an order that it leaves out, as
    (writer, number); what comes `late_seconds` later than others is not waited for."""

    url: str
    starts: tuple[str, ...]
    table: str
    checkpoint: str
    drop: tuple[int, int] | None = None
    late_seconds: int = LATE_SECONDS


def events(spark: "SparkSession", options: PipelineOptions, stream: int) -> "DataFrame":
    """What happens in a stream of the shop, with its time."""
    from pyspark.sql import functions as F  # noqa: N812

    raw = (
        spark.readStream.format("mainstem")
        .option("hub", options.url)
        .option("stream", STREAMS[stream])
        .option("startingOffsets", options.starts[stream])
        .option("columns", "value,timestamp")
        .load()
    )
    parsed = raw.select("timestamp", F.from_json(raw.value.cast("string"), _EVENT).alias("event"))
    return parsed.select("timestamp", "event.*").withWatermark("timestamp", f"{options.late_seconds} seconds")


def sessions_of(clicks: "DataFrame") -> "DataFrame":
    """Clicks of a customer that follow each other, as sessions; `until` is when the last of them ended."""
    from pyspark.sql import functions as F  # noqa: N812

    found = clicks.groupBy("customer", F.session_window("timestamp", _GAP).alias("session")).count()
    return found.select(
        "customer",
        F.col("session.start").alias("begun"),
        F.window_time("session").alias("until"),
        F.col("count").alias("clicks"),
    )


def revenue_of(orders: "DataFrame", sessions: "DataFrame") -> "DataFrame":
    """What orders came to by windows of a few seconds, and how much of it was made in sessions."""
    from pyspark.sql import functions as F  # noqa: N812

    order, session = orders.alias("order"), sessions.alias("session")
    is_within = F.expr(
        "order.customer = session.customer AND order.timestamp BETWEEN session.begun AND session.until"
        f" AND session.until <= order.timestamp + {_SESSION_MAX}"
    )
    joined = order.join(session, is_within, "leftOuter").select("order.timestamp", "order.amount", "session.clicks")
    summed = joined.groupBy(F.window("timestamp", f"{WINDOW_SECONDS} seconds")).agg(
        F.count("*").alias("orders"),
        F.sum("amount").alias("revenue"),
        F.sum(F.when(F.col("clicks").isNotNull(), F.col("amount"))).alias("in_sessions"),
    )
    return summed.select(F.col("window.start").alias("start"), "orders", "revenue", "in_sessions")


class Outputs:
    """Writes what a micro-batch has to the table and to the stream, once however often it is tried."""

    def __init__(self, options: PipelineOptions) -> None:
        self._options = options

    def write(self, batch: "DataFrame", number: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        query = str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
        kept = batch.where(F.col("orders") > 0).persist()
        try:
            rows = kept.orderBy("start").toArrow()
            if rows.num_rows:
                self._write_table(rows, query, number)
            # Also without rows: numbers follow each other there.
            self._write_stream(kept, query, number)
        finally:
            kept.unpersist()

    def _write_table(self, rows: Any, query: str, number: int) -> None:
        """A batch that the table has already is left alone."""
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        table = self._options.table
        if DeltaTable.is_deltatable(table):
            done = DeltaTable(table).transaction_version(query)
            if done is not None and done >= number:
                return
        properties = CommitProperties(app_transactions=[Transaction(query, number)])
        write_deltalake(table, rows, mode="append", commit_properties=properties)

    def _write_stream(self, kept: "DataFrame", query: str, number: int) -> None:
        (
            kept.write.format("mainstem")
            .mode("append")
            .option("hub", self._options.url)
            .option("stream", REVENUE_STREAM)
            .options(transactionId=query, transactionVersion=number)
            .save()
        )


def run(options: PipelineOptions, tell: Callable[..., None], end_us: Callable[[], int | None]) -> None:
    """The job, until `end_us` says a time and everything before that is written."""
    from pyspark.sql import functions as F  # noqa: N812

    from mainstem.spark import session

    spark = session("mainstem demo", "local[2,4]", {"spark.sql.session.timeZone": "UTC"})
    try:
        tell("up")
        orders = events(spark, options, ORDERS)
        if options.drop is not None:
            writer, number = options.drop
            orders = orders.where((F.col("writer") != writer) | (F.col("number") != number))
        found = revenue_of(orders, sessions_of(events(spark, options, CLICKS)))
        query = (
            found.writeStream.foreachBatch(Outputs(options).write)
            .option("checkpointLocation", options.checkpoint)
            .start()
        )
        _follow(query, tell, end_us)
        query.stop()
    finally:
        spark.stop()


def _follow(query: Any, tell: Callable[..., None], end_us: Callable[[], int | None]) -> None:
    """Say how it goes until the watermark is where it should be, and nothing is left to do."""
    last, deadline = -1, None
    while True:
        if query.exception() is not None:
            raise query.exception()
        progress = query.lastProgress
        watermark_us = 0
        if progress is not None:
            watermark_us = _watermark_us(progress)
            if progress["batchId"] != last:
                last = progress["batchId"]
                tell("progress", batch=last, rows=progress["numInputRows"], watermark_us=watermark_us)
        end = end_us()
        if end is not None:
            deadline = deadline or CLOCK.monotonic() + _END_SECONDS
            if watermark_us >= end:
                query.processAllAvailable()
                return
            if CLOCK.monotonic() > deadline:
                raise MainstemError(f"Spark was not through after {_END_SECONDS:g} s")
        CLOCK.sleep(0.2)


def _watermark_us(progress: Any) -> int:
    from datetime import datetime

    text = (progress["eventTime"] or {}).get("watermark")
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000) if text else 0


def main(arguments: str) -> int:
    """The child process."""
    # Ctrl-C is for the parent, which then says when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    lock = threading.Lock()
    said: list[int] = []

    def tell(event: str, **facts: Any) -> None:
        with lock:
            print(json.dumps({"event": event, **facts}), file=out, flush=True)

    def listen() -> None:
        said.extend(map(int, sys.stdin))
        if not said:
            os._exit(1)  # whoever has started this is gone

    threading.Thread(target=listen, daemon=True).start()
    given = json.loads(arguments)
    drop = given.pop("drop")
    options = PipelineOptions(**given | {"starts": tuple(given["starts"])}, drop=None if drop is None else tuple(drop))
    try:
        run(options, tell, lambda: said[0] if said else None)
    except Exception as error:  # told in one line; all of it is in the log
        tell("failed", reason=f"{type(error).__name__}: {error}"[:500])
        raise
    tell("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
