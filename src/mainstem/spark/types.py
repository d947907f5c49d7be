"""Types both ways: what a stream's columns are in Spark, and batches cast to exactly what Spark expects.

Spark takes an Arrow batch only if its schema equals the one that it makes of its own types, to the order, the
nullability and the time zone. Every value has its place there, but for decimals of more than 38 digits, and moments
and times of day between two microseconds: those are refused with the column's name. So is what has no place in a
narrower type that a query asks for. Arrow does not look at all of this by itself.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from mainstem.core.errors import InvalidSchema, SchemaMismatch
from mainstem.registry.columns import has_overflown
from mainstem.registry.types import type_text
from mainstem.spark.row_hashes import parts

_PLAIN: Final[dict[pa.DataType, st.DataType]] = {
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    # The next wider one that has a sign.
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.large_string(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.large_binary(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.date64(): st.DateType(),
}
_DECIMAL_DIGITS_MAX: Final = 38


def to_spark(schema: pa.Schema) -> st.StructType:
    """The columns as Spark has them, all of which may be null: a tombstone is a row of nulls."""
    return st.StructType([st.StructField(field.name, _type(field.type, field.name), True) for field in schema])


def _type(kind: pa.DataType, path: str) -> st.DataType:
    found = _PLAIN.get(kind) or _timed(kind)
    if found is not None:
        return found
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, path)
    if pa.types.is_fixed_size_binary(kind):
        return st.BinaryType()
    if pa.types.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX and 0 <= kind.scale <= kind.precision:
        return st.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return st.ArrayType(_type(kind.value_type, f"{path}[]"), True)
    if pa.types.is_map(kind):
        return st.MapType(_type(kind.key_type, f"{path}.key"), _type(kind.item_type, f"{path}.value"), True)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return st.StructType([st.StructField(f.name, _type(f.type, f"{path}.{f.name}"), True) for f in fields])
    raise InvalidSchema(
        f"column {path!r} is {type_text(kind)}, which Spark has no type for; name the columns that you need (option "
        '"columns", or .schema(...)), without this one'
    )


def _timed(kind: pa.DataType) -> st.DataType | None:
    if pa.types.is_timestamp(kind):
        return st.TimestampNTZType() if kind.tz is None else st.TimestampType()
    if pa.types.is_time(kind):
        return st.TimeType(6)
    if pa.types.is_duration(kind):
        return st.DayTimeIntervalType()
    return None


def unchanged(given: pa.Schema, schema: st.StructType) -> frozenset[str]:
    """The columns of `schema` whose values are those of the given ones, and not rounded or cut to another type."""
    return frozenset(field.name for field in schema if _is_same(given.field(field.name), field))


def _is_same(given: pa.Field, field: st.StructField) -> bool:
    try:
        return _type(given.type, given.name) == field.dataType
    except InvalidSchema:
        return False


def to_arrow(schema: st.StructType) -> pa.Schema:
    """The schema that Spark expects of batches of these columns, and gives them to a sink with."""
    made: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return made


def unsigned_of(stream: pa.Schema, given: pa.Schema) -> list[pa.Field]:
    """The columns of a stream that a frame has as Spark reads them, though they are, or have in them, numbers without
    a sign of 64 bits. Types are compared as Spark's: in Arrow, moments have the time zone of a session in theirs."""
    return [
        field
        for field in stream
        if given.names.count(field.name) == 1
        and "uint64" in str(field.type)
        and _is_same(given.field(field.name), to_spark(pa.schema([field]))[0])
    ]


def check_castable(given: pa.Schema, wanted: pa.Schema) -> None:
    """InvalidSchema if a wanted column is none of the given ones, or of a type that its values cannot be cast to."""
    import difflib

    for field in wanted:
        if field.name not in given.names:
            near = difflib.get_close_matches(field.name, given.names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InvalidSchema(f"there is no column {field.name!r}{hint} The columns are {', '.join(given.names)}")
        has = given.field(field.name).type
        try:
            pa.array([], has).cast(field.type)
        except pa.ArrowException:
            raise InvalidSchema(
                f"column {field.name!r} is {type_text(has)} and cannot be read as {field.type}"
            ) from None


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch, whose columns are named like those of `schema`, as one of exactly that schema. SchemaMismatch names
    the column that has a value which is none of its type."""
    kinds = tuple(batch.schema.types)
    if not _to_cast(kinds, schema):
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        columns.append(cast(column, field))
        if _may_lose(column.type, field.type):
            _require_kept(column, columns[-1], field.name)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@functools.lru_cache(maxsize=64)
def _to_cast(kinds: Sequence[pa.DataType], schema: pa.Schema) -> bool:
    return any(
        not kind.equals(field.type) or _may_lose(kind, field.type) for kind, field in zip(kinds, schema, strict=True)
    )


@functools.lru_cache(maxsize=256)
def _may_lose(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values may be lost at which Arrow does not look. Types are known by their texts, however nested."""
    has, asks = str(given), str(wanted)
    is_narrower = "float" in asks and ("double" in has or "decimal" in has)
    is_read = ("float" in asks or "double" in asks) and ("string" in has or "binary" in has)
    return (has != asks and (is_narrower or is_read)) or ("time64[ns]" in has and "time64[ns]" in asks)


def _require_kept(given: pa.Array, found: pa.Array, name: str) -> None:
    """SchemaMismatch names the column, or the part of one, with a number that became infinite, or a time of day that
    Spark, which takes nanoseconds and has microseconds, would cut."""
    # What was not asked for of a struct is not in what was found.
    before = dict(_leaves(given, name))
    for path, leaf in _leaves(found, name):
        if path in before:
            _require_leaf_kept(before[path], leaf, path)


def _require_leaf_kept(given: pa.Array, found: pa.Array, path: str) -> None:
    why = ""
    if has_overflown(given, found):
        why = f"{found.type}: a number is too large for it"
    elif found.type == pa.time64("ns"):
        try:
            found.cast(pa.time64("us"))
        except pa.ArrowInvalid as error:
            why = f"Spark's TIME, which has microseconds: {error}"
    if why:
        raise SchemaMismatch(f"column {path!r} has a value of type {given.type} that is none of {why}", path=path)


def _leaves(array: pa.Array, path: str) -> Iterator[tuple[str, pa.Array]]:
    """What a column is made of in the end, without what stands under nulls."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield from _leaves(array.dictionary_decode(), path)
    elif not pa.types.is_nested(kind):
        yield path, array
    else:
        lists = [".key", ".value"] if pa.types.is_map(kind) else ["[]"]
        steps = [f".{field.name}" for field in kind] if pa.types.is_struct(kind) else lists
        for step, (_, part) in zip(steps, parts(array), strict=True):
            yield from _leaves(part, path + step)


def not_nullable(kind: st.DataType, path: str = "") -> str:
    """The path of the first column, or part of one, that is said to have no nulls; empty if there is none."""
    inner: list[tuple[str, st.DataType, bool]] = []
    if isinstance(kind, st.StructType):
        inner = [(f"{path}.{field.name}" if path else field.name, field.dataType, field.nullable) for field in kind]
    elif isinstance(kind, st.ArrayType):
        inner = [(f"{path}[]", kind.elementType, kind.containsNull)]
    elif isinstance(kind, st.MapType):
        inner = [(f"{path}.key", kind.keyType, True), (f"{path}.value", kind.valueType, kind.valueContainsNull)]
    return next(
        (found for name, part, nullable in inner if (found := not_nullable(part, name) if nullable else name)), ""
    )


def cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """The column as one of the field's type. SchemaMismatch names the field that it is not."""
    if column.type.equals(field.type):
        return column
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"column {field.name!r} has a value of type {column.type} that is none of {field.type}: {error}",
            path=field.name,
        ) from None
