"""What Scribe promises about delivery: best effort, at least once, and how much a repeat costs."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

import mainstem
from mainstem.core.limits import PRODUCER_IN_FLIGHT_MAX
from mainstem.hub.hub import Hub
from mainstem.hub.remote import RemotePort
from mainstem.hub.requests import AppendRequest
from mainstem.testing import planted
from mainstem.testing.link import Link
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.wire import Welcome
from tests.integration.mechanisms.rig import SlowLink, repeats, values


def through(link: Link) -> str:
    return f"mainstem://{link.address}"


# S76: best effort.


SENT = 3_000


def best_effort(path: Path, *, acks: Literal["durable", "none"] = "none", rough: bool) -> tuple[int, int]:
    """3,000 records; if it is rough, with the server killed once and the answers on their way lost three times. How
    many of them are there, and how many more than once."""
    with (
        ServerProcess(path) as server,
        Link(server.address) as link,
        mainstem.connect(through(link)) as hub,
        mainstem.connect(server.url) as other,
    ):
        hub.streams.create("orders")
        before = 0
        with hub.producer(acks=acks, batch_bytes=2_048, buffer_bytes=1 << 20) as producer:
            for number in range(SENT):
                producer.send("orders", b"%d" % number * 20)
                if number % 100 == 99:
                    time.sleep(0.002)
                if rough and number in (500, 1_000, 2_000):
                    hub.streams.get("orders")  # it is connected
                    producer.flush()
                    link.hold_answers()
                    before = other.streams.get("orders").records
                if rough and number in (600, 1_100, 2_100):
                    # Carried out, as a second connection can see, before the answers are lost.
                    while other.streams.get("orders").records == before:
                        time.sleep(0.002)
                    link.cut()
                if rough and number == SENT // 2:
                    server.kill()
                    server.start()
            hub.streams.get("orders")
            assert producer.dropped == 0
        with hub.producer() as marker:
            marker.send("orders", b"end").result(10)
        found = [value for value in values(hub, "orders") if value != b"end"]
    return len(set(found)), repeats(found)


@pytest.mark.mechanism("S76")
@pytest.mark.slow("starts three servers, and two of them again")
def test_s76(tmp_path):
    """Without a fault nothing is lost and nothing doubled. With answers lost and the server killed on the way some
    records may be lost, a few at most, and still none is doubled, also by a server that recognises nothing: what is
    never sent again cannot be. Such a server doubles what a producer with acknowledgements sends again."""
    assert best_effort(tmp_path / "calm", rough=False) == (SENT, 0)
    with planted.skip_dedupe():
        found, doubled = best_effort(tmp_path / "rough", rough=True)
        assert doubled == 0
        assert found >= 0.9 * SENT
        found, doubled = best_effort(tmp_path / "control", acks="durable", rough=True)
        assert found == SENT
        assert doubled > 0


def repeated_by_lost_answers(path: Path) -> int:
    """Acknowledged sends whose answers are lost, so that the hub sends again: how many records are there twice."""
    with ServerProcess(path) as server, Link(server.address) as link, mainstem.connect(through(link)) as hub:
        hub.streams.create("orders")
        with hub.producer(batch_bytes=2_048) as producer, mainstem.connect(server.url) as other:
            producer.send("orders", b"first").result(10)
            for turn in range(5):
                before = other.streams.get("orders").records
                link.hold_answers()
                acks = [producer.send("orders", b"%d:%d" % (turn, number)) for number in range(50)]
                # Carried out, as a second connection can see, before the answer is lost.
                while other.streams.get("orders").records == before:
                    time.sleep(0.002)
                link.cut()
                for ack in acks:
                    ack.result(10)
        found = values(hub, "orders")[1:]
    assert set(found) == {b"%d:%d" % (turn, number) for turn in range(5) for number in range(50)}
    return repeats(found)


@pytest.mark.mechanism("S76", "S77")
def test_s76_s77_lost_answers(tmp_path):
    """A send whose answer is lost is sent again, and recognised by its number: no record twice. Without the numbers
    there are."""
    assert repeated_by_lost_answers(tmp_path / "numbered") == 0
    with planted.skip_dedupe():
        assert repeated_by_lost_answers(tmp_path / "control") > 0


# S77: at least once, whatever happens.


def under_chaos(path: Path, seed: int) -> tuple[int, int, int]:
    """Two writers while answers are lost and the server is killed, or hangs: promised and not there, neither there
    nor reported, there twice. A server that cannot start again has lost everything that it promised."""
    chance = random.Random(seed)
    sent: set[bytes] = set()
    fates: dict[bytes, mainstem.MainstemError | None] = {}
    with ServerProcess(path) as server, Link(server.address) as link, mainstem.connect(through(link)) as hub:
        hub.streams.create("orders")
        stop = threading.Event()

        def write(worker: int) -> None:
            with hub.producer(batch_bytes=1_024) as producer:
                number = 0
                while not stop.is_set():
                    group = [b"%d:%d:%d" % (worker, number, member) for member in range(20)]
                    sent.update(group)
                    acks = [producer.send("orders", value) for value in group]
                    for value, ack in zip(group, acks, strict=True):
                        fates[value] = ack.exception(30)
                    number += 1

        writers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
        for writer in writers:
            writer.start()
        try:
            for turn in range(8):
                seen = len(fates)
                while len(fates) < seen + 40:
                    time.sleep(0.002)
                if turn % 4 == 2:
                    server.kill()
                    server.start()
                elif turn % 4 == 3:
                    os.kill(server.pid, signal.SIGSTOP)
                    time.sleep(chance.uniform(0.1, 0.3))
                    os.kill(server.pid, signal.SIGCONT)
                else:
                    link.hold_answers()
                    time.sleep(chance.uniform(0.0, 0.02))
                link.cut()
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        # Once more when everything is promised and nothing is under way.
        server.kill()
        try:
            server.start()
        except ServerFailed:
            return len(fates), 0, 0
        found = values(hub, "orders")
    promised = {value for value, error in fates.items() if error is None}
    silent = sent - set(found) - set(fates)
    return len(promised - set(found)), len(silent), repeats(found)


@pytest.mark.mechanism("S77")
@pytest.mark.slow("kills a server under load, and breaks its connections")
def test_s77_chaos(tmp_path):
    """Nothing that was promised is lost, nothing is left without a word, nothing is there twice. A server that promises
    before it writes loses what it promised, and says so when it is started again."""
    assert under_chaos(tmp_path / "right", seed=1) == (0, 0, 0)
    with (
        planted.ack_before_write(),
        ServerProcess(tmp_path / "control") as server,
        mainstem.connect(server.url) as hub,
    ):
        hub.streams.create("orders")
        hub.producer().send("orders", b"promised").result(10)
        server.kill()
        with pytest.raises(ServerFailed, match="acknowledged are gone"):
            server.start()


def left_without_a_word(path: Path, *, patience: float, forgotten: Sequence[AppendRequest] = ()) -> int:
    """A hundred records, sent while the server is away: how many are neither there when it is back, nor reported to
    have failed within `patience` seconds. Then what was `forgotten` is told, or the producer would wait for it."""
    with ServerProcess(path) as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        producer = hub.producer()
        producer.send("orders", b"warm").result(10)
        server.kill()
        sent = [b"%d" % number for number in range(100)]
        acks = [producer.send("orders", value) for value in sent]
        server.start()
        hub.streams.get("orders")  # the hub is connected again
        with contextlib.suppress(mainstem.DeadlineExceeded):
            acks[-1].exception(patience)
        found = set(values(hub, "orders"))
        silent = sum(1 for value, ack in zip(sent, acks, strict=True) if value not in found and not ack.done())
        for request in forgotten:
            request.fail(mainstem.ConnectionLost("forgotten"))
        for ack in acks:
            ack.exception(10)
    return silent


@pytest.mark.mechanism("S77")
@pytest.mark.slow("starts two servers twice, and waits until a hub has found them again")
def test_s77_what_was_not_answered_is_sent_again(tmp_path, monkeypatch):
    """Sent while the server was away, every record is there or reported. A hub that does not send again what was not
    answered leaves them without a word."""
    assert left_without_a_word(tmp_path / "right", patience=10) == 0
    welcome = RemotePort._on_welcome
    forgotten: list[AppendRequest] = []

    def forget(port: RemotePort, header: Welcome) -> None:
        forgotten.extend(request for request in port._requests.values() if isinstance(request, AppendRequest))
        port._requests = {id_: kept for id_, kept in port._requests.items() if kept not in forgotten}
        welcome(port, header)

    monkeypatch.setattr(RemotePort, "_on_welcome", forget)
    assert left_without_a_word(tmp_path / "control", patience=0.2, forgotten=forgotten) == 100


# S79: a repeat is small.


def repeated_bytes(path: Path, batch_bytes: int) -> tuple[int, float]:
    """What goes over the link again when it breaks with as much under way as may be, and the mean size of a batch."""
    with ServerProcess(path) as server, SlowLink(server.address) as link, mainstem.connect(through(link)) as hub:
        hub.streams.create("orders")
        producer = hub.producer(batch_bytes=batch_bytes, buffer_bytes=32 << 20, compression=None)
        producer.send("orders", b"warm").result(10)
        link.hold_answers()
        for _ in range(20_000):
            producer.send("orders", b"x" * 250)
        with mainstem.connect(server.url) as other:
            settled = -1
            while other.streams.get("orders").records != settled:
                settled = other.streams.get("orders").records
                time.sleep(0.1)
        before = link.requests_bytes
        with mainstem.connect(server.url) as other:
            link.cut()
            # Only what was under way is repeated before the first answer; then new records follow.
            producer.flush()
            assert other.streams.get("orders").records == 20_001
        total = link.requests_bytes - before
        producer.close()
        new = (20_001 - settled) * 260
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            sizes = [batch._fetched.header.stored_len for batch in consumer.batches()]
    return max(0, total - new), sum(sizes) / len(sizes)


@pytest.mark.mechanism("S79")
def test_s79(tmp_path):
    """What is repeated is at most what may be under way: a few batches. With batches eight times as large, the same
    break costs several times as much."""
    small, small_mean = repeated_bytes(tmp_path / "small", 16 << 10)
    large, large_mean = repeated_bytes(tmp_path / "large", 128 << 10)
    assert small <= (PRODUCER_IN_FLIGHT_MAX + 1) * (16 << 10) * 1.2
    assert large > 3 * small
    assert small_mean <= 0.3 * large_mean


def records_in_a_batch(hub: Hub, stream: str, total: int, *, waiting: bool, batch_bytes: int = 1 << 20) -> float:
    """The mean, for one who waits for each answer, or for one who floods."""
    hub.streams.create(stream)
    with hub.producer(batch_bytes=batch_bytes) as producer:
        for _ in range(total):
            ack = producer.send(stream, b"x" * 100)
            if waiting:
                ack.result(10)
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        found = [batch.count for batch in consumer.batches()]
    assert sum(found) == total
    return total / len(found)


@pytest.mark.mechanism("S79")
def test_s79_a_batch_is_what_gathered(tmp_path):
    """Nobody sets the size: who waits for each answer writes batches of one record, who floods writes large ones. With
    a kilobyte as the most that may gather, a flood is small batches too."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        assert records_in_a_batch(hub, "waiting", 200, waiting=True) == 1
        flooding = records_in_a_batch(hub, "flooding", 20_000, waiting=False)
        assert flooding > 100
        assert records_in_a_batch(hub, "control", 2_000, waiting=False, batch_bytes=1_024) < flooding / 10
