"""A query that follows a stream: every row once over restarts, as a group that can be seen and moved."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamReader

import mainstem
from mainstem.core.errors import InvalidCursor, InvalidSetting
from mainstem.spark import types
from mainstem.spark.options import read_options
from mainstem.spark.progress import (
    INITIAL,
    Group,
    QueryOffset,
    Standing,
    gone_since,
    moved_to,
    shared_out,
    was_reset,
    within_bytes,
)
from mainstem.spark.stream import StreamReader
from mainstem.transport.port import Run
from tests.spark.parts import SCHEMA, append, fill, make_half_spoilt, tear_out
from tests.spark.queries import Query

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.slow("several streaming queries, seconds each")
def test_a_query_goes_on_where_it_was_and_is_a_group(spark, server, tmp_path):
    query = Query(spark, server.url, tmp_path, startingOffsets="earliest", group="lake")
    with mainstem.connect(server.url) as hub:
        fill(hub, count=1_000)
        assert query.run() == list(range(1_000))
        began = time.monotonic()
        append(hub, "orders", 1_000, 500)
        time.sleep(1)
        (listed,) = hub.groups.list()
        assert listed.records >= 500
        # The age of the first record that the query has not read.
        assert 1 <= listed.seconds <= time.monotonic() - began
        assert query.run(maxOffsetsPerTrigger="200") == list(range(1_500))
        # No batch had more than it was allowed to.
        assert max(each["numInputRows"] for each in query.progress) <= 200
        assert len([each for each in query.progress if each["numInputRows"]]) == 3
        (listed,) = hub.groups.list()
        assert (listed.name, listed.streams, listed.records, listed.seconds) == ("lake", ("orders",), 0, 0)
        # Whoever resets the group moves the query.
        changes = hub.groups.reset("lake", {("orders", 0): 0}, dry_run=False)
        again = changes[0].records
        assert again > 0
        assert len(query.run()) == 1_500 + again
        assert hub.groups.get("lake").records == 0
        # Another group, which stands where the stream ends, moves nothing: the checkpoint wins.
        append(hub, "orders", 1_500, 100)
        with hub.consumer("orders", group="pond", start="latest", commit="manual") as consumer:
            consumer.poll(timeout=0)
        assert len(query.run(group="pond")) == 1_600 + again
        # That it is this group now is in the checkpoint; nothing is new, and no batch is run.
        assert len(query.run(group="pond")) == 1_600 + again
        assert sum(each["numInputRows"] for each in query.progress) == 0


@pytest.mark.slow("two streaming queries, seconds each")
def test_loss_stops_a_query_or_is_in_its_progress(spark, tmp_path):
    with mainstem.open(tmp_path / "log") as hub:
        fill(hub, count=100, shards=1)
        query = Query(spark, str(tmp_path / "log"), tmp_path, startingOffsets="earliest")
        assert query.run() == list(range(100))
        append(hub, "orders", 100, 100, batch=10)
        hub.streams.trim("orders", offset=150)
        with pytest.raises(PySparkException, match="records 100 to 149 are gone"):
            query.run()
        assert query.run(failOnDataLoss="false") == [*range(100), *range(150, 200)]
        assert any("shard 0: 100 to 149" in json.dumps(each["sources"]) for each in query.progress)


@pytest.mark.slow("three streaming queries, seconds each")
def test_a_damaged_batch_stops_a_query_or_is_passed_over(spark, tmp_path):
    """One that has read from the stream before, as far as it was whole."""
    folder = tmp_path / "log"
    query = Query(spark, str(folder), tmp_path, startingOffsets="earliest")
    with mainstem.open(folder) as hub:
        fill(hub, count=100, shards=1)
    assert query.run() == list(range(100))
    with mainstem.open(folder) as hub:
        append(hub, "orders", 100, 400, batch=50)
    torn = tear_out(folder, "orders", 0, 320)
    assert (torn.base, torn.end) == (300, 350)
    with pytest.raises(PySparkException, match=r"shard 0: records 300 to 349 are gone \(damaged, .*failOnDataLoss="):
        query.run()
    whole = [*range(300), *range(350, 500)]
    assert query.run(failOnDataLoss="false") == whole
    # It is not met again.
    assert query.run() == whole


@pytest.mark.slow("three streaming queries")
def test_a_query_reads_no_columns_that_it_does_not_ask_for(spark, tmp_path):
    """One of them cannot be read."""
    make_half_spoilt(tmp_path / "log")

    def reader(**options: str) -> DataStreamReader:
        given = {"hub": str(tmp_path / "log"), "startingOffsets": "earliest", **options}
        return spark.readStream.format("mainstem").options(**given)

    def run(rows: DataFrame, name: str) -> list[tuple[int, int]]:
        writing = rows.select("n", "id").writeStream.format("memory").queryName(name).trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination(100)
        return sorted(map(tuple, spark.table(name).collect()))

    whole = [(number, number) for number in range(30)]
    assert run(reader().schema("n LONG, id LONG, _offset LONG").load("wide"), "by_schema") == whole
    assert run(reader(columns="n, id").load("wide"), "by_option") == whole
    # Control: who takes of everything the same two.
    with pytest.raises(PySparkException, match=r"are gone \(damaged"):
        run(reader().load("wide"), "everything")


@pytest.mark.slow("a streaming query")
def test_latest_means_when_it_began_and_where_is_for_streams_too(spark, server, tmp_path):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=1_000)
        query = Query(spark, server.url, tmp_path, startingOffsets="latest", where="id % 10 = 0")
        running = query.start().trigger(processingTime="100 milliseconds").start()
        try:
            deadline = time.monotonic() + 60
            while not running.recentProgress and time.monotonic() < deadline:
                time.sleep(0.1)
            append(hub, "orders", 1_000, 100)
            while time.monotonic() < deadline and query.count() < 10:
                time.sleep(0.2)
        finally:
            running.stop()
        assert query.ids() == list(range(1_000, 1_100, 10))


@pytest.mark.slow("three queries of Spark")
def test_the_records_of_a_key_stay_in_order_where_a_stream_got_more_shards(spark, server, tmp_path):
    """Most keys are in another shard since then: what came after the change must not overtake what came before it."""
    columns = {"id": "int64", "version": "int64"}
    with mainstem.connect(server.url) as hub:
        hub.streams.create("source", shards=2, schema=columns, key="id")
        for version, shards in enumerate((3, 7, None)):
            with hub.producer() as producer:
                producer.send_many("source", [{"id": number, "version": version} for number in range(100)])
            if shards is not None:
                hub.streams.alter("source", shards=shards)
        copies = {"whole": {}, "limited": {"maxOffsetsPerTrigger": "60"}, "small": {"maxBytesPerTrigger": "1000"}}
        for name, options in copies.items():
            hub.streams.create(name, shards=4, schema=columns, key="id")
            asked = {"hub": server.url, "startingOffsets": "earliest", **options}
            checkpoint = str(tmp_path / name)
            query = (
                spark.readStream.format("mainstem")
                .options(**asked)
                .load("source")
                .writeStream.format("mainstem")
                .options(hub=server.url, checkpointLocation=checkpoint)
                .trigger(availableNow=True)
                .start(name)
            )
            query.awaitTermination()
        hub.streams.create("batch", shards=4, schema=columns, key="id")
        frame = spark.read.format("mainstem").options(hub=server.url, partitions="6").load("source")
        frame.write.format("mainstem").mode("append").option("hub", server.url).save("batch")
        for name in (*copies, "batch"):
            found: dict[int, list[int]] = {}
            with hub.consumer(name, start="earliest", follow=False) as consumer:
                for record in consumer:
                    found.setdefault(record.value["id"], []).append(record.value["version"])
            assert found == {number: [0, 1, 2] for number in range(100)}, name


@pytest.mark.parametrize("is_written", [True, False])
def test_progress_needs_a_server(tmp_path, is_written):
    folder = tmp_path / "log"
    with mainstem.open(folder) as hub:
        fill(hub, count=10)
        if not is_written:
            hub.close()
        options = read_options({"hub": str(folder), "stream": "orders", "group": "g"}, streaming=True)
        with pytest.raises(InvalidSetting, match=f"is a folder.* start one .mainstem serve --data {folder}.*"):
            StreamReader(options, types.to_spark(SCHEMA))


@pytest.mark.slow("two streaming queries")
def test_a_query_that_is_a_group_goes_through_the_server(spark, server, tmp_path):
    """Not past it, though the folder is here."""
    with mainstem.connect(server.url) as hub:
        fill(hub, count=10)
        query = Query(spark, str(server.folder), tmp_path, startingOffsets="earliest", group="lake")
        with pytest.raises(PySparkException, match=rf"is a folder.*\(mainstem serve --data {server.folder}\).*7070"):
            query.run()
        assert hub.groups.list() == []
        assert Query(spark, server.url, tmp_path, startingOffsets="earliest", group="lake").run() == list(range(10))
        assert [group.name for group in hub.groups.list()] == ["lake"]


# Without Spark.


def test_an_offset_comes_back_as_it_was():
    offset = QueryOffset("ab", 3, (5, 7), (0, 1), (), (4, 7), 9, group=("lake", 1_700_000_000_000_000))
    told = QueryOffset("ab", 3, (5, 7), lost=((0, 1, 2),), trimmed=((1, 3, 4),)).to_json()
    assert (told["lost"], told["trimmed"]) == (["shard 0: 1 to 2"], ["shard 1: 3 to 4"])
    assert QueryOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert QueryOffset.from_json(dict(INITIAL)) is None
    good = {"stream": "a", "epoch": 1, "offsets": [1]}
    assert QueryOffset.from_json(good) == QueryOffset("a", 1, (1,))
    strange_ones: tuple[Any, ...] = (
        5,
        None,
        [1],
        {},
        {"offsets": [1]},
        {**good, "offsets": [-1]},
        {**good, "group": ["lake"]},
        {"topic": {"0": 5}},
    )
    for strange in strange_ones:
        with pytest.raises(InvalidCursor, match="use another checkpointLocation"):
            QueryOffset.from_json(strange)


def test_a_limit_is_shared_by_the_shards():
    assert shared_out((0, 0), (10, 30), 100) == (10, 30)
    assert shared_out((0, 0), (10, 30), 20) == (5, 15)
    assert shared_out((5, 0), (6, 1_000_000), 10)[1] in (9, 10)
    for limit in range(1, 40):
        ends = shared_out((3, 4, 5), (13, 4, 35), limit)
        assert sum(ends) - 12 == min(limit, 40)
        assert ends[1] == 4


def test_bytes_are_a_limit_too():
    runs = [Run(0, 10, 10, 100, 0), Run(10, 20, 10, 100, 0)]
    assert within_bytes(0, 25, runs, 1_000) == 25
    assert within_bytes(0, 25, runs, 150) == 15
    assert within_bytes(0, 25, runs, 1) == 1
    # Of offsets without records there are no runs.
    assert within_bytes(0, 60, [], 1) == 60


def test_a_reset_is_told_from_progress_and_from_other_members():
    lake = ("lake", 1_700_000_000_000_000)

    def standing(offset: int, generation: int, *, is_reset: bool = False, group: Group = lake) -> Standing:
        return Standing((offset,), generation, frozenset([0] if is_reset else ()), group)

    offset = QueryOffset("ab", 1, (50,), None, (), (40,), 3, group=lake)
    assert not was_reset(offset, standing(40, 3))
    assert not was_reset(offset, standing(50, 4, is_reset=True))
    assert was_reset(offset, standing(10, 4, is_reset=True))
    assert was_reset(offset, standing(10, 4))
    # To where the query was a batch ago; somebody else who came and went as this group has moved nothing.
    assert was_reset(offset, standing(40, 4, is_reset=True))
    assert not was_reset(offset, standing(40, 4))
    # A checkpoint that is older than the group's cursor: nobody has reset anything.
    assert not was_reset(offset, standing(90, 3))
    # Another group stands elsewhere, and so does this one made anew.
    for other in (("pond", lake[1]), ("lake", lake[1] + 1)):
        assert not was_reset(offset, standing(10, 4, is_reset=True, group=other))
    # Where the group was not noted, it is this one.
    assert was_reset(replace(offset, group=None), standing(10, 4, is_reset=True))


def test_a_reset_moves_the_shards_that_it_names():
    """The query is a batch ahead of its group: in the others it goes on where it is, or would read that batch twice."""
    lake = ("lake", 1)
    since = QueryOffset("ab", 1, (50, 60, 70), published=(40, 45, 55), generation=3, group=lake)
    assert moved_to(since, since.offsets, Standing((5, 45, 55), 4, frozenset([0]), lake)) == (5, 60, 70)
    # To where the group stood already; and one after another, of which the group knows the last.
    assert moved_to(since, since.offsets, Standing((40, 45, 55), 4, frozenset([0]), lake)) == (40, 60, 70)
    assert moved_to(since, since.offsets, Standing((5, 45, 9), 5, frozenset([2]), lake)) == (5, 60, 9)
    # What was set to where it stood already is seen of the last alone.
    assert moved_to(since, since.offsets, Standing((40, 45, 9), 5, frozenset([2]), lake)) == (50, 60, 9)


def test_what_was_trimmed_of_a_plan():
    planned = {0: (10, 20), 1: (0, 5), 2: (7, 9)}
    assert gone_since(planned, (10, 0, 7)) == ()
    assert gone_since(planned, (15, 0, 100)) == ((0, 10, 14), (2, 7, 8))
