"""Which schema may follow which: every rule, in every mode, with the path and what would be allowed."""

import random

import pyarrow as pa
import pytest

from mainstem.core.errors import IncompatibleSchema, InvalidSetting
from mainstem.core.limits import ERROR_TEXT_CHARS_MAX
from mainstem.registry.compatibility import MODES, check, violations, widens
from mainstem.registry.forms import as_schema
from tests.unit.registry import samples

BASE = {"id": "int64 not null", "name": "text", "n": "int32"}
ALIAS = {"type": "text", "aliases": ["name"]}

# A change: what the schema becomes, and whether readers may go on backward and forward.
CHANGES = {
    "nothing": (BASE, True, True),
    "order": ({"n": "int32", "name": "text", "id": "int64 not null"}, True, True),
    "add nullable": ({**BASE, "x": "text"}, True, True),
    "add with default": ({**BASE, "x": {"type": "text not null", "default": ""}}, True, True),
    "add required": ({**BASE, "x": "text not null"}, False, True),
    "remove nullable": ({"id": "int64 not null", "n": "int32"}, True, True),
    "remove required": ({"name": "text", "n": "int32"}, True, False),
    "let be null": ({**BASE, "id": "int64"}, True, False),
    "no longer null": ({**BASE, "name": "text not null"}, False, True),
    "wider": ({**BASE, "n": "int64"}, True, False),
    "narrower": ({**BASE, "n": "int16"}, False, True),
    "other type": ({**BASE, "n": "text"}, False, False),
    "plain to nested": ({**BASE, "n": ["int32"]}, False, False),
    "rename": ({"id": "int64 not null", "title": ALIAS, "n": "int32"}, True, True),
    "doc": ({**BASE, "n": {"type": "int32", "doc": "how many"}}, True, True),
}


NESTS = {
    "top": lambda spec: spec,
    "struct": lambda spec: {"s": spec},
    "list": lambda spec: {"s": [spec]},
    "map": lambda spec: {"s": {"type": "map", "keys": "text", "values": spec}},
}


@pytest.mark.parametrize("where", NESTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change(change, where):
    nest = NESTS[where]
    spec, is_backward, is_forward = CHANGES[change]
    old, new = as_schema(nest(BASE)), as_schema(nest(spec))
    assert (violations(new, [old], "backward") == []) == is_backward
    assert (violations(new, [old], "forward") == []) == is_forward
    assert (violations(new, [old], "full") == []) == (is_backward and is_forward)
    assert violations(new, [old], "none") == []
    # What is forward compatible is backward compatible the other way round; but for aliases, which must be kept.
    if change != "rename":
        assert (violations(old, [new], "backward") == []) == is_forward


WIDENINGS = """
    int8: int16 int32 int64 float32 float64 decimal(3,0) decimal(5,2)
    uint8: uint16 uint32 uint64 int16 int32 int64 float32 float64 decimal(3,0)
    int16: int32 int64 float32 float64 decimal(5,0)
    int32: int64 float64 decimal(10,0)
    uint32: uint64 int64 float64 decimal(10,0)
    int64: decimal(19,0) decimal(38,10)
    uint64: decimal(20,0)
    float32: float64
    decimal(5,2): decimal(6,2) decimal(6,3) decimal(50,10)
    string: binary
    binary[3]: binary
    date32: date64
    timestamp[s]: timestamp[ms] timestamp[us]
    timestamp[us,UTC]: timestamp[us,Europe/Berlin]
    timestamp[ms,UTC]: timestamp[us,Europe/Berlin]
    time32[s]: time32[ms] time64[us] time64[ns]
"""
NOT_WIDENINGS = """
    int8: uint8 uint64 decimal(2,0) decimal(4,2) bool string
    uint8: int8
    int32: float32 decimal(9,0)
    int64: float64 uint64 decimal(18,0) timestamp[s]
    uint64: int64 float64 decimal(19,0)
    float64: float32 decimal(38,10)
    decimal(5,2): decimal(5,3) decimal(5,1) float64
    binary: string binary[3]
    binary[3]: binary[4] string
    bool: int8
    date32: timestamp[us]
    date64: date32
    timestamp[us]: timestamp[ms] timestamp[ns] timestamp[us,UTC] date32
    timestamp[us,UTC]: timestamp[us]
    duration[s]: duration[ms] duration[us] duration[ns]
    duration[us]: duration[ns] duration[ms] int64
    time64[us]: time32[ms]
"""


@pytest.mark.parametrize(("table", "expected"), [(WIDENINGS, True), (NOT_WIDENINGS, False)])
def test_the_table_of_types(table, expected):
    for line in table.split("\n"):
        old, _, others = line.strip().partition(": ")
        for new in others.split():
            one, other = (as_schema({"a": text}).field("a").type for text in (old, new))
            assert widens(one, other) is expected, (old, new)
            assert widens(one, one)


def test_a_wider_type_has_every_value():
    """Whatever is said to be wider takes the extreme values exactly."""
    rng = random.Random(1)
    for old in samples.PLAIN:
        field = pa.field("a", old, nullable=False)
        array = pa.array([samples.value(rng, field) for _ in range(50)], old)
        for new in samples.PLAIN:
            if widens(old, new) and not pa.types.is_decimal(new):
                back = array.cast(new).cast(old) if new != pa.binary() else array.cast(new).cast(pa.binary()).cast(old)
                assert list(map(samples.plain, back)) == list(map(samples.plain, array)), (old, new)


def test_everything_is_told_at_once_and_bounded():
    old = as_schema({f"column {number}": "int64" for number in range(500)})
    new = as_schema({f"column {number}": "text" for number in range(500)})
    assert len(violations(new, [old], "backward")) == 500
    with pytest.raises(IncompatibleSchema) as error:
        check(new, [old], "backward")
    text = str(error.value)
    assert text.startswith("the schema is not backward compatible with those before it: 'column 0' was int64")
    assert "'column 1' was" in text
    assert text.endswith("more")
    assert len(text) < ERROR_TEXT_CHARS_MAX


def test_a_violation_names_path_rule_and_what_is_allowed():
    old = as_schema({"items": [{"price": "int32", "note": "text"}]})
    new = as_schema({"items": [{"price": "text", "note": "text", "n": "int8 not null"}]})
    found = violations(new, [old], "backward")
    assert [(each.path, each.rule) for each in found] == [("items[].price", "type"), ("items[].n", "added")]
    assert "keep int32, or int64, or float64, or decimal(20, 0)" in found[0].text
    assert "give it one, or let it be null" in found[1].text


def test_a_name_never_comes_back_with_another_type():
    """Rows of the first version are still there, although the second had no such field."""
    first, second = as_schema({"id": "int64", "a": "int64"}), as_schema({"id": "int64"})
    retyped, same = as_schema({"id": "int64", "a": "text"}), as_schema({"id": "int64", "a": "int64"})
    wider = as_schema({"id": "int64", "a": "decimal(20, 0)"})
    nested = [as_schema({"s": {"id": "int64", **more}}) for more in ({"a": "int64"}, {}, {"a": "text"})]
    for mode in MODES:
        expected = [] if mode == "none" else ["a"]
        assert list(dict.fromkeys(each.path for each in violations(retyped, [first, second], mode))) == expected
        assert violations(same, [first, second], mode) == []
        assert bool(violations(nested[2], nested[:2], mode)) is (mode != "none")
    assert violations(wider, [first, second], "backward") == []
    assert violations(retyped, [second], "backward") == []


def test_transitive_means_all_before():
    """The second version gave the field up, so the third may demand it, if nobody looks at the first."""
    first = as_schema({"id": "int64", "a": "int64"})
    second = as_schema({"id": "int64", "a": {"type": "int64 not null", "default": 0}})
    assert violations(second, [first], "none") == []
    third = as_schema({"id": "int64", "a": "int64 not null"})
    assert violations(third, [first, second], "backward") == []
    assert [each.path for each in violations(third, [first, second], "backward_transitive")] == ["a"]
    assert violations(first, [third, second], "forward_transitive") != []
    assert violations(second, [first, second], "full_transitive") != []


def test_a_name_that_older_rows_know_stays_an_alias():
    first = as_schema({"a": "text"})
    second = as_schema({"b": {"type": "text", "aliases": ["a"]}})
    third = as_schema({"c": {"type": "text", "aliases": ["b"]}})
    assert violations(second, [first], "full") == []
    found = violations(third, [first, second], "backward")
    assert [(each.path, each.rule) for each in found] == [("c", "alias")]
    assert "'a'" in found[0].text
    assert violations(as_schema({"c": {"type": "text", "aliases": ["b", "a"]}}), [first, second], "full") == []
    dropped = violations(as_schema({"b": "text"}), [first, second], "backward")
    assert [each.rule for each in dropped] == ["alias"]


def test_modes():
    schema = as_schema(BASE)
    for mode in MODES:
        check(schema, [], mode)
        check(schema, [schema, schema], mode)
    with pytest.raises(InvalidSetting, match="compatibility is one of backward"):
        check(schema, [], "sideways")
