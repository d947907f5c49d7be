"""Upkeep of streams of rows: whatever is merged, compacted, erased or moved, what is left is the same at its offset."""

import random

import pyarrow as pa
import pytest

from mainstem.core.schema import Schema
from mainstem.log import contents, merger
from mainstem.log.flush import TrimShard
from mainstem.log.upkeep import merging
from tests.unit.log.keeping import DAY, HOUR, SECOND_US, Keeping
from tests.unit.log.typed import FIRST, SECOND, Rows, Seen, kept_by_compaction, make_rows


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    """Runs of few entries are merged, and a few records are enough for statistics."""
    for module in (merger, merging):
        monkeypatch.setattr(module, "RUN_ENTRIES", 16)
    for module in (merger, merging):
        monkeypatch.setattr(module, "RUN_ENTRIES_MIN", 4)
    monkeypatch.setattr(contents, "STATISTICS_RECORDS_MIN", 8)
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


def compact(keeping: Keeping, after: float) -> None:
    """Seen with something new, and then again when that has waited long enough."""
    keeping.keep()
    keeping.keep(after)


def row(key: str | None, number: int) -> dict[str, object]:
    return {"id": key, "n": number, "tags": ["t"]}


def test_tiny_batches_of_rows_become_one_with_statistics(keeping):
    rows = Rows(keeping)
    for number in range(40):
        rows.write(row(f"k{number}", number))
    assert len(rows.entries()) == 40
    assert rows.check_statistics() == 0
    keeping.keep()
    assert len(rows.entries()) < 12
    assert rows.check_statistics() == 2
    assert rows.read() == rows.read(cold=False) == rows.written
    assert keeping.counts()["entries_merged"] == 32


def test_batches_of_another_schema_or_of_none_are_not_joined_with_others(keeping):
    rows = Rows(keeping)
    for number in range(20):
        rows.write(row(f"k{number}", number))
    rows.write_tombstones(*(b"k%d" % number for number in range(20)))
    rows.set_second()
    for number in range(20):
        rows.write(row(f"k{number}", number), schema=SECOND)
    rows.write_json(*(row(f"k{number}", number) for number in range(20)))
    keeping.keep()
    schemas = {entry.schema_id for entry in rows.entries()}
    assert len(schemas) == 3
    assert rows.check_statistics() >= 3
    assert rows.read() == rows.written


def test_batches_of_two_schemas_that_alternate_become_one_of_the_newer(keeping):
    """Of two producers one has not heard of the new schema."""
    rows = Rows(keeping, key=())
    rows.set_second()
    for number in range(64):
        beside = {"keys": [b"k%d" % number], "headers": [[("h", b"v")]], "times": [keeping.clock.now_us() + number]}
        rows.write(row(f"k{number}", number), schema=SECOND if number % 2 else FIRST, **beside)
    assert len(rows.entries()) == 64
    keeping.keep()
    newest = keeping.row(rows.stream).schema_id
    assert [(entry.schema_id, entry.count) for entry in rows.entries()] == [(newest, 16)] * 4
    assert rows.check_statistics() == 4
    assert rows.read() == rows.written
    keeping.reopen(without_ledger=True)
    assert rows.read() == rows.written


def test_batches_of_older_schemas_stay_as_they_are_where_something_would_be_lost(keeping):
    rows = Rows(keeping)
    smaller = Schema(pa.schema([FIRST.arrow.field("id"), FIRST.arrow.field("n")]))
    rows.set_schema(smaller)
    for number in range(40):
        rows.write(row(f"k{number}", number), schema=smaller if number % 2 else FIRST)
    for number in range(40):
        rows.write(row(f"k{number}", number))
    keeping.keep()
    entries = rows.entries()
    # What alternates stays; a run of older rows becomes one, and stays older.
    assert [entry.count for entry in entries[:39]] == [1] * 39
    assert len(entries) < 52
    assert entries[-1].schema_id == entries[0].schema_id != entries[1].schema_id
    assert rows.read() == rows.written


def test_of_every_key_the_newest_row_stays_whatever_it_was_written_as(keeping):
    rows = Rows(keeping, cleanup="compact")
    rows.write(*(row(f"k{number % 10}", number) for number in range(40)))
    rows.set_second()
    rows.write(row("k1", 1), row("k2", 2), schema=SECOND)
    rows.write_json(row("k3", 3), row("k4", 4))
    rows.write_tombstones(b"k5", b"k6")
    rows.write(row(None, 5), row("k7", 7))
    compact(keeping, HOUR / 2)
    assert rows.read() == kept_by_compaction(rows.written)
    keys = [seen.key for seen in rows.read().values()]
    assert sorted(key for key in keys if key is not None) == [b"k%d" % number for number in range(10)]
    rows.check_statistics()
    # Tombstones go when they are old, the rows of their keys were gone before.
    rows.write(row("k8", 8))
    compact(keeping, 2 * HOUR)
    assert {b"k5", b"k6"}.isdisjoint(seen.key for seen in rows.read().values())


def test_a_key_of_several_columns_is_compacted(keeping):
    rows = Rows(keeping, cleanup="compact", key=("id", "n"))
    rows.write(row("a", 1), row("a", 2), row("a", 1), row("a1", 2), row("a", 2))
    compact(keeping, HOUR / 2)
    assert sorted(rows.read()) == [2, 3, 4]


def test_an_explicit_key_is_kept_and_compacted(keeping):
    rows = Rows(keeping, cleanup="compact", key=())
    keys = [b"k%d" % (number % 10) for number in range(40)]
    headers = [None if number % 3 else [("h", b"%d" % number)] for number in range(40)]
    now = keeping.clock.now_us()
    rows.write(
        *(row(None, number) for number in range(40)),
        keys=keys,
        headers=headers,
        times=[now + number for number in range(40)],
    )
    assert rows.read() == rows.written
    compact(keeping, HOUR / 2)
    assert sorted(rows.read()) == list(range(30, 40))
    assert rows.read() == kept_by_compaction(rows.written)
    assert rows.check_statistics() == 1


def test_an_erased_key_is_gone_from_rows_json_and_tombstones(keeping):
    rows = Rows(keeping)
    for number in range(3):
        rows.write(*(row(f"k{at}", number) for at in range(12)))
        rows.write_json(row("k1", number), row("k2", number))
        rows.write_tombstones(b"k1", b"k3")
    assert keeping.log.upkeep.erase(keeping.row(rows.stream), b"k1") == 9
    left = {offset: seen for offset, seen in rows.written.items() if seen.key != b"k1"}
    assert rows.read() == rows.read(cold=False) == left
    rows.check_statistics()


def test_statistics_move_along_with_their_batches(keeping):
    """Rewriting a block changes no byte of a batch, nor of what is known of it."""
    rows = Rows(keeping)
    rows.write(row("first", 0))
    rows.write(*(row(f"k{number}", number) for number in range(30)))
    rows.write(row("last", 1))
    rows.write(row("very last", 1))
    before = {entry.base: entry.statistics for entry in rows.entries()}
    keeping.roll()
    keeping.log.execute(TrimShard(rows.stream, 0, 1))
    keeping.log.upkeep.look_at((rows.stream, 0))
    blocks = {entry.block for entry in rows.entries()}
    keeping.keep()
    keeping.keep(DAY + 60)
    keeping.keep(60)
    assert blocks.isdisjoint(entry.block for entry in rows.entries())
    # The last two, which have none, are one entry now.
    assert {entry.base: entry.statistics for entry in rows.entries()} == {1: before[1], 31: b""}
    assert rows.check_statistics() == 1
    assert rows.read() == {offset: seen for offset, seen in rows.written.items() if offset}


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
@pytest.mark.parametrize("seed", range(4))
def test_any_upkeep_leaves_the_same_rows_at_the_same_offsets(keeping, seed, cleanup):
    chance = random.Random(seed)
    rows = Rows(keeping, cleanup=cleanup, tombstones=DAY)
    gone: set[int] = set()
    for _ in range(60):
        match chance.randrange(14):
            case 0 | 1 | 2:
                rows.write(*make_rows(chance, chance.randint(1, 3)))
            case 3 | 4:
                count = chance.randint(8, 60)
                times = [keeping.clock.now_us() - chance.randrange(30 * SECOND_US) for _ in range(count)]
                rows.write(*make_rows(chance, count), times=times)
            case 5 | 6:
                rows.set_second()
                rows.write(*make_rows(chance, chance.randint(1, 30)), schema=SECOND)
            case 7:
                rows.write_json(*make_rows(chance, chance.randint(1, 12)))
            case 8:
                rows.write_tombstones(*(b"key %d" % chance.randrange(20) for _ in range(chance.randint(1, 10))))
            case 9:
                key = b"key %d" % chance.randrange(20)
                keeping.log.upkeep.erase(keeping.row(rows.stream), key)
                gone |= {offset for offset, seen in rows.written.items() if seen.key == key}
            case 10:
                keeping.roll()
            case 11:
                keeping.reopen(without_ledger=chance.random() < 0.3)
            case _:
                keeping.keep(chance.choice([0.0, 30.0, 300.0]))
        found = rows.read(cold=chance.random() < 0.8)
        left = {offset: seen for offset, seen in rows.written.items() if offset not in gone}
        if cleanup == "delete":
            assert found == left
        else:
            # What is gone had a newer one of its key: tombstones are kept for longer than all this takes.
            assert all(left[offset] == seen for offset, seen in found.items())
            assert {offset for offset in kept_by_compaction(rows.written) if offset not in gone} <= found.keys()
        rows.check_statistics()
        rows.check_times(found, [chance.choice(list(rows.written.values() or [Seen(None, None, 0)])).time, 0, 1 << 60])
    assert rows.entries()


def test_many_tiny_batches_of_one_flush_get_statistics_when_they_are_merged(keeping):
    """Together they are no small entry, but nothing is known of them."""
    rows = Rows(keeping)
    for turn in range(16):
        rows.write_together(*([row(f"k{number}", number)] * 3 for number in range(turn, turn + 400)))
    assert len(rows.entries()) == 16
    assert all(entry.span > 1_024 and not entry.statistics for entry in rows.entries())
    keeping.keep()
    # The last waits for others to be merged with.
    assert [bool(entry.statistics) for entry in rows.entries()] == [True, True, True, False]
    assert rows.check_statistics() == 3
    assert rows.read() == rows.written
