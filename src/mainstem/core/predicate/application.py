"""Application: a function on values, with its type found out and constants worked out, and all of arithmetic."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidPredicate
from mainstem.core.layouts import ARROW_ERRORS
from mainstem.core.predicate import kernels
from mainstem.core.predicate.bound import Applied, Bound, Constant
from mainstem.core.predicate.comparison import converted, is_null
from mainstem.core.predicate.families import (
    MOMENTS,
    NUMBERS,
    TEMPORAL,
    Family,
    as_decimal,
    decimal_type,
    family_of,
    finer_unit,
)

NULL: Final = Constant(pa.null(), "NULL", pa.scalar(None))
_KERNELS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": kernels.add,
    "-": kernels.subtract,
    "*": kernels.multiply,
}


def applied(label: str, function: Callable[..., Any], *parts: Bound) -> Bound:
    """What a function makes of values that are there; NULL as soon as one is not."""
    if any(map(is_null, parts)):
        return NULL
    try:
        # What comes of no rows has the type of what comes of many.
        empty = (part.scalar if isinstance(part, Constant) else pa.array([], part.type) for part in parts)
        kind = function(*empty).type if not is_constant(*parts) else None
        return folded(Applied(kind, label, function, parts), *parts)
    except ARROW_ERRORS as error:
        raise InvalidPredicate(f"{label} is not possible here: {str(error)[:200]}") from None


def is_constant(*parts: Bound) -> bool:
    return all(isinstance(part, Constant) for part in parts)


def folded(found: Bound, *parts: Bound) -> Bound:
    """What is made of constants is a constant."""
    if not is_constant(*parts) or isinstance(found, Constant):
        return found
    value = found.evaluate(None)[0]
    # Not every moment that Arrow has is one for Python.
    is_plain = value.is_valid and family_of(value.type) not in TEMPORAL
    return Constant(value.type, shown(value.as_py()) if is_plain else found.label, value)


def shown(value: object) -> str:
    """A constant as it stands in a predicate, for messages."""
    if isinstance(value, timedelta):
        return "a time span"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, bytes):
        return f"x'{value[:30].hex()}'"
    return str(value)[:60] if isinstance(value, Decimal) else repr(value)[:60]


def arithmetic(sign: str, left: Bound, right: Bound) -> Bound:
    """`left sign right`; InvalidPredicate if the types do not go together."""
    label = f"{left.label} {sign} {right.label}"
    label = label if len(label) <= 80 else f"the result of {sign}"
    if is_null(left) or is_null(right):
        return NULL
    families = {family_of(left.type), family_of(right.type)}
    if families <= NUMBERS:
        return _on_numbers(sign, label, left, right)
    if sign == "+" and family_of(right.type) in MOMENTS:
        left, right = right, left
    if sign in ("+", "-") and (found := _on_moments(sign, label, left, right)) is not None:
        return found
    hint = ""
    if families & (MOMENTS | {Family.TIME}):
        hint = "; write a length of time like INTERVAL '90' MINUTE"
    elif sign == "+" and Family.TEXT in families:
        hint = "; join text with ||"
    raise InvalidPredicate(
        f"{left.label} is {left.type} and {right.label} is {right.type}: {sign} does not go with them{hint}"
    )


def _on_numbers(sign: str, label: str, left: Bound, right: Bound) -> Bound:
    families = {family_of(left.type), family_of(right.type)}
    if sign == "/" or Family.FLOAT in families:
        kernel = {"/": kernels.divide, "%": kernels.modulo}.get(sign) or _KERNELS[sign]
        return applied(label, kernel, *(converted(part, pa.float64()) for part in (left, right)))
    if sign == "%":
        if Family.DECIMAL in families:
            raise InvalidPredicate(f"{label}: % takes whole numbers or floats; CAST the decimal AS DOUBLE")
        return applied(label, kernels.modulo, *(whole(part) for part in (left, right)))
    if families == {Family.INTEGER} and pa.uint64() not in (left.type, right.type):
        return applied(label, _KERNELS[sign], *(converted(part, pa.int64()) for part in (left, right)))
    return _on_decimals(sign, label, left, right)


def whole(part: Bound) -> Bound:
    """A whole number of 64 bits. Of those without sign the upper half has no place and is NULL."""
    if part.type == pa.uint64():
        return applied(part.label, lambda values: kernels.to_integer(values, "bigint"), part)
    return converted(part, pa.int64())


def _on_decimals(sign: str, label: str, left: Bound, right: Bound) -> Bound:
    """Exact: the result has all the digits there can be."""
    first, second = as_decimal(left.type), as_decimal(right.type)
    if sign == "*":
        digits, scale = first.precision + second.precision + 1, first.scale + second.scale
    else:
        scale = max(first.scale, second.scale)
        digits = max(first.precision - first.scale, second.precision - second.scale) + scale + 1
    kind = decimal_type(digits, scale)
    if kind is None:
        raise InvalidPredicate(f"{label} would have {digits} digits; at most 76 are possible, CAST one side AS DOUBLE")
    make = pa.decimal256 if pa.types.is_decimal256(kind) else pa.decimal128
    parts = (converted(part, make(of.precision, of.scale)) for part, of in ((left, first), (right, second)))
    return applied(label, _KERNELS[sign], *parts)


def _on_moments(sign: str, label: str, left: Bound, right: Bound) -> Bound | None:
    first, second = family_of(left.type), family_of(right.type)
    if first is Family.DATE and second is Family.INTEGER:
        return applied(label, lambda days, count: _shifted_days(sign, days, count), _dated(left), whole(right))
    if first in MOMENTS and second is Family.SPAN:
        beside = left.type if first is Family.TIMESTAMP else pa.timestamp("us", "UTC")
        kind = pa.timestamp(finer_unit(beside, right.type), beside.tz)
        span = pa.duration(kind.unit)
        return applied(label, _in_steps(sign, kind), converted(left, kind), converted(right, span))
    if first is Family.SPAN and second is Family.SPAN:
        kind = pa.duration(finer_unit(left.type, right.type))
        return applied(label, _in_steps(sign, kind), converted(left, kind), converted(right, kind))
    if sign == "-" and first is second is Family.DATE:
        days = (
            applied(part.label, lambda values: kernels.storage(values).cast(pa.int64()), _dated(part))
            for part in (left, right)
        )
        return applied(label, kernels.subtract, *days)
    if sign == "-" and first in MOMENTS and second in MOMENTS:
        kind = pa.timestamp(finer_unit(left.type, right.type))
        return applied(label, _in_steps("-", pa.duration(kind.unit)), converted(left, kind), converted(right, kind))
    return None


def _dated(part: Bound) -> Bound:
    return converted(part, pa.date32())


def _in_steps(sign: str, kind: pa.DataType) -> Callable[[Any, Any], Any]:
    """Reckon with the numbers that moments and time spans of one unit are stored as."""

    def kernel(left: Any, right: Any) -> Any:
        numbers = (
            pa.scalar(side.value, pa.int64()) if isinstance(side, pa.Scalar) else side.view(pa.int64())
            for side in (left, right)
        )
        return _KERNELS[sign](*numbers).view(kind)

    return kernel


def _shifted_days(sign: str, days: Any, count: Any) -> Any:
    days = pa.scalar(days.value, pa.int64()) if isinstance(days, pa.Scalar) else days.view(pa.int32()).cast(pa.int64())
    return kernels.days_to_date(_KERNELS[sign](days, count))
