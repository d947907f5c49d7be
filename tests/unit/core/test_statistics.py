"""Statistics never exclude a row that is there, and bytes that are no statistics are told from those that are."""

import math
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import statistics
from mainstem.core.errors import InvalidPayload, InvalidSchema
from mainstem.core.keys import key_column, key_of
from mainstem.core.limits import (
    BATCH_RECORDS_MAX,
    INDEX_FIELDS_MAX,
    STATISTICS_BYTES_MAX,
    STATISTICS_RANGES_MAX,
)
from mainstem.core.schema import Schema
from mainstem.core.statistics import Range, collect, length_of, parse, summary

BIG = 38 * "9"
COLUMNS: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=25),
    pa.binary(): st.binary(max_size=25) | st.just(b"\xff" * 20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.timestamp("s"): st.integers(-(1 << 40), 1 << 40),
    pa.timestamp("us", "UTC"): st.integers(-(1 << 55), 1 << 55),
    pa.timestamp("ns"): st.integers(-(1 << 62), 1 << 62),
    pa.duration("ms"): st.integers(-(1 << 50), 1 << 50),
    pa.decimal128(38, 0): st.decimals(f"-{BIG}", BIG, allow_nan=False, places=0),
    pa.decimal128(12, 3): st.decimals(-999_999_999, 999_999_999, allow_nan=False, places=3),
    pa.decimal256(70, 2): st.decimals(-(10**60), 10**60, allow_nan=False, places=2),
}


def stored(column: pa.Array) -> list[Any]:
    """The values as the column stores them."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return [None if value is None else int(value) for value in column.to_pylist()]
    if pa.types.is_temporal(kind):
        return column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from(list(COLUMNS)))
    values = draw(st.lists(st.none() | COLUMNS[kind], min_size=1, max_size=20))
    # Arrow makes no times of all kinds from numbers at once.
    is_number = pa.types.is_temporal(kind) and not pa.types.is_date(kind)
    width = pa.int32() if is_number and kind.bit_width == 32 else pa.int64()
    column = pa.array(values, width).cast(kind) if is_number else pa.array(values, kind)
    return column.slice(draw(st.integers(0, len(values) - 1)))


@given(columns())
def test_nothing_that_is_there_is_excluded(column):
    batch = pa.record_batch({"c": column})
    known = parse(collect(batch, index=["c"]), batch.schema)["c"]
    values = stored(column)
    numbers = [value for value in values if value is not None and value == value]
    assert known.has_null == (None in values)
    assert known.is_null == (set(values) == {None})
    assert known.has_nan == any(isinstance(value, float) and math.isnan(value) for value in values)
    for value in numbers:
        assert known.low is None or known.low <= value
        assert known.high is None or value <= known.high
        assert known.may_contain is not None
        assert known.may_contain(value)
    short = [value for value in numbers if not isinstance(value, bytes) or len(value) <= 16]
    if len(short) == len(numbers) > 0 and not pa.types.is_decimal256(column.type):
        assert (known.low, known.high) == (min(numbers), max(numbers))
    if not numbers:
        assert known.low is known.high is None


def test_what_is_not_there_is_excluded():
    count = 1_000
    columns = {
        pa.int32(): (range(count), -5),
        pa.float64(): (np.arange(count) / 4, 0.1),
        pa.float32(): (np.arange(count) / 4, 0.1),
        pa.string(): ([f"order {n}" for n in range(count)], "order x"),
        pa.binary(2): ([n.to_bytes(2, "big") for n in range(count)], b"\xff\xff"),
        pa.decimal128(9, 2): ([Decimal(n) / 4 for n in range(count)], Decimal("0.1")),
        pa.timestamp("ms"): (range(count), 5_000),
        pa.date32(): (range(count), 5_000),
    }
    for kind, (values, absent) in columns.items():
        batch = pa.record_batch({"c": pa.array(values, kind)})
        known = parse(collect(batch, index=["c"]), batch.schema)["c"].may_contain
        assert known is not None
        assert not known(absent), kind


def test_values_are_asked_for_in_any_form_that_is_equal():
    batch = pa.record_batch(
        {"n": pa.array([5, 7], pa.int16()), "d": pa.array([Decimal("2.50"), None]), "f": pa.array([1.5, math.nan])}
    )
    known = parse(collect(batch, index=["n", "d", "f"]), batch.schema)
    number, decimal, double = (known[name].may_contain for name in "ndf")
    assert number is not None
    assert decimal is not None
    assert double is not None
    assert number(5)
    assert number(5.0)
    assert number(Decimal(5))
    assert number(np.int8(5))
    assert not number(5.5)
    assert not number(6)
    assert decimal(Decimal("2.5"))
    assert decimal(Decimal("2.500"))
    assert not decimal(Decimal("2.505"))
    assert not decimal(3)
    assert double(1.5)
    assert not double(2)
    assert not double(math.nan)
    # Of what is no number nothing is known, and infinity is not a whole one.
    for value in ("5", None, [5], math.inf, math.nan):
        assert number(value)
    assert decimal("2.5")
    assert decimal(2.5)
    assert double("1.5")


def test_bounds_of_long_texts_are_cut():
    texts = ["b" * 20, "c" * 20, "c" * 16]
    batch = pa.record_batch({"t": texts, "x": [b"\xff" * 17] * 3, "y": [b"a" * 15 + b"\xff\xff"] * 3})
    known = parse(collect(batch, index=["t", "x", "y"]), batch.schema)
    assert (known["t"].low, known["t"].high) == (b"b" * 16, b"c" * 15 + b"d")
    assert (known["x"].low, known["x"].high) == (b"\xff" * 16, None)
    assert (known["y"].low, known["y"].high) == (b"a" * 15 + b"\xff", b"a" * 14 + b"b")


def test_decimals_are_exact_beyond_the_digits_of_the_context():
    batch = pa.record_batch({"d": pa.array([Decimal(BIG), Decimal(f"-{BIG}")], pa.decimal128(38, 0))})
    known = parse(collect(batch), batch.schema)["d"]
    assert (known.low, known.high) == (Decimal(f"-{BIG}"), Decimal(BIG))


def test_times_are_in_the_unit_of_their_column():
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "s": pa.array([when], pa.timestamp("s", "UTC")),
            "ns": pa.array([when], pa.timestamp("ns", "UTC")),
            "day": pa.array([date(1970, 1, 3)]),
            "at": pa.array([time(0, 0, 1)], pa.time64("us")),
            "for": pa.array([timedelta(seconds=2)], pa.duration("ms")),
        }
    )
    known = parse(collect(batch), batch.schema)
    seconds = int(when.timestamp())
    assert [known[name].low for name in batch.schema.names] == [seconds, seconds * 10**9, 2, 1_000_000, 2_000]


def test_ranges_are_of_the_key_and_the_index_then_of_times_then_of_others():
    columns: dict[str, object] = {f"c{n}": [n] for n in range(9)}
    columns |= {"nested": [[1]], "at": pa.array([1], pa.timestamp("s")), "name": ["x"], "id": [7], "_headers": [None]}
    batch = pa.record_batch(columns)
    found = parse(collect(batch, index=["name"], columns=["id"], times=(3, 5)), batch.schema)
    ranged = [name for name, known in found.items() if known.low is not None]
    assert ranged == ["_timestamp", "id", "name", "at", "c0", "c1", "c2", "c3", "c4"]
    assert len(ranged) == STATISTICS_RANGES_MAX + 1
    assert found["_timestamp"] == Range(3, 5, has_null=False, has_nan=False)
    with pytest.raises(KeyError):
        found["nested"]


def test_the_column_that_is_the_key_is_asked_for_through_its_filter():
    for values, present, absent in (([5, 7, None], [5, 7.0], [6, 5.5]), (["a", "b", None], ["a", b"b"], ["c", b""])):
        batch = pa.record_batch({"id": values, "x": [1, 2, 3]})
        made = collect(batch, key=key_column(batch, ["id"]), columns=["id"], index=["id"])
        known = parse(made, batch.schema)
        key, column = known["_key"].may_contain, known["id"].may_contain
        assert key is not None
        assert column is not None
        assert key(key_of({"id": values[0]}, ["id"]))
        assert not key(b"other")
        # Bytes that no number has as its text, even where they mean one.
        assert not any(key(b"0" + str(value).encode()) for value in values if isinstance(value, int))
        assert all(map(column, present))
        assert not any(map(column, absent))
        # One filter for both: a block of 32 bytes.
        assert len(made) - len(summary(made)) == 32


def test_a_key_of_two_columns_has_a_filter_of_its_own():
    batch = pa.record_batch({"a": ["x", "y"], "b": [1, 2]})
    known = parse(collect(batch, key=key_column(batch, ["a", "b"]), columns=["a", "b"]), batch.schema)
    may_contain = known["_key"].may_contain
    assert may_contain is not None
    assert may_contain(key_of({"a": "x", "b": 1}, ["a", "b"]))
    assert not may_contain(key_of({"a": "x", "b": 2}, ["a", "b"]))
    assert "a" not in known
    assert known["b"].may_contain is None


def test_records_without_a_schema():
    keys = pa.array([b"k1", None, b"k2"], pa.binary())
    known = parse(collect(None, key=keys, times=(1, 2)), None)
    assert list(known) == ["_timestamp", "_key"]
    assert known["_key"].may_contain is not None
    assert not known["_key"].may_contain(b"k3")
    assert list(parse(collect(None, key=keys.slice(1, 1), times=(1, 2)), None)) == ["_timestamp"]
    assert collect(None, key=None) == b""
    assert parse(b"", None) == {}


def test_a_summary_has_the_ranges_and_says_that_there_are_filters():
    batch = pa.record_batch({"id": [f"id {n}" for n in range(1_000)], "n": range(1_000)})
    whole = collect(batch, index=["id"], times=(1, 2))
    short = summary(whole)
    assert len(whole) % 8 == len(short) % 8 == 0
    assert len(short) < 200
    assert length_of(short) == length_of(whole) == len(whole)
    known, all_known = parse(short, batch.schema), parse(whole, batch.schema)
    assert list(known) == list(all_known)
    assert known["n"] == all_known["n"]
    assert known["id"] == all_known["id"]._replace(may_contain=None)
    assert known["id"].has_filter
    assert not known["n"].has_filter
    assert summary(b"") == b""
    assert length_of(b"") == 0


def test_the_widest_statistics_are_within_their_limit():
    """Indexes of as many columns as can be, of as many records as can be."""
    numbers = np.arange(BATCH_RECORDS_MAX // 4)
    batch = pa.record_batch({f"c{n}": numbers * (n + 1) for n in range(INDEX_FIELDS_MAX)})
    made = collect(batch, index=batch.schema.names, key=pa.array(["k" * 200] * len(numbers), pa.binary()))
    assert len(made) <= STATISTICS_BYTES_MAX
    long = pa.record_batch({f"c{n}": ["x" * 100 + str(n)] for n in range(INDEX_FIELDS_MAX)})
    widest = collect(long, index=long.schema.names, times=(-(1 << 62), 1 << 62), key=pa.array([b"k"]))
    assert len(summary(widest)) == 8 * summary(widest)[3] <= 1_024


def test_filters_take_no_more_than_their_share():
    numbers = pa.record_batch({"n": np.random.default_rng(1).integers(0, 1 << 60, 10_000)})
    size = 80_000
    made = collect(numbers, index=["n"], described_bytes=size)
    assert size / 20 < len(made) - len(summary(made)) <= size / 8


def test_columns_that_cannot_be_indexed_are_named():
    schema = Schema(pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    statistics.check_index_fields(schema, ["id"])
    for fields, words in (
        (["tags"], "'tags' is list"),
        (["id", "id"], "twice"),
        (["x"], "no column"),
        (["id"] * 9, "9 c"),
    ):
        with pytest.raises(InvalidSchema, match=words):
            statistics.check_index_fields(schema, fields)


def test_bytes_that_are_no_statistics_are_told():
    """Whatever is changed, cut or added: an error of ours, or an answer; never another error, and no long wait."""
    batch = pa.record_batch(
        {"id": [f"order {n}" for n in range(50)], "d": [Decimal(n) for n in range(50)], "f": np.arange(50) / 7}
    )
    whole = collect(batch, index=["id"], key=batch.column("id").cast(pa.binary()), columns=["id"], times=(1, 2))
    for sound in (whole, summary(whole)):
        for cut in range(1, len(sound)):
            if cut != 8 * sound[3]:
                with pytest.raises(InvalidPayload):
                    parse(sound[:cut], batch.schema)
        chance = random.Random(7)
        for _ in range(3_000):
            data = bytearray(sound)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data) if chance.random() < 0.3 else 8 * sound[3])] = chance.randrange(256)
            try:
                known = parse(bytes(data), batch.schema)
                for name in known:
                    may_contain = known[name].may_contain
                    for value in (b"order 5", 5, 5.5, Decimal(5)):
                        assert may_contain is None or may_contain(value) in (True, False)
            except InvalidPayload:
                continue
