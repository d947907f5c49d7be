"""Transactions: records of several streams, and cursors of several groups, that become visible together or not at all.

What is sent in a transaction is gathered, encoded and shipped by an ordinary producer, whose port writes it as parts of
the transaction instead of appending it. So it is on disk, and nobody sees it, when the commit names it; a transaction
can be larger than memory. A small one is held back until its commit and travels with it: one way there and back, and
one flush. Nothing is numbered before the commit, so there are no acknowledgements of single records.
"""

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from mainstem.core.batch import Batch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    Closed,
    InvalidRequest,
    InvalidSetting,
    MainstemError,
    Refused,
    StaleGeneration,
    TransactionAborted,
    WriterForgotten,
)
from mainstem.core.limits import APPEND_BATCHES_MAX, MIB, TRANSACTION_SECONDS_MAX
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Headers, Key, Producer, Value
from mainstem.transport.port import Answer, AppendDone, AppendResult, Call, Port, Query, StreamInfo, Subscription
from mainstem.transport.retry import Randomness
from mainstem.transport.sharing import (
    AbortTransactionCall,
    CommitCursorsCall,
    CommitTransactionCall,
    Staging,
)

_NOTHING: Final = Staging(0, 0, 0.0)
# Nobody sees what is written before the commit, which ships all of it: small parts would only cost flushes.
_LINGER_SECONDS: Final = 10.0
# How long whoever aborts waits for the log.
ABORT_SECONDS: Final = 5.0
# Errors that say that nothing was committed.
_REFUSALS: Final = (InvalidRequest, Refused)
# What is held back for the commit at most.
_HELD_BYTES_MAX: Final = 1 * MIB
_HELD_BATCHES_MAX: Final = 1_024
# How long the commit of a small one tries: as long as a producer would.
_COMMIT_SECONDS: Final = ProducerOptions().delivery_timeout
assert _HELD_BATCHES_MAX <= APPEND_BATCHES_MAX


@runtime_checkable
class Advancing(Protocol):
    """A consumer whose group's cursors a transaction can move."""

    def begin_advance(self, transaction: int) -> CommitCursorsCall | None:
        """How far it has read, if that is not committed yet. Only one transaction at a time may ask."""
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
    """A port whose appends are parts of a transaction. One transaction at a time, and one thread at a time.

    The first of them are held back, as long as they are few and it `holds`, and count as taken; `check` says if
    something was wrong with them. `seconds_left` is how long the transaction may still last.
    """

    # All of a transaction, or nothing.
    write_share = 1.0

    def __init__(self, port: Port, *, holds: bool = True) -> None:
        self._port = port
        self._holds = holds
        self.checks_values = port.checks_values
        self.ask = port.ask
        self.stage = port.stage
        self.commit_whole = port.commit_whole
        self.schema = port.schema
        self.schema_at_hand = port.schema_at_hand
        self.schedule = port.schedule
        self.wait = port.wait
        self.check_usable = port.check_usable
        self.check_writable = port.check_writable
        self.can_take = port.can_take
        self.close = port.close
        self.begin(_NOTHING, lambda: 0.0)

    def begin(self, staging: Staging, seconds_left: Callable[[], float]) -> None:
        """What comes from now on belongs to this transaction."""
        self._next = staging
        self._seconds_left = seconds_left
        # Batches that came, and those of them that are held back.
        self.batches = 0
        self._held: list[Batch] = []
        self._held_bytes = 0
        # What was wrong with what was held back, once it was written.
        self._error: MainstemError | None = None

    @property
    def is_begun(self) -> bool:
        """Whether something was written."""
        return self._next.index > 0

    @property
    def record_bytes_max(self) -> int:
        return self._port.record_bytes_max

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        return self._port.call(call, timeout)

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        self.batches += len(batches)
        if self._holds and not self.is_begun and self._can_hold(batches):
            self._held += batches
            done([0] * len(batches))
            return
        if not self.is_begun:
            # The log counts from now on.
            self._next = msgspec.structs.replace(self._next, seconds=max(self._seconds_left(), 0.001))
        held = self.take_held()
        if held:
            self._stage(held, timeout, self._on_held)
        self._stage(batches, timeout, done)

    def _can_hold(self, batches: Sequence[Batch]) -> bool:
        self._held_bytes += sum(batch.header.stored_len for batch in batches)
        return self._held_bytes <= _HELD_BYTES_MAX and self.batches <= _HELD_BATCHES_MAX

    def _stage(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        staging = self._next
        self._next = msgspec.structs.replace(staging, index=staging.index + 1)
        self._port.stage(staging, batches, timeout, done)

    def _on_held(self, results: Sequence[AppendResult]) -> None:
        self._error = next((result for result in results if isinstance(result, MainstemError)), None)

    def take_held(self) -> Sequence[Batch]:
        """What is held back, for who writes it."""
        held, self._held = self._held, []
        return held

    def check(self) -> None:
        """Raise what was wrong with what was held back and then written before everything else: that it was answered is
        known when everything else was."""
        if self._error is not None:
            raise self._error

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        raise InvalidRequest("what is written in a transaction is acknowledged by its commit")

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> Subscription:
        return self._port.subscribe(stream, offsets, ends, prefetch_bytes, query, window_us)


class Writing:
    """A producer for transactions, one after the other."""

    def __init__(self, port: Port, randomness: Randomness) -> None:
        self.port = StagingPort(port)
        self.producer = Producer(self.port, ProducerOptions(linger=_LINGER_SECONDS), randomness=randomness)


class Writings:
    """Producers that transactions of one hub have used and may use again: they know streams. Any thread."""

    def __init__(self, port: Port, randomness: Randomness) -> None:
        self._port = port
        self._randomness = randomness
        self._lock = threading.Lock()
        self._free: list[Writing] = []

    def take(self) -> Writing:
        with self._lock:
            if self._free:
                return self._free.pop()
        return Writing(self._port, self._randomness)

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

    def __init__(
        self,
        port: Port,
        writings: Writings,
        seconds: float,
        writer: str = "",
        epoch: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        forget_writer: Callable[[], None] = lambda: None,
    ) -> None:
        if not 0 < seconds <= TRANSACTION_SECONDS_MAX:
            raise InvalidSetting(
                f"a transaction may last more than 0 and up to {TRANSACTION_SECONDS_MAX} seconds, not {seconds:g}"
            )
        port.check_usable()
        port.check_writable()
        self.id = secrets.randbits(62) + 1
        self._port = port
        self._clock = clock
        self._writings = writings
        self._writing: Writing | None = None
        self._staging = Staging(self.id, 0, seconds, writer, epoch)
        self._forget_writer = forget_writer
        self._deadline = 0.0
        # Consumers that were advanced, and how far each moves its group, if at all.
        self._advanced: dict[Advancing, CommitCursorsCall | None] = {}
        self._offsets: dict[tuple[str, int], tuple[int, int]] | None = None
        self._is_over = False
        # Whether the log was asked to commit; whether it is not known what came of it.
        self._is_asked = False
        self._is_in_doubt = False

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

    def advance(self, *consumers: Advancing) -> None:
        """Move the cursors of these consumers' groups behind what they have yielded so far, when this is committed.
        They must have been opened with commit="manual".

        Call it first in the block, with all consumers whose records it works on: from then on whatever goes wrong sets
        them back to where their groups stand, so that the same records come again. So does Fenced here, which says that
        one of them has lost a shard, and aborts the transaction.
        """
        self._check_open()
        for consumer in consumers:
            if not isinstance(consumer, Advancing):
                raise InvalidRequest(
                    'a transaction moves the cursor of a consumer that was opened with group=... and commit="manual", '
                    f"not of {consumer!r}"
                )
        found: dict[Advancing, CommitCursorsCall | None] = {}
        try:
            for consumer in consumers:
                found[consumer] = consumer.begin_advance(self.id)
        except BaseException as error:
            is_wrong_call = type(error) is InvalidRequest
            others = [each for each in consumers if not (is_wrong_call and each is consumer)]
            # All of them are set back when this is aborted, but for one that cannot be advanced at all.
            self._advanced = dict.fromkeys(others) | self._advanced | found
            if not is_wrong_call:
                self.abort()
            raise
        self._advanced.update(found)

    def _producer(self) -> Producer:
        if self._writing is not None and not self._is_over:
            # It looks for itself whether the hub can still be used.
            return self._writing.producer
        self._check_open()
        if self._writing is None:
            self._writing = self._writings.take()
            self._writing.port.begin(self._staging, self._seconds_left)
            self._deadline = self._clock.monotonic() + self._staging.seconds
        return self._writing.producer

    def _seconds_left(self) -> float:
        return self._deadline - self._clock.monotonic()

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
        where their groups stand. If no answer comes, it may have happened: consumers then ask the log where they are,
        so that what was read is worked on again only if it has not."""
        self._check_open()
        try:
            answer = self._committed()
        except BaseException as error:
            if isinstance(error, WriterForgotten):
                self._forget_writer()
            self._is_in_doubt = self._is_asked and not isinstance(error, _REFUSALS)
            if self._is_in_doubt:
                error.add_note(f"No answer came: it is not known whether transaction {self.id:x} was committed.")
            self.abort()
            raise
        self._is_over = True
        for consumer, cursors in self._advanced.items():
            if cursors is not None:
                consumer.end_advance(cursors)
        self._offsets = {
            (self._name(place.stream), place.shard): (place.base, place.count) for place in answer.committed
        }
        if self._writing is not None:
            self._writings.give_back(self._writing)

    def _committed(self) -> Answer:
        try:
            return self._commit()
        except StaleGeneration as error:
            # For whoever appends that is retriable; of a transaction nothing is left that could be sent again.
            raise TransactionAborted(str(error)) from None

    def _commit(self) -> Answer:
        batches, whole = 0, False
        if self._writing is not None:
            self._writing.producer.flush()
            self._writing.port.check()
            batches, whole = self._writing.port.batches, not self._writing.port.is_begun
        cursors = tuple(cursors for cursors in self._advanced.values() if cursors is not None)
        if not batches and not cursors:
            return Answer()
        call = CommitTransactionCall(self.id, batches, cursors, self._staging.writer, self._staging.epoch)
        if not batches or not whole:
            self._is_asked = True
            return self._port.call(call)
        assert self._writing is not None
        if self._seconds_left() <= 0:
            raise TransactionAborted(
                f"transaction {self.id:x} was not committed within {self._staging.seconds:g} s. Nothing of it was "
                "kept; do its work again in a new one"
            )
        self._is_asked = True
        return self._port.commit_whole(self._staging, self._writing.port.take_held(), call, _COMMIT_SECONDS)

    def _name(self, stream: int) -> str:
        assert self._writing is not None
        return self._writing.producer.stream_name(stream)

    def abort(self) -> None:
        """Let go of everything; consumers go back to where their groups stand."""
        if self._is_over:
            return
        self._is_over = True
        writing, self._writing = self._writing, None
        if writing is not None:
            self._writings.forget()
            self._let_go(writing)
        for consumer, cursors in self._advanced.items():
            # Also if one is closed: the reason of the end is what is to be seen.
            quietly(consumer.rewind if cursors is None or not self._is_in_doubt else consumer.doubt)

    def _let_go(self, writing: Writing) -> None:
        # What is still under way should not come after the end; if it does, the transaction is ended by its time.
        quietly(partial(writing.producer.abandon, ABORT_SECONDS))
        if writing.port.is_begun:
            quietly(partial(self._port.call, AbortTransactionCall(self.id), ABORT_SECONDS))

    def _check_open(self) -> None:
        self._port.check_usable()
        if self._is_over:
            if self._is_in_doubt:
                raise Closed("it is not known whether this transaction was committed; begin another")
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
        ended = "in doubt" if self._is_in_doubt else "aborted" if self._offsets is None else "committed"
        state = ended if self._is_over else "open"
        return f"<Transaction {self.id:x}: {state}>"


def quietly(action: Callable[[], object]) -> None:
    """Whether it succeeds or not: a transaction that nobody ends is ended by its time."""
    try:
        action()
    except MainstemError:
        return
