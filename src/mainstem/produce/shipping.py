"""Shipping: what becomes of the parcels of a producer, from the moment they are closed to their acknowledgement.

Parcels are shipped in the order in which they were closed, by one thread at a time, a few of them in flight at once.

Exactly once: a parcel's batches get their sequence numbers in the order they are shipped, by one thread at a time, and
keep them however often the connection repeats them. When a batch fails for good, the numbers after it are void: the
producer lets everything in flight come to its end, then goes on under a new epoch.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mainstem.core.batch import Batch
from mainstem.core.callbacks import check_may_wait
from mainstem.core.clock import Clock
from mainstem.core.errors import (
    BufferFull,
    Closed,
    DeadlineExceeded,
    InternalError,
    MainstemError,
    OutOfSequence,
    UnknownProducer,
)
from mainstem.core.interrupts import DeferredInterrupt
from mainstem.core.limits import (
    APPEND_BATCHES_MAX,
    APPEND_RAW_BYTES_MAX,
    PRODUCER_IN_FLIGHT_MAX,
    SHARDS_PER_STREAM_MAX,
)
from mainstem.produce.chunk import Chunk, Parcel
from mainstem.produce.convoy import Convoy
from mainstem.produce.counts import Counts
from mainstem.produce.known_streams import KnownStreams, alike
from mainstem.produce.numbering import Numbering
from mainstem.produce.options import ProducerOptions
from mainstem.produce.returns import Returns
from mainstem.transport.port import AppendResult, Port, StreamInfo
from mainstem.transport.retry import Randomness

_NEVER = threading.Event()
_FAILED_MAX = 64
# How soon records that need no acknowledgement are offered again to a connection that could not take them.
_RETRY_SECONDS = 0.05


class Shipping:
    """The parcels of one producer that are closed: waiting to be shipped, in flight, or come back. Any thread.

    `lock` guards them, and the parcel that its producer is filling, which `roll` closes and queues here.
    """

    def __init__(
        self,
        port: Port,
        options: ProducerOptions,
        clock: Clock,
        streams: KnownStreams,
        roll: Callable[[], None],
        randomness: Randomness,
        convoy: Convoy | None = None,
    ) -> None:
        self._port = port
        self._options = options
        self._clock = clock
        self._streams = streams
        self._roll = roll
        self._numbering = Numbering()
        # What takes small parcels along with those of other producers; none if records are counted or not acknowledged.
        self._convoy = convoy if options.acks == "durable" and options.counts is None else None
        if self._convoy is not None:
            self._convoy.join(self)
        # Told of every chunk whose fate is known, if records are counted.
        self.counts: Counts | None = None
        if options.counts is not None:
            self.counts = Counts(port, self._numbering.id, options.window_us(), clock)
        # Stream: the generation for which its records were shipped last.
        self._generations: dict[int, int] = {}
        self.lock = threading.Lock()
        # Whether a thread is encoding, numbering and handing over: one at a time, so that the numbers have an order.
        self._is_shipping = False
        self._rolled: deque[Parcel] = deque()
        self._buffered = 0
        self._in_flight = 0
        # Those of them that travel in a convoy.
        self._aboard: set[Parcel] = set()
        # Records without a key go to one shard after the other, a parcel each. Many producers live for one parcel.
        self._sticky = int(randomness.uniform(0, SHARDS_PER_STREAM_MAX))
        self._reset_wanted = False
        # Why the numbers of this epoch are void, once a batch has failed for good.
        self._void: MainstemError | None = None
        self._is_scheduled = False
        self.is_closed = False
        # Whether whoever sends looks at `is_full` first, so that a send need neither wait nor be refused.
        self.takes_all = False
        # Chunks that failed since the last flush, which raises the first error that nobody has asked for.
        self._failed: deque[Chunk] = deque(maxlen=_FAILED_MAX)
        self.dropped = 0
        # Records that a quota left out, of so many that were looked at.
        self.left_out = 0
        self._looked_at = 0
        # Parcels in flight, and those that came back, oldest first.
        self._waiting: list[Parcel] = []
        self._returns = Returns()
        self._shipped = 0

    def end(self) -> None:
        """With the lock held: no more is sent."""
        self.is_closed = True
        if self._convoy is not None:
            self._convoy.leave(self)

    def check_open(self) -> None:
        """Raise what is the reason, if no more may be sent."""
        self._port.check_usable()
        if self.is_closed:
            raise Closed("this producer is closed; open another with hub.producer()")

    def queue(self, parcel: Parcel) -> None:
        """With the lock held: a closed parcel is to be shipped."""
        self._buffered += parcel.size
        self._rolled.append(parcel)

    def encode_ahead(self, chunk: Chunk) -> None:
        """In the thread of whoever sends a table, before it is queued: the hub's thread, which ships most of them, has
        the connection to look after. A sender that must not wait leaves it to that one, and so does one of whose
        records only a share is kept: which, is known when they are shipped."""
        if self.takes_all or self._port.write_share < 1.0:
            return
        self._sticky += 1
        try:
            chunk.encode_ahead(self._sticky, self._options.compression)
        except MainstemError as error:
            chunk.error = error

    def under_way(self) -> list[Parcel]:
        """With the lock held: all whose fate is not known."""
        return [*self._waiting, *self._rolled]

    def take_errors(self) -> list[MainstemError]:
        """With the lock held: what failed since this was asked last and no ack has told anybody."""
        errors = [chunk.error for chunk in self._failed if chunk.error is not None and not chunk.is_told]
        self._failed.clear()
        return errors

    def hurry(self, seconds: float) -> None:
        """With the lock held: what nobody takes within so many seconds is dropped."""
        deadline = self._clock.monotonic() + seconds
        for parcel in self._rolled:
            parcel.deadline = min(parcel.deadline, deadline)

    def await_room(self, size: int) -> None:
        """Wait, fail or drop, without the lock, until `size` more bytes may be buffered."""
        deadline: float | None = None
        while True:
            with self.lock:
                self.check_open()
                dropped = self._take_oldest(size) if self._options.acks == "none" else []
                is_full = self._is_full(size)
                oldest = self._waiting[0] if self._waiting else None
            self._drop(dropped, BufferFull("dropped from a full buffer (acks='none')"))
            if not is_full or self.takes_all:
                return
            if self._options.on_full == "raise":
                raise self.full_error()
            check_may_wait("a send into a full buffer")
            now = self._clock.monotonic()
            deadline = deadline or now + self._options.delivery_timeout
            if now >= deadline:
                raise self.late_error()
            self.ship()
            self._port.wait(_NEVER if oldest is None else oldest.event(), 0.05)

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be buffered; with acks="none" the oldest makes room."""
        return self._is_full(1) and self._options.acks != "none"

    def full_error(self) -> BufferFull:
        return BufferFull(f"{self._buffered} bytes are waiting to be acknowledged; try again or use on_full='block'")

    def late_error(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"the buffer stayed full for {self._options.delivery_timeout} s")

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
            with self.lock:
                self.dropped += sum(chunk.count for chunk in parcel.chunks)
            for chunk in parcel.chunks:
                chunk.error = error
            self._count(parcel)
            parcel.finish()

    def schedule(self, delay: float) -> None:
        """With the lock held: have what gathers shipped after so many seconds, if nothing is in flight then."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._port.schedule(self._ship_gathered, delay)

    def hasten(self) -> None:
        """Have what gathers shipped as soon as nothing is in flight, however long it was to linger."""
        if self._options.linger:
            self._port.schedule(self._ship_gathered)

    def _ship_gathered(self) -> None:
        """In the hub's thread: ship what has gathered if nothing is in flight; else the answer in flight will."""
        with self.lock:
            self._is_scheduled = False
            if self._in_flight == 0:
                self._roll()
            late = self._take_late() if self._options.acks == "none" else []
        if late:
            self._drop(late, DeadlineExceeded("no server took it in time (acks='none')"))
        self.ship()

    def _take_late(self) -> list[Parcel]:
        """With the lock held: parcels that nobody took before their deadline."""
        now = self._clock.monotonic()
        late: list[Parcel] = []
        while self._rolled and self._rolled[0].deadline <= now:
            late.append(self._rolled.popleft())
            self._buffered -= late[-1].size
        return late

    def ship(self) -> None:
        """Encode, number and hand over rolled parcels, as many as may be in flight. One thread at a time; it looks
        at the queue again before it stops."""
        while self._rolled:
            with DeferredInterrupt():
                with self.lock:
                    parcel = None if self._is_shipping else self._next_parcel()
                    if parcel is None:
                        return
                    self._is_shipping = True
                try:
                    self._ship_parcel(parcel)
                finally:
                    self._is_shipping = False

    def _next_parcel(self) -> Parcel | None:
        """With the lock held: the next parcel that may be shipped now."""
        if not self._rolled or self._in_flight >= PRODUCER_IN_FLIGHT_MAX:
            return None
        if self._options.acks == "none" and not self._port.can_take():
            self.schedule(_RETRY_SECONDS)
            return None
        # Decided here, where nothing is in flight that comes back: a batch for a new shard is taken whatever became of
        # those before it, so it must not go out while they are made for the old ones.
        streams = [self._streams.present(chunk.stream) for chunk in self._rolled[0].chunks]
        if len(streams) > 1:
            streams = alike(streams)
        if self._in_flight and (self._reset_wanted or self._are_ahead(streams)):
            return None
        if self._reset_wanted:
            self._reset_wanted = False
            self._void = None
            self._numbering.begin_epoch()
        # Once some travel in a convoy nothing goes past them: they may come back.
        goes_along = (
            self._convoy is not None and len(self._aboard) == self._in_flight and self._convoy.suits(self._rolled[0])
        )
        if self._aboard and not goes_along:
            return None
        parcel = self._rolled.popleft()
        if goes_along:
            self._aboard.add(parcel)
        for chunk, stream in zip(parcel.chunks, streams, strict=True):
            chunk.stream = stream
            self._generations[stream.id] = stream.generation
        self._in_flight += 1
        self._shipped += 1
        parcel.number = parcel.number or self._shipped
        self._waiting.append(parcel)
        return parcel

    def _are_ahead(self, streams: Sequence[StreamInfo]) -> bool:
        """Whether a stream has more shards than what is in flight was made for: that may come back, and goes first."""
        return any(self._generations.get(stream.id, stream.generation) < stream.generation for stream in streams)

    def _ship_parcel(self, parcel: Parcel) -> None:
        if self._options.acks == "none":
            # Never repeated, so never in need of a number; a number lost on the way would void those after it.
            self._ship_unacknowledged(parcel)
            return
        if self._convoy is not None and parcel in self._aboard:
            self._convoy.board(parcel, self._on_answered)
            return
        batches, owners = self._encode(parcel)
        batches = [self._numbering.number(batch) for batch in batches]
        timeout = max(0.0, parcel.deadline - self._clock.monotonic())
        if len(batches) == 1 and len(parcel.chunks) == 1:
            self._port.append(batches, timeout, partial(self._on_lone_answer, parcel, batches[0].header.shard))
            return
        answers = _Answers(self, parcel, owners, batches)
        for begin, end in _requests(owners, [batch.header.raw_len for batch in batches]):
            self._port.append(batches[begin:end], timeout, answers.part(begin))
        if not batches:
            self._on_answered(parcel)

    def _encode(self, parcel: Parcel) -> tuple[list[Batch], list[Chunk]]:
        """The parcel as batches, and the chunk that each of them came from."""
        batches: list[Batch] = []
        owners: list[Chunk] = []
        if parcel.chunks[0].ahead is None:
            self._sticky += 1
        for chunk in parcel.chunks:
            if chunk.bases or chunk.error is not None:
                continue  # of a parcel that came back: this one did not
            if (share := self._port.write_share) < 1.0:
                self.left_out += chunk.leave_out(share, self._numbering.id, self._looked_at)
                self._looked_at += chunk.count
            try:
                encoded = chunk.encode(self._sticky, self._options.compression)
            except MainstemError as error:
                chunk.error = error
                continue
            chunk.parts = len(encoded)
            batches += encoded
            owners += [chunk] * len(encoded)
        return batches, owners

    def _ship_unacknowledged(self, parcel: Parcel) -> None:
        if parcel.batches is None:
            parcel.batches, _ = self._encode(parcel)
        if self._port.append_unacknowledged(parcel.batches):
            self._on_answered(parcel)
            return
        # The connection became busy meanwhile: it waits with the others, as long as the buffer has room.
        with self.lock:
            self._waiting.remove(parcel)
            self._in_flight -= 1
            self._rolled.appendleft(parcel)
            self.schedule(_RETRY_SECONDS)

    def _on_lone_answer(self, parcel: Parcel, shard: int, results: Sequence[AppendResult]) -> None:
        """The short way of `_Answers`, for a parcel that is one batch."""
        (chunk,), (result,) = parcel.chunks, results
        if isinstance(result, MainstemError):
            chunk.error = result
        else:
            chunk.bases[shard] = result
        self._on_answered(parcel)

    def _on_answered(self, parcel: Parcel) -> None:
        """A parcel came to its end, unless it came back: ship what gathered meanwhile, tell those who wait."""
        over: list[Parcel] = []
        with self.lock:
            self._in_flight -= 1
            self._aboard.discard(parcel)
            if self._returns.take(parcel):
                self._reset_wanted = True
                self._streams.note_shards(parcel)
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
            self._count(done)
            done.finish()
        self.ship()

    def _count(self, parcel: Parcel) -> None:
        """The fate of its records is known."""
        if self.counts is None:
            return
        is_asked = self._options.acks != "none"
        for chunk in parcel.chunks:
            stream = chunk.stream
            self.counts.note(stream.name, stream.uuid, chunk.sent, chunk.acknowledged if is_asked else None)

    def _end_parcel(self, parcel: Parcel) -> None:
        """With the lock held: give its room back, and remember what failed."""
        self._waiting.remove(parcel)
        self._buffered = max(0, self._buffered - parcel.size)
        failed = [chunk for chunk in parcel.chunks if chunk.error is not None]
        if failed:
            self._failed += failed
            self._reset_wanted = True
            self._explain(failed)
            self._streams.forget_deleted(parcel)

    def _explain(self, failed: Sequence[Chunk]) -> None:
        """A batch that is refused only because one before it has failed gets the reason of that one."""
        for chunk in failed:
            if self._void is not None and isinstance(chunk.error, OutOfSequence | UnknownProducer):
                chunk.error = self._void
        self._void = self._void or failed[0].error


def _requests(owners: Sequence[Chunk], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Which batches travel together, given the chunk and the size of each: whole chunks, so that one is written or
    refused whole. A chunk has no more batches than there can be shards."""
    begin = chunk_begin = total = 0
    for index, owner in enumerate(owners):
        if index and owner is not owners[index - 1]:
            chunk_begin = index
        total += sizes[index]
        if (index - begin >= APPEND_BATCHES_MAX or total > APPEND_RAW_BYTES_MAX) and begin < chunk_begin:
            yield begin, chunk_begin
            begin, total = chunk_begin, sum(sizes[chunk_begin : index + 1])
    if owners:
        yield begin, len(owners)


class _Answers:
    """Gathers the answers to the requests of one parcel."""

    def __init__(self, shipping: Shipping, parcel: Parcel, owners: list[Chunk], batches: list[Batch]) -> None:
        self._shipping = shipping
        self._parcel = parcel
        self._owners = owners
        self._shards = [batch.header.shard for batch in batches]
        self._left = len(batches)
        self._lock = threading.Lock()

    def part(self, begin: int) -> Callable[[Sequence[AppendResult]], None]:
        return partial(self._take, begin)

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
        for chunk in self._parcel.chunks:
            if chunk.error is None and len(chunk.bases) != chunk.parts:
                chunk.error = InternalError(
                    f"stream {chunk.stream.name!r}: {len(chunk.bases)} of {chunk.parts} batches have a place"
                )
        self._shipping._on_answered(self._parcel)
