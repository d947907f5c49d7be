"""Scribe's typed data: schemas that grow under readers and writers, and shards by a key or by the fields of a row."""

import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem.consume.consumer import Consumer
from mainstem.core.errors import Unavailable
from mainstem.core.known_schemas import KnownSchemas
from mainstem.core.schema import described
from mainstem.hub.hub import Hub
from mainstem.hub.remote import RemotePort
from mainstem.testing import planted
from mainstem.testing.server import ServerProcess
from mainstem.transport.port import Answer, Call
from tests.integration.mechanisms.rig import SlowLink, read_all


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        yield server


# S3: versions of a schema.

ROWS = 1_000
FIRST = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("amount", pa.int64())])
SECOND = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        described(pa.field("title", pa.string()), aliases=("name",)),
        ("amount", pa.int64()),
        described(pa.field("country", pa.string()), default="DE"),
    ]
)
RETYPED = pa.schema([pa.field("id", pa.string(), nullable=False), ("name", pa.string()), ("amount", pa.int64())])


def of_first(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}", "amount": 2 * number}


def of_second(number: int, country: str = "FR") -> dict[str, Any]:
    return {"id": number, "title": f"n{number}", "amount": 2 * number, "country": country}


def taken(consumer: Consumer, count: int) -> list[Any]:
    found = [consumer.poll(10) for _ in range(count)]
    assert None not in found
    return [record.value for record in found if record is not None]


def write_both_versions(old: Hub, new: Hub) -> None:
    """1,000 rows by a producer of version 1, then the schema gains a field and renames one, and 1,000 by one of
    version 2."""
    with old.producer() as first, new.producer() as second:
        for number in range(ROWS):
            first.send("orders", of_first(number))
        first.flush()
        new.streams.set_schema("orders", SECOND)
        for number in range(ROWS, 2 * ROWS):
            second.send("orders", of_second(number))


@pytest.mark.mechanism("S3")
def test_s3_readers_of_both_versions(server):
    """A reader of version 1 that says which columns it wants gets them of all 2,000 rows, the new field never. One that
    says nothing goes over to the new names with the first new row, and one that names a column which is gone is told so
    there, and has lost nothing. A reader of version 2 finds the default in the old rows. A version that gives a field
    another type is refused."""
    with mainstem.connect(server.url) as old, mainstem.connect(server.url) as new:
        old.streams.create("orders", schema=FIRST)
        pinned = old.consumer("orders", start="earliest", columns=["amount", "id"])
        loose = old.consumer("orders", start="earliest")
        outdated = old.consumer("orders", start="earliest", columns=["id", "name"])
        write_both_versions(old, new)
        before, after = range(ROWS), range(ROWS, 2 * ROWS)
        assert taken(pinned, 2 * ROWS) == [{"amount": 2 * number, "id": number} for number in range(2 * ROWS)]
        assert taken(loose, 2 * ROWS) == [*map(of_first, before), *map(of_second, after)]
        assert taken(outdated, ROWS) == [{"id": number, "name": f"n{number}"} for number in before]
        with pytest.raises(mainstem.InvalidSetting, match="there is no column 'name'"):
            outdated.poll(10)
        with old.consumer("orders", start=outdated.cursor, columns=["id", "title"]) as renamed:
            assert taken(renamed, ROWS) == [{"id": number, "title": f"n{number}"} for number in after]
        rows = [record.value for record in read_all(new, "orders")]
        assert rows == [*(of_second(number, "DE") for number in before), *map(of_second, after)]
        assert [record.value for record in new.find("orders", "id >= 0")] == rows
        # What is written in version 1 from now on is read by both.
        with old.producer() as first:
            first.send("orders", of_first(2 * ROWS)).result(10)
        assert taken(pinned, 1) == [{"amount": 4 * ROWS, "id": 2 * ROWS}]
        assert taken(loose, 1) == [of_second(2 * ROWS, "DE")]
        with pytest.raises(mainstem.IncompatibleSchema, match="'id' was int64"):
            new.streams.set_schema("orders", RETYPED)


@pytest.mark.mechanism("S3")
def test_s3_without_promotion(tmp_path):
    """Where fields are found by their names alone, the old rows have nothing under the new one, if the server makes the
    rows, as it does for who asks with a predicate."""
    with (
        planted.forget_aliases(),
        ServerProcess(tmp_path / "data") as server,
        mainstem.connect(server.url) as old,
        mainstem.connect(server.url) as new,
    ):
        old.streams.create("orders", schema=FIRST)
        write_both_versions(old, new)
        titles = [record.value["title"] for record in new.find("orders", "id >= 0")]
    assert titles == [*[None] * ROWS, *(f"n{number}" for number in range(ROWS, 2 * ROWS))]


@pytest.mark.mechanism("S3")
def test_s3_without_rules(server):
    """Without rules for the next version the third one is taken, and a reader cannot make its rows of the old ones."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders", schema=FIRST, compatibility="none")
        with hub.producer() as producer:
            producer.send("orders", of_first(1)).result()
        hub.streams.set_schema("orders", RETYPED)
        with pytest.raises(mainstem.MainstemError):
            read_all(hub, "orders")


@contextmanager
def no_schemas(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody answers questions, of schemas or of anything else; what is written and pushed goes on."""

    def unreachable(port: RemotePort, call: Call, timeout: float | None = None) -> Answer:
        raise Unavailable("no answers today")

    with patch.context() as outage:
        outage.setattr(RemotePort, "call", unreachable)
        yield


@pytest.mark.mechanism("S3")
def test_s3_while_nobody_can_ask_for_schemas(server, monkeypatch):
    """Readers and writers who know their schemas go on. A reader that meets one it does not know is told, and goes on
    there when it can ask; one that remembers no schema cannot read even what it has read before."""
    with mainstem.connect(server.url) as old, mainstem.connect(server.url) as new:
        old.streams.create("orders", schema=FIRST)
        unaware = old.consumer("orders", start="earliest")
        with old.producer() as first, new.producer() as second, new.consumer("orders", start="earliest") as aware:
            first.send("orders", of_first(0)).result(10)
            new.streams.set_schema("orders", SECOND)
            second.send("orders", of_second(1)).result(10)
            assert taken(aware, 2) == [of_first(0), of_second(1)]
            with no_schemas(monkeypatch):
                for number in range(2, ROWS, 2):
                    acks = first.send("orders", of_first(number)), second.send("orders", of_second(number + 1))
                    if number % 20 == 0:
                        acks[0].result(10)
                        acks[1].result(10)
                found = [aware.poll(10) for _ in range(2, ROWS)]
                assert sorted(record.value["id"] for record in found if record is not None) == list(range(2, ROWS))
                assert taken(unaware, 1) == [of_first(0)]
                with pytest.raises(Unavailable, match="no answers today"):
                    unaware.poll(10)
            ids = [row["id"] for row in taken(unaware, ROWS - 1)]
            assert sorted(ids) == list(range(1, ROWS))

            monkeypatch.setattr(KnownSchemas, "at_hand", lambda known, schema: None)
            aware.seek("earliest")
            with no_schemas(monkeypatch), pytest.raises(Unavailable, match="no answers today"):
                aware.poll(10)
        unaware.close()


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
