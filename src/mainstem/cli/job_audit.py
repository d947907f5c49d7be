"""`mainstem job run audit`: whether everything that was sent is in the log, and in the tables made of it."""

from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.cli.exits import ExitCode
from mainstem.cli.job import Notes, Stream
from mainstem.cli.job_command import Given, job_command
from mainstem.cli.printing import counted, print_json, print_table, time_text
from mainstem.cli.times import parse_time
from mainstem.core.kinds import render_duration

if TYPE_CHECKING:
    from mainstem.spark.jobs.audit import AuditResult


def show_audited(result: "AuditResult", json: bool) -> int:
    """What an audit found."""
    if json:
        print_json(result.as_json())
    else:
        _print(result)
    return ExitCode.OK if result.is_good else ExitCode.FAILURE


@job_command(show_audited)
def audit(
    given: Given,
    stream: Stream,
    table: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="A Delta table made of the stream; may be repeated.")
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="A table of earlier audits that counts no more; may be repeated."),
    ] = None,
    time: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of the tables that has the records' times.")
    ] = "_timestamp",
    window: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a window is; else as long as producers count in.")
    ] = None,
    settle: Annotated[
        str, typer.Option(metavar="DURATION", help="How long after its end a window is compared.", show_default=True)
    ] = "10m",
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Compare from here on; else from where the last audits came to.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, and keep nothing of it.")] = False,
    manifests: Notes = None,
) -> "AuditResult":
    """Compare what producers sent to a stream with what is in the log and in tables, window by window.

    Producers have to count (hub.producer(counts="1m"), mainstem serve --http-counts 1m). The time up to which all is
    where it belongs is kept for the log and for each table that is named: the stream is `verified through` the least
    of them. Each window and tier after that which differs is named, and the exit code is 1 if there is one.
    """
    from mainstem.spark.jobs.audit import audit as job

    return job(
        stream=stream,
        tables=table or (),
        forget=forget or (),
        time=time,
        window=window,
        settle=settle,
        since=None if since is None else parse_time("--since", since),
        publish=not dry_run,
        manifests=manifests,
        **given,
    )


def _print(result: "AuditResult") -> None:
    found = result.reconciliation
    length = render_duration(found.window_us / 1_000_000)
    print(f"{found.stream}: {counted(found.windows, 'window')} of {length} compared")
    if found.differing:
        rows = [
            (time_text(line.start_us), line.tier, f"{line.expected:,}", f"{line.seen:,}", f"{line.difference:+,}")
            for line in found.differing
        ]
        print_table(("window", "tier", "sent", "there", "differs"), rows, right=("sent", "there", "differs"))
    for shard, first, end in result.lost:
        print(f"shard {shard}: records {first:,} to {end - 1:,} cannot be read; mainstem doctor --deep says why")
    print(f"verified through {time_text(found.verified_through_us)}")
    for table, through_us in sorted(result.behind.items()):
        print(f"table {table}, which was not compared: verified through {time_text(through_us)}")
