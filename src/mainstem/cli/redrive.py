"""`mainstem redrive`: dead letters back into their stream."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mainstem.cli import hubs
from mainstem.cli.exits import ExitCode
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.cli.printing import counted
from mainstem.core.errors import InvalidRecord
from mainstem.core.names import check_stream_name
from mainstem.core.settings import Loaded

_OFFSET = "_dead_offset"


@with_settings("redrive")
def redrive(
    loaded: Loaded,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream whose dead letters are meant.")],
    yes: Annotated[bool, typer.Option("--yes", help="Put them back; without it, only say how many would be.")] = False,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help=f"Corrected rows, as NDJSON; {_OFFSET} in each is the offset of the letter it stands for. -: standard "
            "input.",
        ),
    ] = None,
    data: Data = None,
) -> int:
    """Put rows that did not fit the schema of their stream back, if they fit it by now.

    Such rows are kept in STREAM.dead by producers that were made with on_bad="dead_letter", and by
    `write --on-bad dead_letter`. A row is put back once, also if the command is interrupted and run again. The exit
    code is 1 if a corrected row stands for no letter, or for one that was put back earlier.
    """
    check_stream_name(name, reserved=True)
    corrections = {} if input_ is None else _corrections(input_)
    with hubs.writing(loaded, data) as hub:
        report = hub.redrive(name, dry_run=not yes, corrections=corrections)
    fitting = sum(report.fitting.values())
    verb = "put back" if yes else "would be put back"
    print(f"{counted(report.redriven if yes else fitting, 'row')} {verb} into {name}", file=sys.stderr)
    _list("once", report.fitting)
    if report.failing:
        print(f"{counted(sum(report.failing.values()), 'row')} still not fitting", file=sys.stderr)
        _list("now", report.failing)
    if report.unused:
        offsets = ", ".join(map(str, report.unused[:10]))
        print(f"no open dead letter has the offset of {counted(len(report.unused), 'row')}: {offsets}", file=sys.stderr)
    if fitting and not yes:
        print("nothing was changed; --yes does it", file=sys.stderr)
    return ExitCode.FAILURE if report.unused else ExitCode.OK


def _list(when: str, reasons: Mapping[str, int]) -> None:
    for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])[:20]:
        print(f"{count}\t{when}: {reason}")


def _corrections(given: str) -> dict[int, dict[str, Any]]:
    file = "standard input" if given == "-" else given
    data = sys.stdin.buffer.read() if given == "-" else Path(given).read_bytes()
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRecord(f"{file}: line {number}: not a JSON object ({error}); use NDJSON") from None
        if _OFFSET not in row:
            raise InvalidRecord(
                f"{file}: line {number}: it has no {_OFFSET}, which says what dead letter the row stands for"
            )
        offset = row.pop(_OFFSET)
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidRecord(f"{file}: line {number}: {_OFFSET} is the offset of a dead letter, not {offset!r}")
        if offset in found:
            raise InvalidRecord(f"{file}: line {number}: dead letter {offset} is corrected twice")
        found[offset] = row
    return found
