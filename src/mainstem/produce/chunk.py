"""The records of one stream gathered by a producer, and what became of them.

A record costs one append to a list; hashing, sorting, encoding and compressing happen once per chunk. An `Ack` is only
a chunk and an index into it.
"""

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.core import callbacks, layouts, payload, placement
from mainstem.core.batch import Batch
from mainstem.core.errors import DeadlineExceeded, InvalidRequest, MainstemError
from mainstem.core.layouts import FEW
from mainstem.core.payload import Encoded
from mainstem.transport.port import StreamInfo

logger = logging.getLogger("mainstem.produce")

Placed = tuple[int, int]


class Chunk:
    """Records of one stream that are shipped together. Filled under the producer's lock, then owned by the shipper.

    States: filling, shipped (has `parcel`), done (`error` or `bases` set, `parcel.is_done`).
    """

    __slots__ = (
        "bases",
        "batch",
        "count",
        "created_us",
        "error",
        "headers",
        "is_sealed",
        "is_told",
        "keys",
        "owner",
        "parcel",
        "pinned",
        "plain",
        "rank",
        "shard_of",
        "stream",
        "times",
        "values",
    )

    def __init__(self, stream: StreamInfo, created_us: int, parcel: "Parcel", owner: int) -> None:
        self.stream = stream
        self.created_us = created_us
        self.parcel = parcel
        # The thread that may add without the producer's lock.
        self.owner = owner
        self.is_sealed = False
        # How many records there are, once sealed.
        self.count = 0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Any] | None = None
        self.times: list[int] | None = None
        self.batch: pa.RecordBatch | None = None
        self.plain = True
        # The shard of records without a key, where the chunk must not be spread.
        self.pinned: int | None = None
        self.shard_of: npt.NDArray[np.uint32] | int = 0
        self.rank: npt.NDArray[np.uint32] | None = None
        self.bases: dict[int, int] = {}
        self.error: MainstemError | None = None
        # Whether somebody got the error from an ack.
        self.is_told = False

    def add(self, value: bytes | None, key: bytes | None, headers: Any, time_us: int | None) -> int:
        """The general way to add a record; the index of it. Columns begin with the first record that needs them."""
        index = len(self.values)
        # A chunk with headers or times has columns that the fast way of `send` does not fill.
        self.plain = self.plain and headers is None and time_us is None
        self.values.append(value)
        if key is not None and self.keys is None:
            self.keys = [None] * index
        if self.keys is not None:
            self.keys.append(key)
        if headers is not None and self.headers is None:
            self.headers = [None] * index
        if self.headers is not None:
            self.headers.append(headers)
        if time_us is not None and self.times is None:
            self.times = [self.created_us] * index
        if self.times is not None:
            self.times.append(self.created_us if time_us is None else time_us)
        return index

    def seal(self) -> None:
        """Count the records; what the owner adds from now on is not one of them. Called under the producer's lock."""
        self.is_sealed = True
        if self.batch is not None:
            self.count = self.batch.num_rows
        elif self.keys is None:
            self.count = len(self.values)
        else:
            # The owner may be between its two appends.
            self.count = min(len(self.values), len(self.keys))

    def encode(self, sticky: int, compression: str | None) -> list[Batch]:
        """The chunk as batches, one per shard it touches; producer and sequence are still to be filled in."""
        few = self._encode_few(compression)
        if few is not None:
            self.shard_of = shard = sticky % self.stream.shards
            return [self._with_header(shard, few, self.created_us, self.created_us)]
        batch, keys = self._take_columns()
        sticky = sticky if self.pinned is None else self.pinned
        shards = self.stream.shards
        pieces: list[tuple[int, pa.RecordBatch]]
        if keys is None or shards == 1:
            self.shard_of = shard = sticky % shards
            pieces = [(shard, batch)]
        else:
            self.shard_of = placement.shards_for(keys, shards, self.stream.hash, sticky % shards)
            found = placement.split(batch, self.shard_of, shards)
            self.rank, pieces = found.rank, found.pieces
        return [self._encode_piece(shard, piece, compression) for shard, piece in pieces]

    def _encode_few(self, compression: str | None) -> Encoded | None:
        """A few plain records of one shard, which take the short way; None for all others."""
        if self.batch is not None or self.headers is not None or self.times is not None or self.pinned is not None:
            return None
        if self.count >= FEW or (self.keys is not None and self.stream.shards > 1):
            return None
        values, keys = self.values[: self.count], None if self.keys is None else self.keys[: self.count]
        few = payload.encode_few(values, keys, compression)
        if few is not None:
            self.values, self.keys = _Gone(), None
        return few

    def _take_columns(self) -> tuple[pa.RecordBatch, Sequence[bytes | None] | None]:
        """The records as a batch, and their keys where they decide the shard. The chunk keeps none of them."""
        if self.batch is not None:
            batch, self.batch = _with_times(self.batch, self.created_us), None
            has_keys = "key" in batch.schema.names and self.stream.shards > 1
            return batch, batch.column("key").to_pylist() if has_keys else None
        columns = (self.values, self.keys, self.headers, self.times)
        self.values, self.keys, self.headers, self.times = _Gone(), None, None, None
        values, keys, headers, times = (_first(column, self.count) for column in columns)
        return layouts.build(values or [], keys, headers, times), keys

    def _encode_piece(self, shard: int, piece: pa.RecordBatch, compression: str | None) -> Batch:
        encoded = payload.encode(piece, compression)
        low, high = payload.time_range(piece) or (self.created_us, self.created_us)
        return self._with_header(shard, encoded, low, high)

    def _with_header(self, shard: int, encoded: Encoded, low: int, high: int) -> Batch:
        header = encoded.header(
            stream=self.stream.id, shard=shard, generation=self.stream.generation, time_low=low, time_high=high
        )
        return Batch(header, encoded.payload)

    def placed(self, index: int) -> Placed:
        """(shard, offset) of a record, once acknowledged."""
        if self.error is not None:
            self.is_told = True
            raise self.error
        if not self.bases:
            raise _no_place()
        if isinstance(self.shard_of, int):
            return self.shard_of, self.bases[self.shard_of] + index
        shard = int(self.shard_of[index])
        assert self.rank is not None
        return shard, self.bases[shard] + int(self.rank[index])


def _with_times(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """A record of a table without a time gets the time of sending."""
    if "timestamp" not in batch.schema.names or not batch.column("timestamp").null_count:
        return batch
    index = batch.schema.get_field_index("timestamp")
    filled = batch.column(index).fill_null(pa.scalar(now_us, batch.schema.field(index).type))
    return batch.set_column(index, batch.schema.field(index), filled)


def _first(column: list[Any] | None, count: int) -> list[Any] | None:
    """The sealed part of a column: a straggler added after the seal is not part of it."""
    return None if column is None else column[:count]


class _Gone(list[Any]):
    """Stands for records that were taken out of a sealed chunk: whoever still adds one sees that it was not counted."""

    __slots__ = ()

    def __len__(self) -> int:
        return sys.maxsize


# Or two threads that wait for one parcel could each make an event of their own. Only waiters take it.
_making_events = threading.Lock()


class Parcel:
    """Chunks of several streams that travel in one request."""

    __slots__ = ("_event", "_is_over", "batches", "callbacks", "chunks", "deadline", "is_done", "size", "waiter")

    def __init__(self, waiter: Callable[["Parcel", float | None], bool], deadline: float) -> None:
        self.chunks: list[Chunk] = []
        # What the chunks became, if it could not be handed over at the first try.
        self.batches: list[Batch] | None = None
        # Whether every record's fate is known. Most parcels are never waited for: the event is made when one is.
        self.is_done = False
        self._is_over = False
        self._event: threading.Event | None = None
        self.waiter = waiter
        self.deadline = deadline
        self.size = 0
        self.callbacks: list[Callable[[], None]] = []

    def finish(self) -> None:
        """Every record's fate is known: call those who asked to be called, then wake those who wait."""
        self.is_done = True
        self.run_callbacks()
        self._is_over = True
        if self._event is not None:
            self._event.set()

    def run_callbacks(self) -> None:
        """Call what waits for the parcel, each once, whichever thread comes first."""
        while self.callbacks:
            try:
                call = self.callbacks.pop(0)
            except IndexError:
                return
            callbacks.run(call, f"a callback of an acknowledgement from {self.chunks[0].stream.name!r}")

    def event(self) -> threading.Event:
        """Set when the parcel is done and its callbacks were called."""
        with _making_events:
            event = self._event = self._event or threading.Event()
        # `finish` may have looked before there was one.
        if self._is_over:
            event.set()
        return event


class Ack(msgspec.Struct, gc=False):
    """The fate of one record: ignore it, ask it, wait for it, or have it call you. Any thread."""

    chunk: Chunk
    index: int

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.chunk.parcel.is_done

    def result(self, timeout: float | None = None) -> Placed:
        """(shard, offset) of the record, durable; raises what went wrong, DeadlineExceeded if that is not known yet."""
        _wait(self.chunk.parcel, timeout)
        return self.chunk.placed(self.index)

    def exception(self, timeout: float | None = None) -> MainstemError | None:
        """What went wrong, or None if the record is durable."""
        _wait(self.chunk.parcel, timeout)
        self.chunk.is_told = True
        return self.chunk.error

    def add_done_callback(self, call: Callable[["Ack"], None]) -> None:
        """Call `call(self)` when the outcome is known, from a thread of the hub; at once if it is known.

        It must not wait: what would is refused. `send` may be called for streams the producer knows (see `prepare`).
        What it raises is logged.
        """
        parcel = self.chunk.parcel
        parcel.callbacks.append(lambda: call(self))
        if parcel.is_done:
            parcel.run_callbacks()


class BatchAck(msgspec.Struct, gc=False):
    """The fate of a table given to `send_batch`."""

    chunks: list[Chunk]

    def done(self) -> bool:
        return all(chunk.parcel.is_done for chunk in self.chunks)

    def result(self, timeout: float | None = None) -> list[tuple[int, int, int]]:
        """(shard, offset, count) of every run of records, durable."""
        runs: list[tuple[int, int, int]] = []
        for chunk in self.chunks:
            _wait(chunk.parcel, timeout)
            if chunk.error is not None:
                chunk.is_told = True
                raise chunk.error
            if not chunk.bases:
                raise _no_place()
            runs += [(shard, base, _count_in(chunk, shard)) for shard, base in sorted(chunk.bases.items())]
        return runs

    def exception(self, timeout: float | None = None) -> MainstemError | None:
        try:
            self.result(timeout)
        except MainstemError as error:
            return error
        return None


def _count_in(chunk: Chunk, shard: int) -> int:
    if isinstance(chunk.shard_of, int):
        return chunk.count
    return int(np.count_nonzero(chunk.shard_of == shard))


def _no_place() -> InvalidRequest:
    return InvalidRequest(
        "this producer was made with acks='none': nobody says where a record went, or whether; use acks='durable'"
    )


def _wait(parcel: Parcel, timeout: float | None) -> None:
    if parcel.is_done:
        return
    callbacks.check_may_wait("result")
    if not parcel.waiter(parcel, timeout):
        raise DeadlineExceeded(f"no acknowledgement within {timeout} s; the outcome is not known yet")
