"""Calls of many clients through few threads: each in its turn, none for the dead, none kept waiting by a stop."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mainstem.core.errors import InternalError, MainstemError, ServerStopping, UnknownStream
from mainstem.server.calls import CallQueue
from mainstem.transport.port import Answer, Call, GetStreamCall
from mainstem.transport.sharing import DeleteGroupCall
from tests.unit.server.parts import come_to, run


class Work:
    """Carries out calls when it is let, and notes their names."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_wait_no_longer = threading.Event()
        self.done: list[str] = []

    def carry_out(self, call: Call) -> Answer:
        assert isinstance(call, GetStreamCall | DeleteGroupCall)
        if isinstance(call, DeleteGroupCall):
            self.may_wait_no_longer.wait()
            return Answer()
        self.may_go_on.wait()
        self.done.append(call.name)
        if call.name == "unknown":
            raise UnknownStream("no such stream")
        if call.name == "broken":
            raise ZeroDivisionError("oh")
        return Answer(offsets=(len(self.done),))


@contextmanager
def working() -> Iterator[tuple[Work, CallQueue, list[Answer | MainstemError]]]:
    work = Work()
    calls = CallQueue(work.carry_out)
    try:
        yield work, calls, []
    finally:
        work.may_go_on.set()
        work.may_wait_no_longer.set()
        calls.close()


def test_clients_take_turns():
    async def test() -> None:
        with working() as (work, calls, answers):
            for number in range(4):
                calls.add("busy", GetStreamCall(f"busy {number}"), answers.append)
            for client in ("a", "b"):
                calls.add(client, GetStreamCall(client), answers.append)
            work.may_go_on.set()
            await come_to(lambda: len(answers) == 6)
            assert work.done == ["busy 0", "a", "b", "busy 1", "busy 2", "busy 3"]

    run(test)


def test_who_asks_about_streams_does_not_wait_for_groups():
    async def test() -> None:
        with working() as (work, calls, answers):
            work.may_go_on.set()
            calls.add("operator", DeleteGroupCall("g"), lambda _: None)
            calls.add("other", GetStreamCall("stream"), answers.append)
            await come_to(lambda: len(answers) == 1)
            assert work.done == ["stream"]

    run(test)


def test_what_a_client_asked_that_is_gone_is_not_carried_out():
    async def test() -> None:
        with working() as (work, calls, answers):
            for name in ("begun", "not begun"):
                calls.add("gone", GetStreamCall(name), answers.append)
            calls.add("here", GetStreamCall("here"), answers.append)
            calls.forget("gone")
            work.may_go_on.set()
            await come_to(lambda: not calls.is_busy)
            assert work.done == ["begun", "here"]

    run(test)


def test_errors_are_answers_and_the_next_call_is_carried_out():
    async def test() -> None:
        with working() as (work, calls, answers):
            for name in ("unknown", "broken", "fine"):
                calls.add("client", GetStreamCall(name), answers.append)
            work.may_go_on.set()
            await come_to(lambda: len(answers) == 3)
            assert [type(answer) for answer in answers] == [UnknownStream, InternalError, Answer]
            assert "ZeroDivisionError: oh" in str(answers[1])

    run(test)


def test_an_error_that_was_answered_is_not_complained_of_by_the_loop():
    complaints: list[dict[str, Any]] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        with working() as (work, calls, answers):
            calls.add("client", GetStreamCall("unknown"), answers.append)
            work.may_go_on.set()
            await come_to(lambda: not calls.is_busy)
            answers.clear()
            gc.collect()

    run(test)
    assert complaints == []


def test_what_has_not_begun_can_be_refused_and_nothing_is_waited_for():
    async def test() -> None:
        with working() as (work, calls, answers):
            for number in range(3):
                calls.add("client", GetStreamCall(f"{number}"), answers.append)
            calls.refuse(ServerStopping("stopping"))
            assert [type(answer) for answer in answers] == [ServerStopping] * 2
            # The first one still hangs in its thread.
            calls.close()
            assert calls.is_busy
            work.may_go_on.set()
            await come_to(lambda: not calls.is_busy)
            await asyncio.sleep(0)
            assert work.done == ["0"]

    run(test)
