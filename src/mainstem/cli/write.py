"""`mainstem write`: records from a file or a pipe into a stream."""

import itertools
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import ExitCode, UsageProblem, explain
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.cli.printing import counted
from mainstem.core.errors import InvalidPayload, InvalidRecord, MainstemError, RecordTooLarge, UnknownStream
from mainstem.core.names import check_stream_name
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.hub.hub import Hub
    from mainstem.produce.intake import Intake
    from mainstem.transport.port import StreamInfo

_BLOCK_BYTES = 1 << 20
_PROGRESS_SECONDS = 0.1
_SETTLE_SECONDS = 1.0


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
            metavar="lines|ndjson|csv|parquet|avro|frames|auto",
            help="How records stand in the input. auto: by the file's ending or its first bytes, else lines.",
        ),
    ] = "auto",
    key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="The field of a row (NDJSON, CSV, Parquet, Avro) that is its key."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help=r"Lines are KEY TEXT VALUE; \t is a tab.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option(metavar="N", help="Write all records to this shard, whatever their keys.")
    ] = None,
    on_bad: Annotated[
        str,
        typer.Option(
            metavar="raise|dead_letter",
            help="A row that does not fit the schema ends the command, or is kept in STREAM.dead.",
        ),
    ] = "raise",
    infer: Annotated[
        bool,
        typer.Option("--infer", help="Give a stream without a schema that of the input (NDJSON, Parquet, Avro)."),
    ] = False,
    data: Data = None,
) -> None:
    """Write records from a file or a pipe to a stream.

    Ends when all of them are durable. If the stream has a schema, each line, row or frame is a row of it: JSON, cells
    of CSV, columns of Parquet or Avro. If it has none, lines are values as they are, and a row of NDJSON, CSV, Parquet
    or Avro is kept as the JSON of that row. Rows with the columns value, key, headers and timestamp are whole records,
    as `tail --output json` writes them, of any stream.
    """
    check_stream_name(name, reserved=True)
    if on_bad not in ("raise", "dead_letter"):
        raise UsageProblem(f"--on-bad {on_bad}: use raise or dead_letter")
    with _open(file) as (input_, head), hubs.writing(loaded, data) as hub:
        from mainstem.produce.intake import Intake

        stop = _Stop()
        form = _form(input_, head, format, key, key_separator)
        blocks: Iterable[bytes] = _blocks(input_)
        if infer:
            blocks = _infer(hub, name, form, input_, blocks)
        info = _info(hub, name)
        if info is not None and info.schema_bytes:
            rows = _typed_rows(input_, form, key, info, stop, blocks)
        else:
            rows = _rows(input_, form, key, key_separator, stop, blocks)
        with hub.producer(on_bad="raise" if on_bad == "raise" else "dead_letter") as producer:
            unit = "frame" if form == "frames" else "line"
            intake = Intake(producer, name, unit if file is None else f"{file}: {unit}", shard)
            try:
                with closing(_with_progress(rows if file is None else _named(rows, file), intake)) as watched:
                    intake.take(watched)
                intake.finish()
            except (KeyboardInterrupt, MainstemError, OSError) as error:
                if intake.sent:
                    _settle(intake, error)
                    _tell(error, _account(intake, name, is_exact=intake.is_exact and not stop.is_forced))
                raise
        if not intake.sent:
            # Nobody has asked for the stream yet.
            hub.streams.get(name)
    offsets = ", ".join(f"{shard}:{offset}" for shard, offset in sorted(intake.newest.items()))
    print(
        f"{counted(intake.acknowledged - intake.dead, 'record')} written to {name}"
        + (f"; newest offsets {offsets}" if offsets else ""),
        file=sys.stderr,
    )
    if intake.dead:
        print(f"{counted(intake.dead, 'row')} did not fit and went to {name}.dead", file=sys.stderr)


def _settle(intake: "Intake", error: BaseException) -> None:
    """Have what was sent come to its end before it is counted."""
    try:
        if not intake.settle(_SETTLE_SECONDS):
            print("waiting for the last acknowledgements; Ctrl-C gives up", file=sys.stderr, flush=True)
            intake.settle()
    except KeyboardInterrupt:
        if not isinstance(error, KeyboardInterrupt):
            print(f"mainstem: {explain(error)}", file=sys.stderr)
        print(
            f"gave up; at least {intake.acknowledged:,} of {intake.sent:,} records are durable",
            file=sys.stderr,
            flush=True,
        )
        # Closing the producer would wait for the same answers.
        os._exit(ExitCode.INTERRUPTED)


def _account(intake: "Intake", name: str, *, is_exact: bool) -> str:
    """How many records are in the stream after a failure, so that somebody can go on from there."""
    are = "is" if intake.acknowledged == 1 else "are"
    if is_exact and intake.acknowledged == intake.sent:
        return f"{counted(intake.sent, 'record')} {are} in {name}"
    about = "" if is_exact else "at least "
    return f"{about}{intake.acknowledged:,} of the {counted(intake.sent, 'record')} sent {are} in {name}"


def _tell(error: BaseException, account: str) -> None:
    if isinstance(error, KeyboardInterrupt):
        print(f"stopped; {account}", file=sys.stderr)
    else:
        error.add_note(account)


class _Stop:
    """Ctrl-C. While records are handed over it is deferred, so that all of them are counted; the second one interrupts
    whatever hangs."""

    def __init__(self) -> None:
        self._is_deferred = False
        self._is_wanted = False
        # Whether the handing over itself was interrupted: a record may then have gone uncounted.
        self.is_forced = False
        signal.signal(signal.SIGINT, self._on_signal)

    def between(self, items: Iterable[Any]) -> Iterator[Any]:
        """The same items. Ctrl-C is deferred while somebody works on one, and stops us before the next."""
        for item in items:
            self._is_deferred = True
            try:
                yield item
            finally:
                self._is_deferred = False
            if self._is_wanted:
                raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_deferred and not self._is_wanted:
            self._is_wanted = True
            return
        self.is_forced = self._is_deferred
        raise KeyboardInterrupt


@contextmanager
def _open(file: str | None) -> Iterator[tuple[IO[bytes], bytes]]:
    """The input and how it begins. Bytes of a pipe are passed on as they come, so the head is only looked at."""
    if file is None and sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
    with open(sys.stdin.fileno() if file is None else file, "rb", closefd=file is not None) as input_:
        yield input_, b"" if input_.isatty() else input_.peek(4)[:4]


def _form(input_: IO[bytes], head: bytes, form: str, key: str | None, separator: str | None) -> str:
    """The format of the input."""
    from mainstem.produce import rows

    if form == "auto":
        form = rows.guess_format(str(input_.name), head, key)
    if form not in rows.FORMATS:
        raise UsageProblem(f"--format {form}: use one of {', '.join(rows.FORMATS)}, auto")
    if key is not None and form in ("lines", "frames"):
        raise UsageProblem(f"--key needs fields, and {form} have none; use --key-separator, or another --format")
    if separator is not None and form != "lines":
        raise UsageProblem(f"--key-separator is for lines, and the input is {form}; use --key FIELD, or --format lines")
    if separator == "":
        raise UsageProblem("--key-separator is empty; give the text between key and value")
    return form


def _info(hub: "Hub", name: str) -> "StreamInfo | None":
    """What is known of the stream; None if it is to be made when the first record comes, where that is allowed."""
    try:
        return hub.streams.get(name)
    except UnknownStream:
        return None


def _infer(hub: "Hub", name: str, form: str, input_: IO[bytes], blocks: Iterable[bytes]) -> Iterable[bytes]:
    """Give the stream the schema of the input, as far as its beginning tells, if it has none; the same blocks."""
    if hub.streams.get(name).schema:
        return blocks
    if form in ("parquet", "avro") and input_.seekable():
        from mainstem.produce.typed_rows import avro_schema, parquet_schema

        hub.streams.set_schema(name, (parquet_schema if form == "parquet" else avro_schema)(input_))
        return blocks
    if form != "ndjson":
        raise UsageProblem(
            f"--infer is for NDJSON and for files of Parquet and Avro, and the input is {form}; give it a schema"
        )
    from mainstem.registry.forms import infer

    blocks = iter(blocks)
    begin = b""
    while len(begin) < _BLOCK_BYTES and (block := next(blocks, b"")):
        begin += block
    whole = begin if len(begin) < _BLOCK_BYTES else begin[: begin.rfind(b"\n") + 1]
    hub.streams.set_schema(name, infer(whole))
    return itertools.chain([begin], blocks)


def _typed_rows(
    input_: IO[bytes], form: str, key: str | None, info: "StreamInfo", stop: _Stop, blocks: Iterable[bytes]
) -> Iterable[Any]:
    """Rows for a stream with a schema."""
    from mainstem.core.schema import Schema
    from mainstem.produce import typed_rows

    if key is not None and info.key:
        raise UsageProblem(f"--key {key}: the key of a row of {info.name} is made of {', '.join(info.key)}")
    if key is not None and form in ("parquet", "avro"):
        raise UsageProblem(f"--key is not for {form} into a stream with a schema; call the column _key instead")
    schema = Schema.parse(info.schema_bytes)
    match form:
        case "lines" | "ndjson":
            return typed_rows.json_lines(stop.between(blocks), schema, key)
        case "frames":
            return typed_rows.frames(stop.between(blocks))
        case "csv":
            return stop.between(typed_rows.csv_rows(input_, schema, key))
        case "avro":
            return stop.between(typed_rows.avro(input_))
        case _:
            return stop.between(typed_rows.parquet(_seekable(input_)))


def _rows(
    input_: IO[bytes], form: str, key: str | None, separator: str | None, stop: _Stop, blocks: Iterable[bytes]
) -> Iterable[Any]:
    from mainstem.produce import rows

    match form:
        case "lines":
            between = None if separator is None else separator.replace("\\t", "\t").encode()
            return rows.lines(stop.between(blocks), between)
        case "frames":
            return rows.frames(stop.between(blocks))
        case "ndjson":
            return rows.ndjson(stop.between(blocks), key)
        case "csv":
            return stop.between(rows.csv_rows(input_, key))
        case "avro":
            return stop.between(rows.avro(input_, key))
        case _:
            return stop.between(rows.parquet(_seekable(input_), key))


def _named(rows: Iterable[Any], file: str) -> Iterator[Any]:
    """The same rows; what is wrong with one names the file."""
    try:
        yield from rows
    except (InvalidRecord, InvalidPayload, RecordTooLarge) as error:
        raise type(error)(f"{file}: {error}") from None


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


def _with_progress(rows: Iterable[Any], intake: "Intake") -> Generator[Any, None, None]:
    """The same rows; on a terminal with a line that counts them."""
    is_shown = sys.stderr.isatty() and not sys.stdin.isatty()
    yield from _counted(rows, intake) if is_shown else rows


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
