"""Order over several shards, as Scribe has it: a window between them, watermarks, and reads that repeat themselves."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

import mainstem
from mainstem.consume import feed as feed_module
from mainstem.consume.consumer import Consumer
from mainstem.core.cursor import Cursor
from mainstem.hub.hub import Hub
from mainstem.log import merger
from mainstem.log.administration import Administration
from mainstem.log.flush import NoteMoment
from mainstem.log.log import Log
from mainstem.log.reader import LogReader
from mainstem.log.upkeep import merging
from mainstem.registry import compatibility
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.server import ServerProcess
from mainstem.transport.port import MomentCall
from tests.integration.mechanisms.rig import changed_servers, percentile
from tests.unit.log.keeping import Keeping
from tests.unit.log.parts import append, make_batch, make_stream

Place = tuple[int, int]

# S42: a window between shards.

MINUTES = 1_000
SLOW = 3


def write_minutes(path: Path) -> None:
    """Four shards with a record for each of a thousand minutes: its offset is its minute."""
    clock = SimulatedClock()
    log = Log(path, clock=clock)
    make_stream(log, shards=4)
    for _ in range(MINUTES):
        append(log, *(make_batch(shard=shard) for shard in range(4)))
        clock.advance(60)
    log.close()


def read_minutes(hub: Hub, window: str | None) -> list[int]:
    with hub.consumer("orders", start="earliest", follow=False, ordering_window=window) as consumer:
        return [record.offset for record in consumer]


def disorder(minutes: Sequence[int]) -> int:
    """How much newer than a record one before it was, at most."""
    newest = worst = 0
    for minute in minutes:
        worst = max(worst, newest - minute)
        newest = max(newest, minute)
    return worst


@contextmanager
def one_shard_slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One shard gives a record where the others give ten; the shards of all reads."""
    reads: list[int] = []
    plainly = LogReader.read

    def read(self: LogReader, stream, shard, offset, bytes_max=1 << 20, entries_max=256, **other):
        reads.append(shard)
        return plainly(self, stream, shard, offset, bytes_max, 1 if shard == SLOW else 10, **other)

    with monkeypatch.context() as patch:
        patch.setattr(LogReader, "read", read)
        yield reads


@pytest.mark.mechanism("S42")
@pytest.mark.slow("reads a thousand batches one by one, several times")
def test_s42_window(tmp_path, monkeypatch):
    """One shard of four is ten times slower. No record comes after one that is newer by more than the window; the wider
    it is, the sooner comes the first half. Without a window the disorder has no bound."""
    write_minutes(tmp_path)
    slow_reads_for_half: dict[str | None, int] = {}
    with mainstem.open(tmp_path) as hub:
        for window, bound in (("10m", 10), ("100m", 100), ("1000000m", MINUTES), (None, MINUTES)):
            with one_shard_slow(monkeypatch) as reads:
                found: list[int] = []
                with hub.consumer("orders", start="earliest", follow=False, ordering_window=window) as consumer:
                    for batch in consumer.batches():
                        found += batch.offsets()
                        if len(found) <= 2 * MINUTES:
                            slow_reads_for_half[window] = reads.count(SLOW)
            assert sorted(found) == sorted([*range(MINUTES)] * 4)
            assert disorder(found) <= bound
            assert disorder(found) > 0.8 * bound, "the window is used"
    assert slow_reads_for_half["10m"] > slow_reads_for_half["100m"] > 2 * slow_reads_for_half["1000000m"]
    assert slow_reads_for_half["1000000m"] == slow_reads_for_half[None]


@pytest.mark.mechanism("S42")
@pytest.mark.slow("starts servers")
def test_s42_server(tmp_path, monkeypatch):
    """The same from a server, for a reader that goes on from its cursor now and then. A server that passes over the
    window exceeds it."""
    write_minutes(tmp_path / "data")

    def read() -> list[int]:
        found: list[int] = []
        start: Cursor | str = "earliest"
        with mainstem.connect(server.url) as hub:
            while len(found) < 4 * MINUTES:
                with hub.consumer("orders", start=start, ordering_window="10m") as consumer:
                    for _ in range(900):
                        record = consumer.poll(10 if len(found) < 4 * MINUTES else 0)
                        if record is None:
                            break
                        found.append(record.offset)
                    start = consumer.cursor
        return found

    with ServerProcess(tmp_path / "data") as server:
        found = read()
    assert sorted(found) == sorted([*range(MINUTES)] * 4)
    assert disorder(found) <= 10
    without = "from mainstem.consume import feed; feed.Ordering.stop = feed.Window.stop = lambda self, shard: None"
    with changed_servers(without), ServerProcess(tmp_path / "data") as server:
        assert disorder(read()) > 100


# S43: heartbeats and the low watermark.


def watermark_lags(consumer: Consumer, seconds: float) -> list[float]:
    """How far behind the time the watermark was, looked at all the while; 1,000 s if there was none."""
    lags: list[float] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        consumer.poll(0.02)
        watermark = consumer.watermark
        lags.append(1_000.0 if watermark is None else (datetime.now(UTC) - watermark).total_seconds())
    return lags


@pytest.mark.mechanism("S43")
@pytest.mark.slow("looks at a watermark for several seconds")
def test_s43_idle(tmp_path):
    """Five shards, one of which is never written: the watermark follows the time. It stands still while the server
    does, and comes forward again. Without heartbeats it does not come at all."""

    def follow(*, stops: bool) -> tuple[list[float], list[float]]:
        with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
            hub.streams.create("orders", shards=5, exist_ok=True)
            with hub.producer() as producer, hub.consumer("orders", ordering_window="5m") as consumer:
                for shard in range(4):
                    producer.send("orders", b"x", shard=shard).result(10)
                watermark_lags(consumer, 1.5)
                running = watermark_lags(consumer, 3)
                stopped: list[float] = []
                if stops:
                    os.kill(server.pid, signal.SIGSTOP)
                    try:
                        watermark_lags(consumer, 0.5)
                        held = consumer.watermark
                        stopped = watermark_lags(consumer, 2)
                        assert consumer.watermark == held
                    finally:
                        os.kill(server.pid, signal.SIGCONT)
                    watermark_lags(consumer, 1.5)
                    running += watermark_lags(consumer, 1)
                return running, stopped

    running, stopped = follow(stops=True)
    # Two seconds, and the slack that a busy machine needs.
    assert percentile(running, 0.5) < 2
    assert max(running) < 10
    assert max(stopped) > 2
    silent = "from mainstem.server.session import Session; Session.mark = lambda self: None"
    with changed_servers(silent):
        running, _ = follow(stops=False)
    assert min(running) == 1_000.0


MESSAGES = 50_000


@pytest.mark.mechanism("S43")
@pytest.mark.slow("writes and reads for several seconds")
def test_s43_nothing_late(tmp_path):
    """Of 50,000 messages none comes that was acknowledged before the watermark that the reader had. If the server said
    the present time instead, many would."""
    with ServerProcess(tmp_path / "right") as server:
        late, watermarks = late_messages(server)
    assert late == 0
    assert watermarks > 2
    wrong = "from mainstem.consume.feed import Feed; Feed.watermark = lambda self, settled_us: settled_us()"
    with changed_servers(wrong), ServerProcess(tmp_path / "wrong") as server:
        late, _ = late_messages(server, behind=True)
    assert late > 0


def late_messages(server: ServerProcess, *, behind: bool = False) -> tuple[int, int]:
    """How many messages came that were older than the watermark, and how many watermarks there were. A reader that is
    behind begins when all is written."""
    acknowledged: dict[Place, datetime] = {}
    is_written = threading.Event()
    late = 0
    watermarks = set()

    def write() -> None:
        with mainstem.connect(server.url) as hub, hub.producer() as producer:
            for _ in range(MESSAGES // 500):
                acks = [producer.send("orders", b"x", key=b"%d" % key) for key in range(500)]
                places = [ack.result(30) for ack in acks]
                acknowledged.update(dict.fromkeys(places, datetime.now(UTC)))
                time.sleep(0.02)
        is_written.set()

    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=5)
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        if behind:
            assert is_written.wait(60)
        seen: list[tuple[Place, datetime | None]] = []
        with hub.consumer("orders", start="earliest", ordering_window="5m", prefetch_bytes=4_096) as consumer:
            deadline = time.monotonic() + 60
            while len(seen) < MESSAGES:
                assert time.monotonic() < deadline
                watermark = consumer.watermark
                batch = consumer.poll_batch(1)
                if batch is not None:
                    seen += [((batch.shard, offset), watermark) for offset in batch.offsets()]
                    watermarks.add(watermark)
                    if behind and len(seen) % 2_000 < 500:
                        time.sleep(0.1)
        writer.join(60)
    late = sum(watermark is not None and acknowledged[place] < watermark for place, watermark in seen)
    return late, len(watermarks)


# S80: one writer, one shard, one order.


WRITTEN = 2_500


@pytest.mark.mechanism("S80")
@pytest.mark.slow("kills a server several times")
def test_s80_own_shard(tmp_path):
    """Four writers have a shard each, and the server is killed under them. Three readers that begin again at random get
    the same of every shard, and what each writer sent in its order, once. If writers have no shard of their own, what a
    shard has of them is mixed."""
    for own_shard in (True, False):
        with ServerProcess(tmp_path / str(own_shard)) as server:
            with mainstem.connect(server.url) as hub:
                hub.streams.create("changes", shards=4)
            with killing(server, 5):
                write_side_by_side(server, own_shard=own_shard)
            readers = [read_shards(server, seed) for seed in range(3)]
        assert readers[0] == readers[1] == readers[2]
        whole = {shard: [number for _, number in found] for shard, found in readers[0].items()}
        is_ordered = all(
            {writer for writer, _ in found} == {shard} and whole[shard] == list(range(WRITTEN))
            for shard, found in readers[0].items()
        )
        assert is_ordered == own_shard
        assert sum(map(len, whole.values())) == 4 * WRITTEN


@contextmanager
def killing(server: ServerProcess, times: int, pause: float = 0.4) -> Iterator[None]:
    """Kill and restart a server while the block runs, and go on until it was done so many times."""
    is_over = threading.Event()

    def kill() -> None:
        for _ in range(times):
            is_over.wait(pause)
            server.kill()
            server.start()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


def write_side_by_side(server: ServerProcess, *, own_shard: bool) -> None:
    def write(writer: int) -> None:
        with mainstem.connect(server.url) as hub, hub.producer() as producer:
            for number in range(WRITTEN):
                key = None if own_shard else b"%d" % (number % 50)
                producer.send("changes", b"%d %d" % (writer, number), key=key, shard=writer if own_shard else None)
                if number % 100 == 0:
                    time.sleep(0.08)

    writers = [threading.Thread(target=write, args=(writer,), daemon=True) for writer in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(60)


def read_shards(server: ServerProcess, seed: int) -> dict[int, list[tuple[int, int]]]:
    """Of every shard, what came: (writer, number). The reader ends now and then and begins again at its cursor."""
    rng = random.Random(seed)
    found: dict[int, list[tuple[int, int]]] = {}
    start: Cursor | str = "earliest"
    with mainstem.connect(server.url) as hub:
        while True:
            left = rng.randrange(500, 3_000)
            with hub.consumer("changes", start=start, follow=False) as consumer:
                for record in consumer:
                    writer, number = map(int, record.value.split())
                    found.setdefault(record.shard, []).append((writer, number))
                    left -= 1
                    if not left:
                        break
                else:
                    return found
                start = consumer.cursor


# S81: the same order and the same batches on every read.


def sequenced(hub: Hub, batch: int, start: Cursor | str = "earliest") -> list[list[tuple[Place, bytes]]]:
    with hub.sequence("orders", batch=batch, start=start, follow=False) as ordered:
        return [[((r.shard, r.offset), r.value) for r in found.records()] for found in ordered]


@pytest.mark.mechanism("S81")
@pytest.mark.slow("kills a server several times")
def test_s81_killed(tmp_path):
    """Twenty shards, and the process that notes the order is killed five times, while it is written and followed. The
    follower and three readers afterwards get the same batches, with every record once; another size of batches changes
    nothing about the stream."""
    written = 8_000
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=20)
        followed: list[list[tuple[Place, bytes]]] = []

        def follow() -> None:
            with mainstem.connect(server.url) as other, other.sequence("orders", batch=1_000) as ordered:
                for found in ordered:
                    followed.append([((r.shard, r.offset), r.value) for r in found.records()])
                    if len(followed) == written // 1_000:
                        return

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        with killing(server, 5, 0.5), hub.producer() as producer:
            for number in range(written):
                producer.send("orders", b"%d" % number, key=b"%d" % (number % 300))
                if number % 200 == 0:
                    time.sleep(0.05)
            producer.flush()
        readers = [sequenced(hub, 1_000) for _ in range(3)]
        before = hub.streams.get("orders")
        larger = sequenced(hub, 5_000)
        # But for what waits to be off the disk, which is worked out anew each time.
        assert replace(hub.streams.get("orders"), gone_by_us=0) == replace(before, gone_by_us=0)
        follower.join(30)
    assert readers[0] == readers[1] == readers[2] == followed
    assert [len(found) for found in readers[0]] == [1_000] * 8
    assert [len(found) for found in larger] == [5_000, 3_000]
    flat = [item for found in readers[0] for item in found]
    assert [item for found in larger for item in found] == flat
    assert sorted(int(value) for _, value in flat) == list(range(written))
    assert len({place for place, _ in flat}) == written


@pytest.mark.mechanism("S81")
@pytest.mark.slow("the batches of twenty shards are merged")
def test_s81_later(tmp_path, monkeypatch):
    """What was read in an order is read in the same one when the stream has grown, and when its tiny batches are one.
    A reader without it gets them in another."""
    monkeypatch.setattr(merger, "RUN_ENTRIES", 8)
    monkeypatch.setattr(merging, "RUN_ENTRIES", 8)
    keeping = Keeping(tmp_path)
    log, clock = keeping.log, keeping.clock
    keeping.create(shards=20)
    rng = random.Random(1)

    def write(minutes: int) -> None:
        for _ in range(minutes):
            shards = rng.choices(range(20), k=40)
            append(log, *(make_batch([b"x"] * rng.randrange(1, 9), shard=shard) for shard in shards))
            clock.advance(60)
        log.execute(NoteMoment(1))

    def read(window_us: int | None) -> list[Place]:
        reader = LogReader(log.ledger, log._folder.blocks)
        feed = feed_module.Feed(reader, reader.require_stream(1), [0] * 20, None, window_us=window_us)
        found: list[Place] = []
        at = [0] * 20
        while batches := feed.read(1 << 20):
            for batch in batches:
                shard = batch.header.shard
                found += [(shard, offset) for offset in range(at[shard], batch.end)]
                at[shard] = batch.end
        return found

    def entries() -> int:
        return sum(len(keeping.entries(1, shard)) for shard in range(20))

    write(20)
    ordered, plain = read(0), read(None)
    write(20)
    assert read(0)[: len(ordered)] == ordered
    assert read(None)[: len(plain)] != plain
    ordered, plain, tiny = read(0), read(None), entries()
    keeping.roll()
    keeping.keep(3_600)
    assert entries() < tiny / 2
    assert read(0) == ordered
    assert read(None) != plain
    log.close()


@pytest.mark.mechanism("S81", "S27")
def test_s81_metadata_only(tmp_path, monkeypatch):
    """To put 40 MB in order, nothing of it is read, and little is written: less than a thousandth of it. A reader of
    the records reads them all."""
    clock = SimulatedClock()
    log = Log(tmp_path, clock=clock)
    make_stream(log, shards=20)
    read_bytes = 0
    plainly = LogReader._read_block

    def read_block(self: LogReader, block: int, position: int, length: int) -> bytes:
        nonlocal read_bytes
        read_bytes += length
        return plainly(self, block, position, length)

    monkeypatch.setattr(LogReader, "_read_block", read_block)
    administration = Administration(log, check_schema=compatibility.check)
    value = random.Random(1).randbytes(100_000)
    for _ in range(20):
        append(log, *(make_batch([value], shard=shard) for shard in range(20)))
        clock.advance(60)
        administration.handle(MomentCall("orders", clock.now_us(), settle=True))
    moments = log.ledger.load_moments(1, 0, 1_000)
    assert len(moments) == 21
    assert read_bytes == 0
    assert sum(16 + 8 * len(moment.ends) for moment in moments) < 40_000_000 / 1_000
    log.close()
    log = Log(tmp_path, clock=clock)
    feed = feed_module.Feed(log.reader, log.reader.require_stream(1), [0] * 20, None, window_us=0)
    while feed.read(1 << 20):
        pass
    assert read_bytes > 40_000_000
    log.close()


@pytest.mark.mechanism("S81")
@pytest.mark.slow("waits for the order of what is written")
def test_s81_latency(tmp_path):
    """A reader that follows gets its batches within one and a half of the second after which the order is noted. If
    nobody asked for that, they would come with the next minute."""

    def waits(rounds: int, seconds: float) -> list[float]:
        found = []
        with hub.sequence("orders", batch=100, start="latest") as ordered, hub.producer() as producer:
            for _ in range(rounds):
                time.sleep(rng.random())
                producer.send_many("orders", [b"x"] * 100, [b"%d" % key for key in range(100)]).result(10)
                begun = time.monotonic()
                found.append(time.monotonic() - begun if ordered.poll(seconds) is not None else 60.0)
        return found

    rng = random.Random(1)
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=20)
        assert percentile(waits(8, 10), 0.5) <= 1.5
    never = "from mainstem.log.administration import Administration as A; A.handle = _without(A.handle)"
    change = (
        "from mainstem.transport.port import MomentCall\nimport msgspec\n"
        "def _without(handle):\n"
        "    def changed(self, call):\n"
        "        is_first = isinstance(call, MomentCall) and not self._moment_at(self.require(call.name), 1 << 60)\n"
        "        if isinstance(call, MomentCall) and not is_first:\n"
        "            call = msgspec.structs.replace(call, settle=False)\n"
        "        return handle(self, call)\n"
        "    return changed\n" + never
    )
    with changed_servers(change), ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        assert waits(1, 3) == [60.0]
