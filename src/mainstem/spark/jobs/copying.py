"""Rows copied to a table."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa

from mainstem.core.errors import SchemaMismatch
from mainstem.spark.jobs.columns import table_schema
from mainstem.spark.jobs.lake import Changed, Lake
from mainstem.spark.jobs.loading import Attempt, Written
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.making import Making
from mainstem.spark.jobs.part_files import Target, write_parts
from mainstem.spark.jobs.partitions import Partitioning
from mainstem.spark.jobs.tasks import Answer


class Copying:
    """Loads written as files of a table, and committed, for one run of a job. One thread."""

    def __init__(
        self,
        making: Making,
        lake: Lake,
        partitioning: Partitioning,
        *,
        job: str,
        file_bytes: int,
        overwrite: bool = False,
        since: int | None = None,
    ) -> None:
        self._making = making
        self._lake = lake
        self._partitioning = partitioning
        self._job = job
        self._file_bytes = file_bytes
        self._overwrite = overwrite
        # The version of the table from which on no other job may have loaded anything, if rows are replaced.
        self._since = since

    def check(self) -> None:
        """Say before anything is begun if the rows cannot be partitioned as is wanted. Of records as they are that is
        known without Spark, and is asked before it is started."""
        if self._partitioning.columns and not self._making.is_moved:
            self._partitioning.check(self._making.schema)

    def write(self, load: Load, attempt: Attempt) -> Written:
        """The rows of a load as files of the table."""
        tasks = self._making.cut(load)
        rows = self._making.schema
        fields = [field for field in table_schema(rows) if field.name not in self._partitioning.columns]
        schema = pa.schema([*fields, *self._partitioning.fields])
        if not self._making.is_moved:
            self._require_named(schema, attempt)
        target = attempt.target(self._lake, schema, self._partitioning, self._file_bytes)
        return Written(self._making.run(tasks, partial(_write, target)))

    def _require_named(self, rows: pa.Schema, attempt: Attempt) -> None:
        """Only who wrote a query or a function knows what a column of it is. SchemaMismatch if it has one under a name
        that the stream's got after the table had it under another."""
        for name, was in self._lake.renamed(rows.names, attempt.aliases).items():
            raise SchemaMismatch(
                f"column {name!r} was called {was!r}, and is that in the table: go on under that name ({name} AS "
                f"{was}), give what is something else another name, or write to a new table",
                path=name,
            )

    def commit(self, written: Written, number: int, notes: dict[str, Any]) -> Changed:
        self._lake.append(written.files, self._job, number, notes, overwrite=self._overwrite, since=self._since)
        return Changed(written.rows, 0)


def _write(target: Target, part: int, batches: Iterable[pa.RecordBatch]) -> Answer:
    files, rows = write_parts(target, part, batches)
    return Answer(tuple(files), rows_written=rows)
