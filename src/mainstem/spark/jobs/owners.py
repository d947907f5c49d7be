"""Whose rows are in a table: what takes the place of other rows takes that of the same stream's only.

Each load says from which cursor of its stream to which it went, in its manifest and in its commit. A cursor has the
UUID of the stream, so one that was deleted is told from one that was made anew under its name.
"""

from pathlib import Path

from mainstem.core.cursor import Cursor
from mainstem.core.errors import TableUnusable
from mainstem.spark.jobs.catalogue import jobs_of
from mainstem.spark.jobs.lake import Lake
from mainstem.spark.jobs.manifest import Manifests
from mainstem.transport.port import StreamInfo


def require_own(lake: Lake, notes: Path, stream: StreamInfo, job: str) -> None:
    """TableUnusable if the table has loads of another stream. `notes` is where the manifests of its jobs are."""
    if not lake.exists:
        return
    for uuid, name in _streams_of(lake, notes).items():
        if uuid != stream.uuid:
            which = "another stream" if not name else f"stream {name!r}"
            if name == stream.name:
                which += " from before it was deleted and made anew"
            raise TableUnusable(
                f"table {lake.folder} has loads of {which}, and this {job} of {stream.name!r} would put its rows "
                "in the place of those; use another folder, or remove what is in this one first"
            )


def _streams_of(lake: Lake, notes: Path) -> dict[str, str]:
    """The UUIDs of streams of which the table has loads, as far as its manifests and its history know; with their names
    where they do."""
    found = {Cursor.parse(end).stream: "" for end in lake.ends()}
    for job in jobs_of(notes):
        manifest = Manifests(notes, job).get(lake.number_of(job))
        if manifest is not None:
            found[Cursor.parse(manifest.end).stream] = manifest.stream
    return found
