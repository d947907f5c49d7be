"""`GET /streams/{name}/records` with `Accept: text/event-stream`: the stream as it grows, one record an event.

    retry: 1000
    id: ms1:6f1c…:1:120,77:0a9b11c4

    id: ms1:6f1c…:1:121,77:5c0e9d02
    data: {"id": 7, "amount": 12.5}

The id of an event is the cursor after its record, and a browser sends it back as `Last-Event-ID` when it connects
again: so nothing is missing and nothing comes twice. An id without data says where the reader stands though nothing
came: it is the first thing that is said, and the heartbeat. Records that are lost, or are no rows, are told in events
of their own, `loss` and `undecoded`, and the tail goes on after them; an error that ends it is an event `error`.

An idle tail has no thread and no timer of its own but the heartbeat's; a flush that adds to the stream wakes it.
"""

import asyncio
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from mainstem.consume.record import RecordBatch
from mainstem.core.errors import (
    DataLoss,
    IncompatibleSchema,
    InvalidRequest,
    MainstemError,
    StreamDeleted,
    UndecodedRecords,
)
from mainstem.core.limits import HTTP_PIECE_BYTES, HTTP_TAIL_SHARDS_MAX, KIB
from mainstem.registry import formats
from mainstem.server.door import Visitor
from mainstem.server.http.problems import problem_of, understood
from mainstem.server.http.reads import AnswerBudget, Reading, Wanted, aside, start_of
from mainstem.server.http.renderings import EVENTS
from mainstem.server.http.sending import CutOff, Sender

if TYPE_CHECKING:
    from mainstem.server.server import Server

_HEARTBEAT_SECONDS: Final = 15.0
_RETRY_MS: Final = 1_000
# How often it is looked whether idle readers still may.
_LOOK_SECONDS: Final = 2.0
_PIECE_BYTES: Final = min(256 * KIB, HTTP_PIECE_BYTES)
_encode = msgspec.json.Encoder().encode


class Tails:
    """Follows streams for readers. The loop's thread."""

    def __init__(self, server: "Server", budget: AnswerBudget) -> None:
        self._server = server
        self._budget = budget
        self._open: set[Tail] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        return len(self._open)

    async def tail(self, request: Request, visitor: Visitor, name: str) -> "Tail":
        visitor.begin("read")
        now_us = self._server.clock.now_us()
        wanted = Wanted.of(request, now_us, start="latest")
        # A browser that connects again asks the address of the first time, and says where it is beside it.
        resumed = request.headers.get("last-event-id")
        if resumed:
            with understood():
                # Also with a group, which may be elsewhere by now: it only says where to begin.
                wanted = replace(wanted, start=start_of(resumed, now_us), group=None)
        line = self._server.new_read_line()
        with understood():
            reading = await aside(line, lambda: Reading(self._server, visitor, self._budget, name, wanted, follow=True))
        shards = reading.consumer.stream.shards
        if shards > HTTP_TAIL_SHARDS_MAX:
            reading.let_go()
            raise InvalidRequest(
                f"stream {name!r} has {shards} shards; tails over HTTP have at most {HTTP_TAIL_SHARDS_MAX}"
            )
        return Tail(self._server, self, reading)

    def stop(self) -> None:
        """The server is stopping: readers connect again, to the next life of it."""
        for tail in tuple(self._open):
            tail.stop()

    def add(self, tail: "Tail") -> None:
        self._open.add(tail)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def discard(self, tail: "Tail") -> None:
        self._open.discard(tail)

    def _look(self) -> None:
        """Who may not read any more is told so, though nothing comes."""
        for tail in tuple(self._open):
            tail.look()
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look) if self._open else None


class Tail:
    """One tail, from its first event to its end. The loop's thread; the reading belongs to whoever has its turn."""

    __slots__ = ("_error", "_is_stopped", "_line", "_reading", "_server", "_tails", "_wake", "stream")

    def __init__(self, server: "Server", tails: Tails, reading: Reading) -> None:
        self._server = server
        self._tails = tails
        self._reading = reading
        self._line = server.new_read_line()
        self._wake = asyncio.Event()
        self._is_stopped = False
        self._error: MainstemError | None = None
        self.stream = reading.consumer.stream.id

    # As a follower.

    def touch(self, shard: int) -> None:
        self._reading.port.touch(shard)

    def push(self) -> None:
        self._wake.set()

    def end_deleted(self) -> None:
        self._error = StreamDeleted(f"stream {self._reading.consumer.stream.name!r} was deleted")
        self._wake.set()

    def look(self) -> None:
        try:
            self._reading.check()
        except MainstemError as error:
            self._error = error
            self._wake.set()

    def stop(self) -> None:
        self._is_stopped = True
        self._wake.set()

    # As an answer.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = Sender(scope, send)
        self._server.follow(self)
        self._tails.add(self)
        gone = asyncio.ensure_future(_until_gone(receive))
        gone.add_done_callback(lambda _: self.stop())
        try:
            headers = {"content-type": EVENTS, "cache-control": "no-store", "vary": "accept"}
            await sender.start(200, headers | self._reading.group_headers)
            await sender.send([b"retry: %d\n" % _RETRY_MS + self._position()])
            if not sender.is_head_only:
                await self._run(sender)
            if not gone.done():
                await sender.end()
        except CutOff:
            return
        finally:
            gone.cancel()
            self._line.cancel()
            self._reading.let_go()
            self._tails.discard(self)
            self._server.unfollow(self)

    async def _run(self, sender: Sender) -> None:
        reading = self._reading
        while not self._is_stopped and reading.left != 0:
            self._wake.clear()
            try:
                events = await aside(self._line, self._events)
                await reading.charge(len(events))
                reading.check()
            except MainstemError as error:
                self._error = error
                events = b""
            if events:
                await sender.send([events])
            elif self._error is not None:
                await sender.send([_event("error", problem_of(self._error))])
                return
            elif not reading.port.is_turn_over and not await self._is_woken():
                await sender.send([self._position()])

    async def _is_woken(self) -> bool:
        try:
            async with asyncio.timeout(_HEARTBEAT_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def _position(self) -> bytes:
        """Where the reader stands, without an event."""
        return f"id: {self._reading.cursor}\n\n".encode()

    def _events(self) -> bytes:
        """In a thread: the events of the next batches."""
        reading = self._reading
        reading.port.begin_turn()
        events: list[bytes] = []
        size = 0
        while size < _PIECE_BYTES and reading.left != 0:
            before = reading.cursor.offsets
            try:
                batch = reading.next()
            except (DataLoss, UndecodedRecords, IncompatibleSchema) as error:
                kind = "loss" if isinstance(error, DataLoss) else "undecoded"
                events.append(_event(kind, problem_of(error), str(reading.cursor)))
                continue
            if batch is None:
                break
            made = list(_events_of(batch, reading, before))
            events += made
            size += reading.note_size(batch.count, sum(map(len, made)))
        if reading.left_out:
            told = {"records": reading.left_out, "share": reading.share}
            events.append(_event("left-out", told, str(reading.cursor)))
            reading.left_out = 0
        reading.hold(2 * size)
        return b"".join(events)


def _events_of(batch: RecordBatch, reading: Reading, before: tuple[int, ...]) -> Iterator[bytes]:
    """An event for each record; the last one stands where the reader does."""
    info, shard = reading.consumer.stream, batch.shard
    after = reading.cursor
    known = [*before, *(0,) * (len(after.offsets) - len(before))]
    begin = f"ms1:{info.uuid}:{info.epoch}:" + "".join(f"{offset}," for offset in known[:shard])
    end = "".join(f",{offset}" for offset in known[shard + 1 :])
    rows = batch.to_arrow(metadata=reading.wanted.has_metadata)
    lines = b"".join(formats.ndjson_pieces(rows)).split(b"\n")
    offsets = batch.offsets()
    for index in range(batch.count - 1):
        text = f"{begin}{offsets[index] + 1}{end}".encode()
        yield b"id: %b:%08x\ndata: %b\n\n" % (text, zlib.crc32(text), lines[index])
    yield b"id: %b\ndata: %b\n\n" % (str(after).encode(), lines[batch.count - 1])


def _event(kind: str, document: object, id_: str | None = None) -> bytes:
    text = f"event: {kind}\n".encode()
    if id_ is not None:
        text += f"id: {id_}\n".encode()
    return text + b"data: " + _encode(document) + b"\n\n"


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
