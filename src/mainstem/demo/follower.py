"""A consumer that follows one stream and measures how long records take from being sent to being here."""

import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import MainstemError

_POLL_SECONDS = 0.1
_KEPT = 20_000
_NEWEST_KEPT = 8


class Newest(NamedTuple):
    """A record to look at."""

    stream: str
    shard: int
    offset: int
    key: bytes
    value: bytes


class Follower(threading.Thread):
    """Follows in its own thread until told to stop. `delays_us` and `newest` may be looked at from any thread."""

    def __init__(self, consumer: Any, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(name=f"follow {consumer.stream.name}", daemon=True)
        self._consumer = consumer
        self._clock = clock
        self._stopped = threading.Event()
        # How long the records received last took, in microseconds.
        self._delays: deque[int] = deque(maxlen=_KEPT)
        self.newest: deque[Newest] = deque(maxlen=_NEWEST_KEPT)
        self.count = 0
        self.error: MainstemError | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                batch = self._consumer.poll_batch(_POLL_SECONDS)
                if batch is not None:
                    self._take(batch)
        except MainstemError as error:
            self.error = error

    def _take(self, batch: Any) -> None:
        now_us = self._clock.now_us()
        records = list(batch.records())
        self._delays.extend(now_us - record.timestamp_us for record in records)
        last = records[-1]
        self.newest.append(Newest(batch.stream, batch.shard, last.offset, last.key or b"", last.value or b""))
        self.count += len(records)

    def delays_us(self) -> np.ndarray[Any, Any]:
        """The delays of the newest records; asking forgets them."""
        taken = []
        while self._delays:
            taken.append(self._delays.popleft())
        return np.array(taken, dtype=np.int64)

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self._consumer.close()
