"""The producer: records in, acknowledgements out.

One buffer for all streams, bounded in bytes. `send` only appends to it. What has gathered is shipped as one request
(a parcel): at once when nothing of this producer is in flight, else when `batch_bytes` are there or the request in
flight was answered. So a lone record does not wait, and a flood travels in large batches, without a timer.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from threading import get_ident
from typing import Any

from mainstem.core import tables
from mainstem.core.callbacks import check_may_wait
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.durations import check_timeout
from mainstem.core.errors import (
    DeadlineExceeded,
    InvalidRecord,
    InvalidRequest,
    InvalidSetting,
    MainstemError,
    RecordTooLarge,
    SchemaMismatch,
)
from mainstem.core.identity import RANDOMNESS
from mainstem.core.interrupts import DeferredInterrupt
from mainstem.core.keys import check_key, key_of
from mainstem.core.limits import (
    HEADER_BYTES_MAX,
    HEADERS_PER_RECORD_MAX,
    KIB,
)
from mainstem.core.schema import Schema
from mainstem.produce import dead_letters, many_rows
from mainstem.produce.admission import (
    Envelope,
    check_atomic,
    check_batches,
    check_envelope,
    check_keyed,
    check_own_key,
    check_row,
    check_row_batch,
    check_shard,
    check_size,
    check_value,
    columns,
    has_keys,
    headers_size,
)
from mainstem.produce.chunk import Ack, BatchAck, Chunk, Parcel
from mainstem.produce.convoy import Convoy
from mainstem.produce.known_streams import KnownStreams
from mainstem.produce.options import ProducerOptions
from mainstem.produce.row_batches import as_row_batches, goes_as_it_is, keys_of
from mainstem.produce.shipping import Shipping
from mainstem.registry.rows import RowConverter, converter_of
from mainstem.transport.port import Port, StreamInfo
from mainstem.transport.retry import Randomness

Headers = Mapping[str, bytes | str] | None
# A tombstone of a stream whose key is made of several columns names all of them, as a tuple.
Key = bytes | str | int | tuple[Any, ...] | None
Value = bytes | str | Mapping[str, Any] | None
# No thread has this identifier.
_NOBODY = 0

# What a record costs in the buffer beside its bytes: list slots, and the size of an empty value is not nothing.
_RECORD_OVERHEAD = 16
# How long `close` waits for a connection that could take records that need no acknowledgement.
_CLOSE_SECONDS = 1.0


class Producer:
    """Writes records to streams. Any thread may send; use it as a context manager, or call `close`.

    Order: records sent by one thread to one shard keep their order. Acknowledged records are durable. What was not
    acknowledged when the process ends is gone.
    """

    def __init__(
        self,
        port: Port,
        options: ProducerOptions,
        clock: Clock = SYSTEM_CLOCK,
        *,
        known: Sequence[StreamInfo] = (),
        convoy: Convoy | None = None,
        randomness: Randomness = RANDOMNESS,
    ) -> None:
        """Streams that are `known` are not asked for. A `convoy` takes along what is small. The `randomness` chooses
        the first shard of records without a key."""
        options.check()
        self._port = port
        self._options = options
        self._clock = clock
        self._window_us = options.window_us()
        self._streams = KnownStreams(port, options, clock)
        for info in known:
            self._streams.adopt(info)
        # Its lock also guards what is here.
        self._shipping = Shipping(port, options, clock, self._streams, self._roll, randomness, convoy)
        # What is being filled: the parcel, and in it the newest chunk of each stream.
        self._parcel = self._new_parcel()
        self._chunks: dict[str, Chunk] = {}
        # The thread that may add to chunks without the lock; None before the first send.
        self._owner: int | None = None
        _producers.add(self)
        self.send = self._make_send()

    def __repr__(self) -> str:
        return f"<Producer acks={self._options.acks}, on_bad={self._options.on_bad}>"

    @property
    def dropped(self) -> int:
        """How many records were dropped unsent: only with acks="none"."""
        return self._shipping.dropped

    @property
    def left_out(self) -> int:
        """How many records were left out because their writer is over its quota, of which a share is kept."""
        return self._shipping.left_out

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
            which field does not fit. None is a tombstone. `key`: bytes or text, chooses the shard; where the
            key is made of columns only tombstones need one. `headers`: text to bytes. `timestamp`: a datetime or
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
                    chunk = chunks[stream]
                except (KeyError, TypeError):  # the first one, or not hashable, so not a name: the general way says so
                    return general(stream, value, key, headers, timestamp, shard)
                if chunk.owner_of_bytes == get_ident() and filled < batch_bytes:
                    keys = chunk.keys
                    if key is None:
                        if keys is None:
                            values = chunk.values
                            index = len(values)
                            values.append(value)
                            filled += size + _RECORD_OVERHEAD
                            if chunk.is_sealed:
                                return self._after_seal(chunk, index, stream, value, key)
                            return Ack(chunk, index)
                    elif keys is not None and type(key) is bytes and len(key) < short:
                        values = chunk.values
                        index = len(values)
                        values.append(value)
                        keys.append(key)
                        filled += size + len(key) + _RECORD_OVERHEAD
                        if chunk.is_sealed:
                            return self._after_seal(chunk, index, stream, value, key)
                        return Ack(chunk, index)
            elif type(value) is dict and key is None and headers is None and timestamp is None and shard is None:
                try:
                    chunk = chunks[stream]
                except (KeyError, TypeError):
                    return general(stream, value, key, headers, timestamp, shard)
                if chunk.convert is not None and chunk.owner == get_ident():
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
        with self._shipping.lock:
            if index < chunk.count:
                return Ack(chunk, index)
        return self._send_general(stream, value, key, None, None)

    def _send_general(self, stream: str, value: Any, key: Any, headers: Any, timestamp: Any, shard: Any = None) -> Ack:
        info = self._streams.get(stream)
        if isinstance(value, Mapping) and not info.schema_bytes:
            # It may have one by now.
            info = self._streams.look_up(stream)
        if shard is not None:
            info, shard = self._with_shard(info, shard)
        if info.schema_bytes and value is not None:
            return self._send_row(info, value, key, headers, timestamp, shard)
        if info.key and key is not None:
            key = self._key_of_columns(info, key)
        value = check_value(stream, value)
        key, headers, time_us = check_envelope(stream, key, headers, timestamp)
        if info.schema_bytes and key is None:
            raise InvalidRecord(f"stream {stream!r}: a tombstone says which row is gone: give its key")
        check_keyed(stream, info.cleanup, key is not None)
        return self._put(info, None, value, key, headers, time_us, len(value or b""), shard)

    def _key_of_columns(self, info: StreamInfo, key: Any) -> bytes | None:
        """The key of a tombstone, which rows of the stream can have: any other would delete nothing."""
        try:
            found = _key_of(info, key)
            if found is not None and info.schema_bytes:
                try:
                    check_key(found, Schema.parse(info.schema_bytes), info.key)
                except SchemaMismatch:
                    newer = self._streams.newer(info)
                    if newer is None:
                        raise
                    check_key(found, Schema.parse(newer.schema_bytes), newer.key)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"stream {info.name!r}: {error}", path=error.path) from None
        return found

    def _with_shard(self, info: StreamInfo, shard: Any) -> tuple[StreamInfo, int]:
        """The stream and the shard of it that was asked for."""
        try:
            return info, check_shard(info, shard)
        except InvalidSetting:
            raise
        except InvalidRequest:
            # It may have more shards by now, or another cleanup.
            info = self._streams.look_up(info.name)
            return info, check_shard(info, shard)

    def _send_row(self, info: StreamInfo, value: Any, key: Any, headers: Any, timestamp: Any, shard: int | None) -> Ack:
        """A record of a stream with a schema."""
        key, headers, time_us = check_envelope(info.name, key, headers, timestamp)
        try:
            rows, taken, size = _row_of(info, value)
        except SchemaMismatch as error:
            newer = self._streams.newer(info)
            try:
                if newer is None:
                    raise
                rows, taken, size = _row_of(newer, value)
            except SchemaMismatch:
                return self._on_mismatch(info, value, (key, headers, time_us), error)
            self._streams.adopt(newer)
            info = newer
        if info.key and key is not None:
            check_own_key(info, rows, taken, key)
            key = None
        check_row(info, rows, taken, size, key)
        return self._put(info, rows, taken, key, headers, time_us, size, shard)

    def _on_mismatch(self, info: StreamInfo, value: Any, envelope: Envelope, error: SchemaMismatch) -> Ack:
        """Say that a row does not fit its stream, or keep it as a dead letter."""
        told = SchemaMismatch(f"stream {info.name!r}: {error}", path=error.path)
        if self._options.on_bad == "raise":
            raise told from None
        key, headers, time_us = envelope
        letter, notes = dead_letters.letter_of(value)
        said = [*dead_letters.letter_headers(headers or [], info, error, self._clock.now_us()), *notes]
        try:
            if len(said) > HEADERS_PER_RECORD_MAX or headers_size(said) > HEADER_BYTES_MAX:
                raise RecordTooLarge("its headers are too large")
            return self._put(self._streams.dead_stream(info.name), None, letter, key, said, time_us, len(letter))
        except InvalidRequest as refused:
            raise SchemaMismatch(f"{told}; it cannot be kept as a dead letter: {refused}", path=error.path) from None

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
        size = check_size(info.name, size, key, headers, self._port.record_bytes_max) + _RECORD_OVERHEAD
        while True:
            with DeferredInterrupt(), self._shipping.lock:
                self._shipping.check_open()
                self._claim()
                filled = self._add_filled(0)
                if not filled or filled + size <= self._options.batch_bytes:
                    chunk = self._chunk_for(info, rows, shard)
                    self._add_filled(size)
                    return Ack(chunk, chunk.add(value, key, headers, time_us, shard))
                self._roll()
            self._shipping.ship()
            self._shipping.await_room(size)

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
        info = self._streams.get(stream)
        if not info.schema_bytes and any(isinstance(value, Mapping) for value in values):
            info = self._streams.look_up(stream)
        if shard is not None:
            info, shard = self._with_shard(info, shard)
        if info.schema_bytes:
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
            keys = [None if key is None else self._key_of_columns(info, key) for key in keys]
        rows = converter_of(Schema.parse(info.schema_bytes))
        runs, bad = many_rows.as_runs(rows, values, keys)
        if bad and (newer := self._streams.newer(info)) is not None:
            newer_rows = converter_of(Schema.parse(newer.schema_bytes))
            newer_runs, newer_bad = many_rows.as_runs(newer_rows, values, keys)
            if len(newer_bad) < len(bad):
                self._streams.adopt(newer)
                info, rows, runs, bad = newer, newer_rows, newer_runs, newer_bad
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
        info = self._streams.get(stream)
        headers = "_headers" if info.schema_bytes or infer else "headers"
        # A server looks at every value, too.
        is_checked_later = partial(goes_as_it_is, info) if self._port.checks_values else lambda _: False
        table = tables.from_user(data, headers, is_checked_later)
        if infer and not info.schema_bytes:
            info = self._streams.infer(stream, table)
        if shard is not None:
            info, shard = self._with_shard(info, shard)
        if not info.schema_bytes:
            return self._send_batches(info, tables.as_batches(table), None, shard, atomic=atomic)
        try:
            info, batches = self._row_batches(info, table)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"stream {stream!r}: {error}", path=error.path) from None
        return self._send_batches(info, batches, converter_of(Schema.parse(info.schema_bytes)), shard, atomic=atomic)

    def _row_batches(self, info: StreamInfo, table: Any) -> tuple[StreamInfo, list[Any]]:
        """A table as batches of rows, and the stream with the schema that they have."""
        try:
            return info, as_row_batches(info, converter_of(Schema.parse(info.schema_bytes)), table)
        except SchemaMismatch as error:
            newer = self._streams.newer(info)
            if newer is None:
                raise
            try:
                batches = as_row_batches(newer, converter_of(Schema.parse(newer.schema_bytes)), table)
            except SchemaMismatch:
                raise error from None
        self._streams.adopt(newer)
        return newer, batches

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
            self._shipping.await_room(sum(batch.nbytes for batch in batches))
        chunks: list[Chunk] = []
        for batch in batches:
            with DeferredInterrupt(), self._shipping.lock:
                self._roll()
            if not is_refused_whole:
                self._shipping.await_room(batch.nbytes)
            chunks.append(self._add_batch(info, rows, batch, shard, pinned, atomic_in))
            self._shipping.ship()
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
        parcel = self._new_parcel()
        chunk = Chunk(info, self._clock.now_us(), parcel, _NOBODY, rows, self._window_us)
        chunk.batch = batch
        chunk.chosen = shard
        chunk.pinned = pinned
        chunk.atomic_in = atomic_in
        chunk.seal()
        parcel.chunks.append(chunk)
        parcel.size = batch.nbytes
        self._shipping.encode_ahead(chunk)
        with DeferredInterrupt(), self._shipping.lock:
            self._shipping.check_open()
            # What was sent before goes before.
            self._roll()
            self._shipping.queue(parcel)
            return chunk

    # The buffer. Called with the lock held.

    def _begin_chunk(self, info: StreamInfo, rows: RowConverter | None) -> Chunk:
        chunk = Chunk(info, self._clock.now_us(), self._parcel, self._owner or _NOBODY, rows, self._window_us)
        if not self._parcel.chunks:
            self._parcel.deadline = self._clock.monotonic() + self._options.delivery_timeout
            self._shipping.schedule(self._options.linger)
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
        self._shipping.queue(parcel)
        self._chunks.clear()
        self._parcel = self._new_parcel()

    # Waiting and ending.

    def _wait(self, parcel: Parcel, timeout: float | None) -> bool:
        """Wait for one parcel, shipping it first if it is still being filled."""
        self._port.check_usable()
        with DeferredInterrupt(), self._shipping.lock:
            if parcel is self._parcel:
                self._roll()
        self._shipping.ship()
        return self._port.wait(parcel.event(), timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Ship everything and wait until its fate is known and callbacks were called; raises the first error since the
        last flush that no ack has told anybody."""
        check_timeout(timeout)
        check_may_wait("flush")
        waiting = self._begin_flush()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for parcel in waiting:
            left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            if not self._port.wait(parcel.event(), left):
                raise _flush_late(timeout)
        self._end_flush()

    def _begin_flush(self) -> list[Parcel]:
        """Ship everything; what has to be waited for."""
        self._port.check_usable()
        with DeferredInterrupt(), self._shipping.lock:
            self._roll()
            waiting = self._shipping.under_way()
        self._shipping.ship()
        return waiting

    def _end_flush(self) -> None:
        """Raise the first error that nobody was told."""
        with self._shipping.lock:
            errors = self._shipping.take_errors()
        if errors and self._options.acks == "durable":
            raise errors[0]

    def close(self) -> None:
        """Flush, then take no more records. Raises the first error of what was still under way.

        With acks="none" a server that is away is waited for no longer than a second; what it did not take is dropped.
        """
        if self._begin_close():
            try:
                self.flush()
            finally:
                self._end_close()
                self._tell_counts()

    def _begin_close(self) -> bool:
        """Whether there is something to close."""
        if not self._shipping.is_closed and self._options.acks == "none":
            with DeferredInterrupt(), self._shipping.lock:
                self._roll()
                self._shipping.hurry(_CLOSE_SECONDS)
        return not self._shipping.is_closed

    def _end_close(self) -> None:
        with self._shipping.lock:
            self._shipping.end()
            self._chunks.clear()

    def _tell_counts(self) -> None:
        """Say what was sent and not told yet, if it is counted. Waits for the log, and raises nothing."""
        if self._shipping.counts is not None:
            self._shipping.counts.close()

    def abandon(self, timeout: float) -> None:
        """Take no more records; DeadlineExceeded if `timeout` seconds are not enough for what is under way."""
        try:
            self.flush(timeout)
        finally:
            self._end_close()

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

    def stream_name(self, stream: int) -> str:
        """The name of a stream that this producer has written to."""
        return self._streams.name_of(stream)

    def prepare(self, *streams: str) -> None:
        """Look streams up now, so that the first `send` to them need not: for latency, and for use in callbacks.

        A producer goes on with the schema it knows of a stream, as every version is taken. It gets to know a newer one
        by this, or when a row does not fit the one it knows: then it looks, at most once a second.
        """
        for name in streams:
            self._streams.look_up(name)

    def _forget_after_fork(self) -> None:
        """In a child made by fork: make every `send` take the general way, which says what is wrong."""
        # Made anew, not released: a thread of the parent may have had it without having marked it as locked.
        self._shipping.lock = threading.Lock()
        self._chunks.clear()


def _flush_late(timeout: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(f"flush: not everything was acknowledged within {timeout} s")


def _row_of(info: StreamInfo, value: Any) -> tuple[RowConverter, Any, int]:
    """A row as it is put into a chunk, with the converter of its schema and its size; or SchemaMismatch."""
    rows = converter_of(Schema.parse(info.schema_bytes))
    is_json = isinstance(value, bytes | bytearray | memoryview | str)
    taken, size = rows.convert_json(value) if is_json else rows.convert(value)
    return rows, taken, size


def _key_of(info: StreamInfo, key: Any) -> bytes | None:
    """The key of a row that is named by the values of its key columns; bytes are a key already."""
    if len(info.key) > 1 and isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) != len(info.key):
        values = "1 value" if len(parts) == 1 else f"{len(parts)} values"
        raise InvalidRecord(f"stream {info.name!r}: the key is made of {', '.join(info.key)}, not of {values}")
    return key_of(dict(zip(info.key, parts, strict=True)), info.key)


_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _forget_all_after_fork() -> None:
    for producer in list(_producers):
        producer._forget_after_fork()


os.register_at_fork(after_in_child=_forget_all_after_fork)
