"""What ranges and filters rule out: never a batch with a row that matches, and the batches that one expects."""

import random
from typing import Any

import pyarrow as pa
import pytest

from mainstem.core.predicate import BoundPredicate, Predicate
from mainstem.core.predicate.kernels import storage
from mainstem.core.statistics import Range, collect, parse
from tests.fuzz.predicate_texts import SCHEMA, Texts, rows


def bound(text: str, schema: pa.Schema = SCHEMA) -> BoundPredicate:
    return Predicate.parse(text).bind(schema)


def stored(column: pa.Array) -> list[Any]:
    values = storage(column.drop_null()).to_pylist()
    return [value.encode() if isinstance(value, str) else value for value in values]


def true_range(chance: random.Random, column: pa.Array) -> Range:
    """What is true of a column, sometimes less than could be said."""
    values = stored(column)
    numbers = [value for value in values if value == value]
    present = set(values)
    low, high = (min(numbers), max(numbers)) if numbers else (None, None)
    if isinstance(low, bytes) and chance.random() < 0.3:
        low = low[:1]
    if chance.random() < 0.2:
        high = None
    return Range(
        low,
        high,
        has_null=column.null_count > 0 or chance.random() < 0.1,
        is_null=column.null_count == len(column),
        has_nan=len(numbers) < len(values) or chance.random() < 0.1,
        may_contain=chance.choice((None, lambda value: value in present or chance.random() < 0.05)),
    )


@pytest.mark.parametrize("seed", range(3))
def test_what_is_ruled_out_has_no_match(seed):
    """True ranges of few rows, so that many predicates can be ruled out; and some must be."""
    chance = random.Random(seed)
    texts = Texts(chance)
    ruled_out = 0
    for _ in range(30):
        batch = rows(chance, chance.randint(1, 3))
        for _ in range(20):
            text = texts.predicate(2)
            predicate = bound(text)
            names = [name for name in SCHEMA.names if name != "box" and chance.random() < 0.9]
            if not predicate.may_match({name: true_range(chance, batch.column(name)) for name in names}):
                ruled_out += 1
                assert True not in predicate.mask(batch).to_pylist(), f"seed {seed}: {text}: {batch.to_pylist()}"
    assert ruled_out > 100


def test_real_statistics_rule_out_no_match():
    """The same with statistics as they are stored."""
    chance = random.Random(5)
    texts = Texts(chance)
    indexed = ["name", "n64", "u64", "cents", "f64", "moment", "raw"]
    ruled_out = 0
    for _ in range(40):
        batch = rows(chance, 3)
        ranges = parse(collect(batch, key=None, index=indexed, columns=[]), SCHEMA)
        for _ in range(20):
            text = texts.predicate(1)
            if not bound(text).may_match(ranges):
                ruled_out += 1
                assert True not in bound(text).mask(batch).to_pylist(), f"{text}: {batch.to_pylist()}"
    assert ruled_out > 100


KNOWN = {
    "n64": Range(10, 20, has_null=False),
    "name": Range(b"berlin", b"bonn", has_null=True),
    "f64": Range(0.5, 1.5, has_null=False, has_nan=False),
    "yes": Range(1, 1, has_null=False),
    "small": Range(is_null=True),
    "u16": Range(5, 5, has_null=False),
    "moment": Range(0, 1_000_000, has_null=False),
}


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("n64 = 15", True),
        ("n64 = 21", False),
        ("n64 <> 15", True),
        ("u16 <> 5", False),
        ("NOT u16 = 5", False),
        ("NOT u16 <> 5", True),
        ("n64 > 20", False),
        ("n64 >= 20", True),
        ("n64 < 10", False),
        ("n64 <= 9.5", False),
        ("n64 = 10.5", False),
        ("n64 < 99999999999999999999", True),
        ("20 < n64", False),
        ("n64 IN (1, 2, 3, 4, 5)", False),
        ("n64 IN (1, 2, 3, 4, 12)", True),
        (f"n64 IN ({', '.join(map(str, range(30, 60)))})", False),
        (f"n64 IN ({', '.join(map(str, range(20, 60)))})", True),
        ("n64 NOT IN (1, 2)", True),
        ("u16 NOT IN (5, 6)", False),
        ("n64 BETWEEN 21 AND 30", False),
        ("n64 NOT BETWEEN 0 AND 30", False),
        ("name = 'aachen'", False),
        ("name = 'bochum'", True),
        ("name LIKE 'be%'", True),
        ("name LIKE 'ba%'", False),
        ("name LIKE 'c%'", False),
        ("name LIKE 'c%x'", False),
        ("name NOT LIKE 'b%'", False),
        ("name NOT LIKE 'be%'", True),
        ("starts_with(name, 'x')", False),
        ("name IS NULL", True),
        ("n64 IS NULL", False),
        ("n64 IS NOT NULL", True),
        ("small IS NULL", True),
        ("small = 1", False),
        ("small <> 1 OR small = 1", False),
        ("small IS DISTINCT FROM 1", True),
        ("small IS NOT NULL", False),
        ("n64 = 21 OR n64 = 15", True),
        ("n64 = 21 OR n64 = 22", False),
        ("n64 = 15 AND name = 'aachen'", False),
        ("n64 = 15 AND name = 'bochum'", True),
        ("NOT (n64 > 5 OR other = 'x')", False),
        ("yes", True),
        ("NOT yes", False),
        ("yes = FALSE", False),
        ("yes IS FALSE", False),
        ("yes IS NOT TRUE", False),
        ("f64 > 2", False),
        ("f64 < 0.5", False),
        ("other = 'x'", True),
        ("other = 'x' AND FALSE", False),
        ("NULL", False),
        ("moment > '1970-01-01 00:00:01'", False),
        ("moment >= '1970-01-01 00:00:01'", True),
        ("n64 + 1 = 5", True),
        ("box.n = 5", True),
        ("(n64 = 21) IS TRUE", False),
        ("(n64 = 21) IS NOT TRUE", True),
    ],
)
def test_what_ranges_rule_out(text, may):
    assert bound(text).may_match(KNOWN) is may


def test_nan_is_above_every_range():
    known = {"f64": Range(0.5, 1.5, has_null=False, has_nan=True)}
    assert bound("f64 > 2").may_match(known)
    assert bound("f64 >= 2").may_match(known)
    assert not bound("f64 < 0.5").may_match(known)
    assert not bound("f64 = 2").may_match(known)


def test_filters_are_asked_about_equalities_only():
    asked: list[Any] = []

    def never(value: Any) -> bool:
        asked.append(value)
        return False

    known = {"name": Range(b"a", b"z", may_contain=never), "n64": Range(0, 99, may_contain=never)}
    assert not bound("name = 'berlin'").may_match(known)
    assert not bound("n64 IN (1, 2, 3, 4, 5)").may_match(known)
    assert bound("name > 'berlin'").may_match(known)
    assert bound("n64 <> 7").may_match(known)
    assert asked[:6] == [b"berlin", 1, 2, 3, 4, 5]
    assert asked.count(7) == len(asked) - 6


def test_both_zeros_are_looked_for():
    found = {"f64": Range(-1.0, 1.0, may_contain=lambda value: str(value) == "-0.0")}
    assert bound("f64 = 0").may_match(found)
    assert not bound("f64 = 0.5").may_match(found)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("name = 'x'", {"name"}),
        ("name = 'x' AND n64 > 5", {"name"}),
        ("name = 'x' AND n64 = 5", {"name", "n64"}),
        ("name = 'x' OR n64 = 5", {"name", "n64"}),
        ("name = 'x' OR n64 > 5", set()),
        ("name IN ('a', 'b', 'c', 'd', 'e')", {"name"}),
        (f"n64 IN ({', '.join(map(str, range(30)))})", {"n64"}),
        ("NOT name = 'x'", set()),
        ("lower(name) = 'x'", set()),
        ("box.n = 1", set()),
        ("(name = 'x') IS TRUE", {"name"}),
    ],
)
def test_columns_whose_filters_could_decide(text, columns):
    assert bound(text).indexed == columns


def test_dates_of_both_kinds_are_asked_in_the_unit_of_their_column():
    schema = pa.schema([("days", pa.date32()), ("ms", pa.date64())])
    known = {"days": Range(10, 12), "ms": Range(10 * 86_400_000, 12 * 86_400_000)}
    for name in schema.names:
        assert bound(f"{name} = DATE '1970-01-12'", schema).may_match(known)
        assert not bound(f"{name} = DATE '1970-01-20'", schema).may_match(known)
