"""A log that a test keeps step by step, on a clock that the test moves."""

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mainstem.consume.record import RecordBatch
from mainstem.core.identity import new_stream_uuid
from mainstem.log.administration import Administration
from mainstem.log.disk import Disk
from mainstem.log.flush import CreateStream
from mainstem.log.ledger.base import BlockRow, Entry, GenerationRow, StreamRow
from mainstem.log.log import Log, LogOptions
from mainstem.log.reader import LogReader
from mainstem.log.upkeep import Pace
from mainstem.registry import compatibility
from mainstem.registry.promotion import lossless
from mainstem.testing.clock import SimulatedClock
from mainstem.transport.port import StreamInfo
from tests.unit.log.parts import FOREVER_US, append, make_keyed_batch

SECOND_US = 1_000_000
HOUR, DAY = 3_600.0, 86_400.0
PACE = Pace(interval=30.0, free_after=600.0, rewrite_after=DAY, share=1.0)
OPTIONS = LogOptions(block_bytes=64 << 10, hot_tail_bytes=16 << 10, pace=PACE)

Seen = dict[int, tuple[bytes | None, bytes | None]]


class Keeping:
    """A log that is kept step by step."""

    def __init__(self, path: Path, options: LogOptions = OPTIONS, disk: Disk | None = None) -> None:
        """On this disk until it is opened again."""
        self.path = path
        self.clock = SimulatedClock()
        self._options = options
        self.log = Log(path, options, disk=disk, clock=self.clock, promote=lossless)

    def reopen(self, *, without_ledger: bool = False) -> None:
        self.log.close()
        if without_ledger:
            for file in self.path.glob("ledger.db*"):
                file.unlink()
        self.log = Log(self.path, self._options, clock=self.clock, promote=lossless)

    def create(
        self,
        name: str = "orders",
        *,
        shards: int = 1,
        cleanup: str = "delete",
        retention_us: int = FOREVER_US,
        tombstones: float = HOUR,
    ) -> int:
        now = self.clock.now_us()
        command = CreateStream(
            new_stream_uuid(), name, shards, "crc32", retention_us, now, 0, cleanup, round(tombstones * SECOND_US)
        )
        return self.log.execute(command).stream

    def write(self, stream: int, *pairs: tuple[bytes | None, bytes | None], shard: int = 0) -> None:
        """One flush with one batch."""
        records = [(key, value, self.clock.now_us()) for key, value in pairs]
        append(self.log, make_keyed_batch(records, stream=stream, shard=shard))

    def write_singly(self, stream: int, count: int, *, first: int = 0, shard: int = 0, size: int = 1) -> Seen:
        """Flushes of one record each, all of different keys; what must be read of them."""
        expected: Seen = {}
        for number in range(first, first + count):
            pair = (b"k%d" % number, b"v%d " % number * size)
            self.write(stream, pair, shard=shard)
            expected[number] = pair
        return expected

    def row(self, stream: int) -> StreamRow:
        row = self.log.ledger.load_stream(stream)
        assert row is not None
        return row

    def read(self, stream: int, *, shard: int = 0, cold: bool = True) -> Seen:
        """Everything that a reader sees, from the disk, or as it comes."""
        reader = LogReader(self.log.ledger, self.log._folder.blocks) if cold else self.log.reader
        row = self.row(stream)
        offset = reader.shard(stream, shard).start
        found: Seen = {}
        while batches := reader.read(row, shard, offset):
            for fetched in batches:
                assert fetched.base <= offset < fetched.end
                if fetched.header.count:
                    for record in RecordBatch(row.name, fetched, offset, None).records():
                        found[record.offset] = (record.key, record.value)
                offset = fetched.end
        assert offset == reader.shard(stream, shard).stable
        return found

    def entries(self, stream: int, shard: int = 0) -> Sequence[Entry]:
        return self.log.ledger.entries_from(stream, shard, 0, 1 << 20)

    def blocks(self) -> dict[int, BlockRow]:
        return {row.id: row for row in self.log.ledger.list_blocks()}

    def files(self) -> list[int]:
        return self.log._folder.blocks.list()

    def roll(self) -> None:
        """What was written so far is in sealed blocks."""
        self.log.batcher.request_roll()
        self.log.commit_nothing()

    def keep(self, after: float = 0.0) -> None:
        """Let time pass and do everything that is due."""
        self.clock.advance(after)
        self.log.upkeep.run_until_idle()
        self.log._maintenance.close()

    def collect(self) -> None:
        """Everything that is to go from the disk goes."""
        for wait in (DAY + 60, 700.0, 60.0, 60.0, 60.0):
            self.keep(wait)

    def info(self, stream: int) -> StreamInfo:
        """With what waits to be freed."""
        return Administration(self.log, check_schema=compatibility.check).info(self.row(stream), details=True)

    def counts(self) -> dict[str, int]:
        return self.log.upkeep.counters()

    def on_disk(self, marker: bytes) -> bool:
        """Whether these bytes are in some block. Values that must be found are not compressible."""
        return any(marker in path.read_bytes() for path in (self.path / "blocks").iterdir())

    def rebuilt(self) -> list[Seen]:
        """What a copy of the folder that lost its ledger has of every stream and shard."""
        copy = self.path.with_name("copy")
        shutil.copytree(self.path, copy)
        try:
            for file in copy.glob("ledger.db*"):
                file.unlink()
            other = Keeping.__new__(Keeping)
            other.path, other.clock, other._options = copy, self.clock, self._options
            other.log = Log(copy, self._options, clock=self.clock, promote=lossless)
            try:
                return list(other.all())
            finally:
                other.log.close()
        finally:
            shutil.rmtree(copy)

    def all(self) -> Iterator[Seen]:
        for row in self.log.ledger.list_streams():
            if not row.deleted_us:
                for shard in range(row.shards):
                    yield self.read(row.id, shard=shard)


def marker(number: int, size: int = 120) -> bytes:
    """A value that no compression hides."""
    return random.Random(number).randbytes(size)


def set_barrier(keeping: Keeping, monkeypatch: pytest.MonkeyPatch, stream: int, offset: int) -> None:
    """As if the first shard had ended here when the stream got its second; batches may reach over it."""
    generations = (GenerationRow(stream, 1, 2, (offset,)),)
    monkeypatch.setattr(keeping.log._applier, "generations", lambda number: generations if number == stream else ())
    ledger = keeping.log._upkeep_ledger
    monkeypatch.setattr(ledger, "load_generations", lambda number: generations if number == stream else ())


def pass_time(keeping: Keeping, seconds: float) -> None:
    """As it passes for a log that is kept: a round every interval."""
    end = keeping.clock.monotonic() + seconds
    while keeping.clock.monotonic() < end:
        keeping.clock.advance(min(PACE.interval, end - keeping.clock.monotonic()))
        for _ in keeping.log.upkeep.round():
            pass
        keeping.log._maintenance.close()


def damage(keeping: Keeping, entry: Entry) -> None:
    """Flip a bit in the first payload of an entry."""
    path = keeping.path / "blocks" / f"{entry.block:016d}.block"
    with path.open("r+b") as file:
        file.seek(entry.position + entry.length - 1)
        byte = file.read(1)[0]
        file.seek(entry.position + entry.length - 1)
        file.write(bytes([byte ^ 1]))
