"""What a dead letter keeps of a row: JSON that is read as the same row, or what the row looks like."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from mainstem.core.layouts import binary_array
from mainstem.core.schema import Schema
from mainstem.produce.dead_letters import UNREADABLE, letter_of
from mainstem.registry.rows import RowConverter

MOMENT = datetime(2026, 1, 31, 12, 34, 56, 789_012, tzinfo=UTC)
VALUES = [
    (pa.bool_(), True),
    (pa.bool_(), None),
    (pa.int64(), -(1 << 63)),
    (pa.int16(), np.int16(-5)),
    (pa.float64(), 0.1),
    (pa.float64(), Fraction(1, 3)),
    (pa.float64(), math.inf),
    (pa.float64(), -math.inf),
    (pa.float32(), np.float32(0.1)),
    (pa.decimal128(10, 2), Decimal("12.30")),
    (pa.decimal128(10, 2), Decimal("1E+3")),
    (pa.string(), "Zoë"),
    (pa.binary(), b"\xff\x00"),
    (pa.binary(), b"plain"),
    (pa.binary(2), bytearray(b"\xff\x00")),
    (pa.date32(), date(2026, 1, 31)),
    (pa.time64("us"), time(12, 34, 56, 789_012)),
    (pa.timestamp("us", "UTC"), MOMENT),
    (pa.timestamp("us", "UTC"), MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30)))),
    (pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
    (pa.timestamp("ns", "UTC"), pd.Timestamp("2026-01-31T12:34:56.789012345Z")),
    (pa.duration("us"), timedelta(days=-3, seconds=5, microseconds=7)),
    (pa.duration("ms"), timedelta(days=400, milliseconds=7)),
    (pa.list_(pa.float64()), [1.5, math.inf, None]),
    (pa.list_(pa.int32()), np.array([1, 2, 3], np.int32)),
    (pa.struct([("b", pa.binary()), ("d", pa.date32())]), {"b": b"\xff", "d": date(2026, 1, 31)}),
    (pa.map_(pa.string(), pa.binary()), {"a": b"\xff"}),
    (pa.map_(pa.int64(), pa.string()), {1: "a", -2: "b"}),
    (pa.map_(pa.date32(), pa.string()), {date(2026, 1, 31): "a"}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
def test_a_letter_is_read_as_the_row_it_was(kind: pa.DataType, value: Any) -> None:
    rows = RowConverter(Schema(pa.schema([("v", kind)])))
    letter, notes = letter_of({"v": value})
    assert notes == []
    batch, bad = rows.from_json(binary_array([letter]))
    assert not bad
    assert batch.equals(rows.build([rows.convert({"v": value})[0]]))
    assert rows.convert_json(letter)[0] == rows.convert({"v": value})[0]


def test_not_a_number_is_read_as_that() -> None:
    rows = RowConverter(Schema(pa.schema([("v", pa.float64())])))
    batch, bad = rows.from_json(binary_array([letter_of({"v": math.nan})[0]]))
    assert not bad
    assert math.isnan(batch.column(0)[0].as_py())


class Silent:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"v": UUID(int=1)}, b"{'v': UUID('00000000-0000-0000-0000-000000000001')}"),
        ({"v": {1, 2}}, b"{'v': {1, 2}}"),
        ({1: "x"}, b"{1: 'x'}"),
        ({"v": "\ud800"}, b"{'v': '\\ud800'}"),
        ("\ud800", b"'\\ud800'"),
        ({"v": time(12, tzinfo=UTC)}, b"{'v': datetime.time(12, 0, tzinfo=datetime.timezone.utc)}"),
        ({"v": Decimal("sNaN")}, b"{'v': Decimal('sNaN')}"),
        ({"v": pd.NaT}, b"{'v': NaT}"),
        ({"v": np.array(["2026"], "datetime64[ns]")}, b"{'v': array(['2026-01-01T00:00:00.000000000']"),
        ({"v": 10**5_000}, b"<dict>"),
        ({"v": Silent()}, b"<dict>"),
        ({"v": endless()}, b"{'v': [[...]]}"),
    ],
    ids=lambda value: "",
)
def test_a_row_that_has_no_json_is_shown_and_its_letter_says_so(row: Any, shown: bytes) -> None:
    letter, notes = letter_of(row)
    assert letter.startswith(shown)
    assert [name for name, _ in notes] == [UNREADABLE]


def test_bytes_and_text_are_kept_as_they_came() -> None:
    assert letter_of(memoryview(b"\xff{")) == (b"\xff{", [])
    assert letter_of("{not json") == (b"{not json", [])
