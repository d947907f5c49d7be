"""Merging: runs of tiny entries become one, as the merger decides."""

import contextlib
import logging
from collections.abc import Iterator, Sequence

from mainstem.core.errors import DataLoss, Refused, StreamDeleted, UnknownStream
from mainstem.core.events import Event
from mainstem.log.flush import NoteUpkeep
from mainstem.log.ledger.base import Entry, ShardKey, StreamRow
from mainstem.log.merger import RUN_ENTRIES, plan_merge
from mainstem.log.replacement import records_of, remade
from mainstem.log.upkeep.work import STEP_ROWS, Work

logger = logging.getLogger("mainstem.log")


class Merging:
    """Goes through all shards from where it came to last. One thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        # Up to where the merger has looked at a shard, which is noted in the ledger only now and then.
        self._settled: dict[ShardKey, int] = {}

    def merge(self) -> Iterator[None]:
        for stream in self._work.commits.streams():
            if stream.deleted_us:
                continue
            for shard in range(stream.shards):
                with contextlib.suppress(StreamDeleted, UnknownStream, Refused, DataLoss):
                    yield from self._merge_shard(stream, shard)

    def _merge_shard(self, stream: StreamRow, shard: int) -> Iterator[None]:
        key = (stream.id, shard)
        row = self._work.commits.shard(key)
        settled = max(self._settled.get(key, 0), row.merged, row.start)
        noted = max(row.merged, row.start)
        looked = 0
        while row.stable - settled >= RUN_ENTRIES:
            entries = self._work.ledger.entries_from(stream.id, shard, settled, RUN_ENTRIES)
            if not entries:
                return
            plan = plan_merge(entries)
            if plan.entries:
                self._merge_run(stream, plan.entries, plan.settled)
                noted = plan.settled
                looked = 0
                yield
            elif plan.settled <= settled:
                return
            looked += len(entries)
            settled = self._settled[key] = plan.settled
            if looked >= STEP_ROWS and settled > noted:
                # So many large entries are not looked at again after a restart.
                self._work.execute(NoteUpkeep(stream.id, shard, merged=settled))
                noted, looked = settled, 0
                yield

    def _merge_run(self, stream: StreamRow, entries: Sequence[Entry], settled: int) -> None:
        try:
            groups = self._work.groups(stream, entries)
        except DataLoss as loss:
            logger.warning(Event("entries that cannot be read are not merged", error=loss))
            self._work.execute(NoteUpkeep(stream.id, entries[0].shard, merged=settled))
            return
        contents = self._work.contents(stream)
        pieces = (records_of(group, contents) for group in groups)
        self._work.execute(remade(entries, pieces, self._work.upshot(merged=settled)))
        self._work.counts["entries_merged"] += len(entries)
