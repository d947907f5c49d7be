"""Which entries become cold files."""

from mainstem.core.batch import BatchHeader, FetchedBatch
from mainstem.log.cold_plan import ColdRange, gathered, plan_ranges
from mainstem.log.frame import COLD_BLOCK_FIRST
from mainstem.log.ledger.base import Entry


def entry(base: int, span: int = 10, *, length: int = 100, time: int = 5, schema: int = 0, block: int = 1) -> Entry:
    count = span if length else 0
    return Entry(1, 0, base, span, count, block if length else 0, base * 10, length, time, schema, 0, b"")


def planned(*entries: Entry, barriers=(), before=100, low=1, high=1_000) -> list[tuple[int, int]]:
    return [(found.base, found.end) for found in plan_ranges(entries, barriers, before, low, high)]


def test_neighbours_go_together():
    found = list(plan_ranges([entry(0), entry(10), entry(20)], (), 100, 1, 1_000))
    assert found == [ColdRange(0, 30, 3, 300)]
    assert planned() == []


def test_nothing_new_is_taken():
    assert planned(entry(0, time=5), entry(10, time=7), entry(20, time=9), before=9) == [(0, 20)]
    assert planned(entry(0, time=9), before=9) == []
    # What is behind something new is not looked at: times of entries only rise.
    assert planned(entry(0, time=9), entry(10, time=9), before=9) == []


def test_a_range_has_one_schema_and_no_barrier_inside():
    assert planned(entry(0), entry(10, schema=3), entry(20, schema=3)) == [(0, 10), (10, 30)]
    assert planned(entry(0), entry(10), entry(20), barriers=(10,)) == [(0, 10), (10, 30)]
    # One that an earlier version stored over a barrier stays as it is.
    assert planned(entry(0), entry(10), entry(20), barriers=(15,)) == [(0, 10), (20, 30)]


def test_offsets_without_records_go_with_any_schema():
    empty = entry(10, length=0)
    assert planned(entry(0, schema=3), empty, entry(20, schema=3)) == [(0, 30)]
    assert planned(entry(0, schema=3), empty, entry(20, schema=4)) == [(0, 20), (20, 30)]
    assert planned(entry(0, length=0), entry(10, length=0)) == []


def test_what_is_cold_stays():
    assert planned(entry(0), entry(10, block=COLD_BLOCK_FIRST), entry(20)) == [(0, 10), (20, 30)]


def test_ranges_are_neither_small_nor_large():
    assert planned(entry(0), entry(10), low=300) == []
    assert planned(entry(0), entry(10), entry(20), entry(30), high=200) == [(0, 20), (20, 40)]


def batch(base: int, raw: int) -> FetchedBatch:
    return FetchedBatch(base, BatchHeader(1, 0, 10, 1, 0, 0, raw, raw, 0, 0, 0, 0, 0, 0, 0), b"")


def files(*sizes: int, low: int = 1, most: int = 100) -> list[tuple[int, int]]:
    pairs = [(entry(10 * index), [batch(10 * index, size)]) for index, size in enumerate(sizes)]
    return [(run[0].base, run[-1].end) for run, _ in gathered(pairs, low, most)]


def test_a_file_is_as_large_as_it_may_be():
    assert files(50, 50, 50, 10) == [(0, 20), (20, 40)]
    assert files() == []


def test_what_is_too_large_or_too_little_is_left():
    assert files(40, 500, 40, 40) == [(0, 10), (20, 40)]
    assert files(60, 60, 30, low=150) == [(10, 30)]
