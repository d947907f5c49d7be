"""The consumer: a position in every shard of a stream, and what comes after it."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from mainstem.consume.record import Record, RecordBatch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor
from mainstem.core.errors import Closed, DataLoss, InvalidCursor, InvalidSetting, StreamDeleted
from mainstem.core.limits import CREDIT_BYTES_MAX, KIB, MIB
from mainstem.core.names import check_stream_name
from mainstem.core.times import to_us
from mainstem.transport.port import (
    EndReached,
    EpochChanged,
    GetStreamCall,
    OffsetsAtTimeCall,
    Port,
    StreamInfo,
    Subscription,
)

Start = str | datetime | Cursor
PREFETCH_BYTES = 8 * MIB


class Consumer:
    """Reads one stream, in order within each shard. One thread; use it as a context manager, or call `close`.

    `for record in consumer`, `for batch in consumer.batches()` and `consumer.poll(timeout)` may be mixed: all go on
    from the same position, and `cursor` stands after what was yielded last. With `follow=False` reading ends where the
    stream ended when the consumer was opened. DataLoss is raised once per lost range; iterate again to go on after it.

    Where it starts: "earliest" is the oldest record there is; "latest" the end, before the next record to come; a time
    the first record of that time or later in each shard, and the end where there is none yet, like "latest": a time to
    come is not waited for. A cursor is the place it was taken at.
    """

    def __init__(
        self,
        port: Port,
        stream: str,
        start: Start = "latest",
        *,
        follow: bool = True,
        prefetch_bytes: int = PREFETCH_BYTES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_stream_name(stream, reserved=True)
        if type(follow) is not bool:
            raise InvalidSetting(f"follow must be True or False, not {follow!r}")
        if type(prefetch_bytes) is not int or not 4 * KIB <= prefetch_bytes <= CREDIT_BYTES_MAX:
            raise InvalidSetting(f"prefetch_bytes must be between 4 KiB and 256 MiB, not {prefetch_bytes}")
        port.check_usable()
        self._port = port
        self._clock = clock
        self._prefetch_bytes = prefetch_bytes
        self._info = port.call(GetStreamCall(stream)).streams[0]
        self._ends = None if follow else self._info.ends
        self._subscription: Subscription | None = None
        self._closed = False
        # Per shard, the offset after what was yielded last, up to the batch being taken apart.
        self._offsets = list(self._resolve(start, self._info))
        # The batch being taken apart record by record: its iterator knows how many records are left.
        self._current: RecordBatch | None = None
        self._records: Iterator[Record] = iter(())

    # Reading.

    def __iter__(self) -> Iterator[Record]:
        # Chained in C: a record costs no Python code of ours.
        return itertools.chain.from_iterable(self._record_lists())

    def __next__(self) -> Record:
        record = self.poll(None)
        if record is None:
            raise StopIteration
        return record

    def batches(self) -> Iterator[RecordBatch]:
        """Batches as they were written, each of one shard: the fast way."""
        while True:
            batch = self._next_batch(None)
            if batch is None:
                return
            yield batch

    def poll(self, timeout: float | None = 0.0) -> Record | None:
        """The next record, waiting at most `timeout` seconds (None: without end); None if there was none, or at the end
        of a consumer that does not follow."""
        while True:
            for record in self._records:
                return record
            batch = self._next_batch(timeout)
            if batch is None:
                return None
            self._take_apart(batch)

    def poll_batch(self, timeout: float | None = 0.0) -> RecordBatch | None:
        """The next batch, as `poll` does for records."""
        return self._next_batch(timeout)

    def _record_lists(self) -> Iterator[Iterator[Record]]:
        yield self._records
        while True:
            batch = self._next_batch(None)
            if batch is None:
                return
            self._take_apart(batch)
            yield self._records

    def _take_apart(self, batch: RecordBatch) -> None:
        self._records = batch.records()
        self._current = batch

    def _next_batch(self, timeout: float | None) -> RecordBatch | None:
        """The rest of the batch being taken apart, else the next one; the position moves behind it."""
        self._check_open()
        if self._current is not None:
            rest = self._settle()
            if rest is not None:
                return rest
        if self._at_end():
            return None
        try:
            while True:
                try:
                    return self._fetch(timeout)
                except EpochChanged:
                    self._enter_epoch()
        except EndReached:
            return None
        except DataLoss as loss:
            self._offsets[loss.shard] = max(self._offsets[loss.shard], loss.last + 1)
            raise

    def _settle(self) -> RecordBatch | None:
        """Leave the batch being taken apart; what is left of it, if anything."""
        batch, self._current = self._current, None
        assert batch is not None
        left = _left(self._records)
        self._records = iter(())
        self._offsets[batch.shard] = batch.end
        return batch.last(left) if left else None

    def _fetch(self, timeout: float | None) -> RecordBatch | None:
        if self._subscription is None:
            self._subscription = self._port.subscribe(self._info, self._offsets, self._ends, self._prefetch_bytes)
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            fetched = self._subscription.next(timeout)
            if fetched is None:
                return None
            shard = fetched.header.shard
            end = None if self._ends is None else self._ends[shard]
            batch = RecordBatch(self._info.name, fetched, self._offsets[shard], end)
            self._offsets[shard] = max(self._offsets[shard], batch.end)
            if batch.count > 0:
                return batch
            if self._at_end():
                return None
            if deadline is not None:
                timeout = max(0.0, deadline - self._clock.monotonic())

    def _enter_epoch(self) -> None:
        """The log was restored from a backup. Go on if everything up to here, and to the end, was in it; else say so,
        each time until somebody seeks."""
        info = self._look_up()
        places = [self._offsets] if self._ends is None else [self._offsets, self._ends]
        for offsets in places:
            _resolve_cursor(Cursor(info.uuid, self._info.epoch, tuple(offsets)), info)
        self._drop_subscription()
        self._adopt(info)

    def _adopt(self, info: StreamInfo) -> None:
        """Positions are of this epoch now."""
        if info.epoch != self._info.epoch:
            self._info = msgspec.structs.replace(self._info, epoch=info.epoch)
            if self._ends is not None:
                self._ends = tuple(map(min, self._ends, info.ends))

    def _at_end(self) -> bool:
        ends = self._ends
        return ends is not None and all(map(int.__ge__, self._offsets, ends))

    # The position.

    @property
    def stream(self) -> StreamInfo:
        """The stream as it was when the consumer was opened; its epoch is that of the cursor."""
        return self._info

    @property
    def cursor(self) -> Cursor:
        """Where reading would go on: after the record or batch yielded last."""
        offsets = list(self._offsets)
        if self._current is not None:
            left = _left(self._records)
            offsets[self._current.shard] = self._current.offsets()[-left] if left else self._current.end
        return Cursor(self._info.uuid, self._info.epoch, tuple(offsets))

    def seek(self, to: Start) -> None:
        """Go on from somewhere else: "earliest", "latest", a time, or a cursor; they mean what they mean now, not what
        they meant when the consumer was opened. With `follow=False` reading still ends where it would have."""
        self._check_open()
        info = self._look_up()
        self._go_to(self._resolve(to, info))
        self._adopt(info)

    def seek_shard(self, shard: int, offset: int) -> None:
        """Go on from `offset` in one shard; the others stay where they are.

        `offset` may be any from 0 to the shard's end, which is where its next record will be; one after it is refused
        with InvalidCursor. At an offset whose record was trimmed, reading raises DataLoss and goes on with the oldest
        record there is.
        """
        self._check_open()
        is_place = type(shard) is type(offset) is int and 0 <= shard < self._info.shards and 0 <= offset < 1 << 63
        if not is_place:
            raise InvalidSetting(
                f"stream {self._info.name!r} has shards 0 to {self._info.shards - 1}, offsets from 0 on"
            )
        info = self._look_up()
        end = info.ends[shard]
        if offset > end:
            raise InvalidCursor(f"offset {offset} of shard {shard} of {self._info.name!r}, which ends at {end}")
        offsets = list(self.cursor.offsets)
        offsets[shard] = offset
        self._go_to(offsets)
        # After a restore the others may stand where nothing is: then that is said when reading goes on.
        with contextlib.suppress(InvalidCursor):
            _resolve_cursor(Cursor(info.uuid, self._info.epoch, tuple(offsets)), info, sought=shard)
            self._adopt(info)

    def _go_to(self, offsets: Sequence[int]) -> None:
        self._drop_subscription()
        self._current, self._records = None, iter(())
        self._offsets = list(offsets)

    def _look_up(self) -> StreamInfo:
        """The stream as it is now: one that is followed has grown since the consumer was opened."""
        info = self._port.call(GetStreamCall(self._info.name)).streams[0]
        if info.uuid != self._info.uuid:
            raise StreamDeleted(
                f"stream {info.name!r} was deleted, and another has its name now; open a consumer of it"
            )
        return info

    def _resolve(self, start: Start, info: StreamInfo) -> Sequence[int]:
        if isinstance(start, Cursor):
            return _resolve_cursor(start, info)
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise InvalidSetting("start: a time needs a time zone, for example datetime.now(UTC)")
            return self._port.call(OffsetsAtTimeCall(info.name, to_us(start))).offsets
        if start == "earliest":
            return info.starts
        if start == "latest":
            return info.ends
        raise InvalidSetting(f'start must be "earliest", "latest", a datetime or a Cursor, not {start!r}')

    # Ending.

    def close(self) -> None:
        """Read no more. A thread that waits in this consumer is woken with Closed. The cursor stays where it is."""
        self._closed = True
        self._offsets = list(self.cursor.offsets)
        self._current, self._records = None, iter(())
        self._drop_subscription()

    def _drop_subscription(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    def _check_open(self) -> None:
        self._port.check_usable()
        if self._closed:
            raise Closed("this consumer is closed; open another with hub.consumer(...)")

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _resolve_cursor(cursor: Cursor, info: StreamInfo, sought: int | None = None) -> Sequence[int]:
    """The offsets of a cursor, or InvalidCursor with the reason why it is no place in this stream. `sought` is a shard
    whose offset was chosen now, so that it is of today's epoch."""
    if cursor.stream != info.uuid:
        raise InvalidCursor(
            f"the cursor belongs to another stream than {info.name!r} (one that was deleted has another UUID)"
        )
    if len(cursor.offsets) > info.shards:
        raise InvalidCursor(f"the cursor has {len(cursor.offsets)} shards, {info.name!r} has {info.shards}")
    if cursor.epoch != info.epoch:
        _require_kept(cursor, info, sought)
    ahead = [shard for shard, offset in enumerate(cursor.offsets) if offset > info.ends[shard]]
    if ahead:
        raise InvalidCursor(
            f"the cursor stands at offset {cursor.offsets[ahead[0]]} of shard {ahead[0]}, which ends at "
            f"{info.ends[ahead[0]]}"
        )
    return [*cursor.offsets, *info.starts[len(cursor.offsets) :]]


def _require_kept(cursor: Cursor, info: StreamInfo, sought: int | None) -> None:
    """A cursor of an earlier epoch is a place if every backup that the log was restored from since holds what is before
    it."""
    if cursor.epoch > info.epoch:
        raise InvalidCursor(
            f"the cursor is of epoch {cursor.epoch} of the log, which is in epoch {info.epoch}: this is an older copy"
        )
    since = [ends for epoch, ends in info.restored if epoch >= cursor.epoch]
    if len(since) != info.epoch - cursor.epoch:
        raise InvalidCursor(
            f"the cursor is of epoch {cursor.epoch}, and the log was restored {info.epoch - cursor.epoch} times since: "
            'nobody knows any more what it had read; start at "earliest" or "latest"'
        )
    for shard, offset in enumerate(cursor.offsets):
        kept = min(ends[shard] for ends in since)
        if offset > kept and shard != sought:
            raise InvalidCursor(
                f"the cursor stands at offset {offset} of shard {shard} of {info.name!r}, and records {kept} to "
                f"{offset - 1} are not in this log any more: it was restored from a backup that ends before them. What "
                f"is there now at {kept} and after is other. Go on at {kept}, at the earliest or at the latest record"
            )


def _left(records: Iterator[Record]) -> int:
    """How many items a list iterator still has."""
    hint: int = records.__length_hint__()  # type: ignore[attr-defined]
    return hint
