"""Frames into streams: Spark's writers, batch and streaming.

Exactly once. Tasks stage, and the driver commits in one step of the log what the tasks that Spark counts have staged;
those of tasks that were lost, repeated or speculative are never named. The commit carries the number of the delivery:
of a streaming query its id, which lives in its checkpoint, and the number of the micro-batch; of a batch write the
`transactionId` and `transactionVersion` that the user gives. A delivery that the log has already changes nothing
(core/delivery.py).

Spark makes a writer anew in every process, and in streaming also for the commit: only the messages of tasks connect
them. So whatever a commit needs is in the messages.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mainstem.core.errors import InternalError, InvalidSetting, MainstemError
from mainstem.core.limits import TRANSACTION_BATCHES_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_SECONDS_MAX
from mainstem.log.transactions import met_limit
from mainstem.spark import types
from mainstem.spark.destination import Destination
from mainstem.spark.frames import check_frame
from mainstem.spark.staged_rows import StagedRows, deliver, stage
from mainstem.spark.write_options import WriteOptions

# Properties of a task that belongs to a streaming query.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_LIMITS: Final = (
    f"A micro-batch is written whole: up to {TRANSACTION_BYTES_MAX >> 30} GiB and {TRANSACTION_BATCHES_MAX:,} batches, "
    f"within {TRANSACTION_SECONDS_MAX // 60} minutes. One that is larger stays so, because the checkpoint says what it "
    "reads: begin a new checkpoint where the stream's rows end, with a limit for batches at the source "
    "(maxBytesPerTrigger, maxOffsetsPerTrigger, maxFilesPerTrigger)"
)


@dataclass
class Written(WriterCommitMessage):
    """What one task has staged."""

    job: str
    partition: int
    rows: StagedRows


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, destination: Destination, *, accepts: bool, checkpoint: str = "") -> None:
        self._destination = destination
        self._accepts = accepts
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        query = task.getLocalProperty(_QUERY) if task is not None else None
        batch = task.getLocalProperty(_BATCH) if task is not None else None
        if not query or not batch:
            raise InternalError("Spark did not say to which query and batch this task belongs")
        with _saying_what_limits_it():
            return _write(self._destination, query, int(batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = _all_written(messages)
        if not written:
            raise InternalError("no task said what it wrote, nor for which query")
        job = written[0].job
        with _saying_what_limits_it():
            _commit(self._destination, written, job, batchId, accepts=self._accepts)
        self._destination.discard_up_to(job, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = _written(messages)
        self._destination.discard([message.rows.staged for message in written])
        # Of tasks that were ended in the middle there is no message, and perhaps of none.
        query = written[0].job if written else query_of(self._checkpoint)
        if query:
            self._destination.discard_up_to(query, batchId)


class BatchSink(DataSourceArrowWriter):
    """Writes one frame, once if it has a `transaction`. It is pickled to the tasks, and the same one commits."""

    def __init__(self, destination: Destination, transaction: str | None, version: int = 0, *, accepts: bool) -> None:
        self._transaction = transaction
        self._version = version
        self._accepts = accepts
        # Of this run: under which it stages. Another run may write under the same transaction at the same time.
        self._run = uuid.uuid4().hex
        self._destination = destination.opened(self._run, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        # Without a transaction nothing is compared.
        return _write(self._destination, self._run, 0, iterator, is_numbered=self._transaction is not None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._destination, _all_written(messages), self._transaction, self._version, accepts=self._accepts)
        self._destination.discard_up_to(self._run, 0, for_good=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._destination.discard([message.rows.staged for message in _written(messages)])
        self._destination.discard_up_to(self._run, 0, for_good=True)


def _write(
    destination: Destination,
    job: str,
    number: int,
    batches: Iterator[pa.RecordBatch],
    *,
    is_numbered: bool = True,
) -> Written:
    task: Any = TaskContext.get()
    rows = stage(destination, destination.look_up(), job, number, batches, is_compared=is_numbered)
    return Written(job, task.partitionId(), rows)


def _commit(
    destination: Destination, written: Sequence[Written], job: str | None, number: int, *, accepts: bool
) -> None:
    """Make visible what tasks have staged, in the order of their partitions."""
    rows = [message.rows for message in sorted(written, key=lambda message: message.partition)]
    deliver(destination, rows, job, number, accepts=accepts)


@contextmanager
def _saying_what_limits_it() -> Iterator[None]:
    """An error of a micro-batch that is too large for the log, or took too long, says how a query gets smaller ones. No
    other does: a new checkpoint is another job, whose rows come again."""
    try:
        yield
    except MainstemError as error:
        if met_limit(error):
            error.add_note(_LIMITS)
        raise


def query_of(checkpoint: str) -> str:
    """The id of the query that has this checkpoint; empty if that cannot be read here."""
    place = urlsplit(checkpoint)
    if not checkpoint or place.scheme not in ("", "file"):
        return ""
    try:
        found = json.loads(Path(unquote(place.path) if place.scheme else checkpoint, "metadata").read_text())
    except (OSError, ValueError):
        return ""
    return str(found.get("id", "")) if isinstance(found, dict) else ""


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _all_written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """What every task has staged: without that of one a commit would lack its rows."""
    written = _written(messages)
    if len(written) != len(messages):
        raise InternalError(f"{len(messages) - len(written)} of {len(messages)} tasks did not say what they wrote")
    return written


def stream_sink(options: WriteOptions, schema: StructType, *, overwrite: bool) -> StreamSink:
    """The writer of a streaming query."""
    if overwrite:
        raise InvalidSetting(
            'outputMode("complete") would replace the stream with every batch, and a stream is only appended to: use '
            'outputMode("append"), or write what has changed by foreachBatch to a stream with cleanup="compact", which '
            "keeps the newest row of each key"
        )
    if options.transaction is not None:
        raise InvalidSetting("option transactionId is for df.write: a streaming query numbers its batches itself")
    return StreamSink(_checked(options, schema), accepts=options.accepts, checkpoint=options.checkpoint)


def batch_sink(options: WriteOptions, schema: StructType, *, overwrite: bool) -> BatchSink:
    """The writer of a frame."""
    if overwrite:
        raise InvalidSetting(
            'mode("overwrite") would replace the stream, and a stream is only appended to: use mode("append"); to '
            "begin anew delete the stream and create it again, or write to another"
        )
    if options.accepts and options.transaction is None:
        raise InvalidSetting("option onReplay says what a transactionId does that was written before; give that, too")
    return BatchSink(_checked(options, schema), options.transaction, options.version, accepts=options.accepts)


def _checked(options: WriteOptions, schema: StructType) -> Destination:
    """Where to write to; refuses what can be known to fail before a task runs."""
    destination = Destination(options.access, options.stream)
    check_frame(destination.look_up(), types.to_arrow(schema))
    destination.check_free()
    return destination
