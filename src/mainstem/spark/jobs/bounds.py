"""What a table's log says of the values in a file, so that readers need not open it: rows, bounds, how many are null.

Bounds of numbers are doubles there, those of times have milliseconds, those of texts are short. One that is not exact
leaves nothing out that is in the file: it is wider than that, or is not said at all.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Of a text.
_CHARACTERS: Final = 32
_LAST_CHARACTER: Final = "\U0010ffff"
# A decimal of at most so many digits is the same again after it was a double.
_DOUBLE_DIGITS: Final = 15


def footer_statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """The rows of a file, and of every plain column its bounds and how many are null. Bytes have no bounds."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, column in _plain_columns(footer):
        if all(part is not None and part.has_null_count for part in column):
            nulls[name] = sum(part.null_count for part in column)
        known = [part for part in column if part is not None and part.has_min_max]
        # A group of nulls alone has no bounds, and needs none.
        if known and all(part is not None and (part.has_min_max or part.num_values == 0) for part in column):
            # A time outside of the years 1 to 9999 has no text there, nor has one that is rounded up beyond them.
            with contextlib.suppress(OverflowError):
                least, most = min(part.min for part in known), max(part.max for part in known)
                bounds = _bound(least, is_upper=False), _bound(most, is_upper=True)
                if None not in bounds:
                    low[name], high[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def unbounded(stats: str, columns: Iterable[pa.Field]) -> list[str]:
    """Columns of which the table's log should have bounds in a file, and has none: there are values, or nothing is said
    of them at all. A column of nulls alone needs none."""
    said = json.loads(stats)
    rows, nulls = said["numRecords"], said["nullCount"]
    names = [field.name for field in columns if rows and _should_have_bounds(field.type)]
    return [name for name in names if nulls.get(name, 0) < rows and name not in said["minValues"]]


def is_unbounded(column: pa.ChunkedArray) -> bool:
    """Whether delta-rs may write bounds of it that are not there, or not exact: it keeps them as doubles."""
    if pa.types.is_decimal(column.type):
        return bool(column.type.precision > _DOUBLE_DIGITS)
    return pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is False


def _should_have_bounds(kind: pa.DataType) -> bool:
    is_kind = pa.types
    return bool(
        is_kind.is_string(kind)
        or is_kind.is_boolean(kind)
        or is_kind.is_integer(kind)
        or is_kind.is_floating(kind)
        or is_kind.is_decimal(kind)
        or is_kind.is_date(kind)
        or is_kind.is_timestamp(kind)
    )


def _plain_columns(footer: pq.FileMetaData) -> Iterator[tuple[str, list[Any]]]:
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        if footer.schema.column(index).max_repetition_level == 0 and "." not in name:
            yield name, [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]


def _bound(value: Any, *, is_upper: bool) -> Any:
    """As the log has it, None if it cannot: numbers are read as doubles."""
    match value:
        case datetime():
            return _time_bound(value, is_upper=is_upper)
        case date():
            return value.isoformat()
        case str():
            return _text_bound(value, is_upper=is_upper)
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value) if Decimal(repr(float(value))) == value else None
        case int():
            return value
    return None


def _time_bound(value: datetime, *, is_upper: bool) -> str:
    """Times have milliseconds there: an upper bound is the next one."""
    if is_upper and value.microsecond % 1_000:
        value += timedelta(milliseconds=1)
    moment = value.replace(microsecond=value.microsecond // 1_000 * 1_000)
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{text}Z" if value.tzinfo is not None else text


def _text_bound(value: str, *, is_upper: bool) -> str:
    """The beginning of a long text; for an upper bound with the greatest character there is, which must be greater than
    the one that it takes the place of."""
    end = _CHARACTERS
    if not is_upper:
        return value[:end]
    while value[end : end + 1] == _LAST_CHARACTER:
        end += 1
    return value if len(value) <= end else value[:end] + _LAST_CHARACTER
