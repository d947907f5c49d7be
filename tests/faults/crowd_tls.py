"""Hundreds of connections with TLS, to both listeners, of which none comes to say who it is.

Some never greet, some greet and say nothing, some begin a request and do not end it. Before a client is known it costs
little with TLS, too, and after a few seconds it is gone. Each trial is one connection.
"""

import contextlib
import random
import socket
import ssl
import time
from pathlib import Path
from typing import Final

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.core.limits import CONNECTION_BYTES_MAX_BEFORE_HELLO
from mainstem.testing.certificates import Authority
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.trials import Trials

# What the interpreter takes beside the crowd.
_OWN_BYTES: Final = 16 << 20
# Of those that the native protocol awaits, with five to greet and five to say who they are.
_GONE_SECONDS_MAX: Final = 20.0
_HEAD: Final = b"GET /streams HTTP/1.1\r\nHost: localhost\r\nX-Padding: "


def run(seed: int, trials: int, folder: Path) -> Trials:
    """All of them at once."""
    result = Trials()
    authority = Authority(folder / "authority")
    made = authority.issue("localhost", addresses=["127.0.0.1"])
    settings = ["--tls-cert", str(made.certificate), "--tls-key", str(made.key), "--http", "127.0.0.1:0"]
    settings += ["--connections-max", str(trials + 10), "--connects-per-second", "1000000"]
    try:
        with (
            ServerProcess(folder / "crowded", *settings) as server,
            mainstem.connect(server.url, ca=authority.certificate) as hub,
            contextlib.ExitStack() as stack,
        ):
            hub.streams.create("healthy")
            before = server.memory_bytes()
            awaited = _gather(random.Random(f"crowd {seed}"), trials, server, authority, stack, result)
            growth = server.memory_bytes() - before
            if growth > trials * CONNECTION_BYTES_MAX_BEFORE_HELLO + _OWN_BYTES:
                result.add_finding(f"seed {seed}: {trials} connections take {growth >> 10} KiB")
            with hub.producer() as producer:
                producer.send("healthy", b"served").result(10)
            _await_end(awaited, result)
    except (ServerFailed, MainstemError, OSError) as error:
        result.add_finding(f"seed {seed}: after {result.trials} connections: {type(error).__name__}: {error}")
    return result


def _gather(
    rng: random.Random,
    trials: int,
    server: ServerProcess,
    authority: Authority,
    stack: contextlib.ExitStack,
    result: Trials,
) -> list[socket.socket]:
    """The crowd; those of it that are to be gone in a moment."""
    context = ssl.create_default_context(cafile=authority.certificate)
    awaited: list[socket.socket] = []
    for _ in range(trials):
        is_http = rng.random() < 0.5
        host, _, port = (server.http if is_http else server.address).rpartition(":")
        peer = socket.create_connection((host, int(port)), timeout=30)
        result.trials += 1
        if rng.random() < 0.8:
            peer = context.wrap_socket(peer, server_hostname="localhost")
            if is_http and rng.random() < 0.8:
                # Who is one too many of those with such a head is cut off.
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    peer.sendall(_HEAD + b"x" * rng.choice((10, 3_000, 60_000)))
        stack.enter_context(peer)
        if not is_http:
            awaited.append(peer)
    return awaited


def _await_end(awaited: list[socket.socket], result: Trials) -> None:
    deadline = time.monotonic() + _GONE_SECONDS_MAX
    try:
        for peer in awaited:
            peer.settimeout(max(0.1, deadline - time.monotonic()))
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while peer.recv(4_096):
                    pass
    except TimeoutError:
        result.add_finding(f"a connection that says nothing is still open after {_GONE_SECONDS_MAX:g} s")
