"""The way into the log from another program: records to one stream, and an account of what became of them."""

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mainstem.core.errors import MainstemError, Unavailable
from mainstem.produce.chunk import BatchAck, Chunk
from mainstem.produce.producer import Producer
from mainstem.produce.rows import Row


class Intake:
    """Sends rows and tables to one stream and keeps count. One thread.

    Everything a producer gathered together shares one fate, so the account is kept by chunk and costs a record
    nothing. The first chunk that fails ends the intake: what came after it would leave a hole.
    """

    def __init__(self, producer: Producer, stream: str) -> None:
        self._producer = producer
        self._stream = stream
        # Sent, fate not looked at yet; bounded by the producer's buffer.
        self._open: deque[Chunk] = deque()
        self.sent = 0
        self.acknowledged = 0
        # Whether `acknowledged` can be told exactly: not if the answer for some records never came.
        self.is_exact = True
        # Shard: the offset of the newest record that is durable.
        self.newest: dict[int, int] = {}

    def take(self, rows: Iterable[Row | Any]) -> None:
        """Send all of them; tables go as a whole."""
        send, stream = self._producer.send, self._stream
        for row in rows:
            if isinstance(row, Row):
                self._note(send(stream, *row).chunk, 1)
            else:
                self._take_table(row)

    def _take_table(self, table: Any) -> None:
        try:
            chunks = self._producer.send_batch(self._stream, table).chunks
        except Unavailable:
            # A part of it may be on its way.
            self.is_exact = False
            raise
        for chunk in chunks:
            self._note(chunk, chunk.count)

    def finish(self) -> None:
        """Wait until everything is durable; raises what went wrong."""
        self._producer.flush()
        while self._open:
            self._settle()

    def settle(self, timeout: float | None = None) -> bool:
        """After a failure: have what was sent come to its end and count what is durable, whatever else failed. False if
        `timeout` seconds were not enough."""
        with suppress(MainstemError):
            self._producer.flush(timeout)
        while self._open:
            if not self._open[0].parcel.is_done:
                return False
            with suppress(MainstemError):
                self._settle()
        return True

    def _note(self, chunk: Chunk, count: int) -> None:
        self.sent += count
        if self._open and self._open[-1] is chunk:
            return
        self._open.append(chunk)
        while self._open[0].parcel.is_done:
            self._settle()
            if not self._open:
                return

    def _settle(self) -> None:
        try:
            runs = BatchAck([self._open.popleft()]).result()
        except Unavailable:
            self.is_exact = False
            raise
        for shard, base, count in runs:
            self.acknowledged += count
            self.newest[shard] = base + count - 1
