"""Tasks of jobs: what goes wrong in them is an error of ours, whichever way Spark tells it."""

import contextlib
import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from mainstem.core.errors import TableUnusable
from mainstem.spark.jobs import record_frame
from mainstem.spark.jobs.record_frame import RecordFrame
from mainstem.spark.jobs.tasks import Answer, no_step, run_parts
from mainstem.spark.session import batches_bounded, settings

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.slow("a process that is started four times")
def test_a_task_whose_process_dies_again_and_again(spark):
    """PySpark has no class for that, and hands on what came from Java."""

    def die(part: int) -> Answer:
        os._exit(3)

    with pytest.raises(TableUnusable, match=r"Spark could not do it: .*Python worker exited unexpectedly"):
        run_parts(spark, 1, die, no_step)


def test_a_task_that_raises(spark):
    def stumble(part: int) -> Answer:
        raise ValueError("no such thing")

    line = stumble.__code__.co_firstlineno + 1
    with pytest.raises(TableUnusable, match=rf"do it: ValueError: no such thing \(.*test_tasks\.py, line {line}\)$"):
        run_parts(spark, 1, stumble, no_step)


def test_large_records_come_few_at_a_time(spark):
    """On Java 17 a session says nothing of bytes, and what a query makes of records is of any size."""
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})

    def records(pieces, tally) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([list(range(200)), ["x"] * 200], schema=schema)

    def write(part: int, batches: Iterable[pa.RecordBatch]) -> Answer:
        return Answer(rows_written=max(batch.num_rows for batch in batches))

    names = [f"spark.sql.execution.arrow.max{what}PerBatch" for what in ("Records", "Bytes")]
    before = {name: spark.conf.get(name) for name in names}
    of_java_17 = settings(None, None, {}, {}, 2, 8 << 30, 17)
    frame = RecordFrame(spark, [[]], schema, records, no_step)
    large = frame.rows.selectExpr("id", "repeat(text, 1024 * 1024) AS text")

    def most() -> int:
        return max(answer.rows_written for answer in frame.write(large, write))

    try:
        for name in names:
            spark.conf.set(name, of_java_17[name])
        assert most() <= 32
        assert [spark.conf.get(name) for name in names] == [of_java_17[name] for name in names]
        with pytest.MonkeyPatch.context() as patch:
            # Control: as the session has it.
            patch.setattr(record_frame, "batches_bounded", lambda session: contextlib.nullcontext())
            assert most() == 200
        # What the user says of rows holds, and bytes have a limit all the same.
        spark.conf.set(names[0], "10000")
        assert most() <= 32
        assert [spark.conf.get(name) for name in names] == ["10000", of_java_17[names[1]]]
        for name in names:
            spark.conf.set(name, "7")
        # What the user says holds.
        assert most() <= 7
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_of_two_jobs_in_one_session_the_second_keeps_its_limit_of_bytes(spark):
    """The first, in another thread, sets it for both, and ends before."""
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    was, none = spark.conf.get(name), settings(None, None, {}, {}, 2, 8 << 30, 17)[name]
    spark.conf.set(name, none)
    try:
        first, second = batches_bounded(spark), batches_bounded(spark)
        for job in (first, second):
            job.__enter__()
            assert spark.conf.get(name) != none
        first.__exit__(None, None, None)
        assert spark.conf.get(name) != none
        # One of another session is for itself.
        other = spark.newSession()
        other.conf.set(name, none)
        with batches_bounded(other):
            second.__exit__(None, None, None)
            assert [each.conf.get(name) == none for each in (spark, other)] == [True, False]
        assert other.conf.get(name) == none
    finally:
        spark.conf.set(name, was)
