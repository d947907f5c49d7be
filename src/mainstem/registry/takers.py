"""Takers: what a column of each type takes from Python, and the form in which it is put into an Arrow array.

A taker is made for a field once and called for every value. It returns the *stored form*: numbers, texts, bytes and
decimals as they are; dates, times and durations as whole numbers in the unit of the column; a struct as a dict, a map
as a list of pairs. What does not fit is a `Misfit` with the path of the field, told from the innermost field outwards.

Times are taken as Python's own objects, as ISO 8601 text, or as whole numbers in the unit of the column. Python's
objects always count microseconds: what is finer than the unit of the column is cut off. Nothing else is made to fit by
losing something. What `formats` writes as JSON is taken back, `"NaN"` and `"Infinity"` for numbers included.
"""

import base64
import binascii
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from numbers import Real
from operator import index as as_index
from typing import Any, Final

import msgspec
import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.plain import one_line
from mainstem.core.schema import aliases_of, default_of

Taker = Callable[[Any], Any]
_TEXT_CHARS_SHOWN: Final = 40
_TYPE_CHARS_SHOWN: Final = 200
_UNITS_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_SECONDS: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_MAX: Final = date.max.toordinal() - _EPOCH_DAY
_DAY_MIN: Final = date.min.toordinal() - _EPOCH_DAY
# As far as half way to the next number that a float32 does not have.
_FLOAT32_BOUND: Final = (2 - 2**-24) * 2.0**127
MISSING: Final = object()


class Misfit(Exception):
    """A value that a field cannot take; becomes a SchemaMismatch or a bad row. `path` grows on the way out."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def inside(self, outer: str) -> "Misfit":
        """The same, seen from one level further out."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return type(self)(self.reason, f"{outer}{joint}{self.path}")


def taker_of(field: pa.Field) -> Taker:
    """What takes the values of a field, nulls included."""
    take = _taker_of_type(field.type)
    if field.nullable:
        return lambda value: None if value is None else take(value)
    kind = _text_of(field.type)

    def take_present(value: Any) -> Any:
        if value is None:
            raise Misfit(f"must be {kind}, not null")
        return take(value)

    return take_present


class FieldsTaker:
    """Takes the fields of a row, or of a struct, from a mapping: in the order of the fields, by name or alias.

    A field that is missing has its default, else null; one that is unknown is refused with the nearest name.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.names = [field.name for field in fields]
        self.takers = [taker_of(field) for field in fields]
        self.defaults = [_default_of(field, take) for field, take in zip(fields, self.takers, strict=True)]
        self._types = [_text_of(field.type) for field in fields]
        self._places = {name: place for place, name in enumerate(self.names)}
        self._aliases: dict[str, str] = {}
        for field in fields:
            for alias in aliases_of(field):
                if alias not in self._places:
                    self._aliases.setdefault(alias, field.name)

    def take(self, row: Mapping[str, Any]) -> list[Any]:
        found: Mapping[Any, Any] = row
        if row.keys() - self._places.keys():
            given, items = list(row), list(row.values())
            found = {self.names[place]: items[at] for place, at in self.places_of(given).items()}
        values: list[Any] = []
        for place, name in enumerate(self.names):
            value = found.get(name, MISSING)
            if value is MISSING:
                values.append(self.default(place))
                continue
            try:
                values.append(self.takers[place](value))
            except Misfit as misfit:
                raise misfit.inside(name) from None
        return values

    def places_of(self, given: Sequence[Any]) -> dict[int, int]:
        """For each field that is given, by its name or an alias, the place among those given."""
        found: dict[int, int] = {}
        for at, other in enumerate(given):
            name = self._aliases.get(other, other) if isinstance(other, str) else ""
            if name not in self._places:
                raise Misfit(unknown_field(other, [*self.names, *self._aliases]), str(other)[:_TEXT_CHARS_SHOWN])
            if self._places[name] in found:
                raise Misfit(f"is given twice, once as {other!r}", name)
            found[self._places[name]] = at
        return found

    def default(self, place: int) -> Any:
        """The stored form of what a field has that is not given; Misfit if it must be given."""
        default = self.defaults[place]
        if default is MISSING:
            raise Misfit(f"must be {self._types[place]}, and is missing", self.names[place])
        return default


def unknown_field(name: object, known: Iterable[str]) -> str:
    """Why a field is refused, with the name that was meant, if one is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.7)
    return "is not a field of the schema" + (f"; did you mean {near[0]!r}?" if near else "")


def _default_of(field: pa.Field, take: Taker) -> Any:
    """The stored form of what a missing field has; MISSING if it must not be missing."""
    has_default, default = default_of(field)
    if not has_default:
        return None if field.nullable else MISSING
    try:
        return take(default)
    except Misfit as misfit:
        path = misfit.inside(field.name).path
        raise InvalidSchema(f"column {path!r}: its default {misfit.reason}") from None


def described(value: Any) -> str:
    """A value in the words of an error."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = value[:_TEXT_CHARS_SHOWN]
        return f"text {shown!r}" + ("..." if len(value) > len(shown) else "")
    if isinstance(value, int):
        # A number of a million digits takes minutes to write down.
        return f"number {value}" if value.bit_length() <= 256 else "a huge number"
    if isinstance(value, float | Decimal):
        return f"number {str(value)[:_TEXT_CHARS_SHOWN]}"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return type(value).__name__


def _text_of(kind: pa.DataType) -> str:
    """A type in the words of an error. All of a struct may be half a megabyte, and an error may come for every row."""
    return one_line(str(kind), _TYPE_CHARS_SHOWN)


def _refuse(kind: object, value: Any, hint: str = "") -> Misfit:
    return Misfit(f"must be {kind}, not {described(value)}" + (f"; {hint}" if hint else ""))


def _taker_of_type(kind: pa.DataType) -> Taker:
    for is_kind, make in _TAKERS:
        if is_kind(kind):
            return make(kind)
    raise AssertionError(f"a schema has no columns of {kind}")


# ---------------------------------------------------------------------------------------------------- plain values


def _bool_taker(kind: pa.DataType) -> Taker:
    def take(value: Any) -> Any:
        if value is True or value is False:
            return value
        raise _refuse(kind, value)

    return take


def int_bounds(kind: pa.DataType) -> tuple[int, int]:
    """The lowest and the highest number of an integer type."""
    if pa.types.is_signed_integer(kind):
        return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
    return 0, (1 << kind.bit_width) - 1


def _int_taker(kind: pa.DataType) -> Taker:
    low, high = int_bounds(kind)

    def take(value: Any) -> Any:
        number = _whole(kind, value)
        if low <= number <= high:
            return number
        raise _refuse(kind, value, f"that is from {low} to {high}")

    return take


def _whole(kind: object, value: Any) -> int:
    """A whole number of any kind, numpy's too; a bool is none."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise _refuse(kind, value)
    try:
        return as_index(value)
    except TypeError:
        raise _refuse(kind, value) from None


# How JSON, which has no numbers for these, says them.
NOT_A_NUMBER: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _float_taker(kind: pa.DataType) -> Taker:
    bound = _FLOAT32_BOUND if pa.types.is_float32(kind) else math.inf

    def take(value: Any) -> Any:
        if type(value) is str and value in NOT_A_NUMBER:
            return NOT_A_NUMBER[value]
        if isinstance(value, bool) or not isinstance(value, Real | Decimal):
            raise _refuse(kind, value)
        try:
            number = float(value)
            is_exact = math.isfinite(number) or value == number or value != value
        except (OverflowError, ArithmeticError, ValueError):  # a signalling NaN is one of these
            raise _refuse(kind, value, "it is too large") from None
        if abs(number) < bound or (is_exact and not math.isfinite(number)):
            return number
        raise _refuse(kind, value, "it is too large")

    return take


def _string_taker(kind: pa.DataType) -> Taker:
    def take(value: Any) -> Any:
        if not isinstance(value, str):
            raise _refuse(kind, value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Misfit(f"must be {kind}, and {value[:_TEXT_CHARS_SHOWN]!r} is not Unicode text") from None
        # Not `str(value)`: an Enum of texts has another text for people.
        return str.__str__(value) if type(value) is not str else value

    return take


def _binary_taker(kind: pa.DataType) -> Taker:
    """Bytes; or text, which stands for its UTF-8; or, from JSON, `{"base64": "..."}`."""

    def take(value: Any) -> Any:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise Misfit(f"must be {kind}, and {value[:_TEXT_CHARS_SHOWN]!r} is not Unicode text") from None
        if isinstance(value, Mapping) and value.keys() == {"base64"}:
            try:
                return base64.b64decode(value["base64"], validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise Misfit("is called base64 and is not") from None
        raise _refuse(kind, value)

    return take


def _fixed_binary_taker(kind: pa.DataType) -> Taker:
    take_bytes, width = _binary_taker(kind), kind.byte_width

    def take(value: Any) -> Any:
        found = take_bytes(value)
        if len(found) != width:
            raise Misfit(f"must be {width} bytes, not {len(found)}")
        return found

    return take


_NUMBER_TEXT: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?", re.ASCII)
_EXACT: Final = Context(prec=90, traps=[Inexact, InvalidOperation])


def _decimal_taker(kind: pa.DataType) -> Taker:
    precision, scale = kind.precision, kind.scale
    step = Decimal(1).scaleb(-scale)

    def take(value: Any) -> Any:
        number = _as_decimal(kind, value)
        if not number:
            return Decimal(0).quantize(step, context=_EXACT)
        if not number.is_finite() or number.adjusted() >= precision - scale:
            raise _refuse(kind, value, f"it has more than {precision - scale} digits before the point")
        try:
            return number.quantize(step, context=_EXACT)
        except (Inexact, InvalidOperation):
            raise _refuse(kind, value, f"it has more than {scale} digits after the point") from None

    return take


def _as_decimal(kind: pa.DataType, value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, str):
        if not _NUMBER_TEXT.fullmatch(value):
            raise _refuse(kind, value)
        return Decimal(value)
    if isinstance(value, float):
        raise _refuse(kind, value, "a float is not exact: give a Decimal, or text")
    number = _whole(kind, value)
    if number.bit_length() > 512:
        raise _refuse(kind, value)
    return Decimal(number)


# ----------------------------------------------------------------------------------------------------------- times

_DATE_TEXT: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME_TEXT: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_TIMESTAMP_TEXT: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?)?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)


def time_bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """The stored numbers that Python, and most readers, can show: the years 1 to 9999; None for other types."""
    if pa.types.is_date32(kind):
        return _DAY_MIN, _DAY_MAX
    if pa.types.is_date64(kind):
        return _DAY_MIN * _DAY_SECONDS * 1_000, _DAY_MAX * _DAY_SECONDS * 1_000
    if pa.types.is_time(kind):
        return 0, _DAY_SECONDS * _UNITS_PER_SECOND[kind.unit] - 1
    if pa.types.is_timestamp(kind):
        per_second = _UNITS_PER_SECOND[kind.unit]
        low, high = _DAY_MIN * _DAY_SECONDS * per_second, (_DAY_MAX + 1) * _DAY_SECONDS * per_second - 1
        return max(low, -(1 << 63)), min(high, (1 << 63) - 1)
    if pa.types.is_duration(kind):
        # As long as Python's own; far less than 64 bits hold but for nanoseconds.
        high = 999_999_999 * _DAY_SECONDS * _UNITS_PER_SECOND[kind.unit]
        return max(-high, -(1 << 63)), min(high, (1 << 63) - 1)
    return None


def _time_taker(kind: pa.DataType) -> Taker:
    """Takes dates, times of day, points in time or durations: the counted form of each, if it is in bounds."""
    bounds = time_bounds(kind)
    assert bounds is not None
    low, high = bounds
    count = next(count for is_kind, count in _COUNTERS if is_kind(kind))
    day = _DAY_SECONDS * 1_000 if pa.types.is_date64(kind) else 1

    def take(value: Any) -> Any:
        number = value if type(value) is int else count(kind, value)
        if not low <= number <= high:
            raise _refuse(kind, value, "it is out of range")
        if number % day:
            raise _refuse(kind, value, "it is no whole day")
        return number

    return _with_utc(take) if pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit == "us" else take


def _with_utc(general: Taker) -> Taker:
    """The same taker, faster for what most programs have: a datetime in UTC, for a column of microseconds."""

    def take(value: Any) -> Any:
        if type(value) is datetime and value.tzinfo is UTC:
            delta = value - _EPOCH
            return (delta.days * _DAY_SECONDS + delta.seconds) * 1_000_000 + delta.microseconds
        return general(value)

    return take


def _count_days(kind: pa.DataType, value: Any) -> int:
    if isinstance(value, str):
        try:
            value = _match(_DATE_TEXT, kind, value, lambda *parts: date(*map(int, parts)))
        except ValueError:
            raise _refuse(kind, value) from None
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value.toordinal() - _EPOCH_DAY) * (_DAY_SECONDS * 1_000 if pa.types.is_date64(kind) else 1)
    return _whole(kind, value)


def _count_time(kind: pa.DataType, value: Any) -> int:
    if isinstance(value, str):
        hour, minute, second, fraction = _match(_TIME_TEXT, kind, value, lambda *parts: parts)
        if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
            raise _refuse(kind, value)
        seconds = (int(hour) * 60 + int(minute)) * 60 + int(second or 0)
        return _in_unit(seconds, _nanoseconds(kind, value, fraction), kind.unit)
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise _refuse(kind, value, "a time of day has no time zone")
        return _in_unit((value.hour * 60 + value.minute) * 60 + value.second, value.microsecond * 1_000, kind.unit)
    return _whole(kind, value)


def _count_timestamp(kind: pa.DataType, value: Any) -> int:
    if isinstance(value, str):
        return _count_timestamp_text(kind, value)
    if isinstance(value, datetime):
        if (value.tzinfo is None) != (kind.tz is None):
            raise _refuse(kind, value, _zone_hint(kind))
        delta = (value.replace(tzinfo=UTC) if value.tzinfo is None else value) - _EPOCH
        nanoseconds = delta.microseconds * 1_000 + int(getattr(value, "nanosecond", 0))
        return _in_unit(delta.days * _DAY_SECONDS + delta.seconds, nanoseconds, kind.unit)
    return _whole(kind, value)


def _count_timestamp_text(kind: pa.DataType, text: str) -> int:
    year, month, day, hour, minute, second, fraction, zone = _match(_TIMESTAMP_TEXT, kind, text, lambda *parts: parts)
    if (zone is None) != (kind.tz is None):
        raise _refuse(kind, text, _zone_hint(kind))
    try:
        whole = [int(part or 0) for part in (year, month, day, hour, minute, second)]
        delta = datetime(*whole, tzinfo=UTC) - _EPOCH  # type: ignore[arg-type, misc]
    except ValueError:
        raise _refuse(kind, text) from None
    seconds = delta.days * _DAY_SECONDS + delta.seconds - _zone_seconds(kind, text, zone)
    return _in_unit(seconds, _nanoseconds(kind, text, fraction), kind.unit)


def _zone_seconds(kind: pa.DataType, text: str, zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise _refuse(kind, text)
    return (hours * 60 + minutes) * (-60 if zone[0] == "-" else 60)


def _zone_hint(kind: pa.DataType) -> str:
    return "it has a time zone, the column has none" if kind.tz is None else "it needs a time zone, such as Z"


def _count_duration(kind: pa.DataType, value: Any) -> int:
    if isinstance(value, str):
        try:
            value = msgspec.convert(value, timedelta)
        except msgspec.ValidationError:
            raise _refuse(kind, value, "write ISO 8601, such as PT1.5S") from None
    if isinstance(value, timedelta):
        return _in_unit(value.days * _DAY_SECONDS + value.seconds, value.microseconds * 1_000, kind.unit)
    return _whole(kind, value)


def _match(pattern: re.Pattern[str], kind: pa.DataType, text: str, made: Callable[..., Any]) -> Any:
    found = pattern.fullmatch(text)
    if found is None:
        raise _refuse(kind, text, "write it as ISO 8601 has it")
    return made(*found.groups())


def _nanoseconds(kind: pa.DataType, text: str, fraction: str | None) -> int:
    """What stands behind the point of a second. Written digits are meant: they must have a place in the column."""
    found = int(fraction.ljust(9, "0")) if fraction else 0
    if found % (1_000_000_000 // _UNITS_PER_SECOND[kind.unit]):
        raise _refuse(kind, text, "it has more digits than the column")
    return found


def _in_unit(seconds: int, nanoseconds: int, unit: str) -> int:
    per_second = _UNITS_PER_SECOND[unit]
    return seconds * per_second + nanoseconds * per_second // 1_000_000_000


_COUNTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Any], int]], ...]] = (
    (pa.types.is_date, _count_days),
    (pa.types.is_time, _count_time),
    (pa.types.is_timestamp, _count_timestamp),
    (pa.types.is_duration, _count_duration),
)


# ---------------------------------------------------------------------------------------------------------- nested


def _list_taker(kind: pa.DataType) -> Taker:
    take_item = taker_of(kind.value_field)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None

    def take(value: Any) -> Any:
        items = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(items, list | tuple):
            raise _refuse("a list", value)
        if size is not None and len(items) != size:
            raise Misfit(f"must be {size} items, not {len(items)}")
        taken: list[Any] = []
        try:
            for item in items:
                taken.append(take_item(item))  # noqa: PERF401  # how many there are tells which one is wrong
        except Misfit as misfit:
            raise misfit.inside(f"[{len(taken)}]") from None
        return taken

    return take


def _struct_taker(kind: pa.DataType) -> Taker:
    fields = FieldsTaker(list(kind))

    def take(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _refuse("an object", value)
        return dict(zip(fields.names, fields.take(value), strict=True))

    return take


def _map_taker(kind: pa.DataType) -> Taker:
    """An object, or a list of pairs. The names of a JSON object are texts: a map of numbers takes their digits."""
    take_key, take_item = taker_of(kind.key_field), taker_of(kind.item_field)
    is_int = pa.types.is_integer(kind.key_type)

    def take(value: Any) -> Any:
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple):
            raise _refuse("an object", value)
        taken: list[tuple[Any, Any]] = []
        for place, pair in enumerate(pairs):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise _refuse("a pair of key and value", pair).inside(f"[{place}]")
            key, item = pair
            if is_int and isinstance(key, str) and re.fullmatch(r"-?[0-9]{1,20}", key, re.ASCII):
                key = int(key)
            try:
                taken.append((take_key(key), take_item(item)))
            except Misfit as misfit:
                raise misfit.inside(str(key)[:_TEXT_CHARS_SHOWN]) from None
        return taken

    return take


_TAKERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Taker]], ...]] = (
    (pa.types.is_boolean, _bool_taker),
    (pa.types.is_integer, _int_taker),
    (pa.types.is_floating, _float_taker),
    (pa.types.is_string, _string_taker),
    (pa.types.is_binary, _binary_taker),
    (pa.types.is_fixed_size_binary, _fixed_binary_taker),
    (pa.types.is_decimal, _decimal_taker),
    (lambda kind: time_bounds(kind) is not None, _time_taker),
    (pa.types.is_map, _map_taker),
    (lambda kind: pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind), _list_taker),
    (pa.types.is_struct, _struct_taker),
)
