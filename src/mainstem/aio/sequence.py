"""The single order of a stream for asyncio: what `mainstem.consume.sequence` does, awaited."""

from collections.abc import AsyncIterator
from types import TracebackType

from mainstem.aio.bridge import Bridge
from mainstem.aio.consumer import Alone
from mainstem.aio.looks import Looks
from mainstem.consume import sequence as core
from mainstem.consume.sequence import OrderedBatch
from mainstem.core.cursor import Cursor
from mainstem.transport.port import EndReached


class OrderedBatches:
    """Reads a stream in its single order, as OrderedBatches of `mainstem` does; here it is awaited. One task at a time;
    use it with `async with`, or await `close`. A task that is cancelled while it waits has taken nothing."""

    def __init__(self, ordered: core.OrderedBatches, bridge: Bridge) -> None:
        self._core = ordered
        self._alone = Alone()
        self._cursor = ordered.cursor
        self._looks: Looks[OrderedBatch] = Looks(bridge, self._look, ordered._call_when_ready, ordered._pause)

    @property
    def cursor(self) -> Cursor:
        """After the batch that was yielded last."""
        return self._cursor

    async def __aiter__(self) -> AsyncIterator[OrderedBatch]:
        while (batch := await self.poll(None)) is not None:
            yield batch

    async def poll(self, timeout: float | None = 0.0) -> OrderedBatch | None:
        """The next batch, waiting at most `timeout` seconds (None: without end); None if it is not full by then, or at
        the end of one that does not follow."""
        with self._alone:
            batch = await self._looks.take(timeout)
        if batch is not None:
            self._cursor = batch.cursor
        return batch

    def _look(self) -> OrderedBatch | None:
        batch = self._core.poll(0.0)
        if batch is None and self._core._is_at_end:
            raise EndReached
        return batch

    async def close(self) -> None:
        """Read no more. The cursor stays where it is."""
        await self._looks.work(self._core.close, _let_go)

    async def __aenter__(self) -> "OrderedBatches":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._core)


def _let_go(batch: OrderedBatch) -> None:
    """Whoever reads on from the cursor gets it again."""
