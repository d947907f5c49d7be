"""What the streaming reader decides, asked as Spark asks it: without Spark, so that every case is cheap."""

import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import mainstem
from mainstem.core.errors import (
    DataLoss,
    Forbidden,
    InvalidCursor,
    InvalidSetting,
    SchemaMismatch,
    StreamDeleted,
    Unauthenticated,
    UndecodedRecords,
)
from mainstem.spark import origin, types
from mainstem.spark.options import read_options
from mainstem.spark.origin import Access
from mainstem.spark.progress import INITIAL
from mainstem.spark.stream import StreamReader
from mainstem.transport.port import Port, RunsCall
from mainstem.transport.sharing import CommitCursorsCall
from tests.spark.parts import SCHEMA, append, fill, rows, tear_out

pytestmark = pytest.mark.xdist_group("spark")


def reader(hub: str, schema=SCHEMA, stream: str = "orders", **options: str) -> StreamReader:
    return StreamReader(read_options({"hub": hub, "stream": stream, **options}, streaming=True), types.to_spark(schema))


def ids(source: StreamReader, start: dict, end: dict) -> list[int]:
    parts = source.partitions(start, end)
    return sorted(number for part in parts for batch in source.read(part) for number in batch.column(0).to_pylist())


@pytest.fixture
def orders(tmp_path):
    with mainstem.open(tmp_path / "log") as hub:
        fill(hub, count=1_000, batch=100)
        yield hub, str(tmp_path / "log")


def test_a_first_batch_is_planned_again_as_it_was(orders):
    hub, folder = orders
    source = reader(folder, startingOffsets="latest")
    start = source.initialOffset()
    # Whoever begins with the latest has found nothing, but knows from now on where that was.
    first = source.latestOffset(start, ReadAllAvailable())
    assert first != start
    assert ids(source, start, first) == []
    append(hub, "orders", 1_000, 10)
    second = source.latestOffset(first, ReadAllAvailable())
    # Another process after a crash, which asks again for the beginning.
    again = reader(folder)
    assert again.initialOffset() == start
    assert ids(again, start, first) == []
    assert ids(again, first, json.loads(json.dumps(second))) == list(range(1_000, 1_010))
    # Where nothing is new the offset stays the same, to the letter.
    assert again.latestOffset(second, ReadAllAvailable()) == second


def test_a_query_without_a_checkpoint_has_to_be_told_where_it_begins(orders, server):
    """It may have run before, and have lost its checkpoint: then one end is a loss, and the other everything twice."""
    hub, folder = orders
    said = r"nothing says where .* 'orders' .*no checkpoint{}\. .*\"earliest\"\) for the {} records .*\"latest\" .*lost"
    with pytest.raises(InvalidSetting, match=said.format("", "1,000")):
        reader(folder).latestOffset(dict(INITIAL), ReadAllAvailable())
    told: list[dict[str, str]] = [{"startingOffsets": "latest"}, {"startingTimestamp": "2100-01-01T00:00:00Z"}]
    for options in told:
        source = reader(folder, **options)
        assert ids(source, dict(INITIAL), source.latestOffset(dict(INITIAL), ReadAllAvailable())) == []
    # Where there is nothing to pass over, nothing has to be said.
    hub.streams.create("empty", schema=SCHEMA)
    first = reader(folder, stream="empty").latestOffset(dict(INITIAL), ReadAllAvailable())
    append(hub, "empty", 0, 5)
    source = reader(folder, stream="empty")
    assert ids(source, first, source.latestOffset(first, ReadAllAvailable())) == [*range(5)]
    with mainstem.connect(server.url) as served:
        fill(served, count=10)
        with pytest.raises(InvalidSetting, match=said.format(", and its group lake has not read the stream yet", 10)):
            reader(server.url, group="lake").latestOffset(dict(INITIAL), ReadAllAvailable())
        assert served.groups.list() == []


def test_without_a_checkpoint_a_query_goes_on_where_its_group_stands_whatever_its_options_say(server, caplog):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=100, shards=1, batch=10)
        source = reader(server.url, startingOffsets="earliest", group="lake", maxOffsetsPerTrigger="60")
        first = source.latestOffset(dict(INITIAL), source.getDefaultReadLimit())
        source.latestOffset(first, source.getDefaultReadLimit())
        assert caplog.messages == []
        for options in ({}, {"startingOffsets": "earliest"}, {"startingOffsets": "latest"}):
            caplog.clear()
            other = reader(server.url, group="lake", **options)
            end = other.latestOffset(dict(INITIAL), ReadAllAvailable())
            assert (end["begins"], end["offsets"][0]) == (first["offsets"], 100)
            assert len(ids(other, dict(INITIAL), end)) == 40
            assert ["goes on where the group stands" in text for text in caplog.messages] == [True] * len(options)
        # The way to begin elsewhere, which is nobody's mistake.
        hub.groups.reset("lake", "earliest", dry_run=False)
        other = reader(server.url, group="lake")
        assert len(ids(other, dict(INITIAL), other.latestOffset(dict(INITIAL), ReadAllAvailable()))) == 100


def test_batches_within_limits_have_everything_once(orders):
    _, folder = orders
    for options in ({"maxOffsetsPerTrigger": "130"}, {"maxBytesPerTrigger": "4000"}):
        source = reader(folder, startingOffsets="earliest", **options)
        offset, found, batches = source.initialOffset(), [], 0
        while (end := source.latestOffset(offset, source.getDefaultReadLimit())) != offset:
            batch = ids(source, offset, end)
            assert 0 < len(batch) <= 200
            found += batch
            offset, batches = end, batches + 1
        assert sorted(found) == list(range(1_000))
        assert batches >= 5


def test_available_now_ends_where_the_stream_ended(orders):
    hub, folder = orders
    source = reader(folder, startingOffsets="earliest", maxOffsetsPerTrigger="600")
    source.prepareForTriggerAvailableNow()
    append(hub, "orders", 1_000, 500)
    first = source.latestOffset(source.initialOffset(), ReadMaxRows(600))
    second = source.latestOffset(first, ReadMaxRows(600))
    assert source.latestOffset(second, ReadMaxRows(600)) == second
    assert ids(source, source.initialOffset(), first) + ids(source, first, second)
    assert len(ids(source, source.initialOffset(), first)) + len(ids(source, first, second)) == 1_000


def test_more_shards_are_read_too(orders):
    hub, folder = orders
    source = reader(folder, startingOffsets="earliest")
    first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    hub.streams.alter("orders", shards=5)
    append(hub, "orders", 1_000, 700, batch=50)
    second = source.latestOffset(first, ReadAllAvailable())
    assert ids(source, source.initialOffset(), first) == list(range(1_000))
    assert ids(source, first, second) == list(range(1_000, 1_700))
    # Both in one batch.
    assert ids(source, source.initialOffset(), {**second, "begins": [0, 0]}) == list(range(1_700))


def test_a_batch_ends_where_the_stream_got_more_shards(orders):
    """Who merges the rows of a batch by their keys could not tell which of two shards had the older one."""
    hub, folder = orders
    hub.streams.alter("orders", shards=5)
    append(hub, "orders", 1_000, 700, batch=50)
    source = reader(folder, startingOffsets="earliest", partitions="3")
    first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    second = source.latestOffset(first, ReadAllAvailable())
    assert ids(source, source.initialOffset(), first) == list(range(1_000))
    assert ids(source, first, second) == list(range(1_000, 1_700))
    # One that was planned without an end there is in order, task by task.
    both = source.partitions(source.initialOffset(), {**second, "begins": [0, 0]})
    numbers = [number for part in both for batch in source.read(part) for number in batch.column(0).to_pylist()]
    assert len(both) > 1
    assert set(numbers[:1_000]) == set(range(1_000))


def test_offsets_without_records_are_passed_at_once(tmp_path):
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("people", schema={"id": "int64"}, key="id")
        with hub.producer() as producer:
            producer.send_many("people", [{"id": 7}] * 60)
        hub.streams.erase("people", 7)
        schema = pa.schema({"id": pa.int64()})
        source = reader(str(tmp_path / "log"), schema, "people", startingOffsets="earliest", maxBytesPerTrigger="1000")
        end = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
        assert end["offsets"] == [60]


def test_another_stream_or_checkpoint_is_refused(orders):
    hub, folder = orders
    source = reader(folder, startingOffsets="earliest")
    first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    with pytest.raises(InvalidCursor, match="use another checkpointLocation"):
        source.latestOffset({"topic": {"0": 7}}, ReadAllAvailable())
    with pytest.raises(InvalidCursor, match="ends at"):
        source.latestOffset({**first, "offsets": [1 << 40, 0]}, ReadAllAvailable())
    hub.streams.delete("orders")
    fill(hub, count=10)
    with pytest.raises(StreamDeleted, match="Use another checkpointLocation"):
        source.latestOffset(first, ReadAllAvailable())


def test_what_is_trimmed_under_a_planned_batch_is_told(orders, caplog):
    hub, folder = orders
    source = reader(folder, startingOffsets="earliest")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    planned = source.partitions(start, end)
    hub.streams.trim("orders", offset=100, shard=0)
    with pytest.raises(DataLoss, match=r"shard 0: records 0 to 99 are gone.*failOnDataLoss=.false. the query goes on"):
        [batch for part in planned for batch in source.read(part)]
    with pytest.raises(DataLoss, match="shard 0: records 0 to 99 are gone"):
        source.partitions(start, end)
    patient = reader(folder, startingOffsets="earliest", failOnDataLoss="false")
    gone = "stream 'orders' shard 0: records 0 to 99 are gone (trimmed)"
    lost = [f'records are lost; the query goes on after them reason="{gone}"']
    # By the task that finds it, and by who plans.
    assert sum(batch.num_rows for part in planned for batch in patient.read(part)) == 900
    assert caplog.messages == lost
    caplog.clear()
    assert len(ids(patient, start, end)) == 900
    assert caplog.messages == lost
    # The next end tells of it, once, and so of what goes while the batch is read.
    hub.streams.trim("orders", offset=150, shard=0)
    told = patient.latestOffset(end, ReadAllAvailable())
    assert (told["lost"], told["trimmed"]) == (["shard 0: 0 to 99"], ["shard 0: 100 to 149"])
    assert ids(patient, end, told) == []
    assert patient.latestOffset(told, ReadAllAvailable()) == told


def test_what_a_task_finds_damaged_is_in_its_log(tmp_path, caplog):
    folder = tmp_path / "log"
    with mainstem.open(folder) as hub:
        fill(hub, count=1_000, shards=1, batch=100)
    torn = tear_out(folder, "orders", 0, 350)
    source = reader(str(folder), startingOffsets="earliest", failOnDataLoss="false")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    assert ids(source, start, end) == [*range(300), *range(400, 1_000)]
    where = f"blocks/{torn.block:016d}.block at byte {torn.position}"
    lost = f"stream 'orders' shard 0: records 300 to 399 are gone (damaged, {where})"
    assert caplog.messages == [f'records are lost; the query goes on after them reason="{lost}"']
    strict = reader(str(folder), startingOffsets="earliest")
    with pytest.raises(DataLoss, match=r"records 300 to 399 are gone \(damaged") as met:
        ids(strict, start, end)
    assert (met.value.shard, met.value.first, met.value.last, met.value.reason) == (0, 300, 399, "damaged")


class Between:
    """A port that has something done between two calls of a reader: before the first of this kind."""

    def __init__(self, port: Port, kind: type, done: Callable[[], object]) -> None:
        self._port = port
        self._kind = kind
        self._done: list[Callable[[], object]] = [done]

    def call(self, call: Any) -> Any:
        if isinstance(call, self._kind) and self._done:
            self._done.pop()()
        return self._port.call(call)


def test_a_limit_of_bytes_bears_a_trim_in_between(orders, monkeypatch):
    hub, folder = orders
    given = {"startingOffsets": "earliest", "maxBytesPerTrigger": "4000"}
    source = reader(folder, failOnDataLoss="false", **given)
    trim = partial(hub.streams.trim, "orders", offset=50, shard=0)
    between = Between(origin.opened(Access.to(folder)), RunsCall, trim)
    # As it is then: another one takes its place below.
    monkeypatch.setattr("mainstem.spark.stream.opened", lambda access: between)
    offset, found, lost = source.initialOffset(), [], []
    while (end := source.latestOffset(offset, source.getDefaultReadLimit())) != offset:
        found += ids(source, offset, end)
        offset = end
        lost += end.get("lost", [])
    assert len(found) == 950
    assert lost == ["shard 0: 0 to 49"]
    trim = partial(hub.streams.trim, "orders", offset=60, shard=0)
    between = Between(origin.opened(Access.to(folder)), RunsCall, trim)
    strict = reader(folder, **given)
    with pytest.raises(DataLoss, match=r"records 50 to 59 are gone.*failOnDataLoss"):
        strict.latestOffset(strict.initialOffset(), strict.getDefaultReadLimit())


def test_a_reset_moves_the_query_wherever_it_stands(server, monkeypatch):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=100)
        source = reader(server.url, startingOffsets="earliest", group="lake")
        first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
        # Everything is read, and the group knows.
        assert source.latestOffset(first, ReadAllAvailable()) == first
        assert hub.groups.get("lake").records == 0
        # Back to where the last batch began.
        hub.groups.reset("lake", "earliest", dry_run=False)
        moved = source.latestOffset(first, ReadAllAvailable())
        assert ids(source, first, moved) == list(range(100))
        # One that comes in the moment before progress is published.
        append(hub, "orders", 100, 10)
        reset = partial(hub.groups.reset, "lake", "earliest", dry_run=False)
        between = Between(origin.opened(Access.to(server.url)), CommitCursorsCall, reset)
        monkeypatch.setattr("mainstem.spark.stream.opened", lambda access: between)
        again = source.latestOffset(moved, ReadAllAvailable())
        assert ids(source, moved, again) == list(range(110))
        assert hub.groups.get("lake").records == 110
        # One that comes as a query without a checkpoint has just seen where the group stands.
        first = source.latestOffset(dict(INITIAL), ReadAllAvailable())
        shard = first["offsets"].index(max(first["offsets"]))
        hub.groups.reset("lake", {("orders", shard): 5}, dry_run=False)
        again = source.latestOffset(first, ReadAllAvailable())
        assert (again["begins"][shard], again["offsets"]) == (5, first["offsets"])
        # Who comes and goes as this group resets nothing.
        with hub.consumer("orders", group="lake", commit="manual"):
            pass
        assert source.latestOffset(again, ReadAllAvailable()) == again
        assert hub.groups.get("lake").records == 0


def test_a_reset_of_one_shard_moves_the_query_there_alone(server):
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=2, schema=SCHEMA)
        with hub.producer() as producer:
            for shard in range(2):
                producer.send_batch("orders", rows(50 * shard, 50), shard=shard)
        source = reader(server.url, startingOffsets="earliest", group="lake")
        done = source.latestOffset(source.initialOffset(), ReadAllAvailable())
        # Before the group knows of that batch.
        hub.groups.reset("lake", {("orders", 0): 5}, dry_run=False)
        moved = source.latestOffset(done, ReadAllAvailable())
        assert (moved["begins"], moved["offsets"]) == ([5, 50], [50, 50])
        assert ids(source, done, moved) == list(range(5, 50))
        assert source.latestOffset(moved, ReadAllAvailable()) == moved
        assert hub.groups.get("lake").records == 0


def test_another_group_than_the_checkpoints_moves_nothing(server, caplog):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=100, shards=1, batch=10)
        for name, place in (("ahead", 50), ("behind", 5)):
            made = reader(server.url, group=name, startingOffsets="latest")
            made.latestOffset(dict(INITIAL), ReadAllAvailable())
            hub.groups.reset(name, {("orders", 0): place}, dry_run=False)
        limited = {"group": "lake", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
        source = reader(server.url, **limited)
        done = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
        # The checkpoint wins: over a group that is ahead, over one that is behind, and over one of the same name.
        hub.groups.delete("lake")
        reader(server.url, group="lake", startingOffsets="latest").latestOffset(dict(INITIAL), ReadAllAvailable())
        for name in ("ahead", "behind", "lake"):
            caplog.clear()
            other = reader(server.url, group=name)
            end = other.latestOffset(done, ReadAllAvailable())
            assert end.get("begins") is None
            assert len(ids(other, done, end)) == 80, name
            assert "the checkpoint is of another group" in caplog.text
            caplog.clear()
            # That is noted with this end, and said once: from now on whoever resets the group moves the query.
            assert other.latestOffset(end, ReadAllAvailable()) == end
            assert "another group" not in caplog.text
            hub.groups.reset(name, "earliest", dry_run=False)
            assert len(ids(other, end, other.latestOffset(end, ReadAllAvailable()))) == 100
        # It is noted also where there is nothing new, by one batch without rows.
        noted = reader(server.url, group="behind").latestOffset(end, ReadAllAvailable())
        assert (noted["offsets"], noted["group"][0]) == (end["offsets"], "behind")
        assert reader(server.url, group="behind").latestOffset(noted, ReadAllAvailable()) == noted


def test_a_checkpoint_from_before_groups_were_noted_is_of_the_group(server):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=100)
        source = reader(server.url, startingOffsets="earliest", group="lake")
        old = source.latestOffset(source.initialOffset(), ReadAllAvailable())
        del old["group"]
        # Nothing is new, so nothing is noted.
        assert source.latestOffset(old, ReadAllAvailable()) == old
        hub.groups.reset("lake", "earliest", dry_run=False)
        assert len(ids(source, old, source.latestOffset(old, ReadAllAvailable()))) == 100


def test_a_schema_that_changes_under_a_query(tmp_path):
    folder = str(tmp_path / "log")
    with mainstem.open(folder) as hub, hub.producer() as producer:
        hub.streams.create("orders", schema={"id": "int32", "note": "string"}, compatibility="none")
        producer.send("orders", {"id": 1, "note": "a"}).result(10)
        schema = hub.streams.get("orders").schema
        assert schema is not None
        source = reader(folder, schema.arrow, startingOffsets="earliest")
        start = source.initialOffset()
        # A column more, and a wider one: the query goes on with the columns and types that it began with.
        hub.streams.set_schema("orders", {"id": "int64", "note": "string", "more": "int64"})
        producer.send("orders", {"id": 2, "note": "b", "more": 3}).result(10)
        end = source.latestOffset(start, ReadAllAvailable())
        assert ids(source, start, end) == [1, 2]
        # A value that has no place there is refused by its column.
        producer.send("orders", {"id": 1 << 40, "note": "c", "more": 3}).result(10)
        end = source.latestOffset(start, ReadAllAvailable())
        with pytest.raises(SchemaMismatch, match="column 'id'"):
            ids(source, start, end)
        # So is a column that is gone.
        hub.streams.set_schema("orders", {"id": "int64", "more": "int64"})
        with pytest.raises(InvalidSetting, match="there is no column 'note'"):
            ids(source, start, end)


def test_what_is_no_row_is_refused_or_passed_over(tmp_path):
    folder = str(tmp_path / "log")
    with mainstem.open(folder) as hub, hub.producer() as producer:
        hub.streams.create("orders")
        for value in (b'{"id": 1}', b"nonsense", b'{"id": 3}'):
            producer.send("orders", value).result(10)
        hub.streams.set_schema("orders", {"id": "int64"})
        schema = hub.streams.get("orders").schema
        assert schema is not None
        source = reader(folder, schema.arrow, startingOffsets="earliest")
        start = source.initialOffset()
        end = source.latestOffset(start, ReadAllAvailable())
        with pytest.raises(UndecodedRecords, match="record 1 is no row"):
            ids(source, start, end)
        assert ids(reader(folder, schema.arrow, startingOffsets="earliest", onBad="skip"), start, end) == [1, 3]


@pytest.mark.slow("a server is killed and started again")
def test_a_server_that_restarts_in_the_middle_of_a_read(server):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=5_000, batch=250)
    source = reader(server.url, startingOffsets="earliest")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    parts = source.partitions(start, end)
    # Read through the server: as if the folder were elsewhere.
    for part in parts:
        for piece in part.slices:  # type: ignore[attr-defined]
            object.__setattr__(piece, "origin", type(piece.origin)(piece.origin.access))
    batches = iter(batch for part in parts for batch in source.read(part))
    found = next(batches).column(0).to_pylist()
    server.kill()
    timer = threading.Timer(1.0, server.start)
    timer.start()
    found += [number for batch in batches for number in batch.column(0).to_pylist()]
    timer.join()
    assert sorted(found) == list(range(5_000))
    assert source.latestOffset(end, ReadAllAvailable()) == end


def test_a_guarded_server_wants_a_token_of_every_process(server):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=500)
        root = hub.access.create_token("root", admin=True)
    with mainstem.connect(server.url, token=root.secret) as hub:
        lake = hub.access.create_token("lake", allow=["read:orders", "describe:orders"])
        blind = hub.access.create_token("blind", allow=["describe:orders"])
    with pytest.raises(Unauthenticated):
        reader(server.url)
    source = reader(server.url, startingOffsets="earliest", token=lake.secret)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    parts = source.partitions(start, end)
    assert lake.secret not in repr(parts)
    assert ids(source, start, end) == list(range(500))
    with pytest.raises(Forbidden):
        reader(server.url, token=blind.secret).partitions(start, end)
