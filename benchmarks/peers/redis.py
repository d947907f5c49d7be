"""Redis streams: XADD through redis-py with the hiredis parser.

With ``appendfsync always`` Redis syncs once for the commands it finished in one turn: about 130 of a pipeline, as many
as one read of the socket brings, but all of a transaction. ``Redis`` therefore wraps each pipeline in MULTI and EXEC
when it is to be safe. It packs pipelines through redis-py's connection (its ``Pipeline`` object costs the client twice
the time) and reads the replies of one while the server works on the next. ``RedisScript`` hands a list of values to a
Lua script that does the XADDs: one reply and one sync for the lot, the fastest way into a Redis stream from Python.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import Talk, settle
from benchmarks.harness import BenchmarkError, Process, Stopwatch, check, free_port
from benchmarks.payload import messages, pool
from benchmarks.peers.base import Durability, Peer

PIPELINE_COUNT = 2_000
SCRIPT_COUNT = 2_000
WARM_UP_COUNT = 10_000
PAGE_COUNT = 1_000

SAFE_OPTIONS = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
SCRIPT = """
for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'v', ARGV[i]) end
return #ARGV
"""


class Redis(Peer):
    name = "redis"
    how = {
        "safe": f"pipelined XADD in transactions of {PIPELINE_COUNT:,}, 2 in flight",
        "shipped": f"pipelined XADD, {PIPELINE_COUNT:,} a pipeline, 2 in flight",
    }
    promise = {"safe": "synced to disk", "shipped": "in memory; snapshots at intervals"}
    count = {"safe": 300_000, "shipped": 300_000}
    drivers: dict[Durability, str] = {"safe": "transaction", "shipped": "pipeline"}

    def __init__(self) -> None:
        super().__init__()
        self._port = 0

    @classmethod
    def available(cls) -> str | None:
        if shutil.which("redis-server") is None:
            return "needs: apt-get install redis-server (Debian, Ubuntu) or brew install redis"
        if importlib.util.find_spec("redis") is None or importlib.util.find_spec("hiredis") is None:
            return "needs: pip install redis hiredis"
        return None

    @classmethod
    def versions(cls) -> dict[str, str]:
        words = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout.split()
        server = next(word.removeprefix("v=") for word in words if word.startswith("v="))
        return {"redis-server": server, **{name: importlib.metadata.version(name) for name in ("redis", "hiredis")}}

    def start(self, folder: Path, durability: Durability) -> None:
        self.durability = durability
        self._port = free_port()
        options = SAFE_OPTIONS if durability == "safe" else []
        place = ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(folder)]
        self.server = Process(["redis-server", *place, "--logfile", folder / "redis.log", *options])
        _wait_until_accepting(self._port, self.server)

    def producer(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.peers.redis:produce", {"port": self._port, "driver": self.drivers[self.durability]}


class RedisScript(Redis):
    name = "redis-script"
    how = {
        "safe": f"Lua script of XADDs, {SCRIPT_COUNT:,} values a call, 2 in flight",
        "shipped": f"Lua script of XADDs, {SCRIPT_COUNT:,} values a call, 2 in flight",
    }
    count = {"safe": 400_000, "shipped": 400_000}
    drivers = {"safe": "script", "shipped": "script"}


def _wait_until_accepting(port: int, server: Process, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise BenchmarkError(f"redis-server did not accept within {timeout_s:g} s{server.errors()}")


# The producer process -------------------------------------------------------------------------------------------------


def produce(talk: Talk, port: int, driver: str, count: int, size: int, watch: list[int]) -> dict[str, float]:
    import redis

    client = redis.Redis(port=port)
    add = {"pipeline": _add_pipelined, "transaction": _add_in_transactions, "script": _add_scripted}[driver]
    add(client, "warm", messages(WARM_UP_COUNT, size))
    values = messages(count, size)
    settle()
    watch_ = Stopwatch(watch)
    add(client, "bench", values)
    took = watch_.stop()
    _verify(client, count, size)
    return took


def _add_pipelined(client: Any, key: str, values: Iterator[bytes]) -> None:
    connection = client.connection_pool.get_connection()
    unread = 0
    while commands := _commands(key, values):
        connection.send_packed_command(connection.pack_commands(commands))
        _read_replies(connection, unread)
        unread = len(commands)
    _read_replies(connection, unread)
    client.connection_pool.release(connection)


def _add_in_transactions(client: Any, key: str, values: Iterator[bytes]) -> None:
    connection = client.connection_pool.get_connection()
    unread = 0
    while commands := _commands(key, values):
        connection.send_packed_command(connection.pack_commands([("MULTI",), *commands, ("EXEC",)]))
        _read_transaction(connection, unread)
        unread = len(commands)
    _read_transaction(connection, unread)
    client.connection_pool.release(connection)


def _commands(key: str, values: Iterator[bytes]) -> list[tuple[str, str, str, str, bytes]]:
    return [("XADD", key, "*", "v", value) for value in itertools.islice(values, PIPELINE_COUNT)]


def _read_replies(connection: Any, count: int) -> None:
    """Each XADD is answered with its id; an error is raised by the connection."""
    for _ in range(count):
        connection.read_response()


def _read_transaction(connection: Any, count: int) -> None:
    """OK, QUEUED for each XADD, then all ids at once."""
    if count:
        _read_replies(connection, 1 + count)
        check(len(connection.read_response()) == count, "a transaction added fewer messages than it was given")


def _add_scripted(client: Any, key: str, values: Iterator[bytes]) -> None:
    script = client.script_load(SCRIPT)
    connection = client.connection_pool.get_connection()
    unread = 0
    while chunk := list(itertools.islice(values, SCRIPT_COUNT)):
        connection.send_packed_command(connection.pack_command("EVALSHA", script, 1, key, *chunk))
        _read_count(connection, unread)
        unread = len(chunk)
    _read_count(connection, unread)
    client.connection_pool.release(connection)


def _read_count(connection: Any, count: int) -> None:
    if count:
        check(connection.read_response() == count, "the script added fewer messages than it was given")


def _verify(client: Any, count: int, size: int) -> None:
    """The stream holds as many messages as were sent; its first and last pages are the right ones, in order."""
    stored = client.xlen("bench")
    check(stored == count, f"{stored:,} messages stored, {count:,} sent")
    sent = pool(size)
    page = min(PAGE_COUNT, count)
    first = [fields[b"v"] for _, fields in client.xrange("bench", count=page)]
    last = [fields[b"v"] for _, fields in client.xrevrange("bench", count=page)][::-1]
    check(first == [sent[index % len(sent)] for index in range(page)], "the first page is not what was sent")
    check(
        last == [sent[index % len(sent)] for index in range(count - page, count)], "the last page is not what was sent"
    )
