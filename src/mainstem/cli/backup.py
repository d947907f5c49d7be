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
    json: Json = False,
) -> None:
    """Copy the log of a data folder, while it is written and read.

    The copy is the log as it is after one flush, near the end of the copying. A second backup into the same folder
    copies only what is new. Until it is complete, the folder stays the backup that it was; a backup that was cut short
    is simply run again. Only the right to read the data folder is needed.
    """
    import dataclasses
    from pathlib import Path

    from mainstem.cli.printing import counted, print_json, size_text, time_text
    from mainstem.cli.progress import byte_progress
    from mainstem.log.backup import back_up

    hubs.log_as_told(loaded)
    data = loaded.settings.data
    with hubs.noted(f"folder {data}"), byte_progress("copying") as progress:
        report = back_up(data, Path(folder), progress, verify=verify)
    if json:
        print_json({**dataclasses.asdict(report), "created": time_text(report.created_us)})
        return
    print(
        f"copied {size_text(report.copied_bytes)} in {counted(report.copied_files, 'file')} in {report.seconds:.1f} s; "
        f"the backup has {size_text(report.bytes)} in {counted(report.files, 'file')}: everything up to flush "
        f"{report.flush}, {time_text(report.created_us)[:19]}Z\n"
        f"to bring it back: mainstem restore {folder} --data NEW_FOLDER"
    )
