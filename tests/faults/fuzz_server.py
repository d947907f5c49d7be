"""Mutated and random messages to a real server: it stays up, its memory is bounded, a healthy client is served on.

A connection says hello, is welcomed, sends a few mutated messages one after the other, and reads until the server ends
it. Some send garbage instead of hello; others speak as they should and send rows and schemas that must not be believed.
No answer and no line that the server prints may say that it has failed itself, and of what it has taken every row can
be read.
"""

import contextlib
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa

import mainstem
from mainstem.core.errors import InternalError, MainstemError
from mainstem.core.limits import MESSAGE_BYTES_MAX_BEFORE_HELLO
from mainstem.hub.hub import Hub
from mainstem.testing.history import History
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.wire import VERSION, Appended, Hello, Kind, Message, MessageReader, WireError, pack
from tests.faults.stamped import StampedProducer, count_report, read_back
from tests.faults.trials import Trials
from tests.fuzz.payload_fuzz import ROWS
from tests.fuzz.rows_fuzz import HostileRows
from tests.fuzz.wire_fuzz import Mixed, messages

MESSAGES_PER_CONNECTION_MAX = 8
CONNECTIONS_AT_ONCE = 32
GROWTH_BYTES_MAX = 256 << 20
# A healthy client waits this long at most while the garbage flies; two cores share everything here.
HEALTHY_SECONDS_MAX = 3.0
_ANSWER_SECONDS_MAX = 10.0
_HELLO = b"".join(pack(Kind.HELLO, 1, Hello(1, VERSION, "fuzz")))
_HELLOS_OLD = [b"".join(pack(Kind.HELLO, 1, Hello(1, version, "fuzz"))) for version in range(1, VERSION)]
# So many connections send garbage instead of hello, and so many greet as older clients do.
_SHARE_RUDE = 0.05
_SHARE_OLD = 0.15
# One in this many connections sends rows.
_ROWS_EVERY = 4
# How the server says that it met something it did not expect.
_STUMBLED = "could not be handled"
_PING = b"".join(pack(Kind.PING, 0))


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one mutated message."""
    result = Trials()
    try:
        # As many connections as come.
        with ServerProcess(folder / "fuzzed", "--connects-per-second", "1000000") as server:
            with mainstem.connect(server.url) as hub:
                hub.streams.create("healthy", shards=2)
                hub.streams.create("fuzzed", shards=2)
                rng = random.Random(f"fuzz server {seed}")
                rows = _stream_of_rows(hub, rng)
                before = server.memory_bytes()
                healthy = Healthy(hub)
                _throw(Mixed(seed, messages()), rows, rng, trials, server, result)
                healthy.stop()
                growth = server.memory_bytes() - before
                healthy.judge(result)
                _read_rows(hub, result)
            if growth > GROWTH_BYTES_MAX:
                result.add_finding(f"seed {seed}: the server's memory grew by {growth >> 20} MiB")
            stop(server, f"seed {seed}", result)
    except (ServerFailed, MainstemError, pa.ArrowInvalid) as error:
        result.add_finding(f"seed {seed}: {error}")
    return result


def stop(server: ServerProcess, name: str, result: Trials) -> None:
    """End it; it has not stumbled over anything meanwhile."""
    code = server.stop()
    said = server.stderr()
    if code:
        result.add_finding(f"{name}: the server ended with {code}: {said[-2_000:]}")
    if "Traceback" in said:
        at = said.index("Traceback")
        result.add_finding(f"{name}: the server stumbled: {said[max(0, at - 300) : at + 3_000]}")


def _stream_of_rows(hub: Hub, rng: random.Random) -> HostileRows:
    """A stream whose schema has two versions, and another with a schema of its own."""
    # Its rows say that they are old; what is taken is to be there at the end.
    first = hub.streams.create("rows", schema=ROWS, retention="36500d")
    wider = hub.streams.set_schema("rows", pa.schema([*ROWS.arrow, ("later", pa.string())]))
    other = hub.streams.create("other", schema={"id": "int64"})
    return HostileRows(rng, first.id, first.schema_id, (wider.schema_id, other.schema_id))


def _read_rows(hub: Hub, result: Trials) -> None:
    """What was taken is read, by the server for a predicate and here."""
    counts = []
    for where in (None, "id IS NULL OR id IS NOT NULL"):
        with hub.consumer("rows", start="earliest", follow=False, where=where) as consumer:
            counts.append(0)
            for batch in consumer.batches():
                rows = batch.to_arrow()
                rows.validate(full=True)
                counts[-1] += rows.num_rows
    result.acknowledged += counts[0]
    if counts[0] != counts[1]:
        result.add_finding(f"{counts[0]} rows are there, and {counts[1]} of them are something or nothing")


def _throw(
    source: Mixed, rows: HostileRows, rng: random.Random, trials: int, server: ServerProcess, result: Trials
) -> None:
    while result.trials < trials and server.is_running and len(result.findings) <= 5:
        with contextlib.ExitStack() as stack:
            try:
                connections = [
                    stack.enter_context(
                        Connection(server.address, source, _hello(rng))
                        if number % _ROWS_EVERY
                        else Connection(server.address, rows, _HELLO)
                    )
                    for number in range(CONNECTIONS_AT_ONCE)
                ]
            except OSError as error:
                result.add_finding(f"after {result.trials} messages: cannot connect: {error}")
                return
            for connection in connections:
                connection.greet()
            # One message of each in turn, so that the server meets them one at a time.
            for _ in range(rng.randint(1, MESSAGES_PER_CONNECTION_MAX)):
                for connection in connections:
                    connection.throw()
                    result.trials += 1
            for connection in connections:
                wrong = connection.end()
                if wrong:
                    result.add_finding(f"after {result.trials} messages: {wrong}"[:2_000])


def _hello(rng: random.Random) -> bytes:
    chance = rng.random()
    if chance < _SHARE_RUDE:
        return b""
    return rng.choice(_HELLOS_OLD) if chance < _SHARE_RUDE + _SHARE_OLD else _HELLO


class Source(Protocol):
    """What a connection throws."""

    def next(self) -> bytes: ...


class Connection:
    """One connection that says hello and then whatever it likes."""

    def __init__(self, address: str, source: Source, hello: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS_MAX)
        # Closing resets: tens of thousands of connections would else wait in the kernel for minutes.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._source = source
        self._hello = hello
        self._thrown: list[bytes] = []
        self._reader = MessageReader(bytearray(MESSAGE_BYTES_MAX_BEFORE_HELLO))
        self._reader.allow_large()
        self._failures: list[str] = []
        if hello:
            with contextlib.suppress(OSError):
                self._socket.sendall(hello)

    def greet(self) -> None:
        if self._hello:
            with contextlib.suppress(OSError):
                self._take(self._socket.recv(65_536))

    def throw(self) -> None:
        self._thrown.append(self._source.next())
        try:
            self._socket.sendall(self._thrown[-1])
        except OSError:
            return  # thrown out already

    def end(self) -> str:
        """Say that no more comes and read until the server ends it too; why that is wrong, or nothing."""
        try:
            self._socket.sendall(_PING)
            # A server that waits for the rest of a cut message learns that there is none.
            self._socket.shutdown(socket.SHUT_WR)
            while data := self._socket.recv(65_536):
                self._take(data)
        except TimeoutError:
            return f"no end within {_ANSWER_SECONDS_MAX} s; sent {self._thrown!r}"
        except OSError:
            pass  # thrown out already
        return f"{self._failures}; sent {self._thrown!r}" if self._failures else ""

    def _take(self, data: bytes) -> None:
        """What the server has answered."""
        for message in self._reader.feed(data):
            self._failures += [error.message for error in _errors(message) if _is_own_failure(error)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()


def _is_own_failure(error: WireError) -> bool:
    """Whether the server says that it was not up to what it was asked."""
    return error.code == InternalError.code or _STUMBLED in error.message


def _errors(message: Message) -> list[WireError]:
    if isinstance(message.header, WireError):
        return [message.header]
    return list(message.header.errors.values()) if isinstance(message.header, Appended) else []


class Healthy:
    """A client that writes and asks all the while, and measures how long it waits."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._history = History()
        self._stopping = threading.Event()
        self._worst = 0.0
        self._errors: list[str] = []
        self._is_served = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._is_served.wait(_ANSWER_SECONDS_MAX)

    def _run(self) -> None:
        producer = StampedProducer(self._hub, "healthy", 1, self._history, delivery_timeout=HEALTHY_SECONDS_MAX)
        while not self._stopping.wait(0.01):
            started = time.perf_counter()
            try:
                producer.burst()
                self._hub.streams.list()
            except MainstemError as error:
                self._errors.append(f"{type(error).__name__}: {error}")
                break
            self._worst = max(self._worst, time.perf_counter() - started)
            self._is_served.set()
        producer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def judge(self, result: Trials) -> None:
        result.took(self._worst)
        for text in self._errors:
            result.add_finding(f"the healthy client got {text}")
        if self._worst > HEALTHY_SECONDS_MAX:
            result.add_finding(f"the healthy client waited {self._worst:.1f} s")
        read_back(self._hub, "healthy", self._history, 1)
        count_report(result, self._history.check(), "the healthy client")
