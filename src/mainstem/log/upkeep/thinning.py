"""Thinning: a shard is gone through, and what is left of it stored anew. Shared by compaction and erasure."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss
from mainstem.core.events import Event
from mainstem.log.contents import Contents
from mainstem.log.ledger.base import Entry, StreamRow
from mainstem.log.replacement import Records, Upshot, remade
from mainstem.log.upkeep.work import STEP_ROWS, Work, one_step

logger = logging.getLogger("mainstem.log")

# More rows than this for the bytes of one step, and they are put together.
_ROWS_PER_STEP_MAX: Final = 64


def pieces(
    work: Work, stream: StreamRow, shard: int, offset: int, stop: int
) -> Iterator[tuple[Sequence[Entry], Sequence[Sequence[FetchedBatch]] | None]]:
    """The entries of a shard with their batches in groups, from the one that holds `offset` to before `stop`, as
    many at a time as make one step. None where they cannot be read."""
    while offset < stop:
        found = work.ledger.entries_from(stream.id, shard, offset, STEP_ROWS)
        entries = one_step([entry for entry in found if entry.base < stop])
        if not entries:
            return
        try:
            yield entries, work.groups(stream, entries)
        except DataLoss as loss:
            if list(work.ledger.entries_from(stream.id, shard, offset, len(entries))) != list(entries):
                continue  # they were moved meanwhile
            logger.warning(Event("entries that cannot be read are left as they are", error=loss))
            yield entries, None
        offset = entries[-1].end


def leave(
    work: Work,
    entries: Sequence[Entry],
    groups: Sequence[Sequence[FetchedBatch]],
    contents: Contents,
    keep: Callable[[Records], np.ndarray],
    upshot: Upshot,
    *,
    joins: bool = False,
) -> int:
    """Store anew what is kept, if that is not all; how many records are gone. With `joins`, many entries of which
    little was left before are put together on the occasion."""
    masks = [keep(work.records(group, contents)) for group in groups]
    gone = sum(int(len(mask) - mask.sum()) for mask in masks)
    if gone or (joins and len(entries) > _ROWS_PER_STEP_MAX):
        left = (work.records(group, contents).take(mask) for group, mask in zip(groups, masks, strict=True))
        work.execute(remade(entries, left, upshot))
    return gone
