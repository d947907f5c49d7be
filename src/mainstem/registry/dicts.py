"""The values of columns as Python has them, for rows that are dicts.

Timestamps with a zone are datetimes in UTC. Where Python has nothing as fine or as large (nanoseconds, the year 20000),
a time is the text or the number that JSON has for it. A map is a dict if all keys of a column are plain and none occurs
twice in a map, else a list of pairs.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.registry.texts import (
    SECONDS_HIGH,
    SECONDS_LOW,
    UNITS_PER_SECOND,
    as_list,
    has_double_keys,
    integer_of,
    shown_only,
    time_texts,
    timestamp_texts,
)
from mainstem.registry.types import is_nested

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = _EPOCH.replace(tzinfo=None)


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in python_values(chunk)]
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_float64(kind):
        # Several times faster than to_pylist.
        return list(array.to_pylist() if array.null_count else array.to_numpy().tolist())
    for is_kind, make in _PYTHON:
        if is_kind(kind):
            return make(array)
    return list(array.to_pylist())


def _timestamp_values(array: pa.Array) -> list[Any]:
    kind, numbers = array.type, array.cast(pa.int64())
    low, high = SECONDS_LOW * UNITS_PER_SECOND[kind.unit], SECONDS_HIGH * UNITS_PER_SECOND[kind.unit]
    extremes = pc.min_max(numbers).as_py()
    is_near = extremes["min"] is None or (low <= extremes["min"] and extremes["max"] < high)
    rounded = pc.multiply(pc.divide(numbers, 1_000), 1_000)
    if is_near and (kind.unit != "ns" or pc.all(pc.equal(rounded, numbers), min_count=0).as_py()):
        # To add to a moment is the fastest way to one with a zone. numpy makes None of what is null.
        whole = array.cast(pa.timestamp("us", kind.tz)).to_numpy(zero_copy_only=False)
        since, add = whole.view("timedelta64[us]").tolist(), (_EPOCH if kind.tz else _LOCAL_EPOCH).__add__
        return [None if each is None else add(each) for each in since] if array.null_count else list(map(add, since))
    texts = timestamp_texts(array, False).to_pylist()
    is_fine = (pc.not_equal(rounded, numbers) if kind.unit == "ns" else numbers.is_null()).to_pylist()
    rows = zip(numbers.to_pylist(), texts, is_fine, strict=True)
    return [_timestamp(number, text, fine, kind) if number is not None else None for number, text, fine in rows]


def _timestamp(number: int, text: str, is_fine: bool, kind: pa.DataType) -> datetime | str | int:
    seconds, rest = divmod(number, UNITS_PER_SECOND[kind.unit])
    if not SECONDS_LOW <= seconds < SECONDS_HIGH:
        return number
    if is_fine:
        return text
    microseconds = rest * 1_000_000 // UNITS_PER_SECOND[kind.unit]
    return (_EPOCH if kind.tz else _LOCAL_EPOCH) + timedelta(seconds=seconds, microseconds=microseconds)


def _date_values(array: pa.Array) -> list[Any]:
    per_day = 1 if pa.types.is_date32(array.type) else 86_400_000
    low, high = date.min.toordinal() - _EPOCH.toordinal(), date.max.toordinal() - _EPOCH.toordinal()
    return [
        number
        if number is None or not low <= number // per_day <= high
        else date.fromordinal(number // per_day + _EPOCH.toordinal())
        for number in array.cast(integer_of(array)).to_pylist()
    ]


def _time_values(array: pa.Array) -> list[Any]:
    if array.type.unit != "ns":
        return list(array.to_pylist())
    texts = time_texts(array, False).to_pylist()
    whole = array.cast(pa.time64("us"), safe=False).to_pylist()
    numbers = array.cast(pa.int64()).to_pylist()
    return [
        text if number is not None and number % 1_000 else value
        for text, value, number in zip(texts, whole, numbers, strict=True)
    ]


def _duration_values(array: pa.Array) -> list[Any]:
    per_second = UNITS_PER_SECOND[array.type.unit]
    return [None if number is None else _duration(number, per_second) for number in array.cast(pa.int64()).to_pylist()]


def _duration(number: int, per_second: int) -> timedelta | int:
    microseconds, rest = divmod(number * 1_000_000, per_second)
    is_near = -(1 << 62) < microseconds < (1 << 62) and abs(microseconds) < 999_999_999 * 86_400_000_000
    return timedelta(microseconds=microseconds) if is_near and not rest else number


def _struct_values(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [python_values(array.field(index)) for index in range(array.type.num_fields)]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows if not array.null_count else _with_nulls(rows, array)


def _list_values(array: pa.Array) -> list[Any]:
    if pa.types.is_fixed_size_list(array.type):
        array = as_list(array)
    array = shown_only(array)
    values, ends = python_values(array.values), array.offsets.to_pylist()
    lists = [values[start:end] for start, end in pairwise(ends)]
    return lists if not array.null_count else _with_nulls(lists, array)


def _map_values(array: pa.Array) -> list[Any]:
    array = shown_only(array)
    keys, items, ends = python_values(array.keys), python_values(array.items), array.offsets.to_pylist()
    is_plain = not is_nested(array.type.key_type) and not has_double_keys(array)
    maps: list[Any] = []
    for start, end in pairwise(ends):
        pairs = zip(keys[start:end], items[start:end], strict=True)
        maps.append(dict(pairs) if is_plain else list(pairs))
    return maps if not array.null_count else _with_nulls(maps, array)


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    is_valid = array.is_valid().to_pylist()
    return [value if valid else None for value, valid in zip(values, is_valid, strict=True)]


_PYTHON: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...]] = (
    (pa.types.is_timestamp, _timestamp_values),
    (pa.types.is_date, _date_values),
    (pa.types.is_time, _time_values),
    (pa.types.is_duration, _duration_values),
    (pa.types.is_struct, _struct_values),
    (pa.types.is_map, _map_values),
    (is_nested, _list_values),
)
