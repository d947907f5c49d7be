"""The selections of a log's readers: those who want the same share one."""

import weakref
from collections.abc import Callable

from mainstem.consume.selection import Selection, Tally
from mainstem.consume.view import View
from mainstem.core.schema import Schema
from mainstem.log.contents import Contents
from mainstem.log.ledger.base import StreamRow
from mainstem.transport.port import Query


class Selections:
    """The selections that readers of a log use now, each made once. Any thread."""

    def __init__(self, schema_of: Callable[[int], Schema], compression: str | None = None) -> None:
        self._schema_of = schema_of
        self._compression = compression
        self.tally = Tally()
        self._made: weakref.WeakValueDictionary[tuple[int, Query], Selection] = weakref.WeakValueDictionary()

    def get(self, stream: StreamRow, query: Query) -> Selection:
        """The selection of this query; whoever reads with it puts himself among its readers."""
        found = self._made.get((stream.id, query))
        if found is None:
            schema = self._schema_of(query.schema_id) if query.schema_id else None
            # A reader that does not know of a rename asks for rows of a schema from before it.
            key = Contents.of(stream, self._schema_of).names_in(query.schema_id, stream.key)
            view = View(schema, query.schema_id, columns=query.columns, key=key, schema_of=self._schema_of)
            found = Selection(
                view, query.where, schema_of=self._schema_of, compression=self._compression, tally=self.tally
            )
            self._made[stream.id, query] = found
        return found
