"""Random mixes of everything that changes a log, against a model in memory that knows nothing of blocks and entries.

One trial is one folder and some dozens of steps in random order: streams come and go, records are written (some twice,
as a producer does that heard no answer), trimmed, erased and compacted, streams get schemas and more shards, time
passes, upkeep does a few of its steps, the process is killed at some operation of its disk, also in the middle of a
step of upkeep, and starts again. After every kill and at the end everything is read and compared; at the end also

- the ledger's books: every row of a block and of a shard says what its entries add up to, entries are dense;
- that a ledger which is rebuilt from its snapshots and blocks is the same, row by row;
- that what nobody needs any more is off the disk after the next collection: no file without a row, none that is dead.
"""

import contextlib
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import apsw
import pyarrow as pa

from mainstem.core import layouts, payload, statistics
from mainstem.core.batch import Batch, BatchHeader, FetchedBatch
from mainstem.core.checksum import crc32c
from mainstem.core.errors import MainstemError
from mainstem.core.identity import new_stream_uuid
from mainstem.core.schema import Schema
from mainstem.log.batcher import Submission
from mainstem.log.contents import Contents
from mainstem.log.flush import (
    AlterStream,
    Appended,
    CreateStream,
    DeleteStream,
    Outcome,
    Rejected,
    SetSchema,
    TrimShard,
)
from mainstem.log.ledger.base import Entry, ShardKey, StreamRow
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.log.replacement import records_of
from mainstem.log.upkeep import Pace
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.disk import Leaves, Operation, StrikingDisk
from tests.faults.trials import Trials

STEPS = 60
_SECOND_US = 1_000_000
_DAY = 86_400.0
_TOMBSTONE_US = 3_600 * _SECOND_US
# Small enough that one trial rolls blocks, checkpoints the ledger and takes snapshots several times.
OPTIONS = LogOptions(
    block_bytes=64 << 10,
    hot_tail_bytes=8 << 10,
    checkpoint_bytes=64 << 10,
    snapshot_bytes=96 << 10,
    pace=Pace(interval=30.0, free_after=600.0, rewrite_after=_DAY, share=1.0),
)

# Batches of more records than this have statistics.
_DESCRIBED = 3

_LEAVES: tuple[Leaves, ...] = ("nothing", "part", "all")

Record = tuple[bytes | None, bytes | None, int]


class _Killed(BaseException):
    """The process ends here, as far as the log is concerned."""


@dataclass(slots=True)
class _Shard:
    """What was written and may still be read. `maybe` is a write that was cut short: it happened or it did not."""

    records: dict[int, Record] = field(default_factory=dict)
    next: int = 0
    start: int = 0
    maybe: list[Record] = field(default_factory=list)
    maybe_start: int = 0
    erased: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Stream:
    id: int
    name: str
    cleanup: str
    retention_us: int
    shards: list[_Shard]
    # Versions of its schema, and where the shards ended when they became more.
    versions: int = 0
    barriers: list[list[int]] = field(default_factory=list)
    maybe_versions: int = 0
    maybe_shards: int = 0


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    for trial in range(trials):
        place = folder / f"mix-{trial}"
        mix = _Mix(random.Random(f"mix {seed} {trial}"), place)
        try:
            mix.play(STEPS)
        except Exception as error:
            mix.wrong.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, MainstemError | AssertionError):
                raise
        finally:
            mix.end()
            shutil.rmtree(place, ignore_errors=True)
        result.trials += 1
        result.acknowledged += mix.acknowledged
        for text in mix.wrong:
            result.lost += "missing" in text
            result.duplicated += "twice" in text
            result.add_finding(f"seed {seed}, trial {trial}, after {mix.history[-6:]}: {text}")
    return result


class _Mix:
    """One trial."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.wrong: list[str] = []
        self.history: list[str] = []
        self.acknowledged = 0
        self._rng = rng
        self._folder = folder
        self._clock = SimulatedClock()
        self._streams: dict[str, _Stream] = {}
        self._names = 0
        self._sequences: dict[ShardKey, int] = {}
        self._upkeep: Iterator[None] = iter(())
        self._log = self._open(0)

    # The process.

    def _open(self, strike_at: int) -> Log:
        def strike(operation: Operation) -> NoReturn:
            if threading.current_thread() is not threading.main_thread():
                # A snapshot under way: to the steps it is as if it had failed.
                raise OSError("killed (injected)")
            raise _Killed(operation.kind)

        leaves: Leaves = self._rng.choice(_LEAVES)
        disk = StrikingDisk(None, at=strike_at, strike=strike, leaves=leaves)
        return Log(self._folder, OPTIONS, clock=self._clock, disk=disk)

    def end(self) -> None:
        # The kill may have been meant for a later operation, and comes with the last one.
        with contextlib.suppress(_Killed):
            self._log.close()

    def _kill_and_start(self) -> None:
        """The files are as the kill left them: closing a log that has failed writes nothing more."""
        self._upkeep = iter(())
        self._log.close()
        self._log = self._open(self._rng.choice((0, 0, self._rng.randrange(1, 60))))
        self._settle()

    def play(self, steps: int) -> None:
        kinds = (
            [self._write] * 30
            + [self._keep] * 12
            + [self._pass_time] * 6
            + [self._create] * 4
            + [self._trim] * 3
            + [self._erase] * 2
            + [self._delete] * 1
            + [self._alter] * 1
            + [self._set_schema] * 2
            + [self._reshard] * 2
            + [self._crash] * 2
        )
        self._create()
        for _ in range(steps):
            step = self._rng.choice(kinds)
            self.history.append(step.__name__)
            try:
                step()
            except _Killed as killed:
                self.history.append(f"killed at {killed}")
                self._after_kill()
            except MainstemError as error:
                if not isinstance(self._log.batcher.failure, MainstemError):
                    raise
                # A snapshot or commit of another step met the kill; this one only learns that the log has failed.
                self.history.append(f"failed: {error}")
                self._after_kill()
        self._finish()

    def _after_kill(self) -> None:
        for _ in range(5):
            try:
                self._kill_and_start()
            except _Killed:
                continue
            self._compare("after a kill")
            return
        self._log = self._open(0)
        self._settle()

    # Steps.

    def _create(self) -> None:
        if len(self._streams) >= 4:
            return
        self._names += 1
        name = f"s{self._names}"
        cleanup = self._rng.choice(("delete", "delete", "compact", "compact,delete"))
        retention_us = self._rng.choice((3_600, 86_400, 10**9)) * _SECOND_US
        shards = self._rng.choice((1, 1, 3))
        command = CreateStream(
            new_stream_uuid(), name, shards, "crc32", retention_us, self._clock.now_us(), 0, cleanup, _TOMBSTONE_US
        )
        try:
            done = self._log.execute(command)
        except _Killed:
            self._maybe_created = (name, cleanup, retention_us, shards)
            raise
        self._streams[name] = _Stream(done.stream, name, cleanup, retention_us, [_Shard() for _ in range(shards)])

    _maybe_created: tuple[str, str, int, int] | None = None
    _maybe_deleted: str | None = None

    def _write(self) -> None:
        if not self._streams:
            return
        stream = self._rng.choice(list(self._streams.values()))
        shard = self._rng.randrange(len(stream.shards))
        # Many tiny flushes, now and then a large batch.
        for _ in range(self._rng.choice((1, 3, 30, 200)) if self._rng.random() < 0.3 else 1):
            count = self._rng.choice((1, 1, 1, 5, 60))
            records = [self._record() for _ in range(count)]
            self._append(stream, shard, records)

    def _record(self) -> Record:
        key = (
            b"k%d" % self._rng.randrange(12)
            if self._rng.random() < 0.9
            else b"long" * 12 + b"%d" % self._rng.randrange(3)
        )
        value = None if self._rng.random() < 0.1 else self._rng.randbytes(self._rng.choice((5, 40, 300)))
        return key, value, self._clock.now_us() - self._rng.randrange(3) * _SECOND_US

    def _append(self, stream: _Stream, shard: int, records: list[Record]) -> None:
        key = (stream.id, shard)
        sequence = self._sequences.get(key, 0)
        batch = _batch(stream.id, shard, sequence, records, len(stream.barriers))
        model = stream.shards[shard]
        model.maybe = records
        outcome = self._submit(batch)
        if isinstance(outcome, Rejected):
            raise outcome.error
        assert isinstance(outcome, Appended), outcome
        assert not outcome.duplicate, outcome
        assert outcome.base == model.next, f"{stream.name}: base {outcome.base}, expected {model.next}"
        self._take(model, key)
        if self._rng.random() < 0.05:
            again = self._submit(batch)
            assert again == Appended(outcome.base, duplicate=True), f"repeated batch became {again}"

    def _take(self, model: _Shard, key: ShardKey) -> None:
        """The write that was under way happened."""
        for offset, record in enumerate(model.maybe, model.next):
            model.records[offset] = record
        model.next += len(model.maybe)
        self.acknowledged += len(model.maybe)
        model.maybe = []
        self._sequences[key] = self._sequences.get(key, 0) + 1

    def _submit(self, batch: Batch) -> Outcome:
        waiter = Waiter()
        self._log.batcher.submit(Submission((batch,), waiter.set))
        return waiter.wait(self._log.batcher)[0]

    def _trim(self) -> None:
        if not self._streams:
            return
        stream = self._rng.choice(list(self._streams.values()))
        shard = self._rng.randrange(len(stream.shards))
        model = stream.shards[shard]
        before = self._rng.randint(model.start, model.next)
        model.maybe_start = before
        self._log.execute(TrimShard(stream.id, shard, before))
        self._log.upkeep.look_at((stream.id, shard))
        model.start = max(model.start, before)

    def _erase(self) -> None:
        if not self._streams:
            return
        stream = self._rng.choice(list(self._streams.values()))
        key = b"k%d" % self._rng.randrange(12)
        row = self._log.ledger.load_stream(stream.id)
        assert row is not None
        gone = [
            {offset for offset, record in shard.records.items() if record[0] == key and offset >= shard.start}
            for shard in stream.shards
        ]
        for shard, offsets in zip(stream.shards, gone, strict=True):
            shard.erased |= offsets
        self._log.upkeep.erase(row, key)
        for shard, offsets in zip(stream.shards, gone, strict=True):
            for offset in offsets:
                del shard.records[offset]
            shard.erased -= offsets

    def _delete(self) -> None:
        if not self._streams:
            return
        name = self._rng.choice(list(self._streams))
        self._maybe_deleted = name
        self._log.execute(DeleteStream(self._streams[name].id, self._clock.now_us()))
        del self._streams[name]
        self._maybe_deleted = None

    def _alter(self) -> None:
        if not self._streams:
            return
        stream = self._rng.choice(list(self._streams.values()))
        # Whichever of the two it is after a kill: what goes under the shorter may go.
        retention_us = min(stream.retention_us, 3_600 * _SECOND_US)
        stream.retention_us = retention_us
        self._log.execute(AlterStream(stream.id, retention_us))

    def _set_schema(self) -> None:
        if not self._streams:
            return
        stream = self._rng.choice(list(self._streams.values()))
        schema = Schema(pa.schema([(f"column_{self._rng.randrange(6)}", pa.int64())]))
        stream.maybe_versions = stream.versions + 1
        now_us = self._clock.now_us()
        self._log.execute(SetSchema(stream.id, schema.serialized, schema.fingerprint, stream.maybe_versions, now_us))
        stream.versions = stream.maybe_versions

    def _reshard(self) -> None:
        streams = [stream for stream in self._streams.values() if stream.cleanup == "delete"]
        if not streams:
            return
        stream = self._rng.choice(streams)
        stream.maybe_shards = len(stream.shards) + self._rng.randrange(1, 4)
        self._log.execute(AlterStream(stream.id, shards=stream.maybe_shards))
        stream.barriers.append([shard.next for shard in stream.shards])
        stream.shards += [_Shard() for _ in range(stream.maybe_shards - len(stream.shards))]

    def _pass_time(self) -> None:
        self._clock.advance(self._rng.choice((1.0, 40.0, 700.0, 4_000.0, _DAY)))

    def _keep(self) -> None:
        """A few steps of upkeep, of a round that goes on with the next such step."""
        if self._rng.random() < 0.2:
            self._log.upkeep.run_until_idle()
            return
        for _ in range(self._rng.randrange(1, 12)):
            if next(self._upkeep, "over") == "over":
                self._upkeep = self._log.upkeep.round()

    def _crash(self) -> None:
        raise _Killed("between steps")

    # Comparing.

    def _settle(self) -> None:
        """After a kill: what was under way happened or did not; which of both is asked of the log, once."""
        if self._maybe_created is not None:
            name, cleanup, retention_us, shards = self._maybe_created
            row = self._log.ledger.stream_named(name)
            if row is not None:
                self._streams[name] = _Stream(row.id, name, cleanup, retention_us, [_Shard() for _ in range(shards)])
            self._maybe_created = None
        if self._maybe_deleted is not None:
            if self._log.ledger.stream_named(self._maybe_deleted) is None:
                del self._streams[self._maybe_deleted]
            self._maybe_deleted = None
        for stream in self._streams.values():
            self._settle_shape(stream)
            for number, model in enumerate(stream.shards):
                row_ = self._log.ledger.load_shard(stream.id, number)
                if model.maybe and row_.next == model.next + len(model.maybe):
                    self._take(model, (stream.id, number))
                model.maybe = []
                if row_.start >= model.maybe_start:
                    model.start = max(model.start, model.maybe_start)

    def _settle_shape(self, stream: _Stream) -> None:
        row = self._log.ledger.load_stream(stream.id)
        assert row is not None, f"{stream.name} is missing"
        if row.schema_version == stream.maybe_versions:
            stream.versions = row.schema_version
        if row.shards == stream.maybe_shards > len(stream.shards):
            stream.barriers.append([shard.next for shard in stream.shards])
            stream.shards += [_Shard() for _ in range(row.shards - len(stream.shards))]

    def _compare(self, when: str) -> None:
        for stream in self._streams.values():
            row = self._log.ledger.load_stream(stream.id)
            versions = [version.version for version in self._log.ledger.load_versions(stream.id)]
            barriers = [list(change.barriers) for change in self._log.ledger.load_generations(stream.id)]
            if row is None or row.shards != len(stream.shards) or barriers != stream.barriers:
                self.wrong.append(f"{when}: {stream.name} has barriers {barriers}, not {stream.barriers}")
                continue
            if versions != list(range(1, stream.versions + 1)) or row.schema_version != stream.versions:
                self.wrong.append(f"{when}: {stream.name} has versions {versions}, not 1 to {stream.versions}")
            for number, model in enumerate(stream.shards):
                for text in self._differences(stream, number, model):
                    self.wrong.append(f"{when}: {stream.name} ({stream.cleanup}) shard {number}: {text}")

    def _differences(self, stream: _Stream, number: int, model: _Shard) -> Iterator[str]:
        row = self._log.ledger.load_shard(stream.id, number)
        if row.next != model.next:
            yield f"ends at {row.next}, {model.next} were acknowledged"
            return
        if row.start < model.start:
            yield f"starts at {row.start}, was trimmed to {model.start}"
        if row.start > model.start:
            yield from self._too_early(stream, model, row.start)
            model.start = row.start
        found = dict(self._read(stream, number, row.start))
        expected = {offset: record for offset, record in model.records.items() if offset >= row.start}
        for offset, record in found.items():
            if expected.get(offset) != record:
                yield f"offset {offset} is {record}, {expected.get(offset)} was written"
        for offset in expected.keys() - found.keys():
            if not self._may_be_gone(stream, model, offset):
                yield f"offset {offset}, {expected[offset]}, is missing"
        for offset in model.erased & found.keys():
            # An erasure that was cut short may have done a part of its work.
            model.erased.discard(offset)

    def _too_early(self, stream: _Stream, model: _Shard, start: int) -> Iterator[str]:
        """Retention took records: they must have been old enough."""
        if "delete" not in stream.cleanup:
            yield f"starts at {start} though nothing was trimmed"
        oldest_us = self._clock.now_us() - stream.retention_us
        young = [offset for offset, record in model.records.items() if offset < start and record[2] >= oldest_us]
        if any(offset >= model.start for offset in young):
            yield f"offsets {young[:3]} are missing though they were young"

    def _may_be_gone(self, stream: _Stream, model: _Shard, offset: int) -> bool:
        """Compaction, or an erasure that was cut short, may have taken this record."""
        if offset in model.erased:
            return True
        if "compact" not in stream.cleanup:
            return False
        key, value, time_us = model.records[offset]
        has_newer = any(other > offset and record[0] == key for other, record in model.records.items())
        is_old_tombstone = value is None and time_us < self._clock.now_us() - _TOMBSTONE_US
        return has_newer or is_old_tombstone

    def _read(self, stream: _Stream, number: int, offset: int) -> Iterator[tuple[int, Record]]:
        row = self._log.reader.require_stream(stream.id)
        while batches := self._log.reader.read(row, number, offset, 16 << 10):
            for batch in batches:
                assert batch.base <= offset < batch.end, f"batch {batch.base} to {batch.end} at {offset}"
                for place, record in _records(batch):
                    if place >= offset:
                        yield place, record
                offset = batch.end

    def _finish(self) -> None:
        self.end()
        self._log = self._open(0)
        self._settle()
        self._compare("at the end")
        self._log.upkeep.run_until_idle()
        self._compare("after upkeep")
        self._collect()
        self._compare("after the collection")
        for stream in self._streams.values():
            for number, model in enumerate(stream.shards):
                self._compacted(stream, number, model)
        self.wrong += books(self._log)
        self.wrong += known(self._log)
        self._check_files()
        self._check_rebuild()

    def _collect(self) -> None:
        """Time passes and upkeep does all it can; snapshots are taken by a thread of their own."""
        # Tombstones go an hour after compaction has come past them. The block that was open at first is freed in a
        # round after that in which the others are.
        for wait in (_DAY + 60, 4_000.0, 700.0, 700.0, 60.0, 60.0):
            self._clock.advance(wait)
            self._log.upkeep.run_until_idle()
            self._log._maintenance.close()

    def _compacted(self, stream: _Stream, number: int, model: _Shard) -> None:
        if "compact" not in stream.cleanup:
            return
        found = dict(self._read(stream, number, model.start))
        newest = {record[0]: offset for offset, record in sorted(model.records.items())}
        left = {
            offset: model.records[offset]
            for key, offset in newest.items()
            if offset >= model.start and model.records[offset][1] is not None and offset not in model.erased
        }
        if {offset: record for offset, record in found.items() if offset not in model.erased} != left:
            extra = sorted(found.keys() - left.keys())[:3]
            self.wrong.append(f"{stream.name} shard {number} was not compacted to the end: {extra} are still there")

    def _check_files(self) -> None:
        rows = {row.id: row for row in self._log.ledger.list_blocks()}
        files = {int(path.stem): path for path in (self._folder / "blocks").iterdir()}
        if files.keys() != rows.keys():
            self.wrong.append(f"files {sorted(files)} and rows {sorted(rows)} of blocks differ")
        needed_from = self._log._folder.snapshots.needed_from()
        for row in rows.values():
            if row.dead_us and row.id < needed_from:
                self.wrong.append(f"block {row.id} is dead and was not freed")
            if row.state == "sealed" and row.live_bytes and 2 * row.live_bytes < row.bytes:
                self.wrong.append(f"block {row.id} is mostly dead and was not rewritten")
        deleted = [row.name for row in self._log.ledger.list_streams() if row.deleted_us]
        dead = [row for row in rows.values() if row.dead_us]
        if deleted and not dead:
            self.wrong.append(f"deleted streams {deleted} were not forgotten")

    def _check_rebuild(self) -> None:
        before = _dump(self._folder / "ledger.db")
        clone = self._folder.with_name(self._folder.name + "-clone")
        shutil.copytree(self._folder, clone)
        try:
            for path in clone.glob("ledger.db*"):
                path.unlink()
            Log(clone, OPTIONS, clock=self._clock).close()
            after = _dump(clone / "ledger.db")
        finally:
            shutil.rmtree(clone)
        for table, rows in before.items():
            if after[table] != rows:
                self.wrong.append(f"a rebuilt ledger differs in {table}: {_first_difference(rows, after[table])}")


def _batch(stream: int, shard: int, sequence: int, records: Sequence[Record], generation: int) -> Batch:
    times = [record[2] for record in records]
    built = layouts.build([record[1] for record in records], [record[0] for record in records], None, times)
    encoded = payload.encode(built, "lz4")
    header = BatchHeader(
        stream,
        shard,
        len(records),
        encoded.encoding,
        encoded.layout,
        0,
        encoded.raw_len,
        len(encoded.payload),
        crc32c(encoded.payload),
        7,
        0,
        sequence,
        generation,
        min(times),
        max(times),
    )
    # Some have statistics, as if they were large.
    known = Contents().with_statistics(header, built) if len(records) > _DESCRIBED else header
    return Batch(known, encoded.payload)


def _records(batch: FetchedBatch) -> Iterator[tuple[int, Record]]:
    records = records_of([batch])
    count = len(records.offsets)
    keys = records.columns["key"].to_pylist() if "key" in records.columns else [None] * count
    values = records.columns["value"].to_pylist() if count else []
    for offset, key, value, time in zip(records.offsets.tolist(), keys, values, records.times.tolist(), strict=True):
        yield offset, (key, value, time)


def known(log: Log) -> Iterator[str]:
    """Whether what is known of entries without reading them is true of their records."""
    for stream in log.ledger.list_streams():
        for shard in range(0 if stream.deleted_us else stream.shards):
            for entry in log.ledger.entries_from(stream.id, shard, 0, 1 << 20):
                if entry.statistics:
                    yield from _known_of(log, stream, entry)


def _known_of(log: Log, stream: StreamRow, entry: Entry) -> Iterator[str]:
    where = f"{stream.name} shard {entry.shard} from {entry.base}"
    whole = log.reader.statistics_of(entry)
    if statistics.summary(whole) != entry.statistics:
        yield f"{where}: the ledger has other statistics than the block"
        return
    found = statistics.parse(whole, None)
    (batch,) = log.reader.load(stream, [entry])
    for offset, (key, _, time) in _records(batch):
        may_contain = found["_key"].may_contain if key is not None else None
        if may_contain is not None and not may_contain(key):
            yield f"{where}: the filter does not have the key of record {offset}"
        if not found["_timestamp"].low <= time <= found["_timestamp"].high:
            yield f"{where}: the time of record {offset} is outside of what is known"


def books(log: Log) -> Iterator[str]:
    """Whether the sums in the ledger are the sums of its entries."""
    ledger = log.ledger
    live: dict[int, int] = {}
    for stream in ledger.list_streams():
        for shard in range(stream.shards):
            row = ledger.load_shard(stream.id, shard)
            entries = ledger.entries_from(stream.id, shard, 0, 1 << 20)
            for entry in entries:
                if entry.length:
                    live[entry.block] = live.get(entry.block, 0) + entry.length
            if row.bytes != sum(entry.length for entry in entries):
                yield f"{stream.name} shard {shard} says {row.bytes} bytes"
            if any(before.end != after.base for before, after in pairwise(entries)):
                yield f"{stream.name} shard {shard} has a gap or an overlap"
            if entries and (entries[0].base > row.start or entries[-1].end != row.next):
                yield f"{stream.name} shard {shard}: entries do not reach from {row.start} to {row.next}"
            times = [entry.time_high for entry in entries]
            if times != sorted(times):
                yield f"{stream.name} shard {shard}: times fall"
    for block in ledger.list_blocks():
        if block.live_bytes != live.get(block.id, 0):
            yield f"block {block.id} says {block.live_bytes} bytes are alive, {live.get(block.id, 0)} are"


def _dump(path: Path) -> dict[str, list[Any]]:
    tables = (
        "streams", "shards", "blocks", "entries", "producers", "dead", "restored", "schemas", "stream_schemas",
        "generations",
    )  # fmt: skip
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found = {table: sorted(db.execute(f"SELECT * FROM {table}")) for table in tables}
    finally:
        db.close()
    # The clone has one life more: its first block differs by that.
    found["blocks"] = [row[:2] + row[4:] for row in found["blocks"] if row[2] == "sealed"]
    return found


def _first_difference(before: list[Any], after: list[Any]) -> str:
    for a, b in zip(before, after, strict=False):
        if a != b:
            return f"{a} became {b}"
    return f"{len(before)} rows became {len(after)}"
