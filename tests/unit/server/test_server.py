"""The server in one process: who waits for whom, who is disconnected, and what goes on whatever happens."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.errors import Busy, MainstemError, ProtocolError, ServerStopping, StreamDeleted, UnknownStream
from mainstem.core.limits import (
    APPEND_BATCHES_MAX,
    CALLS_IN_FLIGHT_MAX,
    RECEIVE_SECONDS_MAX,
    STREAM_NAME_CHARS_MAX,
)
from mainstem.log.batcher import Submission
from mainstem.log.upkeep import upkeep
from mainstem.server import server as server_module
from mainstem.server.appends import Appends
from mainstem.server.pending import PendingAppend
from mainstem.server.session import Session
from mainstem.transport.port import (
    Answer,
    Call,
    DeleteStreamCall,
    GetStreamCall,
    OffsetsAtTimeCall,
    SchemasCall,
    StatisticsCall,
)
from mainstem.transport.wire import PREFIX, Append, Kind, Message, error_from, pack
from tests.unit.log.parts import make_batch
from tests.unit.server.parts import Client, Rig, come_to, create, last_error, run, send_append, serving


async def statistics(client: Client) -> dict[str, int]:
    await client.send(Kind.CALL, 2, StatisticsCall())
    return (await client.next()).header.counters


# Who is disconnected.


def test_hello_is_due_in_time_however_it_drips(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await rig.connect()
            hello = PREFIX.pack(500, Kind.HELLO, 0, 0, 1, 400)
            for byte in hello[:5]:
                connection = client.session.connection
                assert connection is not None
                rig.look()
                assert connection.error is None
                rig.clock.advance(1.1)
                await client.send_bytes(bytes((byte,)))
                await come_to(lambda connection=connection: connection.heard_at == rig.clock.monotonic())  # type: ignore[misc]
            rig.look()
            assert "no hello within" in str(await last_error(client))

    run(test)


def test_a_message_that_is_not_completed_ends_the_connection(tmp_path):
    async def test() -> None:
        async with serving(tmp_path, idle_timeout=3600.0) as rig:
            client = await (await rig.connect()).hello()
            await client.send_bytes(PREFIX.pack(20 << 20, Kind.APPEND, 0, 0, 1, 100) + b"some")
            connection = client.session.connection
            assert connection is not None
            await come_to(lambda: bool(connection._reader.incomplete))
            rig.look()
            rig.clock.advance(RECEIVE_SECONDS_MAX - 1)
            rig.look()
            assert connection.error is None
            rig.clock.advance(2)
            rig.look()
            error = await last_error(client)
            assert isinstance(error, ProtocolError)
            assert "not complete within" in str(error)

    run(test)


def test_who_is_told_to_go_and_does_not_listen_is_gone_too(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            connection = client.session.connection
            assert connection is not None
            connection.send([bytes(32 << 20)])
            connection.fail(ProtocolError("go"))
            rig.look()
            assert client.session in rig.server._sessions
            rig.clock.advance(2)
            rig.look()
            await come_to(lambda: client.session not in rig.server._sessions)

    run(test)


def test_what_a_client_says_of_itself_is_logged_in_one_line(tmp_path, caplog):
    caplog.set_level("INFO", "mainstem.server")

    async def test() -> None:
        async with serving(tmp_path) as rig:
            await (await rig.connect()).hello("evil\n2026-01-01 CRITICAL all is lost\x1b[2J")
            liar = await (await rig.connect()).hello()
            await liar.send_bytes(b"".join(pack(Kind.CALL, 1, {"type": "no\nsuch\ncall"})))
            await last_error(liar)
            rig.clock.advance(3600)
            rig.look()
            await come_to(lambda: not rig.server._sessions)

    run(test)
    text = "\n".join(caplog.messages)
    assert "evil\\n2026" in text
    assert "no\\nsuch\\ncall" in text
    assert all(len(record.getMessage().splitlines()) == 1 for record in caplog.records)


def test_a_client_that_is_not_read_hears_that_the_server_is_there(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            connection = client.session.connection
            assert connection is not None
            connection.pause("test")
            rig.clock.advance(3600)
            rig.look()
            assert (await client.next()).kind == Kind.PONG

    run(test)


# Calls.


class SlowCalls:
    """Stands before the administration: calls wait until they may go on."""

    def __init__(self, rig: Rig) -> None:
        self.may_go_on = threading.Event()
        rig.on_close.append(self.may_go_on.set)
        self.names: list[str] = []
        self._handle = rig.server._calls._carry_out
        rig.server._calls._carry_out = self.carry_out

    def carry_out(self, call: Call) -> Answer:
        self.may_go_on.wait()
        self.names.append(getattr(call, "name", ""))
        return self._handle(call)


def test_calls_of_one_client_are_bounded_and_another_one_is_served(tmp_path):
    count = 3_000

    async def test() -> None:
        async with serving(tmp_path) as rig:
            greedy = await (await rig.connect()).hello()
            await create(greedy)
            calls = SlowCalls(rig)
            one = b"".join(pack(Kind.CALL, 7, SchemasCall("orders")))
            flood = asyncio.ensure_future(greedy.send_bytes(one * count))
            session = greedy.session
            await come_to(lambda: session.connection is not None and session.connection.is_paused)
            modest = await (await rig.connect()).hello()
            asked = asyncio.ensure_future(create(modest, "modest"))
            await come_to(lambda: modest.session.in_flight == 1)
            assert session.in_flight == CALLS_IN_FLIGHT_MAX
            calls.may_go_on.set()
            await asked
            assert calls.names.index("modest") <= 2
            answers = 0
            while answers < count:
                kind = (await greedy.next()).kind
                # Who is paused for long is told now and then that nobody has forgotten it.
                assert kind in (Kind.ANSWER, Kind.PONG)
                answers += kind == Kind.ANSWER
            await flood
            assert session.in_flight == 0

    run(test)


def test_a_stop_does_not_wait_for_the_queue(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            await create(client)
            calls = SlowCalls(rig)
            for _ in range(CALLS_IN_FLIGHT_MAX + 10):
                await client.send(Kind.CALL, 7, OffsetsAtTimeCall("orders", 0))
            await come_to(lambda: client.session.in_flight == CALLS_IN_FLIGHT_MAX)
            stop = asyncio.ensure_future(rig.server.stop())
            got = [await client.next() for _ in range(CALLS_IN_FLIGHT_MAX)]
            assert got[0].kind == Kind.GOODBYE
            assert all(isinstance(error_from(message.header), ServerStopping) for message in got[1:])
            # The one that had begun is answered, those that come after are refused.
            calls.may_go_on.set()
            await stop
            assert len(calls.names) == 1

    run(test)


def test_a_lookup_does_not_repeat_what_was_asked(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            for name in ("x" * 600_000, "$(reboot)", "a\nb"):
                for call in (GetStreamCall(name), OffsetsAtTimeCall(name, 0)):
                    await client.send(Kind.CALL, 7, call)
                    message = await client.next()
                    assert message.kind == Kind.ERROR
                    assert message.header.code == 101
                    assert len(message.header.message) < 400
            await client.send(Kind.CALL, 7, GetStreamCall("_ours"))
            assert isinstance(error_from((await client.next()).header), UnknownStream)

    run(test)


# Appends.


def test_every_error_of_a_large_request_fits_into_its_answer(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            name = "n" * STREAM_NAME_CHARS_MAX
            batch = make_batch(stream=await create(client, name), producer=7)
            await client.send(Kind.CALL, 2, DeleteStreamCall(name))
            await client.next()
            await client.send(
                Kind.APPEND, 5, Append([batch.header] * APPEND_BATCHES_MAX), [batch.payload] * APPEND_BATCHES_MAX
            )
            answer = (await client.next()).header
            assert answer.bases == [-1] * APPEND_BATCHES_MAX
            assert {error.code for error in answer.errors.values()} == {StreamDeleted.code}
            assert len(answer.errors) == APPEND_BATCHES_MAX

    run(test)


def take_long(rig: Rig, monkeypatch: pytest.MonkeyPatch, error_at: int = -1) -> list[int]:
    """Every batch takes ten milliseconds to be admitted; the sequences of those that were looked at."""
    seen: list[int] = []
    admit = rig.server.gateway.admit

    def slowly(header: BatchHeader, data: bytes, *, acknowledge: bool) -> Batch | MainstemError:
        seen.append(header.sequence)
        if len(seen) == error_at:
            raise RuntimeError("planted")
        rig.clock.advance(0.01)
        return admit(header, data, acknowledge=acknowledge)

    monkeypatch.setattr(rig.server.gateway, "admit", slowly)
    return seen


def test_others_have_their_turn_while_a_long_append_is_looked_at(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client, other = await (await rig.connect()).hello(), await (await rig.connect()).hello()
            stream = await create(client)
            seen = take_long(rig, monkeypatch)
            batches = [make_batch(stream=stream, producer=7, sequence=number) for number in range(1_010)]
            await send_append(client, 5, batches[:1_000])
            await send_append(client, 6, batches[1_000:])
            await come_to(lambda: bool(seen))
            assert not client.session.is_idle
            await other.send(Kind.CALL, 2, GetStreamCall("orders"))
            await other.next()
            assert len(seen) < 1_000, "the call did not wait for the end of the append"
            answers = [await client.next() for _ in range(2)]
            assert [(answer.id, answer.header.bases) for answer in answers] == [
                (5, list(range(1_000))),
                (6, list(range(1_000, 1_010))),
            ]
            assert seen == list(range(1_010))

    run(test)


def test_a_client_that_goes_while_its_append_is_looked_at(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client, other = await (await rig.connect()).hello(), await (await rig.connect()).hello()
            stream = await create(client)
            seen = take_long(rig, monkeypatch)
            await send_append(client, 5, [make_batch(stream=stream, producer=7, sequence=n) for n in range(1_000)])
            await come_to(lambda: bool(seen))
            connection = client.session.connection
            assert connection is not None
            connection.abort()
            await come_to(lambda: client.session.is_idle)
            looked_at = len(seen)
            assert (await statistics(other))["appends"] == 0
            assert len(seen) == looked_at < 1_000

    run(test)


def test_what_goes_wrong_in_a_later_turn_ends_the_connection(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            client = await (await rig.connect()).hello()
            stream = await create(client)
            take_long(rig, monkeypatch, error_at=3)
            await send_append(client, 5, [make_batch(stream=stream, producer=7, sequence=n) for n in range(5)])
            assert "RuntimeError: planted" in str(await last_error(client))

    run(test)


def test_repeated_batches_are_counted(tmp_path):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            stream = await create(client)
            batches = [make_batch(stream=stream, producer=7, sequence=number) for number in range(3)]

            async def append(*sent: Batch) -> list[int]:
                header = Append([batch.header for batch in sent])
                await client.send(Kind.APPEND, 5, header, [batch.payload for batch in sent])
                return (await client.next()).header.bases

            assert await append(*batches) == [0, 1, 2]
            assert (await statistics(client))["batches_repeated"] == 0
            assert await append(*batches[1:]) == [1, 2]
            assert await append(batches[2]) == [2]
            assert (await statistics(client))["batches_repeated"] == 3

    run(test)


class FullLog:
    """Stands before the log: it has room for as many submissions as the test says, and notes whose they were."""

    def __init__(self, rig: Rig, monkeypatch: Any) -> None:
        self.room = 0
        self.taken: list[Appends] = []
        monkeypatch.setattr(rig.server.log.batcher, "submit", self.submit)

    def submit(self, submission: Submission, *, wake: bool) -> None:
        if not self.room:
            raise Busy("full")
        self.room -= 1
        self.taken.append(submission.done.args[0])  # type: ignore[attr-defined]


def ask_to_append(rig: Rig, appends: Appends, seconds: float = 60.0) -> None:
    pending = PendingAppend(1, True, 1, rig.clock.monotonic() + seconds)
    pending.admitted, pending.places = [make_batch()], [0]
    appends._waiting.append(pending)
    rig.server.submit_soon(appends)


def test_who_waits_for_room_is_served_before_who_comes_later(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            log = FullLog(rig, monkeypatch)
            first, second, late = (Session(rig.server).appends for _ in range(3))
            for session in (first, first, second):
                ask_to_append(rig, session)
                await asyncio.sleep(0)
            assert list(rig.server._in_line) == [first, second]
            log.room = 1
            ask_to_append(rig, late)
            await asyncio.sleep(0)
            assert log.taken == []
            # After every flush, in their order.
            rig.server._deliver()
            assert log.taken == [first]
            log.room = 2
            ask_to_append(rig, late)
            rig.server._deliver()
            await asyncio.sleep(0)
            assert log.taken == [first, first, second]
            log.room = 10
            rig.server._deliver()
            assert log.taken == [first, first, second, late, late]
            assert not rig.server._in_line

    run(test)


def test_who_waits_for_room_is_told_when_its_time_is_over(tmp_path, monkeypatch):
    async def test() -> None:
        async with serving(tmp_path) as rig:
            FullLog(rig, monkeypatch)
            sessions = [Session(rig.server).appends for _ in range(3)]
            for session, seconds in zip(sessions, (60.0, 5.0, 60.0), strict=True):
                ask_to_append(rig, session, seconds)
                await asyncio.sleep(0)
            rig.clock.advance(10)
            rig.server._look_at_line()
            # Not only the first in line.
            assert [session.has_waiting for session in sessions] == [True, False, True]
            rig.clock.advance(60)
            rig.server._look_at_line()
            assert not rig.server._in_line

    run(test)


def test_who_is_gone_is_not_in_line(tmp_path, monkeypatch):
    """It is not read meanwhile; that it is gone is noticed when it is told that the server is there."""
    monkeypatch.setattr(server_module, "_TICK_SECONDS", 0.001)

    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            other = Session(rig.server).appends
            log = FullLog(rig, monkeypatch)
            for session in (client.session.appends, other):
                ask_to_append(rig, session)
            await come_to(lambda: len(rig.server._in_line) == 2)
            client.writer.transport.abort()
            await come_to(lambda: list(rig.server._in_line) == [other])
            log.room = 5
            rig.server._deliver()
            assert log.taken == [other]

    run(test)


# What goes on.


def test_the_regular_tasks_go_on_after_an_error(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(server_module, "_TICK_SECONDS", 0.001)
    monkeypatch.setattr(upkeep, "_ROUND_SECONDS", 0.001)
    monkeypatch.setattr(upkeep, "_RETRY_SECONDS", 0.001)

    async def test() -> None:
        async with serving(tmp_path) as rig:
            await (await rig.connect()).hello()
            looks, rounds = [0], [0]

            def look(session: Session, now: float) -> None:
                looks[0] += 1
                raise ZeroDivisionError("looking")

            def keep() -> Iterator[None]:
                rounds[0] += 1
                raise ZeroDivisionError("keeping")

            monkeypatch.setattr(rig.server, "_look_at", look)
            monkeypatch.setattr(rig.server.log.upkeep, "round", keep)
            await come_to(lambda: looks[0] > 3 and rounds[0] > 3)

    run(test)
    assert "looking" in caplog.text
    assert "keeping" in caplog.text


def test_upkeep_holds_up_neither_the_regular_tasks_nor_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_TICK_SECONDS", 0.001)
    monkeypatch.setattr(upkeep, "_ROUND_SECONDS", 0.001)
    begun, may_end = threading.Event(), threading.Event()
    rounds = [0]

    def hang() -> Iterator[None]:
        rounds[0] += 1
        begun.set()
        may_end.wait()
        yield

    async def test() -> None:
        async with serving(tmp_path) as rig:
            rig.on_close.append(may_end.set)
            client = await (await rig.connect()).hello()
            monkeypatch.setattr(rig.server.log.upkeep, "round", hang)
            await come_to(begun.is_set)
            looks = [0]

            def look(session: Session, now: float) -> None:
                looks[0] += 1

            monkeypatch.setattr(rig.server, "_look_at", look)
            await come_to(lambda: looks[0] > 3)
            await create(client)
            assert rounds == [1]

    run(test)


def test_a_message_is_handled_as_it_came(tmp_path):
    """A batch whose header does not fit its payload is refused alone; the other one of the request is written."""

    async def test() -> None:
        async with serving(tmp_path) as rig:
            client = await (await rig.connect()).hello()
            stream = await create(client)
            good = make_batch(stream=stream, producer=7)
            bad = msgspec.structs.replace(good.header, time_low=1 << 62, time_high=1 << 62, producer=9)
            await client.send(Kind.APPEND, 5, Append([bad, good.header]), [good.payload, good.payload])
            message: Message = await client.next()
            assert message.header.bases == [-1, 0]
            assert message.header.errors[0].code == 104
            assert (await statistics(client))["batches_refused"] == 1

    run(test)
