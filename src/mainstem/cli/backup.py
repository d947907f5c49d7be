"""`mainstem backup`: copy a log, also one that is being written."""

from typing import Annotated

import typer

from mainstem.cli import hubs
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Json
from mainstem.core.settings import Loaded


@with_settings("backup")
def backup(
    loaded: Loaded,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The backup folder; it is made if it is not there.")],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Read what is in the backup already, and copy again what is not as it was written."
        ),
    ] = False,
    even_damaged: Annotated[
        bool, typer.Option("--even-damaged", help="Copy blocks that are damaged too, as they are; exit code 7.")
    ] = False,
    json: Json = False,
) -> int:
    """Copy the log of a data folder, while it is written and read.

    The copy is the log as it is after one flush, near the end of the copying. A second backup into the same folder
    copies only what is new. Until it is complete, the folder stays the backup that it was; a backup that was cut short
    is simply run again. Only the right to read the data folder is needed. What is copied is checked on the way: a block
    that is damaged ends the command with exit code 5, and the backup stays as it was.
    """
    import dataclasses
    import sys
    from pathlib import Path

    from mainstem.cli.exits import ExitCode
    from mainstem.cli.printing import counted, print_json, time_text
    from mainstem.cli.progress import byte_progress
    from mainstem.core.plain import size_text
    from mainstem.log.backup import back_up

    hubs.log_as_told(loaded)
    data = loaded.settings.data
    with hubs.noted(f"folder {data}"), byte_progress("copying") as progress:
        report = back_up(data, Path(folder), progress, verify=verify, even_damaged=even_damaged)
    if report.damaged:
        print(f"damaged, and copied as it is: {', '.join(report.damaged)}", file=sys.stderr)
    code = ExitCode.DAMAGE if report.damaged else ExitCode.OK
    if json:
        print_json({**dataclasses.asdict(report), "created": time_text(report.created_us)})
        return code
    print(
        f"copied {size_text(report.copied_bytes)} in {counted(report.copied_files, 'file')} in {report.seconds:.1f} s; "
        f"the backup has {size_text(report.bytes)} in {counted(report.files, 'file')}: everything up to flush "
        f"{report.flush}, {time_text(report.created_us)[:19]}Z\n"
        f"to bring it back: mainstem restore {folder} --data NEW_FOLDER"
    )
    return code
