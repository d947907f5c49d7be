"""Batches as Spark has them: every value is kept, or its column is refused by name."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from mainstem.core.errors import InvalidSetting, SchemaMismatch
from mainstem.spark import types
from mainstem.spark.reading import Shape
from mainstem.transport.port import StreamInfo

LARGE, INFINITE, NONE = 1e300, float("inf"), float("nan")
# Types with one of another type in them: how they are made, of a value, the path of it, and the same in Spark.
NESTINGS: dict[str, tuple[Any, Any, str, Any]] = {
    "itself": (lambda kind: kind, lambda value: value, "x", lambda kind: kind),
    "list": (pa.list_, lambda value: [value, None], "x[]", st.ArrayType),
    "fixed list": (lambda kind: pa.list_(kind, 2), lambda value: [None, value], "x[]", st.ArrayType),
    "map": (
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: [("k", value)],
        "x.value",
        lambda kind: st.MapType(st.StringType(), kind),
    ),
    "struct": (
        lambda kind: pa.struct([("other", pa.int32()), ("a", pa.list_(kind))]),
        lambda value: {"other": 1, "a": [value]},
        "x.a[]",
        lambda kind: st.StructType([st.StructField("a", st.ArrayType(kind))]),
    ),
    "dictionary": (lambda kind: pa.dictionary(pa.int32(), kind), lambda value: value, "x", lambda kind: kind),
}


def conformed(kind: pa.DataType, values: list[Any], wanted: st.DataType) -> list[Any]:
    """The values of a column as Spark gets them; before and after them there are others."""
    array = (
        pa.array([None, *values, None], kind)
        if not pa.types.is_dictionary(kind)
        else pa.array([None, *values, None], kind.value_type).dictionary_encode()
    )
    batch = pa.record_batch({"x": array.slice(1, len(values))})
    schema = types.to_arrow(st.StructType([st.StructField("x", wanted)]))
    found = types.conform(batch, schema)
    assert found.schema == schema
    return found["x"].to_pylist()


@pytest.mark.parametrize("nesting", NESTINGS)
def test_a_number_that_is_too_large_for_a_narrower_type_is_refused(nesting):
    kind, value, path, wanted = NESTINGS[nesting]
    asked = wanted(st.FloatType())
    # What is infinite, or no number, stays so; what has more digits is rounded.
    for kept in (1.5, 0.1, INFINITE, -INFINITE, NONE, None):
        assert len(conformed(kind(pa.float64()), [value(kept)], asked)) == 1
    for large in (LARGE, -LARGE):
        with pytest.raises(
            SchemaMismatch, match="of type double that is none of float: a number is too large"
        ) as caught:
            conformed(kind(pa.float64()), [value(INFINITE), value(large)], asked)
        assert caught.value.path == path
        assert f"column {path!r}" in str(caught.value)
        assert len(conformed(kind(pa.float64()), [value(large)], wanted(st.DoubleType()))) == 1


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize(
    ("kind", "kept", "large", "asked"),
    [
        (pa.decimal256(70, 0), [decimal.Decimal(10) ** 38], decimal.Decimal(10) ** 60, st.FloatType()),
        (pa.decimal256(70, 0), [decimal.Decimal(10) ** 60], None, st.DoubleType()),
        (pa.string(), ["1e38", "-INF", "+infinity", "NaN"], "1e39", st.FloatType()),
        (pa.string(), ["1e39", "inf"], "-1e999", st.DoubleType()),
        (pa.binary(), [b"1e38", b"-Infinity"], b"1e39", st.FloatType()),
    ],
    ids=["decimal as float", "decimal as double", "text as float", "text as double", "bytes as float"],
)
def test_a_number_that_is_none_of_floating_point_is_refused_where_it_would_become_infinite(
    nesting, kind, kept, large, asked
):
    made, value, path, wanted = NESTINGS[nesting]
    for each in (*kept, None):
        assert len(conformed(made(kind), [value(each)], wanted(asked))) == 1
    if large is None:
        return
    with pytest.raises(SchemaMismatch, match=r"that is none of (float|double): a number is too large for it") as caught:
        conformed(made(kind), [*map(value, kept), value(large)], wanted(asked))
    assert caught.value.path == path


@pytest.mark.parametrize("nesting", NESTINGS)
def test_a_time_of_day_between_two_microseconds_is_refused(nesting):
    kind, value, path, wanted = NESTINGS[nesting]
    asked = wanted(st.TimeType(6))
    whole = pa.scalar(dt.time(1, 2, 3, 4), pa.time64("ns")).value
    assert len(conformed(kind(pa.time64("ns")), [value(whole), value(None)], asked)) == 2
    with pytest.raises(SchemaMismatch, match=r"of type time64\[ns\] that is none of Spark's TIME") as caught:
        conformed(kind(pa.time64("ns")), [value(whole), value(whole + 1)], asked)
    assert caught.value.path == path
    assert len(conformed(kind(pa.time64("us")), [value(dt.time(1, 2, 3, 4))], asked)) == 1


def test_what_stands_under_nulls_is_not_looked_at():
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pa.array([LARGE, 1.0]), mask=pa.array([True, False])
    )
    schema = types.to_arrow(st.StructType([st.StructField("x", st.ArrayType(st.FloatType()))]))
    assert types.conform(pa.record_batch({"x": lists}), schema)["x"].to_pylist() == [None, [1.0]]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (st.ArrayType(st.IntegerType(), containsNull=False), "x[]"),
        (st.MapType(st.StringType(), st.IntegerType(), valueContainsNull=False), "x.value"),
        (st.StructType([st.StructField("a", st.IntegerType(), nullable=False)]), "x.a"),
        (st.ArrayType(st.MapType(st.StringType(), st.ArrayType(st.IntegerType(), containsNull=False))), "x[].value[]"),
    ],
    ids=str,
)
def test_nothing_in_a_column_can_be_said_to_have_no_nulls(kind, path):
    stream = StreamInfo(1, "0" * 32, "s", 1, "crc32", 0, 0, 0, (0,), (0,), 0, 1)
    with pytest.raises(InvalidSetting, match=r"may be null: .* Leave NOT NULL out") as caught:
        Shape.of(stream, st.StructType([st.StructField("y", st.LongType()), st.StructField("x", kind)]))
    assert f"column {path!r}" in str(caught.value)
    with pytest.raises(InvalidSetting, match="column 'x' may be null"):
        Shape.of(stream, st.StructType([st.StructField("x", st.LongType(), nullable=False)]))
