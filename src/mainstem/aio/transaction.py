"""The transaction for asyncio: what `mainstem.produce.transaction` does, awaited."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

from mainstem.aio.bridge import Bridge
from mainstem.aio.producer import Producer
from mainstem.aio.shared import GroupConsumer
from mainstem.core.errors import InvalidRequest
from mainstem.produce import transaction as core
from mainstem.produce.producer import Headers, Key, Value


class Transaction:
    """Writes and cursors that become visible together, as a Transaction of `mainstem` has them. One task; use it with
    `async with`: it commits when the block ends, and aborts if that raises, also if the task is cancelled. A commit
    that is cancelled is done all the same."""

    def __init__(self, transaction: core.Transaction, bridge: Bridge) -> None:
        self._core = transaction
        self._bridge = bridge
        self._producer: Producer | None = None
        self._advanced: list[GroupConsumer] = []
        # A commit or abort that may not be done yet.
        self._ending: asyncio.Future[None] | None = None

    @property
    def id(self) -> int:
        """By which the log knows it."""
        return self._core.id

    @property
    def offsets(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Once it is committed: by stream and shard, the offset of its first record there, and how many there are."""
        return self._core.offsets

    async def send(
        self,
        stream: str,
        value: Value,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | int | None = None,
        shard: int | None = None,
    ) -> None:
        """Add a record: see `mainstem.Producer.send`."""
        await (await self._writer()).send(stream, value, key, headers, timestamp, shard)

    async def send_many(
        self, stream: str, values: Iterable[Value], keys: Iterable[Key] | None = None, shard: int | None = None
    ) -> None:
        """Add many records at once: see `mainstem.Producer.send_many`."""
        await (await self._writer()).send_many(stream, values, keys, shard)

    async def send_batch(self, stream: str, data: Any, *, shard: int | None = None) -> None:
        """Add a table: see `mainstem.Producer.send_batch`."""
        await (await self._writer()).send_batch(stream, data, shard=shard)

    async def advance(self, *consumers: GroupConsumer) -> None:
        """Move the cursors of these consumers' groups behind what they have yielded so far, when this is committed.
        Call it first in the block: see `mainstem.Transaction.advance`."""
        for consumer in consumers:
            if not isinstance(consumer, GroupConsumer):
                raise InvalidRequest(
                    f"a transaction moves the cursor of a group's consumer of mainstem.aio, not of {consumer!r}"
                )
        self._advanced += consumers
        for consumer in consumers[1:]:
            # No worker of a cancelled task is at it.
            await consumer._work(_nothing)
        if consumers:
            await consumers[0]._work(partial(self._core.advance, *(consumer._core for consumer in consumers)))

    async def _writer(self) -> Producer:
        writer = await self._bridge.take(self._core._producer)
        if self._producer is None:
            self._producer = Producer(writer, self._bridge)
        return self._producer

    async def commit(self) -> None:
        """Make everything visible, and wait for it; see `mainstem.Transaction.commit`."""
        await self._end(self._core.commit)

    async def abort(self) -> None:
        """Let go of everything; consumers go back to where their groups stand."""
        await self._end(self._core.abort)

    async def _end(self, end: Callable[[], None]) -> None:
        if self._ending is not None:
            await asyncio.wait((self._ending,))
        for consumer in self._advanced:
            # No worker of a cancelled task is at it while this moves it.
            await consumer._work(_nothing)
        self._ending = self._bridge.begin(end)
        self._ending.add_done_callback(asyncio.Future.exception)
        await asyncio.shield(self._ending)

    async def __aenter__(self) -> "Transaction":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self.abort()
        else:
            await self._end(partial(self._core.__exit__, None))

    def __repr__(self) -> str:
        return repr(self._core)


def _nothing() -> None:
    return
