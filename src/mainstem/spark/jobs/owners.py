"""Whose rows are in a table: what takes the place of other rows takes that of the same stream's only, and what counts
the records of a stream in a table counts those that the table should have.

Each load says from which cursor of its stream to which it went, in its manifest and in its commit. A cursor has the
UUID of the stream, so one that was deleted is told from one that was made anew under its name.
"""

from pathlib import Path

from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidRequest, TableUnusable
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
            raise TableUnusable(
                f"table {lake.folder} has loads of {_which(name, stream)}, and this {job} of {stream.name!r} would put "
                "its rows in the place of those; use another folder, or remove what is in this one first"
            )


def require_each(lake: Lake, stream: StreamInfo) -> None:
    """InvalidRequest if the table is not one that has a row for each record of the stream, so that counting its rows
    would say nothing. Of a table in which no job has loaded anything its maker knows what it is."""
    if not lake.exists:
        return
    if lake.mode == "upsert":
        raise InvalidRequest(
            f"table {lake.folder} has one row for each key (mode upsert): older records of a key are not in it on "
            "purpose, so there is nothing to audit; audit a table in mode append"
        )
    if any(job.startswith("snapshot-") for job in lake.jobs()):
        raise InvalidRequest(
            f"table {lake.folder} is of a snapshot, which has the newest record of each key alone: there is nothing "
            "to audit; audit a table that warehouse loads in mode append"
        )
    streams = _streams_of(lake, lake.folder)
    # The log of a table forgets its older commits, but not up to which number a job came.
    if streams and stream.uuid not in streams and not lake.number_of(f"warehouse-{stream.uuid}"):
        which = ", ".join(sorted({_which(name, stream) for name in streams.values()}))
        raise InvalidRequest(
            f"table {lake.folder} has loads of {which}, and none of {stream.name!r}: all of its records would be "
            "missing; name a table that was made of it"
        )


def _which(name: str, stream: StreamInfo) -> str:
    """Another stream than this, of which a name is known or not."""
    if not name:
        return "another stream"
    return f"stream {name!r}" + (" from before it was deleted and made anew" if name == stream.name else "")


def _streams_of(lake: Lake, notes: Path) -> dict[str, str]:
    """The UUIDs of streams of which the table has loads, as far as its manifests and its history know; with their names
    where they do."""
    found = {Cursor.parse(end).stream: "" for end in lake.ends()}
    for job in jobs_of(notes):
        manifest = Manifests(notes, job).get(lake.number_of(job))
        if manifest is not None:
            found[Cursor.parse(manifest.end).stream] = manifest.stream
    return found
