"""The thread that keeps a log, and its rounds."""

import logging
import threading
from collections.abc import Iterator
from typing import Final

from mainstem.core.clock import Clock
from mainstem.core.errors import Closed, DiskFull, MainstemError, StreamDeleted, UnknownStream
from mainstem.core.events import Event
from mainstem.log.blocks.base import BlockStore
from mainstem.log.contents import Promote, SchemaOf, never_promoted, no_schema
from mainstem.log.ledger.base import ShardKey, StreamRow
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.snapshots import Snapshots
from mainstem.log.upkeep.compacting import Compacting
from mainstem.log.upkeep.erasing import Erasing
from mainstem.log.upkeep.forgetting import Forgetting
from mainstem.log.upkeep.freeing import Freeing
from mainstem.log.upkeep.merging import Merging
from mainstem.log.upkeep.pace import Pace
from mainstem.log.upkeep.trimming import Trimming
from mainstem.log.upkeep.work import Commits, Work

logger = logging.getLogger("mainstem.log")

# Rows are dropped, entries merged and compacted so often; retention and blocks are looked at at the chosen pace.
_ROUND_SECONDS: Final = 2.0
# After a failure.
_RETRY_SECONDS: Final = 5.0


class Upkeep:
    """Keeps one log. `round` is for one thread; `erase`, `look_at` and the counters for any."""

    def __init__(
        self,
        commits: Commits,
        ledger: SqliteLedgerReader,
        blocks: BlockStore,
        snapshots: Snapshots,
        clock: Clock,
        pace: Pace,
        schema_of: SchemaOf = no_schema,
        promote: Promote = never_promoted,
    ) -> None:
        self.pace = pace
        self._work = Work(commits, ledger, blocks, clock, pace, schema_of)
        self._trimming = Trimming(self._work)
        self._merging = Merging(self._work, promote)
        self._compacting = Compacting(self._work)
        self._freeing = Freeing(self._work, blocks, snapshots)
        self._forgetting = Forgetting(self._work)
        self._erasing = Erasing(self._work, self._trimming, self._freeing)
        self._retention_due = 0.0
        self._thread: threading.Thread | None = None

    def counters(self) -> dict[str, int]:
        return dict(self._work.counts)

    def start(self) -> None:
        """Keep the log from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="mainstem-upkeep", daemon=True)
        self._work.rests.thread = self._thread
        self._thread.start()

    def close(self) -> None:
        """Stop at the end of the step under way."""
        self._work.closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._work.closing.wait(min(_ROUND_SECONDS, self.pace.interval)):
            try:
                for _ in self.round():
                    if self._work.closing.is_set():
                        return
            except (Closed, StreamDeleted, UnknownStream, DiskFull):
                # Without room nothing is stored anew; what can be freed without was freed before that.
                continue
            except Exception as error:
                if self._work.commits.has_failed():
                    return  # whoever commits has said why
                self._work.counts["upkeep_errors"] += 1
                is_bug = not isinstance(error, MainstemError | OSError)
                logger.error(Event("upkeep failed and is tried again", error=error), exc_info=is_bug)
                if self._work.closing.wait(_RETRY_SECONDS):
                    return

    def round(self) -> Iterator[None]:
        """One round of everything that is due, in steps; what is going on between them is the caller's."""
        between = self._work.rests.between
        now = self._work.clock.monotonic()
        self._work.commits.end_overdue()
        if now >= self._retention_due:
            self._retention_due = now + self.pace.interval
            yield from between(self._forgetting.forget())
            yield from between(self._trimming.trim())
        yield from between(self._trimming.drop())
        if now >= self._freeing.due:
            self._freeing.due = now + self.pace.interval
            yield from between(self._freeing.keep_blocks())
        yield from between(self._merging.merge())
        yield from between(self._compacting.compact())

    def run_until_idle(self) -> None:
        """Everything that is due by the clock, at once and without a rest: for tests and for tools."""
        self._retention_due = self._freeing.due = 0.0
        rests = self._work.rests
        are_taken, rests.are_taken = rests.are_taken, False
        try:
            while sum(1 for _ in self.round()):
                self._freeing.due = 0.0
        finally:
            rests.are_taken = are_taken

    def look_at(self, key: ShardKey) -> None:
        """The start of this shard has moved."""
        self._trimming.look_at(key)

    def erase(self, stream: StreamRow, key: bytes) -> int:
        """Take every record of one key away that is there now; how many. Then no reader can see one any more."""
        return self._erasing.erase(stream, key)
