"""Columns in the formats of other libraries: all types that a schema can have, and what has no place there."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mainstem.consume.tabular import Tabular
from mainstem.core.errors import InvalidPayload
from mainstem.registry.types import parse_type

FORMATS = ("to_pandas", "to_polars", "to_dicts", "to_ndjson", "to_csv", "to_avro", "to_parquet")
# Every type with its outermost values, as numbers where Python has no such value.
_FAR = [0, -1, (1 << 63) - 1, 1 - (1 << 63), None]
VALUES: dict[str, list[Any]] = {
    "bool": [True, None],
    **{f"int{bits}": [(1 << bits - 1) - 1, -(1 << bits - 1), None] for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": [(1 << bits) - 1, None] for bits in (8, 16, 32, 64)},
    **{f"float{bits}": [float("nan"), float("-inf"), 1.5, None] for bits in (32, 64)},
    "string": ["a\x00", "", None],
    "binary": [b"\xff", b"", None],
    "binary[2]": [b"\xff\x00", None],
    "decimal(38, 2)": [Decimal("9" * 36 + ".99"), None],
    "decimal(39, 0)": [Decimal("9" * 39), None],
    "decimal(76, 76)": [Decimal("0." + "9" * 76), None],
    "decimal256(10, 2)": [Decimal("1.25"), None],
    "decimal(5, -3)": [Decimal("99999e3"), None],
    "date32": [0, (1 << 31) - 1, -(1 << 31), None],
    "date64": [0, 86_400_000, None],
    "time32[s]": [86_399, None],
    "time32[ms]": [86_399_999, None],
    "time64[us]": [86_399_999_999, None],
    "time64[ns]": [86_399_999_999_999, None],
    **{f"timestamp[{unit}]": _FAR for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp[{unit}, Asia/Tokyo]": _FAR for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp[{unit}, +05:30]": [0, None] for unit in ("s", "ms", "us", "ns")},
    **{f"duration[{unit}]": _FAR for unit in ("s", "ms", "us", "ns")},
}


class _Rows(Tabular):
    def __init__(self, rows: pa.RecordBatch | pa.Table) -> None:
        self._rows = rows

    def to_arrow(self, *, metadata: bool = False) -> pa.RecordBatch | pa.Table:
        return self._rows


def _column(text: str) -> pa.Array:
    kind, values = parse_type(text, "c")[0], VALUES[text]
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array(values, kind)


def _shapes(column: pa.Array) -> list[pa.Array]:
    """A column, and the same values in everything that can hold some."""
    whole, some = [0, len(column)], column.drop_null()
    names = pa.array([str(index) for index in range(len(column))])
    return [
        column,
        pa.ListArray.from_arrays(whole, column),
        pa.FixedSizeListArray.from_arrays(column, len(column)),
        pa.StructArray.from_arrays([column], ["part"]),
        pa.MapArray.from_arrays(whole, names, column),
        pa.MapArray.from_arrays([0, len(some)], some, names[: len(some)]),
    ]


def _refusal(rows: pa.RecordBatch | pa.Table, name: str) -> str:
    try:
        getattr(_Rows(rows), name)()
    except InvalidPayload as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", sorted(VALUES))
def test_every_type_leaves_or_is_refused_with_its_column(text):
    for column in _shapes(_column(text)):
        beside = pa.array([1] * len(column))
        for rows in (pa.table({"a": beside, "c": column}), pa.record_batch({"a": beside, "c": column})):
            for name in FORMATS:
                refused = _refusal(rows, name)
                assert not refused or name in ("to_pandas", "to_polars", "to_avro", "to_parquet")
                assert not refused or name == "to_avro" or "column 'c' (" in refused


@pytest.mark.parametrize("text", ["decimal(39, 0)", "list<decimal(76, 0)>", "map<string, decimal256(5, 2)>"])
def test_a_decimal_that_polars_would_panic_at(text, capfd):
    rows = pa.table({"id": pa.array([], pa.int64()), "d": pa.array([], parse_type(text, "d")[0])})
    with pytest.raises(InvalidPayload, match=r"column 'd' \(.*cannot go to polars: .*38 digits.*to_arrow\(\)"):
        _Rows(rows).to_polars()
    assert not capfd.readouterr().err  # nor does a panic write there
    assert _Rows(rows.select(["id"])).to_polars().columns == ["id"]


def test_a_time_that_pandas_cannot_hold():
    rows = pa.table({"far": pa.array([1 << 30], pa.int32()).view(pa.date32())})
    with pytest.raises(InvalidPayload, match=r"column 'far' \(date32\) cannot go to pandas: year .* out of range"):
        _Rows(rows).to_pandas()
