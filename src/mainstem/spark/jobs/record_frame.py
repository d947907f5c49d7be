"""Records that go through Spark as rows: tasks read them as a frame, and tasks write what is made of it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from mainstem.core.errors import MainstemError, Retriable
from mainstem.spark.jobs.columns import as_table_rows, table_schema
from mainstem.spark.jobs.history import Tally
from mainstem.spark.jobs.tasks import (
    ANSWER,
    Answer,
    OnStep,
    Write,
    collect,
    context_of,
    failed,
    guarded,
    mapped,
    raise_first,
)
from mainstem.spark.session import batches_bounded
from mainstem.spark.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# The records of the slices of one task; what it meets is noted.
Read = Callable[[Sequence[Slice], Tally], Iterator[pa.RecordBatch]]


class RecordFrame:
    """The records of these tasks' slices as `rows`, a frame with the columns of `schema`. One thread."""

    def __init__(
        self, spark: "SparkSession", tasks: Sequence[Sequence[Slice]], schema: pa.Schema, read: Read, on_step: OnStep
    ) -> None:
        self._spark = spark
        self._parts = len(tasks)
        self._on_step = on_step
        given = table_schema(schema)
        found = self._found = context_of(spark).accumulator({}, _ByPart())

        def records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part in (part for batch in batches for part in batch.column(0).to_pylist()):
                tally = Tally()
                try:
                    for rows in read(tasks[part], tally):
                        yield as_table_rows(rows, given)
                except Retriable:
                    raise
                except MainstemError as error:
                    # What cannot succeed is not tried again: the task ends well, and the driver raises its error.
                    found.add({part: failed(error)})
                    return
                answer = Answer((), tally.rows, 0, tally.undecoded, tuple(tally.lost), without_key=tally.without_key)
                found.add({part: answer})

        # A query may count nothing, too: one task at least.
        numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        self.rows = mapped(numbers, records, spark_schema(schema))

    def write(self, made: "DataFrame", write: Write) -> list[Answer]:
        """Write what was made of the rows; what each task did that wrote or read. An error of one that read is raised
        here: what was written then lacks its rows, and is not to be committed."""

        def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            part = 0 if context is None else context.partitionId()
            yield guarded(lambda: write(part, batches))

        # Records are of any size, and so is what a query makes of them.
        with batches_bounded(self._spark):
            answers = collect(self._spark, mapped(made, written, ANSWER), self._parts, self._on_step)
        raise_first(self._found.value.values())
        return [*answers, *self._found.value.values()]


def spark_schema(rows: pa.Schema) -> "StructType":
    """The columns as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table_schema(rows))


class _ByPart(AccumulatorParam["dict[int, Answer]"]):
    """What was read, by part: a part that was read twice, as by a query that names its stream twice, counts once. What
    could not be read is not made good by another time that could."""

    def zero(self, value: "dict[int, Answer]") -> "dict[int, Answer]":
        return {}

    def addInPlace(self, value1: "dict[int, Answer]", value2: "dict[int, Answer]") -> "dict[int, Answer]":
        failed_before = {part: answer for part, answer in value1.items() if answer.error is not None}
        return {**value1, **value2, **failed_before}
