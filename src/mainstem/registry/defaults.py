"""The default of a field: what rows have that were written before it was there.

It is kept as JSON, in the conventions of `texts`, and repeated for many rows; so it is small.
"""

import json
from typing import Any

import pyarrow as pa

from mainstem.core.errors import InvalidSchema
from mainstem.core.layouts import ARROW_ERRORS
from mainstem.core.limits import SCHEMA_DEFAULT_BYTES_MAX
from mainstem.core.plain import one_line
from mainstem.core.schema import default_of
from mainstem.registry import columns
from mainstem.registry.takers import Misfit, taker_of
from mainstem.registry.texts import json_texts


def default_json(value: Any, kind: pa.DataType, path: str) -> Any:
    """A default in the one way it is kept, given as JSON or as a value of Python; InvalidSchema if it does not fit."""
    return json_of(default_array(value, kind, path), path)


def json_of(array: pa.Array, path: str) -> Any:
    """The default that is the only value of an array, as it is kept."""
    text = json_texts(array)[0].as_py()
    if len(text) > SCHEMA_DEFAULT_BYTES_MAX:
        raise InvalidSchema(
            f"column {path!r}: a default of {len(text)} bytes; at most {SCHEMA_DEFAULT_BYTES_MAX} are possible"
        )
    return json.loads(text)


def default_array(value: Any, kind: pa.DataType, path: str) -> pa.Array:
    """An array of one value: a default, given as JSON or as a value of Python."""
    try:
        return columns.build([taker_of(pa.field("item", kind))(value)], kind)
    except Misfit as misfit:
        raise InvalidSchema(f"column {misfit.inside(path).path!r}: its default {misfit.reason}") from None
    except (*ARROW_ERRORS, RecursionError) as error:
        raise InvalidSchema(f"column {path!r}: its default cannot be {kind}: {one_line(str(error), 100)}") from None


def constant_of(field: pa.Field, path: str) -> pa.Array:
    """An array of one value: what rows have that lack the field, its default or null."""
    has_default, value = default_of(field)
    return default_array(value, field.type, path) if has_default else pa.nulls(1, field.type)
