"""Rows in JSON, one in each value of a column, read by Arrow where that is sure to be right, else one by one.

Each value is wrapped as `{"r": value}` on a line of its own and all of them are parsed at once. A line cannot take a
part of the next one into itself, because no bracket and no text can be left open at its end: `}` and a newline, then
`{`, are only possible between two complete rows. So if there are as many rows as lines, each line is one row.

What Arrow reads otherwise than it is meant is read again, exactly: a field that is null although it has a default, a
field under its alias and its name, numbers that JSON does not have, a whole number -0 in a column of floats. If a parse
fails, smaller parts are parsed on their own; few rows are read one by one, by Python's own parser, which also tells
what is wrong. It, and not Arrow, decides what a bad row is.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.kept import kept
from mainstem.core.layouts import ARROW_ERRORS
from mainstem.core.limits import JSON_OBJECT_NAMES_MAX
from mainstem.core.plain import first_repeated
from mainstem.core.schema import Schema, aliases_of, default_of, size_of
from mainstem.registry import columns
from mainstem.registry.takers import Misfit, described

if TYPE_CHECKING:
    from mainstem.registry.rows import RowConverter, Values

_FEW: Final = 24
# How many rows are parsed together once a parse of more has failed; those of the last are then read one by one.
_PARTS: Final = (2_048, 128)
# For each alias all the texts are searched; with more of them than this, beside two for each field, rows one by one are
# sooner read.
_ALIASES_FEW: Final = 16
_decode = msgspec.json.Decoder().decode


# ------------------------------------------------------------------------------------------------------------- one row


def convert_one(convert: Callable[[Any], tuple["Values", int]], text: bytes | str) -> tuple["Values", int]:
    """A row in JSON, or Misfit.

    The fast decoder lets the last of two equal names win, so its word is taken only where there are as many quotes as
    the names and texts it found need.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        row = _decode(data)
        if type(row) is dict and b"\\" not in data:
            texts = list(map(type, row.values())).count(str)
            if data.count(b'"') == 2 * (len(row) + texts):
                return convert(row)
    except (msgspec.DecodeError, UnicodeError, RecursionError, Misfit):
        pass
    return convert(_parse(text))


def _parse(text: bytes | str) -> dict[str, Any]:
    """A JSON object, exactly: numbers as they stand there, no name twice."""
    try:
        found = _exact_decoder.decode(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise Misfit(f"is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        reason = "there is nothing" if not text.strip() else f"{error.msg} at character {error.pos}"
        raise Misfit(f"is not JSON: {reason}") from None
    except RecursionError:
        raise Misfit("is nested too deeply") from None
    except (ValueError, ArithmeticError):  # a number of thousands of digits
        raise Misfit("has a number that is too long") from None
    if type(found) is not dict:
        raise Misfit(f"a row is a JSON object, not {described(found)}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > JSON_OBJECT_NAMES_MAX:
        raise Misfit(f"has an object of {len(pairs)} names; at most {JSON_OBJECT_NAMES_MAX} are read")
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = first_repeated(name for name, _ in pairs)
        raise Misfit("is there twice", "" if twice is None else twice[:40])
    return found


def _refuse_constant(name: str) -> Any:
    raise Misfit(f"has {name}, which is not JSON; write it as text")


_exact_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=Decimal, strict=True
)


# ----------------------------------------------------------------------------------------------------------- many rows


class _Plan(NamedTuple):
    """How Arrow reads the rows of a schema. `names`: of each column its name and its aliases, as they stand in JSON."""

    row: pa.DataType
    names: tuple[tuple[str, ...], ...]
    has_default: tuple[bool, ...]
    has_floats: bool


class _Unclear(Exception):
    """Not every one of these rows can be read this way."""


def read(
    converter: "RowConverter", values: pa.BinaryArray, *, is_first_enough: bool = False
) -> tuple[pa.RecordBatch, dict[int, Misfit]]:
    """The rows as a batch, and why those that are null although a value is there do not fit. With `is_first_enough`
    nothing is read behind the first part that has such a row."""
    pieces: list[pa.RecordBatch] = []
    misfits: dict[int, Misfit] = {}
    for piece in _read_parts(converter, _plan_of(converter.schema), values, 0, misfits):
        pieces.append(piece)
        if is_first_enough and misfits:
            break
    if len(pieces) == 1:
        return pieces[0], misfits
    whole = pa.Table.from_batches(pieces, schema=converter.arrow).combine_chunks().to_batches()
    return (whole[0] if whole else converter.build([])), misfits


def _read_parts(
    converter: "RowConverter", plan: _Plan | None, values: pa.BinaryArray, first: int, misfits: dict[int, Misfit]
) -> Iterator[pa.RecordBatch]:
    """The rows as one batch; where that cannot be, as batches of smaller and smaller parts."""
    count = len(values)
    if plan is not None and count >= _FEW:
        try:
            yield _read_all(converter, plan, values, first, misfits)
        except _Unclear:
            pass
        else:
            return
    size = next((size for size in _PARTS if size < count), None)
    if size is None:
        yield _read_each(converter, values.to_pylist(), range(first, first + count), misfits)
        return
    for at in range(0, count, size):
        yield from _read_parts(converter, plan, values.slice(at, size), first + at, misfits)


def _read_each(
    converter: "RowConverter", values: Sequence[bytes | None], places: Sequence[int], misfits: dict[int, Misfit]
) -> pa.RecordBatch:
    rows: list[Values] = []
    for place, value in zip(places, values, strict=True):
        taken = converter.nothing
        if value is not None:
            try:
                taken = convert_one(converter.take, value)[0]
            except Misfit as misfit:
                misfits[place] = misfit
        rows.append(taken)
    return converter.build(rows)


def _read_all(
    converter: "RowConverter", plan: _Plan, values: pa.BinaryArray, first: int, misfits: dict[int, Misfit]
) -> pa.RecordBatch:
    rows = _parse_all(plan, values)
    unclear = np.zeros(len(values), bool)
    if rows.null_count:
        # `null` is JSON, but no row; where there is no value there is none either.
        unclear |= _mask(pc.and_(rows.is_null(), values.is_valid()))
    # Looked for in all of them at once, which is a tenth of the work: in most there is none.
    if plan.has_floats and b"-0" in _bytes_of(values):
        # Python has no whole number -0, so it is 0.0 where rows are read one by one.
        unclear |= _mask(pc.fill_null(pc.match_substring_regex(values, r"-0\s*[,}\]]"), False))
    found = _merge_names(converter, plan, rows, values, unclear)
    try:
        arrays = [
            array if array.type.equals(field.type) else array.cast(field.type)
            for array, field in zip(found, converter.arrow, strict=True)
        ]
        _verify(converter, arrays, rows, unclear)
    except (Misfit, *ARROW_ERRORS):
        raise _Unclear from None
    batch = pa.RecordBatch.from_arrays(arrays, schema=converter.arrow)
    return _replaced(converter, batch, values, unclear, first, misfits) if unclear.any() else batch


def _parse_all(plan: _Plan, values: pa.BinaryArray) -> pa.StructArray:
    import pyarrow.json

    if values.null_count:
        values = values.fill_null(b"null")
    lines = pc.binary_join_element_wise(b'{"r":', values, b"}\n", b"")
    try:
        lines.cast(pa.string())  # the parser takes any bytes for text
        table = pyarrow.json.read_json(
            pa.BufferReader(lines.buffers()[2]),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.buffers()[2].size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([("r", plan.row)]), unexpected_field_behavior="error"
            ),
        )
    except ARROW_ERRORS as error:
        raise _Unclear from error
    if table.num_rows != len(values) or table.column(0).num_chunks != 1:
        raise _Unclear
    return table.column(0).chunk(0)


def _merge_names(
    converter: "RowConverter", plan: _Plan, rows: pa.StructArray, values: pa.BinaryArray, unclear: np.ndarray
) -> list[pa.Array]:
    """The columns of the schema: each from its name or an alias, with its default where the row does not have it."""
    parts = iter(rows.flatten())
    arrays: list[pa.Array] = []
    for place, names in enumerate(plan.names):
        array, *others = [next(parts) for _ in names]
        if others or (plan.has_default[place] and array.null_count):
            is_there = [_mask(pc.fill_null(_contains(values, name), False)) for name in names]
            # A name may be written with escapes, or be part of a text: then only the exact parser knows.
            unclear |= np.sum(is_there, axis=0) > 1
            for other in others:
                array = pc.if_else(other.is_valid(), other, array)
            if plan.has_default[place] and array.null_count:
                is_null = _mask(array.is_null()) & _mask(rows.is_valid())
                unclear |= is_null & np.any(is_there, axis=0)
                default = columns.filled(converter.fields, place, converter.arrow.field(place).type, len(array))
                # As Arrow's parser has it: a time is still a text here.
                array = pc.if_else(pa.array(is_null & ~unclear), _as_read(default, array.type), array)
        arrays.append(array)
    return arrays


def _contains(values: pa.BinaryArray, name: str) -> pa.BooleanArray:
    return pc.or_(pc.match_substring(values, f'"{name}"'), pc.match_substring(values, "\\"))


def _as_read(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type.equals(kind):
        return array
    zone = array.type.tz if pa.types.is_timestamp(array.type) else None
    return pc.strftime(array, "%Y-%m-%dT%H:%M:%SZ") if zone is not None else array.cast(kind)


def _verify(converter: "RowConverter", arrays: Sequence[pa.Array], rows: pa.StructArray, unclear: np.ndarray) -> None:
    """Misfit if something was read that is not there in JSON, or may not be in a row."""
    kept = None
    if rows.null_count or unclear.any():
        kept = pa.array(_mask(rows.is_valid()) & ~unclear)
    for array, field in zip(arrays, converter.arrow, strict=True):
        present = array if kept is None else array.filter(kept)
        columns.verify(present, field)
        _verify_finite(present)


def _verify_finite(array: pa.Array) -> None:
    """JSON has no NaN and no infinity; Arrow's parser does."""
    kind = array.type
    if pa.types.is_floating(kind):
        if not pc.all(pc.is_finite(array)).as_py() and len(array) > array.null_count:
            raise Misfit("is not JSON")
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            _verify_finite(part)
    elif pa.types.is_list(kind):
        _verify_finite(array.flatten())


def _replaced(
    converter: "RowConverter",
    batch: pa.RecordBatch,
    values: pa.BinaryArray,
    unclear: np.ndarray,
    first: int,
    misfits: dict[int, Misfit],
) -> pa.RecordBatch:
    """The batch with those rows read one by one that are unclear."""
    places = np.flatnonzero(unclear)
    given = values.take(pa.array(places)).to_pylist()
    exact = _read_each(converter, given, [first + int(place) for place in places], misfits)
    source = np.arange(len(values))
    source[places] = len(values) + np.arange(len(places))
    both = pa.Table.from_batches([batch, exact]).combine_chunks()
    return both.take(pa.array(source)).combine_chunks().to_batches()[0]


def _bytes_of(values: pa.BinaryArray) -> bytes:
    """What these values have, one after the other: a part of a column does not have the bytes of the whole."""
    _, places, data = values.buffers()
    ends = np.frombuffer(places, np.int32, len(values) + 1, 4 * values.offset)
    first, last = int(ends[0]), int(ends[-1])
    return data.slice(first, last - first).to_pybytes() if last > first else b""


def _mask(array: pa.BooleanArray) -> np.ndarray:
    found: np.ndarray = array.to_numpy(zero_copy_only=False)
    return found


@kept(size_of)
def _plan_of(schema: Schema) -> _Plan | None:
    """How Arrow's parser reads rows of this schema; None if it has types that it cannot read as we write, or too many
    aliases."""
    fields: list[pa.Field] = []
    names: list[tuple[str, ...]] = []
    taken = set(schema.arrow.names)
    for field in schema.arrow:
        kind = _read_type(field.type)
        if kind is None:
            return None
        aliases = [alias for alias in dict.fromkeys(aliases_of(field)) if alias not in taken]
        taken.update(aliases)
        names.append((field.name, *aliases))
        fields += [pa.field(name, kind) for name in names[-1]]
    if len(fields) > 3 * len(names) + _ALIASES_FEW:
        return None
    defaults = tuple(default_of(field)[1] is not None for field in schema.arrow)
    row = pa.struct(fields)
    return _Plan(row, tuple(names), defaults, _has_floats(row))


def _has_floats(kind: pa.DataType) -> bool:
    parts = (kind.field(index).type for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind)) or any(map(_has_floats, parts))


def _read_type(kind: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind):
        return pa.string()  # cast later: only the cast minds the time zone
    if types.is_list(kind):
        item = _read_type(kind.value_type)
        return None if item is None else pa.list_(pa.field(kind.value_field.name, item))
    if types.is_struct(kind):
        if any(aliases_of(field) or default_of(field)[0] for field in kind):
            return None
        parts = [_read_type(field.type) for field in kind]
        if any(part is None for part in parts):
            return None
        return pa.struct([pa.field(field.name, part) for field, part in zip(kind, parts, strict=True)])
    return kind if any(is_kind(kind) for is_kind in _READ_AS_THEY_ARE) else None


_READ_AS_THEY_ARE: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_decimal,
)
