"""The functions that a predicate may call: a table of names, what each takes and what it makes of it."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import InvalidPredicate
from mainstem.core.predicate import kernels
from mainstem.core.predicate.application import NULL, applied, whole
from mainstem.core.predicate.bound import Applied, Bound, Constant, Prefixed
from mainstem.core.predicate.comparison import as_moment, compare, is_null, unified
from mainstem.core.predicate.families import MOMENTS, NUMBERS, STRINGS, TEMPORAL, Family, family_of, storage_type

_TEXT: Final = frozenset((Family.TEXT,))
_WHOLE: Final = frozenset((Family.INTEGER,))
_CLOCKED: Final = frozenset((Family.TIMESTAMP, Family.TIME))
_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class Function:
    """A function: the families of each parameter, how many of them must be given, and how it is applied."""

    takes: tuple[frozenset[Family], ...]
    make: Callable[..., Bound]
    required: int = -1

    @property
    def at_least(self) -> int:
        return len(self.takes) if self.required < 0 else self.required


def call(name: str, parts: Sequence[Bound]) -> Bound:
    """A function of the table applied to values; InvalidPredicate says what it takes."""
    function = FUNCTIONS[name]
    check_count(name, len(parts), function.at_least, len(function.takes))
    for place, (part, families) in enumerate(zip(parts, function.takes, strict=False)):
        if family_of(part.type) not in families | {Family.NULL}:
            wanted = " or ".join(sorted(families)) + ("", " as its second value", " as its third value")[place]
            hint = "; CAST(... AS TEXT) reads it as UTF-8" if family_of(part.type) is Family.BINARY else ""
            raise InvalidPredicate(f"{name} takes {wanted}; {part.label} is {part.type}{hint}")
    return NULL if any(map(is_null, parts)) else function.make(*parts)


def coalesce(parts: Sequence[Bound]) -> Bound:
    """The first value that is there."""
    if not parts:
        raise InvalidPredicate("coalesce takes at least one value")
    parts = [part for part in parts if not is_null(part)]
    if not parts:
        return NULL
    moment = next((part for part in parts if family_of(part.type) in TEMPORAL), parts[0])
    parts = unified([as_moment(part, moment) for part in parts])
    return parts[0] if len(parts) == 1 else Applied(parts[0].type, "coalesce(...)", pc.coalesce, tuple(parts))


def nullif(part: Bound, other: Bound) -> Bound:
    """NULL where both are equal, else the first."""
    if is_null(part) or is_null(other):
        return part
    equal = compare("=", part, other)
    return Applied(part.type, "nullif(...)", _null_if, (equal, part))


def _null_if(equal: Any, values: Any) -> Any:
    return kernels.null_where(pc.fill_null(equal, False), values)


def _simple(kernel: Callable[..., Any], label: str) -> Callable[[Bound], Bound]:
    return lambda part: applied(f"{label}({part.label})"[:80], kernel, part)


def _lengthen(kernel: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: kernel(values).cast(pa.int64())


def _length(values: Any) -> Any:
    return pc.utf8_length(values) if pa.types.is_string(values.type) else pc.binary_length(values)


def _trimming(kernel: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda values: kernel(values, " ")


def _constant(name: str, part: Bound) -> Any:
    if not isinstance(part, Constant):
        raise InvalidPredicate(f"{name} takes a constant there; {part.label} is none")
    return part.scalar.as_py()


def _needle(name: str, part: Bound) -> bytes:
    value = _constant(name, part)
    return value.encode() if isinstance(value, str) else value


def _starts_with(part: Bound, prefix: Bound) -> Bound:
    return Prefixed(part, _needle("starts_with", prefix))


def _ends_with(part: Bound, suffix: Bound) -> Bound:
    needle = _needle("ends_with", suffix)
    return applied("ends_with(...)", lambda values: pc.ends_with(values, pattern=needle), part)


def _contains(part: Bound, inner: Bound) -> Bound:
    needle = _needle("contains", inner)
    return applied("contains(...)", lambda values: pc.match_substring(values, needle), part)


def _substring(part: Bound, start: Bound, length: Bound | None = None) -> Bound:
    first = _constant("substring", start)
    count = None if length is None else _constant("substring", length)
    if not 1 <= first < 1 << 31 or (count is not None and not 0 <= count < 1 << 31):
        raise InvalidPredicate("substring takes a place from 1 on and a length from 0 on: substring(name, 1, 3)")
    stop = None if count is None else first - 1 + count
    return applied("substring(...)", lambda values: pc.utf8_slice_codeunits(values, first - 1, stop), part)


def _round(part: Bound, digits: Bound | None = None) -> Bound:
    places = 0 if digits is None else _constant("round", digits)
    if abs(places) > _DIGITS_MAX:
        raise InvalidPredicate(f"round takes at most {_DIGITS_MAX} digits, not {places}")
    if family_of(part.type) is Family.INTEGER:
        if places < 0:
            raise InvalidPredicate("round leaves whole numbers as they are; it takes no negative digits for them")
        return part
    return _rounded("round", lambda values: pc.round(values, places, round_mode="half_towards_infinity"), part)


def _absolute(part: Bound) -> Bound:
    if family_of(part.type) is Family.INTEGER:
        if not pa.types.is_signed_integer(part.type):
            return part
        part = whole(part)
    return applied("abs(...)", kernels.absolute, part)


def _rounded(name: str, kernel: Callable[[Any], Any], part: Bound) -> Bound:
    if family_of(part.type) is Family.INTEGER:
        return part
    if family_of(part.type) is Family.DECIMAL:
        return applied(f"{name}(...)", lambda values: kernel(kernels.wider(values)), part)
    return applied(f"{name}(...)", kernel, part)


def _field_of_time(name: str, kernel: Callable[[Any], Any]) -> Callable[[Bound], Bound]:
    """A part of a moment, in UTC whatever the zone of its column."""

    def of(values: Any) -> Any:
        if pa.types.is_timestamp(values.type):
            values = values.view(storage_type(values.type)).view(pa.timestamp(values.type.unit))
        return kernel(values).cast(pa.int64())

    return lambda part: applied(f"{name}({part.label})"[:80], of, part)


FUNCTIONS: Final[dict[str, Function]] = {
    "abs": Function((NUMBERS,), _absolute),
    "ceil": Function((NUMBERS,), lambda part: _rounded("ceil", pc.ceil, part)),
    "contains": Function((STRINGS, STRINGS), _contains),
    "day": Function((MOMENTS,), _field_of_time("day", pc.day)),
    "ends_with": Function((STRINGS, STRINGS), _ends_with),
    "floor": Function((NUMBERS,), lambda part: _rounded("floor", pc.floor, part)),
    "hour": Function((_CLOCKED,), _field_of_time("hour", pc.hour)),
    "length": Function((STRINGS,), _simple(_lengthen(_length), "length")),
    "lower": Function((_TEXT,), _simple(pc.utf8_lower, "lower")),
    "ltrim": Function((_TEXT,), _simple(_trimming(pc.utf8_ltrim), "ltrim")),
    "minute": Function((_CLOCKED,), _field_of_time("minute", pc.minute)),
    "month": Function((MOMENTS,), _field_of_time("month", pc.month)),
    "octet_length": Function((STRINGS,), _simple(_lengthen(pc.binary_length), "octet_length")),
    "round": Function((NUMBERS, _WHOLE), _round, required=1),
    "rtrim": Function((_TEXT,), _simple(_trimming(pc.utf8_rtrim), "rtrim")),
    "second": Function((_CLOCKED,), _field_of_time("second", pc.second)),
    "starts_with": Function((STRINGS, STRINGS), _starts_with),
    "substring": Function((_TEXT, _WHOLE, _WHOLE), _substring, required=2),
    "trim": Function((_TEXT,), _simple(_trimming(pc.utf8_trim), "trim")),
    "upper": Function((_TEXT,), _simple(pc.utf8_upper, "upper")),
    "year": Function((MOMENTS,), _field_of_time("year", pc.year)),
}
ALIASES: Final = {
    "ceiling": "ceil",
    "char_length": "length",
    "len": "length",
    "prefix": "starts_with",
    "substr": "substring",
    "suffix": "ends_with",
}

_PARTS_OF_TIME: Final = "write year(x), month(x), day(x), hour(x), minute(x) or second(x)"
_AGGREGATE: Final = "a predicate looks at one record, without aggregates"
_PATTERN: Final = "write LIKE, or starts_with, ends_with, contains"
_MOMENT: Final = "write now()"
# What SQL has elsewhere, and what says the same here.
INSTEAD: Final = {
    **dict.fromkeys(("extract", "date_part", "datepart"), _PARTS_OF_TIME),
    **dict.fromkeys(("avg", "count", "max", "min", "sum"), _AGGREGATE),
    **dict.fromkeys(("regexp_matches", "regexp_like", "regexp", "rlike", "position", "strpos", "instr"), _PATTERN),
    **dict.fromkeys(("current_timestamp", "current_date", "current_time", "localtimestamp", "getdate"), _MOMENT),
    **dict.fromkeys(("ifnull", "nvl", "isnull"), "write coalesce(x, y)"),
    **dict.fromkeys(("if", "iff", "iif"), "write CASE WHEN x THEN y ELSE z END"),
    **dict.fromkeys(("any", "some", "all"), "write IN (...), or conditions with AND and OR"),
    "concat": "write x || y",
    "date_trunc": "write x >= DATE '2026-01-01' AND x < DATE '2026-02-01'",
    "left": "write substring(x, 1, count)",
}
_KNOWN: Final = sorted((*FUNCTIONS, "coalesce", "now", "nullif"))


def check_name(name: str) -> str:
    """The name of a function in the table; InvalidPredicate says what there is instead."""
    name = ALIASES.get(name, name)
    if name in _KNOWN:
        return name
    near = difflib.get_close_matches(name[:32], _KNOWN, 1)
    hint = INSTEAD.get(name) or (f"did you mean {near[0]}?" if near else f"there are {', '.join(_KNOWN)}")
    raise InvalidPredicate(f"there is no function {name[:64]!r}; {hint}")


def check_count(name: str, given: int, few: int, many: int) -> None:
    """InvalidPredicate if a function is given too few or too many values."""
    if not few <= given <= many:
        wanted = f"{few}" if few == many else f"{few} or {many}"
        raise InvalidPredicate(f"{name} takes {wanted} value{'' if wanted == '1' else 's'}, not {given}")
