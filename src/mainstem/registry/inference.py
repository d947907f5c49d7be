"""Inference: the schema of rows that are there already.

Every row is looked at, every field may be null, and nothing is guessed from the looks of a text: what is text stays
text. Whole numbers and fractions in one column make it float64; decimals grow to hold all digits. Anything else that
differs between rows, and a field that is null in all of them, is for the user to say.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX
from mainstem.core.plain import one_line
from mainstem.core.schema import Schema
from mainstem.registry.types import DECIMAL_DIGITS_MAX, type_text

_INT64: Final = range(-(1 << 63), 1 << 63)
_UINT64: Final = range(1 << 64)
# Up to here every whole number is a float64, too.
_EXACT_FLOAT: Final = 1 << 53


def infer_rows(rows: Any) -> Schema:
    """The schema of dicts; of a field that occurs in some of them only, too."""
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise InvalidSchema(f"expected rows (dicts), a table or lines of JSON, not {type(rows).__name__}")
    found = _Struct("", [0], 0)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidSchema(f"row {index} is {type(row).__name__}; a row is a dict")
        found.see(row, index)
    if not found.fields:
        raise InvalidSchema("there are no rows with fields to learn a schema from")
    return Schema(pa.schema(found.arrow_fields()))


def rows_of_lines(text: bytes | bytearray | str) -> Iterator[Any]:
    """The rows of lines of JSON; empty lines are passed over."""
    data = text.encode() if isinstance(text, str) else bytes(text)
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InvalidSchema(f"line {number} is no JSON: {one_line(str(error), 100)}") from None


class _Value:
    """What is known of a field from the rows so far."""

    def __init__(self, path: str, count: list[int], depth: int) -> None:
        count[0] += 1  # of the fields of all rows
        if count[0] > SCHEMA_FIELDS_MAX:
            raise InvalidSchema(
                f"column {one_line(path, 80)!r}: these rows have more than {SCHEMA_FIELDS_MAX} different fields; "
                "a field whose names are data should be a map<string, ...>"
            )
        if depth > SCHEMA_DEPTH_MAX:
            raise InvalidSchema(f"column {one_line(path, 80)!r}: rows are nested deeper than {SCHEMA_DEPTH_MAX}")
        self.path = path
        self._count = count
        self._depth = depth
        self._kind: type | None = None
        self._kind_row = 0
        self._low = self._high = 0  # of whole numbers
        self._whole = self._fraction = 0  # digits of decimals before and after the point
        self._is_zoned = False
        self._size = -1  # of bytes, if all have the same
        self._nested: _Struct | _Value | None = None

    def see(self, value: Any, index: int) -> None:
        if value is None:
            return
        value = list(value) if isinstance(value, tuple) else value
        kind: Any = next((each for each in _KINDS if isinstance(value, each)), None)
        if kind is None:
            raise InvalidSchema(
                f"column {self.path!r}: row {index} has a {type(value).__name__}, which has no type here"
            )
        before = self._kind
        if before is None:
            self._kind_row = index
        elif before is not kind and (kind := _WIDER.get(frozenset((before, kind)))) is None:
            self._differs(before, value, index)
        self._kind = kind
        self._look(value, index, before is None)

    def _look(self, value: Any, index: int, is_first: bool) -> None:
        if isinstance(value, bool):
            return
        if isinstance(value, int):
            self._low, self._high = min(self._low, value), max(self._high, value)
            self._whole = max(self._whole, len(str(abs(value))) if abs(value) >> 300 == 0 else DECIMAL_DIGITS_MAX + 1)
        elif isinstance(value, Decimal):
            self._see_decimal(value, index)
        elif isinstance(value, datetime):
            if not is_first and self._is_zoned != (value.tzinfo is not None):
                raise InvalidSchema(
                    f"column {self.path!r}: row {index} has a time with a zone and others have none, or the reverse"
                )
            self._is_zoned = value.tzinfo is not None
        elif isinstance(value, Mapping):
            if self._nested is None:
                self._nested = _Struct(self.path, self._count, self._depth)
            self._nested.see(value, index)
        elif isinstance(value, list):
            if self._nested is None:
                self._nested = _Value(f"{self.path}[]", self._count, self._depth + 1)
            for each in value:
                self._nested.see(each, index)

    def _see_decimal(self, value: Decimal, index: int) -> None:
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise InvalidSchema(f"column {self.path!r}: row {index} has the decimal {value}; decimals are finite")
        self._fraction = max(self._fraction, -exponent)
        self._whole = max(self._whole, len(digits) + exponent, 1)

    def arrow(self) -> pa.DataType:
        kind = self._kind
        if kind is None:
            raise InvalidSchema(f"column {self.path!r} is null or empty in every row; say its type")
        if kind is int:
            return self._integer()
        if kind is float and max(-self._low, self._high) > _EXACT_FLOAT:
            raise InvalidSchema(
                f"column {self.path!r} has fractions, and whole numbers that float64 would round; say its type"
            )
        if kind is Decimal:
            return self._decimal()
        if kind is datetime:
            return pa.timestamp("us", "UTC" if self._is_zoned else None)
        if kind is Mapping:
            assert isinstance(self._nested, _Struct)
            if not self._nested.fields:
                raise InvalidSchema(f"column {self.path!r} is an empty object in every row; say its type")
            return pa.struct(self._nested.arrow_fields())
        if kind is list:
            assert isinstance(self._nested, _Value)
            return pa.list_(pa.field("item", self._nested.arrow()))
        return _PLAIN[kind]

    def _integer(self) -> pa.DataType:
        if self._low in _INT64 and self._high in _INT64:
            return pa.int64()
        if self._low in _UINT64 and self._high in _UINT64:
            return pa.uint64()
        return self._decimal()

    def _decimal(self) -> pa.DataType:
        digits = self._whole + self._fraction
        if digits > DECIMAL_DIGITS_MAX:
            raise InvalidSchema(
                f"column {self.path!r} has numbers of {digits} digits; at most {DECIMAL_DIGITS_MAX} are possible"
            )
        # Room for what comes later: the type could not become narrower, and 38 digits cost no more than 19.
        return pa.decimal128(38, self._fraction) if digits <= 38 else pa.decimal256(DECIMAL_DIGITS_MAX, self._fraction)

    def _differs(self, before: type, value: Any, index: int) -> None:
        raise InvalidSchema(
            f"column {self.path!r} is {_name(before)} in row {self._kind_row} and {_name(type(value))} in row {index}; "
            "say its type, or make the rows alike"
        )


class _Struct:
    """What is known of the fields of rows, or of objects inside them."""

    def __init__(self, path: str, count: list[int], depth: int) -> None:
        self._path = path
        self._count = count
        self._depth = depth
        self.fields: dict[str, _Value] = {}

    def see(self, row: Mapping[Any, Any], index: int) -> None:
        for name, value in row.items():
            known = self.fields.get(name)
            if known is None:
                if not isinstance(name, str):
                    raise InvalidSchema(f"row {index} has the name {one_line(repr(name), 80)}; names are text")
                path = f"{self._path}.{name}" if self._path else name
                known = self.fields[name] = _Value(path, self._count, self._depth + 1)
            known.see(value, index)

    def arrow_fields(self) -> list[pa.Field]:
        return [pa.field(name, value.arrow()) for name, value in self.fields.items()]


_PLAIN: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
    UUID: pa.string(),
}
# In this order: a bool is an int, and a datetime a date.
_KINDS: Final = (bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID, Mapping, list)
_WIDER: Final[dict[frozenset[Any], type]] = {
    frozenset((int, float)): float,
    frozenset((int, Decimal)): Decimal,
}


def _name(kind: type) -> str:
    if kind in _PLAIN:
        return type_text(_PLAIN[kind])
    return {int: "int64", datetime: "timestamp", Mapping: "an object", dict: "an object"}.get(kind, kind.__name__)
