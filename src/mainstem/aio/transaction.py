"""Transactions for asyncio: what `mainstem.produce.transaction` does, awaited."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any

from mainstem.aio.bridge import Bridge
from mainstem.aio.consumer import Alone
from mainstem.aio.producer import Producer
from mainstem.aio.shared import GroupConsumer
from mainstem.core.errors import MainstemError
from mainstem.produce import producer as core_producer
from mainstem.produce import transaction as core
from mainstem.produce.producer import Headers, Key, Value


class Transaction:
    """Writes and cursors that become visible together, as a Transaction of `mainstem` makes them; here it is awaited.
    One task at a time; use it with `async with`: it commits when the block ends, and aborts if that raises.

    A task that is cancelled while the transaction commits changes nothing of that: it is committed, or refused.
    """

    def __init__(self, transaction: core.Transaction, bridge: Bridge) -> None:
        self._core = transaction
        self._bridge = bridge
        self._alone = Alone("transaction")
        # The producer of this transaction, once something was sent, and how it is awaited.
        self._writing: tuple[core_producer.Producer, Producer] | None = None
        self._committing: asyncio.Future[None] | None = None

    @property
    def id(self) -> int:
        return self._core.id

    @property
    def offsets(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Once it is committed: by stream and shard, the offset of its first record there, and how many there are."""
        return self._core.offsets

    # Writing.

    async def send(
        self,
        stream: str,
        value: Value,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | int | None = None,
        shard: int | None = None,
    ) -> None:
        """Add a record: see `mainstem.Transaction.send`. Waits while the buffer is full."""
        await self._producer().send(stream, value, key, headers, timestamp, shard)

    async def send_many(
        self, stream: str, values: Iterable[Value], keys: Iterable[Key] | None = None, shard: int | None = None
    ) -> None:
        """Add many records at once: see `mainstem.Producer.send_many`."""
        await self._producer().send_many(stream, values, keys, shard)

    async def send_batch(self, stream: str, data: Any, *, shard: int | None = None) -> None:
        """Add a table: see `mainstem.Producer.send_batch`."""
        await self._producer().send_batch(stream, data, shard=shard)

    async def advance(self, consumer: GroupConsumer) -> None:
        """Move the cursor of the consumer's group behind what it has yielded so far, when this is committed. The
        consumer must have been opened with commit="manual"."""
        with self._alone, consumer._alone:
            await self._bridge.work(partial(self._core.advance, consumer._core))

    def _producer(self) -> Producer:
        self._bridge.check_loop()
        producer = self._core._producer()
        if self._writing is None or self._writing[0] is not producer:
            self._writing = producer, Producer(producer, self._bridge)
        return self._writing[1]

    # Ending.

    async def commit(self) -> None:
        """Make everything visible, and wait for it. If that is refused, nothing has happened, and consumers go back to
        where their groups stand."""
        with self._alone:
            self._committing = self._bridge.begin(self._core.commit)
            await asyncio.shield(self._committing)

    async def abort(self) -> None:
        """Let go of everything; consumers go back to where their groups stand."""
        if self._committing is not None:
            # Who was cancelled while it commits: that comes to its end, whichever.
            with contextlib.suppress(MainstemError):
                await asyncio.shield(self._committing)
        await self._bridge.work(self._core.abort)

    async def close(self) -> None:
        """Abort it, if it is not over."""
        await self.abort()

    async def __aenter__(self) -> "Transaction":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self.abort()
        elif not self._core._is_over:
            await self.commit()

    def __repr__(self) -> str:
        return repr(self._core)
