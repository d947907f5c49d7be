"""Pruning: what a condition can come to, knowing only the ranges of the columns.

Every condition is asked which of true, false and unknown it may be for some row. The answer may name too many, never
too few: a batch is left out only if no row of it can make the predicate true. With three outcomes kept apart NOT costs
nothing: it exchanges two of them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainstem.core.predicate.bound import (
    And,
    Bound,
    Compared,
    Constant,
    IsNull,
    IsTruth,
    Not,
    OneOf,
    Or,
    Prefixed,
    Settled,
    Value,
)

if TYPE_CHECKING:
    from mainstem.core.statistics import Range


class Outcomes(NamedTuple):
    """What a condition may be, for at least one row."""

    true: bool
    false: bool
    unknown: bool


ANY: Final = Outcomes(True, True, True)


def outcomes(condition: Bound, ranges: "Mapping[str, Range]") -> Outcomes:
    match condition:
        case Constant():
            value = condition.scalar.as_py()
            return Outcomes(value is True, value is False, value is None)
        case And():
            return _all(condition.parts, ranges)
        case Or():
            # By De Morgan, whose laws hold for three values too.
            true, false, unknown = _all(tuple(map(Not, condition.parts)), ranges)
            return Outcomes(false, true, unknown)
        case Not():
            true, false, unknown = outcomes(condition.part, ranges)
            return Outcomes(false, true, unknown)
        case IsTruth():
            true, false, unknown = outcomes(condition.part, ranges)
            return (
                Outcomes(true, false or unknown, False) if condition.truth else Outcomes(false, true or unknown, False)
            )
        case IsNull():
            if (known := _range(condition.part, ranges)) is None:
                return Outcomes(True, True, False)
            return Outcomes(known.has_null or known.is_null, not known.is_null, False)
        case Compared() | OneOf() | Prefixed() | Settled():
            return _of_values(condition, ranges)
        case Value():
            return _of_booleans(_range(condition, ranges))
    return ANY


def indexed(condition: Bound) -> frozenset[str]:
    """The columns of which a filter that says a value is not there could rule a batch out."""
    match condition:
        case Compared(sign="=", part=Value(inside=(), column=name)) | OneOf(part=Value(inside=(), column=name)):
            return frozenset((name,))
        case And():
            return frozenset().union(*map(indexed, condition.parts))
        case Or():
            each = list(map(indexed, condition.parts))
            return frozenset().union(*each) if all(each) else frozenset()
        case IsTruth(truth=True):
            return indexed(condition.part)
    return frozenset()


def _all(parts: tuple[Bound, ...], ranges: "Mapping[str, Range]") -> Outcomes:
    true, false, unknown = True, False, False
    for part in parts:
        found = outcomes(part, ranges)
        if not (found.true or found.unknown):
            return Outcomes(False, True, False)
        true, false, unknown = true and found.true, false or found.false, unknown or found.unknown
    return Outcomes(true, false, unknown)


def _range(part: Bound, ranges: "Mapping[str, Range]") -> "Range | None":
    """What is known of a value. Fields inside of columns have no ranges."""
    return ranges.get(part.column) if isinstance(part, Value) and not part.inside else None


def _of_booleans(known: "Range | None") -> Outcomes:
    if known is None:
        return ANY
    if known.is_null:
        return Outcomes(False, False, True)
    return Outcomes(known.high is None or bool(known.high), known.low is None or not known.low, known.has_null)


def _of_values(condition: Compared | OneOf | Prefixed | Settled, ranges: "Mapping[str, Range]") -> Outcomes:
    if (known := _range(condition.part, ranges)) is None:
        return Outcomes(condition.outcome, not condition.outcome, True) if isinstance(condition, Settled) else ANY
    if known.is_null:
        return Outcomes(False, False, True)
    if isinstance(condition, Settled):
        return Outcomes(condition.outcome, not condition.outcome, known.has_null)
    if isinstance(condition, Prefixed):
        true, false = _prefixed(condition.prefix, known)
    elif isinstance(condition, OneOf):
        each = [_compared("=", constant, known) for constant in condition.constants]
        true, false = any(found[0] for found in each), all(found[1] for found in each)
    else:
        true, false = _compared(condition.sign, condition.constant, known)
    return Outcomes(true, false, known.has_null)


def _compared(sign: str, constant: Any, known: "Range") -> tuple[bool, bool]:
    """Whether a comparison can be true, and false, for a value of the range. NaN is above everything."""
    low, high = known.low, known.high
    above = isinstance(constant, float) and known.has_nan
    if sign in ("=", "<>"):
        can_equal = not (_is_less(constant, low) or _is_less(high, constant)) and _may_contain(constant, known)
        can_differ = above or low is None or high is None or low != constant or high != constant
        return (can_equal, can_differ) if sign == "=" else (can_differ, can_equal)
    if sign in ("<", ">="):
        less, not_less = low is None or low < constant, above or high is None or high >= constant
        return (less, not_less) if sign == "<" else (not_less, less)
    greater, not_greater = above or high is None or high > constant, low is None or low <= constant
    return (greater, not_greater) if sign == ">" else (not_greater, greater)


def _is_less(one: Any, other: Any) -> bool:
    return one is not None and other is not None and bool(one < other)


def _may_contain(constant: Any, known: "Range") -> bool:
    if known.may_contain is None:
        return True
    if isinstance(constant, float) and constant == 0.0:
        return bool(known.may_contain(0.0) or known.may_contain(-0.0))
    return bool(known.may_contain(constant))


def _prefixed(prefix: bytes, known: "Range") -> tuple[bool, bool]:
    size = len(prefix)
    low = None if known.low is None else known.low[:size]
    high = None if known.high is None else known.high[:size]
    can = not (_is_less(prefix, low) or _is_less(high, prefix))
    return can, low != prefix or high != prefix
