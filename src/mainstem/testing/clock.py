"""A clock that moves only when a test says so."""

import heapq
import threading
from dataclasses import dataclass, field
from typing import Final

_NS_PER_SECOND: Final = 1_000_000_000

# 2026-01-01T00:00:00Z: a date that looks real in records and never depends on the day the test runs.
START_US: Final = 1_767_225_600_000_000


@dataclass(order=True, slots=True)
class _Sleeper:
    """One thread inside `sleep`. Ordered by when it is due, then by when it went to sleep."""

    due_ns: int
    number: int
    woken: threading.Event = field(default_factory=threading.Event, compare=False)
    left: threading.Event = field(default_factory=threading.Event, compare=False)


class SimulatedClock:
    """The `Clock` of tests: `advance` moves it, sleepers wake in the order in which they are due.

    Any thread may call anything. A woken sleeper sees the exact time it asked for: `advance` stops there until it has
    left `sleep`. What that thread does next runs beside `advance`; a test that needs it done first waits for it with
    `wait_for_sleepers` or by its own means.

    With `autojump` a sleep does not block: it moves the clock itself. That is for code of one thread.

    Time is kept in whole nanoseconds, so that many small steps add up exactly.
    """

    def __init__(self, start_us: int = START_US, *, autojump: bool = False) -> None:
        self._changed = threading.Condition()
        # Only one thread moves the clock at a time, or sleepers could wake out of order.
        self._moving = threading.Lock()
        self._elapsed_ns = 0
        self._wall_start_us = start_us
        self._autojump: Final = autojump
        self._sleepers: list[_Sleeper] = []
        self._number = 0

    def now_us(self) -> int:
        with self._changed:
            return self._wall_start_us + self._elapsed_ns // 1_000

    def monotonic(self) -> float:
        with self._changed:
            return self._elapsed_ns / _NS_PER_SECOND

    def sleep(self, seconds: float) -> None:
        """Block until the clock has been advanced by this much; zero or less returns at once, as `time.sleep(0)`."""
        if seconds <= 0:
            return
        if self._autojump:
            self.advance(seconds)
            return
        sleeper = self._enlist(seconds)
        sleeper.woken.wait()
        sleeper.left.set()

    def advance(self, seconds: float) -> None:
        """Move forward, waking everyone who is due on the way, in order, each at its own time."""
        if seconds < 0:
            raise ValueError(f"a clock cannot be advanced by {seconds} s; to move the wall clock back use shift_wall")
        with self._moving:
            end_ns = self._elapsed_ns + round(seconds * _NS_PER_SECOND)
            while (sleeper := self._step(end_ns)) is not None:
                sleeper.woken.set()
                sleeper.left.wait()

    def shift_wall(self, seconds: float) -> None:
        """Make the wall clock jump, forward or back, as a correction by NTP would. Monotonic time does not move."""
        with self._changed:
            self._wall_start_us += round(seconds * 1_000_000)

    @property
    def sleeper_count(self) -> int:
        """How many threads are inside `sleep` now."""
        with self._changed:
            return len(self._sleepers)

    def wait_for_sleepers(self, count: int, timeout: float = 10.0) -> None:
        """Block, in real time, until at least `count` threads sleep; TimeoutError if they do not get there."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._sleepers) >= count, timeout):
                raise TimeoutError(f"{len(self._sleepers)} of {count} threads went to sleep within {timeout} s")

    def _enlist(self, seconds: float) -> _Sleeper:
        with self._changed:
            # At least one nanosecond: a sleeper due now would never be in the future of an `advance`.
            due_ns = self._elapsed_ns + max(1, round(seconds * _NS_PER_SECOND))
            self._number += 1
            sleeper = _Sleeper(due_ns, self._number)
            heapq.heappush(self._sleepers, sleeper)
            self._changed.notify_all()
            return sleeper

    def _step(self, end_ns: int) -> _Sleeper | None:
        """Move to the next sleeper due until `end_ns` and return it, else move to `end_ns`."""
        # One critical section: nobody can fall asleep between the look and the move, and then be passed over.
        with self._changed:
            if not self._sleepers or self._sleepers[0].due_ns > end_ns:
                self._elapsed_ns = end_ns
                return None
            sleeper = heapq.heappop(self._sleepers)
            self._elapsed_ns = sleeper.due_ns
            return sleeper
