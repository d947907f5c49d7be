"""Kafka's log: nobody sees what is not safe, and an offset means the same bytes for ever, whatever happens."""

import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import mainstem
from mainstem.consume.feed import Feed
from mainstem.core.batch import Buffer
from mainstem.log.blocks.local import LocalBlockWriter
from mainstem.log.flush import Appended
from mainstem.log.log import Log, Waiter
from mainstem.log.recovery import Recovery
from mainstem.testing import planted
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.integration.mechanisms.rig import values
from tests.unit.log.parts import WatchedDisk, append_values, make_batch, make_stream, values_of

# K6: visible once it is on disk, and not before.


class HeldDisk:
    """A log whose writes to disk wait for the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_open, self.arrived = threading.Event(), threading.Event()
        self.is_open.set()
        self.writes = 0
        self.log = Log(path, disk=WatchedDisk(self._hold))
        self.stream = make_stream(self.log)

    def _hold(self, _: Path) -> None:
        self.writes += 1
        self.arrived.set()
        assert self.is_open.wait(10)

    def is_written(self, value: bytes) -> bool:
        return any(value in block.read_bytes() for block in (self.path / "blocks").iterdir())

    def visible(self) -> list[bytes | None]:
        feed = Feed(self.log.reader, self.log.reader.require_stream(self.stream), (0,), None)
        found: list[bytes | None] = []
        while batches := feed.read(1 << 20):
            found += [value for batch in batches for value in values_of(batch)]
        return found


def seen_before_written(path: Path) -> int:
    """How many of twenty records could be seen, each just after its acknowledgement, and were not in the block."""
    held = HeldDisk(path)
    early = 0
    for number in range(20):
        value = b"record %d." % number
        append_values(held.log, held.stream, value)
        early += value in held.visible() and not held.is_written(value)
    held.log.close()
    return early


@pytest.mark.mechanism("K6")
def test_k6_exposure(tmp_path):
    """A record is nowhere to be seen while its flush is on the way to the disk, and within 50 ms after it got there:
    what is seen is written. Where a flush is applied before it is written, what is seen is not."""
    assert seen_before_written(tmp_path / "right") == 0
    with planted.ack_before_write():
        assert seen_before_written(tmp_path / "control") == 20
    held = HeldDisk(tmp_path / "held")
    append_values(held.log, held.stream, b"first")
    told = threading.Event()
    held.log.batcher.add_listener(lambda notice: told.set())
    held.arrived.clear()
    held.is_open.clear()
    waiter = Waiter()
    held.log.append([make_batch([b"second"], stream=held.stream)], waiter.set)
    committing = threading.Thread(target=held.log.batcher.drive)
    committing.start()
    assert held.arrived.wait(5)
    for _ in range(20):
        assert held.visible() == [b"first"]
        assert not waiter.is_set
        time.sleep(0.005)
    assert not told.is_set()
    began = time.perf_counter()
    held.is_open.set()
    assert told.wait(5)
    assert held.visible() == [b"first", b"second"]
    assert time.perf_counter() - began < 0.05
    committing.join()
    assert waiter.wait(held.log.batcher) == [Appended(1)]
    held.log.close()


def writes_for_flushes(path: Path) -> tuple[int, int]:
    """Writes to the disk and flushes for 29 sets of records, each sent when the one before was acknowledged."""
    held = HeldDisk(path)
    append_values(held.log, held.stream, b"0")
    writes, flushes = held.writes, held.log.counters()["flushes_applied"]
    for number in range(1, 30):
        append_values(held.log, held.stream, *[b"%d" % number] * number)
    found = held.writes - writes, held.log.counters()["flushes_applied"] - flushes
    held.log.close()
    return found


@pytest.mark.mechanism("K6")
def test_k6_one_write_for_a_flush(tmp_path, monkeypatch):
    """A flush reaches the disk in one write, whatever is in it; it needs neither a count nor a time to start. Where the
    pieces of a flush are written as they come, there are several writes for one."""
    assert writes_for_flushes(tmp_path / "right") == (29, 29)
    append = LocalBlockWriter.append

    def append_pieces(writer: LocalBlockWriter, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            append(writer, [buffer])

    monkeypatch.setattr(LocalBlockWriter, "append", append_pieces)
    writes, flushes = writes_for_flushes(tmp_path / "control")
    assert writes > 2 * flushes


def seen_and_gone(path: Path) -> int:
    """A follower notes what it sees, the server is killed: how much of that the next life does not have."""
    seen: list[bytes] = []
    with ServerProcess(path) as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        producer = hub.producer()
        with hub.consumer("orders", start="earliest") as consumer:
            for number in range(200):
                producer.send("orders", b"%d" % number)
                record = consumer.poll(10)
                assert record is not None
                seen.append(record.value or b"")
        server.kill()
        try:
            server.start()
        except ServerFailed:
            return len(seen)
        found = values(hub, "orders")
    return len(set(seen) - set(found))


@pytest.mark.mechanism("K6")
def test_k6_what_was_seen_stays(tmp_path):
    """Everything a reader ever saw is there after a kill. Where records are shown before they are written, not."""
    assert seen_and_gone(tmp_path / "right") == 0
    with planted.ack_before_write():
        assert seen_and_gone(tmp_path / "control") > 0


# K30: after a crash the same offsets mean the same records.

WRITE_FOR_EVER = """
    import sys, mainstem
    hub = mainstem.open(sys.argv[1])
    hub.streams.create("orders", shards=2, exist_ok=True)
    producer = hub.producer()
    number = int(sys.argv[2])
    while True:
        acks = [producer.send("orders", b"%d" % (number + n), key=b"%d" % (number + n)) for n in range(7)]
        for n, ack in enumerate(acks):
            shard, offset = ack.result()
            print(shard, offset, number + n, flush=True)
        number += 7
"""


PLANT = """
    from mainstem.testing import planted
    planting = planted.ack_before_write()
    planting.__enter__()
"""

Places = dict[tuple[int, int], bytes]


def write_until_killed(path: Path, first: int, lines: int, *, change: str = "") -> Places:
    """The places that were handed out before the process was killed in the middle of its work."""
    code = textwrap.dedent(change) + textwrap.dedent(WRITE_FOR_EVER)
    command = [sys.executable, "-c", code, str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        said += writer.stdout.read().splitlines()
    whole = [line.split() for line in said if len(line.split()) == 3]
    return {(int(shard), int(offset)): value.encode() for shard, offset, value in whole}


def places_lost(path: Path, handed_out: Places) -> int:
    """Of these, how many have no record, or another one, in the next life. It must begin within two seconds."""
    return next_life(path, handed_out)[0]


def next_life(path: Path, handed_out: Places) -> tuple[int, int]:
    """The same, and how many flushes were applied again when it began."""
    began = time.perf_counter()
    with mainstem.open(path) as hub:
        assert time.perf_counter() - began < 2
        replayed = hub.statistics()["flushes_replayed"]
        if not hub.streams.list():
            return len(handed_out), replayed
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            found = {(record.shard, record.offset): record.value for record in consumer}
    return sum(1 for place, value in handed_out.items() if found.get(place) != value), replayed


def refusal(path: Path) -> str:
    """Why a log does not start whose writer hands out places before it writes; nothing if the kill came when everything
    happened to be written."""
    write_until_killed(path, 0, 20, change=PLANT)
    try:
        mainstem.open(path).close()
    except mainstem.FolderUnusable as error:
        return str(error)
    return ""


@pytest.mark.mechanism("K30")
@pytest.mark.slow("starts a writer and kills it twenty times")
def test_k30_kills(tmp_path):
    """Killed twenty times under load: it starts within two seconds, and every place that was ever handed out has its
    record. A writer that hands out places before it writes leaves a log that refuses to start, and says why."""
    handed_out: Places = {}
    chance = random.Random(30)
    for life in range(20):
        handed_out |= write_until_killed(tmp_path / "right", 100_000 * life, chance.randrange(20, 200))
        assert places_lost(tmp_path / "right", handed_out) == 0
    assert any("acknowledged are gone" in refusal(tmp_path / f"control-{turn}") for turn in range(5))


WRITE_MUCH = """
    import os, sys, mainstem
    with mainstem.open(sys.argv[1]) as hub:
        hub.streams.create("bulk")
        with hub.producer(compression=None) as producer:
            for _ in range(int(sys.argv[2])):
                producer.send("bulk", os.urandom(1_000_000))
"""


def start_of_a_large_log(path: Path, megabytes: int) -> tuple[int, int]:
    """A log of that size, whose writer was killed: how many of the places that were handed out are lost at the next
    start, and how many flushes are applied again."""
    command = [sys.executable, "-c", textwrap.dedent(WRITE_MUCH), str(path), str(megabytes)]
    subprocess.run(command, check=True, timeout=120)
    handed_out = write_until_killed(path, 0, 50)
    assert sum(file.stat().st_size for file in (path / "blocks").iterdir()) > megabytes * 1_000_000
    return next_life(path, handed_out)


@pytest.mark.mechanism("K30")
@pytest.mark.slow("writes a gigabyte")
def test_k30_a_large_log(tmp_path):
    """A log of a gigabyte whose writer was killed starts within two seconds, because it applies only what its ledger
    has not seen, the flush that was under way. One that does not believe its ledger goes through everything."""
    lost, replayed = start_of_a_large_log(tmp_path / "right", 1_000)
    assert lost == 0
    assert replayed <= 2
    with planted.replay_everything():
        lost, replayed = start_of_a_large_log(tmp_path / "control", 20)
        assert lost == 0
        assert replayed > 10


def lost_after_losing_the_ledger(path: Path) -> int:
    """Killed, and the newest rows of the ledger never reached the disk: how many places have no record any more."""
    handed_out = write_until_killed(path, 0, 200)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (path / name).unlink()
    return places_lost(path, handed_out)


@pytest.mark.mechanism("K30")
def test_k30_replay(tmp_path, monkeypatch):
    """The ledger is behind: the flushes it has not seen are applied again, to the same places. Without that, places
    that were handed out are empty."""
    assert lost_after_losing_the_ledger(tmp_path / "right") == 0
    monkeypatch.setattr(Recovery, "_replay", lambda *_: 0)
    assert lost_after_losing_the_ledger(tmp_path / "control") > 0
