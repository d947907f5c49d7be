"""Comparison: two values of any types to a condition that means exactly what the numbers, moments or texts mean.

A constant is brought into the storage form of the value that it is compared with, exactly: `whole_number > 1.5` becomes
`whole_number > 1`, and an equality that no value of the type can have is settled at once. So a column is compared as it
is stored, without a conversion, and its statistics can be asked about the same constant.
"""

from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from math import isfinite, isnan
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mainstem.core.errors import InvalidPredicate
from mainstem.core.predicate import kernels
from mainstem.core.predicate.bound import (
    Applied,
    Bound,
    Compared,
    Constant,
    IsNull,
    Not,
    OneOf,
    Or,
    Settled,
)
from mainstem.core.predicate.families import (
    MOMENTS,
    NUMBERS,
    STRINGS,
    TEMPORAL,
    Family,
    common_type,
    family_of,
    storage_type,
    storage_value,
    unit_ns,
)

# How moments are written.
FORMS: Final[dict[str, str]] = {
    Family.DATE: "2026-01-31",
    Family.TIME: "12:30:00",
    Family.TIMESTAMP: "2026-01-31 12:30:00",
}
NO_LISTS: Final = "of a list a predicate can only say whether it is NULL"
# From so many constants on a hash table is faster than comparing with each: of text, and of everything else.
_FEW_TEXTS: Final = 4
_FEW: Final = 16
# Digits enough for every decimal that Arrow has.
_EXACT: Final = Context(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN)
_UNKNOWN: Final = Constant(pa.bool_(), "NULL", pa.scalar(None, pa.bool_()))


def compare(sign: str, left: Bound, right: Bound) -> Bound:
    """A condition; InvalidPredicate if the two cannot be compared."""
    if isinstance(left, Constant) and not isinstance(right, Constant):
        left, right, sign = right, left, kernels.mirrored(sign)
    if is_null(left) or is_null(right):
        return _UNKNOWN
    left, right = as_moment(left, right), as_moment(right, left)
    _check(left, right)
    if isinstance(right, Constant) and not isinstance(left, Constant):
        return _with_constant(sign, left, right)
    left, right = unified((left, right))
    return Applied(
        pa.bool_(), "a comparison", lambda first, second: kernels.compare(sign, first, second), (left, right)
    )


def distinct(left: Bound, right: Bound) -> Bound:
    """IS DISTINCT FROM: never unknown, and NULL is distinct from everything but NULL."""
    if isinstance(left, Constant) and not isinstance(right, Constant):
        left, right = right, left
    if is_null(right):
        return Not(IsNull(left))
    if isinstance(right, Constant) and not isinstance(left, Constant):
        return Or((compare("<>", left, right), IsNull(left)))
    left, right = as_moment(left, right), as_moment(right, left)
    _check(left, right)
    left, right = unified((left, right))
    return Applied(pa.bool_(), "a comparison", kernels.is_distinct, (left, right))


def one_of(part: Bound, items: Sequence[Bound]) -> Bound:
    """IN: an equality with each, of which those with constants are looked up together."""
    found = [compare("=", part, item) for item in items]
    together = [each for each in found if isinstance(each, Compared) and each.part is part]
    if len(together) >= (_FEW_TEXTS if family_of(part.type) in STRINGS else _FEW):
        found = [each for each in found if not (isinstance(each, Compared) and each.part is part)]
        constants = tuple(each.constant for each in together)
        found.append(OneOf(part, _value_set([each.scalar for each in together]), constants))
    return found[0] if len(found) == 1 else Or(tuple(found))


def _value_set(scalars: list[Any]) -> Any:
    kind = scalars[0].type
    values = [scalar.as_py() for scalar in scalars]
    if pa.types.is_floating(kind) and 0.0 in values:
        values += [0.0, -0.0]  # equal, and yet not the same to a hash table
    return pa.array(values, kind)


def unified(parts: Sequence[Bound]) -> tuple[Bound, ...]:
    """Values in one type that holds them all; InvalidPredicate if there is none."""
    kind: pa.DataType | None = parts[0].type
    for part in parts[1:]:
        if (wider := common_type(kind, part.type)) is None:
            raise InvalidPredicate(
                f"{parts[0].label} is {parts[0].type} and {part.label} is {part.type}: they do not go together; "
                "CAST(... AS type) makes one like the other"
            )
        kind = wider
    return tuple(converted(part, kind) for part in parts)


def converted(part: Bound, kind: pa.DataType) -> Bound:
    if part.type == kind:
        return part
    if isinstance(part, Constant):
        value = kernels.convert(part.evaluate(None), kind)[0]
        return Constant(kind, part.label, value)
    return Applied(kind, part.label, lambda values: kernels.convert(values, kind), (part,))


def is_null(part: Bound) -> bool:
    return isinstance(part, Constant) and part.is_null


def as_moment(part: Bound, beside: Bound) -> Bound:
    """A constant text as what it stands for beside a date, a time or a timestamp."""
    family = family_of(beside.type)
    if not isinstance(part, Constant) or family_of(part.type) is not Family.TEXT:
        return part
    read = {Family.DATE: kernels.to_moment, Family.TIMESTAMP: kernels.to_moment, Family.TIME: kernels.to_time}
    if family not in read:
        return part
    value = read[family](part.evaluate(None))
    if value.null_count:
        raise InvalidPredicate(
            f"{beside.label} is {beside.type}, and {part.label} is no {family}; write it like '{FORMS[family]}'"
        )
    return Constant(value.type, part.label, value[0])


def _check(left: Bound, right: Bound) -> None:
    first, second = family_of(left.type), family_of(right.type)
    if first is second and first not in (Family.STRUCT, Family.MAP, Family.LIST):
        return
    if any({first, second} <= group for group in (NUMBERS, STRINGS, MOMENTS)):
        return
    families = {first, second}
    hint = ""
    if Family.LIST in families:
        hint = f"; {NO_LISTS}"
    elif families & {Family.STRUCT, Family.MAP}:
        hint = "; name a field of it (a.b), or a key of a map (a['b'])"
    elif Family.TEXT in families and families & NUMBERS:
        hint = "; write numbers without quotes, and text with them"
    elif form := next((FORMS[family] for family in (first, second) if family in FORMS), ""):
        hint = f"; write it like '{form}'"
    elif Family.BOOLEAN in families:
        hint = "; write TRUE or FALSE"
    elif Family.BINARY in families:
        hint = "; write it as text in quotes, or as bytes like x'ff'"
    raise InvalidPredicate(
        f"{left.label} is {left.type} and cannot be compared with {right.label}, which is {right.type}{hint}"
    )


def _with_constant(sign: str, part: Bound, constant: Constant) -> Bound:
    family, kind = family_of(part.type), part.type
    if family is Family.FLOAT or (family is Family.DECIMAL and family_of(constant.type) is Family.FLOAT):
        return _with_float(sign, part, constant)
    if family in (Family.INTEGER, Family.DECIMAL) or family in TEMPORAL:
        return _on_grid(sign, part, constant)
    value = storage_value(constant.scalar)
    if isinstance(value, bytes) and family is Family.TEXT:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            # No text has these bytes; which comes first can still be said.
            return compare(sign, converted(part, pa.binary()), constant)
        return Compared(sign, part, pa.scalar(text, kind), value)
    return Compared(sign, part, pa.scalar(value, kind), int(value) if isinstance(value, bool) else value)


def _with_float(sign: str, part: Bound, constant: Constant) -> Bound:
    value = constant.scalar.as_py()
    number = float(value)
    if isnan(number):
        # Nothing is greater than NaN, and only NaN equals it.
        wide = converted(part, pa.float64())
        return Applied(
            pa.bool_(),
            "a comparison",
            lambda values: kernels.compare(sign, values, pa.scalar(number)),
            (wide,),
        )
    if part.type == pa.float32():
        with np.errstate(over="ignore"):
            narrow = float(np.float32(number))
        if narrow == number or not isinstance(value, float):
            # What is written with digits means the nearest float, so that x = 0.1 finds it.
            return Compared(sign, part, pa.scalar(narrow, pa.float32()), narrow)
    return Compared(sign, converted(part, pa.float64()), pa.scalar(number, pa.float64()), number)


def _on_grid(sign: str, part: Bound, constant: Constant) -> Bound:
    """Against values that lie on a grid (whole numbers, days, cents): the place on the grid that says the same."""
    value = _exact(constant)
    if isinstance(value, float):
        return Settled(part, _beyond(sign, above=isnan(value) or value > 0))
    kind = part.type
    low, high, step = _grid(kind)
    place = value / step
    at = place.numerator // place.denominator
    if place.denominator != 1:
        if sign in ("=", "<>"):
            return Settled(part, sign == "<>")
        sign = "<=" if sign in ("<", "<=") else ">"
    if not low <= at <= high:
        return Settled(part, _beyond(sign, above=at > high))
    stored = storage_type(kind)
    if family_of(kind) is Family.DECIMAL:
        number = Decimal(at).scaleb(-kind.scale, _EXACT)
        return Compared(sign, part, pa.scalar(number, kind), number)
    return Compared(sign, part, pa.scalar(at, stored), at)


def _beyond(sign: str, *, above: bool) -> bool:
    """What a comparison says whose constant is above, or below, all values."""
    if sign in ("=", "<>"):
        return sign == "<>"
    return (sign in ("<", "<=")) == above


def _exact(constant: Constant) -> Fraction | float:
    """The value of a constant, temporal ones in nanoseconds; a float only if it is no number or infinite."""
    value = storage_value(constant.scalar)
    if isinstance(value, float) and not isfinite(value):
        return value
    scale = unit_ns(constant.type) if family_of(constant.type) in TEMPORAL else 1
    return Fraction(value) * scale


def _grid(kind: pa.DataType) -> tuple[int, int, Fraction]:
    """The lowest and highest place of a type, and how far places are apart."""
    family = family_of(kind)
    if family is Family.DECIMAL:
        bound = 10**kind.precision - 1
        return -bound, bound, Fraction(10) ** -kind.scale
    bits = kind.bit_width
    if family is Family.INTEGER and not pa.types.is_signed_integer(kind):
        return 0, (1 << bits) - 1, Fraction(1)
    step = unit_ns(kind) if family in TEMPORAL else 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1, Fraction(step)
