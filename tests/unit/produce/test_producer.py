"""The producer's way without a lock: whatever the moment at which a parcel rolls, a record is sent once."""

import sys
import threading

import pytest

import mainstem


@pytest.fixture(autouse=True)
def restless_interpreter():
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def hub(tmp_path):
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders")
        yield hub


def read(hub, stream="orders") -> list[bytes]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return [record.value or b"" for record in consumer]


@pytest.mark.parametrize("keyed", [False, True])
def test_records_sent_while_parcels_roll_are_neither_lost_nor_doubled(hub, keyed):
    """Another thread flushes without end, so that parcels roll at any instruction of `send`."""
    stop = threading.Event()
    acks = []
    with hub.producer(batch_bytes=8_192) as producer:

        def flush() -> None:
            while not stop.is_set():
                producer.flush()

        flusher = threading.Thread(target=flush)
        flusher.start()
        for number in range(8_000):
            ack = producer.send("orders", b"%d" % number, b"k" if keyed else None)
            acks.append(ack)
        stop.set()
        flusher.join()
    assert [ack.result(10) for ack in acks] == [(0, number) for number in range(8_000)]
    assert read(hub) == [b"%d" % number for number in range(8_000)]


def test_records_of_several_kinds_keep_their_order_while_parcels_roll(hub):
    """Some take the short way and some the long one; keys begin in the middle of a chunk."""
    stop = threading.Event()
    with hub.producer(batch_bytes=8_192) as producer:

        def flush() -> None:
            while not stop.is_set():
                producer.flush()

        flusher = threading.Thread(target=flush)
        flusher.start()
        for number in range(4_000):
            match number % 5:
                case 0:
                    producer.send("orders", b"%d" % number, key="text")
                case 1:
                    producer.send("orders", b"%d" % number, headers={"a": b"b"})
                case 2:
                    producer.send("orders", b"%d" % number, key=b"k")
                case _:
                    producer.send("orders", b"%d" % number)
        stop.set()
        flusher.join()
    assert read(hub) == [b"%d" % number for number in range(4_000)]


def test_a_second_thread_takes_nothing_from_the_first(hub):
    """Record by record from one thread, tables and records from another: each in its own order, all there."""
    with hub.producer(batch_bytes=4_096) as producer:
        done = threading.Event()

        def other() -> None:
            number = 0
            while not done.is_set():
                producer.send_many("orders", [b"t%d" % number, b"t%d" % (number + 1)])
                producer.send("orders", b"t%d" % (number + 2))
                number += 3
            totals.append(number)

        totals: list[int] = []
        thread = threading.Thread(target=other)
        thread.start()
        acks = [producer.send("orders", b"m%d" % number) for number in range(3_000)]
        done.set()
        thread.join()
        producer.flush()
        offsets = [ack.result(10)[1] for ack in acks]
    found = read(hub)
    assert [found[offset] for offset in offsets] == [b"m%d" % number for number in range(3_000)]
    assert [value for value in found if value.startswith(b"t")] == [b"t%d" % number for number in range(totals[0])]
    assert len(found) == 3_000 + totals[0]


def test_threads_that_come_and_go_lose_nothing(hub):
    """Each new thread may get the number of one that has ended."""
    with hub.producer() as producer:
        for worker in range(50):
            thread = threading.Thread(
                target=lambda worker=worker: [producer.send("orders", b"%d:%d" % (worker, n)) for n in range(20)]
            )
            thread.start()
            thread.join()
    assert read(hub) == [b"%d:%d" % (worker, n) for worker in range(50) for n in range(20)]
