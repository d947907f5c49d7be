"""SQL over streams by their names."""

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from datetime import time as datetime_time
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

import mainstem
from mainstem.core.errors import InvalidRequest, MainstemError, UnknownStream
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.log.cold_maker import cold_files, open_cooler
from mainstem.spark import sql
from mainstem.spark.cold_frame import read_cold
from mainstem.transport.port import CoolCall, PlanColdCall

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("each statement is planned twice and run")]


class Log(NamedTuple):
    """A log that is only read, and where it is."""

    hub: Hub
    folder: str


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sql") / "data"
    with mainstem.open(folder) as hub:
        hub.streams.create(
            "orders",
            shards=2,
            schema={
                "id": "int64",
                "country": "string",
                "amount": "decimal(10, 2)",
                "ts": "timestamp",
                "note": "string",
            },
        )
        now = datetime.now(UTC)
        rows = [
            {
                "id": number,
                "country": ("DE", "FR")[number % 2],
                "amount": Decimal(number),
                "ts": now - timedelta(minutes=number * 10),
                "note": "x" * 20,
            }
            for number in range(12)
        ]
        hub.streams.create("shop.clicks-raw")
        hub.streams.create("empty", schema={"id": "int64"})
        with hub.producer() as producer:
            producer.send_many("orders", rows)
            producer.send("shop.clicks-raw", b"hello", key=b"k")
    with mainstem.open(folder, read_only=True) as hub:
        yield Log(hub, str(folder))


def ask(spark, log, statement):
    return sql.query(spark, log.hub, {"hub": log.folder}, statement)


def rows(spark, log, statement):
    return [tuple(row) for row in ask(spark, log, statement).collect()]


def test_the_statement_of_the_readme(spark, log):
    statement = """
        SELECT country, sum(amount) FROM orders WHERE ts > now() - interval 1 hour GROUP BY country ORDER BY country
    """
    assert rows(spark, log, statement) == [("DE", Decimal(6)), ("FR", Decimal(9))]


def test_no_more_columns_are_read_than_are_needed(spark, log):
    made = []
    plain = sql.Views._make

    def noting(self, stream, columns=None, *, push_filters=False):
        made.append((stream, columns, push_filters))
        plain(self, stream, columns, push_filters=push_filters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql.Views, "_make", noting)
        ask(spark, log, "SELECT sum(id) FROM orders WHERE country = 'DE'")
        assert made == [("orders", None, False), ("orders", ["id", "country"], True)]
        made.clear()
        assert rows(spark, log, "SELECT count(*) FROM orders") == [(12,)]
        assert made == [("orders", None, False), ("orders", ["id"], False)]
        made.clear()
        ask(spark, log, "SELECT * FROM orders")
        assert made == [("orders", None, False)]


def test_filters_are_pushed_only_to_a_stream_that_is_read_once(spark, log):
    """Spark keeps filters with the frame, and the other reading of it would lack rows."""
    twice = "SELECT (SELECT count(*) FROM orders WHERE id < 3), (SELECT count(*) FROM orders)"
    assert rows(spark, log, twice) == [(3, 12)]
    beside = """
        WITH some AS (SELECT * FROM orders WHERE country = 'DE')
        SELECT (SELECT count(*) FROM some WHERE id < 0), (SELECT count(*) FROM some), count(*) FROM orders
    """
    ((none, some, every),) = rows(spark, log, beside)
    assert (none, every) == (0, 12)
    assert rows(spark, log, "SELECT count(*) FROM orders WHERE country = 'DE'") == [(some,)]
    joined = "SELECT count(*) FROM orders a LEFT JOIN (SELECT id FROM orders WHERE id = 1) b ON a.id = b.id"
    assert rows(spark, log, joined) == [(12,)]


def test_filters_of_what_is_left_out_in_the_end_are_not_pushed(spark, log):
    """By the time at which Spark sees that a part gives nothing, that part has told its filters: the other part would
    be read by them."""
    statement = """
        SELECT id FROM orders WHERE country = 'DE'
        UNION ALL SELECT orders.id FROM orders JOIN (VALUES (1L)) v(k) ON orders.id = v.k WHERE orders.id > 5
    """
    assert len(rows(spark, log, statement)) == 6
    for doubtful in (
        "SELECT (SELECT max(b.id) FROM (VALUES (1L)) b(id) WHERE b.id = orders.id) FROM orders WHERE id < 3",
        "WITH few AS (SELECT * FROM orders WHERE id < 3) SELECT id FROM few UNION ALL SELECT id FROM few WHERE id > 8",
    ):
        assert len(rows(spark, log, doubtful)) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "_read_once", lambda *_: {"orders"})
        # Control: by the optimised plan alone.
        assert len(rows(spark, log, statement)) < 6


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("SELECT id FROM (SELECT id, note FROM orders) WHERE id < 3", 3),
        ("WITH q AS (SELECT id, amount * 2 AS y, country FROM orders) SELECT country, count(*) FROM q GROUP BY ALL", 2),
        ("SELECT id FROM orders WHERE EXISTS (SELECT id FROM empty) OR id < 3", 3),
        ("SELECT id FROM orders WHERE id < 3 AND (amount > 5 OR true)", 3),
        ("SELECT id FROM orders WHERE id < 3 UNION ALL SELECT id FROM orders WHERE false AND amount > 3", 3),
    ],
)
def test_a_statement_may_name_columns_that_it_does_not_need(spark, log, statement, found):
    assert len(rows(spark, log, statement)) == found


# By what a statement takes columns, and how rows of several streams come together.
SHAPES = [
    "SELECT * FROM old UNION ALL SELECT * FROM new",
    "SELECT * FROM old UNION SELECT * FROM new",
    "TABLE old UNION ALL TABLE new",
    "SELECT id, name, x FROM old UNION ALL SELECT id, name, x FROM new WHERE id > 1",
    "SELECT * FROM old WHERE id > 0 UNION ALL SELECT * FROM new WHERE id > 0 UNION ALL SELECT * FROM old",
    "SELECT name, x FROM old UNION ALL SELECT name, x FROM new",
    "SELECT max(name), sum(id), sum(x) FROM (TABLE old UNION ALL TABLE new)",
    "SELECT sum(x) FROM (TABLE old UNION ALL TABLE new)",
    "SELECT * FROM old EXCEPT SELECT * FROM new",
    "SELECT * FROM old EXCEPT ALL SELECT * FROM new",
    "SELECT * FROM old INTERSECT SELECT * FROM new",
    "SELECT * FROM old INTERSECT ALL SELECT * FROM new",
    "(SELECT * FROM old ORDER BY id LIMIT 2) UNION ALL (SELECT * FROM new ORDER BY x DESC LIMIT 2 OFFSET 1)",
    "WITH RECURSIVE r AS (SELECT * FROM old UNION ALL SELECT id + 1, name, x FROM r WHERE id < 5) SELECT * FROM r",
    "WITH RECURSIVE r AS (TABLE old UNION ALL SELECT r.id + 1, n.name, r.x FROM r JOIN new n USING (id)) TABLE r",
    "WITH RECURSIVE r AS (TABLE Old UNION ALL SELECT r.id + 1, n.name, r.x FROM r JOIN NEW n USING (id)) TABLE r",
    "WITH both AS (TABLE old UNION ALL TABLE new) SELECT a.name, b.x FROM both a JOIN both b USING (id)",
    "SELECT * FROM old PIVOT (sum(x) FOR name IN ('same', 'old1'))",
    "SELECT * FROM old UNPIVOT (value FOR field IN (x))",
    "SELECT old.* FROM old LEFT JOIN new ON old.id = new.id AND new.x > 1",
    "SELECT * FROM old NATURAL JOIN new",
    "SELECT * FROM old WHERE id IN (SELECT id FROM new WHERE x > 1) OR name = 'same'",
    "SELECT id, (SELECT max(name) FROM new WHERE new.id = old.id) FROM old",
    "SELECT old.id, late.* FROM old, LATERAL (SELECT * FROM new WHERE new.id >= old.id ORDER BY x LIMIT 1) late",
    "SELECT name, sum(x) OVER (PARTITION BY name ORDER BY id) FROM old",
    "SELECT * FROM (SELECT *, row_number() OVER (ORDER BY x DESC) AS place FROM new) WHERE place < 3",
    "SELECT name, word FROM old LATERAL VIEW explode(split(name, 'l')) AS word",
    "SELECT name, x, count(*) FROM old GROUP BY name, x WITH ROLLUP",
    "SELECT transform.* FROM (SELECT struct(*) AS transform FROM old)",
    "SELECT count(DISTINCT name), count(DISTINCT x) FROM new",
    "SELECT * FROM old TABLESAMPLE (100 PERCENT) UNION ALL SELECT * FROM new",
    "FROM old |> UNION ALL (TABLE new) |> WHERE id > 1 |> AGGREGATE sum(x) GROUP BY name",
]


@pytest.fixture(scope="module")
def pair(spark, tmp_path_factory):
    """Two streams, and a session in which their rows are views that Spark has made itself."""
    folder = tmp_path_factory.mktemp("pair") / "data"
    plain = spark.newSession()
    with mainstem.open(folder) as hub:
        for stream, count in (("old", 3), ("new", 4)):
            there = [(number, f"{stream}{number}" if number % 2 else "same", number / 2) for number in range(count)]
            hub.streams.create(stream, schema={"id": "int64", "name": "string", "x": "float64"})
            with hub.producer() as producer:
                producer.send_many(stream, [dict(zip(("id", "name", "x"), row, strict=True)) for row in there])
            plain.createDataFrame(there, "id LONG, name STRING, x DOUBLE").createTempView(stream)
    with mainstem.open(folder, read_only=True) as hub:
        yield Log(hub, str(folder)), plain


@pytest.mark.parametrize("statement", SHAPES)
def test_a_statement_over_streams_gives_what_it_gives_over_any_table(spark, pair, statement):
    """What is left unread of a stream is what nothing in the statement takes, by name or by place."""
    log, plain = pair
    expected = [tuple(row) for row in plain.sql(statement).collect()]
    assert sorted(rows(spark, log, statement), key=repr) == sorted(expected, key=repr)
    assert expected


def test_a_union_takes_columns_by_their_places(spark, pair):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "_PASSING_ON", sql._PASSING_ON | {"Union"})
        # Control: by their names alone the second stream has none that is needed.
        assert None in [name for _, name, _ in rows(spark, pair[0], SHAPES[0])]


def test_columns_that_differ_in_capitals_are_told_apart_by_their_places(spark, tmp_path):
    folder = tmp_path / "data"
    with mainstem.open(folder) as hub:
        hub.streams.create("twins", schema={"id": "int64", "ID": "string", "note": "string"})
        with hub.producer() as producer:
            producer.send_many("twins", [{"id": number, "ID": "x", "note": "y"} for number in range(4)])
    with mainstem.open(folder, read_only=True) as hub:
        log = Log(hub, str(folder))
        assert rows(spark, log, "SELECT count(*), max(note) FROM twins") == [(4, "y")]
        assert rows(spark, log, "SELECT * FROM twins WHERE note = 'y' LIMIT 1") == [(0, "x", "y")]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE x AS SELECT * FROM orders",
        "CREATE TEMPORARY VIEW x AS SELECT 1",
        "INSERT INTO orders SELECT * FROM orders",
        "INSERT OVERWRITE DIRECTORY '/tmp/x' USING parquet SELECT 1",
        "FROM orders INSERT INTO x SELECT id INSERT INTO y SELECT id",
        "WITH a AS (SELECT 1) INSERT INTO orders SELECT * FROM a",
        "DROP TABLE orders",
        "SET spark.sql.shuffle.partitions = 3",
        "CACHE TABLE orders",
        "EXECUTE IMMEDIATE 'DROP TABLE orders'",
        "CALL spark_catalog.x.y()",
    ],
)
def test_what_is_no_query_is_refused(spark, log, statement):
    with pytest.raises(InvalidRequest, match="is no query") as raised:
        rows(spark, log, statement)
    assert "\n" not in str(raised.value)


def test_joins_subqueries_and_names_of_the_statement(spark, log):
    statement = """
        WITH large AS (SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders))
        SELECT count(*) FROM large JOIN Orders USING (id) LEFT JOIN empty ON empty.id = large.id
    """
    assert rows(spark, log, statement) == [(6,)]


def test_streams_without_a_schema_and_what_records_have_beside_their_rows(spark, log):
    found = rows(spark, log, "SELECT string(value), string(key) FROM `shop.clicks-raw`")
    assert found == [("hello", "k")]
    assert rows(spark, log, "SELECT max(_offset) FROM orders WHERE _shard >= 0")[0][0] >= 5
    assert "_offset" not in ask(spark, log, "SELECT * FROM orders").columns


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("SELECT * FROM order", UnknownStream, "no stream is called 'order'; did you mean `orders`?"),
        ("SELECT * FROM xyz", UnknownStream, "mainstem stream list shows"),
        ("SELECT * FROM shop.`clicks-raw`", InvalidRequest, "in backticks: `shop.clicks-raw`"),
        ("SELECT amout FROM orders", InvalidRequest, "amount"),
        ("SELEC 1", InvalidRequest, "SELEC"),
    ],
)
def test_mistakes_are_told_in_a_line(spark, log, statement, error, said):
    with pytest.raises(error, match=said.replace("?", r"\?").replace("`", "`")) as raised:
        rows(spark, log, statement)
    assert "\n" not in str(raised.value)


def test_streams_whose_names_differ_in_capitals(spark, tmp_path):
    """To Spark both are one name: a statement that reads both would read one of them twice."""
    folder = tmp_path / "data"
    with mainstem.open(folder) as hub:
        for stream, count in (("Orders", 4), ("orders", 5)):
            hub.streams.create(stream, schema={"id": "int64"})
            with hub.producer() as producer:
                producer.send_many(stream, [{"id": number} for number in range(count)])
    with mainstem.open(folder, read_only=True) as hub:
        log = Log(hub, str(folder))
        assert rows(spark, log, "SELECT count(*) FROM Orders") == [(4,)]
        assert rows(spark, log, "SELECT count(*) FROM orders") == [(5,)]
        assert rows(spark, log, "SELECT count(Orders.id) FROM orders WHERE id < (SELECT 9 FROM orders LIMIT 1)") == [
            (5,)
        ]
        # The second is what the statement has defined.
        assert rows(spark, log, "WITH orders AS (SELECT * FROM Orders) SELECT count(*) FROM orders") == [(4,)]
        for both in (
            "SELECT (SELECT count(*) FROM Orders) d, (SELECT count(*) FROM orders) e",
            "WITH a AS (SELECT * FROM orders) SELECT count(*) FROM a JOIN Orders USING (id)",
            "SELECT 1 FROM orders WHERE EXISTS (SELECT 1 FROM ORDERS)",
            "SELECT 1 FROM orders, LATERAL (SELECT count(*) FROM Orders)",
            "SELECT count(*) FROM IDENTIFIER('Orders') JOIN orders USING (id)",
            # Of this Spark finds something else wrong before it looks for a name.
            (
                "WITH RECURSIVE r AS (SELECT 0L AS id UNION ALL "
                "SELECT id + 1 FROM r JOIN orders USING (id) JOIN Orders USING (id)) TABLE r"
            ),
        ):
            with pytest.raises(InvalidRequest, match="'Orders' and 'orders' differ in their capitals alone"):
                rows(spark, log, both)
        with pytest.raises(UnknownStream, match="'ORDERS'"):
            rows(spark, log, "SELECT * FROM ORDERS")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM old JOIN new USING (id)",
        "WITH RECURSIVE r AS (TABLE old UNION ALL SELECT r.id + 1, n.name, r.x FROM r JOIN new n USING (id)) TABLE r",
    ],
)
def test_a_statement_speaks_of_so_many_streams(spark, pair, monkeypatch, statement):
    monkeypatch.setattr(sql, "STREAMS_MAX", 1)
    with pytest.raises(InvalidRequest, match="at most 1 streams"):
        rows(spark, pair[0], statement)
    monkeypatch.setattr(sql, "STREAMS_MAX", 2)
    assert rows(spark, pair[0], statement)


def cool(folder, stream):
    """Everything that a stream has goes into cold files."""
    with closing(LogPort(folder)) as port:
        plan = port.call(PlanColdCall(stream, 1 << 60, 1)).cold
        assert plan is not None
        with open_cooler(folder, plan.log) as maker:
            for file in [file for task in plan.tasks for file in maker.make(plan, task)]:
                port.call(CoolCall(stream, file))


def scans(frame):
    """By what a frame is read: names of Spark's own."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return ("FileScan parquet" in plan, "BatchScan" in plan)


def test_a_stream_in_cold_files_is_read_by_sparks_own_reader_of_parquet(spark, tmp_path):
    """The same rows as by the source, of an older schema too; and by the source as soon as a record is elsewhere."""
    folder = tmp_path / "data"
    first = {"id": "int32", "ok": "bool", "at": "timestamp", "price": "decimal(12, 2)", "tags": "list<string>"}
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    row = {"ok": None, "at": at, "price": Decimal("1.50"), "tags": ["a", None]}
    with mainstem.open(folder) as hub:
        hub.streams.create("orders", shards=2, schema=first, key="id")
        hub.streams.create("clicks", shards=2)
        hub.streams.create("hours", schema={"hour": "time64[us]"})
        with hub.producer() as producer:
            producer.send_many("orders", [{"id": number, **row} for number in range(500)])
        hub.streams.set_schema("orders", {**first, "id": "int64", "note": "string"})
        with hub.producer() as producer:
            producer.send_many("orders", [{"id": (1 << 40) + number, **row, "note": "new"} for number in range(500)])
            for number in range(200):
                producer.send("clicks", b"%d" % number, key=b"k%d" % number, headers={"n": b"1"} if number else None)
            producer.send("hours", {"hour": datetime_time(12, 30)})
    statements = [
        "SELECT * FROM orders ORDER BY id",
        "SELECT _shard, _offset, _timestamp, string(_key), _headers, id, note FROM orders ORDER BY id",
        "SELECT count(*), sum(id), max(note) FROM orders WHERE id > 100",
        "SELECT * FROM clicks ORDER BY key",
        "SELECT _shard, _offset, _timestamp = timestamp, _key = key, value FROM clicks ORDER BY key",
        "SELECT * FROM hours",
    ]

    def answers():
        with mainstem.open(folder, read_only=True) as hub:
            frames = [ask(spark, Log(hub, str(folder)), each) for each in statements]
            by = [scans(frame) for frame in frames]
            return [(frame.dtypes, frame.collect()) for frame in frames], by

    before, _ = answers()
    for stream in ("orders", "clicks", "hours"):
        cool(folder, stream)
    found, by = answers()
    assert found == before
    # A time of day is not the same in Parquet.
    assert by == [(True, False)] * 5 + [(False, True)]
    with mainstem.open(folder) as hub, hub.producer() as producer:
        producer.send("orders", {"id": 7, **row, "note": None})
    with mainstem.open(folder, read_only=True) as hub:
        frame = ask(spark, Log(hub, str(folder)), "SELECT count(*) FROM orders")
        assert frame.collect()[0][0] == 1_001
        assert scans(frame) == (False, True)
        check_a_missing_file(spark, Log(hub, str(folder)))
        # A byte that is not what was written is no answer.
        for file in cold_files(folder, "clicks"):
            column = pq.read_metadata(file.path).row_group(0).column(1)
            first = column.dictionary_page_offset or column.data_page_offset
            data = bytearray(file.path.read_bytes())
            data[first + column.total_compressed_size - 1] ^= 1
            file.path.write_bytes(data)
        with pytest.raises(Py4JJavaError, match="CRC checksum verification failed"):
            rows(spark, Log(hub, str(folder)), "SELECT * FROM clicks")


def check_a_missing_file(spark, log):
    """Which stream it is of, and what to do."""
    path = min(cold_files(Path(log.folder), "clicks"), key=lambda file: file.path.name).path
    away = path.rename(path.with_suffix(".away"))
    said = rf"stream 'clicks': .*{path.name}, .* is missing; .*mainstem doctor"
    with pytest.raises(MainstemError, match=said):
        rows(spark, log, "SELECT * FROM clicks")
    with pytest.raises(MainstemError, match=said):
        read_cold(spark, log.folder, "clicks")
    away.rename(path)


def places(hub):
    return [(shard.shard, shard.offset, shard.committed_us) for shard in hub.groups.get("billing").shards]


def test_a_question_about_the_last_hour_of_a_million_records(spark, tmp_path):
    """Of a folder that nobody serves: answered within 20 s, the same by Spark and by the script tool, and no group
    moves. Without the condition the answer is another. (Through a server: test_adhoc.)"""
    folder = tmp_path / "data"
    count = 1_000_000
    now = time.time()
    times = np.linspace(now - 7_200, now, count)
    with mainstem.open(folder) as hub:
        hub.streams.create("events", shards=2, schema={"id": "int64", "kind": "string", "at": "timestamp"})
        table = pa.table(
            {
                "id": np.arange(count),
                "kind": pa.array(["view", "click", "buy", "view"] * (count // 4)),
                "at": pa.array((times * 1_000_000).astype(np.int64), pa.timestamp("us", "UTC")),
            }
        )
        with hub.producer() as producer:
            for begin in range(0, count, 50_000):
                producer.send_batch("events", table.slice(begin, 50_000))
        with hub.consumer("events", group="billing", start="earliest") as member:
            next(iter(member))
    with mainstem.open(folder, read_only=True) as hub:
        log = Log(hub, str(folder))
        before = places(hub)
        since = datetime.fromtimestamp(now - 3_600, UTC)
        begun = time.monotonic()
        ((found,),) = rows(
            spark, log, f"SELECT count(*) FROM events WHERE kind = 'buy' AND at >= timestamp'{since.isoformat()}'"
        )
        assert time.monotonic() - begun < 20
        scripted = hub.find("events", f"kind = 'buy' AND at >= TIMESTAMP '{since.isoformat()}'", columns=["id"])
        assert found == len(scripted)
        assert abs(found - count // 8) <= 1
        assert places(hub) == before
        assert rows(spark, log, "SELECT count(*) FROM events WHERE kind = 'buy'") == [(count // 4,)]
