"""The statistics of a batch: what is known of its columns without reading it, so that most batches never are.

    offset size field
         0    1 version     1
         1    1 ranges      how many
         2    1 filters     how many
         3    1 summary     length of the first part, in words of 8 bytes: up to where the filters begin
         4    4 length      of the whole, u32, a multiple of 8

    for each range:
         0    2 column      its place in the schema, u16; 0xFFFF is the key of a record, 0xFFFE its time
         2    1 facts       1 has nulls, 2 only nulls, 4 has NaN, 8 has a lower bound, 16 has an upper bound
         3    1 form        1 whole number, 2 floating point, 3 bytes, 4 decimal
         4    1 low_len
         5    1 high_len
         6      low, high   at most 16 bytes each

    for each filter:
         0    2 column      as above; 0xFFFD for the pieces of all columns
         2    1 form        of its values: as above; or 6: this is no filter, but the pieces
         3    1 zero
         4    4 position    where it begins, u32, from the start of the whole
         8    4 length      u32, of a filter a multiple of 32

    zeros up to the next multiple of 8, then the pieces (see pieces.py) and the filters (see bloom.py)

All numbers are little-endian. A bound of form 1 is a signed number in as few bytes as it takes: an integer, 0 or 1 for
a boolean, or what the column stores for a date, a time, a timestamp or a duration. Form 2 is a double. Form 3 are the
bytes of binary or of text in UTF-8, cut to 16: then the lower bound is the first 16, the upper one the lowest above all
that begin with them, if there are any. Form 4 is the number without its decimal point. NaN is in no range.

The part before the filters is the summary, which the ledger keeps. Where the key is one column, that column's filter is
the key's: two filters may lie at one place, and that of the key is of form 1 if the column is one of whole numbers.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core import bloom
from mainstem.core.errors import InvalidPayload
from mainstem.core.keys import WHOLE_NUMBER
from mainstem.core.limits import (
    FILTER_BYTES_MAX,
    INDEX_FIELDS_MAX,
    KIB,
    SCHEMA_FIELDS_MAX,
    STATISTICS_BOUND_BYTES_MAX,
    STATISTICS_BYTES_MAX,
    STATISTICS_RANGES_MAX,
)
from mainstem.core.schema import Schema, check_named

VERSION: Final = 1
KEY: Final = "_key"
TIMESTAMP: Final = "_timestamp"

_HEAD: Final = struct.Struct("<BBBBI")
_RANGE: Final = struct.Struct("<HBBBB")
_FILTER: Final = struct.Struct("<HBBII")
_KEY_PLACE: Final = 0xFFFF
_PIECES_PLACE: Final = 0xFFFD
_TIMESTAMP_PLACE: Final = 0xFFFE
_OWN_PLACES: Final = {KEY: _KEY_PLACE, TIMESTAMP: _TIMESTAMP_PLACE}
_OWN_KINDS: Final = {KEY: pa.binary(), TIMESTAMP: pa.int64()}

_HAS_NULL: Final = 1
_IS_NULL: Final = 2
_HAS_NAN: Final = 4
_HAS_LOW: Final = 8
_HAS_HIGH: Final = 16

_WHOLE: Final = 1
_FLOAT: Final = 2
_BYTES: Final = 3
_DECIMAL: Final = 4
_PIECES: Final = 6

_DOUBLE: Final = struct.Struct("<d")
# Of what a filter describes it may take this part.
_FILTER_SHARE: Final = 8
# Ranges are of columns and of the time; filters of indexed columns, of the key, and of the column the key is made of.
_SUMMARY_BYTES_MAX: Final = (
    _HEAD.size
    + (STATISTICS_RANGES_MAX + 1) * (_RANGE.size + 2 * STATISTICS_BOUND_BYTES_MAX)
    + (INDEX_FIELDS_MAX + 3) * _FILTER.size
)
# Pieces have 8 bytes for each column.
_FILTERS_BYTES_MAX: Final = STATISTICS_BYTES_MAX - 1 * KIB - 8 * (SCHEMA_FIELDS_MAX + 8)
assert _SUMMARY_BYTES_MAX <= 1 * KIB <= 8 * 0xFF


class Range(NamedTuple):
    """What is known of a column of a batch. Values are as they are stored: whole numbers for integers, booleans, dates,
    times, timestamps and durations, in the column's own unit; floats; Decimals; bytes for text and binary.

    `low` and `high` are bounds, None where none is known: not always values that occur. NaN is outside of them.
    `may_contain` asks a filter: False means that no row has this value. `has_filter` without it: the filter was not
    read, only what the ledger has.
    """

    low: Any = None
    high: Any = None
    has_null: bool = True
    is_null: bool = False
    has_nan: bool = True
    may_contain: Callable[[Any], bool] | None = None
    has_filter: bool = False


def can_be_indexed(kind: pa.DataType) -> bool:
    """Whether columns of this type have ranges and filters."""
    return _form_of(kind) is not None


def check_index_fields(schema: Schema, fields: Sequence[str]) -> None:
    """Whether these columns can have filters; InvalidSchema says which cannot."""
    check_named(schema, fields, "index", INDEX_FIELDS_MAX, can_be_indexed, "name a column of single values")


def _form_of(kind: pa.DataType) -> int | None:
    return _FORMS.get(kind.id)


def _forms() -> dict[int, int]:
    types = pa.lib
    whole = [getattr(types, f"Type_{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)]
    whole += [types.Type_BOOL, types.Type_DATE32, types.Type_DATE64, types.Type_TIME32, types.Type_TIME64]
    whole += [types.Type_TIMESTAMP, types.Type_DURATION]
    return {
        **dict.fromkeys(whole, _WHOLE),
        **dict.fromkeys((types.Type_FLOAT, types.Type_DOUBLE), _FLOAT),
        **dict.fromkeys((types.Type_STRING, types.Type_BINARY, types.Type_FIXED_SIZE_BINARY), _BYTES),
        **dict.fromkeys((getattr(types, f"Type_DECIMAL{bits}") for bits in (32, 64, 128, 256)), _DECIMAL),
    }


# By the number of a type: asking a type what it is takes as long as finding the bounds of a thousand numbers.
_FORMS: Final = _forms()


# Making.


def collect(
    batch: pa.RecordBatch | None,
    *,
    key: pa.Array | None = None,
    index: Sequence[str] = (),
    columns: Sequence[str] = (),
    times: tuple[int, int] | None = None,
    pieces: bytes = b"",
    schema: pa.Schema | None = None,
    described_bytes: int = STATISTICS_BYTES_MAX * _FILTER_SHARE,
) -> bytes:
    """The statistics of rows, or of records without a schema if `batch` is None.

    `key` is the key of every record, needed unless it is one column; `columns` are those it is made of, and `times` the
    lowest and the highest time. `pieces` are noted as they are. `described_bytes` is what the batch takes uncompressed:
    filters may take an eighth of that. `schema` says which columns the rows have, if only those that `needed` names are
    here. b"" if nothing is known.
    """
    schema = batch.schema if schema is None and batch is not None else schema
    ranges = [] if times is None else [_pack_range(_TIMESTAMP_PLACE, 0, _WHOLE, *times)]
    if batch is not None and schema is not None:
        ranges += [_range_of(batch.column(name), place) for name, place in _ranged(schema, columns, index)]
    wanted: list[tuple[_Places, bloom.U64]] = []
    if batch is not None and schema is not None:
        for name in dict.fromkeys((*columns, *index) if len(columns) == 1 else index):
            form = _form(batch.column(name))
            places = [(schema.get_field_index(name), form)]
            if tuple(columns) == (name,):
                places.append((_KEY_PLACE, form))
            wanted.append((places, _hashes(batch.column(name))))
    if key is not None and (batch is None or len(columns) != 1):
        wanted.append(([(_KEY_PLACE, _BYTES)], bloom.hashes_of_bytes(key)))
    filters = _filters(wanted, min(described_bytes // _FILTER_SHARE, _FILTERS_BYTES_MAX))
    behind = [([(_PIECES_PLACE, _PIECES)], pieces), *filters] if pieces else filters
    return _joined(ranges, behind) if ranges or behind else b""


# Which columns a filter is for, and in which form it has their values.
_Places = Sequence[tuple[int, int]]


def _filters(wanted: Sequence[tuple[_Places, bloom.U64]], bytes_max: int) -> list[tuple[_Places, bytes]]:
    """Filters that together are at most so long, each where there is something to be in it."""
    each = min(bytes_max // max(1, len(wanted)), FILTER_BYTES_MAX)
    made = [(places, bloom.build(hashes, each) if len(hashes) else b"") for places, hashes in wanted]
    return [(places, data) for places, data in made if data]


def _joined(ranges: Sequence[bytes], filters: Sequence[tuple[_Places, bytes]]) -> bytes:
    """The ranges, then the filters, among which there may be pieces: both are whole words."""
    count = sum(len(places) for places, _ in filters)
    summary_len = _padded(_HEAD.size + sum(map(len, ranges)) + count * _FILTER.size)
    position = summary_len
    directory: list[bytes] = []
    for places, made in filters:
        directory += [_FILTER.pack(column, form, 0, position, len(made)) for column, form in places]
        position += len(made)
    assert position <= STATISTICS_BYTES_MAX
    head = _HEAD.pack(VERSION, len(ranges), count, summary_len // 8, position)
    return b"".join((head, *ranges, *directory)).ljust(summary_len, b"\0") + b"".join(made for _, made in filters)


def _padded(length: int) -> int:
    return (length + 7) & ~7


def needed(schema: pa.Schema, key: Sequence[str], index: Sequence[str]) -> set[str]:
    """The columns of rows of which something is to be known, if their key is made of `key`, or stands beside them."""
    return {KEY, *key, *index, *(name for name, _ in _ranged(schema, key, index))}


def _ranged(schema: pa.Schema, key: Sequence[str], index: Sequence[str]) -> list[tuple[str, int]]:
    """The columns that get ranges, with their places: those of the key and the index, then times, then others in order.

    Of text and bytes only what is indexed: finding the bounds of a text takes ten times as long as those of a number,
    and texts that follow time are rare.
    """
    fitting = [field for field in schema if not field.name.startswith("_") or field.name not in _COMPANIONS]
    kinds = {field.name: field.type for field in fitting if can_be_indexed(field.type)}
    named = {name: kind for name, kind in kinds.items() if name in index or _form_of(kind) != _BYTES}
    times = [name for name, kind in named.items() if pa.types.is_timestamp(kind) or pa.types.is_date(kind)]
    first = [name for name in (*key, *index) if name in named]
    chosen = list(dict.fromkeys((*first, *times, *named)))[:STATISTICS_RANGES_MAX]
    return [(name, schema.get_field_index(name)) for name in chosen]


# Columns of a batch of rows that are not of its schema.
_COMPANIONS: Final = frozenset((KEY, "_headers", TIMESTAMP, "_offset"))


def _range_of(column: pa.Array, place: int) -> bytes:
    form = _form(column)
    nulls = column.null_count
    facts = (_HAS_NULL if nulls else 0) | (_IS_NULL if nulls == len(column) else 0)
    if nulls == len(column):
        return _pack_range(place, facts, form, None, None)
    if form == _FLOAT:
        low, high, has_nan = _float_bounds(column)
        return _pack_range(place, facts | (_HAS_NAN if has_nan else 0), form, low, high)
    return _pack_range(place, facts, form, *_bounds(column, form))


def _float_bounds(column: pa.Array) -> tuple[float | None, float | None, bool]:
    """The lowest and the highest number, and whether there is something that is not a number."""
    values = column.drop_null().to_numpy(zero_copy_only=False)
    low = float(values.min())
    if not math.isnan(low):
        return low, float(values.max()), False
    values = values[~np.isnan(values)]
    return (float(values.min()), float(values.max()), True) if len(values) else (None, None, True)


def _bounds(column: pa.Array, form: int) -> tuple[Any, Any]:
    kind = column.type
    if form == _WHOLE and not column.null_count:
        # Three times as fast as Arrow's way, for a few thousand.
        numbers = _as_numbers(column).to_numpy()
        return int(numbers.min()), int(numbers.max())
    if form == _WHOLE:
        column = _as_numbers(column)
    elif pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if form == _DECIMAL:
        return _unscaled(low, kind.scale), _unscaled(high, kind.scale)
    return (low.encode(), high.encode()) if pa.types.is_string(kind) else (low, high)


def _as_numbers(column: pa.Array) -> pa.Array:
    """Whole numbers as the column stores them."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.uint8())
    if pa.types.is_integer(kind):
        return column
    return column.view(pa.int32() if kind.bit_width == 32 else pa.int64())


def _unscaled(value: Decimal, scale: int) -> int:
    """The number without its point. By its digits: arithmetic would round to those of the context."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number: int = int("".join(map(str, digits))) * 10 ** (scale + exponent)
    return -number if sign else number


def _pack_range(column: int, facts: int, form: int, low: Any, high: Any) -> bytes:
    low_bytes, high_bytes = _pack_low(form, low), _pack_high(form, high)
    facts |= (0 if low_bytes is None else _HAS_LOW) | (0 if high_bytes is None else _HAS_HIGH)
    low_bytes, high_bytes = low_bytes or b"", high_bytes or b""
    return _RANGE.pack(column, facts, form, len(low_bytes), len(high_bytes)) + low_bytes + high_bytes


def _pack_low(form: int, value: Any) -> bytes | None:
    if form == _BYTES and value is not None:
        return bytes(value[:STATISTICS_BOUND_BYTES_MAX])
    return _pack_number(form, value)


def _pack_high(form: int, value: Any) -> bytes | None:
    if form != _BYTES or value is None:
        return _pack_number(form, value)
    if len(value) <= STATISTICS_BOUND_BYTES_MAX:
        return bytes(value)
    # One more in the last place that can have it; behind nothing but the highest bytes no bound is short enough.
    begun = value[:STATISTICS_BOUND_BYTES_MAX].rstrip(b"\xff")
    return begun[:-1] + bytes((begun[-1] + 1,)) if begun else None


def _pack_number(form: int, value: Any) -> bytes | None:
    if value is None:
        return None
    if form == _FLOAT:
        return _DOUBLE.pack(value)
    length = value.bit_length() // 8 + 1
    # A decimal may be longer; then its range is not known.
    return int(value).to_bytes(length, "little", signed=True) if length <= STATISTICS_BOUND_BYTES_MAX else None


def _form(column: pa.Array) -> int:
    form = _form_of(column.type)
    assert form is not None, "columns are chosen by their type"
    return form


def _hashes(column: pa.Array) -> bloom.U64:
    form = _form(column)
    column = column.drop_null() if column.null_count else column
    if form == _BYTES:
        return bloom.hashes_of_bytes(column.cast(pa.binary()) if pa.types.is_fixed_size_binary(column.type) else column)
    if form == _FLOAT:
        return bloom.hashes_of_floats(column.to_numpy(zero_copy_only=False))
    if form == _WHOLE:
        return bloom.hashes_of_ints(_as_numbers(column).to_numpy(zero_copy_only=False))
    return bloom.hashes_of_bytes(_digits_of(column))


def _digits_of(column: pa.Array) -> pa.BinaryArray:
    """Decimals as the bytes Arrow has for them: the number without its point, little-endian."""
    count, width = len(column), column.type.byte_width
    ends = pa.py_buffer((np.arange(count + 1) * width).astype(np.int32))
    data = column.buffers()[1].slice(column.offset * width, count * width) if count else pa.py_buffer(b"")
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, ends, data])


# Reading.


def summary(statistics: bytes) -> bytes:
    """What the ledger keeps: all but the filters."""
    return statistics[: 8 * statistics[3]] if len(statistics) >= _HEAD.size else b""


def length_of(statistics: bytes) -> int:
    """How long the whole is of which these are the statistics or the summary."""
    return int(_HEAD.unpack_from(statistics)[4]) if len(statistics) >= _HEAD.size else 0


def pieces_in(statistics: bytes) -> slice | None:
    """Where the pieces of a batch are in the whole of which these are the statistics or the summary; None if there are
    none. InvalidPayload if the bytes are no statistics."""
    return _Statistics(statistics, None).pieces if statistics else None


def parse(statistics: bytes, schema: pa.Schema | None) -> Mapping[str, Range]:
    """What statistics, or a summary, say of the columns of a batch of this schema, and of `_key` and `_timestamp`.

    Each range is made when it is asked for. InvalidPayload if the bytes are no statistics.
    """
    return _Statistics(statistics, schema) if statistics else {}


class _Statistics(Mapping[str, Range]):
    def __init__(self, data: bytes, schema: pa.Schema | None) -> None:
        self._data = data
        self._schema = schema
        self._ranges: dict[int, tuple[int, int, int, int, int]] = {}
        self._filters: dict[int, tuple[int, int, int]] = {}
        self.pieces: slice | None = None
        try:
            self._find()
        except struct.error:
            raise InvalidPayload("statistics cut short") from None

    def _find(self) -> None:
        """Where the ranges and filters are."""
        data = self._data
        version, ranges, filters, words, length = _HEAD.unpack_from(data)
        is_whole = len(data) in (8 * words, length) and 8 * words <= length <= STATISTICS_BYTES_MAX
        if version != VERSION or not is_whole:
            raise InvalidPayload(f"{len(data)} bytes that are no statistics of version {VERSION}")
        at = _HEAD.size
        for _ in range(ranges):
            column, facts, form, low_len, high_len = _RANGE.unpack_from(data, at)
            at += _RANGE.size
            self._ranges[column] = facts, form, at, low_len, high_len
            at += low_len + high_len
        self._has_filters = len(data) == length
        for _ in range(filters):
            column, form, _zero, position, size = _FILTER.unpack_from(data, at)
            at += _FILTER.size
            unit = 1 if form == _PIECES else bloom.BLOCK_BYTES
            if not size or size % unit or position < 8 * words or position + size > length:
                raise InvalidPayload("a filter outside of its statistics")
            if form == _PIECES:
                self.pieces = slice(position, position + size)
            else:
                self._filters[column] = form, position, size
        if at > 8 * words:
            raise InvalidPayload("statistics that are longer than they say")

    def __getitem__(self, name: str) -> Range:
        place, kind = self._place(name)
        found, probe = self._ranges.get(place), self._filters.get(place)
        if found is None and probe is None:
            raise KeyError(name)
        known = Range() if found is None else self._range(kind, *found)
        if probe is None:
            return known
        return known._replace(may_contain=self._probe(kind, *probe) if self._has_filters else None, has_filter=True)

    def __iter__(self) -> Iterator[str]:
        for place in dict.fromkeys((*self._ranges, *self._filters)):
            if place in (_KEY_PLACE, _TIMESTAMP_PLACE):
                yield KEY if place == _KEY_PLACE else TIMESTAMP
            elif self._schema is not None and place < len(self._schema):
                yield self._schema.names[place]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _place(self, name: str) -> tuple[int, pa.DataType]:
        own = _OWN_PLACES.get(name)
        if own is not None:
            return own, _OWN_KINDS[name]
        place = -1 if self._schema is None else self._schema.get_field_index(name)
        if place < 0 or self._schema is None:
            raise KeyError(name)
        return place, self._schema.field(place).type

    def _range(self, kind: pa.DataType, facts: int, form: int, at: int, low_len: int, high_len: int) -> Range:
        data = self._data
        if form != _form_of(kind):
            raise InvalidPayload(f"statistics of another type than {kind}")
        low = _unpack(form, kind, data[at : at + low_len]) if facts & _HAS_LOW else None
        high = _unpack(form, kind, data[at + low_len : at + low_len + high_len]) if facts & _HAS_HIGH else None
        return Range(low, high, bool(facts & _HAS_NULL), bool(facts & _IS_NULL), bool(facts & _HAS_NAN))

    def _probe(self, kind: pa.DataType, form: int, position: int, size: int) -> Callable[[Any], bool]:
        data = self._data
        if form != _form_of(kind) and not (kind == _OWN_KINDS[KEY] and form == _WHOLE):
            raise InvalidPayload(f"a filter of another type than {kind}")

        def may_contain(value: Any) -> bool:
            try:
                found = _hash_of(value, form, kind)
            except (TypeError, ValueError, ArithmeticError):
                return True  # of a type that the column's values are not compared with here: nothing is known
            return found is not None and bloom.may_contain(data, position, size, found)

        return may_contain


def _unpack(form: int, kind: pa.DataType, data: bytes) -> Any:
    if form == _BYTES:
        return data
    if form == _FLOAT:
        if len(data) != _DOUBLE.size:
            raise InvalidPayload("a bound of the wrong size")
        return _DOUBLE.unpack(data)[0]
    number = int.from_bytes(data, "little", signed=True)
    return number if form == _WHOLE else Decimal(f"{number}E{-kind.scale}")


def _hash_of(value: Any, form: int, kind: pa.DataType) -> int | None:
    """The hash of a value as the filter has it; None if no row can have such a value. TypeError if nobody knows."""
    if form == _WHOLE:
        number = _whole_of_key(value) if pa.types.is_binary(kind) else _whole(value)
        return None if number is None else bloom.hash_int(number)
    if form == _FLOAT:
        # A number beside a column of float32 is perhaps compared as one of those.
        double = float(np.float32(value) if pa.types.is_float32(kind) else value)
        return None if math.isnan(double) else bloom.hash_float(double)
    if form == _DECIMAL:
        return _hash_decimal(value, kind)
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bloom.hash_bytes(bytes(value))


def _whole(value: Any) -> int | None:
    """A number as the whole one it is equal to; None if there is none."""
    if not isinstance(value, int | float | Decimal | np.number):
        raise TypeError
    number = int(value)
    return number if number == value else None


def _whole_of_key(value: Any) -> int | None:
    """The number that a column has where the key is these bytes; None if no number has them as its text."""
    if not isinstance(value, bytes):
        raise TypeError
    return int(value) if WHOLE_NUMBER.fullmatch(value) else None


def _hash_decimal(value: Any, kind: pa.DataType) -> int | None:
    if not isinstance(value, int | Decimal):
        raise TypeError
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    shift = kind.scale + exponent
    if shift < 0 and number % 10**-shift:
        return None
    unscaled = number * 10**shift if shift >= 0 else number // 10**-shift
    return bloom.hash_bytes(unscaled.to_bytes(kind.byte_width, "little", signed=True))
