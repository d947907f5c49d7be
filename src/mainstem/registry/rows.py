"""Rows: dicts, JSON and tables of users as batches of a schema's columns, checked on the way.

One row is checked where its writer hands it over, by a function that is put together for the schema: the usual row (a
dict with every field, of the usual types) passes it in a few hundred nanoseconds. Whatever it does not recognise goes
the general way, `takers`, which takes more and knows the path of what is wrong. What was taken is turned into columns
later, many rows at a time.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import SchemaMismatch
from mainstem.core.kept import kept
from mainstem.core.layouts import shape_of
from mainstem.core.schema import Schema, count_fields, null_bits, size_of
from mainstem.registry import columns
from mainstem.registry.known_fields import trimmer_of
from mainstem.registry.takers import FieldsTaker, Misfit, described, int_bounds

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit: the first is 0. `path` is the field, empty if it is no row at all."""

    index: int
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}" if self.path else self.reason


class RowConverter:
    """Makes rows of one schema out of what users have. Keeps nothing of them; any thread. See `converter_of`."""

    def __init__(self, schema: Schema) -> None:
        """InvalidSchema if a default does not fit its own field."""
        self.schema = schema
        # As in the payload of a batch without keys, headers and times: no metadata.
        self.arrow: pa.Schema = shape_of(0, schema).schema
        self.fields = FieldsTaker(list(schema.arrow))
        # A row of nulls.
        self.nothing: Values = (None,) * len(self.arrow)
        # Like `convert`, but what does not fit is a Misfit.
        self.take = _make_convert(schema.arrow, self.fields, self._convert_any)
        self._json_sizes = _JsonSizes.of(schema)

    # One row.

    def check(self, row: Mapping[str, Any]) -> None:
        """SchemaMismatch with the path of the first field that does not fit."""
        self.convert(row)

    def convert(self, row: Any) -> tuple[Values, int]:
        """The values of a row in the order of the columns, as `build` takes them, and how many bytes they are."""
        try:
            return self.take(row)
        except Misfit as misfit:
            raise _mismatch(misfit) from None

    def convert_json(self, text: bytes | str) -> tuple[Values, int]:
        """The same for a row in JSON."""
        from mainstem.registry import json_rows

        try:
            return json_rows.convert_one(self.take, text)
        except Misfit as misfit:
            raise _mismatch(misfit) from None

    @functools.cached_property
    def _of_stored(self) -> "RowConverter":
        """The same, but a field that the schema does not know is left out."""
        found, take, trim = copy.copy(self), self.take, trimmer_of(self.schema.arrow)
        found.take = lambda row: take(trim(row))
        return found

    def _convert_any(self, row: Any) -> tuple[Values, int]:
        if not isinstance(row, Mapping):
            raise Misfit(f"a row is an object with the fields of the schema, not {described(row)}")
        values = tuple(self.fields.take(row))
        return values, sum(map(_size, values))

    # Many rows.

    def to_batch(self, rows: Sequence[Mapping[str, Any] | None]) -> pa.RecordBatch:
        """Rows as a batch of the schema's columns; None is a row of nulls, whatever the schema says."""
        return self.build([self.nothing if row is None else self.convert(row)[0] for row in rows])

    def build(self, rows: Sequence[Values]) -> pa.RecordBatch:
        """What `convert` took, as a batch of the schema's columns."""
        found = zip(*rows, strict=True) if rows else [() for _ in self.arrow]
        arrays = [columns.build(values, field.type) for values, field in zip(found, self.arrow, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def from_json(
        self, values: pa.BinaryArray, *, is_first_enough: bool = False, is_stored: bool = False
    ) -> tuple[pa.RecordBatch, Sequence[BadRow]]:
        """Rows in JSON, one in each value. Those that do not fit are told, and are rows of nulls in the batch; a value
        that is null is such a row too, and not a bad one. With `is_first_enough` the batch ends soon after the first
        bad row. Of what `is_stored` unknown fields are left out: an earlier version may have had them."""
        from mainstem.registry import json_rows

        converter = self._of_stored if is_stored else self
        batch, misfits = json_rows.read(converter, values, is_first_enough=is_first_enough)
        return batch, [BadRow(index, misfit.path, misfit.reason) for index, misfit in sorted(misfits.items())]

    def json_size(self, values: pa.BinaryArray, value_bytes: int = 0) -> int:
        """About how many bytes the rows in these values take even if they leave everything out; `value_bytes` is what
        each value of a field counts beside its size, for the time that it takes."""
        sizes = self._json_sizes
        size = len(values) * sizes.row.counted(value_bytes)
        if item := sizes.item.counted(value_bytes):
            size += item * _count_matches(values, _BARE_ITEM)
        if value := sizes.value.counted(value_bytes):
            size += value * _count_matches(values, _BARE_VALUE)
        return size

    def json_size_max(self, count: int, size: int) -> int:
        """No less than `json_size` of so many values of so many bytes, without looking at them."""
        sizes = self._json_sizes
        # What counts has at least two characters.
        return count * sizes.row.counted(0) + size // 2 * (sizes.item.counted(0) + sizes.value.counted(0))

    def cast(self, table: pa.Table) -> pa.Table:
        """A user's table in the columns of the schema, found by name or alias. Values stay what they are: a cast that
        would change one is a SchemaMismatch with the path."""
        try:
            return columns.cast(table, self.schema, self.arrow, self.fields)
        except Misfit as misfit:
            raise _mismatch(misfit) from None


class _NullSize(NamedTuple):
    """What takes room although it is left out, or null, and how many fields it has."""

    bits: int = 0
    fields: int = 0

    @classmethod
    def of(cls, fields: Iterable[pa.Field]) -> "_NullSize":
        parts = [(null_bits(field.type), count_fields(field)) for field in fields]
        return cls(sum(bits for bits, _ in parts), sum(count for _, count in parts))

    def counted(self, value_bytes: int) -> int:
        return -(-self.bits // 8) + value_bytes * self.fields

    def or_larger(self, other: "_NullSize") -> "_NullSize":
        return _NullSize(max(self.bits, other.bits), max(self.fields, other.fields))


class _JsonSizes(NamedTuple):
    row: _NullSize
    item: _NullSize  # the largest of any list, or of a map that is written as pairs
    value: _NullSize  # the largest of any map

    @classmethod
    def of(cls, schema: Schema) -> "_JsonSizes":
        item = value = _NullSize()
        for kind in _types_in(schema.arrow):
            if pa.types.is_list(kind):
                item = item.or_larger(_NullSize.of([kind.value_field]))
            elif pa.types.is_map(kind):
                value = value.or_larger(_NullSize.of([kind.key_field, kind.item_field]))
        return cls(_NullSize.of(schema.arrow), item.or_larger(value), value)


# How many times the size of its schema a converter has: it is a function of hundreds of lines.
_CONVERTER_GROWTH: Final = 7
# An item of an array, or a value of an object, that is null or an object: it may be far larger than its text.
_BARE_ITEM: Final = r"[\[,]\s*[n{]"
_BARE_VALUE: Final = r":\s*[n{]"


def _types_in(fields: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    """The types of fields and of all that is nested in them."""
    for field in fields:
        yield field.type
        yield from _types_in(field.type.field(index) for index in range(field.type.num_fields))


def _count_matches(values: pa.BinaryArray, pattern: str) -> int:
    return int(pc.sum(pc.count_substring_regex(values, pattern)).as_py() or 0)


@kept(lambda schema: _CONVERTER_GROWTH * size_of(schema))
def converter_of(schema: Schema) -> RowConverter:
    """The converter of a schema: making one takes a millisecond, and for the widest a third of a second."""
    return RowConverter(schema)


def verify(schema: Schema, batch: pa.RecordBatch) -> None:
    """Whether a batch that has the schema's columns keeps what the schema promises beyond their types: no nulls where
    there must be none, and times that every reader can show. SchemaMismatch names the path and the row."""
    try:
        for place, field in enumerate(shape_of(0, schema).schema):
            columns.verify(batch.column(place), field)
    except Misfit as misfit:
        raise _mismatch(misfit) from None


def _mismatch(misfit: Misfit) -> SchemaMismatch:
    text = f"{misfit.path} {misfit.reason}" if misfit.path else misfit.reason
    return SchemaMismatch(text, path=misfit.path)


def _size(value: Any) -> int:
    """About how many bytes a value takes in a batch."""
    if type(value) is str:
        return len(value) if value.isascii() else len(value.encode())
    if type(value) is bytes:
        return len(value)
    if type(value) is dict:
        return sum(map(_size, value.values()))
    if type(value) is list or type(value) is tuple:
        return 4 + sum(map(_size, value))
    return 8


# What an expression says of a value of the usual type, by the type of the column; `{0}` is the value.
_USUAL: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "{0} is True or {0} is False"),
    (pa.types.is_integer, "type({0}) is int and {low} <= {0} <= {high}"),
    (pa.types.is_float64, "type({0}) is float"),
    (pa.types.is_string, "type({0}) is str and {0}.isascii()"),
    (pa.types.is_binary, "type({0}) is bytes"),
)


def _make_convert(
    schema: pa.Schema, fields: FieldsTaker, general: Callable[[Any], tuple[Values, int]]
) -> Callable[[Any], tuple[Values, int]]:
    """The function that takes the usual row, and hands any other to `general`.

    It is put together as text, like the methods of a dataclass: a loop over the fields would take four times as long.
    Names of users come into it only as quoted texts.
    """
    names = [f"v{place}" for place in range(len(schema))]
    usual = [_usual(name, field) for name, field in zip(names, schema, strict=True)]
    taken = [place for place, test in enumerate(usual) if not test]
    lines = [
        "def convert(row):",
        f"    if type(row) is not dict or len(row) != {len(schema)}:",
        "        return general(row)",
        "    try:",
        *[f"        {name} = row[{field.name!r}]" for name, field in zip(names, schema, strict=True)],
        "    except KeyError:",
        "        return general(row)",
    ]
    if any(usual):
        lines += [f"    if not ({' and '.join(f'({test})' for test in usual if test)}):", "        return general(row)"]
    if taken:
        lines += ["    place = 0", "    try:"]
        lines += [f"        place = {place}; {names[place]} = take{place}({names[place]})" for place in taken]
        lines += ["    except Misfit as misfit:", "        raise misfit.inside(names[place]) from None"]
    lines.append(f"    return ({', '.join(names)},), {_size_text(names, schema)}")
    scope: dict[str, Any] = {"general": general, "Misfit": Misfit, "names": fields.names, "size": _size}
    scope.update({f"take{place}": fields.takers[place] for place in taken})
    exec("\n".join(lines), scope)  # noqa: S102
    convert: Callable[[Any], tuple[Values, int]] = scope["convert"]
    return convert


def _usual(name: str, field: pa.Field) -> str:
    """What must be true of a value that needs no taking; nothing if each one does."""
    for is_kind, text in _USUAL:
        if is_kind(field.type):
            low, high = int_bounds(field.type) if pa.types.is_integer(field.type) else (0, 0)
            test = text.format(name, low=low, high=high)
            return f"{test} or {name} is None" if field.nullable else test
    return ""


def _size_text(names: Sequence[str], schema: pa.Schema) -> str:
    fixed, parts = 0, []
    for name, field in zip(names, schema, strict=True):
        kind = field.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            parts.append(f"(len({name}) if {name} else 0)" if field.nullable else f"len({name})")
        elif pa.types.is_nested(kind):
            parts.append(f"size({name})")
        else:
            fixed += (kind.bit_width + 7) // 8
    return " + ".join([str(fixed), *parts])
