"""A ledger in memory: the reference the others are compared with, and enough for tests that need no restart."""

import bisect
import threading
from collections import defaultdict

from mainstem.core.schema import Schema
from mainstem.core.statistics import length_of
from mainstem.log.ledger.base import (
    AccessKey,
    AppliedPlace,
    BlockRow,
    BlockTotals,
    Changes,
    DeliveriesRow,
    Entry,
    GenerationRow,
    GroupRow,
    GroupShardKey,
    GroupShardRow,
    JobKey,
    MomentRow,
    OldestEntries,
    ProducerKey,
    ProducerRow,
    SchemaRow,
    ShardKey,
    ShardRow,
    SharedChanges,
    StreamRow,
    TransactionRow,
    VersionRow,
    WriterRow,
)


class MemoryLedger:
    """Rows in dictionaries. `store` is atomic for readers of other threads by its lock."""

    def __init__(self, epoch: int = 1) -> None:
        self._epoch = epoch
        self._applied = AppliedPlace(0, 0, 0)
        self._streams: dict[int, StreamRow] = {}
        self._shards: dict[ShardKey, ShardRow] = {}
        self._entries: dict[ShardKey, list[Entry]] = defaultdict(list)
        self._producers: dict[ProducerKey, ProducerRow] = {}
        self._blocks: dict[int, BlockRow] = {}
        self._dead: dict[tuple[int, int], int] = defaultdict(int)
        self._restored: dict[int, dict[ShardKey, int]] = {}
        self._stream_id_max = 0
        self._schemas: dict[int, SchemaRow] = {}
        self._schema_id_max = 0
        self._versions: dict[int, list[VersionRow]] = defaultdict(list)
        self._generations: dict[int, list[GenerationRow]] = defaultdict(list)
        self._groups: dict[int, GroupRow] = {}
        self._group_shards: dict[GroupShardKey, GroupShardRow] = {}
        self._group_id_max = 0
        self._transactions: dict[int, TransactionRow] = {}
        self._writers: dict[str, WriterRow] = {}
        self._deliveries: dict[JobKey, DeliveriesRow] = {}
        self._moments: dict[int, list[MomentRow]] = defaultdict(list)
        self._access: dict[AccessKey, bytes] = {}
        self._lock = threading.Lock()

    def applied(self) -> AppliedPlace:
        return self._applied

    def epoch(self) -> int:
        return self._epoch

    def stream_named(self, name: str) -> StreamRow | None:
        rows = (row for row in self._streams.values() if row.name == name and not row.deleted_us)
        return next(rows, None)

    def load_stream(self, stream: int) -> StreamRow | None:
        return self._streams.get(stream)

    def list_streams(self) -> list[StreamRow]:
        with self._lock:
            return list(self._streams.values())

    def stream_id_max(self) -> int:
        return self._stream_id_max

    def load_schema(self, schema: int) -> Schema | None:
        row = self._schemas.get(schema)
        return None if row is None else Schema.parse(row.arrow)

    def schema_with(self, fingerprint: bytes) -> int | None:
        with self._lock:
            return next((row.id for row in self._schemas.values() if row.fingerprint == fingerprint), None)

    def schema_id_max(self) -> int:
        return self._schema_id_max

    def load_versions(self, stream: int) -> list[VersionRow]:
        with self._lock:
            return list(self._versions.get(stream, ()))

    def load_generations(self, stream: int) -> list[GenerationRow]:
        with self._lock:
            return list(self._generations.get(stream, ()))

    def load_moments(self, stream: int, after_us: int, limit: int) -> list[MomentRow]:
        with self._lock:
            return [row for row in self._moments.get(stream, ()) if row.time_us > after_us][:limit]

    def newest_moment(self, stream: int, before_us: int) -> MomentRow | None:
        with self._lock:
            return next((row for row in reversed(self._moments.get(stream, ())) if row.time_us < before_us), None)

    def list_shards(self) -> list[tuple[ShardKey, ShardRow]]:
        with self._lock:
            return list(self._shards.items())

    def load_shard(self, stream: int, shard: int) -> ShardRow:
        return self._shards.get((stream, shard)) or ShardRow()

    def load_producer(self, key: ProducerKey) -> ProducerRow | None:
        return self._producers.get(key)

    def load_block(self, block: int) -> BlockRow | None:
        return self._blocks.get(block)

    def entries_from(self, stream: int, shard: int, offset: int, limit: int) -> list[Entry]:
        with self._lock:
            entries = self._entries[stream, shard]
            first = bisect.bisect_right(entries, offset, key=lambda entry: entry.end)
            return entries[first : first + limit]

    def entry_at_time(self, stream: int, shard: int, time_us: int) -> Entry | None:
        with self._lock:
            entries = self._entries[stream, shard]
            start = self.load_shard(stream, shard).start
            # What lies wholly below the start was trimmed.
            low = bisect.bisect_right(entries, start, key=lambda entry: entry.end)
            first = bisect.bisect_left(entries, time_us, lo=low, key=lambda entry: entry.time_high)
            return entries[first] if first < len(entries) else None

    def oldest_entries(self, stream: int, shard: int, before: int, limit: int) -> OldestEntries:
        with self._lock:
            first = [entry for entry in self._entries[stream, shard] if entry.end <= before][
                : None if limit < 0 else limit
            ]
        blocks: dict[int, int] = defaultdict(int)
        for entry in first:
            blocks[entry.block] += entry.length
        return OldestEntries(len(first), first[-1].end if first else 0, dict(blocks))

    def missing_records(self, stream: int, shard: int) -> int:
        with self._lock:
            start = self.load_shard(stream, shard).start
            entries = [entry for entry in self._entries[stream, shard] if entry.end > start]
        return sum((each.span - each.count) * (each.end - max(each.base, start)) // each.span for each in entries)

    def list_blocks(self) -> list[BlockRow]:
        with self._lock:
            return [self._blocks[block] for block in sorted(self._blocks)]

    def block_totals(self) -> BlockTotals:
        rows = self.list_blocks()
        growing = tuple(row.id for row in rows if row.state == "open")
        with self._lock:
            gone = {row.id for row in self._streams.values() if row.deleted_us}
            deleted = sum(row.bytes for (stream, _), row in self._shards.items() if stream in gone)
        live = sum(row.live_bytes for row in rows) - deleted
        return BlockTotals(len(rows), sum(row.bytes for row in rows), live, growing)

    def dead_totals(self) -> dict[int, int]:
        totals: dict[int, int] = defaultdict(int)
        with self._lock:
            for (stream, _), size in self._dead.items():
                totals[stream] += size
        return dict(totals)

    def dead_bytes(self, stream: int) -> dict[int, int]:
        with self._lock:
            return {block: size for (of, block), size in self._dead.items() if of == stream}

    def statistics_bytes(self, stream: int) -> int:
        with self._lock:
            shards = [entries for (of, _), entries in self._entries.items() if of == stream]
            return sum(length_of(entry.statistics) for entries in shards for entry in entries)

    def restored(self) -> dict[int, dict[ShardKey, int]]:
        return self._restored

    def group_named(self, name: str) -> GroupRow | None:
        with self._lock:
            return next((row for row in self._groups.values() if row.name == name), None)

    def list_groups(self) -> list[GroupRow]:
        with self._lock:
            return sorted(self._groups.values(), key=lambda row: row.name)

    def list_group_shards(self, group: int) -> list[tuple[ShardKey, GroupShardRow]]:
        with self._lock:
            found = [((key[1], key[2]), row) for key, row in self._group_shards.items() if key[0] == group]
        return sorted(found)

    def group_id_max(self) -> int:
        return self._group_id_max

    def load_group_shard(self, key: GroupShardKey) -> GroupShardRow | None:
        return self._group_shards.get(key)

    def load_transaction(self, transaction: int) -> TransactionRow | None:
        return self._transactions.get(transaction)

    def transactions_before(self, time_us: int, limit: int) -> int:
        return min(limit, sum(row.ended_us < time_us for row in self._transactions.values()))

    def transaction_ended_us(self, others: int) -> int:
        ended = sorted((row.ended_us for row in self._transactions.values()), reverse=True)
        return ended[others] if others < len(ended) else 0

    def load_writer(self, name: str) -> WriterRow | None:
        return self._writers.get(name)

    def writers_before(self, time_us: int) -> int:
        return sum(row.seen_us < time_us for row in self._writers.values())

    def load_deliveries(self, key: JobKey) -> DeliveriesRow | None:
        return self._deliveries.get(key)

    def job_seen_us(self, others: int) -> int:
        seen = sorted((row.seen_us for row in self._deliveries.values()), reverse=True)
        return seen[others] if others < len(seen) else 0

    def load_access(self) -> dict[AccessKey, bytes]:
        with self._lock:
            return dict(self._access)

    def store(self, changes: Changes) -> None:
        with self._lock:
            self._drop(changes)
            self._streams.update(changes.streams)
            self._stream_id_max = max(self._stream_id_max, *changes.streams, changes.stream_id_max)
            self._schemas.update(changes.schemas)
            self._schema_id_max = max(self._schema_id_max, *changes.schemas, changes.schema_id_max)
            for version in changes.versions:
                self._versions[version.stream].append(version)
            for generation in changes.generations:
                self._generations[generation.stream].append(generation)
            self._store_moments(changes)
            self._shards.update(changes.shards)
            self._blocks.update(changes.blocks)
            self._producers.update(changes.producers)
            for entry in changes.entries:
                bisect.insort(self._entries[entry.stream, entry.shard], entry, key=lambda row: row.base)
            for grave, size in changes.dead.items():
                self._dead[grave] += size
                if not self._dead[grave]:
                    del self._dead[grave]
            if changes.shared is not None:
                self._store_groups(changes.shared)
                self._store_transactions(changes.shared)
            for block in changes.forgotten_blocks:
                del self._blocks[block]
                self._dead = defaultdict(int, {key: size for key, size in self._dead.items() if key[1] != block})
            for stream in changes.forgotten_streams:
                self._forget_stream(stream)
            if changes.epoch:
                if changes.epoch_ends:
                    self._restored[self._epoch] = dict(changes.epoch_ends)
                self._epoch = changes.epoch
            rows = {**self._access, **changes.access}
            self._access = {key: value for key, value in rows.items() if value is not None}
            before, (first, last) = changes.forget_producers_before_us, changes.forget_producers_ids
            idle = [key for key, row in self._producers.items() if first <= key[0] <= last and row.seen_us < before]
            for key in idle:
                del self._producers[key]
            self._applied = changes.applied

    def _forget_stream(self, stream: int) -> None:
        del self._streams[stream]
        self._versions.pop(stream, None)
        self._generations.pop(stream, None)
        self._moments.pop(stream, None)
        self._deliveries = {key: row for key, row in self._deliveries.items() if key[0] != stream}
        self._shards = {key: row for key, row in self._shards.items() if key[0] != stream}
        self._dead = defaultdict(int, {key: size for key, size in self._dead.items() if key[0] != stream})
        self._forget_ends(stream)

    def _store_moments(self, changes: Changes) -> None:
        for moment in changes.moments.values():
            self._moments[moment.stream].append(moment)
        for stream, before_us in changes.forgotten_moments.items():
            self._moments[stream] = [row for row in self._moments[stream] if row.time_us >= before_us]

    def _store_groups(self, changes: SharedChanges) -> None:
        deleted, without = changes.deleted_groups, changes.ungrouped_streams
        for group in deleted:
            self._groups.pop(group, None)
        self._groups.update(changes.groups)
        for key in [key for key in self._group_shards if key[0] in deleted or key[1] in without]:
            del self._group_shards[key]
        self._group_shards.update(changes.group_shards)
        self._group_id_max = max(self._group_id_max, *changes.groups, changes.group_id_max)

    def _store_transactions(self, changes: SharedChanges) -> None:
        before, limit = changes.forget_transactions_before_us, changes.forget_transactions_limit
        ended = sorted((row.ended_us, number) for number, row in self._transactions.items() if row.ended_us < before)
        for _, number in ended[:limit]:
            del self._transactions[number]
        seen = changes.forget_writers_before_us
        self._writers = {name: row for name, row in self._writers.items() if row.seen_us >= seen} | changes.writers
        self._transactions |= changes.transactions
        seen = changes.forget_jobs_before_us
        kept = {key: row for key, row in self._deliveries.items() if row.seen_us >= seen}
        self._deliveries = kept | changes.deliveries

    def _forget_ends(self, stream: int) -> None:
        left = {
            epoch: {key: end for key, end in ends.items() if key[0] != stream} for epoch, ends in self._restored.items()
        }
        self._restored = {epoch: ends for epoch, ends in left.items() if ends}

    def _drop(self, changes: Changes) -> None:
        for stream, shard, first, stop in changes.dropped:
            kept = [entry for entry in self._entries[stream, shard] if not first <= entry.base < stop]
            self._entries[stream, shard] = kept

    def close(self) -> None:
        return None
