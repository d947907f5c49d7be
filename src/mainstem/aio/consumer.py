"""The consumer for asyncio: what `mainstem.consume.consumer` does, awaited."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa

from mainstem.aio.bridge import Bridge, LoopSubscription
from mainstem.consume import consumer as core
from mainstem.consume.record import Record, RecordBatch
from mainstem.core.cursor import Cursor
from mainstem.core.durations import check_timeout
from mainstem.core.errors import IncompatibleSchema, InvalidRequest, UndecodedRecords
from mainstem.transport.port import EndReached, StreamInfo

P = ParamSpec("P")
T = TypeVar("T")

# After so long, a consumer that always has something ready lets other tasks have their turn.
_TURN_SECONDS: Final = 0.005


def _awaited(
    method: Callable[Concatenate[core.Consumer, P], T],
) -> Callable[Concatenate["Consumer", P], Coroutine[Any, Any, T]]:
    """The same method, as steps that do not wait."""

    @wraps(method)
    async def call(self: "Consumer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._alone:
            return await self._bridge.take(partial(method, self._core, *args, **kwargs))

    return call


class Consumer:
    """Reads as a Consumer of `mainstem` does, which says what is read and where it starts; here it is awaited.

    One task at a time; use it with `async with`, or await `close`. `async for record in consumer`, `async for batch in
    consumer.batches()`, `await consumer.poll(timeout)` and `await consumer.poll_batch(timeout)` may be mixed. A task
    that is cancelled while it waits for a record has taken none: the next one gets it.
    """

    def __init__(self, consumer: core.Consumer, bridge: Bridge) -> None:
        self._core = consumer
        self._bridge = bridge
        self._alone = Alone()
        self._turn_ends = 0.0

    @property
    def columns(self) -> pa.Schema:
        """The columns of what comes: those of `batch.to_arrow()`."""
        return self._core.columns

    @property
    def opened(self) -> int:
        """How many batches were looked into for this consumer, here or next to the data."""
        return self._core.opened

    @property
    def skipped(self) -> int:
        """How many were not, because what is known of them says that no record of theirs can match."""
        return self._core.skipped

    @property
    def undecoded(self) -> int:
        """How many records were no rows of the stream's schema."""
        return self._core.undecoded

    @property
    def left_out(self) -> list[tuple[int, int, int]]:
        """What a quota on reading has left out of what was passed: shard, first offset and the one after the last. Of
        very many ranges, the newest."""
        return self._core.left_out

    @property
    def why_undecoded(self) -> UndecodedRecords | IncompatibleSchema | None:
        """The first of them, and why. None if there are none."""
        return self._core.why_undecoded

    @property
    def stream(self) -> StreamInfo:
        """The stream as it was when the consumer was opened; its epoch is that of the cursor."""
        return self._core.stream

    @property
    def cursor(self) -> Cursor:
        """Where reading would go on: after the record or batch yielded last."""
        return self._core.cursor

    @property
    def watermark(self) -> datetime | None:
        """Of a consumer with an ordering window, the time before which nothing comes any more."""
        return self._core.watermark

    seek = _awaited(core.Consumer.seek)
    seek_shard = _awaited(core.Consumer.seek_shard)

    # Reading.

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        for record in self._core._records:
            return record
        found = await self.poll(None)
        if found is None:
            raise StopAsyncIteration
        return found

    async def batches(self) -> AsyncIterator[RecordBatch]:
        """Batches as they were written, each of one shard: the fast way."""
        while (batch := await self.poll_batch(None)) is not None:
            yield batch

    async def poll(self, timeout: float | None = 0.0) -> Record | None:
        """The next record, waiting at most `timeout` seconds (None: without end); None if there was none, or at the end
        of a consumer that does not follow."""
        while True:
            for record in self._core._records:
                return record
            batch = await self.poll_batch(timeout)
            if batch is None:
                return None
            self._core._take_apart(batch)

    async def poll_batch(self, timeout: float | None = 0.0) -> RecordBatch | None:
        """The next batch, as `poll` does for records."""
        check_timeout(timeout)
        loop = self._bridge.loop
        deadline = None if timeout is None else loop.time() + timeout
        with self._alone:
            if loop.time() >= self._turn_ends:
                await asyncio.sleep(0)
                self._turn_ends = loop.time() + _TURN_SECONDS
            try:
                # Nothing is awaited between taking a batch and returning it.
                while (batch := await self._bridge.take(self._take)) is None:
                    left = None if deadline is None else deadline - loop.time()
                    if left is not None and left <= 0:
                        return None
                    await self._arrival(left)
            except EndReached:
                return None
        return batch

    def _take(self) -> RecordBatch | None:
        return self._core._take(0.0)

    async def _arrival(self, timeout: float | None) -> None:
        """Wait until something may have come, or the time is over."""
        subscription = self._core._subscription
        assert isinstance(subscription, LoopSubscription)
        await self._bridge.called(subscription.call_when_ready, timeout)
        self._turn_ends = self._bridge.loop.time() + _TURN_SECONDS

    # Ending.

    async def close(self) -> None:
        """Read no more. A task that waits in this consumer is woken with Closed. The cursor stays where it is."""
        self._bridge.check_loop()
        self._core.close()

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._core)


class Alone:
    """Lets one task in at a time, and tells a second one that it is wrong here."""

    def __init__(self, what: str = "consumer") -> None:
        self._what = what
        self._is_taken = False

    def __enter__(self) -> None:
        if self._is_taken:
            raise InvalidRequest(f"another task is waiting in this {self._what}; let each task open its own")
        self._is_taken = True

    def __exit__(self, *exc: object) -> None:
        self._is_taken = False
