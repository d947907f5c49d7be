"""Rows copied to a table: as they are, through a function, or through a query."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from mainstem.core.errors import InvalidSetting
from mainstem.spark.jobs.columns import table_schema
from mainstem.spark.jobs.history import History, Tally, Wanted, read
from mainstem.spark.jobs.lake import Lake
from mainstem.spark.jobs.loading import Attempt, Written
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.part_files import Target, write_parts
from mainstem.spark.jobs.partitions import Partitioning
from mainstem.spark.jobs.query import query_schema, run_query
from mainstem.spark.jobs.tasks import Answer, OnStep, Write, parts_of, run_parts
from mainstem.spark.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Makes other rows of rows: of a batch a batch, a table, or None for nothing. Workers call it.
Function = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table | None"]


class Copying:
    """Loads written as files of a table, and committed, for one run of a job. One thread."""

    def __init__(
        self,
        spark: "SparkSession",
        history: History,
        wanted: Wanted,
        lake: Lake,
        partitioning: Partitioning,
        *,
        job: str,
        file_bytes: int,
        on_step: OnStep,
        sql: str | None = None,
        function: Function | None = None,
        overwrite: bool = False,
    ) -> None:
        if sql is not None and function is not None:
            raise InvalidSetting("give sql or a function, not both")
        # A session of its own for a query: the names of its views are nobody else's.
        self._spark = spark if sql is None else spark.newSession()
        self._history = history
        self._wanted = wanted
        self._lake = lake
        self._partitioning = partitioning
        self._job = job
        self._file_bytes = file_bytes
        self._on_step = on_step
        self._sql = sql
        self._function = function
        self._overwrite = overwrite
        self._read_schema = history.schema(wanted)

    def write(self, load: Load, attempt: Attempt) -> Written:
        """The rows of a load as files of the table."""
        tasks = self._history.cut(load, self._wanted, parts_of(self._spark))
        rows = row_schema(self._spark, self._history, self._read_schema, self._sql, self._function)
        write = partial(_write, self._target(rows, attempt))
        given = (tasks, self._wanted, self._read_schema, write)
        if self._sql is None:
            work = partial(copy, *given, self._function)
            return Written(run_parts(self._spark, len(tasks), work, self._on_step))
        return Written(run_query(self._spark, self._sql, self._history.info.name, *given, self._on_step))

    def commit(self, written: Written, number: int, notes: dict[str, Any]) -> int:
        self._lake.append(written.files, self._job, number, notes, overwrite=self._overwrite)
        return 0

    def _target(self, rows: pa.Schema, attempt: Attempt) -> Target:
        """Where tasks write rows of these columns, once the table has them."""
        self._partitioning.check(rows)
        fields = [field for field in table_schema(rows) if field.name not in self._partitioning.columns]
        schema = pa.schema([*fields, *self._partitioning.fields])
        has = self._lake.prepare(schema, self._partitioning.columns)
        self._on_step("prepared", 0, 0)
        # Columns that the table has and these rows lack are null in it: files need not have them.
        kept = pa.schema([has.field(field.name) for field in schema])
        return Target(
            str(self._lake.folder.absolute()), attempt.name, attempt.marker, kept, self._partitioning, self._file_bytes
        )


def row_schema(
    spark: "SparkSession", history: History, read_schema: pa.Schema, sql: str | None, function: Function | None
) -> pa.Schema:
    """The columns of the rows that are made."""
    if sql is not None:
        return query_schema(spark, sql, history.info.name, read_schema)
    if function is None:
        return read_schema
    made = function(pa.RecordBatch.from_pylist([], read_schema))
    if not isinstance(made, pa.RecordBatch | pa.Table):
        raise InvalidSetting(
            "the function must make a pyarrow RecordBatch or Table of a batch without rows, too: that says which "
            f"columns it makes; it made {made!r}"
        )
    return made.schema


def copy(
    tasks: Sequence[Sequence[Slice]],
    wanted: Wanted,
    read_schema: pa.Schema,
    write: Write,
    function: Function | None,
    part: int,
) -> Answer:
    """One task: read its slices, write what is made of them."""
    tally = Tally()
    rows = (batch for piece in tasks[part] for batch in read(piece, wanted, read_schema, tally))
    answer = write(part, rows if function is None else _through(function, rows))
    return msgspec.structs.replace(answer, rows_read=tally.rows, undecoded=tally.undecoded, lost=tuple(tally.lost))


def _write(target: Target, part: int, batches: Iterable[pa.RecordBatch]) -> Answer:
    files, rows = write_parts(target, part, batches)
    return Answer(tuple(files), rows_written=rows)


def _through(function: Function, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = function(batch)
        if isinstance(made, pa.Table):
            yield from made.to_batches()
        elif made is not None:
            yield made
