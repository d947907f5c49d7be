"""A SQL query over the records of one load: they go through Spark as rows, and what comes out is written to files."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.core.errors import InvalidSetting
from mainstem.core.plain import one_line
from mainstem.spark.jobs.history import Tally, Wanted, read_all
from mainstem.spark.jobs.record_frame import RecordFrame, spark_schema
from mainstem.spark.jobs.tasks import Answer, OnStep, Write
from mainstem.spark.slices import Slice
from mainstem.spark.sql import check_is_query, in_one_line, without_log_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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

    def records(pieces: Sequence[Slice], tally: Tally) -> Iterator[pa.RecordBatch]:
        return read_all(pieces, wanted, read_schema, tally)

    frame = RecordFrame(spark, tasks, read_schema, records, on_step)
    return frame.write(_queried(frame.rows, sql, name), write)


def _queried(rows: "DataFrame", sql: str, name: str) -> "DataFrame":
    """A query in a session of its own, in which the stream's name is a view of these rows."""
    from pyspark.errors import PySparkException

    session = rows.sparkSession
    check_is_query(session, sql)
    try:
        rows.createOrReplaceTempView(f"`{name}`")
        with without_log_lines():
            return session.sql(sql)
    except PySparkException as error:
        raise InvalidSetting(f"sql: {one_line(in_one_line(error), 500)}; the rows are the table `{name}`") from error
