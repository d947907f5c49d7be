"""Trimming: what retention lets go, rows below the start of a shard, and streams of which nothing is left."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from mainstem.core.errors import Refused, StreamDeleted, UnknownStream
from mainstem.core.events import Event
from mainstem.log.flush import DropEntries, ForgetStream, HurryBlocks
from mainstem.log.ledger.base import ShardKey, StreamRow
from mainstem.log.retention import expired, holds_of, passed_over
from mainstem.log.upkeep.work import Work

logger = logging.getLogger("mainstem.log")

# Rows dropped in one flush.
_DROP_ROWS: Final = 500


class Trimming:
    """Lets go of the oldest. `look_at`, `note_erased` and `drop_now` are for any thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        # Shards with rows below their start, perhaps. After a start that is not known of any.
        self._trimmed: set[ShardKey] = {
            (stream.id, shard) for stream in work.commits.streams() for shard in range(stream.shards)
        }
        # Streams of which keys were erased: what is sent again afterwards is in no row, and still to go. Of those that
        # were before this start, the first round learns it from the offsets that have no record.
        self._erased: set[int] = set()
        self._knows_erased = False

    def trim(self) -> Iterator[None]:
        """Move the start of shards behind what is too old, or too much, and is held by no group. On a full disk nobody
        holds anything: what is written counts more than what one group has not read."""
        holds = holds_of(self._work.ledger)
        is_full = self._work.commits.is_disk_full()
        for trim in expired(self._work.ledger, self._work.clock.now_us(), None if is_full else holds):
            # A stream may be deleted between the decision and the deed; then there is nothing left to trim.
            with contextlib.suppress(StreamDeleted, UnknownStream):
                unread = passed_over(trim, self._work.commits.shard((trim.stream, trim.shard)).start, holds)
                self._work.execute(trim)
                self.look_at((trim.stream, trim.shard))
                self._tell(trim.stream, unread, is_full)
                yield

    def _tell(self, stream: int, unread: Mapping[str, int], is_full: bool) -> None:
        """Of what groups hold and will not get any more."""
        for group, records in unread.items():
            row = self._work.ledger.load_stream(stream)
            logger.warning(
                Event(
                    "records go that a group holds and has not read",
                    group=group,
                    stream=stream if row is None else row.name,
                    records=records,
                    reason="the disk is full" if is_full else "they were held for as long as they may be",
                )
            )

    def look_at(self, key: ShardKey) -> None:
        """The start of this shard has moved."""
        self._trimmed.add(key)

    def note_erased(self, stream: int) -> None:
        """Keys of this stream were erased."""
        self._erased.add(stream)

    def drop(self) -> Iterator[None]:
        """Drop rows below the starts, and forget deleted streams that have none left."""
        streams = {stream.id: stream for stream in self._work.commits.streams()}
        if not self._knows_erased:
            self._erased.update(stream.id for stream in streams.values() if self._has_missing(stream))
            self._knows_erased = True
        for stream in streams.values():
            if stream.deleted_us:
                self._trimmed.update((stream.id, shard) for shard in range(stream.shards))
        for key in sorted(self._trimmed):
            # Refused if an erasure changes the same rows in the same flush: the next round finds them.
            self._trimmed.discard(key)
            try:
                yield from self._drop_rows(streams.get(key[0]), key)
            except Refused:
                self._trimmed.add(key)
            except BaseException:
                self._trimmed.add(key)
                raise
        for stream in streams.values():
            if stream.deleted_us and self._is_forgettable(stream):
                self._work.execute(ForgetStream(stream.id))
                yield
            elif (stream.deleted_us or stream.id in self._erased) and self._has_undated(stream):
                # What never had a row, because it was written twice or too late, also has to go.
                self._work.execute(HurryBlocks(stream.id, self._work.rewrite_us()))
                yield

    def _drop_rows(self, stream: StreamRow | None, key: ShardKey) -> Iterator[None]:
        while self._has_rows_to_drop(stream, key):
            done = self._work.execute(DropEntries(*key, _DROP_ROWS, self._work.rewrite_us()))
            self._work.counts["rows_dropped"] += done.rows
            yield
            if done.rows < _DROP_ROWS:
                return

    def drop_now(self, stream: StreamRow, key: ShardKey) -> None:
        """Drop all rows below the start of a shard, whose bytes should be off the disk at once."""
        while self._has_rows_to_drop(stream, key):
            try:
                self._work.execute(DropEntries(*key, _DROP_ROWS, self._work.clock.now_us()))
            except Refused:
                # Others have changed some of these rows in the same flush: the next one finds them as they are then.
                if self._work.commits.has_failed():
                    raise

    def _has_rows_to_drop(self, stream: StreamRow | None, key: ShardKey) -> bool:
        if stream is None:
            return False
        row = self._work.commits.shard(key)
        before = row.next if stream.deleted_us else row.start
        return bool(before) and self._work.ledger.oldest_entries(*key, before, 1).rows > 0

    def _is_forgettable(self, stream: StreamRow) -> bool:
        rows = (self._work.commits.shard((stream.id, shard)) for shard in range(stream.shards))
        return not any(row.bytes for row in rows) and not self._work.ledger.dead_bytes(stream.id)

    def _has_missing(self, stream: StreamRow) -> bool:
        shards = range(0 if stream.deleted_us else stream.shards)
        return any(self._work.ledger.missing_records(stream.id, shard) for shard in shards)

    def _has_undated(self, stream: StreamRow) -> bool:
        """Whether something of a stream is dead in a block that nobody would ever touch for it."""
        dead = self._work.ledger.dead_bytes(stream.id)
        return any(row.id in dead and not (row.rewrite_us or row.dead_us) for row in self._work.ledger.list_blocks())
