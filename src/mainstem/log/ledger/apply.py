"""The one deterministic function that turns a flush into ledger rows.

Used for every commit and for every replay after a crash, against any backend: same flushes, same rows. It recognises
repeated batches, gives offsets, and refuses what breaks a rule; it does no I/O but loading rows it needs.

What one flush does to one shard becomes one entry, as long as the accepted frames lie next to each other; a refused
or repeated frame in between splits it, because an entry covers a single run of bytes. A batch with statistics is an
entry of its own, which has their summary.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Any

from mainstem.core.batch import BatchHeader
from mainstem.core.checksum import crc32c
from mainstem.core.errors import (
    InvalidPayload,
    InvalidRequest,
    MainstemError,
    OutOfSequence,
    ProducerFenced,
    Refused,
    StaleGeneration,
    StreamDeleted,
    StreamExists,
    UnknownProducer,
    UnknownStream,
)
from mainstem.core.limits import (
    BARRIERS_PER_STREAM_MAX,
    PRODUCER_RECENT_MAX,
    SCHEMA_VERSIONS_MAX,
    SHARDS_PER_STREAM_MAX,
    STREAMS_MAX,
)
from mainstem.core.statistics import summary
from mainstem.log.flush import (
    AlterStream,
    Appended,
    BeginEpoch,
    Command,
    CreateStream,
    DeleteStream,
    DescribeSchema,
    Done,
    DropEntries,
    Flush,
    ForgetBlock,
    ForgetProducers,
    ForgetStream,
    HurryBlocks,
    NoteUpkeep,
    OpenBlock,
    Outcome,
    Rejected,
    ReplaceEntries,
    SealBlock,
    SetSchema,
    TrimShard,
    WrittenBatch,
    WrittenItem,
    WrittenReplacement,
)
from mainstem.log.ledger.base import (
    AppliedPlace,
    BlockRow,
    Changes,
    Entry,
    GenerationRow,
    Ledger,
    ProducerKey,
    ProducerRow,
    SchemaRow,
    ShardKey,
    ShardRow,
    StreamRow,
    VersionRow,
    barriers_of,
)

# Rows of producers kept in memory; the rest is in the ledger.
_PRODUCERS_CACHED_MAX = 65_536
_NEVER_WRITTEN = ShardRow()
# Streams that are created after a restore get ids from (epoch << bits) on.
EPOCH_STREAM_BITS = 31
# And schemas; their ids are numbers of 32 bits.
EPOCH_SCHEMA_BITS = 20
_SCHEMA_ID_MAX = (1 << 32) - 1


class Applier:
    """Applies flushes to one ledger, keeping the rows it touches often in memory. One thread.

    The caches are only ever a copy of what the ledger has stored: a flush that fails to store leaves the applier
    unusable (`store` raised), and the process starts again from the blocks.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._streams: dict[int, StreamRow] = {row.id: row for row in ledger.list_streams()}
        self._names: dict[str, int] = {row.name: row.id for row in self._streams.values() if not row.deleted_us}
        # Every shard that was ever written. Other threads read it; only the applying thread changes it.
        self._shards: dict[ShardKey, ShardRow] = dict(ledger.list_shards())
        self._producers: OrderedDict[ProducerKey, ProducerRow] = OrderedDict()
        # How often a shard lost records between others since this applier began.
        self._thinned: dict[ShardKey, int] = {}
        # The block that was touched last: nearly always the one that grows.
        self._block: BlockRow | None = None
        self._stream_id_max = ledger.stream_id_max()
        self._schema_id_max = ledger.schema_id_max()
        # Of streams whose number of shards has changed. Other threads read it.
        self._generations: dict[int, tuple[GenerationRow, ...]] = {
            row.id: tuple(ledger.load_generations(row.id)) for row in self._streams.values() if row.generation
        }
        # Of streams that got a batch of another schema than their newest: all that they ever had.
        self._schemas_of: dict[int, frozenset[int]] = {}
        self.applied = ledger.applied().number

    def apply(self, flush: Flush) -> tuple[Changes, list[Outcome]]:
        """Store the flush's changes and say what became of each item."""
        assert flush.number == self.applied + 1, f"flush {flush.number} after {self.applied}"
        step = _Step(self, flush)
        outcomes = [step.take(item) for item in flush.items]
        changes = step.finish()
        self._ledger.store(changes)
        self._remember(changes)
        return changes, outcomes

    # Rows as they stand after the last flush.

    def stream(self, stream: int) -> StreamRow | None:
        return self._streams.get(stream)

    def stream_named(self, name: str) -> StreamRow | None:
        stream = self._names.get(name)
        return None if stream is None else self._streams[stream]

    def streams(self) -> list[StreamRow]:
        return list(self._streams.values())

    def shard(self, key: ShardKey) -> ShardRow:
        return self._shards.get(key, _NEVER_WRITTEN)

    def times_thinned(self, key: ShardKey) -> int:
        """Changes whenever other offsets of a shard have no record than before."""
        return self._thinned.get(key, 0)

    def producer(self, key: ProducerKey) -> ProducerRow | None:
        row = self._producers.get(key)
        if row is None:
            return self._ledger.load_producer(key)
        return row

    def generations(self, stream: int) -> tuple[GenerationRow, ...]:
        return self._generations.get(stream, ())

    def schemas_of(self, stream: int) -> frozenset[int]:
        """The ids of all schemas that the stream ever had."""
        found = self._schemas_of.get(stream)
        if found is None:
            found = frozenset(version.schema_id for version in self._ledger.load_versions(stream))
            self._schemas_of[stream] = found
        return found

    @property
    def schema_id_max(self) -> int:
        return self._schema_id_max

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def shards_of(self, stream: StreamRow) -> list[ShardRow]:
        return [self.shard((stream.id, shard)) for shard in range(stream.shards)]

    def written_shards(self) -> dict[ShardKey, ShardRow]:
        """Every shard that was ever written."""
        return self._shards

    def block(self, block: int) -> BlockRow | None:
        last = self._block
        return last if last is not None and last.id == block else self._ledger.load_block(block)

    @property
    def stream_count(self) -> int:
        return len(self._names)

    @property
    def stream_id_max(self) -> int:
        return self._stream_id_max

    def _remember(self, changes: Changes) -> None:
        self.applied = changes.applied.number
        self._stream_id_max = max(self._stream_id_max, changes.stream_id_max)
        self._schema_id_max = max(self._schema_id_max, *changes.schemas, changes.schema_id_max)
        for version in changes.versions:
            self._schemas_of.pop(version.stream, None)
        # Before the shards: whoever sees a record behind a barrier can see the barrier.
        for generation in changes.generations:
            self._generations[generation.stream] = (*self.generations(generation.stream), generation)
        self._remember_streams(changes)
        self._shards.update(changes.shards)
        for key in changes.thinned:
            self._thinned[key] = self._thinned.get(key, 0) + 1
        for stream in changes.forgotten_streams:
            row = self._streams.pop(stream)
            self._generations.pop(stream, None)
            self._schemas_of.pop(stream, None)
            for shard in range(row.shards):
                self._shards.pop((stream, shard), None)
                self._thinned.pop((stream, shard), None)
        for block in changes.blocks.values():
            self._block = block
        if self._block is not None and self._block.id in changes.forgotten_blocks:
            self._block = None
        if changes.forget_producers_before_us:
            self._producers.clear()
        producers = self._producers
        for identity, producer in changes.producers.items():
            producers[identity] = producer
            producers.move_to_end(identity)
        while len(producers) > _PRODUCERS_CACHED_MAX:
            producers.popitem(last=False)

    def _remember_streams(self, changes: Changes) -> None:
        for row in changes.streams.values():
            self._streams[row.id] = row
            self._stream_id_max = max(self._stream_id_max, row.id)
            if not row.deleted_us:
                self._names[row.name] = row.id
            elif self._names.get(row.name) == row.id:
                del self._names[row.name]


class _Run:
    """Batches of one shard that lie next to each other in the flush: one entry and one row of the shard in the making.

    Kept as plain numbers, because most flushes are runs of tiny batches.
    """

    __slots__ = ("base", "bytes", "entry", "length", "next", "position", "row", "stream", "time_high")

    def __init__(self, stream: StreamRow, row: ShardRow) -> None:
        self.stream = stream
        self.row = row
        self.next = row.next
        self.time_high = row.time_high
        self.bytes = row.bytes
        # Of the entry that grows: the header of its first batch, its first offset, and its bytes so far.
        self.entry: BatchHeader | None = None
        self.base = self.position = self.length = 0

    def shard_row(self) -> ShardRow:
        row = self.row
        return ShardRow(row.start, self.next, self.next, self.time_high, self.bytes, row.merged, row.compacted)


class _Step:
    """One flush being applied: reads through to the applier, gathers changes."""

    def __init__(self, base: Applier, flush: Flush) -> None:
        self._base = base
        self._flush = flush
        self._changes = Changes(AppliedPlace(flush.number, flush.block, flush.commit_position))
        self._names: dict[str, int | None] = {}
        self._live: dict[int, int] = {}
        # Offsets whose rows in the ledger are not what they will be after this flush: (first, stop) for each shard.
        self._rearranged: dict[ShardKey, list[tuple[int, int]]] = {}
        self._run: _Run | None = None
        self._run_key: ShardKey | None = None

    def take(self, item: WrittenItem) -> Outcome:
        try:
            if isinstance(item, WrittenBatch):
                appended = self._append(item)
                if appended.duplicate:
                    self._waste((item,))
                return appended
            self._close_run()
            if isinstance(item, WrittenReplacement):
                return self._replace(item.command, item.frames)
            return self._command(item)
        except MainstemError as error:
            if isinstance(item, WrittenBatch):
                self._waste((item,))
            elif isinstance(item, WrittenReplacement):
                self._waste(item.frames)
                if item.frames and isinstance(error, Refused):
                    # What overtook it may have been an erasure: then here is a copy of what was erased.
                    self._hurry_block(self._flush.block, self._flush.time_us)
            return Rejected(error)

    def finish(self) -> Changes:
        self._close_run()
        for block, delta in self._live.items():
            row = self._block(block)
            self._changes.blocks[block] = row._replace(live_bytes=row.live_bytes + delta)
        for block, row in self._changes.blocks.items():
            if row.state == "sealed" and not row.live_bytes and not row.dead_us:
                self._changes.blocks[block] = row._replace(dead_us=self._flush.time_us)
        return self._changes

    # Batches.

    def _append(self, batch: WrittenBatch) -> Appended:
        header = batch.header
        key = (header.stream, header.shard)
        run = self._run if self._run_key == key else self._begin_run(key)
        assert run is not None
        producer: ProducerRow | None = None
        if header.producer:
            identity = (header.producer, header.stream, header.shard)
            producer = self._changes.producers.get(identity) or self._base.producer(identity)
            original = _original(header, producer)
            if original is not None:
                return Appended(original, duplicate=True)
        if header.generation != run.stream.generation:
            raise StaleGeneration(
                f"stream {run.stream.name!r} is at generation {run.stream.generation}, the batch was made for "
                f"{header.generation}; look the stream up again and resend",
                generation=run.stream.generation,
                shards=run.stream.shards,
            )
        if header.schema_id and header.schema_id != run.stream.schema_id:
            self._require_schema(run.stream, header.schema_id)
        base = run.next
        if header.producer:
            self._changes.producers[identity] = _remembering(producer, header, base, self._flush.time_us)
        entry = run.entry
        if (
            entry is None
            or run.position + run.length != batch.position
            or entry.schema_id != header.schema_id
            or entry.transaction != header.transaction
            or entry.statistics
            or header.statistics
        ):
            self._close_entry(run)
            run.entry, run.base, run.position, run.length = header, base, batch.position, 0
        run.length += batch.length
        run.bytes += batch.length
        run.next = base + header.count
        if header.time_high > run.time_high:
            run.time_high = header.time_high
        return Appended(base)

    def _require_schema(self, stream: StreamRow, schema: int) -> None:
        """An older version's: rows of it are welcome for ever."""
        new = (version.schema_id for version in self._changes.versions if version.stream == stream.id)
        if schema not in self._base.schemas_of(stream.id) and schema not in new:
            raise InvalidPayload(f"stream {stream.name!r} never had schema {schema}; look the stream up again")

    def _begin_run(self, key: ShardKey) -> _Run:
        self._close_run()
        stream = self._open_stream(key[0])
        if key[1] >= stream.shards:
            raise InvalidRequest(f"stream {stream.name!r} has {stream.shards} shards; there is no shard {key[1]}")
        self._run_key, self._run = key, _Run(stream, self._shard(key))
        return self._run

    def _close_run(self) -> None:
        run, key = self._run, self._run_key
        if run is None or key is None:
            return
        self._close_entry(run)
        if run.next > run.row.next:
            self._changes.shards[key] = run.shard_row()
        self._run = self._run_key = None

    def _close_entry(self, run: _Run) -> None:
        first = run.entry
        if first is None:
            return
        block = self._flush.block
        self._live[block] = self._live.get(block, 0) + run.length
        span = run.next - run.base
        self._changes.entries.append(
            Entry(
                first.stream,
                first.shard,
                run.base,
                span,
                span,
                block,
                run.position,
                run.length,
                run.time_high,
                first.schema_id,
                first.transaction,
                summary(first.statistics),
            )
        )
        run.entry = None

    # Commands.

    def _command(self, command: Command) -> Outcome:
        return _CARRY_OUT[type(command)](self, command)

    def _create(self, command: CreateStream) -> Outcome:
        if self._named(command.name) is not None:
            raise StreamExists(f"stream {command.name!r} exists already")
        if self._base.stream_count + len(self._changes.streams) >= STREAMS_MAX:
            raise InvalidRequest(f"the log has {STREAMS_MAX} streams, which is the limit; delete some first")
        if not 1 <= command.shards <= SHARDS_PER_STREAM_MAX:
            raise InvalidRequest(f"a stream has 1 to {SHARDS_PER_STREAM_MAX} shards, not {command.shards}")
        stream = max(self._base.stream_id_max, *self._changes.streams, 0) + 1
        schema = self._schema_id(command.schema, command.fingerprint) if command.schema else 0
        self._changes.streams[stream] = StreamRow(
            id=stream,
            uuid=command.uuid,
            name=command.name,
            shards=command.shards,
            hash=command.hash,
            generation=0,
            schema_id=schema,
            retention_us=command.retention_us,
            created_us=command.created_us,
            deleted_us=0,
            retention_bytes=command.retention_bytes,
            cleanup=command.cleanup,
            tombstone_us=command.tombstone_us,
            schema_version=1 if schema else 0,
            key=command.key,
            index=command.index,
            compatibility=command.compatibility,
        )
        if schema:
            self._changes.versions.append(VersionRow(stream, 1, schema, command.created_us))
        self._names[command.name] = stream
        return Done(stream)

    def _schema_id(self, arrow: bytes, fingerprint: bytes) -> int:
        """The id of a schema; a new one if it was never seen."""
        for row in self._changes.schemas.values():
            if row.fingerprint == fingerprint:
                return row.id
        found = self._base.ledger.schema_with(fingerprint)
        if found is None:
            found = max(self._base.schema_id_max, *self._changes.schemas, 0) + 1
            if found > _SCHEMA_ID_MAX:
                raise InvalidRequest(f"the log has had {_SCHEMA_ID_MAX} schemas, which is the limit")
            self._changes.schemas[found] = SchemaRow(found, arrow, fingerprint)
        return found

    def _set_schema(self, command: SetSchema) -> Outcome:
        row = self._open_stream(command.stream)
        if command.version != row.schema_version + 1:
            raise Refused(
                f"stream {row.name!r} has version {row.schema_version} of its schema by now; check against it"
            )
        if command.version > SCHEMA_VERSIONS_MAX:
            raise InvalidRequest(f"stream {row.name!r} has {SCHEMA_VERSIONS_MAX} versions of its schema, the limit")
        schema = self._schema_id(command.schema, command.fingerprint)
        self._changes.versions.append(VersionRow(row.id, command.version, schema, command.created_us))
        changed = row._replace(schema_id=schema, schema_version=command.version)
        given = {
            name: value for name in ("compatibility", "key", "index") if (value := getattr(command, name)) is not None
        }
        self._changes.streams[row.id] = changed._replace(**given)
        return Done(row.id)

    def _describe_schema(self, command: DescribeSchema) -> Outcome:
        return Done()

    def _alter(self, command: AlterStream) -> Outcome:
        row = self._open_stream(command.stream)
        names = ("retention_us", "retention_bytes", "cleanup", "tombstone_us", "compatibility")
        given = {name: value for name in names if (value := getattr(command, name)) is not None}
        changed = row._replace(**given)
        is_other = command.shards is not None and command.shards != row.shards
        if changed.compacts and (is_other or row.generation):
            # A tombstone in a new shard would go, and leave an older record of its key in another one.
            raise InvalidRequest(
                f"stream {row.name!r}: a compacted stream keeps the number of shards that it began with, because every "
                "shard is compacted by itself; write to a new stream"
            )
        if command.shards is not None and is_other:
            changed = self._reshard(changed, command.shards)
        self._changes.streams[row.id] = changed
        return Done(row.id)

    def _reshard(self, row: StreamRow, shards: int) -> StreamRow:
        if not row.shards < shards <= SHARDS_PER_STREAM_MAX:
            raise InvalidRequest(
                f"stream {row.name!r} has {row.shards} shards; it can get more, up to {SHARDS_PER_STREAM_MAX}, but "
                f"not {shards}"
            )
        before = [*self._base.generations(row.id), *self._changes.generations]
        barriers = sum(len(generation.barriers) for generation in before if generation.stream == row.id) + row.shards
        if barriers > BARRIERS_PER_STREAM_MAX:
            raise InvalidRequest(
                f"the number of shards of stream {row.name!r} has changed too often: readers would have "
                f"{barriers} barriers to keep, and {BARRIERS_PER_STREAM_MAX} is the limit; write to a new stream"
            )
        ends = tuple(self._shard((row.id, shard)).next for shard in range(row.shards))
        self._changes.generations.append(GenerationRow(row.id, row.generation + 1, shards, ends))
        return row._replace(shards=shards, generation=row.generation + 1)

    def _delete(self, command: DeleteStream) -> Outcome:
        row = self._open_stream(command.stream)
        self._changes.streams[row.id] = row._replace(deleted_us=command.deleted_us)
        self._names[row.name] = None
        return Done(row.id)

    def _trim(self, command: TrimShard) -> Outcome:
        self._open_stream(command.stream)
        key = (command.stream, command.shard)
        row = self._shard(key)
        start = max(row.start, min(command.before, row.stable))
        self._changes.shards[key] = row._replace(start=start)
        return Done(command.stream)

    def _open_block(self, command: OpenBlock) -> Outcome:
        row = BlockRow(command.block, command.writer_epoch, "open", 0, 0, command.created_us)
        self._changes.blocks[command.block] = row
        return Done()

    def _seal_block(self, command: SealBlock) -> Outcome:
        block = self._changes.blocks.get(command.block) or self._base.block(command.block)
        if block is None:
            # Its writer ended before a flush said that it is there: it holds nothing, and can be freed.
            block = BlockRow(command.block, 0, "open", 0, 0, self._flush.time_us)
        self._changes.blocks[block.id] = block._replace(state="sealed", bytes=command.bytes)
        return Done()

    def _forget_producers(self, command: ForgetProducers) -> Outcome:
        self._changes.forget_producers_before_us = command.before_us
        self._changes.forget_producers_ids = (command.first, command.last)
        return Done()

    # Upkeep.

    def _note_upkeep(self, command: NoteUpkeep) -> Outcome:
        self._open_stream(command.stream)
        self._note(command.stream, command.shard, command.merged, command.compacted)
        return Done(command.stream)

    def _drop(self, command: DropEntries) -> Outcome:
        stream = self._changes.streams.get(command.stream) or self._base.stream(command.stream)
        if stream is None:
            return Done()
        key = (command.stream, command.shard)
        row = self._shard(key)
        before = row.next if stream.deleted_us else row.start
        oldest = self._base.ledger.oldest_entries(*key, before, command.limit)
        if not oldest.rows:
            return Done(stream.id)
        # What was written twice has no rows; the second copy goes when the first does.
        for block in self._base.ledger.dead_bytes(stream.id):
            if not self._block(block).rewrite_us:
                self._hurry_block(block, command.rewrite_us)
        self._rearrange(key, 0, oldest.end)
        self._changes.dropped.append((*key, 0, oldest.end))
        for block, size in oldest.blocks.items():
            self._bury(stream.id, block, size, command.rewrite_us)
        self._changes.shards[key] = row._replace(bytes=row.bytes - sum(oldest.blocks.values()))
        return Done(stream.id, oldest.rows)

    def _replace(self, command: ReplaceEntries, frames: Sequence[WrittenBatch]) -> Outcome:
        self._open_stream(command.stream)
        key = (command.stream, command.shard)
        self._rearrange(key, command.base, command.end)
        found = self._base.ledger.entries_from(*key, command.base, command.rows)
        if (
            not found
            or fingerprint(found) != command.fingerprint
            or (found[0].base, found[-1].end) != (command.base, command.end)
            or sum(span for span, _ in command.entries) != command.end - command.base
        ):
            raise Refused("these entries were replaced by others meanwhile")
        # Before anything is changed: what is refused leaves everything as it is.
        made = _replacing(command, found, frames, self._flush.block)
        self._check_barriers(command, frames)
        self._changes.dropped.append((*key, command.base, command.end))
        for old in found:
            self._bury(command.stream, old.block, old.length, command.rewrite_us)
        self._changes.entries += made
        if sum(entry.count for entry in made) != sum(old.count for old in found):
            self._changes.thinned.add(key)
        added = sum(entry.length for entry in made)
        if added:
            self._live[self._flush.block] = self._live.get(self._flush.block, 0) + added
        row = self._shard(key)
        self._changes.shards[key] = row._replace(bytes=row.bytes + added - sum(old.length for old in found))
        self._note(*key, command.merged, command.compacted)
        return Done(command.stream, len(found))

    def _check_barriers(self, command: ReplaceEntries, frames: Sequence[WrittenBatch]) -> None:
        """Readers wait with a batch that reaches over a barrier: what it had from before that would come too late."""
        # One of this flush stands behind everything that can be replaced.
        barriers = barriers_of(self._base.generations(command.stream), command.shard)
        if not barriers:
            return
        base, rest = command.base, iter(frames)
        for span, count in command.entries:
            begin = base
            for frame in islice(rest, count):
                end = begin + (frame.header.span or frame.header.count)
                if any(begin < barrier < end for barrier in barriers):
                    raise Refused(f"a new batch reaches from {begin} to {end - 1}, over a barrier")
                begin = end
            base += span

    def _rearrange(self, key: ShardKey, first: int, stop: int) -> None:
        changed = self._rearranged.setdefault(key, [])
        if any(first < other_stop and other_first < stop for other_first, other_stop in changed):
            raise Refused("these rows change already in this flush; try again")
        changed.append((first, stop))

    def _bury(self, stream: int, block: int, size: int, rewrite_us: int) -> None:
        """Nothing points to these bytes any more."""
        if not size:
            return
        self._live[block] = self._live.get(block, 0) - size
        dead = self._changes.dead
        dead[stream, block] = dead.get((stream, block), 0) + size
        if rewrite_us:
            self._hurry_block(block, rewrite_us)

    def _waste(self, frames: Sequence[WrittenBatch]) -> None:
        """These are in the block, and nothing will ever point to them."""
        dead = self._changes.dead
        for frame in frames:
            grave = (frame.header.stream, self._flush.block)
            dead[grave] = dead.get(grave, 0) + frame.length

    def _hurry_block(self, block: int, rewrite_us: int) -> None:
        row = self._block(block)
        if not row.rewrite_us or rewrite_us < row.rewrite_us:
            self._changes.blocks[block] = row._replace(rewrite_us=rewrite_us)

    def _note(self, stream: int, shard: int, merged: int, compacted: int) -> None:
        row = self._shard((stream, shard))
        merged, compacted = max(row.merged, merged), max(row.compacted, compacted)
        self._changes.shards[stream, shard] = row._replace(merged=merged, compacted=compacted)

    def _forget_block(self, command: ForgetBlock) -> Outcome:
        row = self._base.block(command.block)
        if row is None:
            return Done()
        if not row.dead_us:
            raise Refused(f"block {command.block} is in use")
        self._changes.forgotten_blocks.append(command.block)
        return Done()

    def _hurry(self, command: HurryBlocks) -> Outcome:
        for block in self._base.ledger.dead_bytes(command.stream):
            self._hurry_block(block, command.rewrite_us)
        return Done(command.stream)

    def _forget_stream(self, command: ForgetStream) -> Outcome:
        row = self._base.stream(command.stream)
        if row is None:
            return Done()
        if not row.deleted_us or any(shard.bytes for shard in self._base.shards_of(row)):
            raise Refused(f"stream {command.stream} is in use")
        self._changes.forgotten_streams.append(command.stream)
        self._changes.stream_id_max = max(self._base.stream_id_max, *self._changes.streams, 0)
        return Done(command.stream)

    def _begin_epoch(self, command: BeginEpoch) -> Outcome:
        before = self._base.ledger.epoch()
        if command.epoch != before + 1:
            raise Refused(f"the ledger is of epoch {before}; the next is not {command.epoch}")
        self._changes.epoch = command.epoch
        # What was created after the backup is not in it; producers may still hold the ids, which must stay nobody's.
        self._changes.stream_id_max = max(self._base.stream_id_max, command.epoch << EPOCH_STREAM_BITS)
        self._changes.schema_id_max = max(
            self._base.schema_id_max, min(command.epoch << EPOCH_SCHEMA_BITS, _SCHEMA_ID_MAX >> 1)
        )
        self._changes.epoch_ends = {key: row.next for key, row in self._base.written_shards().items()}
        return Done()

    # Rows, through the changes of this flush.

    def _open_stream(self, stream: int) -> StreamRow:
        row = self._changes.streams.get(stream) or self._base.stream(stream)
        if row is None:
            raise UnknownStream(f"no stream has id {stream}; look it up by name again")
        if row.deleted_us:
            raise StreamDeleted(f"stream {row.name!r} was deleted")
        return row

    def _named(self, name: str) -> int | None:
        if name in self._names:
            return self._names[name]
        row = self._base.stream_named(name)
        return None if row is None else row.id

    def _shard(self, key: ShardKey) -> ShardRow:
        return self._changes.shards.get(key) or self._base.shard(key)

    def _block(self, block: int) -> BlockRow:
        row = self._changes.blocks.get(block) or self._base.block(block)
        assert row is not None, f"block {block} was never opened"
        return row


# What carries out which command; one that replaces entries comes with its frames.
_CARRY_OUT: dict[type, Callable[[_Step, Any], Outcome]] = {
    CreateStream: _Step._create,
    AlterStream: _Step._alter,
    SetSchema: _Step._set_schema,
    DescribeSchema: _Step._describe_schema,
    DeleteStream: _Step._delete,
    TrimShard: _Step._trim,
    OpenBlock: _Step._open_block,
    SealBlock: _Step._seal_block,
    ForgetProducers: _Step._forget_producers,
    DropEntries: _Step._drop,
    NoteUpkeep: _Step._note_upkeep,
    HurryBlocks: _Step._hurry,
    ForgetBlock: _Step._forget_block,
    ForgetStream: _Step._forget_stream,
    BeginEpoch: _Step._begin_epoch,
}

_ROW_PLACE = struct.Struct("<qqq")


def fingerprint(entries: Sequence[Entry]) -> int:
    """Which rows these are: where they begin and where their bytes are."""
    return crc32c(b"".join(_ROW_PLACE.pack(entry.base, entry.block, entry.position) for entry in entries))


def _replacing(
    command: ReplaceEntries, found: Sequence[Entry], frames: Sequence[WrittenBatch], block: int
) -> list[Entry]:
    """The new rows. The highest time up to each is that of the old row in which it ends."""
    made: list[Entry] = []
    base, taken, old = command.base, 0, 0
    for span, count in command.entries:
        while found[old].end < base + span:
            old += 1
        own = frames[taken : taken + count]
        taken += count
        covered = sum(frame.header.span or frame.header.count for frame in own)
        if own and (covered != span or any(a.position + a.length != b.position for a, b in pairwise(own))):
            raise Refused("the new entries do not cover the old ones")
        made.append(
            Entry(
                command.stream,
                command.shard,
                base,
                span,
                sum(frame.header.count for frame in own),
                block if own else 0,
                own[0].position if own else 0,
                sum(frame.length for frame in own),
                found[old].time_high,
                own[0].header.schema_id if own else 0,
                own[0].header.transaction if own else 0,
                summary(own[0].header.statistics) if len(own) == 1 else b"",
            )
        )
        base += span
    return made


def _original(header: BatchHeader, row: ProducerRow | None) -> int | None:
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


def _remembering(row: ProducerRow | None, header: BatchHeader, base: int, now_us: int) -> ProducerRow:
    """The producer's row with one batch more."""
    recent: tuple[tuple[int, int], ...] = ()
    if row is not None and row.epoch == header.producer_epoch:
        recent = row.recent[-(PRODUCER_RECENT_MAX - 1) :]
    return ProducerRow(header.producer_epoch, (*recent, (header.sequence, base)), now_us)
