"""A server in the test's own process, on a clock that the test moves, and a client that says what it is told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.batch import Batch
from mainstem.core.kinds import Address
from mainstem.core.limits import RECEIVE_SHARE_BYTES
from mainstem.core.settings import Settings
from mainstem.server.server import Server
from mainstem.server.session import Session
from mainstem.server.sockets import address_of, bind
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.loop import new_loop
from mainstem.transport.port import Answer, CreateStreamCall
from mainstem.transport.wire import Append, Hello, Kind, Message, MessageReader, error_from, pack
from tests.unit.log.parts import FOREVER_US

SECONDS_MAX = 30
_UUID = "0123456789abcdef" * 2


class Client:
    """One connection to a server, message by message, and what the server has of it."""

    session: Session

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._messages = MessageReader(bytearray(RECEIVE_SHARE_BYTES))
        self._messages.allow_large()
        self._got: list[Message] = []

    async def hello(self, name: str = "test", *, token: str = "", version: int = 1) -> "Client":
        await self.send(Kind.HELLO, 1, Hello(1, version, name, token))
        assert (await self.next()).kind == Kind.WELCOME
        return self

    async def send(self, kind: Kind, id_: int, header: Any = None, payloads: Any = ()) -> None:
        await self.send_bytes(b"".join(pack(kind, id_, header, payloads)))

    async def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def next(self) -> Message:
        """The next message; ConnectionError if the server ended the connection."""
        while not self._got:
            data = await self._reader.read(1 << 20)
            if not data:
                raise ConnectionError
            self._got += self._messages.feed(data)
        return self._got.pop(0)

    async def next_but(self, kind: Kind) -> Message:
        """The next message that is not of this kind."""
        while (message := await self.next()).kind == kind:
            pass
        return message


class Rig:
    """A server and its clients."""

    def __init__(self, server: Server, clock: SimulatedClock, address: str) -> None:
        self.server = server
        self.clock = clock
        self.address = address
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._clients: list[Client] = []
        # What lets threads go on that a test holds back, however it ends.
        self.on_close: list[Callable[[], object]] = []

    async def connect(self) -> Client:
        before = set(self.server._sessions)
        client = Client(*await asyncio.open_connection(self._host, self._port))
        self._clients.append(client)
        await come_to(lambda: len(self.server._sessions) > len(before))
        (client.session,) = self.server._sessions - before
        return client

    def look(self) -> None:
        """What the server does for every session once a second."""
        for session in tuple(self.server._sessions):
            self.server._look_at(session, self.clock.monotonic())

    def close(self) -> None:
        for action in self.on_close:
            action()
        for client in self._clients:
            client.writer.transport.abort()


async def come_to(is_so: Callable[[], bool]) -> None:
    """Turn the loop until it is so."""
    while not is_so():  # noqa: ASYNC110  # nothing announces it
        await asyncio.sleep(0.001)


async def create(client: Client, name: str = "orders", uuid: str = _UUID) -> int:
    await client.send(Kind.CALL, 1, CreateStreamCall(name, retention_us=FOREVER_US, uuid=uuid))
    answer = (await client.next()).header
    assert isinstance(answer, Answer), answer
    return answer.streams[0].id


async def send_append(client: Client, id_: int, batches: list[Batch]) -> None:
    await client.send(
        Kind.APPEND, id_, Append([batch.header for batch in batches]), [batch.payload for batch in batches]
    )


async def last_error(client: Client) -> Exception:
    """The error with which the server ends the connection."""
    message = await client.next()
    assert (message.kind, message.id) == (Kind.ERROR, 0)
    with pytest.raises(ConnectionError):
        await client.next()
    return error_from(message.header)


@asynccontextmanager
async def serving(path: Path, **settings: Any) -> AsyncIterator[Rig]:
    clock = SimulatedClock()
    chosen = Settings(data=path / "data", listen=Address("127.0.0.1", 0), **settings)
    server = Server(chosen, name="test", clock=clock)
    sockets = bind(Address("127.0.0.1", 0))
    await server.start(sockets)
    rig = Rig(server, clock, address_of(sockets))
    try:
        yield rig
    finally:
        rig.close()
        await server.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """On the loop that servers have."""

    async def limited() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(limited())
