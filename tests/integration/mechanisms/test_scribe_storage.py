"""How Scribe stores: gathering, the order of the steps of a write, blocks of many streams, memory for readers."""

import json
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import mainstem
from mainstem.core.errors import DataLoss, FolderUnusable
from mainstem.hub.hub import Hub
from mainstem.log.batcher import Batcher, Submission
from mainstem.log.blocks.base import BlockMissing
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.flush import Appended, Flush, Outcome
from mainstem.log.ledger.base import Changes, Entry
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.log.reader import LogReader
from mainstem.testing import planted
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import changed_servers, embedded, take, values
from tests.unit.log.parts import WatchedDisk, append, append_values, make_batch, make_stream, values_of

# S25: what gathers while the disk is busy, and what becomes of like beside like.


def shaped(kind: int, number: int) -> bytes:
    """A record of one of fifty kinds: each kind has its own names and habits."""
    record = {f"field_{kind}_{name}": (number * kind + name) % 50 for name in range(6)}
    return json.dumps({"kind": f"event-of-kind-{kind}", "source": f"service-{kind}", **record}).encode()


def stored_bytes(hub: Hub, streams: list[str]) -> int:
    total = 0
    for stream in streams:
        with hub.consumer(stream, start="earliest", follow=False) as consumer:
            total += sum(batch._fetched.header.stored_len for batch in consumer.batches())
    return total


@pytest.mark.mechanism("S25")
def test_s25_like_beside_like(tmp_path):
    """50 kinds of records, compressed by stream, take less than the same records compressed as they came."""
    records = [(kind, shaped(kind, number)) for number in range(200) for kind in range(50)]
    raw = sum(len(value) for _, value in records)
    with embedded(tmp_path) as hub:
        names = [f"kind{kind}" for kind in range(50)]
        for name in (*names, "mixed"):
            hub.streams.create(name)
        with hub.producer(compression="zstd", linger=60, batch_bytes=8 << 20, buffer_bytes=64 << 20) as producer:
            for kind, value in records:
                producer.send(f"kind{kind}", value)
        apart = stored_bytes(hub, names)
        # The control, in payloads of the same size: whatever arrives is compressed together.
        with hub.producer(compression="zstd", batch_bytes=8 << 20, buffer_bytes=64 << 20) as producer:
            for first in range(0, len(records), 200):
                producer.send_many("mixed", [value for _, value in records[first : first + 200]])
        mixed = stored_bytes(hub, ["mixed"])
    assert apart < raw / 4
    assert mixed / apart >= 1.3


def flushes_for(path: Path, writers: int, rounds: int) -> float:
    """Flushes per record when `writers` threads write one record after the other, each waiting for its own, to a disk
    that takes 2 ms."""
    log = Log(path, disk=WatchedDisk(lambda _: time.sleep(0.002)))
    stream = make_stream(log)
    before = log.counters()["flushes_applied"]

    def write() -> None:
        for _ in range(rounds):
            append_values(log, stream, b"v")

    threads = [threading.Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flushes = log.counters()["flushes_applied"] - before
    assert log.reader.shard(stream, 0).next == writers * rounds
    log.close()
    return flushes / (writers * rounds)


def take_one(batcher: Batcher) -> list[Submission]:
    """In place of `Batcher._take`: a flush for each submission."""
    with batcher._pending_lock:
        if not batcher._pending:
            return []
        batcher._pending_bytes -= batcher._pending[0].size
        return [batcher._pending.popleft()]


@pytest.mark.mechanism("S25")
def test_s25_gathering(tmp_path, monkeypatch):
    """Sixteen writers share flushes; one alone cannot, and has no one to wait for. Where nothing gathers, many need as
    many as one."""
    assert flushes_for(tmp_path / "many", 16, 40) < 0.7
    assert flushes_for(tmp_path / "one", 1, 40) >= 1
    monkeypatch.setattr(Batcher, "_take", take_one)
    assert flushes_for(tmp_path / "control", 16, 10) >= 1


def flushes_behind_one(path: Path) -> int:
    """A hundred records arrive while the disk is busy with one: how many flushes that makes."""
    is_open, arrived = threading.Event(), threading.Event()
    is_open.set()

    def hold(path: Path) -> None:
        arrived.set()
        assert is_open.wait(10)

    log = Log(path, disk=WatchedDisk(hold))
    stream = make_stream(log)
    before = log.counters()["flushes_applied"]
    arrived.clear()
    is_open.clear()
    first = threading.Thread(target=lambda: append_values(log, stream, b"first"))
    first.start()
    assert arrived.wait(5)
    waiters = [Waiter() for _ in range(100)]
    for waiter in waiters:
        log.append([make_batch([b"v"], stream=stream)], waiter.set)
    is_open.set()
    for waiter in waiters:
        waiter.wait(log.batcher)
    first.join()
    flushes = log.counters()["flushes_applied"] - before
    log.close()
    return flushes


@pytest.mark.mechanism("S25")
def test_s25_nothing_waits_for_company(tmp_path, monkeypatch):
    """A held flush gathers everything that arrives meanwhile into the next one; without a flush to wait for, a record
    does not wait at all. Where nothing gathers, each has a flush of its own."""
    assert flushes_behind_one(tmp_path / "right") == 2
    monkeypatch.setattr(Batcher, "_take", take_one)
    assert flushes_behind_one(tmp_path / "control") == 101


# S26: block, then ledger, then acknowledgement.


class Crash(BaseException):
    """The process is gone here."""


def crash_at(path: Path, step: str, turn: int) -> tuple[Path, list[bytes]]:
    """Write until the process dies at one of the steps of its last flush. The folder as it is then, and what had been
    acknowledged by then."""
    folder, left = path / "running", path / f"left-{step}-{turn}"
    armed = False

    def die(name: str) -> None:
        if armed and name == step:
            shutil.copytree(folder, left)
            raise Crash

    log = Log(folder, disk=WatchedDisk(lambda _: die("before the block")))
    stream = make_stream(log)
    apply, note = log._applier.apply, log._file.note_entries

    def apply_late(flush: Flush) -> tuple[Changes, list[Outcome]]:
        die("before the ledger")
        return apply(flush)

    def note_late(entries: Sequence[Entry]) -> None:
        die("before the answer")
        note(entries)

    log._applier.apply = apply_late  # type: ignore[method-assign]
    log._file.note_entries = note_late  # type: ignore[method-assign]
    acknowledged: list[bytes] = []
    for number in range(turn % 5 + 1):
        append_values(log, stream, b"%d" % number)
        acknowledged.append(b"%d" % number)
    armed = True
    waiter = Waiter()
    log.append([make_batch([b"last"], stream=stream)], waiter.set)
    try:
        log.batcher.drive()
        acknowledged.append(b"last")
        die("after the answer")
    except Crash:
        pass
    armed = False
    log.close()
    shutil.rmtree(folder)
    return left, acknowledged


def found_after(left: Path) -> list[bytes]:
    """What the next life of the log has; every entry must lead to its bytes."""
    log = Log(left)
    row = log.reader.require_stream(1)
    cold = LogReader(log.ledger, log._folder.blocks)
    found: list[bytes] = []
    while batches := cold.read(row, 0, len(found)):
        for batch in batches:
            found += [value or b"" for value in values_of(batch)]
    assert len(found) == log.reader.shard(1, 0).next
    log.close()
    shutil.rmtree(left)
    return found


STEPS = ("before the block", "before the ledger", "before the answer", "after the answer")


def losses(path: Path, times: int) -> tuple[int, int]:
    """Over all steps: records acknowledged and not there, and entries that lead nowhere or lives that do not begin."""
    missing = dangling = 0
    for step in STEPS:
        for turn in range(times):
            left, acknowledged = crash_at(path, step, turn)
            try:
                found = found_after(left)
            except (DataLoss, FolderUnusable):
                dangling += 1
                continue
            missing += len(acknowledged) - len([value for value in acknowledged if value in found])
            # What was not acknowledged may be there, but only whole and at the end.
            assert found[: len(acknowledged)] == acknowledged[: len(found)]
            assert len(found) <= len(acknowledged) + 1
    return missing, dangling


@pytest.mark.mechanism("S26")
def test_s26_steps(tmp_path):
    """Dead at each of the steps: no entry without its bytes, nothing acknowledged and gone. Answered before the block
    is written, entries lead nowhere."""
    assert losses(tmp_path / "right", times=25) == (0, 0)
    with planted.ack_before_write():
        missing, dangling = losses(tmp_path / "wrong", times=3)
    assert missing + dangling > 0


@pytest.mark.mechanism("S26")
def test_s26_memory_is_no_part_of_it(tmp_path, monkeypatch):
    """With no memory for recent records at all, every write succeeds and every reader is served. From the blocks: who
    cannot read those gets nothing, while memory would hide it."""
    expected = [b"%d" % number for number in range(2_000)]
    read_for_oneself(monkeypatch)
    with embedded(tmp_path / "none", hot_tail_bytes=0) as hub, embedded(tmp_path / "some") as usual:
        for written in (hub, usual):
            written.streams.create("orders")
            with written.producer() as producer:
                acks = [producer.send("orders", value) for value in expected]
            assert [ack.result(10)[1] for ack in acks] == list(range(2_000))
        assert hub.statistics()["hot_tail_bytes"] == 0
        assert values(hub, "orders") == expected

        def missing(blocks: LocalBlocks, block: int, *_: int) -> bytes:
            raise BlockMissing(f"block {block}")

        monkeypatch.setattr(LocalBlocks, "read", missing)
        with pytest.raises(DataLoss):
            values(hub, "orders")
        assert values(usual, "orders") == expected


# S33: blocks of many streams.

BLOCK_BYTES = 256 << 10


def filled_blocks(path: Path, *, together: bool) -> tuple[Log, int, int]:
    """Forty rounds of a batch for each of 200 streams: together in one flush, or each in its own; the writes and bytes
    that took."""
    writes = 0

    def count(_: Path) -> None:
        nonlocal writes
        writes += 1

    log = Log(path, LogOptions(block_bytes=BLOCK_BYTES, hot_tail_bytes=0), disk=WatchedDisk(count))
    streams = [make_stream(log, f"s{number}") for number in range(200)]
    writes = 0
    before = log.counters()["bytes_written"]
    for number in range(20 if together else 2):
        batches = [make_batch([b"%d:%d" % (stream, number) * 20], stream=stream) for stream in streams]
        for group in [batches] if together else [[batch] for batch in batches]:
            assert all(isinstance(outcome, Appended) for outcome in append(log, *group))
    return log, writes, log.counters()["bytes_written"] - before


@pytest.mark.mechanism("S33")
def test_s33_writes(tmp_path):
    """Many streams in one block and one flush in one write: few files, few and large writes. With a flush for each
    batch there are two hundred times as many."""
    log, writes, total = filled_blocks(tmp_path / "together", together=True)
    entries = [entry for stream in range(1, 201) for entry in log.ledger.entries_from(stream, 0, 0, 99)]
    streams_in = {block: {e.stream for e in entries if e.block == block} for block in {e.block for e in entries}}
    sizes = sorted(path.stat().st_size for path in (tmp_path / "together" / "blocks").iterdir())
    log.close()
    assert len(sizes) >= 4
    assert sizes[1] >= 0.8 * BLOCK_BYTES  # all but the one that was not full yet
    assert all(len(streams) >= 10 for streams in streams_in.values())
    assert writes <= 20 + 4 * len(sizes)
    apart, writes_apart, total_apart = filled_blocks(tmp_path / "apart", together=False)
    apart.close()
    assert writes_apart / total_apart > 20 * writes / total


def read_for_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what is read from blocks is kept for the next who asks."""
    for name in ("RECENT_READS_BYTES_MAX", "SHARED_READS_BYTES_MAX"):
        monkeypatch.setattr(f"mainstem.log.reader.{name}", 0)


def reads_for(path: Path, unit_bytes: int) -> int:
    """How many reads of the disk it takes to get four megabytes of one stream, `unit_bytes` at a time."""
    log = Log(path, LogOptions(hot_tail_bytes=0))
    row = log.reader.require_stream(1)
    offset, reads = 0, log.reader.disk_reads
    while batches := log.reader.read(row, 0, offset, unit_bytes):
        offset = batches[-1].end
    assert offset == 4_096
    found = log.reader.disk_reads - reads
    log.close()
    return found


@pytest.mark.mechanism("S33")
def test_s33_reads(tmp_path, monkeypatch):
    """One batch is one read. Where a seek takes 8 ms, units of 64 KB are at least four times as fast as those of 8."""
    read_for_oneself(monkeypatch)
    log = Log(tmp_path, LogOptions(hot_tail_bytes=0))
    stream = make_stream(log)
    for first in range(0, 4_096, 8):
        append_values(log, stream, *[b"%04d" % (first + number) * 250 for number in range(8)])
    row = log.reader.require_stream(stream)
    before = log.reader.disk_reads
    assert len(log.reader.read(row, 0, 800, 1)) == 1
    assert log.reader.disk_reads == before + 1
    log.close()
    seek_seconds, bytes_per_second = 0.008, 200e6
    transfer = 4_096 * 1_000 / bytes_per_second
    fast = reads_for(tmp_path, 64 << 10) * seek_seconds + transfer
    slow = reads_for(tmp_path, 8 << 10) * seek_seconds + transfer
    assert slow / fast >= 4


# S36: what was just written is read from memory, however many read it.


def reads_per_batch(path: Path, hot_tail_bytes: int) -> float:
    """Twenty followers of one stream, a hundred batches: how often the disk is asked for each."""
    with embedded(path, hot_tail_bytes=hot_tail_bytes) as hub:
        hub.streams.create("orders")
        consumers = [hub.consumer("orders", start="earliest") for _ in range(20)]
        before = hub.statistics()["block_reads"]
        with hub.producer() as producer:
            for number in range(100):
                producer.send("orders", b"%d" % number).result(10)
                for consumer in consumers:
                    record = consumer.poll(10)
                    assert record is not None
                    assert record.value == b"%d" % number
        return (hub.statistics()["block_reads"] - before) / 100


@pytest.mark.mechanism("S36")
def test_s36_followers(tmp_path, monkeypatch):
    """At most 1.2 reads of the disk for a batch that twenty follow; without the memory, about twenty."""
    assert reads_per_batch(tmp_path / "with", 8 << 20) <= 1.2
    read_for_oneself(monkeypatch)
    assert reads_per_batch(tmp_path / "without", 0) >= 15


def cold_reads(path: Path) -> int:
    """Twenty readers of a server that remembers nothing ask for the same records at once: the reads of its disk."""
    with ServerProcess(path) as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        with hub.producer() as producer:
            producer.send_many("orders", [b"%d" % number for number in range(1_000)]).result(10)
        server.kill()
        server.start()
        with ExitStack() as stack:
            consumers = [stack.enter_context(hub.consumer("orders", start="earliest")) for _ in range(20)]
            for consumer in consumers:
                assert len(take(consumer, 1_000)) == 1_000
        return hub.statistics()["block_reads"]


@pytest.mark.mechanism("S36")
def test_s36_cold_readers_at_once(tmp_path):
    """One read for all of them; on a server that keeps nothing of what it read, one for each."""
    assert cold_reads(tmp_path / "with") == 1
    without = "reader.RECENT_READS_BYTES_MAX = reader.SHARED_READS_BYTES_MAX = 0"
    with changed_servers(f"from mainstem.log import reader; {without}"):
        assert cold_reads(tmp_path / "without") >= 15


@pytest.mark.mechanism("S36")
def test_s36_through_a_server(tmp_path):
    """Twenty followers of a server: all that is pushed to them comes from memory, and none of it from the disk."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        hub.streams.create("orders")
        consumers = [hub.consumer("orders", start="earliest") for _ in range(20)]
        for consumer in consumers:
            assert consumer.poll(0) is None
        with hub.producer() as producer:
            producer.send_many("orders", [b"%d" % number for number in range(100)]).result(10)
        for consumer in consumers:
            assert take(consumer, 100) == [b"%d" % number for number in range(100)]
        found = hub.statistics()
        assert found["batches_pushed_hot"] >= 20
        assert found["batches_pushed_disk"] == found["block_reads"] == 0
        # The control: another life of the server remembers nothing, and the same readers cost reads.
        server.kill()
        server.start()
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            assert len(list(consumer)) == 100
        assert hub.statistics()["block_reads"] > 0
