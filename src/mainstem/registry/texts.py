"""The text of values, column by column, in JSON and in CSV.

One set of conventions, so that what was written can be read again and nothing is lost on the way:

    whole numbers      as numbers, those of 64 bits too
    floats             as numbers; "NaN", "Infinity" and "-Infinity" as text, because JSON has none
    decimals           as text
    binary             as text where it is UTF-8, else as {"base64": ...}
    dates, times       as text in ISO 8601; a timestamp with a zone is told in UTC and ends in Z, another has no zone
    beyond 1 to 9999   dates and timestamps outside these years, as the number of units since 1970
    durations          as a number of units
    lists, structs     as arrays and objects, with every field, null or not
    maps               as objects if the keys are text and each occurs once, else as arrays of pairs

In CSV the same texts stand without JSON's quotes; what is nested is JSON in a cell. Nothing here loops over values, but
for binary ones that are not UTF-8.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.registry.types import is_nested

UNITS_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
SECONDS_LOW: Final = -62_135_596_800  # the beginning of the year 1
SECONDS_HIGH: Final = 253_402_300_800  # the end of the year 9999


# How binary values that are not UTF-8 begin in a cell of CSV; others that begin so are written in the same way.
BASE64_BEGIN: Final = '{"base64":'


def json_texts(array: pa.Array) -> pa.Array:
    """Each value of an array as JSON; never null, as null is a text too."""
    return _or_null(array, _texts(array, is_json=True))


def _texts(array: pa.Array, is_json: bool) -> pa.Array:
    """Each value as text: in JSON, or as it stands in a CSV file. What is null may be anything."""
    for is_kind, make in _TEXTS:
        if is_kind(array.type):
            return make(array, is_json)
    return _plain_texts(array, is_json)  # bools and whole numbers


def _or_null(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, "null") if array.null_count else texts


def _plain_texts(array: pa.Array, _: bool) -> pa.Array:
    return array.cast(pa.string())


def _float_texts(array: pa.Array, is_json: bool) -> pa.Array:
    texts = array.cast(pa.string())
    # Arrow writes 1.0 as 1 and -0.0 as -0; many readers would take these for whole numbers.
    is_whole = pc.match_substring_regex(texts, "^-?[0-9]+$")
    texts = pc.if_else(is_whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if pc.all(pc.is_finite(array), min_count=0).as_py() is not False:
        return texts
    quote = '"' if is_json else ""
    for test, name in (
        (pc.is_nan(array), "NaN"),
        (pc.equal(array, pa.scalar(float("inf"), array.type)), "Infinity"),
        (pc.equal(array, pa.scalar(float("-inf"), array.type)), "-Infinity"),
    ):
        texts = pc.if_else(test, f"{quote}{name}{quote}", texts)
    return texts


def _string_texts(array: pa.Array, is_json: bool) -> pa.Array:
    return _json_quoted(array) if is_json else _csv_quoted(array)


def _json_quoted(array: pa.Array) -> pa.Array:
    needs = pc.match_substring_regex(array, r'[\x00-\x1f"\\]')
    if pc.any(needs, min_count=0).as_py():
        array = pc.replace_substring(pc.replace_substring(array, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(array, r"[\x00-\x1f]"), min_count=0).as_py():
            for sign in map(chr, range(32)):
                array = pc.replace_substring(array, sign, json.dumps(sign)[1:-1])
    return _around('"', array, '"')


def _csv_quoted(array: pa.Array) -> pa.Array:
    return _around('"', pc.replace_substring(array, '"', '""'), '"')


def _binary_texts(array: pa.Array, is_json: bool) -> pa.Array:
    array = array.cast(pa.binary())
    try:
        texts = array.cast(pa.string())
        if is_json or not pc.any(pc.starts_with(texts, BASE64_BEGIN), min_count=0).as_py():
            return _string_texts(texts, is_json)
    except pa.ArrowInvalid:  # some are not UTF-8
        pass
    one = _json_binary if is_json else _csv_binary
    return pa.array([None if value is None else one(value) for value in array.to_pylist()], pa.string())


def _json_binary(value: bytes) -> str:
    try:
        return json.dumps(value.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return _base64(value)


def _csv_binary(value: bytes) -> str:
    try:
        text = value.decode()
        text = _base64(value) if text.startswith(BASE64_BEGIN) else text
    except UnicodeDecodeError:
        text = _base64(value)
    return '"' + text.replace('"', '""') + '"'


def _base64(value: bytes) -> str:
    return f'{BASE64_BEGIN}"{base64.b64encode(value).decode()}"}}'


def _decimal_texts(array: pa.Array, is_json: bool) -> pa.Array:
    texts = array.cast(pa.string())
    return _around('"', texts, '"') if is_json else texts


def time_texts(array: pa.Array, is_json: bool) -> pa.Array:
    texts = array.cast(pa.string())
    return _around('"', texts, '"') if is_json else texts


def _date_texts(array: pa.Array, is_json: bool) -> pa.Array:
    days = array.cast(pa.date32())
    texts = time_texts(days, is_json)
    return _or_number(
        array, array.cast(integer_of(array)), texts, 1 if pa.types.is_date32(array.type) else 86_400_000, 86_400
    )


def timestamp_texts(array: pa.Array, is_json: bool) -> pa.Array:
    numbers = array.cast(pa.int64())
    texts = pc.replace_substring(numbers.cast(pa.timestamp(array.type.unit)).cast(pa.string()), " ", "T")
    end = "Z" if array.type.tz else ""
    texts = _around('"', texts, f'{end}"') if is_json else _around("", texts, end)
    return _or_number(array, numbers, texts, UNITS_PER_SECOND[array.type.unit], 1)


def _or_number(array: pa.Array, numbers: pa.Array, texts: pa.Array, units: int, seconds: int) -> pa.Array:
    """The texts, but numbers where a year is not one of 1 to 9999. So many units are so many seconds."""
    low, high = SECONDS_LOW * units // seconds, SECONDS_HIGH * units // seconds
    if high >= 1 << 63:  # nanoseconds, which end before
        return texts
    is_near = pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high))
    if pc.all(is_near, min_count=0).as_py() is not False:
        return texts
    return pc.if_else(is_near, texts, numbers.cast(pa.string()))


def integer_of(array: pa.Array) -> pa.DataType:
    return pa.int32() if array.type.bit_width == 32 else pa.int64()


def _duration_texts(array: pa.Array, _: bool) -> pa.Array:
    return array.cast(pa.int64()).cast(pa.string())


def _nested_texts(array: pa.Array, is_json: bool) -> pa.Array:
    texts = _nested_json(array)
    return texts if is_json else _csv_quoted(texts)


def _nested_json(array: pa.Array) -> pa.Array:
    if pa.types.is_struct(array.type):
        return object_texts(array.type, [array.field(index) for index in range(array.type.num_fields)])
    if pa.types.is_fixed_size_list(array.type):
        array = as_list(array)
    array = shown_only(array)
    if pa.types.is_map(array.type):
        return _map_texts(array)
    return _around("[", _joined_lists(array, json_texts(array.values)), "]")


def _map_texts(array: pa.Array) -> pa.Array:
    keys, items = json_texts(array.keys), json_texts(array.items)
    if pa.types.is_string(array.type.key_type) and not has_double_keys(array):
        return _around("{", _joined_lists(array, pc.binary_join_element_wise(keys, items, ":")), "}")
    pairs = _around("[", pc.binary_join_element_wise(keys, items, ","), "]")
    return _around("[", _joined_lists(array, pairs), "]")


def has_double_keys(array: pa.Array) -> bool:
    """Whether a map of these has a key twice; then none of them is an object, so that a column looks alike."""
    rows = np.repeat(np.arange(len(array)), np.diff(array.offsets.to_numpy()))
    keys = array.keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    both = rows * (int(keys.max(initial=0)) + 1) + keys
    return len(np.unique(both)) < len(both)


def _joined_lists(array: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts of the values of each list, with commas between them."""
    return pc.binary_join(pa.ListArray.from_arrays(array.offsets, texts), ",")


def object_texts(fields: Any, columns: Sequence[pa.Array], end: str = "}") -> pa.Array:
    """One JSON object for each row of the columns; `end` is its last sign and what follows it."""
    parts = []
    for index, (field, column) in enumerate(zip(fields, columns, strict=True)):
        name = json.dumps(field.name, ensure_ascii=False)
        parts += [f"{',' if index else '{'}{name}:", json_texts(column)]
    return pc.binary_join_element_wise(*parts, end, "")


def _around(before: str, texts: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, texts, after, "") if before or after else texts


def csv_texts(array: pa.Array) -> pa.Array:
    texts = _texts(array, is_json=False)
    return pc.if_else(array.is_valid(), texts, "") if array.null_count else texts


_TEXTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, bool], pa.Array]], ...]] = (
    (pa.types.is_floating, _float_texts),
    (pa.types.is_string, _string_texts),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind), _binary_texts),
    (pa.types.is_decimal, _decimal_texts),
    (pa.types.is_timestamp, timestamp_texts),
    (pa.types.is_date, _date_texts),
    (pa.types.is_time, time_texts),
    (pa.types.is_duration, _duration_texts),
    (is_nested, _nested_texts),
)


def shown_only(array: pa.Array) -> pa.Array:
    """A list or map without values that it does not show: those before and behind a slice, and those under a null."""
    start, end = shown_range(array)
    is_bare = not array.offset and not array.null_count and not start and end == len(array.values)
    return array if is_bare else array.take(pa.array(np.arange(len(array))))


def as_list(array: pa.Array) -> pa.Array:
    """A list of fixed size as one of any. Arrow's cast refuses where lists are null and what is in them must not be."""
    sizes = array.is_valid().to_numpy(zero_copy_only=False) * array.type.list_size
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    kind = pa.list_(array.type.value_field)
    return pa.ListArray.from_arrays(offsets, array.flatten(), type=kind, mask=array.is_null())


def shown_range(array: pa.Array) -> tuple[int, int]:
    """Where the values of a list or map begin and end among those it has in memory."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.offset * size, (array.offset + len(array)) * size
    offsets = array.offsets
    return offsets[0].as_py(), offsets[-1].as_py()
