"""Schemas by their id. An id means the same schema for ever, so what was looked up once is not asked for again."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mainstem.core.errors import InvalidSchema
from mainstem.core.schema import Schema

# More than one process has to do with at a time; those that were not needed for longest go.
_SCHEMAS_MAX: Final = 1_024


class KnownSchemas:
    """Schemas that were seen, before whoever has them all. Any thread."""

    def __init__(self, load: Callable[[int], Schema | None]) -> None:
        self._load = load
        self._known: OrderedDict[int, Schema] = OrderedDict()
        self._lock = threading.Lock()

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
        with self._lock:
            found = self._known.get(schema)
            if found is not None:
                self._known.move_to_end(schema)
            return found

    def add(self, schema: int, known: Schema) -> None:
        with self._lock:
            self._known[schema] = known
            self._known.move_to_end(schema)
            if len(self._known) > _SCHEMAS_MAX:
                self._known.popitem(last=False)

    def clear(self) -> None:
        """Ids may mean something else from now on: the log was restored, or is another one."""
        with self._lock:
            self._known.clear()
