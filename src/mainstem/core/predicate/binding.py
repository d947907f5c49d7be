"""Binding: a tree and the columns there are, to a bound tree.

Names are found as they are stored; a name that is not there as written but once in other capitals is that column. Every
operation checks the types of what it is given and says so with the column's name, before any row is looked at.
"""

import difflib
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import InvalidPredicate
from mainstem.core.layouts import ARROW_ERRORS
from mainstem.core.limits import PREDICATE_JOINS_MAX
from mainstem.core.predicate import kernels
from mainstem.core.predicate.application import NULL, applied, arithmetic, folded, shown, whole
from mainstem.core.predicate.bound import And, Applied, Bound, Constant, IsNull, IsTruth, Not, Or, Value
from mainstem.core.predicate.comparison import (
    FORMS,
    NO_LISTS,
    as_moment,
    compare,
    converted,
    distinct,
    is_null,
    one_of,
    unified,
)
from mainstem.core.predicate.families import STRINGS, TEMPORAL, Family, decimal_type, family_of
from mainstem.core.predicate.functions import INSTEAD, call, check_count, check_name, coalesce, nullif
from mainstem.core.predicate.patterns import like
from mainstem.core.predicate.tree import Column, Expression, Literal, LiteralValue, Operation

_NAMES_SHOWN: Final = 20
_COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")


class Binder:
    """Binds one tree. One thread, used once."""

    def __init__(self, schema: pa.Schema, now_us: int) -> None:
        self._schema = schema
        self._now_us = now_us
        self._joins = 0

    def bind(self, expression: Expression) -> Bound:
        """The condition that an expression is; InvalidPredicate if it has no meaning for these columns."""
        try:
            return as_condition("a predicate", self._bind(expression))
        except ARROW_ERRORS as error:
            if isinstance(error, InvalidPredicate):
                raise
            raise InvalidPredicate(f"the predicate cannot be worked out: {str(error)[:200]}") from None

    def _bind(self, expression: Expression) -> Bound:
        if isinstance(expression, Column):
            return self._column(expression.path)
        if isinstance(expression, Literal):
            return constant_of(expression.value)
        # Of a function that is not there its values are not of interest.
        name = expression.name
        function = check_name(name.removesuffix("()")) if name.endswith("()") else ""
        parts = tuple(map(self._bind, expression.parts))
        return folded(self._call(function, parts) if function else self._operation(expression, parts), *parts)

    def _column(self, path: tuple[str, ...]) -> Bound:
        name = _found(path[0], self._schema.names, "there is no column", is_alone=len(path) == 1)
        kind, inside = self._schema.field(name).type, []
        for position, part in enumerate(path[1:], 1):
            above = ".".join(path[:position])
            if family_of(kind) is Family.MAP:
                raise InvalidPredicate(f"column {above!r} is {kind}; name the key of a map like {above}['{part}']")
            if family_of(kind) is not Family.STRUCT:
                raise InvalidPredicate(f"column {above!r} is {kind}; only a struct has fields such as {part!r}")
            names = [kind.field(index).name for index in range(kind.num_fields)]
            inside.append(names.index(_found(part, names, f"column {above!r} has no field")))
            kind = kind.field(inside[-1]).type
        return Value(_normal(kind), f"column {'.'.join(path)!r}", name, tuple(inside))

    def _operation(self, operation: Operation, parts: tuple[Bound, ...]) -> Bound:
        name = operation.name
        if name in _COMPARISONS:
            return compare(name, *parts)
        if name in _SIMPLE:
            return _SIMPLE[name](*parts)
        if name in ("and", "or"):
            conditions = tuple(as_condition(name.upper(), part) for part in parts)
            return And(conditions) if name == "and" else Or(conditions)
        if name == "in":
            return one_of(parts[0], parts[1:])
        if name in ("like", "ilike"):
            return _like(name, parts[0], parts[1], operation.detail)
        if name == "||":
            return self._joined(*parts)
        if name == "case":
            return _case(parts)
        assert name == "cast", name
        return cast(parts[0], operation.detail)

    def _joined(self, left: Bound, right: Bound) -> Bound:
        self._joins += 1
        if self._joins > PREDICATE_JOINS_MAX:
            raise InvalidPredicate(f"more than {PREDICATE_JOINS_MAX} times || in one predicate")
        for part in left, right:
            if family_of(part.type) not in STRINGS | {Family.NULL}:
                raise InvalidPredicate(f"|| joins text; {part.label} is {part.type}; CAST(... AS TEXT) may help")
        if is_null(left) or is_null(right):
            return NULL
        return applied("the result of ||", _join, *unified((left, right)))

    def _call(self, name: str, parts: tuple[Bound, ...]) -> Bound:
        if name == "coalesce":
            return coalesce(parts)
        if name == "nullif":
            check_count(name, len(parts), 2, 2)
            return nullif(*parts)
        if name == "now":
            check_count(name, len(parts), 0, 0)
            return Constant(_TIMESTAMP, "now()", pa.scalar(self._now_us, _TIMESTAMP))
        return call(name, parts)


def as_condition(what: str, part: Bound) -> Bound:
    """A value as a condition: it must be a boolean, or NULL."""
    if is_null(part):
        return Constant(pa.bool_(), "NULL", pa.scalar(None, pa.bool_()))
    if family_of(part.type) is not Family.BOOLEAN:
        raise InvalidPredicate(f"{what} needs conditions; {part.label} is {part.type}; compare it with a value")
    return part


def constant_of(value: LiteralValue) -> Bound:
    """A literal as a constant of the type that its form says."""
    if value is None:
        return NULL
    kind: pa.DataType | None = None
    if isinstance(value, timedelta):
        kind = pa.duration("us")
    elif isinstance(value, bytes):
        kind = pa.binary()
    elif isinstance(value, Decimal) or (type(value) is int and not -(1 << 63) <= value < 1 << 63):
        number = Decimal(value)
        scale = max(0, -int(number.as_tuple().exponent))
        kind = decimal_type(max(len(number.as_tuple().digits), scale + 1), scale)
        value = number
    scalar = pa.scalar(value, kind)
    return Constant(scalar.type, shown(value), scalar)


def cast(part: Bound, to: str) -> Bound:
    """CAST: NULL where a value cannot be had; InvalidPredicate if that is so for a constant."""
    label = f"CAST({part.label} AS {to.upper()})"[:80]
    if is_null(part):
        return NULL
    families, kernel = _CASTS[to]
    if family_of(part.type) not in families:
        wanted = " or ".join(sorted(families))
        raise InvalidPredicate(f"{part.label} is {part.type} and cannot be cast to {to}, only {wanted} can")
    if isinstance(part, Constant) and kernel is kernels.to_timestamp:
        kernel = kernels.to_moment
    found = applied(label, kernel, part)
    if is_null(found):
        hint = f"; write it like '{FORMS[to]}'" if to in FORMS else ""
        raise InvalidPredicate(f"{part.label} cannot be read as {to}{hint}")
    return found


def _found(name: str, names: Sequence[str], missing: str, *, is_alone: bool = False) -> str:
    """The name as it is stored. One that stands alone may be meant for something else than a column."""
    if name in names:
        return name
    alike = [other for other in names if other.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise InvalidPredicate(f"{missing} {name!r}; {' and '.join(map(repr, alike))} differ in capitals only")
    # Few and short enough to be compared at once, whoever chose them.
    near = difflib.get_close_matches(name[:32], [other for other in names if len(other) <= 32][:64], 1)
    shown = ", ".join(list(names)[:_NAMES_SHOWN])
    hint = f"did you mean {near[0]!r}?" if near else f"there are {shown}{', ...' if len(names) > _NAMES_SHOWN else ''}"
    if is_alone and name.lower() in INSTEAD:
        hint = INSTEAD[name.lower()]
    elif is_alone and not near:
        hint = f"text stands in single quotes; {hint}"
    raise InvalidPredicate(f"{missing} {name[:255]!r}; {hint}")


def _normal(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is looked at, where it is not its own."""
    if family_of(kind) is Family.DECIMAL and kind.scale < 0:
        raise InvalidPredicate(f"decimals with a negative scale, as {kind}, cannot be used in a predicate")
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind


def _not(part: Bound) -> Bound:
    return Not(as_condition("NOT", part))


def _truth(part: Bound, truth: bool) -> Bound:
    return IsTruth(as_condition(f"IS {str(truth).upper()}", part), truth)


def _negative(part: Bound) -> Bound:
    if is_null(part):
        return NULL
    family = family_of(part.type)
    if family is Family.INTEGER:
        if part.type == pa.uint64():
            return arithmetic("-", constant_of(0), part)
        return applied("the negative of a value", kernels.negative, whole(part))
    if family in (Family.FLOAT, Family.DECIMAL):
        return applied("the negative of a value", kernels.negative, part)
    raise InvalidPredicate(f"- takes a number; {part.label} is {part.type}")


def _lookup(part: Bound, key: Bound) -> Bound:
    if is_null(part) or is_null(key):
        return NULL
    if family_of(part.type) is not Family.MAP:
        hint = f"; {NO_LISTS}" if family_of(part.type) is Family.LIST else ""
        raise InvalidPredicate(f"{part.label} is {part.type}; only a map has keys in [ ]{hint}")
    if not isinstance(key, Constant):
        raise InvalidPredicate(f"{part.label}: a key in [ ] must be a constant")
    wanted = _key_scalar(part, key)
    # Of a key that occurs twice the last one counts, as in the headers of a record.
    found = applied(
        f"{part.label}[{key.label}]"[:80], lambda values: pc.map_lookup(values, wanted, occurrence="last"), part
    )
    return converted(found, _normal(found.type))


def _key_scalar(part: Bound, key: Constant) -> Any:
    kind = part.type.key_type
    try:
        if family_of(kind) is family_of(key.type) or {family_of(kind), family_of(key.type)} <= STRINGS:
            return key.scalar.cast(kind)
    except ARROW_ERRORS:
        pass
    raise InvalidPredicate(f"the keys of {part.label} are {kind}, and {key.label} is {key.type}")


def _like(name: str, part: Bound, pattern: Bound, escape: str) -> Bound:
    allowed = STRINGS if name == "like" else {Family.TEXT}
    if is_null(part) or is_null(pattern):
        return NULL
    if family_of(part.type) not in allowed:
        raise InvalidPredicate(f"{name.upper()} takes text; {part.label} is {part.type}")
    if not isinstance(pattern, Constant) or family_of(pattern.type) is not Family.TEXT:
        raise InvalidPredicate(f"the pattern of {name.upper()} must be a constant text, not {pattern.label}")
    text = pattern.scalar.as_py()
    if name == "ilike":
        part = applied(f"lower({part.label})"[:80], pc.utf8_lower, part)
        text, escape = (pc.utf8_lower(pa.scalar(each)).as_py() for each in (text, escape))
    return like(part, text, escape)


def _join(left: Any, right: Any) -> Any:
    return pc.binary_join_element_wise(left, right, b"" if pa.types.is_binary(left.type) else "")


def _case(parts: tuple[Bound, ...]) -> Bound:
    conditions = [as_condition("CASE WHEN", part) for part in parts[:-1:2]]
    results = [*parts[1:-1:2], parts[-1]]
    if all(map(is_null, results)):
        return NULL
    moment = next((part for part in results if family_of(part.type) in TEMPORAL), results[0])
    results = list(unified([as_moment(part, moment) for part in results]))
    return Applied(results[0].type, "the result of CASE", _choose, (*conditions, *results))


def _choose(*values: Any) -> Any:
    count = len(values) // 2
    found = values[-1]
    for condition, result in zip(reversed(values[:count]), reversed(values[count:-1]), strict=True):
        found = pc.if_else(pc.fill_null(condition, False), result, found)
    return found


_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_SIMPLE: Final[dict[str, Callable[..., Bound]]] = {
    "not": _not,
    "is null": IsNull,
    "is true": lambda part: _truth(part, True),
    "is false": lambda part: _truth(part, False),
    "is distinct from": distinct,
    "is not distinct from": lambda left, right: Not(distinct(left, right)),
    "+": lambda left, right: arithmetic("+", left, right),
    "-": lambda left, right: arithmetic("-", left, right),
    "*": lambda left, right: arithmetic("*", left, right),
    "/": lambda left, right: arithmetic("/", left, right),
    "%": lambda left, right: arithmetic("%", left, right),
    "negative": _negative,
    "[]": _lookup,
}
_WHOLES: Final = frozenset((Family.BOOLEAN, Family.INTEGER, Family.DECIMAL, Family.FLOAT, Family.TEXT))


def _to_whole(name: str) -> Callable[[Any], Any]:
    return lambda values: kernels.to_integer(values, name)


# What may be cast to what, and how.
_CASTS: Final[dict[str, tuple[frozenset[Family], Callable[[Any], Any]]]] = {
    "boolean": (frozenset((Family.BOOLEAN, Family.INTEGER, Family.TEXT)), kernels.to_boolean),
    **{name: (_WHOLES, _to_whole(name)) for name in ("tinyint", "smallint", "integer", "bigint")},
    "double": (_WHOLES, kernels.to_double),
    "text": (frozenset((Family.BOOLEAN, Family.INTEGER, Family.TEXT, Family.BINARY)), kernels.to_text),
    "binary": (STRINGS, lambda values: values.cast(pa.binary())),
    "date": (frozenset((Family.DATE, Family.TIMESTAMP, Family.TEXT)), kernels.to_date),
    "time": (frozenset((Family.TEXT,)), kernels.to_time),
    "timestamp": (frozenset((Family.DATE, Family.TIMESTAMP, Family.TEXT)), kernels.to_timestamp),
}
