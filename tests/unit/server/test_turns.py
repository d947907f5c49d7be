"""Who waits for whom: what one client asks of the server's threads is no reason for another one to wait."""

import threading
from typing import Any

import pytest

from mainstem.consume.feed import Feed
from mainstem.core.batch import FetchedBatch
from mainstem.transport.port import (
    Answer,
    Call,
    CreateStreamCall,
    EraseKeyCall,
    GetStreamCall,
    ListStreamsCall,
    OffsetsAtTimeCall,
    TrimStreamCall,
)
from mainstem.transport.wire import Kind, Subscribe
from tests.unit.log.parts import FOREVER_US, make_batch
from tests.unit.server.parts import Client, Rig, come_to, create, run, send_append, serving

WHERE = "value IS NOT NULL"


class SlowReads:
    """Reads of feeds that begin when they are let, and the names of their streams in the order they began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
        self.may_go_on = threading.Event()
        rig.on_close.append(self.may_go_on.set)
        self.names: list[str] = []
        read = Feed.read

        def read_slowly(feed: Feed, bytes_max: int) -> list[FetchedBatch]:
            self.names.append(feed.stream.name)
            self.may_go_on.wait()
            return read(feed, bytes_max)

        monkeypatch.setattr(Feed, "read", read_slowly)


async def filled(client: Client, name: str, uuid: str) -> int:
    stream = await create(client, name, uuid)
    await send_append(client, 2, [make_batch(stream=stream, producer=7)])
    assert (await client.next()).header.bases == [0]
    return stream


def test_filters_of_one_client_do_not_keep_another_waiting(tmp_path, monkeypatch):
    count = 300

    async def test() -> None:
        async with serving(tmp_path) as rig:
            greedy, modest = [await (await rig.connect()).hello() for _ in range(2)]
            big, small = await filled(greedy, "big", "1" * 32), await filled(modest, "small", "2" * 32)
            reads = SlowReads(monkeypatch, rig)
            for id_ in range(1, count + 1):
                await greedy.send(Kind.SUBSCRIBE, id_, Subscribe(big, [0], None, 1 << 20, WHERE))
            await come_to(lambda: len(greedy.session.subscriptions) == count)
            await modest.send(Kind.SUBSCRIBE, 7, Subscribe(small, [0], None, 1 << 20, WHERE))
            await come_to(lambda: bool(modest.session.subscriptions))
            # Nobody else wanted the threads: all of them were the first client's.
            await come_to(lambda: reads.names == ["big", "big"])
            reads.may_go_on.set()
            message = await modest.next()
            assert (message.kind, message.id) == (Kind.BATCHES, 7)
            assert reads.names.index("small") <= 3
            got = [(await greedy.next()).id for _ in range(count)]
            assert sorted(got) == list(range(1, count + 1))

    run(test)


def test_a_reader_that_goes_leaves_the_line(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            stream = await filled(client, "orders", "1" * 32)
            reads = SlowReads(monkeypatch, rig)
            for id_ in range(1, 101):
                await client.send(Kind.SUBSCRIBE, id_, Subscribe(stream, [0], None, 1 << 20, WHERE))
                if id_ < 100:
                    await client.send(Kind.UNSUBSCRIBE, id_)
            await come_to(lambda: list(client.session.subscriptions) == [100])
            reads.may_go_on.set()
            assert (await client.next()).id == 100
            # Those that had begun, the one that stayed, and its next look.
            assert len(reads.names) <= 4

    run(test)


class HeldCalls:
    """One call that ends when it is let, and everything that was carried out, in the order of the ends."""

    def __init__(self, rig: Rig, held: Call) -> None:
        self.may_go_on = threading.Event()
        rig.on_close.append(self.may_go_on.set)
        self.is_held = threading.Event()
        self.done: list[Call] = []
        self._held = held
        calls: Any = rig.server._calls
        self._carry_out = calls._carry_out
        calls._carry_out = self.carry_out

    def carry_out(self, call: Call) -> Answer:
        if call == self._held:
            self.is_held.set()
            self.may_go_on.wait()
        answer: Answer = self._carry_out(call)
        self.done.append(call)
        return answer


LONG_CALLS: dict[str, Call] = {
    "erase": EraseKeyCall("big", b"ada"),
    "offsets_at_time": OffsetsAtTimeCall("big", 0),
    "trim": TrimStreamCall("big", before_us=0),
    "details": GetStreamCall("big", details=True),
    "oldest": ListStreamsCall(oldest=True),
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_a_call_that_takes_long_keeps_its_own_client_waiting_alone(tmp_path, name):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            patient, other = [await (await rig.connect()).hello() for _ in range(2)]
            await filled(patient, "big", "1" * 32)
            calls = HeldCalls(rig, LONG_CALLS[name])
            await patient.send(Kind.CALL, 3, LONG_CALLS[name])
            await patient.send(Kind.CALL, 5, CreateStreamCall("own", retention_us=FOREVER_US, uuid="3" * 32))
            await come_to(calls.is_held.is_set)
            await create(other, "others", "4" * 32)
            # Calls of one client are carried out in their order: what comes after one may build on it.
            assert patient.session.in_flight == 2
            calls.may_go_on.set()
            assert [(await patient.next()).id for _ in range(2)] == [3, 5]
            assert [getattr(call, "name", "") for call in calls.done] == [
                "others",
                getattr(LONG_CALLS[name], "name", ""),
                "own",
            ]

    run(test)


def test_an_erasure_keeps_nobody_from_starting_at_a_time(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            patient, other = [await (await rig.connect()).hello() for _ in range(2)]
            await filled(patient, "big", "1" * 32)
            erase = EraseKeyCall("big", b"ada")
            calls = HeldCalls(rig, erase)
            await patient.send(Kind.CALL, 3, erase)
            await come_to(calls.is_held.is_set)
            await other.send(Kind.CALL, 4, OffsetsAtTimeCall("big", 0))
            assert (await other.next()).header.offsets == (0,)
            assert calls.done == [OffsetsAtTimeCall("big", 0)]
            calls.may_go_on.set()
            assert (await patient.next()).header.erased.records == 0

    run(test)
