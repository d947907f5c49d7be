"""Mechanisms of Kafka: batches, flushes, prefetch, one number as a consumer's state, compression, recovery."""

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import pytest

import mainstem
from mainstem.consume.consumer import Consumer
from mainstem.consume.cursor_file import CursorFile
from mainstem.consume.record import Record
from mainstem.core.batch import Buffer
from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.cursor import Cursor
from mainstem.hub.hub import Hub
from mainstem.log import disk
from mainstem.log.flush import TrimShard
from mainstem.log.log import Log
from mainstem.produce.producer import Producer
from mainstem.testing import planted
from mainstem.testing.link import Link
from mainstem.testing.server import ServerProcess
from mainstem.transport.wire import Kind, Message, MessageReader
from tests.integration.mechanisms.rig import SlowLink, read_all, values

STREAM = "events"
# For whatever should happen within a moment.
PATIENCE = 30.0


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture
def hub(server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create(STREAM)
        yield hub


class ReadLink(Link):
    """A link that reads along: the messages of both directions, with the bytes of each that carries batches."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.requests: list[Message] = []
        self.request_bytes = 0
        self.answer_bytes = 0
        # Payload bytes of every message that brought batches to a client.
        self.pushes: list[int] = []

    def __enter__(self) -> "ReadLink":
        super().__enter__()
        return self

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, holds: bool) -> None:
        messages = MessageReader(bytearray(64 << 10))
        messages.allow_large()
        with contextlib.suppress(OSError):
            while piece := await reader.read(64 << 10):
                found = messages.feed(piece)
                if holds:
                    self.answer_bytes += len(piece)
                    self.pushes += [
                        sum(map(len, message.payloads)) for message in found if message.kind == Kind.BATCHES
                    ]
                else:
                    self.request_bytes += len(piece)
                    self.requests += found
                writer.write(piece)
                await writer.drain()


def blocks(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "blocks").iterdir())}


# K3: batches.


def send_sets(hub: Hub, count: int, size: int) -> float:
    """Records per second in `count` sets, each acknowledged before the next is sent."""
    records = [bytes(200)] * size
    with hub.producer(compression=None) as producer:
        producer.send_many(STREAM, records).result(PATIENCE)
        began = time.perf_counter()
        for _ in range(count):
            producer.send_many(STREAM, records).result(PATIENCE)
        return count * size / (time.perf_counter() - began)


@pytest.mark.mechanism("K3")
def test_k3_sets_of_two_hundred_are_ten_times_as_fast_as_single_records(hub):
    """The control is the set of one: a request, a flush and an answer for each record."""
    before = hub.statistics()
    together = max(send_sets(hub, 25, 200) for _ in range(2))
    middle = hub.statistics()
    alone = max(send_sets(hub, 100, 1) for _ in range(2))
    after = hub.statistics()
    assert middle["appends"] - before["appends"] == 2 * 26
    assert after["appends"] - middle["appends"] == 2 * 101
    assert together >= 10 * alone


@pytest.mark.mechanism("K3")
def test_k3_a_producer_that_is_closed_has_lost_nothing(hub, server):
    """Records sent without a look at their acknowledgements gather into few requests, and closing waits for them all.
    In the control closing does not flush, and what was being gathered is gone."""
    sent = [b"%d" % number for number in range(20_000)]
    before = hub.statistics()["appends"]
    with hub.producer(linger=60) as producer:
        for value in sent:
            producer.send(STREAM, value)
    assert hub.statistics()["appends"] - before <= 20
    assert values(hub, STREAM) == sent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Producer, "flush", lambda producer: None)
        with mainstem.connect(server.url) as other:
            other.streams.create("careless")
            with other.producer(linger=60) as producer:
                for value in sent:
                    producer.send("careless", value)
    assert len(values(hub, "careless")) < len(sent)


# K6: what is flushed is visible, and nothing else.


class Gate:
    """Stands before every durable write: counts them, and while it is closed none begins."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self.arrived = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._pwritev = disk._pwritev
        patch.setattr(disk, "_pwritev", self._wait)

    def _wait(self, fd: int, buffers: Sequence[Buffer], position: int, *, durably: bool) -> int:
        self.writes += durably
        self.arrived.set()
        assert self._open.wait(PATIENCE)
        return self._pwritev(fd, buffers, position, durably=durably)

    def close(self) -> None:
        self.arrived.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@pytest.mark.mechanism("K6")
def test_k6_a_record_is_visible_after_its_flush_and_a_flush_begins_when_the_one_before_ends(tmp_path, monkeypatch):
    """One record is flushed at once, alone. While its flush is under way nobody sees it, and 999 more gather: they are
    one flush, and all visible after it. So two writes for a thousand records, without a count or a time to wait for.

    In the control, acknowledged before it is written, a record is seen that no file has."""
    gate = Gate(monkeypatch)
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create(STREAM)
        consumer = hub.consumer(STREAM, start="earliest")
        with hub.producer() as producer:
            producer.send(STREAM, b"warm").result(PATIENCE)
            assert consumer.poll(PATIENCE) is not None
            before = gate.writes
            gate.close()
            first = producer.send(STREAM, b"0")
            assert gate.arrived.wait(PATIENCE)
            rest = [producer.send(STREAM, b"%d" % number) for number in range(1, 1_000)]
            assert consumer.poll(0) is None
            assert consumer.poll(0.1) is None
            assert not first.done()
            assert gate.writes == before + 1
            gate.open()
            assert rest[-1].result(PATIENCE) == (0, 1_000)
            assert gate.writes == before + 2
            found = [consumer.poll(PATIENCE) for _ in range(1_000)]
        assert [record and record.value for record in found] == [b"%d" % number for number in range(1_000)]

    with planted.ack_before_write(), mainstem.open(tmp_path / "early") as hub:
        hub.streams.create(STREAM)
        consumer = hub.consumer(STREAM, start="earliest")
        with hub.producer(compression=None) as producer:
            producer.send(STREAM, b"seen and nowhere").result(PATIENCE)
            record = consumer.poll(PATIENCE)
        assert record is not None
        assert record.value == b"seen and nowhere"
        assert not any(b"seen and nowhere" in content for content in blocks(tmp_path / "early").values())


def seen_and_left(folder: Path, *, under_load: bool) -> tuple[int, int]:
    """How many records a reader saw before the server was killed, and how many of them are there after."""
    with ServerProcess(folder) as server, mainstem.connect(server.url) as hub, mainstem.connect(server.url) as reader:
        hub.streams.create(STREAM)
        consumer = reader.consumer(STREAM, start="earliest")
        seen: list[Record | None] = []
        with hub.producer() as producer, Paced(producer) as sender:
            while len(seen) < 500:
                seen.append(consumer.poll(PATIENCE))
            if not under_load:
                sender.stop()
                producer.flush(PATIENCE)
                seen += [consumer.poll(PATIENCE) for _ in range(sender.sent - len(seen))]
            server.kill()
            server.start()
        left = {(record.offset, record.value) for record in read_all(reader, STREAM)}
        return len(seen), sum((record.offset, record.value) in left for record in seen if record is not None)


class Paced:
    """A thread that sends numbered records, some every millisecond, until it is stopped."""

    def __init__(self, producer: Producer) -> None:
        self.acks: list[Any] = []
        self._producer = producer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            for _ in range(10):
                self.acks.append(self._producer.send(STREAM, b"%d" % len(self.acks)))

    @property
    def sent(self) -> int:
        return len(self.acks)

    def await_answer(self) -> int:
        """Until a record that is sent from now on was answered; its number."""
        goal = self.sent
        await_that(lambda: self.sent > goal)
        self.acks[goal].result(PATIENCE)
        return goal

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def __enter__(self) -> "Paced":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def await_that(condition: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(int(PATIENCE / 0.002)):
        if condition():
            return
        turn.wait(0.002)
    pytest.fail("waited in vain")


@pytest.mark.mechanism("K6")
@pytest.mark.slow("kills and starts servers")
def test_k6_what_a_reader_saw_is_there_after_a_kill(tmp_path):
    """In the control, visible before it is written, what was seen last is gone."""
    seen, left = seen_and_left(tmp_path / "data", under_load=True)
    assert seen == left >= 500
    # Where the blocks end early the ledger is made to agree, or the server would refuse to start.
    with planted.ack_before_write(), planted.believe_blocks():
        seen, left = seen_and_left(tmp_path / "early", under_load=False)
    assert left < seen


# K9: at most so many bytes, ahead of the reader.


@pytest.mark.mechanism("K9")
def test_k9_no_answer_is_larger_than_asked_for_and_all_arrives_in_order(hub, server):
    """64 KiB ahead, in batches of at most 4 KiB: a reader that takes nothing gets no more than that, one that reads
    gets all 50,000 records in order, in answers of that size. In the control, 8 MiB ahead, everything comes at once."""
    ahead, batch = 64 << 10, 4 << 10
    with hub.producer(batch_bytes=batch, compression=None) as producer:
        for number in range(50_000):
            producer.send(STREAM, b"%050d" % number)
    with ReadLink(server.address) as link, mainstem.connect(f"mainstem://{link.address}") as far:
        with far.consumer(STREAM, start="earliest", follow=False, prefetch_bytes=ahead) as consumer:
            first = consumer.poll(PATIENCE)
            # Answered after everything that the subscription lets through.
            far.statistics()
            # One batch over: the credit is spent by whole batches. One was taken.
            assert ahead / 2 < sum(link.pushes) <= ahead + 3 * batch
            rest = list(consumer)
            assert first is not None
            assert [int(record.value or b"") for record in [first, *rest]] == list(range(50_000))
            assert max(link.pushes) <= ahead + 2 * batch
            assert len(link.pushes) >= 50_000 * 50 / (ahead + 2 * batch)

        link.pushes.clear()
        with far.consumer(STREAM, start="earliest", follow=False) as consumer:
            consumer.poll(PATIENCE)
            far.statistics()
            assert sum(link.pushes) > 20 * ahead


def starved(hub: Hub, ahead: int, count: int) -> float:
    """The share of records for which a reader that works 1 ms on each had to wait, the first one aside."""
    waits = 0
    with hub.consumer(STREAM, start="earliest", prefetch_bytes=ahead) as consumer:
        assert consumer.poll(PATIENCE) is not None
        for _ in range(count):
            time.sleep(0.001)
            if consumer.poll(0) is None:
                waits += 1
                assert consumer.poll(PATIENCE) is not None
    return waits / count


@pytest.mark.mechanism("K9")
def test_k9_a_reader_that_works_does_not_wait_for_the_network(hub, server):
    """Behind a link with a round trip of 20 ms, 1 ms of work on each record: with 64 KiB ahead the next one is there.
    In the control, 4 KiB ahead, every batch is waited for."""
    with hub.producer(batch_bytes=4 << 10, compression=None) as producer:
        for _ in range(1_001):
            producer.send(STREAM, bytes(1_000))
    with SlowLink(server.address, 0.01) as link, mainstem.connect(f"mainstem://{link.address}") as far:
        assert starved(far, 64 << 10, 1_000) <= 0.05
        assert starved(far, 4 << 10, 100) > 0.15


# K10: one number is the state of a consumer.

EVERY = 500


def consume(url: str, state: Path, mode: str, said: Connection) -> None:
    """In a process that will be killed: say each record, and save the position after every 500."""
    if mode == "whole batches":
        # The position of what was fetched, not of what was handed out.
        fetched = property(lambda self: Cursor(self._info.uuid, self._info.epoch, tuple(self._offsets)))
        setattr(Consumer, "cursor", fetched)  # noqa: B010  # a property is read-only to mypy
    file = CursorFile(state)
    start = file.load() or "earliest"
    with mainstem.connect(url) as hub, hub.consumer(STREAM, start=start, follow=False) as consumer:
        for number, record in enumerate(consumer, 1):
            # Long, so that the pipe holds few of them.
            said.send_bytes(record.offset.to_bytes(256, "little"))
            if number % EVERY == 0 and mode != "no position":
                file.save(consumer.cursor)
    said.close()


class Lives:
    """A consumer that is killed again and again: what each life of it said."""

    def __init__(self, url: str, state: Path, kills: int, mode: str = "") -> None:
        # Each life starts as a copy of one process that has everything loaded.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        random = Random(10)
        self.lives: list[list[int]] = []
        for life in range(kills + 1):
            ear, mouth = context.Pipe(duplex=False)
            process = context.Process(target=consume, args=(url, state, mode, mouth))
            process.start()
            mouth.close()
            heard: list[int] = []
            goal = random.randint(EVERY, 6 * EVERY) if life < kills else sys.maxsize
            with contextlib.suppress(EOFError):
                while len(heard) < goal:
                    assert ear.poll(PATIENCE)
                    heard.append(int.from_bytes(ear.recv_bytes(), "little"))
                process.kill()
                while True:
                    heard.append(int.from_bytes(ear.recv_bytes(), "little"))
            process.join(PATIENCE)
            assert process.exitcode == (0 if life == kills else -9)
            process.close()
            ear.close()
            self.lives.append(heard)

    @property
    def repeats(self) -> list[int]:
        """How many records each life had to go back."""
        return [before[-1] + 1 - after[0] for before, after in itertools.pairwise(self.lives)]

    @property
    def heard(self) -> set[int]:
        return {offset for life in self.lives for offset in life}


@pytest.mark.mechanism("K10")
def test_k10(hub, server, tmp_path):
    """A consumer is killed 20 times in 50,000 records: it has handled all of them, each life in order without a gap,
    and none went back further than the 500 records since its position was saved.

    Two controls: without a saved position every life begins at the start; and if the position is that of what was
    fetched, records before it were never handled, and a kill skips them."""
    with hub.producer(batch_bytes=64 << 10) as producer:
        for number in range(50_000):
            producer.send(STREAM, b"%d" % number)
    lives = Lives(server.url, tmp_path / "cursor", kills=20)
    assert lives.heard == set(range(50_000))
    assert all(life == list(range(life[0], life[-1] + 1)) for life in lives.lives)
    assert all(0 <= count <= EVERY for count in lives.repeats)

    forgetful = Lives(server.url, tmp_path / "none", kills=2, mode="no position")
    assert min(forgetful.repeats) >= EVERY
    assert all(life[0] == 0 for life in forgetful.lives)
    hasty = Lives(server.url, tmp_path / "hasty", kills=2, mode="whole batches")
    assert len(hasty.heard) < 50_000


# K13: compression.


def activity(count: int) -> list[bytes]:
    """Events as a web site logs them."""
    random = Random(13)
    return [
        json.dumps(
            {
                "time": 1_700_000_000_000 + number * 37,
                "member": random.randint(1, 10**7),
                "page": random.choice(["/home", "/profile", "/jobs/search", "/messages", "/settings/account"]),
                "action": random.choice(["view", "click", "scroll", "submit"]),
                "agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
                "session": random.randbytes(8).hex(),
            }
        ).encode()
        for number in range(count)
    ]


class Transfer:
    """Sets of 200 from a producer to a server and on to a consumer: bytes per byte of the values, and server time."""

    def __init__(self, folder: Path, events: list[bytes], compression: str | None) -> None:
        raw = sum(map(len, events))
        with (
            ServerProcess(folder) as server,
            ReadLink(server.address) as link,
            mainstem.connect(f"mainstem://{link.address}") as hub,
        ):
            hub.streams.create(STREAM)
            with hub.producer(compression=compression) as producer:
                producer.send_many(STREAM, events[:200]).result(PATIENCE)
                before = hub.statistics()["bytes_written"]
                link.request_bytes = 0
                began = cpu_seconds(server.pid)
                for begin in range(0, len(events), 200):
                    producer.send_many(STREAM, events[begin : begin + 200]).result(PATIENCE)
                self.server_seconds = cpu_seconds(server.pid) - began
            self.sent = link.request_bytes / raw
            self.stored = (hub.statistics()["bytes_written"] - before) / raw
            link.answer_bytes = 0
            found = values(hub, STREAM)
            self.delivered = link.answer_bytes / raw
            assert found == events[:200] + events
            payloads = [payload for message in link.requests for payload in message.payloads]
        written = b"".join(blocks(folder).values())
        self.as_sent = all(payload in written for payload in payloads)


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processors, to the nanosecond (Linux)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


# Takes every batch apart and compresses it anew.
RECOMPRESSING = """
    import msgspec
    from mainstem.core import payload
    from mainstem.core.batch import Batch
    from mainstem.core.checksum import crc32c
    from mainstem.produce.gateway import Gateway

    admit = Gateway.admit

    def admit_anew(gateway, header, data, *, acknowledge):
        batch = admit(gateway, header, data, acknowledge=acknowledge)
        if not isinstance(batch, Batch):
            return batch
        records = payload.decode(header.encoding, header.layout, header.count, header.raw_len, data)
        new = payload.encode(records, "zstd")
        sizes = {"raw_len": new.raw_len, "stored_len": len(new.payload), "payload_crc": crc32c(new.payload)}
        return Batch(msgspec.structs.replace(header, encoding=new.encoding, layout=new.layout, **sizes), new.payload)

    Gateway.admit = admit_anew
"""


@pytest.mark.mechanism("K13")
def test_k13(tmp_path):
    """JSON events in sets of 200: a third of their bytes, on the way in, on the disk and on the way out, and the
    server stores the very bytes it was sent.

    Two controls: without compression nothing is saved; and a server that compresses anew stores other bytes, and has
    more work with them."""
    events = activity(10_000)
    small = {codec: Transfer(tmp_path / codec, events, codec) for codec in ("zstd", "lz4")}
    assert all(max(found.sent, found.stored, found.delivered) <= 1 / 3 for found in small.values())
    assert all(found.as_sent for found in small.values())
    with mainstem.open(tmp_path / "none") as hub, pytest.raises(mainstem.InvalidSetting, match="snappy"):
        hub.producer(compression="snappy")

    plain = Transfer(tmp_path / "plain", events, None)
    assert min(plain.sent, plain.stored, plain.delivered) >= 1
    with served_by(RECOMPRESSING):
        anew = Transfer(tmp_path / "anew", events, "lz4")
    assert not anew.as_sent
    print({k: v.server_seconds for k, v in {**small, "plain": plain, "anew": anew}.items()})
    assert small["lz4"].server_seconds < anew.server_seconds


# K14: the server keeps nothing about consumers.


@contextmanager
def served_by(changes: str) -> Iterator[None]:
    """Servers that are started meanwhile have these changes, which are made in their process before it serves."""
    code = textwrap.dedent(changes) + textwrap.dedent(RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planted, "command", lambda module, *arguments: [sys.executable, "-c", code, module, *arguments])
        yield


RUN = """
    import runpy, sys
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

# Keeps for every consumer what it was sent, and its position; one that it does not know begins at the end.
STATEFUL = """
    import msgspec
    from mainstem.server.session import Session
    from mainstem.server.subscription import PushSubscription

    sent = {}
    send, subscribe = PushSubscription._send, Session._on_subscribe

    def keep(subscription, batches):
        sent.setdefault(subscription, []).extend(bytearray(batch.payload) for batch in batches)
        send(subscription, batches)

    def place(session, message):
        log = session._server.log
        shards = range(len(message.header.offsets))
        ends = [log.reader.shard(message.header.stream, shard).stable for shard in shards]
        header = msgspec.structs.replace(message.header, offsets=ends)
        subscribe(session, msgspec.structs.replace(message, header=header))

    PushSubscription._send, Session._on_subscribe = keep, place
"""


class Crowd:
    """Consumers of one server that is killed when each of them has read half. `patience` is for the second half."""

    def __init__(self, folder: Path, count: int, patience: float) -> None:
        with ServerProcess(folder) as server, mainstem.connect(server.url) as hub:
            hub.streams.create(STREAM)
            consumers = [hub.consumer(STREAM, start="earliest", prefetch_bytes=64 << 10) for _ in range(count)]
            for consumer in consumers:
                assert consumer.poll_batch(0) is None
            with hub.producer(compression=None, batch_bytes=16 << 10) as producer:
                for _ in range(2_000):
                    producer.send(STREAM, bytes(1_000))
            end = hub.streams.get(STREAM).ends[0]
            before, files = hub.statistics(), sizes(folder)
            memory = server.memory_bytes()
            halves = [read_to(consumer, end // 2, PATIENCE) for consumer in consumers]
            self.memory_growth = server.memory_bytes() - memory
            after = hub.statistics()
            self.left_no_trace = sizes(folder) == files and after["bytes_written"] == before["bytes_written"]
            server.kill()
            server.start()
            await_that(lambda: hub.statistics()["subscriptions"] == count)
            # Stops at the first that does not get everything.
            self.is_complete = all(
                half + read_to(consumer, end, patience) == list(range(end))
                for half, consumer in zip(halves, consumers, strict=True)
            )


def read_to(consumer: Consumer, end: int, patience: float) -> list[int]:
    """The offsets that came until the consumer stood at `end`, or nothing came any more."""
    offsets: list[int] = []
    while consumer.cursor.offsets[0] < end and (batch := consumer.poll_batch(patience)) is not None:
        offsets += range(batch.offset, batch.end)
    return offsets


def sizes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@pytest.mark.mechanism("K14")
@pytest.mark.slow("kills and starts two servers that a hundred consumers read")
def test_k14(tmp_path):
    """100 consumers read 1 MB each: the server's memory stays as it was, and so does its folder. It is killed, and each
    goes on where it stood: everything, and nothing twice.

    The control keeps for each consumer what it was sent and where it stands: memory grows with the consumers, and
    after the kill it knows none of them."""
    crowd = Crowd(tmp_path / "data", 100, PATIENCE)
    assert crowd.is_complete
    assert crowd.left_no_trace
    with served_by(STATEFUL):
        known = Crowd(tmp_path / "stateful", 100, 0.5)
    assert crowd.memory_growth < 5e6
    assert known.memory_growth > 25e6
    assert not known.is_complete


# K16: rewind.


@pytest.mark.mechanism("K16")
def test_k16(hub, server):
    """50,000 records are read, then again from the 20,000th on: the same bytes. Another consumer stays where it is.
    What retention has taken is told with both bounds. In the control, without seeking, there is no second pass."""
    began_us = SYSTEM_CLOCK.now_us() - 50_000_000
    with hub.producer() as producer:
        for number in range(50_000):
            producer.send(STREAM, b"%d" % number, key=b"k%d" % (number % 7), timestamp=began_us + number * 1_000)
    other = hub.consumer(STREAM, start="earliest", follow=False)
    assert [record.offset for record in itertools.islice(other, 300)] == list(range(300))
    with hub.consumer(STREAM, start="earliest", follow=False) as consumer:
        first = list(consumer)
        assert len(first) == 50_000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Consumer, "_go_to", lambda consumer, offsets: None)
            consumer.seek_shard(0, 20_000)
            assert list(consumer) == []
        consumer.seek_shard(0, 20_000)
        assert list(consumer) == first[20_000:]
        cursor = consumer.cursor
        consumer.seek(Cursor(cursor.stream, cursor.epoch, (49_990,)))
        assert list(consumer) == first[49_990:]
        # A time leads to the stored run that holds it.
        consumer.seek(first[20_000].timestamp)
        again = list(consumer)
        assert again == first[-len(again) :]
        assert 30_000 <= len(again) < 50_000
    assert [record.offset for record in other] == list(range(300, 50_000))

    server.stop()
    log = Log(server.folder)
    log.execute(TrimShard(log.ledger.list_streams()[0].id, 0, 30_000))
    log.close()
    server.start()
    with hub.consumer(STREAM, start="earliest", follow=False) as consumer:
        consumer.seek_shard(0, 20_000)
        with pytest.raises(mainstem.DataLoss) as caught:
            consumer.poll(PATIENCE)
        assert (caught.value.first, caught.value.last) == (20_000, 29_999)
        assert list(consumer) == first[30_000:]


# K30: recovery.


# Without a checkpoint meanwhile, an older copy of the ledger is as good as the newest: it is only behind.
SMALL_BLOCKS = ("--block-bytes", "4MiB", "--checkpoint-bytes", "64MiB")


@pytest.mark.mechanism("K30")
@pytest.mark.slow("kills and starts servers seven times")
def test_k30(tmp_path):
    """Kills under load, then a torn tail and a ledger that is older than the blocks: the server is back at once, has
    changed no byte of what it found, and every offset that was acknowledged or saved as a position means the same
    record. In the control the flushes that the ledger lacks are not applied again: offsets that were acknowledged are
    gone."""
    folder = tmp_path / "data"
    cursors: list[tuple[int, Cursor]] = []
    with ServerProcess(folder, *SMALL_BLOCKS) as server, mainstem.connect(server.url) as hub:
        hub.streams.create("old")
        hub.streams.create(STREAM)
        with hub.producer(compression=None) as producer:
            for _ in range(40):
                producer.send_many("old", [bytes(1_000)] * 1_000)
        with hub.producer() as producer, Paced(producer) as sender, hub.consumer(STREAM, start="earliest") as consumer:
            old_ledger: dict[str, bytes] = {}
            for kill in range(4):
                goal = sender.await_answer()
                while (record := consumer.poll(PATIENCE)) is not None and record.offset < goal:
                    pass
                cursors.append((goal + 1, consumer.cursor))
                server.kill()
                found = blocks(folder)
                if kill == 1:
                    old_ledger = ledger(folder)
                server.start()
                assert server.start_seconds < 2
                sender.await_answer()
                # A new block was begun, and none that was there was touched.
                now = blocks(folder)
                assert len(now) == len(found) + 1
                assert {name: now[name] for name in found} == found
            sender.stop()
            producer.flush(PATIENCE)
            acked = [ack.result(PATIENCE) for ack in sender.acks]
        server.kill()
        found = blocks(folder)
        newest = max(found)
        # Half of a frame, as a power cut in a write leaves it.
        found[newest] += found[newest][4_096 : 4_096 + 100]
        (folder / "blocks" / newest).write_bytes(found[newest])

        behind = tmp_path / "behind"
        shutil.copytree(folder, behind)
        restore(behind, old_ledger)
        restore(folder, old_ledger)
        server.start()
        assert server.start_seconds < 2
        assert "flushes were applied again from the blocks" in server.stderr()
        assert blocks(folder) == found
        records = read_all(hub, STREAM)
        assert [(0, record.offset) for record in records] == acked
        assert [int(record.value or b"") for record in records] == list(range(sender.sent))
        for offset, cursor in cursors:
            with hub.consumer(STREAM, start=cursor) as consumer:
                record = consumer.poll(PATIENCE)
                assert record is not None
                assert record.offset == offset == int(record.value or b"")

    with (
        served_by(NO_REPLAY),
        ServerProcess(behind, *SMALL_BLOCKS) as server,
        mainstem.connect(server.url) as hub,
    ):
        assert len(values(hub, STREAM)) < len(acked)
        with pytest.raises(mainstem.InvalidCursor):
            hub.consumer(STREAM, start=cursors[-1][1])


NO_REPLAY = """
    from mainstem.log.recovery import Recovery
    Recovery._replay = lambda recovery, ledger, journal: 0
"""


def ledger(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("ledger.db*")}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.glob("ledger.db*"):
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
