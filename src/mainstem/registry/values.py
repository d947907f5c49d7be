"""A value as JSON has it, made into what Arrow takes: for the defaults of fields.

The conventions are those of `texts`, which writes what is read here: decimals as text, times in ISO 8601, bytes as text
or as `{"base64": ...}`, numbers that JSON lacks as `"NaN"` and `"Infinity"`, maps as objects or as lists of pairs.
Beside these, a whole number counts the units of a time column.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.layouts import ARROW_ERRORS
from mainstem.core.plain import one_line
from mainstem.core.schema import default_of
from mainstem.registry.types import type_text

UNITS_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
NOT_A_NUMBER: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_FRACTION: Final = re.compile(r"\.(\d{1,9})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def array_of(value: Any, kind: pa.DataType, path: str) -> pa.Array:
    """An array of one value given as JSON has it; InvalidSchema if it is none of this type."""
    try:
        return pa.array([_made(value, kind, path)], kind)
    except ARROW_ERRORS as error:
        raise InvalidSchema(
            f"column {path!r}: {one_line(repr(value), 80)} is no {type_text(kind)}: {one_line(str(error), 100)}"
        ) from None


def _made(value: Any, kind: pa.DataType, path: str) -> Any:
    if value is None:
        return None
    for is_kind, make in _MAKERS:
        if is_kind(kind):
            try:
                return make(value, kind, path)
            except (ValueError, ArithmeticError, TypeError) as error:
                raise _refusal(value, kind, path, str(error)) from None
    raise AssertionError(f"{kind} is no type of a schema")


def _refusal(value: Any, kind: pa.DataType, path: str, why: str) -> InvalidSchema:
    return InvalidSchema(f"column {path!r}: {one_line(repr(value), 80)} is no {type_text(kind)}: {one_line(why, 100)}")


def _same(kinds: type | tuple[type, ...], name: str) -> Callable[[Any, pa.DataType, str], Any]:
    def make(value: Any, _: pa.DataType, __: str) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise ValueError(f"{name} is expected")
        return value

    return make


def _float(value: Any, _: pa.DataType, __: str) -> float:
    if isinstance(value, str) and value in NOT_A_NUMBER:
        return NOT_A_NUMBER[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number is expected")
    return float(value)


def _binary(value: Any, kind: pa.DataType, _: str) -> bytes:
    if isinstance(value, Mapping) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            found = base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None
    elif isinstance(value, str):
        found = value.encode()
    else:
        raise ValueError('text or {"base64": ...} is expected')
    if pa.types.is_fixed_size_binary(kind) and len(found) != kind.byte_width:
        raise ValueError(f"{kind.byte_width} bytes are expected, not {len(found)}")
    return found


def _decimal(value: Any, _: pa.DataType, __: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("text with digits is expected")
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        raise ValueError("text with digits is expected") from None
    if not found.is_finite():
        raise ValueError("a finite number is expected")
    return found


def _date(value: Any, kind: pa.DataType, _: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        raise ValueError("a date as in '2026-01-31' is expected")
    days = (datetime.fromisoformat(value).replace(tzinfo=UTC) - _EPOCH).days
    return days if pa.types.is_date32(kind) else days * 86_400_000


def _timestamp(value: Any, kind: pa.DataType, _: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError("a time as in '2026-01-31T12:00:00Z' is expected")
    moment = datetime.fromisoformat(_FRACTION.sub("", value, count=1))
    if (moment.tzinfo is not None) != (kind.tz is not None):
        raise ValueError("a time with its zone is expected" if kind.tz else "a time without a zone is expected")
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * UNITS_PER_SECOND[kind.unit] + _fraction(value, kind.unit)


def _time(value: Any, kind: pa.DataType, _: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(\.\d{1,9})?", value, re.ASCII) if isinstance(value, str) else None
    if found is None or int(found[1]) > 23 or int(found[2]) > 59 or int(found[3]) > 59:
        raise ValueError("a time as in '12:34:56' is expected")
    seconds = 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3])
    return seconds * UNITS_PER_SECOND[kind.unit] + _fraction(value, kind.unit)


def _fraction(text: str, unit: str) -> int:
    """The digits after the point, in units; those that the unit has no place for must be 0."""
    if (found := _FRACTION.search(text)) is None:
        return 0
    nanoseconds = int(found[1].ljust(9, "0"))
    whole, rest = divmod(nanoseconds, 1_000_000_000 // UNITS_PER_SECOND[unit])
    if rest:
        raise ValueError(f"there are more digits than {unit} have")
    return whole


def _list(value: Any, kind: pa.DataType, path: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError("a list is expected")
    if pa.types.is_fixed_size_list(kind) and len(value) != kind.list_size:
        raise ValueError(f"{kind.list_size} values are expected, not {len(value)}")
    return [_part(each, kind.value_field, f"{path}[{index}]") for index, each in enumerate(value)]


def _struct(value: Any, kind: pa.DataType, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("an object is expected")
    if unknown := sorted(set(value) - {field.name for field in kind}):
        raise ValueError(f"there is no field {unknown[0]!r}")
    return {field.name: _field(value, field, f"{path}.{field.name}") for field in kind}


def _field(values: Mapping[str, Any], field: pa.Field, path: str) -> Any:
    return _part(values[field.name] if field.name in values else default_of(field)[1], field, path)


def _map(value: Any, kind: pa.DataType, path: str) -> list[tuple[Any, Any]]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError("an object or a list of pairs is expected")
    key_field = pa.field("key", kind.key_type, nullable=False)
    return [
        (_part(key, key_field, f"{path}.key"), _part(each, kind.item_field, f"{path}[{key!r}]")) for key, each in pairs
    ]


def _part(value: Any, field: pa.Field, path: str) -> Any:
    if value is None and not field.nullable:
        raise InvalidSchema(f"column {path!r} is never null and needs a value")
    return _made(value, field.type, path)


_MAKERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType, str], Any]], ...]] = (
    (pa.types.is_boolean, _same(bool, "true or false")),
    (pa.types.is_integer, _same(int, "a whole number")),
    (pa.types.is_floating, _float),
    (pa.types.is_string, _same(str, "text")),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind), _binary),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_time, _time),
    (pa.types.is_duration, _same(int, "a whole number of units")),
    (pa.types.is_map, _map),
    (lambda kind: pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind), _list),
    (pa.types.is_struct, _struct),
)
