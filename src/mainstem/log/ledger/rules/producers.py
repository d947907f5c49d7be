"""Producers: what is remembered of each in a shard, so that a batch sent twice is appended once."""

from mainstem.core.batch import BatchHeader
from mainstem.core.errors import OutOfSequence, ProducerFenced, UnknownProducer
from mainstem.core.limits import PRODUCER_RECENT_MAX
from mainstem.log.flush import Done, ForgetProducers, Outcome
from mainstem.log.ledger.base import ProducerRow
from mainstem.log.ledger.pending import PendingRows


def original_base(header: BatchHeader, row: ProducerRow | None) -> int | None:
    """The original base of a repeated batch, None for the next one; anything else is refused."""
    if row is not None and header.producer_epoch < row.epoch:
        raise ProducerFenced(
            f"producer {header.producer:x} epoch {header.producer_epoch} was replaced by epoch {row.epoch}"
        )
    if row is None or header.producer_epoch > row.epoch:
        if header.sequence == 0:
            return None
        raise UnknownProducer(
            f"producer {header.producer:x} is not known in this shard, yet its batch has sequence "
            f"{header.sequence}; it was idle for over 7 days, the log was restored from an older backup, or the stream "
            "is new: open a new producer"
        )
    last = row.recent[-1][0]
    if header.sequence == last + 1:
        return None
    for sequence, base in row.recent:
        if sequence == header.sequence:
            return base
    raise OutOfSequence(
        f"producer {header.producer:x} sent sequence {header.sequence}, expected {last + 1} "
        f"or one of the last {len(row.recent)}"
    )


def remembering(row: ProducerRow | None, header: BatchHeader, base: int, now_us: int) -> ProducerRow:
    """The producer's row with one batch more."""
    recent: tuple[tuple[int, int], ...] = ()
    if row is not None and row.epoch == header.producer_epoch:
        recent = row.recent[-(PRODUCER_RECENT_MAX - 1) :]
    return ProducerRow(header.producer_epoch, (*recent, (header.sequence, base)), now_us)


def forget(rows: PendingRows, command: ForgetProducers) -> Outcome:
    rows.changes.forget_producers_before_us = command.before_us
    rows.changes.forget_producers_ids = (command.first, command.last)
    return Done()
