"""What a producer counts until somebody takes it, and how it is told."""

from typing import Any

from mainstem.core.errors import Busy, Forbidden
from mainstem.produce.counts import Counts, Gathered
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.counting import COUNTS_PER_CALL_MAX, Count, NoteCountsCall
from mainstem.transport.port import Answer

MINUTE = 60_000_000
UUID = "a" * 32


class Port:
    """Answers as it is told to; what is scheduled runs when the test says so."""

    def __init__(self) -> None:
        self.asked: list[NoteCountsCall] = []
        self.scheduled: list[Any] = []
        self.delays: list[float] = []
        self.answer: Any = Answer()

    def schedule(self, action, delay=0.0):
        self.scheduled.append(action)
        self.delays.append(delay)

    def run(self):
        actions, self.scheduled = self.scheduled, []
        for action in actions:
            action()

    def ask(self, call, timeout, done):
        self.asked.append(call)
        done(self.answer)

    def call(self, call, timeout=None):
        self.asked.append(call)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def counts_of(port) -> Counts:
    return Counts(port, 7, MINUTE, SimulatedClock())


def test_counts_of_one_window_are_one():
    gathered = Gathered()
    gathered.add("orders", UUID, {0: 3, MINUTE: 1}, {0: 3, MINUTE: 0})
    gathered.add("orders", UUID, {0: 2}, {0: 2})
    gathered.add("clicks", UUID, {0: 5}, None)
    assert gathered.take() == (
        Count("orders", 0, 5, 5, UUID),
        Count("clicks", 0, 5, None, UUID),
        Count("orders", MINUTE, 1, 0, UUID),
    )
    assert not gathered


def test_another_stream_of_the_same_name_is_counted_apart():
    gathered = Gathered()
    gathered.add("orders", UUID, {0: 3}, {0: 3})
    gathered.add("orders", "b" * 32, {0: 2}, {0: 2})
    assert gathered.take() == (Count("orders", 0, 3, 3, UUID), Count("orders", 0, 2, 2, "b" * 32))


def test_no_more_is_held_or_told_at_once_than_is_allowed():
    gathered = Gathered(gathered_max=COUNTS_PER_CALL_MAX + 2)
    gathered.add("orders", UUID, {number * MINUTE: 1 for number in range(COUNTS_PER_CALL_MAX + 10)}, None)
    assert gathered.uncounted == 8
    assert len(gathered.take()) == COUNTS_PER_CALL_MAX
    assert len(gathered.take()) == 2


def test_an_event_that_was_not_taken_is_said_again_as_it_is():
    port = Port()
    counts = counts_of(port)
    counts.note("orders", UUID, {0: 3}, {0: 3})
    assert 0 < port.delays[0] <= 60
    port.answer = Busy("later")
    port.run()
    counts.note("orders", UUID, {0: 4}, {0: 4})
    port.answer = Answer()
    port.run()
    port.run()
    assert [(call.number, call.counts[0].sent) for call in port.asked] == [(0, 3), (0, 3), (1, 4)]
    port.run()
    assert len(port.asked) == 3


def test_what_is_refused_for_good_is_given_up(caplog):
    port = Port()
    counts = counts_of(port)
    counts.note("orders", UUID, {0: 3}, {0: 3})
    port.answer = Forbidden("no rule allows it")
    port.run()
    port.run()
    assert len(port.asked) == 1
    assert "could not be counted" in caplog.text


def test_closing_says_the_rest_and_raises_nothing():
    port = Port()
    counts = counts_of(port)
    counts.note("orders", UUID, {0: 3}, {0: 3})
    counts.close()
    assert [call.counts for call in port.asked] == [(Count("orders", 0, 3, 3, UUID),)]
    counts.note("orders", UUID, {0: 3}, {0: 3})
    port.answer = Busy("later")
    counts.close()
    assert len(port.asked) == 2
