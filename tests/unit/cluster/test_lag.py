"""Lag: in records, in seconds, and when it will be over."""

import pytest

from mainstem.cluster.lag import Behind, Lag

SECOND_US = 1_000_000


def test_at_the_end_there_is_none():
    report = Lag().observe([Behind(10, 10, 5)], 0.0, 100 * SECOND_US)
    assert (report.records, report.seconds, report.catch_up_seconds) == (0, 0.0, 0.0)
    assert report.trend is None


def test_records_add_up_and_the_oldest_counts():
    units = [Behind(0, 10, 40 * SECOND_US), Behind(5, 6, 70 * SECOND_US), Behind(3, 3)]
    report = Lag().observe(units, 0.0, 100 * SECOND_US)
    assert (report.records, report.seconds) == (11, 60.0)
    assert report.catch_up_seconds is None


def test_the_trend_says_when_it_is_over():
    lag = Lag()
    for second in range(60):
        report = lag.observe([Behind(second * 100, 10_000, 0)], float(second), 0)
    assert report.trend == pytest.approx(-100)
    assert report.catch_up_seconds == pytest.approx((10_000 - 5_900) / 100)


def test_a_growing_lag_is_never_over():
    lag = Lag()
    for second in range(10):
        report = lag.observe([Behind(0, second * 10, 0)], float(second), 0)
    assert report.trend == pytest.approx(10)
    assert report.catch_up_seconds is None


def test_a_record_of_the_future_is_not_old():
    assert Lag().observe([Behind(0, 1, 2 * SECOND_US)], 0.0, SECOND_US).seconds == 0.0
