"""Batches of a log that another process writes, on their way to one reader."""

import time
from collections import deque
from collections.abc import Callable

from mainstem.consume.feed import Feed
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import Closed, DataLoss, StreamDeleted
from mainstem.core.limits import READ_BYTES_MAX
from mainstem.hub.folder_watch import POLL_SECONDS_MAX, POLL_SECONDS_MIN, FolderWatch
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.transport.port import EndReached, WouldWait


class FolderSubscription:
    """Batches of a log that another process writes: SQLite says when something changed. One thread at a time."""

    def __init__(
        self, feed: Feed, ledger: SqliteLedgerReader, check_usable: Callable[[], None], watch: FolderWatch
    ) -> None:
        self._feed = feed
        self.counts = feed.counts
        self._ledger = ledger
        self._check_usable = check_usable
        self._watch = watch
        self._queue: deque[FetchedBatch | Exception] = deque()
        self._watermark_us = 0
        # As of the last look at the stream; none was before the first fetch.
        self._version = -1
        self._error: Exception | None = None
        # Whether another thread was asked to read ahead and has not done it yet; whether it has and found nothing.
        self._is_reading = False
        self._was_read = False
        # Whom to call when something changes, if the reader does not wait itself.
        self._on_ready: Callable[[], None] | None = None

    def next(self, timeout: float | None) -> FetchedBatch | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = POLL_SECONDS_MIN
        while not self._queue:
            if self._feed.is_done:
                raise EndReached
            version = self._version
            self._queue.extend(self._read())
            if self._queue:
                break
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(pause)
            pause = POLL_SECONDS_MIN if version != self._version else min(pause * 1.1, POLL_SECONDS_MAX)
        return self._take()

    def _read(self) -> list[FetchedBatch]:
        """Look whether something changed, and read what comes next."""
        self._check_usable()
        self._look_for_changes()
        if self._error is not None:
            raise self._error
        try:
            batches = self._feed.read(READ_BYTES_MAX)
        except DataLoss:
            raise
        except Exception as error:
            self._error = error
            raise
        # Also after it: what was just read may be of another folder that is there now.
        self._check_usable()
        return batches

    def next_nowait(self) -> FetchedBatch | None:
        if self._queue:
            return self._take()
        if not self._is_reading:
            if self._feed.is_done:
                raise EndReached
            if self._was_read:
                self._was_read = False
                return None
            self._is_reading = True
        raise WouldWait(self._read_ahead)

    def _read_ahead(self) -> None:
        """The same in another thread. What goes wrong is said to who takes it."""
        try:
            self._queue.extend(self._read())
            self._was_read = not self._queue
        except Exception as error:  # noqa: BLE001
            self._queue.append(error)
        finally:
            self._is_reading = False

    def _take(self) -> FetchedBatch:
        item = self._queue.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def call_when_ready(self, call: Callable[[], None]) -> None:
        self._on_ready = call
        if self._queue or self._error is not None or self._feed.is_ready or self._feed.is_done:
            call()
        else:
            self._watch.call_when_changed(self._version, call)

    def watermark(self) -> int:
        """As far as the writer has noted moments: nothing else is known here of what it is about to write."""
        if not self._queue and not self._is_reading and self._feed.is_ordered:
            self._watermark_us = self._feed.watermark(lambda: 0)
        return self._watermark_us

    def _look_for_changes(self) -> None:
        version = self._ledger.data_version()
        if version == self._version:
            return
        self._version = version
        row = self._ledger.load_stream(self._feed.stream.id)
        # Of one that was deleted long ago there is not even a row.
        if row is None or row.deleted_us:
            self._error = StreamDeleted(f"stream {self._feed.stream.name!r} was deleted")
        self._feed.touch(range(self._feed.stream.shards if row is None else row.shards))

    def close(self) -> None:
        """Also from another thread: whoever waits is told."""
        self._error = Closed("this consumer is closed; open another with hub.consumer(...)")
        if self._on_ready is not None:
            self._on_ready()
