"""What is stored of a shard, without reading it: for whoever divides a stream among many readers before they begin.

The rows of the ledger say which offsets lie where and how many bytes they are; tiny ones that follow each other are
told as one run. What cannot hold a match is left out, by the sieves that a consumer's selection has.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from mainstem.consume.selection import Selection
from mainstem.consume.selections import Selections
from mainstem.core.errors import DataLoss, InvalidRequest
from mainstem.core.limits import MIB
from mainstem.log.ledger.base import Entry, ShardRow, StreamRow
from mainstem.log.reader import LogReader
from mainstem.transport.port import Answer, Query, Run, RunsCall

# Rows of the ledger that one answer looks at: a few hundredths of a second, and a message far below its limit.
_ENTRIES_MAX: Final = 4_096
_RUN_BYTES: Final = 1 * MIB


class Runs:
    """Answers RunsCall, of a log whose streams `require` knows by name. Any thread."""

    def __init__(
        self,
        require: Callable[[str], StreamRow],
        reader: LogReader,
        selections: Selections,
        folder: Path,
        word: str = "",
    ) -> None:
        self._require = require
        self._reader = reader
        self._selections = selections
        self._folder = str(folder.absolute())
        self._word = word

    def handle(self, call: RunsCall) -> Answer:
        row = self._require(call.name)
        if call.shard >= row.shards:
            raise InvalidRequest(f"stream {row.name!r} has shards 0 to {row.shards - 1}, not {call.shard}")
        # First of all: what is told is no newer than that flush, so whoever has come to it finds everything.
        flush = self._reader.flush()
        state = self._reader.shard(row.id, call.shard)
        _require_kept(row, call, state)
        first, end = call.first, min(call.end, state.stable)
        entries = self._reader.entries(row.id, call.shard, first, _ENTRIES_MAX) if first < end else ()
        if first < end and (not entries or entries[0].base > first):
            # The row is gone though the shard reached so far back a moment ago: it was trimmed since.
            _require_kept(row, call, self._reader.shard(row.id, call.shard))
        looked = min(entries[-1].end, end) if entries else end
        wanted = self._wanted(row, call.where, entries)
        runs = tuple(gathered(wanted, first, end, call.run_bytes or _RUN_BYTES))
        if call.first == call.end:
            # Also where nothing is left of the shard, it knows how late its records were.
            runs = (Run(call.first, call.end, 0, 0, state.time_high),)
        return Answer(
            runs=runs,
            offsets=(max(looked, first),),
            more=looked < end,
            folder=self._folder,
            word=self._word,
            flush=flush,
        )

    def _wanted(self, row: StreamRow, where: str, entries: Iterable[Entry]) -> Iterable[Entry]:
        """Those of which some record may match."""
        kept = (entry for entry in entries if entry.count)
        if not where:
            return kept
        selection: Selection = self._selections.get(row, Query(where, None, row.schema_id))
        return (entry for entry in kept if not selection.can_skip(entry, partial(self._reader.statistics_of, entry)))


def _require_kept(row: StreamRow, call: RunsCall, shard: ShardRow) -> None:
    """DataLoss if what is asked for begins before the shard does."""
    last = min(shard.start, call.end) - 1
    if call.first <= last:
        raise DataLoss(stream=row.name, shard=call.shard, first=call.first, last=last)


def gathered(entries: Iterable[Entry], first: int, end: int, run_bytes: int) -> Iterable[Run]:
    """Entries of a shard, in order, as runs: those that follow each other together, up to `run_bytes`; what they have
    outside of `first` to `end` is left out, with its share of records and bytes."""
    found: Run | None = None
    for entry in entries:
        if entry.base >= end:
            break
        run = _cut(entry, max(entry.base, first), min(entry.end, end))
        if found is not None and found.end == run.first and found.bytes + run.bytes <= run_bytes:
            found = Run(
                found.first,
                run.end,
                found.records + run.records,
                found.bytes + run.bytes,
                max(found.time_high_us, run.time_high_us),
            )
            continue
        if found is not None:
            yield found
        found = run
    if found is not None:
        yield found


def _cut(entry: Entry, first: int, end: int) -> Run:
    share = (end - first) / entry.span
    records = entry.count if share == 1 else max(1, round(entry.count * share))
    return Run(first, end, records, max(1, round(entry.length * share)), entry.time_high)
