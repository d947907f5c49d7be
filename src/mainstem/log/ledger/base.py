"""What a ledger holds, row by row, and the interface its backends keep.

A backend is dumb: it loads rows by key and stores the changes of one flush atomically. What the changes are is decided
by `apply.py` alone, so that every backend, and every replay, comes to the same rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class StreamRow(NamedTuple):
    """A stream. Its id and UUID are never used again; its name is free once `deleted_us` is set.

    `generation` counts changes of the number of shards; its barriers live in the `generations` table.
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


class ShardRow(NamedTuple):
    """A shard: offsets `start` to `next - 1` exist, those below `stable` are visible; `start <= stable <= next`."""

    start: int = 0
    next: int = 0
    stable: int = 0
    time_high: int = 0
    bytes: int = 0


class Entry(NamedTuple):
    """Offsets `base` to `base + span - 1` of a shard: `count` records in the frames at `position` of `block`."""

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


class ProducerRow(NamedTuple):
    """What is remembered of one producer in one shard: its epoch and its last (sequence, base) pairs, oldest first."""

    epoch: int
    recent: tuple[tuple[int, int], ...]
    seen_us: int


class BlockRow(NamedTuple):
    """A block file the ledger knows. `live_bytes` counts the bytes of entries that point into it."""

    id: int
    writer_epoch: int
    state: str
    bytes: int
    live_bytes: int
    created_us: int


class AppliedPlace(NamedTuple):
    """The last flush applied, and where its commit frame lies: replay goes on after it. (0, 0, 0) before the first."""

    number: int
    block: int
    commit_position: int


ShardKey = tuple[int, int]
ProducerKey = tuple[int, int, int]


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


class LedgerReader(Protocol):
    """Committed rows, for readers. Any thread; no read transaction outlives a call."""

    def applied(self) -> AppliedPlace: ...

    def epoch(self) -> int: ...

    def stream_named(self, name: str) -> StreamRow | None: ...

    def load_stream(self, stream: int) -> StreamRow | None: ...

    def list_streams(self) -> Sequence[StreamRow]: ...

    def load_shard(self, stream: int, shard: int) -> ShardRow: ...

    def entries_from(self, stream: int, shard: int, offset: int, limit: int) -> Sequence[Entry]:
        """Entries that end after `offset`, in order."""
        ...

    def entry_at_time(self, stream: int, shard: int, time_us: int) -> Entry | None:
        """The first entry with a record of `time_us` or later, or None."""
        ...

    def close(self) -> None: ...


class Ledger(LedgerReader, Protocol):
    """The writer's ledger. One thread calls `store`."""

    def stream_id_max(self) -> int: ...

    def list_shards(self) -> Iterable[tuple[ShardKey, ShardRow]]:
        """Every shard that was ever written."""
        ...

    def load_producer(self, key: ProducerKey) -> ProducerRow | None: ...

    def load_block(self, block: int) -> BlockRow | None: ...

    def store(self, changes: Changes) -> None: ...
