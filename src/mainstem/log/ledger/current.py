"""The rows of a ledger as the last flush left them, those in memory that are touched often."""

from collections import OrderedDict

from mainstem.core.batch import TIME_US_MAX
from mainstem.log.ledger.base import (
    AccessKey,
    BlockRow,
    Changes,
    GenerationRow,
    GroupRow,
    GroupShardKey,
    GroupShardRow,
    Ledger,
    MomentRow,
    ProducerKey,
    ProducerRow,
    ShardKey,
    ShardRow,
    SharedChanges,
    StreamRow,
)

# Rows of producers, and of shards of groups, kept in memory; the rest is in the ledger.
_PRODUCERS_CACHED_MAX = 65_536
_GROUP_SHARDS_CACHED_MAX = 65_536
_NEVER_WRITTEN = ShardRow()


class CurrentRows:
    """Rows of one ledger, by key. One thread changes them; any may read those of streams, shards and generations.

    They are only ever a copy of what the ledger has stored.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._streams: dict[int, StreamRow] = {row.id: row for row in ledger.list_streams()}
        self._names: dict[str, int] = {row.name: row.id for row in self._streams.values() if not row.deleted_us}
        # Every shard that was ever written. Other threads read it; only the applying thread changes it.
        self._shards: dict[ShardKey, ShardRow] = dict(ledger.list_shards())
        self._producers: OrderedDict[ProducerKey, ProducerRow] = OrderedDict()
        # How often a shard lost records between others since these rows were loaded.
        self._thinned: dict[ShardKey, int] = {}
        # The block that was touched last: nearly always the one that grows.
        self._block: BlockRow | None = None
        self._stream_id_max = ledger.stream_id_max()
        self._schema_id_max = ledger.schema_id_max()
        # Of streams whose number of shards has changed. Other threads read it.
        self._generations: dict[int, tuple[GenerationRow, ...]] = {
            row.id: tuple(ledger.load_generations(row.id)) for row in self._streams.values() if row.generation
        }
        # The newest of streams that were written since these rows were loaded.
        self._moments: dict[int, MomentRow] = {}
        # Of streams that got a batch of another schema than their newest: all that they ever had.
        self._schemas_of: dict[int, frozenset[int]] = {}
        self._groups: dict[str, GroupRow] = {row.name: row for row in ledger.list_groups()}
        self._group_shards: OrderedDict[GroupShardKey, GroupShardRow] = OrderedDict()
        self._group_id_max = ledger.group_id_max()
        # Replaced as a whole by a flush that changes it: other threads read it.
        self._access: dict[AccessKey, bytes] = dict(ledger.load_access())
        # How often that happened since these rows were loaded.
        self.times_access_changed = 0
        self.applied = ledger.applied().number

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

    def group_named(self, name: str) -> GroupRow | None:
        return self._groups.get(name)

    def group_shard(self, key: GroupShardKey) -> GroupShardRow | None:
        return self._group_shards.get(key) or self._ledger.load_group_shard(key)

    @property
    def group_count(self) -> int:
        return len(self._groups)

    @property
    def group_id_max(self) -> int:
        return self._group_id_max

    def generations(self, stream: int) -> tuple[GenerationRow, ...]:
        return self._generations.get(stream, ())

    def newest_moment(self, stream: int) -> MomentRow | None:
        found = self._moments.get(stream) or self._ledger.newest_moment(stream, TIME_US_MAX)
        if found is not None:
            self._moments[stream] = found
        return found

    def access_rows(self) -> dict[AccessKey, bytes]:
        return self._access

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
        self._moments.update(changes.moments)
        self._shards.update(changes.shards)
        for key in changes.thinned:
            self._thinned[key] = self._thinned.get(key, 0) + 1
        for stream in changes.forgotten_streams:
            self._forget_stream(stream)
        if changes.access:
            self._remember_access(changes)
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
        if changes.shared is not None:
            self._remember_groups(changes.shared)

    def _forget_stream(self, stream: int) -> None:
        row = self._streams.pop(stream)
        self._generations.pop(stream, None)
        self._moments.pop(stream, None)
        self._schemas_of.pop(stream, None)
        for shard in range(row.shards):
            self._shards.pop((stream, shard), None)
            self._thinned.pop((stream, shard), None)

    def _remember_access(self, changes: Changes) -> None:
        merged = {**self._access, **changes.access}
        self._access = {key: value for key, value in merged.items() if value is not None}
        self.times_access_changed += 1

    def _remember_groups(self, changes: SharedChanges) -> None:
        for group in [row for row in self._groups.values() if row.id in changes.deleted_groups]:
            del self._groups[group.name]
        self._groups.update((row.name, row) for row in changes.groups.values())
        self._group_id_max = max(self._group_id_max, changes.group_id_max, *changes.groups)
        shards = self._group_shards
        if changes.deleted_groups or changes.ungrouped_streams:
            shards.clear()
        for key, row in changes.group_shards.items():
            shards[key] = row
            shards.move_to_end(key)
        while len(shards) > _GROUP_SHARDS_CACHED_MAX:
            shards.popitem(last=False)

    def _remember_streams(self, changes: Changes) -> None:
        for row in changes.streams.values():
            self._streams[row.id] = row
            self._stream_id_max = max(self._stream_id_max, row.id)
            if not row.deleted_us:
                self._names[row.name] = row.id
            elif self._names.get(row.name) == row.id:
                del self._names[row.name]
