"""The review of a schema: what it must be beyond what `core` looks at, so that rows can be read by it.

A name means one field only, aliases included; a default is a value of its field; a decimal has no more digits after the
point than in all; and the time zone of a timestamp is one that readers know.
"""

import functools
import re
import zoneinfo
from typing import Final

import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.plain import one_line
from mainstem.core.schema import DOC, Schema, aliases_of, default_of, described
from mainstem.registry.defaults import default_json

_OFFSET: Final = re.compile(r"[+-](?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)


def reviewed(schema: Schema) -> Schema:
    """The schema with its defaults in the one way they are kept; InvalidSchema with the path of what makes no sense."""
    return Schema(pa.schema(_fields("", list(schema.arrow))))


def _fields(path: str, fields: list[pa.Field]) -> list[pa.Field]:
    taken = {field.name: field.name for field in fields}
    for field in fields:
        for alias in aliases_of(field):
            if alias in taken:
                raise InvalidSchema(
                    f"column {f'{path}.{field.name}'.lstrip('.')!r} has the alias {alias!r}, which is also "
                    f"a name of {taken[alias]!r}; a name may mean one field only"
                )
            taken[alias] = field.name
    return [_field(f"{path}.{field.name}" if path else field.name, field) for field in fields]


def _field(path: str, field: pa.Field) -> pa.Field:
    field = field.with_type(_type(path, field.type))
    has_default, default = default_of(field)
    if not has_default:
        return field
    value = None if default is None else default_json(default, field.type, path)
    if value is None and not field.nullable:
        raise InvalidSchema(f"column {path!r} is never null, so null cannot be its default")
    doc = (field.metadata or {}).get(DOC, b"").decode()
    # A default of null says what is said without it.
    return described(field, default=... if value is None else value, aliases=tuple(aliases_of(field)), doc=doc)


def _type(path: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_fields(path, list(kind)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _field(f"{path}.value", kind.item_field))  # nobody checks that keys are sorted
    if pa.types.is_list(kind):
        return pa.list_(_field(f"{path}[]", kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field(f"{path}[]", kind.value_field), kind.list_size)
    if pa.types.is_decimal(kind) and kind.scale > kind.precision:
        raise InvalidSchema(f"column {path!r} has {kind.precision} digits, and {kind.scale} of them after the point")
    if pa.types.is_timestamp(kind) and kind.tz and not _is_zone(kind.tz):
        raise InvalidSchema(
            f"column {path!r}: there is no time zone {one_line(kind.tz, 60)!r}; write UTC, Europe/Berlin or +01:00"
        )
    return kind


@functools.lru_cache(maxsize=256)
def _is_zone(name: str) -> bool:
    """Whether readers know a time zone. On a machine that has no list of them, every name may be one."""
    if name == "UTC" or _OFFSET.fullmatch(name):
        return True
    try:
        return zoneinfo.ZoneInfo(name).key == name
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return not zoneinfo.available_timezones()
