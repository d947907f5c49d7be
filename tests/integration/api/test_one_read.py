"""Many readers of the same batches, beside some that behave badly, while upkeep takes away what they share."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import mainstem
from mainstem.consume.consumer import Consumer
from mainstem.hub.hub import Hub
from mainstem.testing import planted
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import embedded

HASTY = (
    *("--upkeep-interval", "50ms", "--upkeep-percent", "100", "--free-after", "100ms", "--rewrite-after", "200ms"),
    *("--hot-tail-bytes", "1MiB", "--block-bytes", "1MiB"),
)
READERS = 7
BATCHES, RECORDS = 150, 20
COUNT = BATCHES * RECORDS
# Little is under way to a reader: where it stands is where it reads.
PREFETCH = 64 << 10
SECRET = b"secret"


def value_of(offset: int) -> bytes:
    return b"%06d" % offset * 100


def key_of(offset: int) -> bytes:
    """Every tenth record is of one key; the others have one of five hundred."""
    return SECRET if offset % 10 == 3 else b"%d" % (offset % 499)


def fill(hub: Hub, stream: str, count: int = COUNT) -> None:
    hub.streams.create(stream)
    with hub.producer(compression=None) as producer:
        for first in range(0, count, RECORDS):
            for offset in range(first, first + RECORDS):
                producer.send(stream, value_of(offset), key=key_of(offset))
            producer.flush()


@dataclass
class Read:
    """What one reader got: offsets of records, each as it was written, and ranges it was told are lost."""

    offsets: list[int] = field(default_factory=list)
    lost: list[range] = field(default_factory=list)

    def add_all(self, consumer: Consumer, up_to: int = COUNT) -> None:
        """Read on, until that many offsets are behind it."""
        while not self.offsets or self.offsets[-1] < up_to - 1:
            try:
                record = consumer.poll(20)
            except mainstem.DataLoss as loss:
                if loss.reason != "trimmed":
                    raise
                self.lost.append(range(loss.first, loss.last + 1))
                continue
            if record is None:
                return
            assert record.value == value_of(record.offset)
            assert record.key == key_of(record.offset)
            assert not self.offsets or record.offset > self.offsets[-1]
            self.offsets.append(record.offset)

    @property
    def told(self) -> set[int]:
        return set(self.offsets).union(*self.lost)


class Crowd:
    """Readers of one stream: some stop half way until they are let on, one takes almost nothing until the end, one
    begins again from the start. Each has a hub of its own."""

    def __init__(self, url: str, stream: str, pool: ThreadPoolExecutor) -> None:
        self._url, self._stream = url, stream
        self._half = threading.Barrier(READERS + 2, timeout=60)
        self._go = threading.Event()
        self._end = threading.Event()
        self.steady = [pool.submit(self._read_steadily) for _ in range(READERS)]
        self.seeking = pool.submit(self._seek)
        self.stopped = pool.submit(self._stop)

    def wait_half(self) -> None:
        self._half.wait()

    def let_on(self) -> list[Read]:
        """The readers that just read, to their end; the one that takes nothing is still in their midst."""
        self._go.set()
        return [each.result(60) for each in self.steady]

    def let_stopped_on(self) -> Read:
        self._end.set()
        return self.stopped.result(60)

    @contextmanager
    def _opened(self) -> Iterator[Consumer]:
        with (
            mainstem.connect(self._url) as hub,
            hub.consumer(self._stream, start="earliest", follow=False, prefetch_bytes=PREFETCH) as consumer,
        ):
            yield consumer

    def _read_steadily(self) -> Read:
        read = Read()
        with self._opened() as consumer:
            read.add_all(consumer, COUNT // 2)
            self._half.wait()
            assert self._go.wait(60)
            read.add_all(consumer)
        return read

    def _seek(self) -> Read:
        again = Read()
        with self._opened() as consumer:
            Read().add_all(consumer, COUNT // 2)
            self._half.wait()
            assert self._go.wait(60)
            consumer.seek("earliest")
            again.add_all(consumer)
        return again

    def _stop(self) -> Read:
        read = Read()
        with self._opened() as consumer:
            read.add_all(consumer, 10)
            assert self._end.wait(60)
            read.add_all(consumer)
        return read


@pytest.fixture
def victim(server: ServerProcess) -> Iterator["subprocess.Popen[str]"]:
    """A process that reads a little of every stream and is then held up."""
    program = """
        import sys, mainstem
        hub = mainstem.connect(sys.argv[1])
        consumers = [hub.consumer(name, start="earliest") for name in ("trimmed", "compacted", "erased")]
        for consumer in consumers:
            for _ in range(100):
                assert consumer.poll(20) is not None
        print("reading", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """One with three streams, of which it has nothing in memory."""
    with ServerProcess(tmp_path / "data", *HASTY) as server:
        with mainstem.connect(server.url) as hub:
            for stream in ("trimmed", "compacted", "erased"):
                fill(hub, stream)
        server.kill()
        server.start()
        yield server
        print(server.stderr())


@pytest.mark.slow("thirty readers of three streams")
def test_everyone_gets_what_is_there_while_upkeep_takes_away_what_is_shared(server, victim):
    """One that stops, one that is killed and one that goes back, beside seven that read, on each of three streams: of
    one the middle is trimmed, one is compacted, of one a key is erased, while all stand half way."""
    with mainstem.connect(server.url) as hub, ThreadPoolExecutor(3 * (READERS + 2)) as pool:
        trimmed, compacted, erased = (Crowd(server.url, stream, pool) for stream in ("trimmed", "compacted", "erased"))
        assert victim.stdout is not None
        assert victim.stdout.readline() == "reading\n"
        for crowd in (trimmed, compacted, erased):
            crowd.wait_half()
        # Ten readers of each stream came so far on few reads of it, however unevenly they went.
        found = hub.statistics()
        assert found["block_read_bytes"] < 3 * found["live_bytes"]
        victim.kill()
        start = 3 * COUNT // 4
        hub.streams.trim("trimmed", offset=start)
        assert hub.streams.erase("erased", SECRET).records == COUNT // 10
        hub.streams.alter("compacted", cleanup="compact")
        with hub.producer() as producer:
            producer.send("compacted", value_of(COUNT), key=key_of(COUNT)).result(10)
        wait_for(lambda: hub.statistics()["records_compacted"] > COUNT // 2)

        start = hub.streams.get("trimmed").starts[0]
        for read in trimmed.let_on():
            assert read.told >= set(range(COUNT))
            assert set(range(start, COUNT)) <= set(read.offsets)
        assert trimmed.seeking.result(60).offsets == list(range(start, COUNT))
        stopped = trimmed.let_stopped_on()
        assert stopped.told >= set(range(COUNT))
        assert stopped.lost

        # Of a key that was written again there may be nothing left, of others there is the newest.
        newest = {key_of(offset): offset for offset in range(COUNT + 1)}.values()
        steady = compacted.let_on()
        for read in (*steady, compacted.seeking.result(60), compacted.let_stopped_on()):
            assert set(newest) - {COUNT} <= set(read.offsets)
        assert all(set(range(COUNT // 2)) <= set(read.offsets) for read in steady)

        kept = [offset for offset in range(COUNT) if key_of(offset) != SECRET]
        with hub.consumer("erased", start="earliest", follow=False) as late:
            assert [record.offset for record in late] == kept
        for read in erased.let_on():
            assert set(kept) <= set(read.offsets)
            # What was on its way to it, and no more.
            secrets = [offset for offset in read.offsets if key_of(offset) == SECRET]
            assert secrets[-1] < COUNT // 2 + 4 * PREFETCH // len(value_of(0))
        assert erased.seeking.result(60).offsets == kept
        assert set(kept) <= set(erased.let_stopped_on().offsets)


def wait_for(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    gone = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if is_so():
            return
        gone.wait(0.1)
    raise AssertionError("it did not come to that")


def secrets_after_erasure(path: Path, where: str | None) -> int:
    """A reader has read all, from blocks, and the key is erased: how many of its records the next reader gets."""
    with embedded(path, hot_tail_bytes=0) as hub:
        fill(hub, "private", 400)

        def secrets() -> int:
            with hub.consumer("private", start="earliest", follow=False, where=where) as consumer:
                return sum(record.key == SECRET for record in consumer)

        assert secrets() == 40
        hub.streams.erase("private", SECRET)
        return secrets()


@pytest.mark.parametrize("where", [None, "_offset >= 0"])
def test_what_was_erased_is_not_given_out_from_memory(tmp_path, where):
    assert secrets_after_erasure(tmp_path / "forgotten", where) == 0
    with planted.share_what_was_erased():
        assert secrets_after_erasure(tmp_path / "remembered", where) > 0
