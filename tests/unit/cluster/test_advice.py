"""Advice follows the traffic, and does not flap."""

import random
from itertools import pairwise

import pytest

from mainstem.cluster.advice import Advisor, MemberLoad
from tests.unit.cluster.experiments import s12_phases


def changes(sizes: list[int]) -> int:
    return sum(a != b for a, b in pairwise(sizes))


@pytest.mark.mechanism("S12")
def test_s12_advice_goes_up_and_down_with_the_traffic_and_settles():
    """In each phase the advice settles within two periods, changes at most once after that, and whoever follows it
    has a lag under 5 s. If it stays what it was, the lag grows."""
    low, high, again = s12_phases(Advisor(drain_seconds=60.0), period=1.0, seconds=18.0)
    assert low.sizes[2] == 2
    assert 9 <= high.sizes[1] <= 11
    assert again.sizes[1] == 2
    for phase in (low, high, again):
        assert changes(phase.sizes[2:]) <= 1
        assert phase.lag_seconds_max < 5
    unheard = Advisor(drain_seconds=60.0)
    unheard._consider = lambda exact, current: setattr(unheard, "_size", 2)  # type: ignore[method-assign]
    low, high, _ = s12_phases(unheard, period=1.0, seconds=18.0)
    assert set(low.sizes) == set(high.sizes) == {2}
    assert high.lag_seconds_max > 5


def test_without_a_member_at_its_limit_nothing_is_advised():
    advisor = Advisor()
    for _ in range(5):
        advice = advisor.observe(100.0, 0.0, [MemberLoad(50.0, is_bottleneck=False)] * 2, 8)
    assert (advice.members, advice.confidence, advice.capacity) == (2, "low", None)


def test_no_more_members_than_units():
    advisor = Advisor()
    for _ in range(5):
        advice = advisor.observe(10_000.0, 0.0, [MemberLoad(100.0, is_bottleneck=True)], 4)
    assert (advice.members, advice.confidence) == (4, "high")


def test_noise_does_not_change_the_advice():
    rng = random.Random(1)
    advisor = Advisor()
    for _ in range(3):
        advisor.observe(1540.0, 0.0, [MemberLoad(200.0, is_bottleneck=True)] * 10, 64)
    sizes = {
        advisor.observe(
            1540.0 * rng.uniform(0.95, 1.05), 0.0, [MemberLoad(154.0, is_bottleneck=False)] * 10, 64
        ).members
        for _ in range(200)
    }
    assert len(sizes) == 1
