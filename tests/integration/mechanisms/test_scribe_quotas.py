"""Scribe's quotas: token buckets against herds, and what becomes of who writes or reads more than it may."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
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


class Stampede(NamedTuple):
    """When each of many clients was let in, in seconds since the first; for how long at most the server had one core
    for itself; how many times somebody was sent away."""

    times: list[float]
    busy: float
    sent_away: int


def stampede(path: Path, rate: int) -> Stampede:
    """Many clients that were there before the server."""
    port = _free_port()
    herd = _Herd(port)
    thread = threading.Thread(target=lambda: asyncio.run(herd.run(60.0)))
    thread.start()
    time.sleep(1.0)
    server = ServerProcess(path, "--connects-per-second", str(rate))
    server.address = f"127.0.0.1:{port}"
    used: list[tuple[float, float]] = []
    with server:
        while thread.is_alive():
            used.append((time.monotonic(), _cpu_seconds(server.pid)))
            thread.join(0.1)
        with mainstem.connect(server.url) as hub:
            sent_away = int(hub.statistics()["connections_refused"])
    return Stampede([at - herd.welcomed[0] for at in herd.welcomed], _longest_busy(used), sent_away)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _longest_busy(used: list[tuple[float, float]]) -> float:
    """The longest time in which a process used as much CPU as one core has."""
    return max(
        (
            end - begin
            for at, (begin, before) in enumerate(used)
            for end, after in used[at + 1 :]
            if after - before >= 0.98 * (end - begin)
        ),
        default=0.0,
    )


def most_too_many(times: list[float]) -> float:
    """By how many more than a bucket lets in there were at the worst moment."""
    return max(count - (BURST + RATE * at) * 1.05 for count, at in enumerate(times, 1))


@pytest.mark.mechanism("S67")
@pytest.mark.slow("300 clients, of which 50 a second are let in, and again without a limit")
def test_s67_a_herd_comes_in_by_and_by(tmp_path):
    times, busy, sent_away = stampede(tmp_path / "data", RATE)
    assert len(times) == CLIENTS
    assert most_too_many(times) <= 1
    # 4 s by the bucket; clients come when they were told to, which on a slow machine is later.
    assert times[-1] < 5 * 6
    assert busy <= 2.0
    assert sent_away > 0
    assert stampede(tmp_path / "open", 100_000).sent_away == 0


@pytest.mark.mechanism("S67")
def test_s67_over_http_who_is_too_many_is_told_when_to_come_back(tmp_path):
    arguments = ("--http", "127.0.0.1:0", "--connects-per-second", "1")
    with ServerProcess(tmp_path / "data", *arguments) as server, ExitStack() as stack:
        herd = [stack.enter_context(closing(HTTPConnection(server.http, timeout=20))) for _ in range(20)]
        answers = [ask(connection, "/streams") for connection in herd]
        refused = [at for at, (status, _) in enumerate(answers) if status == 429]
        assert refused
        assert {status for status, _ in answers} == {200, 429}
        assert all(answers[at][1] >= 1 for at in refused)
        # Whoever looks whether the server lives is not one of them; who was sent away comes back.
        assert ask(herd[refused[0]], "/livez")[0] == 200
        deadline = time.monotonic() + 60
        while ask(herd[refused[0]], "/streams")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert ask(herd[refused[0]], "/streams")[0] == 200


def ask(connection: HTTPConnection, path: str) -> tuple[int, int]:
    """The status of the answer, and for how many seconds one should wait."""
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status, int(response.headers.get("retry-after", 0))


# S68: what is over a quota of writing.

QUOTA = 500_000
# What a machine decides that does other things too has five times as much: the same with a clock that is set has not.
TOLERANCE = 0.05
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


def write_over(path: Path, mode: Mode | None, seconds: float = 8.0) -> Written:
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
        # The burst, and what it takes to learn the share, come first. However slow the machine is, half is measured.
        while not measured_at or time.monotonic() - measured_at < seconds / 2:
            passed = time.monotonic() - began
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
    assert free.rate > 1.4 * QUOTA
    assert free.stored == free.sent

    limited = write_over(tmp_path / "limit", "limit")
    assert limited.rate == pytest.approx(QUOTA, rel=5 * TOLERANCE)
    assert limited.stored == limited.sent
    assert percentile(limited.seconds, 0.9) > 2 * percentile(free.seconds, 0.5)

    blocked = write_over(tmp_path / "block", "block")
    assert blocked.rate < 0.05 * QUOTA
    assert blocked.stored + blocked.refused == blocked.sent

    sampled = write_over(tmp_path / "sample", "sample")
    assert sampled.rate == pytest.approx(QUOTA, rel=5 * TOLERANCE)
    assert sampled.left_out > 0.2 * sampled.sent
    assert sampled.stored + sampled.left_out == sampled.sent
    assert sampled.estimated == pytest.approx(sampled.sent, rel=TOLERANCE)


@pytest.mark.mechanism("S68")
@pytest.mark.slow("a neighbour is timed while somebody is slowed down")
def test_s68_a_neighbour_is_not_held_up(tmp_path):
    with guarded(tmp_path / "data") as (server, root, alice):
        root.access.set_quota("alice", "write_bytes", 50_000)

        def timed(seconds: float) -> tuple[float, float]:
            found: list[float] = []
            until = time.monotonic() + seconds
            with root.producer() as producer:
                while not found or time.monotonic() < until:
                    began = time.monotonic()
                    producer.send("neighbour", b"a record").result(30)
                    found.append(time.monotonic() - began)
            return percentile(found, 0.5), percentile(found, 0.99)

        timed(0.5)
        before = timed(2.0)
        # In requests that are small beside the quota: one that has come is taken, however large it is.
        with (
            mainstem.connect(server.url, token=alice.secret) as hub,
            hub.producer(compression=None, batch_bytes=20_000) as producer,
        ):
            acks = [producer.send("orders", os.urandom(RECORD)) for _ in range(400)]
            while_slowed = timed(2.0)
            # Eight seconds' worth, of which two go at once.
            assert not acks[-1].done()
            acks[-1].result(60)
        # Half, and nearly all, of the neighbour's: a server that served both in turn would have it wait for seconds.
        assert while_slowed[0] < 5 * before[0]
        assert while_slowed[1] < 5 * max(before[1], 0.02)


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
    assert sampled.rate == pytest.approx(QUOTA, rel=5 * TOLERANCE)
    assert sampled.lag < 2.0
    assert sampled.left_out > 0
    assert sampled.is_all_accounted_for
    # Who is held back instead comes back for what is no longer in memory, and stays behind.
    limited = read_over(tmp_path / "limit", "limit")
    assert limited.left_out == 0
    assert limited.is_all_accounted_for
    assert limited.lag > sampled.lag
    assert limited.from_disk > sampled.from_disk


class Held(NamedTuple):
    """How often the disk was read while a reader followed, and while it caught up after it was over its quota; how many
    records it got, and was told that it did not get."""

    following: int
    catching_up: int
    records: int
    left_out: int
    end: int


class _Stream(threading.Thread):
    """Writes as much as there is demand for, until the block ends."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self._stopping = threading.Event()
        self.sent = 0

    def run(self) -> None:
        began = time.monotonic()
        with self._hub.producer(compression=None) as producer:
            while not self._stopping.wait(0.005):
                while self.sent * RECORD < (time.monotonic() - began) * DEMAND:
                    producer.send_many("orders", [os.urandom(RECORD) for _ in range(10)])
                    self.sent += 10

    def __enter__(self) -> "_Stream":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self.join()


def hold_back(path: Path, mode: Mode, quota: int, seconds: float) -> Held:
    """A reader follows, is over its quota for some seconds, and then may read what it likes again."""
    with guarded(path, "--hot-tail-bytes", "1MiB") as (server, root, alice), ExitStack() as stack:
        hub = stack.enter_context(mainstem.connect(server.url, token=alice.secret))
        end = records = 0

        def read(consumer: mainstem.Consumer, is_done: Callable[[], bool]) -> None:
            nonlocal end, records
            while not is_done():
                if (batch := consumer.poll_batch(0.02)) is not None:
                    end = batch.offsets()[-1] + 1
                    records += batch.count

        def disk_reads() -> int:
            return int(root.statistics()["block_reads"])

        def after(passing: float) -> Callable[[], bool]:
            until = time.monotonic() + passing
            return lambda: time.monotonic() > until

        with _Stream(root) as stream:
            consumer = hub.consumer("orders", start="earliest")
            reads = disk_reads()
            read(consumer, after(seconds / 2))
            following = disk_reads() - reads
            root.access.set_quota("alice", "read_bytes", quota, mode=mode)
            held_until = time.monotonic() + seconds
            with suppress(QuotaExceeded):
                read(consumer, after(seconds))
            time.sleep(max(0.0, held_until - time.monotonic()))
            root.access.delete_quota("alice", "read_bytes")
            reads = disk_reads()
            if mode == "block":
                assert not consumer.left_out
                consumer = come_back(hub, consumer.cursor)
            target = stream.sent
            read(consumer, lambda: end >= target)
            left_out = sum(min(last, end) - min(first, end) for _, first, last in consumer.left_out)
            return Held(following, disk_reads() - reads, records, left_out, end)


def come_back(hub: Hub, cursor: mainstem.Cursor) -> mainstem.Consumer:
    """As soon as one may."""
    while True:
        consumer = hub.consumer("orders", start=cursor)
        try:
            consumer.poll_batch(1.0)
        except QuotaExceeded:
            time.sleep(0.1)
        else:
            return hub.consumer("orders", start=cursor)


@pytest.mark.mechanism("S69")
@pytest.mark.slow("a reader that is blocked for ten seconds and comes back, and one that is not")
def test_s69_a_reader_that_was_blocked_comes_back_for_what_is_on_the_disk(tmp_path):
    blocked = hold_back(tmp_path / "block", "block", 1, 10.0)
    assert (blocked.records, blocked.left_out) == (blocked.end, 0)
    assert blocked.catching_up >= 3 * max(1, blocked.following)
    sampled = hold_back(tmp_path / "sample", "sample", QUOTA, 10.0)
    assert sampled.left_out > 0
    assert sampled.records + sampled.left_out == sampled.end
    assert blocked.catching_up >= 3 * max(1, sampled.catching_up)
