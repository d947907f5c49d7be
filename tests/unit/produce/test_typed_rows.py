"""Rows out of what was written of rows: every format says the same on the way back."""

import io
import random
from collections.abc import Iterable

import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidRecord
from mainstem.core.schema import Schema
from mainstem.produce import typed_rows
from mainstem.produce.typed_rows import TypedRow
from mainstem.registry import formats
from mainstem.registry.forms import as_schema
from mainstem.registry.rows import RowConverter
from tests.unit.registry import samples

ORDERS = as_schema({"id": "int64 not null", "name": "text", "at": "timestamp"})


def taken(schema: Schema, found: Iterable[TypedRow]) -> pa.RecordBatch:
    rows = RowConverter(schema)
    values = [
        rows.convert_json(row.value)[0] if isinstance(row.value, bytes) else rows.convert(row.value)[0] for row in found
    ]
    return rows.build(values)


@pytest.mark.parametrize("seed", range(150))
def test_rows_of_any_schema_come_back_from_csv_and_json(seed: int) -> None:
    rng = random.Random(seed)
    schema = samples.schema(rng)
    batch = samples.batch(rng, schema.arrow)
    expected = samples.rows(batch)
    csv = io.BytesIO(formats.to_csv(batch))
    assert samples.rows(taken(schema, typed_rows.csv_rows(csv, schema))) == expected
    lines = [formats.to_ndjson(batch)]
    assert samples.rows(taken(schema, typed_rows.json_lines(lines, schema))) == expected


def test_null_and_empty_texts_of_csv_stay_apart() -> None:
    schema = as_schema({"a": "text", "b": "text not null", "n": "int8", "x": "bytes", "d": "duration"})
    text = b'a,b,n,x,d\n,,,,\n"","","","",""\nx,,1,"{""base64"":""/w==""}",1500\n'
    assert [row.value for row in typed_rows.csv_rows(io.BytesIO(text), schema)] == [
        {"a": None, "b": "", "n": None, "x": None, "d": None},
        {"a": "", "b": "", "n": None, "x": "", "d": None},
        {"a": "x", "b": "", "n": 1, "x": {"base64": "/w=="}, "d": 1500},
    ]


def test_bytes_that_read_like_base64_come_back_from_csv() -> None:
    schema = as_schema({"x": "bytes"})
    batch = pa.record_batch({"x": pa.array([b'{"base64":"/w=="}', b"\xff", b"x", b"", None])})
    found = taken(schema, typed_rows.csv_rows(io.BytesIO(formats.to_csv(batch)), schema))
    assert found.equals(batch)


def test_lines_that_are_records_are_taken_apart() -> None:
    lines = b"""\
{"shard":0,"offset":0,"timestamp":"2026-01-01T00:00:00Z","key":"1","value":{"id":1},"headers":{"h":"x"}}
{"shard":0,"offset":1,"timestamp":1,"key":{"base64":"/w=="},"value":null,"headers":null}
{"shard":0,"offset":2,"timestamp":1,"key":null,"value":"{\\"id\\":2}","headers":null}
{"shard":0,"offset":3,"timestamp":1,"key":null,"value":null,"headers":null,"undecoded":"junk"}
"""
    first, *others = typed_rows.json_lines([lines], ORDERS)
    assert (first.value, first.key, first.headers) == (b'{"id":1}', b"1", {"h": b"x"})
    assert others == [
        TypedRow(2, None, b"\xff", None, 1),
        TypedRow(3, b'{"id":2}', None, None, 1),
        TypedRow(4, b"junk", None, None, 1),
    ]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"value": "v\xbe", "key": "k"}', "value"),
        (b'{"value": "{}", "key": "k\xf1\x80"}', "key"),
        (b'{"id": 1, "_key": "k\xf1\x80"}', "_key"),
    ],
)
def test_a_field_that_is_no_text_is_refused_by_its_name(line: bytes, field: str) -> None:
    with pytest.raises(InvalidRecord, match=f"line 1: field '{field}' is not JSON"):
        list(typed_rows.json_lines([line], ORDERS))


def test_lines_are_rows_where_the_schema_has_their_names() -> None:
    schema = as_schema({"value": "int64", "key": {"type": "text", "aliases": ["headers"]}})
    line = b'{"value":1,"headers":"x"}'
    assert list(typed_rows.json_lines([line], schema)) == [TypedRow(1, line)]


def test_the_first_line_decides_for_all() -> None:
    with pytest.raises(InvalidRecord, match="line 2: the field 'id' is none of a record's"):
        list(typed_rows.json_lines([b'{"value":{"id":1},"key":"1"}\n{"id":2}\n'], ORDERS))
    assert list(typed_rows.json_lines([b"nonsense\n"], ORDERS)) == [TypedRow(1, b"nonsense")]


def test_columns_of_records_beside_those_of_rows() -> None:
    line = b'{"id":1,"_key":"k","_shard":3,"_offset":9,"_timestamp":"2026-01-01T00:00:00Z","_headers":{"h":"x"}}\n'
    (row,) = typed_rows.json_lines([line], ORDERS)
    csv = b'id,_key,_shard,_offset,_timestamp,_headers\n1,k,3,9,2026-01-01T00:00:00Z,"{""h"":""x""}"\n'
    (cells,) = typed_rows.csv_rows(io.BytesIO(csv), ORDERS)
    assert (row.value, cells.value) == (b'{"id":1}', {"id": 1})
    assert row[2:] == cells[2:]
    assert (row.key, row.headers) == (b"k", {"h": b"x"})
