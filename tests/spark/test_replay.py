"""The job `replay`: a range of history once more, through a function or a query."""

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import mainstem
from mainstem.core.errors import DeliveryRefused, InvalidSetting
from mainstem.spark.jobs.replay import replay
from tests.spark.lakes import CutShort, cut_at, strays, table_of

pytestmark = pytest.mark.xdist_group("spark")

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"id": rows["id"], "twice": pc.multiply(rows["x"], 2)})


@pytest.fixture
def log(tmp_path):
    """A row every second of three hours, by the time that its producer says; 60 of the first hour came late."""
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("clicks", shards=2, schema={"id": "int64", "x": "int64"}, key="id", retention="3650d")
        send(hub, range(60, 3 * 3_600))
        send(hub, range(60))
        yield hub


def send(hub, ids) -> None:
    with hub.producer() as producer:
        for number in ids:
            producer.send("clicks", {"id": number, "x": number % 10}, timestamp=START + timedelta(seconds=number))


def ids(table: Path) -> list[int]:
    return sorted(table_of(table)["id"].to_pylist())


@pytest.mark.slow("three hours of records, and two replays")
def test_a_range_through_a_function_and_a_query(log, tmp_path, spark):
    place = tmp_path / "log"
    done = replay(
        place,
        "clicks",
        tmp_path / "f",
        since=START,
        until=START + HOUR,
        function="tests.spark.test_replay:doubled",
        spark=spark,
    )
    assert (done.rows_read, done.rows_written) == (3_600, 3_600)
    assert ids(tmp_path / "f") == list(range(3_600))
    assert sum(table_of(tmp_path / "f")["twice"].to_pylist()) == 2 * sum(at % 10 for at in range(3_600))
    sql = "SELECT x, count(*) AS many FROM clicks GROUP BY x"
    replay(place, "clicks", tmp_path / "q", since=START + HOUR, until=START + 2 * HOUR, sql=sql, spark=spark)
    assert {row["x"]: row["many"] for row in table_of(tmp_path / "q").to_pylist()} == dict.fromkeys(range(10), 360)


@pytest.mark.slow("seven replays")
def test_it_is_done_once_and_takes_what_came_late(log, tmp_path, spark):
    given = {"since": START, "until": START + HOUR, "function": doubled, "load_rows": 4_000, "spark": spark}
    for step, number in (("planned", 1), ("written", 1), ("committed", 1), ("written", 1)):
        with pytest.raises(CutShort):
            replay(tmp_path / "log", "clicks", tmp_path / "t", **given, on_step=cut_at(step, number))
    replay(tmp_path / "log", "clicks", tmp_path / "t", **given)
    assert ids(tmp_path / "t") == list(range(3_600))
    assert replay(tmp_path / "log", "clicks", tmp_path / "t", **given).loads == 0
    with log.producer() as producer:
        producer.send("clicks", {"id": -1, "x": 1}, timestamp=START)
    assert replay(tmp_path / "log", "clicks", tmp_path / "t", **given).rows_written == 1
    assert ids(tmp_path / "t") == [-1, *range(3_600)]
    assert strays(tmp_path / "t") == []


@pytest.mark.slow("ten replays, through a server")
def test_into_another_stream(server, tmp_path, spark):
    """Delivered once, whatever was killed in between; other rows under the same number are refused."""
    with mainstem.connect(server.url) as hub:
        hub.streams.create("clicks", shards=2, schema={"id": "int64", "x": "int64"}, key="id", retention="3650d")
        hub.streams.create("twice", shards=3, schema={"id": "int64", "twice": "int64"}, key="id")
        hub.streams.create("copy", shards=1, schema={"id": "int64", "x": "int64"}, retention="3650d")
        send(hub, range(2_000))
        given = {"since": START, "until": START + timedelta(seconds=1_500), "load_rows": 800, "spark": spark}
        into = {**given, "into": "twice", "function": doubled}
        state = tmp_path / "state"
        for step in ("planned", "wrote", "written", "committed", "committed"):
            with pytest.raises(CutShort):
                replay(server.url, "clicks", state, on_step=cut_at(step), **into)
        replay(server.url, "clicks", state, **into)
        assert delivered(hub, "twice") == [{"id": at, "twice": 2 * (at % 10)} for at in range(1_500)]
        assert replay(server.url, "clicks", state, **into).loads == 0
        assert list(state.rglob("_mainstem/attempts/*")) == []
        # As they are, with their times; and through a query.
        replay(server.url, "clicks", tmp_path / "as is", into="copy", **given)
        assert delivered(hub, "copy") == [{"id": at, "x": at % 10} for at in range(1_500)]
        with hub.consumer("copy", start="earliest", follow=False) as consumer:
            times = {record.value["id"]: record.timestamp for record in consumer}
        assert times == {at: START + timedelta(seconds=at) for at in range(1_500)}
        sql = "SELECT id + 10000 AS id, x FROM clicks WHERE x = 3"
        done = replay(server.url, "clicks", tmp_path / "query", into="copy", sql=sql, **given)
        assert (done.rows_read, done.rows_written) == (1_500, 150)
        assert len(delivered(hub, "copy")) == 1_650
        # Without its manifests, the same job comes with other loads.
        with pytest.raises(DeliveryRefused, match="was written before with"):
            replay(server.url, "clicks", tmp_path / "lost", **{**into, "load_rows": 500})
        assert len(delivered(hub, "twice")) == 1_500


def delivered(hub, stream: str) -> list[dict]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return sorted((record.value for record in consumer), key=lambda row: row["id"])


@pytest.mark.mechanism("P15")
@pytest.mark.slow("five replays")
def test_a_corrected_version_takes_the_place_of_the_wrong_one(log, tmp_path, spark):
    """Rows that the correction does not touch are the same; readers of the old version still have it. The control: a
    replay that adds instead has every row twice."""
    table = tmp_path / "orders"
    given = {"since": START, "until": START + HOUR, "spark": spark}
    wrong = "SELECT id, if(id % 100 = 0, -1, x) AS x FROM clicks"
    right = "SELECT id, x FROM clicks"
    first = replay(tmp_path / "log", "clicks", table, sql=wrong, replace=True, **given)
    with pytest.raises(CutShort):
        replay(tmp_path / "log", "clicks", table, sql=right, replace=True, on_step=cut_at("written"), **given)
    assert _rows(table) == {at: -1 if at % 100 == 0 else at % 10 for at in range(3_600)}
    replay(tmp_path / "log", "clicks", table, sql=right, replace=True, **given)
    before = {row["id"]: row["x"] for row in _version(table, first.table_version)}
    after = _rows(table)
    assert after == {at: at % 10 for at in range(3_600)}
    assert {at for at in after if after[at] != before[at]} == set(range(0, 3_600, 100))
    adding = tmp_path / "adding"
    for name in ("wrong", "right"):
        replay(tmp_path / "log", "clicks", adding, sql=right, name=name, **given)
    assert table_of(adding).num_rows == 7_200


def test_a_worker_that_is_killed_is_replaced(log, tmp_path, spark):
    """Spark does its task again; what it had written is not in the table, and not left behind."""
    once = tmp_path / "killed"

    def deadly(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows.select(["id"])

    done = replay(
        tmp_path / "log", "clicks", tmp_path / "t", since=START, until=START + HOUR, function=deadly, spark=spark
    )
    assert once.exists()
    assert done.rows_written == 3_600
    assert ids(tmp_path / "t") == list(range(3_600))
    assert strays(tmp_path / "t") == []


def test_what_cannot_be_done_is_said(log, tmp_path, spark):
    def run(**given):
        replay(
            tmp_path / "log", "clicks", tmp_path / "t", **{"since": START, "until": START + HOUR, **given}, spark=spark
        )

    with pytest.raises(InvalidSetting, match="must be before until"):
        run(until=START)
    with pytest.raises(InvalidSetting, match="since: a time needs a time zone"):
        run(since=START.replace(tzinfo=None))
    with pytest.raises(InvalidSetting, match="give sql or a function, not both"):
        run(sql="SELECT 1", function=doubled)
    with pytest.raises(InvalidSetting, match="into itself would read what it writes"):
        run(into="clicks")
    with pytest.raises(InvalidSetting, match="function 'nowhere:f' cannot be found"):
        run(function="nowhere:f")
    with pytest.raises(InvalidSetting, match="must make a pyarrow RecordBatch or Table of a batch without rows"):
        run(function=lambda rows: None)


def _rows(table: Path) -> dict[int, int]:
    found = table_of(table).to_pylist()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["x"] for row in found}


def _version(table: Path, version: int):
    return pa.table(DeltaTable(str(table), version=version).to_pyarrow_table()).to_pylist()
