"""Columns as a lake table has them: which type each of a stream's types becomes, and the cast.

Every type keeps its values or is refused with the column's name: a table is for years, and for readers that know
nothing of where it came from.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import SchemaMismatch
from mainstem.registry.types import type_text

_TIME: Final = pa.timestamp("us", "UTC")
_LOCAL_TIME: Final = pa.timestamp("us")
_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_DECIMAL_DIGITS_MAX: Final = 38


def table_schema(schema: pa.Schema) -> pa.Schema:
    """The columns that a table gets of these; all may be null, as tombstones and older rows have nulls."""
    return pa.schema([pa.field(field.name, _table_type(field.type, field.name)) for field in schema])


def with_names(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """The columns, those of `names` called what it says."""
    return pa.schema([field.with_name(names.get(field.name, field.name)) for field in schema])


def as_table_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with exactly these columns: cast, in this order, null where they have none."""
    if rows.schema.equals(schema):
        return rows
    arrays = []
    for field in schema:
        if field.name not in rows.schema.names:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        arrays.append(column if column.type == field.type else _cast(column, field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def missing_columns(has: pa.Schema, wanted: pa.Schema) -> Sequence[pa.Field]:
    """Columns that the table lacks. SchemaMismatch if one that it has cannot take what the stream has now."""
    for field in wanted:
        if field.name in has.names and not _can_take(has.field(field.name).type, field.type):
            raise SchemaMismatch(
                f"column {field.name!r} is {type_text(has.field(field.name).type)} in the table, and "
                f"{type_text(field.type)} in what is to be written; a table's column keeps its type: write to a new "
                "table, or give the column another name with sql=",
                path=field.name,
            )
    return [field for field in wanted if field.name not in has.names]


def renamed(rows: Sequence[str], has: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What a table calls those of these columns that the stream renamed after the table got them: it keeps its name for
    each. SchemaMismatch if it has several names of one, and not the present one."""
    found = {}
    for name in rows:
        older = [alias for alias in has if alias in aliases.get(name, ()) and alias not in rows]
        if name in has or not older:
            continue
        if len(older) > 1:
            raise SchemaMismatch(
                f"column {name!r}: the table has it under several of its names, {', '.join(older)}, and nothing says "
                "which one goes on; write to a new table",
                path=name,
            )
        found[name] = older[0]
    return found


def merged_schema(has: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """The columns of the table once it has those that it lacks: its own types win."""
    return pa.schema([*has, *missing_columns(has, wanted)])


def _can_take(has: pa.DataType, new: pa.DataType) -> bool:
    """Whether values of a stream's column may be tried in a table's. What is wider is cast value by value, and a value
    that does not fit is refused."""
    if has == new:
        return True
    families = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(family(has) and family(new) for family in families) or (
        pa.types.is_floating(has) and pa.types.is_integer(new)
    )


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        found = column.cast(field.type)
        is_floating = pa.types.is_floating
        if is_floating(field.type) and is_floating(column.type) and field.type.bit_width < column.type.bit_width:
            _require_kept(column, found)
        return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"column {field.name!r}: a value does not fit the table's {type_text(field.type)} ({error}); write to a "
            "new table, or, in mode append, change the value with sql=",
            path=field.name,
        ) from None


def _require_kept(column: pa.Array, found: pa.Array) -> None:
    """ArrowInvalid unless every number is what it was: Arrow looks at whole numbers alone."""
    is_kept = pc.or_(pc.equal(found.cast(column.type), column), pc.is_nan(column))
    if pc.any(pc.invert(is_kept)).as_py():
        raise pa.ArrowInvalid("a number is too large, or has more digits")


def _table_type(kind: pa.DataType, path: str) -> pa.DataType:
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_dictionary(kind):
        return _table_type(kind.value_type, path)
    if pa.types.is_timestamp(kind):
        return _LOCAL_TIME if kind.tz is None else _TIME
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        if kind.precision > _DECIMAL_DIGITS_MAX:
            raise _unfit(kind, path)
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        item = _table_type(kind.item_type, f"{path}.value")
        return pa.map_(_table_type(kind.key_type, f"{path}.key"), item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _table_type(kind.value_type, f"{path}.element")))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _table_type(field.type, f"{path}.{field.name}")) for field in kind])
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_null(kind):
        raise _unfit(kind, path)
    return kind


def _unfit(kind: pa.DataType, path: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"column {path!r} is {type_text(kind)}, and a lake table has no such type; leave it out with columns=, or make "
        "another of it with sql=",
        path=path,
    )
