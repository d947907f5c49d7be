"""Bodies on their way through the listener: whole, in order, and with as few copies as can be."""

import asyncio
import random
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from mainstem.core.limits import HTTP_BODY_AHEAD_BYTES, HTTP_HEAD_SHARE_BYTES
from mainstem.server.http.bodies import Arrived
from mainstem.server.http.listener import GuardedProtocol, HttpListener

BODY = random.Random(3).randbytes(700_000)
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

    return asyncio.run(talk())


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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_the_same_through_tls(tmp_path: Path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for name in ("localhost", "renewed"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
                *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)),
            ],
            check=True,
            capture_output=True,
        )
        if name == "localhost":
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A context that is given other files has the other certificate from then on.
        tls.load_cert_chain(certificate, key)
        trust = ssl.create_default_context(cafile=certificate)
        head = b"POST /first HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        heard = answers(head + BODY[:9], BODY[9:400_000], BODY[400_000:] + NEXT, tls=tls, trust=trust)
        assert b"/first 700000 True" in heard
        assert b"/next 0 False" in heard


def test_large_heads_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """Nobody knows yet who sends them."""
    monkeypatch.setattr("mainstem.server.http.listener.HTTP_LARGE_HEADS_MAX", 2)
    begun = b"GET /" + b"x" * 2 * HTTP_HEAD_SHARE_BYTES
    rest = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    async def talk() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        listener = HttpListener([bound], app, 10)
        serving = asyncio.ensure_future(listener.serve())

        async def begin() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(begun)
            await asyncio.sleep(0.05)
            return reader, writer

        peers = [await begin() for _ in range(3)]
        assert (await peers[2][0].read()).startswith(b"HTTP/1.1 503")
        # Small ones are taken all the while, and those that were there go on.
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(NEXT)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        peers[0][1].write(rest)
        assert (await peers[0][0].read()).startswith(b"HTTP/1.1 200")
        # Whose place is free now.
        peers.append(await begin())
        peers[3][1].write(rest)
        assert (await peers[3][0].read()).startswith(b"HTTP/1.1 200")
        for _, each in [*peers, (reader, writer)]:
            each.close()
        listener.stop()
        await serving

    asyncio.run(talk())
