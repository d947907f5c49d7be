"""Thousands of connections that are opened and left, or speak so slowly that they never come to an end.

Before a client is known it costs the server next to nothing, and after a few seconds it is gone; a healthy client is
served on all the while. Each trial is one connection.
"""

import contextlib
import random
import resource
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import Final

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.core.limits import CONNECTION_BYTES_MAX_BEFORE_HELLO
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.wire import VERSION, Hello, Kind, pack
from tests.faults.fuzz_server import Healthy
from tests.faults.trials import Trials

# What the interpreter and the healthy client take beside the crowd.
_OWN_BYTES: Final = 48 << 20
# A client has five to say who it is; who says nothing later on would have fifteen.
_GONE_SECONDS_MAX: Final = 12.0
_HELLO: Final = b"".join(pack(Kind.HELLO, 1, Hello(1, VERSION, "crowd" * 100)))


def run(seed: int, trials: int, folder: Path) -> Trials:
    """As many at once as the process may have files."""
    result = Trials()
    _allow_files(trials + 500)
    settings = ("--connections-max", str(trials + 10), "--connects-per-second", "1000000")
    try:
        with ServerProcess(folder / "crowded", *settings) as server, mainstem.connect(server.url) as hub:
            hub.streams.create("healthy", shards=2)
            healthy = Healthy(hub)
            before = server.memory_bytes()
            _crowd(random.Random(f"crowd {seed}"), trials, server, result)
            growth = server.memory_bytes() - before
            if growth > trials * CONNECTION_BYTES_MAX_BEFORE_HELLO + _OWN_BYTES:
                result.add_finding(f"seed {seed}: {trials} connections take {growth >> 10} KiB")
            healthy.stop()
            healthy.judge(result)
            left = hub.statistics()["connections"]
            if left > 1:
                result.add_finding(f"seed {seed}: {left - 1} connections are still open")
    except (ServerFailed, MainstemError, OSError) as error:
        result.add_finding(f"seed {seed}: {type(error).__name__}: {error}")
    return result


def _crowd(rng: random.Random, trials: int, server: ServerProcess, result: Trials) -> None:
    host, _, port = server.address.rpartition(":")
    crowd: list[socket.socket] = []
    try:
        for _ in range(trials):
            opened = socket.create_connection((host, int(port)), timeout=30)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            crowd.append(opened)
            result.trials += 1
        began = time.monotonic()
        # Some say nothing; others a byte of their greeting at a time.
        slow = [opened for opened in crowd if rng.random() < 0.3]
        for byte in _HELLO[:20]:
            for opened in slow:
                with contextlib.suppress(OSError):
                    opened.send(bytes((byte,)))
            time.sleep(0.05)
        for opened in crowd:
            opened.settimeout(max(0.1, began + _GONE_SECONDS_MAX - time.monotonic()))
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                # The reason, then the end.
                while opened.recv(4_096):
                    pass
    except TimeoutError:
        result.add_finding(f"a connection that says nothing is still open after {_GONE_SECONDS_MAX:g} s")
    finally:
        for opened in crowd:
            opened.close()


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
