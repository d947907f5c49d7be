"""The coordinator's shell: whoever asks is answered, also when the log is closed."""

import threading

import pytest

from mainstem.cluster.options import GroupOptions
from mainstem.core.errors import Closed, InvalidRequest, MainstemError
from mainstem.log.coordinator import Coordinator
from mainstem.log.ledger.rules import groups as rules
from mainstem.log.log import Log
from mainstem.transport.port import Answer
from mainstem.transport.sharing import JoinGroupCall, LeaseGroupCall, ListGroupsCall
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
