"""`POST /streams/{name}/records`: rows in, offsets out, once they are durable.

The body is parsed as it comes, in a thread of its own and a piece at a time. Nothing is written before all of it was
read and found right; then all of it is written in one flush, so a request is in the stream as a whole or not at all.

An `Idempotency-Key` is remembered in the ledger as a producer: the first batch of the request in each shard carries its
hash as the producer's id, sequence 0, and the number of the request's records in the shard as the epoch. As the request
is one flush, one such row says that all of it was written, also to the next life of the server; the row has the offsets
that were answered. Requests with the same key wait for each other. Rows of producers are kept for 7 days.

A request with dead letters beside other rows is a transaction, and its key is remembered as that: the number of the
transaction is made of it. Those are kept for a day.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mainstem.core.batch import Batch, Buffer
from mainstem.core.clock import Clock
from mainstem.core.errors import (
    InvalidRecord,
    InvalidSetting,
    MainstemError,
    RecordTooLarge,
    SchemaMismatch,
)
from mainstem.core.identity import RANDOMNESS, producer_id_of_key
from mainstem.core.limits import IDEMPOTENCY_KEY_CHARS_MAX
from mainstem.core.names import check_stream_name
from mainstem.log.contents import Contents, is_worth_statistics
from mainstem.log.ledger.base import ProducerRow, TransactionRow
from mainstem.produce.dead_letters import dead_stream_of
from mainstem.produce.posting import READERS, Posting, Reader
from mainstem.server.counts import Tallied
from mainstem.server.door import Visitor
from mainstem.server.http.administration import json_answer
from mainstem.server.http.append import HttpAppend
from mainstem.server.http.bodies import Body, BodyBudget
from mainstem.server.http.pauses import pause
from mainstem.server.http.port import ServerPort
from mainstem.server.http.problems import HttpRefusal, refusal, status_of
from mainstem.server.http.reads import aside
from mainstem.server.line import Line
from mainstem.server.permits import KEY_TRANSACTION_MIN
from mainstem.transport.port import GetStreamCall, StreamInfo

if TYPE_CHECKING:
    from mainstem.server.server import Server

# Of each batch of a request that is counted.
Tallies = list[Tallied]

_ON_BAD: Final = ("raise", "dead_letter")


class Run(msgspec.Struct, frozen=True):
    """Records of one request that stand next to each other."""

    shard: int
    first: int
    last: int


class Written(msgspec.Struct, frozen=True):
    """The answer: where the records are. `dead` of them did not fit and are in `<stream>.dead`. `duplicate` says that
    they were written by an earlier request with the same key. `left_out` is how many were not written because their
    writer is over a quota of which a `share` is kept; those that were have the share in a header."""

    stream: str
    records: int
    offsets: list[Run]
    dead: int = 0
    duplicate: bool = False
    left_out: int | msgspec.UnsetType = msgspec.UNSET
    share: float | msgspec.UnsetType = msgspec.UNSET


class _Turn:
    """Requests with the same key: one has its turn, the others wait."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


class Posts:
    """Takes postings. The loop's thread."""

    def __init__(self, server: "Server", budget: BodyBudget) -> None:
        self._server = server
        self._budget = budget
        # One: parsing holds the interpreter most of the time, and the loop needs it too.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mainstem-post")
        # Requests under way by their key: the next one with it waits.
        self._keys: dict[tuple[str, int], _Turn] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def post(self, request: Request, visitor: Visitor, name: str) -> Response:
        media_type = _media_type(request)
        on_bad = request.query_params.get("on_bad", "raise")
        if on_bad not in _ON_BAD:
            raise InvalidSetting(f"on_bad is one of {', '.join(_ON_BAD)}, not {on_bad[:40]!r}")
        key = _key_of(request, visitor, name)
        visitor.begin("write")
        check_stream_name(name, reserved=True)
        port = ServerPort(self._server, visitor)
        if key is None:
            # One that may come again must be the same then; it waits instead.
            port.write_share = visitor.share("write")
        info = await self._server.run_aside(request, lambda: _stream(port, name))
        line = Line(self._pool, 1)
        try:
            with Body(request, visitor, self._budget, self._server.clock) as body:
                unit = _UNITS.get(media_type, "line")
                tallies: Tallies = []
                finished = partial(self._described, tallies)
                posting = Posting(port, info, on_bad=on_bad, unit=unit, finished=finished)
                try:
                    batches = await self._parse(line, READERS[media_type](posting), posting, body)
                except RecordTooLarge as error:
                    raise _placed(error) from None
                except (InvalidRecord, SchemaMismatch) as error:
                    written = await self._written_before(info, key, line)
                    if written is None:
                        raise _placed(error) from None
                    visitor.check("write", name)
                    return json_answer(written)
                offered = body.size if key is None else None
                seconds = visitor.charge("write", round(body.size * posting.kept), offered)
                await pause(seconds, self._server.stop_begun)
                # It may be long since it was asked.
                visitor.check("write", name)
                if posting.dead:
                    visitor.check("write", dead_stream_of(name))
                if key is None:
                    written = await self._write(info, posting, batches, tallies)
                else:
                    written = await self._write_once(info, posting, batches, tallies, key, line)
        finally:
            line.cancel()
        return json_answer(written)

    async def _parse(self, line: Line, reader: Reader, posting: Posting, body: Body) -> Sequence[Batch]:
        """The batches of a body. While one piece is parsed the next one comes in."""
        parsing: asyncio.Future[None] | None = None
        last: Sequence[Buffer] = ()
        try:
            async for pieces, is_last in body.pieces(reader.feed_bytes):
                if parsing is not None:
                    await parsing
                if is_last:
                    last = pieces
                else:
                    parsing = aside(line, partial(reader.feed, *pieces))
        finally:
            if parsing is not None:
                await asyncio.wait([parsing])
        if parsing is not None:
            parsing.result()
        steps = _finish(reader, last, posting)
        batches: Sequence[Batch] | None = None
        while batches is None:
            batches = await aside(line, partial(_advance, steps, self._server.clock))
        return batches

    def _described(self, tallies: Tallies, batch: Batch) -> Batch:
        """The batch without a producer, with statistics if it is large enough for them. It is counted."""
        if (tallied := self._server.http_counts.tally(batch)) is not None:
            tallies.append(tallied)
        header = msgspec.structs.replace(batch.header, producer=0, producer_epoch=0, sequence=0)
        row = self._server.log.ledger.load_stream(header.stream) if is_worth_statistics(header) else None
        if row is None:
            return Batch(header, batch.payload)
        return Contents.of(row, self._server.log.schema).described(Batch(header, batch.payload, batch.columns))

    async def _write(
        self, info: StreamInfo, posting: Posting, batches: Sequence[Batch], tallies: Tallies, key: int | None = None
    ) -> Written:
        transaction = 0
        if len({batch.header.stream for batch in batches}) > 1:
            transaction = RANDOMNESS.getrandbits(62) + 1 if key is None else _transaction_of(info, key)
        elif key is not None:
            batches = _anchored(batches, key)
        bases = await HttpAppend(self._server, batches, transaction).wait() if batches else []
        for tallied in tallies:
            self._server.http_counts.note(tallied)
        runs = _runs(info, batches, bases)
        count = sum(run.last - run.first + 1 for run in runs)
        written = Written(info.name, count, runs, posting.dead)
        if not posting.left_out:
            return written
        return msgspec.structs.replace(written, left_out=posting.left_out, share=posting.share)

    async def _write_once(
        self,
        info: StreamInfo,
        posting: Posting,
        batches: Sequence[Batch],
        tallies: Tallies,
        key: int,
        line: Line,
    ) -> Written:
        async with self._turn(info, key):
            found = await self._server.run_aside(line, lambda: self._earlier(info, key))
            if found is None:
                return await self._write(info, posting, batches, tallies, key)
        count = sum(batch.header.count for batch in batches)
        if found.records + found.dead != count:
            raise refusal(
                422,
                f"this Idempotency-Key was used for another request: it had {found.records + found.dead} records, this "
                f"one has {count}",
            )
        return found

    async def _written_before(self, info: StreamInfo, key: int | None, line: Line) -> Written | None:
        """What a request with this key has written, though what comes now does not fit: the schema may be another than
        it was for the first one."""
        if key is None:
            return None
        async with self._turn(info, key):
            return await self._server.run_aside(line, lambda: self._earlier(info, key))

    @contextlib.asynccontextmanager
    async def _turn(self, info: StreamInfo, key: int) -> AsyncIterator[None]:
        """Wait for those with the same key that came before."""
        identity = (info.uuid, key)
        turn = self._keys.setdefault(identity, _Turn())
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._keys[identity]

    def _earlier(self, info: StreamInfo, key: int) -> Written | None:
        """What a request with this key has written, if there was one."""
        known = self._server.log.ledger.load_transaction(_transaction_of(info, key))
        if known is not None:
            return _written_in(info, known)
        runs = [
            Run(shard, row.recent[0][1], row.recent[0][1] + row.epoch - 1)
            for shard, row in self._producer_rows(info.name, key)
        ]
        dead = sum(row.epoch for _, row in self._producer_rows(dead_stream_of(info.name), key))
        if not runs and not dead:
            return None
        return Written(info.name, sum(run.last - run.first + 1 for run in runs), runs, dead, duplicate=True)

    def _producer_rows(self, name: str, key: int) -> Iterator[tuple[int, ProducerRow]]:
        ledger = self._server.log.ledger
        stream = ledger.stream_named(name)
        for shard in range(0 if stream is None else stream.shards):
            row = ledger.load_producer((key, stream.id, shard)) if stream is not None else None
            if row is not None:
                yield shard, row


def _stream(port: ServerPort, name: str) -> StreamInfo:
    return port.call(GetStreamCall(name, auto_create=True)).streams[0]


def _transaction_of(info: StreamInfo, key: int) -> int:
    """The number of the transaction that a request with this key is, if it is one: no client draws such."""
    return KEY_TRANSACTION_MIN + (producer_id_of_key(info.uuid, str(key)) >> 1)


def _written_in(info: StreamInfo, known: TransactionRow) -> Written:
    """What a request has written as a transaction."""
    runs = [Run(shard, base, base + count - 1) for stream, shard, base, count in known.offsets if stream == info.id]
    dead = sum(count for stream, _, _, count in known.offsets if stream != info.id)
    return Written(info.name, sum(run.last - run.first + 1 for run in runs), runs, dead, duplicate=True)


def _anchored(batches: Sequence[Batch], key: int) -> list[Batch]:
    """The batches with the key in the first one of each shard."""
    counts: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        counts[batch.header.stream, batch.header.shard] += batch.header.count
    found: list[Batch] = []
    for batch in batches:
        count = counts.pop((batch.header.stream, batch.header.shard), None)
        if count is not None:
            header = msgspec.structs.replace(batch.header, producer=key, producer_epoch=count, sequence=0)
            batch = Batch(header, batch.payload)
        found.append(batch)
    return found


def _runs(info: StreamInfo, batches: Sequence[Batch], bases: Sequence[int]) -> list[Run]:
    """Where the records of the stream are: those of one shard stand next to each other."""
    runs: dict[int, Run] = {}
    for batch, base in zip(batches, bases, strict=True):
        if batch.header.stream == info.id:
            last = base + batch.header.count - 1
            known = runs.get(batch.header.shard)
            runs[batch.header.shard] = Run(batch.header.shard, base if known is None else known.first, last)
    return [runs[shard] for shard in sorted(runs)]


def _placed(error: MainstemError) -> HttpRefusal:
    """The error of a row with its number, which the text begins with, as a fact."""
    found = _PLACE.match(str(error))
    return HttpRefusal(status_of(error), error, None, **({str(found[1]): int(found[2])} if found else {}))


_PLACE: Final = re.compile(r"(line|row) (\d+)")


def _media_type(request: Request) -> str:
    given = request.headers.get("content-type", "application/x-ndjson").partition(";")[0].strip().lower()
    # What curl says of --data-binary if nobody says otherwise.
    found = "application/x-ndjson" if given == "application/x-www-form-urlencoded" else given
    if found not in READERS:
        raise refusal(415, f"bodies of type {given[:60]!r} are not taken; use one of {', '.join(READERS)}")
    return found


_UNITS: Final = {"application/json": "row"}


def _key_of(request: Request, visitor: Visitor, name: str) -> int | None:
    """The producer that stands for the request's key, in its stream and in that of its dead letters: these have another
    for a key of their own."""
    given = request.headers.get("idempotency-key")
    if given is None:
        return None
    if not 0 < len(given) <= IDEMPOTENCY_KEY_CHARS_MAX or len(request.headers.getlist("idempotency-key")) > 1:
        raise refusal(400, f"an Idempotency-Key is one text of 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters")
    return producer_id_of_key(visitor.name, name, given)


_Steps = Generator[None, None, Sequence[Batch]]
# How long steps are taken before it is the turn of others.
_TURN_SECONDS: Final = 0.005


def _finish(reader: Reader, last: Sequence[Buffer], posting: Posting) -> _Steps:
    """What is to be done when the last pieces of a body are there."""
    if last:
        reader.feed(*last)
        yield
    yield from reader.finish()
    return posting.finish()


def _advance(steps: _Steps, clock: Clock) -> Sequence[Batch] | None:
    """The next steps, and what comes of them if they were the last. A small body takes no more than one call: every
    change of threads waits until the other one has its turn."""
    until = clock.monotonic() + _TURN_SECONDS
    try:
        while clock.monotonic() < until:
            next(steps)
    except StopIteration as over:
        batches: Sequence[Batch] = over.value
        return batches
    return None
