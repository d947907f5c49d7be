"""One order over all shards of a stream, in batches of the size that the reader asks for.

Problem. Shards are read side by side, so two readers see their records in different orders. Who must come to the same
result twice, or in two places, needs one order, and the same batches again.

Idea. The order follows from the moments that the log notes (see `ordering`): they are few, are written once, with the
flush they stand before, and never change. A record's place is how many offsets come before it in that order, which is
also the sum of a reader's offsets when it comes to the record. Batches end where the place is a multiple of their size:
so they are the same wherever a reader began, and a reader with another size changes nothing for anybody.

Records that were written since the last moment have no place yet. A reader that has come to them asks the log to note
one, which it does for all readers at once, at most ten times a second.
"""

import bisect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from typing import Final

import pyarrow as pa

from mainstem.consume.consumer import Consumer
from mainstem.consume.places import Start, no_place
from mainstem.consume.record import Record, RecordBatch
from mainstem.consume.tabular import Tabular
from mainstem.core.batch import TIME_US_MAX
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidSetting, ReadOnly
from mainstem.core.limits import MOMENT_US_MIN, SEQUENCE_ROWS_MAX
from mainstem.core.times import to_us
from mainstem.transport.port import GetStreamCall, MomentCall, Port

# How often a reader that has come to the end of the order asks for more of it.
_SETTLE_SECONDS: Final = 1.0


class OrderedBatch(Tabular):
    """The records from place `first` to before `end` of a stream's single order. Immutable.

    `parts` has them in order, each of one shard. `cursor` stands after them.
    """

    __slots__ = ("cursor", "end", "first", "parts")

    def __init__(self, first: int, end: int, parts: tuple[RecordBatch, ...], cursor: Cursor) -> None:
        self.first = first
        self.end = end
        self.parts = parts
        self.cursor = cursor

    def __len__(self) -> int:
        return sum(part.count for part in self.parts)

    def __repr__(self) -> str:
        return f"<OrderedBatch of {len(self)} records, from {self.first} to {self.end - 1}>"

    def records(self) -> Iterator[Record]:
        for part in self.parts:
            yield from part.records()

    def to_arrow(self, *, metadata: bool = False) -> pa.Table:
        """The columns, those of the newest schema that its records have: in older ones what is new is null."""
        parts = [pa.Table.from_batches([part.to_arrow(metadata=metadata)]) for part in self.parts]
        return pa.concat_tables(parts, promote_options="permissive")


class OrderedBatches:
    """Reads a stream in its single order: `for batch in hub.sequence("orders")`. One thread; close it, or use it as a
    context manager.

    Every batch but the last has `batch` places of the order, and as many records, unless some were erased or compacted
    away. With `follow=False` it ends with what was written when it was opened, and that batch may be shorter; a reader
    that follows waits until a batch is full.

    Where it starts: "earliest", "latest", a time (with the last moment that the log noted up to it, which may be a
    minute earlier), or a cursor of a batch. Records that retention has taken meanwhile are told as DataLoss, once for
    each shard; iterate again to go on after them, with the places of the others as they were.

    A hub that only reads a folder sees the order as far as its writer has noted it: within a minute of what is written,
    as long as something is. With `follow=False` it comes to the end of that, and then raises ReadOnly, once, if records
    without a place are left.
    """

    def __init__(
        self,
        port: Port,
        stream: str,
        *,
        batch: int,
        start: Start,
        follow: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if type(batch) is not int or not 1 <= batch <= SEQUENCE_ROWS_MAX:
            raise InvalidSetting(f"batch must be between 1 and {SEQUENCE_ROWS_MAX} records, not {batch!r}")
        if type(follow) is not bool:
            raise InvalidSetting(f"follow must be True or False, not {follow!r}")
        self._port = port
        self._clock = clock
        self._rows = batch
        self._can_settle = True
        # When to ask again for more of the order.
        self._settle_at = clock.monotonic()
        self._consumer = Consumer(port, stream, "earliest", ordering_window_us=0, clock=clock)
        info = self._consumer.stream
        # Up to here, for each shard, records are known to be gone: they are not told again. Who has no cursor never
        # expected them.
        self._told = [0] * info.shards if isinstance(start, Cursor) else list(info.starts)
        self._losses: deque[DataLoss] = deque()
        # Where a reader that does not follow stops, and how many records are left there without a place.
        self._end: int | None = None
        self._unplaced = 0
        if not follow:
            settled = self._settled(info.ends)
            self._end = sum(settled)
            places = zip_longest(info.ends, info.starts, settled, fillvalue=0)
            self._unplaced = sum(max(end - max(start, at), 0) for end, start, at in places)
        self._consumer.seek(self._resolve(start))
        # After what was yielded last.
        self._cursor = self._consumer.cursor
        # The place where the next batch begins; every place before it was yielded, or has no record.
        self._place = sum(self._cursor.offsets)
        # What was fetched and not yielded, each with the cursor after it.
        self._fetched: deque[tuple[RecordBatch, Cursor]] = deque()

    @property
    def cursor(self) -> Cursor:
        """After the batch that was yielded last."""
        return self._cursor

    def __iter__(self) -> Iterator[OrderedBatch]:
        while True:
            batch = self.poll(None)
            if batch is None:
                return
            yield batch

    def poll(self, timeout: float | None = 0.0) -> OrderedBatch | None:
        """The next batch, waiting at most `timeout` seconds (None: without end); None if it is not full by then, or at
        the end of one that does not follow."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while not self._is_at_end:
            stop = self._place + self._rows - self._place % self._rows
            if self._end is not None:
                stop = min(stop, self._end)
            if not self._fetch(stop, deadline):
                return None
            batch = self._take(stop)
            if batch is not None:
                return batch
        self._tell_unplaced()
        return None

    def _tell_unplaced(self) -> None:
        """What a reader that does not follow would miss without a word."""
        unplaced, self._unplaced = self._unplaced, 0
        if unplaced:
            raise ReadOnly(
                f"the newest {unplaced} records of {self._consumer.stream.name!r} have no place in its order yet, and "
                "a hub that only reads cannot give them one; a hub that writes does, when it reads the stream in order"
            )

    @property
    def _is_at_end(self) -> bool:
        """Whether one that does not follow has come to its end."""
        return self._end is not None and self._place >= self._end

    def _call_when_ready(self, call: Callable[[], None]) -> None:
        """Call when there may be more to fetch; see Subscription."""
        self._consumer.call_when_ready(call)

    def _pause(self) -> float:
        """After how many seconds to ask for more of the order."""
        return max(0.0, self._settle_at - self._clock.monotonic())

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> "OrderedBatches":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # The next batch.

    def _fetch(self, stop: int, deadline: float | None) -> bool:
        """Get everything before the place `stop`; whether it is here now."""
        while _place(self._consumer.cursor) < stop:
            if self._losses:
                raise self._losses.popleft()
            until = self._settle_at if deadline is None else min(self._settle_at, deadline)
            try:
                found = self._consumer.poll_batch(max(0.0, until - self._clock.monotonic()))
            except DataLoss as loss:
                self._note(loss)
                continue
            now = self._clock.monotonic()
            if found is not None:
                self._fetched.append((found, self._consumer.cursor))
            elif now >= self._settle_at:
                self._settle_at = now + _SETTLE_SECONDS
                self._settle()
            elif deadline is not None and now >= deadline:
                return False
        return True

    def _take(self, stop: int) -> OrderedBatch | None:
        """The records before the place `stop`; None if there are none: then the next batch begins with the next."""
        parts: list[RecordBatch] = []
        first = 0
        while self._fetched:
            part, after = self._fetched[0]
            begin, end = _place(after) - (part.end - part.offset), _place(after)
            if begin >= stop:
                break
            first = first if parts else begin
            self._fetched.popleft()
            if end > stop:
                cut = part.end - (end - stop)
                index = bisect.bisect_left(part.offsets(), cut)
                if index < part.count:
                    self._fetched.appendleft((part.slice(index, part.count), after))
                part, after = part.slice(0, index), _at(after, part.shard, cut)
            parts.append(part)
            self._cursor = after
        self._place = stop if self._fetched else max(stop, _place(self._consumer.cursor))
        return OrderedBatch(first, stop, tuple(parts), self._cursor) if parts else None

    def _note(self, loss: DataLoss) -> None:
        """What is to be told of a loss that was met: if records were trimmed, what is gone of all shards, because the
        reader would meet it piece by piece."""
        self._told += [0] * (loss.shard + 1 - len(self._told))
        if loss.last < self._told[loss.shard]:
            return
        if loss.reason != "trimmed":
            self._losses.append(loss)
            return
        info = self._port.call(GetStreamCall(loss.stream)).streams[0]
        self._told += [0] * (info.shards - len(self._told))
        offsets = {**dict(enumerate(self._consumer.cursor.offsets)), loss.shard: loss.first}
        for shard, start in enumerate(info.starts):
            first = max(offsets.get(shard, 0), self._told[shard])
            if first < start:
                self._losses.append(DataLoss(stream=info.name, shard=shard, first=first, last=start - 1))
                self._told[shard] = start

    # Where it begins, and how far the order goes.

    def _resolve(self, start: Start) -> Cursor:
        info = self._consumer.stream
        if isinstance(start, Cursor):
            return start
        if start == "earliest":
            offsets: Sequence[int] = ()
        elif start == "latest":
            offsets = self._settled(info.ends)
        elif isinstance(start, datetime) and start.tzinfo is not None:
            offsets = self._port.call(MomentCall(info.name, to_us(start))).offsets
        else:
            raise no_place(start, "start", "a datetime with a time zone or a Cursor")
        return Cursor(info.uuid, info.epoch, (*offsets, *(0,) * (info.shards - len(offsets))))

    def _settled(self, ends: Sequence[int]) -> Sequence[int]:
        """A moment that has everything before these offsets behind it; where none can be noted, the last."""
        while True:
            found = self._settle()
            if not self._can_settle or all(at >= end for at, end in zip_longest(found, ends, fillvalue=0)):
                return found
            self._clock.sleep(MOMENT_US_MIN / 1_000_000)

    def _settle(self) -> Sequence[int]:
        """Give a place to what was written since the last moment; where that is."""
        name = self._consumer.stream.name
        if self._can_settle:
            try:
                return self._port.call(MomentCall(name, TIME_US_MAX, settle=True)).offsets
            except ReadOnly:
                self._can_settle = False
        return self._port.call(MomentCall(name, TIME_US_MAX)).offsets


def _place(cursor: Cursor) -> int:
    return sum(cursor.offsets)


def _at(cursor: Cursor, shard: int, offset: int) -> Cursor:
    """The same, but for where it stands in one shard."""
    offsets = list(cursor.offsets)
    offsets[shard] = offset
    return replace(cursor, offsets=tuple(offsets))
