"""The formats rows leave in: one set of conventions, nothing lost, and never more text than a limit."""

import csv
import io
import json
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from mainstem.core.errors import RecordTooLarge
from mainstem.registry import formats
from mainstem.registry.formats import (
    csv_pieces,
    ndjson_pieces,
    to_arrow_stream,
    to_avro_file,
    to_csv,
    to_dicts,
    to_ndjson,
    to_parquet,
)
from mainstem.registry.forms import as_schema
from mainstem.registry.rows import RowConverter
from tests.unit.registry import samples

MOMENT = datetime(2026, 1, 31, 12, 34, 56, 789_000, tzinfo=UTC)
LOCAL = MOMENT.replace(tzinfo=None)
STRUCT = pa.struct([("x", pa.int8()), ("y z", pa.string())])

# A value of a type: as Python has it, as JSON has it, and as it stands in CSV.
VALUES: list[tuple[pa.DataType, Any, Any, str]] = [
    (pa.bool_(), True, True, "true"),
    (pa.int64(), -(1 << 63), -(1 << 63), "-9223372036854775808"),
    (pa.uint64(), (1 << 64) - 1, (1 << 64) - 1, "18446744073709551615"),
    (pa.float64(), 0.1, 0.1, "0.1"),
    (pa.float64(), 1.0, 1.0, "1.0"),
    (pa.float64(), 1e300, 1e300, "1e+300"),
    (pa.float64(), float("inf"), "Infinity", "Infinity"),
    (pa.float64(), float("-inf"), "-Infinity", "-Infinity"),
    (pa.float32(), 0.5, 0.5, "0.5"),
    (pa.decimal128(10, 2), Decimal("12.30"), "12.30", "12.30"),
    (pa.decimal128(30, 20), Decimal("1E-20"), "1E-20", "1E-20"),
    (pa.string(), "", "", ""),
    (pa.string(), 'ä "quoted" \\ \n\t\x00\x1f😀', 'ä "quoted" \\ \n\t\x00\x1f😀', 'ä "quoted" \\ \n\t\x00\x1f😀'),
    (pa.binary(), b"text", "text", "text"),
    (pa.binary(), b"\xff\x00", {"base64": "/wA="}, '{"base64":"/wA="}'),
    (pa.binary(2), b"\xff\x00", {"base64": "/wA="}, '{"base64":"/wA="}'),
    (pa.date32(), date(2026, 1, 31), "2026-01-31", "2026-01-31"),
    (pa.date64(), date(1, 1, 1), "0001-01-01", "0001-01-01"),
    (pa.time32("s"), time(1, 2, 3), "01:02:03", "01:02:03"),
    (pa.time64("us"), time(1, 2, 3, 4), "01:02:03.000004", "01:02:03.000004"),
    (pa.time64("ns"), time(1, 2, 3), "01:02:03.000000000", "01:02:03.000000000"),
    (pa.timestamp("us", "UTC"), MOMENT, "2026-01-31T12:34:56.789000Z", "2026-01-31T12:34:56.789000Z"),
    (pa.timestamp("ms", "Asia/Tokyo"), MOMENT, "2026-01-31T12:34:56.789Z", "2026-01-31T12:34:56.789Z"),
    (pa.timestamp("ns"), LOCAL, "2026-01-31T12:34:56.789000000", "2026-01-31T12:34:56.789000000"),
    (pa.duration("ms"), timedelta(seconds=-1.5), -1500, "-1500"),
    (pa.list_(pa.int8()), [1, None], [1, None], "[1,null]"),
    (pa.list_(pa.int8()), [], [], "[]"),
    (pa.list_(pa.float32(), 2), [1.0, None], [1.0, None], "[1.0,null]"),
    (STRUCT, {"x": None, "y z": '"'}, {"x": None, "y z": '"'}, '{"x":null,"y z":"\\""}'),
    (pa.map_(pa.string(), pa.int8()), {"a": 1, "": None}, {"a": 1, "": None}, '{"a":1,"":null}'),
    (pa.map_(pa.int8(), pa.string()), {1: "a"}, [[1, "a"]], '[[1,"a"]]'),
    (pa.map_(pa.string(), pa.list_(STRUCT)), {"a": [None]}, {"a": [None]}, '{"a":[null]}'),
]


@pytest.mark.parametrize(("kind", "value", "in_json", "in_csv"), VALUES, ids=lambda value: str(value)[:40])
def test_a_value(kind, value, in_json, in_csv):
    given = list(value.items()) if isinstance(value, dict) and pa.types.is_map(kind) else value
    batch = pa.record_batch({"a": pa.array([given, None, given], kind), "b": pa.array([1, 2, 3])})
    for piece in (batch, batch.slice(1)):
        values = [value, None, value][-piece.num_rows :]
        numbers = [1, 2, 3][-piece.num_rows :]
        assert [row["a"] for row in to_dicts(piece)] == values
        lines = [json.loads(line) for line in to_ndjson(piece).decode().removesuffix("\n").split("\n")]
        assert [row["a"] for row in lines] == [None if each is None else in_json for each in values]
        rows = list(csv.reader(io.StringIO(to_csv(piece).decode(), newline="")))
        assert rows == [
            ["a", "b"],
            *([in_csv if v is not None else "", str(n)] for v, n in zip(values, numbers, strict=True)),
        ]


def test_what_python_cannot_hold():
    def one(kind: pa.DataType, number: int) -> Any:
        return to_dicts(pa.record_batch({"a": pa.array([number, None], kind)}))[0]["a"]

    assert one(pa.timestamp("ns", "UTC"), 1) == "1970-01-01T00:00:00.000000001Z"
    assert one(pa.timestamp("ns"), 1_000) == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC).replace(tzinfo=None)
    assert one(pa.time64("ns"), 1) == "00:00:00.000000001"
    assert one(pa.duration("ns"), 1) == 1
    assert one(pa.duration("s"), 1 << 62) == 1 << 62
    assert one(pa.timestamp("s", "UTC"), 1 << 50) == 1 << 50
    assert one(pa.date32(), 1 << 30) == 1 << 30
    far = pa.record_batch(
        {"a": pa.array([1 << 50, 0], pa.timestamp("s", "UTC")), "d": pa.array([1 << 30, 0], pa.date32())}
    )
    assert to_ndjson(far) == b'{"a":1125899906842624,"d":1073741824}\n{"a":"1970-01-01T00:00:00Z","d":"1970-01-01"}\n'


def test_a_key_twice_makes_pairs_of_a_map():
    batch = pa.record_batch({"a": pa.array([[("x", 1), ("x", 2)], None, [("y", 1)]], pa.map_(pa.string(), pa.int8()))})
    assert to_ndjson(batch) == b'{"a":[["x",1],["x",2]]}\n{"a":null}\n{"a":[["y",1]]}\n'
    assert to_dicts(batch)[0] == {"a": [("x", 1), ("x", 2)]}
    once = pa.record_batch({"a": pa.array([[("x", 1)], [("x", 2)]], pa.map_(pa.string(), pa.int8()))})
    assert to_dicts(once) == [{"a": {"x": 1}}, {"a": {"x": 2}}]


def test_nan():
    batch = pa.record_batch({"a": pa.array([float("nan"), -0.0])})
    assert to_ndjson(batch) == b'{"a":"NaN"}\n{"a":-0.0}\n'
    assert to_csv(batch, header=False) == b"NaN\n-0.0\n"


def test_names_are_quoted():
    batch = pa.record_batch({'a "b"\n,': [1], "ü": [None]})
    assert json.loads(to_ndjson(batch)) == {'a "b"\n,': 1, "ü": None}
    assert next(csv.reader(io.StringIO(to_csv(batch).decode(), newline=""))) == ['a "b"\n,', "ü"]


def test_rows_come_back_as_they_were():
    """What is written as JSON, and as dicts, is taken by the way in, for every type and however it is nested."""
    for seed in range(300):
        rng = random.Random(seed)
        schema = as_schema(samples.schema(rng))
        batch = samples.batch(rng, schema.arrow)
        converter = RowConverter(schema)
        lines = to_ndjson(batch).split(b"\n")[:-1]
        found, bad = converter.from_json(pa.array(lines, pa.binary()))
        assert list(bad) == [], seed
        assert samples.rows(found) == samples.rows(batch), seed
        assert samples.rows(converter.to_batch(to_dicts(batch))) == samples.rows(batch), seed


def test_arrow_and_parquet():
    table = pa.table({"a": [1, None], "b": [{"c": ["x"]}, None]})
    batches = table.to_batches()
    assert pa.ipc.open_stream(to_arrow_stream(batches, table.schema)).read_all().equals(table)
    assert pyarrow.parquet.read_table(pa.BufferReader(to_parquet(batches, table.schema))).equals(table)
    assert pa.ipc.open_stream(to_arrow_stream([], table.schema)).read_all().num_rows == 0


def test_nothing_is_nothing():
    empty = pa.record_batch({"a": pa.array([], pa.int8()), "b": pa.array([], pa.list_(STRUCT))})
    assert to_dicts(empty) == []
    assert to_ndjson(empty) == b""
    assert to_csv(empty) == b'"a","b"\n'
    assert to_csv(empty, header=False) == b""
    assert len(to_avro_file([empty], empty.schema)) > 0


def test_tables_of_many_chunks():
    table = pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": [2]})])
    assert to_dicts(table) == [{"a": 1}, {"a": 2}]
    assert to_ndjson(table) == b'{"a":1}\n{"a":2}\n'
    assert to_csv(table) == b'"a"\n1\n2\n'


# Little that is much as text


def test_much_text_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(formats, "_PIECE_BYTES", 10_000)
    batch = pa.record_batch({"a" * 200: pa.array([True] * 5_000)})
    pieces = list(ndjson_pieces(batch))
    assert len(pieces) > 50
    assert max(map(len, pieces)) < 20_000
    assert b"".join(pieces) == to_ndjson(batch)
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(csv_pieces(batch)) == to_csv(batch)
    monkeypatch.setattr(formats, "FORMATTED_BYTES_MAX", 100_000)
    with pytest.raises(RecordTooLarge, match="take them in pieces"):
        to_ndjson(batch)


def test_one_row_that_is_more_than_all_text_may_be():
    """Half a megabyte of bits, in structs with long names: 17 GB of JSON."""
    kind = pa.struct([(f"{number:0200}", pa.bool_()) for number in range(1_000)])
    structs = pa.StructArray.from_arrays([pa.array([True] * 64_000)] * 1_000, fields=list(kind))
    row = pa.ListArray.from_arrays(pa.array([0, 64_000], pa.int32()), structs)
    before = pa.total_allocated_bytes()
    with pytest.raises(RecordTooLarge, match="a row could be"):
        to_ndjson(pa.record_batch({"a": row}))
    assert pa.total_allocated_bytes() - before < 1 << 20
