"""Mutated and hostile requests to a real listener of HTTP: typed errors, no failure of the server's own, no effect on
others, bounded memory.

Connections send a request or two each and read what is answered. Every answer must be one of HTTP, none may say that
the server itself has failed, and what is an error must be a problem with a code. A healthy client beside them writes
and asks all the while. One in eight comes to a server that speaks TLS.
"""

import contextlib
import http.client
import json
import re
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

from mainstem.testing.certificates import Authority
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.trials import Trials
from tests.fuzz.http_fuzz import SCHEMA, HttpFuzz

GROWTH_BYTES_MAX = 256 << 20
HEALTHY_SECONDS_MAX = 3.0
CONNECTIONS_AT_ONCE = 32
_ANSWER_SECONDS_MAX = 10.0
# One in this many comes by TLS, and is left so long to be answered.
TLS_EVERY = 8
_MOMENT_SECONDS = 0.3
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one request."""
    result = Trials()
    fuzz = HttpFuzz(seed)
    tls, settings = secured(folder / "authority")
    try:
        for name, context, more, until in (
            ("fuzzed", None, [], trials - trials // TLS_EVERY),
            ("fuzzed_tls", tls, settings, trials),
        ):
            with ServerProcess(folder / name, "--http", "127.0.0.1:0", *more) as server:
                for stream, options in (("typed", {"schema": SCHEMA}), ("fuzzed", {}), ("healthy", {})):
                    _ask(server.http, "PUT", f"/streams/{stream}", json.dumps(options).encode(), context)
                before = server.memory_bytes()
                healthy = Healthy(server.http, context=context)
                while result.trials < until and server.is_running and len(result.findings) <= 5:
                    throw(server.http, [fuzz.request() for _ in range(CONNECTIONS_AT_ONCE)], result, context)
                healthy.stop(result)
                judge(seed, server, before, result)
    except (ServerFailed, OSError, http.client.HTTPException) as error:
        result.add_finding(f"seed {seed}: after {result.trials} requests: {error}")
    return result


def secured(folder: Path) -> tuple[ssl.SSLContext, list[str]]:
    """For clients, and the settings of a server, of TLS."""
    authority = Authority(folder)
    made = authority.issue("localhost", addresses=["127.0.0.1"])
    context = ssl.create_default_context(cafile=authority.certificate)
    return context, ["--tls-cert", str(made.certificate), "--tls-key", str(made.key)]


def judge(seed: int, server: ServerProcess, before: int, result: Trials) -> None:
    """Whether the server has come through it, with the memory that it had before, about."""
    growth = server.memory_bytes() - before if server.is_running else 0
    if growth > GROWTH_BYTES_MAX:
        result.add_finding(f"seed {seed}: the server's memory grew by {growth >> 20} MiB")
    code = server.stop()
    if code or "Traceback" in server.stderr():
        result.add_finding(f"seed {seed}: the server ended with {code}: {server.stderr()[-2_000:]}")


def throw(address: str, requests: list[bytes], result: Trials, context: ssl.SSLContext | None = None) -> None:
    """Send all at once, then read what each is answered."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(_dial(address, context)) for _ in requests]
        for peer, request in zip(peers, requests, strict=True):
            with contextlib.suppress(OSError):
                peer.sendall(request)
                if context is None:
                    # Who waits for the rest learns that there is none.
                    peer.shutdown(socket.SHUT_WR)
        if context is not None:
            # With TLS nobody goes on answering who has said that: it is left a moment.
            time.sleep(_MOMENT_SECONDS)
            for peer in peers:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(peer, socket.SHUT_WR)
        for peer, request in zip(peers, requests, strict=True):
            result.trials += 1
            if wrong := _wrong(peer):
                result.add_finding(f"after {result.trials} requests: {wrong}; sent {request[:1_000]!r}")


def _wrong(peer: socket.socket) -> str:
    """Why what was heard must not be; nothing if it may."""
    heard = b""
    try:
        while data := peer.recv(65_536):
            heard += data
            if b"text/event-stream" in heard:
                return ""  # it would not end by itself
    except TimeoutError:
        return f"no end within {_ANSWER_SECONDS_MAX} s, heard {heard[:500]!r}"
    except OSError:
        pass  # it was cut off, which is an answer too
    if heard and not _STATUS.match(heard):
        return f"this is no HTTP: {heard[:500]!r}"
    for found in _STATUS.finditer(heard):
        if found[1] == b"500" or b'"title":"InternalError"' in heard:
            return f"the server failed: {heard[:1_000]!r}"
    first = _STATUS.match(heard)
    if first is not None and int(first[1]) >= 400 and b"\r\n\r\n{" in heard and b'"code":' not in heard:
        return f"an error without a code: {heard[:500]!r}"
    return ""


def _dial(address: str, context: ssl.SSLContext | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS_MAX)
    # Closing resets: tens of thousands of connections would else wait in the kernel for minutes.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return peer if context is None else context.wrap_socket(peer, server_hostname=host)


def _connection(address: str, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if context is None:
        return http.client.HTTPConnection(address, timeout=_ANSWER_SECONDS_MAX)
    return http.client.HTTPSConnection(address, timeout=_ANSWER_SECONDS_MAX, context=context)


def _ask(address: str, method: str, path: str, body: bytes, context: ssl.SSLContext | None) -> int:
    connection = _connection(address, context)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


class Healthy:
    """A client that writes and asks all the while, and measures how long it waits."""

    def __init__(self, address: str, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self._connection = _connection(address, context)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._stopping = threading.Event()
        self._worst = 0.0
        self._written = 0
        self._errors: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection = self._connection
        while not self._stopping.wait(0.02):
            started = time.perf_counter()
            try:
                connection.request("POST", "/streams/healthy/records", b'{"n": %d}\n' % self._written, self._headers)
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                self._errors.append(f"{type(error).__name__}: {error}")
                break
            if response.status != 200:
                self._errors.append(f"{response.status}: {text[:300]!r}")
                break
            self._written += 1
            self._worst = max(self._worst, time.perf_counter() - started)
        connection.close()

    def stop(self, result: Trials) -> None:
        self._stopping.set()
        self._thread.join()
        result.took(self._worst)
        result.acknowledged += self._written
        for text in self._errors:
            result.add_finding(f"the healthy client got {text}")
        if self._worst > HEALTHY_SECONDS_MAX:
            result.add_finding(f"the healthy client waited {self._worst:.1f} s")
