"""Consumers of several streams, and members of groups, for asyncio.

They commit and look things up as they go, so a step of theirs may wait: a worker takes it.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from mainstem.aio.bridge import Bridge
from mainstem.aio.consumer import Alone
from mainstem.aio.looks import Looks
from mainstem.consume.group_consumer import GroupConsumer as CoreGroupConsumer
from mainstem.consume.record import Record, RecordBatch
from mainstem.consume.several import SeveralConsumer as CoreSeveralConsumer
from mainstem.consume.spread_consumer import SpreadConsumer as CoreSpreadConsumer
from mainstem.core.cursor import Cursors
from mainstem.core.durations import check_timeout

Core = TypeVar("Core", bound="CoreSeveralConsumer | CoreGroupConsumer | CoreSpreadConsumer")


class _Shared(Generic[Core]):
    """What both have. One task at a time."""

    def __init__(self, consumer: Core, bridge: Bridge) -> None:
        self._core: Core = consumer
        self._bridge = bridge
        # If it looks after its membership between the records of a batch.
        self._whole: CoreGroupConsumer | None = consumer if isinstance(consumer, CoreGroupConsumer) else None
        self._alone = Alone()
        self._looks: Looks[RecordBatch] = Looks(
            bridge, partial(consumer._take, 0.0), consumer.call_when_woken, consumer._pause_max
        )

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._all_records()

    async def _all_records(self) -> AsyncIterator[Record]:
        while (record := await self.poll(None)) is not None:
            yield record

    async def batches(self) -> AsyncIterator[RecordBatch]:
        """Batches as they were written, each of one shard: the fast way."""
        while (batch := await self.poll_batch(None)) is not None:
            yield batch

    async def poll(self, timeout: float | None = 0.0) -> Record | None:
        """The next record, waiting at most `timeout` seconds (None: without end); None if there was none, or at the end
        of a consumer that does not follow."""
        whole = self._whole
        if whole is not None and (whole._is_look_due() or self._looks.is_busy):
            with self._alone:
                await self._work(whole._look_between)
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
        with self._alone:
            return await self._looks.take(timeout)

    async def close(self) -> None:
        """Read no more; a member commits what was yielded, and leaves its group."""
        await self._work(self._core.close)

    async def _work(self, work: Callable[[], None]) -> None:
        """Let a worker do it. What a task that was cancelled has not taken was not yielded: it comes next."""
        await self._looks.work(work, self._core._take_apart)

    def __repr__(self) -> str:
        return repr(self._core)


class SeveralConsumer(_Shared[CoreSeveralConsumer]):
    """Reads several streams as a SeveralConsumer of `mainstem` does; here it is awaited."""

    @property
    def cursor(self) -> Cursors:
        """Where reading would go on, in every stream: after the record or batch yielded last."""
        return self._core.cursor

    async def __aenter__(self) -> "SeveralConsumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class GroupConsumer(_Shared["CoreGroupConsumer | CoreSpreadConsumer"]):
    """A member of a group, as a GroupConsumer of `mainstem` is, or a SpreadConsumer: there it says what is committed
    when."""

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._core.group

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """By stream and shard: where this member would go on, in what it holds now."""
        return self._core.positions

    async def commit(self, positions: Mapping[tuple[str, int], int] | None = None) -> None:
        """Move the group's cursor behind what was yielded; see `mainstem.GroupConsumer.commit`."""
        with self._alone:
            await self._work(partial(self._core.commit, positions))

    async def rewind(self) -> None:
        """Go back to where the group stands: what was yielded and not committed comes again."""
        with self._alone:
            await self._work(self._core.rewind)

    async def __aenter__(self) -> "GroupConsumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._work(self._core.close if kind is None else self._core.abandon)
