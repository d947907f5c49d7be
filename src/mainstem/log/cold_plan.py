"""Which old entries of a shard become cold files. Decides only.

A range is a run of entries that may be in one file: of one schema, on one side of every barrier, none of them cold
already. What is too little for a file stays as it is, until more has become old behind it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from mainstem.core.batch import FetchedBatch
from mainstem.core.limits import COLD_FILE_BYTES_MIN, COLD_RAW_BYTES_MAX, COLD_TASK_BYTES, READ_ENTRIES_MAX
from mainstem.log.frame import is_cold
from mainstem.log.ledger.base import Entry, LedgerReader


def entries_of(ledger: LedgerReader, stream: int, shard: int) -> Iterator[Entry]:
    """What a shard has now, in order."""
    row = ledger.load_shard(stream, shard)
    return entries_between(ledger, stream, shard, row.start, row.stable)


def entries_between(ledger: LedgerReader, stream: int, shard: int, first: int, stop: int) -> Iterator[Entry]:
    """The entries from the one that holds `first` to before `stop`, in order."""
    while first < stop:
        found = [entry for entry in ledger.entries_from(stream, shard, first, READ_ENTRIES_MAX) if entry.base < stop]
        if not found:
            return
        yield from found
        first = found[-1].end


class ColdRange(NamedTuple):
    """Entries of a shard that follow each other, for one task: offsets `base` to `end - 1`."""

    base: int
    end: int
    rows: int
    bytes: int


def plan_ranges(
    entries: Iterable[Entry],
    barriers: Collection[int],
    before_us: int,
    bytes_min: int = COLD_FILE_BYTES_MIN,
    bytes_max: int = COLD_TASK_BYTES,
) -> Iterator[ColdRange]:
    """The ranges of a shard's entries, which come in order, up to the first that has a record of `before_us` or
    later. Each has `bytes_min` as stored or more, and about `bytes_max` at most."""
    run: list[Entry] = []
    size = 0
    for entry in entries:
        if entry.time_high >= before_us:
            break
        may_stand = _may_be_cooled(entry, barriers)
        if run and (not may_stand or entry.base in barriers or not _go_together(run, entry) or size >= bytes_max):
            yield from _worth(run, size, bytes_min)
            run, size = [], 0
        if may_stand:
            run.append(entry)
            size += entry.length
    yield from _worth(run, size, bytes_min)


def gathered(
    entries: Iterable[tuple[Entry, Sequence[FetchedBatch]]], bytes_min: int, raw_max: int = COLD_RAW_BYTES_MAX
) -> Iterator[tuple[list[Entry], list[FetchedBatch]]]:
    """The entries of a range with their batches, as many at a time as make a file. An entry that is too large for one
    is left out, and so is what is too little, as stored."""
    run: list[Entry] = []
    batches: list[FetchedBatch] = []
    raw = 0
    for entry, own in entries:
        own_raw = sum(batch.header.raw_len for batch in own)
        if run and raw + own_raw > raw_max:
            if sum(before.length for before in run) >= bytes_min:
                yield run, batches
            run, batches, raw = [], [], 0
        if own_raw <= raw_max:
            run.append(entry)
            batches += own
            raw += own_raw
    if run and sum(before.length for before in run) >= bytes_min:
        yield run, batches


def _may_be_cooled(entry: Entry, barriers: Collection[int]) -> bool:
    # Earlier versions made batches that reach over a barrier: upkeep cuts them when it stores them anew.
    return not is_cold(entry.block) and not any(entry.base < barrier < entry.end for barrier in barriers)


def _go_together(run: Sequence[Entry], entry: Entry) -> bool:
    """What only stands for offsets without a record goes with any schema."""
    last = next((before for before in reversed(run) if before.length), None)
    return last is None or not entry.length or last.schema_id == entry.schema_id


def _worth(run: Sequence[Entry], size: int, bytes_min: int) -> Iterator[ColdRange]:
    if run and size >= bytes_min and any(entry.count for entry in run):
        yield ColdRange(run[0].base, run[-1].end, len(run), size)
