"""The log of a server as producers, consumers and administration of its own process see it.

What they ask is done in the thread that asks, which is never the loop's: every route works through a line.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Final

from mainstem.consume.feed import Feed
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import Closed, DeadlineExceeded, InvalidRequest, MainstemError, ServerStopping
from mainstem.core.schema import Schema
from mainstem.hub.local_subscription import LocalSubscription
from mainstem.hub.reading_port import ReadingPort, feed_of
from mainstem.log.hot_tail import HotTail
from mainstem.server.door import Visitor
from mainstem.transport.port import (
    Answer,
    Call,
    CommitCall,
    Query,
    StreamInfo,
    checked,
)

if TYPE_CHECKING:
    from mainstem.server.server import Server


class ServerPort(ReadingPort):
    """Calls and reading for one visitor, as far as it may. Any thread but the loop's. What is posted goes another way:
    see posts; of it `write_share` is kept."""

    def __init__(self, server: "Server", visitor: Visitor) -> None:
        self._server = server
        self._visitor = visitor
        self.record_bytes_max = server.settings.record_bytes_max

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        self.check_usable()
        self._visitor.check_call(call)
        if isinstance(call, CommitCall):
            return self._visitor.seen(call, self._commit(call))
        return self._visitor.seen(call, self._server.carry_out(checked(call)))

    def _commit(self, call: CommitCall) -> Answer:
        answer: Future[Answer | MainstemError] = Future()
        self._server.coordinator.commit(call, answer.set_result)
        try:
            found = answer.result(_COMMIT_SECONDS)
        except FutureTimeout:
            raise DeadlineExceeded("the log did not answer in time; the outcome is not known") from None
        if isinstance(found, MainstemError):
            raise found
        return found

    def no_appends(self) -> InvalidRequest:
        return InvalidRequest("groups have no members over HTTP, and a server appends what its clients send")

    def schema(self, schema: int) -> Schema:
        return self._server.log.schema(schema)

    def schema_at_hand(self, schema: int) -> Schema | None:
        return self._server.log.schemas.at_hand(schema)

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> LocalSubscription:
        """Its `next` finds what is there; whoever waits for more is told by somebody else that there is."""
        return LocalSubscription(self._feed(stream, offsets, ends, query, window_us), lambda _: None, *self._tail())

    def _tail(self) -> tuple[HotTail, Callable[[], int]]:
        log = self._server.log
        return log.hot, log.batcher.settled_us

    def _feed(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        query: Query | None,
        window_us: int | None,
    ) -> Feed:
        server = self._server
        row = server.log.reader.require_stream(stream.id)
        return feed_of(
            server.log.reader, row, offsets, ends, server.selections, query, window_us, server.log.schema, server.clock
        )

    def check_usable(self) -> None:
        if self._server.is_stopping:
            raise ServerStopping("the server is stopping")

    def check_writable(self) -> None:
        return None

    def close(self) -> None:
        raise Closed("the log of a server is closed with the server")


class ReaderPort(ServerPort):
    """The port of one reader, which has the thread for a turn at a time: then others have theirs. `begin_turn` and
    reading are for one thread at a time, `touch` and `end` for any."""

    def __init__(self, server: "Server", visitor: Visitor) -> None:
        super().__init__(server, visitor)
        self._until = 0.0
        self._subscription: LocalSubscription | None = None

    def check_usable(self) -> None:
        """Readers are served until the server cuts them off."""

    def begin_turn(self) -> None:
        self._until = self._server.clock.monotonic() + _TURN_SECONDS

    @property
    def is_turn_over(self) -> bool:
        return self._server.clock.monotonic() >= self._until

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> LocalSubscription:
        feed = self._feed(stream, offsets, ends, query, window_us)
        self._subscription = _InTurns(self, feed, *self._tail())
        return self._subscription

    def touch(self, shard: int) -> None:
        """The shard grew."""
        if self._subscription is not None:
            self._subscription.touch(shard)


class _InTurns(LocalSubscription):
    """A subscription that gives nothing more when the reader's turn is over: then it was asked in vain."""

    def __init__(self, port: ReaderPort, feed: Feed, hot: HotTail, settled_us: Callable[[], int]) -> None:
        super().__init__(feed, lambda _: None, hot, settled_us)
        self._port = port

    def next(self, timeout: float | None) -> FetchedBatch | None:
        return None if self._port.is_turn_over else super().next(0.0)


# How long a reader looks before it is the turn of others.
_TURN_SECONDS: Final = 0.03
_COMMIT_SECONDS: Final = 30.0
