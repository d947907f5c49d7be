"""Looking something up: the records of a stream that match, and what it took to find them."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, overload

import pyarrow as pa

from mainstem.consume.consumer import Consumer
from mainstem.consume.record import Record, RecordBatch
from mainstem.consume.tabular import Tabular
from mainstem.consume.view import with_metadata
from mainstem.core.clock import Clock
from mainstem.core.errors import InvalidPredicate, InvalidSetting, MainstemError
from mainstem.core.markup import cut, table
from mainstem.transport.port import Port

_SHOWN: Final = 20


class Found(Sequence[Record], Tabular):
    """The records that match, in order within each shard. Immutable; any thread.

    `opened` batches were looked into for it, `skipped` ones were not; `seconds` is how long it took. `undecoded`
    records are left out: they are no rows of the stream's schema, so that nobody can say whether they match, or rows of
    an older one of which a wanted column cannot be read. `why_undecoded` is the error that says it of the first.
    """

    def __init__(
        self,
        batches: Sequence[RecordBatch],
        columns: pa.Schema,
        counts: tuple[int, int, int],
        seconds: float,
        why_undecoded: MainstemError | None = None,
    ) -> None:
        self._batches = batches
        self._columns = columns
        self._records: list[Record] | None = None
        self.opened, self.skipped, self.undecoded = counts
        self.seconds = seconds
        self.why_undecoded = why_undecoded

    def to_arrow(self, *, metadata: bool = False) -> pa.Table:
        columns = with_metadata(self._columns) if metadata else self._columns
        return pa.Table.from_batches([batch.to_arrow(metadata=metadata) for batch in self._batches], columns)

    def __len__(self) -> int:
        return sum(batch.count for batch in self._batches)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...

    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        return self._all()[at]

    def _all(self) -> list[Record]:
        if self._records is None:
            self._records = list(chain.from_iterable(batch.records() for batch in self._batches))
        return self._records

    def __repr__(self) -> str:
        return f"<Found {self._summary()}>"

    def _repr_html_(self) -> str:
        shown = self.to_arrow().slice(0, _SHOWN)
        rows = [[cut(value) for value in row.values()] for row in shown.to_pylist()]
        return table(self._summary(), shown.schema.names, rows)

    def _summary(self) -> str:
        count = len(self)
        text = (
            f"{count} record{'' if count == 1 else 's'}, {self.opened} batch{'' if self.opened == 1 else 'es'} opened, "
            f"{self.skipped} skipped, {self.seconds * 1000:.1f} ms"
        )
        why = str(self.why_undecoded).partition("; ")[0]
        return f"{text}; {self.undecoded} left out: {why}" if self.undecoded else text


class Search:
    """A search under way: the consumer that gives what matches, and what it has given until now."""

    def __init__(
        self, port: Port, stream: str, where: Any, limit: int | None, columns: Sequence[str] | None, clock: Clock
    ) -> None:
        if not isinstance(where, str) or not where.strip():
            raise InvalidPredicate('where: say what to find, for example "id = 7"')
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidSetting(f"limit must be a whole number above 0, or None, not {limit!r}")
        self._clock = clock
        self._begun = clock.monotonic()
        self._left = limit
        self._batches: list[RecordBatch] = []
        self.consumer = Consumer(
            port, stream, "earliest", follow=False, where=where, columns=columns, on_bad="skip", clock=clock
        )

    def take(self, batch: RecordBatch) -> bool:
        """Add what matches; whether more is wanted."""
        taken = batch if self._left is None else batch.first(self._left)
        self._batches.append(taken)
        if self._left is not None:
            self._left -= taken.count
        return self._left != 0

    def found(self) -> Found:
        consumer = self.consumer
        counts = consumer.opened, consumer.skipped, consumer.undecoded
        seconds = self._clock.monotonic() - self._begun
        return Found(self._batches, consumer.columns, counts, seconds, consumer.why_undecoded)


def find(port: Port, stream: str, where: Any, limit: int | None, columns: Sequence[str] | None, clock: Clock) -> Found:
    """The records of a stream, as it is now, that match; at most `limit`."""
    search = Search(port, stream, where, limit, columns, clock)
    with search.consumer as consumer:
        for batch in consumer.batches():
            if not search.take(batch):
                break
        return search.found()
