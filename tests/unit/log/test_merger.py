"""The merger's decisions: which runs of tiny entries become one, and up to where nothing has to be looked at again."""

from itertools import accumulate

import pytest

from mainstem.log.frame import COLD_BLOCK_FIRST
from mainstem.log.ledger.base import Entry
from mainstem.log.merger import RUN_ENTRIES, MergePlan, plan_merge
from tests.unit.log.parts import NOW_US

SMALL, LARGE = 100, 32 << 10


def row(
    base: int, span: int = 1, *, length: int = SMALL, gone: int = 0, schema: int = 0, transaction: int = 0
) -> Entry:
    return Entry(1, 0, base, span, span - gone, 1, 64, length, NOW_US, schema, transaction, b"")


def rows(*lengths: int, first: int = 0) -> list[Entry]:
    """Entries of one record each that follow each other."""
    return [row(base, length=length) for base, length in enumerate(lengths, first)]


def test_a_run_that_may_still_grow_is_left():
    entries = rows(*[SMALL] * (RUN_ENTRIES - 1), first=7)
    assert plan_merge(entries) == MergePlan((), 7)


def test_a_run_of_many_entries_is_merged():
    entries = rows(*[SMALL] * RUN_ENTRIES)
    assert plan_merge(entries) == MergePlan(entries, RUN_ENTRIES)


def test_a_run_of_many_bytes_is_merged_as_soon_as_it_has_them():
    entries = rows(*[LARGE - 1] * 40)
    plan = plan_merge(entries)
    assert plan == MergePlan(entries[:33], 33)
    assert sum(entry.length for entry in plan.entries[:-1]) < 1 << 20 <= sum(entry.length for entry in plan.entries)


def test_a_run_that_a_large_entry_ends_is_merged_if_it_is_worth_it():
    entries = rows(*[SMALL] * 8, LARGE, *[SMALL] * 3)
    assert plan_merge(entries) == MergePlan(entries[:8], 8)


def test_a_run_too_short_to_be_worth_it_is_never_looked_at_again():
    entries = rows(*[SMALL] * 7, LARGE, *[SMALL] * 3)
    assert plan_merge(entries) == MergePlan((), 8)


def test_cold_entries_are_settled():
    entries = [entry._replace(block=COLD_BLOCK_FIRST + entry.base) for entry in rows(*[SMALL] * 20)]
    assert plan_merge(entries, is_quiet=True) == MergePlan((), 20)


def test_large_entries_alone_are_settled():
    assert plan_merge(rows(LARGE, LARGE, first=5)) == MergePlan((), 7)


def test_an_entry_of_many_records_is_large_however_few_bytes_it_has():
    entries = [row(0, 1_024), *rows(SMALL, SMALL, first=1_024)]
    assert plan_merge(entries) == MergePlan((), 1_024)
    assert plan_merge([row(0, 1_023), row(1_023)]) == MergePlan((), 0)


@pytest.mark.parametrize("gap", [row(8, 5, gone=1), row(8, 5, gone=5, length=0)], ids=["gap", "nothing left"])
def test_an_entry_with_gaps_ends_a_run(gap):
    entries = [*rows(*[SMALL] * 8), gap, *rows(SMALL, first=13)]
    assert plan_merge(entries) == MergePlan(entries[:8], 8)
    assert plan_merge(entries[8:]) == MergePlan((), 13)


@pytest.mark.parametrize("other", [{"schema": 3}, {"transaction": 9}])
def test_an_entry_of_another_kind_ends_a_run_and_begins_the_next(other):
    entries = [*rows(*[SMALL] * 9), *(row(base, **other) for base in range(9, 20))]
    assert plan_merge(entries) == MergePlan(entries[:9], 9)
    assert plan_merge(entries[9:]) == MergePlan((), 9)
    # Too short to be worth it: passed over, but the one that ended it is the first of a run.
    assert plan_merge(entries[4:]) == MergePlan((), 9)


def test_plans_one_after_the_other_come_to_an_end():
    """However entries lie, the places to which nothing is looked at again only rise, up to the run that may grow."""
    spans = [1, 3, 2_000, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5_000, *[2] * 30]
    entries = [row(end - span, span) for span, end in zip(spans, accumulate(spans), strict=True)]
    merged: list[Entry] = []
    settled = 0
    while True:
        plan = plan_merge([entry for entry in entries if entry.end > settled])
        if not plan.entries and plan.settled == settled:
            break
        assert plan.settled > settled
        merged += plan.entries
        settled = plan.settled
    assert [entry.base for entry in merged] == list(range(2_004, 2_013))
    assert settled == entries[13].base
