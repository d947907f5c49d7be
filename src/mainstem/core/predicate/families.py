"""The families: which Arrow types behave alike in a predicate, and which type holds the values of two.

The *storage form* of a value is what comparisons and statistics work with: whole numbers for everything that Arrow
stores as one (dates in days, times, timestamps and time spans in the unit of their column), bytes for text.
"""

from enum import StrEnum
from typing import Any, Final

import pyarrow as pa


class Family(StrEnum):
    """What kind of thing a value is, as messages name it."""

    NULL = "NULL"
    BOOLEAN = "boolean"
    INTEGER = "whole number"
    DECIMAL = "decimal"
    FLOAT = "float"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    SPAN = "time span"
    STRUCT = "struct"
    MAP = "map"
    LIST = "list"


NUMBERS: Final = frozenset((Family.INTEGER, Family.DECIMAL, Family.FLOAT))
STRINGS: Final = frozenset((Family.TEXT, Family.BINARY))
MOMENTS: Final = frozenset((Family.DATE, Family.TIMESTAMP))
TEMPORAL: Final = frozenset((Family.DATE, Family.TIMESTAMP, Family.TIME, Family.SPAN))

# How many nanoseconds the unit of a type is.
UNIT_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
DAY_NS: Final = 86_400 * 1_000_000_000
# Digits that hold every value of the type.
_INT64_DIGITS: Final = 19
_UINT64_DIGITS: Final = 20
_DECIMAL128_DIGITS: Final = 38
_DECIMAL256_DIGITS: Final = 76

_FAMILIES: Final = (
    (pa.types.is_null, Family.NULL),
    (pa.types.is_boolean, Family.BOOLEAN),
    (pa.types.is_integer, Family.INTEGER),
    (pa.types.is_decimal, Family.DECIMAL),
    (pa.types.is_floating, Family.FLOAT),
    (pa.types.is_string, Family.TEXT),
    (pa.types.is_binary, Family.BINARY),
    (pa.types.is_fixed_size_binary, Family.BINARY),
    (pa.types.is_date, Family.DATE),
    (pa.types.is_time, Family.TIME),
    (pa.types.is_timestamp, Family.TIMESTAMP),
    (pa.types.is_duration, Family.SPAN),
    (pa.types.is_struct, Family.STRUCT),
    (pa.types.is_map, Family.MAP),
)


# By the number that Arrow has for a type, as they were asked for.
_KNOWN: Final[dict[int, Family]] = {}


def family_of(kind: pa.DataType) -> Family:
    found = _KNOWN.get(kind.id)
    if found is None:
        found = _KNOWN[kind.id] = next((family for is_kind, family in _FAMILIES if is_kind(kind)), Family.LIST)
    return found


def unit_ns(kind: pa.DataType) -> int:
    """How many nanoseconds one step of a date, time, timestamp or time span is."""
    if pa.types.is_date(kind):
        return DAY_NS if kind == pa.date32() else UNIT_NS["ms"]
    return UNIT_NS[kind.unit]


def storage_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow stores the values of a type as, as far as comparisons know."""
    if family_of(kind) not in TEMPORAL:
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def decimal_type(digits: int, scale: int) -> pa.DataType | None:
    """The decimal of so many digits, None if there is none."""
    if digits > _DECIMAL256_DIGITS:
        return None
    make = pa.decimal128 if digits <= _DECIMAL128_DIGITS else pa.decimal256
    return make(digits, scale)


def as_decimal(kind: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of a whole number or decimal type."""
    if family_of(kind) is Family.DECIMAL:
        return kind
    return pa.decimal128(_UINT64_DIGITS if kind == pa.uint64() else _INT64_DIGITS, 0)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which values of both can be compared, None if there is none."""
    if left == right:
        return left
    families = {family_of(left), family_of(right)}
    if Family.NULL in families:
        return right if family_of(left) is Family.NULL else left
    if families <= NUMBERS:
        return _common_number(left, right, families)
    if families <= STRINGS:
        return pa.binary()
    if families <= MOMENTS:
        return _common_moment(left, right)
    if families == {Family.SPAN}:
        return pa.duration(finer_unit(left, right))
    if families == {Family.TIME}:
        unit = finer_unit(left, right)
        return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
    return None


def _common_number(left: pa.DataType, right: pa.DataType, families: set[Family]) -> pa.DataType | None:
    if Family.FLOAT in families:
        return pa.float64()
    if families == {Family.INTEGER} and pa.uint64() not in (left, right):
        return pa.int64()
    first, second = as_decimal(left), as_decimal(right)
    scale = max(first.scale, second.scale)
    return decimal_type(max(first.precision - first.scale, second.precision - second.scale) + scale, scale)


def _common_moment(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    timestamps = [kind for kind in (left, right) if pa.types.is_timestamp(kind)]
    if not timestamps:
        return pa.date32()
    # A date in the unit of the timestamp; without a zone means UTC.
    zone = "UTC" if any(kind.tz for kind in timestamps) else None
    return pa.timestamp(finer_unit(*timestamps), zone)


def finer_unit(*kinds: pa.DataType) -> str:
    """The finest unit of timestamps and time spans; dates have none."""
    units = [kind.unit for kind in kinds if not pa.types.is_date(kind)]
    finest: str = min(units, key=UNIT_NS.__getitem__)
    return finest


def storage_value(scalar: Any) -> Any:
    """A value of Arrow in storage form."""
    family = family_of(scalar.type)
    if family in TEMPORAL:
        return scalar.value
    value = scalar.as_py()
    return value.encode() if family is Family.TEXT else value
