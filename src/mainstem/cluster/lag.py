"""Lag: how far a group is behind, in records and in seconds, whether it catches up, and when it will have."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mainstem.cluster.average import MovingAverage

TREND_SECONDS: Final = 30.0
# Slower than this, in records per second, is standing still.
_TREND_MIN: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Behind:
    """One unit: where the group stands in it, where it ends, and the time of the first record that is unread, if there
    is one."""

    cursor: int
    end: int
    unread_since_us: int | None = None


@dataclass(frozen=True, slots=True)
class LagReport:
    """`records` are unread, the oldest of them for `seconds`. `trend` is how many more there are each second, less than
    0 if the group catches up, None before it is known. `catch_up_seconds` is None if it does not."""

    records: int
    seconds: float
    trend: float | None
    catch_up_seconds: float | None


class Lag:
    """The lag of one group, or of one unit, looked at now and then. One thread."""

    def __init__(self, seconds: float = TREND_SECONDS) -> None:
        self._trend = MovingAverage(seconds)
        self._last: tuple[float, int] | None = None

    def observe(self, units: Iterable[Behind], now: float, now_us: int) -> LagReport:
        """`now` is of the clock that never goes back, `now_us` of the one that records have their times of."""
        units = list(units)
        records = sum(max(unit.end - unit.cursor, 0) for unit in units)
        seconds = max((_age(unit, now_us) for unit in units), default=0.0)
        if self._last is not None and now > self._last[0]:
            self._trend.add((records - self._last[1]) / (now - self._last[0]), now)
        if self._last is None or now > self._last[0]:
            self._last = now, records
        trend = self._trend.value if self._trend.is_known else None
        return LagReport(records, seconds, trend, _catch_up(records, trend))


def _age(unit: Behind, now_us: int) -> float:
    """Clocks of writers differ: what was written in the future is not old."""
    if unit.cursor >= unit.end or unit.unread_since_us is None:
        return 0.0
    return max(now_us - unit.unread_since_us, 0) / 1_000_000


def _catch_up(records: int, trend: float | None) -> float | None:
    if not records:
        return 0.0
    return None if trend is None or trend > -_TREND_MIN else records / -trend
