"""A moving average of something that is measured now and then."""

from math import exp


class MovingAverage:
    """What was measured, the recent counting more: after `seconds`, a third of an old value is left."""

    __slots__ = ("_at", "_seconds", "value")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: float | None = None
        self.value = 0.0

    @property
    def is_known(self) -> bool:
        return self._at is not None

    def add(self, value: float, now: float) -> None:
        """One measurement, of the time since the one before."""
        if self._at is None:
            self.value = value
        else:
            self.value += (value - self.value) * (1 - exp(-max(now - self._at, 0.0) / self._seconds))
        self._at = now
