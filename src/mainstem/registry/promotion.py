"""Promotion: rows of one schema in the columns of another.

A column is found by its name, else by an alias. What the rows do not have gets the field's default, else null; what the
wanted schema does not have is left out; types become wider. The same goes for the fields inside structs, lists and
maps. So old rows are read with a new schema, and new rows with an old one.

What has to be done is worked out once for each pair of schemas; then it is a few casts for each batch, and columns that
are the same in both are passed on as they are.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import IncompatibleSchema, RecordTooLarge
from mainstem.core.kept import kept
from mainstem.core.layouts import ARROW_ERRORS
from mainstem.core.limits import PROMOTED_BYTES_MAX
from mainstem.core.matching import matched
from mainstem.core.plain import one_line
from mainstem.core.schema import METADATA_COLUMNS, Schema, default_of, null_bits, size_of
from mainstem.registry.compatibility import fits_list, widens
from mainstem.registry.defaults import constant_of
from mainstem.registry.texts import as_list, shown_only
from mainstem.registry.types import is_list, is_nested, type_text

# Gives the values of a column, or of a part of one, in another type.
_Step = Callable[[pa.Array], pa.Array]


def promote(batch: pa.RecordBatch, old: Schema, new: Schema) -> pa.RecordBatch:
    """A batch of `old` with exactly the columns of `new`; what records have beside their row stays behind them.

    IncompatibleSchema names the field that cannot be read; RecordTooLarge says that the rows must come in pieces.
    """
    return batch if old == new else promotion(old, new).apply(batch)


@kept(lambda old, new: size_of(old) + size_of(new))
def promotion(old: Schema, new: Schema) -> "Promotion":
    """How rows of `old` become rows of `new`."""
    return Promotion(old, new)


def lossless(old: Schema, new: Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch] | None:
    """How rows of `old` become rows of `new`, if every value of theirs is in them as well; what they lack they then
    have. None if something would be left out, or replaced by a default."""
    way = promotion(old, new)
    return way.apply if way.is_lossless else None


class Promotion:
    """The way from one schema to another. Immutable, used by any thread. A column that cannot be read is an error only
    for who wants it."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self.old = old
        self.new = new
        pairs = matched(list(new.arrow), list(old.arrow))
        # Which column of the old schema a column of the new one is made of; None: it is a default, or null.
        self.sources: Mapping[str, str | None] = {field.name: was and was.name for field, was in pairs}
        # Columns that are passed on as they are: what is known of the old column is true of the new one.
        self.unchanged = frozenset(field.name for field, was in pairs if was is not None and field.type == was.type)
        self._growth = _growth_of(pairs)
        self._columns = {field.name: _column(field, was) for field, was in pairs}
        # Whether a row is the same after it: every value of it has a place, and what may be null still may.
        self.is_lossless = _has_all(pa.struct(list(new.arrow)), pa.struct(list(old.arrow)))

    def needed(self, columns: Collection[str] | None = None) -> list[str]:
        """Which columns of the old schema are needed for these of the new one, in their order; None: for all."""
        wanted = {was for name, was in self.sources.items() if was and (columns is None or name in columns)}
        return [name for name in self.old.names if name in wanted]

    def apply(self, batch: pa.RecordBatch, columns: Collection[str] | None = None) -> pa.RecordBatch:
        """The batch in the new columns, or only some of them. It may lack old columns that are not needed for these."""
        count = batch.num_rows
        _check_growth(count, self._growth)
        fields = [field for field in self.new.arrow if columns is None or field.name in columns]
        arrays = []
        for field in fields:
            was = self.sources[field.name]
            # A column that the rows lack is made of their number alone.
            source = pa.nulls(count, pa.bool_()) if was is None else batch.column(was)
            arrays.append(self._columns[field.name](source))
        companions = [name for name in batch.schema.names if name in METADATA_COLUMNS]
        schema = [field.remove_metadata() for field in fields] + [batch.schema.field(name) for name in companions]
        return pa.RecordBatch.from_arrays(
            [*arrays, *(batch.column(name) for name in companions)], schema=pa.schema(schema)
        )


def _is_lossless(field: pa.Field, was: pa.Field | None) -> bool:
    """Whether a field can be made of what was written for it, and has every value of it."""
    if was is None:
        return field.nullable or default_of(field)[0]
    return (field.nullable or not was.nullable) and _has_all(field.type, was.type)


def _has_all(new: pa.DataType, old: pa.DataType) -> bool:
    if pa.types.is_struct(new) and pa.types.is_struct(old):
        pairs = matched(list(new), list(old))
        return sum(was is not None for _, was in pairs) == old.num_fields and all(
            _is_lossless(field, was) for field, was in pairs
        )
    if is_list(new) and is_list(old):
        return fits_list(old, new) and _is_lossless(new.value_field, old.value_field)
    if pa.types.is_map(new) and pa.types.is_map(old):
        return _has_all(new.key_type, old.key_type) and _is_lossless(new.item_field, old.item_field)
    return old == new or (not is_nested(new) and not is_nested(old) and widens(old, new))


# One step for each field. Steps work on slices: they keep to the values that an array shows.


def _column(field: pa.Field, was: pa.Field | None) -> _Step:
    try:
        step = _field(field.name, field, was)
    except IncompatibleSchema as error:
        return functools.partial(_refused, str(error))
    if was is None or field.nullable or not was.nullable:
        return step
    return functools.partial(_without_nulls, field.name, constant_of(field, field.name), step)


def _field(path: str, field: pa.Field, was: pa.Field | None) -> _Step:
    if was is not None:
        return _step(path, field.type, was.type)
    constant = constant_of(field, path)
    if constant.null_count and not field.nullable:
        raise IncompatibleSchema(
            f"column {path!r} is not in these rows, is never null and has no default; give it one, or let it be null"
        )
    return functools.partial(_repeated, constant)


def _step(path: str, new: pa.DataType, old: pa.DataType) -> _Step:
    if old == new:
        return _same
    if pa.types.is_struct(new) and pa.types.is_struct(old):
        return _struct_step(path, new, old)
    if is_list(new) and is_list(old) and fits_list(old, new):
        return _list_step(path, new, old)
    if pa.types.is_map(new) and pa.types.is_map(old):
        return _map_step(path, new, old)
    if is_nested(new) or is_nested(old) or not widens(old, new):
        raise IncompatibleSchema(
            f"column {path!r} is {one_line(type_text(old), 60)} in these rows and cannot be read as "
            f"{one_line(type_text(new), 60)}"
        )
    return functools.partial(_cast, path, new)


def _refused(why: str, array: pa.Array) -> pa.Array:
    raise IncompatibleSchema(why)


def _same(array: pa.Array) -> pa.Array:
    return array


def _cast(path: str, kind: pa.DataType, array: pa.Array) -> pa.Array:
    try:
        return array.cast(kind)
    except ARROW_ERRORS as error:  # a time so far away that a finer unit has no number for it
        raise IncompatibleSchema(
            f"column {path!r} has a value that cannot be {type_text(kind)}: {one_line(str(error), 200)}"
        ) from None


def _repeated(constant: pa.Array, array: pa.Array) -> pa.Array:
    if constant.null_count:
        return pa.nulls(len(array), constant.type)
    return constant.take(pa.array(np.zeros(len(array), np.int8)))


def _without_nulls(path: str, constant: pa.Array, step: _Step, array: pa.Array) -> pa.Array:
    """A column that is never null, made of one that might have been: its default takes the place of nulls."""
    found = step(array)
    if not found.null_count:
        return found
    if constant.null_count:
        raise IncompatibleSchema(f"column {path!r} is null in {found.null_count} of these rows and has no default")
    return _choose(found.is_valid(), found, constant)


def _choose(is_kept: pa.Array, array: pa.Array, constant: pa.Array) -> pa.Array:
    """The values that are kept, and the constant in place of the others, for types that if_else does not know, too."""
    indices = np.where(is_kept.to_numpy(zero_copy_only=False), np.arange(len(array)), len(array))
    return pa.concat_arrays([array, constant]).take(pa.array(indices))


def _struct_step(path: str, new: pa.DataType, old: pa.DataType) -> _Step:
    pairs = matched(list(new), list(old))
    fields = [field for field, _ in pairs]
    steps = [_field(f"{path}.{field.name}", field, was) for field, was in pairs]
    indices = [None if was is None else old.get_field_index(was.name) for _, was in pairs]
    strict = [
        (index, f"{path}.{field.name}", constant_of(field, path))
        for index, (field, was) in enumerate(pairs)
        if was is not None and was.nullable and not field.nullable
    ]

    growth = _growth_of(pairs)

    def apply(array: pa.Array) -> pa.Array:
        _check_growth(len(array), growth)
        absent = pa.nulls(len(array), pa.bool_())
        parts = [
            step(absent if index is None else array.field(index)) for step, index in zip(steps, indices, strict=True)
        ]
        for index, where, constant in strict:
            parts[index] = _fill(where, constant, parts[index], array)
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null() if array.null_count else None)

    return apply


def _fill(path: str, constant: pa.Array, part: pa.Array, parent: pa.Array) -> pa.Array:
    """A field of a struct without nulls where the struct is there; where it is not, a null means nothing."""
    is_missing = pc.and_(part.is_null(), parent.is_valid())
    if not is_missing.true_count:
        return part
    if constant.null_count:
        raise IncompatibleSchema(f"column {path!r} is null in {is_missing.true_count} of these rows and has no default")
    return _choose(pc.invert(is_missing), part, constant)


def _list_step(path: str, new: pa.DataType, old: pa.DataType) -> _Step:
    step = _step(f"{path}[]", new.value_type, old.value_type)
    is_strict = old.value_field.nullable and not new.value_field.nullable
    becomes_free = pa.types.is_fixed_size_list(old) and pa.types.is_list(new)

    def apply(array: pa.Array) -> pa.Array:
        array = shown_only(as_list(array) if becomes_free else array)
        if is_strict:
            _no_nulls(f"{path}[]", array.flatten())
        values = step(array.values)
        buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(new) else 2]
        return pa.Array.from_buffers(new, len(array), buffers, array.null_count, array.offset, [values])

    return apply


def _map_step(path: str, new: pa.DataType, old: pa.DataType) -> _Step:
    key_step = _step(f"{path}.key", new.key_type, old.key_type)
    item_step = _step(f"{path}.value", new.item_type, old.item_type)
    is_strict = old.item_field.nullable and not new.item_field.nullable

    def apply(array: pa.Array) -> pa.Array:
        array = shown_only(array)
        keys, items = key_step(array.keys), item_step(array.items)
        if is_strict:
            _no_nulls(f"{path}.value", items)
        entries = pa.StructArray.from_arrays([keys, items], fields=[new.key_field, new.item_field])
        return pa.Array.from_buffers(new, len(array), array.buffers()[:2], array.null_count, array.offset, [entries])

    return apply


def _no_nulls(path: str, array: pa.Array) -> None:
    if array.null_count:
        raise IncompatibleSchema(f"column {path!r} is null in some of these rows, and must not be")


# Growth


# What Arrow keeps for each value beside its bytes: a bit that says whether it is there, and where it begins.
_OVERHEAD_BYTES: Final = 5


def _growth_of(pairs: list[tuple[pa.Field, pa.Field | None]]) -> int:
    """How many bytes a row, or a struct, grows by, for what it does not have."""
    return sum(_size_of(field) + _OVERHEAD_BYTES for field, was in pairs if was is None)


def _size_of(field: pa.Field) -> int:
    """How many bytes of a column a row has that lacks the field."""
    has_default, _ = default_of(field)
    return constant_of(field, field.name).nbytes if has_default else -(-null_bits(field.type) // 8)


def _check_growth(count: int, growth: int) -> None:
    if (size := count * growth) > PROMOTED_BYTES_MAX:
        raise RecordTooLarge(
            f"{count} rows would grow by {size} bytes of defaults; at most {PROMOTED_BYTES_MAX} are made at once"
        )
