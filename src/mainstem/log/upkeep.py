"""The upkeep of a log, beside its commits: what is too old goes, what is scattered is put together, space comes back.

Everything here is done by commands of a flush, so that a replay comes to the same ledger. One thread works through
rounds of small steps and rests after each, so that those who write and read keep most of the machine; a step that was
cut short by the end of the process is simply done again.

    trim      the start of a shard moves behind what its stream's retention lets go; readers notice at once
    drop      rows below the start go, some hundreds at a time; their bytes are dead
    merge     runs of tiny entries become one (`merger`)
    compact   of every key only the newest record stays (`compaction`)
    rewrite   what is alive in a block that is mostly dead, or holds what should be off the disk by now, moves elsewhere
    free      the file of a block in which nothing is alive goes, ten minutes later

A block is needed by readers as long as an entry points into it, by a reader that has just looked an entry up for a
moment longer, and by a rebuild of the ledger until both kept snapshots are beyond it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

import numpy as np

from mainstem.core.batch import FetchedBatch
from mainstem.core.clock import Clock
from mainstem.core.errors import (
    Busy,
    Closed,
    DataLoss,
    DiskFull,
    IncompatibleSchema,
    InvalidPayload,
    MainstemError,
    RecordTooLarge,
    Refused,
    StreamDeleted,
    UnknownStream,
)
from mainstem.core.events import Event
from mainstem.core.limits import KIB, MIB
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.compaction import KeyIndex, is_due, tombstones, without_key
from mainstem.log.contents import Contents, Promote, SchemaOf, never_promoted, no_schema
from mainstem.log.flush import (
    Command,
    Done,
    DropEntries,
    ForgetBlock,
    ForgetStream,
    HurryBlocks,
    NoteUpkeep,
    Replacement,
)
from mainstem.log.ledger.base import BlockRow, Entry, ShardKey, ShardRow, StreamRow, barriers_of
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.merger import RUN_ENTRIES, plan_merge
from mainstem.log.reader import LogReader
from mainstem.log.replacement import Records, Upshot, grouped, moved, records_of, remade
from mainstem.log.retention import expired
from mainstem.log.snapshots import Snapshots

logger = logging.getLogger("mainstem.log")

# Rows are dropped, entries merged and compacted so often; retention and blocks are looked at at the chosen pace.
_ROUND_SECONDS: Final = 2.0
_REST_SECONDS_MAX: Final = 5.0
# Within a step, for how long the interpreter is held from those who commit.
_MOMENT_SECONDS: Final = 0.001
# One step: rows dropped in one flush, bytes stored anew in one flush, rows looked at in one go.
_DROP_ROWS: Final = 500
_STEP_BYTES: Final = 1 * MIB
_STEP_ROWS: Final = 1_024
# More rows than this for the bytes of one step, and they are put together.
_ROWS_PER_STEP_MAX: Final = 64
# A block that grows is ended early if most of it is dead and it has so many bytes, fewer on a full disk.
_ROLLED_BYTES: Final = 16 * MIB
_ROLLED_BYTES_URGENT: Final = 256 * KIB
# Blocks whose entries are looked up in one go, and how many entries of them are in memory at a time.
_REWRITTEN_AT_ONCE: Final = 16
_PAGE_ROWS: Final = 4_096
_BUSY_SECONDS: Final = 0.05
_NEVER_US: Final = 1 << 62
# How often the same entries are tried to be replaced, before that is given up: others may be at them in the same flush.
_REFUSED_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Pace:
    """How soon things happen.

    Every `interval` seconds retention is looked after, and what can be freed. A file goes `free_after` seconds after
    the last entry that pointed to it, for readers that had looked the entry up just before. What nobody can read any
    more is off the disk after `rewrite_after` seconds and these, at the latest: the rest of its block moves elsewhere.
    Work is done for the part `share` of the time.
    """

    interval: float = 30.0
    free_after: float = 600.0
    rewrite_after: float = 86_400.0
    share: float = 0.2

    def rewrite_us(self, now_us: int) -> int:
        return now_us + round(self.rewrite_after * 1_000_000)

    def is_freeable(self, row: BlockRow, now_us: int) -> bool:
        return bool(row.dead_us) and row.dead_us + self.free_after * 1_000_000 <= now_us

    def gone_by_us(self, rows: Sequence[BlockRow], now_us: int) -> int:
        """When what is dead in these blocks is off the disk, if the log stays open; 0 if there are none."""
        if not rows:
            return 0
        latest = max(now_us, *(row.dead_us or row.rewrite_us or self.rewrite_us(now_us) for row in rows))
        # Between being due and being done lie a few rounds: one to rewrite a block, one to free it, two for snapshots.
        return latest + round((self.free_after + 4 * self.interval) * 1_000_000)


class Commits(Protocol):
    """What upkeep needs of the log it keeps: a way to commit, and the rows as they stand in memory."""

    def execute(self, item: Command | Replacement) -> Done: ...

    def commit_nothing(self) -> None:
        """An empty flush, for what a flush does beside carrying items."""
        ...

    def is_disk_full(self) -> bool: ...

    def has_failed(self) -> bool:
        """Whether nothing is committed any more, for good."""
        ...

    def request_roll(self) -> None: ...

    def request_snapshot(self) -> None: ...

    def streams(self) -> list[StreamRow]: ...

    def shard(self, key: ShardKey) -> ShardRow: ...


class Upkeep:
    """Keeps one log. `round` is for one thread; `erase`, `look_at` and the counters for any."""

    def __init__(
        self,
        commits: Commits,
        ledger: SqliteLedgerReader,
        blocks: BlockStore,
        snapshots: Snapshots,
        clock: Clock,
        pace: Pace,
        schema_of: SchemaOf = no_schema,
        promote: Promote = never_promoted,
    ) -> None:
        self._commits = commits
        self._ledger = ledger
        self._blocks = blocks
        self._snapshots = snapshots
        self._clock = clock
        self.pace = pace
        self._schema_of = schema_of
        self._promote = promote
        self._rests = pace.share < 1
        # Of the step under way, rests that it has taken already.
        self._rested_seconds = 0.0
        self._reader = LogReader(ledger, blocks, recent_bytes=0)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        # Shards with rows below their start, perhaps. After a start that is not known of any.
        self._trimmed: set[ShardKey] = {
            (stream.id, shard) for stream in commits.streams() for shard in range(stream.shards)
        }
        # Up to where the merger has looked at a shard, which is noted in the ledger only now and then.
        self._settled: dict[ShardKey, int] = {}
        # When a shard that is to be compacted was first seen with something new, and the time of its oldest tombstone.
        self._dirty_since: dict[ShardKey, float] = {}
        self._oldest_tombstone_us: dict[ShardKey, int] = {}
        # Blocks that cannot be rewritten because they are damaged.
        self._stuck: set[int] = set()
        # Streams of which keys were erased: what is sent again afterwards is in no row, and still to go. Of those that
        # were before this start, the first round learns it from the offsets that have no record.
        self._erased: set[int] = set()
        self._knows_erased = False
        self._retention_due = self._blocks_due = 0.0
        self._counts = dict.fromkeys(
            (
                "rows_dropped",
                "entries_merged",
                "records_compacted",
                "records_erased",
                "bytes_rewritten",
                "blocks_freed",
                "bytes_freed",
                "upkeep_errors",
            ),
            0,
        )

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    # The thread.

    def start(self) -> None:
        """Keep the log from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="mainstem-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop at the end of the step under way."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(min(_ROUND_SECONDS, self.pace.interval)):
            try:
                for _ in self.round():
                    if self._closing.is_set():
                        return
            except (Closed, StreamDeleted, UnknownStream, DiskFull):
                # Without room nothing is stored anew; what can be freed without was freed before that.
                continue
            except Exception as error:
                if self._commits.has_failed():
                    return  # whoever commits has said why
                self._counts["upkeep_errors"] += 1
                is_bug = not isinstance(error, MainstemError | OSError)
                logger.error(Event("upkeep failed and is tried again", error=error), exc_info=is_bug)
                if self._closing.wait(_REST_SECONDS_MAX):
                    return

    def _rested(self, steps: Iterator[None]) -> Iterator[None]:
        """The same steps with a rest after each, in proportion to the time it took."""
        while True:
            begun = self._clock.monotonic()
            try:
                next(steps)
            except StopIteration:
                return
            self._rest(self._clock.monotonic() - begun - self._rested_seconds)
            self._rested_seconds = 0.0
            yield

    def _gently(self, batches: Iterator[FetchedBatch]) -> Iterator[FetchedBatch]:
        """The same batches with a rest whenever reading them took a moment: whoever commits needs the interpreter every
        moment, and would otherwise wait for it while many small ones are read."""
        is_upkeep = threading.current_thread() is self._thread
        begun = self._clock.monotonic()
        for batch in batches:
            yield batch
            worked = self._clock.monotonic() - begun
            # Who erases waits for it, and does not rest.
            if is_upkeep and worked > _MOMENT_SECONDS:
                self._rest(worked)
                begun = self._clock.monotonic()

    def _rest(self, worked: float) -> None:
        """For as long as the chosen share asks for after so much work."""
        if self._rests and worked > 0:
            rest = min(worked * (1 / self.pace.share - 1), _REST_SECONDS_MAX)
            self._rested_seconds += rest
            self._closing.wait(rest)

    def round(self) -> Iterator[None]:
        """One round of everything that is due, in steps; what is going on between them is the caller's."""
        now = self._clock.monotonic()
        if now >= self._retention_due:
            self._retention_due = now + self.pace.interval
            yield from self._rested(self._trim())
        yield from self._rested(self._drop())
        if now >= self._blocks_due:
            self._blocks_due = now + self.pace.interval
            yield from self._rested(self._keep_blocks())
        yield from self._rested(self._merge())
        yield from self._rested(self._compact())

    def run_until_idle(self) -> None:
        """Everything that is due by the clock, at once and without a rest: for tests and for tools."""
        self._retention_due = self._blocks_due = 0.0
        rests, self._rests = self._rests, False
        try:
            while sum(1 for _ in self.round()):
                self._blocks_due = 0.0
        finally:
            self._rests = rests

    # Retention.

    def _trim(self) -> Iterator[None]:
        for trim in expired(self._ledger, self._clock.now_us()):
            # A stream may be deleted between the decision and the deed; then there is nothing left to trim.
            with contextlib.suppress(StreamDeleted, UnknownStream):
                self._execute(trim)
                self.look_at((trim.stream, trim.shard))
                yield

    def look_at(self, key: ShardKey) -> None:
        """The start of this shard has moved."""
        self._trimmed.add(key)

    def _drop(self) -> Iterator[None]:
        streams = {stream.id: stream for stream in self._commits.streams()}
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
                self._execute(ForgetStream(stream.id))
                yield
            elif (stream.deleted_us or stream.id in self._erased) and self._has_undated(stream):
                # What never had a row, because it was written twice or too late, also has to go.
                self._execute(HurryBlocks(stream.id, self.pace.rewrite_us(self._clock.now_us())))
                yield

    def _drop_rows(self, stream: StreamRow | None, key: ShardKey) -> Iterator[None]:
        while self._has_rows_to_drop(stream, key):
            done = self._execute(DropEntries(*key, _DROP_ROWS, self.pace.rewrite_us(self._clock.now_us())))
            self._counts["rows_dropped"] += done.rows
            yield
            if done.rows < _DROP_ROWS:
                return

    def _has_rows_to_drop(self, stream: StreamRow | None, key: ShardKey) -> bool:
        if stream is None:
            return False
        row = self._commits.shard(key)
        before = row.next if stream.deleted_us else row.start
        return bool(before) and self._ledger.oldest_entries(*key, before, 1).rows > 0

    def _is_forgettable(self, stream: StreamRow) -> bool:
        rows = (self._commits.shard((stream.id, shard)) for shard in range(stream.shards))
        return not any(row.bytes for row in rows) and not self._ledger.dead_bytes(stream.id)

    def _has_missing(self, stream: StreamRow) -> bool:
        shards = range(0 if stream.deleted_us else stream.shards)
        return any(self._ledger.missing_records(stream.id, shard) for shard in shards)

    def _has_undated(self, stream: StreamRow) -> bool:
        """Whether something of a stream is dead in a block that nobody would ever touch for it."""
        dead = self._ledger.dead_bytes(stream.id)
        return any(row.id in dead and not (row.rewrite_us or row.dead_us) for row in self._ledger.list_blocks())

    # Merging.

    def _merge(self) -> Iterator[None]:
        for stream in self._commits.streams():
            if stream.deleted_us:
                continue
            for shard in range(stream.shards):
                with contextlib.suppress(StreamDeleted, UnknownStream, Refused, DataLoss):
                    yield from self._merge_shard(stream, shard)

    def _merge_shard(self, stream: StreamRow, shard: int) -> Iterator[None]:
        key = (stream.id, shard)
        row = self._commits.shard(key)
        settled = max(self._settled.get(key, 0), row.merged, row.start)
        noted = max(row.merged, row.start)
        looked = 0
        contents = self._mergeable(stream)
        while row.stable - settled >= RUN_ENTRIES:
            entries = self._ledger.entries_from(stream.id, shard, settled, RUN_ENTRIES)
            if not entries:
                return
            plan = plan_merge(entries, contents.target)
            if plan.entries:
                self._merge_run(stream, contents, plan.entries, plan.settled)
                noted = plan.settled
                looked = 0
                yield
            elif plan.settled <= settled:
                return
            looked += len(entries)
            settled = self._settled[key] = plan.settled
            if looked >= _STEP_ROWS and settled > noted:
                # So many large entries are not looked at again after a restart.
                self._execute(NoteUpkeep(stream.id, shard, merged=settled))
                noted, looked = settled, 0
                yield

    def _mergeable(self, stream: StreamRow) -> Contents:
        """The batches of a stream, those of older schemas as rows of a newer one where they are the same in it: then
        batches of producers that have not heard of it go together with those of others."""
        contents = Contents.of(stream, self._schema_of)
        if stream.schema_version < 2:
            return contents
        versions = dict.fromkeys(version.schema_id for version in reversed(self._ledger.load_versions(stream.id)))
        return contents._replace(versions=tuple(versions), promote=self._promote)

    def _merge_run(self, stream: StreamRow, contents: Contents, entries: Sequence[Entry], settled: int) -> None:
        try:
            groups = self._groups(stream, entries, contents.target)
            pieces = (records_of(group, contents) for group in groups)
            replacement = remade(entries, pieces, self._upshot(merged=settled))
        except (DataLoss, IncompatibleSchema, InvalidPayload, RecordTooLarge) as error:
            # Some rows are too large, or too far away in time, for a newer schema.
            is_mixed = len({entry.schema_id for entry in entries}) > 1
            if not isinstance(error, DataLoss) and not is_mixed:
                raise
            logger.warning(Event("entries that cannot be read, or not as one, are not merged", error=error))
            self._execute(NoteUpkeep(stream.id, entries[0].shard, merged=settled))
            return
        self._execute(replacement)
        self._counts["entries_merged"] += len(entries)

    def _groups(
        self, stream: StreamRow, entries: Sequence[Entry], target: Callable[[int], int] = int
    ) -> list[Sequence[FetchedBatch]]:
        """The batches of these entries, in groups that are stored anew each by itself."""
        batches = list(self._gently(self._reader.load(stream, entries)))
        # Looked up after the entries: a barrier that is set later stands behind them.
        return grouped(batches, barriers_of(self._ledger.load_generations(stream.id), entries[0].shard), target)

    def _upshot(self, *, merged: int = 0, compacted: int = 0, erases: bool = False) -> Upshot:
        now_us = self._clock.now_us()
        return Upshot(now_us if erases else self.pace.rewrite_us(now_us), merged, compacted, erases)

    # Compaction.

    def _compact(self) -> Iterator[None]:
        for stream in self._commits.streams():
            if stream.deleted_us or not stream.compacts:
                continue
            for shard in range(stream.shards):
                with contextlib.suppress(StreamDeleted, UnknownStream, Refused):
                    if self._should_compact(stream, shard):
                        yield from self._compact_shard(stream, shard)

    def _should_compact(self, stream: StreamRow, shard: int) -> bool:
        key = (stream.id, shard)
        row = self._commits.shard(key)
        now = self._clock.monotonic()
        begin = max(row.compacted, row.start)
        if begin >= row.stable:
            self._dirty_since.pop(key, None)
            oldest_us = self._oldest_tombstone_us.setdefault(key, self._clock.now_us())
            return row.start < row.stable and self._clock.now_us() > oldest_us + stream.tombstone_us
        waited = now - self._dirty_since.setdefault(key, now)
        clean_bytes = sum(self._ledger.oldest_entries(*key, begin, -1).blocks.values())
        return is_due(row.bytes - clean_bytes, clean_bytes, waited)

    def _compact_shard(self, stream: StreamRow, shard: int) -> Iterator[None]:
        key = (stream.id, shard)
        row = self._commits.shard(key)
        self._dirty_since.pop(key, None)
        contents = Contents.of(stream, self._schema_of)
        index = KeyIndex()
        index.end = max(row.compacted, row.start)
        for entries, groups in self._pieces(stream, shard, index.end, row.stable):
            for group in groups or ():
                index.learn(records_of(group, contents))
            # What cannot be read is passed over, or the shard would look as if it had not been compacted, for ever.
            index.end = entries[-1].end
            yield
            if index.is_full:
                break
        before_us = self._clock.now_us() - stream.tombstone_us
        oldest_us = _NEVER_US

        def kept(records: Records) -> np.ndarray:
            nonlocal oldest_us
            found = index.kept(records, before_us)
            left = records.times[found & tombstones(records)]
            oldest_us = min(oldest_us, int(left.min())) if len(left) else oldest_us
            return found

        for entries, groups in self._pieces(stream, shard, row.start, index.end):
            if groups is not None:
                self._counts["records_compacted"] += self._leave(entries, groups, contents, kept, self._upshot())
                yield
        self._execute(NoteUpkeep(stream.id, shard, compacted=index.end))
        self._oldest_tombstone_us[key] = oldest_us
        yield

    def _pieces(
        self, stream: StreamRow, shard: int, offset: int, stop: int
    ) -> Iterator[tuple[Sequence[Entry], Sequence[Sequence[FetchedBatch]] | None]]:
        """The entries of a shard with their batches in groups, from the one that holds `offset` to before `stop`, as
        many at a time as make one step. None where they cannot be read."""
        while offset < stop:
            found = self._ledger.entries_from(stream.id, shard, offset, _STEP_ROWS)
            entries = _one_step([entry for entry in found if entry.base < stop])
            if not entries:
                return
            try:
                yield entries, self._groups(stream, entries)
            except DataLoss as loss:
                if list(self._ledger.entries_from(stream.id, shard, offset, len(entries))) != list(entries):
                    continue  # they were moved meanwhile
                logger.warning(Event("entries that cannot be read are left as they are", error=loss))
                yield entries, None
            offset = entries[-1].end

    def _leave(
        self,
        entries: Sequence[Entry],
        groups: Sequence[Sequence[FetchedBatch]],
        contents: Contents,
        keep: Callable[[Records], np.ndarray],
        upshot: Upshot,
    ) -> int:
        """Store anew what is kept, if that is not all; how many records are gone."""
        masks = [keep(records_of(group, contents)) for group in groups]
        gone = sum(int(len(mask) - mask.sum()) for mask in masks)
        # Many entries of which little was left before are put together on the occasion.
        if gone or (len(entries) > _ROWS_PER_STEP_MAX and not upshot.erases):
            pieces = (records_of(group, contents).take(mask) for group, mask in zip(groups, masks, strict=True))
            self._execute(remade(entries, pieces, upshot))
        return gone

    def erase(self, stream: StreamRow, key: bytes) -> int:
        """Take every record of one key away that is there now; how many. Then no reader can see one any more."""
        erased = 0
        contents = Contents.of(stream, self._schema_of)
        upshot = self._upshot(erases=True)
        for shard in range(stream.shards):
            row = self._commits.shard((stream.id, shard))
            # What was trimmed a moment ago may be of this key too.
            while self._has_rows_to_drop(stream, (stream.id, shard)):
                self._execute(DropEntries(stream.id, shard, _DROP_ROWS, self._clock.now_us()))
            offset, refused = row.start, _Refusals(stream.name, shard)
            while offset < row.stable:
                for entries, groups in self._pieces(stream, shard, offset, row.stable):
                    if groups is None:
                        raise DataLoss(
                            f"stream {stream.name!r} shard {shard}: records {entries[0].base} to {entries[-1].end - 1} "
                            "cannot be read, so it is not known whether they are of this key; run mainstem doctor",
                            stream=stream.name,
                            shard=shard,
                            first=entries[0].base,
                            last=entries[-1].end - 1,
                            reason="damaged",
                        )
                    try:
                        erased += self._leave(entries, groups, contents, lambda r: without_key(r, key), upshot)
                    except Refused as error:
                        if self._commits.has_failed():
                            raise
                        refused.note(entries, error)
                        break  # the entries were merged or compacted meanwhile: look at them as they are now
                    offset = entries[-1].end
                else:
                    break
        # Copies from before a merge, and what was compacted away before, are in the same hurry.
        self._execute(HurryBlocks(stream.id, self._clock.now_us()))
        self._erased.add(stream.id)
        self._counts["records_erased"] += erased
        self._blocks_due = 0.0
        return erased

    # Blocks.

    def _keep_blocks(self) -> Iterator[None]:
        now_us = self._clock.now_us()
        rows = self._ledger.list_blocks()
        # On a full disk nobody is waited for: who finds a file gone looks the entry up again.
        is_urgent = self._commits.is_disk_full()
        dead = [row for row in rows if row.dead_us and (is_urgent or self.pace.is_freeable(row, now_us))]
        if dead:
            yield from self._free(dead)
        if any(row.state == "open" and self._is_to_roll(row, now_us, is_urgent=is_urgent) for row in rows):
            self._commits.request_roll()
            self._commits.commit_nothing()
            # Sealed, it can be rewritten or freed.
            self._blocks_due = 0.0
            yield
        mostly_dead = [row for row in rows if _is_to_rewrite(row, now_us) and row.id not in self._stuck]
        if len(mostly_dead) > _REWRITTEN_AT_ONCE:
            self._blocks_due = 0.0
        if mostly_dead:
            # Those that are overdue first, then those that give back most for least.
            mostly_dead.sort(key=lambda row: (row.rewrite_us or _NEVER_US, row.live_bytes))
            yield from self._rewrite({row.id for row in mostly_dead[:_REWRITTEN_AT_ONCE]})

    def _is_to_roll(self, row: BlockRow, now_us: int, *, is_urgent: bool) -> bool:
        """Whether the block that grows should end, because what is dead in it is overdue, or most of it."""
        if row.rewrite_us and row.rewrite_us <= now_us:
            return True
        try:
            size = self._blocks.size(row.id)
        except BlockMissing:
            return False
        return 2 * row.live_bytes < size and size >= (_ROLLED_BYTES_URGENT if is_urgent else _ROLLED_BYTES)

    def _free(self, dead: Sequence[BlockRow]) -> Iterator[None]:
        """Take the files away of blocks in which nothing was alive for a while."""
        needed_from = self._snapshots.needed_from()
        if any(row.id >= needed_from for row in dead):
            self._commits.request_snapshot()
            self._commits.commit_nothing()
        # What a row says is not taken on trust where bytes would be lost for good.
        alive = self._ledger.blocks_in_use([row.id for row in dead])
        freed: list[int] = []
        for row in dead:
            if row.id in alive:
                logger.error(
                    Event("a block is said to hold nothing, yet entries point into it; it is kept", block=row.id)
                )
                self._counts["upkeep_errors"] += 1
            elif row.id < needed_from:
                self._blocks.remove(row.id)
                self._execute(ForgetBlock(row.id))
                self._counts["blocks_freed"] += 1
                self._counts["bytes_freed"] += row.bytes
                freed.append(row.bytes)
                yield
        if freed:
            logger.info(Event("blocks freed", blocks=len(freed), bytes=sum(freed)))

    def _rewrite(self, blocks: set[int]) -> Iterator[None]:
        """Move what is alive in these blocks elsewhere."""
        for stream in self._commits.streams():
            if stream.deleted_us:
                continue
            for entries in self._pages_in(stream, sorted(blocks)):
                for _, shard in groupby(entries, lambda entry: entry.shard):
                    for run in _runs(list(shard)):
                        with contextlib.suppress(StreamDeleted, UnknownStream, Refused):
                            self._move(stream, run)
                            yield

    def _pages_in(self, stream: StreamRow, blocks: Sequence[int]) -> Iterator[Sequence[Entry]]:
        """The entries of a stream that point into these blocks, so many at a time: there may be millions of tiny
        ones."""
        after = (-1, 0)
        while entries := self._ledger.entries_in(stream.id, blocks, after, _PAGE_ROWS):
            yield entries
            after = (entries[-1].shard, entries[-1].base)

    def _move(self, stream: StreamRow, entries: Sequence[Entry]) -> None:
        try:
            batches = list(self._reader.load(stream, entries))
        except DataLoss as loss:
            self._stuck.add(entries[0].block)
            self._counts["upkeep_errors"] += 1
            logger.error(Event("a block cannot be freed: what is alive in it cannot be read", error=loss))
            return
        self._execute(moved(entries, batches, self._upshot()))
        self._counts["bytes_rewritten"] += sum(entry.length for entry in entries)

    def _execute(self, item: Command | Replacement) -> Done:
        """Commit, waiting while others have filled the log."""
        while True:
            try:
                return self._commits.execute(item)
            except Busy:
                if self._closing.wait(_BUSY_SECONDS):
                    raise


class _Refusals:
    """How often the same entries of a shard could not be replaced. Whoever replaced them first has changed them; if
    nobody has, they never can be: a batch from an earlier version may reach over a barrier."""

    def __init__(self, stream: str, shard: int) -> None:
        self._stream = stream
        self._shard = shard
        self._entries: list[Entry] = []
        self._count = 0

    def note(self, entries: Sequence[Entry], error: Refused) -> None:
        """Refused once more; raises it if that was too often."""
        self._count = self._count + 1 if self._entries == list(entries) else 1
        self._entries = list(entries)
        if self._count >= _REFUSED_MAX:
            raise Refused(
                f"stream {self._stream!r} shard {self._shard}: records {entries[0].base} to {entries[-1].end - 1} "
                f"cannot be stored anew, so what is to be erased of them is still there: {error}"
            ) from error


def _is_to_rewrite(row: BlockRow, now_us: int) -> bool:
    if row.state != "sealed" or not row.live_bytes:
        return False
    return 2 * row.live_bytes < row.bytes or bool(row.rewrite_us and row.rewrite_us <= now_us)


def _one_step(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The first of these entries, as many as are stored anew in one flush; at least one."""
    size = 0
    for index, entry in enumerate(entries):
        size += entry.length
        if size > _STEP_BYTES:
            return entries[: max(1, index)]
    return entries


def _runs(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Entries of one shard grouped so that those of a group follow each other and make one step."""
    begin = 0
    for index in range(1, len(entries) + 1):
        is_last = index == len(entries)
        if is_last or entries[index].base != entries[index - 1].end or entries[index].block != entries[begin].block:
            rest = entries[begin:index]
            while rest:
                step = _one_step(rest)
                yield step
                rest = rest[len(step) :]
            begin = index
