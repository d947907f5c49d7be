"""Pushing to one reader: what fails is told, what is remembered is bounded, no message is too long."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import InternalError
from mainstem.core.limits import APPEND_BATCHES_MAX, PAYLOAD_STORED_BYTES_MAX, RECEIVE_SHARE_BYTES
from mainstem.log.hot_tail import HotTail
from mainstem.log.ledger.base import StreamRow
from mainstem.server import subscription
from mainstem.server.line import Line
from mainstem.server.subscription import PushEncoder, PushSubscription
from mainstem.transport.port import ReadCounts
from mainstem.transport.wire import Kind, Message, MessageReader, error_from
from tests.unit.log.parts import NOW_US, make_batch
from tests.unit.server.parts import come_to, run


class FakeFeed:
    """Gives what it was made with, once, from the disk."""

    def __init__(self, found: "list[FetchedBatch] | Exception") -> None:
        self.stream = StreamRow(1, "0" * 32, "orders", 1, "crc32", 0, 0, 1, NOW_US, 0)
        self.is_ready = True
        self.is_done = False
        self.place = None
        self.counts = ReadCounts()
        self._found = found

    def touch(self, shards: Any) -> None:
        return None

    def hot(self, tail: HotTail, bytes_max: int) -> list[FetchedBatch]:
        return []

    def shared(self, bytes_max: int) -> list[FetchedBatch]:
        return []

    def read(self, bytes_max: int) -> list[FetchedBatch]:
        self.is_ready = False
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


class FakeConnection:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.is_blocked = False
        self.sent: list[Message] = []
        self._reader = MessageReader(bytearray(RECEIVE_SHARE_BYTES))
        self._reader.allow_large()

    def send(self, buffers: Any) -> None:
        self.sent += self._reader.feed(b"".join(buffers))


def pushed(
    found: "list[FetchedBatch] | Exception", encoder: PushEncoder | None = None
) -> tuple[list[Message], PushSubscription]:
    """What a reader is sent, and its subscription."""
    connection: Any = FakeConnection()
    feed: Any = FakeFeed(found)
    made: list[PushSubscription] = []

    async def test() -> None:
        with ThreadPoolExecutor(1) as pool:
            line = Line(pool, 1)
            made.append(PushSubscription(connection, 5, feed, 1 << 28, HotTail(1), encoder or PushEncoder(), line))
            made[0].push()
            await come_to(lambda: bool(connection.sent))
            await asyncio.sleep(0)

    run(test)
    return connection.sent, made[0]


def test_an_error_nobody_thought_of_is_told_and_ends_the_subscription(caplog):
    sent, push = pushed(ZeroDivisionError("oh"))
    assert [(message.kind, message.id) for message in sent] == [(Kind.ERROR, 5)]
    error = error_from(sent[0].header)
    assert isinstance(error, InternalError)
    assert "ZeroDivisionError: oh" in str(error)
    assert "orders" in caplog.text
    push.push()
    assert not push._reading


def test_more_batches_than_a_message_may_have_come_in_several():
    batch = make_batch()
    count = 2 * APPEND_BATCHES_MAX + 7
    sent, _ = pushed([FetchedBatch(base, batch.header, batch.payload) for base in range(count)])
    assert [len(message.payloads) for message in sent] == [APPEND_BATCHES_MAX, APPEND_BATCHES_MAX, 7]
    assert [base for message in sent for base, _ in message.header.batches] == list(range(count))


def test_more_bytes_than_a_message_may_have_come_in_several():
    batch = make_batch([bytes(7 << 20)])
    sent, _ = pushed([FetchedBatch(base, batch.header, batch.payload) for base in range(5)])
    assert [base for message in sent for base, _ in message.header.batches] == [0, 1, 2, 3, 4]
    assert [len(message.payloads) for message in sent] == [2, 1, 2]
    assert 3 * len(batch.payload) > PAYLOAD_STORED_BYTES_MAX


def test_what_comes_from_disk_has_its_own_headers():
    """Between the same offsets there may be other batches by now: merged, or with fewer records."""
    encoder = PushEncoder()
    for values in ([b"a", b"b"], [b"a"]):
        batch = make_batch(values)
        (sent,), _ = pushed([FetchedBatch(0, batch.header, batch.payload)], encoder)
        assert sent.header.batches == [(0, batch.header)]
        assert sent.payloads == [batch.payload]


def test_headers_are_encoded_once_for_all():
    batch = make_batch()
    encoder = PushEncoder()
    batches = [FetchedBatch(base, batch.header, batch.payload) for base in range(10)]
    assert encoder.encode(batches) is encoder.encode(batches)
    assert encoder.encode(batches[:5]) != encoder.encode(batches)


def test_remembered_headers_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(subscription, "_ENCODED_BYTES_MAX", 100_000)
    batch = make_batch()
    encoder = PushEncoder()
    for first in range(200):
        batches = [FetchedBatch(base, batch.header, batch.payload) for base in range(first, first + 100)]
        encoded = encoder.encode(batches)
        assert encoder.bytes <= 100_000
        assert encoder.bytes >= sum(map(len, encoder._encoded.values()))
    assert 5 < len(encoder._encoded) < 100
    # The newest is there, the oldest is encoded anew.
    assert encoder.encode(batches) is encoded
