"""Windows of time: fixed lengths from 1970 on, in which records are counted by their own time."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

# Where a window begins, and how many records are in it.
Tally = dict[int, int]

WINDOW_US_MIN: Final = 1_000_000
WINDOW_US_MAX: Final = 24 * 3600 * 1_000_000


def start_of(time_us: int, window_us: int) -> int:
    """Where the window of a time begins."""
    return time_us - time_us % window_us


def tally(low_us: int, high_us: int, count: int, times: Any, window_us: int) -> Tally:
    """Records by window. Most batches lie in one, which their range tells; of the others `times` has the time of every
    record, as microseconds in an array."""
    start = start_of(low_us, window_us)
    if times is None or high_us < start + window_us:
        return {start: count} if count else {}
    starts, counts = np.unique(np.asarray(times, dtype=np.int64) // window_us, return_counts=True)
    return dict(zip((starts * window_us).tolist(), counts.tolist(), strict=True))


def total(tallies: Iterable[Mapping[int, int]]) -> Tally:
    """Several tallies as one."""
    found: Tally = {}
    for each in tallies:
        for start, count in each.items():
            found[start] = found.get(start, 0) + count
    return found
