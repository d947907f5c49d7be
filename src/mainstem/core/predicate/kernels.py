"""The kernels: what is done with columns of values, so that a row that fails is NULL and never fails the others.

They take Arrow arrays, or scalars for constants, and give arrays. Where Arrow has a kernel that raises on overflow it
is tried first, as nearly every batch passes; only a batch with such a row is looked at again with numpy.
"""

import re
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.layouts import FEW
from mainstem.core.predicate.families import Family, family_of, storage_type, unit_ns

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
# Whole text that is UTF-8, as a pattern over bytes: what Arrow would otherwise refuse the whole column for.
_UTF8: Final = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)
_DATE: Final = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_ZONE: Final = r"(?:Z|[+-](?:0[0-9]|1[0-4]):?[0-5][0-9])"
_MOMENT: Final = f"{_DATE}(?P<clock>[T ]{_CLOCK}(?P<zone>{_ZONE})?)?"
_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"

_BOUNDS: Final = {
    "tinyint": (-(1 << 7), (1 << 7) - 1),
    "smallint": (-(1 << 15), (1 << 15) - 1),
    "integer": (-(1 << 31), (1 << 31) - 1),
    "bigint": (_INT64_MIN, _INT64_MAX),
}


def storage(values: Any) -> Any:
    """Dates, times and time spans as the whole numbers that they are stored as."""
    kind = storage_type(values.type)
    return values if kind == values.type else values.view(kind)


def null_where(bad: Any, values: Any) -> Any:
    return pc.if_else(bad, pa.scalar(None, values.type), values)


# Comparison.


def compare(sign: str, left: Any, right: Any) -> Any:
    """Compare values of one type. Every NaN is equal to every other and greater than all else."""
    left, right = storage(left), storage(right)
    if not pa.types.is_floating(left.type):
        return _SIGNS[sign](left, right)
    if sign in ("<", "<="):
        return compare(_MIRRORED[sign], right, left)
    if sign == ">":
        # Not less or equal: also where the left is no number. That is right unless the right is none either.
        return pc.and_(pc.invert(pc.less_equal(left, right)), pc.invert(pc.is_nan(right)))
    if sign == ">=":
        return pc.or_(pc.greater_equal(left, right), pc.is_nan(left))
    equal = pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return equal if sign == "=" else pc.invert(equal)


def compare_constant(sign: str, values: Any, constant: Any) -> Any:
    """The same with a constant that is not NaN on the right: then only greater needs care."""
    values = storage(values)
    if sign in (">", ">=") and pa.types.is_floating(values.type):
        return pc.invert(_SIGNS["<=" if sign == ">" else "<"](values, constant))
    return _SIGNS[sign](values, constant)


def is_distinct(left: Any, right: Any) -> Any:
    one_is_null = pc.xor(pc.is_null(left), pc.is_null(right))
    return pc.coalesce(compare("<>", left, right), one_is_null)


_SIGNS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def mirrored(sign: str) -> str:
    """The sign that says the same with the sides exchanged."""
    return _MIRRORED[sign]


# Arithmetic. Whole numbers are 64 bits wide.


def _numbers(values: Any) -> Any:
    """Values for numpy; something harmless where there is none."""
    if isinstance(values, pa.Scalar):
        return np.int64(values.as_py()) if pa.types.is_integer(values.type) else np.float64(values.as_py())
    return pc.fill_null(values, 0).to_numpy(zero_copy_only=False)


def _careful(
    raising: Callable[[Any, Any], Any], wrapping: Callable[[Any, Any], Any], overflows: Callable[[Any, Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    def kernel(left: Any, right: Any) -> Any:
        if not pa.types.is_integer(left.type):
            return wrapping(left, right)
        try:
            return raising(left, right)
        except pa.ArrowInvalid:
            found = wrapping(left, right)
        with np.errstate(all="ignore"):
            bad = overflows(_numbers(left), _numbers(right), _numbers(found))
        return null_where(pa.array(bad), found)

    return kernel


def _product_overflows(left: Any, right: Any, found: Any) -> Any:
    # A product divided by a factor is the other one, unless it did not fit. -1 is apart: so divided, the lowest number
    # does not fit either.
    divisor = np.where((left == 0) | (left == -1), 1, left)
    return np.where(
        left == -1, right == _INT64_MIN, (left != 0) & ((found // divisor != right) | (found % divisor != 0))
    )


add: Final = _careful(pc.add_checked, pc.add, lambda left, right, found: ((left ^ found) & (right ^ found)) < 0)
subtract: Final = _careful(
    pc.subtract_checked, pc.subtract, lambda left, right, found: ((left ^ right) & (left ^ found)) < 0
)
multiply: Final = _careful(pc.multiply_checked, pc.multiply, _product_overflows)


def divide(left: Any, right: Any) -> Any:
    """The quotient of floats; NULL where the divisor is zero."""
    zero = pc.equal(right, 0.0)
    return pc.divide(left, null_where(zero, right))


def modulo(left: Any, right: Any) -> Any:
    """What a division leaves, with the sign of the left; NULL where the divisor is zero."""
    first, second = _numbers(left), _numbers(right)
    # Whatever is divided by -1 leaves what it leaves by 1; the lowest number could not be divided by it.
    harmless = np.where((second == 0) | ((second == -1) & pa.types.is_integer(left.type)), 1, second)
    with np.errstate(all="ignore"):
        found = pa.array(np.fmod(first, harmless))
    bad = pc.or_(pc.or_(pc.is_null(left), pc.is_null(right)), pc.equal(pc.fill_null(right, 0), 0))
    return null_where(bad, found)


def negative(values: Any) -> Any:
    if pa.types.is_integer(values.type):
        return subtract(pa.scalar(0, pa.int64()), values)
    return pc.negate(values)


def absolute(values: Any) -> Any:
    if pa.types.is_integer(values.type):
        return pc.if_else(pc.less(values, 0), negative(values), values)
    return pc.abs(values)


# Conversions. Each says what becomes of every value; text that does not say a value is NULL.


def convert(values: Any, to: pa.DataType) -> Any:
    """Values in a wider type of their family, or the common type of two. What does not fit is NULL."""
    kind = values.type
    if kind == to:
        return values
    family, target = family_of(kind), family_of(to)
    if target in (Family.DATE, Family.TIMESTAMP, Family.TIME, Family.SPAN) and family is not Family.NULL:
        return _rescaled(values, to)
    if target is Family.DECIMAL and kind == pa.uint64():
        return values.cast(pa.decimal128(20, 0)).cast(to)
    if target is Family.DECIMAL and family is Family.INTEGER:
        return values.cast(pa.int64()).cast(pa.decimal128(19, 0)).cast(to)
    # Not safe means: a whole number may become the nearest float.
    return values.cast(to, safe=target is not Family.FLOAT)


def _rescaled(values: Any, to: pa.DataType) -> Any:
    if pa.types.is_date64(values.type) and to == pa.date32():
        return to_date(values)
    numbers = storage(values).cast(pa.int64())
    factor = unit_ns(values.type) // unit_ns(to)
    if factor > 1:
        numbers = multiply(numbers, pa.scalar(factor, pa.int64()))
    return numbers.cast(storage_type(to)).view(to)


def to_integer(values: Any, name: str) -> Any:
    """Rounded to whole numbers: floats to even, decimals away from zero. What is out of range is NULL."""
    low, high = _BOUNDS[name]
    family = family_of(values.type)
    if family is Family.TEXT:
        return _from_whole(
            _matching(pc.utf8_trim(values, " "), r"[+-]?[0-9]{1,38}").cast(pa.decimal128(38, 0)), low, high
        )
    if family is Family.FLOAT:
        # The highest number is no float; the next one that is does not fit any more.
        rounded = pc.round(values.cast(pa.float64()), round_mode="half_to_even")
        fits = pc.and_(pc.greater_equal(rounded, float(low)), pc.less(rounded, float(high + 1)))
        return null_where(pc.invert(fits), rounded).cast(pa.int64())
    if family is Family.DECIMAL:
        whole = pc.round(wider(values), round_mode="half_towards_infinity")
        return _from_whole(whole, low, high)
    if family is Family.BOOLEAN:
        return values.cast(pa.int64())
    return _from_whole(convert(values, pa.decimal128(20, 0)) if values.type == pa.uint64() else values, low, high)


def _from_whole(values: Any, low: int, high: int) -> Any:
    kind = values.type
    if family_of(kind) is Family.INTEGER:
        values, kind = values.cast(pa.int64()), pa.int64()
    else:
        values = values.cast(pa.decimal256(76, kind.scale))
        kind = values.type
    bad = pc.or_(pc.less(values, pa.scalar(low).cast(kind)), pc.greater(values, pa.scalar(high).cast(kind)))
    return null_where(bad, values).cast(pa.int64())


def wider(values: Any) -> Any:
    """Decimals with room for one more digit: rounding may need it."""
    kind = values.type
    digits = min(kind.precision + 1, 76)
    return values.cast(pa.decimal128(digits, kind.scale) if digits <= 38 else pa.decimal256(digits, kind.scale))


def to_double(values: Any) -> Any:
    if family_of(values.type) is Family.TEXT:
        numbers = _matching(pc.utf8_trim(values, " "), _NUMBER).cast(pa.float64())
        return null_where(pc.is_inf(numbers), numbers)
    if family_of(values.type) is Family.BOOLEAN:
        return values.cast(pa.int64()).cast(pa.float64())
    return convert(values, pa.float64())


def to_text(values: Any) -> Any:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:  # some bytes are not UTF-8
        return null_where(pc.invert(pc.match_substring_regex(values, _UTF8)), values).cast(pa.string())


def to_boolean(values: Any) -> Any:
    if family_of(values.type) is Family.INTEGER:
        return pc.not_equal(values, 0)
    lowered = pc.utf8_lower(values)
    return pc.if_else(
        pc.equal(lowered, "true"), True, pc.if_else(pc.equal(lowered, "false"), False, pa.scalar(None, pa.bool_()))
    )


def to_date(values: Any) -> Any:
    if family_of(values.type) is Family.TEXT:
        return _matching(pc.utf8_trim(values, " "), _DATE).cast(pa.date32())
    if values.type == pa.date32():
        return values
    per_day = unit_ns(pa.date32()) // unit_ns(values.type)
    numbers = storage(values)
    # Towards the past, also before 1970.
    return days_to_date(pc.divide(subtract(numbers, _floor_remainder(numbers, per_day)), per_day))


def days_to_date(days: Any) -> Any:
    """Days since 1970 as dates; NULL where there is no such date."""
    fits = pc.and_(pc.greater_equal(days, -(1 << 31)), pc.less(days, 1 << 31))
    return null_where(pc.invert(fits), days).cast(pa.int32()).view(pa.date32())


def _floor_remainder(numbers: Any, step: int) -> Any:
    remainder = modulo(numbers, pa.scalar(step, pa.int64()))
    return pc.if_else(pc.less(remainder, 0), pc.add(remainder, step), remainder)


def to_time(values: Any) -> Any:
    moments = pc.binary_join_element_wise("1970-01-01", _matching(pc.utf8_trim(values, " "), _CLOCK), " ")
    return moments.cast(pa.timestamp("us")).view(pa.int64()).view(pa.time64("us"))


def to_timestamp(values: Any) -> Any:
    """Moments; text without a zone is UTC."""
    if family_of(values.type) is not Family.TEXT:
        return convert(values, pa.timestamp("us", "UTC")) if family_of(values.type) is Family.DATE else values
    if len(values) <= FEW:
        texts = [None if text is None else _complete(text) for text in values.to_pylist()]
        return pa.array(texts, pa.string()).cast(pa.timestamp("us", "UTC"))
    values = _matching(pc.utf8_trim(values, " "), _MOMENT)
    is_day = pc.equal(pc.binary_length(values), len("2026-01-31"))
    behind = pc.utf8_slice_codeunits(values, len("2026-01-31"), None)
    has_zone = reduce(pc.or_, (pc.match_substring(behind, sign) for sign in ("Z", "+", "-")))
    missing = pc.if_else(is_day, " 00:00Z", pc.if_else(has_zone, "", "Z"))
    return pc.binary_join_element_wise(values, missing, "").cast(pa.timestamp("us", "UTC"))


def to_moment(values: Any) -> Any:
    """The same of one constant, which is as fine as it is written: columns may be, too."""
    if family_of(values.type) is not Family.TEXT or (text := values[0].as_py()) is None:
        return to_timestamp(values)
    found = re.fullmatch(rf"(.*\.[0-9]{{6}})([0-9]{{1,3}})({_ZONE})?", text.strip(" "), re.ASCII)
    if found is None:
        return to_timestamp(values)
    whole = to_timestamp(pa.array([found[1] + (found[3] or "")]))
    nanoseconds = pa.scalar(int(found[2].ljust(3, "0")), pa.duration("ns"))
    try:
        return pc.add_checked(whole.cast(pa.timestamp("ns", "UTC")), nanoseconds)
    except pa.ArrowInvalid:  # so far away that there are no nanoseconds
        return pa.nulls(1, whole.type)


def _complete(text: str) -> str | None:
    """The same for one text: for few of them Arrow would take longer to prepare its work than to do it."""
    found = re.fullmatch(_MOMENT, text := text.strip(" "))
    if found is None or found["zone"]:
        return None if found is None else text
    return f"{text}Z" if found["clock"] else f"{text} 00:00Z"


def _matching(values: Any, pattern: str) -> Any:
    """Text as a whole of this form, NULL where it is not."""
    return null_where(pc.invert(_match(values, pattern)), values)


def _match(values: Any, pattern: str) -> Any:
    if len(values) > FEW:
        return pc.match_substring_regex(values, rf"\A(?:{pattern})\z")
    # See `_complete`.
    matches = re.compile(pattern).fullmatch
    return pa.array([None if text is None else matches(text) is not None for text in values.to_pylist()], pa.bool_())
