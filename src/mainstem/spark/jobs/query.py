"""A SQL query over the records of one load: they go through Spark as rows, and what comes out is written to files."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from mainstem.core.errors import InvalidSetting
from mainstem.core.plain import one_line
from mainstem.spark.jobs.columns import as_table_rows, table_schema
from mainstem.spark.jobs.history import Tally, Wanted, read
from mainstem.spark.jobs.tasks import ANSWER, Answer, OnStep, Write, collect, context_of, guarded, mapped
from mainstem.spark.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def query_schema(spark: "SparkSession", sql: str, name: str, rows: pa.Schema) -> pa.Schema:
    """The columns that a query gives. InvalidSetting with Spark's words if it is no query over these rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    frame = _queried(spark.createDataFrame([], spark_schema(rows)), sql, name)
    return pa.schema(to_arrow_schema(frame.schema, timezone="UTC"))


def run_query(
    spark: "SparkSession",
    sql: str,
    name: str,
    tasks: Sequence[Sequence[Slice]],
    wanted: Wanted,
    read_schema: pa.Schema,
    write: Write,
    on_step: OnStep,
) -> list[Answer]:
    """Run a query over the records of these slices and write what it gives; what each task of its last stage did."""
    given = table_schema(read_schema)
    # A query may count nothing, too: one task at least.
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    found = context_of(spark).accumulator({}, ByPart())

    def records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in (part for batch in batches for part in batch.column(0).to_pylist()):
            tally = Tally()
            for piece in tasks[part]:
                for rows in read(piece, wanted, read_schema, tally):
                    yield as_table_rows(rows, given)
            found.add({part: Answer((), tally.rows, 0, tally.undecoded, tuple(tally.lost))})

    def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        yield guarded(lambda: write(part, batches))

    frame = _queried(mapped(numbers, records, spark_schema(read_schema)), sql, name)
    answers = collect(spark, mapped(frame, written, ANSWER), len(tasks), on_step)
    return [*answers, *found.value.values()]


class ByPart(AccumulatorParam["dict[int, Answer]"]):
    """What was read, by part: a part that was read twice counts once."""

    def zero(self, value: "dict[int, Answer]") -> "dict[int, Answer]":
        return {}

    def addInPlace(self, value1: "dict[int, Answer]", value2: "dict[int, Answer]") -> "dict[int, Answer]":
        return {**value1, **value2}


def spark_schema(rows: pa.Schema) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table_schema(rows))


def _queried(rows: "DataFrame", sql: str, name: str) -> "DataFrame":
    """A query in a session of its own, in which the stream's name is a view of these rows."""
    from pyspark.errors import PySparkException

    try:
        rows.createOrReplaceTempView(f"`{name}`")
        return rows.sparkSession.sql(sql)
    except PySparkException as error:
        raise InvalidSetting(f"sql: {one_line(str(error), 500)}; the rows are the table `{name}`") from error
