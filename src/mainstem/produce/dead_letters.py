"""Dead letters: rows that do not fit the schema of their stream, kept with the reason in a stream beside it.

The dead letters of `orders` are records of `orders.dead`, which has no schema and one shard, and is made when the first
one comes. A letter is the row as JSON, or the bytes that came; its key, headers and time are those of the record. These
headers say what was wrong:

    dead.error      what does not fit, and why
    dead.path       the field, empty if it is no row at all
    dead.stream     the stream it was sent to
    dead.schema     the version of the schema that it does not fit
    dead.time       when it was kept, ISO 8601
    dead.unreadable why the letter is not the row but only shows it: it has values for which there is no JSON

Headers of the record that have these names, or `dead.kind`, are left out. Values are written as everywhere in JSON, by
the conventions for rows; a letter that is only shown is never put back.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, Final

import msgspec
import numpy as np

from mainstem.core.errors import SchemaMismatch
from mainstem.core.limits import ERROR_TEXT_CHARS_MAX
from mainstem.transport.port import StreamInfo

SUFFIX: Final = ".dead"
RETENTION_US: Final = 30 * 24 * 3600 * 1_000_000
ERROR: Final = "dead.error"
PATH: Final = "dead.path"
STREAM: Final = "dead.stream"
SCHEMA: Final = "dead.schema"
TIME: Final = "dead.time"
UNREADABLE: Final = "dead.unreadable"
# Of a record that is no letter, but says what became of letters.
KIND: Final = "dead.kind"
OWN_HEADERS: Final = frozenset((ERROR, PATH, STREAM, SCHEMA, TIME, UNREADABLE, KIND))


def dead_stream_of(stream: str) -> str:
    """The name of the stream that has the dead letters of another."""
    return stream + SUFFIX


def letter_headers(
    headers: Iterable[tuple[str, bytes]], stream: StreamInfo, error: SchemaMismatch, now_us: int
) -> list[tuple[str, bytes]]:
    """The headers of a letter: those of its record but for the names above, and what was wrong."""
    said = {
        ERROR: str(error)[:ERROR_TEXT_CHARS_MAX],
        PATH: error.path,
        STREAM: stream.name,
        SCHEMA: str(stream.schema_version),
        TIME: datetime.fromtimestamp(now_us / 1e6, UTC).isoformat(),
    }
    kept = [(name, value) for name, value in headers if name not in OWN_HEADERS]
    return kept + [(name, text.encode(errors="replace")) for name, text in said.items()]


def letter_of(row: Any) -> tuple[bytes, list[tuple[str, bytes]]]:
    """The row as it can be kept, and headers that say so if it cannot be read again: bytes and text as they came, the
    rest as JSON."""
    try:
        if isinstance(row, bytes | bytearray | memoryview):
            return bytes(row), []
        text = row if isinstance(row, str) else json.dumps(_row_form(row), ensure_ascii=False, allow_nan=False)
        return text.encode(), []
    except (_NoForm, ValueError, OverflowError, RecursionError) as error:
        why = error.args[0] if isinstance(error, _NoForm) else "it cannot be written as JSON"
        return _shown(row), [(UNREADABLE, why.encode(errors="replace"))]


class _NoForm(Exception):
    """JSON has no form for a value."""


def _row_form(row: Any) -> Any:
    if isinstance(row, Mapping) and not all(isinstance(name, str) for name in row):
        raise _NoForm("a name of a field is not text")
    return _form(row)


def _form(value: Any) -> Any:
    """A value in the form in which JSON has it, from which a column that took the value takes the same."""
    if value is None or value is True or value is False:
        return value
    for kinds, form in _FORMS:
        if isinstance(value, kinds):
            return form(value)
    raise _NoForm(f"there is no JSON for {type(value).__name__}")


def _form_of_bytes(value: bytes | bytearray | memoryview) -> Any:
    found = bytes(value)
    try:
        return found.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(found).decode()}


def _form_of_float(value: Any) -> Any:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _form_of_decimal(value: Decimal) -> str:
    if value.is_snan():
        raise _NoForm("there is no JSON for a signalling NaN")
    return str(value)


def _form_of_datetime(value: datetime) -> str:
    if value != value:  # what pandas has for no time is a datetime, too
        raise _NoForm("there is no JSON for NaT")
    return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _form_of_time(value: time) -> str:
    if value.tzinfo is not None:
        raise _NoForm("there is no JSON for a time of day with a time zone")
    return value.isoformat()


def _form_of_mapping(value: Mapping[Any, Any]) -> Any:
    if all(isinstance(name, str) for name in value):
        return {str.__str__(name): _form(item) for name, item in value.items()}
    return [[_form(name), _form(item)] for name, item in value.items()]


# In this order: a datetime is a date, too.
_FORMS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (np.bool_, bool),
    (int | np.integer, int),
    (Real, _form_of_float),
    (bytes | bytearray | memoryview, _form_of_bytes),
    (Mapping, _form_of_mapping),
    (list | tuple | np.ndarray, lambda items: [_form(item) for item in items]),
    (Decimal, _form_of_decimal),
    (datetime, _form_of_datetime),
    (date, date.isoformat),
    (time, _form_of_time),
    (timedelta, lambda value: msgspec.to_builtins(timedelta(value.days, value.seconds, value.microseconds))),
)


def _shown(row: Any) -> bytes:
    """What can be shown of a row that has no JSON. It may be of classes of users, whose code may do anything."""
    try:
        return repr(row).encode(errors="backslashreplace")
    except Exception:  # noqa: BLE001
        return f"<{type(row).__name__}>".encode(errors="backslashreplace")
