"""The job `warehouse`: a stream in a Delta table, exactly once, in the right partitions, for every reader."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import mainstem
from mainstem.core.batch import TIME_US_MAX
from mainstem.core.cursor import Cursor
from mainstem.core.errors import (
    DataLoss,
    InvalidRequest,
    InvalidSetting,
    SchemaMismatch,
    TableUnusable,
    UndecodedRecords,
)
from mainstem.spark.jobs.audit import audit
from mainstem.spark.jobs.catalogue import loads_of
from mainstem.spark.jobs.lake import SMALL_FILES_MAX, Mode
from mainstem.spark.jobs.loading import Loading
from mainstem.spark.jobs.manifest import Manifests
from mainstem.spark.jobs.partitions import Partitioning
from mainstem.spark.jobs.reconciliation import tier_counts
from mainstem.spark.jobs.replay import replay
from mainstem.spark.jobs.snapshot import snapshot
from mainstem.spark.jobs.warehouse import warehouse
from mainstem.transport.port import MomentCall
from tests.spark.lakes import STEPS, CutShort, check_files, cut_at, strays, table_of

pytestmark = pytest.mark.xdist_group("spark")

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("ts", TIME), ("country", pa.string()), ("x", pa.float64())])
START = datetime(2026, 1, 31, 22, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000


def orders(first: int, count: int, step: timedelta = timedelta(seconds=1)) -> pa.Table:
    """A row every second, or more often."""
    ids = np.arange(first, first + count)
    return pa.table(
        [
            pa.array(ids, pa.int64()),
            pa.array(ids * (step // timedelta(microseconds=1)) + START_US).cast(TIME),
            pa.array(np.array(["DE", "FR", "IT"])[ids % 3]),
            pa.array(ids / 4),
        ],
        schema=SCHEMA,
    )


def send(hub, rows: pa.Table, stream: str = "orders") -> None:
    with hub.producer() as producer:
        producer.send_batch(stream, rows)


@pytest.fixture
def log(tmp_path):
    """A log with 3,000 orders in two shards."""
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("orders", shards=2, schema=SCHEMA, key="id")
        send(hub, orders(0, 3_000))
        yield hub


def ids(table: Path) -> list[int]:
    return sorted(table_of(table)["id"].to_pylist())


@pytest.mark.slow("the first to use Spark's workers")
def test_every_run_loads_what_is_new(log, tmp_path, spark):
    table = tmp_path / "orders"
    done = warehouse(tmp_path / "log", "orders", table, spark=spark)
    assert (done.loads, done.rows_read, done.rows_written, done.table_version) == (1, 3_000, 3_000, 1)
    assert Cursor.parse(done.end).offsets == log.streams.get("orders").ends
    send(log, orders(3_000, 500))
    more = warehouse(tmp_path / "log", "orders", table, spark=spark)
    assert (more.loads, more.rows_read, more.start) == (1, 500, done.end)
    nothing = warehouse(tmp_path / "log", "orders", table, spark=spark)
    assert (nothing.loads, nothing.rows_written, nothing.end) == (0, 0, more.end)
    found = table_of(table).sort_by("id")
    assert found.select(SCHEMA.names).cast(SCHEMA).equals(orders(0, 3_500).combine_chunks())
    assert len(set(zip(found["_shard"].to_pylist(), found["_offset"].to_pylist(), strict=True))) == 3_500
    manifests = list(Manifests(table, f"warehouse-{log.streams.get('orders').uuid}").all())
    assert [(one.number, one.state, one.rows_written) for one in manifests] == [(1, "done", 3_000), (2, "done", 500)]
    assert [(one.start, one.end) for one in manifests] == [(done.start, done.end), (more.start, more.end)]
    assert sum(file.rows for one in manifests for file in one.files) == 3_500
    check_files(manifests, table)
    assert strays(table) == []


@pytest.mark.slow("two runs of several loads")
@pytest.mark.parametrize("sql", [None, "SELECT id, ts FROM orders"])
def test_the_partitions_are_checked_once_in_a_run(log, tmp_path, spark, monkeypatch, sql):
    checked = []
    check = Partitioning.check

    def noted(self: Partitioning, schema: pa.Schema) -> None:
        checked.append(schema)
        check(self, schema)

    monkeypatch.setattr(Partitioning, "check", noted)
    done = warehouse(
        tmp_path / "log", "orders", tmp_path / "t", partition="hour", time="ts", sql=sql, load_rows=1_000, spark=spark
    )
    assert done.loads > 2
    assert done.rows_written == 3_000
    assert len(checked) == 1


@pytest.mark.slow("three engines")
def test_duckdb_polars_and_spark_read_it(log, tmp_path, spark):
    table = tmp_path / "orders"
    warehouse(tmp_path / "log", "orders", table, partition="hour", time="ts", spark=spark)
    # Files have the columns that the stream had when they were written.
    log.streams.set_schema("orders", pa.schema([*SCHEMA, pa.field("note", pa.string())]))
    send(log, orders(3_000, 3_000).append_column("note", pa.array(["new"] * 3_000)))
    warehouse(tmp_path / "log", "orders", table, partition="hour", time="ts", spark=spark)
    wanted = {(country, count) for country, count in (("DE", 2_000), ("FR", 2_000), ("IT", 2_000))}
    for by_duckdb in (files_in_duckdb(table), duckdb.from_arrow(DeltaTable(str(table)).to_pyarrow_dataset())):
        assert set(by_duckdb.aggregate("country, count(*)").fetchall()) == wanted
        for condition, count in (("_hour = 23", 2_400), ("note = 'new'", 3_000), ("note IS NULL", 3_000)):
            assert by_duckdb.filter(condition).aggregate("count(*)").fetchall() == [(count,)], condition
    assert set(pl.scan_delta(str(table)).group_by("country").len().collect().rows()) == wanted
    assert pl.scan_delta(str(table)).filter(pl.col("note") == "new").select(pl.len()).collect().item() == 3_000
    frame = by_spark(spark, table)
    assert {tuple(row) for row in frame.groupBy("country").count().collect()} == wanted
    assert frame.where("_hour = 23").count() == 2_400
    assert frame.where("note = 'new'").count() == 3_000
    assert frame.agg({"x": "sum"}).collect()[0][0] == sum(at / 4 for at in range(6_000))


def files_in_duckdb(table):
    """As the page about jobs has it."""
    return duckdb.read_parquet(files_of(table), hive_partitioning=True, union_by_name=True)


def by_spark(spark, table):
    """A table as Spark's own reader of Parquet reads it."""
    return spark.read.options(basePath=str(table), mergeSchema=True).parquet(*files_of(table))


def files_of(table):
    return [unquote(file) for file in DeltaTable(str(table)).file_uris()]


@pytest.mark.slow("five jobs, three engines")
def test_a_folder_may_have_any_name(log, tmp_path, spark):
    """delta-rs escapes some characters of it where it says where its files are."""
    place = tmp_path / "my täble + 50% #1"
    given: dict[str, Any] = {"spark": spark}
    kinds: dict[str, dict[str, Any]] = {"added": {"partition": "hour", "time": "ts"}, "keyed": {"mode": "upsert"}}
    for table, options in kinds.items():
        warehouse(tmp_path / "log", "orders", place / table, **options, **given, vacuum="0s")
        found = files_in_duckdb(place / table)
        assert found.aggregate("count(*), sum(x)").fetchall() == [(3_000, sum(at / 4 for at in range(3_000)))]
        assert by_spark(spark, place / table).count() == 3_000
        rows = pl.scan_pyarrow_dataset(DeltaTable(str(place / table)).to_pyarrow_dataset())
        assert rows.select(pl.len()).collect().item() == 3_000
    assert by_spark(spark, place / "added").where("_hour = 22").count() == 3_000
    done = snapshot(tmp_path / "log", "orders", place / "snapshot", **given)
    assert done.rows_written == 3_000
    now, day = datetime.now(UTC), timedelta(days=1)
    for _ in range(2):
        done = replay(
            tmp_path / "log",
            "orders",
            place / "again",
            since=now - day,
            until=now + day,
            replace=True,
            sql="SELECT id, x FROM orders",
            **given,
        )
    assert done.compared is not None
    assert done.compared.same == 3_000
    for table in ("added", "keyed", "again", "snapshot/rows"):
        assert strays(place / table) == []
    assert [path.name for path in tmp_path.iterdir() if "50" in path.name] == [place.name]


@pytest.mark.slow("two runs, three engines")
def test_a_table_of_keys_is_read_by_all_three(tmp_path, spark):
    table = tmp_path / "stock"
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("stock", schema={"item": "string", "left": "int64"}, key="item")
        for count in range(2):
            for item in ("bolt", "cog", "nut"):
                producer.send("stock", {"item": item, "left": count})
            producer.send("stock", None, key=b"cog")
            producer.flush()
            warehouse(tmp_path / "log", "stock", table, mode="upsert", spark=spark)
            hub.streams.set_schema("stock", {"item": "string", "left": "int64", "place": "string"})
        producer.send("stock", {"item": "cog", "left": 7, "place": "B4"})
        producer.flush()
        warehouse(tmp_path / "log", "stock", table, mode="upsert", spark=spark)
    wanted = {("bolt", 1, None), ("nut", 1, None), ("cog", 7, "B4")}
    by_duckdb = files_in_duckdb(table)
    assert set(by_duckdb.select("item", '"left"', "place").fetchall()) == wanted
    assert by_duckdb.filter("item = 'cog'").select("place").fetchall() == [("B4",)]
    assert set(pl.scan_delta(str(table)).select("item", "left", "place").collect().rows()) == wanted
    assert {tuple(row) for row in by_spark(spark, table).select("item", "left", "place").collect()} == wanted


@pytest.mark.slow("two runs")
def test_late_rows_go_to_the_partition_of_their_time(log, tmp_path, spark):
    table = tmp_path / "orders"
    warehouse(tmp_path / "log", "orders", table, partition="day", time="ts", spark=spark)
    late = orders(90_000, 10).set_column(
        1, SCHEMA.field("ts"), pa.array([START - timedelta(days=3)] * 10, SCHEMA[1].type)
    )
    send(log, late)
    send(log, orders(9_000, 10))
    warehouse(tmp_path / "log", "orders", table, partition="day", time="ts", spark=spark)
    found = table_of(table)
    assert all(day == ts.date() for day, ts in zip(found["_date"].to_pylist(), found["ts"].to_pylist(), strict=True))
    assert found.num_rows == 3_020
    assert DeltaTable(str(table)).partitions()[0].keys() == {"_date"}
    check_files(loads_of(table), table)


@pytest.mark.slow("a run cut short at each of its steps, and one more for each")
def test_a_run_that_is_cut_short_anywhere_is_done_once(log, tmp_path, spark):
    for step in STEPS:
        for mode in ("append", "upsert"):
            table = tmp_path / f"{step}-{mode}"
            with pytest.raises(CutShort):
                warehouse(
                    tmp_path / "log", "orders", table, mode=mode, load_rows=2_000, spark=spark, on_step=cut_at(step)
                )
            done = warehouse(tmp_path / "log", "orders", table, mode=mode, load_rows=2_000, spark=spark)
            assert ids(table) == list(range(3_000)), (step, mode)
            assert strays(table) == [], (step, mode)
            assert done.loads == (1 if step in ("committed", "done") else 2), (step, mode)


# Runs a job in a process of its own, which is killed at one of its steps.
KILLED = """
import os, signal, sys
from mainstem.spark import session
from mainstem.spark.jobs.warehouse import warehouse

log, table, step = sys.argv[1:]

def kill(name, done, total):
    if name == step:
        os.kill(os.getpid(), signal.SIGKILL)

spark = session("killed", "local[2]", {"spark.ui.enabled": False, "spark.local.dir": os.path.dirname(table)})
warehouse(log, "orders", table, partition="hour", time="ts", load_rows=300_000, spark=spark, on_step=kill)
"""


@pytest.mark.mechanism("K25", "P3")
@pytest.mark.slow("a million rows in two tables, and a process of Spark that is killed")
def test_a_load_that_is_killed_and_run_again_changes_nothing(tmp_path, spark, monkeypatch):
    """Offsets are committed with the rows: every load is in the table once, as many rows as the producer says it sent,
    each in the partition of its hour, also the one in a hundred that comes hours late. Without that, a load comes
    twice."""
    count = 1_000_000
    table = tmp_path / "orders"
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("orders", shards=4, schema=SCHEMA, key="id")
        with hub.producer(counts="1s") as producer:
            is_late = pa.array(np.arange(100_000) % 100 == 99)
            late = SCHEMA.empty_table()
            for first in range(0, count, 100_000):
                rows = orders(first, 100_000, timedelta(milliseconds=100))
                producer.send_batch("orders", pa.concat_tables([rows.filter(pc.invert(is_late)), late]))
                late = rows.filter(is_late)
            producer.send_batch("orders", late)
    given = {"partition": "hour", "time": "ts", "load_rows": 300_000, "spark": spark}
    # The worst place: the table has the load, and nothing else says so.
    child = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "log", table, "committed"], check=False, timeout=180
    )
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(CutShort):
        warehouse(tmp_path / "log", "orders", table, **given, on_step=cut_at("written", 1))
    done = warehouse(tmp_path / "log", "orders", table, **given)
    assert done.loads == 3
    found = table_of(table)
    assert found.num_rows == len(pc.unique(found["id"])) == count
    assert pc.min_max(found["id"]).as_py() == {"min": 0, "max": count - 1}
    assert pc.all(pc.equal(found["_hour"], pc.hour(found["ts"]).cast(pa.int32()))).as_py()
    assert pc.all(pc.equal(found["_date"], found["ts"].cast(pa.date32()))).as_py()
    assert _come_late(found) > 9_000
    audited = audit(tmp_path / "log", "orders", tables=[table], settle="1s", spark=spark)
    tiers = {tier.tier: (tier.expected, tier.seen) for tier in tier_counts(audited.reconciliation, {})}
    assert audited.is_good
    assert set(tiers.values()) == {(count, count)}
    assert len(tiers) == 3, "stored, read, and the table"
    before = DeltaTable(str(table)).version()
    again = warehouse(tmp_path / "log", "orders", table, **given)
    assert (again.loads, DeltaTable(str(table)).version()) == (0, before)
    # The control: nobody asks the table which loads it has, neither at first nor when it commits.
    monkeypatch.setattr(Loading, "_settled", lambda loading: 0)
    monkeypatch.setattr("mainstem.spark.jobs.lake._require_next", lambda *given, **more: None)
    careless = tmp_path / "careless"
    given["compact"] = False
    with pytest.raises(CutShort):
        warehouse(tmp_path / "log", "orders", careless, **given, on_step=cut_at("committed"))
    warehouse(tmp_path / "log", "orders", careless, **given)
    assert table_of(careless).num_rows > count


def _come_late(rows: pa.Table) -> int:
    """How many stand in their shard behind one of a later hour."""
    placed = rows.sort_by([("_shard", "ascending"), ("_offset", "ascending")])
    shards, hours = placed["_shard"].to_numpy(), placed["ts"].cast(pa.int64()).to_numpy() // 3_600_000_000
    by_shard = (hours[shards == shard] for shard in np.unique(shards))
    return sum(int((each < np.maximum.accumulate(each)).sum()) for each in by_shard)


@pytest.mark.slow("three runs")
@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("settled", "has load 1 of this job already"),
        ("wrote", r"a load of .* was given up by another run"),
        ("written", r"a load of .* was given up by another run"),
    ],
)
def test_two_that_run_at_once_load_everything_once(log, tmp_path, spark, monkeypatch, step, what):
    """Where a lock does not hold, as between machines, the table decides: the second to commit a load is refused, and
    the next run goes on where the first has come to."""
    table = tmp_path / "orders"

    def unlocked(manifests: Manifests) -> contextlib.AbstractContextManager[None]:
        manifests.folder.mkdir(parents=True, exist_ok=True)
        return contextlib.nullcontext()

    monkeypatch.setattr(Manifests, "locked", unlocked)

    def overtaken(name: str, done: int, total: int) -> None:
        if name == step:
            with contextlib.suppress(CutShort):
                warehouse(tmp_path / "log", "orders", table, load_rows=2_000, spark=spark, on_step=cut_at("committed"))

    with pytest.raises(TableUnusable, match=what):
        warehouse(tmp_path / "log", "orders", table, spark=spark, on_step=overtaken)
    send(log, orders(3_000, 10))
    done = warehouse(tmp_path / "log", "orders", table, spark=spark)
    # A cut in proportion to the shards is a row or so short of 2,000.
    assert done.loads == 1
    assert 1_010 <= done.rows_read < 1_020
    assert ids(table) == list(range(3_010))
    assert strays(table) == []


@pytest.mark.slow("two kinds of job")
def test_what_cannot_be_read_is_told_as_it_is(log, tmp_path, spark):
    """Also where the records go through Spark: it is not tried again, and no error of Spark's."""
    log.streams.create("lines", shards=2)
    with log.producer() as producer:
        producer.send("lines", b"no row")
    log.streams.set_schema("lines", {"item": "string"})
    with log.producer() as producer:
        producer.send("lines", {"item": "b"})
    for name, sql in (("copied", None), ("queried", "SELECT item FROM lines ORDER BY item")):
        with pytest.raises(UndecodedRecords) as told:
            warehouse(tmp_path / "log", "lines", tmp_path / name, sql=sql, spark=spark)
        assert (told.value.stream, told.value.first, told.value.last) == ("lines", 0, 0)
        assert str(told.value).endswith("; run the job with on_bad='skip' (--on-bad skip) to go on after it")
        done = warehouse(tmp_path / "log", "lines", tmp_path / name, sql=sql, on_bad="skip", spark=spark)
        assert (done.undecoded, done.rows_written) == (1, 1)

    def trim(step: str, done: int, total: int) -> None:
        if step == "prepared":
            log.streams.trim("orders", offset=10, shard=1)

    with pytest.raises(DataLoss) as gone:
        snapshot(tmp_path / "log", "orders", tmp_path / "snapshot", on_step=trim, spark=spark)
    assert (gone.value.stream, gone.value.shard, gone.value.first, gone.value.last) == ("orders", 1, 0, 9)
    assert str(gone.value).endswith("; run the job with on_loss='skip' (--on-loss skip) to go on after them")


@pytest.mark.slow("queries of Spark, one with a shuffle")
def test_a_query_makes_the_rows(log, tmp_path, spark):
    table = tmp_path / "germans"
    sql = "SELECT id, x * 2 AS twice, date_format(ts, 'HH') AS hour, _offset FROM orders WHERE country = 'DE'"
    # Whatever the zone of the machine, which is that of the user's session.
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    done = warehouse(tmp_path / "log", "orders", table, sql=sql, spark=elsewhere)
    assert (done.rows_read, done.rows_written) == (3_000, 1_000)
    found = table_of(table).sort_by("id")
    assert found["id"].to_pylist() == list(range(0, 3_000, 3))
    assert found["twice"].to_pylist() == [at / 2 for at in range(0, 3_000, 3)]
    assert found.column_names == ["id", "twice", "hour", "_offset"]
    assert found["hour"].to_pylist() == [f"{time:%H}" for time in orders(0, 3_000)["ts"].to_pylist()[::3]]
    assert elsewhere.conf.get("spark.sql.session.timeZone") == "Asia/Kolkata"
    (load,) = loads_of(table)
    assert (load.rows_read, load.rows_written, sum(file.rows for file in load.files)) == (3_000, 1_000, 1_000)
    check_files([load], table)
    with pytest.raises(
        InvalidSetting, match=r"^sql: [^\n]*contry(?:(?!Project|\\n).)*; the rows are the table `orders`$"
    ):
        warehouse(tmp_path / "log", "orders", tmp_path / "bad", sql="SELECT contry FROM orders", spark=spark)
    with pytest.raises(InvalidRequest, match="is no query"):
        warehouse(tmp_path / "log", "orders", tmp_path / "bad", sql="DROP TABLE orders", spark=spark)
    sums = tmp_path / "sums"
    warehouse(
        tmp_path / "log",
        "orders",
        sums,
        sql="SELECT country, count(*) AS orders FROM orders GROUP BY country",
        spark=spark,
    )
    assert {row["country"]: row["orders"] for row in table_of(sums).to_pylist()} == dict.fromkeys(
        ["DE", "FR", "IT"], 1_000
    )


@pytest.mark.slow("many small loads")
def test_one_row_for_each_key(tmp_path, spark):
    """Newer rows win, tombstones delete, also where the stream got more shards between two records of a key."""
    table = tmp_path / "latest"
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("stock", shards=2, schema={"item": "string", "left": "int64"}, key="item")
        wanted: dict[str, int] = {}

        def write(**rows: int | None) -> None:
            with hub.producer() as producer:
                for item, left in rows.items():
                    if left is None:
                        producer.send("stock", None, key=item.encode())
                        wanted.pop(item, None)
                    else:
                        producer.send("stock", {"item": item, "left": left})
                        wanted[item] = left

        def check() -> None:
            warehouse(tmp_path / "log", "stock", table, mode="upsert", load_rows=20, spark=spark, vacuum="0s")
            found = table_of(table)
            # Merges leave a file or more each; those are made into few, and what is not needed any more is deleted.
            files = DeltaTable(str(table)).file_uris()
            assert len(files) <= SMALL_FILES_MAX
            assert {Path(file).name for file in files} == {file.name for file in table.glob("*.parquet")}
            assert {row["item"]: row["left"] for row in found.to_pylist()} == wanted
            assert found.num_rows == len(wanted)

        write(**{f"item{at}": at for at in range(40)})
        write(**{f"item{at}": at + 100 for at in range(0, 40, 2)})
        write(item3=None, item4=None)
        check()
        hub.streams.alter("stock", shards=5)
        write(**{f"item{at}": at + 200 for at in range(0, 40, 4)})
        write(item5=None, item3=9)
        check()
        check()
    with pytest.raises(InvalidSetting, match="mode='upsert' takes neither partition nor sql"):
        warehouse(tmp_path / "log", "stock", table, mode="upsert", partition="day", spark=spark)


@pytest.mark.slow("may be the first to use Spark's workers")
def test_what_comes_after_a_first_run_that_loaded_nothing_is_loaded(log, tmp_path, spark):
    """The latest record is another one in every run; the first run has said which it is."""
    table = tmp_path / "orders"
    given = {"start": "latest", "spark": spark}
    first = warehouse(tmp_path / "log", "orders", table, **given)
    assert (first.loads, Cursor.parse(first.end).offsets) == (0, log.streams.get("orders").ends)
    send(log, orders(3_000, 10))
    log.streams.alter("orders", shards=3)
    send(log, orders(3_010, 10))
    with pytest.raises(CutShort):
        warehouse(tmp_path / "log", "orders", table, **given, on_step=cut_at("written"))
    done = warehouse(tmp_path / "log", "orders", table, **given)
    assert (done.rows_read, ids(table)) == (20, list(range(3_000, 3_020)))
    assert Cursor.parse(done.start).offsets == (*Cursor.parse(first.end).offsets, 0)
    assert warehouse(tmp_path / "log", "orders", table, start="earliest", spark=spark).loads == 0


def test_another_start_takes_the_place_of_one_that_loaded_nothing(log, tmp_path, spark):
    table = tmp_path / "orders"

    def start_of(start: Any) -> tuple[int, ...]:
        return Cursor.parse(warehouse(tmp_path / "log", "orders", table, start=start, spark=spark).start).offsets

    before = log.streams.get("orders").ends
    assert start_of("latest") == before
    send(log, orders(3_000, 10))
    with pytest.raises(CutShort):
        warehouse(tmp_path / "log", "orders", table, start="earliest", spark=spark, on_step=cut_at("planned"))
    after = log.streams.get("orders").ends
    assert after != before
    assert start_of("latest") == after
    # One that is made anew is another stream.
    log.streams.delete("orders")
    log.streams.create("orders", shards=2, schema=SCHEMA, key="id")
    send(log, orders(0, 10))
    assert start_of("latest") == log.streams.get("orders").ends


def test_a_first_run_that_begins_at_a_time(tmp_path, spark):
    """How long ago is another time in every run; a time that has not come yet is no place yet."""
    now = datetime.now(UTC)
    table = tmp_path / "timed"
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("timed", schema={"id": "int64"})

        def note(number: int, time: datetime) -> None:
            producer.send("timed", {"id": number}, timestamp=time).result(10)

        def run(folder: Path, start: Any) -> list[int]:
            done = warehouse(tmp_path / "log", "timed", folder, start=start, spark=spark)
            return ids(folder) if done.loads else []

        note(1, now - timedelta(hours=3))
        assert run(table, "1h") == []
        # As if the next run came an hour after this one.
        note(2, now - timedelta(hours=2))
        assert run(table, "1h") == [2]
        ahead = tmp_path / "ahead"
        assert run(ahead, now + timedelta(minutes=1)) == []
        note(3, now)
        assert run(ahead, now + timedelta(minutes=1)) == []
        note(4, now + timedelta(minutes=2))
        assert run(ahead, now + timedelta(minutes=1)) == [4]
    with pytest.raises(InvalidSetting, match="start must be"):
        warehouse(tmp_path / "log", "timed", tmp_path / "other", start="yesterday", spark=spark)


def test_what_is_trimmed_after_a_first_run_that_was_killed_is_told_or_passed_over(log, tmp_path, spark):
    table = tmp_path / "orders"
    with pytest.raises(CutShort):
        warehouse(tmp_path / "log", "orders", table, spark=spark, on_step=cut_at("written"))
    ends = log.streams.get("orders").ends
    for shard, end in enumerate(ends):
        log.streams.trim("orders", offset=end - 100, shard=shard)
    with pytest.raises(DataLoss, match=r"shard 0: records 0 to \d+ were trimmed before this job read them"):
        warehouse(tmp_path / "log", "orders", table, spark=spark)
    done = warehouse(tmp_path / "log", "orders", table, on_loss="skip", spark=spark)
    assert (done.rows_read, len(ids(table))) == (200, 200)
    assert done.lost == tuple((shard, 0, end - 100) for shard, end in enumerate(ends))


@pytest.mark.slow("four loads")
def test_a_start_that_is_trimmed_is_told_or_passed_over(tmp_path, spark):
    """Not where everything that was trimmed is older than it, or was written before."""
    now = datetime.now(UTC)
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("timed", schema={"id": "int64"}, retention="3650d")
        for number in range(100):
            producer.send("timed", {"id": number}, timestamp=now - timedelta(minutes=200 - number))
        producer.flush()
        hub.streams.trim("timed", offset=50)

        def run(name: str, start: datetime | str, **more):
            return warehouse(tmp_path / "log", "timed", tmp_path / name, start=start, spark=spark, **more)

        for start in (now - timedelta(minutes=180), "180m"):
            with pytest.raises(DataLoss, match=r"shard 0: records 0 to 49 were trimmed .*some of them may be of"):
                run("t", start)
        done = run("t", now - timedelta(minutes=180), on_loss="skip")
        assert (done.rows_read, done.lost) == (50, ((0, 0, 50),))
        assert run("later", now - timedelta(minutes=140)).rows_read == 40
        hub.streams.trim("timed", offset=100)
        assert run("idle", "15m").rows_read == 0
        with pytest.raises(DataLoss):
            run("gone", "180m")
        # The log knows when several shards stood where.
        hub.streams.create("live", shards=2, schema={"id": "int64"})
        for number in range(10):
            producer.send("live", {"id": number}, shard=0)
        producer.flush()
        deadline = time.monotonic() + 30
        while hub._port.call(MomentCall("live", TIME_US_MAX, settle=True)).offsets != (10, 0):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        hub.streams.trim("live", offset=10, shard=0)
        middle = datetime.now(UTC)
        producer.send("live", {"id": 10}, shard=0)
        producer.flush()
        done = warehouse(tmp_path / "log", "live", tmp_path / "live", start=middle, spark=spark)
        assert done.rows_read == 1


@pytest.mark.slow("may be the first to use Spark's workers")
def test_an_upsert_takes_no_where(tmp_path, spark):
    """A tombstone has no columns that a predicate could ask for, and a row that does not match any more leaves the one
    before it: the table would have rows that are gone. Choosing is for who reads it."""
    table = tmp_path / "many"
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("stock", schema={"item": "string", "left": "int64"}, key="item")
        for item, left in (("a", 9), ("b", 9), ("c", 9), ("b", 1)):
            producer.send("stock", {"item": item, "left": left})
        producer.send("stock", None, key=b"a")
    for where in ("left > 5", "left IS NULL OR left > 5", ""):
        with pytest.raises(InvalidSetting, match="mode='upsert' takes no where: a tombstone has no columns"):
            warehouse(tmp_path / "log", "stock", table, mode="upsert", where=where, spark=spark)
    assert not table.exists()
    warehouse(tmp_path / "log", "stock", table, mode="upsert", columns=["left"], spark=spark)
    rows = DeltaTable(str(table)).to_pyarrow_dataset()  # noqa: F841  # DuckDB finds it by its name
    assert duckdb.execute('SELECT decode(_key) FROM rows WHERE "left" > 5').fetchall() == [("c",)]


def test_columns_that_the_stream_gets_are_added(log, tmp_path, spark):
    table = tmp_path / "orders"
    warehouse(tmp_path / "log", "orders", table, spark=spark)
    log.streams.set_schema("orders", pa.schema([*SCHEMA, pa.field("note", pa.string())]))
    send(log, orders(3_000, 10).append_column("note", pa.array(["new"] * 10)))
    warehouse(tmp_path / "log", "orders", table, spark=spark)
    found = table_of(table).sort_by("id")
    assert found["note"].to_pylist() == [None] * 3_000 + ["new"] * 10
    assert found["id"].to_pylist() == list(range(3_010))


@pytest.mark.slow("three runs")
def test_a_row_that_takes_the_place_of_another_has_nothing_of_it(tmp_path, spark):
    """Columns that the stream has no more, or that a run leaves out, are null in rows of then."""
    table = tmp_path / "t"
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("kv", schema={"k": "string", "old": "string", "n": "int64"}, key="k")

        def run(*rows: dict[str, Any], **options: Any) -> dict[str, tuple[str | None, int | None]]:
            with hub.producer() as producer:
                for row in rows:
                    producer.send("kv", row)
            warehouse(tmp_path / "log", "kv", table, mode="upsert", spark=spark, **options)
            return {row["k"]: (row["old"], row["n"]) for row in table_of(table).to_pylist()}

        run({"k": "a", "old": "x", "n": 1}, {"k": "b", "old": "y", "n": 1}, {"k": "c", "old": "z", "n": 1})
        hub.streams.set_schema("kv", {"k": "string", "n": "int64"})
        found = run({"k": "a", "n": 2}, {"k": "d", "n": 2})
        assert found == {"a": (None, 2), "b": ("y", 1), "c": ("z", 1), "d": (None, 2)}
        found = run({"k": "b", "n": 3}, columns=["k"])
        assert found == {"a": (None, 2), "b": (None, None), "c": ("z", 1), "d": (None, 2)}


@pytest.mark.slow("six runs")
def test_a_default_is_filled_in_by_loading_again(tmp_path, spark):
    """The stream has it in rows from before the column, too; rows that were loaded before it are null until then."""
    now, day = datetime.now(UTC), timedelta(days=1)
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("kv", shards=1, schema={"k": "string"}, key="k")

        def run(*keys: str, into: str, mode: Mode = "append") -> dict[str, str | None]:
            with hub.producer() as producer:
                for key in keys:
                    producer.send("kv", {"k": key})
            warehouse(tmp_path / "log", "kv", tmp_path / into, mode=mode, spark=spark)
            return {row["k"]: row.get("land") for row in table_of(tmp_path / into).to_pylist()}

        run("a", into="t")
        run(into="u", mode="upsert")
        # Written without the column, loaded with it.
        with hub.producer() as producer:
            producer.send("kv", {"k": "b"})
        hub.streams.set_schema("kv", {"k": "string", "land": {"type": "string", "default": "DE"}})
        cases: tuple[tuple[str, Mode], ...] = (("t", "append"), ("u", "upsert"))
        for into, mode in cases:
            assert run(into=into, mode=mode) == {"a": None, "b": "DE"}
        replay(tmp_path / "log", "kv", tmp_path / "t", since=now - day, until=now + day, replace=True, spark=spark)
        assert run("c", into="t") == {"a": "DE", "b": "DE", "c": "DE"}
        assert run(into="u2", mode="upsert") == {"a": "DE", "b": "DE", "c": "DE"}
        with pytest.raises(TableUnusable, match="one row for each key"):
            replay(tmp_path / "log", "kv", tmp_path / "u", since=now - day, until=now + day, replace=True, spark=spark)


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.slow("six runs")
def test_a_column_that_was_renamed_keeps_its_name_in_the_table(tmp_path, spark, mode):
    """The key's, too; and however often it is renamed. A query's columns are its own: it says which it is."""
    table, made = tmp_path / "t", tmp_path / "made"
    page, path, place = (
        {"id": "int64", "page": "string"},
        {"no": {"type": "int64", "aliases": ["id"]}, "path": {"type": "string", "aliases": ["page"]}},
        {"no": {"type": "int64", "aliases": ["id"]}, "place": {"type": "string", "aliases": ["path", "page"]}},
    )
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("visits", schema=page, key="id")

        def run(*rows: dict[str, Any]) -> dict[int, str]:
            with hub.producer() as producer:
                for row in rows:
                    producer.send("visits", row)
            warehouse(tmp_path / "log", "visits", table, mode=mode, spark=spark)
            found = table_of(table)
            assert set(found.column_names) - {"_key"} == {"id", "page", "_shard", "_offset", "_timestamp"}
            return dict(zip(found["id"].to_pylist(), found["page"].to_pylist(), strict=True))

        assert run({"id": 1, "page": "/"}, {"id": 2, "page": "/a"}) == {1: "/", 2: "/a"}
        warehouse(tmp_path / "log", "visits", made, sql="SELECT page FROM visits", spark=spark)
        hub.streams.set_schema("visits", path)
        assert run({"no": 3, "path": "/b"}) == {1: "/", 2: "/a", 3: "/b"}
        hub.streams.set_schema("visits", place)
        assert run({"no": 4, "place": "/c"}) == {1: "/", 2: "/a", 3: "/b", 4: "/c"}
        query: dict[str, Any] = {"sql": "SELECT place FROM visits", "spark": spark}
        with pytest.raises(SchemaMismatch, match="column 'place' was called 'page', and is that in the table"):
            warehouse(tmp_path / "log", "visits", made, **query)
        query["sql"] = "SELECT place AS page FROM visits"
        warehouse(tmp_path / "log", "visits", made, **query)
        assert sorted(table_of(made)["page"].to_pylist()) == ["/", "/a", "/b", "/c"]
        if mode == "append":
            day = timedelta(days=1)
            span: dict[str, Any] = {"since": datetime.now(UTC) - day, "until": datetime.now(UTC) + day, "replace": True}
            done = replay(tmp_path / "log", "visits", table, **span, where="no > 1", spark=spark)
            assert done.compared is not None
            told = done.compared
            assert (told.added, told.removed, told.changed, told.same) == (0, 1, 3, 0)  # it adds _key to every row
            assert sorted(table_of(table)["page"].to_pylist()) == ["/a", "/b", "/c"]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.slow("may be the first to use Spark's workers")
@pytest.mark.parametrize(("kind", "wider", "large"), [("int32", "int64", 2**40), ("float32", "float64", 2.0**24 + 1)])
def test_a_value_that_is_too_wide_for_the_table_is_refused(tmp_path, spark, mode, kind, wider, large):
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("kv", schema={"k": "string", "v": kind}, key="k")
        with hub.producer() as producer:
            producer.send("kv", {"k": "a", "v": 1})
        warehouse(tmp_path / "log", "kv", tmp_path / "t", mode=mode, spark=spark)
        hub.streams.set_schema("kv", {"k": "string", "v": wider})
        with hub.producer() as producer:
            producer.send("kv", {"k": "b", "v": 2})
        warehouse(tmp_path / "log", "kv", tmp_path / "t", mode=mode, spark=spark)
        with hub.producer() as producer:
            producer.send("kv", {"k": "c", "v": large})
        with pytest.raises(SchemaMismatch, match=f"column 'v': a value does not fit the table's {kind}"):
            warehouse(tmp_path / "log", "kv", tmp_path / "t", mode=mode, spark=spark)
    assert sorted(table_of(tmp_path / "t")["v"].to_pylist()) == [1, 2]


# Microseconds since 1970: nearly the ends of what a time can be, beyond which Spark cannot ask; and those of the years
# that dates have, with what is next to them.
EXTREMES = (
    -9 * 10**18,
    -62_135_596_800_000_001,
    -62_135_596_800_000_000,
    START_US + 7,
    253_402_300_799_999_999,
    253_402_300_800_000_000,
    9 * 10**18,
)


@pytest.mark.parametrize(
    ("mode", "partition"), [("append", "none"), ("append", "day"), ("append", "hour"), ("upsert", "none")]
)
@pytest.mark.slow("two runs, and a query for each row")
def test_times_that_a_tables_log_cannot_say_are_found(tmp_path, spark, mode, partition):
    """Its files have no bounds of them there, also once they were compacted, nor a partition of their day. Streams have
    none outside of the years 1 to 9999; a query can make them."""
    table = tmp_path / "t"
    moments = EXTREMES if mode == "append" else EXTREMES[2:5]
    given: dict[str, Any] = {"mode": mode, "partition": partition, "spark": spark}
    if partition != "none":
        given["time"] = "at"
    schema = pa.schema([("id", pa.int64()), ("us", pa.int64()), ("at", TIME), ("text", pa.string())])
    if mode == "append":
        day = "date_from_unix_date(CAST(us div 86400000000 AS INT)) AS day"
        given["sql"] = f"SELECT id, text, timestamp_micros(us) AS at, {day} FROM wide"
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("wide", shards=1, schema=schema, key="id")
        for again in range(2):
            for place, us in enumerate(moments):
                at = pa.array([us if mode == "upsert" else None], pa.int64()).cast(TIME)
                send(hub, pa.table([[place + 10 * again], [us], at, [f"t{place}"]], schema=schema), "wide")
            warehouse(tmp_path / "log", "wide", table, **given)
    for _ in range(2):
        lake = DeltaTable(str(table)).to_pyarrow_dataset()
        for place, moment in enumerate(moments):
            # Spark reads the files of which the log says that they may have such rows.
            chosen = lake.get_fragments(filter=pc.field("at") == pa.scalar(moment, TIME))
            names = {Path(one.path).name for one in chosen}
            files = [str(path) for path in table.rglob("*.parquet") if path.name in names]
            frame = spark.read.option("basePath", str(table)).parquet(*files)
            found = frame.where(f"at = timestamp_micros({moment})").select("id", "text").collect()
            assert sorted(map(tuple, found)) == [(place, f"t{place}"), (place + 10, f"t{place}")], moment
            same = pl.col("at") == pl.lit(moment).cast(pl.Datetime("us", "UTC"))
            assert sorted(pl.scan_delta(str(table)).filter(same).collect()["id"]) == [place, place + 10], moment
        DeltaTable(str(table)).optimize.compact()


@pytest.mark.slow("twenty loads")
def test_it_compacts_what_it_wrote(log, tmp_path, spark):
    """Of each partition with many small files it makes one; what it read and what it wrote is the same. What a run did
    not come to, the next one does, also if there is nothing to load."""
    crowd = {"partition": "day", "time": "ts", "load_rows": 300, "spark": spark}
    for name, compact in (("loose", False), ("packed", True)):
        done = warehouse(tmp_path / "log", "orders", tmp_path / name, **crowd, compact=compact)
        assert done.loads >= 10
        assert ids(tmp_path / name) == list(range(3_000))
        files = DeltaTable(str(tmp_path / name)).file_uris()
        assert (len(files) <= SMALL_FILES_MAX) == compact, files
    done = warehouse(tmp_path / "log", "orders", tmp_path / "loose", **crowd)
    table = DeltaTable(str(tmp_path / "loose"))
    assert (done.loads, done.table_version) == (0, table.version())
    assert len(table.file_uris()) <= SMALL_FILES_MAX
    assert ids(tmp_path / "loose") == list(range(3_000))


def test_where_columns_and_no_places(log, tmp_path, spark):
    table = tmp_path / "orders"
    done = warehouse(
        tmp_path / "log", "orders", table, where="country = 'FR'", columns=["x"], places=False, spark=spark
    )
    assert (done.rows_read, table_of(table).column_names) == (1_000, ["x"])
    with pytest.raises(InvalidSetting, match="columns: 'x' is named twice, in x, id, x"):
        warehouse(tmp_path / "log", "orders", tmp_path / "other", columns=["x", "id", "x"], spark=spark)
    with pytest.raises(InvalidSetting, match="has no column 'y'"):
        warehouse(tmp_path / "log", "orders", tmp_path / "other", columns=["y"], spark=spark)


def test_bytes_without_a_schema(tmp_path, spark):
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("lines", shards=2)
        for at in range(100):
            producer.send("lines", b"%d" % at, key=b"k%d" % (at % 7), headers={"n": b"1"})
        producer.flush()
        warehouse(tmp_path / "log", "lines", tmp_path / "lines", spark=spark)
        warehouse(tmp_path / "log", "lines", tmp_path / "newest", mode="upsert", spark=spark)
    assert sorted(int(value) for value in table_of(tmp_path / "lines")["value"].to_pylist()) == list(range(100))
    assert sorted(int(value) for value in table_of(tmp_path / "newest")["value"].to_pylist()) == list(range(93, 100))


@pytest.mark.slow("several runs")
def test_an_upsert_says_what_its_merge_did(tmp_path, spark):
    """Not what its tasks found, each in its part: in the result and in the manifests, also of a run that was killed."""
    table = tmp_path / "t"
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("stock", shards=1, schema={"item": "string", "left": "int64"}, key="item")

        def write(*items: str | None, gone: str | None = None) -> None:
            # Each in a block of its own, and so in a task of its own.
            for item in items:
                with hub.producer() as producer:
                    producer.send("stock", {"item": item, "left": 1})
            if gone is not None:
                with hub.producer() as producer:
                    producer.send("stock", None, key=gone.encode())

        def run(**options: Any) -> tuple[int, int, int]:
            done = warehouse(tmp_path / "log", "stock", table, mode="upsert", spark=spark, **options)
            return done.rows_read, done.rows_written, done.rows_deleted

        write("a", "a", "a", gone="b")
        assert run() == (4, 1, 0)
        write("a", "b", "b", "c", gone="c")
        assert run() == (5, 2, 0)
        write("a", "d", gone="b")
        with pytest.raises(CutShort):
            run(on_step=cut_at("committed"))
        assert run() == (0, 0, 0)
        write(gone="x")
        with pytest.raises(CutShort):
            run(on_step=cut_at("committed"))
        write("y")
        assert run() == (1, 1, 0)
        name = f"warehouse-{hub.streams.get('stock').uuid}"
    manifests = list(Manifests(table, name).all())
    told = [(one.state, one.rows_written, one.rows_deleted) for one in manifests]
    assert told == [("done", 1, 0), ("done", 2, 0), ("done", 2, 1), ("done", 0, 0), ("done", 1, 0)]
    assert sorted(table_of(table)["item"].to_pylist()) == ["a", "d", "y"]
    # Files of the merges, those of runs that were killed among them, each with its checksum.
    assert [sum(file.rows for file in one.files) for one in manifests[:2]] == [1, 2]
    assert [bool(one.files) for one in manifests] == [True, True, True, False, True]
    check_files(manifests, table)
    newest = {file.path for file in manifests[-1].files}
    assert newest <= {Path(path).name for path in DeltaTable(str(table)).file_uris()}


@pytest.mark.slow("eight runs")
def test_records_without_a_key_are_told_or_passed_over(tmp_path, spark):
    """They are in no table of keys: bytes that were sent without one, rows in which the column of the key is null."""
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("raw", shards=2)
        hub.streams.create("kv", schema={"k": "string", "v": "int64"}, key="k")
        with hub.producer() as producer:
            for at in range(10):
                producer.send("raw", b"%d" % at, key=None if at % 3 else b"k")
            for key in ("a", None, "b", "b", None):
                producer.send("kv", {"k": key, "v": 1})
            producer.send("kv", None, key=b"a")
        keyless = {"raw": 6, "kv": 2}
        jobs: dict[str, Any] = {
            "keyed": lambda stream, **options: warehouse(
                tmp_path / "log", stream, tmp_path / f"keyed-{stream}", mode="upsert", spark=spark, **options
            ),
            "state": lambda stream, **options: snapshot(
                tmp_path / "log", stream, tmp_path / f"state-{stream}", spark=spark, **options
            ),
        }
        for name, job in jobs.items():
            for stream, count in keyless.items():
                with pytest.raises(
                    UndecodedRecords, match=r"record \d+ has no key, .*on_bad='skip' \(--on-bad skip\)"
                ) as told:
                    job(stream)
                assert told.value.stream == stream
                if stream == "kv":
                    assert (told.value.shard, told.value.first, told.value.last) == (0, 1, 1)
                done = job(stream, on_bad="skip")
                assert (done.without_key, done.undecoded, table_of(Path(done.table)).num_rows) == (count, 0, 1)
                (manifest,) = Manifests(tmp_path / f"{name}-{stream}", Path(done.manifests).name).all()
                assert manifest.without_key == count
        # Every record a row: there it needs no key.
        assert warehouse(tmp_path / "log", "raw", tmp_path / "all", spark=spark).rows_written == 10


def test_what_was_trimmed_is_told_or_passed_over(log, tmp_path, spark):
    table = tmp_path / "orders"
    warehouse(tmp_path / "log", "orders", table, spark=spark)
    send(log, orders(3_000, 1_000))
    ends = log.streams.get("orders").ends
    for shard, end in enumerate(ends):
        log.streams.trim("orders", offset=end - 100, shard=shard)
    with pytest.raises(DataLoss, match=r"shard 0: records \d+ to \d+ were trimmed before this job read them"):
        warehouse(tmp_path / "log", "orders", table, spark=spark)
    done = warehouse(tmp_path / "log", "orders", table, on_loss="skip", spark=spark)
    assert done.rows_read == 200
    assert sum(end - first for _, first, end in done.lost) == 800


def test_what_is_trimmed_while_it_is_planned_is_told_or_passed_over(log, tmp_path, spark):
    """The stream was looked up, and then retention was faster."""

    def trim(step: str, done: int, total: int) -> None:
        if step == "planned":
            for shard, end in enumerate(log.streams.get("orders").ends):
                log.streams.trim("orders", offset=end - 100, shard=shard)

    with pytest.raises(DataLoss, match=r"shard 0: records 0 to \d+ are gone"):
        warehouse(tmp_path / "log", "orders", tmp_path / "other", on_step=trim, spark=spark)
    before = log.streams.get("orders").starts
    send(log, orders(3_000, 1_000))
    done = warehouse(tmp_path / "log", "orders", tmp_path / "orders", on_loss="skip", on_step=trim, spark=spark)
    assert done.rows_read == len(ids(tmp_path / "orders")) == 200
    after = log.streams.get("orders").starts
    assert done.lost == tuple((shard, *gone) for shard, gone in enumerate(zip(before, after, strict=True)))


def test_without_its_manifests_it_goes_on_by_the_tables_log(log, tmp_path, spark):
    table = tmp_path / "orders"
    first = warehouse(tmp_path / "log", "orders", table, spark=spark)
    shutil.rmtree(table / "_mainstem")
    send(log, orders(3_000, 10))
    done = warehouse(tmp_path / "log", "orders", table, spark=spark)
    assert (done.start, done.rows_read) == (first.end, 10)
    assert ids(table) == list(range(3_010))


def test_a_stream_that_was_made_anew_is_another(log, tmp_path, spark):
    table = tmp_path / "orders"
    warehouse(tmp_path / "log", "orders", table, spark=spark)
    log.streams.delete("orders")
    log.streams.create("orders", shards=2, schema=SCHEMA, key="id")
    send(log, orders(0, 10))
    assert warehouse(tmp_path / "log", "orders", table, spark=spark).rows_read == 10
    assert table_of(table).num_rows == 3_010


@pytest.mark.slow("three runs")
def test_a_table_keeps_its_mode_and_its_partitions(tmp_path, spark):
    """Rows added to a table of one row for each key would be there twice; the reverse leaves what was added."""
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("kv", schema={"k": "string", "v": "int64"}, key="k")
        with hub.producer() as producer:
            producer.send("kv", {"k": "a", "v": 1})
        modes: list[tuple[str, Mode, Mode]] = [("keyed", "upsert", "append"), ("plain", "append", "upsert")]
        for name, mode, other in modes:
            table = tmp_path / name
            warehouse(tmp_path / "log", "kv", table, mode=mode, spark=spark)
            # Also where nothing is new.
            with pytest.raises(TableUnusable, match=rf"\(mode {mode}\).*; give the mode that it has"):
                warehouse(tmp_path / "log", "kv", table, mode=other, spark=spark)
        with pytest.raises(TableUnusable, match="is partitioned by nothing, not by _shard"):
            warehouse(tmp_path / "log", "kv", tmp_path / "plain", partition="shard", spark=spark)
        with hub.producer() as producer:
            producer.send("kv", {"k": "a", "v": 3})
        with pytest.raises(TableUnusable, match="mode upsert"):
            replay(
                tmp_path / "log",
                "kv",
                tmp_path / "keyed",
                since=START,
                until=START + timedelta(days=9_999),
                spark=spark,
            )
        done = warehouse(tmp_path / "log", "kv", tmp_path / "keyed", mode="upsert", spark=spark)
    assert done.rows_read == 1
    assert [(row["k"], row["v"]) for row in table_of(tmp_path / "keyed").to_pylist()] == [("a", 3)]


@pytest.mark.slow("several runs")
def test_rows_take_the_place_of_those_of_the_same_stream_only(tmp_path, spark):
    """Also not of one that had the same name and was deleted, nor without the manifests. What only adds rows may."""
    with mainstem.open(tmp_path / "log") as hub:

        def make(stream: str, value: int) -> None:
            hub.streams.create(stream, schema={"k": "string", "v": "int64"}, key="k")
            with hub.producer() as producer:
                producer.send(stream, {"k": "a", "v": value})

        make("one", 1)
        make("two", 2)
        given: Any = {"since": datetime(2020, 1, 1, tzinfo=UTC), "until": datetime.now(UTC) + timedelta(days=1)}
        jobs = {
            "keyed": lambda stream: warehouse(tmp_path / "log", stream, tmp_path / "keyed", mode="upsert", spark=spark),
            "state": lambda stream: snapshot(tmp_path / "log", stream, tmp_path / "state", spark=spark),
            "again": lambda stream: replay(
                tmp_path / "log", stream, tmp_path / "again", replace=True, spark=spark, **given
            ),
        }
        for job in jobs.values():
            job("one")
            with pytest.raises(TableUnusable, match=r"has loads of stream 'one', and this .* of 'two' would put"):
                job("two")
            job("one")
        hub.streams.delete("one")
        make("one", 3)
        for folder, job in jobs.items():
            with pytest.raises(TableUnusable, match="of stream 'one' from before it was deleted and made anew"):
                job("one")
            shutil.rmtree(tmp_path / folder / "_mainstem")
            with pytest.raises(TableUnusable, match="has loads of another stream"):
                job("two")
        for stream in ("one", "two"):
            warehouse(tmp_path / "log", stream, tmp_path / "both", spark=spark)
    for folder in ("keyed", "state/rows", "again"):
        assert table_of(tmp_path / folder)["v"].to_pylist() == [1]
    assert sorted(table_of(tmp_path / "both")["v"].to_pylist()) == [2, 3]


def test_what_cannot_be_done_is_said(log, tmp_path, spark):
    table = tmp_path / "orders"
    log.streams.create("times", schema={"at": "time"})
    with log.producer() as producer:
        producer.send("times", {"at": None})
    with pytest.raises(SchemaMismatch, match="column 'at' is time64"):
        warehouse(tmp_path / "log", "times", table, start="earliest", spark=spark)
    warehouse(tmp_path / "log", "orders", table, spark=spark)
    send(log, orders(3_000, 10))
    with pytest.raises(TableUnusable, match="is partitioned by nothing, not by _shard"):
        warehouse(tmp_path / "log", "orders", table, partition="shard", spark=spark)
    for rows in (0, -1):
        with pytest.raises(InvalidSetting, match=rf"load_rows \(--load-rows\) must be at least 1, not {rows}"):
            warehouse(tmp_path / "log", "orders", table, load_rows=rows, spark=spark)
    with pytest.raises(
        InvalidSetting, match=r"file_bytes \(--file-size\) must be at least 1,048,576 bytes \(1MiB\), not 12"
    ):
        warehouse(tmp_path / "log", "orders", table, file_bytes=12, spark=spark)
    manifests = Manifests(table, f"warehouse-{log.streams.get('orders').uuid}")
    with manifests.locked(), pytest.raises(TableUnusable, match="another run of this job writes"):
        warehouse(tmp_path / "log", "orders", table, spark=spark)


def test_through_a_server(server, tmp_path, spark):
    table = tmp_path / "orders"
    with mainstem.connect(server.url) as hub:
        hub.streams.create("orders", shards=3, schema=SCHEMA, key="id")
        send(hub, orders(0, 1_000))
    done = warehouse(server.url, "orders", table, partition="shard", spark=spark)
    assert done.rows_read == 1_000
    assert ids(table) == list(range(1_000))
    assert len(DeltaTable(str(table)).partitions()) == 3
