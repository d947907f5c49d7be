"""`mainstem job`: run jobs on Spark, and see what they have done."""

import dataclasses
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.cli.exits import UsageProblem
from mainstem.cli.hubs import Json
from mainstem.cli.job_command import Given, job_command
from mainstem.cli.printing import counted, print_json, print_table, time_text
from mainstem.cli.times import is_ago, parse_time
from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidCursor, TableUnusable
from mainstem.core.kinds import parse_bytes
from mainstem.core.plain import size_text

if TYPE_CHECKING:
    from mainstem.spark.jobs.compact import CompactReport
    from mainstem.spark.jobs.loading import JobResult

app = typer.Typer(help="Run jobs on Spark, and see what they have done.", rich_markup_mode=None)
run = typer.Typer(help="Run a job: mainstem job run NAME --help says what it takes.", rich_markup_mode=None)
app.add_typer(run, name="run")

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream to read.")]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="The folder of the Delta table.")]
Columns = Annotated[str | None, typer.Option("--columns", metavar="NAME,...", help="Only these columns of the stream.")]
Where = Annotated[str | None, typer.Option(metavar="WHERE", help="Only records for which this expression is true.")]
Sql = Annotated[
    str | None, typer.Option(metavar="QUERY", help="A query of Spark over the stream by its name, load by load.")
]
Partition = Annotated[
    str, typer.Option(metavar="none|shard|day|hour", help="What the table is partitioned by.", show_default=True)
]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column that day and hour are taken from; the record's own time if not said."
    ),
]
LoadRows = Annotated[
    int | None, typer.Option(metavar="COUNT", min=1, help="Records that become visible together, at most.")
]
FileSize = Annotated[str | None, typer.Option(metavar="SIZE", help="How large files get; 128MiB if not said.")]
OnBad = Annotated[
    str, typer.Option(metavar="raise|skip", help="What to do about records that are no rows, or have no key.")
]
OnBadRow = Annotated[str, typer.Option(metavar="raise|skip", help="What to do about records that are no rows.")]
OnLoss = Annotated[str, typer.Option(metavar="raise|skip", help="What to do about records that are gone.")]
OnReplayLoss = Annotated[
    str,
    typer.Option(
        metavar="raise|skip|drop",
        help=(
            "What to do about records that are gone; drop: with --replace, replace the table even though rows made of "
            "lost records go with it."
        ),
    ),
]
Vacuum = Annotated[
    str | None, typer.Option(metavar="AGE", help="Delete files that the table has not needed for so long, such as 7d.")
]
Notes = Annotated[
    str | None,
    typer.Option(
        "--manifests", metavar="FOLDER", help="Keeps what each run has done; ~/.local/state/mainstem if not said."
    ),
]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the jobs there are."""
    from mainstem.spark.jobs.catalogue import JOBS

    if json:
        print_json([{"job": name, "does": text} for name, text in JOBS.items()])
        return
    print_table(("job", "what it does"), list(JOBS.items()))


@app.command()
def loads(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="The folder of a Delta table, or of manifests; yours if not said."),
    ] = None,
    json: Json = False,
) -> None:
    """List what jobs have done, by their manifests: of a table each line is one commit, with the cursor up to which it
    goes. Without a table it is what jobs have done that write none, compact and audit."""
    import msgspec

    from mainstem.spark.jobs.catalogue import loads_of
    from mainstem.spark.jobs.manifest import notes_folder

    folder = notes_folder(table)
    if table is not None and not folder.is_dir():
        raise TableUnusable(f"there is no folder {folder}; name that of a table, or of manifests")
    found = list(loads_of(folder))
    if json:
        print_json([msgspec.to_builtins(manifest) for manifest in found])
        return
    rows = [
        (
            one.job,
            one.stream,
            str(one.number),
            one.state,
            f"{one.rows_read:,}",
            f"{one.rows_written:,}",
            str(len(one.files)),
            size_text(one.bytes_written),
            time_text(one.done_us or one.planned_us)[:19] + "Z",
            one.end,
        )
        for one in found
    ]
    names = ("job", "stream", "load", "state", "read", "written", "files", "bytes", "time", "up to")
    print_table(names, rows, right=("load", "read", "written", "files", "bytes"))
    if not found:
        print(f"no job has written {folder}", file=sys.stderr)


def _files_of(result: "JobResult") -> str:
    """In how many files; rows that were delivered to a stream are in none."""
    return f" in {counted(result.files, 'file')}, {size_text(result.bytes)}" if result.files else ""


def show_loaded(result: "JobResult", json: bool) -> None:
    """What a job did that loads."""
    if json:
        print_json(dataclasses.asdict(result))
        return
    rate = f", {result.rows_read / result.seconds:,.0f} a second" if result.seconds and result.rows_read else ""
    # A stream has no versions.
    version = f", version {result.table_version}" if result.table_version >= 0 else ""
    print(
        f"{result.job}: {counted(result.rows_read, 'record')} of {result.stream} in {counted(result.loads, 'load')}, "
        f"{result.seconds:.1f} s{rate}\n"
        f"wrote {counted(result.rows_written, 'row')}{_files_of(result)}, "
        f"to {f'stream {result.into}' if result.into else result.table}{version}"
    )
    if result.rows_deleted:
        print(f"{counted(result.rows_deleted, 'row')} deleted by tombstones")
    if (told := result.compared) is not None:
        print(
            f"compared with version {told.before}: {counted(told.added, 'row')} added, {told.removed:,} removed, "
            f"{told.changed:,} changed, {told.same:,} the same"
        )
    if result.vacuumed:
        print(f"{counted(result.vacuumed, 'file')} deleted that the table needed no more")
    if result.undecoded:
        print(f"passed over {counted(result.undecoded, 'record')} that are no rows of the schema", file=sys.stderr)
    if result.without_key:
        print(f"passed over {counted(result.without_key, 'record')} without a key", file=sys.stderr)
    for shard, first, end in result.lost:
        print(f"passed over records {first} to {end - 1} of shard {shard}, which are gone", file=sys.stderr)
    print(f"up to {result.end}")


def show_compacted(done: "CompactReport", json: bool) -> None:
    """What a run of `compact` did."""
    if json:
        told = {"stream": done.stream, "records": done.records, "files": len(done.files), "bytes": done.bytes}
        print_json({**told, "ranges_left": done.ranges_left, "loads": done.loads, "manifests": done.manifests})
        return
    print(
        f"compact: {counted(done.records, 'record')} of {done.stream} in {counted(len(done.files), 'file')}, "
        f"{size_text(done.bytes)}"
    )
    if done.ranges_left:
        print(f"{counted(done.ranges_left, 'range')} left: changed meanwhile, or unreadable", file=sys.stderr)


@run.command()
@job_command(show_loaded)
def warehouse(
    given: Given,
    stream: Stream,
    table: Table,
    mode: Annotated[
        str, typer.Option(metavar="append|upsert", help="Every record a row, or one row for each key.")
    ] = "append",
    partition: Partition = "none",
    time: Time = None,
    columns: Columns = None,
    where: Where = None,
    sql: Sql = None,
    start: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME|CURSOR", help="Where the first run begins; later ones go on where it ended."
        ),
    ] = "earliest",
    no_places: Annotated[bool, typer.Option("--no-places", help="Leave out _shard, _offset and _timestamp.")] = False,
    no_compact: Annotated[bool, typer.Option("--no-compact", help="Leave small files as they are.")] = False,
    load_rows: LoadRows = None,
    file_size: FileSize = None,
    vacuum: Vacuum = None,
    on_bad: OnBad = "raise",
    on_loss: OnLoss = "raise",
) -> "JobResult":
    """Load what came to a stream since the last run into a Delta table, exactly once.

    A run that was killed is simply run again. Late rows go to the partition of their time; columns that the stream gets
    are added to the table; small files are made into large ones.
    """
    from mainstem.spark.jobs.part_files import FILE_BYTES
    from mainstem.spark.jobs.warehouse import warehouse as job

    return job(
        stream=stream,
        table=table,
        mode=mode,  # type: ignore[arg-type]  # checked there
        partition=partition,  # type: ignore[arg-type]
        time=time,
        columns=_names(columns),
        where=where,
        sql=sql,
        places=not no_places,
        start=_start(start),
        compact=not no_compact,
        vacuum=vacuum,
        load_rows=load_rows,
        file_bytes=FILE_BYTES if file_size is None else _bytes("--file-size", file_size),
        on_bad=on_bad,  # type: ignore[arg-type]
        on_loss=on_loss,  # type: ignore[arg-type]
        **given,
    )


@run.command()
@job_command(show_loaded)
def snapshot(
    given: Given,
    stream: Stream,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Gets two tables: rows and tombstones.")],
    at: Annotated[str | None, typer.Option(metavar="CURSOR", help="As of this cursor; the end if not said.")] = None,
    since: Annotated[str | None, typer.Option(metavar="CURSOR", help="Only what happened after this cursor.")] = None,
    columns: Columns = None,
    vacuum: Vacuum = None,
    on_bad: OnBad = "raise",
    on_loss: OnLoss = "raise",
) -> "JobResult":
    """Write the newest row of each key as of a cursor, tombstones apart.

    What is printed at the end is the cursor: who takes the rows and reads the stream from there misses nothing. With
    --since it is the consolidated delta: of all that happened after that, the last of each key.
    """
    from mainstem.spark.jobs.snapshot import snapshot as job

    try:
        return job(
            stream=stream,
            folder=folder,
            at=at,
            since=since,
            columns=_names(columns),
            vacuum=vacuum,
            on_bad=on_bad,  # type: ignore[arg-type]
            on_loss=on_loss,  # type: ignore[arg-type]
            **given,
        )
    except InvalidCursor as error:
        # What is said of cursors elsewhere is of --start and of files, which are not here.
        raise UsageProblem(str(error)) from None


def _from_this_folder(function: str | None) -> str | None:
    """A module in the current folder is found first, as with `python -m`: here, and by workers of Spark, which are
    started after this."""
    if function is not None:
        folder = os.getcwd()
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    return function


@run.command()
@job_command(show_loaded)
def replay(
    given: Given,
    stream: Stream,
    table: Table,
    since: Annotated[str, typer.Option(metavar="TIME", help="The first time that counts.")],
    until: Annotated[str, typer.Option(metavar="TIME", help="The first time that counts no more.")],
    sql: Sql = None,
    function: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="A function of Arrow batches, instead of a query; modules of the current folder are found.",
            callback=_from_this_folder,
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put what comes out in the place of everything in the table.")
    ] = False,
    into: Annotated[
        str | None,
        typer.Option(metavar="STREAM", help="Deliver to this stream instead; TABLE is then the folder of manifests."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Tells replays into one table apart.")] = None,
    columns: Columns = None,
    where: Where = None,
    partition: Partition = "none",
    time: Time = None,
    load_rows: LoadRows = None,
    file_size: FileSize = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="What tells rows apart when --replace compares; the stream's key if not said."
        ),
    ] = None,
    no_compare: Annotated[
        bool, typer.Option("--no-compare", help="With --replace: do not say what is different.")
    ] = False,
    on_bad: OnBadRow = "raise",
    on_loss: OnReplayLoss = "raise",
) -> "JobResult":
    """Run a time range of history through a function or a query into a table or a stream, exactly once.

    A run that was killed is simply run again; one that was done adds nothing the second time. With --replace readers
    see the old rows or the new ones, never both; it says how many are different.
    """
    from mainstem.spark.jobs.replay import replay as job

    first, end = (_replayed(option, text, replace) for option, text in (("--since", since), ("--until", until)))
    return job(
        stream=stream,
        table=table,
        since=first,
        until=end,
        sql=sql,
        function=function,
        replace=replace,
        into=into,
        name=name,
        columns=_names(columns),
        where=where,
        partition=partition,  # type: ignore[arg-type]
        time=time,
        load_rows=load_rows,
        file_bytes=None if file_size is None else _bytes("--file-size", file_size),
        compare=not no_compare,
        key=_names(key),
        on_bad=on_bad,  # type: ignore[arg-type]
        on_loss=on_loss,  # type: ignore[arg-type]
        **given,
    )


@run.command()
@job_command(show_compacted)
def compact(
    given: Given,
    stream: Stream,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Only records that are older than this.", show_default=True)
    ] = "3h",
    file_bytes_min: Annotated[
        str, typer.Option(metavar="SIZE", help="What is less than this, as stored, stays as it is.", show_default=True)
    ] = "1MiB",
    manifests: Notes = None,
) -> "CompactReport":
    """Put old records of a stream into Parquet files in the log's own folder, which must be on this machine.

    Readers do not notice: the same cursor gives the same records in the same order. A run that was killed is simply run
    again.
    """
    from mainstem.spark.jobs.compact import compact as job

    least = _bytes("--file-bytes-min", file_bytes_min)
    return job(stream=stream, older_than=older_than, file_bytes_min=least, manifests=manifests, **given)


def _start(text: str) -> "datetime | Cursor | str":
    """As the job takes it. How long ago stays as it was asked for, since it is another time in every run."""
    if text in ("earliest", "latest"):
        return text
    if text.startswith("ms1:"):
        return Cursor.parse(text)
    time = parse_time("--start", text, "earliest, latest, a cursor")
    return text if is_ago(text) else time


def _replayed(option: str, text: str, replace: bool) -> datetime:
    """A time of a replay. One that adds rows is recognised by it, so it must be the same whenever it is run."""
    time = parse_time(option, text)
    if is_ago(text) and not replace:
        raise UsageProblem(
            f"{option} {text}: that is another time in every run, and a replay that was killed goes on only if it is "
            f"run again with the same; give the time itself, as it is now {time.isoformat(timespec='seconds')} (with "
            "--replace, how long ago will do)"
        )
    return time


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _bytes(option: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageProblem(f"{option} {text}: {error}") from None
