"""The records of one stream gathered by a producer, and what became of them.

A record costs one append to a list; hashing, sorting, encoding and compressing happen once per chunk. An `Ack` is only
a chunk and an index into it.
"""

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.core import callbacks, layouts, payload, placement, sampling, windows
from mainstem.core.batch import Batch
from mainstem.core.durations import check_timeout
from mainstem.core.errors import DeadlineExceeded, InvalidRequest, LeftOut, MainstemError
from mainstem.core.layouts import FEW
from mainstem.core.payload import Encoded
from mainstem.core.windows import Tally
from mainstem.produce.admission import check_atomic
from mainstem.produce.row_batches import keys_of, with_envelope
from mainstem.registry.rows import RowConverter
from mainstem.transport.port import StreamInfo

logger = logging.getLogger("mainstem.produce")

Placed = tuple[int, int]


class Chunk:
    """Records of one stream that are shipped together. Filled under the producer's lock, then owned by the shipper.

    States: filling, shipped (has `parcel`), done (`error` or `bases` set, `parcel.is_done`).
    """

    __slots__ = (
        "ahead",
        "atomic_in",
        "bases",
        "batch",
        "carrier",
        "chosen",
        "convert",
        "count",
        "created_us",
        "error",
        "first",
        "headers",
        "is_sealed",
        "is_told",
        "kept",
        "keys",
        "owner",
        "owner_of_bytes",
        "parcel",
        "parts",
        "pinned",
        "rank",
        "rows",
        "shard_of",
        "share",
        "source",
        "stream",
        "tallies",
        "times",
        "values",
        "window_us",
    )

    def __init__(
        self,
        stream: StreamInfo,
        created_us: int,
        parcel: "Parcel",
        owner: int,
        rows: RowConverter | None = None,
        window_us: int = 0,
    ) -> None:
        self.stream = stream
        # What makes a batch of the rows; None if values are bytes. A chunk is of one kind.
        self.rows = rows
        # How the fast way of `send` takes a row; None if this chunk has columns that it does not fill.
        self.convert = None if rows is None or "compact" in stream.cleanup else rows.convert
        self.created_us = created_us
        self.parcel = parcel
        # The thread that may add without the producer's lock, and the one that may add bytes like that; 0 if none may.
        self.owner = owner
        self.owner_of_bytes = 0 if stream.schema_bytes else owner
        self.is_sealed = False
        # How many records there are, once sealed.
        self.count = 0
        # Bytes, or what `rows` took of a row.
        self.values: list[Any] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Any] | None = None
        self.times: list[int] | None = None
        self.batch: pa.RecordBatch | None = None
        # The shards that were asked for: one for all records, or one for each, None where the key decides.
        self.chosen: list[int | None] | int | None = None
        # The shard of records without a key, where the chunk must not be spread.
        self.pinned: int | None = None
        # The generation of the stream in which it is known to belong to one shard, if it must.
        self.atomic_in: int | None = None
        self.shard_of: npt.NDArray[np.uint32] | int = 0
        self.rank: npt.NDArray[np.uint32] | None = None
        # If a quota leaves some of it out: the share that is kept, and the place of each among those, -1 if it is none.
        self.share = 1.0
        self.kept: npt.NDArray[np.int64] | None = None
        # How many batches it was sent as, one for each shard, and where those that were taken begin.
        self.parts = 0
        self.bases: dict[int, int] = {}
        # The records once encoded, until their fate is known: they may have to be split over other shards.
        self.source: pa.RecordBatch | Encoded | None = None
        # The chunk of a convoy that its records were sent in, and the place of the first of them there.
        self.carrier: Chunk | None = None
        self.first = 0
        # What it became before its turn to be shipped came, and the generation of the stream then.
        self.ahead: tuple[int, list[Batch]] | None = None
        # Records of each shard by window, if they are counted: windows then have this length.
        self.window_us = window_us
        self.tallies: dict[int, Tally] = {}
        self.error: MainstemError | None = None
        # Whether somebody got the error from an ack.
        self.is_told = False

    def add(self, value: Any, key: bytes | None, headers: Any, time_us: int | None, shard: int | None = None) -> int:
        """The general way to add a record; the index of it. Columns begin with the first record that needs them."""
        index = len(self.values)
        # A chunk with headers, times or chosen shards has columns that the fast way of `send` does not fill.
        if headers is not None or time_us is not None or shard is not None:
            self.owner_of_bytes, self.convert = 0, None
        if key is not None:
            self.convert = None
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
        if shard is not None and self.chosen is None:
            self.chosen = [None] * index
        if isinstance(self.chosen, list):
            self.chosen.append(shard)
        return index

    @property
    def is_plain(self) -> bool:
        """Whether it has records of its own, not a table, of which nothing is asked but keys, and was never sent."""
        return (
            self.batch is None
            and self.headers is None
            and self.times is None
            and self.chosen is None
            and self.source is None
            and not self.window_us
        )

    def carry(self, carrier: "Chunk", first: int, errors: Mapping[int, MainstemError]) -> None:
        """Its records were sent in a chunk of many, from `first` on: they stand where those stand, or have failed with
        a shard of theirs."""
        shard_of = carrier.shard_of
        mine = {shard_of} if isinstance(shard_of, int) else set(shard_of[first : first + self.count].tolist())
        self.error = next((error for shard, error in errors.items() if shard in mine), None)
        if self.error is None:
            self.carrier, self.first, self.bases = carrier, first, carrier.bases
            self.values, self.keys = _Gone(), None
        else:
            self.bases = {shard: base for shard, base in carrier.bases.items() if shard in mine}

    def seal(self) -> None:
        """Count the records; what the owner adds from now on is not one of them. Called under the producer's lock."""
        if self.is_sealed:
            return
        self.is_sealed = True
        if self.batch is not None:
            self.count = self.batch.num_rows
        elif self.keys is None:
            self.count = len(self.values)
        else:
            # The owner may be between its two appends.
            self.count = min(len(self.values), len(self.keys))

    def leave_out(self, share: float, source: int, first: int) -> int:
        """Keep a share of the records, which have numbers from `first` on at their source; how many are left out. What
        must be whole, or was encoded before, stays as it is."""
        if self.atomic_in is not None or self.source is not None or self.kept is not None:
            return 0
        is_kept = sampling.kept(self.count, share, source, first)
        self.share = share
        self.kept = np.where(is_kept, np.cumsum(is_kept) - 1, -1)
        return self.count - int(np.count_nonzero(is_kept))

    def encode(self, sticky: int, compression: str | None) -> list[Batch]:
        """The chunk as batches, one per shard it touches; producer and sequence are still to be filled in."""
        if self.ahead is not None:
            (generation, batches), self.ahead = self.ahead, None
            if generation == self.stream.generation:
                return batches
        if self.atomic_in not in (None, self.stream.generation):
            self._check_atomic()
        if self.source is not None:
            return self._encode_again(sticky, compression)
        if isinstance(self.chosen, list) and len(set(self.chosen)) == 1:
            self.chosen = self.chosen[0]
        few = self._encode_few(compression)
        if few is not None:
            self.source = few
            self.shard_of = shard = self.chosen if isinstance(self.chosen, int) else sticky % self.stream.shards
            self._count(shard, few.count, self.created_us, self.created_us, None)
            return [self._with_header(shard, few, self.created_us, self.created_us)]
        batch, keys = self._take_columns()
        if self.kept is not None:
            batch, keys = self._sampled(batch, keys, self.kept)
        self.source = batch
        return self._split(batch, keys, sticky, compression)

    def encode_ahead(self, sticky: int, compression: str | None) -> None:
        """Do now what `encode` would do, which then only hands it over, if the stream is still cut into its shards as
        it was."""
        self.ahead = (self.stream.generation, self.encode(sticky, compression))

    def _sampled(
        self, batch: pa.RecordBatch, keys: pa.BinaryArray | None, kept: npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, pa.BinaryArray | None]:
        places = pa.array(np.flatnonzero(kept >= 0))
        if isinstance(self.chosen, list):
            self.chosen = [self.chosen[place] for place in places.to_pylist()]
        batch = sampling.with_share(batch.take(places), self.share, is_rows=self.rows is not None)
        return batch, None if keys is None else keys.take(places)

    def _encode_again(self, sticky: int, compression: str | None) -> list[Batch]:
        """The same records for other shards."""
        source = self.source
        if isinstance(source, Encoded):
            fields = (source.encoding, source.layout, source.count, source.raw_len)
            source = payload.decode(*fields, source.payload)
        assert source is not None
        found = keys_of(self.stream, source, is_rows=self.rows is not None)
        return self._split(source, found, sticky, compression)

    def _check_atomic(self) -> None:
        """The stream has more shards than when it was checked."""
        batch = self.batch if self.source is None else self.source
        assert isinstance(batch, pa.RecordBatch), "what is sent as a table is a batch"
        self.pinned = check_atomic(self.stream, (batch,), is_rows=self.rows is not None)
        self.atomic_in = self.stream.generation

    def _split(
        self, batch: pa.RecordBatch, keys: pa.BinaryArray | None, sticky: int, compression: str | None
    ) -> list[Batch]:
        if not batch.num_rows:
            return []
        shards = self.stream.shards
        sticky = (sticky if self.pinned is None else self.pinned) % shards
        self.rank = None
        self.tallies.clear()
        pieces: list[tuple[int, pa.RecordBatch]]
        if isinstance(self.chosen, int):
            self.shard_of = self.chosen
            pieces = [(self.chosen, batch)]
        elif shards == 1 or (keys is None and self.chosen is None):
            self.shard_of = sticky
            pieces = [(sticky, batch)]
        else:
            self.shard_of = self._placed(keys if keys is not None else pa.nulls(batch.num_rows, pa.binary()), sticky)
            found = placement.split(batch, self.shard_of, shards)
            self.rank, pieces = found.rank, found.pieces
        return [self._encode_piece(shard, piece, compression, is_source=piece is batch) for shard, piece in pieces]

    def _placed(self, keys: pa.BinaryArray, sticky: int) -> npt.NDArray[np.uint32]:
        """The shard of each record: the one that was asked for, else that of its key."""
        placed = placement.shards_for(keys, self.stream.shards, self.stream.hash, sticky)
        if isinstance(self.chosen, list):
            asked = {index: shard for index, shard in enumerate(self.chosen) if shard is not None}
            placed[list(asked)] = list(asked.values())
        return placed

    def _encode_few(self, compression: str | None) -> Encoded | None:
        """A few plain records of one shard, which take the short way; None for all others."""
        if self.rows is not None or self.batch is not None or self.pinned is not None or self.kept is not None:
            return None
        if self.headers is not None or self.times is not None or isinstance(self.chosen, list):
            return None
        if self.count >= FEW or (self.keys is not None and self._is_spread()):
            return None
        values, keys = self.values[: self.count], None if self.keys is None else self.keys[: self.count]
        few = payload.encode_few(values, keys, compression)
        if few is not None:
            self.values, self.keys = _Gone(), None
        return few

    def _take_columns(self) -> tuple[pa.RecordBatch, pa.BinaryArray | None]:
        """The records as a batch, and their keys where they decide the shard. The chunk keeps none of them."""
        if self.batch is not None:
            is_rows = self.rows is not None
            name = "_timestamp" if is_rows else "timestamp"
            batch, self.batch = _with_times(self.batch, name, self.created_us), None
            return batch, keys_of(self.stream, batch, is_rows=is_rows) if self._is_spread() else None
        columns = (self.values, self.keys, self.headers, self.times)
        self.values, self.keys, self.headers, self.times = _Gone(), None, None, None
        values, keys, headers, times = (_first(column, self.count) for column in columns)
        if self.rows is None:
            batch = layouts.build(values or [], keys, headers, times)
        else:
            batch = with_envelope(self.rows.build(values or []), keys, headers, times)
        return batch, keys_of(self.stream, batch, is_rows=self.rows is not None) if self._is_spread() else None

    def _is_spread(self) -> bool:
        """Whether the keys may decide the shards of its records."""
        return self.stream.shards > 1 and not isinstance(self.chosen, int)

    def _encode_piece(self, shard: int, piece: pa.RecordBatch, compression: str | None, *, is_source: bool) -> Batch:
        schema = None if self.rows is None else self.rows.schema
        encoded = payload.encode(piece, compression, schema)
        times = payload.time_range(piece) if schema is None else payload.row_time_range(piece)
        low, high = times or (self.created_us, self.created_us)
        self._count(shard, piece.num_rows, low, high, piece if times else None)
        return self._with_header(shard, encoded, low, high, piece if is_source else None)

    def _with_header(self, shard: int, encoded: Encoded, low: int, high: int, columns: Any = None) -> Batch:
        header = encoded.header(
            stream=self.stream.id,
            shard=shard,
            schema_id=0 if self.rows is None else self.stream.schema_id,
            generation=self.stream.generation,
            time_low=low,
            time_high=high,
        )
        return Batch(header, encoded.payload, columns)

    def _count(self, shard: int, count: int, low: int, high: int, piece: pa.RecordBatch | None) -> None:
        """Note the windows of what goes to a shard, whose times `piece` has if they differ."""
        if self.window_us:
            name = "timestamp" if self.rows is None else "_timestamp"
            times = None if piece is None else piece.column(name).cast(pa.int64())
            self.tallies[shard] = windows.tally(low, high, count, times, self.window_us)

    @property
    def sent(self) -> Tally:
        """Its records by window, but for those that a quota left out. What was never encoded is counted at the time of
        sending."""
        if self.tallies or self.kept is not None:
            return windows.total(self.tallies.values())
        return {windows.start_of(self.created_us, self.window_us): self.count}

    @property
    def acknowledged(self) -> Tally:
        """Those of them that are known to be durable."""
        return windows.total(tally for shard, tally in self.tallies.items() if shard in self.bases)

    def left_out(self, index: int) -> LeftOut | None:
        """Why the record was not sent, if it was not."""
        if self.kept is None or self.kept[index] >= 0:
            return None
        return LeftOut(f"over the quota: a share of {self.share:.3g} is kept, and this record is not of it")

    def placed(self, index: int) -> Placed:
        """(shard, offset) of a record, once acknowledged."""
        if self.error is not None:
            self.is_told = True
            raise self.error
        if (left_out := self.left_out(index)) is not None:
            raise left_out
        if self.kept is not None:
            index = int(self.kept[index])
        if not self.bases:
            raise _no_place()
        if self.carrier is not None:
            return self.carrier.placed(self.first + index)
        if isinstance(self.shard_of, int):
            return self.shard_of, self.bases[self.shard_of] + index
        shard = int(self.shard_of[index])
        assert self.rank is not None
        return shard, self.bases[shard] + int(self.rank[index])


def _with_times(batch: pa.RecordBatch, name: str, now_us: int) -> pa.RecordBatch:
    """A record of a table without a time gets the time of sending."""
    index = batch.schema.get_field_index(name)
    if index < 0 or not batch.column(index).null_count:
        return batch
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

    __slots__ = (
        "_event",
        "_is_over",
        "batches",
        "callbacks",
        "chunks",
        "deadline",
        "is_done",
        "number",
        "size",
        "waiter",
    )

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
        # Counts parcels in the order in which they were first shipped.
        self.number = 0
        self.size = 0
        self.callbacks: list[Callable[[], None]] = []

    def finish(self) -> None:
        """Every record's fate is known: call those who asked to be called, then wake those who wait."""
        for chunk in self.chunks:
            chunk.source = None
        self.is_done = True
        self.run_callbacks()
        self._is_over = True
        if self._event is not None:
            self._event.set()

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Call when every record's fate is known, from a thread of the hub; at once if it is."""
        self.callbacks.append(call)
        if self.is_done:
            self.run_callbacks()

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

    @property
    def stream(self) -> str:
        """Where the record went: to another stream than it was sent to if it is a dead letter."""
        return self.chunk.stream.name

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
        return self.chunk.error or self.chunk.left_out(self.index)

    def add_done_callback(self, call: Callable[["Ack"], None]) -> None:
        """Call `call(self)` when the outcome is known, from a thread of the hub; at once if it is known.

        It must not wait: what would is refused. `send` may be called for streams the producer knows (see `prepare`).
        What it raises is logged.
        """
        self.chunk.parcel.call_when_done(lambda: call(self))

    def __repr__(self) -> str:
        if not self.done():
            return f"<Ack {self.stream}: under way>"
        if self.chunk.error is not None:
            return f"<Ack {self.stream}: {type(self.chunk.error).__name__}>"
        if self.chunk.left_out(self.index) is not None:
            return f"<Ack {self.stream}: LeftOut>"
        if not self.chunk.bases:
            return f"<Ack {self.stream}: sent>"
        shard, offset = self.chunk.placed(self.index)
        return f"<Ack {self.stream}: shard {shard}, offset {offset}>"


class BatchAck(msgspec.Struct, gc=False):
    """The fate of a table given to `send_batch`, or of what was given to `send_many`.

    `dead` has an ack for each row that did not fit and was kept as a dead letter.
    """

    chunks: list[Chunk]
    dead: list[Ack] = msgspec.field(default_factory=list)

    def __repr__(self) -> str:
        if not self.done():
            return "<BatchAck: under way>"
        error = next((chunk.error for chunk in self.chunks if chunk.error is not None), None)
        dead = f", {len(self.dead)} dead letters" if self.dead else ""
        return f"<BatchAck: {'done' if error is None else type(error).__name__}{dead}>"

    def done(self) -> bool:
        return all(chunk.parcel.is_done for chunk in self.chunks) and all(ack.done() for ack in self.dead)

    def result(self, timeout: float | None = None) -> list[tuple[int, int, int]]:
        """(shard, offset, count) of every run of records, durable; dead letters are not among them, but durable too."""
        for ack in self.dead:
            ack.result(timeout)
        runs: list[tuple[int, int, int]] = []
        for chunk in self.chunks:
            _wait(chunk.parcel, timeout)
            if chunk.error is not None:
                chunk.is_told = True
                raise chunk.error
            if not chunk.bases and chunk.kept is None:
                raise _no_place()
            runs += [(shard, base, _count_in(chunk, shard)) for shard, base in sorted(chunk.bases.items())]
        return runs

    def exception(self, timeout: float | None = None) -> MainstemError | None:
        check_timeout(timeout)
        try:
            self.result(timeout)
        except MainstemError as error:
            return error
        return None


def _count_in(chunk: Chunk, shard: int) -> int:
    if isinstance(chunk.shard_of, int):
        return chunk.count if chunk.kept is None else int(np.count_nonzero(chunk.kept >= 0))
    return int(np.count_nonzero(chunk.shard_of == shard))


def _no_place() -> InvalidRequest:
    return InvalidRequest(
        "this producer was made with acks='none': nobody says where a record went, or whether; use acks='durable'"
    )


def _wait(parcel: Parcel, timeout: float | None) -> None:
    if timeout is not None:
        check_timeout(timeout)
    if parcel.is_done:
        return
    callbacks.check_may_wait("result")
    if not parcel.waiter(parcel, timeout):
        raise DeadlineExceeded(f"no acknowledgement within {timeout} s; the outcome is not known yet")
