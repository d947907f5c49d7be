"""Sums of frames: the same for the same rows in any order and in any tasks, others for other rows."""

import datetime as dt
import decimal
import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mainstem.core.delivery import Fingerprint
from mainstem.spark.sums import Sums

ROWS = 1_000
MANY = 1_000_000


def column_of(kind: str, rng: random.Random) -> pa.Array:
    values = [_VALUES[kind](rng) for _ in range(ROWS)]
    return pa.array([None if rng.random() < 0.1 else value for value in values], _TYPES[kind])


_TYPES = {
    "long": pa.int64(),
    "byte": pa.int8(),
    "text": pa.string(),
    "short text": pa.string(),
    "binary": pa.binary(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "decimal": pa.decimal128(20, 3),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "list": pa.list_(pa.string()),
    "map": pa.map_(pa.string(), pa.int64()),
    "struct": pa.struct([("a", pa.int32()), ("b", pa.string())]),
}
_VALUES = {
    "long": lambda rng: rng.getrandbits(63) - (1 << 62),
    "byte": lambda rng: rng.randrange(-128, 128),
    "text": lambda rng: f"customer {rng.randrange(10**9):09}",
    "short text": lambda rng: rng.choice(["", "DE", "FR", "US", "x" * 7]),
    "binary": lambda rng: rng.randbytes(rng.randrange(40)),
    "double": lambda rng: rng.uniform(-1e6, 1e6),
    "float": lambda rng: rng.uniform(-1e6, 1e6),
    "boolean": lambda rng: rng.random() < 0.5,
    "decimal": lambda rng: decimal.Decimal(rng.getrandbits(60)) / 1000,
    "timestamp": lambda rng: dt.datetime.fromtimestamp(rng.randrange(2**31), dt.UTC),
    "date": lambda rng: dt.date(2000 + rng.randrange(30), 1, 1 + rng.randrange(28)),
    "list": lambda rng: [f"item {rng.randrange(1000)}" for _ in range(rng.randrange(4))],
    "map": lambda rng: {f"key {n}": rng.getrandbits(40) for n in range(rng.randrange(4))},
    "struct": lambda rng: {"a": rng.getrandbits(31), "b": str(rng.getrandbits(80))},
}


def sums_of(*tables: pa.Table) -> Sums:
    found = Sums()
    for table in tables:
        found.add(table)
    return found


def numbered(values: Any) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values))), "x": pa.array(values, pa.float64())})


def shuffled(table: pa.Table, rng: random.Random) -> pa.Table:
    order = list(range(table.num_rows))
    rng.shuffle(order)
    return table.take(order)


@pytest.mark.parametrize("kind", list(_TYPES))
def test_order_and_pieces_do_not_matter_and_rows_do(kind):
    rng = random.Random(f"sums of {kind}")
    table = pa.table({"c": column_of(kind, rng)})
    whole = sums_of(table).fingerprint()
    assert whole.rows == ROWS
    other = shuffled(table, rng)
    pieces = [sums_of(other.slice(begin, 137)) for begin in range(0, ROWS, 137)]
    merged = Sums()
    for piece in pieces:
        merged.merge(pickle.loads(pickle.dumps(piece)))
    assert merged.fingerprint().matches(whole)
    assert whole.matches(sums_of(table.slice(0, 400), table.slice(400)).fingerprint())
    changed = pa.concat_tables([table.slice(1), pa.table({"c": pa.array([None], _TYPES[kind])})])
    if table["c"][0].is_valid:
        assert not sums_of(changed).fingerprint().matches(whole)


@pytest.mark.parametrize("kind", [kind for kind in _TYPES if kind not in ("boolean", "short text")])
def test_as_many_rows_of_another_range_have_other_sums(kind):
    rng = random.Random(f"ranges of {kind}")
    one, other = (pa.table({"c": column_of(kind, rng)}) for _ in range(2))
    assert not sums_of(one).fingerprint().matches(sums_of(other).fingerprint())


def test_columns_cannot_change_places():
    one = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    other = pa.table({"a": [3.0, 4.0], "b": [1.0, 2.0]})
    assert not sums_of(one).fingerprint().matches(sums_of(other).fingerprint())
    for table in (one, pa.table({"a": [1, 2]})):
        renamed = table.rename_columns([*table.column_names[:-1], "c"])
        assert not sums_of(table).fingerprint().matches(sums_of(renamed).fingerprint())


@pytest.mark.parametrize("kind", list(_TYPES))
def test_the_same_values_in_other_rows_are_other_rows(kind):
    """Each column has the same values, and rows have others."""
    rng = random.Random(f"pairs of {kind}")
    ids, column = pa.array(range(ROWS)), column_of(kind, rng)
    table = pa.table({"id": ids, "c": column})
    whole = sums_of(table).fingerprint()
    order = list(range(ROWS))
    rng.shuffle(order)
    assert not sums_of(pa.table({"id": ids, "c": column.take(order)})).fingerprint().matches(whole)
    # Two values are enough.
    first, second = rng.sample([place for place in range(ROWS) if column[place].is_valid], 2)
    while column[first] == column[second]:
        second = rng.randrange(ROWS)
    order = list(range(ROWS))
    order[first], order[second] = second, first
    assert not sums_of(pa.table({"id": ids, "c": column.take(order)})).fingerprint().matches(whole)
    assert sums_of(shuffled(table, rng)).fingerprint().matches(whole)


def test_every_byte_of_a_text_belongs_to_its_row():
    """Whatever its length, wherever it stands in the buffer, and whatever stands beside it."""
    for length in (1, 7, 8, 9, 63, 64, 65, 80, 255, 256, 257, 1_000):
        for place in {0, length // 2, length - 1}:
            one = "x" * length
            other = one[:place] + "y" + one[place + 1 :]
            table = pa.table({"id": [1, 2, 3], "c": [one, other, "z" * 40]})
            swapped = pa.table({"id": [1, 2, 3], "c": [other, one, "z" * 40]})
            whole = sums_of(table).fingerprint()
            assert not sums_of(swapped).fingerprint().matches(whole), (length, place)
            alone = sums_of(*(table.slice(row, 1) for row in (2, 1, 0))).fingerprint()
            assert alone.matches(whole), (length, place)


def test_lists_and_maps_may_be_collected_in_another_order():
    kind = pa.map_(pa.string(), pa.int64())
    one = pa.table({"l": [["a", "b"], ["c"]], "m": pa.array([[("k", 1), ("m", 2)], []], kind)})
    other = pa.table({"l": [["b", "a"], ["c"]], "m": pa.array([[("m", 2), ("k", 1)], []], kind)})
    assert sums_of(one).fingerprint().matches(sums_of(other).fingerprint())
    swapped = pa.table({"l": [["a", "c"], ["b"]], "m": pa.array([[("k", 1), ("m", 2)], []], kind)})
    assert not sums_of(one).fingerprint().matches(sums_of(swapped).fingerprint())
    items = pa.table({"l": [["a", "b"], ["c"]], "m": pa.array([[("k", 2), ("m", 1)], []], kind)})
    assert not sums_of(one).fingerprint().matches(sums_of(items).fingerprint())


def test_numbers_may_differ_in_their_last_bits():
    rng = random.Random("last bits")
    ids, values = range(ROWS), [rng.uniform(-1e6, 1e6) for _ in range(ROWS)]
    one = pa.table({"id": ids, "x": values})
    other = pa.table({"id": ids, "x": [value * (1 + 1e-15) for value in values]})
    assert sums_of(one).fingerprint().matches(sums_of(other).fingerprint())


def test_fingerprints_of_the_older_kind_are_known_again():
    """What logs have of frames that were written before rows were hashed."""
    inner = pa.struct([("a", pa.int32()), ("b", pa.float64())])
    table = pa.table(
        {
            "id": [1, 2, None],
            "name": ["one", None, "a name of some length"],
            "x": [0.5, -1.25, None],
            "tags": pa.array([["a", "b"], None, []], pa.list_(pa.string())),
            "by": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "in": pa.array([{"a": 1, "b": 2.5}, None, {"a": None, "b": 1.0}], inner),
        }
    )
    older = Fingerprint(3, bytes.fromhex("16915e4b726da0af501b2597f3c69cb0"), 18.75, 26.25)
    newer = sums_of(table).fingerprint()
    assert older.matches(newer)
    assert newer.matches(older)
    for row in ({"id": 7}, {"x": 0.75}, {"tags": ["c", "b"]}, {"in": {"a": 1, "b": 2.75}}):
        changed = pa.Table.from_pylist([{**table.to_pylist()[0], **row}, *table.to_pylist()[1:]], table.schema)
        assert not older.matches(sums_of(changed).fingerprint())


@pytest.mark.parametrize("large", [1e9, 1e300, 1.7e308, float("inf")])
@pytest.mark.parametrize("rows", [10, 1_000_000])
def test_a_small_number_is_seen_beside_large_ones(large, rows):
    """Also where the sum of all is no number any more."""
    values = np.full(rows, large)
    values[3] = 0.1
    changed = values.copy()
    changed[3] = 0.2
    assert not sums_of(numbered(changed)).fingerprint().matches(sums_of(numbered(values)).fingerprint())


@pytest.mark.parametrize("kind", ["price", "signed", "small", "large", "any size", "large among small", "not all are"])
def test_a_million_numbers_may_differ_in_their_last_bits_and_come_in_any_pieces(kind):
    rng = np.random.default_rng(7)
    values = {
        "price": lambda: np.round(rng.random(MANY) * 100, 2),
        "signed": lambda: rng.uniform(-1e6, 1e6, MANY),
        "small": lambda: rng.random(MANY) * 1e-12,
        "large": lambda: np.full(MANY, 1e300),
        "any size": lambda: np.exp(rng.normal(size=MANY) * 100),
        "large among small": lambda: np.where(np.arange(MANY) % 1_000, 0.1, 1e300),
        "not all are": lambda: np.where(np.arange(MANY) % 10, rng.random(MANY), rng.choice([np.nan, np.inf, -np.inf])),
    }[kind]()
    with np.errstate(invalid="ignore"):
        noisy = values + np.spacing(np.abs(values)) * rng.integers(-2, 3, MANY)
    table = numbered(np.where(np.isfinite(values), noisy, values)).take(rng.permutation(MANY))
    pieces = [sums_of(table.slice(begin, 70_001)) for begin in range(0, MANY, 70_001)]
    merged = Sums()
    for piece in reversed(pieces):
        merged.merge(piece)
    assert merged.fingerprint().matches(sums_of(numbered(values)).fingerprint())


def test_aggregates_that_come_to_nothing_may_differ_where_others_do_not():
    """Debits and credits of a million that even out: added in another order, they do so up to a rounding which is no
    last bit of the result."""
    rng = np.random.default_rng(7)
    debits = np.round(rng.random((5, 50_000)) * 1e6, 2)
    amounts = np.concatenate([np.concatenate([debits, -debits], axis=1), debits.repeat(2, axis=1)])
    once, again = (np.add.accumulate(rng.permuted(amounts, axis=1), axis=1)[:, -1] for _ in range(2))
    assert np.abs(once[:5] - again[:5]).max() > 1e-9
    assert sums_of(numbered(once)).fingerprint().matches(sums_of(numbered(again)).fingerprint())


@pytest.mark.parametrize("groups", [10, 1_000, 100_000])
@pytest.mark.parametrize("kind", ["late", "early or late"])
def test_differences_of_averages_may_differ_beside_the_averages_where_others_do_not(groups, kind):
    """Times in microseconds since 1970: their sums are rounded, to what is no last bit of the difference."""
    rng = np.random.default_rng(7)
    happened = 1.7e15 + rng.integers(0, 60_000_000, (groups, 20))
    late = rng.exponential(1_000.0, happened.shape) if kind == "late" else rng.normal(0.0, 1_000.0, happened.shape)
    times = np.stack([happened, happened + late.round()])

    def averages() -> pa.Table:
        order = rng.permuted(np.broadcast_to(np.arange(20), happened.shape), axis=1)
        event, taken = np.add.accumulate(np.take_along_axis(times, order[None], 2), axis=2)[..., -1] / 20
        return pa.table({"id": np.arange(groups), "taken": taken, "late": taken - event})

    once, again = averages(), averages()
    whole = sums_of(once).fingerprint()
    assert whole.matches(sums_of(again).fingerprint())
    others = pa.array(rng.permutation(once["late"].to_numpy()) * 1.5 + 1_000.0)
    assert not whole.matches(sums_of(once.set_column(2, "late", others)).fingerprint())


def test_numbers_that_are_none_are_told_apart():
    """By their sign, and infinite ones from those that are no number, whose bits say nothing."""
    inf, nan = float("inf"), float("nan")
    prints = [sums_of(numbered([1.0, other, 2.0])).fingerprint() for other in (inf, -inf, nan)]
    for place, one in enumerate(prints):
        assert [one.matches(other) for other in prints] == [place == number for number in range(3)]
    assert sums_of(numbered([1.0, -nan, 2.0])).fingerprint().matches(prints[2])


def test_numbers_that_are_none_are_counted():
    nan, inf = float("nan"), float("inf")
    one = sums_of(pa.table({"a": [1.0, nan, inf]})).fingerprint()
    assert one.matches(sums_of(pa.table({"a": [inf, 1.0, nan]})).fingerprint())
    assert not one.matches(sums_of(pa.table({"a": [1.0, 1.0, inf]})).fingerprint())


def test_nothing_has_a_fingerprint_too():
    assert Sums().fingerprint().matches(sums_of(pa.table({"a": pa.array([], pa.string())})).fingerprint())


def test_the_largest_numbers_are_known_again():
    for values in ([1.7976931348623157e308], [1.7e308, -1e307], [9e307, 4e307, -4e307]):
        one, other = sums_of(pa.table({"x": values})), sums_of(pa.table({"x": values[::-1]}))
        assert one.fingerprint().matches(other.fingerprint())
        assert not one.fingerprint().matches(sums_of(pa.table({"x": [-values[0], *values[1:]]})).fingerprint())
