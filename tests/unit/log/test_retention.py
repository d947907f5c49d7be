"""Retention's decisions: by age, by size over all shards of a stream, and what it leaves alone."""

from typing import Any

import pytest

from mainstem.log.flush import TrimShard
from mainstem.log.ledger.base import AppliedPlace, Changes, Entry, ShardRow, StreamRow
from mainstem.log.ledger.memory import MemoryLedger
from mainstem.log.retention import expired
from tests.unit.log.parts import FOREVER_US, NOW_US

HOUR_US = 3_600_000_000


class Rows:
    """A ledger with one stream, filled entry by entry."""

    def __init__(self, shards: int = 1, **other: Any) -> None:
        row = StreamRow(1, "ab" * 16, "orders", shards, "crc32", 0, 0, FOREVER_US, NOW_US, 0)
        self.stream = row._replace(**other)
        self._shards = {(1, shard): ShardRow() for shard in range(shards)}
        self._entries: list[Entry] = []

    def add(self, shard: int = 0, *, hour: int, length: int = 100, span: int = 10) -> None:
        row = self._shards[1, shard]
        time = NOW_US + hour * HOUR_US
        self._entries.append(Entry(1, shard, row.next, span, span, 1, 64, length, time, 0, 0, b""))
        end = row.next + span
        self._shards[1, shard] = row._replace(next=end, stable=end, bytes=row.bytes + length, time_high=time)

    def start(self, shard: int, offset: int) -> None:
        self._shards[1, shard] = self._shards[1, shard]._replace(start=offset)

    def expired(self, hour: int = 0) -> dict[int, int]:
        """Shard -> where it has to start, at this time."""
        ledger = MemoryLedger()
        changes = Changes(AppliedPlace(1, 1, 64), streams={1: self.stream}, shards=dict(self._shards))
        changes.entries += self._entries
        ledger.store(changes)
        trims = list(expired(ledger, NOW_US + hour * HOUR_US))
        assert {type(trim) for trim in trims} <= {TrimShard}
        assert {trim.stream for trim in trims} <= {1}
        assert len({trim.shard for trim in trims}) == len(trims)
        return {trim.shard: trim.before for trim in trims}


def test_by_age_whole_entries_go():
    rows = Rows(shards=2, retention_us=5 * HOUR_US)
    for hour in range(4):
        rows.add(0, hour=hour)
    rows.add(1, hour=3)
    assert rows.expired(5) == {}
    # Exactly as old as may be is not too old.
    assert rows.expired(6) == {0: 10}
    assert rows.expired(8) == {0: 30}
    assert rows.expired(9) == {0: 40, 1: 10}


def test_a_shard_that_starts_in_the_middle_of_an_entry():
    rows = Rows(retention_us=5 * HOUR_US)
    for hour in range(3):
        rows.add(hour=hour)
    rows.start(0, 14)
    assert rows.expired(6) == {}
    assert rows.expired(7) == {0: 20}
    rows.start(0, 30)
    assert rows.expired(100) == {}


@pytest.mark.parametrize("shards", [1, 3])
def test_nothing_was_written(shards):
    assert Rows(shards=shards, retention_us=1, retention_bytes=1).expired(1_000) == {}


def test_by_size_the_oldest_of_all_shards_go():
    rows = Rows(shards=3, retention_bytes=300)
    for hour in range(4):
        rows.add(0, hour=2 * hour)
        rows.add(1, hour=2 * hour + 1)
    assert rows.expired() == {0: 30, 1: 20}


def test_a_stream_stays_as_large_as_it_may_be():
    rows = Rows(retention_bytes=250)
    for hour in range(4):
        rows.add(hour=hour)
    assert rows.expired() == {0: 10}


def test_the_newest_entry_stays_even_if_it_is_too_large_alone():
    rows = Rows(retention_bytes=50)
    rows.add(hour=0)
    rows.add(hour=1)
    assert rows.expired() == {0: 10}
    rows.start(0, 10)
    assert rows.expired() == {}


def test_what_was_trimmed_before_does_not_count():
    rows = Rows(shards=2, retention_bytes=300)
    for hour in range(4):
        rows.add(0, hour=hour)
        rows.add(1, hour=hour)
    rows.start(0, 40)
    assert rows.expired() == {1: 10}
    # A start within an entry leaves the whole entry on disk.
    rows.start(1, 15)
    assert rows.expired() == {}


def test_by_age_and_by_size():
    rows = Rows(shards=2, retention_us=5 * HOUR_US, retention_bytes=200)
    for hour in range(4):
        rows.add(0, hour=hour)
    rows.add(1, hour=0)
    # By age the first entry of each shard goes, by size one more.
    assert rows.expired(6) == {0: 20, 1: 10}


def test_entries_without_bytes_go_with_what_is_before_them():
    rows = Rows(cleanup="compact,delete", retention_bytes=100)
    rows.add(hour=0)
    rows.add(hour=1, length=0)
    rows.add(hour=2)
    assert rows.expired() == {0: 20}


def test_a_compacted_stream_is_left_alone_unless_it_also_deletes():
    for cleanup, expected in (("compact", {}), ("compact,delete", {0: 10})):
        rows = Rows(cleanup=cleanup, retention_us=HOUR_US, retention_bytes=1)
        rows.add(hour=0)
        assert rows.expired(10) == expected


def test_a_deleted_stream_is_left_alone():
    rows = Rows(deleted_us=NOW_US, retention_us=1)
    rows.add(hour=0)
    assert rows.expired(10) == {}
