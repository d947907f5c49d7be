"""Time, passed in: the only place of the product that asks the machine what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """What the log, the server and the clients know about time. Any thread may call it."""

    def now_us(self) -> int:
        """Wall clock in microseconds since 1970, for timestamps. It may jump; nothing depends on its order."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for deadlines."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()
