"""Which jobs there are, and what a table says of those that wrote it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mainstem.spark.jobs.manifest import NOTES, Manifest, Manifests

# By name, what each does, in the words of the command line.
JOBS: Final = {
    "warehouse": "a stream into a Delta table, load by load; with --mode upsert one row for each key",
    "snapshot": "the newest row of each key as of a cursor, tombstones apart; with --since a consolidated delta",
    "replay": "a time range of history through a function or a query into a table or another stream",
}


def loads_of(table: Path) -> Iterator[Manifest]:
    """The manifests of all jobs in a folder, job by job, oldest first."""
    notes = table / NOTES
    for folder in sorted(notes.iterdir()) if notes.is_dir() else ():
        if folder.name not in ("attempts", "staged"):
            yield from Manifests(table, folder.name).all()
