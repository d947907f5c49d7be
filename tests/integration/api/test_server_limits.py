"""A server under clients that ask for too much, and hubs that meet its limits: everybody else is served."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import mainstem
from mainstem.core.batch import Batch
from mainstem.core.errors import RecordTooLarge
from mainstem.core.limits import MESSAGE_BYTES_MAX, MESSAGE_HEADER_BYTES_MAX
from mainstem.testing.server import ServerProcess
from mainstem.transport.connection import FramedConnection
from mainstem.transport.loop import new_loop
from mainstem.transport.port import OffsetsAtTimeCall
from mainstem.transport.wire import PREFIX, Hello, Kind, pack
from tests.unit.log.parts import make_batch
from tests.unit.server.parts import Client, send_append, serving

WAIT_SECONDS_MAX = 30


@contextmanager
def served_here(path: Path) -> Iterator[str]:
    """A server in a thread of this process; its URL."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        loop = runner.get_loop()
        may_end = asyncio.Event()
        ready = threading.Event()
        url: list[str] = []

        async def serve() -> None:
            async with serving(path) as rig:
                url.append(f"mainstem://{rig.address}")
                ready.set()
                await may_end.wait()

        thread = threading.Thread(target=lambda: runner.run(serve()))
        thread.start()
        try:
            assert ready.wait(WAIT_SECONDS_MAX)
            yield url[0]
        finally:
            loop.call_soon_threadsafe(may_end.set)
            thread.join()


def test_a_hub_writes_and_reads_at_once_over_a_narrow_connection(tmp_path, monkeypatch):
    """Both directions have far more to send than the sockets hold, so both sides cannot write for most of the time."""
    opened = FramedConnection.connection_made

    def open_narrow(connection: FramedConnection, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 32 << 10)
        opened(connection, transport)

    monkeypatch.setattr(FramedConnection, "connection_made", open_narrow)
    table = pa.table({"value": pa.array([os.urandom(1 << 16)] * 32, pa.binary())})
    rounds = 10
    with served_here(tmp_path) as url, mainstem.connect(url) as hub:
        for stream in ("backlog", "written"):
            hub.streams.create(stream)
        with hub.producer(compression=None) as producer:
            for _ in range(rounds):
                producer.send_batch("backlog", table)

        def write() -> None:
            with hub.producer(compression=None, buffer_bytes=64 << 20) as producer:
                for _ in range(rounds):
                    producer.send_batch("written", table)

        writers = [threading.Thread(target=write) for _ in range(2)]
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            with hub.consumer("backlog", start="earliest", follow=False, prefetch_bytes=64 << 20) as consumer:
                assert sum(batch.count for batch in consumer.batches()) == rounds * 32
        assert hub.streams.get("written").records == 2 * rounds * 32
        # Nobody gave up on the other.
        assert hub.statistics()["connections_total"] == 1


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        yield server


def open_raw(server: ServerProcess) -> socket.socket:
    """A connection that has said hello and is welcome."""
    host, _, port = server.address.rpartition(":")
    raw = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS_MAX)
    raw.sendall(b"".join(pack(Kind.HELLO, 0, Hello(1, 1, "greedy"))))
    assert raw.recv(4_096)
    return raw


def test_a_flood_of_calls_costs_no_memory_and_nobody_elses_time(server):
    with mainstem.connect(server.url) as hub, open_raw(server) as greedy:
        hub.streams.create("orders", shards=64)
        before = server.memory_bytes()
        one = b"".join(pack(Kind.CALL, 7, OffsetsAtTimeCall("orders", 0)))
        # Nobody reads the answers: at some point the server takes no more.
        greedy.settimeout(0.5)
        with pytest.raises(TimeoutError):
            greedy.sendall(one * 1_000_000)
        began = time.monotonic()
        hub.streams.create("meanwhile")
        assert time.monotonic() - began < 5
        assert server.memory_bytes() - before < 64 << 20


def test_messages_that_are_claimed_and_not_sent_keep_nobody_out(server):
    """More than the memory for incomplete messages is claimed, for a few bytes each."""
    with mainstem.connect(server.url) as hub, ExitStack() as stack:
        hub.streams.create("orders")
        before = server.memory_bytes()
        for _ in range(32):
            raw = stack.enter_context(open_raw(server))
            raw.sendall(PREFIX.pack(MESSAGE_BYTES_MAX - 100, Kind.APPEND, 0, 0, 1, 100) + b"0123456789")
        with hub.producer(compression=None) as producer:
            assert producer.send_many("orders", [os.urandom(1_000)] * 5_000).result(WAIT_SECONDS_MAX)
        assert hub.statistics()["connections_total"] == 33
        assert server.memory_bytes() - before < 64 << 20


def test_a_list_longer_than_a_message_comes_whole(hub):
    names = [f"wide-{number:03d}" for number in range(135)]
    for name in reversed(names):
        hub.streams.create(name, shards=4_096)
    found = hub.streams.list()
    assert [stream.name for stream in found] == names
    assert all(stream.ends == (0,) * 4_096 for stream in found)


def test_a_name_of_any_length_is_refused_and_the_hub_works_on(hub):
    hub.streams.create("orders")
    for name in ("x" * 600_000, "x" * 250, "$(reboot)", "a\nb", ""):
        for ask in (hub.streams.get, hub.streams.delete, hub.consumer):
            with pytest.raises(mainstem.InvalidName) as caught:
                ask(name)
            assert len(str(caught.value)) < 400
    with pytest.raises(mainstem.InvalidRequest):
        hub.streams.get("x" * 2 * MESSAGE_HEADER_BYTES_MAX)
    with hub.producer() as producer:
        assert producer.send("orders", b"v").result(10) == (0, 0)


def test_the_memory_of_a_server_stays_bounded_under_bombs(tmp_path):
    """Batches of a few hundred bytes that are 14 MiB once they are decompressed: as many as one message takes are
    refused together, and those that are taken are looked at one after the other, whoever sent them."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        stream = hub.streams.create("bombs").id
        before = server.memory_bytes()
        few, many = asyncio.run(_send_bombs(server.address, stream))
        with hub.producer() as producer:
            producer.send("bombs", b"served").result(WAIT_SECONDS_MAX)
        assert few == [[0, 1, 2]] * BOMBERS
        assert many == [{RecordTooLarge.code}] * BOMBERS
        assert _memory_peak(server) - before < 256 << 20


BOMBERS = 20
BOMBS_FEW, BOMBS_MANY = 3, 2_000


async def _send_bombs(address: str, stream: int) -> tuple[list[list[int]], list[set[int]]]:
    """Whether the batches of each client were in the order of its own, and how those of a large append were refused."""

    large = make_batch([bytes(7 << 20)] * 2, stream=stream, compression="zstd")

    async def bomb(number: int) -> tuple[list[int], set[int]]:
        host, _, port = address.rpartition(":")
        client = await Client(*await asyncio.open_connection(host, int(port))).hello()
        batches = [
            Batch(msgspec.structs.replace(large.header, producer=2 * number + 1, sequence=sequence), large.payload)
            for sequence in range(BOMBS_FEW)
        ]
        await send_append(client, 5, batches)
        few = await client.next_but(Kind.PONG)
        await send_append(client, 6, [batches[0]] * BOMBS_MANY)
        many = await client.next_but(Kind.PONG)
        client.writer.close()
        order = sorted(range(BOMBS_FEW), key=few.header.bases.__getitem__)
        assert not few.header.errors
        return order, {error.code for error in many.header.errors.values()}

    found = await asyncio.gather(*(bomb(number) for number in range(1, BOMBERS + 1)))
    return [few for few, _ in found], [many for _, many in found]


def _memory_peak(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
