"""Schemas by their id. An id means the same schema for ever, so what was looked up once is not asked for again."""

from collections.abc import Callable

from mainstem.core.errors import InvalidSchema
from mainstem.core.kept import Kept
from mainstem.core.schema import Schema, size_of


class KnownSchemas:
    """Schemas that were seen, before whoever has them all: those that were not needed for long go, and are asked for
    again. Any thread."""

    def __init__(self, load: Callable[[int], Schema | None]) -> None:
        self._load = load
        self._known: Kept[int, Schema | None] = Kept()

    def get(self, schema: int) -> Schema:
        """The schema of this id; InvalidSchema if there is none."""
        found = self.find(schema)
        if found is None:
            raise InvalidSchema(f"no schema has id {schema}")
        return found

    def find(self, schema: int) -> Schema | None:
        """The same, but None."""
        found = self.at_hand(schema)
        if found is None and schema:
            found = self._load(schema)
            if found is not None:
                self.add(schema, found)
        return found

    def at_hand(self, schema: int) -> Schema | None:
        """The schema if it was seen; nothing is asked."""
        return self._known.get(schema, None)

    def add(self, schema: int, known: Schema) -> None:
        self._known.add(schema, known, size_of(known))

    def clear(self) -> None:
        """Ids may mean something else from now on: the log was restored, or is another one."""
        self._known.clear()
