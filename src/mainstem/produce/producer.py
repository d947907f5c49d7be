"""The producer: records in, acknowledgements out.

One buffer for all streams, bounded in bytes. `send` only appends to it. What has gathered is shipped as one request
(a parcel): at once when nothing of this producer is in flight, else when `batch_bytes` are there or the request in
flight was answered. So a lone record does not wait, and a flood travels in large batches, without a timer.

Exactly once: a parcel's batches get their sequence numbers in the order they are shipped, by one thread at a time, and
keep them however often the connection repeats them. When a batch fails for good, the numbers after it are void: the
producer lets everything in flight come to its end, then goes on under a new epoch.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from threading import get_ident
from typing import Any, Literal

import msgspec

from mainstem.core import tables
from mainstem.core.batch import Batch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    BufferFull,
    Closed,
    DeadlineExceeded,
    InvalidRecord,
    InvalidSetting,
    MainstemError,
    RecordTooLarge,
    StreamDeleted,
    UnknownStream,
)
from mainstem.core.identity import new_producer_id
from mainstem.core.interrupts import DeferredInterrupt
from mainstem.core.limits import (
    APPEND_BATCHES_MAX,
    KIB,
    MIB,
    PAYLOAD_RAW_BYTES_MAX,
    PRODUCER_IN_FLIGHT_MAX,
    RECORD_BYTES_MAX,
)
from mainstem.produce.admission import check_atomic, check_batches, check_record, columns, headers_size
from mainstem.produce.chunk import Ack, BatchAck, Chunk, Parcel, run_callbacks
from mainstem.transport.port import AppendResult, GetStreamCall, Port, StreamInfo

Headers = Mapping[str, bytes | str] | None
_NEVER = threading.Event()
# No thread has this identifier.
_NOBODY = 0

# What a record costs in the buffer beside its bytes: list slots, and the size of an empty value is not nothing.
_RECORD_OVERHEAD = 16
_FAILED_MAX = 64
# How soon records that need no acknowledgement are offered again to a connection that could not take them.
_RETRY_SECONDS = 0.05


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen about a producer.

    `linger` waits that many seconds for more records before a lone one is shipped; 0 ships at once. `on_full` says
    what `send` does when `buffer_bytes` are waiting: "block" until there is room (at most `delivery_timeout`), or
    "raise" BufferFull. With acks="none" nothing blocks: the oldest records that were not shipped yet are dropped and
    counted.
    """

    acks: Literal["durable", "none"] = "durable"
    batch_bytes: int = 1 * MIB
    buffer_bytes: int = 32 * MIB
    linger: float = 0.0
    delivery_timeout: float = 120.0
    compression: Literal["zstd", "lz4"] | None = "lz4"
    on_full: Literal["block", "raise"] = "block"

    def check(self) -> None:
        try:
            msgspec.convert(msgspec.structs.asdict(self), ProducerOptions)
        except msgspec.ValidationError as error:
            raise InvalidSetting(f"hub.producer: {error}") from None
        if not 1 * KIB <= self.batch_bytes <= PAYLOAD_RAW_BYTES_MAX // 2:
            raise InvalidSetting(f"batch_bytes must be between 1 KiB and 8 MiB, not {self.batch_bytes}")
        if self.buffer_bytes < 2 * self.batch_bytes:
            raise InvalidSetting("buffer_bytes must be at least twice batch_bytes")
        if not (self.linger >= 0 and self.delivery_timeout > 0):
            raise InvalidSetting("linger must not be negative and delivery_timeout must be positive")


class Producer:
    """Writes records to streams. Any thread may send; use it as a context manager, or call `close`.

    Order: records sent by one thread to one shard keep their order. Acknowledged records are durable. What was not
    acknowledged when the process ends is gone.
    """

    def __init__(self, port: Port, options: ProducerOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        options.check()
        self._port = port
        self._options = options
        self._clock = clock
        self._id = new_producer_id()
        self._epoch = 0
        self._sequences: dict[tuple[int, int], int] = {}
        self._streams: dict[str, StreamInfo] = {}
        # Guards the buffer: the filling parcel, the queue of rolled ones and the byte counts.
        self._lock = threading.Lock()
        # Whether a thread is encoding, numbering and handing over: one at a time, so that the numbers have an order.
        self._shipping = False
        self._rolled: deque[Parcel] = deque()
        self._buffered = 0
        self._in_flight = 0
        self._sticky = 0
        self._reset_wanted = False
        self._ship_scheduled = False
        self._closed = False
        # Chunks that failed since the last flush, which raises the first error that nobody has asked for.
        self._failed: deque[Chunk] = deque(maxlen=_FAILED_MAX)
        self.dropped = 0
        self._parcel = self._new_parcel()
        self._chunks: dict[str, Chunk] = {}
        # The thread that may add to chunks without the lock; None before the first send.
        self._owner: int | None = None
        # Parcels in flight, oldest first.
        self._waiting: list[Parcel] = []
        _producers.add(self)
        self.send = self._make_send()

    # Sending.

    def _make_send(self) -> Callable[..., Ack]:
        """`send` as a closure: the names it needs on every call are local, because every call counts.

        The fast way takes no lock. Only the thread that owns a chunk adds to it this way; a thread that rolls the
        parcel seals its chunks first and then counts what is in them. So a record that was added before the count is
        shipped, and whoever added one after it sees the seal and asks, under the lock, whether it was counted.
        """
        chunks = self._chunks
        general = self._send_general
        batch_bytes = self._options.batch_bytes
        # A short value can break no limit; longer ones take the general way.
        short = min(64 * KIB, batch_bytes // 4)
        filled = 0

        def send(
            stream: str,
            value: bytes | None,
            key: bytes | str | None = None,
            headers: Headers = None,
            timestamp: datetime | int | None = None,
        ) -> Ack:
            """Add a record; returns at once with its Ack, unless the buffer is full.

            `value`: bytes, or None for a tombstone. `key`: bytes or text, chooses the shard. `headers`: text to bytes.
            `timestamp`: a datetime or microseconds since 1970; without one, the time of sending, to a few milliseconds.
            """
            nonlocal filled
            if type(value) is bytes and headers is None and timestamp is None and len(value) < short:
                try:
                    chunk = chunks.get(stream)
                except TypeError:  # not hashable, so not a name; the general way says so
                    chunk = None
                if chunk is not None and chunk.owner == get_ident() and chunk.plain and filled < batch_bytes:
                    values, keys = chunk.values, chunk.keys
                    if key is None:
                        if keys is None:
                            index = len(values)
                            values.append(value)
                            filled += len(value) + _RECORD_OVERHEAD
                            if chunk.is_sealed:
                                return self._after_seal(chunk, index, stream, value, key)
                            return Ack(chunk, index)
                    elif keys is not None and type(key) is bytes and len(key) < short:
                        index = len(values)
                        values.append(value)
                        keys.append(key)
                        filled += len(value) + len(key) + _RECORD_OVERHEAD
                        if chunk.is_sealed:
                            return self._after_seal(chunk, index, stream, value, key)
                        return Ack(chunk, index)
            return general(stream, value, key, headers, timestamp)

        def add_filled(size: int) -> int:
            nonlocal filled
            filled += size
            return filled

        def take_filled() -> int:
            nonlocal filled
            taken, filled = filled, 0
            return taken

        # Bytes in the parcel being filled. The fast way counts without the lock, so now and then a record is counted
        # in the wrong parcel: it decides when a parcel is full, and nothing else.
        self._add_filled, self._take_filled = add_filled, take_filled
        return send

    def _after_seal(self, chunk: Chunk, index: int, stream: str, value: Any, key: Any) -> Ack:
        """A record was added to a chunk that was just sealed: it travels with it, or it is sent again."""
        with self._lock:
            if index < chunk.count:
                return Ack(chunk, index)
        return self._send_general(stream, value, key, None, None)

    def _send_general(self, stream: str, value: Any, key: Any, headers: Any, timestamp: Any) -> Ack:
        value, key, headers, time_us = check_record(stream, value, key, headers, timestamp)
        size = len(value or b"") + len(key or b"") + headers_size(headers)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"a record of {size} bytes for {stream!r}; at most {RECORD_BYTES_MAX} are allowed")
        size += _RECORD_OVERHEAD
        info = self._stream(stream)
        while True:
            with DeferredInterrupt(), self._lock:
                self._check_open()
                self._claim()
                filled = self._add_filled(0)
                if not filled or filled + size <= self._options.batch_bytes:
                    return self._add(info, value, key, headers, time_us, size)
                self._roll()
            self._ship()
            self._await_room(size)

    def _claim(self) -> None:
        """The first thread to send owns the chunks; from the second on they belong to nobody and all take the lock."""
        if self._owner is None:
            self._owner = get_ident()
        elif self._owner not in (get_ident(), _NOBODY):
            self._roll()
            self._owner = _NOBODY

    def _add(self, info: StreamInfo, value: Any, key: Any, headers: Any, time_us: int | None, size: int) -> Ack:
        chunk = self._chunks.get(info.name)
        if chunk is None:
            chunk = self._begin_chunk(info)
        self._add_filled(size)
        return Ack(chunk, chunk.add(value, key, headers, time_us))

    def send_many(
        self, stream: str, values: Iterable[bytes | None], keys: Iterable[bytes | None] | None = None
    ) -> BatchAck:
        """Send many records at once, each with its key if `keys` is given; faster than a loop of `send`."""
        values = list(values)
        keys = None if keys is None else list(keys)
        if keys is not None and len(keys) != len(values):
            raise InvalidRecord(f"{len(values)} values and {len(keys)} keys")
        if not values:
            return BatchAck([])
        return self._send_batches(stream, columns(values, keys), atomic=False)

    def send_batch(self, stream: str, data: Any, *, atomic: bool = False) -> BatchAck:
        """Send a table (Arrow, pandas, polars) with the columns value and, if wanted, key, headers, timestamp.

        `atomic=True`: its records become visible together and stand next to each other; refused if they do not fit
        one batch or belong to several shards.
        """
        return self._send_batches(stream, tables.as_batches(data), atomic=atomic)

    def _send_batches(self, stream: str, batches: Sequence[Any], *, atomic: bool) -> BatchAck:
        info = self._stream(stream)
        check_batches(stream, batches)
        pinned = check_atomic(info, batches) if atomic else None
        batches = [batch for batch in batches if batch.num_rows]
        # A caller that is refused may send the same table again: all of it or nothing.
        is_refused_whole = self._options.on_full == "raise"
        if is_refused_whole:
            self._await_room(sum(batch.nbytes for batch in batches))
        chunks: list[Chunk] = []
        for batch in batches:
            with DeferredInterrupt(), self._lock:
                # What was sent before goes before.
                self._roll()
            if not is_refused_whole:
                self._await_room(batch.nbytes)
            chunks.append(self._add_batch(info, batch, pinned))
            self._ship()
        return BatchAck(chunks)

    def _add_batch(self, info: StreamInfo, batch: Any, pinned: int | None) -> Chunk:
        """A parcel with nothing but this batch, queued for shipping."""
        with DeferredInterrupt(), self._lock:
            self._check_open()
            # Or the thread that owns the chunks could add a record to this one before it is sealed.
            self._claim()
            self._roll()
            chunk = self._begin_chunk(info)
            chunk.batch = batch
            chunk.pinned = pinned
            self._add_filled(batch.nbytes)
            self._roll()
            return chunk

    # The buffer. Called with the lock held.

    def _begin_chunk(self, info: StreamInfo) -> Chunk:
        chunk = Chunk(info, self._clock.now_us(), self._parcel, self._owner or _NOBODY)
        if not self._parcel.chunks:
            self._parcel.deadline = self._clock.monotonic() + self._options.delivery_timeout
            self._schedule_ship(self._options.linger)
        self._chunks[info.name] = chunk
        self._parcel.chunks.append(chunk)
        return chunk

    def _new_parcel(self) -> Parcel:
        return Parcel(self._wait, self._clock.monotonic() + self._options.delivery_timeout)

    def _roll(self) -> None:
        """Close the parcel being filled and queue it for shipping."""
        parcel = self._parcel
        if not parcel.chunks:
            return
        for chunk in parcel.chunks:
            chunk.seal()
        parcel.size = self._take_filled()
        self._buffered += parcel.size
        self._rolled.append(parcel)
        self._chunks.clear()
        self._parcel = self._new_parcel()

    def _await_room(self, size: int) -> None:
        """Wait, fail or drop, without the lock, until `size` more bytes may be buffered."""
        deadline: float | None = None
        while True:
            with self._lock:
                self._check_open()
                while self._options.acks == "none" and self._is_full(size) and self._rolled:
                    self._drop_oldest()
                if not self._is_full(size):
                    return
                buffered = self._buffered
            if self._options.on_full == "raise":
                raise BufferFull(f"{buffered} bytes are waiting to be acknowledged; try again or use on_full='block'")
            now = self._clock.monotonic()
            deadline = deadline or now + self._options.delivery_timeout
            if now >= deadline:
                raise DeadlineExceeded(f"the buffer stayed full for {self._options.delivery_timeout} s")
            self._ship()
            self._port.wait(self._oldest_done(), 0.05)

    def _is_full(self, size: int) -> bool:
        return self._buffered > 0 and self._buffered + size > self._options.buffer_bytes

    def _oldest_done(self) -> threading.Event:
        return self._waiting[0].event() if self._waiting else _NEVER

    def _drop_oldest(self) -> None:
        """With acks="none" parcels are never in flight, so what is buffered is in the queue."""
        parcel = self._rolled.popleft()
        self._buffered -= parcel.size
        self.dropped += sum(chunk.count for chunk in parcel.chunks)
        self._finish(parcel, BufferFull("dropped from a full buffer (acks='none')"))

    # Shipping.

    def _schedule_ship(self, delay: float) -> None:
        if not self._ship_scheduled:
            self._ship_scheduled = True
            self._port.schedule(self._ship_gathered, delay)

    def _ship_gathered(self) -> None:
        """In the hub's thread: ship what has gathered if nothing is in flight; else the answer in flight will."""
        with self._lock:
            self._ship_scheduled = False
            if self._in_flight == 0:
                self._roll()
        self._ship()

    def _ship(self) -> None:
        """Encode, number and hand over rolled parcels, as many as may be in flight. One thread at a time."""
        while True:
            with DeferredInterrupt():
                with self._lock:
                    # Whoever ships looks at the queue again before it stops.
                    parcel = None if self._shipping else self._next_parcel()
                    if parcel is None:
                        return
                    self._shipping = True
                try:
                    self._ship_parcel(parcel)
                finally:
                    self._shipping = False

    def _next_parcel(self) -> Parcel | None:
        """With the lock held: the next parcel that may be shipped now."""
        if not self._rolled or self._in_flight >= PRODUCER_IN_FLIGHT_MAX:
            return None
        if self._options.acks == "none" and not self._port.can_take():
            self._schedule_ship(_RETRY_SECONDS)
            return None
        if self._reset_wanted:
            if self._in_flight:
                return None
            self._reset_wanted = False
            self._epoch += 1
            self._sequences.clear()
        parcel = self._rolled.popleft()
        self._in_flight += 1
        self._waiting.append(parcel)
        return parcel

    def _ship_parcel(self, parcel: Parcel) -> None:
        batches: list[Batch] = []
        owners: list[Chunk] = []
        self._sticky += 1
        for chunk in parcel.chunks:
            try:
                encoded = chunk.encode(self._sticky, self._options.compression)
            except MainstemError as error:
                chunk.error = error
                continue
            batches += encoded
            owners += [chunk] * len(encoded)
        if self._options.acks == "none":
            # Never repeated, so never in need of a number; a number lost on the way would void those after it.
            self._ship_unacknowledged(parcel, batches)
            return
        batches = [self._numbered(batch) for batch in batches]
        timeout = max(0.0, parcel.deadline - self._clock.monotonic())
        answers = _Answers(self, parcel, owners, batches)
        for begin in range(0, len(batches), APPEND_BATCHES_MAX):
            self._port.append(batches[begin : begin + APPEND_BATCHES_MAX], timeout, answers.part(begin))
        if not batches:
            self._on_answered(parcel)

    def _numbered(self, batch: Batch) -> Batch:
        header = batch.header
        key = (header.stream, header.shard)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        numbered = msgspec.structs.replace(header, producer=self._id, producer_epoch=self._epoch, sequence=sequence)
        return Batch(numbered, batch.payload)

    def _ship_unacknowledged(self, parcel: Parcel, batches: list[Batch]) -> None:
        if not self._port.append_unacknowledged(batches):
            with self._lock:
                self.dropped += sum(batch.header.count for batch in batches)
        self._on_answered(parcel)

    def _on_answered(self, parcel: Parcel) -> None:
        """A parcel came to its end: give its room back, ship what gathered meanwhile, tell those who wait."""
        with self._lock:
            self._waiting.remove(parcel)
            self._in_flight -= 1
            self._buffered = max(0, self._buffered - parcel.size)
            failed = [chunk for chunk in parcel.chunks if chunk.error is not None]
            if failed:
                self._failed += failed
                self._reset_wanted = True
                self._forget_streams(parcel)
            if self._in_flight == 0:
                self._roll()
        self._finish(parcel, None)
        self._ship()

    def _forget_streams(self, parcel: Parcel) -> None:
        """A stream that was deleted may exist again under its name: look it up anew."""
        for chunk in parcel.chunks:
            if isinstance(chunk.error, StreamDeleted | UnknownStream):
                self._streams.pop(chunk.stream.name, None)

    def _finish(self, parcel: Parcel, error: MainstemError | None) -> None:
        if error is not None:
            for chunk in parcel.chunks:
                chunk.error = error
        parcel.finish()
        run_callbacks(parcel)

    # Waiting and ending.

    def _wait(self, parcel: Parcel, timeout: float | None) -> bool:
        """Wait for one parcel, shipping it first if it is still being filled."""
        self._port.check_usable()
        with DeferredInterrupt(), self._lock:
            if parcel is self._parcel:
                self._roll()
        self._ship()
        return self._port.wait(parcel.event(), timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Ship everything and wait until its fate is known; raises the first error since the last flush that no ack has
        told anybody."""
        self._port.check_usable()
        with DeferredInterrupt(), self._lock:
            self._roll()
            waiting = [*self._waiting, *self._rolled]
        self._ship()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for parcel in waiting:
            left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            if not self._port.wait(parcel.event(), left):
                raise DeadlineExceeded(f"flush: not everything was acknowledged within {timeout} s")
        with self._lock:
            errors = [chunk.error for chunk in self._failed if chunk.error is not None and not chunk.is_told]
            self._failed.clear()
        if errors and self._options.acks == "durable":
            raise errors[0]

    def close(self) -> None:
        """Flush, then take no more records. Raises the first error of what was still under way."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            with self._lock:
                self._closed = True
                self._chunks.clear()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()
            return
        # The block failed: what it sent is still sent, but its own exception is the one to see.
        try:
            self.close()
        except MainstemError:
            return

    def _stream(self, name: str) -> StreamInfo:
        if not isinstance(name, str):
            raise InvalidRecord(f"a stream's name is text, not {type(name).__name__}")
        info = self._streams.get(name)
        if info is None:
            self._port.check_usable()
            info = self._port.call(GetStreamCall(name, auto_create=True)).streams[0]
            self._streams[name] = info
        return info

    def _check_open(self) -> None:
        self._port.check_usable()
        if self._closed:
            raise Closed("this producer is closed; open another with hub.producer()")

    def forget_after_fork(self) -> None:
        """In a child made by fork: make every `send` take the general way, which says what is wrong."""
        # Made anew, not released: a thread of the parent may have had it without having marked it as locked.
        self._lock = threading.Lock()
        self._chunks.clear()


_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _forget_all_after_fork() -> None:
    for producer in list(_producers):
        producer.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all_after_fork)


class _Answers:
    """Gathers the answers to the requests of one parcel."""

    def __init__(self, producer: Producer, parcel: Parcel, owners: list[Chunk], batches: list[Batch]) -> None:
        self._producer = producer
        self._parcel = parcel
        self._owners = owners
        self._shards = [batch.header.shard for batch in batches]
        self._left = len(batches)
        self._lock = threading.Lock()

    def part(self, begin: int) -> Callable[[Sequence[AppendResult]], None]:
        return lambda results: self._take(begin, results)

    def _take(self, begin: int, results: Sequence[AppendResult]) -> None:
        with self._lock:
            for index, result in enumerate(results, begin):
                chunk = self._owners[index]
                if isinstance(result, MainstemError):
                    chunk.error = chunk.error or result
                else:
                    chunk.bases[self._shards[index]] = result
            self._left -= len(results)
            if self._left:
                return
        self._producer._on_answered(self._parcel)
