"""Spark's filters as a predicate, so that what cannot match is not read.

Spark gets every filter back and checks again what it is given, so a filter that has no words here is left out: then
more is read than needed, never less.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as ds

from mainstem.core.errors import InvalidPredicate
from mainstem.core.limits import PREDICATE_BYTES_MAX
from mainstem.core.predicate import Predicate

_SIGNS: Final[dict[type[ds.Filter], str]] = {
    ds.EqualTo: "=",
    ds.EqualNullSafe: "IS NOT DISTINCT FROM",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
_TEXTUAL: Final[dict[type[ds.Filter], str]] = {
    ds.StringStartsWith: "starts_with",
    ds.StringEndsWith: "ends_with",
    ds.StringContains: "contains",
}
# Of a filter `IN` with more values Spark itself is faster.
_VALUES_MAX: Final = 200


def predicate_of(filters: Iterable[ds.Filter], columns: pa.Schema, where: str = "") -> str:
    """The filters that can be said, of these columns, all of which must be true, and `where` beside them."""
    found = f"({where})" if where else ""
    for each in filters:
        text = _text(each)
        if text is None or not _is_understood(text, columns):
            continue
        longer = f"{found} AND {text}" if found else text
        if len(longer.encode()) <= PREDICATE_BYTES_MAX and _is_understood(longer, columns):
            found = longer
    return where if found == f"({where})" else found


def of_columns(filters: Iterable[ds.Filter], names: Collection[str]) -> list[ds.Filter]:
    """Those of the filters that are about one of these columns."""
    return [each for each in filters if _column(each) in names]


def _column(each: ds.Filter) -> str | None:
    if isinstance(each, ds.Not):
        return _column(each.child)
    path: Sequence[str] = getattr(each, "attribute", ())
    return path[0] if path else None


def _is_understood(text: str, columns: pa.Schema) -> bool:
    try:
        Predicate.parse(text).bind(columns)
    except InvalidPredicate:
        return False
    return True


def _text(each: ds.Filter) -> str | None:
    match each:
        case ds.Not(child=child):
            inner = _text(child)
            return None if inner is None else f"NOT ({inner})"
        case ds.IsNull(attribute=path):
            return f"{_name(path)} IS NULL"
        case ds.IsNotNull(attribute=path):
            return f"{_name(path)} IS NOT NULL"
        case ds.In(attribute=path, value=values):
            return _one_of(path, values)
    kind: Any = type(each)
    path, value = getattr(each, "attribute", ()), _literal(getattr(each, "value", None))
    if value is None:
        return None
    if kind in _SIGNS:
        return f"{_name(path)} {_SIGNS[kind]} {value}"
    return f"{_TEXTUAL[kind]}({_name(path)}, {value})" if kind in _TEXTUAL else None


def _one_of(path: Sequence[str], values: Sequence[Any]) -> str | None:
    literals = [_literal(value) for value in values if value is not None]
    if not literals or len(literals) > _VALUES_MAX or None in literals:
        return None
    return f"{_name(path)} IN ({', '.join(filter(None, literals))})"


def _name(path: Sequence[str]) -> str:
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in path)


def _literal(value: Any) -> str | None:
    """A constant as the predicate language writes it; None for one that it has no words for."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | Decimal():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case float():
            text = repr(value)
            return None if not math.isfinite(value) else text if "e" in text else f"{text}e0"
        case str():
            return "'{}'".format(value.replace("'", "''"))
        case bytes() | bytearray():
            return f"x'{value.hex()}'"
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            zone = "" if value.tzinfo is None else "Z"
            return f"TIMESTAMP '{moment.replace(tzinfo=None).isoformat(' ', 'microseconds')}{zone}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case time():
            return f"TIME '{value.isoformat('microseconds')}'"
    return None
