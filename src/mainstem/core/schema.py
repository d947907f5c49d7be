"""The schema: which columns the rows of a stream have, as an Arrow schema that was looked over.

Only types that every reader can be given safely are accepted; close relatives are cast to them (a large string to a
string, a dictionary to its values). What Arrow has no place for is kept in the metadata of a field:

    default   the value that rows have which were written before the field was there, as JSON
    aliases   other names under which older rows, or other writers, know the field, as a JSON list
    doc       a sentence for people

Everything else in metadata is dropped, so that two schemas that mean the same are equal and have the same fingerprint.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.kept import kept
from mainstem.core.limits import (
    SCHEMA_ALIASES_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_FIELDS_MAX,
    SCHEMA_NAME_CHARS_MAX,
    SCHEMA_ROW_BYTES_MAX,
)
from mainstem.core.markup import cut, table
from mainstem.core.plain import first_repeated, one_line

# What every record has beside its row; no column of a schema may be called like one of these.
METADATA_COLUMNS: Final = ("_shard", "_offset", "_timestamp", "_key", "_headers")
DEFAULT: Final = b"default"
ALIASES: Final = b"aliases"
DOC: Final = b"doc"
_KEPT: Final = (DEFAULT, ALIASES, DOC)
_SHOWN_FIELDS: Final = 20
# Digits of the widest decimal: with its point further away there is nothing that can be calculated.
_DECIMAL_SCALE_MAX: Final = 76
# How many bytes of memory a byte of a serialized schema becomes.
_GROWTH: Final = 6

_PLAIN: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_decimal128,
    pa.types.is_decimal256,
)


class Schema:
    """The columns of rows: immutable, hashable, equal if they mean the same. `arrow` is what batches have."""

    __slots__ = ("arrow", "fingerprint", "serialized")

    def __init__(self, arrow: pa.Schema) -> None:
        """Look over `arrow` and cast what can be cast; InvalidSchema with the path of the field that cannot."""
        if not isinstance(arrow, pa.Schema):
            raise InvalidSchema(f"a schema is a pyarrow.Schema, not {type(arrow).__name__}")
        if not len(arrow):
            raise InvalidSchema("a schema needs at least one column")
        fields = _fields("", list(arrow), 1)
        for field in fields:
            if field.name in METADATA_COLUMNS:
                raise InvalidSchema(f"column {field.name!r}: this name stands for what every record has; use another")
        if (count := sum(map(count_fields, fields))) > SCHEMA_FIELDS_MAX:
            raise InvalidSchema(f"{count} fields, nested ones included; at most {SCHEMA_FIELDS_MAX} are possible")
        if (count := sum(map(_count_aliases, fields))) > SCHEMA_ALIASES_MAX:
            raise InvalidSchema(f"{count} aliases; at most {SCHEMA_ALIASES_MAX} are possible")
        _check_width("a row", sum(null_bits(field.type) for field in fields))
        self.arrow = pa.schema(fields)
        self.serialized: bytes = self.arrow.serialize().to_pybytes()
        if len(self.serialized) > SCHEMA_BYTES_MAX:
            raise InvalidSchema(f"a schema of {len(self.serialized)} bytes; at most {SCHEMA_BYTES_MAX} are possible")
        self.fingerprint = hashlib.blake2b(_canonical(self.arrow), digest_size=16).digest()

    @classmethod
    def parse(cls, serialized: bytes) -> "Schema":
        """The schema that `serialized` came from; InvalidSchema for any other bytes."""
        if len(serialized) > SCHEMA_BYTES_MAX:
            raise InvalidSchema(f"a schema of {len(serialized)} bytes; at most {SCHEMA_BYTES_MAX} are possible")
        return _parse(serialized)

    @property
    def names(self) -> list[str]:
        return list(self.arrow.names)

    def field(self, name: str) -> pa.Field:
        """A column by its name; InvalidSchema says which there are."""
        if name not in self.arrow.names:
            raise InvalidSchema(f"there is no column {name!r}; the columns are {', '.join(self.arrow.names)}")
        return self.arrow.field(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}: {field.type}" for field in list(self.arrow)[:_SHOWN_FIELDS])
        more = len(self.arrow) - _SHOWN_FIELDS
        return f"<Schema {shown}{f', and {more} more' if more > 0 else ''}>"

    def _repr_html_(self) -> str:
        return table(
            f"schema of {len(self.arrow)} columns", ["column", "type", "null", "default", "doc"], self._shown()
        )

    def _shown(self) -> Iterator[list[str]]:
        for field in self.arrow:
            has_default, default = default_of(field)
            doc = (field.metadata or {}).get(DOC, b"")
            null = "yes" if field.nullable else "no"
            yield [cut(field.name), cut(field.type), null, cut(json.dumps(default)) if has_default else "", cut(doc)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema.parse, (self.serialized,)


def size_of(schema: Schema) -> int:
    """About how many bytes a schema takes in memory."""
    return _GROWTH * len(schema.serialized)


def check_named(
    schema: Schema, names: Sequence[str], role: str, count_max: int, can_be: Callable[[pa.DataType], bool], hint: str
) -> None:
    """Whether these columns can be what a stream names them for, its key or its index; InvalidSchema says which cannot
    be, and what could."""
    if len(names) > count_max:
        raise InvalidSchema(f"{len(names)} columns are named for the {role}; at most {count_max} are possible")
    for at, name in enumerate(names):
        kind = schema.field(name).type
        if name in names[:at]:
            raise InvalidSchema(f"column {name!r} is in the {role} twice")
        if not can_be(kind):
            raise InvalidSchema(f"column {name!r} is {kind}, which cannot be in the {role}; {hint}")


def default_of(field: pa.Field) -> tuple[bool, Any]:
    """Whether a field has a default, and which, as JSON has it."""
    found = (field.metadata or {}).get(DEFAULT)
    return (False, None) if found is None else (True, json.loads(found))


def aliases_of(field: pa.Field) -> list[str]:
    """The other names of a field."""
    found = (field.metadata or {}).get(ALIASES)
    return [] if found is None else list(json.loads(found))


def described(field: pa.Field, *, default: Any = ..., aliases: tuple[str, ...] = (), doc: str = "") -> pa.Field:
    """The field with what Arrow has no place for. A default is given as JSON has it; `...` is none."""
    metadata: dict[bytes, bytes] = {}
    if default is not ...:
        metadata[DEFAULT] = json.dumps(default).encode()
    if aliases:
        metadata[ALIASES] = json.dumps(list(aliases)).encode()
    if doc:
        metadata[DOC] = doc.encode()
    return field.with_metadata(metadata)


def null_bits(kind: pa.DataType) -> int:
    """How many bits a value of this type takes in a column even if it is null."""
    types = pa.types
    if types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * null_bits(kind.value_type)
    if types.is_struct(kind):
        return 1 + sum(null_bits(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_list(kind) or types.is_map(kind) or types.is_string(kind) or types.is_binary(kind):
        return 1 + 32  # where it begins
    if types.is_fixed_size_binary(kind):
        return 1 + 8 * int(kind.byte_width)  # in bits the largest are more than Arrow can say
    return 1 + int(kind.bit_width)


def count_fields(field: pa.Field) -> int:
    """A field and all that are nested in it."""
    kind = field.type
    return 1 + sum(count_fields(kind.field(index)) for index in range(kind.num_fields))


def _count_aliases(field: pa.Field) -> int:
    kind = field.type
    return len(aliases_of(field)) + sum(_count_aliases(kind.field(index)) for index in range(kind.num_fields))


@kept(lambda serialized: _GROWTH * len(serialized))
def _parse(serialized: bytes) -> Schema:
    try:
        return Schema(pa.ipc.read_schema(pa.py_buffer(serialized)))
    except InvalidSchema:
        raise
    except Exception as error:  # noqa: BLE001  # pyarrow's errors share no root of their own
        raise InvalidSchema(f"these bytes are no Arrow schema: {one_line(str(error), 200)}") from None


def _fields(path: str, fields: list[pa.Field], depth: int) -> list[pa.Field]:
    where = f"column {path!r}" if path else "the schema"
    if (twice := first_repeated(field.name for field in fields)) is not None:
        raise InvalidSchema(f"{where} has two fields {twice!r}")
    return [_field(path, field, depth) for field in fields]


def _field(path: str, field: pa.Field, depth: int) -> pa.Field:
    name = field.name
    if not _is_name(name):
        raise InvalidSchema(
            f"{f'in column {path!r}: ' if path else ''}a field needs a name of 1 to {SCHEMA_NAME_CHARS_MAX} "
            f"characters, not {name[:40]!r}"
        )
    path = f"{path}.{name}" if path else name
    kept = {key: value for key, value in (field.metadata or {}).items() if key in _KEPT}
    _check_metadata(path, kept)
    return pa.field(name, _type(path, field.type, depth), field.nullable, kept or None)


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= SCHEMA_NAME_CHARS_MAX and "\0" not in text


def _check_metadata(path: str, metadata: Mapping[bytes, bytes]) -> None:
    try:
        texts = {key: value.decode() for key, value in metadata.items()}
        if DEFAULT in texts:
            json.loads(texts[DEFAULT])
        aliases = json.loads(texts.get(ALIASES, "[]"))
        # Half of a surrogate pair can be written as JSON, and is no text.
        is_right = isinstance(aliases, list) and all(_is_name(name) and name.encode() for name in aliases)
    except (ValueError, RecursionError):
        raise InvalidSchema(
            f"column {path!r}: its default and its aliases must be written as JSON, all in UTF-8"
        ) from None
    if not is_right:
        raise InvalidSchema(f"column {path!r}: aliases are a list of names of 1 to {SCHEMA_NAME_CHARS_MAX} characters")


def _type(path: str, kind: pa.DataType, depth: int) -> pa.DataType:
    """The type that a column has in batches; InvalidSchema if there is none."""
    if depth > SCHEMA_DEPTH_MAX:
        raise InvalidSchema(f"column {path!r}: types are nested deeper than {SCHEMA_DEPTH_MAX}")
    for is_kind, replace in _RELATIVES:
        if is_kind(kind):
            return _type(path, replace(kind), depth + 1)
    if pa.types.is_decimal(kind) and abs(kind.scale) > _DECIMAL_SCALE_MAX:
        raise InvalidSchema(
            f"column {path!r} is {kind}; a decimal has its point within {_DECIMAL_SCALE_MAX} digits of its last one"
        )
    if pa.types.is_timestamp(kind) and len(kind.tz or "") > SCHEMA_NAME_CHARS_MAX:
        raise InvalidSchema(f"column {path!r}: a time zone has a name of at most {SCHEMA_NAME_CHARS_MAX} characters")
    if any(is_kind(kind) for is_kind in _PLAIN):
        return kind
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width > 0:
        return kind
    if pa.types.is_list(kind):
        item = _field(path, kind.value_field, depth + 1)
        _check_width(f"column {path!r}: an item of it", null_bits(item.type))
        return pa.list_(item)
    if pa.types.is_fixed_size_list(kind) and kind.list_size > 0:
        return pa.list_(_field(path, kind.value_field, depth + 1), kind.list_size)
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct(_fields(path, [kind.field(index) for index in range(kind.num_fields)], depth + 1))
    if pa.types.is_map(kind):
        key = pa.field("key", _type(f"{path}.key", kind.key_type, depth + 1), nullable=False)
        value = _field(path, kind.item_field.with_name("value"), depth + 1)
        _check_width(f"column {path!r}: an item of it", null_bits(key.type) + null_bits(value.type))
        return pa.map_(key, value, kind.keys_sorted)
    raise InvalidSchema(f"column {path!r} is {cut(kind)}, which cannot be stored; {_hint(kind)}")


def _hint(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "give it the type of the values that will come"
    if pa.types.is_float16(kind):
        return "use float32"
    if pa.types.is_union(kind):
        return "use a struct with a nullable field for each case"
    if pa.types.is_interval(kind):
        return "use a duration, or whole numbers of months and days"
    return "see the list of types in docs/schemas.md"


# Types that are cast to another which holds the same values.
_RELATIVES: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...]] = (
    (lambda kind: isinstance(kind, pa.BaseExtensionType), lambda kind: kind.storage_type),
    (pa.types.is_dictionary, lambda kind: kind.value_type),
    (pa.types.is_run_end_encoded, lambda kind: kind.value_type),
    (lambda kind: pa.types.is_large_string(kind) or pa.types.is_string_view(kind), lambda _: pa.string()),
    (lambda kind: pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind), lambda _: pa.binary()),
    (
        lambda kind: pa.types.is_large_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind),
        lambda kind: pa.list_(kind.value_field),
    ),
    (
        lambda kind: pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind),
        lambda kind: pa.decimal128(kind.precision, kind.scale),
    ),
)


def _check_width(what: str, bits: int) -> None:
    if (size := -(-bits // 8)) > SCHEMA_ROW_BYTES_MAX:
        raise InvalidSchema(
            f"{what} takes {size} bytes even if it is all null; at most {SCHEMA_ROW_BYTES_MAX} are possible: use lists "
            "and bytes of any size in place of long ones of fixed size"
        )


def _canonical(schema: pa.Schema) -> bytes:
    """The same bytes for equal schemas, whichever version of Arrow wrote them."""
    return json.dumps([_canonical_field(field) for field in schema], sort_keys=True).encode()


def _canonical_field(field: pa.Field) -> Any:
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    kind = field.type
    nested = [_canonical_field(kind.field(index)) for index in range(kind.num_fields)]
    name = str(kind) if not nested else f"{kind.id}:{getattr(kind, 'list_size', '')}:{getattr(kind, 'keys_sorted', '')}"
    return [field.name, name, field.nullable, metadata, nested]
