"""What ports of a log in this process share that only read it, and how they begin to read."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from mainstem.consume.feed import Feed
from mainstem.consume.selections import Selections
from mainstem.core.batch import Batch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import MainstemError
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.log.ledger.base import StreamRow
from mainstem.log.reader import LogReader
from mainstem.transport.port import Answer, Answered, AppendDone, Call, Query
from mainstem.transport.sharing import CommitTransactionCall, Staging


class ReadingPort(ABC):
    """A port by which nothing is appended: whoever tries hears why."""

    record_bytes_max = RECORD_BYTES_MAX
    checks_values = False
    write_share = 1.0

    @abstractmethod
    def no_appends(self) -> MainstemError:
        """Why nothing is appended here."""

    def ask(self, call: Call, timeout: float, done: Answered) -> None:
        raise self.no_appends()

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        raise self.no_appends()

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        raise self.no_appends()

    def stage(self, staging: Staging, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        raise self.no_appends()

    def commit_whole(
        self, staging: Staging, batches: Sequence[Batch], call: CommitTransactionCall, timeout: float
    ) -> Answer:
        raise self.no_appends()

    def can_take(self) -> bool:
        return False

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        raise self.no_appends()

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        return event.wait(timeout)


def feed_of(
    reader: LogReader,
    row: StreamRow,
    offsets: Sequence[int],
    ends: Sequence[int] | None,
    selections: Selections,
    query: Query | None,
    window_us: int | None,
    schema_of: Callable[[int], Schema],
    clock: Clock = SYSTEM_CLOCK,
) -> Feed:
    """What a reader with this query is fed with. Here no quota leaves anything out."""
    if query is not None and query.is_as_stored:
        query = None
    select = None if query is None else partial(selections.get, row, query)
    is_plain = query is not None and query.is_plain
    return Feed(
        reader, row, offsets, ends, select, is_plain=is_plain, window_us=window_us, schema_of=schema_of, clock=clock
    )
