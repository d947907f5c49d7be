"""Make the golden folder of the format that the installed Mainstem writes: tests/testdata/format-<n>.tar.xz and .json.

    python -m tools.golden

Run it from the root of the repository, with the code of the format in question first in PYTHONPATH. A child process
fills a folder and gets SIGKILL; the folder is packed as it was left, then a copy is opened and described. It has
everything that the format can have: keys, headers, times, tombstones, all ways of compression, large and tiny batches,
streams that were trimmed, altered, deleted and made again, repeated batches, sealed blocks and one that is not,
snapshots, and a ledger whose write-ahead log holds flushes that its file does not; since format 2 also rows that were
merged, compacted, emptied and dropped; since format 3 streams with schemas and streams that got more shards; since
format 4 groups, and transactions that were committed, aborted and left open; since format 5 rows that say who may do
what; since format 6 deliveries of jobs, cold blocks, of records and of rows, and groups that hold retention.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.core import layouts, payload
from mainstem.core.batch import Batch, BatchHeader, FetchedBatch
from mainstem.core.checksum import crc32c
from mainstem.core.cursor import Cursor
from mainstem.log import folder as data_folder
from mainstem.log.batcher import Submission
from mainstem.log.flush import AlterStream, Appended, ChangeAccess, CreateStream, DeleteStream, Rejected, TrimShard
from mainstem.log.log import Log, Waiter
from mainstem.testing.clock import START_US, SimulatedClock
from tests.formats import golden

# Three hundred years: nothing of the folder ever becomes too old.
RETENTION_US = 10**16
PRODUCERS = (7, 1 << 40, (1 << 62) + 5)


class Filler:
    """Fills a log with varied records, the same every time."""

    def __init__(self, path: Path) -> None:
        self._random = random.Random("golden")  # noqa: S311  # the same records every time
        self._path = path
        self._clock = SimulatedClock(START_US)
        self._sequences: dict[tuple[int, int, int], int] = {}
        self._streams: dict[str, int] = {}
        # (stream, shard, producer) -> (sequence, base, count) of its last batches
        self.recent: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        # (id, batches, the offsets that it got) of transactions; none if it was not committed
        self.transactions: list[tuple[int, int, Any]] = []
        # (number, exact, total, magnitude) of deliveries
        self.deliveries: list[tuple[int, str, float, float]] = []

    def fill(self) -> None:
        """Two lives of a writer; the second does not end, it is left in the middle."""
        log = self._log = Log(self._path, golden.OPTIONS, clock=self._clock)
        self._create("plain", 1)
        self._create("keyed", 4)
        self._create("trimmed", 1)
        self._create("altered", 2, hash_="murmur2")
        self._create("gone", 2)
        self._create("empty", 1)
        for turn in range(40):
            self._turn(turn)
        log.execute(DeleteStream(self._streams["gone"], self._clock.now_us()))
        self._create("gone", 1)
        log.execute(AlterStream(self._streams["altered"], RETENTION_US + 1))
        self._trim("trimmed", 0, 7)
        log.close()
        self._log = Log(self._path, golden.OPTIONS, clock=self._clock)
        for turn in range(40, 64):
            self._turn(turn)
        self._trim("trimmed", 0, 31)
        self._repeat()
        if data_folder.FORMAT >= 2:
            self._store_anew()
        if data_folder.FORMAT >= 3:
            self._give_shape()
            self._share()
            self._bind()
        if data_folder.FORMAT >= 5:
            self._guard()
        if data_folder.FORMAT >= 6:
            self._deliver()
            self._cool()
        for turn in range(64, 70):
            self._turn(turn)

    def described(self) -> dict[str, Any]:
        """What the log should recognise, and when it was written."""
        recent = [[*key, *numbers] for key, sent in self.recent.items() for numbers in sent]
        found = {"format": data_folder.FORMAT, "written_us": self._clock.now_us(), "recent": recent}
        found |= {"transactions": self.transactions} if self.transactions else {}
        return found | ({"deliveries": self.deliveries} if self.deliveries else {})

    def _guard(self) -> None:
        """Rows that say who may do what: some stay, one changes, one goes."""
        from mainstem.access.store import TokenRow, encode_row
        from mainstem.transport.guarding import Quota, Rule

        now_us = self._clock.now_us()
        rule = Rule("allow", "root", "all", "*")
        quota = ("quota", "root write_bytes", encode_row(Quota("root", "write_bytes", 1_000)))
        self._log.execute(ChangeAccess((("rule", rule.text, encode_row(rule)), quota)))
        token = ("token", "0" * 16, encode_row(TokenRow(bytes(range(32)), "root", (), now_us)))
        dated = ("rule", rule.text, encode_row(Rule("allow", "root", "all", "*", now_us)))
        self._log.execute(ChangeAccess((token, (*quota[:2], b""), dated)))

    def _cool(self) -> None:
        """Cold blocks of records and of rows; a part that was written and never swapped in."""
        from mainstem.log.cold_maker import Cooler

        log = self._log
        maker = Cooler(log.ledger, self._log._folder.blocks, log.schema, self._clock)
        for name in ("plain", "rows"):
            row = log.ledger.load_stream(self._streams[name])
            assert row is not None
            plan = log.cooling.plan(row, self._clock.now_us() + 1, 1)
            for task in plan.tasks:
                for file in maker.make(plan, task):
                    log.cooling.commit(file)
        row = log.ledger.load_stream(self._streams["keyed"])
        assert row is not None
        plan = log.cooling.plan(row, self._clock.now_us() + 1, 1)
        assert list(maker.make(plan, plan.tasks[0]))

    def _create(self, name: str, shards: int, hash_: str = "crc32") -> None:
        identity = f"{self._random.getrandbits(128):032x}"
        command = CreateStream(identity, name, shards, hash_, RETENTION_US, self._clock.now_us())
        self._streams[name] = self._log.execute(command).stream

    def _trim(self, name: str, shard: int, before: int) -> None:
        self._log.execute(TrimShard(self._streams[name], shard, before))

    def _turn(self, turn: int) -> None:
        """One flush."""
        self._clock.advance(1.5)
        draw = self._random
        batches = [self._batch("plain", 0, turn % 8, [b"line %d" % turn], None)]
        batches += [self._batch("trimmed", 0, 4, [b"%d" % turn] * draw.randint(1, 3), None)]
        for shard in draw.sample(range(4), 2):
            compression = draw.choice([None, "lz4", "zstd"])
            batches.append(
                self._batch("keyed", shard, draw.randrange(8), self._values(draw.randint(1, 60)), compression)
            )
        if turn % 5 == 0:
            batches.append(self._batch("altered", turn % 2, 7, self._values(30), "zstd"))
        if turn % 6 == 0:
            batches.append(self._batch("gone", 0, 1, self._values(5), None))
        if turn in (20, 50):
            # Above 64 KiB: compressed by buffer.
            batches.append(self._batch("plain", 0, 7, self._values(1500), "lz4" if turn == 20 else "zstd"))
        self._append(batches)

    def _values(self, count: int) -> list[bytes | None]:
        draw = self._random
        # A tenth are tombstones.
        return [
            None if draw.random() < 0.1 else b"value %d of " % draw.randrange(1000) * draw.randint(1, 8)
            for _ in range(count)
        ]

    def _batch(
        self, name: str, shard: int, layout: int, values: Sequence[bytes | None], compression: str | None
    ) -> Batch:
        """A batch with the columns of `layout`."""
        draw, count, now = self._random, len(values), self._clock.now_us()
        keys = [b"key %d" % draw.randrange(20) for _ in values] if layout & layouts.HAS_KEY else None
        headers = (
            [{"trace": b"%d" % i, "empty": b""} if i % 2 == 0 else None for i in range(count)]
            if layout & layouts.HAS_HEADERS
            else None
        )
        times = [now - draw.randrange(1_000_000) for _ in values] if layout & layouts.HAS_TIMESTAMP else None
        encoded = payload.encode(layouts.build(values, keys, headers, times), compression)
        producer = draw.choice(PRODUCERS)
        key = (self._streams[name], shard, producer)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        low, high = (min(times), max(times)) if times else (now, now)
        header = BatchHeader(
            stream=key[0], shard=shard, count=count, encoding=encoded.encoding, layout=encoded.layout, schema_id=0,
            raw_len=encoded.raw_len, stored_len=len(encoded.payload), payload_crc=crc32c(encoded.payload),
            producer=producer, producer_epoch=0, sequence=sequence, generation=0, time_low=low, time_high=high,
        )  # fmt: skip
        return Batch(header, encoded.payload)

    def _append(self, batches: Sequence[Batch]) -> list[Appended]:
        waiter = Waiter()
        self._log.batcher.submit(Submission(batches, waiter.set))
        outcomes = []
        for batch, outcome in zip(batches, waiter.wait(self._log.batcher), strict=True):
            assert isinstance(outcome, Appended), outcome
            outcomes.append(outcome)
            header = batch.header
            if not outcome.duplicate:
                sent = self.recent.setdefault((header.stream, header.shard, header.producer), [])
                sent.append((header.sequence, outcome.base, header.count))
                del sent[:-8]
        self._last = batches
        return outcomes

    def _repeat(self) -> None:
        """The last flush once more: recognised, and stored in the block all the same."""
        assert all(outcome.duplicate for outcome in self._append(self._last))

    # Since format 2.

    def _store_anew(self) -> None:
        """Rows that were merged, compacted, emptied and dropped, and a stream with every setting."""
        from mainstem.log.flush import DropEntries, HurryBlocks

        log, now = self._log, self._clock.now_us()
        identity = f"{self._random.getrandbits(128):032x}"
        settings = {"retention_bytes": 1 << 40, "cleanup": "compact,delete", "tombstone_us": RETENTION_US}
        self._streams["settings"] = log.execute(
            CreateStream(identity, "settings", 1, "crc32", RETENTION_US, now, **settings)  # type: ignore[arg-type]
        ).stream
        keyed, plain, trimmed = self._streams["keyed"], self._streams["plain"], self._streams["trimmed"]
        self._replace(keyed, 0, 0, 6, lambda number: number % 3 != 1)
        self._replace(keyed, 1, 3, 4, None)
        self._replace(keyed, 2, 0, 8, lambda number: True)
        self._replace(plain, 0, 1, 2, lambda number: number == 0)
        log.execute(DropEntries(trimmed, 0, 5, now + 10**9))
        log.execute(HurryBlocks(keyed, now + 10**10))

    def _replace(self, stream: int, shard: int, skip: int, rows: int, keeps: Callable[[int], bool] | None) -> None:
        """Store `rows` rows of a shard anew as one, after the first `skip`: what `keeps` says by the number of a record
        in its batch, at least the first of each; without it nothing is left."""
        from mainstem.log.flush import Done, ReplaceEntries, Replacement
        from mainstem.log.ledger.rules.replacement import fingerprint

        log = self._log
        row = log.ledger.load_stream(stream)
        assert row is not None
        entries = log.ledger.entries_from(stream, shard, 0, skip + rows)[skip:]
        base, end = entries[0].base, entries[-1].end
        batches: list[FetchedBatch] = []
        while (offset := batches[-1].end if batches else base) < end:
            batches += [batch for batch in log.reader.read(row, shard, offset) if batch.end <= end]
        stored = tuple(_thinned(batch, keeps) for batch in batches) if keeps else ()
        command = ReplaceEntries(
            stream=stream,
            shard=shard,
            base=base,
            end=end,
            rows=len(entries),
            fingerprint=fingerprint(entries),
            entries=((end - base, len(stored)),),
            merged=end,
            compacted=end,
        )
        waiter = Waiter()
        log.batcher.submit(Submission((Replacement(command, stored),), waiter.set))
        assert waiter.wait(log.batcher) == [Done(stream, len(entries))]
        log.hot.forget((stream, shard), end)

    # Since format 3.

    def _give_shape(self) -> None:
        """A stream whose schema has two versions and rows of both, one with a schema and none of its rows, and one that
        got more shards twice."""
        from mainstem.core.schema import Schema, described
        from mainstem.log.flush import SetSchema

        log, now = self._log, self._clock.now_us()
        first = Schema(pa.schema([("id", pa.int64()), ("city", pa.string()), ("at", pa.timestamp("us", "UTC"))]))
        added = described(pa.field("amount", pa.decimal128(10, 2)), default="0.00", doc="in euros")
        second = Schema(first.arrow.append(added).append(pa.field("tags", pa.list_(pa.string()))))
        options = {"schema": first.serialized, "fingerprint": first.fingerprint, "key": ("id",), "index": ("city",)}
        for name in ("rows", "typed"):
            identity = f"{self._random.getrandbits(128):032x}"
            command = CreateStream(identity, name, 2, "crc32", RETENTION_US, now, **options)  # type: ignore[arg-type]
            self._streams[name] = log.execute(command).stream
        self._append_rows(0, first)
        log.execute(SetSchema(self._streams["rows"], second.serialized, second.fingerprint, 2, now, "full"))
        self._append_rows(1, second)
        self._append_rows(2, first)
        self._create("wider", 1)
        for generation, shards in enumerate((3, 8, None)):
            for shard in range(shards or 8):
                if shard < log.ledger.load_stream(self._streams["wider"]).shards:  # type: ignore[union-attr]
                    batch = self._batch("wider", shard, 1, self._values(4), None)
                    header = msgspec.structs.replace(batch.header, generation=generation)
                    self._append_forgotten([Batch(header, batch.payload)])
            if shards:
                log.execute(AlterStream(self._streams["wider"], shards=shards))

    def _share(self) -> None:
        """A group with members, one whose members left, one that was reset, and one that was deleted; since format 6
        two of them hold retention."""
        from mainstem.log.flush import AssignShards, CommitCursors, DeleteGroup, ResetGroup

        now, plain, keyed = self._clock.now_us(), self._streams["plain"], self._streams["keyed"]
        units = [(plain, 0), (keyed, 0), (keyed, 3)]
        for name in ("billing", "left", "reset", "gone"):
            self._outcome(AssignShards(name, 1, tuple((*unit, 5 + turn) for turn, unit in enumerate(units)), now))
            self._outcome(CommitCursors(name, 5, ((plain, 0, 12),), now + 1))
            if name != "billing":
                self._outcome(AssignShards(name, 2, tuple((*unit, 0) for unit in units), now + 2))
        self._outcome(AssignShards("billing", 2, ((keyed, 0, 1 << 62),), now + 3, ((keyed, 0, 9),)))
        self._outcome(ResetGroup("reset", ((plain, 0, 3), (keyed, 2, 1)), now + 4))
        if data_folder.FORMAT >= 6:
            from mainstem.log.flush import HoldGroup

            for name in ("billing", "reset", "gone"):
                self._outcome(HoldGroup(name, 3 * 86_400_000_000))
        self._outcome(DeleteGroup("gone"))

    def _bind(self) -> None:
        """Transactions: two that were committed, one of them under a name, one that was aborted, one that is open."""
        from mainstem.log.flush import GroupCursors, TransactionCommitted
        from mainstem.log.transactions import NO_WRITER

        log, plain = self._log, self._streams["plain"]
        for number, name in ((11, ""), (22, "loader"), (33, ""), (44, "")):
            writer = log.open_writer(name) if name else NO_WRITER
            for index in range(2):
                batches = [self._staged_batch("keyed", shard) for shard in (3, 1)] + [self._staged_batch("plain", 0)]
                waiter = Waiter()
                log.stage(number, index, batches, waiter.set, writer=writer)
                waiter.wait(log.batcher)
            self.transactions.append((number, 6, None))
            if number == 33:
                log.abort_transaction(number)
            if number < 33:
                waiter = Waiter()
                moved = [GroupCursors("billing", 5, ((plain, 0, 12 + number),))]
                log.commit_transaction(number, 6, moved, waiter.set, writer=writer)
                (committed,) = waiter.wait(log.batcher)
                assert isinstance(committed, TransactionCommitted), committed
                self.transactions[-1] = (number, 6, committed.offsets)

    def _deliver(self) -> None:
        """Deliveries of a job, of two parts each."""
        from mainstem.core.delivery import Delivery, Fingerprint

        for number in range(3):
            parts = [(50 + 2 * number, 1), (51 + 2 * number, 1)]
            for part, _ in parts:
                waiter = Waiter()
                self._log.stage(part, 0, [self._staged_batch("plain", 0)], waiter.set)
                waiter.wait(self._log.batcher)
            print_ = Fingerprint(6, bytes([number] * 16), 0.5 * number, 2.5)
            delivery = Delivery(self._streams["plain"], "nightly", number, print_)
            waiter = Waiter()
            self._log.commit_parts(60 + number, parts, waiter.set, delivery=delivery)
            waiter.wait(self._log.batcher)
            self.deliveries.append((number, print_.exact.hex(), print_.total, print_.magnitude))

    def _staged_batch(self, name: str, shard: int) -> Batch:
        """A batch that takes no number of its producer."""
        batch = self._batch(name, shard, 1, self._values(3), None)
        header = batch.header
        self._sequences[header.stream, shard, header.producer] -= 1
        return batch

    def _outcome(self, command: Any) -> None:
        waiter = Waiter()
        self._log.batcher.submit(Submission((command,), waiter.set))
        (outcome,) = waiter.wait(self._log.batcher)
        assert not isinstance(outcome, Rejected), outcome

    def _append_rows(self, turn: int, schema: Any) -> None:
        """A batch of rows for each shard: plain, with headers, compressed, with statistics."""
        from mainstem.core.statistics import collect

        draw, now = self._random, self._clock.now_us()
        for shard in range(2):
            count = 20
            columns: dict[str, Any] = {
                "id": [draw.randrange(1000) for _ in range(count)],
                "city": [draw.choice(["Kyiv", "Lagos", None, "São Paulo"]) for _ in range(count)],
                "at": [now + index for index in range(count)],
                "amount": [None if draw.random() < 0.2 else f"{draw.randrange(99)}.25" for _ in range(count)],
                "tags": [["a"] * draw.randrange(3) for _ in range(count)],
            }
            fields = [field.remove_metadata() for field in schema.arrow]
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in fields]
            if turn:
                fields.append(layouts.ROW_HEADERS)
                arrays.append(pa.array([[("turn", b"%d" % turn)]] * count, layouts.HEADERS_TYPE))
            batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            encoded = payload.encode(batch, "zstd" if turn == 2 else None, schema)
            header = BatchHeader(
                stream=self._streams["rows"], shard=shard, count=count, encoding=encoded.encoding,
                layout=encoded.layout, schema_id=self._schema_id(schema), raw_len=encoded.raw_len,
                stored_len=len(encoded.payload), payload_crc=crc32c(encoded.payload), producer=PRODUCERS[0],
                producer_epoch=0, sequence=turn, generation=0, time_low=now, time_high=now,
                statistics=collect(batch, index=["id", "city"], times=(now, now)) if turn == 2 else b"",
            )  # fmt: skip
            self._append_forgotten([Batch(header, encoded.payload)])

    def _schema_id(self, schema: Any) -> int:
        found = self._log._ledger.schema_with(schema.fingerprint)
        assert found is not None
        return found

    def _append_forgotten(self, batches: Sequence[Batch]) -> None:
        """Append what is not sent again by a test: it would be of a generation that is over, or no row."""
        kept = {key: list(sent) for key, sent in self.recent.items()}
        self._append(batches)
        self.recent = kept


def _thinned(batch: FetchedBatch, keeps: Callable[[int], bool]) -> FetchedBatch:
    """The batch without what is not kept; it covers the same offsets."""
    old = batch.header
    kept = [number for number in range(old.count) if keeps(number)]
    if len(kept) == old.count:
        return batch
    table = payload.decode(old.encoding, old.layout, old.count, old.raw_len, batch.payload).take(kept)
    table = table.append_column("offset", pa.array(kept, pa.uint32()))
    encoded = payload.encode(table, "lz4")
    header = msgspec.structs.replace(
        old,
        count=len(kept),
        encoding=encoded.encoding,
        layout=encoded.layout,
        raw_len=encoded.raw_len,
        stored_len=len(encoded.payload),
        payload_crc=crc32c(encoded.payload),
        span=old.count,
    )
    return FetchedBatch(batch.base, header, encoded.payload)


def main() -> int:
    if sys.argv[1:2] == ["--fill"]:
        filler = Filler(Path(sys.argv[2]))
        filler.fill()
        print(json.dumps(filler.described()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    with tempfile.TemporaryDirectory(prefix="mainstem-golden-") as name:
        left, copy = Path(name) / "left", Path(name) / "copy"
        child = subprocess.run(
            [sys.executable, "-m", "tools.golden", "--fill", str(left)], stdout=subprocess.PIPE, check=False
        )
        assert child.returncode == -signal.SIGKILL, child.returncode
        found = json.loads(child.stdout)
        shutil.copytree(left, copy)
        _describe(copy, found)
        _pack(left, found)
    return 0


def _describe(folder: Path, found: dict[str, Any]) -> None:
    log = Log(folder, golden.OPTIONS, clock=SimulatedClock(found["written_us"]))
    found["log"] = log.uuid
    found["streams"] = golden.content(log)
    if data_folder.FORMAT >= 3:
        found["groups"] = golden.groups(log)
    if data_folder.FORMAT >= 5:
        found["access"] = golden.access(log)
    for stream in found["streams"]:
        ends = tuple(shard["end"] for shard in stream["shards"])
        stream["cursor"] = str(Cursor(stream["uuid"], log.epoch, ends))
    log.close()


def _pack(folder: Path, found: dict[str, Any]) -> None:
    target = golden.TESTDATA / f"format-{found['format']}.tar.xz"
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "w:xz") as archive:
        for path in sorted(folder.rglob("*")):
            # Shared memory of SQLite and who held the lock are of the machine, not of the folder.
            if path.is_file() and path.name not in ("lock", "ledger.db-shm"):
                archive.add(path, path.relative_to(folder), filter=_plain)
        for name in ("blocks", "snapshots"):
            assert (folder / name).is_dir()
    target.with_name(f"format-{found['format']}.json").write_text(_by_line(found))
    print(f"{target}: {target.stat().st_size} bytes, {len(list((folder / 'blocks').iterdir()))} blocks")


def _by_line(found: dict[str, Any]) -> str:
    """JSON with a line for every field, and for every item of a list: a change of it can be read."""
    fields = []
    for name, value in found.items():
        text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if isinstance(value, list) else json.dumps(value)
        fields.append(f' "{name}": {text}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info


if __name__ == "__main__":
    sys.exit(main())
