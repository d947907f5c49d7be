"""Rows delivered to a stream: the loads of a job, each once.

Tasks stage what they make where nobody sees it, and the driver commits what all of them have staged in one step of the
log, under the job's name and the load's number. The log remembers both, with a fingerprint of the rows: after a kill it
says whether it has the load. One that is delivered again all the same changes nothing, and one that comes with other
rows is refused. So a load that was begun and that the log has not is done exactly as it was planned.
"""

import dataclasses
import pickle
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.core.cursor import Cursor
from mainstem.spark.destination import Destination
from mainstem.spark.frames import check_frame
from mainstem.spark.jobs.lake import Changed
from mainstem.spark.jobs.loading import Attempt, JobResult, Loading, Written
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.making import Making
from mainstem.spark.jobs.records_copied import Copier, rows_of
from mainstem.spark.jobs.tasks import Answer, OnStep
from mainstem.spark.staged_rows import Send, StagedRows, deliver, fingerprint_of, send_rows, stage
from mainstem.transport.port import StreamInfo


class Redelivery(Loading):
    """The loads of a job into a stream. The manifests say what is done. Of one that was begun the log says whether it
    has it; if not, it is delivered again."""

    def __init__(self, destination: Destination, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._destination = destination

    def _result(self, *args: Any) -> JobResult:
        return dataclasses.replace(super()._result(*args), into=self._destination.stream)

    def _settled(self) -> int:
        done = [manifest.number for manifest in self.manifests.all() if manifest.state == "done"]
        number = max(done, default=0)
        begun = self.manifests.get(number + 1)
        if begun is not None and self._destination.has(self.name, begun.number):
            # Its records may be gone by now: it is not made again. What its tasks have staged may be there still.
            self._destination.discard_up_to(self.name, begun.number)
            self.manifests.advance(msgspec.structs.replace(begun, state="done", done_us=self._clock.now_us()))
            number = begun.number
        elif begun is not None:
            # The manifest stays, as the plan of what is delivered again, under an attempt of its own.
            self.manifests.end(begun.attempt, ())
        self._on_step("settled", number, number)
        return number

    def _require_same(self, number: int) -> None:
        super()._require_same(number)
        # What was begun is done first, as it was planned.
        super()._require_same(number + 1)

    def _again(self, number: int) -> list[Load]:
        begun = self.manifests.get(number + 1)
        if begun is None:
            return []
        start, end = (self._history.offsets(Cursor.parse(text)) for text in (begun.start, begun.end))
        return [Load(start, end)]


class Delivering:
    """Loads staged and committed to a stream, for one run of a job. With a `copier` what is made are records, which it
    sends. One thread."""

    def __init__(
        self, making: Making, destination: Destination, *, job: str, on_step: OnStep, copier: Copier | None = None
    ) -> None:
        self._copier = copier
        self._on_step = on_step
        self._making = making
        self._destination = destination
        self._job = job

    def write(self, load: Load, attempt: Attempt) -> Written:
        """The rows of a load, staged."""
        stream = self._destination.look_up()
        schema = self._making.schema
        check_frame(stream, schema if self._copier is None else rows_of(stream, schema))
        self._destination.check_free()
        tasks = self._making.cut(load)
        given = (self._destination, stream, self._copier or send_rows, self._job, attempt.number)
        try:
            answers = self._making.run(tasks, partial(_stage, *given))
            return Written(answers, checksum=fingerprint_of(_staged(answers)).exact.hex())
        except (Exception, KeyboardInterrupt):
            # Of tasks that were done by then; the load may come again, so not for good.
            self._destination.discard_up_to(self._job, attempt.number)
            raise

    def commit(self, written: Written, number: int, notes: dict[str, Any]) -> Changed:
        """Make the load visible, once."""
        deliver(self._destination, _staged(written.answers), self._job, number)
        self._on_step("delivered", number, number)
        self._destination.discard_up_to(self._job, number)
        return Changed(written.rows, 0)


def _staged(answers: Iterable[Answer]) -> list[StagedRows]:
    """What the tasks of this run have staged."""
    return [pickle.loads(answer.staged) for answer in answers if answer.staged]  # noqa: S301


def _stage(
    destination: Destination,
    stream: StreamInfo,
    send: Send,
    job: str,
    number: int,
    part: int,
    batches: Iterable[pa.RecordBatch],
) -> Answer:
    """Stage the rows of one task."""
    rows = stage(destination, stream, job, number, batches, send=send)
    return Answer(rows_written=rows.sums.rows, staged=pickle.dumps(rows))
