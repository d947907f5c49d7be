"""`mainstem restore`: bring a log back from a backup."""

from typing import Annotated

import typer

from mainstem.cli import hubs
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Json
from mainstem.core.settings import Loaded


@with_settings("restore")
def restore(
    loaded: Loaded,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The backup folder.")],
    json: Json = False,
) -> None:
    """Make a data folder from a backup; it must be missing or empty.

    Every byte of the backup is checked on the way, and a damaged file is named. The log begins a new epoch: a cursor
    that stands beyond what the backup holds is refused with the range of records that are not there any more.
    """
    import dataclasses
    from pathlib import Path

    from mainstem.cli.printing import counted, print_json, time_text
    from mainstem.cli.progress import byte_progress
    from mainstem.core.plain import size_text
    from mainstem.log.restore import restore as bring_back

    hubs.log_as_told(loaded)
    data = loaded.settings.data
    with hubs.noted(f"backup {folder}"), byte_progress("restoring") as progress:
        report = bring_back(Path(folder), data, progress)
    if json:
        print_json({**dataclasses.asdict(report), "created": time_text(report.created_us)})
        return
    print(
        f"restored {size_text(report.bytes)} in {counted(report.files, 'file')} in {report.seconds:.1f} s: everything "
        f"up to flush {report.flush}, as of {time_text(report.created_us)[:19]}Z, now in epoch {report.epoch}\n"
        f"to serve it: mainstem serve --data {data}"
    )
