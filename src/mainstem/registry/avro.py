"""Avro record schemas, made into schemas and back.

Avro has fewer types than Arrow. Where its type alone would not lead back, attributes that other readers pass over say
more: `arrowType` (a type text), `arrowSize` (of a list of fixed size), `fieldName` and `fieldAliases` (names that Avro
does not allow). A map whose keys are not text is an array of pairs with the logical type `map`, as Iceberg writes it.
Enums come in as text.

Unions are understood where they say that something may be null. Types that contain themselves, and unions of several
types, have no columns and are refused.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX
from mainstem.core.plain import one_line
from mainstem.core.schema import DOC, METADATA_COLUMNS, Schema, aliases_of, default_of, described
from mainstem.registry.avro_values import avro_names, from_avro_values, to_avro_values
from mainstem.registry.defaults import default_array, json_of
from mainstem.registry.schema_json import read_schema_json
from mainstem.registry.types import DECIMAL_DIGITS_MAX, parse_type, type_text

# A schema written down has some twenty nodes of JSON for a field, and five levels for each of its types.
_NODES_MAX: Final = 20 * SCHEMA_FIELDS_MAX
_LEVELS_MAX: Final = 5 * SCHEMA_DEPTH_MAX

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


def from_avro(given: Mapping[str, Any] | str) -> Schema:
    """The schema of an Avro record; InvalidSchema with the path of what cannot be columns."""
    return _as_schema(_fields_of(given))


def avro_columns(given: Mapping[str, Any] | str) -> pa.Schema:
    """The columns of a file with such a record: those of a schema, those that every record has beside its row, and
    those that are always null, which no schema has."""
    fields = _fields_of(given, with_nulls=True)
    others = {field.name for field in fields if field.name in METADATA_COLUMNS or pa.types.is_null(field.type)}
    own = _as_schema([field for field in fields if field.name not in others]).arrow
    return pa.schema([field if field.name in others else own.field(field.name) for field in fields])


def _fields_of(given: Mapping[str, Any] | str, *, with_nulls: bool = False) -> list[pa.Field]:
    import fastavro

    raw: Any = read_schema_json(given) if isinstance(given, str) else dict(given)
    _check_size(raw)
    try:
        parsed: Any = fastavro.parse_schema(raw)
    except Exception as error:  # noqa: BLE001  # fastavro's errors share no root
        raise InvalidSchema(f"no Avro schema: {type(error).__name__}: {one_line(str(error), 200)}") from None
    if not isinstance(parsed, dict) or parsed.get("type") not in ("record", "error"):
        raise InvalidSchema("an Avro schema of rows is a record")
    return _Reader(with_nulls=with_nulls).fields("", parsed, 1)


def _as_schema(fields: list[pa.Field]) -> Schema:
    from mainstem.registry.forms import as_schema

    return as_schema(pa.schema(fields))


def to_avro(schema: Schema | pa.Schema, name: str = "row") -> dict[str, Any]:
    """The Avro record schema of a schema; `from_avro` makes the same schema of it."""
    return _Writer().record(avro_names([name])[0], list(schema.arrow if isinstance(schema, Schema) else schema))


def _check_size(given: Any) -> None:
    """Before anything recurses into it."""
    pending, count = [(given, 1)], 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > _NODES_MAX or depth > _LEVELS_MAX:
            raise InvalidSchema(f"an Avro schema of more than {_NODES_MAX} parts, or {_LEVELS_MAX} levels")
        if isinstance(node, Mapping):
            pending += [(each, depth + 1) for each in node.values()]
        elif isinstance(node, list):
            pending += [(each, depth + 1) for each in node]


class _Reader:
    """Makes fields of a record. Counts them: a type that is named can be used, and grow, at every level.

    `with_nulls` takes columns that are always null, as files may have them; a schema cannot.
    """

    def __init__(self, *, with_nulls: bool = False) -> None:
        self._with_nulls = with_nulls
        self._count = 0
        self._named: dict[str, Any] = {}
        self._open: set[str] = set()  # records around the one that is read

    def fields(self, path: str, record: Mapping[str, Any], depth: int) -> list[pa.Field]:
        if depth > SCHEMA_DEPTH_MAX:
            raise InvalidSchema(f"column {path!r}: types are nested deeper than {SCHEMA_DEPTH_MAX}")
        name = record["name"]
        self._named[name] = record
        self._open.add(name)
        found = [self._field(path, field, depth) for field in record["fields"]]
        self._open.discard(name)
        return found

    def _field(self, path: str, given: Mapping[str, Any], depth: int) -> pa.Field:
        name = given.get("fieldName", given["name"])
        if not isinstance(name, str):
            raise InvalidSchema(f"column {path!r}: fieldName is text, not {name!r}")
        path = f"{path}.{name}" if path else name
        self._count += 1
        if self._count > SCHEMA_FIELDS_MAX:
            raise InvalidSchema(f"column {path!r}: more than {SCHEMA_FIELDS_MAX} fields, nested ones included")
        field = self._typed(path, name, given["type"], depth)
        default = given.get("default")
        return described(
            field,
            default=... if default is None else self._default(path, field.type, default),
            aliases=tuple(_texts(path, given.get("fieldAliases", given.get("aliases", [])))),
            doc=str(given.get("doc", "")),
        )

    def _default(self, path: str, kind: pa.DataType, default: Any) -> Any:
        try:
            array = pa.array(from_avro_values([default], kind, is_json=True), kind)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is no value of the type
            raise InvalidSchema(
                f"column {path!r}: its default {one_line(repr(default), 60)} is no {type_text(kind)}: "
                f"{one_line(str(error), 100)}"
            ) from None
        return json_of(array, path)

    def _typed(self, path: str, name: str, given: Any, depth: int) -> pa.Field:
        """A field of a type, which may be null if it is a union with null."""
        if self._with_nulls and depth == 1 and given in ("null", ["null"]):
            return pa.field(name, pa.null())
        if not isinstance(given, list):
            return pa.field(name, self._type(path, given, depth), nullable=False)
        others = [each for each in given if each != "null"]
        if len(others) != 1:
            raise InvalidSchema(
                f"column {path!r} is a union of {len(others)} types; only null beside one type can be a column: "
                "use a record with a nullable field for each case"
            )
        return pa.field(name, self._type(path, others[0], depth), nullable=len(others) < len(given))

    def _type(self, path: str, given: Any, depth: int) -> pa.DataType:
        if isinstance(given, list):
            raise InvalidSchema(f"column {path!r}: a union inside a union")
        if isinstance(given, str):
            return self._by_name(path, given, depth)
        name = given["type"]
        if name in ("record", "error"):
            return pa.struct(self.fields(path, given, depth + 1))
        if name == "array":
            return self._array(path, given, depth)
        if name == "map":
            return pa.map_(pa.string(), self._part(path, "value", given["values"], depth))
        if name in ("enum", "fixed"):
            self._named[given["name"]] = given
        return self._plain(path, given)

    def _by_name(self, path: str, name: str, depth: int) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name == "null":
            raise InvalidSchema(f"column {path!r} is always null; give it the type of the values that will come")
        if name in self._open:
            raise InvalidSchema(f"column {path!r} is of the type {name!r}, which contains it; columns cannot recurse")
        if name not in self._named:
            raise InvalidSchema(f"column {path!r}: there is no type {one_line(name, 60)!r}")
        return self._type(path, self._named[name], depth)

    def _array(self, path: str, given: Mapping[str, Any], depth: int) -> pa.DataType:
        item = self._part(f"{path}[]", "item", given["items"], depth)
        if given.get("logicalType") == "map" and pa.types.is_struct(item.type) and item.type.num_fields == 2:
            return pa.map_(item.type.field(0).type, item.type.field(1).with_name("value"))
        size = given.get("arrowSize", -1)
        if not isinstance(size, int) or isinstance(size, bool) or size == 0 or size < -1:
            raise InvalidSchema(f"column {path!r}: arrowSize is a number above 0, not {size!r}")
        return pa.list_(item, size)

    def _part(self, path: str, name: str, given: Any, depth: int) -> pa.Field:
        if depth > SCHEMA_DEPTH_MAX:
            raise InvalidSchema(f"column {path!r}: types are nested deeper than {SCHEMA_DEPTH_MAX}")
        return self._typed(path, name, given, depth + 1)

    def _plain(self, path: str, given: Mapping[str, Any]) -> pa.DataType:
        kind = _plain_type(path, given)
        if (text := given.get("arrowType")) is None:
            return kind
        exact, _ = parse_type(str(text), path)
        if _Writer().same_bytes(given, exact):
            return exact
        raise InvalidSchema(f"column {path!r}: arrowType {one_line(str(text), 60)!r} is not stored as {given['type']}")


def _plain_type(path: str, given: Mapping[str, Any]) -> pa.DataType:
    name, logical = given["type"], given.get("logicalType")
    if logical == "decimal" and name in ("bytes", "fixed"):
        precision, scale = given.get("precision"), given.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 < precision <= DECIMAL_DIGITS_MAX:
            raise InvalidSchema(f"column {path!r}: a decimal has 1 to {DECIMAL_DIGITS_MAX} digits, not {precision!r}")
        return parse_type(f"decimal({precision}, {scale})", path)[0]
    if (name, logical) in _LOGICAL:
        return _LOGICAL[name, str(logical)]
    if name == "enum":
        return pa.string()
    if name == "fixed":
        return pa.binary(given["size"])
    if name in _PRIMITIVES:  # also with a logical type that is not known, as Avro wants it
        return _PRIMITIVES[name]
    raise InvalidSchema(f"column {path!r}: {one_line(repr(name), 60)} is no type of Avro that can be a column")


def _texts(path: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InvalidSchema(f"column {path!r}: aliases are a list of names, not {one_line(repr(given), 60)}")
    return given


class _Writer:
    """Makes the Avro schema of fields; knows the names that are taken."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def record(self, name: str, fields: list[pa.Field]) -> dict[str, Any]:
        name = self._free(name)
        names = avro_names([field.name for field in fields])
        made = [self._field(name, each, field) for each, field in zip(names, fields, strict=True)]
        return {"type": "record", "name": name, "fields": made}

    def _field(self, parent: str, name: str, field: pa.Field) -> dict[str, Any]:
        kind = self._type(f"{parent}_{name}", field.type)
        found: dict[str, Any] = {"name": name, "type": kind}
        if name != field.name:
            found["fieldName"] = field.name
        if doc := (field.metadata or {}).get(DOC):
            found["doc"] = doc.decode()
        if aliases := aliases_of(field):
            found["aliases"] = avro_names(aliases)
            if found["aliases"] != aliases:
                found["fieldAliases"] = aliases
        has_default, default = default_of(field)
        if has_default and default is not None:
            array = default_array(default, field.type, field.name)
            found["default"] = to_avro_values(array, is_json=True)[0]
            found["type"] = [kind, "null"] if field.nullable else kind
        elif field.nullable:
            # Rows without the field have null there, which Avro wants said.
            found["type"], found["default"] = ["null", kind], None
        return found

    def same_bytes(self, given: Mapping[str, Any], kind: pa.DataType) -> bool:
        """Whether values of a type are stored as the Avro type says."""
        made = self._type("x", kind)
        made = made if isinstance(made, dict) else {"type": made}
        return all(made.get(name) == given.get(name) for name in ("type", "logicalType", "size", "precision", "scale"))

    def _type(self, path: str, kind: pa.DataType) -> Any:
        if pa.types.is_struct(kind):
            return self.record(path, list(kind))
        if pa.types.is_map(kind):
            return self._map(path, kind)
        if pa.types.is_list(kind):
            return {"type": "array", "items": self._part(f"{path}_item", kind.value_field)}
        if pa.types.is_fixed_size_list(kind):
            return {**self._type(path, pa.list_(kind.value_field)), "arrowSize": kind.list_size}
        return self._plain(path, kind)

    def _map(self, path: str, kind: pa.DataType) -> dict[str, Any]:
        if pa.types.is_string(kind.key_type):
            return {"type": "map", "values": self._part(f"{path}_value", kind.item_field)}
        pair = [pa.field("key", kind.key_type, nullable=False), kind.item_field.with_name("value")]
        return {"type": "array", "logicalType": "map", "items": self.record(f"{path}_pair", pair)}

    def _part(self, path: str, field: pa.Field) -> Any:
        kind = self._type(path, field.type)
        return ["null", kind] if field.nullable else kind

    def _plain(self, path: str, kind: pa.DataType) -> Any:
        for name, primitive in _PRIMITIVES.items():
            if kind == primitive:
                return name
        for (name, logical), exact in _LOGICAL.items():
            if kind == exact:
                return {"type": name, "logicalType": logical}
        if pa.types.is_fixed_size_binary(kind):
            return {"type": "fixed", "name": self._free(path), "size": kind.byte_width}
        if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision and type_text(kind).startswith("decimal("):
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {**_stored_as(kind), "arrowType": type_text(kind)}

    def _free(self, name: str) -> str:
        found, number = name, 2
        while found in self._taken:
            found, number = f"{name}_{number}", number + 1
        self._taken.add(found)
        return found


def _stored_as(kind: pa.DataType) -> dict[str, Any]:
    """The Avro type that holds the values of a type which Avro does not have."""
    types = pa.types
    if types.is_uint64(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
    if types.is_decimal(kind):
        return {"type": "bytes"}
    if types.is_date64(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_time32(kind):
        return {"type": "int", "logicalType": "time-millis"}
    if types.is_timestamp(kind):
        unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[kind.unit]
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-{unit}"}
    if types.is_integer(kind) and kind.bit_width < 32:
        return {"type": "int"}
    return {"type": "long"}  # uint32, nanoseconds of a day, durations
