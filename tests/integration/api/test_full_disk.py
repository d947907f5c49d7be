"""Producers and readers of a hub whose disk gets full and has room again, embedded and behind a server."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mainstem
from mainstem.core.errors import DiskFull, MainstemError, StreamDeleted, UnknownStream
from mainstem.core.kinds import Address
from mainstem.core.settings import Settings
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.log.log import LogOptions
from mainstem.server.server import Server
from mainstem.server.sockets import address_of, bind
from mainstem.testing.disk import BudgetDisk
from mainstem.transport.loop import new_loop

MIB = 1 << 20
PLENTY = 1 << 39


@contextmanager
def served(path: Path, disk: BudgetDisk) -> Iterator[str]:
    """A server in a thread of this process, on a counted disk; its URL."""
    started = threading.Event()
    ended: list[Callable[[], object]] = []
    urls: list[str] = []

    async def serve() -> None:
        server = Server(Settings(data=path, listen=Address("127.0.0.1", 0), free_bytes_min=MIB), name="test", disk=disk)
        stop = asyncio.Event()
        ended.append(lambda: loop.call_soon_threadsafe(stop.set))
        loop = asyncio.get_running_loop()
        sockets = bind(Address("127.0.0.1", 0))
        await server.start(sockets)
        urls.append(f"mainstem://{address_of(sockets)}")
        started.set()
        await stop.wait()
        await server.stop()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(10)
    try:
        yield urls[0]
    finally:
        ended[0]()
        thread.join(20)


@pytest.fixture
def disk():
    return BudgetDisk(free=PLENTY)


@pytest.fixture
def hub(kind, tmp_path, disk):
    if kind == "embedded":
        with Hub(LogPort(tmp_path / "data", LogOptions(free_bytes_min=MIB), disk=disk), "here") as hub:
            hub.streams.create("orders")
            yield hub
            disk.free = PLENTY
        return
    with served(tmp_path / "data", disk) as url, mainstem.connect(url) as hub:
        hub.streams.create("orders")
        yield hub
        disk.free = PLENTY


def fill(hub: Hub, disk: BudgetDisk, free: int) -> None:
    disk.free = free
    if free:
        # The log finds out by looking, or by a write that finds no room.
        assert hub.statistics()["disk_full"]


# Below the watermark, and no room at all.
rooms = pytest.mark.parametrize("room", [MIB // 2, 0])


@rooms
def test_a_send_takes_longer_and_succeeds_when_there_is_room(hub, disk, room):
    with hub.producer() as producer:
        assert producer.send("orders", b"before").result() == (0, 0)
        fill(hub, disk, room)
        ack = producer.send("orders", b"during")
        with pytest.raises(MainstemError):
            ack.result(timeout=0.3)
        disk.free = PLENTY
        begun = time.monotonic()
        assert ack.result(timeout=10.0) == (0, 1)
        assert time.monotonic() - begun < 5.0
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert [record.value for record in consumer] == [b"before", b"during"]


@rooms
def test_many_in_flight_arrive_once_and_in_order(hub, disk, room):
    """Several requests are under way when the first is refused, in the middle of a flood."""
    with hub.producer(batch_bytes=1024) as producer:
        acks = []
        for number in range(3_000):
            acks.append(producer.send("orders", b"%d" % number))
            if number % 1_000 == 500:
                disk.free = room
            if number % 1_000 == 800:
                time.sleep(0.15)
                disk.free = PLENTY
        producer.flush(timeout=20.0)
        assert [ack.result() for ack in acks] == [(0, number) for number in range(3_000)]
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        assert [record.value for record in consumer] == [b"%d" % number for number in range(3_000)]


@rooms
def test_after_its_time_a_record_fails_because_the_disk_is_full(hub, disk, room):
    with hub.producer(delivery_timeout=1.0, batch_bytes=1024) as producer:
        assert producer.send("orders", b"before").result() == (0, 0)
        fill(hub, disk, room)
        acks = [producer.send("orders", bytes(600)) for _ in range(6)]
        for ack in acks:
            with pytest.raises(DiskFull, match=r"free|full"):
                ack.result()
        disk.free = PLENTY
        # The producer goes on under a new epoch.
        assert producer.send("orders", b"after").result(timeout=10.0) == (0, 1)


@rooms
def test_reading_and_deleting_go_on_over_the_same_hub(hub, disk, room):
    hub.streams.create("old")
    with hub.producer() as producer:
        producer.send("orders", b"before").result()
        fill(hub, disk, room)
        ack = producer.send("orders", b"during")
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            assert [record.value for record in consumer] == [b"before"]
        disk.free = max(room, 10_000)  # what a ballast would have given
        hub.streams.delete("old")
        assert [stream.name for stream in hub.streams.list()] == ["orders"]
        disk.free = PLENTY
        ack.result(timeout=10.0)


def test_records_that_need_no_acknowledgement_are_not_waited_for(hub, disk):
    with hub.producer(acks="none") as producer:
        producer.send("orders", b"before")
        producer.flush()
        fill(hub, disk, MIB // 2)
        for _ in range(10):
            producer.send("orders", b"during")
        disk.free = PLENTY
        begun = time.monotonic()
    assert time.monotonic() - begun < 5.0


def test_the_counters_are_in_the_statistics(hub, disk):
    with hub.producer(delivery_timeout=0.5) as producer:
        producer.prepare("orders")
        fill(hub, disk, 1_000)
        with pytest.raises(DiskFull):
            producer.send("orders", b"x").result()
    counters = hub.statistics()
    assert (counters["free_bytes"], counters["disk_full"], counters["seconds_until_full"]) == (1_000, 1, 0)
    assert counters["appends_refused_full"] > 0


@rooms
def test_a_stream_that_is_deleted_while_its_records_wait_is_told(hub, disk, caplog, room):
    """The disk is as full as before: nobody may say that it takes records again."""
    with hub.producer(delivery_timeout=20.0) as producer, caplog.at_level(logging.INFO):
        producer.send("orders", b"before").result()
        fill(hub, disk, room)
        ack = producer.send("orders", b"during")
        with pytest.raises(MainstemError):
            ack.result(timeout=0.3)
        disk.free = max(room, 10_000)  # what a ballast would have given
        hub.streams.delete("orders")
        with pytest.raises((StreamDeleted, UnknownStream)):
            ack.result(timeout=4.0)
        said = [record.getMessage() for record in caplog.records]
        assert not [line for line in said if "takes appends again" in line or "appends go on" in line]
