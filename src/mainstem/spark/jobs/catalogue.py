"""Which jobs there are, and what a table says of those that wrote it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mainstem.spark.jobs.manifest import NOTES, Manifest, Manifests

# By name, what each does, in the words of the command line.
JOBS: Final = {
    "warehouse": "a stream into a Delta table, load by load; with --mode upsert one row for each key",
    "snapshot": "the newest row of each key as of a cursor, tombstones apart; with --since a consolidated delta",
    "compact": "old records of a stream out of blocks into Parquet files, each sorted by key; readers do not notice",
    "replay": "a time range of history through a function or a query into a table or another stream",
    "audit": "whether everything that was sent is in the log, and in the tables made of it",
}


def loads_of(table: Path) -> Iterator[Manifest]:
    """The manifests of all jobs in a folder, job by job, oldest first."""
    for job in jobs_of(table):
        yield from Manifests(table, job).all()


def jobs_of(table: Path) -> list[str]:
    """Under which names jobs have manifests in a folder."""
    notes = table / NOTES
    names = sorted(folder.name for folder in notes.iterdir()) if notes.is_dir() else []
    return [name for name in names if name not in ("attempts", "staged")]
