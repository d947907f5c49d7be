"""Retention's decisions: by age, by size over all shards of a stream, what groups hold, and what it leaves alone."""

from typing import Any

import pytest

from mainstem.log.flush import TrimShard
from mainstem.log.ledger.base import (
    AppliedPlace,
    Changes,
    Entry,
    GroupRow,
    GroupShardRow,
    ShardRow,
    SharedChanges,
    StreamRow,
)
from mainstem.log.ledger.memory import MemoryLedger
from mainstem.log.retention import expired, holds_of, passed_over
from tests.unit.log.parts import FOREVER_US, NOW_US

HOUR_US = 3_600_000_000


class Rows:
    """A ledger with one stream, filled entry by entry."""

    def __init__(self, shards: int = 1, **other: Any) -> None:
        row = StreamRow(1, "ab" * 16, "orders", shards, "crc32", 0, 0, FOREVER_US, NOW_US, 0)
        self.stream = row._replace(**other)
        self._shards = {(1, shard): ShardRow() for shard in range(shards)}
        self._entries: list[Entry] = []
        self._shared = SharedChanges()

    def group(self, *offsets: int, hold: float, stream: int = 1) -> None:
        """A group that stands at these offsets of the first shards, and holds for so many hours."""
        number = len(self._shared.groups) + 1
        self._shared.groups[number] = GroupRow(number, f"g{number}", 1, NOW_US, NOW_US, round(hold * HOUR_US))
        for shard, offset in enumerate(offsets):
            self._shared.group_shards[number, stream, shard] = GroupShardRow(offset, 0, 0, 1)

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
        ledger = self._ledger()
        trims = list(expired(ledger, NOW_US + hour * HOUR_US, holds_of(ledger)))
        assert {type(trim) for trim in trims} <= {TrimShard}
        assert {trim.stream for trim in trims} <= {1}
        assert len({trim.shard for trim in trims}) == len(trims)
        return {trim.shard: trim.before for trim in trims}

    def passed_over(self, before: int) -> dict[str, int]:
        return passed_over(TrimShard(1, 0, before), self._shards[1, 0].start, holds_of(self._ledger()))

    def _ledger(self) -> MemoryLedger:
        ledger = MemoryLedger()
        changes = Changes(AppliedPlace(1, 1, 64), streams={1: self.stream}, shards=dict(self._shards))
        changes.entries += self._entries
        changes.shared = self._shared
        ledger.store(changes)
        return ledger


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


# What groups hold.


def filled(**options: Any) -> Rows:
    """Ten records an hour, for four hours."""
    rows = Rows(**options)
    for hour in range(4):
        rows.add(0, hour=hour)
    return rows


def test_what_is_too_old_and_unread_is_held_for_a_while():
    rows = filled(retention_us=5 * HOUR_US)
    assert rows.expired(8) == {0: 30}
    rows.group(10, hold=2)
    # What it has read goes as ever; of the rest what is too old by more than two hours.
    assert rows.expired(6) == rows.expired(8) == {0: 10}
    assert rows.expired(9) == {0: 20}
    assert rows.expired(11) == {0: 40}


def test_a_cursor_within_an_entry_holds_all_of_it():
    rows = filled(retention_us=5 * HOUR_US)
    rows.group(15, hold=100)
    assert rows.expired(9) == {0: 10}


def test_who_has_read_everything_and_who_does_not_hold_keep_nothing():
    rows = filled(retention_us=5 * HOUR_US)
    rows.group(40, hold=100)
    rows.group(0, hold=0)
    rows.group(0, hold=100, stream=2)
    assert rows.expired(8) == {0: 30}
    assert rows.expired(9) == {0: 40}


def test_of_several_groups_the_one_furthest_behind_counts_as_long_as_it_may():
    rows = filled(retention_us=5 * HOUR_US)
    rows.group(0, hold=2)
    rows.group(20, hold=100)
    assert rows.expired(7) == {}
    assert rows.expired(8) == {0: 10}
    assert rows.expired(50) == {0: 20}


def test_a_shard_in_which_a_group_has_no_cursor_is_held_from_its_beginning():
    """A stream that got more shards: whoever reads next reads all of them."""
    rows = filled(shards=2, retention_us=5 * HOUR_US)
    rows.add(1, hour=0)
    rows.group(40, hold=100)
    assert rows.expired(9) == {0: 40}
    rows.group(40, 10, hold=100)
    assert rows.expired(9) == {0: 40}


def test_what_is_too_much_and_unread_is_held_until_it_is_older_than_that():
    rows = filled(retention_bytes=100)
    assert rows.expired(3) == {0: 30}
    rows.group(10, hold=2)
    assert rows.expired(3) == {0: 10}
    assert rows.expired(4) == {0: 20}
    assert rows.expired(10) == {0: 30}


def test_other_shards_do_not_go_for_what_is_held_of_one():
    rows = Rows(shards=3, retention_bytes=300)
    for hour in range(4):
        rows.add(0, hour=2 * hour)
        rows.add(1, hour=2 * hour + 1)
    rows.group(0, 40, hold=100)
    assert rows.expired(8) == {1: 20}


def test_who_is_passed_over_is_told_by_how_much():
    rows = filled(retention_us=HOUR_US)
    rows.group(5, hold=1)
    rows.group(30, hold=1)
    rows.start(0, 10)
    assert rows.passed_over(30) == {"g1": 20}
    assert rows.passed_over(40) == {"g1": 30, "g2": 10}
