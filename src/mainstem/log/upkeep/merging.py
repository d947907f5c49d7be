"""Merging: runs of tiny entries become one, as the merger decides."""

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Final

from mainstem.core.errors import (
    DataLoss,
    IncompatibleSchema,
    InvalidPayload,
    RecordTooLarge,
    Refused,
    StreamDeleted,
    UnknownStream,
)
from mainstem.core.events import Event
from mainstem.log.contents import Contents, Promote
from mainstem.log.flush import NoteUpkeep
from mainstem.log.ledger.base import Entry, ShardKey, StreamRow
from mainstem.log.merger import RUN_ENTRIES, RUN_ENTRIES_MIN, plan_merge
from mainstem.log.replacement import remade
from mainstem.log.upkeep.work import STEP_ROWS, Work

logger = logging.getLogger("mainstem.log")

# After so long without a write a shard's last entries are merged, though they are few.
_QUIET_SECONDS: Final = 30.0


class Merging:
    """Goes through all shards from where it came to last. One thread."""

    def __init__(self, work: Work, promote: Promote) -> None:
        self._work = work
        self._promote = promote
        # Up to where the merger has looked at a shard, which is noted in the ledger only now and then.
        self._settled: dict[ShardKey, int] = {}
        # Where each shard ended when it had grown last, and since when; for ever once it was taken for quiet.
        self._ended: dict[ShardKey, tuple[int, float]] = {}

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
        contents = self._mergeable(stream)
        is_quiet = self._has_become_quiet(key, row.stable)
        while row.stable - settled >= (RUN_ENTRIES_MIN if is_quiet else RUN_ENTRIES):
            entries = self._work.ledger.entries_from(stream.id, shard, settled, RUN_ENTRIES)
            if not entries:
                return
            plan = plan_merge(entries, contents.target, is_quiet=is_quiet and entries[-1].end >= row.stable)
            if plan.entries:
                self._merge_run(stream, contents, plan.entries, plan.settled)
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

    def _has_become_quiet(self, key: ShardKey, end: int) -> bool:
        """Whether nothing was written for a while; said once, until something is."""
        now = self._work.clock.monotonic()
        seen, since = self._ended.get(key, (-1, now))
        if seen != end:
            self._ended[key] = (end, now)
            return False
        if now < since + _QUIET_SECONDS:
            return False
        self._ended[key] = (end, math.inf)
        return True

    def _mergeable(self, stream: StreamRow) -> Contents:
        """The batches of a stream, those of older schemas as rows of a newer one where they are the same in it: then
        batches of producers that have not heard of it go together with those of others."""
        contents = self._work.contents(stream)
        if stream.schema_version < 2:
            return contents
        versions = dict.fromkeys(version.schema_id for version in reversed(self._work.ledger.load_versions(stream.id)))
        return contents._replace(versions=tuple(versions), promote=self._promote)

    def _merge_run(self, stream: StreamRow, contents: Contents, entries: Sequence[Entry], settled: int) -> None:
        try:
            groups = self._work.groups(stream, entries, contents.target)
            pieces = (self._work.records(group, contents) for group in groups)
            replacement = remade(entries, pieces, self._work.upshot(merged=settled))
        except (DataLoss, IncompatibleSchema, InvalidPayload, RecordTooLarge) as error:
            # Some rows are too large, or too far away in time, for a newer schema.
            is_mixed = len({entry.schema_id for entry in entries}) > 1
            if not isinstance(error, DataLoss) and not is_mixed:
                raise
            logger.warning(Event("entries that cannot be read, or not as one, are not merged", error=error))
            self._work.execute(NoteUpkeep(stream.id, entries[0].shard, merged=settled))
            return
        self._work.execute(replacement)
        self._work.counts["entries_merged"] += len(entries)
