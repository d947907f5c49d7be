"""The JSON in which schemas are written: read with a limit, and refused where an object says a name twice.

Python's parser would keep the last of the two without a word, and the column that was meant by the first were gone.
"""

import json
from typing import Any

from mainstem.core.errors import InvalidSchema
from mainstem.core.limits import SCHEMA_BYTES_MAX
from mainstem.core.plain import first_repeated, one_line


def read_schema_json(text: str | bytes | bytearray, what: str = "this text") -> Any:
    """What a text says; InvalidSchema if it is too long, no JSON, or has a name twice. `what` is how errors call it."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"a schema of {len(text)} bytes; at most {SCHEMA_BYTES_MAX} are possible")
    is_ambiguous = False

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_ambiguous
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        is_ambiguous = True
        return _Ambiguous(pairs)

    try:
        given = json.loads(text, object_pairs_hook=make)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(
            f"{what} is no JSON ({one_line(str(error), 100)}); a schema is written as in "
            '{"id": "int64", "name": "string"}'
        ) from None
    if is_ambiguous:
        _refuse_ambiguous(given)
    return given


class _Ambiguous(dict[str, Any]):
    """An object that has a name twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.name = str(first_repeated(name for name, _ in pairs))


def _refuse_ambiguous(given: Any) -> None:
    """Say where the first such object is: only from outside its place is known."""
    pending = [("", given)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, _Ambiguous):
            where = f"column {one_line(path, 200)!r}" if path else "the schema"
            raise InvalidSchema(f"{where} has the name {one_line(node.name, 60)!r} twice")
        if isinstance(node, dict):
            pending += [(f"{path}.{name}" if path else name, each) for name, each in reversed(node.items())]
        elif isinstance(node, list):
            pending += [(f"{path}[{index}]", each) for index, each in reversed([*enumerate(node)])]
