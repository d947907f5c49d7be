"""Appends of several producers in one message: what leaves together, who is told what, what is sent again."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.errors import (
    DeadlineExceeded,
    DiskFull,
    InvalidRequest,
    OutOfSequence,
    ProtocolError,
    ServerStopping,
    UnknownProducer,
)
from mainstem.core.limits import APPEND_BATCHES_MAX
from mainstem.hub.requests import GATHER_BYTES, AppendRequest, PendingAppend, gather
from mainstem.transport.port import AppendResult
from mainstem.transport.wire import Appended, MessageReader, wire_error


class Producer:
    """Hands over `count` batches of `size` bytes and notes what it is told."""

    def __init__(self, size: int = 8, count: int = 1, timeout: float = 60.0) -> None:
        header = BatchHeader(1, 0, 1, 1, 0, 0, size, size, 0, 7, 0, 0, 0, 0, 0)
        self.told: list[Sequence[AppendResult]] = []
        batches = [Batch(header, bytes(size))] * count
        self.append = PendingAppend(batches, time.monotonic() + timeout, self.told.append)


def request_of(*producers: Producer) -> AppendRequest:
    return AppendRequest([producer.append for producer in producers])


def sent(request: AppendRequest) -> Any:
    reader = MessageReader(bytearray(64 << 10))
    reader.allow_large()
    [message] = reader.feed(b"".join(request.pack(5, time.monotonic())))
    return message.header


def test_small_appends_leave_together_in_their_order():
    producers = [Producer(size=8 * number) for number in range(1, 6)]
    waiting = deque(producer.append for producer in producers)
    header = sent(gather(waiting))
    assert [batch.stored_len for batch in header.batches] == [8, 16, 24, 32, 40]
    assert not waiting


def test_a_large_append_leaves_alone_and_passes_nobody():
    waiting = deque(Producer(size=size).append for size in (8, GATHER_BYTES, 16, 24))
    sizes = []
    while waiting:
        sizes.append([batch.stored_len for batch in sent(gather(waiting)).batches])
    assert sizes == [[8], [GATHER_BYTES], [16, 24]]


def test_a_message_has_no_more_batches_than_allowed():
    waiting = deque(Producer(count=APPEND_BATCHES_MAX - 1).append for _ in range(2))
    waiting.append(Producer(count=1).append)
    assert [len(sent(gather(waiting)).batches) for _ in range(2)] == [APPEND_BATCHES_MAX - 1, APPEND_BATCHES_MAX]


def test_each_producer_is_told_its_own_results():
    first, second, third = Producer(count=2), Producer(count=1), Producer(count=3)
    request = request_of(first, second, third)
    request.pack(1, time.monotonic())
    refused = wire_error(InvalidRequest("no such shard"))
    assert request.answer(Appended([10, 20, 0, 40, 50, 60], {2: refused}))
    assert first.told == [[10, 20]]
    assert third.told == [[40, 50, 60]]
    [[error]] = second.told
    assert isinstance(error, InvalidRequest)


def test_a_server_that_stops_is_no_answer():
    producer = Producer()
    request = request_of(producer)
    request.pack(1, time.monotonic())
    assert not request.answer(Appended([0], {0: wire_error(ServerStopping("stopping"))}))
    assert not producer.told
    assert request.answer(Appended([3], {}))
    assert producer.told == [[3]]


def test_who_is_late_is_told_once_and_not_sent_again():
    hasty, patient = Producer(count=2, timeout=1.0), Producer(timeout=60.0)
    request = request_of(hasty, patient)
    assert len(sent(request).batches) == 3
    assert not request.expire(time.monotonic() + 2.0, "here")
    [[error, other]] = hasty.told
    assert isinstance(error, DeadlineExceeded)
    assert other is error
    assert "not known" in str(error)
    assert not patient.told
    # The connection broke: only what is still wanted goes over the next one.
    assert len(sent(request).batches) == 1
    assert request.answer(Appended([9], {}))
    assert patient.told == [[9]]
    assert len(hasty.told) == 1


def test_a_late_answer_reaches_those_who_still_wait():
    hasty, patient = Producer(timeout=1.0), Producer(timeout=60.0)
    request = request_of(hasty, patient)
    request.pack(1, time.monotonic())
    request.expire(time.monotonic() + 2.0, "here")
    assert request.answer(Appended([1, 2], {}))
    assert patient.told == [[2]]
    assert len(hasty.told) == 1


def test_never_sent_is_said():
    producer = Producer(timeout=1.0)
    assert request_of(producer).expire(time.monotonic() + 2.0, "here")
    [[error]] = producer.told
    assert "never sent" in str(error)


@pytest.mark.parametrize("answer", [Appended([1], {}), Appended([1, 2, 3], {}), "pardon?"])
def test_an_answer_to_something_else_fails_all(answer: Any):
    producers = Producer(), Producer()
    request = request_of(*producers)
    request.pack(1, time.monotonic())
    assert request.answer(answer)
    for producer in producers:
        [[error]] = producer.told
        assert isinstance(error, ProtocolError)


def test_what_a_full_disk_refused_is_kept_and_sent_again():
    producer = Producer()
    request = request_of(producer)
    sent(request)
    assert request.is_under_way
    assert not request.answer(Appended([-1], {0: wire_error(DiskFull("no room"))}))
    assert (request.is_under_way, str(request.refusal)) == (False, "no room")
    assert producer.told == []
    sent(request)
    assert request.answer(Appended([3], {}), is_stalled=True)
    assert request.refusal is None
    assert producer.told == [[3]]


@pytest.mark.parametrize("error", [OutOfSequence("5 after 3"), UnknownProducer("who")])
def test_what_builds_on_a_refused_append_is_kept_too(error):
    producer = Producer()
    answer = Appended([-1], {0: wire_error(error)})
    assert not request_of(producer).answer(answer, is_stalled=True)
    assert producer.told == []
    # Where nothing was refused before, it is an error like any other.
    assert request_of(producer).answer(answer)
    assert [type(result) for result in producer.told[0]] == [type(error)]


def test_the_reason_of_a_missed_deadline_is_the_full_disk():
    told, unknown = Producer(timeout=1.0), Producer(timeout=1.0)
    refusal = DiskFull("3 MiB are free")
    assert request_of(told).expire(time.monotonic() + 2.0, "here", refusal)
    request = request_of(unknown)
    sent(request)
    assert request.expire(time.monotonic() + 2.0, "here", refusal)
    for producer, state in ((told, "it was not written"), (unknown, "not known")):
        (error,) = producer.told[0]
        assert isinstance(error, DiskFull)
        assert "3 MiB are free" in str(error)
        assert state in str(error)
