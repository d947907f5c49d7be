"""The type texts: how a type is written in a JSON type map, and back.

The names are Arrow's: `int64`, `timestamp[us, UTC]`, `decimal(10, 2)`, `list<string>`, `struct<a: int64, b: string>`,
`map<string, int64>`. A few more are understood because people write them; `FRIENDLY` has them all. Behind any type,
`not null` says that it is never null. The name of a struct's field that is no plain word stands in double quotes.
"""

import difflib
import json
import re
from datetime import date, datetime, time, timedelta
from typing import Any, Final, NoReturn

import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.limits import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX
from mainstem.core.plain import one_line

DECIMAL_DIGITS_MAX: Final = 76
_DECIMAL128_DIGITS_MAX: Final = 38

_PLAIN: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
# `int` and `float` are what Python means by them: the widest. A UUID is kept as the text it is written as.
FRIENDLY: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "integer": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "text": pa.string(),
    "str": pa.string(),
    "uuid": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "duration": pa.duration("us"),
}
# The types that have no parts, by all their names.
TYPE_NAMES: Final = (*_PLAIN, *FRIENDLY)
# Classes of Python that may stand in place of a type text.
OF_PYTHON: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
}
_UNITS: Final = {
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
    "time": ("s", "ms", "us", "ns"),
    "timestamp": ("s", "ms", "us", "ns"),
    "duration": ("s", "ms", "us", "ns"),
}
_WITH_ARGUMENTS: Final = (*_UNITS, "decimal", "decimal128", "decimal256", "binary", "fixed_size_binary")
_NESTED: Final = ("list", "fixed_size_list", "struct", "map")
_WORD: Final = re.compile(r"\s*([A-Za-z_]\w*)", re.ASCII)
_QUOTED: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*")')
_NAMED: Final = re.compile(r"\s*\w+\s*:")
_ARGUMENTS: Final = re.compile(r"\s*(?:\[([^\]]*)\]|\(([^)]*)\))")
_NOT_NULL: Final = re.compile(r"\s+not\s+null\b", re.IGNORECASE)


def parse_type(text: str, path: str) -> tuple[pa.DataType, bool]:
    """The type that a text names, and whether it may be null; InvalidSchema if it names none. `path` is its column."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"column {path!r}: a type of {len(text)} characters; at most {SCHEMA_BYTES_MAX} are read")
    parser = _Parser(text, path)
    field = parser.field("item", 1)
    parser.end()
    return field.type, field.nullable


def type_text(kind: pa.DataType) -> str:
    """The text from which `parse_type` makes this type. What fields have beside their type is not in it."""
    for name, plain in _PLAIN.items():
        if kind == plain:
            return name
    if pa.types.is_timestamp(kind):
        return f"timestamp[{kind.unit}{f', {kind.tz}' if kind.tz else ''}]"
    if pa.types.is_decimal(kind):
        name = "decimal" if _decimal(kind.precision, kind.scale) == kind else f"decimal{kind.bit_width}"
        return f"{name}({kind.precision}, {kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return f"binary[{kind.byte_width}]"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {_field_text(kind.item_field)}>"
    if pa.types.is_fixed_size_list(kind):
        return f"list<{_field_text(kind.value_field)}>[{kind.list_size}]"
    if pa.types.is_list(kind):
        return f"list<{_field_text(kind.value_field)}>"
    if pa.types.is_struct(kind):
        parts = [f"{_name_text(field.name)}: {_field_text(field)}" for field in kind]
        return f"struct<{', '.join(parts)}>"
    return str(kind)  # times and durations, which Arrow writes as they are read here


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))


def is_nested(kind: pa.DataType) -> bool:
    return bool(is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind))


def _field_text(field: pa.Field) -> str:
    return type_text(field.type) + ("" if field.nullable else " not null")


def _name_text(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else json.dumps(name)


def _decimal(precision: int, scale: int) -> pa.DataType:
    return (pa.decimal128 if precision <= _DECIMAL128_DIGITS_MAX else pa.decimal256)(precision, scale)


class _Parser:
    """Reads one type text from its beginning to its end."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._at = 0

    def field(self, name: str, depth: int) -> pa.Field:
        """A type, and `not null` if it follows."""
        kind = self._type(depth)
        return pa.field(name, kind, nullable=self._match(_NOT_NULL) is None)

    def end(self) -> None:
        if rest := self._text[self._at :].strip():
            self._refuse(f"{one_line(rest, 40)!r} is too much")

    def _type(self, depth: int) -> pa.DataType:
        if depth > SCHEMA_DEPTH_MAX:
            self._refuse(f"types are nested deeper than {SCHEMA_DEPTH_MAX}")
        name = self._word()
        if name in _NESTED:
            return self._nested(name, depth)
        if name in _WITH_ARGUMENTS and (found := self._match(_ARGUMENTS)):
            return self._with_arguments(name, [part.strip() for part in (found[1] or found[2] or "").split(",")])
        if (kind := _PLAIN.get(name) or FRIENDLY.get(name)) is None:
            self._refuse(self._hint(name))
        return kind

    def _nested(self, name: str, depth: int) -> pa.DataType:
        self._need("<")
        if name == "struct":
            return self._struct(depth)
        if name == "map":
            key = self._type(depth + 1)
            self._need(",")
            value = self.field("value", depth + 1)
            self._need(">")
            return pa.map_(key, value)
        self._match(_NAMED)  # Arrow writes list<item: int64>
        item = self.field("item", depth + 1)
        self._need(">")
        if found := self._match(_ARGUMENTS):
            return pa.list_(item, self._size(name, (found[1] or found[2] or "").split(",")))
        return pa.list_(item)

    def _struct(self, depth: int) -> pa.DataType:
        fields = []
        while True:
            name = json.loads(quoted[1]) if (quoted := self._match(_QUOTED)) else self._word()
            self._need(":")
            fields.append(self.field(name, depth + 1))
            if not self._take(","):
                break
        self._need(">")
        return pa.struct(fields)

    def _with_arguments(self, name: str, parts: list[str]) -> pa.DataType:
        if name.startswith("decimal"):
            numbers = [self._number(part) for part in parts]
            if len(numbers) != 2 or not 1 <= numbers[0] <= DECIMAL_DIGITS_MAX:
                self._refuse(
                    f"a decimal is decimal(digits, digits after the point), at most {DECIMAL_DIGITS_MAX} of them"
                )
            if numbers[1] > numbers[0]:
                self._refuse(f"it has {numbers[0]} digits, and {numbers[1]} of them after the point")
            if name == "decimal128" and numbers[0] > _DECIMAL128_DIGITS_MAX:
                self._refuse(f"more than {_DECIMAL128_DIGITS_MAX} digits: write decimal")
            return pa.decimal256(*numbers) if name == "decimal256" else _decimal(numbers[0], numbers[1])
        if name in ("binary", "fixed_size_binary"):
            return pa.binary(self._size(name, parts))
        return self._with_unit(name, parts)

    def _with_unit(self, name: str, parts: list[str]) -> pa.DataType:
        unit, *more = parts
        if unit not in _UNITS[name]:
            self._refuse(f"the units of {name} are {', '.join(_UNITS[name])}")
        if len(more) > (name == "timestamp"):
            self._refuse(f"{name} takes a unit and {'a time zone' if name == 'timestamp' else 'nothing else'}")
        if name == "timestamp":
            zone = more[0].removeprefix("tz=").strip() if more else None
            if zone == "":
                self._refuse("its time zone is missing")
            return pa.timestamp(unit, zone)
        if name == "duration":
            return pa.duration(unit)
        return pa.time32(unit) if unit in _UNITS["time32"] else pa.time64(unit)

    def _size(self, name: str, parts: list[str]) -> int:
        """How many bytes or items values of a fixed size have."""
        numbers = [self._number(part.strip()) for part in parts]
        if len(numbers) != 1 or numbers[0] < 1:
            self._refuse(f"the size of a {name.removeprefix('fixed_size_')} is one number above 0")
        return numbers[0]

    def _number(self, text: str) -> int:
        if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
            self._refuse(f"{one_line(text, 40)!r} should be a number")
        return int(text)

    def _word(self) -> str:
        if (found := self._match(_WORD)) is None:
            self._refuse(f"a name is missing at {one_line(self._text[self._at :], 40)!r}")
        return str(found[1])

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            self._refuse(f"{sign!r} is missing before {one_line(self._text[self._at :], 40)!r}")

    def _take(self, sign: str) -> bool:
        return self._match(re.compile(rf"\s*{re.escape(sign)}")) is not None

    def _match(self, pattern: re.Pattern[str]) -> Any:
        if found := pattern.match(self._text, self._at):
            self._at = found.end()
        return found

    def _hint(self, name: str) -> str:
        known = [*_PLAIN, *FRIENDLY, *_WITH_ARGUMENTS, *_NESTED]
        if name in known:
            return f"{name} needs more, as in {_EXAMPLES.get(name, 'timestamp[us, UTC]')}"
        near = difflib.get_close_matches(name.lower(), known, 1)
        return f"did you mean {near[0]!r}?" if near else "see the list of types in docs/schemas.md"

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidSchema(f"column {self._path!r}: {one_line(self._text, 80)!r} is no type: {why}")


_EXAMPLES: Final = {
    "decimal": "decimal(10, 2)",
    "decimal128": "decimal128(10, 2)",
    "decimal256": "decimal256(50, 2)",
    "time32": "time32[ms]",
    "time64": "time64[us]",
    "fixed_size_binary": "fixed_size_binary[16]",
}
