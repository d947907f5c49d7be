"""Lines of clients in front of shared threads: each in its turn, in order, and nothing for who is gone."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from mainstem.server.line import Line

SECONDS_MAX = 10


class Work:
    """Pieces of work that end when they are let, and the names of those that began."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.begun: list[str] = []

    def do(self, name: str) -> str:
        self.begun.append(name)
        assert self.may_go_on.wait(SECONDS_MAX)
        return name


@contextmanager
def working(threads: int = 1) -> Iterator[tuple[Work, ThreadPoolExecutor]]:
    work = Work()
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield work, pool
        finally:
            work.may_go_on.set()


def ask(line: Line, work: Work, who: str, count: int) -> list[Future[str]]:
    return [line.submit(work.do, f"{who} {number}") for number in range(count)]


def come_to_end(futures: list[Future[Any]]) -> None:
    assert not wait(futures, SECONDS_MAX).not_done


def test_who_asks_much_waits_for_its_own():
    with working() as (work, pool):
        busy, modest, other = (Line(pool, 1) for _ in range(3))
        asked = ask(busy, work, "busy", 4) + ask(modest, work, "modest", 2) + ask(other, work, "other", 1)
        work.may_go_on.set()
        come_to_end(asked)
        assert work.begun == ["busy 0", "modest 0", "other 0", "busy 1", "modest 1", "busy 2", "busy 3"]
        assert [future.result() for future in asked[:4]] == [f"busy {number}" for number in range(4)]


@pytest.mark.parametrize("width", [1, 2])
def test_one_client_has_as_many_threads_as_its_line_is_wide(width):
    is_full = threading.Barrier(width + 1)
    running, most = 0, 0
    lock = threading.Lock()

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        is_full.wait(SECONDS_MAX)
        with lock:
            running -= 1

    with ThreadPoolExecutor(4) as pool:
        line = Line(pool, width)
        asked = [line.submit(count) for _ in range(6)]
        for _ in range(6 // width):
            is_full.wait(SECONDS_MAX)
        come_to_end(asked)
    assert most == width


def test_the_next_piece_may_be_for_other_threads():
    """In order even then: it does not begin before the one ahead of it has come to its end."""
    with working() as (work, pool), ThreadPoolExecutor(1, "others") as others:
        line = Line(pool, 1)
        first = line.submit(work.do, "first")
        second = line.submit_to(others, lambda: (first.done(), threading.current_thread().name))
        work.may_go_on.set()
        was_done, thread = second.result(SECONDS_MAX)
        assert was_done
        assert thread.startswith("others")


def test_what_has_not_begun_is_not_done_for_who_is_gone():
    with working() as (work, pool):
        gone, here = Line(pool, 2), Line(pool, 2)
        asked = ask(gone, work, "gone", 5)
        still = ask(here, work, "here", 3)
        gone.cancel()
        work.may_go_on.set()
        come_to_end(still)
        assert work.begun == ["gone 0", "here 0", "here 1", "here 2"]
        assert [future.cancelled() for future in asked] == [False, True, True, True, True]


def test_what_was_cancelled_is_passed_over():
    with working() as (work, pool):
        line = Line(pool, 1)
        asked = ask(line, work, "piece", 1_000)
        for future in asked[1:-1]:
            assert future.cancel()
        work.may_go_on.set()
        assert asked[-1].result(SECONDS_MAX) == "piece 999"
        assert work.begun == ["piece 0", "piece 999"]
        assert not line._waiting


def test_an_error_is_of_its_own_piece():
    def fail() -> None:
        raise ZeroDivisionError("oh")

    with working() as (work, pool):
        line = Line(pool, 1)
        asked: list[Future[Any]] = [line.submit(piece) for piece in (partial(work.do, "a"), fail, fail)]
        last = line.submit(work.do, "b")
        work.may_go_on.set()
        assert last.result(SECONDS_MAX) == "b"
        assert [type(future.exception()) for future in asked] == [type(None), ZeroDivisionError, ZeroDivisionError]


def test_threads_that_end_leave_what_waits(caplog):
    with working() as (work, pool):
        line = Line(pool, 1)
        asked = ask(line, work, "piece", 3)
        pool.shutdown(wait=False, cancel_futures=True)
        work.may_go_on.set()
        assert asked[0].result(SECONDS_MAX) == "piece 0"
    assert work.begun == ["piece 0"]
    assert not caplog.records
