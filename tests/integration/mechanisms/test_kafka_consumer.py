"""Kafka's consumers: they set the pace, one number is all their state, and the broker keeps none of it."""

import itertools
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import mainstem
from mainstem.consume import consumer as consumer_module
from mainstem.consume.record import RecordBatch
from mainstem.hub.hub import Hub
from mainstem.hub.subscription import RemoteSubscription
from mainstem.log.flush import TrimShard
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import SlowLink, changed_servers, embedded, take, values


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
    path, saved, end, saves = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
    hub = mainstem.open(path, read_only=True)
    start = mainstem.Cursor.parse(open(saved).read()) if os.path.exists(saved) else "earliest"
    consumer = hub.consumer("orders", start=start)
    for number, record in enumerate(consumer, 1):
        print(record.offset)
        if saves and number % 100 == 0:
            with open(saved + ".part", "w") as file:
                file.write(str(consumer.cursor))
            os.replace(saved + ".part", saved)
        if number == end:
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
"""


def read_and_die(path: Path, lives: int, *, saving: bool) -> list[list[int]]:
    """The offsets that a reader got in each of its lives, every one of them ended by a kill."""
    seen = []
    for life in range(lives):
        arguments = (path / "data", path / "cursor", 730 + 10 * life, saving)
        command = [sys.executable, "-c", textwrap.dedent(READ_AND_SAVE), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == -9, done.stderr
        seen.append([int(line) for line in done.stdout.split()])
    return seen


@pytest.mark.mechanism("K10")
def test_k10_processes(tmp_path):
    """A reader that saves its cursor every 100 records and is killed in between: everything is read, and repeated is at
    most what came after the cursor. One that saves nothing reads the same again in each of its lives."""
    with embedded(tmp_path / "data") as hub:
        fill(hub, "orders", 5_000, 50)
        seen = read_and_die(tmp_path, 4, saving=True)
        assert sorted(set(itertools.chain(*seen))) == list(range(max(seen[-1]) + 1))
        for before, after in itertools.pairwise(seen):
            assert 0 <= before[-1] + 1 - after[0] <= 100
        (tmp_path / "cursor").unlink()
        first, second = read_and_die(tmp_path, 2, saving=False)
        assert first == second[: len(first)]


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


REMEMBER_READERS = """
from mainstem.server.subscription import PushSubscription
send, kept = PushSubscription._send, []
def remember(self, batches, encode):
    kept.append([(self.id, batch.base, bytearray(batch.payload)) for batch in batches])
    send(self, batches, encode)
PushSubscription._send = remember
"""


def memory_for_readers(path: Path, rounds: int, idle: int) -> tuple[int, int]:
    """How much the server grows by rounds of twenty readers of two megabytes, and then by so many that take nothing."""
    with ServerProcess(path) as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 2_000, 100, size=1_000)
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            assert sum(batch.count for batch in consumer.batches()) == 2_000
        before = server.memory_bytes()
        for _ in range(rounds):
            readers = [hub.consumer("orders", start="earliest", follow=False) for _ in range(20)]
            for reader in readers:
                assert sum(batch.count for batch in reader.batches()) == 2_000
                reader.close()
        after = server.memory_bytes()
        waiting = [hub.consumer("orders", start="earliest", prefetch_bytes=4_096) for _ in range(idle)]
        for consumer in waiting:
            assert consumer.poll_batch(10) is not None
        assert hub.statistics()["subscriptions"] == idle
        return after - before, server.memory_bytes() - before


@pytest.mark.mechanism("K14")
@pytest.mark.xdist_group("measure")
def test_k14_memory(tmp_path):
    """A hundred readers of two megabytes: the server needs no more memory after them than before, give or take five.
    What a reader has not taken is not kept for it: a hundred that take nothing cost no more. A server that remembers
    what each reader got grows by it."""
    assert max(memory_for_readers(tmp_path / "right", rounds=5, idle=100)) < 5 << 20
    with changed_servers(REMEMBER_READERS):
        assert min(memory_for_readers(tmp_path / "control", rounds=1, idle=0)) > 20 << 20


def read_over_a_restart(path: Path) -> list[list[bytes]]:
    """What twenty readers get, 200 records of it after the server was killed and started again: more than a reader has
    room for, so that most of them come from the new life."""
    with ServerProcess(path) as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 4_000, 20, size=100)
        readers = [hub.consumer("orders", start="earliest", prefetch_bytes=8_192) for _ in range(20)]
        got = [take(reader, 50 * number) for number, reader in enumerate(readers)]
        server.kill()
        server.start()
        for found, reader in zip(got, readers, strict=True):
            found += take(reader, 200)
            reader.close()
    return [[value.rstrip(b".") for value in found] for found in got]


@pytest.mark.mechanism("K14")
def test_k14_restart(tmp_path, monkeypatch):
    """The server is killed while twenty read: each goes on at its own place, nothing is lost or repeated. Readers that
    do not bring their place along begin anew: the server has it nowhere."""
    for found in read_over_a_restart(tmp_path / "right"):
        assert found == numbers(0, len(found))
    subscribe = RemoteSubscription.subscribe_message

    def without_a_place(subscription):
        subscription._offsets = [0] * len(subscription._offsets)
        return subscribe(subscription)

    monkeypatch.setattr(RemoteSubscription, "subscribe_message", without_a_place)
    # The consumer would pass over what it has had already, which is its place again.
    monkeypatch.setattr(
        consumer_module, "RecordBatch", lambda name, batch, _, *rest: RecordBatch(name, batch, batch.base, *rest)
    )
    for found in read_over_a_restart(tmp_path / "control")[1:]:
        assert found != numbers(0, len(found))


# K16: back to where one was.


@pytest.mark.mechanism("K16")
def test_k16(tmp_path):
    """Read everything, go back, to a place or to a time, read again: the same bytes. Another reader notices nothing;
    without going back there is nothing more to read; and what is gone by then is told with both ends."""
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
            moment = first[8_000].timestamp
            reader.seek(moment)
            again = list(reader)
            assert again == [record for record in first if record.timestamp >= moment]
            assert len(again) < len(first)
            assert half_way + list(other) == first
            info = hub.streams.get("orders")
            hub._port.log.execute(TrimShard(info.id, 0, 12_000))  # type: ignore[attr-defined]
            reader.seek_shard(0, 8_000)
            with pytest.raises(mainstem.DataLoss) as caught:
                list(reader)
            assert (caught.value.first, caught.value.last) == (8_000, 11_999)
            assert list(reader) == first[12_000:]


@pytest.mark.mechanism("K16")
def test_k16_through_a_server(tmp_path):
    """The same far away: back to the 2,000th record, the same bytes again. Without going back nothing more comes."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        fill(hub, "orders", 5_000, 100)
        with hub.consumer("orders", start="earliest") as reader:
            first = [reader.poll(10) for _ in range(5_000)]
            assert reader.poll(0.05) is None  # the control
            reader.seek_shard(0, 2_000)
            assert [reader.poll(10) for _ in range(3_000)] == first[2_000:]
        assert values(hub, "orders") == numbers(0, 5_000)
