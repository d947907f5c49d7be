"""Retry etiquette: how often, how long and how politely a remote call is tried again.

Problem. When a server goes away, everyone who was connected fails in the same instant. If all of them try again after
the same pause, they arrive together, again and again, and the server that comes back is knocked over by the crowd.

Idea. Four rules, after Scribe:

- *Full jitter.* The pause before try n+1 is drawn from uniform(0, min(cap, base * factor^(n-1))), so a crowd spreads
  out over the whole interval and thins out with every round.
- *Two clocks.* Each attempt has its own timeout, and all of them, pauses included, share one deadline. An attempt is
  never given more time than the deadline leaves; a pause that would end after it is not slept, the caller learns now.
- *Only what can help.* An error whose `retriable` is false is raised at once, unchanged.
- *A ratio.* Retries are at most a tenth of the requests of the last ten seconds, plus a floor that lets a client with
  few requests retry at all. So retries never multiply the load of a server that is failing because of load.

The decisions are in `Backoff` and `Attempts`, which do no I/O; `call` only performs them. One
`RetryRatio` belongs to one hub: give the same one to all its calls.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from mainstem.core.clock import Clock
from mainstem.core.errors import DeadlineExceeded, InvalidSetting, MainstemError

T = TypeVar("T")

ATTEMPT_TIMEOUT_DEFAULT: Final = 2.0
DEADLINE_DEFAULT: Final = 30.0

# What the final error tells of a long story: its last attempts, each with this much of its text.
HISTORY_ATTEMPTS_MAX: Final = 16
HISTORY_TEXT_CHARS_MAX: Final = 160

# The ratio is counted in slices of the window, so that it needs the same memory at any rate.
_RATIO_SLICES: Final = 10


class Randomness(Protocol):
    """The one thing needed of `random.Random`: a number between the two, both included."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How one kind of call is retried. `deadline` is in seconds from the start of the call; `attempts_max` None leaves
    the deadline as the only end, for work that waits for a server to come back."""

    attempt_timeout: float = ATTEMPT_TIMEOUT_DEFAULT
    deadline: float = DEADLINE_DEFAULT
    attempts_max: int | None = 5
    base: float = 0.05
    factor: float = 2.0
    cap: float = 5.0

    def __post_init__(self) -> None:
        times = (self.attempt_timeout, self.deadline, self.base, self.cap)
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in times) or not self.factor >= 1:
            raise InvalidSetting(f"{self}: times must be more than 0 seconds, and the factor at least 1")
        if self.attempts_max is not None and self.attempts_max < 1:
            raise InvalidSetting(f"{self}: at least one attempt is needed; write attempts_max=1 for no retries")

    def ceiling(self, attempt: int) -> float:
        """The longest pause after failed attempt number `attempt`, counted from 1."""
        assert attempt >= 1, attempt
        # The exponent is bounded so that a long story does not overflow; the cap is reached long before, unless the
        # factor is 1 and the pause never grows.
        return min(self.cap, self.base * self.factor ** min(attempt - 1, 64))


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt, and why, as the end of the sentence "gave up because ..."."""

    reason: str
    is_deadline: bool = False


class RetryRatio:
    """Counts requests and retries of the last `window` seconds and says whether one more retry is within the ratio.

    `floor` retries per window are always allowed. Any thread.
    """

    def __init__(self, clock: Clock, *, ratio: float = 0.1, window: float = 10.0, floor: int = 10) -> None:
        self._clock: Final = clock
        self._ratio: Final = ratio
        self._slice_seconds: Final = window / _RATIO_SLICES
        self._floor: Final = floor
        self._lock = threading.Lock()
        # (slice number, requests, retries), oldest first; never more than the slices of one window.
        self._slices: deque[list[int]] = deque(maxlen=_RATIO_SLICES)

    def count_request(self) -> None:
        """A call was begun; its first attempt is not a retry."""
        with self._lock:
            self._current()[1] += 1

    def take_retry(self) -> bool:
        """Count one retry and return True, or return False if it would be one too many."""
        with self._lock:
            current = self._current()
            requests = sum(piece[1] for piece in self._slices)
            retries = sum(piece[2] for piece in self._slices)
            if retries + 1 > self._floor + self._ratio * requests:
                return False
            current[2] += 1
            return True

    def _current(self) -> list[int]:
        number = int(self._clock.monotonic() / self._slice_seconds)
        while self._slices and self._slices[0][0] <= number - _RATIO_SLICES:
            self._slices.popleft()
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append([number, 0, 0])
        return self._slices[-1]


class Backoff:
    """Decides what follows a failed attempt. Pure: the time is an argument, the randomness and ratio are passed in."""

    def __init__(self, policy: RetryPolicy, randomness: Randomness, ratio: RetryRatio | None = None) -> None:
        self._policy: Final = policy
        self._randomness: Final = randomness
        self._ratio: Final = ratio

    def next_delay(self, attempt: int, elapsed: float = 0.0) -> float | GiveUp:
        """Seconds to pause after failed attempt number `attempt` (from 1), `elapsed` seconds into the call."""
        policy = self._policy
        if policy.attempts_max is not None and attempt >= policy.attempts_max:
            return GiveUp(f"no more than {_times(policy.attempts_max)} may be made")
        delay = self._randomness.uniform(0.0, policy.ceiling(attempt))
        if elapsed + delay >= policy.deadline:
            return GiveUp(f"the deadline of {policy.deadline:g} s leaves no time for another", is_deadline=True)
        # Asked last: a retry that does not happen for another reason must not be counted.
        if self._ratio is not None and not self._ratio.take_retry():
            return GiveUp("too many of the last seconds' requests were retries already")
        return delay


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt may use: its own `timeout`, and the seconds left of the deadline to tell the server."""

    number: int
    timeout: float
    deadline_left: float


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One line of the history. Times in seconds; `started` counts from the start of the call."""

    number: int
    started: float
    took: float
    error: str

    def __str__(self) -> str:
        return f"attempt {self.number} at {self.started:.3f} s, after {self.took:.3f} s: {self.error}"


class Attempts:
    """The state of one call: `begin` an attempt, tell what `failed`, get the pause or the final error. One thread.

    Not an engine: it neither calls nor sleeps. Invariant: attempts are begun and failed in turn.
    """

    def __init__(
        self, policy: RetryPolicy, clock: Clock, randomness: Randomness, ratio: RetryRatio | None = None
    ) -> None:
        self._policy: Final = policy
        self._backoff: Final = Backoff(policy, randomness, ratio)
        self._clock: Final = clock
        self._started: Final = clock.monotonic()
        self._attempt_started = self._started
        self._number = 0
        self._history: deque[FailedAttempt] = deque(maxlen=HISTORY_ATTEMPTS_MAX)
        if ratio is not None:
            ratio.count_request()

    @property
    def history(self) -> tuple[FailedAttempt, ...]:
        """The last failed attempts, oldest first."""
        return tuple(self._history)

    def begin(self) -> Attempt:
        """The next attempt. The pause that came before it may have overslept: then its timeout is short, never 0."""
        self._number += 1
        self._attempt_started = self._clock.monotonic()
        left = max(0.001, self._policy.deadline - (self._attempt_started - self._started))
        return Attempt(self._number, min(self._policy.attempt_timeout, left), left)

    def failed(self, error: MainstemError) -> float:
        """Seconds to pause before the next attempt. Raises the final error if there is to be none."""
        now = self._clock.monotonic()
        text = f"{type(error).__name__}: {error}"[:HISTORY_TEXT_CHARS_MAX]
        started = self._attempt_started - self._started
        self._history.append(FailedAttempt(self._number, started, now - self._attempt_started, text))
        if not error.retriable:
            raise error
        verdict = self._backoff.next_delay(self._number, now - self._started)
        if isinstance(verdict, GiveUp):
            raise self._final(error, verdict, now - self._started) from error
        return verdict

    def _final(self, error: MainstemError, verdict: GiveUp, elapsed: float) -> MainstemError:
        # The kind of the last error is what callers look for, except that a deadline is always DeadlineExceeded.
        kind = DeadlineExceeded if verdict.is_deadline else type(error)
        tale = "; ".join(str(line) for line in self._history)
        cut = self._number - len(self._history)
        before = f"{_times(cut)} before these; " if cut else ""
        summary = f"gave up after {_times(self._number)} in {elapsed:.3f} s because {verdict.reason}"
        return kind(f"{error} ({summary}; {before}{tale})")


def call(
    attempt_once: Callable[[Attempt], T],
    *,
    policy: RetryPolicy,
    clock: Clock,
    randomness: Randomness,
    ratio: RetryRatio | None = None,
) -> T:
    """Call until it succeeds, fails for good, or the policy gives up. Blocks the calling thread.

    `attempt_once` must return or raise within `attempt.timeout` and raise only `MainstemError` for failures of the
    call; anything else is a bug and passes through untouched.
    """
    attempts = Attempts(policy, clock, randomness, ratio)
    while True:
        attempt = attempts.begin()
        try:
            return attempt_once(attempt)
        except MainstemError as error:
            delay = attempts.failed(error)
        clock.sleep(delay)


def _times(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"
