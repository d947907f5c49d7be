"""The forms of a schema: type texts, type maps, pairs, JSON; what is refused, with its path; and schemas of data."""

import json
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidSchema
from mainstem.core.limits import SCHEMA_BYTES_MAX, SCHEMA_DEFAULT_BYTES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX
from mainstem.core.schema import Schema, aliases_of, default_of, described
from mainstem.registry.avro import from_avro
from mainstem.registry.forms import as_schema, infer, to_type_map
from mainstem.registry.types import FRIENDLY, parse_type, type_text
from tests.unit.registry import samples

LOCAL = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int64", pa.int64()),
        ("float64", pa.float64()),
        ("float", pa.float64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp[ms]", pa.timestamp("ms")),
        ("timestamp[us, tz=UTC]", pa.timestamp("us", "UTC")),
        ("timestamp[ns, Europe/Berlin]", pa.timestamp("ns", "Europe/Berlin")),
        ("timestamp[s, +02:00]", pa.timestamp("s", "+02:00")),
        ("time[s]", pa.time32("s")),
        ("time[ns]", pa.time64("ns")),
        ("time64[us]", pa.time64("us")),
        ("duration[ms]", pa.duration("ms")),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("decimal(50,2)", pa.decimal256(50, 2)),
        ("decimal256(5, 2)", pa.decimal256(5, 2)),
        ("decimal(5, -2)", pa.decimal128(5, -2)),
        ("binary[16]", pa.binary(16)),
        ("fixed_size_binary[16]", pa.binary(16)),
        ("list<int8>", pa.list_(pa.int8())),
        ("list<item: int8 not null>", pa.list_(pa.field("item", pa.int8(), nullable=False))),
        ("list<float32>[3]", pa.list_(pa.float32(), 3)),
        ("fixed_size_list<item: float32>[3]", pa.list_(pa.float32(), 3)),
        ("map<string, list<int8>>", pa.map_(pa.string(), pa.list_(pa.int8()))),
        ('struct<a: int8, "b c": text>', pa.struct([("a", pa.int8()), ("b c", pa.string())])),
        (" struct< a :int8 not null , b:text > ", pa.struct([pa.field("a", pa.int8(), False), ("b", pa.string())])),
    ],
)
def test_a_type_text(text, kind):
    assert parse_type(text, "a") == (kind, True)
    assert parse_type(f"{text} NOT  NULL", "a") == (kind, False)
    assert parse_type(type_text(kind), "a") == (kind, True)


def test_every_type_has_a_text():
    for kind in (*samples.PLAIN, *FRIENDLY.values()):
        assert parse_type(type_text(kind), "a") == (kind, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sting", "did you mean 'string'"),
        ("zzz", "docs/schemas.md"),
        ("decimal", r"decimal needs more, as in decimal\(10, 2\)"),
        ("decimal(10)", "a decimal is"),
        ("decimal(100, 2)", "at most 76"),
        ("decimal128(50, 2)", "write decimal"),
        ("decimal(x, 2)", "'x' should be a number"),
        ("decimal(2, 5)", "it has 2 digits, and 5 of them after the point"),
        ("binary[-1]", "one number above 0"),
        ("binary[0]", "one number above 0"),
        ("binary[3, 4]", "one number above 0"),
        ("list<int8>[-1]", "one number above 0"),
        ("timestamp[us, ]", "its time zone is missing"),
        ("timestamp[us, UTC, UTC]", "a unit and a time zone"),
        ("timestamp[minutes]", "the units of timestamp are"),
        ("time32[us]", "the units of time32 are s, ms"),
        ("duration[s, UTC]", "nothing else"),
        ("list<int8", "'>' is missing"),
        ("list", "'<' is missing"),
        ("struct<a int8>", "':' is missing"),
        ("struct<>", "a name is missing"),
        ("map<string>", "',' is missing"),
        ("int8 int8", "'int8' is too much"),
        ("", "a name is missing"),
        ("list<" * 40 + "int8" + ">" * 40, "nested deeper"),
        ("x" * (SCHEMA_BYTES_MAX + 1), "characters; at most"),
    ],
)
def test_a_text_that_is_no_type(text, words):
    with pytest.raises(InvalidSchema, match=words) as error:
        as_schema({"s": {"a": text}})
    assert "column 's.a'" in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("us", "Mars/Base"), pa.timestamp("s", "+25:00"), pa.timestamp("us", "../UTC"), pa.decimal128(2, 5)],
    ids=str,
)
def test_a_type_that_readers_would_trip_over_is_refused_in_every_form(kind):
    for given in (pa.schema([("s", pa.struct([("a", kind)]))]), {"s": {"a": kind}}, {"s": {"a": type_text(kind)}}):
        with pytest.raises(InvalidSchema, match=r"column 's\.a'.*(no time zone|after the point)"):
            as_schema(given)


def test_time_zones_that_readers_know():
    for zone in ("UTC", "Europe/Berlin", "+01:00", "-09:30"):
        assert as_schema({"a": f"timestamp[us, {zone}]"}).arrow.field("a").type == pa.timestamp("us", zone)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a": "int64", "b": "text", "a": "text"}', "the schema has the name 'a' twice"),
        ('{"a": {"b": "int64", "b": "text"}}', "column 'a' has the name 'b' twice"),
        ('{"a": [{"b": {"type": "text", "doc": "x", "doc": "y"}}]}', r"column 'a\[0\].b' has the name 'doc' twice"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "type": "long"}]}',
            r"column 'fields\[0\]' has the name 'type' twice",
        ),
    ],
)
def test_a_name_that_json_has_twice(text, where):
    with pytest.raises(InvalidSchema, match=where):
        as_schema(text)
    with pytest.raises(InvalidSchema, match=where):
        from_avro(text)


ORDERS = Schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            described(pa.field("land", pa.string()), default="DE", aliases=("country",), doc="where to"),
            pa.field("items", pa.list_(pa.struct([("sku", pa.string()), ("price", pa.decimal128(10, 2))]))),
            pa.field("at", pa.timestamp("us", "UTC")),
        ]
    )
)
TYPE_MAP = {
    "id": "int64 not null",
    "land": {"type": "text", "default": "DE", "aliases": ["country"], "doc": "where to"},
    "items": [{"sku": "text", "price": "decimal(10, 2)"}],
    "at": "timestamp",
}


@pytest.mark.parametrize(
    "given",
    [
        ORDERS,
        ORDERS.arrow,
        TYPE_MAP,
        json.dumps(TYPE_MAP),
        json.dumps(TYPE_MAP).encode(),
        list(TYPE_MAP.items()),
        list(ORDERS.arrow),
        {**TYPE_MAP, "id": {"type": int, "nullable": False}, "at": datetime},
        {**TYPE_MAP, "id": pa.field("x", pa.int64(), nullable=False), "at": pa.timestamp("us", "UTC")},
        {**TYPE_MAP, "items": {"type": "list", "items": TYPE_MAP["items"][0]}},  # type: ignore[index]
        {**TYPE_MAP, "items": "list<struct<sku: text, price: decimal(10, 2)>>"},
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_form_is_the_same_schema(given):
    assert as_schema(given) == ORDERS


def test_a_type_map_goes_there_and_back():
    assert as_schema(to_type_map(ORDERS)) == ORDERS
    assert to_type_map(ORDERS)["id"] == "int64 not null"
    for seed in range(300):
        schema = as_schema(samples.schema(random.Random(seed)))
        assert as_schema(json.loads(json.dumps(to_type_map(schema)))) == schema, seed


def test_a_struct_may_have_fields_called_like_a_description():
    for names in (["type"], ["type", "default"], ["type", "items"], ["type", "keys", "values"]):
        schema = Schema(pa.schema([("a", pa.struct([(name, pa.string()) for name in names])), ("type", pa.int8())]))
        assert as_schema(to_type_map(schema)) == schema
    assert as_schema({"a": {"type": {"type": "string"}}}).field("a").type == pa.struct([("type", pa.string())])


def test_a_default_is_kept_in_one_way():
    for given in (
        "2026-01-01T00:00:00Z",
        datetime(2026, 1, 1, tzinfo=UTC),
        1_767_225_600_000_000,
        "2026-01-01T01:00:00+01:00",
    ):
        schema = as_schema({"a": {"type": "timestamp", "default": given}})
        assert default_of(schema.field("a")) == (True, "2026-01-01T00:00:00.000000Z")
    assert default_of(as_schema({"a": {"type": "bytes", "default": b"\xff"}}).field("a"))[1] == {"base64": "/w=="}
    assert default_of(as_schema({"a": {"type": "decimal(5, 2)", "default": Decimal("1.5")}}).field("a"))[1] == "1.50"
    # That a field which may be null is null by default goes without saying.
    assert as_schema({"a": {"type": "text", "default": None}}) == as_schema({"a": "text"})
    described_as = described(pa.field("a", pa.string()), default=None, doc="why")
    assert as_schema(pa.schema([described_as])) == as_schema({"a": {"type": "text", "doc": "why"}})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "a schema is a pyarrow.Schema"),
        ({}, "at least one column"),
        ({"a": 7}, "column 'a': 7 is no type"),
        ({"a": ["text", "text"]}, "column 'a'"),
        ({1: "text"}, "a name is text, not 1"),
        ({"a": {"b": {1: "text"}}}, r"in column 'a\.b': a name"),
        ({"_offset": "text"}, "use another"),
        ({"a": {"type": "int8", "default": "x"}}, "column 'a': its default must be int8"),
        ({"a": {"type": ["int8"], "default": [1, "x"]}}, r"column 'a\[1\]': its default"),
        ({"a": {"type": "int8 not null", "default": None}}, None),
        ({"a": {"type": "int8", "nullable": "no"}}, "nullable is true or false"),
        ({"a": {"type": "int8", "aliases": "b"}}, "aliases are a list"),
        ({"a": {"type": "int8", "doc": 5}}, "doc is a sentence"),
        ({"a": {"type": "list", "items": "int8", "size": 0}}, "size of a list"),
        (
            {"a": "int8", "b": {"type": "int8", "aliases": ["a"]}},
            "column 'b' has the alias 'a', which is also a name of 'a'",
        ),
        (
            {"s": {"a": {"type": "int8", "aliases": ["x"]}, "b": {"type": "int8", "aliases": ["x"]}}},
            r"column 's\.b' has the alias 'x'",
        ),
        ([("a", "int8"), "b"], "column 1 of the list"),
        ("{", "no JSON"),
        ("[1]", "an object, not list"),
        ("[" * 100_000, "no JSON"),
        ("x" * (SCHEMA_BYTES_MAX + 1), "bytes; at most"),
    ],
)
def test_what_is_no_schema_is_told_with_its_path(given, words):
    if words is None:
        as_schema(given)
        return
    with pytest.raises(InvalidSchema, match=words) as error:
        as_schema(given)
    assert len(str(error.value)) < 500


def test_a_field_that_is_never_null_has_no_null_for_its_default():
    field = described(pa.field("a", pa.int8(), nullable=False), default=None)
    with pytest.raises(InvalidSchema, match="null cannot be its default"):
        as_schema(pa.schema([field]))


# Bombs


def test_a_small_map_that_says_much_is_refused():
    """A dict that holds the same dict twice, which does so too, and so on: 2^15 fields in sixteen dicts."""
    inner: object = "int8"
    for _ in range(SCHEMA_DEPTH_MAX - 1):
        inner = {"a": inner, "b": inner}
    with pytest.raises(InvalidSchema, match=f"more than {SCHEMA_FIELDS_MAX} fields"):
        as_schema(inner)
    deep: object = "int8"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidSchema, match="nested deeper"):
        as_schema({"a": deep})


def test_a_huge_default_is_refused():
    fits = {"type": "text", "default": "x" * (SCHEMA_DEFAULT_BYTES_MAX - 2)}
    assert as_schema({"a": fits}).names == ["a"]
    for default in ("x" * SCHEMA_DEFAULT_BYTES_MAX, "x" * 50_000_000):
        with pytest.raises(InvalidSchema, match="a default of"):
            as_schema({"a": {"type": "text", "default": default}})
    with pytest.raises(InvalidSchema, match="a default of"):
        as_schema({"a": {"type": ["int8"], "default": [1] * 1_000_000}})
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidSchema, match="its default must be"):
        as_schema({"a": {"type": [["int8"]], "default": deep}})


def test_a_million_different_names_are_refused_at_once():
    rows = [{f"user {number}": 1} for number in range(1_000_000)]
    with pytest.raises(InvalidSchema, match=f"more than {SCHEMA_FIELDS_MAX} different fields; .* map<string"):
        infer(rows)


def test_a_dictionary_of_a_million_values_is_only_its_type():
    values = pa.array(range(1_000_000)).cast(pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), values)
    before = pa.total_allocated_bytes()
    assert infer(pa.table({"a": column})) == as_schema({"a": "text"})
    assert pa.total_allocated_bytes() - before < 1 << 20


# Schemas of data


def test_the_schema_of_rows():
    rows = [
        {"i": 1, "f": 1, "t": "2026-01-01", "d": Decimal("1.25"), "n": None, "s": {"a": [1, None]}},
        {"i": None, "f": 0.5, "t": "x", "d": 12, "n": True, "s": {"b": (b"x",), "a": []}, "u": UUID(int=1)},
        {
            "at": datetime(2026, 1, 1, tzinfo=UTC),
            "local": LOCAL,
            "day": date(2026, 1, 1),
            "big": 1 << 63,
        },
        {"time": time(1), "long": timedelta(1), "huge": 1 << 70},
    ]
    assert infer(rows) == as_schema(
        {
            "i": "int64",
            "f": "float64",
            "t": "text",
            "d": "decimal(38, 2)",
            "n": "bool",
            "s": {"a": ["int64"], "b": ["bytes"]},
            "u": "text",
            "at": "timestamp",
            "local": "timestamp[us]",
            "day": "date",
            "big": "uint64",
            "time": "time",
            "long": "duration",
            "huge": "decimal(38, 0)",
        }
    )


def test_the_schema_of_lines_and_tables():
    expected = as_schema({"a": "int64", "b": {"c": "text"}})
    assert infer(b'{"a": 1}\n\n{"b": {"c": "x"}, "a": null}\n') == expected
    assert infer('{"a": 1, "b": {"c": "x"}}') == expected
    table = pa.table({"a": [1], "b": [{"c": "x"}]})
    assert infer(table) == infer(table.to_batches()[0]) == infer(table.to_reader()) == expected
    flat = as_schema({"a": "int64", "b": "text"})
    assert infer(pl.DataFrame({"a": [1], "b": ["x"]})) == flat
    assert infer(pd.DataFrame({"a": [1], "b": ["x"]})) == flat


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"a": None}, {"a": None}], "'a' is null or empty in every row; say its type"),
        ([{"a": []}], r"'a\[\]' is null or empty in every row"),
        ([{"a": [None]}], r"'a\[\]' is null"),
        ([{"a": {}}], "'a' is an empty object"),
        ([{"s": {"a": "x"}}, {}, {"s": {"a": 1}}], r"'s\.a' is string in row 0 and int64 in row 2"),
        ([{"a": True}, {"a": 1}], "'a' is bool in row 0 and int64 in row 1"),
        ([{"a": LOCAL}, {"a": datetime(2026, 1, 1, tzinfo=UTC)}], "a time with a zone"),
        ([{"a": 0.5}, {"a": (1 << 53) + 1}], "float64 would round"),
        ([{"a": 10**80}], "numbers of 81 digits"),
        ([{"a": 10**100_000}], "numbers of 77 digits"),
        ([{"a": Decimal("NaN")}], "decimals are finite"),
        ([{"a": object()}], "a object, which has no type here"),
        ([{1: 2}], "names are text"),
        ([5], "row 0 is int"),
        ([], "no rows"),
        ([{}], "no rows"),
        (5, "expected rows"),
        ({"a": 1}, "expected rows"),
        (b'{"a": 1}\n{"a":', "line 2 is no JSON"),
        (b"[" * 100_000, "line 1 is no JSON"),
        (b"5", "row 0 is int"),
        (pa.table({"a": pa.nulls(1)}), "give it the type"),
    ],
)
def test_data_that_do_not_say(rows, words):
    with pytest.raises(InvalidSchema, match=words):
        infer(rows)


def test_rows_nested_without_end_are_refused():
    row: object = 1
    for _ in range(100_000):
        row = {"a": row}
    with pytest.raises(InvalidSchema, match="nested deeper"):
        infer([row])


def test_aliases_and_docs_survive():
    field = as_schema(TYPE_MAP).field("land")
    assert aliases_of(field) == ["country"]
    assert field.metadata[b"doc"] == b"where to"
