"""The sink: frames and streaming queries into streams, each row once."""

import datetime as dt
import decimal
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import mainstem
from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerProcess

pytestmark = pytest.mark.xdist_group("spark")

SCHEMA = {"id": "int64", "name": "string", "amount": "float64"}
ROWS = 1_000
# How long a task that Spark has told to stop may take to let go of what it wrote.
_STOP_SECONDS = 10.0


class Place:
    """A log to write to: through a server, or in a folder that nobody serves."""

    def __init__(self, folder: Path, server: ServerProcess | None) -> None:
        self.folder = folder
        self.hub = str(folder) if server is None else server.url
        self._server = server

    def opened(self) -> Hub:
        """Only for a moment: of a folder there is one writer at a time."""
        return mainstem.open(self.folder) if self._server is None else mainstem.connect(self.hub)

    def create(self, name: str, **options: Any) -> None:
        with self.opened() as hub:
            hub.streams.create(name, **options)

    def rows(self, name: str) -> list[dict[str, Any]]:
        with self.opened() as hub, hub.consumer(name, start="earliest", follow=False) as consumer:
            return [row for batch in consumer.batches() for row in batch.to_arrow().to_pylist()]

    def records(self, name: str) -> list[mainstem.Record]:
        with self.opened() as hub, hub.consumer(name, start="earliest", follow=False) as consumer:
            return list(consumer)

    def left_behind(self) -> list[str]:
        """What is staged and not committed, once tasks that were told to stop have done so."""
        deadline = time.monotonic() + _STOP_SECONDS
        while (found := self.staged()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def staged(self) -> list[str]:
        files = [os.path.join(at, name) for at, _, names in os.walk(self.folder / "staging") for name in names]
        with self.opened() as hub:
            counters = hub.statistics()
        names = ("transactions_open", "transactions_staged_bytes")
        return files + [name for name in names if counters.get(name, 0)]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory) -> Iterator[ServerProcess]:
    """One server for all tests here; each leaves it without streams."""
    with ServerProcess(tmp_path_factory.mktemp("sink") / "data") as server:
        yield server


@pytest.fixture
def served(shared_server) -> Iterator[Place]:
    yield Place(shared_server.folder, shared_server)
    with mainstem.connect(shared_server.url) as hub:
        for stream in hub.streams.list():
            hub.streams.delete(stream.name)


@pytest.fixture(params=["server", "folder"])
def place(request, tmp_path) -> Place:
    if request.param == "folder":
        return Place(tmp_path / "data", None)
    served: Place = request.getfixturevalue("served")
    return served


def frame(spark: SparkSession, first: int = 0, count: int = ROWS, partitions: int = 3) -> DataFrame:
    ids = spark.range(first, first + count, 1, partitions)
    return ids.select("id", f.concat(f.lit("name "), "id").alias("name"), (f.col("id") / 4).alias("amount"))


def written(rows: DataFrame, place: Place, stream: str = "orders", **options: str) -> None:
    rows.write.format("mainstem").mode("append").options(hub=place.hub, stream=stream, **options).save()


# Frames.


def test_every_row_of_a_frame_is_in_the_stream_once(spark, place):
    place.create("orders", schema=SCHEMA, key="id", shards=2)
    written(frame(spark), place)
    found = place.rows("orders")
    assert sorted(row["id"] for row in found) == list(range(ROWS))
    assert all(row == {"id": row["id"], "name": f"name {row['id']}", "amount": row["id"] / 4} for row in found)
    assert place.left_behind() == []


def test_with_a_transaction_id_a_frame_is_written_once(spark, place):
    place.create("orders", schema=SCHEMA)
    for _ in range(2):
        written(frame(spark), place, transactionId="load of monday")
    assert len(place.rows("orders")) == ROWS
    assert place.left_behind() == []
    # The same rows in another order, and in other tasks, are the same.
    written(frame(spark).orderBy(f.rand(7)).repartition(4), place, transactionId="load of monday")
    assert len(place.rows("orders")) == ROWS
    with pytest.raises(PySparkException, match="was written before with 1000 rows, and now comes with 1000 others"):
        written(frame(spark, first=1), place, transactionId="load of monday")
    # Every column has the same values, and one of them in other rows.
    turned = frame(spark).withColumn("name", f.concat(f.lit("name "), f.lit(ROWS - 1) - f.col("id")))
    with pytest.raises(PySparkException, match="comes with 1000 others"):
        written(turned, place, transactionId="load of monday")
    # A number is another one, beside one that is so large that their sum has no place for it.
    large = frame(spark).withColumn("amount", f.when(f.col("id") == 1, 1e300).otherwise(f.col("amount")))
    written(large, place, transactionId="large numbers")
    damaged = large.withColumn("amount", f.when(f.col("id") == 2, 0.75).otherwise(f.col("amount")))
    with pytest.raises(PySparkException, match="comes with 1000 others"):
        written(damaged, place, transactionId="large numbers")
    written(large.repartition(3), place, transactionId="large numbers")
    assert len(place.rows("orders")) == 2 * ROWS
    written(frame(spark, first=1), place, transactionId="load of monday", onReplay="accept")
    written(frame(spark, first=1), place, transactionId="load of tuesday")
    assert len(place.rows("orders")) == 3 * ROWS
    assert place.left_behind() == []


def test_the_versions_of_a_transaction_follow_each_other(spark, served):
    served.create("orders", schema=SCHEMA)
    for version in (4, 5, 5):
        written(frame(spark, first=version), served, transactionId="my query", transactionVersion=str(version))
    assert len(served.rows("orders")) == 2 * ROWS
    with pytest.raises(PySparkException, match="those between are missing"):
        written(frame(spark), served, transactionId="my query", transactionVersion="7")
    assert len(served.rows("orders")) == 2 * ROWS


@pytest.mark.slow("a task fails four times, each time after the others are done")
def test_a_frame_that_fails_leaves_nothing(spark, place):
    place.create("orders", schema=SCHEMA)

    @f.udf("double", useArrow=False)
    def amount(id_):
        if id_ == 990:
            raise ValueError("no")
        return 1.0

    with pytest.raises(PySparkException, match="ValueError: no"):
        written(frame(spark).withColumn("amount", amount("id")), place)
    assert place.rows("orders") == []
    assert place.left_behind() == []


def test_keys_headers_times_and_shards_are_those_of_the_frame(spark, place):
    place.create("events", shards=4)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC)
    rows = frame(spark, count=40, partitions=2).select(
        f.col("name").alias("value"),
        f.col("id").cast("string").alias("key"),
        f.create_map(f.lit("trace"), f.encode(f.col("name"), "utf-8")).alias("headers"),
        f.lit(at).alias("timestamp"),
        f.when(f.col("id") < 20, (f.col("id") % 2 + 1).cast("int")).alias("shard"),
    )
    written(rows, place, "events")
    found = {record.key: record for record in place.records("events")}
    assert len(found) == 40
    for number in range(20):
        record = found[b"%d" % number]
        assert (record.value, record.timestamp) == (b"name %d" % number, at)
        assert dict(record.headers) == {"trace": b"name %d" % number}
        assert record.shard == number % 2 + 1
    assert {found[b"%d" % number].shard for number in range(20, 40)} == {0, 1, 2, 3}, "by their keys"


def test_a_stream_with_a_schema_takes_keys_headers_and_times_beside_its_columns(spark, served):
    served.create("orders", schema=SCHEMA, shards=2)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC)
    headers = f.array(f.struct(f.lit("trace").alias("key"), f.encode(f.col("name"), "utf-8").alias("value")))
    rows = frame(spark, count=20).withColumns(
        {
            "_key": f.when(f.col("id") > 0, f.concat(f.lit("key "), "id")),
            "_headers": headers,
            "_timestamp": f.lit(at),
            "_shard": (f.col("id") % 2).cast("int"),
        }
    )
    written(rows, served)
    found = {json.loads(record.headers["trace"].removeprefix(b"name ")): record for record in served.records("orders")}
    assert sorted(found) == list(range(20))
    for number, record in found.items():
        assert record.key == (b"key %d" % number if number else None)
        assert (record.timestamp, record.shard) == (at, number % 2)
    assert sorted(row["id"] for row in served.rows("orders")) == list(range(20))


def test_types_are_kept(spark, served):
    kinds = pa.schema(
        [
            ("byte", pa.int8()),
            ("exact", pa.decimal128(12, 3)),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("by_name", pa.map_(pa.string(), pa.int64())),
            ("inner", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])),
        ]
    )
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  # a time without a zone is one of the types
    row: dict[str, Any] = {
        "byte": -3,
        "exact": decimal.Decimal("123456789.125"),
        "at": at.replace(tzinfo=dt.UTC),
        "local": at,
        "day": at.date(),
        "raw": b"\0\xff",
        "tags": ["a", None, ""],
        "by_name": [("x", 1), ("y", None)],
        "inner": {"a": 7, "b": [0.5, -1.0]},
    }
    served.create("typed", schema=kinds)
    ddl = (
        "byte byte, exact decimal(12,3), at timestamp, local timestamp_ntz, day date, raw binary, tags array<string>, "
        "by_name map<string,bigint>, inner struct<a:int,b:array<double>>"
    )
    rows = spark.createDataFrame([{**row, "by_name": dict(row["by_name"])}, dict.fromkeys(row)], ddl)
    written(rows, served, "typed")
    assert sorted(served.rows("typed"), key=lambda each: each["byte"] is None) == [row, dict.fromkeys(row)]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("CAST(id AS string) AS id, name, amount", "id must be int64"),
        ("id, name, amount, 1 AS extra", "extra"),
        ("id, name, array(amount) AS amount", "amount must be"),
        ("id, name, amount, 'x' AS _shard", "'_shard'"),
    ],
)
def test_a_column_that_does_not_fit_is_named_before_a_task_runs(spark, served, column, says):
    served.create("orders", schema=SCHEMA)
    with pytest.raises(PySparkException, match=says):
        written(frame(spark, count=1).selectExpr(*_split(column)), served)


def _split(columns: str) -> list[str]:
    return [each.strip() for each in columns.split(", ")]


def test_what_is_wrong_says_what_to_do(spark, served):
    served.create("orders", schema=SCHEMA)
    served.create("bytes")
    with pytest.raises(PySparkException, match="to_json"):
        written(frame(spark, count=1), served, "bytes")
    with pytest.raises(PySparkException, match=r"mode\(.append.\)"):
        frame(spark).write.format("mainstem").mode("overwrite").options(hub=served.hub, stream="orders").save()
    # Of these Spark itself says what to do, before it asks the source.
    for writing in (frame(spark).write, frame(spark).write.mode("ignore")):
        with pytest.raises(PySparkException, match=r"(?i)append"):
            writing.format("mainstem").options(hub=served.hub, stream="orders").save()
    assert served.rows("orders") == []
    with pytest.raises(PySparkException, match="stream create"):
        written(frame(spark, count=1), served, "order")
    with pytest.raises(PySparkException, match="shards, 0 to 0"):
        written(frame(spark, count=1).withColumn("_shard", f.lit(7)), served)


@pytest.mark.slow("the folder is waited for as long as another job may have it")
def test_a_folder_that_another_process_writes_is_refused(spark, served):
    served.create("orders", schema=SCHEMA)
    with pytest.raises(PySparkException, match=r"mainstem serve --data"):
        frame(spark).write.format("mainstem").mode("append").options(hub=str(served.folder), stream="orders").save()


# Streaming queries.


class Query:
    """A streaming query from a folder of files, one file in a batch, and its checkpoint."""

    def __init__(self, spark: SparkSession, place: Place, folder: Path) -> None:
        self._spark = spark
        self._place = place
        self.files = folder / "files"
        self.files.mkdir(exist_ok=True)
        self.checkpoint = folder / "checkpoint"

    def add(self, name: str, first: int, count: int) -> None:
        lines = [
            json.dumps({"id": number, "name": f"name {number}", "amount": 1.5})
            for number in range(first, first + count)
        ]
        part = self.files.parent / name
        part.write_text("\n".join(lines))
        part.rename(self.files / f"{name}.json")

    def run(self, **options: str) -> None:
        """All that is there, then end."""
        rows = self._spark.readStream.schema("id bigint, name string, amount double").option("maxFilesPerTrigger", 1)
        writing = rows.json(str(self.files)).writeStream.format("mainstem").trigger(availableNow=True)
        writing = writing.options(
            hub=self._place.hub, stream="orders", checkpointLocation=str(self.checkpoint), **options
        )
        query = writing.start()
        query.awaitTermination(120)
        assert not query.isActive

    def forget(self, batch: int, *, plan: bool = False) -> None:
        """Leave the checkpoint as a driver does that dies before it has noted that a batch is done; without its `plan`
        too, as an older copy of it is."""
        names = [f"commits/{batch}", *([f"offsets/{batch}", f"sources/0/{batch}"] if plan else [])]
        for name in names:
            path = self.checkpoint / name
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark, place, tmp_path) -> Query:
    place.create("orders", schema=SCHEMA)
    return Query(spark, place, tmp_path)


def ids(place: Place) -> list[int]:
    return sorted(row["id"] for row in place.rows("orders"))


def test_a_batch_that_is_run_again_is_taken_once(query, place):
    for number in range(3):
        query.add(f"f{number}", number * 10, 10)
    query.run()
    assert ids(place) == list(range(30))
    query.forget(2)
    query.run()
    assert ids(place) == list(range(30))
    query.add("f3", 30, 10)
    query.run()
    assert ids(place) == list(range(40))
    assert place.left_behind() == []


def test_a_checkpoint_that_was_set_back_is_refused(query, place):
    query.add("f0", 0, 10)
    query.run()
    query.add("f1", 10, 10)
    query.run()
    # The batch is planned anew, and now there is another file.
    (query.files / "f1.json").unlink()
    query.add("f2", 20, 10)
    query.forget(1, plan=True)
    with pytest.raises(PySparkException, match=r"number 1 of job .* comes with 10 others.*checkpoint was set back"):
        query.run()
    assert ids(place) == list(range(20))
    assert place.left_behind() == []
    query.run(onReplay="accept")
    query.add("f3", 30, 10)
    query.run()
    assert ids(place) == [*range(20), *range(30, 40)], "what was accepted stands for what came"


def test_a_query_that_is_stopped_in_the_middle_of_a_batch_leaves_nothing(spark, place, tmp_path):
    """Of two tasks one has staged its rows, and one is in the middle; Spark has no word of either."""
    place.create("orders", schema=SCHEMA)
    query = Query(spark, place, tmp_path)
    query.add("f0", 0, 10)
    query.add("f1", 10, 10)
    rows = spark.readStream.schema("id bigint, name string, amount double").json(str(query.files))
    rows = rows.repartition(2, "id").mapInArrow(hanging(tmp_path), rows.schema)
    writing = rows.writeStream.format("mainstem").options(hub=place.hub, checkpointLocation=str(query.checkpoint))
    running = writing.start("orders")
    deadline = time.monotonic() + 120
    while not ((tmp_path / "hangs").exists() and (tmp_path / "done").exists()):
        assert running.isActive
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while not place.staged():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.stop()
    assert place.left_behind() == []
    assert place.rows("orders") == []
    (tmp_path / "go").touch()
    writing.trigger(availableNow=True).start("orders").awaitTermination(120)
    assert ids(place) == list(range(20))
    assert place.left_behind() == []


def hanging(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Lets rows pass, and of the task that has the last of them not the end, until it may. Sent to workers as it is,
    without this module."""

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        is_last = False
        for batch in batches:
            is_last = is_last or 19 in batch.column("id").to_pylist()
            yield batch
        if not is_last:
            (folder / "done").touch()
        elif not (folder / "go").exists():
            (folder / "hangs").touch()
            time.sleep(120)

    return passed


def test_a_new_checkpoint_is_another_job(query, place):
    query.add("f0", 0, 10)
    query.run()
    shutil.rmtree(query.checkpoint)
    query.run()
    assert ids(place) == sorted([*range(10)] * 2)


@pytest.mark.slow("the folder is waited for as long as another job may have it")
def test_a_query_into_a_folder_that_another_process_writes_is_refused(spark, served, tmp_path):
    served.create("orders", schema=SCHEMA)
    query = Query(spark, Place(served.folder, None), tmp_path)
    query.add("f0", 0, 10)
    said = rf"let a server have it \(mainstem serve --data {served.folder}\) and write through that: option hub="
    with pytest.raises(PySparkException, match=said):
        query.run()
    assert (served.rows("orders"), served.staged()) == ([], [])
    # Through the server the same query goes on, with what it could not write.
    Query(spark, served, tmp_path).run()
    assert ids(served) == list(range(10))


def test_complete_mode_says_what_to_do(spark, served, tmp_path):
    served.create("orders", schema=SCHEMA)
    query = Query(spark, served, tmp_path)
    query.add("f0", 0, 10)
    counts = spark.readStream.schema("id bigint").json(str(query.files)).groupBy("id").count()
    writing = counts.writeStream.format("mainstem").outputMode("complete")
    writing = writing.options(hub=served.hub, stream="orders", checkpointLocation=str(query.checkpoint))
    with pytest.raises(PySparkException, match="foreachBatch"):
        writing.start().awaitTermination(60)
