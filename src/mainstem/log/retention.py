"""Retention: which records are too old or too many. Decides only; the log carries it out as commands of a flush."""

import heapq
from collections.abc import Iterator

from mainstem.core.limits import READ_ENTRIES_MAX
from mainstem.log.flush import TrimShard
from mainstem.log.ledger.base import Entry, LedgerReader, StreamRow


def expired(ledger: LedgerReader, now_us: int) -> Iterator[TrimShard]:
    """A trim for every shard with entries that its stream's retention lets go, by their age or by its size.

    Whole entries only: an entry goes when all of its records are too old, or when without it the stream is still as
    large as it may be.
    """
    for stream in ledger.list_streams():
        if stream.deleted_us or not stream.deletes:
            continue
        starts = dict(_too_old(ledger, stream, now_us - stream.retention_us))
        if stream.retention_bytes:
            starts.update(_too_many(ledger, stream, starts))
        for shard, start in starts.items():
            yield TrimShard(stream.id, shard, start)


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
