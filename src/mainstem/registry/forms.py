"""The forms of a schema: whatever a user has, made into the one form that is kept, and back.

    Schema, pyarrow.Schema     as they are
    type map                   {"id": "int64", "at": "timestamp", "items": [{"sku": "text", "price": "decimal(10, 2)"}]}
    list of pairs              [("id", "int64"), ("at", pa.timestamp("us", "UTC"))], or of pyarrow fields
    Avro record schema         {"type": "record", "name": ..., "fields": [...]}
    text                       JSON of a type map or of an Avro schema

In a type map a name stands beside its type: a type text (`types`), a pyarrow type, a class of Python, a dict for a
struct, a list of one type for a list, or a description

    {"type": ..., "nullable": false, "default": ..., "aliases": [...], "doc": "..."}

A dict is a description if it has `type` and nothing else than the names above; what stands behind `type` is never a
description itself, so that a struct can have a field called `type`. Lists and maps whose parts need a description are
written as {"type": "list", "items": ..., "size": ...} and {"type": "map", "keys": ..., "values": ...}.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.limits import SCHEMA_DEPTH_MAX, SCHEMA_FIELDS_MAX
from mainstem.core.plain import one_line
from mainstem.core.schema import DOC, Schema, aliases_of, default_of, described
from mainstem.registry.defaults import default_json
from mainstem.registry.inference import infer_rows, rows_of_lines
from mainstem.registry.review import reviewed
from mainstem.registry.schema_json import read_schema_json
from mainstem.registry.types import OF_PYTHON, parse_type, type_text

_DESCRIPTION: Final = {"type", "nullable", "default", "aliases", "doc"}
_CONTAINERS: Final = {"list": {"items", "size"}, "map": {"keys", "values"}}


def as_schema(given: Any) -> Schema:
    """The schema that was meant; InvalidSchema with the path of the field that is not right, and what would be."""
    if isinstance(given, Schema):
        return reviewed(given)
    if isinstance(given, pa.Schema):
        return reviewed(Schema(given))
    if isinstance(given, str | bytes | bytearray):
        given = read_schema_json(given)
        if not isinstance(given, dict):
            raise InvalidSchema(f"a schema in JSON is an object, not {type(given).__name__}")
    if isinstance(given, Mapping):
        if is_avro(given):
            from mainstem.registry.avro import from_avro

            return from_avro(given)
        return reviewed(Schema(pa.schema(_Builder().fields("", given.items(), 1))))
    if isinstance(given, Sequence):
        return reviewed(Schema(pa.schema(_Builder().fields("", _pairs(given), 1))))
    if hasattr(given, "__arrow_c_schema__"):
        return reviewed(Schema(pa.schema(given)))
    raise InvalidSchema(
        "a schema is a pyarrow.Schema, a type map such as {'id': 'int64', 'name': 'string'}, a list of such pairs, "
        f"an Avro record schema, or JSON of one, not {type(given).__name__}"
    )


def to_type_map(schema: Schema) -> dict[str, Any]:
    """The schema as a type map, which JSON can hold; `as_schema` makes the same schema of it."""
    return {field.name: _spec_of(field) for field in schema.arrow}


def infer(data: Any) -> Schema:
    """The schema of data: rows (dicts), a table or frame, or lines of JSON. InvalidSchema where the data do not say."""
    if isinstance(data, bytes | bytearray | str):
        return infer_rows(rows_of_lines(data))
    if isinstance(data, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return as_schema(data.schema)
    if any(kind.__module__.partition(".")[0] == "pandas" for kind in type(data).__mro__):
        return as_schema(pa.Schema.from_pandas(data, preserve_index=False))
    if hasattr(data, "__arrow_c_stream__"):
        return as_schema(pa.RecordBatchReader.from_stream(data).schema)
    return infer_rows(data)


def is_avro(given: Mapping[Any, Any]) -> bool:
    return given.get("type") in ("record", "error") and isinstance(given.get("fields"), list)


def _pairs(given: Sequence[Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for index, each in enumerate(given):
        if isinstance(each, pa.Field):
            pairs.append((each.name, each))
        elif isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[0], str):
            pairs.append((each[0], each[1]))
        else:
            raise InvalidSchema(f"column {index} of the list should be a pair of a name and a type, or a pyarrow.field")
    return pairs


class _Builder:
    """Makes fields of a type map. Counts them: a map may be small and what it says large, if it holds itself often."""

    def __init__(self) -> None:
        self._count = 0

    def fields(self, path: str, pairs: Any, depth: int) -> list[pa.Field]:
        return [self._named(path, name, spec, depth) for name, spec in pairs]

    def _named(self, path: str, name: Any, spec: Any, depth: int) -> pa.Field:
        if not isinstance(name, str):
            raise InvalidSchema(f"{f'in column {path!r}: ' if path else ''}a name is text, not {name!r}")
        return self._field(f"{path}.{name}" if path else name, name, spec, depth)

    def _field(self, path: str, name: str, spec: Any, depth: int) -> pa.Field:
        self._count += 1
        if self._count > SCHEMA_FIELDS_MAX:
            raise InvalidSchema(f"column {path!r}: more than {SCHEMA_FIELDS_MAX} fields, nested ones included")
        if depth > SCHEMA_DEPTH_MAX:
            raise InvalidSchema(f"column {path!r}: types are nested deeper than {SCHEMA_DEPTH_MAX}")
        if isinstance(spec, pa.Field):
            return spec.with_name(name)
        if _is_description(spec):
            return self._described(path, name, spec, depth)
        kind, is_nullable = self._type(path, spec, depth)
        return pa.field(name, kind, nullable=is_nullable)

    def _described(self, path: str, name: str, spec: Mapping[str, Any], depth: int) -> pa.Field:
        kind, is_nullable = self._container(path, spec, depth) or self._type(path, spec["type"], depth)
        is_nullable = spec.get("nullable", is_nullable)
        if not isinstance(is_nullable, bool):
            raise InvalidSchema(f"column {path!r}: nullable is true or false, not {is_nullable!r}")
        aliases = spec.get("aliases", [])
        if not isinstance(aliases, list | tuple) or not all(isinstance(alias, str) for alias in aliases):
            raise InvalidSchema(f"column {path!r}: aliases are a list of names, not {one_line(repr(aliases), 80)}")
        doc = spec.get("doc", "")
        if not isinstance(doc, str):
            raise InvalidSchema(f"column {path!r}: doc is a sentence, not {one_line(repr(doc), 80)}")
        field = pa.field(name, kind, nullable=is_nullable)
        default = spec.get("default")
        if default is not None:
            default = default_json(default, kind, path)
        return described(field, default=... if default is None else default, aliases=tuple(aliases), doc=doc)

    def _container(self, path: str, spec: Mapping[str, Any], depth: int) -> tuple[pa.DataType, bool] | None:
        name = spec["type"]
        if name == "list" and "items" in spec:
            item = self._field(f"{path}[]", "item", spec["items"], depth + 1)
            size = spec.get("size", -1)
            if not isinstance(size, int) or isinstance(size, bool) or size == 0 or size < -1:
                raise InvalidSchema(f"column {path!r}: the size of a list is a number above 0, not {size!r}")
            return pa.list_(item, size), True
        if name == "map" and {"keys", "values"} <= set(spec):
            key = self._field(f"{path}.key", "key", spec["keys"], depth + 1)
            return pa.map_(key.type, self._field(f"{path}.value", "value", spec["values"], depth + 1)), True
        return None

    def _type(self, path: str, spec: Any, depth: int) -> tuple[pa.DataType, bool]:
        if isinstance(spec, str):
            return parse_type(spec, path)
        if isinstance(spec, pa.DataType):
            return spec, True
        if isinstance(spec, type) and spec in OF_PYTHON:
            return OF_PYTHON[spec], True
        if isinstance(spec, Mapping):
            return pa.struct(self.fields(path, spec.items(), depth + 1)), True
        if isinstance(spec, list | tuple) and len(spec) == 1:
            return pa.list_(self._field(f"{path}[]", "item", spec[0], depth + 1)), True
        raise InvalidSchema(
            f"column {path!r}: {one_line(repr(spec), 60)} is no type; write one as text ('int64'), a dict for a "
            "struct, or a list of one type"
        )


def _is_description(spec: Any) -> bool:
    if not isinstance(spec, Mapping) or "type" not in spec:
        return False
    name = spec["type"]
    return set(spec) <= _DESCRIPTION | (_CONTAINERS.get(name, set()) if isinstance(name, str) else set())


# The way back


def _spec_of(field: pa.Field) -> Any:
    kind = _type_spec(field.type)
    more: dict[str, Any] = {}
    if not field.nullable:
        more["nullable"] = False
    has_default, default = default_of(field)
    if has_default:
        more["default"] = default
    if aliases := aliases_of(field):
        more["aliases"] = aliases
    if doc := (field.metadata or {}).get(DOC):
        more["doc"] = doc.decode()
    if isinstance(kind, dict) and kind.get("type") in ("list", "map"):  # no field of a struct has such a type
        return {**kind, **more}
    if list(more) == ["nullable"] and isinstance(kind, str):
        return f"{kind} not null"
    return {"type": kind, **more} if more or _is_description(kind) else kind


def _type_spec(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: _spec_of(field) for field in kind}
    if pa.types.is_list(kind):
        return [_spec_of(kind.value_field)]
    if pa.types.is_fixed_size_list(kind):
        return {"type": "list", "items": _spec_of(kind.value_field), "size": kind.list_size}
    if pa.types.is_map(kind):
        return {"type": "map", "keys": _spec_of(pa.field("key", kind.key_type)), "values": _spec_of(kind.item_field)}
    return type_text(kind)
