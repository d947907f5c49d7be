"""Batches of a log in this process, on their way to one reader."""

import threading
import time
from collections import deque
from collections.abc import Callable

from mainstem.consume.feed import Feed
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import Closed, DataLoss
from mainstem.core.limits import READ_BYTES_MAX
from mainstem.log.hot_tail import HotTail
from mainstem.log.ledger.base import StreamRow
from mainstem.transport.port import EndReached, WouldWait


class LocalSubscription:
    """Batches of a log in this process. `touch`, `read_again` and `end` are for any thread, the rest for one at a time:
    while one reads ahead, the feed is its own."""

    def __init__(
        self,
        feed: Feed,
        forget: Callable[["LocalSubscription"], None],
        hot: HotTail,
        settled_us: Callable[[], int],
    ) -> None:
        self.stream: StreamRow = feed.stream
        self._feed = feed
        self.counts = feed.counts
        self._forget = forget
        self._hot = hot
        self._settled_us = settled_us
        self._watermark_us = 0
        self._queue: deque[FetchedBatch] = deque()
        # What a read met instead of a batch, until somebody was told.
        self._loss: DataLoss | None = None
        self._touched: set[int] = set()
        # Whether what is queued was read before something was erased.
        self._is_outdated = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        # Whether another thread was asked to read ahead and has not done it yet.
        self._is_reading = False
        # Whom to call when something changes, if the reader does not wait itself.
        self._on_ready: Callable[[], None] | None = None

    def touch(self, shard: int) -> None:
        with self._changed:
            self._touched.add(shard)
            self._wake()

    def read_again(self) -> None:
        """Records were erased, perhaps also of what was read and is queued."""
        with self._changed:
            self._is_outdated = True

    def end(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        self._changed.notify()
        call, self._on_ready = self._on_ready, None
        if call is not None:
            call()

    def next(self, timeout: float | None) -> FetchedBatch | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._has_queued():
            self._begin_read()
            self._read_ahead()
            if not self._queue and not self._await_change(deadline):
                return None
        return self._queue.popleft()

    def next_nowait(self) -> FetchedBatch | None:
        if self._is_reading:
            raise WouldWait(self._read_ahead)
        if not self._has_queued():
            self._begin_read()
            self._queue.extend(self._feed.hot(self._hot, READ_BYTES_MAX))
            if not self._queue and self._feed.is_ready:
                self._is_reading = True
                raise WouldWait(self._read_ahead)
        return self._queue.popleft() if self._queue else None

    def _has_queued(self) -> bool:
        """Whether something is queued that can be given. What was read before an erasure is read again."""
        if self._is_outdated:
            self._is_outdated = False
            self._feed = self._feed.before(self._queue)
            self._queue.clear()
        return bool(self._queue)

    def _begin_read(self) -> None:
        """Raise what was lost, or why nothing comes any more; else let the feed know which shards grew."""
        if self._loss is not None:
            loss, self._loss = self._loss, None
            raise loss
        if self._feed.is_done:
            raise EndReached
        with self._changed:
            # Whatever is left to read: a deleted stream gives nothing more.
            if self._error is not None:
                raise self._error
            touched, self._touched = self._touched, set()
        self._feed.touch(touched)

    def _read_ahead(self) -> None:
        """Read what comes next, from memory or disk. What goes wrong is said to who takes it."""
        try:
            self._queue.extend(self._feed.read(READ_BYTES_MAX))
        except DataLoss as loss:
            self._loss = loss
        except Exception as error:  # noqa: BLE001  # as for a reader of a server: nothing comes after it
            self.end(error)
        finally:
            self._is_reading = False

    def call_when_ready(self, call: Callable[[], None]) -> None:
        feed = self._feed
        with self._changed:
            self._on_ready = call
            is_over = self._error is not None or self._loss is not None or feed.is_done
            if self._queue or self._touched or feed.is_ready or is_over:
                self._wake()

    def watermark(self) -> int:
        # What waits here is out of the feed, but not yet the reader's.
        if not self._queue and not self._is_reading and self._feed.is_ordered:
            self._watermark_us = self._feed.watermark(self._settled_us)
        return self._watermark_us

    def _await_change(self, deadline: float | None) -> bool:
        with self._changed:
            while not self._touched and self._error is None and self._loss is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """Also from another thread: whoever waits is told."""
        self._forget(self)
        self.end(Closed("this consumer is closed; open another with hub.consumer(...)"))
