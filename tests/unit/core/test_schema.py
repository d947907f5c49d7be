"""What may be a schema, what is cast to what, and what is refused with the path of the field."""

import json
import pickle

import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidSchema
from mainstem.core.limits import SCHEMA_ALIASES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX, SCHEMA_ROW_BYTES_MAX
from mainstem.core.schema import Schema, aliases_of, default_of, described

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("country", pa.string()),
        ("paid", pa.timestamp("us", "UTC")),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("price", pa.decimal128(10, 2))]))),
        ("labels", pa.map_(pa.string(), pa.int32())),
        ("vector", pa.list_(pa.float32(), 3)),
        ("digest", pa.binary(16)),
    ]
)


def test_a_schema_survives_its_bytes():
    schema = Schema(ORDERS)
    again = Schema.parse(schema.serialized)
    assert again == schema
    assert hash(again) == hash(schema)
    assert again.arrow.equals(schema.arrow)
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert schema.names == ORDERS.names
    assert "country: string" in repr(schema)
    assert schema != Schema(ORDERS.remove(0))
    assert schema != "orders"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.decimal64(10, 2), pa.decimal128(10, 2)),
        (pa.uuid(), pa.binary(16)),
        (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
    ],
)
def test_relatives_are_cast(given, stored):
    assert Schema(pa.schema([("a", given)])).arrow.field("a").type == stored


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pa.null(), "give it the type"),
        (pa.float16(), "use float32"),
        (pa.sparse_union([pa.field("a", pa.int8())]), "use a struct"),
        (pa.month_day_nano_interval(), "use a duration"),
        (pa.struct([]), "cannot be stored"),
        (pa.binary(0), "cannot be stored"),
        (pa.list_(pa.int8(), 0), "cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_named(given, words):
    nested = pa.schema([("a", pa.struct([("b", pa.list_(given))]))])
    with pytest.raises(InvalidSchema, match=words) as error:
        Schema(nested)
    assert "'a.b" in str(error.value)


def test_names_are_checked():
    for fields, words in (
        ([("a", pa.int8()), ("a", pa.int8())], "two fields 'a'"),
        ([("", pa.int8())], "needs a name"),
        ([("x" * 300, pa.int8())], "needs a name"),
        ([("a\0b", pa.int8())], "needs a name"),
        ([("_offset", pa.int8())], "use another"),
        ([("s", pa.struct([("a", pa.int8()), ("a", pa.int8())]))], "two fields 'a'"),
        ([], "at least one column"),
    ):
        with pytest.raises(InvalidSchema, match=words):
            Schema(pa.schema(fields))
    assert Schema(pa.schema([("s", pa.struct([("_offset", pa.int8())]))])).names == ["s"]
    with pytest.raises(InvalidSchema, match=r"not dict"):
        Schema({"a": "int8"})
    with pytest.raises(InvalidSchema, match="no column 'b'; the columns are a"):
        Schema(pa.schema([("a", pa.int8())])).field("b")


def test_size_is_bounded():
    deep = pa.int8()
    for _ in range(SCHEMA_DEPTH_MAX + 1):
        deep = pa.list_(deep)
    with pytest.raises(InvalidSchema, match="deeper"):
        Schema(pa.schema([("a", deep)]))
    with pytest.raises(InvalidSchema, match="fields, nested ones included"):
        Schema(pa.schema([(f"a{number}", pa.int8()) for number in range(SCHEMA_FIELDS_MAX + 1)]))
    with pytest.raises(InvalidSchema, match="bytes; at most"):
        Schema.parse(bytes(1 << 20))
    for garbage in (b"", b"x" * 100, Schema(ORDERS).serialized[:50]):
        with pytest.raises(InvalidSchema):
            Schema.parse(garbage)


def test_what_arrow_has_no_place_for():
    field = described(pa.field("a", pa.int64()), default=7, aliases=("b",), doc="why")
    noisy = field.with_metadata({**field.metadata, b"pandas": b"{}"})
    schema = Schema(pa.schema([noisy], metadata={b"pandas": b"{}"}))
    assert schema == Schema(pa.schema([field]))
    assert default_of(schema.field("a")) == (True, 7)
    assert aliases_of(schema.field("a")) == ["b"]
    assert default_of(pa.field("a", pa.int8())) == (False, None)
    assert default_of(described(pa.field("a", pa.int8()), default=None)) == (True, None)
    assert schema != Schema(pa.schema([("a", pa.int64())]))
    for metadata in ({b"default": b"{"}, {b"aliases": b"7"}, {b"aliases": b"[1]"}, {b"aliases": b'[""]'}):
        with pytest.raises(InvalidSchema, match="column 'a'"):
            Schema(pa.schema([pa.field("a", pa.int64(), metadata=metadata)]))


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({b"default": b"[" * 100_000}, id="a default that is nested without end"),
        pytest.param({b"aliases": b"[" * 100_000}, id="aliases that are nested without end"),
        pytest.param({b"default": "7".encode("utf-16")}, id="a default that is not UTF-8"),
        pytest.param({b"doc": b"\xff"}, id="a doc that is not UTF-8"),
        pytest.param({b"aliases": b'["\\ud800"]'}, id="an alias that is no text"),
        pytest.param({b"aliases": b'["\\u0000"]'}, id="an alias that could not be a name"),
        pytest.param({b"aliases": b'["' + b"x" * 256 + b'"]'}, id="an alias that is too long"),
        pytest.param({b"aliases": b"[" + b"7, " * 50_000 + b"7]"}, id="aliases that are numbers"),
    ],
)
def test_hostile_metadata_is_refused(metadata):
    with pytest.raises(InvalidSchema, match="column 'a'") as caught:
        Schema(pa.schema([pa.field("a", pa.int64(), metadata=metadata)]))
    assert len(str(caught.value)) < 200


def test_aliases_are_counted_nested_ones_included():
    aliases = {b"aliases": json.dumps([f"a{number}" for number in range(SCHEMA_ALIASES_MAX)]).encode()}
    field = pa.field("a", pa.int64(), metadata=aliases)
    Schema(pa.schema([field]))
    with pytest.raises(InvalidSchema, match=f"{2 * SCHEMA_ALIASES_MAX} aliases; at most"):
        Schema(pa.schema([field, ("b", pa.list_(pa.struct([field])))]))


@pytest.mark.parametrize("kind", [pa.decimal128(38, -1_000), pa.decimal256(5, 1 << 30)], ids=str)
def test_a_decimal_has_its_point_near_its_digits(kind):
    with pytest.raises(InvalidSchema, match="within 76 digits"):
        Schema(pa.schema([("a", kind)]))


def test_a_time_zone_is_a_name():
    with pytest.raises(InvalidSchema, match="column 'a': a time zone"):
        Schema(pa.schema([("a", pa.timestamp("us", "x" * 256))]))


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(SCHEMA_ROW_BYTES_MAX),
        pa.binary((1 << 31) - 1),
        pa.list_(pa.int64(), 400_000_000),
        pa.list_(pa.list_(pa.int64(), 1_000), 1_000),
        pa.list_(pa.list_(pa.int64(), 10_000)),
        pa.struct([("part", pa.list_(pa.int64(), 10_000))]),
        pa.map_(pa.string(), pa.list_(pa.int64(), 10_000)),
        pa.map_(pa.binary(SCHEMA_ROW_BYTES_MAX), pa.int8()),
    ],
    ids=str,
)
def test_what_is_wide_although_it_is_null_is_refused(kind):
    with pytest.raises(InvalidSchema, match=f"at most {SCHEMA_ROW_BYTES_MAX} are possible: use lists"):
        Schema(pa.schema([("x", kind)]))


def test_the_widest_plain_row_and_vectors_are_possible():
    Schema(pa.schema([(f"c{place}", pa.decimal256(76)) for place in range(SCHEMA_FIELDS_MAX)]))
    Schema(pa.schema([("a", pa.list_(pa.float64(), 4_096)), ("b", pa.list_(pa.list_(pa.float32(), 8_192)))]))
    with pytest.raises(InvalidSchema, match="a row takes"):
        Schema(pa.schema([(name, pa.list_(pa.float64(), 4_096)) for name in "ab"]))
