"""Rows delivered to a stream: each task stages some where nobody sees them, and the driver commits all in one step.

What is compared to tell a repeated delivery from another one, sums over the rows, is made while they are staged.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.spark.destination import Destination, PartWriter, Staged
from mainstem.spark.frames import by_shard, gathered
from mainstem.spark.sums import Sums
from mainstem.transport.port import StreamInfo


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What one task has staged, and the sums over its rows. Can be pickled."""

    staged: Staged
    sums: Sums


# Sends rows to a shard, or to those of their keys.
Send = Callable[[PartWriter, StreamInfo, pa.Table, int | None], None]


def send_rows(part: PartWriter, stream: StreamInfo, rows: pa.Table, shard: int | None) -> None:
    part.send_batch(stream.name, rows, shard=shard)


def stage(
    destination: Destination,
    stream: StreamInfo,
    job: str,
    number: int,
    batches: Iterable[pa.RecordBatch],
    *,
    is_compared: bool = True,
    send: Send = send_rows,
) -> StagedRows:
    """Stage the rows of one task."""
    part, sums = destination.begin(job, number), Sums()
    try:
        for table in gathered(stream, batches):
            if is_compared:
                sums.add(table)
            for shard, rows in by_shard(stream, table):
                send(part, stream, rows, shard)
        return StagedRows(part.finish(), sums)
    except BaseException:
        part.abort()
        raise


def fingerprint_of(rows: Sequence[StagedRows]) -> Fingerprint:
    """What the log compares of all that tasks have staged."""
    sums = Sums()
    for each in rows:
        sums.merge(each.sums)
    return sums.fingerprint()


def deliver(
    destination: Destination, rows: Sequence[StagedRows], job: str | None, number: int, *, accepts: bool = False
) -> None:
    """Make visible what tasks have staged, in this order, as the delivery `number` of a job; without one nothing is
    compared. Refused, nothing of it is left."""
    delivery = None
    if job is not None:
        delivery = Delivery(destination.look_up().id, job, number, fingerprint_of(rows), accepts)
    staged = [each.staged for each in rows]
    try:
        destination.commit(staged, delivery)
    except BaseException:
        destination.discard(staged)
        raise
