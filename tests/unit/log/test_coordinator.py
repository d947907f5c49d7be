"""The coordinator's shell: whoever asks is answered, also when the log is closed."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from mainstem.cluster.options import GroupOptions
from mainstem.core.errors import Closed, GroupBusy, InvalidRequest, MainstemError, UnknownGroup
from mainstem.log.coordinator import Coordinator
from mainstem.log.ledger.rules import groups as rules
from mainstem.log.log import Log
from mainstem.transport.port import Answer
from mainstem.transport.sharing import (
    DeleteGroupCall,
    GetGroupCall,
    JoinGroupCall,
    LeaseGroupCall,
    LeaveGroupCall,
    ListGroupsCall,
)
from tests.unit.log.parts import make_stream


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "data")
    yield log
    log.close()


def drive(log: Log) -> None:
    log.batcher.drive()


def join(coordinator: Coordinator, member: int) -> "list[Answer | MainstemError]":
    answers: list[Answer | MainstemError] = []
    coordinator.ask(JoinGroupCall("g", member, ("orders",)), answers.append)
    return answers


def test_who_waits_or_has_just_asked_is_told_that_it_closes(log):
    coordinator = Coordinator(log, GroupOptions())
    waiting = join(coordinator, 1)
    coordinator.call(ListGroupsCall())
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(10)

    # While its thread is busy, somebody asks, and it is closed.
    coordinator._thread.post(hold)
    assert entered.wait(10)
    late = join(coordinator, 2)
    closing = threading.Thread(target=coordinator.close)
    closing.start()
    while not coordinator._thread.is_closed:
        pass
    go_on.set()
    closing.join(10)
    assert isinstance(waiting[0], Closed)
    assert isinstance(late[0], Closed)
    with pytest.raises(Closed):
        join(coordinator, 3)


@pytest.mark.parametrize(
    "call", [JoinGroupCall("g", 1, ("orders",)), LeaseGroupCall("g", 1, ("orders",), wanted=1)], ids=["whole", "spread"]
)
def test_a_member_is_told_what_would_be_refused_each_time(log, monkeypatch, call):
    monkeypatch.setattr(rules, "GROUPS_MAX", 0)
    make_stream(log)
    coordinator = Coordinator(log, GroupOptions(), wake=lambda: drive(log))
    answered = threading.Event()
    answers: list[Answer | MainstemError] = []

    def answer(result: Answer | MainstemError) -> None:
        answers.append(result)
        answered.set()

    coordinator.ask(call, answer)
    assert answered.wait(10)
    assert isinstance(answers[0], InvalidRequest)
    assert "which is the limit" in str(answers[0])
    coordinator.close()


@pytest.mark.parametrize("kind", [JoinGroupCall, partial(LeaseGroupCall, wanted=1)], ids=["whole", "spread"])
def test_an_operator_does_not_wait_for_who_came_while_the_last_member_was_going(log, kind):
    make_stream(log)
    is_driven = True
    coordinator = Coordinator(log, GroupOptions(), wake=lambda: drive(log) if is_driven else None)
    answered = threading.Event()
    coordinator.ask(kind("g", 1, ("orders",)), lambda _: answered.set())
    assert answered.wait(10)
    # The ledger does not hear yet that the member is gone.
    is_driven = False
    coordinator.ask(LeaveGroupCall("g", 1), lambda _: None)
    assert coordinator.call(ListGroupsCall()).groups[0].member_count == 0
    with ThreadPoolExecutor() as threads:
        deleting = threads.submit(coordinator.call, DeleteGroupCall("g"))
        while not deleting.running():
            pass
        time.sleep(0.2)
        assert not deleting.done()
        coordinator.ask(kind("g", 2, ("orders",)), lambda _: None)
        begun = time.monotonic()
        with pytest.raises(GroupBusy):
            deleting.result(10)
        # Not until that member is given up, either.
        assert time.monotonic() < begun + 2
    coordinator.close()


def test_an_operator_does_not_wait_for_a_group_that_finds_nothing_to_read(log):
    coordinator = Coordinator(log, GroupOptions(), wake=lambda: drive(log))
    coordinator.ask(LeaseGroupCall("g", 1, pattern="nothing-*", wanted=1), lambda _: None)
    begun = time.monotonic()
    for _ in range(20):
        with pytest.raises(UnknownGroup):
            coordinator.call(GetGroupCall("g"))
    assert time.monotonic() < begun + 5
    coordinator.close()
