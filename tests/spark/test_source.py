"""A stream as a table of Spark: every row once, the types and columns that were asked for, no more read than needed."""

import datetime as dt
import io
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql import types as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

import mainstem
from mainstem.core.errors import InvalidSchema, InvalidSetting
from mainstem.produce import typed_rows
from mainstem.registry.formats import to_avro_file
from mainstem.spark import types
from mainstem.spark.filters import predicate_of
from mainstem.spark.options import read_options
from mainstem.spark.progress import INITIAL
from mainstem.spark.reading import Partition, parts_for
from mainstem.spark.source import BatchReader, MainstemSource, PushdownReader
from mainstem.spark.stream import StreamReader
from tests.spark.parts import BEGIN, SCHEMA, fill, make_half_spoilt, rows, tear_out

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow("Spark starts processes for what it is asked first")]


@pytest.fixture
def orders(tmp_path):
    """A folder with a stream that this process goes on writing."""
    with mainstem.open(tmp_path / "log") as hub:
        fill(hub, count=20_000)
        yield hub, str(tmp_path / "log")


def table(spark, hub: str, stream: str = "orders", **options):
    return spark.read.format("mainstem").option("hub", hub).options(**options).load(stream)


def test_sums_are_those_of_the_rows(spark, orders):
    _, folder = orders
    found = table(spark, folder).agg(f.count("*"), f.sum("id"), f.sum("x"), f.countDistinct("v")).first()
    total = 20_000 * 19_999 // 2
    assert tuple(found) == (20_000, total, total / 2, 20_000)


def test_through_a_server_and_by_sql(spark, server):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=5_000)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW o USING mainstem "
        f"OPTIONS (hub '{server.url}', stream 'orders', includeMetadata true)"
    )
    found = spark.sql("SELECT count(*), count(DISTINCT _shard), max(_offset) FROM o WHERE id >= 1000").first()
    assert found[0] == 4_000
    assert found[1] == 2
    spark.catalog.dropTempView("o")


def test_filters_reach_the_predicate_and_the_plan(spark, orders):
    hub, folder = orders
    fill(hub, "dated", 60_000, shards=1, batch=1_500)
    dated = table(spark, folder, "dated", pushFilters="true")
    narrowed = dated.where("day >= '2026-01-10' AND day < '2026-01-11' AND v LIKE 'value 19%'")
    assert narrowed.count() == len([n for n in range(18_000, 20_000) if str(n).startswith("19")])
    reader = PushdownReader(read_options({"hub": folder, "stream": "dated"}, streaming=False), types.to_spark(SCHEMA))
    whole = _planned_bytes(reader)
    day = [
        ds.GreaterThanOrEqual(("day",), dt.datetime(2026, 1, 10, tzinfo=dt.UTC)),
        ds.LessThan(("day",), dt.datetime(2026, 1, 11, tzinfo=dt.UTC)),
    ]
    # All come back, so that Spark checks again.
    assert list(reader.pushFilters(day)) == day
    assert _planned_bytes(reader) * 10 <= whole


def test_a_frame_that_was_filtered_once_is_whole_the_next_time(spark, orders):
    """Spark 4.3 keeps a reader that took filters with its frame, and reads by it whatever else is made of that."""
    _, folder = orders
    rows = table(spark, folder)
    assert [rows.where("id < 5").count(), rows.count(), rows.where("id >= 10").count()] == [5, 20_000, 19_990]
    assert rows.where("id < 10").union(rows).count() == 20_010
    rows.createOrReplaceTempView("both")
    assert tuple(
        spark.sql("SELECT (SELECT count(*) FROM both WHERE id < 10), (SELECT count(*) FROM both)").first()
    ) == (
        10,
        20_000,
    )
    spark.catalog.dropTempView("both")


def test_a_frame_that_is_read_once_may_be_told_its_filters(spark, orders):
    """The control: so a filter that reaches the source is seen, and that Spark keeps it. Once that is mended in Spark
    this fails, and filters can be pushed always."""
    _, folder = orders
    rows = table(spark, folder, pushFilters="true")
    assert [rows.where("id < 5").count(), rows.count()] == [5, 5]


def test_a_session_without_pushdown_reads_too(spark, orders):
    _, folder = orders
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert table(spark, folder, pushFilters="true").where("id < 10").count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert type(MainstemSource({"hub": folder, "stream": "orders"}).reader(types.to_spark(SCHEMA))) is BatchReader


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ([ds.EqualTo(("id",), 5)], '"id" = 5'),
        ([ds.EqualNullSafe(("v",), "it's")], "\"v\" IS NOT DISTINCT FROM 'it''s'"),
        # Never true with a null: without it Spark is given more to check, not less.
        ([ds.Not(ds.In(("id",), (1, None, 2)))], 'NOT ("id" IN (1, 2))'),
        ([ds.In(("id",), (1, 2))], '"id" IN (1, 2)'),
        ([ds.IsNotNull(("id",)), ds.GreaterThan(("x",), 0.5)], '"id" IS NOT NULL AND "x" > 0.5e0'),
        ([ds.StringStartsWith(("v",), "a%")], "starts_with(\"v\", 'a%')"),
        ([ds.EqualTo(("nothing",), 1)], ""),
        ([ds.LessThan(("x",), float("inf"))], ""),
        (
            [ds.EqualTo(("day",), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))],
            "\"day\" = TIMESTAMP '2026-01-01 00:00:00.000000Z'",
        ),
    ],
)
def test_filters_in_words(filters, text):
    assert predicate_of(filters, SCHEMA) == text
    assert predicate_of(filters, SCHEMA, "id > 0") == (f"(id > 0) AND {text}" if text else "id > 0")


def test_columns_by_option_and_by_schema(spark, orders):
    _, folder = orders
    assert table(spark, folder, columns="x, id").columns == ["x", "id"]
    assert table(spark, folder, columns='["id"]', includeMetadata="true").columns[:3] == ["id", "_shard", "_offset"]
    narrowed = spark.read.format("mainstem").option("hub", folder).schema("id LONG, _offset LONG").load("orders")
    assert narrowed.agg(f.sum("id"), f.max("_offset")).first()[0] == 20_000 * 19_999 // 2
    wider = spark.read.format("mainstem").option("hub", folder).schema("id DECIMAL(20, 0)").load("orders")
    assert wider.agg(f.max("id")).first()[0] == Decimal(19_999)


def test_columns_that_are_not_asked_for_are_not_read(spark, tmp_path):
    """One of them cannot be read."""
    folder = str(tmp_path / "log")
    make_half_spoilt(tmp_path / "log")
    reader = spark.read.format("mainstem").option("hub", folder)
    narrowed = {
        "columns": table(spark, folder, "wide", columns="n, id"),
        "columns and metadata": table(spark, folder, "wide", columns="n, id", includeMetadata="true"),
        "schema": reader.schema("n LONG, id LONG").load("wide"),
        "schema of another type, and metadata": reader.schema("_offset LONG, n DOUBLE, id LONG").load("wide"),
        "where": table(spark, folder, "wide", columns="n, id", where="id >= 0 AND n < 100"),
    }
    for name, frame in narrowed.items():
        assert sorted(map(tuple, frame.select("n", "id").collect())) == [(number, number) for number in range(30)], name
    # Control: who asks for it, and who takes of everything the same two.
    for frame in (table(spark, folder, "wide", columns="blob"), table(spark, folder, "wide").select("n", "id")):
        with pytest.raises(PySparkException, match=r"are gone \(damaged"):
            frame.collect()


def test_columns_are_named_by_options_or_by_a_schema(orders):
    """A schema of the user's would win without a word."""
    _, folder = orders

    def source(**options: str) -> MainstemSource:
        return MainstemSource({"hub": folder, "stream": "orders", **options})

    some = st.StructType().add("id", st.LongType()).add("_offset", st.LongType())
    for options, given in (
        ({"columns": "id, x"}, "columns"),
        ({"columns": "id"}, "columns"),
        ({"includeMetadata": "true"}, "includeMetadata"),
        ({"columns": "id, x", "includeMetadata": "true"}, "columns and includeMetadata"),
    ):
        for reader in (source(**options).reader, source(**options).streamReader):
            with pytest.raises(
                InvalidSetting, match=f"has the columns id, _offset, and {given} asks for others. Leave"
            ):
                reader(some)
    # What says the same is taken, as is what Spark was told by the source itself.
    source(columns="_offset, id").reader(some)
    for options in (
        {},
        {"columns": "x, _offset"},
        {"includeMetadata": "true"},
        {"columns": "x", "includeMetadata": "true"},
    ):
        one = source(**options)
        one.reader(one.schema())
        one.streamReader(one.schema())


def test_filters_on_what_a_value_is_cast_to_are_left_to_spark(spark, tmp_path):
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("tenths", schema={"id": "int64", "x": "double", "big": "decimal(50, 2)"})
        producer.send("tenths", {"id": 7, "x": 0.1, "big": None}).result(10)
    narrow = spark.read.format("mainstem").option("hub", str(tmp_path / "log")).schema("id LONG, x FLOAT")
    assert narrow.load("tenths").where("x = float(0.1) AND id = 7").count() == 1
    options = read_options({"hub": str(tmp_path / "log"), "stream": "tenths", "where": "x < 1"}, streaming=False)
    schema = st.StructType([st.StructField("id", st.LongType()), st.StructField("x", st.FloatType())])
    reader = PushdownReader(options, schema.add("big", st.DecimalType(38, 2)))
    filters = [ds.EqualTo(("x",), 0.5), ds.Not(ds.EqualTo(("x",), 0.5)), ds.EqualTo(("id",), 7), ds.IsNull(("big",))]
    assert list(reader.pushFilters(filters)) == filters
    assert reader._where == '(x < 1) AND "id" = 7'


def test_where_and_bounds(spark, orders):
    hub, folder = orders
    assert table(spark, folder, where="id % 2 = 0 AND _shard = 1").where("id < 100").count() <= 50
    info = hub.streams.get("orders")
    some = table(spark, folder, startingOffsets='{"0": 10, "1": -1}', endingOffsets='{"0": 25, "1": -1}')
    assert some.count() == 15
    # As Spark's source of Kafka has it, by the name of the stream, however that is given.
    for named in ({"stream": "orders"}, {"path": "orders"}):
        given = read_options({"hub": folder, "startingOffsets": '{"orders": {"0": 5}}', **named}, streaming=False)
        assert given.starting == ((0, 5),)
    assert table(spark, folder, startingOffsets="latest").count() == 0
    cursor = mainstem.Cursor(info.uuid, info.epoch, info.ends)
    assert table(spark, folder, startingOffsets=str(cursor)).count() == 0
    assert table(spark, folder, startingTimestamp="2020-01-01T00:00:00Z").count() == 20_000
    assert table(spark, folder, startingTimestamp="4102444800000").count() == 0


def test_times_in_the_middle_of_the_data(spark, orders):
    """A record for each minute, in several batches: from and to the very record."""
    hub, folder = orders
    hub.streams.create("timed", schema=SCHEMA)
    minutes = pa.array([BEGIN + dt.timedelta(minutes=number) for number in range(100)], pa.timestamp("us", "UTC"))
    timed = rows(0, 100).append_column("_timestamp", minutes)
    with hub.producer() as producer:
        for at in range(0, 100, 20):
            producer.send_batch("timed", timed.slice(at, 20))
            producer.flush()

    def found(**bounds: dt.datetime) -> list[int]:
        given = {name: moment.isoformat() for name, moment in bounds.items()}
        return sorted(row["id"] for row in table(spark, folder, "timed", columns="id", **given).collect())

    half, most = BEGIN + dt.timedelta(minutes=29, seconds=30), BEGIN + dt.timedelta(minutes=75)
    assert found(startingTimestamp=half) == list(range(30, 100))
    assert found(endingTimestamp=most) == list(range(75))
    assert found(startingTimestamp=half, endingTimestamp=most) == list(range(30, 75))
    following = read_options({"hub": folder, "stream": "timed", "startingTimestamp": half.isoformat()}, streaming=True)
    offset = StreamReader(following, types.to_spark(SCHEMA)).latestOffset(dict(INITIAL), ReadAllAvailable())
    assert (offset["begins"], offset["offsets"]) == ([30], [100])


def test_partitions_follow_bytes_and_cores():
    mib = 1 << 20
    assert parts_for(0, 2) == 1
    assert parts_for(3 * mib, 2) == 1
    assert parts_for(16 * mib, 2) == 4
    assert parts_for(500 * mib, 2) == 6
    assert parts_for(2_000 * mib, 2) == 8
    assert parts_for(10_000 * mib, 4) == 40


TYPED = pa.schema(
    [
        ("flag", pa.bool_()),
        ("u8", pa.uint8()),
        ("u64", pa.uint64()),
        ("small", pa.int16()),
        ("cents", pa.decimal128(12, 2)),
        ("raw", pa.binary()),
        ("fixed", pa.binary(4)),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms", "Europe/Berlin")),
        ("local", pa.timestamp("us")),
        ("clock", pa.time64("us")),
        ("span", pa.duration("us")),
        ("tags", pa.list_(pa.string())),
        ("who", pa.struct([("name", pa.string()), ("ages", pa.list_(pa.int32()))])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
TYPED_ROW = {
    "flag": True,
    "u8": 200,
    "u64": (1 << 64) - 1,
    "small": -3,
    "cents": Decimal("12.34"),
    "raw": b"\x00\xff",
    "fixed": b"abcd",
    "day": dt.date(2026, 1, 31),
    "at": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 1, 31, 12, 30),  # noqa: DTZ001  # without a zone on purpose
    "clock": dt.time(12, 30, 0, 5),
    "span": dt.timedelta(hours=5, microseconds=7),
    "tags": ["a", None, "c"],
    "who": {"name": "Ada", "ages": [1, 2]},
    "counts": [("a", 1)],
}


def test_types_survive(spark, tmp_path):
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("typed", schema=TYPED)
        with hub.producer() as producer:
            producer.send_batch("typed", pa.Table.from_pylist([TYPED_ROW, dict.fromkeys(TYPED_ROW)], TYPED))
            producer.flush()
        found = table(spark, str(tmp_path / "log"), "typed").toArrow().to_pylist()
    assert found[0] == {**TYPED_ROW, "u64": Decimal((1 << 64) - 1)}
    assert set(found[1].values()) == {None}


def test_types_survive_there_and_back(spark, tmp_path):
    """A stream copied by Spark is the same, also where Spark has no such type."""
    schema = TYPED.append(pa.field("sizes", pa.struct([("u64s", pa.list_(pa.uint64()))])))
    row = {**TYPED_ROW, "sizes": {"u64s": [(1 << 64) - 1, None, 0]}}
    folder = str(tmp_path / "log")
    with mainstem.open(folder) as hub:
        hub.streams.create("typed", schema=schema)
        hub.streams.create("copy", schema=schema)
        with hub.producer() as producer:
            producer.send_batch("typed", pa.Table.from_pylist([row], schema))
    rows = table(spark, folder, "typed")
    rows.write.format("mainstem").mode("append").option("hub", folder).save("copy")
    copied = table(spark, folder, "copy")
    assert copied.toArrow().to_pylist() == rows.toArrow().to_pylist()
    # A time of day is a column like others.
    assert copied.where("clock > time'12:00:00'").select("clock").count() == 1
    with pytest.raises(PySparkException, match="column 'u64' has a value"):
        rows.withColumn("u64", f.lit(Decimal(-1)).cast("decimal(20, 0)")).write.format("mainstem").mode(
            "append"
        ).option("hub", folder).save("copy")


def test_numbers_without_a_sign_beside_moments_survive_in_any_time_zone(spark, tmp_path):
    """Spark hands moments to a sink in the time zone of its session."""
    seen = pa.struct([("at", pa.timestamp("ms", "Europe/Berlin")), ("u64", pa.uint64())])
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("seen", seen),
            ("all", pa.list_(seen)),
            ("by", pa.map_(pa.timestamp("us", "UTC"), pa.uint64())),
        ]
    )
    # An hour that New York has twice.
    at, most = dt.datetime(2026, 11, 1, 5, 30, tzinfo=dt.UTC), (1 << 64) - 1
    one = {"at": at, "u64": most}
    row = {"at": at, "seen": one, "all": [one, None, {"at": None, "u64": 0}], "by": [(at, most)]}
    folder = str(tmp_path / "log")
    with mainstem.open(folder) as hub:
        for name in ("typed", "copy"):
            hub.streams.create(name, schema=schema)
        with hub.producer() as producer:
            producer.send_batch("typed", pa.Table.from_pylist([row, dict.fromkeys(row)], schema))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = table(spark, folder, "typed")
        rows.write.format("mainstem").mode("append").option("hub", folder).save("copy")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    with mainstem.open(folder) as hub, hub.consumer("copy", start="earliest", follow=False) as consumer:
        copied = [row for batch in consumer.batches() for row in batch.to_arrow().to_pylist()]
    assert copied == [row, dict.fromkeys(row)]


def test_avro_and_dictionaries_are_columns_of_their_values(spark, tmp_path):
    """Avro rows, and words by number, also within lists, structs and maps: to Spark, and from it."""
    word = pa.dictionary(pa.int32(), pa.string())
    coded = pa.schema(
        [
            ("word", word),
            ("words", pa.list_(word)),
            ("who", pa.struct([("word", word)])),
            ("by", pa.map_(pa.string(), word)),
        ]
    )
    row = {"word": "a", "words": ["a", "b", None], "who": {"word": "b"}, "by": [("x", "a")]}
    enum = {"type": "enum", "name": "kind", "symbols": ["new", "paid"]}
    avro = {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "kind", "type": enum},
            {"name": "cents", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
    order = {"id": 1, "kind": "paid", "cents": Decimal("12.34"), "at": BEGIN, "tags": ["a", "b"]}
    folder = str(tmp_path / "log")
    with mainstem.open(folder) as hub, hub.producer() as producer:
        hub.streams.create("coded", schema=coded)
        hub.streams.create("copies", schema=coded)
        hub.streams.create("avro", schema=avro)
        producer.send_batch("coded", pa.Table.from_pylist([row, dict.fromkeys(row)], coded))
        stored = hub.streams.get("avro").schema
        assert stored is not None
        file = to_avro_file(pa.Table.from_pylist([order], stored.arrow).to_batches(), stored.arrow)
        for batch in typed_rows.avro(io.BytesIO(file)):
            producer.send_batch("avro", batch)
    assert table(spark, folder, "avro").toArrow().to_pylist() == [order]
    table(spark, folder, "coded").write.format("mainstem").mode("append").option("hub", folder).save("copies")
    for stream in ("coded", "copies"):
        found = sorted(table(spark, folder, stream).toArrow().to_pylist(), key=lambda each: each["word"] is None)
        assert found == [row, dict.fromkeys(row)]
    # Batches whose columns are dictionaries themselves become what Spark wants.
    plain = types.to_arrow(types.to_spark(coded))
    (given,) = pa.Table.from_pylist([row], coded).to_batches()
    assert types.conform(given, plain).to_pylist() == [row]


def test_what_spark_has_no_type_for_is_refused_by_name(spark, tmp_path):
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("wide", schema={"id": "int64", "big": "decimal(50, 2)", "at": "timestamp[ns, UTC]"})
        with pytest.raises(PySparkException, match=r"column 'big' is decimal\(50, 2\).*which Spark has no type for"):
            table(spark, str(tmp_path / "log"), "wide")
        with hub.producer() as producer:
            producer.send_batch(
                "wide", pa.table({"id": [1], "big": [None], "at": pa.array([1_001], pa.timestamp("ns", "UTC"))})
            )
            producer.flush()
        assert table(spark, str(tmp_path / "log"), "wide", columns="id").count() == 1
        with pytest.raises(PySparkException, match=r"column 'at' has a value .* that is none of timestamp\[us"):
            table(spark, str(tmp_path / "log"), "wide", columns="at").collect()


def test_what_a_query_would_read_as_another_value_is_refused_by_name(spark, tmp_path):
    kinds = pa.schema([("x", pa.float64()), ("at", pa.time64("ns")), ("items", pa.list_(pa.int32()))])
    folder = str(tmp_path / "log")
    with mainstem.open(folder) as hub, hub.producer() as producer:
        hub.streams.create("odd", schema=kinds)
        producer.send_batch("odd", pa.table({"x": [1e300], "at": [1], "items": [[1, None]]}, schema=kinds))
    read = spark.read.format("mainstem").option("hub", folder)
    with pytest.raises(PySparkException, match="column 'x' has a value of type double that is none of float"):
        read.schema("x FLOAT").load("odd").collect()
    with pytest.raises(PySparkException, match=r"column 'at' has a value .* that is none of Spark's TIME"):
        table(spark, folder, "odd", columns="at").collect()
    without = st.StructType([st.StructField("items", st.ArrayType(st.IntegerType(), containsNull=False))])
    with pytest.raises(PySparkException, match=r"column 'items\[\]' may be null"):
        read.schema(without).load("odd").selectExpr("explode(items)").collect()
    assert read.schema("x DOUBLE, items ARRAY<INT>").load("odd").collect() == [(1e300, [1, None])]


def test_bytes_and_json_values(spark, tmp_path):
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("raw")
        producer.send("raw", b'{"id": 1}', key=b"k", headers={"trace": b"t"}).result(10)
        producer.send("raw", b'{"id": 2}').result(10)
        bare = table(spark, str(tmp_path / "log"), "raw").collect()
        assert [(row["key"], bytes(row["value"])) for row in bare] == [
            (bytearray(b"k"), b'{"id": 1}'),
            (None, b'{"id": 2}'),
        ]
        assert bare[0]["headers"] == {"trace": bytearray(b"t")}
        hub.streams.set_schema("raw", {"id": "int64"})
        assert sorted(row["id"] for row in table(spark, str(tmp_path / "log"), "raw").collect()) == [1, 2]


def test_mistakes_are_named(spark, orders):
    _, folder = orders
    with pytest.raises(InvalidSetting, match="there is no option startingOffset; did you mean startingOffsets"):
        read_options({"hub": folder, "stream": "orders", "startingOffset": "latest"}, streaming=False)
    with pytest.raises(InvalidSetting, match="there is no option subscribe; did you mean stream"):
        read_options({"hub": folder, "subscribe": "orders"}, streaming=False)
    with pytest.raises(InvalidSetting, match="option failOnDataLoss is true or false, not 'maybe'"):
        read_options({"hub": folder, "stream": "orders", "failondataloss": "maybe"}, streaming=False)
    with pytest.raises(InvalidSetting, match=r"option group is for spark\.readStream"):
        read_options({"hub": folder, "stream": "orders", "group": "g"}, streaming=False)
    with pytest.raises(InvalidSetting, match=r"option endingOffsets is for spark\.read"):
        read_options({"hub": folder, "stream": "orders", "endingOffsets": "latest"}, streaming=True)
    with pytest.raises(InvalidSetting, match="a time needs a zone"):
        read_options({"hub": folder, "stream": "orders", "startingTimestamp": "2026-01-01"}, streaming=False)
    for twice in ("id, x,id", '["id", "x", "id"]'):
        with pytest.raises(InvalidSetting, match="option columns: 'id' is named twice, in id, x, id"):
            read_options({"hub": folder, "stream": "orders", "columns": twice}, streaming=False)
    with pytest.raises(InvalidSetting, match="say where the stream is"):
        read_options({"stream": "orders"}, streaming=False)
    with pytest.raises(InvalidSchema, match="there is no column 'ide'; did you mean 'id'"):
        BatchReader(
            read_options({"hub": folder, "stream": "orders"}, streaming=False),
            types.to_spark(pa.schema([("ide", pa.int64())])),
        )
    with pytest.raises(PySparkException, match="there is no stream 'order'"):
        table(spark, folder, "order")
    with pytest.raises(PySparkException, match="there is no column 'ammount'"):
        table(spark, folder, where="ammount > 5").collect()


def test_loss_fails_the_read_or_is_passed_over(spark, telling, orders):
    hub, folder = orders
    info = hub.streams.get("orders")
    begin = str(mainstem.Cursor(info.uuid, info.epoch, (0, 0)))
    hub.streams.trim("orders", offset=100, shard=0)
    with pytest.raises(PySparkException, match="shard 0: records 0 to 99 are gone"):
        table(spark, folder, startingOffsets=begin).count()
    assert table(telling, folder, startingOffsets=begin, failOnDataLoss="false").count() == 19_900
    # The planner alone has met it.
    lost = "stream 'orders' shard 0: records 0 to 99 are gone (trimmed)"
    assert told_by(telling) == [f'records are lost; the query goes on after them reason="{lost}"']
    assert table(spark, folder).count() == 19_900


def test_a_damaged_batch_fails_the_read_or_is_passed_over(telling, tmp_path):
    folder = tmp_path / "log"
    with mainstem.open(folder) as hub:
        fill(hub, count=20_000)
        with hub.consumer("orders", start="earliest", follow=False) as consumer:
            there = {(record.shard, record.offset): record.value["id"] for record in consumer}
    torn = tear_out(folder, "orders", 1, 1_234)
    lost = {there.pop((1, offset)) for offset in range(torn.base, torn.end)}
    assert 0 < len(lost) < 1_000
    gone = f"stream 'orders' shard 1: records {torn.base} to {torn.end - 1} are gone (damaged, blocks/"
    with pytest.raises(PySparkException, match=re.escape(gone) + r'.*; with the option failOnDataLoss="false"'):
        table(telling, str(folder)).collect()
    assert told_by(telling) == []
    rows = table(telling, str(folder), failOnDataLoss="false", columns="id")
    assert sorted(row["id"] for row in rows.collect()) == sorted(there.values())
    # By the one task that has met it.
    (said,) = told_by(telling)
    assert said.startswith(f'records are lost; the query goes on after them reason="{gone}')


@pytest.fixture
def telling(spark):
    """A session that keeps what Spark's Python processes log."""
    session = spark.newSession()
    session.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    return session


def told_by(session) -> list[str]:
    """What the source has said in these processes."""
    return [row.msg for row in session.tvf.python_worker_logs().where("logger = 'mainstem.spark'").collect()]


def _planned_bytes(reader: BatchReader) -> int:
    parts = reader.partitions()
    assert all(isinstance(part, Partition) for part in parts)
    return sum(piece.bytes for part in parts if isinstance(part, Partition) for piece in part.slices)
