"""Retention: which records are too old or too many, and which of them a group holds. Decides only; the log carries it
out as commands of a flush.

A group that holds retention keeps what it has not read, but not for ever: a record that is too old goes when it is by
the group's `hold_us` older than that, and one of those that are too many when it is older than `hold_us`. So a group
that never comes back costs the disk no more than what is written in that time.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mainstem.core.limits import READ_ENTRIES_MAX
from mainstem.log.flush import TrimShard
from mainstem.log.ledger.base import Entry, LedgerReader, StreamRow


class Hold(NamedTuple):
    """A group that keeps what it has not read of one stream, for so long at most. `offsets` are its cursors by shard;
    of a shard in which it has none it has read nothing yet."""

    group: str
    hold_us: int
    offsets: Mapping[int, int]

    def offset(self, shard: int) -> int:
        return self.offsets.get(shard, 0)


# Those of every stream, by its id.
Holds = Mapping[int, Sequence[Hold]]


def holds_of(ledger: LedgerReader) -> dict[int, list[Hold]]:
    """The groups that hold retention, by the streams that they read."""
    found: dict[int, list[Hold]] = {}
    for group in ledger.list_groups():
        if not group.hold_us:
            continue
        cursors: dict[int, dict[int, int]] = {}
        for (stream, shard), at in ledger.list_group_shards(group.id):
            cursors.setdefault(stream, {})[shard] = at.offset
        for stream, offsets in cursors.items():
            found.setdefault(stream, []).append(Hold(group.name, group.hold_us, offsets))
    return found


def expired(ledger: LedgerReader, now_us: int, holds: Holds | None = None) -> Iterator[TrimShard]:
    """A trim for every shard with entries that its stream's retention lets go, by their age or by its size, and that no
    group holds.

    Whole entries only: an entry goes when all of its records are too old, or when without it the stream is still as
    large as it may be.
    """
    for stream in ledger.list_streams():
        for shard, start in due(ledger, stream, now_us, (holds or {}).get(stream.id, ())).items():
            yield TrimShard(stream.id, shard, start)


def due(ledger: LedgerReader, stream: StreamRow, now_us: int, holds: Sequence[Hold] = ()) -> dict[int, int]:
    """By shard, where a stream has to start by its retention; without those shards that may stay as they are."""
    if stream.deleted_us or not stream.deletes:
        return {}
    oldest_us = now_us - stream.retention_us
    starts = dict(_too_old(ledger, stream, oldest_us))
    found = _unheld(ledger, stream, starts, holds, oldest_us)
    if stream.retention_bytes:
        # By what would be there if nobody held anything: other shards do not go for what is held of one.
        many = _unheld(ledger, stream, _too_many(ledger, stream, starts), holds, now_us)
        found |= {shard: max(start, found.get(shard, 0)) for shard, start in many.items()}
    return found


def passed_over(trim: TrimShard, start: int, holds: Holds) -> dict[str, int]:
    """By group, how many records go by this that it holds, because their time is over or nobody can hold anything now;
    `start` is where the shard starts before it."""
    unread = {hold.group: trim.before - max(start, hold.offset(trim.shard)) for hold in holds.get(trim.stream, ())}
    return {group: records for group, records in unread.items() if records > 0}


def _unheld(
    ledger: LedgerReader, stream: StreamRow, starts: Mapping[int, int], holds: Sequence[Hold], oldest_us: int
) -> dict[int, int]:
    """The same starts, where groups hold something no further than that; shards that then stay as they are left out."""
    if not holds:
        return dict(starts)
    found: dict[int, int] = {}
    for shard, start in starts.items():
        row = ledger.load_shard(stream.id, shard)
        bounds = [start]
        for hold in holds:
            first = ledger.entry_at_time(stream.id, shard, oldest_us - hold.hold_us)
            too_long = row.stable if first is None else first.base
            bounds.append(max(too_long, _entry_base(ledger, stream.id, shard, hold.offset(shard))))
        if min(bounds) > row.start:
            found[shard] = min(bounds)
    return found


def _entry_base(ledger: LedgerReader, stream: int, shard: int, offset: int) -> int:
    """Where the entry begins in which this offset is."""
    entries = ledger.entries_from(stream, shard, offset, 1)
    return min(offset, entries[0].base) if entries else offset


def _too_old(ledger: LedgerReader, stream: StreamRow, oldest_us: int) -> Iterator[tuple[int, int]]:
    """(shard, start) for every shard with entries whose newest record is older than that."""
    for shard in range(stream.shards):
        row = ledger.load_shard(stream.id, shard)
        if row.start == row.stable:
            continue
        first = ledger.entry_at_time(stream.id, shard, oldest_us)
        before = row.stable if first is None else first.base
        if before > row.start:
            yield shard, before


def _too_many(ledger: LedgerReader, stream: StreamRow, starts: dict[int, int]) -> dict[int, int]:
    """Where the shards must start so that the stream is not larger than it may be: the oldest entries of all go."""
    size = 0
    oldest: list[tuple[int, int, int, Iterator[Entry]]] = []
    for shard in range(stream.shards):
        row = ledger.load_shard(stream.id, shard)
        start = starts.get(shard, row.start)
        size += row.bytes - sum(ledger.oldest_entries(stream.id, shard, start, -1).blocks.values())
        entries = _entries(ledger, stream.id, shard, start)
        first = next(entries, None)
        if first is not None:
            oldest.append((first.time_high, shard, first.length, entries))
            starts = {**starts, shard: start}
    found: dict[int, int] = {}
    heapq.heapify(oldest)
    while oldest:
        _, shard, length, entries = oldest[0]
        if size - length < stream.retention_bytes:
            break
        size -= length
        following = next(entries, None)
        found[shard] = ledger.load_shard(stream.id, shard).stable if following is None else following.base
        if following is None:
            heapq.heappop(oldest)
        else:
            heapq.heapreplace(oldest, (following.time_high, shard, following.length, entries))
    return found


def _entries(ledger: LedgerReader, stream: int, shard: int, offset: int) -> Iterator[Entry]:
    while entries := ledger.entries_from(stream, shard, offset, READ_ENTRIES_MAX):
        yield from entries
        offset = entries[-1].end
