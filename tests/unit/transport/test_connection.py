"""One framed connection: who reads when, what is held back, what is overdue."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from mainstem.core.batch import BatchHeader
from mainstem.core.limits import RECEIVE_SECONDS_MAX, RECEIVE_SHARE_BYTES
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.connection import SCRATCH_BYTES, FramedConnection
from mainstem.transport.loop import new_loop
from mainstem.transport.wire import Append, Kind, Message, ReceiveBudget, pack

SECONDS_MAX = 30


_ends: list["End"] = []


class End:
    """One side of a connection, what it got, and an event for each change."""

    def __init__(self, **options: Any) -> None:
        self.got: list[Message] = []
        self.changed = asyncio.Event()
        self.is_lost = False
        _ends.append(self)
        self.connection = FramedConnection(
            bytearray(SCRATCH_BYTES),
            on_open=lambda connection: connection.allow_large(),
            on_message=self.on_message,
            on_blocked=lambda is_blocked: self.changed.set(),
            on_lost=self._on_lost,
            **options,
        )

    def take_connection(self) -> FramedConnection:
        return self.connection

    def on_message(self, message: Message) -> None:
        self.got.append(message)
        self.changed.set()

    def _on_lost(self, error: BaseException | None) -> None:
        self.is_lost = True
        self.changed.set()

    def has(self, count: int) -> bool:
        return len(self.got) >= count

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.changed.clear()
            await self.changed.wait()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """On the loop that servers and hubs have."""

    async def limited() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            try:
                await test()
            finally:
                # The loop does not close while one is open.
                while _ends:
                    end = _ends.pop()
                    end.connection.abort()
                    await end.until(lambda end=end: end.is_lost)  # type: ignore[misc]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(limited())


async def connected(near: End, far: End, buffer_bytes: int = 0) -> None:
    sockets = socket.socketpair()
    for end, sock in zip((near, far), sockets, strict=True):
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(end.take_connection, sock=sock)


async def open_raw(end: End) -> socket.socket:
    """A socket whose other side is `end`."""
    near, far = socket.socketpair()
    far.setblocking(False)
    near.setblocking(False)
    await asyncio.get_running_loop().create_connection(end.take_connection, sock=far)
    return near


async def come_to(is_so: Callable[[], bool]) -> None:
    """Turn the loop until it is so."""
    while not is_so():  # noqa: ASYNC110  # nothing announces it
        await asyncio.sleep(0)


def append(size: int, id_: int = 1) -> bytes:
    header = BatchHeader(1, 0, 1, 1, 0, 0, size, size, 0, 7, 0, 0, 0, 0, 0)
    return b"".join(pack(Kind.APPEND, id_, Append([header]), [bytes(size)]))


def test_both_sides_send_much_at_once_and_all_of_it_arrives():
    """Far more than the buffers between them hold: a server pauses while it cannot write, a client must not."""

    async def test() -> None:
        client, server = End(), End(reads_while_blocked=False)
        await connected(client, server, buffer_bytes=16 << 10)
        for number in range(20):
            client.connection.send([append(500_000, number)])
            server.connection.send([append(500_000, number)])
        assert client.connection.is_blocked
        assert server.connection.is_blocked
        assert (client.connection.is_paused, server.connection.is_paused) == (False, True)
        await client.until(lambda: len(client.got) == 20)
        await server.until(lambda: len(server.got) == 20)
        assert [message.id for message in client.got] == [message.id for message in server.got] == list(range(20))

    run(test)


def test_what_came_with_the_message_that_made_us_pause_waits_too():
    async def test() -> None:
        server = End(reads_while_blocked=False)

        def pause_at_each(message: Message) -> None:
            server.connection.pause("test")
            server.got.append(message)
            server.changed.set()

        server.connection._on_message = pause_at_each
        raw = await open_raw(server)
        await asyncio.get_running_loop().sock_sendall(raw, b"".join(append(10, number) for number in range(5)))
        for number in range(5):
            await server.until(partial(server.has, number + 1))
            for _ in range(3):
                await asyncio.sleep(0)
            assert [message.id for message in server.got] == list(range(number + 1))
            server.connection.resume("test")
        raw.close()

    run(test)


def test_a_pause_that_comes_right_after_a_resume_holds():
    async def test() -> None:
        server = End(reads_while_blocked=False)

        def pause_at_first(message: Message) -> None:
            if not server.got:
                server.connection.pause("test")
            server.on_message(message)

        server.connection._on_message = pause_at_first
        raw = await open_raw(server)
        await asyncio.get_running_loop().sock_sendall(raw, append(10, 0) + append(10, 1))
        await server.until(partial(server.has, 1))
        server.connection.resume("test")
        server.connection.pause("again")
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(server.got) == 1
        server.connection.resume("again")
        await server.until(partial(server.has, 2))
        raw.close()

    run(test)


def test_who_asks_and_does_not_listen_is_not_answered_without_end():
    """Answers of 100 KB to questions of 40 bytes, thousands of which fit into one read."""

    async def test() -> None:
        server = End(reads_while_blocked=False)
        answer = [bytes(100_000)]

        def ask(message: Message) -> None:
            server.got.append(message)
            server.connection.send(answer)
            server.changed.set()

        server.connection._on_message = ask
        raw = await open_raw(server)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(raw, append(1) * 1_000)
        await server.until(lambda: server.connection.is_blocked)
        for _ in range(10):
            await asyncio.sleep(0)
        assert server.connection.unsent_bytes < 2_000_000
        assert len(server.got) < 100
        # Whoever listens after all gets everything.
        received = 0
        while received < 1_000 * 100_000:
            received += len(await loop.sock_recv(raw, 1 << 20))
        assert len(server.got) == 1_000
        raw.close()

    run(test)


def test_a_message_that_is_never_completed_is_overdue_however_it_drips():
    async def test() -> None:
        clock = SimulatedClock()
        server = End(clock=clock, reads_while_blocked=False)
        raw = await open_raw(server)
        loop = asyncio.get_running_loop()
        assert not server.connection.is_overdue(clock.monotonic())
        for byte in append(5_000)[:RECEIVE_SECONDS_MAX]:
            await loop.sock_sendall(raw, bytes((byte,)))
            await come_to(lambda: bool(server.connection._reader.incomplete))
            assert not server.connection.is_overdue(clock.monotonic())
            clock.advance(1.0)
        # The prefix of 16 bytes and what follows it are waited for one after the other.
        clock.advance(17.0)
        assert server.connection.is_overdue(clock.monotonic())
        raw.close()

    run(test)


def test_time_in_which_we_do_not_read_is_not_the_peers():
    async def test() -> None:
        clock = SimulatedClock()
        server = End(clock=clock, reads_while_blocked=False)
        raw = await open_raw(server)
        await asyncio.get_running_loop().sock_sendall(raw, append(5_000)[:100])
        await come_to(lambda: bool(server.connection._reader.incomplete))
        server.connection.pause("test")
        for _ in range(10):
            clock.advance(RECEIVE_SECONDS_MAX)
            assert not server.connection.is_overdue(clock.monotonic())
        server.connection.resume("test")
        clock.advance(RECEIVE_SECONDS_MAX - 1)
        assert not server.connection.is_overdue(clock.monotonic())
        clock.advance(2)
        assert server.connection.is_overdue(clock.monotonic())
        raw.close()

    run(test)


def test_without_memory_a_connection_pauses_and_goes_on_when_there_is_some():
    async def test() -> None:
        budget = ReceiveBudget(4 * RECEIVE_SHARE_BYTES, 3 * RECEIVE_SHARE_BYTES)
        ends = [End(budget=budget, reads_while_blocked=False) for _ in range(4)]
        sockets = [await open_raw(end) for end in ends]
        loop = asyncio.get_running_loop()
        whole = [append(3 * RECEIVE_SHARE_BYTES, number) for number in range(4)]
        all_begun = asyncio.Event()

        async def send(sock: socket.socket, data: bytes) -> None:
            """All begin before one goes on: none could be completed if each kept what it has and waited for more."""
            await loop.sock_sendall(sock, data[:RECEIVE_SHARE_BYTES])
            await all_begun.wait()
            await loop.sock_sendall(sock, data[RECEIVE_SHARE_BYTES:])

        sending = asyncio.gather(*map(send, sockets, whole))
        await come_to(lambda: any(end.connection.is_paused for end in ends))
        all_begun.set()
        await sending
        assert not any(end.is_lost for end in ends)
        for number, end in enumerate(ends):
            await end.until(partial(end.has, 1))
            assert [message.id for message in end.got] == [number]
        assert budget.used == 0
        for sock in sockets:
            sock.close()

    run(test)


@pytest.mark.parametrize("ends_by", ["close", "abort"])
def test_a_connection_that_ends_gives_its_memory_back(ends_by):
    async def test() -> None:
        budget = ReceiveBudget()
        server = End(budget=budget, reads_while_blocked=False)
        raw = await open_raw(server)
        await asyncio.get_running_loop().sock_sendall(raw, append(4 << 20)[: 1 << 20])
        await come_to(lambda: budget.used > 0)
        getattr(server.connection, ends_by)()
        await server.until(lambda: server.is_lost)
        assert budget.used == 0
        raw.close()

    run(test)
