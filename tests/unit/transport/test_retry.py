"""Retry etiquette: pauses, deadlines, the ratio, the tale in the final error, and a crowd that comes back politely."""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.errors import Busy, ConnectionLost, DeadlineExceeded, InvalidSetting, MainstemError, UnknownStream
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.retry import (
    HISTORY_ATTEMPTS_MAX,
    Attempt,
    Attempts,
    Backoff,
    GiveUp,
    Randomness,
    RetryPolicy,
    RetryRatio,
    call,
)


class NoJitter:
    """Always the longest pause: what clients without manners do."""

    def uniform(self, a: float, b: float, /) -> float:
        return b


class Script:
    """A remote call that fails as told, then answers. Each attempt takes `took` seconds, or its whole timeout."""

    def __init__(self, clock: SimulatedClock, failures: list[MainstemError], took: float | None = 0.01) -> None:
        self._clock = clock
        self._failures = deque(failures)
        self._took = took
        self.attempts: list[Attempt] = []

    def __call__(self, attempt: Attempt) -> str:
        self.attempts.append(attempt)
        self._clock.advance(attempt.timeout if self._took is None else min(self._took, attempt.timeout))
        if self._failures:
            raise self._failures.popleft()
        return "answer"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(autojump=True)


def lost(count: int) -> list[MainstemError]:
    return [ConnectionLost("127.0.0.1:7070 refused the connection") for _ in range(count)]


def run(script: Script, clock: SimulatedClock, policy: RetryPolicy, ratio: RetryRatio | None = None) -> str:
    return call(script, policy=policy, clock=clock, randomness=random.Random(1), ratio=ratio)


# --------------------------------------------------------------------------------------------------------- backoff


def test_ceiling_doubles_from_50_ms_up_to_5_s():
    policy = RetryPolicy()
    assert [policy.ceiling(n) for n in range(1, 10)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert policy.ceiling(10_000) == 5.0


@given(st.integers(0, 2**32), st.integers(1, 50))
def test_delay_is_between_nothing_and_the_ceiling(seed: int, attempt: int):
    policy = RetryPolicy(attempts_max=None, deadline=1e6)
    delay = Backoff(policy, random.Random(seed)).next_delay(attempt)
    assert isinstance(delay, float)
    assert 0 <= delay <= policy.ceiling(attempt)


def test_jitter_is_full_the_delays_fill_the_whole_interval():
    backoff = Backoff(RetryPolicy(attempts_max=None, deadline=1e6), random.Random(2))
    tenths = {int(float(backoff.next_delay(20)) / 0.5) for _ in range(500)}  # type: ignore[arg-type]
    assert tenths == set(range(10))


def test_gives_up_when_the_attempts_are_used_up():
    verdict = Backoff(RetryPolicy(attempts_max=3), NoJitter()).next_delay(3)
    assert verdict == GiveUp("no more than 3 attempts may be made")


def test_gives_up_rather_than_sleep_past_the_deadline():
    backoff = Backoff(RetryPolicy(deadline=1.0), NoJitter())
    assert backoff.next_delay(1, elapsed=0.94) == 0.05
    verdict = backoff.next_delay(1, elapsed=0.95)
    assert isinstance(verdict, GiveUp)
    assert verdict.is_deadline


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": 0},
        {"cap": -1},
        {"deadline": float("inf")},
        {"attempt_timeout": 0},
        {"factor": 0.5},
        {"attempts_max": 0},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]):
    with pytest.raises(InvalidSetting):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- ratio


def test_ratio_lets_a_quiet_client_retry_up_to_the_floor(clock: SimulatedClock):
    ratio = RetryRatio(clock, floor=3)
    ratio.count_request()
    assert [ratio.take_retry() for _ in range(5)] == [True, True, True, False, False]


def test_ratio_lets_a_busy_client_retry_a_tenth(clock: SimulatedClock):
    ratio = RetryRatio(clock, floor=3)
    for _ in range(1_000):
        ratio.count_request()
    assert sum(ratio.take_retry() for _ in range(1_000)) == 103


def test_ratio_forgets_after_its_window(clock: SimulatedClock):
    ratio = RetryRatio(clock, floor=2)
    assert [ratio.take_retry() for _ in range(3)] == [True, True, False]
    clock.advance(8.9)
    assert not ratio.take_retry()
    clock.advance(1.2)
    assert ratio.take_retry()
    clock.advance(1_000)
    assert ratio.take_retry()


@given(st.lists(st.tuples(st.sampled_from(["request", "retry", "wait"]), st.floats(0, 3)), max_size=300))
def test_retries_in_any_window_stay_within_the_ratio(steps: list[tuple[str, float]]):
    """Compared with a plain list of times. A slice is a tenth of the window, so a window is judged to that accuracy."""
    clock = SimulatedClock()
    ratio = RetryRatio(clock, floor=2)
    requests: list[float] = []
    retries: list[float] = []
    for what, seconds in steps:
        now = clock.monotonic()
        if what == "wait":
            clock.advance(seconds)
        elif what == "request":
            ratio.count_request()
            requests.append(now)
        elif ratio.take_retry():
            retries.append(now)
            recent = [time for time in retries if time > now - 9]
            assert len(recent) <= 2 + 0.1 * sum(time > now - 10 for time in requests)


# ------------------------------------------------------------------------------------------------------------ call


def test_call_returns_the_first_answer(clock: SimulatedClock):
    script = Script(clock, [])
    assert run(script, clock, RetryPolicy()) == "answer"
    assert [attempt.number for attempt in script.attempts] == [1]


def test_call_retries_what_can_be_retried(clock: SimulatedClock):
    script = Script(clock, lost(3))
    assert run(script, clock, RetryPolicy()) == "answer"
    assert [attempt.number for attempt in script.attempts] == [1, 2, 3, 4]


@pytest.mark.mechanism("S46")
def test_an_error_that_is_not_retriable_is_one_attempt(clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch):
    """If it were taken for one that is, it would be tried again."""
    error = UnknownStream("no stream is called 'ordrs'")
    script = Script(clock, [error])
    with pytest.raises(UnknownStream) as caught:
        run(script, clock, RetryPolicy())
    assert caught.value is error
    assert len(script.attempts) == 1
    monkeypatch.setattr(UnknownStream, "retriable", True)
    script = Script(clock, [error])
    assert run(script, clock, RetryPolicy()) == "answer"
    assert len(script.attempts) == 2


def test_a_bug_passes_through_untouched(clock: SimulatedClock):
    def broken(attempt: Attempt) -> None:
        raise KeyError(attempt.number)

    with pytest.raises(KeyError):
        call(broken, policy=RetryPolicy(), clock=clock, randomness=random.Random(1))


def test_the_final_error_keeps_its_kind_and_tells_every_attempt(clock: SimulatedClock):
    script = Script(clock, [*lost(2), Busy("64 MiB wait to be written")])
    with pytest.raises(Busy) as caught:
        run(script, clock, RetryPolicy(attempts_max=3))
    text = str(caught.value)
    assert text.startswith("64 MiB wait to be written (gave up after 3 attempts in ")
    assert "attempt 1 at 0.000 s, after 0.010 s: ConnectionLost: 127.0.0.1:7070 refused the connection;" in text
    assert "attempt 3 at " in text
    assert isinstance(caught.value.__cause__, Busy)


def test_the_final_error_after_the_deadline_is_deadline_exceeded(clock: SimulatedClock):
    script = Script(clock, lost(100))
    with pytest.raises(DeadlineExceeded, match=r"because the deadline of 2 s leaves no time for another") as caught:
        run(script, clock, RetryPolicy(deadline=2.0, attempts_max=None))
    assert isinstance(caught.value.__cause__, ConnectionLost)


def test_the_final_error_when_the_ratio_is_used_up(clock: SimulatedClock):
    script = Script(clock, lost(100))
    with pytest.raises(ConnectionLost, match="were retries already"):
        run(script, clock, RetryPolicy(attempts_max=None), RetryRatio(clock, floor=2))
    assert len(script.attempts) == 3


def test_the_tale_of_many_attempts_is_bounded(clock: SimulatedClock):
    failures: list[MainstemError] = [ConnectionLost("x" * 10_000) for _ in range(500)]
    script = Script(clock, failures)
    with pytest.raises(DeadlineExceeded) as caught:
        run(script, clock, RetryPolicy(deadline=600.0, attempts_max=None))
    assert len(script.attempts) > HISTORY_ATTEMPTS_MAX
    assert f"{len(script.attempts) - HISTORY_ATTEMPTS_MAX} attempts before these" in str(caught.value)
    assert len(str(caught.value)) < 10_000 + HISTORY_ATTEMPTS_MAX * 250 + 250


def test_attempts_share_the_deadline(clock: SimulatedClock):
    script = Script(clock, lost(100), took=None)
    with pytest.raises(DeadlineExceeded):
        run(script, clock, RetryPolicy(attempt_timeout=2.0, deadline=5.0, attempts_max=None))
    assert script.attempts[0].timeout == 2.0
    assert script.attempts[0].deadline_left == 5.0
    assert script.attempts[-1].timeout <= 2.0
    assert script.attempts[-1].timeout <= script.attempts[-1].deadline_left < 5.0


@given(st.integers(0, 2**32), st.floats(0.05, 200), st.floats(0.01, 20), st.one_of(st.none(), st.floats(0, 5)))
def test_the_deadline_is_never_exceeded(seed: int, deadline: float, timeout: float, took: float | None):
    clock = SimulatedClock(autojump=True)
    policy = RetryPolicy(attempt_timeout=timeout, deadline=deadline, attempts_max=None)
    script = Script(clock, lost(1_000), took)
    with pytest.raises(DeadlineExceeded):
        call(script, policy=policy, clock=clock, randomness=random.Random(seed))
    assert clock.monotonic() <= deadline * 1.1


@pytest.mark.mechanism("S46")
def test_attempts_that_do_not_share_the_deadline_exceed_it(monkeypatch: pytest.MonkeyPatch):
    """Each attempt may take two seconds, all of them together five. If an attempt does not know what is left of these,
    the last one takes longer."""

    def seconds() -> float:
        clock = SimulatedClock(autojump=True)
        policy = RetryPolicy(attempt_timeout=2.0, deadline=5.0, attempts_max=None)
        with pytest.raises(DeadlineExceeded):
            run(Script(clock, lost(100), took=None), clock, policy)
        return clock.monotonic()

    assert seconds() <= 5.5
    begin = Attempts.begin

    def unaware(attempts: Attempts) -> Attempt:
        return replace(begin(attempts), timeout=2.0)

    monkeypatch.setattr(Attempts, "begin", unaware)
    assert seconds() > 5.5


# ----------------------------------------------------------------------------------------------------------- async


# ------------------------------------------------------------------------------------------------------- the crowd

CLIENTS = 100
DOWN, UP, END = 10.0, 15.0, 30.0
POLL_SECONDS = 1.0


@dataclass
class Server:
    """Holds each request for a second, as a reader that waits for more. Going down breaks all of them at once."""

    clock: SimulatedClock
    # How long a client needs to find out that the server is down: refused at once, or no answer until the timeout.
    failure_seconds: float
    arrivals: list[float] = field(default_factory=list)

    def receive(self) -> tuple[bool, float]:
        """(whether it is answered, after how many seconds the client knows)"""
        now = self.clock.monotonic()
        self.arrivals.append(now)
        if DOWN <= now < UP:
            return False, self.failure_seconds
        if now < DOWN < now + POLL_SECONDS:
            return False, DOWN - now
        return True, POLL_SECONDS

    def rate_peak(self, begin: float, end: float, window: float) -> float:
        """The most requests per second in any window that begins between the two."""
        inside = [time for time in self.arrivals if begin <= time < end]
        return max((sum(first <= time < first + window for time in inside) for first in inside), default=0) / window


def client(server: Server, phase: float, policy: RetryPolicy, randomness: Randomness) -> Iterator[float]:
    """One client's life, as a generator of the seconds it waits."""
    ratio = RetryRatio(server.clock)
    yield phase
    while True:
        attempts = Attempts(policy, server.clock, randomness, ratio)
        try:
            yield from request(server, attempts)
        except MainstemError:
            yield POLL_SECONDS


def request(server: Server, attempts: Attempts) -> Iterator[float]:
    while True:
        attempts.begin()
        is_answered, seconds = server.receive()
        yield seconds
        if is_answered:
            return
        yield attempts.failed(ConnectionLost("the server went away"))


def simulate(failure_seconds: float, randomness_of: Callable[[int], Randomness]) -> Server:
    clock = SimulatedClock()
    server = Server(clock, failure_seconds)
    policy = RetryPolicy(attempt_timeout=2.0, deadline=60.0, attempts_max=None)
    lives = [client(server, POLL_SECONDS * n / CLIENTS, policy, randomness_of(n)) for n in range(CLIENTS)]
    agenda = [(0.0, number) for number in range(CLIENTS)]
    while agenda[0][0] < END:
        time, number = heapq.heappop(agenda)
        clock.advance(max(0.0, time - clock.monotonic()))
        heapq.heappush(agenda, (time + next(lives[number]), number))
    return server


@pytest.mark.mechanism("S46")
@pytest.mark.parametrize("failure_seconds", [0.001, 0.4], ids=["refuses", "silent"])
@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_comes_back_spread_out(failure_seconds: float, seed: int):
    """100 clients, the server is down for 5 s: in the second after it is back they are no more than twice as many as
    in steady state, in any tenth of it. Without jitter they arrive all at once."""
    polite = simulate(failure_seconds, lambda number: random.Random(1_000 * seed + number))
    steady = polite.rate_peak(5.0, DOWN, 1.0)
    assert steady == pytest.approx(CLIENTS / POLL_SECONDS, rel=0.05)
    assert polite.rate_peak(UP, UP + 1.0, 0.1) <= 2 * steady
    assert polite.rate_peak(UP, END, 1.0) <= 2 * steady
    # And they do come back.
    assert polite.rate_peak(END - 3.0, END, 1.0) >= 0.9 * steady


@pytest.mark.mechanism("S46")
def test_a_crowd_without_jitter_arrives_all_at_once():
    """The control: the same clients, the same pauses, but none of them drawn by chance."""
    rude = simulate(0.4, lambda _: NoJitter())
    steady = rude.rate_peak(5.0, DOWN, 1.0)
    assert rude.rate_peak(UP, UP + 1.0, 0.1) >= 5 * steady
    # A server that refuses at once meets the crowd a little later, but it meets it.
    assert simulate(0.001, lambda _: NoJitter()).rate_peak(UP, END, 0.1) >= 5 * steady
