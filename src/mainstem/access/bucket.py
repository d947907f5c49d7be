"""A token bucket: so much each second, and a little more at once."""

from typing import Final

from mainstem.core.clock import SYSTEM_CLOCK, Clock

# How much may be taken at once after a rest, in seconds of the rate.
BURST_SECONDS: Final = 2.0
# What somebody owes is forgotten beyond this: one large request at a low rate would keep it out for days.
DEBT_SECONDS_MAX: Final = 3_600.0
# Nobody who comes too early is told to wait longer than this.
_AWAY_SECONDS_MAX: Final = 10.0


class Bucket:
    """Filled at `rate` a second up to `BURST_SECONDS` of it. Filled when it is looked at: an idle one costs nothing.
    One thread at a time.

    What is larger than the bucket passes when it is full, and leaves a debt: nothing waits for ever.
    """

    def __init__(self, rate: float, clock: Clock = SYSTEM_CLOCK, burst: float | None = None) -> None:
        assert rate > 0
        self.rate = rate
        self._capacity = rate * BURST_SECONDS if burst is None else burst
        self._clock = clock
        self._level = self._capacity
        self._at = clock.monotonic()

    def take(self, count: float) -> float:
        """0 if `count` were taken; else nothing was, and in how many seconds there will be enough."""
        wait = self.lacks(count)
        if not wait:
            self._level -= count
        return wait

    def lacks(self, count: float) -> float:
        """What `take` would return; nothing is taken."""
        self._fill()
        return max(0.0, min(count, self._capacity) - self._level) / self.rate

    def charge(self, count: float, debt_seconds_max: float = DEBT_SECONDS_MAX) -> float:
        """Take `count` in any case; how many seconds until nothing is owed, which has a limit."""
        self._fill()
        self._level = max(self._level - count, -debt_seconds_max * self.rate)
        return max(0.0, -self._level / self.rate)

    def wait(self) -> float:
        """How many seconds until nothing is owed."""
        self._fill()
        return max(0.0, -self._level / self.rate)

    def spare(self) -> float:
        """How much of the upper half is there, from 0 to 1: if nobody takes it, it runs over soon."""
        self._fill()
        return max(0.0, 2 * self._level / self._capacity - 1.0)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._level = min(self._capacity, self._level + (now - self._at) * self.rate)
        self._at = now


class Turnstile:
    """Lets so many a second in, and tells each of the others when it is its turn: after an outage, when all come back
    at once, they come one after the other. One thread at a time."""

    def __init__(self, rate: float, clock: Clock = SYSTEM_CLOCK, burst: float | None = None) -> None:
        self._in = Bucket(rate, clock, burst)
        # Of those who were sent away: filled as fast, so what it owes is how long the last of them waits.
        self._away = Bucket(rate, clock, 0.0)

    def enter(self) -> float:
        """0 if one may come in, else in how many seconds to come again."""
        if not self._in.take(1):
            return 0.0
        return self._away.charge(1, _AWAY_SECONDS_MAX)
