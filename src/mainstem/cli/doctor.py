"""`mainstem doctor`: what is wrong with a data folder, what can be saved from a block, and a ledger made anew."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli.exits import ExitCode, UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Json
from mainstem.cli.printing import counted, print_json
from mainstem.core.log_lines import configure_logging
from mainstem.core.plain import size_text
from mainstem.core.settings import DEFAULT, Loaded

if TYPE_CHECKING:
    from mainstem.log.doctor import Progress, Report
    from mainstem.log.finding import Finding
    from mainstem.log.salvage import SalvageReport
    from mainstem.spark.java import Java


@with_settings("doctor")
def doctor(
    loaded: Loaded,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of every block.")] = False,
    salvage: Annotated[
        str | None, typer.Option(metavar="BLOCK", help="Write what can be read of this block file to --output.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="The Parquet file that --salvage writes; it must not exist.")
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Put the ledger aside and make it anew from snapshot and blocks.")
    ] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Say which Java and which packages Spark would run with, and nothing else.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> int:
    """Say what is wrong with a data folder, how bad it is, and what to run next.

    It changes nothing, and may run beside the server of the folder and without the right to write there. One line per
    finding, the worst first; the exit code is 0 (healthy, notes allowed), 6 (warnings) or 7 (damage).

    --salvage reads one block file without a ledger, also one that is cut or damaged. Rows go to a file for each schema,
    beside --output and named after it: OUT.schema-7.parquet beside OUT.parquet. --rebuild makes a ledger anew; the
    old one is kept in the folder, and nobody may write it meanwhile.

    --spark looks at no folder: it says which Java Spark would run on, and what of its packages is installed. The exit
    code is 5 if something is missing or too old.
    """
    _log_as_told(loaded)
    if spark:
        if rebuild or deep or salvage is not None:
            raise UsageProblem("--spark looks at this machine, not at a folder: it goes with no other option")
        return _look_at_spark(json)
    if rebuild and (salvage is not None or deep):
        raise UsageProblem("--rebuild goes with neither --salvage nor --deep")
    if (salvage is None) != (output is None):
        raise UsageProblem("--salvage BLOCK and --output FILE belong together")
    if salvage is not None and output is not None:
        return _salvage(Path(salvage), Path(output), json)
    if rebuild:
        return _rebuild(loaded.settings.data, yes, json)
    return _examine(loaded, deep, json)


def _log_as_told(loaded: Loaded) -> None:
    """Unless asked for, no log lines: what they would say is among the findings."""
    import logging

    if loaded.origins["log_level"] == DEFAULT:
        logging.getLogger("mainstem").addHandler(logging.NullHandler())
    else:
        configure_logging(loaded.settings)


# Spark.


def _look_at_spark(json: bool) -> int:
    from mainstem.spark.diagnosis import diagnose

    found = diagnose()
    if json:
        print_json(
            {
                "java": None if found.java is None else _java(found.java),
                "others": [_java(other) for other in found.others],
                "packages": dict(found.packages),
                "source": found.is_source_known,
                "cores": found.cores,
                "missing": list(found.missing),
            }
        )
    else:
        print(f"java      {found.java or 'none'}")
        for other in found.others:
            print(f"          also {other}")
        for name, version in found.packages.items():
            print(f"{name:9} {version}")
        print(f'source    format("mainstem") is {"known" if found.is_source_known else "unknown"} to Spark')
        print(f"machine   {counted(found.cores, 'core')}")
        for missing in found.missing:
            print(f"missing   {missing}")
    return ExitCode.REFUSED if found.missing else ExitCode.OK


def _java(java: "Java") -> dict[str, Any]:
    return {"home": str(java.home), "version": java.version, "found_by": java.found_by}


# Examining.


def _examine(loaded: Loaded, deep: bool, json: bool) -> int:
    from mainstem.log.doctor import examine
    from mainstem.log.finding import Severity

    with _progress() as progress:
        report = examine(loaded.settings.data, deep=deep, block_bytes=loaded.settings.block_bytes, progress=progress)
    if json:
        print_json(_described(report))
    else:
        for finding in report.findings:
            print(_line(finding))
        print(_summary(report, deep))
    codes = {Severity.NOTE: ExitCode.OK, Severity.WARNING: ExitCode.WARNINGS, Severity.DAMAGE: ExitCode.DAMAGE}
    return codes[report.worst]


def _line(finding: "Finding") -> str:
    where = f"{finding.where}: " if finding.where else ""
    command = f"  ->  {finding.command}" if finding.command else ""
    what = " ".join(finding.what.split())
    return f"{finding.severity.name.lower()}  {finding.code}  {where}{what}{command}"


def _summary(report: "Report", deep: bool) -> str:
    from mainstem.log.finding import Severity

    damage, warnings = report.count(Severity.DAMAGE), report.count(Severity.WARNING)
    verdict = "damaged" if damage else "not damaged, with warnings" if warnings else "healthy"
    counts = f"{damage} damage, {counted(warnings, 'warning')}, {counted(report.count(Severity.NOTE), 'note')}"
    read = f"{size_text(report.checked_bytes)} of {size_text(report.block_bytes)} in blocks read"
    return (
        f"{verdict}: {counts}; {counted(report.streams, 'stream')}, {counted(report.records, 'record')}, "
        f"{counted(report.blocks, 'block')}, {size_text(report.live_bytes)} in use, "
        f"{size_text(report.dead_bytes)} waiting to be freed; {read}{'' if deep else ' (--deep reads all)'}"
    )


def _described(report: "Report") -> dict[str, Any]:
    return {
        "verdict": report.worst.name.lower() if report.worst else "healthy",
        "findings": [
            {
                "severity": finding.severity.name.lower(),
                "code": finding.code,
                "what": finding.what,
                "file": finding.file or None,
                "position": finding.position,
                "command": finding.command or None,
            }
            for finding in report.findings
        ],
        "streams": report.streams,
        "records": report.records,
        "blocks": report.blocks,
        "block_bytes": report.block_bytes,
        "live_bytes": report.live_bytes,
        "dead_bytes": report.dead_bytes,
        "checked_bytes": report.checked_bytes,
        "free_bytes": report.free_bytes,
        "seconds_until_full": report.seconds_until_full,
    }


@contextmanager
def _progress() -> "Iterator[Progress]":
    """A line that moves, if somebody is there to see it."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)


# Salvaging.


def _salvage(block: Path, output: Path, json: bool) -> int:
    from mainstem.log.salvage import Salvage, names_beside, schemas_beside, write_parquet

    salvage = Salvage(block, names_beside(block), schemas_beside(block))
    try:
        report = write_parquet(salvage, output)
    finally:
        salvage.close()
    if json:
        print_json(_salvaged(report))
    else:
        _print_salvaged(report, output)
    return ExitCode.DAMAGE if report.damaged_count else ExitCode.OK


def _print_salvaged(report: "SalvageReport", output: Path) -> None:
    for begin, end, reason in report.damaged:
        print(f"bytes {begin} to {end - 1} could not be read: {reason}")
    if report.damaged_count > len(report.damaged):
        print(f"and {counted(report.damaged_count - len(report.damaged), 'place')} more")
    without = f" ({report.records_without_offset:,} of them without an offset)" if report.records_without_offset else ""
    plain = report.records - sum(report.rows.values())
    print(
        f"{counted(report.records, 'record')} of block {report.block} found{without}; "
        f"{size_text(report.damaged_bytes)} of {size_text(report.bytes)} could not be read"
    )
    if report.batches_staged:
        print(f"batches of transactions that were committed in another block, or never: {report.batches_staged:,}")
    print(f"{counted(plain, 'record')} without a schema written to {output}")
    for schema, path in report.row_files.items():
        print(f"{counted(report.rows[schema], 'row')} of schema {schema} written to {path}")


def _salvaged(report: "SalvageReport") -> dict[str, Any]:
    import dataclasses

    content = dataclasses.asdict(report)
    content["damaged"] = [{"begin": begin, "end": end, "reason": reason} for begin, end, reason in report.damaged]
    return content


# Rebuilding.


def _rebuild(data: Path, yes: bool, json: bool) -> int:
    from mainstem.log.rebuild import rebuild

    if not yes:
        _ask(data)
    done = rebuild(data)
    if json:
        print_json({"flushes": done.flushes, "applied": done.applied, "kept_in": done.kept_in})
        return ExitCode.OK
    kept = f"; the old one is in {data / done.kept_in}" if done.kept_in else ""
    print(
        f"made the ledger of {data} anew: flush 1 to {done.applied}, the last {done.flushes:,} of them read from the "
        f"blocks{kept}"
    )
    return ExitCode.OK


def _ask(data: Path) -> None:
    if not sys.stdin.isatty():
        raise UsageProblem(f"the ledger of {data} would be put aside; say --yes if nobody is there to be asked")
    print(f"Put the ledger of {data} aside and make it anew? [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort
