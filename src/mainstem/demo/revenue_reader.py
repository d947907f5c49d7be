"""The revenue that the Spark job writes, as others read it: the table by DuckDB, the stream by a consumer.

Once, at the end, and meanwhile as it moves: what is shown is what was read.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mainstem.core.errors import MainstemError, Unavailable
from mainstem.demo.revenue import Takings, cents_of

_POLL_SECONDS: Final = 0.5
# By the beginning of a window, in microseconds, what was taken in it.
Windows = Mapping[int, Takings]


@dataclass(frozen=True, slots=True)
class RevenueState:
    """What is in the table and in the stream."""

    table: Windows = field(default_factory=dict)
    stream: Windows = field(default_factory=dict)


def read_table(table: Path) -> dict[int, Takings]:
    """What the table says, read by DuckDB."""
    import duckdb
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return {}
    revenue = DeltaTable(str(table)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("revenue", revenue)
        rows = connection.execute("SELECT epoch_us(start), orders, revenue, in_sessions FROM revenue").fetchall()
    return added({}, rows)


def read_stream(consumer: Any) -> dict[int, Takings]:
    """What a consumer of the stream yields, to its end."""
    found: dict[int, Takings] = {}
    for batch in consumer.batches():
        found = added(found, _rows_of(batch))
    return found


def added(known: Windows, rows: Iterable[tuple[int, int, Any, Any]]) -> dict[int, Takings]:
    """What is known, and rows of the beginning of a window, its orders, its revenue, and that of sessions. A window
    that comes twice counts twice: then it differs from what was taken."""
    found = dict(known)
    for start, orders, revenue, in_sessions in rows:
        takings = Takings(orders, cents_of(revenue), cents_of(in_sessions))
        found[start] = found.get(start, Takings(0, 0)) + takings
    return found


def _rows_of(batch: Any) -> list[tuple[int, int, Any, Any]]:
    rows = batch.to_arrow().select(["start", "orders", "revenue", "in_sessions"]).to_pylist()
    return [(round(row.pop("start").timestamp() * 1_000_000), *row.values()) for row in rows]


class StreamWatch(threading.Thread):
    """Follows the stream until told to stop, and then to its end. `windows` may be looked at from any thread."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(name="follow revenue", daemon=True)
        self._consumer = consumer
        self._stopped = threading.Event()
        self.windows: Windows = {}
        self.error: MainstemError | None = None

    def run(self) -> None:
        try:
            while True:
                is_last = self._stopped.is_set()
                batch = self._consumer.poll_batch(_POLL_SECONDS)
                if batch is not None:
                    self.windows = added(self.windows, _rows_of(batch))
                elif is_last:
                    return
        except MainstemError as error:
            self.error = error

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self._consumer.close()


class TableWatch(threading.Thread):
    """Reads the table again whenever it has a new version, until told to stop, and then once more. `windows` may be
    looked at from any thread."""

    def __init__(self, table: Path) -> None:
        super().__init__(name="watch table", daemon=True)
        self._table = table
        self._version = -1
        self._stopped = threading.Event()
        self.windows: Windows = {}
        self.error: MainstemError | None = None

    def run(self) -> None:
        try:
            while not self._stopped.wait(_POLL_SECONDS):
                self._look()
            self._look()
        except Exception as error:  # noqa: BLE001  # of one of two libraries, which have no common class
            self.error = Unavailable(f"the table of revenue cannot be read: {error}")

    def _look(self) -> None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self._table)):
            return
        version = DeltaTable(str(self._table)).version()
        if version != self._version:
            self.windows, self._version = read_table(self._table), version

    def stop(self) -> None:
        self._stopped.set()
        self.join()
