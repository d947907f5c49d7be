"""The log of one data folder, put together: open, append, read, follow, close."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mainstem.core.batch import Batch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.delivery import Delivery
from mainstem.core.errors import (
    DiskFull,
    FolderUnusable,
    InternalError,
    InvalidName,
    LedgerDamaged,
    MainstemError,
    UnknownStream,
)
from mainstem.core.events import Event
from mainstem.core.histogram import Distribution
from mainstem.core.known_schemas import KnownSchemas
from mainstem.core.limits import BLOCK_BYTES_DEFAULT, FREE_BYTES_MIN_DEFAULT, MIB
from mainstem.core.names import check_group_name, check_stream_name
from mainstem.core.schema import Schema
from mainstem.log import cooling, staging
from mainstem.log.batcher import Batcher, Outcomes, Submission
from mainstem.log.blocks.base import BlockMissing, BlockStore
from mainstem.log.contents import Promote, never_promoted
from mainstem.log.cooling import Cooling
from mainstem.log.disk import Disk, LocalDisk, is_out_of_space
from mainstem.log.figures import folder_figures
from mainstem.log.flush import (
    Command,
    Done,
    GroupCursors,
    OpenWriter,
    Outcome,
    Rejected,
    Replacement,
    WriterOpened,
)
from mainstem.log.folder import Folder, FolderLock, require_no_backup
from mainstem.log.groups import Groups
from mainstem.log.hot_tail import HotTail
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import GenerationRow, ShardKey, ShardRow, StreamRow
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.maintenance import Maintenance
from mainstem.log.reader import LogReader
from mainstem.log.recovery import Recovered, Recovery
from mainstem.log.space import Space
from mainstem.log.transactions import (
    NO_DELIVERY,
    NO_WRITER,
    TRANSACTION_SECONDS_DEFAULT,
    DeliveryNumber,
    Transactions,
    Writer,
)
from mainstem.log.upkeep import Pace, Upkeep
from mainstem.log.writer import FlushFile, WriterIdentity

logger = logging.getLogger("mainstem.log")

LEDGER_EPOCH_FIRST = 1
# What a start needs on a full disk, beside a ledger that must be rebuilt: the next block, the write-ahead log.
_START_BYTES = 16 * MIB
# How long a thread that waits for another one's commit sleeps before it looks whether it has to commit after all.
_LOOK_AGAIN_SECONDS = 0.05
# How much of a name that cannot be one is shown.
_NAME_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What may be chosen about a log; the defaults suit one node."""

    block_bytes: int = BLOCK_BYTES_DEFAULT
    hot_tail_bytes: int = 32 * MIB
    checkpoint_bytes: int = 2 * MIB
    snapshot_bytes: int = 256 * MIB
    pace: Pace = field(default_factory=Pace)
    free_bytes_min: int = FREE_BYTES_MIN_DEFAULT
    # A server has one; in the user's own process a file that only takes room would be a surprise.
    ballast_bytes: int = 0


class Log:
    """The writing process's log. Any thread. Call `close`, or lose nothing but the clean seal of the last block."""

    def __init__(
        self,
        path: Path,
        options: LogOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
        promote: Promote = never_promoted,
    ) -> None:
        options = options or LogOptions()
        disk = disk or LocalDisk()
        self._promote = promote
        self.path = path
        self.clock = clock
        require_no_backup(path)
        try:
            disk.make_dirs(path)
            self._lock = FolderLock(path)
        except OSError as error:
            if is_out_of_space(error):
                raise _no_room_to_start(path) from error
            raise FolderUnusable(
                f"{path} cannot be a data folder: {error.strerror or error}; give the path of a folder, or of one that "
                "can be made, where files can be written"
            ) from error
        folder = Folder(path, disk)
        # What is open is closed again if not everything can be.
        with ExitStack() as opened:
            opened.callback(self._lock.release)
            opened.callback(folder.blocks.close)
            self._open(folder, options, opened)
            opened.pop_all()

    def _open(self, folder: Folder, options: LogOptions, opened: ExitStack) -> None:
        self._folder = folder
        self.space = Space(folder.path, folder.disk, self.clock, options.free_bytes_min, options.ballast_bytes)
        log_uuid, recovered = self._recover(folder)
        ledger = self._ledger = recovered.ledger
        opened.callback(ledger.close)
        self._replayed = recovered.replayed
        if recovered.replayed:
            logger.info(Event("flushes applied again from the blocks", flushes=recovered.replayed))
        identity = WriterIdentity(log_uuid, ledger.epoch(), recovered.writer_epoch + 1)
        self._entries = SqliteLedgerReader(folder.ledger)
        opened.callback(self._entries.close)
        self.schemas = KnownSchemas(self._entries.load_schema)
        file = FlushFile(
            folder.blocks,
            identity,
            self.clock,
            options.block_bytes,
            recovered.block_max,
            folder.note_block,
            self.schemas.find,
        )
        self._file = file
        for block in recovered.ended:
            file.seal_later(block, _size_if_there(folder.blocks, block))
        cooling.sweep(folder.blocks, (row.id for row in ledger.list_blocks()))
        there = {*folder.blocks.list(), *folder.blocks.list_cold()}
        for row in ledger.list_blocks():
            if row.live_bytes and row.id not in there and row.id not in recovered.ended:
                _tell_missing(folder.blocks, row.id)
        self._applier = Applier(ledger)
        self.hot = HotTail(options.hot_tail_bytes)
        self._maintenance = Maintenance(
            ledger,
            file,
            folder.snapshots,
            checkpoint_bytes=options.checkpoint_bytes,
            snapshot_bytes=options.snapshot_bytes,
            checkpoint_done=recovered.checkpoint_done,
            snapshot_now=recovered.snapshot_wanted,
        )
        self.batcher = Batcher(file, self._applier, self.hot, self._maintenance, self.space, self.clock)
        self.ledger = _LiveLedger(self._applier, self._entries, self.schemas, identity.ledger_epoch)
        self.reader = LogReader(self.ledger, folder.blocks, self.hot)
        staging.collect(folder.path, self.clock.now_us())
        self.transactions = Transactions(self.batcher.submit, lambda: file.block, self.clock)
        self.groups = Groups(self.ledger, self.batcher.submit, self.execute, self.clock)
        self._upkeep_ledger = SqliteLedgerReader(folder.ledger)
        opened.callback(self._upkeep_ledger.close)
        # Not begun here: whoever opens the log decides whether a thread keeps it.
        self.upkeep = Upkeep(
            _Kept(self),
            self._upkeep_ledger,
            folder.blocks,
            folder.snapshots,
            self.clock,
            options.pace,
            self.schemas.get,
            self._promote,
        )
        self.cooling = Cooling(
            self.ledger,
            folder.blocks,
            _Cooled(self),
            self.clock,
            (log_uuid, identity.ledger_epoch, identity.writer_epoch),
            str(folder.path.absolute()),
        )
        # What a read or a snapshot met; a commit that meets damage fails, and with it the log.
        self.ledger_damage: LedgerDamaged | None = None
        for noticing in (self._entries, self._upkeep_ledger, self._maintenance):
            noticing.on_damage = self._on_damage
        self.uuid = log_uuid
        self.epoch = identity.ledger_epoch
        self._closed = False

    def _on_damage(self, error: LedgerDamaged) -> None:
        if self.ledger_damage is None:
            self.ledger_damage = error
            logger.error(Event("the ledger is damaged; nothing is lost, the next start rebuilds it", reason=error))

    def _recover(self, folder: Folder) -> tuple[str, Recovered]:
        """Bring the ledger in agreement with the blocks. On a full disk the ballast makes room for that."""
        while True:
            try:
                log_uuid = folder.prepare()
                recovery = Recovery(folder.ledger, folder.snapshots, folder.blocks, log_uuid, LEDGER_EPOCH_FIRST)
                return log_uuid, recovery.run()
            except OSError as error:
                if not is_out_of_space(error):
                    raise
                if not self.space.release_ballast():
                    raise _no_room_to_start(folder.path) from error

    @property
    def applier(self) -> Applier:
        """The rows of streams, shards and access as they are in memory."""
        return self._applier

    # Writing.

    def append(self, batches: Sequence[Batch], done: Callable[[Outcomes | MainstemError], None]) -> None:
        """Queue batches for the next flush; `done` is called by the committing thread."""
        self.batcher.submit(Submission(batches, done))

    def execute(self, item: Command | Replacement) -> Done:
        """Carry out one command and wait for it, driving the commit in this thread."""
        outcome = self._outcome(item)
        assert isinstance(outcome, Done)
        return outcome

    def _outcome(self, item: Command | Replacement) -> Outcome:
        outcome = self.attempt(item)
        if isinstance(outcome, Rejected):
            raise outcome.error
        return outcome

    def attempt(self, item: Command | Replacement) -> Outcome:
        """What became of a command: `Rejected` if it changed nothing. What is raised says nothing about that."""
        waiter = Waiter()
        self.batcher.submit(Submission((item,), waiter.set))
        return waiter.wait(self.batcher)[0]

    # Transactions; see there.

    def stage(
        self,
        transaction: int,
        index: int,
        batches: Sequence[Batch],
        done: Callable[[Outcomes | MainstemError], None],
        *,
        timeout: float = TRANSACTION_SECONDS_DEFAULT,
        writer: Writer = NO_WRITER,
        delivery: DeliveryNumber = NO_DELIVERY,
        patience: float = 0.0,
    ) -> None:
        """Write batches of a transaction, durably and without effect; `done` gets a `Staged` for each."""
        self.transactions.stage(
            transaction, index, batches, done, timeout=timeout, writer=writer, delivery=delivery, patience=patience
        )

    def commit_transaction(
        self,
        transaction: int,
        batches: int,
        cursors: Sequence[GroupCursors],
        done: Callable[[Outcomes | MainstemError], None],
        *,
        writer: Writer = NO_WRITER,
    ) -> None:
        """Make all `batches` of a transaction visible and move cursors, or nothing; `done` gets `TransactionCommitted`
        or `Rejected`."""
        self.transactions.commit(transaction, batches, cursors, done, writer=writer)

    def commit_whole(
        self,
        transaction: int,
        batches: Sequence[Batch],
        cursors: Sequence[GroupCursors],
        done: Callable[[Outcomes | MainstemError], None],
        *,
        writer: Writer = NO_WRITER,
        patience: float = 0.0,
    ) -> None:
        """The same for a transaction of which nothing is written yet, in one flush."""
        self.transactions.commit_whole(transaction, batches, cursors, done, writer=writer, patience=patience)

    def commit_parts(
        self,
        transaction: int,
        parts: Sequence[tuple[int, int]],
        done: Callable[[Outcomes | MainstemError], None],
        *,
        delivery: Delivery | None = None,
    ) -> None:
        """The same for transactions of several clients, which become one."""
        self.transactions.commit_parts(transaction, parts, done, delivery=delivery)

    def abort_transaction(self, transaction: int) -> bool:
        """Forget what was staged; whether the transaction was open."""
        return self.transactions.abort(transaction)

    def abort_delivery(self, stream: int, delivery: DeliveryNumber, *, for_good: bool = False) -> None:
        """The same for all that was staged for a delivery and those before it."""
        self.transactions.abort_delivery(stream, delivery, for_good=for_good)

    def open_writer(self, name: str) -> Writer:
        """Write transactions under this name from now on, and fence whoever did before. Waits for the ledger."""
        check_group_name(name, "writer")
        opened = self._outcome(OpenWriter(name, self.clock.now_us()))
        assert isinstance(opened, WriterOpened)
        writer = Writer(name, opened.epoch)
        self.transactions.fence(writer)
        return writer

    def commit_nothing(self) -> None:
        """An empty flush, for what a flush does beside carrying items: a new block, a checkpoint."""
        waiter = Waiter()
        self.batcher.submit(Submission((), waiter.set))
        waiter.wait(self.batcher)

    def schema(self, schema: int) -> Schema:
        """The schema of this id; InvalidSchema if there is none. Any thread; one that was seen costs a look."""
        return self.schemas.get(schema)

    def counters(self) -> dict[str, int]:
        """What an operator may want to see of the log."""
        return {
            **folder_figures(self._folder, self.ledger),
            "flushes_applied": self._applier.applied,
            "flushes_replayed": self._replayed,
            "pending_bytes": self.batcher.pending_bytes,
            "hot_tail_bytes": self.hot.bytes,
            "block_reads": self.reader.disk_reads,
            "block_read_bytes": self.reader.disk_bytes,
            "shared_reads_bytes": self.reader.shared.bytes,
            "bytes_written": self._file.bytes_written,
            "groups": self._applier.group_count,
            **self.transactions.counters(),
            **self.upkeep.counters(),
            "bytes_since_snapshot": self._maintenance.bytes_since_snapshot,
            "snapshot_errors": self._maintenance.snapshot_errors,
            "ledger_damaged": int(self.ledger_damage is not None),
            **self._space_counters(),
        }

    def _space_counters(self) -> dict[str, int]:
        self.space.look(now=True)
        until_full = self.space.seconds_until_full
        return {
            "free_bytes": self.space.free,
            "disk_full": int(self.space.is_told_full),
            "appends_refused_full": self.space.refused,
            # -1: at the present rate, never.
            "seconds_until_full": -1 if until_full is None else round(until_full),
        }

    def histograms(self) -> dict[str, Distribution]:
        """How long commits took and how large they were, since the log was opened."""
        return {"commit_seconds": self.batcher.commit_seconds.now(), "flush_bytes": self.batcher.flush_bytes.now()}

    @property
    def word(self) -> str:
        """What is found in the folder while this writes it: see FolderLock."""
        return self._lock.word

    def written_shards(self) -> dict[ShardKey, ShardRow]:
        """Every shard that was ever written, as it is now."""
        return dict(self._applier.written_shards())

    # Ending.

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # From the last of these to the first; one that fails does not leave the others open, and the folder locked.
        with ExitStack() as closing:
            for step in (
                self._lock.release,
                self._folder.blocks.close,
                self._folder.snapshots.close,
                self._ledger.close,
                self._upkeep_ledger.close,
                self._entries.close,
                self.reader.close,
                self._maintenance.close,
                self.batcher.close,
                self.upkeep.close,
            ):
                closing.callback(step)

    def abandon_after_fork(self) -> None:
        """In a child made by fork: leave the lock to the parent, and its SQLite connections alone for good."""
        self._lock.release()
        _inherited.append(self)


# Logs inherited through fork. Closing their SQLite connections here would touch the parent's files.
_inherited: list[Log] = []


def unknown_stream(name: str) -> UnknownStream:
    """With the command that makes it, if there can be one: what is no name may be anything, also to a shell."""
    try:
        check_stream_name(name)
    except InvalidName:
        return UnknownStream(f"there is no stream {name[:_NAME_SHOWN_CHARS]!r}")
    return UnknownStream(f"there is no stream {name!r}; create it: mainstem stream create {name}")


def _no_room_to_start(path: Path) -> DiskFull:
    return DiskFull(
        f"the disk of {path} is full, and opening the folder for writing needs room for its ledger: free as much as "
        f"ledger.db has, and at least {_START_BYTES // MIB} MiB. What was acknowledged is kept; with read_only=True it "
        "can be read now"
    )


def _size_if_there(blocks: BlockStore, block: int) -> int:
    """A block that somebody took away is still sealed; its readers will be told what is missing."""
    try:
        return blocks.size(block)
    except BlockMissing:
        _tell_missing(blocks, block)
        return 0


def _tell_missing(blocks: BlockStore, block: int) -> None:
    logger.error(Event("block missing; its records cannot be read until it is back", file=blocks.where(block)))


class _Kept:
    """The log as its upkeep sees it."""

    def __init__(self, log: Log) -> None:
        self.execute = log.execute
        self.commit_nothing = log.commit_nothing
        self.is_disk_full = log.space.look
        self.has_failed = lambda: log.batcher.failure is not None
        self._hot, self.forget_shared = log.hot, log.reader.shared.forget
        self.request_roll = log.batcher.request_roll
        self.request_snapshot = log._maintenance.request_snapshot
        self.pinned = log.transactions.pinned
        self.end_overdue = log.transactions.tick
        self.streams = log._applier.streams
        self.shard = log._applier.shard

    def forget_hot(self, key: ShardKey, before: int) -> None:
        self._hot.forget(key, before)
        self.forget_shared(key)


class _Cooled:
    """The log as it is seen by who makes old records cold."""

    def __init__(self, log: Log) -> None:
        self.attempt = log.attempt
        self.rewrite_us = lambda: log.upkeep.pace.rewrite_us(log.clock.now_us())


class _Missing(NamedTuple):
    """How many records a shard lacked, when it had been thinned so often and began there."""

    times_thinned: int
    start: int
    records: int


class _LiveLedger:
    """The writer's own view: rows of streams and shards from memory, entries from the database."""

    def __init__(self, applier: Applier, entries: SqliteLedgerReader, schemas: KnownSchemas, epoch: int) -> None:
        self._applier = applier
        self._entries = entries
        self.load_schema = schemas.find
        self.load_versions = entries.load_versions
        self.load_producer = entries.load_producer
        self.load_transaction = entries.load_transaction
        self.load_moments = entries.load_moments
        self.newest_moment = entries.newest_moment
        self._epoch = epoch
        self.applied = entries.applied
        self.entries_from = entries.entries_from
        self.entry_at_time = entries.entry_at_time
        self.oldest_entries = entries.oldest_entries
        self.list_blocks = entries.list_blocks
        self.block_totals = entries.block_totals
        self.dead_totals = entries.dead_totals
        self.dead_bytes = entries.dead_bytes
        self.statistics_bytes = entries.statistics_bytes
        self.group_named = entries.group_named
        self.list_groups = entries.list_groups
        self.list_group_shards = entries.list_group_shards
        # A restore is an epoch of its own: while a process writes, there is no other.
        self._restored = entries.restored()
        # For each batch that comes: every call counts.
        self.load_stream = applier.stream
        self.load_access = applier.access_rows
        self._missing: dict[ShardKey, _Missing] = {}

    def epoch(self) -> int:
        return self._epoch

    def restored(self) -> Mapping[int, Mapping[ShardKey, int]]:
        return self._restored

    def stream_named(self, name: str) -> StreamRow | None:
        return self._applier.stream_named(name)

    def list_streams(self) -> list[StreamRow]:
        return self._applier.streams()

    def load_generations(self, stream: int) -> tuple[GenerationRow, ...]:
        return self._applier.generations(stream)

    def load_shard(self, stream: int, shard: int) -> ShardRow:
        return self._applier.shard((stream, shard))

    def missing_records(self, stream: int, shard: int) -> int:
        """Counted anew only after a compaction or an erasure, or a trim where some are missing: all rows of the shard
        are looked at for that."""
        key = (stream, shard)
        row, times = self._applier.shard(key), self._applier.times_thinned(key)
        if row.start == row.stable:
            return 0
        known = self._missing.get(key)
        if known is None or known.times_thinned != times or (known.records and known.start != row.start):
            known = self._missing[key] = _Missing(times, row.start, self._entries.missing_records(stream, shard))
        return known.records

    def close(self) -> None:
        self._entries.close()


class Waiter:
    """One thread waiting for one submission, committing itself instead of being woken."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._result: Outcomes | MainstemError | None = None

    def set(self, result: Outcomes | MainstemError) -> None:
        self._result = result
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, batcher: Batcher) -> Outcomes:
        while not self._event.is_set():
            if not batcher.drive(self._event.is_set):
                # Another thread has it.
                self._event.wait(_LOOK_AGAIN_SECONDS)
        if isinstance(self._result, MainstemError):
            raise self._result
        if self._result is None:
            raise InternalError("a submission ended without a result")
        return self._result
