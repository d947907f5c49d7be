"""Values as Avro stores them: times as whole numbers, decimals as bytes; and the names that Avro allows."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidPayload
from mainstem.registry.dicts import python_values
from mainstem.registry.texts import as_list, shown_only
from mainstem.registry.types import is_nested

_DAY_MS: Final = 86_400_000


def avro_names(names: Sequence[str]) -> list[str]:
    """The names as Avro allows them: other signs are written by their number, and no two are the same."""
    found: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", lambda sign: f"_x{ord(sign[0]):X}", name)
        plain = plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"
        made, number = plain, 2
        while made in found or (made != name and made in names):
            made, number = f"{plain}_{number}", number + 1
        found[made] = None
    return list(found)


def to_avro_values(array: pa.Array, *, is_json: bool = False) -> list[Any]:
    """The values of an array as Avro stores them, or, `is_json`, as a default is written: bytes as text."""
    kind = array.type
    for is_kind, make in _TO:
        if is_kind(kind):
            return make(array, is_json)
    values = python_values(array)
    if is_json and (pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)):
        return [None if value is None else value.decode("latin-1") for value in values]
    return values


def from_avro_values(values: Sequence[Any], kind: pa.DataType, *, is_json: bool = False) -> list[Any]:
    """What Avro stored, or wrote as a default, as Arrow takes it for a type."""
    for is_nest, make_all in _FROM_NESTED:
        if is_nest(kind):
            present = [value for value in values if value is not None]
            made = iter(make_all(present, kind, is_json))
            return [None if value is None else next(made) for value in values]
    for is_kind, make in _FROM:
        if is_kind(kind):
            return [None if value is None else make(value, kind, is_json) for value in values]
    return list(values)


# To Avro


def _number_values(array: pa.Array, is_json: bool) -> list[Any]:
    """Times as whole numbers, in the units that Avro has."""
    kind = array.type
    try:
        if pa.types.is_date64(kind):
            return list(array.cast(pa.date32()).cast(pa.int32()).to_pylist())
        if pa.types.is_timestamp(kind) and kind.unit == "s":
            array = array.cast(pa.timestamp("ms", kind.tz))
        if pa.types.is_time32(kind):
            array = array.cast(pa.time32("ms"))
    except pa.ArrowInvalid as error:
        raise InvalidPayload(f"a time that Avro has no number for: {error}") from None
    return list(array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist())


def _decimal_values(array: pa.Array, is_json: bool) -> list[Any]:
    width, data = array.type.bit_width // 8, array.buffers()[1].to_pybytes()
    numbers = [
        int.from_bytes(data[width * index : width * (index + 1)], "little", signed=True)
        for index in range(array.offset, array.offset + len(array))
    ]
    is_valid = array.is_valid().to_pylist()
    return [_bytes_of(number, is_json) if valid else None for number, valid in zip(numbers, is_valid, strict=True)]


def _uint64_values(array: pa.Array, is_json: bool) -> list[Any]:
    return [None if value is None else _bytes_of(value, is_json) for value in array.to_pylist()]


def _bytes_of(number: int, is_json: bool) -> bytes | str:
    data = number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
    return data.decode("latin-1") if is_json else data


def _struct_values(array: pa.Array, is_json: bool) -> list[Any]:
    names = avro_names([field.name for field in array.type])
    columns = [to_avro_values(array.field(index), is_json=is_json) for index in range(len(names))]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [row if is_valid else None for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _list_values(array: pa.Array, is_json: bool) -> list[Any]:
    if pa.types.is_fixed_size_list(array.type):
        array = as_list(array)
    array = shown_only(array)
    return _cut(array, to_avro_values(array.values, is_json=is_json))


def _map_values(array: pa.Array, is_json: bool) -> list[Any]:
    array = shown_only(array)
    keys, items = to_avro_values(array.keys, is_json=is_json), to_avro_values(array.items, is_json=is_json)
    if pa.types.is_string(array.type.key_type):
        lists = _cut(array, list(zip(keys, items, strict=True)))
        return [None if pairs is None else _as_dict(pairs) for pairs in lists]
    return _cut(array, [{"key": key, "value": item} for key, item in zip(keys, items, strict=True)])


def _as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidPayload("a map has a key twice, which Avro has no place for")
    return found


def _cut(array: pa.Array, values: list[Any]) -> list[Any]:
    ends = array.offsets.to_pylist()
    return [
        values[ends[index] : ends[index + 1]] if is_valid else None
        for index, is_valid in enumerate(array.is_valid().to_pylist())
    ]


# From Avro


def _from_bytes(value: Any, _: pa.DataType, is_json: bool) -> bytes:
    return value.encode("latin-1") if is_json else bytes(value)


def _from_decimal(value: Any, kind: pa.DataType, is_json: bool) -> Decimal:
    number = int.from_bytes(_from_bytes(value, kind, is_json), "big", signed=True)
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -kind.scale))


def _from_uint64(value: Any, kind: pa.DataType, is_json: bool) -> int:
    return int.from_bytes(_from_bytes(value, kind, is_json), "big", signed=True)


def _from_seconds(value: Any, _: pa.DataType, __: bool) -> int:
    seconds, rest = divmod(value, 1_000)
    if rest:
        raise ValueError(f"{value} milliseconds are no whole seconds")
    return int(seconds)


def _from_days(value: Any, _: pa.DataType, __: bool) -> int:
    return int(value) * _DAY_MS


def _from_structs(values: list[Any], kind: pa.DataType, is_json: bool) -> Iterable[Any]:
    names = avro_names([field.name for field in kind])
    columns = [
        from_avro_values([value.get(name) for value in values], field.type, is_json=is_json)
        for name, field in zip(names, kind, strict=True)
    ]
    fields = [field.name for field in kind]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _from_lists(values: list[Any], kind: pa.DataType, is_json: bool) -> Iterable[Any]:
    items = from_avro_values([item for value in values for item in value], kind.value_type, is_json=is_json)
    return _split(values, items)


def _from_maps(values: list[Any], kind: pa.DataType, is_json: bool) -> Iterable[Any]:
    if not pa.types.is_string(kind.key_type):
        values = [[(pair["key"], pair["value"]) for pair in value] for value in values]
    pairs = [pair for value in values for pair in (value.items() if isinstance(value, dict) else value)]
    keys = from_avro_values([key for key, _ in pairs], kind.key_type, is_json=is_json)
    items = from_avro_values([item for _, item in pairs], kind.item_type, is_json=is_json)
    return _split(values, list(zip(keys, items, strict=True)))


def _split(values: list[Any], parts: list[Any]) -> Iterator[list[Any]]:
    """The parts of all values, as many for each as it had."""
    following = iter(parts)
    return (list(islice(following, len(value))) for value in values)


def _is_seconds(kind: pa.DataType) -> bool:
    return bool((pa.types.is_timestamp(kind) or pa.types.is_time32(kind)) and kind.unit == "s")


def _is_time(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind) or types.is_duration(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


_TO: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, bool], list[Any]]], ...]] = (
    (pa.types.is_uint64, _uint64_values),
    (pa.types.is_decimal, _decimal_values),
    (_is_time, _number_values),
    (pa.types.is_struct, _struct_values),
    (pa.types.is_map, _map_values),
    (is_nested, _list_values),
)
_FROM: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType, bool], Any]], ...]] = (
    (pa.types.is_uint64, _from_uint64),
    (pa.types.is_decimal, _from_decimal),
    (_is_bytes, _from_bytes),
    (_is_seconds, _from_seconds),
    (pa.types.is_date64, _from_days),
)
# These take all values at once.
_FROM_NESTED: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[list[Any], pa.DataType, bool], Iterable[Any]]], ...]
] = (
    (pa.types.is_struct, _from_structs),
    (pa.types.is_map, _from_maps),
    (is_nested, _from_lists),
)
