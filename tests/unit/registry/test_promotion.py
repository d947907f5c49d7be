"""Rows of one schema in the columns of another: what they get, what is left out, and what cannot be."""

import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mainstem.core.errors import IncompatibleSchema, RecordTooLarge
from mainstem.core.schema import Schema, aliases_of, default_of, described
from mainstem.registry import promotion as promotions
from mainstem.registry.compatibility import check
from mainstem.registry.defaults import default_array
from mainstem.registry.forms import as_schema
from mainstem.registry.promotion import lossless, promote, promotion
from tests.unit.registry import samples

OLD = as_schema({"id": "int32 not null", "name": "text", "gone": "text", "at": "timestamp[ms, UTC]"})
NEW = as_schema(
    {
        "at": "timestamp[us, UTC]",
        "id": "int64 not null",
        "title": {"type": "text", "aliases": ["name"]},
        "count": {"type": "int64 not null", "default": 7},
        "note": "text",
    }
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "gone": "x", "at": 5},
    {"id": 2, "name": None, "gone": None, "at": None},
]


def batch_of(schema: Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema.arrow)


def test_old_rows_in_a_new_schema():
    found = promote(batch_of(OLD, ROWS), OLD, NEW)
    assert found.schema.equals(NEW.arrow)
    assert found.column("at").cast(pa.int64()).to_pylist() == [5_000, None]
    assert found.drop_columns(["at"]).to_pylist() == [
        {"id": 1, "title": "a", "count": 7, "note": None},
        {"id": 2, "title": None, "count": 7, "note": None},
    ]


def test_new_rows_in_an_old_schema():
    """What the old reader does not know is left out; the new name of a field is known by the alias of the writer."""
    old = as_schema({"id": "int64", "name": "text"})
    new = as_schema({"id": "int32", "title": {"type": "text", "aliases": ["name"]}, "more": "text"})
    found = promote(batch_of(new, [{"id": 1, "title": "a", "more": "z"}]), new, old)
    assert found.schema.equals(old.arrow)
    assert found.to_pylist() == [{"id": 1, "name": "a"}]


def test_the_same_schema_costs_nothing():
    batch = batch_of(OLD, ROWS)
    assert promote(batch, OLD, OLD) is batch
    wider = as_schema({**dict.fromkeys(("name", "gone", "more"), "text"), "id": "int32 not null"})
    found = promote(batch, OLD, wider)
    assert found.column("name").buffers()[2].address == batch.column("name").buffers()[2].address


def test_what_records_have_beside_their_row_stays():
    batch = batch_of(OLD, ROWS).append_column("_key", pa.array([b"a", None], pa.binary()))
    batch = batch.append_column("_offset", pa.array([0, 3], pa.uint32()))
    found = promote(batch, OLD, NEW)
    assert found.schema.names == [*NEW.names, "_key", "_offset"]
    assert found.column("_key").equals(batch.column("_key"))
    assert found.column("_offset").equals(batch.column("_offset"))


def test_only_some_columns():
    plan = promotion(OLD, NEW)
    assert plan.sources == {"at": "at", "id": "id", "title": "name", "count": None, "note": None}
    assert plan.unchanged == {"title"}
    assert plan.needed() == ["id", "name", "at"]
    assert plan.needed(["title", "count"]) == ["name"]
    found = plan.apply(batch_of(OLD, ROWS).select(["name"]), ["title", "count"])
    assert found.to_pylist() == [{"title": "a", "count": 7}, {"title": None, "count": 7}]


def test_nested_fields():
    old = as_schema(
        {"items": [{"sku": "text", "price": "decimal(10, 2)"}], "labels": "map<string, int32>", "v": "list<int8>[2]"}
    )
    article = {"type": "text", "aliases": ["sku"]}
    newer = {"article": article, "price": "decimal(12, 3)", "n": {"type": "int8", "default": 1}}
    new = as_schema({"items": [newer], "labels": "map<string, int64>", "v": "list<int16>"})
    rows: list[dict[str, Any]] = [
        {"items": [{"sku": "a", "price": Decimal("1.25")}, None], "labels": [("x", 1)], "v": [1, 2]},
        {"items": None, "labels": None, "v": None},
        {"items": [], "labels": [], "v": [3, None]},
    ]
    batch = batch_of(old, rows)
    expected = [
        {"items": [{"article": "a", "price": Decimal("1.250"), "n": 1}, None], "labels": [("x", 1)], "v": [1, 2]},
        {"items": None, "labels": None, "v": None},
        {"items": [], "labels": [], "v": [3, None]},
    ]
    assert promote(batch, old, new).to_pylist() == expected
    for start in range(3):
        assert promote(batch.slice(start, 2), old, new).to_pylist() == expected[start : start + 2]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({"a": "int64"}, {"a": "text"}, "'a' is int64 in these rows and cannot be read as string"),
        ({"a": {"b": ["int64"]}}, {"a": {"b": ["int32"]}}, r"'a\.b\[\]' is int64"),
        ({"a": "map<string, text>"}, {"a": "map<string, bool>"}, r"'a\.value'"),
        ({"a": "text"}, {"a": ["text"]}, "'a' is string"),
        ({"a": "list<int8>"}, {"a": "list<int8>[2]"}, "'a' is list"),
        ({"a": "text"}, {"a": "text", "b": "int64 not null"}, "'b' is not in these rows"),
        ({"a": {"b": "text"}}, {"a": {"b": "text", "c": "int64 not null"}}, r"'a\.c' is not in these rows"),
    ],
)
def test_what_cannot_be_read_is_named(old, new, words):
    first, second = as_schema(old), as_schema(new)
    with pytest.raises(IncompatibleSchema, match=words):
        promote(batch_of(first, []), first, second)


@pytest.mark.parametrize(
    ("old", "new", "good", "bad"),
    [
        ("int8", "int8 not null", 1, None),
        ("struct<b: int8>", "struct<b: int8 not null>", {"b": 1}, {"b": None}),
        ("list<int8>", "list<int8 not null>", [1], [None]),
        ("list<int8>[1]", "list<int8 not null>[1]", [1], [None]),
        ("map<string, int8>", "map<string, int8 not null>", [("x", 1)], [("x", None)]),
    ],
)
def test_nulls_where_there_must_be_none(old, new, good, bad):
    """With mode none it depends on the rows: those without nulls are read, others are refused."""
    first, second = as_schema({"a": old}), as_schema({"a": new})
    rows = [{"a": good}] if new.endswith("8 not null") else [{"a": good}, {"a": None}]
    assert promote(batch_of(first, rows), first, second).to_pylist() == rows
    with pytest.raises(IncompatibleSchema, match="null in"):
        promote(batch_of(first, [{"a": good}, {"a": bad}]), first, second)


def test_a_default_takes_the_place_of_nulls_that_must_not_be():
    old = as_schema({"a": "int8", "s": {"b": "text", "c": "int8"}})
    new = as_schema(
        {
            "a": {"type": "int8 not null", "default": 5},
            "s": {"b": {"type": "text not null", "default": "none"}, "c": "int8"},
        }
    )
    rows: list[dict[str, Any]] = [
        {"a": None, "s": {"b": None, "c": 1}},
        {"a": 2, "s": {"b": "x", "c": 2}},
        {"a": 3, "s": None},
    ]
    assert promote(batch_of(old, rows), old, new).to_pylist() == [
        {"a": 5, "s": {"b": "none", "c": 1}},
        {"a": 2, "s": {"b": "x", "c": 2}},
        {"a": 3, "s": None},
    ]


def test_a_moment_that_a_finer_unit_cannot_count():
    old, new = as_schema({"a": "timestamp[s]"}), as_schema({"a": "timestamp[us]"})
    with pytest.raises(IncompatibleSchema, match="'a' has a value that cannot be"):
        promote(batch_of(old, [{"a": 1 << 62}]), old, new)


# Bombs: a little that is repeated often.


@pytest.mark.parametrize("is_nested", [False, True])
def test_large_defaults_of_many_rows_are_refused(is_nested, monkeypatch):
    monkeypatch.setattr(promotions, "PROMOTED_BYTES_MAX", 100_000)
    fields = {"b": "int8", "c": {"type": "text", "default": "x" * 1_000}}
    old, new = (
        as_schema({"a": [{"b": "int8"}]} if is_nested else {"b": "int8"}),
        as_schema({"a": [fields]} if is_nested else fields),
    )
    rows: list[dict[str, Any]] = [{"a": [{"b": 1}] * 10}] * 100 if is_nested else [{"b": 1}] * 1_000
    batch = batch_of(old, rows)
    with pytest.raises(RecordTooLarge, match="would grow by"):
        promote(batch, old, new)
    few = promote(batch.slice(0, len(rows) // 20), old, new)
    assert few.num_rows == len(rows) // 20
    assert few.nbytes < 150_000


def test_a_million_rows_and_the_largest_default():
    """Refused at once, and nothing is allocated for it."""
    old, new = as_schema({"a": "int8"}), as_schema({"a": "int8", "c": {"type": "text", "default": "x" * 1_000}})
    batch = pa.record_batch({"a": pa.nulls(1 << 20, pa.int8())})
    before = pa.total_allocated_bytes()
    with pytest.raises(RecordTooLarge):
        promote(batch, old, new)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_the_size_of_a_null_is_found_without_making_one():
    """No schema has a field as wide as this; were one made, there would be no memory for it."""
    assert promotions._growth_of([(pa.field("v", pa.list_(pa.list_(pa.int64(), 1 << 30), 1 << 30)), None)]) > 8 << 60
    field = pa.field("v", pa.list_(pa.int64(), 8_000))
    made = pa.nulls(1, field.type).nbytes
    assert made <= promotions._growth_of([(field, None)]) < made + 100


# The property: row by row, the same.


@pytest.mark.parametrize("first", range(0, 800, 200))
def test_promotion_is_the_conversion_of_each_row(first):
    for seed in range(first, first + 200):
        rng = random.Random(seed)
        old = samples.schema(rng)
        new = samples.follower(rng, old)
        check(new, [old], "backward")
        batch = samples.batch(rng, old.arrow)
        found = promote(batch, old, new)
        found.validate(full=True)
        assert found.schema.equals(new.arrow), seed
        expected = [_row(value, list(old.arrow), list(new.arrow)) for value in batch.to_struct_array()]
        assert samples.rows(found) == expected, seed


def _row(value: Any, old: list[pa.Field], new: list[pa.Field]) -> Any:
    """One row, or struct, in other fields: written as plainly as can be."""
    names = {field.name: field for field in old}
    made = {}
    for field in new:
        name = next((name for name in (field.name, *aliases_of(field)) if name in names), None)
        if name is None:
            has_default, default = default_of(field)
            constant = default_array(default, field.type, "x") if has_default else pa.nulls(1, field.type)
            made[field.name] = samples.plain(constant[0])
        else:
            made[field.name] = _value(value[name], names[name].type, field.type)
    return made


def _value(value: Any, old: pa.DataType, new: pa.DataType) -> Any:
    if not value.is_valid:
        return None
    if pa.types.is_struct(new):
        return _row(value, list(old), list(new))
    if pa.types.is_map(new):
        pairs = [(entry["key"], entry["value"]) for entry in value.values]
        return [[samples.plain(key), _value(item, old.item_type, new.item_type)] for key, item in pairs]
    if new.num_fields:
        return [_value(each, old.value_type, new.value_type) for each in value.values]
    return samples.plain(value.cast(new))


def test_a_default_is_what_json_says():
    field = described(pa.field("a", pa.list_(pa.int64())), default=[1, None])
    old, new = as_schema({"b": "int8"}), Schema(pa.schema([field]))
    assert json.dumps(promote(batch_of(old, [{"b": 1}]), old, new).to_pylist()) == '[{"a": [1, null]}]'


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ({"a": "int64"}, {"a": "int64", "b": "string"}, True),
        ({"a": "int64"}, {"a": "int64", "b": {"type": "string", "nullable": False, "default": "x"}}, True),
        ({"a": "int64"}, {"a": "int64", "b": "string not null"}, False),
        ({"a": "int64"}, {"c": {"type": "int64", "aliases": ["a"]}}, True),
        ({"a": "int32"}, {"a": "int64"}, True),
        ({"a": "int64"}, {"a": "int32"}, False),
        ({"a": "int64"}, {"a": "string"}, False),
        ({"a": "int64", "b": "string"}, {"a": "int64"}, False),
        ({"a": "int64"}, {"a": {"type": "int64", "nullable": False, "default": 0}}, False),
        ({"a": "int64 not null"}, {"a": "int64"}, True),
        ({"a": {"x": "int32"}}, {"a": {"x": "int64", "y": "string"}}, True),
        ({"a": {"x": "int32", "y": "string"}}, {"a": {"x": "int32"}}, False),
        ({"a": [{"x": "int32"}]}, {"a": [{"x": "int32", "z": "bool"}]}, True),
        ({"a": [{"x": "int32"}]}, {"a": [{"z": "bool"}]}, False),
        ({"a": "map<string, int32>"}, {"a": "map<string, int64>"}, True),
        ({"a": "map<string, int64>"}, {"a": "map<string, int32>"}, False),
        ({"a": "list<int32>[2]"}, {"a": "list<int32>"}, True),
        ({"a": "list<int32>"}, {"a": "list<int32>[2]"}, False),
        ({"a": "list<int32>"}, {"a": "int32"}, False),
    ],
)
def test_rows_are_the_same_in_another_schema_if_every_value_has_its_place(old, new, is_same):
    """Then they may be stored as rows of it."""
    assert (lossless(as_schema(old), as_schema(new)) is not None) == is_same
