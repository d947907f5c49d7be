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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import get_ident
from typing import Any, Final, Literal

import msgspec

from mainstem.core import tables
from mainstem.core.batch import Batch
from mainstem.core.callbacks import check_may_wait, is_calling
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    BufferFull,
    Closed,
    DeadlineExceeded,
    InvalidRecord,
    InvalidRequest,
    InvalidSetting,
    MainstemError,
    OutOfSequence,
    RecordTooLarge,
    SchemaMismatch,
    StreamDeleted,
    UnknownProducer,
    UnknownStream,
)
from mainstem.core.identity import new_producer_id, new_stream_uuid
from mainstem.core.interrupts import DeferredInterrupt
from mainstem.core.keys import key_of
from mainstem.core.limits import (
    APPEND_BATCHES_MAX,
    HEADER_BYTES_MAX,
    HEADERS_PER_RECORD_MAX,
    KEY_BYTES_MAX,
    KIB,
    MIB,
    PAYLOAD_RAW_BYTES_MAX,
    PRODUCER_IN_FLIGHT_MAX,
)
from mainstem.core.schema import Schema
from mainstem.produce import dead_letters, many_rows
from mainstem.produce.admission import (
    Envelope,
    check_atomic,
    check_batches,
    check_envelope,
    check_keyed,
    check_row_batch,
    check_shard,
    check_value,
    columns,
    has_keys,
    headers_size,
)
from mainstem.produce.chunk import Ack, BatchAck, Chunk, Parcel
from mainstem.produce.returns import Returns, changed
from mainstem.produce.row_batches import as_row_batches, keys_of, rows_schema
from mainstem.registry.rows import RowConverter, converter_of
from mainstem.transport.port import AppendResult, CreateStreamCall, GetStreamCall, Port, SetSchemaCall, StreamInfo

Headers = Mapping[str, bytes | str] | None
# A tombstone of a stream whose key is made of several columns names all of them, as a tuple.
Key = bytes | str | int | tuple[Any, ...] | None
Value = bytes | str | Mapping[str, Any] | None
_NEVER = threading.Event()
# No thread has this identifier.
_NOBODY = 0

# What a record costs in the buffer beside its bytes: list slots, and the size of an empty value is not nothing.
_RECORD_OVERHEAD = 16
_FAILED_MAX = 64
# How soon records that need no acknowledgement are offered again to a connection that could not take them.
_RETRY_SECONDS = 0.05
# How long `close` waits for a connection that could take them.
_CLOSE_SECONDS = 1.0
# How often streams are looked up again where no answer would tell that they were deleted.
_LOOKUP_SECONDS = 5.0


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen about a producer; see `Hub.producer`, which has the defaults."""

    acks: Literal["durable", "none"] = "durable"
    batch_bytes: int = 1 * MIB
    buffer_bytes: int = 32 * MIB
    linger: float = 0.0
    delivery_timeout: float = 120.0
    compression: Literal["zstd", "lz4"] | None = "lz4"
    on_full: Literal["block", "raise"] = "block"
    on_bad: Literal["raise", "dead_letter"] = "raise"

    def check(self) -> None:
        """Refuse what makes no sense, in the words of the caller."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                named = ", ".join(repr(choice) for choice in choices)
                raise InvalidSetting(f"hub.producer: {name} is one of {named}, not {getattr(self, name)!r}")
        for name in ("batch_bytes", "buffer_bytes", "linger", "delivery_timeout"):
            value = getattr(self, name)
            kind = int if name.endswith("_bytes") else int | float
            if not isinstance(value, kind) or isinstance(value, bool) or value != value:
                raise InvalidSetting(f"hub.producer: {name} is a number of {_UNITS[name]}, not {value!r}")
        if not 1 * KIB <= self.batch_bytes <= PAYLOAD_RAW_BYTES_MAX // 2:
            raise InvalidSetting(f"hub.producer: batch_bytes is between 1 KiB and 8 MiB, not {self.batch_bytes}")
        if self.buffer_bytes < 2 * self.batch_bytes:
            raise InvalidSetting(
                f"hub.producer: buffer_bytes ({self.buffer_bytes}) is at least twice batch_bytes ({self.batch_bytes})"
            )
        if self.linger < 0 or self.delivery_timeout <= 0:
            raise InvalidSetting("hub.producer: linger is not negative, and delivery_timeout is more than 0 seconds")


_CHOICES: Final = {
    "acks": ("durable", "none"),
    "compression": ("zstd", "lz4", None),
    "on_full": ("block", "raise"),
    "on_bad": ("raise", "dead_letter"),
}
_UNITS: Final = {"batch_bytes": "bytes", "buffer_bytes": "bytes", "linger": "seconds", "delivery_timeout": "seconds"}


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
        # Stream: the generation for which its records were shipped last.
        self._generations: dict[int, int] = {}
        self._streams: dict[str, StreamInfo] = {}
        self._looked_up: dict[str, float] = {}
        # Guards the buffer: the filling parcel, the queue of rolled ones and the byte counts.
        self._lock = threading.Lock()
        # Whether a thread is encoding, numbering and handing over: one at a time, so that the numbers have an order.
        self._shipping = False
        self._rolled: deque[Parcel] = deque()
        self._buffered = 0
        self._in_flight = 0
        self._sticky = 0
        self._reset_wanted = False
        # Why the numbers of this epoch are void, once a batch has failed for good.
        self._void: MainstemError | None = None
        self._ship_scheduled = False
        self._closed = False
        # Chunks that failed since the last flush, which raises the first error that nobody has asked for.
        self._failed: deque[Chunk] = deque(maxlen=_FAILED_MAX)
        self.dropped = 0
        self._parcel = self._new_parcel()
        self._chunks: dict[str, Chunk] = {}
        # The thread that may add to chunks without the lock; None before the first send.
        self._owner: int | None = None
        # Parcels in flight, and those that came back, oldest first.
        self._waiting: list[Parcel] = []
        self._returns = Returns()
        self._shipped = 0
        _producers.add(self)
        self.send = self._make_send()

    # Sending.

    def _make_send(self) -> Callable[..., Ack]:  # noqa: C901  # a call costs more than a branch
        """`send` as a closure: the names it needs on every call are local, because every call counts.

        The fast way takes no lock. Only the thread that owns a chunk adds to it this way; a thread that rolls the
        parcel seals its chunks first and then counts what is in them. So a record that was added before the count is
        shipped, and whoever added one after it sees the seal and asks, under the lock, whether it was counted.
        """
        chunks = self._chunks
        general = self._send_general
        batch_bytes = self._options.batch_bytes
        # A short value can break no limit; longer ones take the general way.
        short = min(64 * KIB, batch_bytes // 4, self._port.record_bytes_max // 2)
        # Of a row that is shorter than this no key can be too long.
        short_row = short // 2
        filled = 0

        def send(  # noqa: C901
            stream: str,
            value: Value,
            key: Key = None,
            headers: Headers = None,
            timestamp: datetime | int | None = None,
            shard: int | None = None,
        ) -> Ack:
            """Add a record; returns at once with its Ack, unless the buffer is full.

            `value`: bytes, or in a stream with a schema a row: a dict, or JSON as bytes or text; SchemaMismatch says
            which field does not fit. None is a tombstone. `key`: bytes or text, chooses the shard; not for streams
            whose key is made of columns, but for tombstones. `headers`: text to bytes. `timestamp`: a datetime or
            microseconds since 1970; without one, the time of sending, to a few milliseconds. `shard`: where it goes,
            whatever its key, which is stored all the same; not for compacted streams.
            """
            nonlocal filled
            if (
                type(value) is bytes
                and headers is None
                and timestamp is None
                and shard is None
                and (size := len(value)) < short
            ):
                try:
                    chunk = chunks.get(stream)
                except TypeError:  # not hashable, so not a name; the general way says so
                    chunk = None
                if chunk is not None and chunk.owner_of_bytes == get_ident() and filled < batch_bytes:
                    values, keys = chunk.values, chunk.keys
                    if key is None:
                        if keys is None:
                            index = len(values)
                            values.append(value)
                            filled += size + _RECORD_OVERHEAD
                            if chunk.is_sealed:
                                return self._after_seal(chunk, index, stream, value, key)
                            return Ack(chunk, index)
                    elif keys is not None and type(key) is bytes and len(key) < short:
                        index = len(values)
                        values.append(value)
                        keys.append(key)
                        filled += size + len(key) + _RECORD_OVERHEAD
                        if chunk.is_sealed:
                            return self._after_seal(chunk, index, stream, value, key)
                        return Ack(chunk, index)
            elif type(value) is dict and key is None and headers is None and timestamp is None and shard is None:
                chunk = chunks.get(stream) if type(stream) is str else None
                if chunk is not None and chunk.convert is not None and chunk.owner == get_ident():
                    try:
                        taken, size = chunk.convert(value)
                    except SchemaMismatch:
                        # The general way says of which stream, or keeps it as a dead letter.
                        return general(stream, value, key, headers, timestamp)
                    if size < short_row and filled < batch_bytes:
                        values = chunk.values
                        index = len(values)
                        values.append(taken)
                        filled += size + _RECORD_OVERHEAD
                        if chunk.is_sealed:
                            return self._after_seal(chunk, index, stream, value, key)
                        return Ack(chunk, index)
            return general(stream, value, key, headers, timestamp, shard)

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

    def _send_general(self, stream: str, value: Any, key: Any, headers: Any, timestamp: Any, shard: Any = None) -> Ack:
        info = self._stream(stream)
        if isinstance(value, Mapping) and not info.schema:
            # It may have one by now.
            info = self._look_up(stream)
        if shard is not None:
            info, shard = self._with_shard(info, shard)
        if info.schema and value is not None:
            return self._send_row(info, value, key, headers, timestamp, shard)
        if info.key and key is not None:
            key = _key_of_columns(info, key)
        value = check_value(stream, value)
        key, headers, time_us = check_envelope(stream, key, headers, timestamp)
        if info.schema and key is None:
            raise InvalidRecord(f"stream {stream!r}: a tombstone says which row is gone: give its key")
        check_keyed(stream, info.cleanup, key is not None)
        return self._put(info, None, value, key, headers, time_us, len(value or b""), shard)

    def _with_shard(self, info: StreamInfo, shard: Any) -> tuple[StreamInfo, int]:
        """The stream and the shard of it that was asked for."""
        try:
            return info, check_shard(info, shard)
        except InvalidSetting:
            raise
        except InvalidRequest:
            # It may have more shards by now, or another cleanup.
            info = self._look_up(info.name)
            return info, check_shard(info, shard)

    def _send_row(self, info: StreamInfo, value: Any, key: Any, headers: Any, timestamp: Any, shard: int | None) -> Ack:
        """A record of a stream with a schema."""
        if info.key and key is not None:
            raise InvalidRecord(
                f"stream {info.name!r}: the key of a row is made of {', '.join(info.key)}; leave key= out"
            )
        key, headers, time_us = check_envelope(info.name, key, headers, timestamp)
        rows = converter_of(Schema.parse(info.schema))
        try:
            is_json = isinstance(value, bytes | bytearray | memoryview | str)
            taken, size = rows.convert_json(value) if is_json else rows.convert(value)
        except SchemaMismatch as error:
            return self._on_mismatch(info, value, (key, headers, time_us), error)
        own = key
        if info.key and (size > KEY_BYTES_MAX // 2 or "compact" in info.cleanup):
            own = key_of(dict(zip(rows.arrow.names, taken, strict=True)), info.key)
            check_envelope(info.name, own, None, None)
        check_keyed(info.name, info.cleanup, own is not None)
        return self._put(info, rows, taken, key, headers, time_us, size, shard)

    def _on_mismatch(self, info: StreamInfo, value: Any, envelope: Envelope, error: SchemaMismatch) -> Ack:
        """Say that a row does not fit its stream, or keep it as a dead letter."""
        told = SchemaMismatch(f"stream {info.name!r}: {error}", path=error.path)
        if self._options.on_bad == "raise":
            raise told from None
        key, headers, time_us = envelope
        letter = dead_letters.letter_value(value)
        said = [*(headers or []), *dead_letters.letter_headers(info, error, self._clock.now_us())]
        try:
            if len(said) > HEADERS_PER_RECORD_MAX or headers_size(said) > HEADER_BYTES_MAX:
                raise RecordTooLarge("its headers are too large")
            return self._put(self._dead_stream(info.name), None, letter, key, said, time_us, len(letter))
        except InvalidRequest as refused:
            raise SchemaMismatch(f"{told}; it cannot be kept as a dead letter: {refused}", path=error.path) from None

    def _dead_stream(self, stream: str) -> StreamInfo:
        name = dead_letters.dead_stream_of(stream)
        info = self._streams.get(name)
        if info is None:
            self._port.check_usable()
            check_may_wait(f"the first dead letter of {stream!r}")
            call = CreateStreamCall(name, retention_us=dead_letters.RETENTION_US, exist_ok=True, uuid=new_stream_uuid())
            info = self._port.call(call, self._options.delivery_timeout).streams[0]
            self._streams[name], self._looked_up[name] = info, self._clock.monotonic()
        return info

    def _put(
        self,
        info: StreamInfo,
        rows: RowConverter | None,
        value: Any,
        key: bytes | None,
        headers: Any,
        time_us: int | None,
        size: int,
        shard: int | None = None,
    ) -> Ack:
        """Add a record that was checked, once there is room. `size` is that of its value."""
        size += len(key or b"") + headers_size(headers)
        bytes_max = self._port.record_bytes_max
        if size > bytes_max:
            raise RecordTooLarge(f"stream {info.name!r}: a record of {size} bytes; record_bytes_max is {bytes_max}")
        size += _RECORD_OVERHEAD
        while True:
            with DeferredInterrupt(), self._lock:
                self._check_open()
                self._claim()
                filled = self._add_filled(0)
                if not filled or filled + size <= self._options.batch_bytes:
                    chunk = self._chunk_for(info, rows, shard)
                    self._add_filled(size)
                    return Ack(chunk, chunk.add(value, key, headers, time_us, shard))
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

    def _chunk_for(self, info: StreamInfo, rows: RowConverter | None, shard: int | None) -> Chunk:
        """The chunk to which a record is added. Rows of two schemas, and tombstones, have chunks of their own, which
        are shipped in this order; so has a record for a shard that was not there when the chunk was begun."""
        chunk = self._chunks.get(info.name)
        if chunk is None or chunk.rows is not rows or (shard is not None and shard >= chunk.stream.shards):
            if chunk is not None:
                chunk.seal()
            chunk = self._begin_chunk(info, rows)
        return chunk

    def send_many(
        self, stream: str, values: Iterable[Value], keys: Iterable[Key] | None = None, shard: int | None = None
    ) -> BatchAck:
        """Send many records at once, each with its key if `keys` is given; faster than a loop of `send`. All of them go
        to `shard`, if one is given.

        If a row does not fit the schema of its stream, none is sent; with on_bad="dead_letter" all others are.
        """
        values = list(values)
        keys = None if keys is None else list(keys)
        if keys is not None and len(keys) != len(values):
            raise InvalidRecord(
                f"stream {stream!r}: {len(values)} values and {len(keys)} keys; give one key, or None, for each value"
            )
        if not values:
            return BatchAck([])
        info = self._stream(stream)
        if not info.schema and any(isinstance(value, Mapping) for value in values):
            info = self._look_up(stream)
        if shard is not None:
            info, shard = self._with_shard(info, shard)
        if info.schema:
            return self._send_many_rows(info, values, keys, shard)
        return self._send_batches(info, columns(values, keys), None, shard, atomic=False)

    def _send_many_rows(
        self, info: StreamInfo, values: list[Any], keys: list[Any] | None, shard: int | None
    ) -> BatchAck:
        if info.key and keys is not None:
            if any(value is not None and key is not None for value, key in zip(values, keys, strict=True)):
                made_of = ", ".join(info.key)
                raise InvalidRecord(
                    f"stream {info.name!r}: the key of a row is made of {made_of}; give keys for tombstones only"
                )
            keys = [None if key is None else _key_of_columns(info, key) for key in keys]
        rows = converter_of(Schema.parse(info.schema))
        runs, bad = many_rows.as_runs(rows, values, keys)
        if bad and self._options.on_bad == "raise":
            first = bad[0]
            raise SchemaMismatch(f"stream {info.name!r}: row {first.index}: {first}", path=first.path)
        ack = BatchAck([])
        for run in runs:
            batches = tables.as_pieces(run.table) if run.is_rows else tables.as_batches(run.table)
            ack.chunks += self._send_batches(info, batches, rows if run.is_rows else None, shard, atomic=False).chunks
        for one in bad:
            key, _, _ = check_envelope(info.name, None if keys is None else keys[one.index], None, None)
            error = SchemaMismatch(str(one), path=one.path)
            ack.dead.append(self._on_mismatch(info, values[one.index], (key, None, None), error))
        return ack

    def send_batch(
        self, stream: str, data: Any, *, shard: int | None = None, atomic: bool = False, infer: bool = False
    ) -> BatchAck:
        """Send a table (Arrow, pandas, polars).

        A stream with a schema takes its columns by their names, and if wanted `_key`, `_headers` and `_timestamp`;
        SchemaMismatch says which column does not fit, and nothing is sent. `infer=True` gives a stream that has no
        schema that of the table. A stream without one takes the columns value and, if wanted, key, headers, timestamp.
        All of it goes to `shard`, if one is given.

        `atomic=True`: its records become visible together and stand next to each other; refused if they do not fit
        one batch or belong to several shards.
        """
        info = self._stream(stream)
        if infer and not info.schema:
            info = self._infer(stream, data)
        if shard is not None:
            info, shard = self._with_shard(info, shard)
        if not info.schema:
            return self._send_batches(info, tables.as_batches(data), None, shard, atomic=atomic)
        rows = converter_of(Schema.parse(info.schema))
        try:
            batches = as_row_batches(info, rows, data)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"stream {stream!r}: {error}", path=error.path) from None
        return self._send_batches(info, batches, rows, shard, atomic=atomic)

    def _infer(self, stream: str, data: Any) -> StreamInfo:
        info = self._look_up(stream)
        if not info.schema:
            check_may_wait(f"giving {stream!r} a schema")
            schema = Schema(rows_schema(data))
            self._port.call(SetSchemaCall(stream, schema.serialized), self._options.delivery_timeout)
            info = self._look_up(stream)
        return info

    def _send_batches(
        self, info: StreamInfo, batches: Sequence[Any], rows: RowConverter | None, shard: int | None, *, atomic: bool
    ) -> BatchAck:
        stream = info.name
        if rows is None:
            check_batches(stream, batches)
            check_keyed(stream, info.cleanup, all(map(has_keys, batches)))
        else:
            for batch in batches:
                keys = keys_of(info, batch, is_rows=True)
                check_row_batch(stream, batch, keys)
                check_keyed(stream, info.cleanup, keys is not None and not keys.null_count)
        pinned = check_atomic(info, batches, shard, is_rows=rows is not None) if atomic else None
        # More shards change nothing for a table whose shard was asked for.
        atomic_in = info.generation if atomic and shard is None else None
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
            chunks.append(self._add_batch(info, rows, batch, shard, pinned, atomic_in))
            self._ship()
        return BatchAck(chunks)

    def _add_batch(
        self,
        info: StreamInfo,
        rows: RowConverter | None,
        batch: Any,
        shard: int | None,
        pinned: int | None,
        atomic_in: int | None,
    ) -> Chunk:
        """A parcel with nothing but this batch, queued for shipping."""
        with DeferredInterrupt(), self._lock:
            self._check_open()
            # Or the thread that owns the chunks could add a record to this one before it is sealed.
            self._claim()
            self._roll()
            chunk = self._begin_chunk(info, rows)
            chunk.batch = batch
            chunk.chosen = shard
            chunk.pinned = pinned
            chunk.atomic_in = atomic_in
            self._add_filled(batch.nbytes)
            self._roll()
            return chunk

    # The buffer. Called with the lock held.

    def _begin_chunk(self, info: StreamInfo, rows: RowConverter | None) -> Chunk:
        chunk = Chunk(info, self._clock.now_us(), self._parcel, self._owner or _NOBODY, rows)
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
                dropped = self._take_oldest(size) if self._options.acks == "none" else []
                is_full, buffered = self._is_full(size), self._buffered
                oldest = self._waiting[0] if self._waiting else None
            self._drop(dropped, BufferFull("dropped from a full buffer (acks='none')"))
            if not is_full:
                return
            if self._options.on_full == "raise":
                raise BufferFull(f"{buffered} bytes are waiting to be acknowledged; try again or use on_full='block'")
            check_may_wait("a send into a full buffer")
            now = self._clock.monotonic()
            deadline = deadline or now + self._options.delivery_timeout
            if now >= deadline:
                raise DeadlineExceeded(f"the buffer stayed full for {self._options.delivery_timeout} s")
            self._ship()
            self._port.wait(_NEVER if oldest is None else oldest.event(), 0.05)

    def _is_full(self, size: int) -> bool:
        return self._buffered > 0 and self._buffered + size > self._options.buffer_bytes

    def _take_oldest(self, size: int) -> list[Parcel]:
        """With the lock held: parcels that must go to make room. With acks="none" none is ever in flight."""
        taken: list[Parcel] = []
        while self._is_full(size) and self._rolled:
            taken.append(self._rolled.popleft())
            self._buffered -= taken[-1].size
        return taken

    def _drop(self, parcels: Sequence[Parcel], error: MainstemError) -> None:
        for parcel in parcels:
            with self._lock:
                self.dropped += sum(chunk.count for chunk in parcel.chunks)
            self._finish(parcel, error)

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
            late = self._take_late() if self._options.acks == "none" else []
        self._drop(late, DeadlineExceeded("no server took it in time (acks='none')"))
        self._ship()

    def _take_late(self) -> list[Parcel]:
        """With the lock held: parcels that nobody took before their deadline."""
        now = self._clock.monotonic()
        late: list[Parcel] = []
        while self._rolled and self._rolled[0].deadline <= now:
            late.append(self._rolled.popleft())
            self._buffered -= late[-1].size
        return late

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
        if self._in_flight and self._is_ahead(self._rolled[0]):
            return None
        if self._reset_wanted:
            if self._in_flight:
                return None
            self._reset_wanted = False
            self._void = None
            self._epoch += 1
            self._sequences.clear()
        parcel = self._rolled.popleft()
        for chunk in parcel.chunks:
            # Decided here, where nothing is in flight that is known to come back: a batch for a new shard is taken
            # whatever became of those before it, so it must not go out while they are made for the old ones.
            chunk.stream = self._present(chunk.stream)
            self._generations[chunk.stream.id] = chunk.stream.generation
        self._in_flight += 1
        self._shipped += 1
        parcel.number = parcel.number or self._shipped
        self._waiting.append(parcel)
        return parcel

    def _is_ahead(self, parcel: Parcel) -> bool:
        """Whether it is for more shards than what is in flight, which may come back and then goes before it."""
        streams = [self._present(chunk.stream) for chunk in parcel.chunks]
        return any(self._generations.get(stream.id, stream.generation) < stream.generation for stream in streams)

    def _ship_parcel(self, parcel: Parcel) -> None:
        if self._options.acks == "none":
            # Never repeated, so never in need of a number; a number lost on the way would void those after it.
            self._ship_unacknowledged(parcel)
            return
        batches, owners = self._encode(parcel)
        batches = [self._numbered(batch) for batch in batches]
        timeout = max(0.0, parcel.deadline - self._clock.monotonic())
        answers = _Answers(self, parcel, owners, batches)
        for begin, end in _requests(owners):
            self._port.append(batches[begin:end], timeout, answers.part(begin))
        if not batches:
            self._on_answered(parcel)

    def _encode(self, parcel: Parcel) -> tuple[list[Batch], list[Chunk]]:
        """The parcel as batches, and the chunk that each of them came from."""
        batches: list[Batch] = []
        owners: list[Chunk] = []
        self._sticky += 1
        for chunk in parcel.chunks:
            if chunk.bases or chunk.error is not None:
                continue  # of a parcel that came back: this one did not
            try:
                encoded = chunk.encode(self._sticky, self._options.compression)
            except MainstemError as error:
                chunk.error = error
                continue
            batches += encoded
            owners += [chunk] * len(encoded)
        return batches, owners

    def _present(self, stream: StreamInfo) -> StreamInfo:
        """The stream with the number of shards that is known by now."""
        known = self._streams.get(stream.name)
        if known is None or known.id != stream.id or known.generation <= stream.generation:
            return stream
        return msgspec.structs.replace(stream, shards=known.shards, generation=known.generation)

    def _numbered(self, batch: Batch) -> Batch:
        header = batch.header
        key = (header.stream, header.shard)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        numbered = msgspec.structs.replace(header, producer=self._id, producer_epoch=self._epoch, sequence=sequence)
        return Batch(numbered, batch.payload)

    def _ship_unacknowledged(self, parcel: Parcel) -> None:
        if parcel.batches is None:
            parcel.batches, _ = self._encode(parcel)
        if self._port.append_unacknowledged(parcel.batches):
            self._on_answered(parcel)
            return
        # The connection became busy meanwhile: it waits with the others, as long as the buffer has room.
        with self._lock:
            self._waiting.remove(parcel)
            self._in_flight -= 1
            self._rolled.appendleft(parcel)
            self._schedule_ship(_RETRY_SECONDS)

    def _on_answered(self, parcel: Parcel) -> None:
        """A parcel came to its end, unless it came back: ship what gathered meanwhile, tell those who wait."""
        over: list[Parcel] = []
        with self._lock:
            self._in_flight -= 1
            if self._returns.take(parcel):
                self._reset_wanted = True
                self._note_shards(parcel)
            else:
                over.append(parcel)
            if self._in_flight == 0 and self._reset_wanted:
                again, final = self._returns.sort_out()
                over += final
                for returned in reversed(again):
                    self._waiting.remove(returned)
                    self._rolled.appendleft(returned)
            for done in over:
                self._end_parcel(done)
            if self._in_flight == 0:
                self._roll()
        for done in over:
            self._finish(done, None)
        self._ship()

    def _end_parcel(self, parcel: Parcel) -> None:
        """With the lock held: give its room back, and remember what failed."""
        self._waiting.remove(parcel)
        self._buffered = max(0, self._buffered - parcel.size)
        failed = [chunk for chunk in parcel.chunks if chunk.error is not None]
        if failed:
            self._failed += failed
            self._reset_wanted = True
            self._explain(failed)
            self._forget_streams(parcel)

    def _note_shards(self, parcel: Parcel) -> None:
        """What is sent from now on is made for the shards that the log says."""
        for chunk in parcel.chunks:
            known = self._streams.get(chunk.stream.name)
            if known is not None and known.id == chunk.stream.id:
                self._streams[chunk.stream.name] = changed(known, chunk.error)

    def _explain(self, failed: Sequence[Chunk]) -> None:
        """A batch that is refused only because one before it has failed gets the reason of that one."""
        for chunk in failed:
            if self._void is not None and isinstance(chunk.error, OutOfSequence | UnknownProducer):
                chunk.error = self._void
        self._void = self._void or failed[0].error

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
        """Ship everything and wait until its fate is known and callbacks were called; raises the first error since the
        last flush that no ack has told anybody."""
        check_may_wait("flush")
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
        """Flush, then take no more records. Raises the first error of what was still under way.

        With acks="none" a server that is away is waited for no longer than a second; what it did not take is dropped.
        """
        if self._closed:
            return
        if self._options.acks == "none":
            with DeferredInterrupt(), self._lock:
                self._roll()
                for parcel in self._rolled:
                    parcel.deadline = min(parcel.deadline, self._clock.monotonic() + _CLOSE_SECONDS)
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
        if info is None or (self._options.acks == "none" and self._is_stale(name)):
            info = self._look_up(name)
        return info

    def _look_up(self, name: str) -> StreamInfo:
        self._port.check_usable()
        check_may_wait(f"the first send to {name!r}")
        call = GetStreamCall(name, auto_create=True)
        info = self._port.call(call, self._options.delivery_timeout).streams[0]
        self._streams[name] = info
        self._looked_up[name] = self._clock.monotonic()
        return info

    def prepare(self, *streams: str) -> None:
        """Look streams up now, so that the first `send` to them need not: for latency, and for use in callbacks.

        A producer goes on with the schema it knows of a stream, as every version is taken; this is how it gets to know
        a newer one.
        """
        for name in streams:
            if not isinstance(name, str):
                raise InvalidRecord(f"a stream's name is text, not {type(name).__name__}")
            self._look_up(name)

    def _is_stale(self, name: str) -> bool:
        """Whether a stream should be looked up again: nobody tells an acks="none" producer that it was deleted."""
        return (
            self._clock.monotonic() - self._looked_up[name] > _LOOKUP_SECONDS
            and self._port.can_take()
            and not is_calling()
        )

    def _check_open(self) -> None:
        self._port.check_usable()
        if self._closed:
            raise Closed("this producer is closed; open another with hub.producer()")

    def _forget_after_fork(self) -> None:
        """In a child made by fork: make every `send` take the general way, which says what is wrong."""
        # Made anew, not released: a thread of the parent may have had it without having marked it as locked.
        self._lock = threading.Lock()
        self._chunks.clear()


def _key_of_columns(info: StreamInfo, key: Any) -> Any:
    """The key of a row that is named by the values of its key columns; bytes are a key already."""
    parts = key if isinstance(key, tuple) else (key,)
    if len(info.key) == 1 or isinstance(key, tuple):
        if len(parts) != len(info.key):
            raise InvalidRecord(
                f"stream {info.name!r}: the key is made of {', '.join(info.key)}, not {len(parts)} values"
            )
        return key_of(dict(zip(info.key, parts, strict=True)), info.key)
    return key


_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _forget_all_after_fork() -> None:
    for producer in list(_producers):
        producer._forget_after_fork()


os.register_at_fork(after_in_child=_forget_all_after_fork)


def _requests(owners: Sequence[Chunk]) -> Iterator[tuple[int, int]]:
    """Which batches travel together, given the chunk of each: whole chunks, so that one is written or refused whole.
    A chunk has no more batches than there can be shards."""
    begin = chunk_begin = 0
    for index, owner in enumerate(owners):
        if index and owner is not owners[index - 1]:
            chunk_begin = index
        if index - begin == APPEND_BATCHES_MAX:
            yield begin, chunk_begin
            begin = chunk_begin
    if owners:
        yield begin, len(owners)


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
