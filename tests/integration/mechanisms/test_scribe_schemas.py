"""Scribe's typed data: schemas that grow under readers and writers, and shards by a key or by the fields of a row."""

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.consume.consumer import Consumer
from mainstem.core.errors import Unavailable
from mainstem.core.schema import described
from mainstem.hub.hub import Hub
from mainstem.hub.remote import RemotePort
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import SlowLink, read_all


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        yield server


# S3: versions of a schema.

ROWS = 1_000
FIRST = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
SECOND = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        described(pa.field("title", pa.string()), aliases=("name",)),
        described(pa.field("country", pa.string()), default="DE"),
    ]
)
RETYPED = pa.schema([pa.field("id", pa.string(), nullable=False)])


def taken(consumer: Consumer, count: int) -> list[Any]:
    return [record.value for _, record in zip(range(count), consumer, strict=False)]


@pytest.mark.mechanism("S3")
def test_s3(server, monkeypatch):
    """A producer of version 1 writes 1,000 rows, the schema gains a field and renames one, a producer of version 2
    writes 1,000. A reader of version 1 reads all 2,000 and never sees the new field; one of version 2 finds its default
    in the old rows. A third version with another type is refused. While nobody can ask for schemas, readers and writers
    who know theirs go on."""
    with mainstem.connect(server.url) as old, mainstem.connect(server.url) as new:
        old.streams.create("orders", schema=FIRST)
        of_first = old.consumer("orders", start="earliest", columns=["id"])
        with old.producer() as first, new.producer() as second:
            for number in range(ROWS):
                first.send("orders", {"id": number, "name": f"n{number}"})
            first.flush()
            new.streams.set_schema("orders", SECOND)
            for number in range(ROWS, 2 * ROWS):
                second.send("orders", {"id": number, "title": f"n{number}", "country": "FR"})
            second.flush()
            assert taken(of_first, 2 * ROWS) == [{"id": number} for number in range(2 * ROWS)]
            of_second = [record.value for record in read_all(new, "orders")]
            assert of_second == [
                {"id": number, "title": f"n{number}", "country": "DE" if number < ROWS else "FR"}
                for number in range(2 * ROWS)
            ]
            with pytest.raises(mainstem.IncompatibleSchema, match="'id' was int64"):
                new.streams.set_schema("orders", RETYPED)

            def unreachable(port: RemotePort, schema: int) -> Any:
                raise Unavailable("no schemas today")

            monkeypatch.setattr(RemotePort, "_load_schema", unreachable)
            for number in range(ROWS):
                ack = first.send("orders", {"id": number, "name": "old"})
                second.send("orders", {"id": number, "title": "new"})
                if number % 20 == 0:
                    ack.result()
            first.flush()
            second.flush()
            assert len(taken(of_first, 2 * ROWS)) == 2 * ROWS
            assert len(read_all(new, "orders")) == 4 * ROWS
        of_first.close()


@pytest.mark.mechanism("S3")
def test_s3_control(server):
    """Without rules for the next version the third one is taken, and a reader cannot make its rows of the old ones."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders", schema=FIRST, compatibility="none")
        with hub.producer() as producer:
            producer.send("orders", {"id": 1, "name": "n"}).result()
        hub.streams.set_schema("orders", RETYPED)
        with pytest.raises(mainstem.MainstemError):
            read_all(hub, "orders")


# S9: shards by a key.

SHARDS = 8
KEYS = 10_000
MESSAGES = 40_000


def read_shard(address: str, shard: int) -> tuple[list[bytes], int]:
    """The values of one shard, and how many bytes came to get them."""
    with SlowLink(address) as link, mainstem.connect(f"mainstem://{link.address}") as hub:
        with hub.consumer("events", start="earliest", follow=False, where=f"_shard = {shard}") as consumer:
            found = [record.value for record in consumer]
        return found, link.answers_bytes


def read_shards(server: ServerProcess) -> list[tuple[list[bytes], int]]:
    with ThreadPoolExecutor(SHARDS) as pool:
        return list(pool.map(lambda shard: read_shard(server.address, shard), range(SHARDS)))


def write_events(hub: Hub, *, keyed: bool) -> list[bytes]:
    """Messages that name their key and their number."""
    hub.streams.create("events", shards=SHARDS)
    source = random.Random(9)
    keys = [b"%d" % (number % KEYS) for number in range(MESSAGES)]
    values = [b"%s:%d:%s" % (key, number, source.randbytes(40).hex().encode()) for number, key in enumerate(keys)]
    # One table after the other: without a key each goes to the next shard.
    with hub.producer(compression=None) as producer:
        for first in range(0, MESSAGES, 500):
            part = slice(first, first + 500)
            producer.send_many("events", values[part], keys[part] if keyed else None)
    return values


def readers_of_keys(shards: list[tuple[list[bytes], int]]) -> dict[bytes, set[int]]:
    found: dict[bytes, set[int]] = defaultdict(set)
    for shard, (values, _) in enumerate(shards):
        for value in values:
            found[value.partition(b":")[0]].add(shard)
    return found


@pytest.mark.mechanism("S9")
def test_s9(server):
    """10,000 keys over 8 shards, a reader for each shard: each key comes to one of them, all messages to some, and a
    reader gets an eighth of the bytes, not more than a fifth beyond."""
    with mainstem.connect(server.url) as hub:
        values = write_events(hub, keyed=True)
    shards = read_shards(server)
    assert all(len(readers) == 1 for readers in readers_of_keys(shards).values())
    assert sorted(value for found, _ in shards for value in found) == sorted(values)
    total = sum(size for _, size in shards)
    assert max(size for _, size in shards) <= total / SHARDS * 1.2
    # What all of them got together is what there is, once.
    assert total <= 1.5 * sum(map(len, values))


@pytest.mark.mechanism("S9")
def test_s9_control(server):
    """Messages that say their key only in the payload come to many readers."""
    with mainstem.connect(server.url) as hub:
        values = write_events(hub, keyed=False)
    shards = read_shards(server)
    assert sorted(value for found, _ in shards for value in found) == sorted(values)
    spread = readers_of_keys(shards)
    assert sum(len(readers) > 1 for readers in spread.values()) > KEYS / 2


# S10: shards by the fields of a row.

FIELDS = pa.schema([("country", pa.string()), ("device", pa.int32()), ("number", pa.int64())])


def shards_of_pairs(hub: Hub, stream: str) -> dict[tuple[str, int], set[int]]:
    """Write 50,000 rows without a word about keys; the shards in which each pair of country and device is found."""
    source = random.Random(10)
    with hub.producer() as producer:
        for first in range(0, 50_000, 1_000):
            numbers = range(first, first + 1_000)
            columns = {
                "country": [source.choice(("DE", "FR", "BR", "IN", "US")) for _ in numbers],
                "device": pa.array([source.randrange(40) for _ in numbers], pa.int32()),
                "number": list(numbers),
            }
            producer.send_batch(stream, pa.table(columns))
        for number in range(50_000, 50_200):
            producer.send(stream, {"country": "DE", "device": number % 40, "number": number})
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    total = 0
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            table = batch.to_arrow()
            total += table.num_rows
            for pair in zip(table.column("country").to_pylist(), table.column("device").to_pylist(), strict=True):
                found[pair].add(batch.shard)
    assert total == 50_200
    return found


@pytest.mark.mechanism("S10")
def test_s10(server):
    """A stream that names two fields as its key: equal values land in one shard, whoever writes them and however. More
    shards than are possible are refused when it is made. Without named fields equal values are everywhere."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("visits", schema=FIELDS, key=("country", "device"), shards=16)
        found = shards_of_pairs(hub, "visits")
        assert len(found) == 200
        assert all(len(shards) == 1 for shards in found.values())
        assert len(set.union(*found.values())) == 16
        with pytest.raises(mainstem.InvalidRequest, match="4096"):
            hub.streams.create("wide", schema=FIELDS, key=("country", "device"), shards=5_000)

        hub.streams.create("loose", schema=FIELDS, shards=16)
        spread = shards_of_pairs(hub, "loose")
        assert all(len(shards) > 8 for shards in spread.values())
