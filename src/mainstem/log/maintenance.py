"""When the ledger is checkpointed and copied: beside the commits, never in their way for long.

A checkpoint is announced in a commit frame before it starts (`checkpoint_begun`, the last flush it will hold) and
reported in the next one (`checkpoint_done`), so that recovery recognises a database file that one was writing to. It is
carried out when the announcing flush is durable and not yet applied: a ledger that lacks that flush because the process
was killed in between is then still one that no unfinished checkpoint can have spoilt.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from mainstem.core.errors import LedgerDamaged
from mainstem.core.events import Event
from mainstem.log.disk import is_out_of_space
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.log.snapshots import Snapshots
from mainstem.log.writer import FlushFile

logger = logging.getLogger("mainstem.log")


class Maintenance:
    """Decides on checkpoints and snapshots and carries them out. Called by the thread that commits."""

    def __init__(
        self,
        ledger: SqliteLedger,
        file: FlushFile,
        snapshots: Snapshots,
        *,
        checkpoint_bytes: int,
        snapshot_bytes: int,
        checkpoint_done: int,
        snapshot_now: bool,
    ) -> None:
        self._ledger = ledger
        self._path: Path = ledger.path
        self._file = file
        self._snapshots = snapshots
        self._checkpoint_bytes = checkpoint_bytes
        self._snapshot_bytes = snapshot_bytes
        # The highest flush in a checkpoint that was announced, that is complete, that was reported complete.
        self._begun = checkpoint_done
        self._done = checkpoint_done
        self._said_done = checkpoint_done
        # The flush that announced a checkpoint which was not tried yet; 0 if none did.
        self._announced = 0
        # A checkpoint that a reader held up, whatever it was for, is tried again when the WAL has grown to this.
        self._retry_bytes = 0
        self._snapshot_at = -snapshot_bytes if snapshot_now else 0
        self._snapshotting: threading.Thread | None = None
        self.snapshot_errors = 0
        # Told of damage that a snapshot meets.
        self.on_damage: Callable[[LedgerDamaged], None] = lambda error: None

    @property
    def bytes_since_snapshot(self) -> int:
        """What a rebuild of the ledger would have to read of what this process wrote."""
        return self._file.bytes_written - max(0, self._snapshot_at)

    @property
    def wants_flush(self) -> bool:
        """Whether an empty flush should say that a checkpoint is complete."""
        return self._said_done < self._done

    def checkpoint_for(self, number: int, *, announces: bool) -> tuple[int, int]:
        """(begun, done) for the commit frame of flush `number`. Called by the thread that writes it.

        One that announces a checkpoint is written when the flush before it is applied.
        """
        if announces:
            self._announced, self._begun = number, number - 1
        self._said_done = self._done
        return self._begun, self._said_done

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the next flush should announce a checkpoint. Asked by the thread that writes it."""
        if self._announced or (self._snapshotting is not None and self._snapshotting.is_alive()):
            return False
        wal_bytes = self._ledger.wal_bytes()
        if wal_bytes < self._retry_bytes:
            return False
        return wal_bytes >= self._checkpoint_bytes or self._snapshot_due()

    def before(self, number: int) -> None:
        """Flush `number` is durable and not yet applied: carry out the checkpoint it announced."""
        if number != self._announced:
            return
        self._announced = 0
        if not self._checkpoint():
            # Each try makes the commits wait and reads the whole WAL, so tries become rarer as it grows.
            self._retry_bytes = max(2 * self._ledger.wal_bytes(), self._checkpoint_bytes)
            return
        self._retry_bytes = 0
        self._done = number - 1
        if self._snapshot_due():
            self._snapshot_at = self._file.bytes_written
            self._snapshotting = threading.Thread(target=self._snapshot, name="mainstem-snapshot", daemon=True)
            self._snapshotting.start()

    def request_snapshot(self) -> None:
        """Take a snapshot with the next checkpoint, however little was written since the last. Any thread."""
        self._snapshot_at = -self._snapshot_bytes

    def _checkpoint(self) -> bool:
        try:
            if self._ledger.checkpoint():
                return True
            logger.warning(Event("a reader holds up the checkpoint of the ledger", wal_bytes=self._ledger.wal_bytes()))
        except OSError as error:
            # The WAL is as it was, and still holds everything.
            if not is_out_of_space(error):
                raise
            logger.warning(Event("no room for the checkpoint of the ledger", wal_bytes=self._ledger.wal_bytes()))
        return False

    def _snapshot_due(self) -> bool:
        return self._file.bytes_written - self._snapshot_at >= self._snapshot_bytes

    def _snapshot(self) -> None:
        try:
            number = self._snapshots.take(self._path)
            logger.info(Event("ledger snapshot taken", flush=number, file=self._snapshots.path(number).name))
        except (OSError, LedgerDamaged) as error:
            self.snapshot_errors += 1
            if isinstance(error, LedgerDamaged):
                self.on_damage(error)
            # The blocks still hold everything; it is tried again when as much has been written as between snapshots.
            logger.warning(Event("ledger snapshot failed; the blocks still hold everything", reason=error))

    def close(self) -> None:
        if self._snapshotting is not None:
            self._snapshotting.join()
