"""Revenue of a place beside what the producers took."""

from decimal import Decimal

from mainstem.demo.revenue import Takings, compare_revenue
from mainstem.demo.revenue_reader import added

TOOK = {0: Takings(2, 750), 5_000_000: Takings(1, 100)}


def test_every_cent_is_there_whatever_was_made_in_sessions():
    verdict = compare_revenue("table", TOOK, {0: Takings(2, 750, 300), 5_000_000: Takings(1, 100)})
    assert verdict.is_good
    assert (verdict.total, verdict.windows) == (Takings(3, 850), 2)


def test_a_cent_too_few_and_a_window_too_many_are_named_with_their_place():
    told = {0: Takings(2, 749), 5_000_000: Takings(1, 100), 10_000_000: Takings(1, 5)}
    verdict = compare_revenue("stream", TOOK, told)
    assert verdict.findings == [
        "revenue from 00:00:00 on: the producers took 2 orders, 7.50, the stream says 2 orders, 7.49",
        "revenue from 00:00:10 on: the producers took 0 orders, 0.00, the stream says 1 orders, 0.05",
    ]


def test_a_window_that_comes_twice_counts_twice():
    row = (0, 2, Decimal("7.50"), None)
    once = added({}, [row])
    assert once == {0: Takings(2, 750)}
    assert added(once, [row]) == {0: Takings(4, 1_500)}
    assert once == {0: Takings(2, 750)}, "who looks at it meanwhile sees one state"
