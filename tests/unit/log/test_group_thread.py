"""The thread of the groups: it does what it is told in order, ticks while it should, and keeps nobody waiting."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from mainstem.core.clock import SystemClock
from mainstem.core.errors import Busy, Closed
from mainstem.log import group_thread
from mainstem.log.group_thread import GroupThread


def nothing() -> None:
    pass


@contextmanager
def running(
    tick: Callable[[], None] = nothing,
    *,
    tick_seconds: float = 60.0,
    is_ticking: bool = False,
    end: Callable[[], None] = nothing,
) -> Iterator[GroupThread]:
    thread = GroupThread(SystemClock(), tick_seconds, tick, lambda: is_ticking, end)
    yield thread
    thread.close()


def test_it_begins_with_the_first_thing_to_do():
    with running() as thread:
        assert not thread.has_begun
        assert thread.ask(lambda: threading.current_thread().name) == "mainstem-groups"
        assert thread.has_begun


def test_what_was_posted_is_done_before_it_ends():
    done: list[str] = []
    with running(end=lambda: done.append("end")) as thread:
        for name in ("first", "second"):
            thread.post(partial(done.append, name))
    assert done == ["first", "second", "end"]
    with pytest.raises(Closed):
        thread.post(nothing)
    thread.post_quietly(nothing)


def test_what_fails_ends_nothing_and_is_told_to_who_asked(caplog):
    def fail() -> None:
        raise ValueError("a bug")

    with running() as thread, caplog.at_level(logging.ERROR, "mainstem.log"):
        thread.post(fail)
        with pytest.raises(ValueError, match="a bug"):
            thread.ask(fail)
        assert thread.ask(lambda: 1) == 1
    assert "failed at something" in caplog.text


def test_who_asks_a_thread_that_hangs_waits_no_longer_than_that(monkeypatch):
    monkeypatch.setattr(group_thread, "ASK_SECONDS", 0.05)
    go_on = threading.Event()

    def hang() -> None:
        go_on.wait(10)

    with running() as thread:
        thread.post(hang)
        with pytest.raises(Busy, match="try again"):
            thread.ask(nothing)
        go_on.set()


def test_it_ticks_often_for_a_while_after_something_happened():
    ticked, count = threading.Event(), 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == 3:
            ticked.set()

    with running(tick, is_ticking=True) as thread:
        thread.ask(nothing)
        assert not ticked.wait(0.3)  # the next is a minute away
        thread.post(thread.hurry)
        assert ticked.wait(10)


def test_it_does_not_tick_without_a_reason():
    ticked = threading.Event()
    with running(ticked.set, tick_seconds=0.01) as thread:
        thread.ask(nothing)
        assert not ticked.wait(0.2)
