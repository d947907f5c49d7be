"""Deliveries: which numbered writes of a job are new, which came before, and which cannot be."""

from mainstem.core.delivery import Delivery, Fingerprint
from mainstem.core.errors import DeliveryRefused
from mainstem.core.limits import DELIVERIES_PER_JOB_MAX
from mainstem.log.ledger.base import DeliveriesRow, StreamRow
from mainstem.log.ledger.pending import PendingRows


def with_delivery(rows: PendingRows, delivery: Delivery, time_us: int) -> DeliveriesRow | None:
    """The row of the job with this delivery; None if it was made before."""
    stream = rows.open_stream(delivery.stream)
    key = (delivery.stream, delivery.job)
    known = rows.shared.deliveries.get(key) or rows.current.ledger.load_deliveries(key)
    made = (delivery.number, delivery.fingerprint)
    if known is None:
        return DeliveriesRow(time_us, (made,))
    last, _ = known.recent[-1]
    if delivery.number > last:
        if delivery.number > last + 1 and not delivery.accept:
            raise _missing(stream, delivery, last)
        return DeliveriesRow(time_us, (*known.recent[1 - DELIVERIES_PER_JOB_MAX :], made))
    if not delivery.accept:
        _require_same(stream, delivery, dict(known.recent).get(delivery.number), last)
    return None


def _require_same(stream: StreamRow, delivery: Delivery, known: Fingerprint | None, last: int) -> None:
    if known is None:
        raise DeliveryRefused(
            f"{_which(stream, delivery)} comes after number {last}, and the log does not remember what it had, but "
            f"only the last {DELIVERIES_PER_JOB_MAX} of a job. Its checkpoint was set back; {_ADVICE}"
        )
    if not known.matches(delivery.fingerprint):
        raise DeliveryRefused(
            f"{_which(stream, delivery)} was written before with {known.rows} rows, and now comes with "
            f"{_came(known, delivery.fingerprint)}: its checkpoint was set back, or its query gives other rows each "
            f"time (rand(), uuid(), a changed query). Nothing was written; {_ADVICE}"
        )


def _missing(stream: StreamRow, delivery: Delivery, last: int) -> DeliveryRefused:
    return DeliveryRefused(
        f"{_which(stream, delivery)} follows number {last}, which is the last that the log has: those between are "
        "missing. The log was restored from an older backup, or the job wrote elsewhere meanwhile. Nothing was "
        f"written; {_ADVICE}"
    )


def _which(stream: StreamRow, delivery: Delivery) -> str:
    return f"stream {stream.name!r}: number {delivery.number} of job {delivery.job!r}"


def _came(known: Fingerprint, came: Fingerprint) -> str:
    return f"{came.rows}" if came.rows != known.rows else f"{came.rows} others"


_ADVICE = (
    "begin a new checkpoint where the stream's rows end, or say that what the log has is right (Spark: option "
    'onReplay="accept")'
)
