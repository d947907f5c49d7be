"""`GET /streams/{name}/records`: rows out, to the end of the stream as it is now, or to a limit.

Where the answer ends is said before it begins: `Mainstem-Cursor` is the place after its last row, and `Link` is where
to go on. Without a limit that is the end of the stream as it was when the request came, and the answer may be of any
length: it is made a piece at a time, when its reader has taken the one before. With a limit it is a page, made as a
whole; it may have fewer rows than the limit when they are large, and always says where to go on.

What goes wrong before the first row is a problem; what goes wrong later cuts the answer off, so that nobody takes it
for whole.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from mainstem.consume.consumer import Consumer
from mainstem.consume.places import Start
from mainstem.consume.record import RecordBatch
from mainstem.consume.view import with_metadata
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidPredicate, InvalidSetting, MainstemError, UnknownGroup
from mainstem.core.kinds import parse_duration
from mainstem.core.limits import HTTP_ANSWERS_BYTES_MAX, HTTP_PAGE_BYTES_MAX, HTTP_PIECE_BYTES, HTTP_PIECE_BYTES_MIN
from mainstem.core.names import check_group_name
from mainstem.core.sampling import is_kept
from mainstem.core.times import from_us
from mainstem.hub.groups import Groups
from mainstem.server.door import Visitor
from mainstem.server.http.pauses import pause
from mainstem.server.http.port import ReaderPort
from mainstem.server.http.problems import HttpRefusal, understood
from mainstem.server.http.renderings import RENDERINGS, Rendering, media_type_of
from mainstem.server.http.routes import START
from mainstem.server.http.sending import ABORT, Connection, CutOff, Sender, Unfinished
from mainstem.transport.port import GetStreamCall

if TYPE_CHECKING:
    from mainstem.server.line import Line
    from mainstem.server.server import Server

_LIMIT_MAX: Final = 1 << 31
_START: Final = re.compile(START)
# So many rows are written before it is known how large they are.
_ROWS_FIRST: Final = 1_000
_ROW_BYTES: Final = 100
_FIND_LIMIT: Final = 1_000
CURSOR_HEADER: Final = "mainstem-cursor"
END_HEADER: Final = "mainstem-end"
GENERATION_HEADER: Final = "mainstem-group-generation"
# That of a group which its first commit makes.
GENERATION_FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader asks for."""

    start: Start
    where: str | None
    columns: list[str] | None
    limit: int | None
    on_bad: str
    has_metadata: bool
    # It begins where this group stands, if that has read the stream.
    group: str | None = None

    @classmethod
    def of(cls, request: Request, now_us: int, *, start: str = "earliest") -> "Wanted":
        given = request.query_params
        on_bad = given.get("on_bad", "raise")
        if on_bad not in ("raise", "skip"):
            raise InvalidSetting(f"on_bad is raise or skip, not {on_bad[:40]!r}")
        columns = given.get("columns")
        return cls(
            start_of(given.get("from", start), now_us),
            given.get("where"),
            None if columns is None else [name.strip() for name in columns.split(",")],
            _limit_of(given.get("limit")),
            on_bad,
            _flag_of("metadata", given.get("metadata")),
            None if given.get("group") is None else check_group_name(given["group"]),
        )


def start_of(text: str, now_us: int, parameter: str = "from") -> str | datetime | Cursor:
    """Where to begin: earliest, latest, a cursor, a time, or how long ago."""
    if text in ("earliest", "latest"):
        return text
    if text.startswith("ms1:"):
        return Cursor.parse(text)
    try:
        return from_us(now_us) - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        # A plus that was not escaped comes as a blank.
        found = datetime.fromisoformat(text.replace(" ", "+") if text.count(" ") == 1 and "T" in text else text)
    except ValueError:
        error = InvalidSetting(
            f"{parameter} is earliest, latest, a cursor, a time (2026-01-31T12:00:00Z) or how long ago (15m), not "
            f"{text[:60]!r}"
        )
        # A day that no calendar has, for one.
        raise HttpRefusal(422, error) if _START.fullmatch(text) else error from None
    if found.tzinfo is None:
        raise InvalidSetting(f"{parameter}: the time needs a zone; {found.isoformat()}Z is UTC")
    return found


def _limit_of(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 12 and 0 <= int(text) <= _LIMIT_MAX):
        raise InvalidSetting(f"limit is a whole number from 0 to {_LIMIT_MAX}, not {text[:40]!r}")
    return int(text)


def _flag_of(name: str, text: str | None) -> bool:
    if text not in (None, "true", "false", "1", "0", ""):
        raise InvalidSetting(f"{name} is true or false, not {str(text)[:40]!r}")
    return text in ("true", "1", "")


class AnswerBudget:
    """What answers under way hold between two pieces of them. Any thread."""

    def __init__(self, bytes_max: int = HTTP_ANSWERS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self.used = 0

    @property
    def is_used_up(self) -> bool:
        return self.used >= self._bytes_max

    def change(self, before: int, after: int, *, must: bool = False) -> bool:
        """Whether somebody who had `before` bytes has `after` now; it has what it must have."""
        with self._lock:
            if after > before and not must and self.used + after - before > self._bytes_max:
                return False
            self.used += after - before
            return True


class Reading:
    """One reader's way through a stream. One thread at a time, which is never the loop's; made there, too."""

    def __init__(
        self, server: "Server", visitor: Visitor, budget: AnswerBudget, name: str, wanted: Wanted, *, follow: bool
    ) -> None:
        self.visitor = visitor
        self.port = ReaderPort(server, visitor)
        self._stop_begun = server.stop_begun
        self._budget = budget
        # Of the budget.
        self._held = 0
        # What there is of a page that is being made.
        self.page_bytes = 0
        self.wanted = wanted
        self.left = wanted.limit
        self.count = 0
        # Of who is over a quota that keeps a share, whole batches are left out where it can be told: how many records
        # since that was told, and about how many bytes since they were charged.
        self._can_leave_out = follow or wanted.limit is not None
        self.left_out = 0
        self.share = 1.0
        self._left_out_bytes = 0.0
        # The batch of which rows are given out, how many of them were, and what one takes as it is given, about.
        self._batch: RecordBatch | None = None
        self._given = 0
        self._row_bytes = 0.0
        # Of the group where it began, so that a commit of what is read here undoes no reset.
        self.generation: int | None = None
        start = wanted.start
        if wanted.group is not None:
            standing, self.generation = _standing(self.port, name, wanted.group)
            start = standing or start
        self.consumer = Consumer(
            self.port,
            name,
            start,
            follow=follow,
            where=wanted.where,
            columns=wanted.columns,
            on_bad="skip" if wanted.on_bad == "skip" else "raise",
            clock=server.clock,
        )

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more for it. Never of one that follows."""
        return self.left == 0 or self.is_at_end

    @property
    def is_at_end(self) -> bool:
        offsets, ends = self.cursor.offsets, self.consumer.stream.ends
        return all(offset >= end for offset, end in zip(offsets, ends, strict=False))

    @property
    def cursor(self) -> Cursor:
        """After the last row that was given out."""
        cursor, batch = self.consumer.cursor, self._batch
        if batch is None or self._given == batch.count:
            return cursor
        offsets = list(cursor.offsets)
        offsets[batch.shard] = batch.offsets()[self._given]
        return Cursor(cursor.stream, cursor.epoch, tuple(offsets))

    @property
    def group_headers(self) -> dict[str, str]:
        """What a commit of what is read here says beside the cursor, if it began where a group stands."""
        return {} if self.generation is None else {GENERATION_HEADER: str(self.generation)}

    @property
    def end_cursor(self) -> Cursor:
        """Where it ends if it has no limit."""
        info = self.consumer.stream
        return Cursor(info.uuid, info.epoch, tuple(map(max, info.ends, self.consumer.cursor.offsets)))

    def next(self) -> RecordBatch | None:
        """The next rows, about a piece of them, and not more than the limit; None if there are none now, or the turn is
        over."""
        while self._batch is None or self._given == self._batch.count:
            self._batch, self._given = self.consumer.poll_batch(0.0), 0
            if self._batch is None:
                break
            if self._can_leave_out and self._is_left_out(self._batch):
                self._given = self._batch.count
                continue
            # Decoded once, for all parts of it.
            self._batch.to_arrow()
        batch = self._batch
        if batch is None:
            return None
        rows_max = int(self._piece_bytes / (self._row_bytes or batch.to_arrow().nbytes / batch.count))
        if not self._row_bytes:
            # Of rows that were not written yet nobody knows how much larger they are as text.
            rows_max = min(rows_max, _ROWS_FIRST)
        count = min(batch.count - self._given, max(1, rows_max))
        if self.left is not None:
            count = min(count, self.left)
            self.left -= count
        found = batch.slice(self._given, self._given + count)
        self._given += count
        self.count += count
        return found

    def _is_left_out(self, batch: RecordBatch) -> bool:
        share = self.visitor.share("read")
        if share >= 1.0 or is_kept(share, self.consumer.stream.id, batch.shard, batch.offset):
            return False
        self.share = share
        self.left_out += batch.count
        self._left_out_bytes += batch.count * (self._row_bytes or _ROW_BYTES)
        return True

    async def charge(self, size: int, *, has_begun: bool = False) -> None:
        """So many bytes are given out; wait if its reader gets too much. The loop's thread."""
        offered = size + self._left_out_bytes if self._can_leave_out else None
        self._left_out_bytes = 0.0
        await pause(self.visitor.charge("read", size, offered, has_begun=has_begun), self._stop_begun)

    def pieces(self, rendering: Rendering) -> list[bytes]:
        """The bytes of the next rows: about a piece of them, or what one turn gives."""
        self.port.begin_turn()
        found: list[bytes] = []
        size = 0
        while size < self._piece_bytes and not self.is_over:
            batch = self.next()
            if batch is None:
                break
            made = list(rendering.rows(batch.to_arrow(metadata=self.wanted.has_metadata)))
            found += made
            size += self.note_size(batch.count, sum(map(len, made)))
        self.hold(2 * size)
        return found

    @property
    def _piece_bytes(self) -> int:
        return HTTP_PIECE_BYTES_MIN if self._budget.is_used_up else HTTP_PIECE_BYTES

    def note_size(self, count: int, size: int) -> int:
        """So many rows became so many bytes, which are returned."""
        self._row_bytes = max(1.0, size / count)
        return size

    def hold(self, size: int) -> None:
        """These bytes must be kept beside the page; the batch that is not given out yet may be, if there is room."""
        size += self.page_bytes
        batch = self._batch
        kept = 0 if batch is None or self._given == batch.count else batch.to_arrow().nbytes
        if self._budget.change(self._held, size + kept):
            self._held = size + kept
            return
        self.rest()
        self._budget.change(self._held, size, must=True)
        self._held = size

    def check(self) -> None:
        """Raise if its reader may not have more."""
        self.visitor.check("read", self.consumer.stream.name)

    def let_go(self) -> None:
        """It is over: nothing is held any more."""
        self._budget.change(self._held, 0)
        self._held = 0
        self.consumer.close()

    def rest(self) -> None:
        """Keep nothing but the place: its reader takes its time."""
        self.consumer.seek(self.cursor)
        self._batch = None
        self._given = 0

    @property
    def columns(self) -> Any:
        return with_metadata(self.consumer.columns) if self.wanted.has_metadata else self.consumer.columns


def _standing(port: ReaderPort, name: str, group: str) -> tuple[Cursor | None, int]:
    """Where a group stands in a stream, None if it has not read it, and its generation."""
    info = port.call(GetStreamCall(name)).streams[0]
    try:
        known = Groups(port).get(group)
    except UnknownGroup:
        return None, GENERATION_FIRST
    found = {shard.shard: shard.offset for shard in known.shards if shard.stream_id == info.id}
    offsets = tuple(found.get(shard, start) for shard, start in enumerate(info.starts))
    return Cursor(info.uuid, info.epoch, offsets) if found else None, known.generation


class Reads:
    """Answers readers. The loop's thread."""

    def __init__(self, server: "Server", budget: AnswerBudget, unfinished: Unfinished) -> None:
        self._server = server
        self._budget = budget
        self._unfinished = unfinished

    async def read(self, request: Request, visitor: Visitor, name: str) -> "Page | Streamed":
        """To the end, or a page."""
        wanted = Wanted.of(request, self._server.clock.now_us())
        return await self._answer(request, visitor, name, wanted)

    async def find(self, request: Request, visitor: Visitor, name: str) -> "Page | Streamed":
        """What matches, wherever it is: a page."""
        wanted = Wanted.of(request, self._server.clock.now_us())
        if not (wanted.where or "").strip():
            raise InvalidPredicate('where: say what to find, for example "id = 7"')
        limit = _FIND_LIMIT if wanted.limit is None else wanted.limit
        wanted = replace(wanted, limit=limit, on_bad="skip")
        return await self._answer(request, visitor, name, wanted)

    async def _answer(self, request: Request, visitor: Visitor, name: str, wanted: Wanted) -> "Page | Streamed":
        media_type = media_type_of(request, events=False)
        visitor.begin("read")
        rendering: Rendering = RENDERINGS[media_type]()
        line = self._server.new_read_line()
        with understood():
            reading = await aside(
                line, lambda: Reading(self._server, visitor, self._budget, name, wanted, follow=False)
            )
        if wanted.limit is not None:
            return await self._page(request, line, reading, rendering, media_type)
        try:
            first = await aside(line, lambda: [*rendering.begin(reading.columns), *_first(reading, rendering)])
            await reading.charge(sum(map(len, first)))
            headers = _headers(request, media_type, reading.end_cursor, is_at_end=True) | reading.group_headers
        except BaseException:
            reading.let_go()
            raise
        return Streamed(self._unfinished, line, reading, rendering, first, headers)

    async def _page(
        self, request: Request, line: "Line", reading: Reading, rendering: Rendering, media_type: str
    ) -> "Page":
        try:
            pieces = await self._gather(request.scope[ABORT], line, reading, rendering)
            headers = _headers(request, media_type, reading.cursor, is_at_end=reading.is_at_end)
            headers |= reading.group_headers
        finally:
            reading.let_go()
        counts = reading.consumer
        headers["mainstem-batches"] = f"opened={counts.opened}, skipped={counts.skipped}, undecoded={counts.undecoded}"
        if reading.left_out:
            headers["mainstem-left-out"] = f"records={reading.left_out}, share={reading.share:.6g}"
        page = Page(self._budget, self._unfinished, headers, pieces)
        try:
            await reading.charge(page.size)
        except BaseException:
            page.let_go()
            raise
        return page

    async def _gather(
        self, connection: Connection, line: "Line", reading: Reading, rendering: Rendering
    ) -> list[bytes]:
        pieces: list[bytes] = await aside(line, lambda: list(rendering.begin(reading.columns)))
        # A page ends early where many are under way: it says where to go on all the same.
        while (
            reading.page_bytes < HTTP_PAGE_BYTES_MAX
            and not reading.is_over
            and not (reading.page_bytes and self._budget.is_used_up)
        ):
            if connection.is_gone():
                # Where little matches, a page may be long in the making: nobody makes it for nobody.
                raise ClientDisconnect
            more = await aside(line, lambda: _whole_batches(reading, rendering))
            if more is None:
                break
            pieces += more
            reading.page_bytes += sum(map(len, more))
        pieces += await aside(line, lambda: list(rendering.end()))
        return pieces


def _first(reading: Reading, rendering: Rendering) -> list[bytes]:
    """The first rows, so that what is wrong from the beginning can be said."""
    try:
        return reading.pieces(rendering)
    except DataLoss as loss:
        raise Lost(loss, reading.cursor) from loss


def _whole_batches(reading: Reading, rendering: Rendering) -> list[bytes] | None:
    """More of a page; None if it ends before a loss that the next page will tell."""
    try:
        return reading.pieces(rendering)
    except DataLoss as loss:
        if reading.count:
            return None
        raise Lost(loss, reading.cursor) from loss


class Lost(Exception):
    """Records are gone; the cursor stands after them."""

    def __init__(self, error: MainstemError, cursor: Cursor) -> None:
        super().__init__(str(error))
        self.error, self.cursor = error, cursor


def _headers(request: Request, media_type: str, cursor: Cursor, *, is_at_end: bool) -> dict[str, str]:
    query = urlencode(
        [
            *((name, text) for name, text in request.query_params.items() if name not in ("from", "group")),
            ("from", str(cursor)),
        ]
    )
    return {
        "content-type": media_type,
        "cache-control": "no-store",
        "vary": "accept",
        CURSOR_HEADER: str(cursor),
        END_HEADER: "true" if is_at_end else "false",
        "link": f'<{request.url.path}?{query}>; rel="next"',
    }


class Page:
    """An answer that is held as a whole, and in the budget of all, from when it is made until it is sent."""

    def __init__(
        self, budget: AnswerBudget, unfinished: Unfinished, headers: dict[str, str], pieces: list[bytes]
    ) -> None:
        self._budget = budget
        self._unfinished = unfinished
        self._headers = headers
        self._pieces = pieces
        self.size = sum(map(len, pieces))
        budget.change(0, self.size, must=True)

    def let_go(self) -> None:
        """It is sent, or nobody gets it."""
        self._budget.change(self.size, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = Sender(scope, send)
        self._unfinished.add(sender.connection)
        try:
            await sender.start(200, {**self._headers, "content-length": str(self.size)})
            await sender.send([] if sender.is_head_only else self._pieces)
            await sender.end()
        except CutOff:
            return
        finally:
            self._unfinished.discard(sender.connection)
            self.let_go()


class Streamed:
    """An answer of any length, of which no more is made than its reader takes."""

    def __init__(
        self,
        unfinished: Unfinished,
        line: "Line",
        reading: Reading,
        rendering: Rendering,
        first: Sequence[bytes],
        headers: dict[str, str],
    ) -> None:
        self._unfinished = unfinished
        self._line = line
        self._reading = reading
        self._rendering = rendering
        self._first = first
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = Sender(scope, send)
        reading, rendering = self._reading, self._rendering
        pieces = list(self._first)
        self._unfinished.add(sender.connection)
        try:
            await sender.start(200, self._headers)
            while not reading.is_over and not sender.is_head_only:
                making = aside(self._line, lambda: reading.pieces(rendering))
                try:
                    # The next piece is made while this one is on its way.
                    await sender.send(pieces, partial(self._on_slow, making))
                finally:
                    await asyncio.wait([making])
                pieces = making.result()
                reading.check()
                await reading.charge(sum(map(len, pieces)), has_begun=True)
            await sender.send([*pieces, *await aside(self._line, lambda: list(rendering.end()))])
        except CutOff:
            return
        except MainstemError as error:
            await sender.cut_off(error)
            return
        finally:
            self._unfinished.discard(sender.connection)
            self._line.cancel()
            reading.let_go()
        await sender.end()

    async def _on_slow(self, making: "asyncio.Future[Any]") -> None:
        await asyncio.wait([making])
        await aside(self._line, self._reading.rest)


def aside(line: "Line", work: Callable[[], Any]) -> "asyncio.Future[Any]":
    """Have something done by a thread, in the reader's turn."""
    future = asyncio.wrap_future(line.submit(work))
    # Whoever waits for it may have gone when it fails.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
