"""The read path of Scribe for readers who do not want everything: filters, formats, and work that is done once."""

import contextlib
import json
import math
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.consume import selection
from mainstem.consume.consumer import Consumer
from mainstem.consume.feed import Feed
from mainstem.consume.record import RecordBatch
from mainstem.consume.selection import Selection
from mainstem.core import layouts, payload
from mainstem.core.batch import FetchedBatch
from mainstem.hub.hub import Hub
from mainstem.log.recent_reads import RecentBytes
from mainstem.log.shared_reads import SharedReads
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import SlowLink, changed_servers, embedded

# S2: what travels beside the payload.

MESSAGES = 10_000
TENANTS = 10


def write_with_headers(hub: Hub) -> list[tuple[str, bytes]]:
    """Messages of 1 KB with a tenant each; the tenant and an odd header of every message."""
    hub.streams.create("messages")
    body = random.Random(2).randbytes(1_000)
    headers = [{"tenant": b"t%d" % (n % TENANTS), "odd": bytes((n % 256, 0, 255))} for n in range(MESSAGES)]
    with hub.producer() as producer:
        for first in range(0, MESSAGES, 1_000):
            batch = headers[first : first + 1_000]
            columns = {"value": pa.array([body] * 1_000), "headers": pa.array(batch, layouts.HEADERS_TYPE)}
            producer.send_batch("messages", pa.table(columns))
    return [(header["tenant"].decode(), header["odd"]) for header in headers]


@contextmanager
def counted_records(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many records were decoded in batches that have their values, one number for each batch."""
    counts: list[int] = []
    before = RecordBatch._narrow

    def counting(batch: RecordBatch) -> pa.RecordBatch:
        if batch._columns is None:
            counts.append(batch._fetched.header.count)
        return before(batch)

    with patch.context() as inner:
        inner.setattr(RecordBatch, "_narrow", counting)
        yield counts


@pytest.mark.mechanism("S2")
def test_s2_filter(tmp_path, monkeypatch):
    """Who wants one tenant of ten gets and decodes a tenth; who filters for himself decodes everything. Where no header
    matches, no value is decoded anywhere."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        write_with_headers(hub)
        with counted_records(monkeypatch) as decoded:
            where = "headers['tenant'] = 't3'"
            with hub.consumer("messages", start="earliest", follow=False, where=where) as consumer:
                found = [record.offset for record in consumer]
        assert found == list(range(3, MESSAGES, TENANTS))
        assert sum(decoded) == MESSAGES // TENANTS
        with counted_records(monkeypatch) as decoded, hub.consumer("messages", start="earliest", follow=False) as all_:
            assert [record.offset for record in all_ if (record.headers or {})["tenant"] == b"t3"] == found
        assert sum(decoded) == MESSAGES
    with mainstem.open(tmp_path / "data") as hub:
        columns: set[str] = set()
        decode = payload.decode_columns

        def watched(*args: Any) -> pa.RecordBatch:
            columns.update(args[-1])
            return decode(*args)

        monkeypatch.setattr(payload, "decode_columns", watched)
        assert len(hub.find("messages", "headers['tenant'] = 'nobody'")) == 0
        assert columns == {"headers"}


@pytest.mark.mechanism("S2")
def test_s2_every_hop(tmp_path):
    """Through a server, its disk, a filter and another stored form, headers stay byte for byte what they were."""
    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        sent = write_with_headers(hub)
        for where in ("_offset >= 0", "headers['tenant'] <> 'x' AND _offset % 1000 < 999"):
            with hub.consumer("messages", start="earliest", follow=False, where=where) as consumer:
                for record in consumer:
                    assert record.headers is not None
                    assert (record.headers["tenant"].decode(), record.headers["odd"]) == sent[record.offset]
        # They go along only where they are asked for: the control.
        with hub.consumer("messages", start="earliest", follow=False, columns=["value"]) as consumer:
            assert next(consumer).headers is None


# S7: a filter in SQL.

ROWS = 100_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.float64()),
        ("country", pa.string()),
        ("level", pa.int32()),
        ("paid", pa.bool_()),
    ]
)
COUNTRIES = ("DE", "FR", "US", "BR", "Ä", None)


def made_rows() -> dict[str, list[Any]]:
    chance = random.Random(7)
    return {
        "id": list(range(ROWS)),
        "amount": [None if n % 17 == 0 else round(chance.uniform(-100, 1000), 2) for n in range(ROWS)],
        "country": [chance.choice(COUNTRIES) for _ in range(ROWS)],
        "level": [None if n % 11 == 0 else chance.randrange(50) for n in range(ROWS)],
        "paid": [chance.choice((True, False, None)) for _ in range(ROWS)],
    }


def write_rows(hub: Hub) -> dict[str, list[Any]]:
    columns = made_rows()
    hub.streams.create("orders", schema=SCHEMA, shards=2)
    table = pa.table(columns, schema=SCHEMA)
    with hub.producer() as producer:
        for first in range(0, ROWS, 5_000):
            producer.send_batch("orders", table.slice(first, 5_000))
    return columns


class Predicates:
    """Random predicates that mean the same to SQLite."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def make(self, depth: int = 3) -> str:
        chance = self._chance
        if depth == 0 or chance.random() < 0.25:
            return self._simple()
        if chance.random() < 0.2:
            return f"NOT ({self.make(depth - 1)})"
        return f"({self.make(depth - 1)} {chance.choice(('AND', 'OR'))} {self.make(depth - 1)})"

    def _simple(self) -> str:
        chance = self._chance
        number = chance.randrange(-50, 1_000)
        sign = chance.choice(("=", "<>", "<", "<=", ">", ">="))
        column = chance.choice(("id", "amount", "level"))
        return chance.choice(
            (
                f"{column} {sign} {number}",
                f"{column} BETWEEN {number} AND {number + chance.randrange(300)}",
                f"{column} + level {sign} {number}",
                f"amount * 2 - {number} {sign} level",
                f"{chance.choice(('amount', 'country', 'level', 'paid'))} IS {chance.choice(('', 'NOT '))}NULL",
                f"country {sign} '{chance.choice(('DE', 'FR', 'Q', 'Ä'))}'",
                f"country {chance.choice(('', 'NOT '))}IN ('DE', 'BR')",
                f"level IN ({number % 50}, {number % 7})",
                f"country LIKE '{chance.choice(('D%', '%R', '_S', 'd%'))}'",
                "paid",
                f"coalesce(level, {number}) {sign} 25",
                f"length(country) = {chance.randrange(3)}",
            )
        )


@pytest.mark.mechanism("S7")
@pytest.mark.slow("thirty predicates over a hundred thousand rows, and SQLite's answer to each")
def test_s7_predicates(tmp_path):
    """What is delivered is what SQLite finds among the same rows; who does without the predicate gets all of them."""
    made = Predicates(7)
    with embedded(tmp_path) as hub, sqlite3.connect(":memory:") as database:
        columns = write_rows(hub)
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute("CREATE TABLE orders(id, amount REAL, country, level, paid)")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", zip(*columns.values(), strict=True))
        sizes = []
        for _ in range(30):
            where = made.make()
            expected = {row[0] for row in database.execute(f"SELECT id FROM orders WHERE {where}")}
            found = hub.find("orders", where, columns=["id"]).to_arrow().column("id").to_pylist()
            assert len(found) == len(set(found))
            assert set(found) == expected, where
            sizes.append(len(found))
        assert sum(0 < size < ROWS for size in sizes) > 20  # they say something
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            assert sum(batch.count for batch in consumer.batches()) == ROWS


@pytest.mark.mechanism("S7")
@pytest.mark.slow("a hundred thousand rows over the wire, twice")
def test_s7_bytes(tmp_path):
    """Of a predicate that keeps one row in fifty at most a tenth of the bytes comes over the wire; without it, all."""

    def bytes_of(**options: Any) -> tuple[int, int]:
        with SlowLink(server.address) as link, mainstem.connect(f"mainstem://{link.address}") as reader:
            with reader.consumer("orders", start="earliest", follow=False, **options) as consumer:
                count = sum(batch.count for batch in consumer.batches())
            return count, link.answers_bytes

    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        write_rows(hub)
        kept, filtered = bytes_of(where="id % 50 = 0")
        everything, whole = bytes_of()
    assert (kept, everything) == (ROWS // 50, ROWS)
    assert filtered <= whole / 10


# S8: the form that the reader wants.

VALUES = [
    {"id": 0, "text": "plain", "number": 1.5, "big": 2**62},
    {"id": 1, "text": 'Ünïcödé ✓\n"quoted"', "number": -0.25, "big": -(2**63)},
    {"id": 2, "text": None, "number": None, "big": None},
    {"id": 3, "text": "", "number": 1e300, "big": 0},
]
FORMS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("number", pa.float64()), ("big", pa.int64())])


@pytest.mark.mechanism("S8")
def test_s8_every_form_in_every_form(tmp_path):
    """Rows written one by one, as JSON and as columns, each read as dicts, as JSON and as columns: the same values. A
    stream without a schema has only bytes to give: the control."""
    with embedded(tmp_path) as hub:
        for name in ("dicts", "json", "columns"):
            if name == "json":
                hub.streams.create(name)
            else:
                hub.streams.create(name, schema=FORMS)
        with hub.producer() as producer:
            for value in VALUES:
                producer.send("dicts", value)
                producer.send("json", json.dumps(value).encode())
            producer.send_batch("columns", pa.Table.from_pylist(VALUES, schema=FORMS))
            producer.flush()
            with hub.consumer("json", start="earliest", follow=False) as consumer:
                assert all(isinstance(record.value, bytes) for record in consumer)
            hub.streams.set_schema("json", FORMS)
        for name in ("dicts", "json", "columns"):
            with hub.consumer(name, start="earliest", follow=False) as consumer:
                batches = list(consumer.batches())
            assert [value for batch in batches for value in batch.values()] == VALUES
            lines = b"".join(batch.to_ndjson() for batch in batches).splitlines()
            assert [json.loads(line) for line in lines] == VALUES
            assert pa.Table.from_batches([batch.to_arrow() for batch in batches]).to_pylist() == VALUES


@pytest.mark.mechanism("S8")
def test_s8_numbers_that_json_has_no_word_for(tmp_path):
    values = [math.nan, math.inf, -math.inf]
    with embedded(tmp_path) as hub:
        hub.streams.create("floats", schema=pa.schema([("x", pa.float64())]))
        with hub.producer() as producer:
            producer.send_batch("floats", pa.table({"x": values}))
        with hub.consumer("floats", start="earliest", follow=False) as consumer:
            (batch,) = consumer.batches()
    assert [str(row["x"]) for row in batch.to_dicts()] == ["nan", "inf", "-inf"]
    assert [str(x) for x in batch.to_arrow().column("x").to_pylist()] == ["nan", "inf", "-inf"]
    assert [row["x"] for row in map(json.loads, batch.to_ndjson().splitlines())] == ["NaN", "Infinity", "-Infinity"]


# S47: one place that reads, with several places to read from.


@pytest.mark.mechanism("S47")
def test_s47_the_next_place_is_asked(tmp_path, monkeypatch):
    """What was made for others, what is in memory, what was read a moment ago, the disk: whichever is missing, a reader
    gets the same rows, and counters say where from. Only the disk cannot be done without."""
    where = "id % 7 = 0"

    def rows_of(hub: Hub) -> pa.Table:
        return (
            hub.find("orders", where)
            .to_arrow(metadata=True)
            .sort_by([("_shard", "ascending"), ("_offset", "ascending")])
        )

    with embedded(tmp_path, hot_tail_bytes=64 << 20) as hub:
        write_rows(hub)
        log, sift = hub._port.log, Feed._sift  # type: ignore[attr-defined]
        looked_at: list[int] = []

        def count(self: Feed, selection: Selection, batch: FetchedBatch, passed: Any) -> None:
            looked_at.append(batch.base)
            sift(self, selection, batch, passed)

        monkeypatch.setattr(Feed, "_sift", count)
        expected = rows_of(hub)
        assert expected.num_rows == math.ceil(ROWS / 7)
        assert log.reader.disk_reads == 0  # memory had it
        with (
            hub.consumer("orders", start="earliest", where=where) as one,
            hub.consumer("orders", start="earliest", where=where) as other,
        ):
            for consumer in (one, other):
                while consumer.poll_batch(0.2) is not None:
                    pass
            assert one.opened == other.opened > 0
            with hub.consumer("orders", start="earliest", follow=False, where=where) as third:
                assert sum(batch.count for batch in third.batches()) == expected.num_rows
                assert third.opened == other.opened
        assert len(looked_at) == other.opened  # what was made for one, all others got
    with embedded(tmp_path, hot_tail_bytes=0) as hub:
        log = hub._port.log  # type: ignore[attr-defined]
        assert rows_of(hub).equals(expected)
        first = log.reader.disk_reads
        assert first > 0
        assert rows_of(hub).equals(expected)
        assert log.reader.disk_reads < 2 * first  # some was read a moment ago
        monkeypatch.setattr(log.reader, "shared", SharedReads(0))
        monkeypatch.setattr(log.reader, "_recent", RecentBytes(log.reader._read_block, 0))
        before = log.reader.disk_reads
        assert rows_of(hub).equals(expected)
        assert log.reader.disk_reads - before == first

        def fail(*place: int) -> bytes:
            raise OSError("gone")

        monkeypatch.setattr(log.reader._recent, "_read", fail)
        with pytest.raises(mainstem.DataLoss):
            rows_of(hub)


# A server whose places to read from can be taken away while it runs, by a file of their name. One that is gone has
# nothing; blocks that are gone fail.
SWITCHES = """
import pathlib
from mainstem.log.hot_tail import HotTail
from mainstem.log.reader import LogReader
from mainstem.log.recent_reads import RecentReads
from mainstem.log.shared_reads import SharedReads

def is_gone(name):
    return pathlib.Path({folder!r}, name).exists()

find, read, load = HotTail.find, RecentReads.read, LogReader._read_block
share = SharedReads.find

def load_or_fail(self, *place):
    if is_gone("blocks"):
        raise OSError("gone")
    return load(self, *place)

HotTail.find = lambda self, *place: [] if is_gone("hot") else find(self, *place)
RecentReads.read = lambda self, *place: (self._read if is_gone("recent") else read.__get__(self))(*place)
SharedReads.find = lambda self, shard, wanted, at: (
    None if is_gone("made" if wanted else "recent") else share(self, shard, wanted, at)
)
LogReader._read_block = load_or_fail
"""
TIERS = ("made", "hot", "recent")
COUNTERS = ("batches_pushed_shared", "batches_pushed_hot", "block_reads")
Fetched = list[tuple[int, int, bytes]]


def fetch(hub: Hub, where: str | None) -> Fetched:
    """All batches of the stream as they come, with little on the way, so that each is asked for on its own."""
    with hub.consumer("orders", start="earliest", follow=False, where=where, prefetch_bytes=4_096) as consumer:
        return sorted((batch.shard, batch._fetched.base, bytes(batch._fetched.payload)) for batch in consumer.batches())


@contextmanager
def load_on(hub: Hub) -> Iterator[list[list[bytes]]]:
    """A writer, and two who follow it; what each of them got, and first what was sent."""
    hub.streams.create("load")
    told: list[list[bytes]] = [[], [], []]
    stop = threading.Event()

    def write() -> None:
        with hub.producer() as producer:
            while not stop.wait(0.005):
                value = b"%d" % len(told[0])
                producer.send("load", value).result(10)
                told[0].append(value)

    def follow(got: list[bytes], consumer: Consumer) -> None:
        while not stop.is_set() or len(got) < len(told[0]):
            record = consumer.poll(0.1)
            if record is not None:
                got.append(record.value)

    with ThreadPoolExecutor(3) as pool, contextlib.ExitStack() as stack:
        stack.callback(stop.set)
        consumers = [stack.enter_context(hub.consumer("load", start="earliest")) for _ in range(2)]
        running = [pool.submit(write)]
        running += [pool.submit(follow, got, consumer) for got, consumer in zip(told[1:], consumers, strict=True)]
        yield told
        stop.set()
        for task in running:
            task.result(10)


@pytest.mark.mechanism("S47")
@pytest.mark.slow("a server under load loses one place to read from after the other")
def test_s47_places_are_lost_under_load(tmp_path):
    """While one writes and others read, what was made for others goes, then the newest in memory, then what was read a
    moment ago: every reader gets the same bytes, every follower every record once, and counters say where from. With
    the blocks gone as well nobody gets anything; when they are back they are enough."""
    gone = tmp_path / "gone"
    gone.mkdir()
    where = "id % 7 = 0"
    used: dict[str, dict[str, int]] = {}
    with (
        changed_servers(SWITCHES.format(folder=str(gone))),
        ServerProcess(tmp_path / "data") as server,
        mainstem.connect(server.url) as hub,
        ThreadPoolExecutor(4) as pool,
        contextlib.ExitStack() as stack,
    ):
        write_rows(hub)
        for _ in range(2):
            # Two who want the same are enough for what is made for one to be kept for the other.
            stack.enter_context(hub.consumer("orders", where=where)).poll(0)
        expected = {asked: fetch(hub, asked) for asked in (None, where)}
        assert len(expected[None]) == len(expected[where]) == ROWS // 5_000

        def read_for_a_while() -> dict[str, int]:
            """Three times four at once, and what the counters say of it."""
            before = hub.statistics()
            for _ in range(3):
                for asked, found in zip(
                    (None, where) * 2, pool.map(partial(fetch, hub), (None, where) * 2), strict=True
                ):
                    assert found == expected[asked]
            after = hub.statistics()
            return {name: after[name] - before[name] for name in COUNTERS}

        with load_on(hub) as (sent, *followers):
            used["nothing"] = read_for_a_while()
            for tier in TIERS:
                (gone / tier).touch()
                used[tier] = read_for_a_while()
        assert len(sent) > 20
        assert followers == [sent, sent]
        # What is used with nothing gone, and then as each of them goes.
        shared, hot, blocks = ([used[name][counter] for name in ("nothing", *TIERS)] for counter in COUNTERS)
        assert shared[0] > 0
        assert shared[1] == shared[3] == 0
        assert min(hot[:2]) > 0
        assert hot[2:] == [0, 0]
        assert blocks[:2] == [0, 0]
        assert 0 < 2 * blocks[2] < blocks[3]

        (gone / "blocks").touch()
        for asked in (None, where):
            with pytest.raises(mainstem.DataLoss):
                fetch(hub, asked)
        (gone / "blocks").unlink()
        assert read_for_a_while()["block_reads"] > 0


# S50: rows made columns once.


def write_json(path: Path, count: int) -> None:
    with embedded(path) as hub:
        hub.streams.create("events")
        chance = random.Random(50)
        with hub.producer() as producer:
            for n in range(count):
                row = {"id": n, "amount": chance.random(), "country": "DE", "level": n % 50, "paid": True}
                producer.send("events", json.dumps(row).encode())
        hub.streams.set_schema("events", SCHEMA)


def cpu_of(path: Path, readers: int) -> float:
    """CPU seconds of so many readers who all want columns, together with the log."""
    with embedded(path) as hub:
        consumers = [hub.consumer("events", start="earliest", follow=False) for _ in range(readers)]
        found = [0] * readers
        began = time.process_time()
        waiting = list(range(readers))
        while waiting:
            for reader in tuple(waiting):
                batch = consumers[reader].poll_batch(0)
                if batch is None:
                    waiting.remove(reader)
                else:
                    found[reader] += int(batch.to_arrow().column("id").to_numpy(zero_copy_only=False).sum())
        spent = time.process_time() - began
        for consumer in consumers:
            consumer.close()
    assert len(set(found)) == 1
    return spent


@pytest.mark.mechanism("S50")
@pytest.mark.slow("ten readers of a hundred thousand rows in JSON, twice")
def test_s50_made_once(tmp_path, monkeypatch):
    """Ten readers of the same JSON together spend at most a third of what they would if each made columns for itself;
    three do not spend more."""
    write_json(tmp_path, 100_000)
    cpu_of(tmp_path, 1)  # modules are loaded, files are in memory
    together = {readers: cpu_of(tmp_path, readers) for readers in (3, 10)}
    with monkeypatch.context() as patch:
        patch.setattr(selection, "_READERS_SHARING", 1_000_000)
        apart = {readers: cpu_of(tmp_path, readers) for readers in (3, 10)}
    assert together[10] <= 0.35 * apart[10]
    assert together[3] <= apart[3]
