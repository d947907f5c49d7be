"""Transactions: records of several streams, and cursors of several groups, that become visible together or not at all.

What is sent in a transaction is gathered, encoded and shipped by an ordinary producer, whose port writes it as parts of
the transaction instead of appending it. So it is on disk, and nobody sees it, when the commit names it; a transaction
can be larger than memory. Nothing is numbered before the commit, so there are no acknowledgements of single records.
"""

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from mainstem.core.batch import Batch
from mainstem.core.errors import Closed, InvalidRequest, InvalidSetting, MainstemError, Refused, TransactionAborted
from mainstem.core.limits import TRANSACTION_SECONDS_MAX
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Headers, Key, Producer, Value
from mainstem.transport.port import Answer, AppendDone, Call, Port, Query, StreamInfo, Subscription
from mainstem.transport.sharing import (
    AbortTransactionCall,
    CommitCursorsCall,
    CommitTransactionCall,
    Staging,
)

_NOT_BEGUN: Final = Staging(0, 0, 0.0)
# Nobody sees what is written before the commit, which ships all of it: small parts would only cost flushes.
_LINGER_SECONDS: Final = 10.0


class Advancing(Protocol):
    """A consumer whose group's cursors a transaction can move."""

    def begin_advance(self) -> CommitCursorsCall | None:
        """How far it has read, if that is not committed yet."""
        ...

    def end_advance(self, cursors: CommitCursorsCall) -> None:
        """The transaction was committed."""
        ...

    def rewind(self) -> None:
        """It was not: go on where the group stands."""
        ...

    def doubt(self) -> None:
        """Nobody knows: find out where the group stands, and see to it that this does not change any more."""
        ...


class StagingPort:
    """A port whose appends are parts of a transaction. One transaction at a time."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self.checks_values = port.checks_values
        self.ask = port.ask
        self.stage = port.stage
        self.schema = port.schema
        self.schema_at_hand = port.schema_at_hand
        self.schedule = port.schedule
        self.wait = port.wait
        self.check_usable = port.check_usable
        self.check_writable = port.check_writable
        self.can_take = port.can_take
        self.close = port.close
        self._next = _NOT_BEGUN
        # Batches that were handed over since the transaction began.
        self.batches = 0

    def begin(self, staging: Staging) -> None:
        """What comes from now on belongs to this transaction."""
        self._next, self.batches = staging, 0

    @property
    def is_begun(self) -> bool:
        """Whether something was handed over."""
        return self._next.index > 0

    @property
    def record_bytes_max(self) -> int:
        return self._port.record_bytes_max

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        return self._port.call(call, timeout)

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        staging = self._next
        self._next = Staging(staging.transaction, staging.index + 1, staging.seconds, staging.writer, staging.epoch)
        self.batches += len(batches)
        self._port.stage(staging, batches, timeout, done)

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        raise InvalidRequest("what is written in a transaction is acknowledged by its commit")

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
    ) -> Subscription:
        return self._port.subscribe(stream, offsets, ends, prefetch_bytes, query)


class Writing:
    """A producer for transactions, one after the other."""

    def __init__(self, port: Port) -> None:
        self.port = StagingPort(port)
        self.producer = Producer(self.port, ProducerOptions(linger=_LINGER_SECONDS))


class Writings:
    """Producers that transactions of one hub have used and may use again: they know streams. Any thread."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._free: list[Writing] = []

    def take(self) -> Writing:
        with self._lock:
            if self._free:
                return self._free.pop()
        return Writing(self._port)

    def give_back(self, writing: Writing) -> None:
        with self._lock:
            self._free.append(writing)

    def forget(self) -> None:
        """A transaction was refused: what these know of streams may be out of date."""
        with self._lock:
            self._free.clear()


class Transaction:
    """Writes and cursors that become visible together. One thread; use it as a context manager: it commits when the
    block ends, and aborts if that raises. It ends by itself `seconds` after its first records were written."""

    def __init__(self, port: Port, writings: Writings, seconds: float, writer: str = "", epoch: int = 0) -> None:
        if not 0 < seconds <= TRANSACTION_SECONDS_MAX:
            raise InvalidSetting(f"a transaction may last up to {TRANSACTION_SECONDS_MAX} seconds, not {seconds:g}")
        port.check_usable()
        port.check_writable()
        self.id = secrets.randbits(62) + 1
        self._port = port
        self._writings = writings
        self._writing: Writing | None = None
        self._staging = Staging(self.id, 0, seconds, writer, epoch)
        self._advanced: dict[Advancing, CommitCursorsCall] = {}
        self._offsets: dict[tuple[str, int], tuple[int, int]] | None = None
        self._names: dict[int, str] = {}
        self._is_over = False

    # Writing.

    def send(
        self,
        stream: str,
        value: Value,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | int | None = None,
        shard: int | None = None,
    ) -> None:
        """Add a record: see Producer.send. What is wrong with it is raised here, what the log says by `commit`."""
        self._producer().send(stream, value, key, headers, timestamp, shard)

    def send_many(
        self, stream: str, values: Iterable[Value], keys: Iterable[Key] | None = None, shard: int | None = None
    ) -> None:
        """Add many records at once: see Producer.send_many."""
        self._producer().send_many(stream, values, keys, shard)

    def send_batch(self, stream: str, data: Any, *, shard: int | None = None) -> None:
        """Add a table: see Producer.send_batch."""
        self._producer().send_batch(stream, data, shard=shard)

    def advance(self, consumer: Advancing) -> None:
        """Move the cursor of the consumer's group behind what it has yielded so far, when this is committed. The
        consumer must have been opened with commit="manual"."""
        self._check_open()
        cursors = consumer.begin_advance()
        if cursors is not None:
            self._advanced[consumer] = cursors

    def _producer(self) -> Producer:
        self._check_open()
        if self._writing is None:
            self._writing = self._writings.take()
            self._writing.port.begin(self._staging)
        return self._writing.producer

    # Ending.

    @property
    def offsets(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Once it is committed: by stream and shard, the offset of its first record there, and how many there are. They
        follow each other."""
        if self._offsets is None:
            raise InvalidRequest("a transaction has offsets once it is committed")
        return self._offsets

    def commit(self) -> None:
        """Make everything visible, and wait for it. If that is refused, nothing has happened, and consumers go back to
        where their groups stand. After any other error it may have happened or not: consumers find out."""
        self._check_open()
        try:
            answer = self._commit()
        except (Refused, InvalidRequest):
            self.abort()
            raise
        except BaseException:
            self._abort(is_known=False)
            raise
        self._is_over = True
        for consumer, cursors in self._advanced.items():
            consumer.end_advance(cursors)
        self._offsets = {
            (self._name(place.stream), place.shard): (place.base, place.count) for place in answer.committed
        }
        if self._writing is not None:
            self._writings.give_back(self._writing)

    def _commit(self) -> Answer:
        batches = 0
        if self._writing is not None:
            self._writing.producer.flush()
            batches = self._writing.port.batches
        cursors = tuple(self._advanced.values())
        if not batches and not cursors:
            return Answer()
        call = CommitTransactionCall(self.id, batches, cursors, self._staging.writer, self._staging.epoch)
        return self._port.call(call)

    def _name(self, stream: int) -> str:
        assert self._writing is not None
        return self._writing.producer.stream_name(stream)

    def abort(self) -> None:
        """Let go of everything; consumers go back to where their groups stand."""
        self._abort()

    def _abort(self, *, is_known: bool = True) -> None:
        if self._is_over:
            return
        self._is_over = True
        writing, self._writing = self._writing, None
        if writing is not None:
            self._writings.forget()
            self._let_go(writing)
        for consumer in self._advanced:
            if is_known:
                consumer.rewind()
            else:
                consumer.doubt()

    def _let_go(self, writing: Writing) -> None:
        # What is still under way must not come after the end.
        quietly(writing.producer.close)
        if writing.port.is_begun:
            quietly(lambda: self._port.call(AbortTransactionCall(self.id)))

    def _check_open(self) -> None:
        self._port.check_usable()
        if self._is_over:
            if self._offsets is None:
                raise TransactionAborted("this transaction was aborted; begin another with hub.transaction()")
            raise Closed("this transaction was committed; begin another with hub.transaction()")

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.abort()
        elif not self._is_over:
            self.commit()

    def __repr__(self) -> str:
        state = "open" if not self._is_over else "aborted" if self._offsets is None else "committed"
        return f"<Transaction {self.id:x}: {state}>"


def quietly(action: Callable[[], object]) -> None:
    """Whether it succeeds or not: a transaction that nobody ends is ended by its time."""
    try:
        action()
    except MainstemError:
        return
