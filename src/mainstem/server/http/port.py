"""The log of a server as producers, consumers and administration of its own process see it.

What they ask is done in the thread that asks, which is never the loop's: every route works through a line.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from mainstem.consume.feed import Feed
from mainstem.core.batch import Batch, FetchedBatch
from mainstem.core.errors import Closed, InvalidRequest, ServerStopping
from mainstem.core.schema import Schema
from mainstem.hub.embedded import LocalSubscription
from mainstem.transport.port import Answer, AppendDone, Call, Query, StreamInfo, checked

if TYPE_CHECKING:
    from mainstem.server.server import Server


class ServerPort:
    """Calls and reading. Any thread but the loop's. Appends go another way: see `append`."""

    checks_values = False

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.record_bytes_max = server.settings.record_bytes_max

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        self.check_usable()
        return self._server.carry_out(checked(call))

    def schema(self, schema: int) -> Schema:
        return self._server.log.schema(schema)

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
    ) -> LocalSubscription:
        """Its `next` finds what is there; whoever waits for more is told by somebody else that there is."""
        return LocalSubscription(self._feed(stream, offsets, ends, query), lambda _: None)

    def _feed(
        self, stream: StreamInfo, offsets: Sequence[int], ends: Sequence[int] | None, query: Query | None
    ) -> Feed:
        server = self._server
        row = server.log.reader.require_stream(stream.id)
        if query is None:
            return Feed(server.log.reader, row, offsets, ends, clock=server.clock)
        select = partial(server.selections.get, row, query)
        return Feed(server.log.reader, row, offsets, ends, select, is_plain=query.is_plain, clock=server.clock)

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        raise InvalidRequest("a server appends what its clients send, by itself nothing")

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        raise InvalidRequest("a server appends what its clients send, by itself nothing")

    def can_take(self) -> bool:
        return False

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        raise InvalidRequest("a server ships what its clients send, by itself nothing")

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        return event.wait(timeout)

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

    def __init__(self, server: "Server") -> None:
        super().__init__(server)
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
    ) -> LocalSubscription:
        feed = self._feed(stream, offsets, ends, query)
        self._subscription = _InTurns(self, feed)
        return self._subscription

    def touch(self, shard: int) -> None:
        """The shard grew."""
        if self._subscription is not None:
            self._subscription.touch(shard)


class _InTurns(LocalSubscription):
    """A subscription that gives nothing more when the reader's turn is over: then it was asked in vain."""

    def __init__(self, port: ReaderPort, feed: Feed) -> None:
        super().__init__(feed, lambda _: None)
        self._port = port

    def next(self, timeout: float | None) -> FetchedBatch | None:
        return None if self._port.is_turn_over else super().next(0.0)


# How long a reader looks before it is the turn of others.
_TURN_SECONDS: Final = 0.03
