"""One reader's push: from memory in the loop, from disk in a worker thread, as far as its credit reaches."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from mainstem.access.quotas import FREELY, Grant
from mainstem.consume.feed import Feed
from mainstem.core.batch import BatchHeader, FetchedBatch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    DataLoss,
    InternalError,
    MainstemError,
    ProtocolError,
    QuotaExceeded,
    StaleGeneration,
    StreamDeleted,
)
from mainstem.core.events import Event
from mainstem.core.limits import (
    APPEND_BATCHES_MAX,
    BATCH_OVERHEAD_BYTES,
    CREDIT_BYTES_MAX,
    MIB,
    PAYLOAD_STORED_BYTES_MAX,
    READ_BYTES_MAX,
)
from mainstem.core.sampling import is_kept
from mainstem.log.hot_tail import HotTail
from mainstem.server.line import Line
from mainstem.transport.wire import (
    VERSION,
    VERSION_MIN,
    VERSION_OF_ACCESS,
    VERSION_OF_SCHEMAS,
    VERSION_OF_SPANS,
    Batches,
    Kind,
    Mark,
    encode_header,
    pack,
    pack_encoded,
    wire_error,
)

if TYPE_CHECKING:
    from mainstem.transport.connection import FramedConnection

logger = logging.getLogger("mainstem.server")

# Of headers that were encoded last: readers of the same stream come for them within moments.
_ENCODED_BYTES_MAX: Final = 4 * MIB
# Pushed in one message from memory, so that small batches travel together and the loop stays responsive.
_HOT_BYTES_MAX: Final = 256 << 10


class PushEncoder:
    """Headers of batches pushed from memory, encoded once for all subscribers of a stream. One thread.

    What stands between two offsets may be other batches a moment later: merged, or left with fewer records. The same
    first and last header are those of the same read, or of the hot tail, and so are those between them.
    """

    def __init__(self) -> None:
        self._encoded: OrderedDict[tuple[int, int, int, int], tuple[BatchHeader, BatchHeader, bytes]] = OrderedDict()
        self.bytes = 0

    def encode(self, batches: Sequence[FetchedBatch]) -> bytes:
        first, last = batches[0], batches[-1]
        key = (first.header.stream, first.header.shard, first.base, last.base)
        found = self._encoded.get(key)
        if found is not None:
            if found[0] is first.header and found[1] is last.header:
                return found[2]
            self._forget(key)
        encoded = encode_batches(batches)
        self._encoded[key] = first.header, last.header, encoded
        self.bytes += len(encoded) + BATCH_OVERHEAD_BYTES
        while self.bytes > _ENCODED_BYTES_MAX:
            self._forget(next(iter(self._encoded)))
        return encoded

    def _forget(self, key: tuple[int, int, int, int]) -> None:
        self.bytes -= len(self._encoded.pop(key)[2]) + BATCH_OVERHEAD_BYTES


class ReadsUnderWay:
    """Reads from disk whose result others will find in memory, by what is read. The loop's thread only."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}

    def get(self, place: Hashable) -> "asyncio.Future[Any] | None":
        return self._under_way.get(place)

    def add(self, place: Hashable, read: "asyncio.Future[Any]") -> None:
        self._under_way[place] = read
        read.add_done_callback(partial(self._remove, place))

    def _remove(self, place: Hashable, read: "asyncio.Future[Any]") -> None:
        if self._under_way.get(place) is read:
            del self._under_way[place]


def encode_batches(batches: Sequence[FetchedBatch], counts: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    # Statistics are for whoever stands at the log.
    pairs = [(batch.base, batch.header) for batch in batches]
    return encode_header(Batches(pairs, *counts))


class PushTotals:
    """What was pushed to all readers. The loop's thread counts, any thread looks."""

    def __init__(self) -> None:
        self.batches_hot = 0
        self.batches_shared = 0
        self.batches_disk = 0
        self.records = 0
        self.bytes = 0


class PushSubscription:
    """Pushes one feed to one connection. The loop's thread only.

    At most one read from disk is under way; while it is, the feed belongs to the worker and news of grown shards wait
    in `_touched`. What another subscription is reading already is not read again: its end is waited for. Nothing is
    queued: a batch is looked for only when it can be sent. A client whose `version` of the protocol cannot say which
    offsets a batch has gets an error in its place.
    """

    def __init__(
        self,
        connection: "FramedConnection",
        id_: int,
        feed: Feed,
        credit: int,
        hot: HotTail,
        encoder: PushEncoder,
        pool: Line,
        version: int = VERSION,
        totals: PushTotals | None = None,
        under_way: ReadsUnderWay | None = None,
        clock: Clock = SYSTEM_CLOCK,
        charge: Callable[[int, int], Grant] = lambda size, offered: FREELY,
        turn: Callable[[], float] = lambda: 0.0,
        *,
        whole: bool = False,
    ) -> None:
        self.id = id_
        # Says in how many seconds it may begin, and is asked before that: what others of the same reader had is paid
        # for first, else whoever is slowed down would subscribe anew.
        self._turn = turn
        self._has_begun = False
        # Counts bytes that are sent, of how many; says what that means for those that come next.
        self._charge = charge
        self._share = 1.0
        # Not of who wants the whole, nor of who speaks less and could not be told what was left out.
        self._is_sampled = version >= VERSION_OF_ACCESS and not whole
        self._is_slowed = False
        self._version = version
        self.stream = feed.stream.id
        self.stream_name = feed.stream.name
        self.shards = feed.stream.shards
        self._connection = connection
        self._feed = feed
        self._credit = credit
        self._hot = hot
        self._encoder = encoder
        self._pool = pool
        self._touched: set[int] = set()
        # The read that is under way, and whether it is ours or that of another subscription.
        self._reading: asyncio.Future[list[FetchedBatch]] | None = None
        self._is_own = False
        # Whether it goes on as soon as others have had their turn.
        self._goes_on = False
        self._ended = False
        self._totals = totals or PushTotals()
        self._under_way = under_way or ReadsUnderWay()
        self._clock = clock
        # Of what the feed counts for its predicate, how much the reader was told.
        self._told = (0, 0, 0)
        # The watermark that it was told last.
        self._marked_us = 0
        # Since when the reader has taken nothing though there was something for it; 0 if it takes what there is.
        self._stalled_at = 0.0

    def behind(self) -> int:
        """How many records it has still to get. Any thread."""
        return 0 if self._ended else self._feed.behind()

    def stalled_seconds(self, now: float) -> float:
        """For how long nothing could be sent because the reader takes nothing. Any thread."""
        since = self._stalled_at
        return max(0.0, now - since) if since else 0.0

    def touch(self, shard: int) -> None:
        """The shard grew."""
        if self._reading:
            self._touched.add(shard)
        else:
            self._feed.touch((shard,))

    def add_credit(self, count: int) -> None:
        self._credit = min(self._credit + count, CREDIT_BYTES_MAX)

    def push(self) -> None:
        """Send what can be sent now."""
        if self._reading or self._ended or self._goes_on:
            return
        while self._credit > 0 and not self._connection.is_blocked and not self._is_slowed and not self._ended:
            if not self._has_begun and self._feed.is_ready and not self._begin():
                break
            batches = self._feed.hot(self._hot, min(self._credit, _HOT_BYTES_MAX))
            if batches:
                self._totals.batches_hot += len(batches)
                self._offer(batches, self._encoder.encode)
            elif batches := self._feed.shared(min(self._credit, READ_BYTES_MAX)):
                self._totals.batches_shared += len(batches)
                self._offer(batches, self._encode_read if self._feed.is_selected else self._encoder.encode)
                # Of this there may be much: others have their turn first.
                self._go_on_soon()
                return
            elif self._feed.is_ready:
                self._read_from_disk()
                return
            else:
                break
        self._note_stall()
        if self._feed.is_done and not self._ended:
            self._ended = True
            self._connection.send(pack(Kind.END, self.id))

    def _begin(self) -> bool:
        """Whether it may be sent something now; if not, it has ended or is slowed down."""
        self._has_begun = True
        try:
            self._slow_down(self._turn())
        except QuotaExceeded as error:
            self.end(error)
        return not self._is_slowed and not self._ended

    def mark(self, settled_us: Callable[[], int]) -> None:
        """Say before which time nothing will come any more, if the reader wants to know. Takes no credit."""
        if self._reading or self._ended or self._connection.is_blocked or not self._feed.is_ordered:
            return
        time_us = self._feed.watermark(settled_us)
        if time_us > self._marked_us:
            self._marked_us = time_us
            self._connection.send(pack(Kind.MARK, self.id, Mark(time_us)))

    def _go_on_soon(self) -> None:
        self._goes_on = True
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self.push()

    def _note_stall(self) -> None:
        if not self._feed.is_ready or self._is_slowed:
            self._stalled_at = 0.0
        elif not self._stalled_at:
            self._stalled_at = self._clock.monotonic()

    def _read_from_disk(self) -> None:
        place = self._feed.place
        others = self._under_way.get(place)
        if others is not None:
            self._reading = others
            others.add_done_callback(self._on_read_by_other)
            return
        size = max(1, min(self._credit, READ_BYTES_MAX))
        # One that has to wait in this client's line is waited for by this client alone.
        is_soon = not self._pool.is_full
        self._reading = asyncio.get_running_loop().run_in_executor(self._pool, self._feed.read, size)
        self._is_own = True
        if place is not None and is_soon:
            self._under_way.add(place, self._reading)
        self._reading.add_done_callback(self._on_read)

    def _on_read_by_other(self, _: "asyncio.Future[list[FetchedBatch]]") -> None:
        """It is in memory now; if not, the next one reads for itself."""
        if not self._ended:
            self._come_back()
            self.push()

    def _come_back(self) -> None:
        """The feed is ours again."""
        self._reading = None
        self._is_own = False
        self._feed.touch(self._touched)
        self._touched.clear()

    def _on_read(self, future: "asyncio.Future[list[FetchedBatch]]") -> None:
        if self._ended or future.cancelled():
            return
        self._come_back()
        error = future.exception()
        if isinstance(error, DataLoss):
            self._connection.send(pack(Kind.ERROR, self.id, wire_error(error)))
        elif isinstance(error, MainstemError):
            self.end(error)
            return
        elif error is not None:
            logger.error(Event("reading failed", stream=self._feed.stream.name), exc_info=error)
            self.end(InternalError(f"the server failed to read: {type(error).__name__}: {error}"))
            return
        elif future.result():
            self._totals.batches_disk += len(future.result())
            self._offer(future.result(), self._encode_read)
        self.push()

    def _encode_read(self, batches: Sequence[FetchedBatch]) -> bytes:
        counts = self._feed.counts
        before, self._told = self._told, (counts.opened, counts.skipped, counts.undecoded)
        opened, skipped, undecoded = map(int.__sub__, self._told, before)
        return encode_batches(batches, (opened, skipped, undecoded))

    def _offer(self, batches: Sequence[FetchedBatch], encode: Callable[[Sequence[FetchedBatch]], bytes]) -> None:
        """Send batches, some of them without their records if the reader is over a quota of which a share is kept."""
        if self._share < 1.0:
            self._send(self._sampled(batches), self._encode_read)
        else:
            self._send(batches, encode)

    def _send(self, batches: Sequence[FetchedBatch], encode: Callable[[Sequence[FetchedBatch]], bytes]) -> None:
        if self._ended:
            return
        if self._version < VERSION_OF_SCHEMAS:
            understood = list(takewhile(self._is_understood, batches))
            if len(understood) < len(batches):
                if understood:
                    self._send(understood, encode)
                self._end_not_understood(batches[len(understood)])
                return
        while len(batches) > APPEND_BATCHES_MAX:
            self._send(batches[:APPEND_BATCHES_MAX], encode)
            batches = batches[APPEND_BATCHES_MAX:]
        payloads = [batch.payload for batch in batches]
        size = sum(map(len, payloads))
        if size > PAYLOAD_STORED_BYTES_MAX and len(batches) > 1:
            # In another schema they may be larger than what was read, and too large for one message.
            half = len(batches) // 2
            self._send(batches[:half], encode)
            self._send(batches[half:], encode)
            return
        if not self._count(size, size + sum(batch.header.raw_len for batch in batches if not batch.header.count)):
            return
        self._credit -= size + len(payloads) * BATCH_OVERHEAD_BYTES
        self._totals.bytes += size
        self._totals.records += sum(batch.header.count for batch in batches)
        self._stalled_at = 0.0
        self._connection.send(pack_encoded(Kind.BATCHES, self.id, encode(batches), payloads))

    def _count(self, size: int, offered: int) -> bool:
        """Whether so much may be sent; if not, it has ended."""
        try:
            grant = self._charge(size, offered)
        except QuotaExceeded as error:
            self.end(error)
            return False
        self._share = grant.share if self._is_sampled else 1.0
        self._slow_down(grant.pause)
        return True

    def _slow_down(self, seconds: float) -> None:
        if seconds > 0 and not self._is_slowed:
            self._is_slowed = True
            asyncio.get_running_loop().call_later(seconds, self._speed_up)

    def _sampled(self, batches: Sequence[FetchedBatch]) -> list[FetchedBatch]:
        """The batches, some of them left out: they keep their offsets, and say how many bytes there were."""
        return [
            batch
            if not batch.header.count or is_kept(self._share, self.stream, batch.header.shard, batch.base)
            else _left_out(batch)
            for batch in batches
        ]

    def _speed_up(self) -> None:
        self._is_slowed = False
        self.push()

    def _is_understood(self, batch: FetchedBatch) -> bool:
        return _version_of(batch) <= self._version and batch.header.shard < self.shards

    def _end_not_understood(self, batch: FetchedBatch) -> None:
        if batch.header.shard >= self.shards:
            name = self._feed.stream.name
            self.end(StaleGeneration(f"stream {name!r} has more shards than before: open the consumer again"))
            return
        name, shard = self._feed.stream.name, batch.header.shard
        offsets = f"offsets {batch.base} to {batch.end - 1}"
        what = (
            f"{offsets} hold rows of a schema, which protocol version {self._version} does not know"
            if batch.header.schema_id
            else f"of {offsets} some records were compacted away or erased, which protocol version {self._version} "
            "cannot say"
        )
        self.end(
            ProtocolError(
                f"stream {name!r} shard {shard}: {what}; this server speaks {VERSION_MIN} to {VERSION}: upgrade the "
                "client"
            )
        )

    def end_deleted(self) -> None:
        self.end(StreamDeleted(f"stream {self._feed.stream.name!r} was deleted"))

    def end(self, error: MainstemError | None = None) -> None:
        """Push no more; with an error, the reader is told."""
        self._ended = True
        if self._reading is not None and self._is_own:
            # It may still be in line. If not, it comes to its end, and nobody looks at what it found.
            self._reading.cancel()
        if error is not None:
            self._connection.send(pack(Kind.ERROR, self.id, wire_error(error)))


def _version_of(batch: FetchedBatch) -> int:
    """The protocol that a client must speak to read this batch."""
    if batch.header.schema_id:
        return VERSION_OF_SCHEMAS
    return VERSION_OF_SPANS if batch.header.span else VERSION_MIN


def _left_out(batch: FetchedBatch) -> FetchedBatch:
    header, span = batch.header, batch.end - batch.base
    # Without records, `raw_len` says how many bytes they had.
    empty = BatchHeader(header.stream, header.shard, 0, 0, 0, 0, len(batch.payload), *(0,) * 8, span=span)
    return FetchedBatch(batch.base, empty, b"")
