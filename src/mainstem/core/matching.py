"""Matching: which column of one schema is which of another. A column may have got another name; aliases tell."""

import functools
from collections.abc import Sequence

import pyarrow as pa

from mainstem.core.schema import Schema, aliases_of


def matched(readers: Sequence[pa.Field], writers: Sequence[pa.Field]) -> list[tuple[pa.Field, pa.Field | None]]:
    """For each field of a reader the one that was written for it: by its name, else by an alias of either."""
    left = {field.name: field for field in writers}
    found: dict[str, pa.Field] = {field.name: left.pop(field.name) for field in readers if field.name in left}
    for field in readers:
        if field.name not in found and (name := next((alias for alias in aliases_of(field) if alias in left), None)):
            found[field.name] = left.pop(name)
    also_called: dict[str, list[str]] = {}
    for name, field in left.items():
        for alias in aliases_of(field):
            also_called.setdefault(alias, []).append(name)
    for field in readers:
        called = also_called.get(field.name, ()) if field.name not in found else ()
        if (name := next((name for name in called if name in left), None)) is not None:
            found[field.name] = left.pop(name)
    return [(field, found.get(field.name)) for field in readers]


@functools.lru_cache(maxsize=256)
def names_before(new: Schema, old: Schema) -> dict[str, str]:
    """What columns of a schema were called in an older one; those that it did not have are left out. Not to be
    changed: it is kept."""
    return {field.name: was.name for field, was in matched(list(new.arrow), list(old.arrow)) if was is not None}
