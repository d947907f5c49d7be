"""What is made of the records of a stream: rows as they are, what a function makes of them, or what a query gives.

Functions and queries are of rows. In a stream with a schema a tombstone is none, and does not come to them.
"""

import dataclasses
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from mainstem.core.errors import InvalidSetting, MainstemError
from mainstem.core.plain import one_line
from mainstem.spark.jobs.history import History, Tally, Wanted, read_all
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.query import query_schema, run_query
from mainstem.spark.jobs.tasks import Answer, OnStep, Write, parts_of, run_parts
from mainstem.spark.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Makes other rows of rows: of a batch a batch, a table, or None for nothing. Workers call it.
Function = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table | None"]


class Making:
    """Rows made of records, for one run of a job; who writes them is said with each load. One thread."""

    def __init__(
        self,
        spark: "SparkSession",
        history: History,
        wanted: Wanted,
        *,
        on_step: OnStep,
        sql: str | None = None,
        function: Function | None = None,
    ) -> None:
        # A session of its own for a query: the names of its views are nobody else's, and its days and hours are those
        # of no machine, so that a load that is made again is the same.
        self._spark = spark if sql is None else spark.newSession()
        if sql is not None:
            self._spark.conf.set("spark.sql.session.timeZone", "UTC")
        self._history = history
        if history.info.schema_bytes and (sql is not None or function is not None):
            wanted = dataclasses.replace(wanted, is_rows=True)
        self._wanted = wanted
        self._on_step = on_step
        self._sql = sql
        self._function = function
        self._read_schema = history.schema(wanted)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        if self._sql is not None:
            return query_schema(self._spark, self._sql, self._history.info.name, self._read_schema)
        if self._function is None:
            return self._read_schema
        made = _called(self._function, pa.RecordBatch.from_pylist([], self._read_schema))
        if not isinstance(made, pa.RecordBatch | pa.Table):
            raise InvalidSetting(
                "the function must make a pyarrow RecordBatch or Table of a batch without rows, too: that says which "
                f"columns it makes; it made {made!r}"
            )
        return made.schema

    @property
    def is_moved(self) -> bool:
        """Whether the rows are records as they are."""
        return self._sql is None and self._function is None

    def cut(self, load: Load) -> list[list[Slice]]:
        """A load as the work of tasks."""
        return self._history.cut(load, self._wanted, parts_of(self._spark))

    def run(self, tasks: Sequence[Sequence[Slice]], write: Write) -> list[Answer]:
        """Make the rows, and write them where that is prepared by now; what each task did."""
        self._on_step("prepared", 0, 0)
        given = (tasks, self._wanted, self._read_schema, write)
        if self._sql is None:
            return run_parts(self._spark, len(tasks), partial(_make, *given, self._function), self._on_step)
        return run_query(self._spark, self._sql, self._history.info.name, *given, self._on_step)


def _make(
    tasks: Sequence[Sequence[Slice]],
    wanted: Wanted,
    read_schema: pa.Schema,
    write: Write,
    function: Function | None,
    part: int,
) -> Answer:
    """One task: read its slices, write what is made of them."""
    tally = Tally()
    rows = read_all(tasks[part], wanted, read_schema, tally)
    answer = write(part, rows if function is None else _through(function, rows))
    return msgspec.structs.replace(answer, rows_read=tally.rows, undecoded=tally.undecoded, lost=tuple(tally.lost))


def _through(function: Function, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = _called(function, batch)
        if isinstance(made, pa.Table):
            yield from made.to_batches()
        elif isinstance(made, pa.RecordBatch):
            yield made
        elif made is not None:
            raise InvalidSetting(
                f"function {_name_of(function)} made {type(made).__name__}, not a pyarrow RecordBatch or Table"
            )


def _called(function: Function, batch: pa.RecordBatch) -> Any:
    """What a function makes of a batch. InvalidSetting if it raises something: it would the next time, too."""
    try:
        return function(batch)
    except MainstemError:
        raise
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}", 300)
        raise InvalidSetting(f"function {_name_of(function)} failed: {said} ({_place(function, error)})") from error


def _place(function: Function, error: Exception) -> str:
    """The line of a function at which it failed, or which called what did."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    frame = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"{frame.filename}, line {frame.lineno}"


def _name_of(function: Function) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
    return f"{module}:{name}" if module else name
