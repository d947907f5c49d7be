"""Batches pushed by a server, on their way to one reader."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from mainstem.core.batch import Buffer, FetchedBatch
from mainstem.core.errors import Closed, DataLoss, MainstemError, ProtocolError
from mainstem.core.limits import BATCH_OVERHEAD_BYTES, SHARDS_PER_STREAM_MAX
from mainstem.transport.port import EndReached, EpochChanged, Query, ReadCounts, StreamInfo
from mainstem.transport.wire import (
    VERSION_MIN,
    VERSION_OF_ORDER,
    VERSION_OF_SCHEMAS,
    VERSION_OF_WHOLE,
    Batches,
    Kind,
    Mark,
    Subscribe,
    pack,
)


class RemoteSubscription:
    """Batches pushed by a server. `next` and `close` are for one thread, the rest for the I/O thread."""

    def __init__(
        self,
        id_: int,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
        *,
        give_credit: Callable[[int, int], None],
        remove: Callable[[int], None],
    ) -> None:
        self.id = id_
        self._give_credit = give_credit
        self._remove = remove
        self._stream = stream
        # Per shard, the offset after the last batch that arrived: where a new connection goes on.
        self._offsets = list(offsets)
        self._ends = None if ends is None else list(ends)
        self._query = query or Query()
        self._window_us = window_us
        # Of the protocol: an older server would pass over what is asked and send everything.
        self.version = VERSION_MIN if self._query.is_plain else VERSION_OF_SCHEMAS
        if window_us is not None:
            self.version = VERSION_OF_ORDER
        if self._query.whole:
            self.version = VERSION_OF_WHOLE
        self._watermark_us = 0
        self.counts = ReadCounts()
        self._credit = prefetch_bytes
        self._queue: deque[FetchedBatch | Mark | MainstemError | EndReached | EpochChanged] = deque()
        self._arrived = threading.Condition(threading.Lock())
        # Bytes in the queue, which the server counts against the credit, and bytes taken but not yet given back.
        self._queued_bytes = 0
        self._taken_bytes = 0
        # Whom to call when something arrives, if the reader does not wait itself.
        self._on_ready: Callable[[], None] | None = None

    # The I/O thread.

    def subscribe_message(self) -> list[Buffer]:
        """Where to go on, with the credit that the queue leaves."""
        with self._arrived:
            credit = max(1, self._credit - self._queued_bytes)
            self._taken_bytes = 0
        query = self._query
        columns = None if query.columns is None else list(query.columns)
        message = Subscribe(
            self._stream.id,
            self._offsets,
            self._ends,
            credit,
            query.where,
            columns,
            query.schema_id,
            self._window_us,
            query.whole,
        )
        return pack(Kind.SUBSCRIBE, self.id, message)

    def receive(self, header: Batches, payloads: list[bytes]) -> None:
        with self._arrived:
            for (base, batch_header), payload in zip(header.batches, payloads, strict=True):
                batch = FetchedBatch(base, batch_header, payload)
                shard = batch_header.shard
                self._know(shard)
                if not base <= self._offsets[shard] < batch.end:
                    raise ProtocolError(f"batch {base} of shard {shard} came out of order")
                self._offsets[shard] = batch.end
                self._queue.append(batch)
                self._queued_bytes += len(payload) + BATCH_OVERHEAD_BYTES
            self.counts.add(header.opened, header.skipped, header.undecoded)
            self._wake()

    def mark(self, mark: Mark) -> None:
        """A place between batches, which counts when the reader comes to it."""
        with self._arrived:
            if self._queue and isinstance(self._queue[-1], Mark):
                self._queue.pop()
            self._queue.append(mark)

    def lose(self, loss: DataLoss) -> None:
        with self._arrived:
            self._know(loss.shard)
            self._offsets[loss.shard] = max(self._offsets[loss.shard], loss.last + 1)
            self._queue.append(loss)
            self._wake()

    def _know(self, shard: int) -> None:
        """The stream may have got more shards since it was looked up; those begin at 0."""
        if not 0 <= shard < SHARDS_PER_STREAM_MAX:
            raise ProtocolError(f"there can be no shard {shard}")
        self._offsets += [0] * (shard + 1 - len(self._offsets))

    @property
    def epoch(self) -> int:
        """The epoch of the log that the offsets are of."""
        return self._stream.epoch

    def finish(self, reason: MainstemError | EndReached | EpochChanged) -> None:
        with self._arrived:
            self._queue.append(reason)
            self._wake()

    def _wake(self) -> None:
        self._arrived.notify()
        call, self._on_ready = self._on_ready, None
        if call is not None:
            call()

    # The reader's thread.

    def next(self, timeout: float | None) -> FetchedBatch | None:
        with self._arrived:
            if not self._has_item() and not self._arrived.wait_for(self._has_item, timeout):
                return None
            item = self._queue[0]
            assert not isinstance(item, Mark)
            if isinstance(item, DataLoss | FetchedBatch):
                self._queue.popleft()
            if not isinstance(item, FetchedBatch):
                # The end stays at the head of the queue: whoever asks again gets it again.
                raise item
            size = len(item.payload) + BATCH_OVERHEAD_BYTES
            self._queued_bytes -= size
            self._taken_bytes += size
            give = self._taken_bytes if self._taken_bytes >= self._credit // 4 else 0
            self._taken_bytes -= give
        if give:
            self._give_credit(self.id, give)
        return item

    def next_nowait(self) -> FetchedBatch | None:
        return self.next(0.0) if self._queue else None

    def call_when_ready(self, call: Callable[[], None]) -> None:
        with self._arrived:
            self._on_ready = call
            if self._has_item():
                self._wake()

    def watermark(self) -> int:
        with self._arrived:
            self._has_item()
            return self._watermark_us

    def _has_item(self) -> bool:
        """Whether something is there for the reader, who comes past the marks before it."""
        queue = self._queue
        while queue and isinstance(mark := queue[0], Mark):
            self._watermark_us = max(self._watermark_us, mark.time_us)
            queue.popleft()
        return bool(queue)

    def close(self) -> None:
        """Also from another thread: whoever waits is told."""
        self._remove(self.id)
        self.finish(Closed("this consumer is closed; open another with hub.consumer(...)"))
