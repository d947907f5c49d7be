"""`mainstem write`: records from a file or a pipe into a stream."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.core.errors import MainstemError
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.produce.intake import Intake

_BLOCK_BYTES = 1 << 20
_PROGRESS_SECONDS = 0.1


@with_settings("write")
def write(
    loaded: Loaded,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to write to.")],
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="What to read; standard input if left out.")
    ] = None,
    format: Annotated[  # noqa: A002
        str,
        typer.Option(
            metavar="lines|ndjson|csv|parquet|frames|auto",
            help="How records stand in the input. auto: by the file's ending or its first bytes, else lines.",
        ),
    ] = "auto",
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field of a row (NDJSON, CSV, Parquet) that is its key.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help=r"Lines are KEY TEXT VALUE; \t is a tab.")
    ] = None,
    data: Data = None,
) -> None:
    """Write records from a file or a pipe to a stream.

    Ends when all of them are durable. Lines are values as they are. A row of NDJSON, CSV or Parquet becomes the JSON of
    that row, unless its columns are value, key, headers and timestamp: then it is a whole record, as
    `tail --output json` writes them.
    """
    with _open(file) as (input_, head), hubs.writing(loaded, data) as hub:
        from mainstem.produce.intake import Intake

        rows = _rows(input_, head, format, key, key_separator)
        with hub.producer() as producer:
            intake = Intake(producer, name)
            try:
                intake.take(_with_progress(rows, intake))
                intake.finish()
            except KeyboardInterrupt:
                print(f"stopped; at least {intake.acknowledged:,} records are in {name}", file=sys.stderr)
                raise
            except MainstemError as error:
                error.add_note(f"at least {intake.acknowledged:,} records before it are in the stream")
                raise
    offsets = ", ".join(f"{shard}:{offset}" for shard, offset in sorted(intake.newest.items()))
    print(
        f"{intake.acknowledged:,} records written to {name}" + (f"; newest offsets {offsets}" if offsets else ""),
        file=sys.stderr,
    )


@contextmanager
def _open(file: str | None) -> Iterator[tuple[IO[bytes], bytes]]:
    """The input and how it begins. Bytes of a pipe are passed on as they come, so the head is only looked at."""
    if file is None and sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
    with open(sys.stdin.fileno() if file is None else file, "rb", closefd=file is not None) as input_:
        yield input_, b"" if input_.isatty() else input_.peek(4)[:4]


def _rows(input_: IO[bytes], head: bytes, form: str, key: str | None, separator: str | None) -> Iterable[Any]:
    from mainstem.produce import rows

    if form == "auto":
        form = "lines" if separator is not None else rows.guess_format(str(input_.name), head, key)
    if form not in rows.FORMATS:
        raise UsageProblem(f"--format {form}: use one of {', '.join(rows.FORMATS)}, auto")
    if key is not None and form in ("lines", "frames"):
        raise UsageProblem(f"--key needs fields, and {form} have none; use --key-separator, or another --format")
    if separator is not None and form != "lines":
        raise UsageProblem(f"--key-separator is for lines, not for {form}; use --key FIELD")
    if separator == "":
        raise UsageProblem("--key-separator is empty; give the text between key and value")
    match form:
        case "lines":
            between = None if separator is None else separator.replace("\\t", "\t").encode()
            return rows.lines(_blocks(input_), between)
        case "frames":
            return rows.frames(_blocks(input_))
        case "ndjson":
            return rows.ndjson(_blocks(input_), key)
        case "csv":
            return rows.csv_rows(input_, key)
        case _:
            return rows.parquet(_seekable(input_), key)


def _blocks(input_: Any) -> Iterator[bytes]:
    while block := input_.read1(_BLOCK_BYTES):
        yield block


def _seekable(input_: IO[bytes]) -> IO[bytes]:
    """Parquet is read from its end: what comes through a pipe is put into a temporary file first."""
    if input_.seekable():
        return input_
    import shutil
    import tempfile

    spool = tempfile.TemporaryFile()  # noqa: SIM115  # read until the command ends
    shutil.copyfileobj(input_, spool)
    spool.seek(0)
    return spool


def _with_progress(rows: Iterable[Any], intake: "Intake") -> Iterable[Any]:
    """The same rows; on a terminal with a line that counts them."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        return rows
    return _counted(rows, intake)


def _counted(rows: Iterable[Any], intake: "Intake") -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from mainstem.core.clock import SYSTEM_CLOCK as CLOCK

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        begun = shown = CLOCK.monotonic()
        for count, row in enumerate(rows):
            if count % 256 == 0 and (now := CLOCK.monotonic()) - shown >= _PROGRESS_SECONDS:
                shown = now
                rate = intake.sent / (now - begun)
                text = f"{intake.sent:,} sent, {intake.acknowledged:,} durable, {rate:,.0f}/s"
                progress.update(task, description=text)
            yield row
