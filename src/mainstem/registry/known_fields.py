"""Known fields: a row out of JSON without what its schema does not know, however deep that is nested.

Stored JSON may have been a row of an earlier version of the schema. What that had and this one has not is left out, as
it is for rows that were stored as columns.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from mainstem.core.schema import aliases_of

# Gives a value without the fields that nobody knows. A value of another type than its column's stays as it is.
Trim = Callable[[Any], Any]


def trimmer_of(fields: Iterable[pa.Field]) -> Trim:
    """What leaves out the unknown fields of an object that has these."""
    named = {field.name: field for field in fields}
    for field in list(named.values()):
        for alias in aliases_of(field):
            named.setdefault(alias, field)
    inner = {name: trim for name, field in named.items() if (trim := _trimmer_of_type(field.type)) is not None}
    names = frozenset(named)

    def trim_object(value: Any) -> Any:
        if not isinstance(value, dict) or (not inner and value.keys() <= names):
            return value
        return {name: inner[name](part) if name in inner else part for name, part in value.items() if name in names}

    return trim_object


def _trimmer_of_type(kind: pa.DataType) -> Trim | None:
    """None for types that have no fields inside."""
    if pa.types.is_struct(kind):
        return trimmer_of(kind)
    if pa.types.is_map(kind):
        return _map_trimmer(_trimmer_of_type(kind.key_type), _trimmer_of_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_trimmer(_trimmer_of_type(kind.value_type))
    return None


def _list_trimmer(trim: Trim | None) -> Trim | None:
    if trim is None:
        return None
    return lambda value: [trim(item) for item in value] if isinstance(value, list) else value


def _map_trimmer(trim_key: Trim | None, trim_item: Trim | None) -> Trim | None:
    """Of a map that is an object, or a list of pairs."""
    if trim_key is None and trim_item is None:
        return None
    of_key, of_item = trim_key or _as_it_is, trim_item or _as_it_is

    def trim_pair(pair: Any) -> Any:
        return [of_key(pair[0]), of_item(pair[1])] if isinstance(pair, list) and len(pair) == 2 else pair

    def trim_map(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: of_item(item) for key, item in value.items()}
        return [trim_pair(pair) for pair in value] if isinstance(value, list) else value

    return trim_map


def _as_it_is(value: Any) -> Any:
    return value
