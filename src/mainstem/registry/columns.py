"""Columns: Arrow arrays built from the stored forms of values, or cast from a user's, or looked through for what their
type does not say."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.layouts import ARROW_ERRORS, binary_array
from mainstem.core.limits import UNPACKED_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.registry.takers import FieldsTaker, Misfit, time_bounds

# ------------------------------------------------------------------------------------------------------------ building


def build(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An array of values in their stored form, nulls among them.

    The common types are built without `pa.array`, whose first call imports pandas where that is installed.
    """
    if pa.types.is_string(kind):
        return _texts(values)
    if pa.types.is_binary(kind):
        return binary_array(values)
    if pa.types.is_boolean(kind):
        validity = _validity(values) if None in values else None
        return pa.Array.from_buffers(kind, len(values), [validity, _bits(values)])
    dtype = _WIDTHS.get(_counted_type(kind).id)
    if dtype is not None:
        return _numbers(values, kind, dtype)
    return pa.array(values, kind)


_WIDTHS: Final = {
    kind.id: dtype
    for kind, dtype in (
        (pa.int8(), np.int8),
        (pa.int16(), np.int16),
        (pa.int32(), np.int32),
        (pa.int64(), np.int64),
        (pa.uint8(), np.uint8),
        (pa.uint16(), np.uint16),
        (pa.uint32(), np.uint32),
        (pa.uint64(), np.uint64),
        (pa.float32(), np.float32),
        (pa.float64(), np.float64),
    )
}


def _counted_type(kind: pa.DataType) -> pa.DataType:
    """The whole numbers that count a time; any other type as it is."""
    if time_bounds(kind) is not None:
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def _numbers(values: Sequence[Any], kind: pa.DataType, dtype: Any) -> pa.Array:
    count, validity = len(values), None
    if None in values:
        validity = _validity(values)
        values = [0 if value is None else value for value in values]  # `or` would lose the sign of -0.0
    data = np.fromiter(values, dtype, count)
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(data)])


def _texts(values: Sequence[str | None]) -> pa.Array:
    try:
        text, present, validity = "".join(values), values, None  # type: ignore[arg-type]
    except TypeError:  # a None among them
        present, validity = [value or "" for value in values], _validity(values)
        text = "".join(present)  # type: ignore[arg-type]
    encoded = text.encode()
    # The length of a text in bytes is known without encoding each one only where every letter is one byte.
    pieces = present if len(encoded) == len(text) else [value.encode() for value in present]  # type: ignore[union-attr]
    ends = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)), out=ends[1:])  # type: ignore[arg-type]
    buffers = [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(encoded)]
    return pa.Array.from_buffers(pa.string(), len(pieces), buffers)


def _validity(values: Sequence[Any]) -> pa.Buffer:
    return _bits([value is not None for value in values])


def _bits(values: Sequence[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(values, bool), bitorder="little"))


# ------------------------------------------------------------------------------------------------------------- casting


def cast(table: pa.Table, schema: Schema, arrow: pa.Schema, fields: FieldsTaker) -> pa.Table:
    """A table in the columns of a schema; Misfit with the path of what does not fit."""
    names = table.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Misfit("is a column twice", twice)
    place_of = fields.places_of(names)
    arrays: list[pa.ChunkedArray] = []
    for place, (field, plain) in enumerate(zip(schema.arrow, arrow, strict=True)):
        if place in place_of:
            column = table.column(place_of[place])
            arrays.append(pa.chunked_array(_cast_chunks(column, field), plain.type))
        else:
            arrays.append(pa.chunked_array([filled(fields, place, plain.type, table.num_rows)], plain.type))
    return pa.Table.from_arrays(arrays, schema=arrow)


def _cast_chunks(column: pa.ChunkedArray, field: pa.Field) -> list[pa.Array]:
    chunks: list[pa.Array] = []
    first = 0
    for chunk in column.chunks:
        try:
            chunks.append(_cast(chunk, field))
        except _Uncastable as misfit:
            row = first + _uncastable_row(chunk, field)
            raise Misfit(f"{misfit.reason} (row {row})", misfit.path).inside(field.name) from None
        except Misfit as misfit:
            raise misfit.inside(field.name) from None
        verify(chunks[-1], field, first)
        first += len(chunk)
    return chunks


class _Uncastable(Misfit):
    """A value, not a type, that cannot be cast."""


def _uncastable_row(array: pa.Array, field: pa.Field) -> int:
    """The first row that cannot be cast. Arrow says what is wrong and not where: rows are halved until one is left."""
    low, high = 0, len(array)  # the rows before `low` can be cast, those before `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(array.slice(low, middle - low), field)
        except Misfit:
            high = middle
        else:
            low = middle
    return low


def filled(fields: FieldsTaker, place: int, kind: pa.DataType, count: int) -> pa.Array:
    """The column of a field that was not given: its default, else nulls; Misfit if it must be given."""
    default = fields.default(place)
    return (
        pa.nulls(count, kind) if default is None else build([default], kind).take(pa.array(np.zeros(count, np.int64)))
    )


def _check_unpacked(values: pa.Array, indices: pa.Array, times: Any) -> None:
    """A few values and how often each occurs can be more than memory holds; that is known before they are unpacked."""
    sizes = sizes_at(values, indices)
    size = int((sizes if times is None else sizes * times).sum())
    if size > UNPACKED_BYTES_MAX:
        raise Misfit(f"is {size} bytes without its dictionary or runs, over {UNPACKED_BYTES_MAX}; send smaller tables")


def sizes_at(values: pa.Array, indices: pa.Array) -> np.ndarray:
    """How many bytes the values at these places have, each. Takes no longer where there are many others."""
    places = indices.to_numpy(zero_copy_only=False) if not indices.null_count else indices.fill_null(0).to_numpy()
    dtype = _ENDS.get(values.type.id)
    if dtype is None or not len(values):
        return np.full(len(places), max(1, int(values.nbytes) // max(1, len(values))), np.int64)
    ends = np.frombuffer(values.buffers()[1], dtype)[values.offset :]
    found: np.ndarray = ends[places + 1].astype(np.int64) - ends[places] + 4
    return found


_ENDS: Final = {
    pa.string().id: np.int32,
    pa.binary().id: np.int32,
    pa.large_string().id: np.int64,
    pa.large_binary().id: np.int64,
}


def _without_views(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Arrow cannot look up the values of a dictionary that are views, which polars has."""
    kind = array.type.value_type
    if not pa.types.is_string_view(kind) and not pa.types.is_binary_view(kind):
        return array
    plain = array.dictionary.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    return pa.DictionaryArray.from_arrays(array.indices, plain)


def _unpacked(array: pa.Array) -> pa.Array:
    """Every value in its place: without extension, dictionary or runs."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = _without_views(array)
        _check_unpacked(array.dictionary, array.indices, None)
        array = array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        values, ends = array.values, array.run_ends.to_numpy()
        _check_unpacked(values, pa.array(np.arange(len(values))), np.diff(ends, prepend=0))
        array = pc.run_end_decode(array)
    return array


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    """An array in the type of a field, or Misfit."""
    kind = field.type
    array = _unpacked(array)
    given = array.type
    if given.equals(kind):
        return array
    if pa.types.is_null(given):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(given):
        return _cast_struct(array, field)
    if (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)) and _is_list(given):
        return _cast_list(array, field)
    if pa.types.is_map(kind) and pa.types.is_map(given):
        return _cast_map(array, field)
    if not any(is_from(given) and is_to(kind) for is_from, is_to in _CASTS):
        raise Misfit(f"must be {kind}, not {given}" + _cast_hint(given, kind))
    if pa.types.is_timestamp(kind) and (given.tz is None) != (kind.tz is None):
        raise Misfit(f"must be {kind}, not {given}; one has a time zone and the other has none")
    try:
        # Arrow wants room for every number of the integer type, not only for those that are there.
        is_int = pa.types.is_decimal(kind) and pa.types.is_integer(given)
        found = (array.cast(pa.decimal128(20, 0)) if is_int else array).cast(kind)
    except ARROW_ERRORS as error:
        raise _Uncastable(f"must be {kind}, and {_first_line(error)}") from None
    if has_overflown(array, found):
        raise _Uncastable(f"must be {kind}, and a number is too large for it")
    return found


def has_overflown(given: pa.Array, found: pa.Array) -> bool:
    """Whether a number became infinite by a cast: Arrow does not look, as it does of whole numbers."""
    return pa.types.is_floating(found.type) and _infinities(found) > _infinities(given)


def _infinities(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_floating(kind):
        infinite = pc.is_inf(array)
    elif _is_text(kind) or _is_bytes(kind):
        # Of what can be read as a number only infinity, in all its spellings, has these letters.
        infinite = pc.match_substring(array, "inf", ignore_case=True)
    else:
        return 0
    return pc.sum(infinite).as_py() or 0


def _cast_struct(array: pa.StructArray, field: pa.Field) -> pa.Array:
    kind = field.type
    fields = FieldsTaker(list(kind))
    place_of = fields.places_of([given.name for given in array.type])
    parts: list[pa.Array] = []
    flat = array.flatten()
    for place, part in enumerate(kind):
        if place not in place_of:
            parts.append(filled(fields, place, part.type, len(array)))
            continue
        try:
            parts.append(_cast(flat[place_of[place]], part))
        except Misfit as misfit:
            raise misfit.inside(part.name) from None
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_mask(array))


def _cast_list(array: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    try:
        plain = array.cast(pa.list_(array.type.value_field))
    except ARROW_ERRORS as error:
        raise _Uncastable(f"must be {kind}, and {_first_line(error)}") from None
    # The values alone: those outside a slice, or under a null, are not there.
    try:
        values = _cast(plain.flatten(), kind.value_field)
    except Misfit as misfit:
        raise misfit.inside("[]") from None
    found = pa.ListArray.from_arrays(_ends(plain), values, pa.list_(kind.value_field), mask=_mask(plain))
    if pa.types.is_list(kind):
        return found
    try:
        return found.cast(kind)
    except ARROW_ERRORS as error:
        raise _Uncastable(f"must be {kind}, and {_first_line(error)}") from None


def _cast_map(array: pa.MapArray, field: pa.Field) -> pa.Array:
    kind = field.type
    entries = array.cast(_entries_of(array.type))
    flat = entries.flatten()
    parts: list[pa.Array] = []
    for name, values, part in (("key", flat.field(0), kind.key_field), ("value", flat.field(1), kind.item_field)):
        try:
            parts.append(_cast(values, part))
        except Misfit as misfit:
            raise misfit.inside(name) from None
    try:
        return pa.MapArray.from_arrays(_ends(entries), *parts, type=kind, mask=_mask(entries))
    except ARROW_ERRORS as error:  # a key that is null in its dictionary
        raise _Uncastable(f"must be {kind}, and {_first_line(error)}") from None


def _ends(lists: pa.ListArray) -> pa.Array:
    """Where each list ends among the values that are present."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _any_of(*kinds: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(is_kind(kind) for is_kind in kinds)


_is_list: Final = _any_of(
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_is_text: Final = _any_of(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_is_bytes: Final = _any_of(
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary
)
_is_number: Final = _any_of(pa.types.is_integer, pa.types.is_floating)
# What may be cast to what, if every value stays what it is. Whole numbers of pandas are floats once one is missing.
_CASTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]] = (
    (_is_number, _is_number),
    (pa.types.is_boolean, pa.types.is_boolean),
    (_any_of(_is_text, _is_bytes), _any_of(_is_text, _is_bytes)),
    (_any_of(pa.types.is_decimal, pa.types.is_integer), pa.types.is_decimal),
    (pa.types.is_date, pa.types.is_date),
    (pa.types.is_time, pa.types.is_time),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (pa.types.is_duration, pa.types.is_duration),
)


def _cast_hint(given: pa.DataType, kind: pa.DataType) -> str:
    if pa.types.is_floating(given) and pa.types.is_decimal(kind):
        return "; floats are not exact: cast the column yourself"
    if _is_text(given):
        return "; texts are not taken apart: cast the column yourself"
    return ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


# ----------------------------------------------------------------------------------------------------------- verifying


def verify(array: pa.Array, field: pa.Field, first: int = 0) -> None:
    """Misfit if there is a null where none may be, or a time that no reader can show; with the path, and the row of the
    column, whose first one is `first`."""
    if (wrong := _wrong(array, field)) is not None:
        raise Misfit(f"{wrong.reason} (row {first + wrong.row})", f"{field.name}{wrong.path}")


class _Wrong(NamedTuple):
    """A value that may not be: the place in its array where it is, the path from there, and why."""

    row: int
    path: str
    reason: str


def _wrong(array: pa.Array, field: pa.Field) -> _Wrong | None:
    kind = field.type
    if array.null_count and not field.nullable:
        return _Wrong(pc.index(array.is_null(), True).as_py(), "", f"must be {kind}, not null")
    bounds = time_bounds(kind)
    if bounds is not None:
        return _out_of_bounds(array, kind, bounds)
    if not pa.types.is_nested(kind) or not _is_verified(kind):
        return None
    present = array.drop_null() if array.null_count else array
    found = _wrong_in_struct(present, kind) if pa.types.is_struct(kind) else _wrong_in_list(present, kind)
    if found is None or not array.null_count:
        return found
    return found._replace(row=int(np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))[found.row]))


def _wrong_in_struct(array: pa.Array, kind: pa.DataType) -> _Wrong | None:
    for place, part in enumerate(kind):
        if (found := _wrong(array.field(place), part)) is not None:
            return found._replace(path=f".{part.name}{found.path}")
    return None


def _wrong_in_list(array: pa.Array, kind: pa.DataType) -> _Wrong | None:
    """The same of a list or a map without nulls."""
    if pa.types.is_map(kind):
        array = array.cast(_entries_of(kind))
        entries = pc.list_flatten(array)
        parts = [(".key", entries.field(0), kind.key_field), (".value", entries.field(1), kind.item_field)]
    else:
        parts = [("", array.flatten(), kind.value_field)]
    for name, values, part in parts:
        if (found := _wrong(values, part)) is not None:
            ends = np.cumsum(pc.list_value_length(array).to_numpy())
            row = int(np.searchsorted(ends, found.row, side="right"))
            item = found.row - (int(ends[row - 1]) if row else 0)
            return found._replace(row=row, path=f"{name or f'[{item}]'}{found.path}")
    return None


def _entries_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([kind.key_field, kind.item_field]))


def _is_verified(kind: pa.DataType) -> bool:
    """Whether something inside a type may break a promise."""
    parts = [kind.field(place) for place in range(kind.num_fields)]
    if pa.types.is_map(kind):
        parts = [kind.item_field]
    return any(not part.nullable or time_bounds(part.type) or _is_verified(part.type) for part in parts)


def _out_of_bounds(array: pa.Array, kind: pa.DataType, bounds: tuple[int, int]) -> _Wrong | None:
    low, high = bounds
    counted = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    found = pc.min_max(counted)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is None or low <= least <= most <= high:
        return None
    wrong = least if least < low else most
    row = pc.index(counted, pa.scalar(wrong, counted.type)).as_py()
    return _Wrong(row, "", f"must be {kind}, and {wrong} is out of range")
