"""Delivery classes of Scribe: best effort, at least once, and how large the batches of the strong class get."""

import asyncio
import contextlib
import os
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import mainstem
from mainstem.hub.hub import Hub
from mainstem.hub.remote import RemotePort
from mainstem.produce.producer import Producer
from mainstem.testing import planted
from mainstem.testing.history import History, Report, stamp
from mainstem.testing.link import Link
from mainstem.testing.server import ServerProcess
from mainstem.transport.wire import Append, Kind, MessageReader
from tests.integration.mechanisms.rig import read_all, repeats, values

STREAM = "events"
# For whatever should happen within a moment.
PATIENCE = 30.0


@contextmanager
def linked(folder: Path, link_type: type[Link] = Link) -> Iterator[tuple[ServerProcess, Any, Hub]]:
    """A server, a link to it, and a hub that connects through the link; one stream."""
    with (
        ServerProcess(folder) as server,
        link_type(server.address) as link,
        mainstem.connect(f"mainstem://{link.address}") as hub,
    ):
        hub.streams.create(STREAM)
        yield server, link, hub


def settle(hub: Hub, *producers: Producer) -> list[bytes]:
    """Everything that arrived of what these producers sent. A durable record on the same connection goes behind it."""
    for producer in producers:
        producer.flush(PATIENCE)
    with hub.producer() as last:
        last.send(STREAM, b"last").result(PATIENCE)
    return [value for value in values(hub, STREAM) if value != b"last"]


class Paced:
    """A thread that sends numbered records, a few every millisecond, until it is stopped."""

    def __init__(self, producer: Producer, make: Callable[[int], bytes], per_turn: int) -> None:
        self.acks: list[Any] = []
        self._answered = 0
        self._producer = producer
        self._make = make
        self._per_turn = per_turn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            for _ in range(self._per_turn):
                self.acks.append(self._producer.send(STREAM, self._make(len(self.acks))))

    @property
    def sent(self) -> int:
        return len(self.acks)

    @property
    def answered(self) -> int:
        """How many have an outcome; answers come in the order of sending."""
        while self._answered < len(self.acks) and self.acks[self._answered].done():
            self._answered += 1
        return self._answered

    def await_more(self, count: int) -> None:
        """Until this many more were sent."""
        goal = self.sent + count
        await_that(lambda: self.sent >= goal)

    def await_answer(self) -> None:
        """Until a record that is sent from now on was answered, one way or the other."""
        goal = self.sent
        self.await_more(1)
        self.acks[goal].exception(PATIENCE)

    def __enter__(self) -> "Paced":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def await_that(condition: Callable[[], bool]) -> None:
    turn = threading.Event()
    for _ in range(int(PATIENCE / 0.002)):
        if condition():
            return
        turn.wait(0.002)
    pytest.fail("waited in vain")


# S76: best effort.


def record_of(number: int) -> bytes:
    return b"%06d" % number * 20


@pytest.mark.mechanism("S76")
@pytest.mark.slow("kills and starts a server")
def test_s76_broken_connections_and_a_kill_lose_little_and_repeat_nothing(tmp_path):
    """Without a fault nothing is lost. With connections that break under the traffic and a killed server a few records
    are lost, none comes twice, and `send` never waits for any of it: what gathers meanwhile is sent later.

    The control sends again whatever it cannot know to have arrived, as best effort is usually built: duplicates."""
    with linked(tmp_path / "data") as (server, link, hub):
        calm = hub.producer(acks="none")
        sent = [record_of(number) for number in range(2_000)]
        for value in sent:
            calm.send(STREAM, value)
        assert settle(hub, calm) == sent

        producer = hub.producer(acks="none")
        with Paced(producer, lambda number: b"f" + record_of(number), per_turn=5) as sender:
            for _ in range(4):
                sender.await_more(300)
                link.hold_answers()
                sender.await_more(20)
                link.cut()
            sender.await_more(300)
            server.kill()
            # Nobody is there to take them, and sending goes on.
            sender.await_more(200)
            server.start()
            sender.await_more(300)
        found = [value for value in settle(hub, producer) if value.startswith(b"f")]
        assert producer.dropped == 0
        assert repeats(found) == 0
        lost = {b"f" + record_of(number) for number in range(sender.sent)} - set(found)
        assert len(lost) <= sender.sent * 0.05

        # The control, on the same server.
        with sending_again():
            eager = mainstem.connect(f"mainstem://{link.address}")
            with eager, eager.producer(acks="none") as producer:
                for number in range(100):
                    producer.send(STREAM, b"c" + record_of(number))
                settle(eager, producer)
                link.cut()
                found = [value for value in settle(eager, producer) if value.startswith(b"c")]
        assert repeats(found) >= 100


@contextmanager
def sending_again() -> Iterator[None]:
    """What was handed over without an answer is handed over again to the next connection."""
    hand_over, welcome = RemotePort.append_unacknowledged, RemotePort._on_welcome
    handed: list[Sequence[Any]] = []

    def remember(port: RemotePort, batches: Sequence[Any]) -> bool:
        handed.append(batches)
        return hand_over(port, batches)

    def repeat(port: RemotePort, message: Any) -> None:
        welcome(port, message)
        for batches in handed:
            hand_over(port, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemotePort, "append_unacknowledged", remember)
        patch.setattr(RemotePort, "_on_welcome", repeat)
        yield


@pytest.mark.mechanism("S76")
def test_s76_what_a_dead_server_had_not_committed_is_lost_and_nobody_waits(tmp_path):
    """A server that is stopped takes records into its socket and dies: the best effort ones were flushed without a
    wait, and are gone. In the control, the same with acknowledgements, the producer waits and none is gone."""
    with linked(tmp_path / "data") as (server, _link, hub):
        best, durable = hub.producer(acks="none"), hub.producer()
        best.send(STREAM, b"before")
        assert settle(hub, best) == [b"before"]
        durable.send(STREAM, b"warm").result(PATIENCE)
        os.kill(server.pid, signal.SIGSTOP)
        for number in range(100):
            best.send(STREAM, b"best %d" % number)
        best.flush(PATIENCE)
        acks = [durable.send(STREAM, b"durable %d" % number) for number in range(100)]
        with pytest.raises(mainstem.DeadlineExceeded):
            durable.flush(0.05)
        assert not any(ack.done() for ack in acks)
        server.kill()
        server.start()
        for ack in acks:
            ack.result(PATIENCE)
        found = settle(hub, best, durable)
        assert found == [b"before", b"warm", *(b"durable %d" % number for number in range(100))]
        assert best.dropped == 0


@pytest.mark.mechanism("S76")
def test_s76_a_full_buffer_lets_the_oldest_go_and_counts_them(tmp_path):
    """While nobody is there, the newest records that fit the buffer are kept; the rest is counted. A record is either
    there, or counted, never both. The control waits for room, and `send` does not return while the server is away."""
    with linked(tmp_path / "data") as (server, _link, hub):
        producer = hub.producer(acks="none", batch_bytes=8 << 10, buffer_bytes=64 << 10)
        durable = hub.producer(batch_bytes=8 << 10, buffer_bytes=64 << 10, delivery_timeout=0.2)
        producer.send(STREAM, b"first")
        assert settle(hub, producer) == [b"first"]
        durable.send(STREAM, b"warm").result(PATIENCE)
        server.kill()
        await_that(lambda: not hub._port.can_take())
        for number in range(1_500):
            producer.send(STREAM, record_of(number))
        with pytest.raises(mainstem.DeadlineExceeded):
            fill(durable)
        server.start()
        with contextlib.suppress(mainstem.DeadlineExceeded):
            durable.flush(PATIENCE)
        kept = [value for value in settle(hub, producer) if value[:1].isdigit()]
        assert 0 < producer.dropped < 1_500
        assert kept == [record_of(number) for number in range(producer.dropped, 1_500)]


def fill(producer: Producer) -> None:
    for number in range(1_500):
        producer.send(STREAM, b"d" + record_of(number))


# S77: at least once.


def lose_answers(link: Link, direct: Hub, sender: Paced) -> None:
    """Something is written, its acknowledgement is lost on the way, and the connection breaks."""
    link.hold_answers()
    # What is stored is looked at first: if there is more of it than was ever answered, an answer is held back.
    await_that(lambda: direct.streams.get(STREAM).records > sender.answered)
    link.cut()


def chaos(folder: Path, faults: Sequence[str]) -> Report:
    """Send numbered records through one fault after the other, then judge what became of each of them."""
    history = History()
    with linked(folder) as (server, link, hub):
        with hub.producer() as producer, mainstem.connect(server.url) as direct:
            with Paced(producer, lambda number: stamp(1, number, 100), per_turn=5) as sender:
                for fault in faults:
                    sender.await_answer()
                    if fault == "answer":
                        lose_answers(link, direct, sender)
                    elif fault == "pause":
                        os.kill(server.pid, signal.SIGSTOP)
                        sender.await_more(200)
                        os.kill(server.pid, signal.SIGCONT)
                    else:
                        server.kill()
                        server.start()
                sender.await_answer()
            history.sent(1, list(range(sender.sent)))
            for number, ack in enumerate(sender.acks):
                # Everything is answered in the end: delivered, or refused.
                error = ack.exception(PATIENCE)
                if error is None:
                    history.acked(1, number, *ack.result())
                elif not isinstance(error, mainstem.Retriable):
                    history.failed(1, number)
        records = read_all(hub, STREAM)
        history.read(1, 0, [record.offset for record in records], [record.value or b"" for record in records])
    return history.check()


def survivors(folder: Path, count: int) -> list[bytes]:
    """What is left of records that were all acknowledged when the server was killed."""
    with linked(folder) as (server, _link, hub), hub.producer() as producer:
        for number in range(count):
            producer.send(STREAM, b"%d" % number).result(PATIENCE)
        server.kill()
        server.start()
        return values(hub, STREAM)


@pytest.mark.mechanism("S77")
@pytest.mark.slow("kills and starts servers")
def test_s77(tmp_path):
    """Kills, pauses and lost answers in a seeded order: nothing that was acknowledged is lost, nothing is there twice,
    and every record has an outcome.

    Two controls: acknowledged before it is written, a kill loses records; without the memory of producers, a lost
    answer doubles them."""
    faults = ["kill", "kill", "pause", "pause", "answer", "answer", "answer", "answer"]
    Random(77).shuffle(faults)
    report = chaos(tmp_path / "data", faults)
    assert report.ok, report
    assert report.unknown == report.failed == 0
    assert report.acked == report.sent > 1_000

    # Where the blocks end early the ledger is made to agree, or the server would refuse to start.
    with planted.ack_before_write(), planted.believe_blocks():
        assert len(survivors(tmp_path / "early", 10)) < 10
    with planted.skip_dedupe():
        assert chaos(tmp_path / "forgetful", ["answer"]).duplicated > 0


# S79: the batches of the strong class.

BATCH_BYTES = 64 << 10
ROLL = Producer._roll


class Observed(Link):
    """A link that reads along: which batches passed, and which of them passed again. Answers take `delay` seconds."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.delay = 0.0
        # Bytes of every batch, and of those that had passed before.
        self.batches: list[int] = []
        self.repeated: list[int] = []
        self._passed: set[tuple[int, ...]] = set()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, holds: bool) -> None:
        messages = MessageReader(bytearray(64 << 10))
        messages.allow_large()
        with contextlib.suppress(OSError):
            while piece := await reader.read(64 << 10):
                if holds:
                    await asyncio.sleep(self.delay)
                    await self._answers_flow.wait()
                else:
                    for message in messages.feed(piece):
                        if message.kind == Kind.APPEND:
                            self._note(message.header)
                writer.write(piece)
                await writer.drain()

    def _note(self, append: Append) -> None:
        for header in append.batches:
            batch = (header.producer, header.producer_epoch, header.stream, header.shard, header.sequence)
            (self.repeated if batch in self._passed else self.batches).append(header.stored_len)
            self._passed.add(batch)


class Load:
    """One steady load, whatever the producer makes of it: its cost in a quiet stretch, and what lost answers did."""

    def __init__(self, folder: Path, delay: float = 0.0, lost_answers: int = 5) -> None:
        with linked(folder, Observed) as (server, link, hub), mainstem.connect(server.url) as direct:
            link.delay = delay
            producer = hub.producer(compression=None, batch_bytes=BATCH_BYTES)
            with Paced(producer, lambda number: b"%06d" % number + bytes(1_000), per_turn=1) as sender:
                sender.await_answer()
                begin, before = len(link.batches), direct.statistics()
                sender.await_more(200)
                sender.await_answer()
                after = direct.statistics()
                calm = link.batches[begin:]
                bursts = []
                for _ in range(lost_answers):
                    passed = len(link.repeated)
                    lose_answers(link, direct, sender)
                    # What gathered while there was no connection is a batch of its own; then it is quiet again.
                    for _ in range(3):
                        sender.await_answer()
                    bursts.append(sum(link.repeated[passed:]))
            with pytest.MonkeyPatch.context() as patch:
                # The rest is shipped also where batches are otherwise filled.
                patch.setattr(Producer, "_roll", ROLL)
                found = settle(hub, producer)
            assert [int(value[:6]) for value in found] == list(range(sender.sent))
        self.mean_bytes = sum(calm) / len(calm)
        megabytes = (after["bytes_written"] - before["bytes_written"]) / 1e6
        self.flushes_per_mb = (after["flushes_applied"] - before["flushes_applied"]) / megabytes
        # What a lost answer made the server take in again.
        self.burst_bytes = statistics.median(bursts) if bursts else 0


@contextmanager
def fixed_target() -> Iterator[None]:
    """Batches are shipped when they are full, whatever is under way."""

    def roll_full(producer: Producer) -> None:
        if producer._add_filled(0) > BATCH_BYTES - 2_048:
            ROLL(producer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Producer, "_roll", roll_full)
        yield


@pytest.mark.mechanism("S79")
@pytest.mark.slow("starts three servers and breaks connections")
def test_s79(tmp_path):
    """With acknowledgements a batch is what gathered while the one before was committed: small where commits are fast,
    so that one lost answer repeats little. The slower the way, the larger the batches, without a setting.

    The control fills every batch to its target: larger batches and fewer flushes, and a lost answer repeats all of
    one."""
    strong = Load(tmp_path / "strong")
    with fixed_target():
        fixed = Load(tmp_path / "fixed")
    assert strong.mean_bytes <= 0.3 * fixed.mean_bytes
    assert strong.burst_bytes <= 0.4 * fixed.burst_bytes
    # The price.
    assert strong.flushes_per_mb >= 2 * fixed.flushes_per_mb
    far = Load(tmp_path / "far", delay=0.02, lost_answers=0)
    assert far.mean_bytes >= 2 * strong.mean_bytes
