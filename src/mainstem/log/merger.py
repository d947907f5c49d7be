"""The merger: which entries of tiny flushes become one. Decides only.

A stream that is written one message at a time gets a row in the ledger and a frame in a block for each. Runs of such
entries are stored anew as few large batches, so that the ledger stays small and a reader gets thousands of records
where it got one.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mainstem.core.limits import MIB, STATISTICS_RECORDS_MIN, STATISTICS_STORED_BYTES_MIN
from mainstem.log.frame import is_cold
from mainstem.log.ledger.base import Entry

# An entry of this size or of so many records is left as it is. Then a batch that is large enough has its statistics.
_SMALL_BYTES: Final = STATISTICS_STORED_BYTES_MIN
_SMALL_RECORDS: Final = STATISTICS_RECORDS_MIN
# A run is merged when it has so many entries or bytes, or when a large entry ends it: it will not grow any more.
RUN_ENTRIES: Final = 1_024
_RUN_BYTES: Final = 1 * MIB
# A run that cannot grow is not worth a write if it is shorter than this.
RUN_ENTRIES_MIN: Final = 8


class MergePlan(NamedTuple):
    """The entries to merge next, none if there are none; up to `settled` nothing has to be looked at again."""

    entries: Sequence[Entry]
    settled: int


def plan_merge(entries: Sequence[Entry], target: Callable[[int], int] = int, *, is_quiet: bool = False) -> MergePlan:
    """What to do about entries of one shard that follow each other, up to RUN_ENTRIES of them. Those whose schemas have
    the same target can be in one batch. `is_quiet`: nothing was written after them for a while, so they will not grow
    soon, and who looks for something should not have to open them all."""
    settled = entries[0].base
    run: list[Entry] = []
    size = 0
    for entry in entries:
        if not _is_small(entry) or (run and not _are_alike(run[0], entry, target)):
            if len(run) >= RUN_ENTRIES_MIN:
                return MergePlan(run, run[-1].end)
            # An entry that only differs from those before it may begin a run.
            is_first = _is_small(entry)
            settled = entry.base if is_first else entry.end
            run, size = ([entry], entry.length) if is_first else ([], 0)
            continue
        run.append(entry)
        size += entry.length
        if size >= _RUN_BYTES:
            return MergePlan(run, entry.end)
    if len(run) >= (RUN_ENTRIES_MIN if is_quiet else RUN_ENTRIES):
        return MergePlan(run, run[-1].end)
    return MergePlan((), settled)


def _is_small(entry: Entry) -> bool:
    # Cold ones were put together already.
    if entry.count != entry.span or is_cold(entry.block):
        return False
    # Rows without statistics are many tiny batches of one flush: put together, they can be passed over unread.
    if entry.schema_id and not entry.statistics:
        return entry.length < _RUN_BYTES
    return entry.length < _SMALL_BYTES and entry.span < _SMALL_RECORDS


def _are_alike(first: Entry, second: Entry, target: Callable[[int], int]) -> bool:
    if first.transaction != second.transaction:
        return False
    return first.schema_id == second.schema_id or target(first.schema_id) == target(second.schema_id)
