"""Thousands of connections to HTTP of a guarded server, of which none comes to say who it is: nobody else notices, and
each costs little.

Most are opened and left. Some say a part of a head, a part of a body, or ask for everything and take nothing of it.
"""

import contextlib
import http.client
import random
import socket
import struct
import time
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.fuzz_http import Healthy
from tests.faults.trials import Trials

# Before anybody is known.
BYTES_PER_CONNECTION_MAX = 64 << 10
# What the interpreter takes beside the crowd.
_OWN_BYTES = 16 << 20
# One in this many does a little.
_BUSY_EVERY = 10
_HOST = b"Host: localhost\r\n"
_BEGINNINGS = (
    b"GET /streams/big/rec",
    b"POST /streams/big/records HTTP/1.1\r\n" + _HOST + b"Content-Length: 900000\r\n\r\n{",
    b"POST /streams/big/records HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    b"GET /streams/big/records HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /streams/big/records HTTP/1.1\r\n" + _HOST + b"Accept: text/event-stream\r\n\r\n",
)


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one connection; all are there at once."""
    result = Trials()
    rng = random.Random(f"crowd {seed}")
    limit = str(trials + 100)
    try:
        with mainstem.open(folder / "crowd") as hub:
            token = hub.access.create_token("root", admin=True).secret
        with (
            ServerProcess(folder / "crowd", "--http", "127.0.0.1:0", "--connections-max", limit) as server,
            contextlib.ExitStack() as stack,
        ):
            _fill(server.http, token)
            before = server.memory_bytes()
            healthy = Healthy(server.http, token)
            for number in range(trials):
                peer = stack.enter_context(_dial(server.http))
                result.trials += 1
                if number % _BUSY_EVERY == 0:
                    peer.sendall(rng.choice(_BEGINNINGS))
            time.sleep(1.0)
            growth = server.memory_bytes() - before
            healthy.stop(result)
            if growth > trials * BYTES_PER_CONNECTION_MAX + _OWN_BYTES:
                result.add_finding(f"seed {seed}: {trials} connections cost {growth >> 20} MiB")
    except (ServerFailed, MainstemError, OSError, http.client.HTTPException) as error:
        result.add_finding(f"seed {seed}: after {result.trials} connections: {type(error).__name__}: {error}")
    return result


def _dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    peer = socket.socket()
    # Who takes nothing shall not have much in the kernel either; and closing resets.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.settimeout(10.0)
    peer.connect((host, int(port)))
    return peer


def _fill(address: str, token: str) -> None:
    known = {"Authorization": f"Bearer {token}"}
    connection = http.client.HTTPConnection(address, timeout=30)
    for name in ("big", "healthy"):
        connection.request("PUT", f"/streams/{name}", headers=known)
        connection.getresponse().read()
    rows = b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"x" * 200) for number in range(50_000))
    connection.request("POST", "/streams/big/records", rows, known)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    if response.status != 200:
        raise OSError(f"the stream could not be filled: {text[:300]!r}")
