"""Kafka's consumers: they set the pace, one number is all their state, and the broker keeps none of it."""

import itertools
import subprocess
import sys
import textwrap
import time

import pytest

import mainstem
from mainstem.hub.hub import Hub
from mainstem.hub.remote import RemoteSubscription
from mainstem.log.flush import TrimShard
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import SlowLink, embedded, take, values


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def fill(hub: Hub, stream: str, total: int, batch: int, size: int = 0) -> None:
    hub.streams.create(stream)
    with hub.producer(compression=None) as producer:
        for first in range(0, total, batch):
            producer.send_many(stream, [value.ljust(size, b".") for value in numbers(first, first + batch)])


# K9: no more than asked for, and in time.


@pytest.mark.mechanism("K9")
def test_k9_no_more_than_asked_for(tmp_path, monkeypatch):
    """64 KB at a time: never more than that and one batch waits at the reader, and everything comes in order. With room
    for megabytes, megabytes come."""
    held: list[int] = []
    receive = RemoteSubscription.receive

    def watching(self, header, payloads):
        receive(self, header, payloads)
        held.append(self._queued_bytes)

    monkeypatch.setattr(RemoteSubscription, "receive", watching)
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 50_000, 50)
        for limit, most in ((64 << 10, (64 << 10) + 4_096), (8 << 20, None)):
            held.clear()
            with hub.consumer("orders", start="earliest", follow=False, prefetch_bytes=limit) as consumer:
                found = []
                for batch in consumer.batches():
                    time.sleep(0.0002)
                    found += batch.values()
            assert found == numbers(0, 50_000)
            if most is None:
                assert max(held) > 256 << 10
            else:
                assert max(held) <= most


def share_of_waits(link: SlowLink, prefetch_bytes: int) -> float:
    """How often a reader that takes a millisecond for a batch finds nothing there, after a warm-up."""
    with (
        mainstem.connect(f"mainstem://{link.address}") as hub,
        hub.consumer("orders", start="earliest", prefetch_bytes=prefetch_bytes) as consumer,
    ):
        assert consumer.poll_batch(10) is not None
        time.sleep(0.1)
        empty = 0
        for _ in range(150):
            time.sleep(0.001)
            if consumer.poll_batch(0) is None:
                empty += 1
                assert consumer.poll_batch(10) is not None
    return empty / 150


@pytest.mark.mechanism("K9")
@pytest.mark.xdist_group("measure")
def test_k9_in_time(tmp_path):
    """Ten milliseconds away: a reader with a millisecond of work per batch finds the next one there in 95 of 100 cases.
    With room for a single batch it waits for the link instead."""
    with ServerProcess(tmp_path / "data") as server, SlowLink(server.address, delay=0.01) as link:
        with mainstem.connect(server.url) as hub:
            fill(hub, "orders", 2_000, 5, size=1_000)
        assert share_of_waits(link, 1 << 20) <= 0.05
        assert share_of_waits(link, 4_096) > 0.3


# K10: one number per shard says everything.

READ_AND_SAVE = """
    import os, sys, mainstem
    path, saved, end = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hub = mainstem.open(path, read_only=True)
    start = mainstem.Cursor.parse(open(saved).read()) if os.path.exists(saved) else "earliest"
    consumer = hub.consumer("orders", start=start)
    for number, record in enumerate(consumer, 1):
        print(record.offset)
        if number % 100 == 0:
            with open(saved + ".part", "w") as file:
                file.write(str(consumer.cursor))
            os.replace(saved + ".part", saved)
        if number == end:
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
"""


@pytest.mark.mechanism("K10")
def test_k10_processes(tmp_path):
    """A reader that saves its cursor every 100 records and is killed in between: everything is read, and repeated is at
    most what came after the cursor."""
    with embedded(tmp_path / "data") as hub:
        fill(hub, "orders", 5_000, 50)
        saved, seen = tmp_path / "cursor", []
        for life in range(4):
            command = [sys.executable, "-c", textwrap.dedent(READ_AND_SAVE), tmp_path / "data", saved, 730 + 10 * life]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == -9, done.stderr
            seen.append([int(line) for line in done.stdout.split()])
        assert sorted(set(itertools.chain(*seen))) == list(range(max(seen[-1]) + 1))
        for before, after in itertools.pairwise(seen):
            assert 0 <= before[-1] + 1 - after[0] <= 100


def repeated_and_missed(hub: Hub, *, saving: bool) -> tuple[int, int]:
    """A reader that is lost twenty times on its way through 5,000 records."""
    cursor: mainstem.Cursor | None = None
    seen: list[int] = []
    for life in range(21):
        with hub.consumer("orders", start=cursor or "earliest", follow=False) as consumer:
            for number, record in enumerate(consumer, 1):
                seen.append(record.offset)
                if saving and number % 50 == 0:
                    cursor = consumer.cursor
                if life < 20 and number == 240:
                    break
    return len(seen) - len(set(seen)), 5_000 - len(set(seen))


@pytest.mark.mechanism("K10")
def test_k10_twenty_times(tmp_path):
    """Lost twenty times, never more than 50 records are read again, and none is missed. Without the number, everything
    is read again each time."""
    with embedded(tmp_path) as hub:
        fill(hub, "orders", 5_000, 50)
        repeated, missed = repeated_and_missed(hub, saving=True)
        assert missed == 0
        assert repeated <= 20 * 50
        repeated, missed = repeated_and_missed(hub, saving=False)
        assert missed == 0
        assert repeated > 20 * 200


# K14: the broker does not know who read what.


@pytest.mark.mechanism("K14")
@pytest.mark.xdist_group("measure")
def test_k14_memory(tmp_path):
    """A hundred readers of two megabytes: the server needs no more memory after them than before, give or take five.
    What a reader has not taken is not kept for it: a hundred that take nothing cost no more."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 2_000, 100, size=1_000)
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            assert sum(batch.count for batch in consumer.batches()) == 2_000
        before = server.memory_bytes()
        for _ in range(5):
            readers = [hub.consumer("orders", start="earliest", follow=False) for _ in range(20)]
            for reader in readers:
                assert sum(batch.count for batch in reader.batches()) == 2_000
                reader.close()
        assert server.memory_bytes() - before < 5 << 20
        idle = [hub.consumer("orders", start="earliest", prefetch_bytes=4_096) for _ in range(100)]
        for consumer in idle:
            assert consumer.poll_batch(10) is not None
        assert hub.statistics()["subscriptions"] == 100
        assert server.memory_bytes() - before < 5 << 20


@pytest.mark.mechanism("K14")
def test_k14_restart(tmp_path):
    """The server is killed while twenty read: each goes on at its own place, nothing is lost or repeated. Readers that
    do not bring their place along begin anew: the server has it nowhere."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 4_000, 20)
        readers = [hub.consumer("orders", start="earliest", prefetch_bytes=8_192) for _ in range(20)]
        got = [take(reader, 50 * number) for number, reader in enumerate(readers)]
        server.kill()
        server.start()
        for found, reader in zip(got, readers, strict=True):
            found += take(reader, 200)
            assert found == numbers(0, len(found))
        for reader in readers:
            reader.close()
        with hub.consumer("orders", start="earliest") as newcomer:
            assert take(newcomer, 1) == [b"0"]


# K16: back to where one was.


@pytest.mark.mechanism("K16")
def test_k16(tmp_path):
    """Read everything, go back, read again: the same bytes. Another reader notices nothing; without going back there is
    nothing more to read; and what is gone by then is told with both ends."""
    with embedded(tmp_path) as hub:
        fill(hub, "orders", 20_000, 100)
        with (
            hub.consumer("orders", start="earliest", follow=False) as reader,
            hub.consumer("orders", start="earliest", follow=False) as other,
        ):
            half_way = list(itertools.islice(other, 5_000))
            first = list(reader)
            assert list(reader) == []  # the control
            reader.seek_shard(0, 8_000)
            assert list(reader) == first[8_000:]
            reader.seek("earliest")
            assert list(reader) == first
            assert half_way + list(other) == first
            info = hub.streams.get("orders")
            hub._port.log.execute(TrimShard(info.id, 0, 12_000))
            reader.seek_shard(0, 8_000)
            with pytest.raises(mainstem.DataLoss) as caught:
                list(reader)
            assert (caught.value.first, caught.value.last) == (8_000, 11_999)
            assert list(reader) == first[12_000:]


@pytest.mark.mechanism("K16")
def test_k16_through_a_server(tmp_path):
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 5_000, 100)
        with hub.consumer("orders", start="earliest") as reader:
            first = [reader.poll(10) for _ in range(5_000)]
            reader.seek_shard(0, 2_000)
            assert [reader.poll(10) for _ in range(3_000)] == first[2_000:]
        assert values(hub, "orders") == numbers(0, 5_000)
