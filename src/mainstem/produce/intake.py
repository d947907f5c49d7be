"""The way into the log from another program: records to one stream, and an account of what became of them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mainstem.core.errors import InvalidRecord, MainstemError, SchemaMismatch, Unavailable
from mainstem.produce.chunk import BatchAck, Chunk
from mainstem.produce.producer import Producer
from mainstem.produce.rows import Row
from mainstem.produce.typed_rows import TypedRow


class Intake:
    """Sends rows and tables to one stream and keeps count. One thread.

    Everything a producer gathered together shares one fate, so the account is kept by chunk and costs a record
    nothing. The first chunk that fails ends the intake: what came after it would leave a hole.
    """

    def __init__(self, producer: Producer, stream: str, unit: str = "line", shard: int | None = None) -> None:
        """`unit` is what rows are counted in where one does not fit. All go to `shard`, if one is given."""
        self._producer = producer
        self._stream = stream
        self._unit = unit
        self._shard = shard
        # Sent, fate not looked at yet, the oldest first; bounded by the producer's buffer.
        self._open: dict[Chunk, None] = {}
        self._last: Chunk | None = None
        self.sent = 0
        self.acknowledged = 0
        # Of these, rows that do not fit and are dead letters now.
        self.dead = 0
        # Whether `acknowledged` can be told exactly: not if the answer for some records never came.
        self.is_exact = True
        # Shard: the offset of the newest record that is durable.
        self.newest: dict[int, int] = {}

    def take(self, rows: Iterable[Row | Any]) -> None:
        """Send all of them; tables go as a whole."""
        send, stream, shard = self._producer.send, self._stream, self._shard
        for row in rows:
            if isinstance(row, Row):
                self._note(send(stream, *row, shard).chunk, 1)
            elif isinstance(row, TypedRow):
                self._take_typed(row)
            else:
                self._take_table(row)

    def _take_typed(self, row: TypedRow) -> None:
        try:
            ack = self._producer.send(self._stream, *row[1:], self._shard)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"{self._unit} {row.number}: {error}", path=error.path) from None
        except InvalidRecord as error:
            raise InvalidRecord(f"{self._unit} {row.number}: {error}") from None
        self._note(ack.chunk, 1)

    def _take_table(self, table: Any) -> None:
        try:
            chunks = self._producer.send_batch(self._stream, table, shard=self._shard).chunks
        except Unavailable:
            # A part of it may be on its way.
            self.is_exact = False
            raise
        except SchemaMismatch as error:
            if not self.sent:
                raise
            # Rows are counted from the first of the table.
            raise SchemaMismatch(f"{error}, counted from row {self.sent} of the input", path=error.path) from None
        self.note(chunks)

    def note(self, chunks: Iterable[Chunk]) -> None:
        """Count what was sent as tables."""
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
            if not next(iter(self._open)).parcel.is_done:
                return False
            with suppress(MainstemError):
                self._settle()
        return True

    def _note(self, chunk: Chunk, count: int) -> None:
        self.sent += count
        if chunk is self._last:
            return
        self._last = chunk
        self._open[chunk] = None
        while self._open and next(iter(self._open)).parcel.is_done:
            self._settle()

    def _settle(self) -> None:
        chunk = next(iter(self._open))
        del self._open[chunk]
        try:
            runs = BatchAck([chunk]).result()
        except Unavailable:
            self.is_exact = False
            raise
        for shard, base, count in runs:
            self.acknowledged += count
            if chunk.stream.name == self._stream:
                self.newest[shard] = base + count - 1
            else:
                self.dead += count
