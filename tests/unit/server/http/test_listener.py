"""Bodies on their way through the listener: whole, in order, and with as few copies as can be."""

import asyncio
import random
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import h11
import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from mainstem.core.gathering import Gathering
from mainstem.core.limits import HTTP_BODY_AHEAD_BYTES
from mainstem.server.http.bodies import Arrived
from mainstem.server.http.listener import GuardedProtocol, HttpListener
from mainstem.testing import certificates

BODY = random.Random(3).randbytes(700_000)
new_loop: Any = asyncio.new_event_loop
NEXT = b"GET /next HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = await Request(scope, receive).body()
    await Response(f"{scope['path']} {len(body)} {body == BODY}")(scope, receive, send)


async def late(scope: Any, receive: Any, send: Any) -> None:
    """Takes its time before it takes the body, and says how much of it has come by then."""
    await asyncio.sleep(0.3)
    ahead = Arrived.of(scope).size
    body = await Request(scope, receive).body()
    await Response(f"ahead={ahead} {body == BODY}")(scope, receive, send)


def answers(
    *parts: bytes, app: ASGIApp = app, tls: ssl.SSLContext | None = None, trust: ssl.SSLContext | None = None
) -> bytes:
    """What is answered to these bytes, sent a part at a time."""

    async def talk() -> bytes:
        bound = socket.create_server(("127.0.0.1", 0))
        listener = HttpListener([bound], app, 10, tls)
        serving = asyncio.ensure_future(listener.serve())
        reader, writer = await asyncio.open_connection(
            *bound.getsockname(), ssl=trust, server_hostname="localhost" if trust is not None else None
        )
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        heard = await reader.read()
        writer.close()
        listener.stop()
        await serving
        return heard

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(talk())


@pytest.fixture(autouse=True, params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the standard library, and what servers have."""
    monkeypatch.setattr(f"{__name__}.new_loop", request.param)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes went past h11."""
    found: list[int] = []
    take = GuardedProtocol._take_body

    def noted(self: GuardedProtocol, data: bytes) -> bool:
        is_taken = take(self, data)
        found.extend([len(data)] * is_taken)
        return is_taken

    monkeypatch.setattr(GuardedProtocol, "_take_body", noted)
    return found


@pytest.mark.parametrize("size", [1_000, 70_000, 300_000])
def test_a_body_of_known_length_goes_past_h11(taken, size):
    head = b"POST /first HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    cut = [BODY[at : at + size] for at in range(0, len(BODY), size)][:200]
    rest = BODY[len(b"".join(cut)) :]
    heard = answers(head, *cut, rest + NEXT)
    assert b"/first 700000 True" in heard
    assert b"/next 0 False" in heard
    # The rest of it h11 has seen: the end, and what came with the head.
    assert sum(taken) > len(BODY) // 3


def test_a_body_in_chunks_does_not(taken):
    head = b"POST /first HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[at : at + 9_999] for at in range(0, len(BODY), 9_999))
    )
    heard = answers(head, chunks[:300_000], chunks[300_000:] + b"0\r\n\r\n" + NEXT)
    assert b"/first 700000 True" in heard
    assert b"/next 0 False" in heard
    assert taken == []


def test_no_more_of_a_body_is_read_than_somebody_takes():
    head = b"POST /late HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    heard = answers(head, BODY, app=late)
    found = re.search(rb"ahead=(\d+) True", heard)
    assert found is not None, heard
    # What one read of the socket brings comes on top.
    assert HTTP_BODY_AHEAD_BYTES < int(found[1]) < len(BODY) // 2


class _Taken:
    """An application that takes the body as routes do, and says how it lies in memory."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.protocols: list[type] = []
        self.ahead_max = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        arrived = Arrived.of(scope)
        if scope["method"] == "POST":
            arrived.land(self.length)
        gathering, pieces = Gathering(), 0
        async for piece in Request(scope, receive).stream():
            if piece:
                self.ahead_max = max(self.ahead_max, len(piece))
                gathering.add(piece)
                pieces += 1
                await asyncio.sleep(0.001)
        whole = len(gathering._pieces) == 1
        body = gathering.whole().to_pybytes()
        await Response(f"{scope['path']} {body == BODY} one={whole} several={pieces > 1}")(scope, receive, send)


def test_a_large_body_lands_in_one_memory(taken):
    head = b"POST /first HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    app = _Taken(len(BODY))
    cut = [BODY[at : at + 90_000] for at in range(0, len(BODY), 90_000)]
    heard = answers(head + cut[0], *cut[1:-1], cut[-1] + NEXT, app=app)
    assert b"/first True one=True several=True" in heard, heard
    # What is behind its end is another request's.
    assert b"/next False" in heard
    assert sum(taken) < 100_000
    assert app.ahead_max <= 2 * HTTP_BODY_AHEAD_BYTES + 90_000


def test_a_body_that_is_here_or_of_unknown_length_does_not_land():
    head = b"POST /first HTTP/1.1\r\nHost: localhost\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert b"/first True" in answers(head + chunked + NEXT, app=_Taken(len(BODY)))
    whole = b"Content-Length: 5\r\n\r\nhello"
    heard = answers(head + whole + NEXT, app=_Taken(5))
    assert b"/first False one=True several=False" in heard
    assert b"/next False" in heard


def test_the_rest_of_a_body_that_is_refused_while_it_lands_is_left():
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            Arrived.of(scope).land(len(BODY))
            await receive()
        await Response(f"{scope['path']} enough")(scope, receive, send)

    head = b"POST /first HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    cut = [BODY[at : at + 90_000] for at in range(0, len(BODY), 90_000)]
    heard = answers(head + cut[0], *cut[1:-1], cut[-1] + NEXT, app=refusing)
    assert b"/first enough" in heard
    assert b"/next enough" in heard


def test_who_goes_away_while_its_body_lands_is_gone():
    gone = asyncio.Queue[str]()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        Arrived.of(scope).land(len(BODY))
        while (message := await receive())["type"] == "http.request":
            pass
        await gone.put(message["type"])

    async def talk() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        listener = HttpListener([bound], waiting, 10)
        serving = asyncio.ensure_future(listener.serve())
        _, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY[:300_000])
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        async with asyncio.timeout(5):
            assert await gone.get() == "http.disconnect"
        listener.stop()
        await serving

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())


def test_large_pieces_of_an_answer_are_not_copied(monkeypatch: pytest.MonkeyPatch):
    """They are handed on as they are, between the marks of their chunk."""
    passed: list[Any] = []
    send = h11.Connection.send_with_data_passthrough

    def noted(self: h11.Connection, event: Any) -> Any:
        found: Any = send(self, event)
        passed.extend(piece for piece in (found or ()) if piece is view)
        return found

    view = memoryview(BODY)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"before", view, b"after"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    monkeypatch.setattr(h11.Connection, "send_with_data_passthrough", noted)
    heard = answers(NEXT, app=app)
    chunks = (b"before", BODY, b"after", b"")
    assert heard.endswith(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks))
    assert len(passed) == 1


def test_what_a_request_said_is_not_kept_when_it_is_answered(monkeypatch: pytest.MonkeyPatch):
    protocols: list[GuardedProtocol] = []
    made = GuardedProtocol.connection_made

    def noted(self: GuardedProtocol, transport: Any) -> None:
        protocols.append(self)
        made(self, transport)

    async def look() -> bytes:
        bound = socket.create_server(("127.0.0.1", 0))
        listener = HttpListener([bound], app, 10)
        serving = asyncio.ensure_future(listener.serve())
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(b"GET /kept HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"x" * 50_000 + b"\r\n\r\n")
        heard = await reader.readuntil(b"False")
        protocol: Any = protocols[0]
        assert (protocol.headers, protocol.scope, protocol.cycle.scope) == ([], {}, {})
        writer.write(NEXT)
        heard += await reader.read()
        writer.close()
        listener.stop()
        await serving
        return heard

    monkeypatch.setattr(GuardedProtocol, "connection_made", noted)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert b"/next 0 False" in runner.run(look())


@pytest.mark.skipif(not certificates.is_possible(), reason="no openssl; enable: apt install openssl")
def test_the_same_through_tls(tmp_path: Path):
    authority = certificates.Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust = ssl.create_default_context(cafile=authority.certificate)
    head = b"POST /first HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    for number in (1, 2):
        # A context that is given other files has the other certificate from then on.
        issued = authority.issue("localhost")
        tls.load_cert_chain(*issued)
        for taker in (app, _Taken(len(BODY))):
            heard = answers(head + BODY[:9], BODY[9:400_000], BODY[400_000:] + NEXT, app=taker, tls=tls, trust=trust)
            assert (b"/first 700000 True" if taker is app else b"/first True one=True") in heard, number
            assert b"/next" in heard
