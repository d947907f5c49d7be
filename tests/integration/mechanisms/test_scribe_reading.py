"""The read path of Scribe: where a reader begins, and how it gets what it reads."""

import gc
import itertools
import random
import subprocess
import sys
import textwrap
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest

import mainstem
from mainstem.hub.hub import Hub
from mainstem.log.administration import Lookup
from mainstem.log.contents import Contents
from mainstem.log.flush import TrimShard
from mainstem.log.log import Log
from mainstem.log.reader import LogReader
from mainstem.log.upkeep import Pace
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import SlowLink, embedded

# S6: a time, the tail, or where one was.

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def write_twenty_seconds(hub: Hub, shards: int) -> None:
    """20,000 records whose times spread over 20 seconds."""
    hub.streams.create("timed", shards=shards, retention="300000d")
    with hub.producer() as producer:
        for second in range(20):
            moments = [BEGAN + timedelta(seconds=second, milliseconds=number) for number in range(1_000)]
            numbers = [b"%d" % (1_000 * second + number) for number in range(1_000)]
            table = {"value": numbers, "key": numbers, "timestamp": pa.array(moments, pa.timestamp("us", "UTC"))}
            producer.send_batch("timed", pa.table(table))


READ_AND_DIE = """
    import os, sys, mainstem
    path, saved, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hub = mainstem.open(path, read_only=True)
    consumer = hub.consumer("timed", start="earliest")
    for number, record in enumerate(consumer, 1):
        print(record.shard, record.offset)
        if number == count:
            with open(saved, "w") as file:
                file.write(str(consumer.cursor))
        if number == count + 700:
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
"""


@pytest.mark.mechanism("S6")
def test_s6_time(tmp_path, monkeypatch):
    """Opened in the middle: the first record is of that time, and none after it is missing. From the tail: none. If
    the time is not looked up, everything is read."""
    with embedded(tmp_path) as hub:
        write_twenty_seconds(hub, shards=3)
        start = BEGAN + timedelta(seconds=10)
        with hub.consumer("timed", start=start, follow=False) as consumer:
            found = list(consumer)
        assert min(record.timestamp for record in found) == start
        assert sorted(int(record.value or b"") for record in found) == list(range(10_000, 20_000))
        with hub.consumer("timed", start="latest", follow=False) as consumer:
            assert list(consumer) == []
        monkeypatch.setattr(Lookup, "_offsets_at", lambda lookup, row, time_us: (0,) * row.shards)
        with hub.consumer("timed", start=start, follow=False) as consumer:
            assert len(list(consumer)) == 20_000


# The same on streams of rows, and where batches were put together or thinned out since they were written.

HASTY = Pace(interval=0.05, free_after=0.0, rewrite_after=0.0, share=1.0)
MOMENTS = [BEGAN + timedelta(milliseconds=5 * number) for number in range(4_000)]


def key_of(number: int) -> int:
    """One record in four has a key of its own, the others have fifty keys between them."""
    return 1_000 + number if number % 4 == 0 else number % 50


def write_with_times(hub: Hub, *, typed: bool, cleanup: Literal["compact", "delete"]) -> None:
    """Over twenty seconds, and in each of them ten records alone and the others in one batch."""
    how: dict[str, Any] = {"schema": {"id": "int64", "number": "int64", "filling": "binary"}, "key": "id"}
    hub.streams.create("timed", retention="300000d", cleanup=cleanup, **(how if typed else {}))
    filling = random.Random(6).randbytes(250)
    with hub.producer(linger=10, compression=None) as producer:
        for number, moment in enumerate(MOMENTS):
            key = key_of(number)
            row = {"id": key, "number": number, "filling": filling}
            value = row if typed else b"%d %s" % (number, filling)
            producer.send("timed", value, key=None if typed else b"%d" % key, timestamp=moment)
            if number % 200 < 10 or number % 200 == 199:
                producer.flush()


def numbers_from(hub: Hub, start: datetime | Literal["earliest"]) -> list[int]:
    with hub.consumer("timed", start=start, follow=False) as consumer:
        values = [record.value for record in consumer]
    return [value["number"] if isinstance(value, dict) else int(value.split()[0]) for value in values]


def wait_for_upkeep(hub: Hub, work: str) -> None:
    """Until it has done such work, and has left the stream alone for half a second."""
    deadline = time.monotonic() + 20
    done, since = 0, time.monotonic()
    while not done or time.monotonic() < since + 0.5:
        assert time.monotonic() < deadline, hub.statistics()
        time.sleep(0.02)
        now = hub.statistics()[work]
        done, since = (done, since) if now == done else (now, time.monotonic())


@pytest.mark.mechanism("S6")
@pytest.mark.parametrize("work", ["", "entries_merged", "records_compacted"], ids=["written", "merged", "compacted"])
@pytest.mark.parametrize("typed", [False, True], ids=["bytes", "rows"])
def test_s6_time_of_what_is_kept(tmp_path, monkeypatch, typed, work):
    """Whatever a stream holds and whatever became of its batches: from any time on all records of that time and later
    that are there, and no other. If batches are not looked into, older ones too; if nothing is looked up, all."""
    with embedded(tmp_path, hot_tail_bytes=0, pace=HASTY if work else Pace()) as hub:
        write_with_times(hub, typed=typed, cleanup="compact" if work == "records_compacted" else "delete")
        if work:
            wait_for_upkeep(hub, work)
        there = numbers_from(hub, "earliest")
        if work == "records_compacted":
            assert set({key_of(number): number for number in range(4_000)}.values()) <= set(there)
            assert len(there) < 4_000
        else:
            assert there == list(range(4_000))
        for number in (0, 1, 9, 10, 11, 199, 200, 2_005, 2_100, 3_777, 3_998, 3_999):
            for start in (MOMENTS[number], MOMENTS[number] + timedelta(microseconds=1)):
                assert numbers_from(hub, start) == [later for later in there if MOMENTS[later] >= start]
        # In the middle of a batch, if they were put together one of those that were alone.
        with hub.consumer("timed", start="earliest", follow=False) as consumer:
            sizes = {batch.offsets()[0]: batch.count for batch in consumer.batches()}
        first = next(
            offset for offset, size in sizes.items() if (size == 10 if work == "entries_merged" else size > 10)
        )
        start = MOMENTS[first + 5]
        with monkeypatch.context() as patch:
            patch.setattr(Contents, "first_at", lambda contents, batch, time_us: batch.base)
            assert MOMENTS[numbers_from(hub, start)[0]] < start
        monkeypatch.setattr(Lookup, "_offsets_at", lambda lookup, row, time_us: (0,) * row.shards)
        assert numbers_from(hub, start) == there


@pytest.mark.mechanism("S6")
def test_s6_cursor(tmp_path):
    """Killed some time after it saved its cursor, the next reader begins exactly behind it. Without the cursor it would
    read again what it had, or miss what it had not."""
    with embedded(tmp_path / "data") as hub:
        write_twenty_seconds(hub, shards=3)
        saved = tmp_path / "cursor"
        command = [sys.executable, "-c", textwrap.dedent(READ_AND_DIE), tmp_path / "data", saved, "7000"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == -9, done.stderr
        before = [tuple(map(int, line.split())) for line in done.stdout.splitlines()][:7_000]
        cursor = mainstem.Cursor.parse(saved.read_text())
        with hub.consumer("timed", start=cursor, follow=False) as consumer:
            after = [(record.shard, record.offset) for record in consumer]
        assert len(before) == 7_000
        assert len(after) == 13_000
        assert set(before).isdisjoint(after)
        for start, repeated, missed in (("earliest", 7_000, 0), ("latest", 0, 13_000)):
            with hub.consumer("timed", start=start, follow=False) as consumer:
                again = {(record.shard, record.offset) for record in consumer}
            assert len(again & set(before)) == repeated
            assert len(set(after) - again) == missed


def read_with_losses(hub: Hub, cursor: mainstem.Cursor) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """What a reader is told to have lost, and the places of what it gets."""
    losses: list[tuple[int, int, int]] = []
    found: list[tuple[int, int]] = []
    with hub.consumer("timed", start=cursor, follow=False) as consumer:
        while True:
            try:
                found.extend((record.shard, record.offset) for record in consumer)
                return sorted(losses), sorted(found)
            except mainstem.DataLoss as loss:
                losses.append((loss.shard, loss.first, loss.last))


@pytest.mark.mechanism("S6")
def test_s6_trimmed(tmp_path, monkeypatch):
    """Half of every shard is trimmed: a reader from the beginning is told once for each shard, then gets the rest. A
    log that begins where there is something to read gives it the rest, and says nothing."""
    with embedded(tmp_path) as hub:
        write_twenty_seconds(hub, shards=3)
        info = hub.streams.get("timed")
        with hub.consumer("timed", start=BEGAN) as consumer:
            cursor = consumer.cursor
        log: Log = hub._port.log  # type: ignore[attr-defined]
        for shard, end in enumerate(info.ends):
            log.execute(TrimShard(info.id, shard, end // 2))
        rest = [(shard, offset) for shard, end in enumerate(info.ends) for offset in range(end // 2, end)]
        told = [(shard, 0, end // 2 - 1) for shard, end in enumerate(info.ends)]
        assert read_with_losses(hub, cursor) == (told, rest)
        read = LogReader.read

        def begin_where_it_begins(reader, stream, shard, offset, *limits):
            return read(reader, stream, shard, max(offset, reader.shard(stream.id, shard).start), *limits)

        monkeypatch.setattr(LogReader, "read", begin_where_it_begins)
        told, found = read_with_losses(hub, cursor)
        assert told == []
        assert set(rest) <= set(found) < set(rest) | {(shard, offset) for shard in range(3) for offset in range(9_999)}


# S38: much on the way at once, in order, and not copied.


def seconds_to_read(link: SlowLink, prefetch_bytes: int, batches: int) -> float:
    with (
        mainstem.connect(f"mainstem://{link.address}") as hub,
        hub.consumer("orders", start="earliest", follow=False, prefetch_bytes=prefetch_bytes) as consumer,
    ):
        began = time.perf_counter()
        found = [value for batch in itertools.islice(consumer.batches(), batches) for value in batch.values()]
        took = time.perf_counter() - began
    assert found == [b"%05d" % number * 400 for number in range(len(found))]
    assert len(found) >= batches
    return took


@pytest.mark.mechanism("S38")
@pytest.mark.xdist_group("measure")
def test_s38_on_the_way_at_once(tmp_path):
    """Twenty milliseconds away: with room for many batches on the way at least five times as fast as with room for one,
    and in the same order."""
    with ServerProcess(tmp_path / "data") as server, SlowLink(server.address, delay=0.01) as link:
        with mainstem.connect(server.url) as hub:
            hub.streams.create("orders")
            with hub.producer(compression=None) as producer:
                for first in range(0, 300, 2):
                    producer.send_many("orders", [b"%05d" % number * 400 for number in (first, first + 1)]).result(10)
        many = seconds_to_read(link, 1 << 20, 60)
        one = seconds_to_read(link, 4_096, 60)
    assert one / many >= 5


def traced(work) -> int:
    """Bytes that Python has more after `work` than before, at its highest."""
    gc.collect()
    tracemalloc.start()
    kept = work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return peak


@pytest.mark.mechanism("S38")
def test_s38_not_copied(tmp_path):
    """A batch as a table lies in the bytes it came in: less than 200 bytes for a record of 1,000. Taken apart into
    records, each value is an object of its own."""
    with embedded(tmp_path) as hub:
        hub.streams.create("orders")
        with hub.producer(compression=None) as producer:
            producer.send_many("orders", [b"%04d" % number * 250 for number in range(4_000)])
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            batches = list(consumer.batches())
        count = sum(batch.count for batch in batches)
        assert traced(lambda: [batch.to_arrow() for batch in batches]) / count < 200
        for batch in batches:
            values = batch.to_arrow().column("value").buffers()[2]
            held = pa.py_buffer(batch._fetched.payload)
            assert held.address <= values.address < held.address + held.size
        assert traced(lambda: [list(batch.records()) for batch in batches]) / count > 1_000


_IDLE = """
import sys, mainstem

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

hub = mainstem.connect(sys.argv[1])
hub.consumer("orders").poll(0)
before = resident_bytes()
consumers = [hub.consumer("orders") for _ in range(20)]
assert not any(consumer.poll(0) for consumer in consumers)
shared = resident_bytes() - before
hubs = [mainstem.connect(sys.argv[1]) for _ in range(20)]
assert not any(other.consumer("orders").poll(0) for other in hubs)
print(shared, resident_bytes() - before - shared)
"""


@pytest.mark.mechanism("S38")
def test_s38_idle_consumers(tmp_path):
    """Twenty consumers that wait cost less than twenty megabytes, threads and all: less than two, because they share a
    connection. With a hub for each of them, and so a connection, a buffer and a thread, it is several times that."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        # In a fresh process: an old one has memory to reuse.
        found = subprocess.run([sys.executable, "-c", _IDLE, server.url], capture_output=True, text=True, check=True)
        shared, apart = map(int, found.stdout.split())
    assert shared < 2 << 20
    assert apart > 4 << 20
