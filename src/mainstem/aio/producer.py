"""The producer for asyncio: what `mainstem.produce.producer` does, awaited."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

import msgspec

from mainstem.aio.bridge import Bridge
from mainstem.core import callbacks
from mainstem.core.durations import check_timeout
from mainstem.core.errors import DeadlineExceeded, MainstemError
from mainstem.produce import chunk as core_acks
from mainstem.produce import producer as core
from mainstem.produce.chunk import Parcel, Placed
from mainstem.produce.producer import Headers, Key, Value
from mainstem.transport.port import WouldWait


class Producer:
    """Writes as a Producer of `mainstem` does; here it is awaited. Any task of the loop may send.

    `await producer.send(...)` returns when the record is in the buffer, which it waits for if that is full. It returns
    an Ack: await that to know that the record is durable, and where. A `send` that is cancelled has sent nothing; a
    `send_many` or `send_batch` that is cancelled may have sent all of it. Who is cancelled while waiting for an ack
    changes nothing: the ack can be awaited again.
    """

    def __init__(self, producer: core.Producer, bridge: Bridge) -> None:
        self._core = producer
        self._shipping = producer._shipping
        # Room is waited for here.
        self._shipping.takes_all = True
        self._bridge = bridge
        # Those who wait for room, one after the other.
        self._line = asyncio.Lock()
        self._waiting: dict[Parcel, list[asyncio.Future[bool]]] = {}

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def dropped(self) -> int:
        """How many records were dropped unsent: only with acks="none"."""
        return self._core.dropped

    @property
    def left_out(self) -> int:
        """How many records were left out because their writer is over its quota, of which a share is kept."""
        return self._core.left_out

    # Sending.

    async def send(
        self,
        stream: str,
        value: Value,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | int | None = None,
        shard: int | None = None,
    ) -> "Ack":
        """Add a record; returns with its Ack as soon as there is room in the buffer. See `mainstem.Producer.send`."""
        if self._shipping.is_full:
            await self._room()
        try:
            ack = self._core.send(stream, value, key, headers, timestamp, shard)
        except WouldWait:
            ack = await self._bridge.take(partial(self._core.send, stream, value, key, headers, timestamp, shard))
        return Ack(ack, self)

    async def send_many(
        self, stream: str, values: Iterable[Value], keys: Iterable[Key] | None = None, shard: int | None = None
    ) -> "BatchAck":
        """Send many records at once, each with its key if `keys` is given; see `mainstem.Producer.send_many`."""
        if self._shipping.is_full:
            await self._room()
        values, keys = list(values), None if keys is None else list(keys)
        return BatchAck(await self._bridge.work(partial(self._core.send_many, stream, values, keys, shard)), self)

    async def send_batch(
        self, stream: str, data: Any, *, shard: int | None = None, atomic: bool = False, infer: bool = False
    ) -> "BatchAck":
        """Send a table (Arrow, pandas, polars); see `mainstem.Producer.send_batch`."""
        if self._shipping.is_full:
            await self._room()
        send = partial(self._core.send_batch, stream, data, shard=shard, atomic=atomic, infer=infer)
        return BatchAck(await self._bridge.work(send), self)

    async def prepare(self, *streams: str) -> None:
        """Look streams up now, so that the first `send` to them need not."""
        await self._bridge.work(partial(self._core.prepare, *streams))

    async def _room(self) -> None:
        """Wait until the buffer is not full, or refuse, as `on_full` says."""
        options = self._core._options
        if options.on_full == "raise":
            raise self._shipping.full_error()
        deadline = self._bridge.loop.time() + options.delivery_timeout
        async with self._line:
            while self._shipping.is_full:
                self._shipping.check_open()
                with self._shipping.lock:
                    under_way = self._shipping.under_way()
                self._shipping.ship()
                if not under_way:
                    return
                if not await self._finished(under_way[0], deadline - self._bridge.loop.time()):
                    raise self._shipping.late_error()

    # Waiting and ending.

    async def _finished(self, parcel: Parcel, timeout: float | None) -> bool:
        """Wait until a parcel is done and its callbacks were called; False if `timeout` seconds were not enough."""
        self._bridge.check_loop()
        waiter: asyncio.Future[bool] = self._bridge.loop.create_future()
        waiting = self._waiting.get(parcel)
        if waiting is None:
            # However many wait for it, its end is told to the loop once.
            self._waiting[parcel] = [waiter]
            parcel.call_when_done(partial(self._bridge.ring, partial(self._on_finished, parcel)))
            self._shipping.hasten()
        else:
            waiting.append(waiter)
        return await self._bridge.resolved(waiter, timeout)

    def _on_finished(self, parcel: Parcel) -> None:
        for waiter in self._waiting.pop(parcel):
            if not waiter.done():
                waiter.set_result(True)

    async def flush(self, timeout: float | None = None) -> None:
        """Ship everything and wait until its fate is known and callbacks were called; raises the first error since the
        last flush that no ack has told anybody."""
        check_timeout(timeout)
        deadline = None if timeout is None else self._bridge.loop.time() + timeout
        for parcel in self._core._begin_flush():
            left = None if deadline is None else max(0.0, deadline - self._bridge.loop.time())
            if not await self._finished(parcel, left):
                raise core._flush_late(timeout)
        self._core._end_flush()

    async def close(self) -> None:
        """Flush, then take no more records. Raises the first error of what was still under way.

        With acks="none" a server that is away is waited for no longer than a second; what it did not take is dropped.
        """
        if self._core._begin_close():
            try:
                await self.flush()
            finally:
                self._core._end_close()
                if self._shipping.counts is not None:
                    await self._bridge.work(self._core._tell_counts)

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except MainstemError:
            # If the block failed, its own exception is the one to see.
            if kind is None:
                raise


class Ack(msgspec.Struct, gc=False, eq=False):
    """The fate of one record: ignore it, ask it, await it, or have it call you.

    `shard, offset = await ack` when the record is durable; raises what went wrong.
    """

    ack: core_acks.Ack
    producer: Producer

    @property
    def stream(self) -> str:
        """Where the record went: to another stream than it was sent to if it is a dead letter."""
        return self.ack.stream

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.ack.done()

    def __await__(self) -> Generator[Any, None, Placed]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> Placed:
        """(shard, offset) of the record, durable; raises what went wrong, DeadlineExceeded if that is not known yet."""
        await self._end(timeout)
        return self.ack.result()

    async def exception(self, timeout: float | None = None) -> MainstemError | None:
        """What went wrong, or None if the record is durable."""
        await self._end(timeout)
        return self.ack.exception()

    async def _end(self, timeout: float | None) -> None:
        check_timeout(timeout)
        if not self.ack.done() and not await self.producer._finished(self.ack.chunk.parcel, timeout):
            raise DeadlineExceeded(f"no acknowledgement within {timeout} s; the outcome is not known yet")

    def add_done_callback(self, call: Callable[["Ack"], None]) -> None:
        """Call `call(self)` in the event loop when the outcome is known. What it raises is logged."""
        what = f"a callback of an acknowledgement from {self.stream!r}"
        run = partial(callbacks.run, partial(call, self), what)
        self.ack.chunk.parcel.call_when_done(partial(self.producer._bridge.ring, run))

    def __repr__(self) -> str:
        return repr(self.ack)


class BatchAck(msgspec.Struct, gc=False, eq=False):
    """The fate of a table given to `send_batch`, or of what was given to `send_many`.

    `await ack` gives (shard, offset, count) of every run of records, durable. `dead` has an ack for each row that did
    not fit and was kept as a dead letter.
    """

    ack: core_acks.BatchAck
    producer: Producer

    @property
    def dead(self) -> list[Ack]:
        return [Ack(dead, self.producer) for dead in self.ack.dead]

    def done(self) -> bool:
        return self.ack.done()

    def __await__(self) -> Generator[Any, None, list[tuple[int, int, int]]]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> list[tuple[int, int, int]]:
        """(shard, offset, count) of every run of records, durable; dead letters are not among them, but durable too."""
        check_timeout(timeout)
        loop = self.producer._bridge.loop
        deadline = None if timeout is None else loop.time() + timeout
        for chunk in (*self.ack.chunks, *(dead.chunk for dead in self.ack.dead)):
            left = None if deadline is None else max(0.0, deadline - loop.time())
            if not chunk.parcel.is_done and not await self.producer._finished(chunk.parcel, left):
                raise DeadlineExceeded(f"no acknowledgement within {timeout} s; the outcome is not known yet")
        return self.ack.result()

    async def exception(self, timeout: float | None = None) -> MainstemError | None:
        check_timeout(timeout)
        try:
            await self.result(timeout)
        except MainstemError as error:
            return error
        return None

    def __repr__(self) -> str:
        return repr(self.ack)
