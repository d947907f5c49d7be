"""The thread of the groups: does what it is told, one thing after the other, and looks at the clock in between.

All that is known of members is this thread's own, so nothing of it needs a lock.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final, TypeVar

from mainstem.core.clock import Clock
from mainstem.core.errors import Busy, Closed
from mainstem.core.events import Event

logger = logging.getLogger("mainstem.log")

T = TypeVar("T")

# How often it ticks in the time after something happened, and how long that is.
HURRIED_TICK_SECONDS: Final = 0.05
_HURRY_SECONDS: Final = 1.0
# How long somebody waits for what it says.
ASK_SECONDS: Final = 30.0


class GroupThread:
    """One thread, which begins with the first thing there is to do. Any thread, but for `hurry`, which is its own.

    It calls `tick` every `tick_seconds` while `is_ticking`, and `end` when it was closed and has nothing left to do.
    """

    def __init__(
        self,
        clock: Clock,
        tick_seconds: float,
        tick: Callable[[], None],
        is_ticking: Callable[[], bool],
        end: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._tick = tick
        self._is_ticking = is_ticking
        self._end = end
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._hurried_until = 0.0
        self.is_closed = False

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def post(self, action: Callable[[], None]) -> None:
        """Have something done. Closed if nothing is any more."""
        with self._changed:
            if self.is_closed:
                raise Closed("the log is closed")
            self._inbox.append(action)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mainstem-groups", daemon=True)
                self._thread.start()

    def post_quietly(self, action: Callable[[], None]) -> None:
        """Have something done, unless nothing is any more."""
        try:
            self.post(action)
        except Closed:
            return  # nobody is left to tell

    def ask(self, question: Callable[[], T]) -> T:
        """What the thread says."""
        answer: Future[T] = Future()

        def find_out() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # it belongs to who asked
                answer.set_exception(error)

        self.post(find_out)
        try:
            return answer.result(ASK_SECONDS)
        except FutureTimeout:
            raise Busy(f"the coordinator of the groups did not answer within {ASK_SECONDS:g} s; try again") from None

    def hurry(self) -> None:
        """Something happened that more will follow: tick often for a while."""
        self._hurried_until = self._clock.monotonic() + _HURRY_SECONDS

    def close(self) -> None:
        """Do what was posted, then nothing more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        tick_at = 0.0
        while True:
            with self._changed:
                if not self._inbox and not self.is_closed:
                    self._changed.wait(max(tick_at - self._clock.monotonic(), 0.0) if self._is_ticking() else None)
                is_closed = self.is_closed
                actions = tuple(self._inbox)
                self._inbox.clear()
            for action in actions:
                self._guard(action)
            if is_closed:
                break
            if self._is_ticking() and self._clock.monotonic() >= tick_at:
                self._guard(self._tick)
                now = self._clock.monotonic()
                tick_at = now + (HURRIED_TICK_SECONDS if now < self._hurried_until else self._tick_seconds)
            if self._clock.monotonic() < self._hurried_until:
                tick_at = min(tick_at, self._clock.monotonic() + HURRIED_TICK_SECONDS)
        self._end()

    def _guard(self, action: Callable[[], None]) -> None:
        """What fails for one group must not end what is done for all."""
        try:
            action()
        except Exception:
            logger.exception(Event("the coordinator of the groups failed at something"))
