"""Rows delivered to a stream: the loads of a job, each once.

Tasks stage what they make where nobody sees it, and the driver commits what all of them have staged in one step of the
log, under the job's name and the load's number. The log remembers both, with a fingerprint of the rows: a load that is
delivered again after a kill changes nothing, and one that comes with other rows is refused. So a load that was begun is
done again exactly as it was planned.
"""

import pickle
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.core.cursor import Cursor
from mainstem.core.delivery import Delivery
from mainstem.spark.destination import Destination
from mainstem.spark.frames import by_shard, check_frame, gathered
from mainstem.spark.jobs.copying import Function, copy, row_schema
from mainstem.spark.jobs.history import History, Wanted
from mainstem.spark.jobs.loading import Attempt, Loading, Written
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.query import run_query
from mainstem.spark.jobs.tasks import Answer, OnStep, parts_of, run_parts
from mainstem.spark.sums import Sums
from mainstem.transport.port import StreamInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Redelivery(Loading):
    """The loads of a job into a stream. The manifests alone say what is done; what the last one was about is delivered
    again, and the log knows whether it has it."""

    def _settled(self) -> int:
        done = [manifest.number for manifest in self.manifests.all() if manifest.state == "done"]
        number = max(done, default=0)
        self._on_step("settled", number, number)
        return number

    def _again(self, number: int) -> list[Load]:
        begun = self.manifests.get(number + 1)
        if begun is None:
            return []
        start, end = (self._history.offsets(Cursor.parse(text)) for text in (begun.start, begun.end))
        return [Load(start, end)]


class Delivering:
    """Loads staged and committed to a stream, for one run of a job. One thread."""

    def __init__(
        self,
        spark: "SparkSession",
        history: History,
        wanted: Wanted,
        destination: Destination,
        *,
        job: str,
        on_step: OnStep,
        sql: str | None = None,
        function: Function | None = None,
    ) -> None:
        self._spark = spark if sql is None else spark.newSession()
        self._history = history
        self._wanted = wanted
        self._destination = destination
        self._job = job
        self._on_step = on_step
        self._sql = sql
        self._function = function
        self._read_schema = history.schema(wanted)

    def write(self, load: Load, attempt: Attempt) -> Written:
        """The rows of a load, staged."""
        stream = self._destination.look_up()
        check_frame(stream, row_schema(self._spark, self._history, self._read_schema, self._sql, self._function))
        self._destination.check_free()
        tasks = self._history.cut(load, self._wanted, parts_of(self._spark))
        self._on_step("prepared", 0, 0)
        stage = partial(_stage, self._destination, stream, self._job, attempt.number)
        given = (tasks, self._wanted, self._read_schema, stage)
        if self._sql is None:
            work = partial(copy, *given, self._function)
            return Written(run_parts(self._spark, len(tasks), work, self._on_step))
        return Written(run_query(self._spark, self._sql, self._history.info.name, *given, self._on_step))

    def commit(self, written: Written, number: int, notes: dict[str, Any]) -> int:
        """Make the load visible, once."""
        staged, sums = [], Sums()
        for answer in written.answers:
            if answer.staged:
                part, summed = pickle.loads(answer.staged)  # noqa: S301  # from a task of this run
                staged.append(part)
                sums.merge(summed)
        stream = self._destination.look_up().id
        try:
            self._destination.commit(staged, Delivery(stream, self._job, number, sums.fingerprint()))
        except BaseException:
            self._destination.discard(staged)
            raise
        self._destination.discard_up_to(self._job, number)
        return 0


def _stage(
    destination: Destination, stream: StreamInfo, job: str, number: int, part: int, batches: Iterable[pa.RecordBatch]
) -> Answer:
    """Stage the rows of one task."""
    writer, sums = destination.begin(job, number), Sums()
    count = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield batch

    try:
        for table in gathered(stream, counted()):
            sums.add(table)
            for shard, rows in by_shard(stream, table):
                writer.send_batch(stream.name, rows, shard=shard)
        staged = pickle.dumps((writer.finish(), sums))
    except BaseException:
        writer.abort()
        raise
    return Answer(rows_written=count, staged=staged)
