"""What a ledger holds, row by row, and the interface its backends keep.

A backend is dumb: it loads rows by key and stores the changes of one flush atomically. What the changes are is decided
by `apply.py` and its `rules` alone, so that every backend, and every replay, comes to the same rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mainstem.core.delivery import Fingerprint
from mainstem.core.schema import Schema


class StreamRow(NamedTuple):
    """A stream. Its id and UUID are never used again; its name is free once `deleted_us` is set.

    `generation` counts changes of the number of shards; its barriers live in the `generations` table. `cleanup` says
    what goes: "delete" old records, "compact" all but the newest of every key, "compact,delete" both. `schema_id` and
    `schema_version` are of the newest schema, 0 if it never had one. `key` and `index` name columns of it.
    """

    id: int
    uuid: str
    name: str
    shards: int
    hash: str
    generation: int
    schema_id: int
    retention_us: int
    created_us: int
    deleted_us: int
    retention_bytes: int = 0
    cleanup: str = "delete"
    tombstone_us: int = 0
    schema_version: int = 0
    key: tuple[str, ...] = ()
    index: tuple[str, ...] = ()  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    compatibility: str = "backward"

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup


class ShardRow(NamedTuple):
    """A shard: offsets `start` to `next - 1` exist, those below `stable` are visible; `start <= stable <= next`.

    `bytes` counts what its entries take in blocks, also those below the start until their rows are dropped. The merger
    and compaction have nothing to do below `merged` and `compacted`.
    """

    start: int = 0
    next: int = 0
    stable: int = 0
    time_high: int = 0
    bytes: int = 0
    merged: int = 0
    compacted: int = 0


class Entry(NamedTuple):
    """Offsets `base` to `base + span - 1` of a shard: `count` records in the frames at `position` of `block`.

    Without records left it has no frames: its `block` and `length` are 0.
    """

    stream: int
    shard: int
    base: int
    span: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    block: int
    position: int
    length: int
    time_high: int
    schema_id: int
    transaction: int
    statistics: bytes

    @property
    def end(self) -> int:
        return self.base + self.span


class SchemaRow(NamedTuple):
    """A schema, serialized. Its id is never used again, and no row of another id has the same fingerprint."""

    id: int
    arrow: bytes
    fingerprint: bytes


class VersionRow(NamedTuple):
    """Which schema a version of a stream's schema is. Versions count from 1."""

    stream: int
    version: int
    schema_id: int
    created_us: int


class GenerationRow(NamedTuple):
    """A change of the number of shards: how many there are since, and where those that were there ended."""

    stream: int
    generation: int
    shards: int
    barriers: tuple[int, ...]


class MomentRow(NamedTuple):
    """Where the shards of a stream ended at a time: what stands behind these offsets was stored then or later, what
    stands before them earlier. A shard that is not among them came later."""

    stream: int
    time_us: int
    ends: tuple[int, ...]


def barriers_of(generations: Iterable[GenerationRow], shard: int) -> frozenset[int]:
    """The offsets of one shard at which a generation began."""
    return frozenset(row.barriers[shard] for row in generations if shard < len(row.barriers))


class ProducerRow(NamedTuple):
    """What is remembered of one producer in one shard: its epoch and its last (sequence, base) pairs, oldest first."""

    epoch: int
    recent: tuple[tuple[int, int], ...]
    seen_us: int


class BlockRow(NamedTuple):
    """A block file the ledger knows. `live_bytes` counts the bytes of entries that point into it.

    `dead_us` is when a sealed block had none left, 0 before that. `rewrite_us` is when the rest of a block should move
    elsewhere even if it is most of it, because what is dead in it should be off the disk; 0 if there is no hurry.
    """

    id: int
    writer_epoch: int
    state: str
    bytes: int
    live_bytes: int
    created_us: int
    dead_us: int = 0
    rewrite_us: int = 0


class GroupRow(NamedTuple):
    """A group of readers. `generation` counts changes of its owners, and resets: the last was made at `changed_us`.

    For up to `hold_us` what it has not read is kept from retention: see retention.Hold.
    """

    id: int
    name: str
    generation: int
    created_us: int
    changed_us: int
    hold_us: int = 0


class GroupShardRow(NamedTuple):
    """How far a group has read a shard, and the member that owns it since a generation of the group; 0: nobody.

    `committed_us` is when the cursor moved last, 0 if it never did.
    """

    offset: int
    committed_us: int
    owner: int
    since: int


class TransactionRow(NamedTuple):
    """A transaction that was committed, and the offsets that its records got: see flush.TransactionCommitted."""

    ended_us: int
    offsets: tuple[tuple[int, int, int, int], ...]


class WriterRow(NamedTuple):
    """Who writes transactions under a name: its epoch, and when one was opened or committed last."""

    epoch: int
    seen_us: int


class DeliveriesRow(NamedTuple):
    """What a job has delivered to a stream: its last numbers and what came, the oldest first."""

    seen_us: int
    recent: tuple[tuple[int, Fingerprint], ...]


class AppliedPlace(NamedTuple):
    """The last flush applied, and where its commit frame lies: replay goes on after it. (0, 0, 0) before the first."""

    number: int
    block: int
    commit_position: int


ShardKey = tuple[int, int]
ProducerKey = tuple[int, int, int]
# The kind of a row that says who may do what, and its name.
AccessKey = tuple[str, str]
# Group, stream, shard.
GroupShardKey = tuple[int, int, int]
# Stream, job.
JobKey = tuple[int, str]


@dataclass(slots=True)
class SharedChanges:
    """What a flush changes of groups and transactions."""

    # Streams whose shards no group has any more, and groups that go with their shards: before those of this flush come.
    ungrouped_streams: list[int] = field(default_factory=list)
    deleted_groups: list[int] = field(default_factory=list)
    groups: dict[int, GroupRow] = field(default_factory=dict)
    group_shards: dict[GroupShardKey, GroupShardRow] = field(default_factory=dict)
    # The same as `stream_id_max` of streams; said when one is deleted.
    group_id_max: int = 0
    transactions: dict[int, TransactionRow] = field(default_factory=dict)
    writers: dict[str, WriterRow] = field(default_factory=dict)
    deliveries: dict[JobKey, DeliveriesRow] = field(default_factory=dict)
    # Of transactions that ended before this time the first so many go, and writers and jobs last seen before others.
    forget_transactions_before_us: int = 0
    forget_transactions_limit: int = 0
    forget_writers_before_us: int = 0
    forget_jobs_before_us: int = 0


@dataclass(slots=True)
class Changes:
    """All rows one flush changes. Stored together or not at all."""

    applied: AppliedPlace
    streams: dict[int, StreamRow] = field(default_factory=dict)
    shards: dict[ShardKey, ShardRow] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    producers: dict[ProducerKey, ProducerRow] = field(default_factory=dict)
    blocks: dict[int, BlockRow] = field(default_factory=dict)
    # Producers last seen before this are forgotten, of those with ids from the first to the last of these.
    forget_producers_before_us: int = 0
    forget_producers_ids: tuple[int, int] = (0, 0)
    # Rows of entries that go before those of this flush come: (stream, shard, from this base, to before that one).
    dropped: list[tuple[int, int, int, int]] = field(default_factory=list)
    # Shards of which other offsets have no record than before. Of use to caches only: it follows from the entries.
    thinned: set[ShardKey] = field(default_factory=set)
    # Bytes of a stream in a block that nothing points to any more: to be added up. Less than 0: something does again.
    dead: dict[tuple[int, int], int] = field(default_factory=dict)
    forgotten_blocks: list[int] = field(default_factory=list)
    forgotten_streams: list[int] = field(default_factory=list)
    # Ids up to this are not given again; said when streams are forgotten and when an epoch begins.
    stream_id_max: int = 0
    schemas: dict[int, SchemaRow] = field(default_factory=dict)
    versions: list[VersionRow] = field(default_factory=list)
    generations: list[GenerationRow] = field(default_factory=list)
    # At most one of each stream, and streams of which those before a time go.
    moments: dict[int, MomentRow] = field(default_factory=dict)
    forgotten_moments: dict[int, int] = field(default_factory=dict)
    # The same as `stream_id_max` for schemas; said when an epoch begins.
    schema_id_max: int = 0
    # A new epoch of the ledger, and where every shard ended in the one before.
    epoch: int = 0
    epoch_ends: dict[ShardKey, int] = field(default_factory=dict)
    # Of groups and transactions, which most flushes have nothing of.
    shared: SharedChanges | None = None
    # Rows that say who may do what; None for one that goes.
    access: dict[AccessKey, bytes | None] = field(default_factory=dict)


class OldestEntries(NamedTuple):
    """The first rows of a shard: how many, where the last of them ends, and how many bytes they have in which block."""

    rows: int
    end: int
    blocks: dict[int, int]


class BlockTotals(NamedTuple):
    """All blocks together: how many, the bytes of those that are sealed, and the bytes in all that entries point to.

    Entries of deleted streams do not count: nobody can read them, though upkeep may not have dropped them yet.
    `growing` are the other blocks, whose size only their files know.
    """

    blocks: int
    bytes: int
    live_bytes: int
    growing: tuple[int, ...] = ()


class LedgerReader(Protocol):
    """Committed rows, for readers. Any thread; no read transaction outlives a call."""

    def applied(self) -> AppliedPlace: ...

    def epoch(self) -> int: ...

    def stream_named(self, name: str) -> StreamRow | None: ...

    def load_stream(self, stream: int) -> StreamRow | None: ...

    def list_streams(self) -> Sequence[StreamRow]: ...

    def load_schema(self, schema: int) -> Schema | None: ...

    def load_versions(self, stream: int) -> Sequence[VersionRow]:
        """The versions of a stream's schema, the oldest first."""
        ...

    def load_generations(self, stream: int) -> Sequence[GenerationRow]:
        """The changes of a stream's number of shards, the oldest first."""
        ...

    def load_moments(self, stream: int, after_us: int, limit: int) -> Sequence[MomentRow]:
        """The first moments of a stream after a time, the oldest first."""
        ...

    def newest_moment(self, stream: int, before_us: int) -> MomentRow | None:
        """The last moment of a stream before a time."""
        ...

    def load_shard(self, stream: int, shard: int) -> ShardRow: ...

    def entries_from(self, stream: int, shard: int, offset: int, limit: int) -> Sequence[Entry]:
        """Entries that end after `offset`, in order."""
        ...

    def entry_at_time(self, stream: int, shard: int, time_us: int) -> Entry | None:
        """The first entry with a record of `time_us` or later, or None."""
        ...

    def oldest_entries(self, stream: int, shard: int, before: int, limit: int) -> OldestEntries:
        """Of the rows that end at `before` or below, the first `limit`; all if that is negative."""
        ...

    def missing_records(self, stream: int, shard: int) -> int:
        """How many offsets from the start of a shard on have no record: they were compacted away, or erased. Where the
        start stands within an entry, which of its records are left is not known, and its share is taken."""
        ...

    def list_blocks(self) -> Sequence[BlockRow]: ...

    def block_totals(self) -> BlockTotals: ...

    def dead_totals(self) -> Mapping[int, int]:
        """For every stream that has any, how many bytes of it in blocks nothing points to any more."""
        ...

    def dead_bytes(self, stream: int) -> dict[int, int]:
        """For every block that is still there, how many bytes of this stream in it nothing points to any more."""
        ...

    def statistics_bytes(self, stream: int) -> int:
        """How many bytes of the stream's entries in blocks are statistics."""
        ...

    def restored(self) -> Mapping[int, Mapping[ShardKey, int]]:
        """For every epoch that a restore from a backup ended, where the shards ended in that backup."""
        ...

    def group_named(self, name: str) -> GroupRow | None: ...

    def list_groups(self) -> Sequence[GroupRow]:
        """All groups, by name."""
        ...

    def list_group_shards(self, group: int) -> Sequence[tuple[ShardKey, GroupShardRow]]:
        """Every shard that the group ever read, in order."""
        ...

    def load_access(self) -> Mapping[AccessKey, bytes]:
        """All rows that say who may do what."""
        ...

    def close(self) -> None: ...


class Ledger(LedgerReader, Protocol):
    """The writer's ledger. One thread calls `store`."""

    def stream_id_max(self) -> int: ...

    def schema_id_max(self) -> int: ...

    def schema_with(self, fingerprint: bytes) -> int | None:
        """The id of the schema that has this fingerprint."""
        ...

    def list_shards(self) -> Iterable[tuple[ShardKey, ShardRow]]:
        """Every shard that was ever written."""
        ...

    def load_producer(self, key: ProducerKey) -> ProducerRow | None: ...

    def load_block(self, block: int) -> BlockRow | None: ...

    def group_id_max(self) -> int: ...

    def load_group_shard(self, key: GroupShardKey) -> GroupShardRow | None: ...

    def load_transaction(self, transaction: int) -> TransactionRow | None: ...

    def transactions_before(self, time_us: int, limit: int) -> int:
        """How many transactions ended before this time; no more than `limit` are counted."""
        ...

    def transaction_ended_us(self, others: int) -> int:
        """When the newest transaction ended that ended before so many others; 0 if none did."""
        ...

    def load_writer(self, name: str) -> WriterRow | None: ...

    def writers_before(self, time_us: int) -> int:
        """How many writers were last seen before this time."""
        ...

    def load_deliveries(self, key: JobKey) -> DeliveriesRow | None: ...

    def job_seen_us(self, others: int) -> int:
        """When the job was seen that was seen last before so many others; 0 if there is none."""
        ...

    def store(self, changes: Changes) -> None: ...
