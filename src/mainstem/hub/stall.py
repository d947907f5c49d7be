"""The stall of a hub: its server's disk is full, so appends wait, and one of them knocks now and then."""

import logging
from typing import Final

from mainstem.core.errors import DiskFull
from mainstem.core.events import Event
from mainstem.core.identity import RANDOMNESS
from mainstem.transport.retry import Backoff, GiveUp, RetryPolicy

logger = logging.getLogger("mainstem.hub")

# How often a server whose disk is full is asked again.
_KNOCK = RetryPolicy(attempt_timeout=5.0, deadline=1e9, attempts_max=None, base=0.1, cap=1.0)
_KNOCKS_MAX: Final = 20


class Stall:
    """Whether appends are held back. `refusal` says why, and is None while they are not. For one thread."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.refusal: DiskFull | None = None
        # How often that was the answer, as far as it makes the next pause longer.
        self._knocks = 0

    def begin(self, refusal: DiskFull) -> None:
        """The server takes nothing, or still takes nothing."""
        if self.refusal is None:
            logger.warning(Event("the server takes no appends; waiting", server=self._where, reason=refusal))
            self._knocks = 0
        self.refusal = refusal
        self._knocks = min(self._knocks + 1, _KNOCKS_MAX)

    def end(self, *, is_taken: bool) -> None:
        """Nothing is held back any more: something was taken, or nothing is left that waits."""
        if is_taken:
            logger.warning(Event("the server takes appends again", server=self._where))
        self.refusal = None

    def delay(self) -> float:
        """How long until the next knock."""
        delay = Backoff(_KNOCK, RANDOMNESS).next_delay(max(1, self._knocks))
        assert not isinstance(delay, GiveUp)
        return delay
