"""More shards under load: keyed writers and readers go on, and nothing is lost, doubled or out of order per key."""

import contextlib
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.core import placement
from mainstem.core.errors import InvalidRequest
from mainstem.testing.server import ServerProcess

KEYS = 40


class Writer(threading.Thread):
    """Sends numbered records of its keys, as fast as it can, until it is told to stop."""

    def __init__(self, hub, number):
        super().__init__(daemon=True)
        self._hub = hub
        self._number = number
        self.is_over = threading.Event()
        self.sent = 0
        self.places = []
        self.error = None

    def run(self):
        try:
            with self._hub.producer(batch_bytes=4096) as producer:
                acks = []
                while not self.is_over.is_set():
                    key = b"%d-%d" % (self._number, self.sent % KEYS)
                    acks.append(producer.send("orders", b"%d" % (self.sent // KEYS), key=key))
                    self.sent += 1
                    if self.sent % 200 == 0:
                        time.sleep(0.002)
                self.places = [ack.result(30) for ack in acks]
        except BaseException as error:  # told to the test
            self.error = error


def follow(hub, counts, total, deadline):
    """Read everything that is written; every key's records must come one after the other."""
    seen = 0
    places = set()
    with hub.consumer("orders", start="earliest") as consumer:
        while seen < total() and time.monotonic() < deadline:
            record = consumer.poll(0.2)
            if record is None:
                continue
            expected = counts.get(record.key, 0)
            assert int(record.value) == expected, (record.key, record.value, expected)
            counts[record.key] = expected + 1
            places.add((record.shard, record.offset))
            seen += 1
        return seen, places, consumer.cursor


def exercise(hub, reader_hub):
    hub.streams.create("orders", shards=2)
    writers = [Writer(hub, number) for number in range(2)]
    result = {}

    def total():
        return sum(writer.sent for writer in writers) if all(writer.is_over.is_set() for writer in writers) else 1 << 60

    def read():
        try:
            result["read"] = follow(reader_hub, {}, total, time.monotonic() + 60)
        except BaseException as error:  # told to the test
            result["error"] = error

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for writer in writers:
        writer.start()
    for shards in (3, 8):
        time.sleep(0.4)
        assert hub.streams.alter("orders", shards=shards).shards == shards
    time.sleep(0.4)
    for writer in writers:
        writer.is_over.set()
    for writer in writers:
        writer.join(60)
    reader.join(70)
    for writer in writers:
        assert writer.error is None, writer.error
    assert "error" not in result, result["error"]
    seen, places, cursor = result["read"]
    sent = [place for writer in writers for place in writer.places]
    assert seen == len(sent) == len(set(sent))
    assert places == set(sent)
    assert {shard for shard, _ in sent} == set(range(8))
    assert len(cursor.offsets) == 8
    # Whoever comes later gets them in the same order per key.
    counts: dict[bytes | None, int] = {}
    with reader_hub.consumer("orders", start="earliest", follow=False) as consumer:
        for record in consumer:
            assert int(record.value) == counts.get(record.key, 0)
            counts[record.key] = int(record.value) + 1
    assert sum(counts.values()) == seen
    # And one who was there before the change goes on from where it was.
    return cursor


@pytest.mark.slow("writes and reads under load while the shards change")
def test_embedded(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        exercise(hub, hub)


@pytest.mark.slow("writes and reads under load while the shards change")
def test_a_reader_of_the_folder_beside_the_writer(tmp_path):
    with mainstem.open(tmp_path / "data") as hub, mainstem.open(tmp_path / "data", read_only=True) as reader:
        exercise(hub, reader)


@pytest.mark.slow("starts a server process, writes and reads under load while the shards change")
def test_remote(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        url = f"mainstem://{server.address}"
        with mainstem.connect(url) as hub, mainstem.connect(url) as reader:
            exercise(hub, reader)


def test_a_cursor_from_before_the_change_goes_on(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders", shards=2)
        with hub.producer() as producer:
            for number in range(20):
                producer.send("orders", b"0", key=b"%d" % number)
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            for _ in range(10):
                next(consumer)
            cursor = mainstem.Cursor.parse(str(consumer.cursor))
        hub.streams.alter("orders", shards=5)
        with hub.producer() as producer:
            for number in range(20):
                producer.send("orders", b"1", key=b"%d" % number)
        with hub.consumer("orders", start=cursor, follow=False) as consumer:
            found = [record.value for record in consumer]
            assert found == [b"0"] * 10 + [b"1"] * 20
            assert len(consumer.cursor.offsets) == 5


def test_an_open_producer_goes_over_and_tells_where_its_records_are(tmp_path):
    with mainstem.open(tmp_path / "data") as hub, hub.producer() as producer:
        hub.streams.create("orders", shards=1)
        assert producer.send("orders", b"a", key=b"k").result() == (0, 0)
        hub.streams.alter("orders", shards=16)
        acks = [producer.send("orders", b"b", key=b"%d" % number) for number in range(100)]
        batch = producer.send_many("orders", [b"c"] * 50, [b"%d" % number for number in range(50)])
        places = [ack.result() for ack in acks]
        assert len(set(places)) == 100
        assert sum(count for _, _, count in batch.result()) == 50
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            found = {(record.shard, record.offset): record.key for record in consumer}
        assert [found[place] for place in places] == [b"%d" % number for number in range(100)]


def test_records_that_must_stand_together_are_refused_if_they_cannot_any_more(tmp_path):
    with mainstem.open(tmp_path / "data") as hub, hub.producer() as producer:
        hub.streams.create("orders", shards=1)
        producer.send("orders", b"a").result()
        hub.streams.alter("orders", shards=16)
        table = pa.table({"key": [b"%d" % n for n in range(20)], "value": [b"x"] * 20})
        ack = producer.send_batch("orders", table, atomic=True)
        with pytest.raises(InvalidRequest, match=r"must belong to one shard; .* of the 16 shards"):
            ack.result()
        same = pa.table({"key": [b"k"] * 20, "value": [b"x"] * 20})
        ((_, offset, count),) = producer.send_batch("orders", same, atomic=True).result()
        assert (offset, count) == (0, 20)
        with contextlib.suppress(InvalidRequest):
            producer.flush()


def test_shards_only_become_more(tmp_path):
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders", shards=3)
        for shards in (2, 0, 5000):
            with pytest.raises(InvalidRequest, match="has 3 shards; it can get more"):
                hub.streams.alter("orders", shards=shards)
        assert hub.streams.alter("orders", shards=3).generation == 0
        changed = hub.streams.alter("orders", shards=4, retention="1h")
        assert (changed.shards, changed.generation, changed.generations) == (4, 1, ((4, (0, 0, 0)),))


@pytest.mark.slow("starts a server process")
def test_rows_go_over_too_and_are_found_among_more_shards(tmp_path):
    """Their keys are columns, they come as dicts, JSON and tombstones, and a predicate chooses among them."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=1, schema={"id": "int64", "turn": "int64"}, key="id")
        with hub.producer() as producer, hub.consumer("orders", start="earliest", where="turn >= 1") as consumer:
            for turn, shards in enumerate((2, 5, 5)):
                for number in range(30):
                    producer.send("orders", {"id": number, "turn": turn})
                    producer.send("orders", b'{"id": %d, "turn": %d}' % (number, turn + 10))
                producer.send("orders", None, key=b"7")
                hub.streams.alter("orders", shards=shards)
            producer.flush()
            found: dict[int, list[int]] = {}
            for _ in range(30 * 2 * 3 - 30):
                record = consumer.poll(10)
                assert record is not None
                found.setdefault(record.value["id"], []).append(record.value["turn"])
        assert set(map(tuple, found.values())) == {(10, 1, 11, 2, 12)}
        assert hub.streams.get("orders").records == 183


def test_the_order_of_a_key_outlives_erasures_on_both_sides_of_a_barrier(tmp_path):
    """What was erased behind the barrier must not make a batch from before it reach over it."""
    by_shard: dict[int, list[bytes]] = {0: [], 1: []}
    for key in (b"k%d" % number for number in range(50)):
        by_shard[int(placement.shards_for([key], 2, "crc32", 0)[0])].append(key)
    moving, (before, behind, *_) = by_shard[1][0], by_shard[0]
    with mainstem.open(tmp_path) as hub:
        hub.streams.create("orders", shards=1)
        with hub.producer() as producer:
            producer.send("orders", b"old", key=moving).result(5)
            producer.send("orders", b"", key=before).result(5)
        hub.streams.alter("orders", shards=2)
        with hub.producer() as producer:
            producer.send("orders", b"", key=behind).result(5)
            producer.send("orders", b"new", key=moving).result(5)
        assert hub.streams.erase("orders", behind).records == 1
        assert hub.streams.erase("orders", before).records == 1
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            assert [record.value for record in consumer] == [b"old", b"new"]


def test_what_was_looked_up_too_early_tears_nothing(tmp_path, monkeypatch):
    """A thread's answer about a stream comes late, after the stream got more shards and another thread knows them: in
    one parcel there is something for the old shards and something for the new ones."""
    with mainstem.open(tmp_path / "data") as hub, hub.producer(linger=60.0) as producer:
        hub.streams.create("s", shards=1)
        producer.prepare("s")
        asked, may_come = threading.Event(), threading.Event()
        call = producer._streams._port.call

        def delayed(*args: Any) -> Any:
            answer = call(*args)
            if threading.current_thread().name == "late":
                asked.set()
                assert may_come.wait(10)
            return answer

        monkeypatch.setattr(producer._streams._port, "call", delayed)
        late = threading.Thread(target=producer.prepare, args=("s",), name="late")
        late.start()
        assert asked.wait(10)
        acks = [producer.send("s", b"%d" % number, key=b"%d" % number) for number in range(50)]
        hub.streams.alter("s", shards=4)
        acks += [producer.send("s", b"chosen", shard=shard) for shard in (3, 0, 3)]
        may_come.set()
        late.join()
        places = {ack.result(10) for ack in acks}
        assert len(places) == len(acks)
        with hub.consumer("s", start="earliest", follow=False) as consumer:
            assert {(record.shard, record.offset) for record in consumer} == places
