"""Counts of what came by HTTP: the server is the producer of it, and says how much it has acknowledged.

A client that posts rows keeps no counts. What a request wrote is counted where its answer is made, once, also if the
request is repeated with its key. What a killed server has not told yet is missing: an audit then finds more than was
sent.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mainstem.core import windows
from mainstem.core.batch import Batch
from mainstem.core.clock import Clock
from mainstem.core.errors import InternalError, MainstemError
from mainstem.core.identity import new_producer_id
from mainstem.core.windows import Tally
from mainstem.log.contents import Contents
from mainstem.log.ledger.base import StreamRow
from mainstem.produce.counts import Counts
from mainstem.transport.port import Answer, Answered, Call, Port

if TYPE_CHECKING:
    from mainstem.log.log import Log


@dataclass(frozen=True, slots=True)
class Tallied:
    """The records of a batch by window, and their stream."""

    stream: str
    uuid: str
    records: Tally


class HttpCounts:
    """What requests have written, by stream and window. `note` in the loop's thread; `tally` in any."""

    def __init__(
        self, log: "Log", carry_out: Callable[[Call], Answer], pool: Executor, window_us: int, clock: Clock
    ) -> None:
        """With a window of 0 nothing is counted."""
        self._log = log
        self._window_us = window_us
        port = cast("Port", _OwnPort(carry_out, pool))
        self._counts = Counts(port, new_producer_id(), window_us, clock) if window_us else None

    def tally(self, batch: Batch) -> Tallied | None:
        """The records of a batch; None if they are not counted, or their stream was deleted meanwhile."""
        header = batch.header
        row = None if self._counts is None else self._log.ledger.load_stream(header.stream)
        if row is None:
            return None
        times = None
        if windows.start_of(header.time_low, self._window_us) != windows.start_of(header.time_high, self._window_us):
            times = self._times(row, batch)
        found = windows.tally(header.time_low, header.time_high, header.count, times, self._window_us)
        return Tallied(row.name, row.uuid, found)

    def _times(self, row: StreamRow, batch: Batch) -> Any:
        decoded = Contents.of(row, self._log.schema).decode(batch.header, batch.payload)
        name = "_timestamp" if batch.header.schema_id else "timestamp"
        return decoded.column(name).cast("int64") if name in decoded.schema.names else None

    def note(self, written: Tallied) -> None:
        """These are durable."""
        if self._counts is not None and written.records:
            self._counts.note(written.stream, written.uuid, written.records, written.records)

    def close(self) -> None:
        """Say the rest. Not in the loop's thread."""
        if self._counts is not None:
            self._counts.close()


class _OwnPort:
    """As much of a port as counts need, with the log in this process."""

    def __init__(self, carry_out: Callable[[Call], Answer], pool: Executor) -> None:
        self._carry_out = carry_out
        self._pool = pool
        self._loop: asyncio.AbstractEventLoop | None = None

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Counts ask from the loop's thread first, and later also from where they are answered."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon_threadsafe(self._loop.call_later, delay, action)

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        return self._carry_out(call)

    def ask(self, call: Call, timeout: float, done: Answered) -> None:
        def answered(future: "Future[Answer]") -> None:
            error = future.exception()
            if error is None:
                done(future.result())
            else:
                done(error if isinstance(error, MainstemError) else InternalError(f"{type(error).__name__}: {error}"))

        self._pool.submit(self._carry_out, call).add_done_callback(answered)
