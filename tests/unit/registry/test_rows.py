"""Rows against a schema: what is taken, what is refused and with which path, and columns built, read and cast."""

# ruff: noqa: DTZ001  # times without a zone are a type too

import base64
import json
import time as time_of
import timeit
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from mainstem.core.errors import InvalidSchema, SchemaMismatch
from mainstem.core.limits import JSON_OBJECT_NAMES_MAX
from mainstem.core.schema import Schema, described
from mainstem.registry import json_rows
from mainstem.registry.forms import as_schema
from mainstem.registry.rows import BadRow, RowConverter, converter_of, verify

ITEM = pa.struct([pa.field("price", pa.decimal128(10, 2), nullable=False), pa.field("count", pa.int8())])
ORDERS = Schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("customer", pa.string()),
            pa.field("amount", pa.float64()),
            described(pa.field("country", pa.string()), default="DE"),
            described(pa.field("placed", pa.timestamp("us", "UTC")), aliases=("ordered", "at")),
            pa.field("items", pa.list_(ITEM)),
        ]
    )
)


def one(kind: pa.DataType, nullable: bool = True) -> RowConverter:
    return RowConverter(Schema(pa.schema([pa.field("x", kind, nullable)])))


def taken(kind: pa.DataType, value: Any) -> Any:
    """What a column of this type holds after it was given the value."""
    batch = one(kind).to_batch([{"x": value}])
    batch.validate(full=True)
    return batch.column(0)[0].as_py()


def refusal(converter: RowConverter, row: Any) -> SchemaMismatch:
    with pytest.raises(SchemaMismatch) as caught:
        converter.check(row)
    return caught.value


# One row


def test_a_row_with_every_field_becomes_a_row_of_the_batch() -> None:
    row = {
        "id": 1,
        "customer": "Zoë",
        "amount": 9.5,
        "country": None,
        "placed": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "items": [{"price": Decimal("1.5"), "count": 2}, None],
    }
    batch = RowConverter(ORDERS).to_batch([row])
    assert batch.to_pylist() == [{**row, "items": [{"price": Decimal("1.50"), "count": 2}, None]}]


def test_missing_fields_have_their_default_else_null() -> None:
    (row,) = RowConverter(ORDERS).to_batch([{"id": 1}]).to_pylist()
    assert row == {"id": 1, "customer": None, "amount": None, "country": "DE", "placed": None, "items": None}


def test_an_explicit_null_is_not_the_default() -> None:
    converter = RowConverter(ORDERS)
    assert converter.to_batch([{"id": 1, "country": None}]).column("country").to_pylist() == [None]
    batch, bad = converter.from_json(pa.array([b'{"id": 1, "country": null}', b'{"id": 1}'] * 40))
    assert not bad
    assert batch.column("country").to_pylist() == [None, "DE"] * 40


def test_a_missing_field_that_cannot_be_null_is_refused() -> None:
    error = refusal(RowConverter(ORDERS), {"customer": "x"})
    assert (str(error), error.path) == ("id must be int64, and is missing", "id")


def test_aliases_are_taken_for_the_field_and_not_beside_it() -> None:
    converter = RowConverter(ORDERS)
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    assert converter.to_batch([{"id": 1, "at": moment}]).column("placed").to_pylist() == [moment]
    assert refusal(converter, {"id": 1, "at": moment, "placed": moment}).path == "placed"


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    error = refusal(RowConverter(ORDERS), {"id": 1, "custmer": "x"})
    assert str(error) == "custmer is not a field of the schema; did you mean 'customer'?"
    assert error.path == "custmer"


@pytest.mark.parametrize("row", [None, 5, "text", [1], b"{}"])
def test_what_is_no_mapping_is_no_row(row: Any) -> None:
    assert "a row is an object" in str(refusal(RowConverter(ORDERS), row))


def test_any_mapping_is_a_row() -> None:
    class Lazy(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return {"id": 7}[name]

        def __iter__(self) -> Any:
            return iter(["id"])

        def __len__(self) -> int:
            return 1

    assert RowConverter(ORDERS).to_batch([Lazy()]).column("id").to_pylist() == [7]


def test_the_path_leads_to_the_field_inside() -> None:
    error = refusal(RowConverter(ORDERS), {"id": 1, "items": [{"price": 1}, {"price": "x"}]})
    assert error.path == "items[1].price"
    assert str(error) == "items[1].price must be decimal128(10, 2), not text 'x'"
    assert refusal(RowConverter(ORDERS), {"id": 1, "items": [{"price": 1, "prize": 2}]}).path == "items[0].prize"
    assert refusal(RowConverter(ORDERS), {"id": 1, "items": [{}]}).path == "items[0].price"


def test_none_is_a_row_of_nulls() -> None:
    assert RowConverter(ORDERS).to_batch([None]).to_pylist() == [dict.fromkeys(ORDERS.names)]


def test_no_rows_are_an_empty_batch() -> None:
    converter = RowConverter(ORDERS)
    assert converter.to_batch([]).num_rows == 0
    assert converter.from_json(pa.array([], pa.binary()))[0].schema == converter.arrow


def test_a_default_that_does_not_fit_is_told_when_the_converter_is_made() -> None:
    with pytest.raises(InvalidSchema, match="'x': its default must be int64"):
        RowConverter(Schema(pa.schema([described(pa.field("x", pa.int64()), default="many")])))


def test_names_of_users_are_never_code() -> None:
    name = "x\"'] or __import__('os'); {0}\n\\"
    converter = RowConverter(Schema(pa.schema([(name, pa.int64()), ("b", pa.list_(pa.int8()))])))
    assert converter.to_batch([{name: 1, "b": [1]}]).to_pylist() == [{name: 1, "b": [1]}]
    assert refusal(converter, {name: 1, "b": [1000]}).path == "b[0]"


# Values by type

BERLIN = timezone(timedelta(hours=2))
TAKEN: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.int8(), -128, -128),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.int32(), np.int64(5), 5),
    (pa.float64(), 3, 3.0),
    (pa.float64(), np.float32(0.5), 0.5),
    (pa.float64(), Decimal("0.1"), 0.1),
    (pa.float64(), float("inf"), float("inf")),
    (pa.float64(), "-Infinity", float("-inf")),
    (pa.float32(), 0.5, 0.5),
    (pa.string(), "héllo", "héllo"),
    (pa.binary(), b"\xff", b"\xff"),
    (pa.binary(), bytearray(b"ab"), b"ab"),
    (pa.binary(), "é", "é".encode()),
    (pa.binary(), {"base64": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00"),
    (pa.binary(2), b"ab", b"ab"),
    (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.50")),
    (pa.decimal128(5, 2), "123.45", Decimal("123.45")),
    (pa.decimal128(5, 2), 7, Decimal("7.00")),
    (pa.decimal128(5, 2), "0e99", Decimal("0.00")),
    (pa.decimal256(70, 3), "1e60", Decimal(10) ** 60),
    (pa.date32(), date(2026, 1, 31), date(2026, 1, 31)),
    (pa.date32(), "2026-01-31", date(2026, 1, 31)),
    (pa.date64(), date(1, 1, 1), date(1, 1, 1)),
    (pa.time64("us"), time(1, 2, 3, 4), time(1, 2, 3, 4)),
    (pa.time32("s"), "23:59:59", time(23, 59, 59)),
    (pa.time32("s"), 60, time(0, 1)),
    (pa.timestamp("us", "UTC"), datetime(2026, 1, 31, 14, tzinfo=BERLIN), datetime(2026, 1, 31, 12, tzinfo=UTC)),
    (pa.timestamp("us", "UTC"), "2026-01-31T14:00:00.5+02:00", datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC)),
    (pa.timestamp("us", "UTC"), "2026-01-31 12Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    (pa.timestamp("us", "UTC"), 1_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    (pa.timestamp("ms"), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    (pa.timestamp("s"), datetime(9999, 12, 31, 23, 59, 59), datetime(9999, 12, 31, 23, 59, 59)),
    (pa.duration("ms"), timedelta(seconds=-1), timedelta(seconds=-1)),
    (pa.duration("us"), "PT1.5S", timedelta(seconds=1.5)),
    (pa.list_(pa.int8()), (1, None), [1, None]),
    (pa.list_(pa.int8()), np.array([1, 2]), [1, 2]),
    (pa.list_(pa.int8(), 2), [1, 2], [1, 2]),
    (pa.list_(pa.timestamp("us")), [datetime(2026, 1, 1)], [datetime(2026, 1, 1)]),
    (pa.struct([("t", pa.date32())]), {"t": "2026-01-31"}, {"t": date(2026, 1, 31)}),
    (pa.map_(pa.string(), pa.int8()), {"a": 1}, [("a", 1)]),
    (pa.map_(pa.int8(), pa.time32("s")), {"5": "00:01"}, [(5, time(0, 1))]),
    (pa.map_(pa.string(), pa.int8()), [("a", None)], [("a", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "expected"), TAKEN, ids=lambda item: str(item)[:40])
def test_a_value_is_taken(kind: pa.DataType, value: Any, expected: Any) -> None:
    assert taken(kind, value) == expected


REFUSED: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), 1),
    (pa.int8(), 128),
    (pa.int64(), True),
    (pa.int64(), 1.0),
    (pa.int64(), "1"),
    (pa.uint8(), -1),
    (pa.int64(), 10**400),
    (pa.float64(), "1"),
    (pa.float64(), True),
    (pa.float64(), 10**400),
    (pa.float32(), 1e39),
    (pa.float64(), Decimal("1e400")),
    (pa.string(), b"x"),
    (pa.string(), "\ud800"),
    (pa.string(), 5),
    (pa.binary(), 5),
    (pa.binary(), {"base64": "?"}),
    (pa.binary(2), b"abc"),
    (pa.decimal128(5, 2), 0.5),
    (pa.decimal128(5, 2), "1.234"),
    (pa.decimal128(5, 2), 1000),
    (pa.decimal128(5, 2), "NaN"),
    (pa.decimal128(5, 2), "1_0"),
    (pa.decimal128(5, 2), "1e999999"),
    (pa.date32(), datetime(2026, 1, 1)),
    (pa.date32(), "2026-02-30"),
    (pa.date32(), "1.1.2026"),
    (pa.date32(), 10**7),
    (pa.date64(), 1),
    (pa.time64("us"), "24:00:00"),
    (pa.time64("us"), time(1, tzinfo=UTC)),
    (pa.time32("s"), 86_400),
    (pa.timestamp("us", "UTC"), datetime(2026, 1, 1)),
    (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC)),
    (pa.timestamp("us", "UTC"), "2026-01-01T00:00:00"),
    (pa.timestamp("us"), "2026-01-01T00:00:00Z"),
    (pa.timestamp("ms", "UTC"), "2026-01-01T00:00:00.0001Z"),
    (pa.timestamp("us", "UTC"), 2**62),
    (pa.timestamp("ns"), datetime(9999, 1, 1)),
    (pa.duration("us"), "soon"),
    (pa.list_(pa.int8()), "12"),
    (pa.list_(pa.int8(), 2), [1]),
    (pa.struct([("t", pa.date32())]), [1]),
    (pa.map_(pa.string(), pa.int8()), {"a": 1000}),
    (pa.map_(pa.string(), pa.int8()), [("a",)]),
    (pa.int64(), Ellipsis),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=lambda item: str(item)[:40])
def test_a_value_is_refused_with_its_path(kind: pa.DataType, value: Any) -> None:
    error = refusal(one(kind), {"x": value})
    assert error.path.startswith("x")
    assert str(error).startswith(error.path)
    assert len(str(error)) < 300


@pytest.mark.parametrize("kind", [kind for kind, _, _ in TAKEN], ids=str)
def test_null_is_taken_exactly_where_it_may_be(kind: pa.DataType) -> None:
    assert one(kind).to_batch([{"x": None}]).column(0).null_count == 1
    assert "not null" in str(refusal(one(kind, nullable=False), {"x": None}))


def test_the_usual_row_is_checked_in_well_under_a_microsecond() -> None:
    kinds = [pa.int64(), pa.string(), pa.float64(), pa.string(), pa.bool_(), pa.int32()]
    check = RowConverter(Schema(pa.schema([(f"f{place}", kind) for place, kind in enumerate(kinds)]))).check
    row = dict(zip([f"f{place}" for place in range(6)], [1, "abc", 0.5, None, True, 7], strict=True))
    best = min(timeit.repeat(lambda: check(row), number=10_000, repeat=5)) / 10_000
    assert best < 5e-6, "five times what it may take"


# JSON

BAD_JSON: list[tuple[bytes, str]] = [
    (b"", ""),
    (b"  ", ""),
    (b"5", ""),
    (b"[1]", ""),
    (b'"text"', ""),
    (b"null", ""),
    (b'{"id": 1', ""),
    (b'{"id": 1}}', ""),
    (b'{"id": 1} {"id": 2}', ""),
    (b'{"id": 1}}\n{"r": {"id": 2}', ""),
    (b'{"id": 1}}{"r": {"id": 2}', ""),
    (b'{"id": 1, "id": 2}', "id"),
    (b'{"id": 1, "amount": NaN}', ""),
    (b'{"id": 1, "amount": -Infinity}', ""),
    (b'{"id": 1, "amount": 1e400}', "amount"),
    (b'{"id": 99999999999999999999}', "id"),
    (b'{"id": ' + b"9" * 6_000 + b"}", ""),
    (b'{"id": 1, "amount": "1"}', "amount"),
    (b'{"id": 1, "items": ' + b"[" * 100_000, ""),
    (b"[" * 100_000, ""),
    (b'{"id": 1, "customer": "\xff"}', ""),
    (b'{"id": 1, "customer": "\\ud800"}', "customer"),
    (b'{"id": 1, "customer": "a\nb"}', ""),
    (b'{"id": 1, "costumer": "x"}', "costumer"),
    (b'{"id": null}', "id"),
    (b"{}", "id"),
    (b'{"id": 1, "placed": "2026-01-31T12:00:00"}', "placed"),
    (b'{"id": 1, "placed": "2026-01-31T12:00:00Z", "at": null}', "placed"),
    (b'{"id": 1, "items": [{"price": 1}, {"price": 0.001}]}', "items[1].price"),
    (b'{"id": 1, "items": [{"price": null}]}', "items[0].price"),
    (b"\xef\xbb\xbf{}", ""),
]


@pytest.mark.parametrize("among", [0, 100], ids=["alone", "among many"])
@pytest.mark.parametrize(("value", "path"), BAD_JSON, ids=lambda item: str(item)[:40])
def test_a_bad_row_is_found_and_is_never_a_wrong_one(value: bytes, path: str, among: int) -> None:
    values = [b'{"id": %d}' % index for index in range(among)]
    values.insert(among // 2, value)
    batch, bad = RowConverter(ORDERS).from_json(pa.array(values, pa.binary()))
    assert [(row.index, row.path) for row in bad] == [(among // 2, path)]
    assert bad[0].reason
    expected: list[int | None] = list(range(among))
    expected.insert(among // 2, None)
    assert batch.column("id").to_pylist() == expected
    assert batch.slice(among // 2, 1).to_pylist() == [dict.fromkeys(ORDERS.names)]


def test_rows_that_add_and_swallow_lines_cannot_make_up_for_each_other() -> None:
    values = [b'{"id": 1}'] * 50
    values[10:12] = [b'{"id": 1}}{"r": {"id": 2}', b" "]
    values[30:32] = [b'{"id": 1', b', "customer": "x"}']
    values[40:42] = [b'{"id": 1, "customer": "', b'"}']
    batch, bad = RowConverter(ORDERS).from_json(pa.array(values))
    assert [row.index for row in bad] == [10, 11, 30, 31, 40, 41]
    assert batch.column("id").null_count == 6


def test_bad_row_says_what_and_where() -> None:
    _, bad = RowConverter(ORDERS).from_json(pa.array([b'{"id": "x"}']))
    assert bad == [BadRow(0, "id", "must be int64, not text 'x'")]
    assert str(bad[0]) == "id must be int64, not text 'x'"


def test_values_that_are_null_are_rows_of_nulls_and_not_bad() -> None:
    values = [b'{"id": 1}', None] * 50
    batch, bad = RowConverter(ORDERS).from_json(pa.array(values, pa.binary()))
    assert not bad
    assert batch.column("id").to_pylist() == [1, None] * 50
    assert batch.column("country").to_pylist() == ["DE", None] * 50


def test_aliases_in_json() -> None:
    values = [b'{"id": 1, "at": "2026-01-31T12:00:00Z"}', b'{"id": 2, "placed": "2026-01-31T12:00:00Z"}'] * 50
    batch, bad = RowConverter(ORDERS).from_json(pa.array(values))
    assert not bad
    assert batch.column("placed").to_pylist() == [datetime(2026, 1, 31, 12, tzinfo=UTC)] * 100


def test_a_default_of_a_time_is_filled_in() -> None:
    field = described(pa.field("t", pa.timestamp("us", "UTC")), default="2026-01-31T12:00:00Z")
    converter = RowConverter(Schema(pa.schema([("id", pa.int64()), field])))
    batch, bad = converter.from_json(pa.array([b'{"id": 1}'] * 50))
    assert not bad
    assert set(batch.column("t").to_pylist()) == {datetime(2026, 1, 31, 12, tzinfo=UTC)}


def test_a_slice_of_values_is_read_from_its_own_beginning() -> None:
    values = pa.array([b"%d" % index if index < 50 else b'{"id": %d}' % index for index in range(150)])
    batch, bad = RowConverter(ORDERS).from_json(values.slice(50))
    assert not bad
    assert batch.column("id").to_pylist() == list(range(50, 150))


@pytest.mark.parametrize("text", ['{"id": 1}', b'{"id": 1}', '{"\\u0069d": 1}'])
def test_one_row_of_json(text: bytes | str) -> None:
    values, size = RowConverter(ORDERS).convert_json(text)
    assert values == (1, None, None, "DE", None, None)
    assert size > 0


@pytest.mark.parametrize(("value", "path"), BAD_JSON, ids=lambda item: str(item)[:40])
def test_one_bad_row_of_json(value: bytes, path: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        RowConverter(ORDERS).convert_json(value)
    assert caught.value.path == path


@pytest.mark.parametrize("text", ["-0", "-0 ", "-0.0", "-0e0", "0", "-0.5"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (pa.float64(), "%s"),
        (pa.list_(pa.float64()), "[1.5, %s]"),
        (pa.list_(pa.float64()), "[%s, 1.5]"),
        (pa.struct([("a", pa.float64())]), '{"a": %s}'),
    ],
    ids=str,
)
def test_zero_has_the_same_sign_alone_and_among_many(text: str, kind: pa.DataType, form: str) -> None:
    converter = one(kind)
    row = f'{{"x": {form % text}}}'.encode()
    alone = converter.build([converter.convert_json(row)[0]])
    many, bad = converter.from_json(pa.array([b'{"x": null}', row] * 40))
    assert not bad
    assert {repr(value) for value in many.column(0).to_pylist()[1::2]} == {repr(alone.column(0)[0].as_py())}


def test_a_name_twice_among_many_is_found_at_once() -> None:
    names = b",".join(b'"%x": 1' % number for number in range(40_000))
    started = time_of.monotonic()
    error = json_refusal(ORDERS, b'{%s, "%x": 1}' % (names, 39_999))
    assert (error.path, str(error)) == ("9c3f", "9c3f is there twice")
    assert time_of.monotonic() - started < 2, "each name is looked at once"


def test_an_object_of_json_has_not_any_number_of_names() -> None:
    schema = Schema(pa.schema([pa.field("x", pa.map_(pa.string(), pa.int8()))]))
    names = [b'"%x": 1' % number for number in range(JSON_OBJECT_NAMES_MAX + 1)]
    assert len(RowConverter(schema).convert_json(b'{"x": {%s}}' % b",".join(names[1:]))[0][0]) == JSON_OBJECT_NAMES_MAX
    assert f"at most {JSON_OBJECT_NAMES_MAX}" in str(json_refusal(schema, b'{"x": {%s}}' % b",".join(names)))


def json_refusal(schema: Schema, text: bytes) -> SchemaMismatch:
    with pytest.raises(SchemaMismatch) as caught:
        RowConverter(schema).convert_json(text)
    return caught.value


JSON_SCHEMA = Schema(
    pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            described(pa.field("text", pa.string()), aliases=("t",), default="none"),
            pa.field("number", pa.float64()),
            pa.field("cents", pa.decimal128(6, 2)),
            pa.field("at", pa.timestamp("ms", "UTC")),
            pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False))),
            pa.field("part", pa.struct([pa.field("on", pa.bool_()), pa.field("day", pa.date32())])),
        ]
    )
)
_name = st.sampled_from([*JSON_SCHEMA.names, "t", "on", "day", "other"])
_leaf = (
    st.none()
    | st.booleans()
    | st.integers(-(2**33), 2**33)
    | st.sampled_from([0.5, -1e308, 12.25, 1e-7])
    | st.text(max_size=4)
    | st.sampled_from(["2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.1234Z", "1.50", '"t"', "\\"])
)
_value = st.recursive(
    _leaf, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_name, inner, max_size=2), max_leaves=4
)
_fitting = st.fixed_dictionaries(
    {"id": st.integers(-5, 5)},
    optional={
        "text": st.none() | st.text(max_size=5),
        "number": st.none() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False),
        "cents": st.sampled_from(["1.25", 7, 9999, "-0.5", None, 1.5]),
        "at": st.sampled_from(["2026-01-31T12:00:00Z", "1969-12-31 23:59:59.999+01:00", None]),
        "tags": st.none() | st.lists(st.text(max_size=3), max_size=2),
        "part": st.none() | st.fixed_dictionaries({}, optional={"on": st.booleans(), "day": st.just("2026-01-31")}),
    },
)  # fmt: skip
_odd = st.sampled_from([b"", b"}", b"{", b'"', b"\n", b",", b"\xff", b"0", b"}{"])


def _damaged(row: dict[str, Any], at: int, extra: bytes) -> bytes:
    text = json.dumps(row).encode()
    return text[: at % (len(text) + 1)] + extra + text[at % (len(text) + 1) :]


_text = (
    st.builds(lambda row, plain: json.dumps(row, ensure_ascii=plain).encode(), _fitting, st.booleans())
    | st.dictionaries(_name, _value, max_size=4).map(lambda row: json.dumps(row).encode())
    | st.binary(max_size=8)
    | st.builds(_damaged, _fitting, st.integers(0, 200), _odd)
    | st.none()
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_text, max_size=8), st.integers(0, 40))
def test_from_json_agrees_with_python_parser_and_check(values: list[bytes | None], padding: int) -> None:
    """The same rows, and the same bad ones, as when each is parsed by Python, checked and made a row."""
    values = values + [b'{"id": 1}'] * padding
    converter = converter_of(JSON_SCHEMA)
    batch, bad = converter.from_json(pa.array(values, pa.binary()))
    rows: list[Any] = []
    expected_bad: list[int] = []
    for index, value in enumerate(values):
        row = None
        if value is not None:
            try:
                row = _loads(value)
                converter.check(row)
            except (ValueError, SchemaMismatch):
                row = None
                expected_bad.append(index)
        rows.append(row)
    assert [row.index for row in bad] == expected_bad
    assert batch.to_pylist() == converter.to_batch(rows).to_pylist()


def _loads(value: bytes) -> Any:
    """JSON as Python reads it, with what it is too lenient about refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(name)

    row = json.loads(value.decode(), object_pairs_hook=unique, parse_constant=constant, parse_float=Decimal)
    if not isinstance(row, dict):
        raise ValueError("no object")
    return row


# Tables


def doubles(*maps: dict[str, float] | None) -> pa.Array:
    """Maps of numbers that columns of `float32` may not have."""
    return pa.array([None if each is None else list(each.items()) for each in maps], MAP_OF_DOUBLES)


MAP_OF_DOUBLES = pa.map_(pa.string(), pa.float64())
MAP_OF_FLOATS = pa.map_(pa.string(), pa.float32())
INFINITY, TOO_LARGE = float("inf"), 1e39
# The number stands under a null, where it is not there for anybody.
UNDER_NULL = pa.Array.from_buffers(
    MAP_OF_DOUBLES,
    2,
    [pa.py_buffer(b"\2"), pa.py_buffer(np.array([0, 1, 2], np.int32))],
    children=[pa.StructArray.from_arrays([["a", "b"], [TOO_LARGE, 2.0]], fields=list(MAP_OF_DOUBLES.field(0).type))],
)


def cast(kind: pa.DataType, array: Any, nullable: bool = True) -> Any:
    table = one(kind, nullable).cast(pa.table({"x": array}))
    table.validate(full=True)
    assert table.schema.field("x").type == kind
    return table.column("x").to_pylist()


CAST: list[tuple[pa.DataType, pa.Array]] = [
    (pa.int64(), pa.array([1, None], pa.int8())),
    (pa.int8(), pa.array([1, 127], pa.int64())),
    (pa.int64(), pa.array([1.0, None], pa.float64())),
    (pa.float64(), pa.array([1, 2], pa.int32())),
    (pa.string(), pa.array(["a", None], pa.large_string())),
    (pa.string(), pa.array(["a", "b", "a"]).dictionary_encode()),
    (pa.string(), pa.array(["a", "b"], pa.string_view())),
    (pa.string(), pa.nulls(2)),
    (pa.binary(), pa.array(["a"])),
    (pa.string(), pa.array([b"a"])),
    (pa.decimal128(10, 2), pa.array([1, 2])),
    (pa.decimal128(10, 2), pa.array([Decimal("1.5")])),
    (pa.date32(), pa.array([date(2026, 1, 1)], pa.date64())),
    (pa.timestamp("us", "UTC"), pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("ns", "Europe/Berlin"))),
    (pa.timestamp("ns"), pa.array([datetime(2026, 1, 1)], pa.timestamp("s"))),
    (pa.list_(pa.int64()), pa.array([[1], None, []], pa.large_list(pa.int8()))),
    (pa.list_(pa.int64()), pa.array([[9], [1], None, [2, 3]], pa.list_(pa.int8())).slice(1)),
    (pa.list_(pa.int64(), 2), pa.array([[1, 2]], pa.list_(pa.int8()))),
    (pa.struct([("a", pa.int64())]), pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())]))),
    (pa.map_(pa.string(), pa.int64()), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))),
    (MAP_OF_FLOATS, doubles({"a": INFINITY, "b": -0.5}, None, {})),
    (MAP_OF_FLOATS, doubles({"a": TOO_LARGE}, {"b": INFINITY}, None, {}, {"c": 1.0}).slice(1)),
    (MAP_OF_FLOATS, UNDER_NULL),
    (
        pa.map_(pa.string(), pa.struct([("x", pa.float32())])),
        pa.array([[("a", {"x": 0.5}), ("b", None)], None], pa.map_(pa.string(), pa.struct([("x", pa.float64())]))),
    ),
    (
        pa.map_(pa.int64(), pa.list_(pa.float32())),
        pa.array([[(1, [0.5, None]), (2, None)]], pa.map_(pa.int8(), pa.list_(pa.float64()))),
    ),
    (
        pa.map_(pa.string(), MAP_OF_FLOATS),
        pa.array([[("a", [("b", 0.5)])]], pa.map_(pa.large_string(), MAP_OF_DOUBLES)),
    ),
]


@pytest.mark.parametrize(("kind", "array"), CAST, ids=lambda item: str(getattr(item, "type", item)))
def test_a_column_is_cast_if_every_value_stays_what_it_is(kind: pa.DataType, array: pa.Array) -> None:
    found, given_ = cast(kind, array), array.to_pylist()
    if pa.types.is_binary(kind):
        found = [value.decode() for value in found]
    if pa.types.is_string(kind) and pa.types.is_binary(array.type):
        given_ = [value.decode() for value in given_]
    assert found == given_


NOT_CAST: list[tuple[pa.DataType, pa.Array]] = [
    (pa.int8(), pa.array([1, 128])),
    (pa.int64(), pa.array([1.5])),
    (pa.int64(), pa.array(["1"])),
    (pa.string(), pa.array([1])),
    (pa.string(), pa.array([b"\xff"])),
    (pa.bool_(), pa.array([1])),
    (pa.float64(), pa.array([2**60 + 1])),
    (pa.float32(), pa.array([float("inf"), None, float("nan"), 1e39])),
    (MAP_OF_FLOATS, doubles({"a": -TOO_LARGE})),
    (MAP_OF_FLOATS, doubles({"a": INFINITY}, {"b": TOO_LARGE}).slice(1)),
    (pa.map_(pa.float32(), pa.string()), pa.array([[(TOO_LARGE, "a")]], pa.map_(pa.float64(), pa.string()))),
    (
        pa.map_(pa.string(), pa.struct([("x", pa.float32())])),
        pa.array([[("a", {"x": TOO_LARGE})]], pa.map_(pa.string(), pa.struct([("x", pa.float64())]))),
    ),
    (
        pa.map_(pa.string(), pa.list_(pa.float32())),
        pa.array([[("a", [TOO_LARGE])]], pa.map_(pa.string(), pa.list_(pa.float64()))),
    ),
    (
        pa.map_(pa.string(), MAP_OF_FLOATS),
        pa.array([[("a", [("b", TOO_LARGE)])]], pa.map_(pa.string(), MAP_OF_DOUBLES)),
    ),
    (pa.map_(pa.string(), pa.string()), pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string()))),
    (
        pa.map_(pa.string(), pa.int8()),
        pa.MapArray.from_arrays(
            pa.array([0, 1], pa.int32()),
            pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([None], pa.string())),
            pa.array([1], pa.int8()),
        ),
    ),
    (pa.decimal128(5, 2), pa.array([1.5])),
    (pa.decimal128(5, 2), pa.array([Decimal("1.234")])),
    (pa.timestamp("us", "UTC"), pa.array([datetime(2026, 1, 1)])),
    (pa.timestamp("s"), pa.array([datetime(2026, 1, 1, 0, 0, 0, 1)])),
    (pa.timestamp("us"), pa.array([2**62], pa.timestamp("us"))),
    (pa.date32(), pa.array([datetime(2026, 1, 1)])),
    (pa.list_(pa.int8()), pa.array([[1000]])),
    (pa.list_(pa.int8()), pa.array([1])),
    (pa.list_(pa.int8(), 2), pa.array([[1]])),
    (pa.struct([("a", pa.int8())]), pa.array([{"a": 1000}])),
    (pa.struct([("a", pa.int8())]), pa.array([{"b": 1}])),
]


@pytest.mark.parametrize(("kind", "array"), NOT_CAST, ids=lambda item: str(getattr(item, "type", item)))
def test_a_cast_that_would_change_a_value_is_refused(kind: pa.DataType, array: pa.Array) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        cast(kind, array)
    assert caught.value.path.startswith("x")


def test_a_number_of_a_map_that_is_too_large_is_told_with_its_path_and_row() -> None:
    kind = pa.map_(pa.string(), pa.struct([("x", pa.float64())]))
    maps = [[("a", {"x": each})] for each in (TOO_LARGE, INFINITY, None, 1.0, TOO_LARGE)]
    converter = one(pa.map_(pa.string(), pa.struct([("x", pa.float32())])))
    with pytest.raises(SchemaMismatch, match=r"too large for it \(row 3\)") as caught:
        converter.cast(pa.table({"x": pa.array(maps, kind).slice(1)}))
    assert caught.value.path == "x.value.x"


def test_tables_get_defaults_and_aliases_and_lose_nothing() -> None:
    converter = RowConverter(ORDERS)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    found = converter.cast(pa.table({"at": [moment], "id": [1]}))
    assert found.to_pylist() == [{**dict.fromkeys(ORDERS.names), "id": 1, "country": "DE", "placed": moment}]
    for table, path in (
        (pa.table({"at": [moment]}), "id"),
        (pa.table({"id": [1], "extra": [1]}), "extra"),
        (pa.table({"id": pa.array([None], pa.int64())}), "id"),
        (pa.table([pa.array([1]), pa.array([1])], names=["id", "id"]), "id"),
        (pa.table({"id": [1], "items": [[{"price": None}]]}), "items[0].price"),
    ):
        with pytest.raises(SchemaMismatch) as caught:
            converter.cast(table)
        assert caught.value.path == path


def test_verify_tells_nulls_and_times_out_of_range() -> None:
    converter = RowConverter(ORDERS)
    verify(converter.schema, converter.to_batch([{"id": 1, "items": [{"price": 1}, None]}]))
    with pytest.raises(SchemaMismatch, match=r"id must be int64, not null \(row 1\)"):
        verify(converter.schema, converter.to_batch([{"id": 1}, None]))
    batch = converter.to_batch([{"id": 1}, {"id": 2}])
    times = pa.array([0, 2**62], pa.timestamp("us", "UTC"))
    with pytest.raises(SchemaMismatch, match=r"placed .* out of range"):
        verify(converter.schema, batch.set_column(4, batch.schema.field(4), times))


# Little that unpacks to much.


@pytest.mark.parametrize(
    "array",
    [
        pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 1_000_000])),
        pa.RunEndEncodedArray.from_arrays(pa.array([1_000_000_000], pa.int32()), pa.array(["text"])),
    ],
    ids=["dictionary", "runs"],
)
def test_what_unpacks_to_more_than_memory_holds_is_refused_before(array: pa.Array) -> None:
    before = pa.total_allocated_bytes()
    with pytest.raises(SchemaMismatch, match="send smaller tables") as caught:
        one(pa.string()).cast(pa.table({"x": array}))
    assert caught.value.path == "x"
    assert pa.total_allocated_bytes() - before < 10_000_000


def test_a_dictionary_of_a_million_values_costs_what_its_rows_do() -> None:
    values = pa.array(range(1_000_000)).cast(pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array([7, None], pa.int32()), values)
    assert one(pa.string()).cast(pa.table({"x": column})).to_pylist() == [{"x": "7"}, {"x": None}]


def test_many_aliases_do_not_make_json_slow():
    """Each would be a search through all the texts: 2,000 of them took eight seconds."""
    field = described(pa.field("a", pa.int64()), aliases=tuple(f"b{number}" for number in range(2_000)))
    converter = converter_of(Schema(pa.schema([field])))
    texts = [b'{"a": 1}', b'{"b7": 2}', b'{"b1999": 3}'] * 5_000
    started = time_of.perf_counter()
    rows, bad = converter.from_json(pa.array(texts, pa.binary()))
    assert time_of.perf_counter() - started < 2
    assert rows.column("a").to_pylist() == [1, 2, 3] * 5_000
    assert not bad


def test_what_is_wrong_with_a_row_is_said_in_few_words():
    """However large its type is: every row may be wrong."""
    wide = pa.struct([(f"{number:0255}", pa.int8()) for number in range(1_000)])
    converter = converter_of(Schema(pa.schema([pa.field("a", wide, nullable=False)])))
    for text in (b"{}", b'{"a": null}', b'{"a": 7}', b'{"b": 7}'):
        _, bad = converter.from_json(pa.array([text], pa.binary()))
        assert len(str(bad[0])) < 300


NESTED = as_schema(
    {
        "items": [{"at": "date", "sku": "text not null"}],
        "pair": {"type": "list", "items": "int8 not null", "size": 2},
        "named": {"type": "map", "keys": "text", "values": "int8 not null"},
        "one": {"n": "int8 not null"},
    }
)


@pytest.mark.parametrize(
    ("name", "values", "path", "row"),
    [
        ("items", [None, [], [{"sku": "a"}, {"sku": "b"}], [{"sku": "c"}, {"sku": None}]], "items[1].sku", 3),
        ("items", [[{"sku": "a"}] * 3, None, [{"sku": "a"}, None, {"sku": None}]], "items[2].sku", 2),
        ("pair", [[1, 2], None, [3, 4], [5, None]], "pair[1]", 3),
        ("named", [None, [("a", 1), ("b", 2)], [("c", None)]], "named.value", 2),
        ("one", [{"n": 1}, None, None, {"n": None}], "one.n", 3),
        ("one", [{"n": 1}, None, {"n": 2}, {"n": 300}], "one.n", 3),
        ("pair", [[1, 2], None, [3, 4], [5, 300]], "pair[]", 3),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 10])
def test_what_is_wrong_inside_a_column_is_told_with_its_row(
    name: str, values: list[Any], path: str, row: int, size: int
) -> None:
    kind = NESTED.arrow.field(name).type
    wide = pa.map_(pa.string(), pa.int64()) if name == "named" else None
    whole = pa.array(values, wide) if wide is not None or name != "pair" else pa.array(values, pa.list_(pa.int64(), 2))
    assert kind != whole.type
    chunked = pa.chunked_array([whole.slice(begin, size) for begin in range(0, len(whole), size)])
    with pytest.raises(SchemaMismatch, match=rf"\(row {row}\)") as caught:
        RowConverter(NESTED).cast(pa.table({name: chunked}))
    assert caught.value.path == path


def test_only_the_bytes_of_a_part_of_a_column_are_gone_through():
    schema = Schema(pa.schema([("x", pa.float64())]))
    values = pa.array([b'{"x": -0}', *[b'{"x": %d}' % number for number in range(100)]], pa.binary())
    assert json_rows._bytes_of(values.slice(3, 2)) == b'{"x": 2}{"x": 3}'
    assert json_rows._bytes_of(values.slice(7, 0)) == b""
    rows, bad = converter_of(schema).from_json(values.slice(1))
    assert (rows.column(0).to_pylist(), bad) == ([float(number) for number in range(100)], [])
    # A column of nothing but tombstones may have no bytes at all.
    rows, bad = converter_of(schema).from_json(pa.nulls(100, pa.binary()))
    assert (rows.column(0).null_count, bad) == (100, [])


VERSIONED = as_schema(
    {
        "id": "int not null",
        "at": {"type": {"town": "text"}, "aliases": ["place"]},
        "items": [{"sku": "text"}],
        "labels": "map<string, struct<on: bool>>",
        "pairs": "map<int64, struct<on: bool>>",
        "raw": "binary",
    }
)


@pytest.mark.parametrize("count", [1, 60])
def test_of_stored_json_unknown_fields_are_left_out_at_any_depth(count):
    row = {
        "id": 1,
        "gone": {"x": [1]},
        "place": {"town": "Ulm", "gone": 1},
        "items": [{"sku": "a", "gone": 1}, None],
        "labels": {"gone": {"on": True, "gone": 1}},
        "pairs": [[7, {"on": False, "gone": 1}]],
        "raw": {"base64": "/wA="},
    }
    converter = converter_of(VERSIONED)
    values = pa.array([json.dumps(row).encode()] * count)
    batch, bad = converter.from_json(values, is_stored=True)
    assert not bad
    assert (
        batch.to_pylist()
        == [
            {
                "id": 1,
                "at": {"town": "Ulm"},
                "items": [{"sku": "a"}, None],
                "labels": [("gone", {"on": True})],
                "pairs": [(7, {"on": False})],
                "raw": b"\xff\x00",
            }
        ]
        * count
    )
    assert converter.from_json(values)[1][0].path == "gone", "what is sent must be right"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b'{"gone": 1}', "id"),
        (b'{"id": "x", "gone": 1}', "id"),
        (b'{"id": 1, "gone": 1, "gone": 2}', "gone"),
        (b'{"id": 1, "gone": NaN}', ""),
        (b'{"id": 1, "at": [], "gone": 1}', "at"),
        (b'{"id": 1, "at": {}, "place": {}, "gone": 1}', "at"),
        (b'{"id": 1, "items": {"gone": 1}}', "items"),
        (b'{"id": 1, "labels": 5, "gone": 1}', "labels"),
        (b'{"id": 1, "pairs": [[1]], "gone": 1}', "pairs[0]"),
        (b"[1]", ""),
    ],
)
@pytest.mark.parametrize("count", [1, 60])
def test_stored_json_that_does_not_fit_is_still_told(text, path, count):
    _, bad = converter_of(VERSIONED).from_json(pa.array([text] * count), is_stored=True)
    assert {row.path for row in bad} == {path}
    assert len(bad) == count
