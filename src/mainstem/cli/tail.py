"""`mainstem tail`: a stream on standard output."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.cli import hubs
from mainstem.cli.columns import (
    AT_THE_END,
    ColumnsOption,
    check_columnar,
    column_names,
    column_writer,
    row_columns,
    tell_undecoded,
)
from mainstem.cli.exits import ExitCode, UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.cli.times import parse_time
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, IncompatibleSchema, MainstemError, UndecodedRecords
from mainstem.core.names import check_stream_name
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.consume.places import Start
    from mainstem.hub.hub import Hub


_LOOK_SECONDS = 0.2


@with_settings("tail")
def tail(
    loaded: Loaded,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to read.")],
    start: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest, a time (2026-01-31T12:00:00Z), how long ago (15m), or a cursor.",
        ),
    ] = "latest",
    follow: Annotated[bool, typer.Option(help="Wait for more at the end, or stop where the stream ends now.")] = True,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only records for which this is true, as in amount > 100 AND country = 'DE'."),
    ] = None,
    columns: ColumnsOption = None,
    output: Annotated[
        str,
        typer.Option(
            metavar="text|json|raw|csv|arrow|avro|table",
            help="text: a line for people; json: everything; raw: the values, rows as JSON; csv, arrow (a stream) and "
            "avro (a file): columns; table: columns for people.",
        ),
    ] = "text",
    frame: Annotated[
        bool, typer.Option("--frame", help="A u32 length before each record instead of a newline after it.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="COUNT", min=0, help="Stop after so many records.")
    ] = None,
    cursor_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Go on from the cursor in this file if it exists, and save it there on the way out."
        ),
    ] = None,
    data: Data = None,
) -> int:
    """Write the records of a stream to standard output.

    With --columns a line of text, json or raw is the JSON of these columns. csv and arrow go out batch by batch, avro
    and table at the end: those two do not follow. Records that are no rows of the stream's schema are left out of
    formats with columns, and wherever --where is given; rows of an older schema that cannot be read in the newest one
    are left out everywhere, unless --columns asks for others. How many there are, and why, stands on standard error,
    and the exit code is 1, as it is when records were lost; all others are written.

    With a cursor file nothing is skipped and nothing repeated from one call to the next, even when the program that
    reads our output ends early: the cursor stands after the last record it took.
    """
    from mainstem.consume.cursor_file import CursorFile
    from mainstem.consume.outlet import Outlet
    from mainstem.consume.rendering import OUTPUTS, renderer
    from mainstem.consume.tail import Tail

    check_stream_name(name, reserved=True)
    wanted = column_names("--columns", columns)
    if output not in OUTPUTS:
        check_columnar(output, OUTPUTS)
        _require_whole_batches(output, follow=follow, limit=limit, frame=frame, cursor_file=cursor_file)
        with hubs.reading(loaded, data) as hub:
            return _pour_columns(hub, name, _start(start), follow, where, wanted, output, limit)
    file = None if cursor_file is None else CursorFile(Path(cursor_file).expanduser())
    begin = (None if file is None else file.load()) or _start(start)
    stop = _Stop(deferred=file is not None)
    with (
        hubs.reading(loaded, data) as hub,
        # What is no row is shown as it is; nobody knows whether it is what was asked for.
        hub.consumer(
            name, start=begin, follow=follow, where=where, columns=wanted, on_bad="skip" if where else "keep"
        ) as consumer,
    ):
        outlet = Outlet(sys.stdout.fileno(), exact=file is not None, stopped=stop.is_wanted)
        poured = Tail(
            consumer,
            outlet,
            renderer(output, framed=frame, columns=wanted is not None),
            follow=follow,
            limit=limit,
            cursor_file=file,
            stopped=stop.is_wanted,
            on_loss=_report,
        )
        try:
            poured.run()
        except OSError as error:
            if error.filename is None and not isinstance(error, MainstemError):
                error.filename = "standard output"
            raise
        finally:
            outlet.close()
        is_short = tell_undecoded(consumer.undecoded if where else 0, name, consumer.why_undecoded)
    return stop.code or (ExitCode.FAILURE if poured.losses or is_short else ExitCode.OK)


def _require_whole_batches(
    output: str, *, follow: bool, limit: int | None, frame: bool, cursor_file: str | None
) -> None:
    if frame or cursor_file is not None:
        option = "--frame" if frame else "--cursor-file"
        raise UsageProblem(f"{option} goes by single records, --output {output} by batches; use json or raw")
    if output in AT_THE_END and follow and limit is None:
        raise UsageProblem(f"--output {output} is written at the end: add --no-follow, or --limit")


def _pour_columns(
    hub: "Hub",
    name: str,
    start: "Start",
    follow: bool,
    where: str | None,
    columns: list[str] | None,
    output: str,
    limit: int | None,
) -> int:
    """Whole batches, of the columns that the stream has now."""
    from mainstem.consume.outlet import Outlet

    losses = 0
    # Who reads our output may go away while we wait for more.
    outlet = Outlet(sys.stdout.fileno())
    with hub.consumer(
        name, start=start, follow=follow, where=where, columns=columns or row_columns(hub, name), on_bad="skip"
    ) as consumer:
        columns_out = consumer.columns
        with column_writer(output, columns_out) as writer:
            left = limit
            while left != 0:
                try:
                    batch = consumer.poll_batch(timeout=_LOOK_SECONDS if follow else None)
                except DataLoss as loss:
                    losses += 1
                    _report(loss)
                    continue
                if batch is None:
                    if follow and outlet.look():
                        continue
                    break
                taken = batch if left is None else batch.first(left)
                rows = taken.to_arrow()
                if rows.schema != columns_out:
                    raise IncompatibleSchema(
                        f"stream {name!r} has another schema now, and {output} keeps to the columns it began with: "
                        "start again"
                    )
                writer.write(rows)
                left = None if left is None else left - taken.count
        is_short = tell_undecoded(consumer.undecoded, name, consumer.why_undecoded)
    return ExitCode.FAILURE if losses or is_short else ExitCode.OK


def _report(loss: DataLoss | IncompatibleSchema | UndecodedRecords) -> None:
    print(f"mainstem: {str(loss).partition('; ')[0]}; going on after them", file=sys.stderr, flush=True)


def _start(text: str) -> "Start":
    if text in ("earliest", "latest"):
        return text
    if text.startswith("ms1:"):
        return Cursor.parse(text)
    return parse_time("--start", text, "earliest, latest, a cursor")


class _Stop:
    """Ctrl-C and SIGTERM. Deferred: noted, so that the cursor is exact; the second one interrupts whatever hangs."""

    def __init__(self, *, deferred: bool) -> None:
        self.code = 0
        if deferred:
            signal.signal(signal.SIGINT, self._note)
            signal.signal(signal.SIGTERM, self._note)

    def is_wanted(self) -> bool:
        return self.code != 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.code:
            raise KeyboardInterrupt
        self.code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
