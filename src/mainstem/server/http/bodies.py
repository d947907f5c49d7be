"""Bodies of requests: taken as they come, decompressed, and never more of them than the limits say.

One body may be HTTP_BODY_BYTES_MAX once it is decompressed. What all of them hold beyond a small share each comes out
of one budget; who finds that used up is told to come again, so that nobody waits for somebody who waits.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from starlette.requests import Request
from starlette.types import Scope

from mainstem.core.batch import Buffer
from mainstem.core.clock import Clock
from mainstem.core.errors import Busy, QuotaExceeded, RecordTooLarge
from mainstem.core.limits import (
    HTTP_BODIES_BYTES_MAX,
    HTTP_BODY_AHEAD_BYTES,
    HTTP_BODY_BYTES_MAX,
    HTTP_BODY_SHARE_BYTES,
    HTTP_LARGE_BODY_AHEAD_BYTES,
    KIB,
    MIB,
    RECEIVE_SECONDS_MAX,
)
from mainstem.server.door import Visitor
from mainstem.server.http.problems import refusal
from mainstem.server.http.sending import ABORT, Connection, Unfinished

# What is decompressed at once.
_PIECE_BYTES: Final = 512 * KIB
# So much of what was sent is looked at, before others have their turn.
_PACKED_BYTES: Final = 16 * KIB
# A member of gzip costs something though it is empty, and is never counted by its bytes.
GZIP_MEMBERS_MAX: Final = 10_000
_GZIP: Final = 16 + zlib.MAX_WBITS
_LARGE_BYTES: Final = 1 * MIB
# Under this name the scope of a request has what came of its body.
_ARRIVED: Final = "mainstem.arrived"


def cannot_land() -> bool:
    """For a body whose connection is not known."""
    return False


class Arrived:
    """What came of a body from the socket, and nobody has taken yet. The loop's thread.

    It is pieces as they came, or, of a large body of known length, lies in one memory, into which the socket is read:
    whoever takes that in turn has it without a copy and next to what was there before.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0
        # How much of it may be here before no more is read.
        self.bytes_max = HTTP_BODY_AHEAD_BYTES
        # Has the rest of the body read into the memory; False where its end has come, or is not known.
        self.begin_landing: Callable[[], bool] = cannot_land
        self._memory: memoryview | None = None
        # How much of the memory is filled.
        self._landed = 0

    @classmethod
    def of(cls, scope: Scope) -> "Arrived":
        """Those of the request with this scope."""
        if _ARRIVED not in scope:
            scope[_ARRIVED] = cls()
        found: Arrived = scope[_ARRIVED]
        return found

    def add(self, piece: bytes) -> bool:
        """Whether that is enough for now."""
        self._pieces.append(piece)
        self.size += len(piece)
        return self.size > self.bytes_max

    def take(self, rest: bytes) -> bytes | memoryview:
        """All of it, and what came behind it."""
        if self._memory is not None:
            taken_to, self.size = self._landed - self.size, 0
            return self._memory[taken_to : self._landed]
        taken, self._pieces, self.size = self._pieces, [], 0
        return b"".join([*taken, rest]) if rest or len(taken) > 1 else taken[0]

    def land(self, length: int) -> None:
        """Have a body of this length come to lie in one memory. Pages of it that nothing has come to are none yet."""
        if self.begin_landing():
            self._memory = np.empty(length, np.uint8).data
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                self._memory[self._landed : self._landed + len(piece)] = piece
                self._landed += len(piece)

    def room(self) -> memoryview:
        """Where the next bytes belong."""
        assert self._memory is not None
        return self._memory[self._landed : self._landed + self.bytes_max]

    def landed(self, count: int) -> bool:
        """So many bytes have come into the room; whether that is enough for now."""
        self._landed += count
        self.size += count
        return self.size > self.bytes_max


class BodyBudget:
    """What all bodies hold together, and the connections on which they come. The loop's thread."""

    def __init__(self, unfinished: Unfinished, bytes_max: int = HTTP_BODIES_BYTES_MAX) -> None:
        self.unfinished = unfinished
        self._bytes_max = bytes_max
        self.used = 0

    def take(self, count: int) -> None:
        if self.used + count > self._bytes_max:
            raise Busy(f"{self.used} bytes of other requests are under way; try again in a moment")
        self.used += count

    def give(self, count: int) -> None:
        self.used -= count


class Body:
    """One body on its way. The loop's thread; use it as a context manager, so that its room is given back."""

    def __init__(
        self,
        request: Request,
        visitor: Visitor,
        budget: BodyBudget,
        clock: Clock,
        bytes_max: int = HTTP_BODY_BYTES_MAX,
    ) -> None:
        self._visitor = visitor
        self._request = request
        self._budget = budget
        self._clock = clock
        self._bytes_max = bytes_max
        self._connection: Connection = request.scope[ABORT]
        self._arrived = Arrived.of(request.scope)
        # What came of it, as it was sent and decompressed.
        self._packed = self.size = 0
        # Of the budget of all, and of what there is for who sends it.
        self._taken = self._held = 0

    def __enter__(self) -> "Body":
        self._budget.unfinished.add(self._connection)
        return self

    def __exit__(self, *exc: object) -> None:
        self._budget.unfinished.discard(self._connection)
        self._budget.give(self._taken)
        self._visitor.let_go("memory_bytes", self._held)
        self._taken = self._held = 0

    async def whole(self) -> bytes:
        """All of it at once."""
        return b"".join([piece async for pieces, _ in self.pieces(self._bytes_max) for piece in pieces])

    async def pieces(self, at_once: int) -> AsyncIterator[tuple[list[Buffer], bool]]:
        """The body as it comes, decompressed, about so many bytes at once, and whether they are known to be all."""
        unpack = unpacker(self._request.headers.get("content-encoding", "identity"))
        announced = self._announced()
        if announced >= _LARGE_BYTES and isinstance(unpack, _Plain):
            self._arrived.land(announced)
        held: list[Buffer] = []
        size = 0
        async for piece in self._unpacked(unpack):
            held.append(piece)
            size += len(piece)
            if size >= at_once:
                yield held, False
                held, size = [], 0
        self._budget.unfinished.discard(self._connection)
        if held:
            yield held, True

    async def _unpacked(self, unpack: "_Plain | _Gzip | _Zstd") -> AsyncIterator[Buffer]:
        """The pieces of it, counted. Others have their turn between two of them: a few bytes may become very many, or
        many become none."""
        async for packed in self._received():
            self._packed += len(packed)
            if self._packed > self._bytes_max:
                raise self._too_large("this one has more as it is sent")
            for piece in unpack.feed(packed):
                self._count(len(piece), unpack.held)
                if not isinstance(unpack, _Plain):
                    await asyncio.sleep(0)
                if piece:
                    yield piece
            self._count(0, unpack.held)
        rest = unpack.finish()
        # Of so much, a thread finds the next piece: it may be long in coming.
        is_long = unpack.held > HTTP_BODY_SHARE_BYTES
        while (piece := await asyncio.to_thread(next, rest, b"") if is_long else next(rest, b"")) != b"":
            self._count(len(piece), unpack.held)
            await asyncio.sleep(0)
            yield piece

    async def _received(self) -> AsyncIterator[bytes]:
        """The bytes as they were sent. Whoever began a body completes it in time, unless it is we who do not read."""
        left = float(RECEIVE_SECONDS_MAX)
        chunks = self._request.stream()
        while True:
            asked = self._clock.monotonic()
            try:
                async with asyncio.timeout(left):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise refusal(408, f"the body was not complete within {RECEIVE_SECONDS_MAX} s") from None
            if chunk is None:
                return
            left = max(0.0, left - (self._clock.monotonic() - asked))
            if chunk:
                yield chunk

    def _announced(self) -> int:
        """How long it will be as it is sent, as far as is known."""
        given = self._request.headers.get("content-length", "0")
        announced = int(given) if given.isdecimal() else 0
        if announced > self._bytes_max:
            raise self._too_large(f"this one has {given}")
        return announced

    def _count(self, count: int, held: int) -> None:
        """`held` bytes wait to be decompressed."""
        self.size += count
        if self.size > self._bytes_max:
            raise self._too_large("this one has more")
        if (more := self.size + held - self._held) > 0:
            self._hold(more)
        if self.size >= _LARGE_BYTES:
            self._arrived.bytes_max = HTTP_LARGE_BODY_AHEAD_BYTES
            held += HTTP_LARGE_BODY_AHEAD_BYTES
        beyond = max(0, self.size + held - HTTP_BODY_SHARE_BYTES) - self._taken
        if beyond > 0:
            self._budget.take(beyond)
            self._taken += beyond

    def _hold(self, count: int) -> None:
        try:
            self._visitor.hold("memory_bytes", count)
        except QuotaExceeded as error:
            if 0 < error.limit < self._held + count:
                # It would be too much whenever it came again.
                raise RecordTooLarge(
                    f"a body of more than {error.limit} bytes, which is all that who sends it may have in memory "
                    "(memory_bytes): send fewer rows at a time"
                ) from None
            raise
        self._held += count

    def _too_large(self, size: str) -> RecordTooLarge:
        return RecordTooLarge(
            f"a body is at most {self._bytes_max} bytes, counted when they are decompressed, and {size}: send fewer "
            "rows at a time"
        )


class _Plain:
    held = 0

    def feed(self, data: Buffer) -> Iterator[Buffer]:
        yield data

    def finish(self) -> Iterator[Buffer]:
        yield from ()


class _Gzip:
    """Takes gzip, of several members if there are, a bounded piece at a time."""

    held = 0

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._is_begun = False
        self._members = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        place = 0
        try:
            while place < len(view):
                self._is_begun = True
                # What is left over of it is copied each time: so little of it that this does not count.
                fed = view[place : place + _PACKED_BYTES]
                yield self._member.decompress(fed, _PIECE_BYTES)
                place += len(fed) - len(self._member.unconsumed_tail) - len(self._member.unused_data)
                if self._member.eof:
                    self._begin_member()
        except zlib.error as error:
            raise refusal(400, f"the body is not gzip: {error}") from None

    def _begin_member(self) -> None:
        self._members += 1
        if self._members > GZIP_MEMBERS_MAX:
            raise RecordTooLarge(f"a body of gzip has at most {GZIP_MEMBERS_MAX} members: compress more rows at a time")
        self._member, self._is_begun = zlib.decompressobj(_GZIP), False

    def finish(self) -> Iterator[bytes]:
        if self._is_begun:
            # What is left is in the window: a bounded piece of it at a time, too.
            while rest := self._member.decompress(self._member.unconsumed_tail, _PIECE_BYTES):
                yield rest
            if not self._member.eof:
                raise refusal(400, "the body ends in the middle of its gzip")


class _Zstd:
    """Takes zstd: what was sent is gathered, within the limit, and decompressed a bounded piece at a time."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self.held = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        self.held += len(data)
        self._packed.append(data)
        yield from ()

    def finish(self) -> Iterator[bytes]:
        try:
            with pa.CompressedInputStream(pa.BufferReader(b"".join(self._packed)), "zstd") as stream:
                while piece := stream.read(_PIECE_BYTES):
                    yield piece
        except (pa.ArrowException, OSError) as error:
            raise refusal(400, f"the body is not zstd: {error}") from None


def unpacker(encoding: str) -> "_Plain | _Gzip | _Zstd":
    match encoding.strip().lower():
        case "identity" | "":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Gzip()
        case "zstd":
            return _Zstd()
        case other:
            raise refusal(
                415, f"bodies in {other[:40]!r} are not taken; use gzip, zstd or none", accept_encoding="gzip, zstd"
            )
