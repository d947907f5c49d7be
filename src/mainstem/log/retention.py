"""Retention: which records are too old. Decides only; the log carries it out as commands of a flush."""

from collections.abc import Iterator

from mainstem.log.flush import TrimShard
from mainstem.log.ledger.base import LedgerReader


def expired(ledger: LedgerReader, now_us: int) -> Iterator[TrimShard]:
    """A trim for every shard with entries whose newest record is older than its stream's retention.

    Whole entries only: an entry goes when all of its records are too old.
    """
    for stream in ledger.list_streams():
        if stream.deleted_us:
            continue
        oldest_us = now_us - stream.retention_us
        for shard in range(stream.shards):
            row = ledger.load_shard(stream.id, shard)
            if row.start == row.stable:
                continue
            first = ledger.entry_at_time(stream.id, shard, oldest_us)
            before = row.stable if first is None else first.base
            if before > row.start:
                yield TrimShard(stream.id, shard, before)
