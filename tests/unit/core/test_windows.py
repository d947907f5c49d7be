"""Records by window."""

import numpy as np
import pyarrow as pa

from mainstem.core import windows

SECOND = 1_000_000


def test_a_batch_within_one_window_needs_no_times():
    assert windows.tally(61 * SECOND, 119 * SECOND, 7, None, 60 * SECOND) == {60 * SECOND: 7}
    assert windows.tally(61 * SECOND, 61 * SECOND, 0, None, 60 * SECOND) == {}


def test_a_batch_over_several_windows_is_counted_record_by_record():
    times = pa.array([0, 59 * SECOND, 60 * SECOND, 200 * SECOND, -1])
    found = windows.tally(-1, 200 * SECOND, 5, times, 60 * SECOND)
    assert found == {-60 * SECOND: 1, 0: 2, 60 * SECOND: 1, 180 * SECOND: 1}


def test_tallies_agree_with_counting_one_by_one():
    random = np.random.default_rng(7)
    times = random.integers(-10 * SECOND, 10 * SECOND, 1_000)
    found = windows.tally(int(times.min()), int(times.max()), len(times), times, 3 * SECOND)
    expected: dict[int, int] = {}
    for time in times.tolist():
        start = windows.start_of(time, 3 * SECOND)
        assert start <= time < start + 3 * SECOND
        expected[start] = expected.get(start, 0) + 1
    assert found == expected


def test_several_tallies_are_one():
    assert windows.total([{0: 1, 60: 2}, {}, {60: 3}]) == {0: 1, 60: 5}
