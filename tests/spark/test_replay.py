"""The job `replay`: a range of history once more, through a function or a query."""

import contextlib
import json
import os
import re
import signal
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import mainstem
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, DeliveryRefused, InvalidRecord, InvalidSetting, TableUnusable
from mainstem.log import staging
from mainstem.spark.jobs.catalogue import loads_of
from mainstem.spark.jobs.comparing import Compared
from mainstem.spark.jobs.lake import Lake
from mainstem.spark.jobs.replay import replay
from mainstem.spark.jobs.warehouse import warehouse
from mainstem.testing.server import ServerProcess
from tests.spark.lakes import CutShort, check_files, cut_at, strays, table_of

pytestmark = pytest.mark.xdist_group("spark")

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"id": rows["id"], "twice": pc.multiply(rows["x"], 2)})


def _changed():
    """That function, corrected."""

    def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"id": rows["id"], "twice": pc.multiply(rows["x"], 3)})

    doubled.__qualname__ = "doubled"
    return doubled


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
    # What was done is in the manifests: how much of the stream, and every file of the table.
    for table, rows in (("f", 3_600), ("q", 10)):
        loads = list(loads_of(tmp_path / table))
        assert (loads[0].rows_read, loads[0].rows_written) == (3_600, rows)
        assert sum(file.rows for load in loads for file in load.files) == rows
        check_files(loads, tmp_path / table)


@pytest.mark.slow("seven replays")
def test_it_is_done_once_and_takes_what_came_late(log, tmp_path, spark):
    given = {"since": START, "until": START + HOUR, "function": doubled, "load_rows": 4_000, "spark": spark}
    for step, number in (("planned", 1), ("written", 1), ("committed", 1), ("written", 1)):
        with pytest.raises(CutShort):
            replay(tmp_path / "log", "clicks", tmp_path / "t", **given, on_step=cut_at(step, number))
    replay(tmp_path / "log", "clicks", tmp_path / "t", **given)
    assert ids(tmp_path / "t") == list(range(3_600))
    # The same name, and not the same replay any more.
    for other in ({"columns": ["id", "x"]}, {"function": _changed()}):
        with pytest.raises(InvalidSetting, match="run before with another range, query, columns or function"):
            replay(tmp_path / "log", "clicks", tmp_path / "t", **{**given, **other})
    assert replay(tmp_path / "log", "clicks", tmp_path / "t", **given).loads == 0
    send(log, [5 * 3_600])
    assert replay(tmp_path / "log", "clicks", tmp_path / "t", **given).rows_written == 0
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
        assert list((state / "_mainstem" / "attempts").iterdir()) == [], "no run that was killed has left its marker"
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
        with pytest.raises(DeliveryRefused, match="was written before with") as refused:
            replay(server.url, "clicks", tmp_path / "lost", **{**into, "load_rows": 500})
        assert "its manifests were lost" in str(refused.value)
        assert "give the replay another name (--name)" in str(refused.value)
        assert not {"checkpoint", "onReplay"} & set(re.findall(r"\w+", str(refused.value)))
        assert len(delivered(hub, "twice")) == 1_500
        # The same rows have the same checksums, whichever tasks had them; also after a kill.
        replay(server.url, "clicks", tmp_path / "again", **into, name="again")
        first, again, other = (checksums(tmp_path / name) for name in ("state", "again", "as is"))
        assert first == again
        # In the last load of both is nothing of that time.
        assert len({*first, *other, ""}) == 6


def checksums(folder: Path) -> list[str]:
    return [manifest.checksum for manifest in loads_of(folder)]


def delivered(hub, stream: str) -> list[dict]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return sorted((record.value for record in consumer), key=lambda row: row["id"])


@pytest.mark.slow("seven replays, through a server")
def test_deletions_are_copied_as_deletions(server, tmp_path, spark):
    """What a stream of rows says of a key last, its copy says too. A table has them as rows of nulls with their places;
    a function and a query are of rows alone."""
    with mainstem.connect(server.url) as hub:
        typed: Any = {"schema": {"id": "int64", "x": "int64"}, "retention": "3650d"}
        hub.streams.create("clicks", shards=2, key="id", **typed)
        hub.streams.create("copy", shards=3, key="id", **typed)
        hub.streams.create("unkeyed", shards=1, **typed)
        hub.streams.create("other", shards=1, key="x", **typed)
        hub.streams.create("twice", shards=1, schema={"id": "int64", "twice": "int64"}, key="id")
        with hub.producer() as producer:
            for number, (key, x) in enumerate(
                [(1, 1), (1, None), (2, 1), (3, None), (2, None), (2, 2), (3, 3), (2, None)]
            ):
                row = None if x is None else {"id": key, "x": x}
                at = START + timedelta(seconds=number)
                # Rows and tombstones, each with headers and without.
                headers = {"number": b"%d" % number} if number in (0, 4, 5) else None
                producer.send("clicks", row, key=key if x is None else None, timestamp=at, headers=headers)
        given = {"since": START, "until": START + HOUR, "spark": spark}
        for into in ("copy", "unkeyed"):
            done = replay(server.url, "clicks", tmp_path / into, into=into, **given)
            assert done.rows_written == 8
            assert by_key(hub, into) == by_key(hub, "clicks")
        with pytest.raises(
            InvalidRecord, match="tombstone of b'1', because its keys are made of x; leave tombstones out"
        ):
            replay(server.url, "clicks", tmp_path / "other", into="other", **given)
        replay(server.url, "clicks", tmp_path / "other", into="other", where="id IS NOT NULL", **given)
        rows = [{"id": 1, "x": 1}, {"id": 2, "x": 1}, {"id": 2, "x": 2}, {"id": 3, "x": 3}]
        assert sorted(delivered(hub, "other"), key=lambda row: row["x"] + 10 * row["id"]) == rows
        replay(server.url, "clicks", tmp_path / "twice", into="twice", function=doubled, columns=["id", "x"], **given)
        assert sorted(row["twice"] for row in delivered(hub, "twice")) == [2, 2, 4, 6]
        replay(server.url, "clicks", tmp_path / "query", sql="SELECT count(*) AS many FROM clicks", **given)
        assert table_of(tmp_path / "query")["many"].to_pylist() == [4]
        replay(server.url, "clicks", tmp_path / "table", **given)
        assert [row["_key"] for row in table_of(tmp_path / "table").to_pylist() if row["id"] is None].count(b"2") == 2


def by_key(hub, stream: str) -> dict[bytes, list]:
    """What is said of each key, in its order."""
    found: dict[bytes, list] = {}
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        for record in consumer:
            found.setdefault(record.key, []).append((record.value, record.timestamp, record.headers))
    return found


@pytest.mark.slow("four replays, through a server")
def test_what_was_begun_is_not_gone_on_with_by_another(server, tmp_path, spark):
    """Also where a first load is not done: another range would go on behind it, and leave its own beginning out."""
    with mainstem.connect(server.url) as hub:
        made(hub)
        given = {"until": START + HOUR, "into": "copy", "name": "n", "load_rows": 800, "spark": spark}
        for step in ("planned", "committed"):
            with pytest.raises(CutShort):
                replay(
                    server.url, "clicks", tmp_path, since=START + timedelta(seconds=900), on_step=cut_at(step), **given
                )
            with pytest.raises(InvalidSetting, match="run before with another range, query, columns or function"):
                replay(server.url, "clicks", tmp_path, since=START, **given)
        replay(server.url, "clicks", tmp_path, since=START + timedelta(seconds=900), **given)
        assert [row["id"] for row in delivered(hub, "copy")] == list(range(900, 2_000))


@pytest.mark.slow("two replays, through a server")
def test_what_tasks_have_staged_goes_with_a_load_that_fails(server, tmp_path, spark):
    def failing(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 1_999 in rows["id"].to_pylist():
            raise InvalidRecord("the last one")
        return rows.select(["id", "x"])

    with mainstem.connect(server.url) as hub:
        made(hub)
        given = {"since": START, "until": START + HOUR, "into": "copy", "function": failing, "spark": spark}
        with pytest.raises(InvalidRecord, match="the last one"):
            replay(server.url, "clicks", tmp_path, **given)
        counts = hub.statistics()
        assert (counts["transactions_open"], counts["transactions_staged_bytes"]) == (0, 0)


@pytest.mark.slow("four replays, through a server and beside a folder")
@pytest.mark.parametrize("is_served", [True, False])
def test_a_delivered_load_is_not_done_again_when_its_records_are_gone(is_served, tmp_path, spark):
    """A run was killed after the log had its last load, and before the manifest said so; then the range was trimmed.
    What its tasks had staged is not left behind."""
    with ServerProcess(tmp_path / "data") if is_served else contextlib.nullcontext() as server:

        def opened():
            return mainstem.open(tmp_path / "data") if server is None else mainstem.connect(server.url)

        with opened() as hub:
            made(hub)
        place = tmp_path / "data" if server is None else server.url
        given = {"since": START, "until": START + HOUR, "into": "copy", "name": "n", "load_rows": 800, "spark": spark}
        with pytest.raises(CutShort):
            replay(place, "clicks", tmp_path / "state", on_step=cut_at("delivered", 3), **given)
        manifest = max((tmp_path / "state" / "_mainstem" / "replay-n").glob("0*.json"))
        ends = Cursor.parse(json.loads(manifest.read_text())["end"]).offsets
        with opened() as hub:
            for shard, end in enumerate(ends):
                hub.streams.trim("clicks", offset=end, shard=shard)
        staged = tmp_path / "data" / staging.FOLDER
        assert any(path.is_file() for path in staged.rglob("*")) is not is_served
        replay(place, "clicks", tmp_path / "state", **given)
        assert [path for path in staged.rglob("*") if path.is_file()] == []
        with opened() as hub:
            assert [row["id"] for row in delivered(hub, "copy")] == list(range(2_000))


@pytest.mark.slow("four replays, through a server")
def test_a_stream_that_was_made_anew_gets_everything_again(server, tmp_path, spark):
    """It has nothing of what was delivered. A replay that has a name is another one then, and is refused under it."""
    with mainstem.connect(server.url) as hub:
        made(hub)
        given: dict[str, Any] = {"since": START, "until": START + HOUR, "into": "copy", "spark": spark}
        for name in (None, "n"):
            replay(server.url, "clicks", tmp_path, name=name, **given)
        assert replay(server.url, "clicks", tmp_path, **given).loads == 0
        hub.streams.delete("copy")
        hub.streams.create("copy", shards=2, schema={"id": "int64", "x": "int64"}, key="id", retention="3650d")
        assert replay(server.url, "clicks", tmp_path, **given).rows_written == 2_000
        with pytest.raises(InvalidSetting, match="or a stream of it was deleted and made anew"):
            replay(server.url, "clicks", tmp_path, name="n", **given)
        assert [row["id"] for row in delivered(hub, "copy")] == list(range(2_000))


def made(hub) -> None:
    """2,000 rows, and a stream to copy them to."""
    schema = {"id": "int64", "x": "int64"}
    hub.streams.create("clicks", shards=2, schema=schema, key="id", retention="3650d")
    hub.streams.create("copy", shards=2, schema=schema, key="id", retention="3650d")
    send(hub, range(2_000))


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
    # What was killed behind its commit has told nobody what is different; the next run does.
    for step in ("committed", "compare", "written"):
        with pytest.raises(CutShort):
            replay(tmp_path / "log", "clicks", table, sql=right, replace=True, on_step=cut_at(step), **given)
    told = replay(tmp_path / "log", "clicks", table, sql=right, replace=True, **given).compared
    assert told is not None
    # The load that was killed before its commit was given up by a version of its own, without rows.
    assert _version(table, told.before) == _version(table, first.table_version)
    assert told == Compared(told.before, added=0, removed=0, changed=36, same=3_564)
    again = replay(tmp_path / "log", "clicks", table, sql=right, replace=True, **given).compared
    assert again is not None
    assert (again.changed, again.same) == (0, 3_600), "what was told is not told again"
    before = {row["id"]: row["x"] for row in _version(table, first.table_version)}
    after = _rows(table)
    assert after == {at: at % 10 for at in range(3_600)}
    assert {at for at in after if after[at] != before[at]} == set(range(0, 3_600, 100))
    # Another range, other columns: of a row that has none of them apart, nothing is changed but the row itself.
    sql = "SELECT if(id < 10, NULL, id) AS id, x, map('x', x) AS more FROM clicks WHERE id >= 5"
    given["until"] = START + 2 * HOUR
    told = replay(tmp_path / "log", "clicks", table, sql=sql, key=["id"], replace=True, **given).compared
    assert told is not None
    assert (told.added, told.removed, told.changed, told.same) == (3_600 + 5, 10, 3_590, 0)
    given["until"] = START + HOUR
    adding = tmp_path / "adding"
    for name, sql in (("wrong", wrong), ("right", right)):
        replay(tmp_path / "log", "clicks", adding, sql=sql, name=name, **given)
    assert table_of(adding).num_rows == 7_200


@pytest.mark.slow("two replays")
def test_a_comparison_that_cannot_be_made_any_more_is_made_with_the_version_before(log, tmp_path, spark):
    """A run was killed before it told what is different; then the files of what it replaced were deleted."""
    table = tmp_path / "t"
    given = {"since": START, "until": START + HOUR, "replace": True, "spark": spark}
    replay(tmp_path / "log", "clicks", table, sql="SELECT id, -x AS x FROM clicks", **given)
    with pytest.raises(CutShort):
        replay(tmp_path / "log", "clicks", table, on_step=cut_at("compare"), **given)
    assert Lake(table).vacuum(0) > 0
    for _ in range(2):
        before = Lake(table).version
        told = replay(tmp_path / "log", "clicks", table, **given).compared
        assert told == Compared(before, added=0, removed=0, changed=0, same=3_600)


@pytest.mark.slow("three replays, three loads")
def test_what_a_table_gets_from_warehouse_is_in_it_once(tmp_path, spark):
    """Records that it has not loaded are its own to load, whatever their time."""
    table = tmp_path / "t"
    given: dict[str, Any] = {"since": START, "until": START + HOUR, "replace": True, "spark": spark}
    with mainstem.open(tmp_path / "log") as hub:
        made(hub)

        def load() -> int:
            return warehouse(tmp_path / "log", "clicks", table, spark=spark).rows_written

        def run(**more):
            return replay(tmp_path / "log", "clicks", table, **{**given, **more})

        assert load() == 2_000
        send(hub, range(2_000, 2_500))
        assert run().rows_written == 2_000
        with pytest.raises(InvalidSetting, match=r"among those that warehouse has loaded, .*nothing was replaced"):
            run(since=START + timedelta(seconds=2_000))
        assert ids(table) == list(range(2_000))
        assert load() == 500
        assert ids(table) == list(range(2_500))

        def meanwhile(step: str, done: int, total: int) -> None:
            if step == "written":
                send(hub, range(2_500, 2_600))
                assert load() == 100

        with pytest.raises(
            TableUnusable, match=r"got rows of another job \(warehouse-.*nothing was replaced, run it again"
        ):
            run(on_step=meanwhile)
        assert ids(table) == list(range(2_600))
        send(hub, range(2_600, 2_700))
        assert run().rows_written == 2_600
        assert load() == 100
        assert ids(table) == list(range(2_700))
    assert strays(table) == []


@pytest.mark.slow("three replays")
def test_a_time_without_records_takes_the_place_of_nothing(log, tmp_path, spark):
    table = tmp_path / "t"
    given = {"replace": True, "spark": spark}
    for hours in (-2, 0):  # an empty table has nothing to lose
        since = START + hours * HOUR
        replay(tmp_path / "log", "clicks", table, since=since, until=since + HOUR, **given)
    since = START + 4 * HOUR
    for sql in (None, "SELECT count(*) AS id FROM clicks"):
        with pytest.raises(InvalidSetting, match=r"no records from 2026-01-31T16.* to before .*nothing was replaced"):
            replay(tmp_path / "log", "clicks", table, since=since, until=since + HOUR, sql=sql, **given)
    assert ids(table) == list(range(3_600))
    # Records of which nothing is made are another thing.
    nothing = replay(
        tmp_path / "log",
        "clicks",
        table,
        since=START,
        until=START + HOUR,
        sql="SELECT * FROM clicks WHERE id < 0",
        **given,
    )
    assert (nothing.rows_read, nothing.rows_written) == (3_600, 0)
    assert ids(table) == []
    assert strays(table) == []


@pytest.mark.slow("eight replays")
def test_a_time_that_is_trimmed_in_part_is_told(tmp_path, spark):
    """Rows that were made of it cannot be made again, so they are not replaced, unless that is asked for in as many
    words. What is later than everything that was trimmed is all there."""
    table = tmp_path / "t"
    with mainstem.open(tmp_path / "log") as hub:
        made(hub)
        given = {"since": START, "until": START + HOUR, "spark": spark}
        replay(tmp_path / "log", "clicks", table, replace=True, **given)
        before = ids(table)
        assert len(before) == 2_000
        for shard in range(2):
            hub.streams.trim("clicks", offset=400, shard=shard)

        def run(place: Path = table, **more):
            return replay(tmp_path / "log", "clicks", place, **{**given, **more})

        with pytest.raises(DataLoss, match=r"'clicks' shard 0: records 0 to 399 were trimmed .*on_loss='skip'") as gone:
            run(tmp_path / "added")
        assert (gone.value.stream, gone.value.shard, gone.value.first, gone.value.last) == ("clicks", 0, 0, 399)
        for on_loss in ("raise", "skip"):
            with pytest.raises(DataLoss, match=r"nothing was replaced.*on_loss='drop'"):
                run(replace=True, on_loss=on_loss)
            assert ids(table) == before
        added = run(tmp_path / "added", on_loss="skip")
        assert (added.rows_written, added.lost) == (1_200, ((0, 0, 400), (1, 0, 400)))
        assert run(tmp_path / "added").loads == 0, "what is done is not asked for again"
        # Into a table that has nothing yet nothing is lost.
        assert run(tmp_path / "new", replace=True, on_loss="skip").rows_written == 1_200
        assert run(replace=True, on_loss="drop", compare=False).rows_written == 1_200
        assert run(tmp_path / "later", since=START + timedelta(seconds=1_200)).rows_written == 800
        with pytest.raises(InvalidSetting, match="on_loss='drop' is of replace"):
            run(tmp_path / "added", on_loss="drop")
        # Late records are behind what was trimmed, and of a time before it.
        send(hub, range(-5, 0))
        for shard, end in enumerate(hub.streams.get("clicks").ends):
            hub.streams.trim("clicks", offset=end - 1, shard=shard)
        with pytest.raises(DataLoss):
            run(tmp_path / "late", since=START + timedelta(seconds=1_200))


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


def test_what_a_function_raises_is_said_with_its_place(log, tmp_path, spark, capfd):
    """At once: it would raise the same the next time. Spark has nothing to say about it."""
    tries = tmp_path / "tries"

    def broken(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            with tries.open("a") as file:
                file.write("x")
            raise ValueError("boom in fn")
        return rows.select(["id"])

    given = {"since": START, "until": START + HOUR, "spark": spark}
    line = broken.__code__.co_firstlineno + 4
    capfd.readouterr()
    with pytest.raises(
        InvalidSetting, match=rf"broken failed: ValueError: boom in fn \(.*test_replay\.py, line {line}\)$"
    ):
        replay(tmp_path / "log", "clicks", tmp_path / "t", function=broken, **given)
    assert "boom in fn" not in capfd.readouterr().err
    assert len(tries.read_text()) <= 6, "three tasks of each of two cores"
    with pytest.raises(InvalidSetting, match=r"made list, not a pyarrow RecordBatch or Table"):
        replay(
            tmp_path / "log",
            "clicks",
            tmp_path / "u",
            function=lambda rows: rows.to_pylist() if rows.num_rows else rows,
            **given,
        )
    with pytest.raises(InvalidSetting, match=r"failed: KeyError: .*nothing"):
        replay(tmp_path / "log", "clicks", tmp_path / "u", function=lambda rows: rows["nothing"], **given)


@pytest.mark.slow("four replays")
def test_the_same_time_in_another_zone_is_the_same_replay(log, tmp_path, spark):
    """By itself, and of a name."""
    zone = timezone(timedelta(hours=2))
    for name in (None, "n"):
        given = {"name": name, "spark": spark}
        for since in (START, START.astimezone(zone)):
            until = since + timedelta(minutes=1)
            replay(tmp_path / "log", "clicks", tmp_path / f"{name}", since=since, until=until, **given)
        assert ids(tmp_path / f"{name}") == list(range(60))


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
    for rows in (0, -5):
        with pytest.raises(InvalidSetting, match=rf"load_rows \(--load-rows\) must be at least 1, not {rows}"):
            run(load_rows=rows)
    with pytest.raises(InvalidSetting, match=r"file_bytes \(--file-size\) must be at least"):
        run(file_bytes=12)
    with pytest.raises(InvalidSetting, match="key tells rows apart where two versions are compared"):
        run(function=doubled, key=["id"])
    for given, what in (
        ({"time": "_timestamp"}, r"time \(--time\) is what partition .* has no effect with none: choose"),
        ({"time": "_timestamp", "partition": "shard"}, "has no effect with shard: choose"),
        ({"load_rows": 5, "replace": True}, r"load_rows \(--load-rows\) has no effect with replace"),
        ({"file_bytes": 1 << 27, "into": "other"}, r"file_bytes \(--file-size\) has no effect with into"),
        ({"compare": False}, r"compare=False \(--no-compare\) has no effect without replace"),
        ({"compare": False, "replace": True, "key": ["id"]}, r"key \(--key\) is for the comparison.*leave one"),
    ):
        with pytest.raises(InvalidSetting, match=what):
            run(function=doubled, **given)
    with pytest.raises(InvalidSetting, match=r"key: the rows have no column 'zz' .*; there are id, twice"):
        run(function=doubled, replace=True, key=["id", "zz"])
    with pytest.raises(InvalidSetting, match="must make a pyarrow RecordBatch or Table of a batch without rows"):
        run(function=lambda rows: None)


def _rows(table: Path) -> dict[int, int]:
    found = table_of(table).to_pylist()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["x"] for row in found}


def _version(table: Path, version: int):
    return pa.table(DeltaTable(str(table), version=version).to_pyarrow_table()).to_pylist()
