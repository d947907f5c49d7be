"""What every part of upkeep works with: the log, its rows, and a way to store anew what it has read."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from mainstem.core.batch import FetchedBatch
from mainstem.core.clock import Clock
from mainstem.core.errors import Busy
from mainstem.core.limits import MIB
from mainstem.log.blocks.base import BlockStore
from mainstem.log.contents import Contents, SchemaOf
from mainstem.log.flush import Command, Done, Replacement
from mainstem.log.ledger.base import Entry, ShardKey, ShardRow, StreamRow, barriers_of
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.reader import LogReader
from mainstem.log.replacement import Records, Upshot, grouped, records_of
from mainstem.log.upkeep.pace import Pace
from mainstem.log.upkeep.rests import Rests

# One step: bytes stored anew in one flush, rows looked at in one go.
_STEP_BYTES: Final = 1 * MIB
STEP_ROWS: Final = 1_024
_BUSY_SECONDS: Final = 0.05


class Commits(Protocol):
    """What upkeep needs of the log it keeps: a way to commit, and the rows as they stand in memory."""

    def execute(self, item: Command | Replacement) -> Done: ...

    def commit_nothing(self) -> None:
        """An empty flush, for what a flush does beside carrying items."""
        ...

    def is_disk_full(self) -> bool: ...

    def has_failed(self) -> bool:
        """Whether nothing is committed any more, for good."""
        ...

    def pinned(self, blocks: Iterable[int]) -> set[int]:
        """Those of these blocks that must stay: something in them may be committed."""
        ...

    def end_overdue(self) -> None:
        """End the transactions whose time is over."""
        ...

    def forget_hot(self, key: ShardKey, before: int) -> None:
        """From now on readers find what stands below `before` where the ledger says, not in memory."""
        ...

    def forget_shared(self, key: ShardKey) -> None:
        """What was read of a shard for several readers is not what it is any more."""
        ...

    def request_roll(self) -> None: ...

    def request_snapshot(self) -> None: ...

    def streams(self) -> list[StreamRow]: ...

    def shard(self, key: ShardKey) -> ShardRow: ...


class Work:
    """One log that is kept. Any thread, but for the rests."""

    def __init__(
        self,
        commits: Commits,
        ledger: SqliteLedgerReader,
        blocks: BlockStore,
        clock: Clock,
        pace: Pace,
        schema_of: SchemaOf,
    ) -> None:
        self.commits = commits
        self.ledger = ledger
        self.clock = clock
        self.pace = pace
        self._schema_of = schema_of
        self.reader = LogReader(ledger, blocks, recent_bytes=0)
        self.closing = threading.Event()
        self.rests = Rests(clock, pace.share, self.closing)
        self.counts = dict.fromkeys(
            (
                "rows_dropped",
                "entries_merged",
                "records_compacted",
                "records_erased",
                "bytes_rewritten",
                "blocks_freed",
                "bytes_freed",
                "upkeep_errors",
            ),
            0,
        )

    def execute(self, item: Command | Replacement) -> Done:
        """Commit, waiting while others have filled the log."""
        while True:
            try:
                return self.commits.execute(item)
            except Busy:
                if self.closing.wait(_BUSY_SECONDS):
                    raise

    def contents(self, stream: StreamRow) -> Contents:
        return Contents.of(stream, self._schema_of)

    def groups(
        self, stream: StreamRow, entries: Sequence[Entry], target: Callable[[int], int] = int
    ) -> list[Sequence[FetchedBatch]]:
        """The batches of these entries, in groups that are stored anew each by itself."""
        batches = list(self.rests.within(self.reader.load(stream, entries)))
        return grouped(batches, self.barriers(stream, entries[0].shard), target, self.contents(stream))

    def barriers(self, stream: StreamRow, shard: int) -> frozenset[int]:
        """Of a shard; looked up after its entries: one that is set later stands behind them."""
        return barriers_of(self.ledger.load_generations(stream.id), shard)

    def records(self, group: Sequence[FetchedBatch], contents: Contents) -> Records:
        """The records of one group."""
        return records_of(group, contents, self.rests.within)

    def upshot(self, *, merged: int = 0) -> Upshot:
        """What else is to be done where entries are stored anew."""
        return Upshot(self.rewrite_us(), merged)

    def rewrite_us(self) -> int:
        """By when bytes should be off the disk that are dead from now on."""
        return self.pace.rewrite_us(self.clock.now_us())


def one_step(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The first of these entries, as many as are stored anew in one flush; at least one."""
    size = 0
    for index, entry in enumerate(entries):
        size += entry.length
        if size > _STEP_BYTES:
            return entries[: max(1, index)]
    return entries
