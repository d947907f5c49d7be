"""A member of a group, against a coordinator that says what the test has it say, when it has it say it."""

from collections.abc import Callable, Mapping
from typing import Any

from mainstem.consume.member import Member, Unit, Wishes
from mainstem.core.errors import MainstemError
from mainstem.transport.port import Answer
from mainstem.transport.sharing import BeatGroupCall, JoinGroupCall, Membership


class Coordinator:
    """The port of a member: what it asks, and what it wants to do later."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Callable[[Answer | MainstemError], None]]] = []
        self.later: list[Callable[[], None]] = []

    def ask(self, call: Any, timeout: float, done: Callable[[Answer | MainstemError], None]) -> None:
        self.asked.append((call, done))

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        self.later.append(action)

    def answer(self, request: int, version: int, cursors: Mapping[Unit, int], hold: tuple[Unit, ...]) -> None:
        places = tuple((*unit, at) for unit, at in cursors.items())
        membership = Membership(1, version, hold, places, (), (), 3.0, 8.0)
        self.asked[request][1](Answer(membership=membership))


class Reader:
    def on_news(self) -> None:
        pass

    def read_bytes(self) -> Mapping[Unit, int]:
        return {}


def test_what_was_said_before_it_acted_is_not_news_after_it():
    """While a member acts on its first news it says that it lives, and is told of another unit, and of the first one
    again, because it had not acted yet. From that one it has read on, and committed, when it comes to it: were it news,
    it would go back to where it began, and commit what lies before its own commits."""
    coordinator, reader = Coordinator(), Reader()
    member = Member(coordinator, Wishes("g", ("s",), None, ()), reader)  # type: ignore[arg-type]
    member.start()
    assert isinstance(coordinator.asked[0][0], JoinGroupCall)
    coordinator.answer(0, 1, {(1, 0): 100}, ((1, 0),))
    first = member.news()
    assert first is not None
    (say_it_lives,) = coordinator.later
    say_it_lives()
    coordinator.answer(1, 2, {(1, 0): 100, (1, 1): 5}, ((1, 0), (1, 1)))
    member.act(first, [(1, 0)])
    assert member.news() is None
    beat = coordinator.asked[2][0]
    assert isinstance(beat, BeatGroupCall)
    coordinator.answer(2, 2, {(1, 1): 5}, ((1, 0), (1, 1)))
    second = member.news()
    assert second is not None
    assert second.membership.cursors == ((1, 1, 5),)
