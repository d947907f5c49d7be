"""Group commit: many submissions, one flush.

While one flush is on disk the next one gathers; there is no timer. A flush passes three stages: it is written to the
block and synced, applied to the ledger, published to followers and to those who wait. The stages of consecutive
flushes overlap by two locks taken hand over hand: whoever writes takes the apply lock before it lets go of the write
lock, so flushes are applied in the order of their numbers, and the next write starts while this one is applied.

Any thread may drive (`drive`): a server has one thread that does nothing else and one that helps while much waits; in
an embedded hub the thread that waits for its own acknowledgement does it, because handing over to another thread would
cost an interpreter switch each way.

The first error of the disk or the ledger fences the batcher: nothing is acknowledged after it, ever. A full disk is no
error but a state: nothing of the flush that found no room has happened, its number is given again. Its batches are
held in their order, for as long as their owners wait, and written when there is room; its commands get the ballast's.
A flush that is durable already and finds no room in the ledger is applied again and again until it does.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from mainstem.core.batch import Batch, BatchHeader, FetchedBatch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import Busy, Closed, FolderUnusable, MainstemError, StreamDeleted
from mainstem.core.events import Event
from mainstem.core.histogram import COMMIT_SECONDS, FLUSH_BYTES, Histogram
from mainstem.core.limits import FLUSH_BATCHES_MAX, FLUSH_BYTES_MAX, KIB, MIB, PENDING_BYTES_MAX
from mainstem.log.disk import is_out_of_space
from mainstem.log.flush import (
    Appended,
    Flush,
    Item,
    Outcome,
    Replacement,
    TransactionCommitted,
    WholeTransaction,
    large_command_bytes,
)
from mainstem.log.hot_tail import HotTail
from mainstem.log.ledger.apply import Applier
from mainstem.log.ledger.base import Changes, ShardKey
from mainstem.log.maintenance import Maintenance
from mainstem.log.space import Space
from mainstem.log.writer import FlushFile

logger = logging.getLogger("mainstem.log")

Outcomes = list[Outcome]

# Bytes that wait beyond which a second thread helps.
_CROWD_BYTES: Final = 256 * KIB
# How often a thread that runs looks whether the disk has room for what is held.
_LOOK_SECONDS: Final = 0.1
# What must be free beside the bytes that upkeep wants to store anew.
_REPLACEMENT_MARGIN: Final = 1 * MIB
# Commands up to this count as nothing: they are always taken, also on a full disk.
_COMMAND_BYTES: Final = 4 * KIB
# How long, and how often, a durable flush that finds no room in the ledger is applied again.
_LEDGER_SECONDS_MAX: Final = 30.0
_LEDGER_RETRY_SECONDS: Final = 0.1


class Submission:
    """Items that are committed together, and what to do when they are. Made by one thread, completed by another.

    `patience`: until when, by the monotonic clock, batches that found no room on the disk may wait for some; then, or
    without any at once, they get DiskFull. `schemas`: what saying each schema of the batches takes in a block, once it
    is submitted.
    """

    __slots__ = ("count", "done", "is_append", "items", "patience", "schemas", "size")

    def __init__(
        self, items: Sequence[Item], done: Callable[[Outcomes | MainstemError], None], patience: float = 0.0
    ) -> None:
        self.items = items
        self.done = done
        self.patience = patience
        self.size = sum(map(_stored_bytes, items))
        self.is_append = any(isinstance(item, Batch | WholeTransaction) for item in items)
        self.count = sum(map(_batches_of, items))
        self.schemas: dict[int, int] = {}


class FlushNotice(NamedTuple):
    """What a flush changed for readers: the new ends of shards that grew, and streams that were deleted."""

    ends: dict[ShardKey, int]
    deleted: tuple[int, ...]


FlushListener = Callable[[FlushNotice], None]


_NOTHING = FlushNotice({}, ())


class _Committed(NamedTuple):
    """What one flush came to: a result for each of its submissions, news for readers, and the failure if it failed."""

    results: Sequence[tuple[Submission, Outcomes | MainstemError]]
    notice: FlushNotice
    failure: MainstemError | None = None


class Batcher:
    """The one way into the log. Any thread submits and drives.

    After each flush the driving thread calls the completions of its submissions, then the listeners, without holding
    a lock; those of the next flush may overtake them in another thread. Neither may raise.
    """

    def __init__(
        self,
        file: FlushFile,
        applier: Applier,
        hot: HotTail,
        maintenance: Maintenance,
        space: Space,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._file = file
        self._applier = applier
        self._hot = hot
        self._maintenance = maintenance
        self._space = space
        self._clock = clock
        # Of every flush, from the beginning of its write until it is applied.
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self.flush_bytes = Histogram(FLUSH_BYTES)
        self._write_lock = threading.Lock()
        self._apply_lock = threading.Lock()
        self._pending: deque[Submission] = deque()
        self._pending_bytes = 0
        # Appends that found no room on the disk, in their order; they go before everything that is pending.
        self._held: deque[Submission] = deque()
        self._held_bytes = 0
        self._pending_lock = threading.Lock()
        self._arrived = threading.Condition(self._pending_lock)
        # Told when so much waits that a second thread pays.
        self._crowded = threading.Condition(self._pending_lock)
        self._written = applier.applied
        # When the last flush that readers can see was written.
        self._applied_us = 0
        self._failure: MainstemError | None = None
        self._closing = False
        self._roll_wanted = False
        self._is_patient = True
        self._listeners: list[FlushListener] = []
        self.on_failure: Callable[[MainstemError], None] = lambda error: None

    # Submitting.

    def submit(self, submission: Submission, *, wake: bool = True) -> None:
        """Queue for the next flush. Busy if too much waits already, DiskFull if the disk has no room for its records;
        the failure if the log has failed.

        With `wake=False` no thread that runs is told; call `wake` after the last of several.
        """
        submission.schemas = self._file.description_bytes(submission.items)
        with self._arrived:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise Closed("the log is closed")
            if submission.size and self._lacks_room(submission):
                raise self._space.refusal()
            waiting = self._pending_bytes + self._held_bytes
            if waiting and waiting + submission.size > PENDING_BYTES_MAX:
                raise Busy(f"{waiting} bytes wait for the disk; try again in a moment")
            self._pending.append(submission)
            self._pending_bytes += submission.size
            if wake:
                self._notify()

    def _lacks_room(self, submission: Submission) -> bool:
        """Whether the disk is too full for it: for an append below the watermark, for upkeep if it would not fit."""
        is_full = self._space.is_full and self._space.look()
        if submission.is_append:
            return is_full
        return is_full and self._space.free < submission.size + _REPLACEMENT_MARGIN

    def wake(self) -> None:
        """Let a thread that runs look at what was submitted."""
        with self._arrived:
            self._notify()

    def _notify(self) -> None:
        self._arrived.notify()
        if self._pending_bytes >= _CROWD_BYTES:
            self._crowded.notify()

    def request_roll(self) -> None:
        """Let the next flush begin a new block, so that the one before gets old and can be freed. Any thread."""
        self._roll_wanted = True

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes + self._held_bytes

    @property
    def is_holding(self) -> bool:
        """Whether appends wait for room on the disk: then somebody must drive now and then."""
        return bool(self._held)

    @property
    def failure(self) -> MainstemError | None:
        return self._failure

    def settled_us(self) -> int:
        """A time, as late as can be said now, before which nothing will be stored that readers cannot see yet. Any
        thread; never waits. 0 if nothing is known."""
        if self._write_lock.acquire(blocking=False):
            try:
                if self._apply_lock.acquire(blocking=False):
                    try:
                        return self._file.time_us()
                    finally:
                        self._apply_lock.release()
            finally:
                self._write_lock.release()
        return self._applied_us

    def add_listener(self, listener: FlushListener) -> None:
        self._listeners = [*self._listeners, listener]

    # Driving.

    def run(self) -> None:
        """Drive until closed: the body of a server's commit thread."""
        while True:
            with self._arrived:
                while not self._pending and not self._closing and self._failure is None:
                    if not self._arrived.wait(_LOOK_SECONDS if self._held else None):
                        break
                if self._failure is not None or (self._closing and not self._pending):
                    return
            self.drive()

    def help(self) -> None:
        """Drive until closed, beside a thread that runs, but only while much waits: then one flush is written while the
        one before is applied. With little, the two would take the interpreter from each other for smaller flushes."""
        while True:
            with self._crowded:
                while self._pending_bytes < _CROWD_BYTES and not self._closing and self._failure is None:
                    self._crowded.wait()
                if self._failure is not None or self._closing:
                    return
            self.drive()

    def drive(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Commit what is pending, if anything is, in this thread; returns when it is applied and published.

        Returns whether there was anything; if not, what a caller still waits for is in another thread's hands.
        A thread that waits for something passes `is_done`: if another has committed it while this one waited for its
        turn, it goes its way, and what others have submitted meanwhile gathers for whoever still needs a flush.
        """
        has_committed = False
        while True:
            done = self._commit(is_done)
            if done is None:
                return has_committed
            has_committed = True
            # No lock is held here: a completion may submit again.
            for submission, result in done.results:
                submission.done(result)
            if done.failure is not None:
                self.on_failure(done.failure)
                cause = done.failure.__cause__
                if cause is not None and not isinstance(cause, Exception):
                    # An interrupt met the thread that commits for itself: the log is fenced, the user gets out.
                    raise cause
                return True
            for listener in self._listeners:
                listener(done.notice)
            if not self._maintenance.wants_flush:
                return True
            # Go around once more, unless the caller has what it came for, to say that the checkpoint is complete: until
            # some flush has said so, a power cut that takes the ledger's WAL costs a rebuild.

    def _commit(self, is_done: Callable[[], bool]) -> "_Committed | None":
        """One flush through write and apply, the locks taken hand over hand; None if there was nothing to do."""
        submissions: list[Submission] = []
        with self._write_lock:
            if is_done():
                return None
            try:
                is_full = self._space.look()
                if self._held and (given_up := self._look_at_held(is_full=is_full)):
                    return _Committed(given_up, _NOTHING)
                submissions = self._take()
                is_idle = is_full or not self._maintenance.wants_flush
                if self._failure is not None or (is_idle and not submissions):
                    return None
                begun = self._clock.monotonic()
                items = _in_order(submissions)
                flush = self._write(items, _schemas(submissions))
            except BaseException as error:  # noqa: BLE001  # whatever it is, nothing may be acknowledged after it
                return self._hold(submissions) if is_out_of_space(error) else self._fail(error, submissions)
            self._apply_lock.acquire()
        try:
            committed = self._apply(flush, submissions, items)
            self.commit_seconds.add(self._clock.monotonic() - begun)
            self.flush_bytes.add(sum(submission.size for submission in submissions))
            return committed
        except BaseException as error:  # noqa: BLE001  # as above
            return self._fail(error, submissions)
        finally:
            self._apply_lock.release()

    def _take(self) -> list[Submission]:
        """What goes into the next flush: everything, up to the limits of one flush. Its schemas count as if the block
        said none of them yet: it may be a new one."""
        taken: list[Submission] = []
        schemas: set[int] = set()
        size = described = count = 0
        with self._pending_lock:
            if self._failure is not None:
                return taken
            while self._pending:
                first = self._pending[0]
                if self._held and first.is_append:
                    # Nothing gets before what waits for room: a producer's numbers must come in their order.
                    self._held.append(self._pending.popleft())
                    self._count_waiting()
                    continue
                more = sum(length for schema, length in first.schemas.items() if schema not in schemas)
                is_over = size + first.size + described + more > FLUSH_BYTES_MAX
                if taken and (is_over or count + first.count > FLUSH_BATCHES_MAX):
                    break
                taken.append(self._pending.popleft())
                size += first.size
                described += more
                schemas.update(first.schemas)
                count += first.count
            self._pending_bytes -= size
        return taken

    def _write(self, items: list[Item], schemas: Mapping[int, int]) -> Flush:
        number = self._written + 1
        size = sum(map(_stored_bytes, items))
        is_full, announces = self._file.is_full(size, schemas), self._maintenance.wants_checkpoint
        if self._roll_wanted:
            is_full, self._roll_wanted = True, False
        if is_full or announces:
            # The footer lists offsets, which the flush before this one may not have yet; and what is announced to be in
            # a checkpoint must be in the ledger, so that a kill at this moment does not cast doubt on it.
            with self._apply_lock:
                self._require_unfenced()
                if is_full:
                    self._file.roll(number, self._applier.applied)
        begun, done = self._maintenance.checkpoint_for(number, announces=announces)
        before = self._file.bytes_written
        flush = self._file.write(number, self._applier.applied, items, begun, done)
        self._written = number
        self._space.wrote(self._file.bytes_written - before)
        return flush

    def _apply(self, flush: Flush, submissions: list[Submission], items: list[Item]) -> "_Committed":
        self._require_unfenced()
        self._maintenance.before(flush.number)
        changes, outcomes = self._apply_where_room_is(flush)
        self._applied_us = flush.time_us
        self._file.note_entries(changes.entries)
        # The writer's own commands stand before the submitted items.
        del outcomes[: len(outcomes) - len(items)]
        by_item = {id(item): outcome for item, outcome in zip(items, outcomes, strict=True)}
        self._keep_hot(items, outcomes)
        deleted = tuple(row.id for row in changes.streams.values() if row.deleted_us)
        notice = FlushNotice({key: row.stable for key, row in changes.shards.items()}, deleted)
        results = [(submission, [by_item[id(item)] for item in submission.items]) for submission in submissions]
        return _Committed(results, notice)

    def _keep_hot(self, items: list[Item], outcomes: Outcomes) -> None:
        """Let the hot tail have what readers may want next, in the order of its offsets."""
        fresh: list[FetchedBatch] = []
        for item, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, Appended):
                if isinstance(item, Batch) and not outcome.duplicate:
                    fresh.append(FetchedBatch(outcome.base, _bare(item.header), item.payload))
            elif isinstance(outcome, TransactionCommitted) and not outcome.duplicate:
                if isinstance(item, WholeTransaction):
                    fresh += _numbered(item, outcome)
                    continue
                # What it has staged before is on the disk: the tails of these shards begin anew behind it.
                broken = {(stream, shard) for stream, shard, _, _ in outcome.offsets}
                for key in broken:
                    self._hot.break_off(key)
                fresh = [batch for batch in fresh if (batch.header.stream, batch.header.shard) not in broken]
        self._hot.append(fresh)

    # A full disk.

    def _hold(self, submissions: list[Submission]) -> "_Committed":
        """The disk has no room for this flush: appends wait, with everything that came after them; commands are tried
        again in the room of the ballast, if there is one. Called with the write lock held."""
        self._space.met_full()
        has_room = any(not _is_large(submission) for submission in submissions) and self._space.release_ballast()
        refused: list[Submission] = []
        with self._pending_lock:
            later = list(self._pending)
            self._pending.clear()
            for submission in (*submissions, *later):
                if submission.is_append:
                    (self._held if submission.patience else refused).append(submission)
                elif submission in later or (has_room and not _is_large(submission)):
                    self._pending.append(submission)
                else:
                    refused.append(submission)
            self._count_waiting()
        return _Committed([(submission, self._space.refusal()) for submission in refused], _NOTHING)

    def lose_patience(self) -> None:
        """From now on nothing waits for room on the disk: this log is about to be closed."""
        with self._arrived:
            self._is_patient = False
            self._arrived.notify_all()

    def _look_at_held(self, *, is_full: bool) -> list[tuple[Submission, MainstemError]]:
        """Queue what is held again if there is room, before everything else; else, what has waited long enough, and
        what waits for nothing because its stream was deleted, each with its error."""
        now = self._clock.monotonic()
        with self._pending_lock:
            held, self._held = self._held, deque()
            given_up: list[tuple[Submission, MainstemError]] = []
            if not is_full:
                self._pending.extendleft(reversed(held))
            else:
                for submission in held:
                    gone = self.gone(submission)
                    if gone is not None or not self._is_patient or submission.patience <= now:
                        given_up.append((submission, gone or self._space.refusal()))
                    else:
                        self._held.append(submission)
            self._count_waiting()
            return given_up

    def gone(self, submission: Submission) -> StreamDeleted | None:
        """What to tell who waits with it, if all the streams it is for were deleted."""
        name = ""
        for item in submission.items:
            row = self._applier.stream(item.header.stream) if isinstance(item, Batch) else None
            if row is None or not row.deleted_us:
                return None
            name = row.name
        return StreamDeleted(f"stream {name!r} was deleted") if name else None

    def _count_waiting(self) -> None:
        self._pending_bytes = sum(submission.size for submission in self._pending)
        self._held_bytes = sum(submission.size for submission in self._held)

    def _apply_where_room_is(self, flush: Flush) -> tuple[Changes, Outcomes]:
        """Apply a flush that is durable. If the ledger has no room for it, the ballast makes some, or somebody else."""
        deadline = self._clock.monotonic() + _LEDGER_SECONDS_MAX
        while True:
            try:
                applied = self._applier.apply(flush)
                self._space.wrote(0)
                return applied
            except OSError as error:
                if not is_out_of_space(error):
                    raise
                self._space.met_full()
                if self._space.release_ballast():
                    continue
                if self._clock.monotonic() >= deadline:
                    raise FolderUnusable(
                        f"the disk stayed full, and the ledger had no room for a flush that is durable, for "
                        f"{_LEDGER_SECONDS_MAX:.0f} s. Free some space and start again: what was acknowledged is kept"
                    ) from error
            self._clock.sleep(_LEDGER_RETRY_SECONDS)

    # Ending.

    def _require_unfenced(self) -> None:
        """Raise the failure, if the flush before this one met one. Called with the apply lock held."""
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException, submissions: list[Submission]) -> "_Committed":
        """Fence: whatever was not acknowledged is refused, now and later."""
        if isinstance(error, OSError):
            failure: MainstemError = FolderUnusable(
                f"the disk failed ({error}); nothing more is acknowledged. Mend the disk and start again: "
                "what was acknowledged is kept"
            )
        elif isinstance(error, MainstemError):
            failure = error
        else:
            failure = FolderUnusable(f"the log stopped: {type(error).__name__}: {error}")
        if failure is not error:
            failure.__cause__ = error
        with self._arrived:
            is_news = error is not self._failure
            self._failure = self._failure or failure
            waiting = [*submissions, *self._held, *self._pending]
            self._held.clear()
            self._pending.clear()
            self._held_bytes = self._pending_bytes = 0
            self._arrived.notify_all()
            self._crowded.notify_all()
        # A failure that is only met again was told, and its cause raised, by the thread that met it first.
        return _Committed([(submission, failure) for submission in waiting], _NOTHING, failure if is_news else None)

    def close(self) -> None:
        """Take no more, commit what is pending, seal the block."""
        self.lose_patience()
        with self._arrived:
            self._closing = True
            self._arrived.notify_all()
            self._crowded.notify_all()
        while (self._pending or self._held) and self._failure is None:
            self.drive()
        with self._write_lock, self._apply_lock:
            try:
                if self._failure is None:
                    self._file.seal(self._written + 1, self._applier.applied)
            except OSError as error:
                # Everything acknowledged is durable; what is missing is a footer that only salvage would read.
                logger.error(Event("last block got no footer; nothing is lost by it", reason=error))
                self._fail(error, [])
            self._file.close()


def _schemas(submissions: Sequence[Submission]) -> dict[int, int]:
    return {schema: length for submission in submissions for schema, length in submission.schemas.items()}


def _stored_bytes(item: Item) -> int:
    """Bytes of payload and statistics that an item adds to a block, and those of a command that is not small."""
    if isinstance(item, Batch):
        return item.header.stored_len + len(item.header.statistics)
    if isinstance(item, Replacement | WholeTransaction):
        return sum(batch.header.stored_len + len(batch.header.statistics) for batch in item.batches)
    return size if (size := large_command_bytes(item)) > _COMMAND_BYTES else 0


def _batches_of(item: Item) -> int:
    """What an item counts for in the limit of batches in a flush."""
    return len(item.batches) if isinstance(item, WholeTransaction) else 1


def _bare(header: BatchHeader) -> BatchHeader:
    """For readers, who get the records themselves, and whatever they see is committed."""
    if header.statistics or header.transaction:
        return msgspec.structs.replace(header, statistics=b"", transaction=0)
    return header


def _is_large(submission: Submission) -> bool:
    """Whether it carries records, which the ballast is not for."""
    return submission.size > 0


def _in_order(submissions: list[Submission]) -> list[Item]:
    """Commands first, then batches by shard, each shard's in the order they came: one run of bytes per shard. What is
    staged comes last, by transaction and shard."""
    commands: list[Item] = []
    batches: list[Batch] = []
    for submission in submissions:
        for item in submission.items:
            if isinstance(item, Batch):
                batches.append(item)
            else:
                commands.append(item)
    if len(batches) > 1:
        batches.sort(key=_run_of)
    commands.extend(batches)
    return commands


def _run_of(batch: Batch) -> tuple[int, int, int]:
    header = batch.header
    return (header.transaction, header.stream, header.shard)


def _numbered(item: WholeTransaction, outcome: TransactionCommitted) -> Iterator[FetchedBatch]:
    """The batches of a transaction where they stand now."""
    places = {(stream, shard): base for stream, shard, base, _ in outcome.offsets}
    for batch in item.batches:
        key = (batch.header.stream, batch.header.shard)
        yield FetchedBatch(places[key], _bare(batch.header), batch.payload)
        places[key] += batch.header.count
