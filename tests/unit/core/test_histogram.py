"""Histograms: where values are counted, what is between two of them, and about which value a share does not exceed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.histogram import COMMIT_SECONDS, FLUSH_BYTES, Distribution, Histogram
from mainstem.core.limits import FLUSH_BYTES_MAX


def test_a_value_belongs_to_the_first_bound_that_it_does_not_exceed():
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.add(value)
    found = histogram.now()
    assert (found.bounds, found.counts, found.count) == ((1.0, 2.0), (2, 2, 1), 5)
    assert found.total == pytest.approx(6.6)


def test_the_bounds_rise_and_reach_the_largest_flush():
    assert list(COMMIT_SECONDS) == sorted(set(COMMIT_SECONDS))
    assert list(FLUSH_BYTES) == sorted(set(FLUSH_BYTES))
    assert FLUSH_BYTES[-1] >= FLUSH_BYTES_MAX


def test_what_was_added_since():
    before = Distribution((1.0,), (3, 1), 4.0)
    now = Distribution((1.0,), (5, 1), 5.0)
    assert now.since(before) == Distribution((1.0,), (2, 0), 1.0)
    assert now.since(None) == now
    # Another life of the process, or another version of it.
    assert Distribution((1.0,), (1, 0), 1.0).since(before) == Distribution((1.0,), (1, 0), 1.0)
    assert now.since(Distribution((2.0,), (0, 0), 0.0)) == now


def test_quantiles():
    found = Distribution((1.0, 2.0, 4.0), (0, 10, 10, 0), 0.0)
    assert found.quantile(0.5) == 2.0
    assert found.quantile(0.25) == 1.5
    assert found.quantile(1.0) == 4.0
    assert Distribution((1.0,), (0, 3), 9.0).quantile(0.5) == 1.0
    assert Distribution((1.0,), (0, 0), 0.0).quantile(0.5) is None


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_range_of_the_exact_one(values, share):
    bounds = (1.0, 5.0, 20.0, 50.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    found = histogram.now().quantile(share)
    exact = sorted(values)[math.ceil(len(values) * share) - 1]
    low = max((bound for bound in bounds if bound < exact), default=0.0)
    high = min((bound for bound in bounds if bound >= exact), default=bounds[-1])
    assert found is not None
    assert min(low, high) - 1e-9 <= found <= high + 1e-9
