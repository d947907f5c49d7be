"""What Scribe promises about delivery: best effort, at least once, and how much a repeat costs."""

import random
import threading
import time
from pathlib import Path

import pytest

import mainstem
from mainstem.core.limits import PRODUCER_IN_FLIGHT_MAX
from mainstem.testing import planted
from mainstem.testing.link import Link
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.integration.mechanisms.rig import SlowLink, repeats, values


def through(link: Link) -> str:
    return f"mainstem://{link.address}"


# S76: best effort.


def best_effort(path: Path, *, kill: bool) -> tuple[int, int, int]:
    """3,000 records without acknowledgement, the server killed on the way or not: sent, found, found twice."""
    sent = 3_000
    with ServerProcess(path) as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        with hub.producer(acks="none", batch_bytes=2_048, buffer_bytes=1 << 20) as producer:
            for number in range(sent):
                producer.send("orders", b"%d" % number)
                if number % 100 == 99:
                    time.sleep(0.002)
                if kill and number == sent // 2:
                    server.kill()
                    server.start()
            assert producer.dropped == 0
        with hub.producer() as marker:
            marker.send("orders", b"end").result(10)
        found = values(hub, "orders")[:-1]
    return sent, len(found), repeats(found)


@pytest.mark.mechanism("S76")
def test_s76(tmp_path):
    """Without a fault nothing is lost and nothing doubled. With the server killed on the way some may be lost, a few at
    most, and still none is doubled: what is never sent again cannot be."""
    assert best_effort(tmp_path / "calm", kill=False) == (3_000, 3_000, 0)
    sent, found, doubled = best_effort(tmp_path / "rough", kill=True)
    assert doubled == 0
    assert found >= 0.9 * sent


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
    """Two writers while answers are lost and the server is killed: promised and not there, neither there nor reported,
    there twice. A server that cannot start again has lost everything that it promised."""
    chance = random.Random(seed)
    fates: dict[bytes, mainstem.MainstemError | None] = {}
    with ServerProcess(path) as server, Link(server.address) as link, mainstem.connect(through(link)) as hub:
        hub.streams.create("orders")
        stop = threading.Event()

        def write(worker: int) -> None:
            with hub.producer(batch_bytes=1_024) as producer:
                number = 0
                while not stop.is_set():
                    group = [b"%d:%d:%d" % (worker, number, member) for member in range(20)]
                    acks = [producer.send("orders", value) for value in group]
                    for value, ack in zip(group, acks, strict=True):
                        fates[value] = ack.exception(30)
                    number += 1

        writers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
        for writer in writers:
            writer.start()
        try:
            for turn in range(6):
                seen = len(fates)
                while len(fates) < seen + 40:
                    time.sleep(0.002)
                if turn % 3 == 2:
                    server.kill()
                    server.start()
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
    silent = {value for value in fates if value not in promised and fates[value] is None}
    return len(promised - set(found)), len(silent), repeats(found)


@pytest.mark.mechanism("S77")
def test_s77_chaos(tmp_path):
    """Nothing that was promised is lost, nothing is left without a word, nothing is there twice."""
    assert under_chaos(tmp_path / "right", seed=1) == (0, 0, 0)


@pytest.mark.mechanism("S77")
def test_s77_control(tmp_path):
    """Promised before it is written: lost."""
    with (
        planted.ack_before_write(),
        ServerProcess(tmp_path / "data") as server,
        mainstem.connect(server.url) as hub,
    ):
        hub.streams.create("orders")
        hub.producer().send("orders", b"promised").result(10)
        server.kill()
        with pytest.raises(ServerFailed, match="acknowledged are gone"):
            server.start()


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


@pytest.mark.mechanism("S79")
def test_s79_a_batch_is_what_gathered(tmp_path):
    """Nobody sets the size: who waits for each answer writes batches of one record, who floods writes large ones."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        for name in ("waiting", "flooding"):
            hub.streams.create(name)
        with hub.producer() as producer:
            for _ in range(200):
                producer.send("waiting", b"x" * 100).result(10)
            for _ in range(20_000):
                producer.send("flooding", b"x" * 100)
        counts = {}
        for name in ("waiting", "flooding"):
            with hub.consumer(name, start="earliest", follow=False) as consumer:
                found = [batch.count for batch in consumer.batches()]
            counts[name] = sum(found) / len(found)
    assert counts["waiting"] == 1
    assert counts["flooding"] > 100
