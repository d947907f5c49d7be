"""Types of a stream as types of a table: every value kept, or the column refused by name."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from mainstem.core.errors import SchemaMismatch
from mainstem.spark.jobs.columns import as_table_rows, merged_schema, missing_columns, renamed, table_schema

KEPT = {
    "uint64": (pa.uint64(), [2**64 - 1, None], [Decimal(2**64 - 1), None]),
    "uint8": (pa.uint8(), [255], [255]),
    "milliseconds": (pa.timestamp("ms", "UTC"), [datetime(2026, 1, 31, tzinfo=UTC)], None),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.25")], None),
    "fixed bytes": (pa.binary(2), [b"ab"], None),
    "half": (pa.float16(), [1.5, None], None),
    "list": (pa.list_(pa.uint16()), [[1, 65535], None, []], None),
    "struct": (pa.struct([("a", pa.uint32()), ("b", pa.list_(pa.string()))]), [{"a": 2**32 - 1, "b": ["x"]}], None),
    "map": (pa.map_(pa.string(), pa.uint8()), [[("a", 1)], None], None),
}


@pytest.mark.parametrize("case", KEPT)
def test_values_are_kept(case):
    kind, values, wanted = KEPT[case]
    rows = pa.record_batch({"x": pa.array(values, kind)})
    schema = table_schema(rows.schema)
    assert as_table_rows(rows, schema)["x"].to_pylist() == (wanted or values)


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.duration("us"), pa.decimal256(50, 2)])
def test_what_a_table_has_no_type_for_is_refused_by_name(kind):
    with pytest.raises(SchemaMismatch, match=r"column 's\.inner' is .* leave it out with columns="):
        table_schema(pa.schema([("s", pa.struct([("inner", kind)]))]))


def test_new_columns_are_found_and_old_ones_are_null():
    has, wanted = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string()), ("a", pa.int64())])
    assert [field.name for field in missing_columns(has, wanted)] == ["b"]
    assert merged_schema(has, wanted).names == ["a", "b"]
    rows = as_table_rows(pa.record_batch({"a": [1]}), pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert rows.to_pylist() == [{"a": 1, "b": None}]


def test_a_column_keeps_its_type():
    with pytest.raises(SchemaMismatch, match="column 'a' is int64 in the table, and string in what is to be written"):
        missing_columns(pa.schema([("a", pa.int64())]), pa.schema([("a", pa.string())]))
    narrow = pa.schema([("a", pa.int32())])
    assert as_table_rows(pa.record_batch({"a": pa.array([7], pa.int64())}), narrow)["a"].to_pylist() == [7]
    with pytest.raises(SchemaMismatch, match="column 'a': a value does not fit the table's int32"):
        as_table_rows(pa.record_batch({"a": pa.array([2**40], pa.int64())}), narrow)


def test_a_column_of_which_the_table_has_two_names_is_refused():
    has = ["id", "page", "path"]
    with pytest.raises(SchemaMismatch, match="column 'place': the table has it under several of its names, page, path"):
        renamed(["id", "place"], has, {"place": ["path", "page"]})
    # One that the table has under its present name is that one.
    assert renamed(["id", "path"], has, {"path": ["page"]}) == {}
