"""The consumer: a position in every shard of a stream, and what comes after it."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Literal

import msgspec
import pyarrow as pa

from mainstem.consume.places import Start, offsets_at, offsets_of
from mainstem.consume.reading import Reading
from mainstem.consume.record import RecordBatch
from mainstem.consume.selection import halves
from mainstem.consume.view import View
from mainstem.core.batch import FetchedBatch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor
from mainstem.core.errors import (
    Closed,
    DataLoss,
    IncompatibleSchema,
    InvalidCursor,
    InvalidPredicate,
    InvalidSetting,
    StreamDeleted,
    UndecodedRecords,
)
from mainstem.core.events import Event
from mainstem.core.kinds import render_duration
from mainstem.core.limits import CREDIT_BYTES_MAX, KIB, MIB, WINDOW_US_MAX, WINDOW_US_MIN
from mainstem.core.names import check_stream_name
from mainstem.core.schema import Schema
from mainstem.core.times import from_us
from mainstem.registry.rows import BadRow
from mainstem.transport.port import (
    EndReached,
    EpochChanged,
    GetStreamCall,
    Port,
    Query,
    ReadCounts,
    StreamInfo,
    Subscription,
)

logger = logging.getLogger("mainstem.consume")

OnBad = Literal["raise", "skip", "keep"]
PREFETCH_BYTES = 8 * MIB
# Ranges that a quota left out, of which a consumer remembers so many.
_LEFT_OUT_MAX = 10_000
# Offsets of a consumer that is shown.
_SHOWN_SHARDS = 8


class Consumer(Reading):
    """Reads one stream, in order within each shard. One thread; use it as a context manager, or call `close`.

    `for record in consumer`, `for batch in consumer.batches()` and `consumer.poll(timeout)` may be mixed: all go on
    from the same position, and `cursor` stands after what was yielded last. With `follow=False` reading ends where the
    stream ended when the consumer was opened. DataLoss is raised once per lost range; iterate again to go on after it.

    Where it starts: "earliest" is the oldest record there is; "latest" the end, before the next record to come; a time
    the first record of that time or later in each shard, and the end where there is none yet, like "latest": a time to
    come is not waited for. A cursor is the place it was taken at.

    `where` is a SQL expression over the stream's columns, and over _shard, _offset, _timestamp, _key and _headers; only
    records for which it is true come, found next to the data. `columns` names those that are wanted: a record's key and
    headers then come only if _key and _headers are among them. Rows are of the newest schema that was met: where the
    stream gets another, `where` and `columns` are understood anew, and InvalidPredicate or InvalidSetting says so, each
    time, if they do not fit it.

    Records of a stream with a schema that are no rows of it raise UndecodedRecords, once, like DataLoss. With
    `on_bad="skip"` they are passed over and counted (`undecoded`); with "keep" they come without a value, their bytes
    in `record.undecoded`. The same holds under a `where`, unless what is beside their rows says that they cannot match.
    Rows of an older schema of which a wanted column cannot be read in the newest one raise IncompatibleSchema, with
    their offsets and the column; the next call goes on after them, and "skip" passes over them and counts them, too.
    Under a `where` that is so for those that match, and for all where it asks for such a column. `why_undecoded` is the
    reason.

    With `ordering_window_us` no record comes after one that was stored later by more than that, whatever their shards;
    `watermark` then says how far the time has come. With 0 there is a single order, the same for every reader.

    With `ends` reading ends there, shard by shard, instead of where the stream ended.

    It is `whole` if nothing of it may be missing: a quota on reading that keeps a share slows it down instead.
    """

    def __init__(
        self,
        port: Port,
        stream: str,
        start: Start = "latest",
        *,
        follow: bool = True,
        prefetch_bytes: int = PREFETCH_BYTES,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        on_bad: OnBad = "raise",
        ordering_window_us: int | None = None,
        ends: Sequence[int] | None = None,
        whole: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_stream_name(stream, reserved=True)
        if type(follow) is not bool:
            raise InvalidSetting(f"follow must be True or False, not {follow!r}")
        if type(prefetch_bytes) is not int or not 4 * KIB <= prefetch_bytes <= CREDIT_BYTES_MAX:
            raise InvalidSetting(f"prefetch_bytes must be between 4 KiB and 256 MiB, not {prefetch_bytes}")
        if on_bad not in ("raise", "skip", "keep"):
            raise InvalidSetting(f"on_bad must be 'raise', 'skip' or 'keep', not {on_bad!r}")
        if where is not None and not isinstance(where, str):
            raise InvalidPredicate(f"where must be text, not {where!r}")
        if where is not None and not where.strip():
            raise InvalidPredicate("where is empty; leave it out, or give None, to get every record")
        if ordering_window_us and not WINDOW_US_MIN <= ordering_window_us <= WINDOW_US_MAX:
            shown = render_duration(ordering_window_us / 1_000_000)
            raise InvalidSetting(f"ordering_window must be between 1 minute and 10 years, not {shown!r}")
        super().__init__()
        port.check_usable()
        self._port = port
        self._window_us = ordering_window_us
        self._watermark_us = 0
        self._where = (where or "").strip()
        self._columns = None if columns is None else _names(columns)
        self._is_plain = not self._where and columns is None
        self._is_whole = whole
        self._on_bad = on_bad
        self._clock = clock
        self._prefetch_bytes = prefetch_bytes
        self._info = port.call(GetStreamCall(stream)).streams[0]
        self._view = self._look_through(self._info)
        if self._where:
            _check_predicate(self._where, self._view)
        # Schemas that are known to be older than the view's.
        self._older: set[int] = set()
        self._counted = ReadCounts()
        self._why_undecoded: UndecodedRecords | IncompatibleSchema | None = None
        self._ends = tuple(ends) if ends is not None else None if follow else self._info.ends
        self._subscription: Subscription | None = None
        self._closed = False
        # Per shard, the offset after what was yielded last, up to the batch being taken apart.
        self._offsets = list(offsets_at(port, start, self._info))
        # (shard, first, end) of what a quota left out, the newest last.
        self._left_out: deque[tuple[int, int, int]] = deque(maxlen=_LEFT_OUT_MAX)
        # What comes next: a batch of which nothing was made yet, or pieces of one whose rows are too much at once.
        self._pieces: deque[FetchedBatch] = deque()
        # Parts of a batch of which some records are no rows, and what is to be said of those between them.
        self._parts: deque[RecordBatch | UndecodedRecords] = deque()

    def _look_through(self, info: StreamInfo) -> View:
        """The view of the stream's rows as `info` says they are."""
        schema = Schema.parse(info.schema_bytes) if info.schema_bytes else None
        return View(schema, info.schema_id, columns=self._columns, key=info.key, schema_of=self._port.schema)

    @property
    def columns(self) -> pa.Schema:
        """The columns of what comes: those of `batch.to_arrow()`."""
        return self._view.given

    @property
    def opened(self) -> int:
        """How many batches were looked into for this consumer, here or next to the data."""
        return self._counts.opened

    @property
    def skipped(self) -> int:
        """How many were not, because what is known of them says that no record of theirs can match."""
        return self._counts.skipped

    @property
    def undecoded(self) -> int:
        """How many records were no rows of the stream's schema, or rows of an older one that cannot be read in it."""
        return self._counts.undecoded

    @property
    def left_out(self) -> list[tuple[int, int, int]]:
        """What a quota on reading has left out of what was passed: shard, first offset and the one after the last. Of
        very many ranges, the newest."""
        return list(self._left_out)

    @property
    def why_undecoded(self) -> UndecodedRecords | IncompatibleSchema | None:
        """The first of them, and why: what was raised, or would have been without `on_bad`. None if there are none."""
        return self._why_undecoded

    @property
    def _counts(self) -> ReadCounts:
        counts = msgspec.structs.replace(self._counted)
        if self._subscription is not None:
            counts.add(*msgspec.structs.astuple(self._subscription.counts))
        return counts

    @property
    def _query(self) -> Query:
        return Query(self._where, self._columns, self._view.schema_id, self._is_whole)

    # Reading.

    def _take(self, timeout: float | None) -> RecordBatch | None:
        """The rest of the batch being taken apart, else the next one; the position moves behind it. None if there was
        none in time, EndReached if there will be none.

        If the port does not wait, this may be called again after WouldWait, and goes on where it was."""
        self._check_open()
        if self._current is not None:
            rest = self._settle()
            if rest is not None:
                return rest
        if self._parts:
            return self._next_part()
        if self._at_end():
            raise EndReached
        try:
            while True:
                try:
                    return self._fetch(timeout)
                except EpochChanged:
                    self._enter_epoch()
        except DataLoss as loss:
            self._know(loss.shard)
            self._offsets[loss.shard] = max(self._offsets[loss.shard], loss.last + 1)
            raise
        except BaseException as error:
            if not isinstance(error, Exception):
                # Ctrl-C, anywhere on the way of a batch from where it was found to here. Whoever goes on reading gets
                # it again: positions are behind what was yielded, and no further.
                self._drop_subscription()
            raise

    def take_nowait(self) -> RecordBatch | None:
        """The next batch, if there is one now: for whoever reads several streams in turn."""
        try:
            return self._take(0.0)
        except EndReached:
            return None

    def call_when_ready(self, call: Callable[[], None]) -> None:
        """Call when there may be something to take, from any thread; see Subscription."""
        if self._subscription is not None:
            self._subscription.call_when_ready(call)

    def _settle(self) -> RecordBatch | None:
        """Leave the batch being taken apart; what is left of it, if anything."""
        assert self._current is not None
        self._offsets[self._current.shard] = self._current.end
        return self._leave_current()

    def _fetch(self, timeout: float | None) -> RecordBatch | None:
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        pieces = self._pieces
        while True:
            if self._subscription is None:
                self._check_open()
                self._subscription = self._port.subscribe(
                    self._info, self._offsets, self._ends, self._prefetch_bytes, self._query, self._window_us
                )
            left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            fetched = pieces[0] if pieces else self._subscription.next(left)
            if fetched is None:
                return None
            if not pieces:
                # It stays until a batch is made of it: if the log cannot be asked what it is, it comes again.
                pieces.append(fetched)
            shard = fetched.header.shard
            self._know(shard)
            if self._is_early(fetched):
                continue
            end = None if self._ends is None else self._ends[shard]
            if fetched.header.schema_id != self._view.schema_id and self._goes_over(fetched.header.schema_id):
                continue
            if not self._view.fits_at_once(fetched):
                pieces.popleft()
                pieces.extendleft(reversed(halves(fetched)))
                continue
            batch = RecordBatch(self._info.name, fetched, self._offsets[shard], end, self._view)
            is_separate = self._separate(batch)
            pieces.popleft()
            self._count(fetched, batch)
            if is_separate:
                batch = self._next_part()
            self._offsets[shard] = max(self._offsets[shard], batch.end)
            if batch.count > 0:
                return batch
            if self._at_end():
                raise EndReached

    def _count(self, fetched: FetchedBatch, batch: RecordBatch) -> None:
        if batch.count:
            self._counted.opened += self._is_plain
        elif fetched.header.raw_len and not fetched.header.count:
            self._note_left_out(fetched)

    def _note_left_out(self, fetched: FetchedBatch) -> None:
        shard, first = fetched.header.shard, max(fetched.base, self._offsets[fetched.header.shard])
        if not self._left_out:
            logger.warning(Event("over the quota: some of what is read is left out", stream=self._info.name))
        elif (last := self._left_out[-1])[0] == shard and last[2] == first:
            first = self._left_out.pop()[1]
        self._left_out.append((shard, first, fetched.end))

    def _is_early(self, fetched: FetchedBatch) -> bool:
        """Whether a batch must not be read yet; then it was let go, and comes again."""
        return False

    def _know(self, shard: int) -> None:
        """The stream may have got more shards since it was looked up: they begin at 0."""
        self._offsets += [0] * (shard + 1 - len(self._offsets))

    def _goes_over(self, schema_id: int) -> bool:
        """A batch of another schema than the newest that is known: perhaps there is a newer one by now. Whether the
        batch is to be fetched again, as rows of that."""
        if not schema_id or (self._is_plain and schema_id in self._older):
            return False
        info = self._look_up()
        self._older |= {self._view.schema_id, schema_id}
        if info.schema_id == self._view.schema_id:
            return False
        if self._is_plain:
            self._view = self._look_through(info)
            return False
        # Also if that cannot be: then the batch comes again, and the error with it.
        self._drop_subscription()
        self._ask_anew(info)
        return True

    def _ask_anew(self, info: StreamInfo) -> None:
        """The same predicate and columns, of the rows as `info` says they are."""
        try:
            view = self._look_through(info)
            if self._where:
                _check_predicate(self._where, view)
        except (InvalidPredicate, InvalidSetting) as error:
            raise type(error)(
                f"stream {info.name!r} has version {info.schema_version} of its schema now, which this consumer does "
                f"not fit: {error}"
            ) from None
        self._view = view

    def _separate(self, batch: RecordBatch) -> bool:
        """Whether some records of a batch are no rows and must not come out like others: then its parts wait, the last
        of which covers all to its end. IncompatibleSchema says that none can be read; the reader then stands after
        them."""
        try:
            bad = batch.undecoded()
        except IncompatibleSchema as error:
            self._why_undecoded = self._why_undecoded or error
            self._offsets[batch.shard] = max(self._offsets[batch.shard], batch.end)
            if self._on_bad != "skip":
                self._pieces.popleft()
                raise
            self._counted.undecoded += batch.count
            self._parts = deque([batch.slice(batch.count, batch.count)])
            return True
        if self._on_bad == "keep" or not bad:
            return False
        parts: deque[RecordBatch | UndecodedRecords] = deque()
        at = 0
        for run in _runs([row.index for row in bad], batch.offsets()):
            if run.start > at:
                parts.append(batch.slice(at, run.start))
            at = run.stop
            why = self._undecoded(batch, run, next(row for row in bad if row.index == run.start))
            self._why_undecoded = self._why_undecoded or why
            if self._on_bad == "raise":
                parts.append(why)
        self._counted.undecoded += len(bad)
        if at < batch.count or not parts:
            parts.append(batch.slice(at, batch.count))
        if isinstance(parts[-1], RecordBatch):
            parts[-1].end = batch.end
        self._parts = parts
        return True

    def _undecoded(self, batch: RecordBatch, run: range, why: BadRow) -> UndecodedRecords:
        offsets = batch.offsets()
        return UndecodedRecords(
            stream=self._info.name,
            shard=batch.shard,
            first=offsets[run.start],
            last=offsets[run.stop - 1],
            path=why.path,
            reason=why.reason,
        )

    def _next_part(self) -> RecordBatch:
        part = self._parts.popleft()
        if isinstance(part, UndecodedRecords):
            self._offsets[part.shard] = max(self._offsets[part.shard], part.last + 1)
            raise part
        self._offsets[part.shard] = max(self._offsets[part.shard], part.end)
        return part

    def _enter_epoch(self) -> None:
        """The log was restored from a backup. Go on if everything up to here, and to the end, was in it; else say so,
        each time until somebody seeks."""
        info = self._look_up()
        places = [self._offsets] if self._ends is None else [self._offsets, self._ends]
        for offsets in places:
            offsets_of(Cursor(info.uuid, self._info.epoch, tuple(offsets)), info)
        # A schema that was set after the backup is not known any more.
        self._ask_anew(info)
        self._drop_subscription()
        self._adopt(info)

    def _adopt(self, info: StreamInfo) -> None:
        """Positions are of this epoch now."""
        if info.epoch != self._info.epoch:
            self._info = msgspec.structs.replace(self._info, epoch=info.epoch)
            if self._ends is not None:
                self._ends = tuple(map(min, self._ends, info.ends))

    @property
    def is_at_end(self) -> bool:
        """Whether it does not follow, and has come to where it ends."""
        return self._at_end()

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
            offsets[self._current.shard] = self._current_offset()
        return Cursor(self._info.uuid, self._info.epoch, tuple(offsets))

    @property
    def watermark(self) -> datetime | None:
        """Of a consumer with an ordering window: every record that was stored before this time has been yielded, or was
        before the place where reading began. It comes forward also while nothing is written. None until it is known.

        The time is the log's, of when it took a record, not the record's own.
        """
        if self._is_between() and not self._parts and not self._pieces and self._subscription is not None:
            self._watermark_us = max(self._watermark_us, self._subscription.watermark())
        return from_us(self._watermark_us) if self._watermark_us else None

    def seek(self, to: Start) -> None:
        """Go on from somewhere else: "earliest", "latest", a time, or a cursor; they mean what they mean now, not what
        they meant when the consumer was opened. With `follow=False` reading still ends where it would have."""
        self._check_open()
        info = self._look_up()
        self._go_to(offsets_at(self._port, to, info, "to"))
        self._adopt(info)

    def seek_shard(self, shard: int, offset: int) -> None:
        """Go on from `offset` in one shard; the others stay where they are.

        `offset` may be any from 0 to the shard's end, which is where its next record will be; one after it is refused
        with InvalidCursor. At an offset whose record was trimmed, reading raises DataLoss and goes on with the oldest
        record there is.
        """
        self._check_open()
        info = self._look_up()
        is_place = type(shard) is type(offset) is int and 0 <= shard < info.shards and 0 <= offset < 1 << 63
        if not is_place:
            raise InvalidSetting(f"stream {self._info.name!r} has shards 0 to {info.shards - 1}, offsets from 0 on")
        end = info.ends[shard]
        if offset > end:
            raise InvalidCursor(f"offset {offset} of shard {shard} of {self._info.name!r}, which ends at {end}")
        self._know(shard)
        offsets = list(self.cursor.offsets)
        offsets[shard] = offset
        self._go_to(offsets)
        # After a restore the others may stand where nothing is: then that is said when reading goes on.
        with contextlib.suppress(InvalidCursor):
            offsets_of(Cursor(info.uuid, self._info.epoch, tuple(offsets)), info, sought=shard)
            self._adopt(info)

    def _go_to(self, offsets: Sequence[int]) -> None:
        self._drop_subscription()
        self._drop_current()
        self._parts.clear()
        self._offsets = list(offsets)
        self._watermark_us = 0

    def _look_up(self) -> StreamInfo:
        """The stream as it is now: one that is followed has grown since the consumer was opened."""
        info = self._port.call(GetStreamCall(self._info.name)).streams[0]
        if info.uuid != self._info.uuid:
            raise StreamDeleted(
                f"stream {info.name!r} was deleted, and another has its name now; open a consumer of it"
            )
        return info

    # Ending.

    def close(self) -> None:
        """Read no more. A thread that waits in this consumer is woken with Closed. The cursor stays where it is."""
        self._closed = True
        self._offsets = list(self.cursor.offsets)
        self._current, self._records = None, iter(())
        self._parts.clear()
        self._drop_subscription()

    def _drop_subscription(self) -> None:
        self._pieces.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self._counted.add(*msgspec.structs.astuple(subscription.counts))
            subscription.close()

    def _check_open(self) -> None:
        self._port.check_usable()
        if self._closed:
            raise Closed("this consumer is closed; open another with hub.consumer(...)")

    def __repr__(self) -> str:
        where = f" where {self._where}" if self._where else ""
        state = ", closed" if self._closed else ""
        offsets = ", ".join(map(str, self.cursor.offsets[:_SHOWN_SHARDS]))
        more = ", ..." if len(self._offsets) > _SHOWN_SHARDS else ""
        return f"<Consumer {self._info.name}{where}: at {offsets}{more}{state}>"

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _check_predicate(where: str, view: View) -> None:
    # Who asks for everything does without: it takes a moment to load.
    from mainstem.core.predicate import Predicate

    Predicate.parse(where).bind(view.all)


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidSetting(f"columns must be a list of names, not {columns!r}")
    return tuple(columns)


def _runs(indexes: Sequence[int], offsets: Sequence[int]) -> Iterator[range]:
    """Records by their places in a batch, ascending, as ranges whose offsets follow each other."""
    first = last = indexes[0]
    for index in indexes[1:]:
        if index != last + 1 or offsets[index] != offsets[last] + 1:
            yield range(first, last + 1)
            first = index
        last = index
    yield range(first, last + 1)
