"""Some columns of a payload: the same values as all of them together, and only their bytes are decompressed."""

import pyarrow as pa
import pytest

from mainstem.core import layouts, payload
from mainstem.core.schema import Schema

NESTED = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
SCHEMA = Schema(
    pa.schema(
        [
            ("number", pa.int64()),
            ("text", pa.string()),
            ("pairs", pa.map_(pa.string(), pa.int32())),
            ("nested", NESTED),
            ("two", pa.list_(pa.int16(), 2)),
            ("flag", pa.bool_()),
            ("code", pa.binary(3)),
            ("empty", pa.list_(pa.string())),
            ("money", pa.decimal128(12, 2)),
        ]
    )
)


def rows(count: int) -> pa.RecordBatch:
    made = [
        {
            "number": n,
            "text": None if n % 7 == 0 else f"value {n}",
            "pairs": [("k", n)] if n % 3 else None,
            "nested": {"x": n, "y": ["q"] * (n % 3)} if n % 5 else None,
            "two": [1, n % 100] if n % 2 else None,
            "flag": n % 2 == 0,
            "code": b"abc",
            "empty": [],
            "money": n,
        }
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(made, schema=layouts.shape_of(0, SCHEMA).schema)


@pytest.mark.parametrize("count", [1, 50, 5_000])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_some_columns_are_what_they_are_among_all(compression, count):
    batch = rows(count)
    made = payload.encode(batch, compression, SCHEMA)
    stored = (made.encoding, made.layout, made.count, made.raw_len, made.payload, SCHEMA)
    whole = payload.decode(*stored)
    for names in (["number"], ["pairs"], ["nested", "empty"], ["two", "code"], ["flag", "money"], SCHEMA.names):
        some = payload.decode_columns(*stored, names)
        some.validate(full=True)
        assert some.equals(whole.select(names)), names


def test_of_records_without_a_schema_too():
    batch = layouts.build([b"v"] * 40, [b"k"] * 40, [{"h": b"1"}] * 40, list(range(40)))
    made = payload.encode(batch, "zstd")
    stored = (made.encoding, made.layout, made.count, made.raw_len, made.payload)
    assert payload.decode_columns(*stored, None, {"headers"}).equals(batch.select(["headers"]))


def test_other_columns_are_not_decompressed(monkeypatch):
    """Each buffer of a large batch is compressed by itself: only those of the column are touched."""
    made = payload.encode(rows(20_000), "zstd", SCHEMA)
    assert made.encoding == payload.ZSTD_BUFFERS
    touched: list[int] = []
    before = payload._Parts._next

    def watched(parts):
        touched.append(parts._buffer)
        return before(parts)

    monkeypatch.setattr(payload._Parts, "_next", watched)
    stored = (made.encoding, made.layout, made.count, made.raw_len, made.payload)
    payload.decode_columns(*stored, SCHEMA, {"text"})
    assert touched == [2, 3, 4]
