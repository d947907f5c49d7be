"""Sent beside seen: which windows and tiers differ, and up to when everything is there."""

import pytest

from mainstem.core.errors import InvalidSetting
from mainstem.hub.counted import SentCount
from mainstem.spark.jobs.reconciliation import Line, reconcile, summed, window_of

MINUTE = 60_000_000


def count(start, sent, acknowledged: int | None = None, producer="a", window=MINUTE):
    return SentCount(producer, 0, "test", "orders", start, window, sent, acknowledged)


def run(counts, tiers, first=0, settled=10 * MINUTE, window=MINUTE):
    return reconcile("orders", summed(counts, window), tiers, window_us=window, first_us=first, settled_us=settled)


def test_everything_is_where_it_belongs():
    found = run([count(0, 10, 10), count(MINUTE, 5, 5), count(0, 2, 2, "b")], {"read": {0: 12, MINUTE: 5}})
    assert found.differing == ()
    assert found.windows == 2
    assert found.verified_through_us == 10 * MINUTE
    assert [line.verdict for line in found.lines] == ["ok"] * 4


def test_a_missing_record_is_named_with_its_window_and_tier():
    tiers = {"read": {0: 10, MINUTE: 10}, "table": {0: 10, MINUTE: 3}}
    found = run([count(0, 10, 10), count(MINUTE, 10, 10)], tiers)
    assert found.differing == (Line("orders", MINUTE, "table", 10, 3),)
    assert found.differing[0].difference == -7
    assert found.differing[0].verdict == "missing"
    assert found.verified_through_us == MINUTE


def test_records_that_nobody_counted_are_extra():
    found = run([count(0, 10, 10)], {"read": {0: 15, 2 * MINUTE: 4}})
    assert [(line.start_us, line.difference, line.verdict) for line in found.differing] == [
        (0, 5, "extra"),
        (2 * MINUTE, 4, "extra"),
    ]
    assert found.verified_through_us == 0


def test_what_was_not_acknowledged_differs_there():
    found = run([count(0, 10, 8)], {"read": {0: 10}})
    assert [(line.tier, line.difference) for line in found.differing] == [("acknowledged", -2)]


def test_who_asks_for_no_acknowledgement_misses_none():
    found = run([count(0, 10, None), count(0, 4, 4, "b")], {"read": {0: 14}})
    assert found.differing == ()


def test_windows_that_are_not_settled_or_before_the_beginning_do_not_count():
    found = run([count(0, 10, 10), count(5 * MINUTE, 10, 10)], {"read": {}}, first=MINUTE, settled=5 * MINUTE)
    assert found.lines == ()
    assert found.verified_through_us == 5 * MINUTE


def test_short_windows_are_summed_in_long_ones():
    counts = [count(0, 1, 1), count(MINUTE, 2, 2), count(10 * MINUTE, 4, 4)]
    found = run(counts, {"read": {0: 3, 10 * MINUTE: 4}}, settled=20 * MINUTE, window=10 * MINUTE)
    assert found.differing == ()
    assert found.windows == 2


def test_the_window_is_the_longest_that_somebody_counts_in():
    counts = [count(0, 1, 1), count(0, 1, 1, window=10 * MINUTE)]
    assert window_of(counts, None) == 10 * MINUTE
    assert window_of(counts, 20 * MINUTE) == 20 * MINUTE
    assert window_of([], None) == MINUTE
    with pytest.raises(InvalidSetting, match="test counts in windows of 10m, which do not fit into those of 15m"):
        window_of(counts, 15 * MINUTE)
