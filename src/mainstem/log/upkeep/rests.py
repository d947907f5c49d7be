"""Rests between steps of upkeep and within them, so that those who write and read keep most of the machine."""

import threading
from collections.abc import Iterable, Iterator
from typing import Final

from mainstem.core.batch import FetchedBatch
from mainstem.core.clock import Clock

_REST_SECONDS_MAX: Final = 5.0
# Within a step, for how long the interpreter is held from those who commit.
_MOMENT_SECONDS: Final = 0.001


class Rests:
    """Rests of one thread that works for the part `share` of the time. `closing` ends one early."""

    def __init__(self, clock: Clock, share: float, closing: threading.Event) -> None:
        self._clock = clock
        self._share = share
        self._closing = closing
        self.are_taken = share < 1
        # Who rests within steps; others wait for what they do.
        self.thread: threading.Thread | None = None
        # Of the step under way, rests that it has taken already.
        self._rested_seconds = 0.0

    def between(self, steps: Iterator[None]) -> Iterator[None]:
        """The same steps with a rest after each, in proportion to the time it took."""
        while True:
            begun = self._clock.monotonic()
            try:
                next(steps)
            except StopIteration:
                return
            self._rest(self._clock.monotonic() - begun - self._rested_seconds)
            self._rested_seconds = 0.0
            yield

    def within(self, batches: Iterable[FetchedBatch]) -> Iterator[FetchedBatch]:
        """The same batches with a rest whenever reading them, or taking them apart, took a moment: whoever commits
        needs the interpreter every moment, and would otherwise wait for it while many small ones are looked at."""
        is_upkeep = threading.current_thread() is self.thread
        begun = self._clock.monotonic()
        for batch in batches:
            yield batch
            worked = self._clock.monotonic() - begun
            # Who erases waits for it, and does not rest.
            if is_upkeep and worked > _MOMENT_SECONDS:
                self._rest(worked)
                begun = self._clock.monotonic()

    def _rest(self, worked: float) -> None:
        """For as long as the chosen share asks for after so much work."""
        if self.are_taken and worked > 0:
            rest = min(worked * (1 / self._share - 1), _REST_SECONDS_MAX)
            self._rested_seconds += rest
            self._closing.wait(rest)
