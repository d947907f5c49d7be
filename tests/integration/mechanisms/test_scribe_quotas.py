"""Scribe's quotas: token buckets against herds, and what becomes of who writes or reads more than it may."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mainstem
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.errors import LeftOut, QuotaExceeded
from mainstem.core.sampling import SHARE_HEADER
from mainstem.hub.access import NewToken
from mainstem.hub.hub import Hub
from mainstem.hub.link import Link
from mainstem.testing.server import ServerProcess
from mainstem.transport.guarding import Mode
from mainstem.transport.wire import Kind, Message, error_from
from tests.integration.mechanisms.rig import percentile

# S67: a token bucket in front of all who connect.

CLIENTS = 300
RATE, BURST = 50, 100


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Herd:
    """Clients that all want to be connected, and when each of them was."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.welcomed: list[float] = []
        self._links: list[Link] = []

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(CLIENTS):
            self._add(loop)
        running = [asyncio.ensure_future(link.run()) for link in self._links]
        deadline = loop.time() + seconds
        while len(self.welcomed) < CLIENTS and loop.time() < deadline:  # noqa: ASYNC110  # many links, once
            await asyncio.sleep(0.02)
        for link in self._links:
            link.stopping.set()
        await asyncio.gather(*running)

    def _add(self, loop: asyncio.AbstractEventLoop) -> None:
        def on_message(message: Message) -> None:
            if message.kind == Kind.WELCOME:
                link.accept(message.header)
                self.welcomed.append(time.monotonic())
            elif message.kind == Kind.ERROR:
                link.refuse(error_from(message.header))

        link = Link(
            ("127.0.0.1", self._port), loop, SYSTEM_CLOCK, on_message, on_tick=lambda now: None, linger_seconds=1.0
        )
        self._links.append(link)


def stampede(path: Path, rate: int) -> list[float]:
    """When each of many clients, which were there before the server, was let in: seconds since the first."""
    port = _free_port()
    herd = _Herd(port)
    thread = threading.Thread(target=lambda: asyncio.run(herd.run(60.0)))
    thread.start()
    time.sleep(1.0)
    server = ServerProcess(path, "--connects-per-second", str(rate))
    server.address = f"127.0.0.1:{port}"
    with server:
        thread.join()
    return [at - herd.welcomed[0] for at in herd.welcomed]


def most_too_many(times: list[float]) -> float:
    """By how many more than a bucket lets in there were at the worst moment."""
    return max(count - (BURST + RATE * at) * 1.05 for count, at in enumerate(times, 1))


@pytest.mark.mechanism("S67")
@pytest.mark.slow("300 clients, of which 50 a second are let in, and again without a limit")
def test_s67_a_herd_comes_in_by_and_by(tmp_path):
    times = stampede(tmp_path / "data", RATE)
    assert len(times) == CLIENTS
    assert most_too_many(times) <= 1
    # 4 s by the bucket; clients come when they were told to.
    assert times[-1] < 5 * 6
    assert most_too_many(stampede(tmp_path / "open", 100_000)) > 50


# S68: what is over a quota of writing.

QUOTA = 500_000
DEMAND = 1_000_000
RECORD = 1_000
WRITERS = 3


class Written(NamedTuple):
    """What came of it: bytes a second that were taken, records by their fates, how long acknowledgements took, and what
    those who read would take for the number that was sent."""

    rate: float
    sent: int
    stored: int
    refused: int
    left_out: int
    seconds: list[float]
    estimated: float


@contextmanager
def guarded(path: Path, *arguments: str) -> Iterator[tuple[ServerProcess, Hub, NewToken]]:
    """A server, its administrator, and alice's token."""
    with mainstem.open(path) as hub:
        root = hub.access.create_token("root", admin=True)
        alice = hub.access.create_token("alice", allow=["read:*", "write:*"])
        hub.streams.create("orders")
        hub.streams.create("neighbour")
    with ServerProcess(path, *arguments) as server, mainstem.connect(server.url, token=root.secret) as hub:
        yield server, hub, alice


def write_over(path: Path, mode: Mode | None, seconds: float = 6.0) -> Written:
    """Three writers of one principal send twice as much as it may for some seconds."""
    with guarded(path) as (server, root, alice), ExitStack() as stack:
        if mode is not None:
            root.access.set_quota("alice", "write_bytes", QUOTA, mode=mode)
        hubs = [stack.enter_context(mainstem.connect(server.url, token=alice.secret)) for _ in range(WRITERS)]
        small: dict[str, Any] = {"compression": None, "batch_bytes": 20_000, "buffer_bytes": 1 << 22}
        producers = [stack.enter_context(hub.producer(**small)) for hub in hubs]
        fates: list[str] = []
        took: list[float] = []

        def note(began: float, ack: mainstem.Ack) -> None:
            error = ack.exception()
            fates.append("stored" if error is None else type(error).__name__)
            took.append(time.monotonic() - began)

        sent, bytes_before, measured_at = 0, 0, 0.0
        began = time.monotonic()
        # The burst, and what it takes to learn the share, come first.
        while (passed := time.monotonic() - began) < seconds:
            if not measured_at and passed > seconds / 2:
                bytes_before, measured_at = root.statistics()["append_bytes"], time.monotonic()
            while sent * RECORD < passed * DEMAND:
                ack = producers[sent % WRITERS].send("orders", os.urandom(RECORD))
                ack.add_done_callback(partial(note, time.monotonic()))
                sent += 1
            time.sleep(0.005)
        rate = (root.statistics()["append_bytes"] - bytes_before) / (time.monotonic() - measured_at)
        for producer in producers:
            try:
                producer.flush(60)
            except QuotaExceeded:
                assert mode == "block"
        left_out = sum(producer.left_out for producer in producers)
        with root.consumer("orders", start="earliest", follow=False) as consumer:
            shares = [float((record.headers or {}).get(SHARE_HEADER, b"1")) for record in consumer]
        assert len(fates) == sent
        assert fates.count(LeftOut.__name__) == left_out
        # Whatever was acknowledged is there, and nothing else.
        assert len(shares) == fates.count("stored")
        refused = fates.count(QuotaExceeded.__name__)
        return Written(rate, sent, len(shares), refused, left_out, took, sum(1 / share for share in shares))


@pytest.mark.mechanism("S68")
@pytest.mark.slow("several seconds at twice a quota, by each of its modes and without one")
def test_s68_what_is_over_a_quota_waits_is_refused_or_sampled(tmp_path):
    free = write_over(tmp_path / "free", None, 4.0)
    assert free.rate > 0.8 * DEMAND
    assert free.stored == free.sent

    limited = write_over(tmp_path / "limit", "limit")
    assert limited.rate == pytest.approx(QUOTA, rel=0.15)
    assert limited.stored == limited.sent
    assert percentile(limited.seconds, 0.9) > 0.5 > percentile(free.seconds, 0.5)

    blocked = write_over(tmp_path / "block", "block")
    assert blocked.rate < 0.05 * QUOTA
    assert blocked.stored + blocked.refused == blocked.sent

    sampled = write_over(tmp_path / "sample", "sample")
    assert sampled.rate == pytest.approx(QUOTA, rel=0.15)
    assert sampled.left_out > 0.2 * sampled.sent
    assert sampled.stored + sampled.left_out == sampled.sent
    assert sampled.estimated == pytest.approx(sampled.sent, rel=0.1)


@pytest.mark.mechanism("S68")
@pytest.mark.slow("a neighbour is timed while somebody is slowed down")
def test_s68_a_neighbour_is_not_held_up(tmp_path):
    with guarded(tmp_path / "data") as (server, root, alice):
        root.access.set_quota("alice", "write_bytes", 50_000)

        def timed() -> float:
            found: list[float] = []
            until = time.monotonic() + 1.0
            with root.producer() as producer:
                while not found or time.monotonic() < until:
                    began = time.monotonic()
                    producer.send("neighbour", b"a record").result(30)
                    found.append(time.monotonic() - began)
            return percentile(found, 0.5)

        before = timed()
        # In requests that are small beside the quota: one that has come is taken, however large it is.
        small: dict[str, Any] = {"compression": None, "batch_bytes": 20_000}
        with mainstem.connect(server.url, token=alice.secret) as hub, hub.producer(**small) as producer:
            acks = [producer.send("orders", os.urandom(RECORD)) for _ in range(300)]
            while_slowed = timed()
            # Six seconds' worth, of which two go at once.
            assert not acks[-1].done()
            acks[-1].result(60)
        assert while_slowed < 5 * before


# S69: what is over a quota of reading.


class Read(NamedTuple):
    """Bytes a second that came, how far behind the last were, batches that had to come from the disk, and whether what
    came and what was said to be left out are, together, everything."""

    rate: float
    lag: float
    from_disk: int
    left_out: int
    is_all_accounted_for: bool


def read_over(path: Path, mode: Mode | None, seconds: float = 8.0) -> Read:
    """A reader follows a stream that gets twice as much as it may read."""
    with guarded(path, "--hot-tail-bytes", "1MiB") as (server, root, alice), ExitStack() as stack:
        if mode is not None:
            root.access.set_quota("alice", "read_bytes", QUOTA, mode=mode)
        hub = stack.enter_context(mainstem.connect(server.url, token=alice.secret))
        consumer = stack.enter_context(hub.consumer("orders", start="earliest", prefetch_bytes=256 << 10))
        producer = stack.enter_context(root.producer(compression=None))
        began = time.monotonic()
        sent, lag = 0, 0.0
        offsets: list[int] = []
        times: list[tuple[float, int]] = []
        while (passed := time.monotonic() - began) < seconds:
            while sent * RECORD < passed * DEMAND:
                producer.send_many("orders", [os.urandom(RECORD) for _ in range(10)])
                sent += 10
            while (batch := consumer.poll_batch(0.002)) is not None:
                offsets += batch.offsets()
                times.append((time.monotonic(), batch.count * RECORD))
                lag = time.time() - batch.to_arrow().column("timestamp")[-1].as_py().timestamp()
        half = began + seconds / 2
        rate = sum(size for at, size in times if at > half) / (seconds / 2)
        ranges = [range(first, end) for _, first, end in consumer.left_out]
        passed_over = sorted([*offsets, *(offset for each in ranges for offset in each)])
        is_all = passed_over == list(range(len(passed_over)))
        return Read(rate, lag, root.statistics()["batches_pushed_disk"], sum(map(len, ranges)), is_all)


@pytest.mark.mechanism("S69")
@pytest.mark.slow("several seconds at twice a quota, sampled and not")
def test_s69_a_reader_over_its_quota_gets_a_sample_and_stays_close(tmp_path):
    sampled = read_over(tmp_path / "sample", "sample")
    assert sampled.rate == pytest.approx(QUOTA, rel=0.2)
    assert sampled.lag < 2.0
    assert sampled.left_out > 0
    assert sampled.is_all_accounted_for
    # Who is held back instead comes back for what is no longer in memory, and stays behind.
    limited = read_over(tmp_path / "limit", "limit")
    assert limited.left_out == 0
    assert limited.is_all_accounted_for
    assert limited.lag > sampled.lag
    assert limited.from_disk > sampled.from_disk
