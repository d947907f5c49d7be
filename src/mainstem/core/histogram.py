"""How values are distributed: counts per range, cheap to add to, easy to subtract and to put on a page."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import Final

import msgspec

# Seconds of one commit: from a fast disk that syncs at once to one that hangs.
COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Bytes of payload in one flush: from one small record to the most that a flush takes.
FLUSH_BYTES: Final = tuple(float(1 << power) for power in range(8, 28, 2))


class Distribution(msgspec.Struct, frozen=True):
    """A histogram at one moment. `counts` has one number per bound, of the values up to it and above the one before,
    and a last one for those above all bounds; `total` is the sum of all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def since(self, earlier: "Distribution | None") -> "Distribution":
        """What was added after `earlier`; everything, if that is none or of another life of the process."""
        if earlier is None or earlier.bounds != self.bounds or earlier.count > self.count:
            return self
        counts = tuple(max(0, count) for count in map(sub, self.counts, earlier.counts))
        return Distribution(self.bounds, counts, self.total - earlier.total)

    def quantile(self, share: float) -> float | None:
        """About the value that a `share` of all values does not exceed; None without values.

        Inside a range values are taken to be spread evenly. Above the last bound nothing is known but that bound.
        """
        if not self.count:
            return None
        wanted = share * self.count
        below = (0, *accumulate(self.counts))
        place = next(index for index, reached in enumerate(below[1:]) if reached >= wanted and self.counts[index])
        if place == len(self.bounds):
            return self.bounds[-1]
        low = self.bounds[place - 1] if place else 0.0
        return low + (self.bounds[place] - low) * (wanted - below[place]) / self.counts[place]


class Histogram:
    """Counts values by range. One thread at a time adds; any thread looks, and may miss what is being added."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def now(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)
