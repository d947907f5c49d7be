"""Advice: how many members a group should have now, from its traffic and from what one member was seen to manage.

    size = (rate * headroom + backlog / drain) / capacity of a member        rounded up, 1 to the number of units

The capacity is what members got through while they were the bottleneck: nine tenths of what was seen lately is below
it. All are in records, or all in bytes, per second. A member that waits for data says nothing about what it could do.
Advice changes only when it is off by more than 15 % in two periods that follow each other, so that it can be obeyed by
a machine.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

HEADROOM: Final = 1.3
DRAIN_SECONDS: Final = 600.0
_HYSTERESIS: Final = 0.15
_PERIODS: Final = 2
# Measurements that the capacity is taken of, and how many make it certain.
_SAMPLES_MAX: Final = 100
_SAMPLES_SURE: Final = 5


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """What one member did in a period, per second, and whether data was waiting for it all the time."""

    rate: float
    is_bottleneck: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """How many members there should be. `capacity` is what one member does per second, None if it was never seen at its
    limit: then the advice is to leave things as they are, with low confidence."""

    members: int
    confidence: Literal["low", "medium", "high"]
    capacity: float | None


class Advisor:
    """The advice for one group, period by period. One thread."""

    def __init__(self, *, headroom: float = HEADROOM, drain_seconds: float = DRAIN_SECONDS) -> None:
        self._headroom = headroom
        self._drain_seconds = drain_seconds
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._size: int | None = None
        # For how many periods another size was better.
        self._off = 0

    def observe(self, rate: float, backlog: float, loads: Sequence[MemberLoad], units: int) -> Advice:
        """One period is over: what was written per second, what is unread, and what the members did."""
        self._samples.extend(load.rate for load in loads if load.is_bottleneck and load.rate > 0)
        most = max(units, 1)
        if not self._samples:
            return Advice(min(max(len(loads), 1), most), "low", None)
        capacity = self._capacity()
        exact = (rate * self._headroom + backlog / self._drain_seconds) / capacity
        self._consider(exact, len(loads))
        assert self._size is not None
        confidence: Literal["medium", "high"] = "high" if len(self._samples) >= _SAMPLES_SURE else "medium"
        return Advice(min(self._size, most), confidence, capacity)

    def _consider(self, exact: float, current: int) -> None:
        best = max(ceil(exact), 1)
        size = self._size if self._size is not None else max(current, 1)
        is_off = exact > size * (1 + _HYSTERESIS) or ceil(exact * (1 + _HYSTERESIS)) < size
        self._off = self._off + 1 if is_off and best != size else 0
        if self._off >= _PERIODS:
            size, self._off = best, 0
        self._size = size

    def _capacity(self) -> float:
        ordered = sorted(self._samples)
        return ordered[ceil(0.9 * len(ordered)) - 1]
