"""`mainstem sql`: a statement over streams by their names, run by Spark."""

import sys
from typing import Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.columns import column_writer
from mainstem.cli.exits import ExitCode
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.cli.printing import counted
from mainstem.core.clock import SYSTEM_CLOCK as CLOCK
from mainstem.core.settings import Loaded

_LIMIT = 1_000


@with_settings("sql")
def sql(
    loaded: Loaded,
    statement: Annotated[
        str, typer.Argument(metavar="STATEMENT", help='As in "SELECT country, sum(amount) FROM orders GROUP BY 1".')
    ],
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="COUNT", min=1, help="Print so many rows at most.")
    ] = _LIMIT,
    json: Annotated[bool, typer.Option("--json", help="Print a row a line, as JSON.")] = False,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Where Spark runs; without it, in this process.")
    ] = None,
    data: Data = None,
) -> int:
    """Run a SQL statement over streams, by their names, and print what it selects.

    Streams are tables: their columns, and if they are spoken of `_shard`, `_offset`, `_timestamp`, `_key` and
    `_headers`. Names with a dot or a dash stand in backticks; of streams whose names differ in their capitals alone one
    statement can read one. Only the columns that are needed are read, and of the batches only those that can hold what
    is asked for. A tombstone is a row of nulls. Nothing is stored, and no group moves. Spark takes some seconds to
    start.
    """
    begun = CLOCK.monotonic()
    with hubs.reading(loaded, data) as hub:
        from mainstem.spark.jobs.tasks import translated
        from mainstem.spark.session import log_no_task_errors, session
        from mainstem.spark.sql import distinct_names, query

        log_no_task_errors()
        spark = session("mainstem sql", master, {"spark.sql.session.timeZone": "UTC"})
        with translated():
            frame = query(spark, hub, hubs.source_options(loaded, data), statement)
            table = distinct_names(frame).limit(limit + 1).toArrow()
    _print(table.slice(0, limit), as_json=json)
    rows = (
        f"{counted(limit, 'row')}, and there are more: see --limit"
        if len(table) > limit
        else counted(len(table), "row")
    )
    print(f"{rows}; {CLOCK.monotonic() - begun:.1f} s", file=sys.stderr)
    return ExitCode.OK


def _print(table: Any, *, as_json: bool) -> None:
    if as_json:
        from mainstem.registry import formats

        for piece in formats.ndjson_pieces(table):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    with column_writer("table", table.schema) as writer:
        for batch in table.to_batches():
            writer.write(batch)
