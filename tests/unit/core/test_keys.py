"""The key of a row: one row and a column of rows have the same, and different rows have different ones."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.errors import InvalidSchema, SchemaMismatch
from mainstem.core.keys import check_key_fields, key_column, key_of
from mainstem.core.limits import KEY_FIELDS_MAX
from mainstem.core.schema import Schema

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("data", pa.binary()),
        ("uuid", pa.binary(16)),
        ("small", pa.int8()),
        ("large", pa.uint64()),
    ]
)
ROWS = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(max_size=12),
        "data": st.none() | st.binary(max_size=12),
        "uuid": st.none() | st.binary(min_size=16, max_size=16),
        "small": st.none() | st.integers(-128, 127),
        "large": st.none() | st.integers(0, (1 << 64) - 1),
    }
)
FIELDS = st.permutations(SCHEMA.names).flatmap(lambda names: st.integers(1, len(names)).map(lambda n: names[:n]))


@given(st.lists(ROWS, max_size=20), FIELDS, st.data())
def test_a_row_and_a_column_of_rows_have_the_same_keys(rows, fields, data):
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    first = data.draw(st.integers(0, len(rows)))
    found = key_column(batch.slice(first), fields)
    assert found.type == pa.binary()
    assert found.to_pylist() == [key_of(row, fields) for row in rows[first:]]


@given(st.lists(ROWS, min_size=2, max_size=2), FIELDS)
def test_rows_that_differ_have_keys_that_differ(rows, fields):
    parts = [tuple(row[name] for name in fields) for row in rows]
    keys = [key_of(row, fields) for row in rows]
    if None not in parts[0] and None not in parts[1]:
        assert (keys[0] == keys[1]) == (parts[0] == parts[1])
    assert [key is None for key in keys] == [None in part for part in parts]


def test_keys_as_bytes():
    row = {"text": "é", "data": b"\0", "small": -7, "large": (1 << 64) - 1}
    assert key_of(row, ["text"]) == "é".encode()
    assert key_of(row, ["small"]) == b"-7"
    assert key_of(row, ["large"]) == b"18446744073709551615"
    assert key_of(row, ["text", "small"]) == b"\0\0\0\2\xc3\xa9\0\0\0\2-7"
    assert key_of(row, ["uuid"]) is key_of(row, ["text", "uuid"]) is None


@pytest.mark.parametrize("value", [1.5, True, ["a"], "\ud800"])
def test_what_cannot_be_part_of_a_key_is_named(value):
    with pytest.raises(SchemaMismatch, match="id") as caught:
        key_of({"id": value}, ["id"])
    assert caught.value.path == "id"


def test_columns_that_cannot_be_a_key_are_named():
    schema = Schema(pa.schema([("id", pa.int64()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))]))
    check_key_fields(schema, ["id"])
    for fields, words in (
        (["price"], "'price' is double"),
        (["id", "tags"], "'tags' is list"),
        (["id", "id"], "'id' is in the key twice"),
        (["ident"], "no column 'ident'"),
        ([f"c{n}" for n in range(KEY_FIELDS_MAX + 1)], "9 columns"),
    ):
        with pytest.raises(InvalidSchema, match=words):
            check_key_fields(schema, fields)
