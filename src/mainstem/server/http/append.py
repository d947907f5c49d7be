"""An append over HTTP: the batches of one request, handed to the log in their turn, beside those of sessions.

All of them are written or none. Those of one stream share their fate by themselves: they are one flush, and whatever
may be wrong with one of them, such as that the stream was deleted meanwhile, is so with all. Those of two streams,
where some rows became dead letters, are one transaction.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from mainstem.core.batch import Batch
from mainstem.core.errors import Busy, DeadlineExceeded, InvalidRequest, MainstemError, ServerStopping
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.flush import (
    Appended,
    CommitTransaction,
    Rejected,
    StagedBatch,
    TransactionCommitted,
    WholeTransaction,
)

if TYPE_CHECKING:
    from mainstem.server.server import Server

# How long a request waits for the log, and for room on a full disk.
_DEADLINE_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 5.0


class HttpAppend:
    """Batches that become durable together. The loop's thread; `wait` tells what became of them. `transaction` is the
    number of the one that they are, or 0."""

    def __init__(self, server: "Server", batches: Sequence[Batch], transaction: int = 0) -> None:
        self._server = server
        self._batches = batches
        self._transaction = transaction
        self.size = sum(batch.header.stored_len for batch in batches)
        self._deadline = server.clock.monotonic() + _DEADLINE_SECONDS
        self._done: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        self.has_waiting = True

    async def wait(self) -> list[int]:
        """The first offset of every batch; raises what the log says if it has refused one."""
        self._server.submit_soon(self)
        bases: list[int] = []
        # Whoever asked may go away; the log goes on.
        for outcome in await asyncio.shield(self._done):
            if isinstance(outcome, Rejected):
                raise outcome.error
            if isinstance(outcome, TransactionCommitted):
                return self._bases(outcome)
            assert isinstance(outcome, Appended)
            bases.append(outcome.base)
        return bases

    def _bases(self, committed: TransactionCommitted) -> list[int]:
        if committed.duplicate:
            raise InvalidRequest(
                "another transaction has the number of this request; nothing was written: send it again"
            )
        places = {(stream, shard): base for stream, shard, base, _ in committed.offsets}
        bases: list[int] = []
        for batch in self._batches:
            key = (batch.header.stream, batch.header.shard)
            bases.append(places[key])
            places[key] += batch.header.count
        return bases

    def _items(self) -> Sequence[Batch | WholeTransaction]:
        if not self._transaction:
            return self._batches
        return (whole(self._transaction, self._batches, self._server.log.clock.now_us()),)

    def submit_waiting(self) -> bool:
        self.has_waiting = False
        if self._server.is_stopping:
            self._refuse(ServerStopping("the server is stopping; nothing was written"))
            return True
        patience = self._server.clock.monotonic() + _PATIENCE_SECONDS
        try:
            submission = Submission(self._items(), partial(self._server.complete, self, self), patience)
            self._server.log.batcher.submit(submission, wake=False)
        except Busy:
            self.has_waiting = True
            self.expire_waiting()
            return not self.has_waiting
        except MainstemError as error:
            self._refuse(error)
        return True

    def expire_waiting(self) -> None:
        if self.has_waiting and self._server.clock.monotonic() >= self._deadline:
            self.has_waiting = False
            self._refuse(DeadlineExceeded("the server was too busy to take this in time; nothing was written"))

    def pace(self) -> None:
        """It is all there is."""

    def finish_append(self, pending: "HttpAppend", result: Outcomes | MainstemError) -> None:
        if isinstance(result, MainstemError):
            self._refuse(result)
        elif not self._done.done():
            self._done.set_result(result)

    def _refuse(self, error: MainstemError) -> None:
        if not self._done.done():
            self._done.set_exception(error)


def whole(transaction: int, batches: Sequence[Batch], now_us: int) -> WholeTransaction:
    """The batches as one transaction, which is never open: they are staged and committed in one flush."""
    staged = [
        StagedBatch(
            msgspec.structs.replace(batch.header, transaction=transaction, producer=0, producer_epoch=0, sequence=0),
            batch.payload,
        )
        for batch in batches
    ]
    # Stable: in each shard they keep their order, and those of a shard are one run of bytes.
    staged.sort(key=lambda batch: (batch.header.stream, batch.header.shard))
    return WholeTransaction(
        CommitTransaction(transaction, len(staged), (), (), now_us, frames=len(staged)), tuple(staged)
    )
