"""The log in the user's own process: written by this one, or only read while another writes it."""

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from mainstem.access.acts import details_of, is_act, name_of
from mainstem.access.administration import AccessAdministration
from mainstem.access.audit import RETENTION_BYTES as AUDIT_RETENTION_BYTES
from mainstem.access.audit import RETENTION_US as AUDIT_RETENTION_US
from mainstem.access.audit import Audit, AuditRecord
from mainstem.access.policy import AUDIT_STREAM
from mainstem.access.principal import ANONYMOUS
from mainstem.consume.runs import Runs
from mainstem.consume.selections import Selections
from mainstem.core.batch import Batch
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    Busy,
    DeadlineExceeded,
    DiskFull,
    FolderUnusable,
    InvalidSchema,
    MainstemError,
    ReadOnly,
    StreamDeleted,
)
from mainstem.core.events import Event
from mainstem.core.interrupts import DeferredInterrupt
from mainstem.core.known_schemas import KnownSchemas
from mainstem.core.limits import PENDING_BYTES_MAX, RECORD_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.hub.folder_subscription import FolderSubscription
from mainstem.hub.folder_watch import FolderWatch
from mainstem.hub.interval import SHORT_TURNS
from mainstem.hub.liveness import Liveness
from mainstem.hub.local_subscription import LocalSubscription
from mainstem.hub.reading_port import ReadingPort, feed_of
from mainstem.log.access_rows import AccessRows, ReadRows
from mainstem.log.administration import Administration, Lookup
from mainstem.log.batcher import FlushNotice, Outcomes, Submission
from mainstem.log.contents import Contents, is_worth_statistics
from mainstem.log.coordinator import Coordinator, GroupCall, committed_answer
from mainstem.log.disk import Disk, LocalDisk
from mainstem.log.figures import folder_figures
from mainstem.log.flush import Appended, Rejected
from mainstem.log.folder import Folder
from mainstem.log.ledger.sqlite import SqliteLedgerReader
from mainstem.log.log import Log, LogOptions
from mainstem.log.own_stream import OwnStream
from mainstem.log.reader import LogReader
from mainstem.log.transactions import DeliveryNumber, Writer
from mainstem.registry import compatibility
from mainstem.registry.promotion import lossless
from mainstem.transport.guarding import AccessCall, ExplainAccessCall, ListAccessCall
from mainstem.transport.port import (
    Answer,
    Answered,
    AppendDone,
    AppendResult,
    Call,
    CommitCall,
    EraseKeyCall,
    MembershipCall,
    Query,
    RunsCall,
    StatisticsCall,
    StreamInfo,
    checked,
)
from mainstem.transport.sharing import CommitTransactionCall, Staging

logger = logging.getLogger("mainstem.hub")

# How often it is looked whether a full disk has room for what waits.
_LOOK_SECONDS = 0.1


class LogPort:
    """A log written by this process. Any thread.

    One background thread, the pump, ships what producers gathered and commits what nobody waits for. A thread that
    waits commits itself.
    """

    record_bytes_max = RECORD_BYTES_MAX
    checks_values = False
    write_share = 1.0

    def __init__(
        self,
        path: Path,
        options: LogOptions | None = None,
        *,
        auto_create_shards: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
    ) -> None:
        self.log = Log(path, options, clock=clock, disk=disk, promote=lossless)
        try:
            self._start(path, auto_create_shards)
        except BaseException:
            self.log.close()
            raise

    def _start(self, path: Path, auto_create_shards: int) -> None:
        self._administration = Administration(
            self.log, check_schema=compatibility.check, auto_create_shards=auto_create_shards
        )
        # Whoever has the folder has the data, so nobody is asked who they are here; what a server will ask can be set.
        self._access = AccessAdministration(AccessRows(self.log), self.log.clock)
        self._audit = Audit(self.log.clock)
        self._audit_stream = OwnStream(self.log, AUDIT_STREAM, AUDIT_RETENTION_US, AUDIT_RETENTION_BYTES)
        self._selections = Selections(self.log.schema)
        self._runs = Runs(self._administration.require, self.log.reader, self._selections, path, self.log.word)
        self._liveness = Liveness("hub", self._abandon_after_fork)
        self._subscriptions: dict[int, tuple[LocalSubscription, ...]] = {}
        self._lock = threading.Lock()
        self.log.batcher.add_listener(self._on_flush)
        # Appends that wait, in order, until the log has room for them.
        self._deferred: deque[tuple[Submission, float]] = deque()
        self._look_scheduled = False
        self._pump = Pump(self._drive)
        self._coordinator = Coordinator(self.log, wake=self._pump.wake)
        self.log.upkeep.start()

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        self.check_usable()
        call = checked(call)
        if isinstance(call, MembershipCall | CommitCall):
            return self._ask_and_wait(call, timeout)
        with SHORT_TURNS, DeferredInterrupt():
            answer = self._carry_out(call)
            if is_act(call, answer, is_guarded=self._access.is_guarded):
                self._record(self._audit.act(ANONYMOUS, "this folder", name_of(call), details_of(call)))
        if isinstance(call, EraseKeyCall) and (row := self.log.ledger.stream_named(call.name)) is not None:
            for subscription in self._subscriptions.get(row.id, ()):
                subscription.read_again()
        return answer

    def _record(self, record: AuditRecord) -> None:
        """Write to the audit of what was done. That it cannot be written is itself said, and undoes nothing: on a full
        disk it must be possible to make room."""
        try:
            self._audit_stream.append([record.value], [record.key])
        except MainstemError as error:
            logger.error(Event("the audit could not be written", records=1, reason=error))

    def _carry_out(self, call: Call) -> Answer:
        if isinstance(call, AccessCall):
            return self._access.handle(call)
        if isinstance(call, RunsCall):
            return self._runs.handle(call)
        return self._coordinator.call(call) if isinstance(call, GroupCall) else self._administration.handle(call)

    def ask(self, call: Call, timeout: float, done: Answered) -> None:
        self.check_usable()
        if isinstance(call, CommitCall):
            self._coordinator.commit(call, done)
        elif isinstance(call, MembershipCall):
            self._coordinator.ask(call, done)
        else:
            done(self.call(call))

    def _ask_and_wait(self, call: Call, timeout: float | None) -> Answer:
        answers: list[Answer | MainstemError] = []
        answered = threading.Event()

        def done(answer: Answer | MainstemError) -> None:
            answers.append(answer)
            answered.set()

        self.ask(call, 0.0, done)
        if not self.wait(answered, timeout):
            raise DeadlineExceeded("the log did not answer in time; the outcome is not known")
        if isinstance(answers[0], MainstemError):
            raise answers[0]
        return answers[0]

    def schema(self, schema: int) -> Schema:
        self.check_usable()
        return self.log.schema(schema)

    def schema_at_hand(self, schema: int) -> Schema | None:
        return self.log.schemas.at_hand(schema)

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        patience = self.log.clock.monotonic() + timeout
        batches = self._described(batches)
        submission = Submission(batches, lambda result: done(_results(result, len(batches))), patience)
        with self._lock:
            self._deferred.append((submission, time.monotonic() + timeout))
        self._submit_deferred()
        self._pump.wake()

    def stage(self, staging: Staging, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        def answered(result: Outcomes | MainstemError) -> None:
            done([result] * len(batches) if isinstance(result, MainstemError) else [0] * len(batches))

        try:
            self.log.stage(
                staging.transaction,
                staging.index,
                self._described(batches),
                answered,
                timeout=staging.seconds,
                writer=Writer(staging.writer, staging.epoch),
                delivery=DeliveryNumber(staging.job, staging.number),
                patience=self.log.clock.monotonic() + timeout,
            )
        except MainstemError as error:
            answered(error)
        self._pump.wake()

    def commit_whole(
        self, staging: Staging, batches: Sequence[Batch], call: CommitTransactionCall, timeout: float
    ) -> Answer:
        self.check_usable()
        results: list[Outcomes | MainstemError] = []
        answered = threading.Event()

        def done(result: Outcomes | MainstemError) -> None:
            results.append(result)
            answered.set()

        patience = self.log.clock.monotonic() + timeout
        self._coordinator.commit_whole(call, self._described(batches), done, patience=patience)
        self._pump.wake()
        self.wait(answered, None)
        result = results[0]
        if isinstance(result, MainstemError):
            raise result
        if isinstance(result[0], Rejected):
            raise result[0].error
        return committed_answer(result[0])

    def _described(self, batches: Sequence[Batch]) -> list[Batch]:
        """The batches, those that are large enough with statistics: a server's gateway does the same."""
        return [
            self._with_statistics(batch) if is_worth_statistics(batch.header) else Batch(batch.header, batch.payload)
            for batch in batches
        ]

    def _with_statistics(self, batch: Batch) -> Batch:
        row = self.log.ledger.load_stream(batch.header.stream)
        # If the stream is gone, or never had this schema, the log says so when it gets the batch.
        with contextlib.suppress(InvalidSchema):
            if row is not None:
                return Contents.of(row, self.log.schema).described(batch)
        return Batch(batch.header, batch.payload)

    def _submit_deferred(self) -> None:
        """Hand over in order what the log takes; the rest waits until it has room."""
        ended: list[tuple[Submission, MainstemError]] = []
        with self._lock:
            while self._deferred:
                submission, deadline = self._deferred[0]
                try:
                    self.log.batcher.submit(submission)
                except (Busy, DiskFull) as error:
                    gone = self.log.batcher.gone(submission)
                    if gone is None and time.monotonic() < deadline:
                        break
                    ended.append((submission, gone or error))
                except MainstemError as error:
                    ended.append((submission, error))
                self._deferred.popleft()
        for submission, failure in ended:
            submission.done(failure)

    def _drive(self, is_done: Callable[[], bool] = lambda: False) -> None:
        """Commit what waits."""
        self._submit_deferred()
        self.log.batcher.drive(is_done)
        if (self._deferred or self.log.batcher.is_holding) and not self._look_scheduled:
            # What waits for room on the disk may have nobody else who looks.
            self._look_scheduled = True
            self._pump.schedule(self._look_again, _LOOK_SECONDS)

    def _look_again(self) -> None:
        """The pump drives after every action."""
        self._look_scheduled = False

    def can_take(self) -> bool:
        return self.log.batcher.pending_bytes < PENDING_BYTES_MAX // 2

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        try:
            self.log.append(self._described(batches), lambda result: None)
        except MainstemError:
            return False
        self._pump.wake()
        return True

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> "LocalSubscription":
        self.check_usable()
        row = self.log.reader.require_stream(stream.id)
        feed = feed_of(self.log.reader, row, offsets, ends, self._selections, query, window_us, self.log.schema)
        subscription = LocalSubscription(feed, self._forget, self.log.hot, self.log.batcher.settled_us)
        with self._lock:
            self._subscriptions[row.id] = (*self._subscriptions.get(row.id, ()), subscription)
        try:
            # A deletion before this moment did not find it to tell it.
            self.log.reader.require_stream(row.id)
        except MainstemError:
            self._forget(subscription)
            raise
        return subscription

    def _forget(self, subscription: "LocalSubscription") -> None:
        stream = subscription.stream.id
        with self._lock:
            left = tuple(kept for kept in self._subscriptions.get(stream, ()) if kept is not subscription)
            if left:
                self._subscriptions[stream] = left
            else:
                self._subscriptions.pop(stream, None)

    def _on_flush(self, notice: FlushNotice) -> None:
        for stream in notice.deleted:
            for subscription in self._subscriptions.get(stream, ()):
                subscription.end(StreamDeleted(f"stream {subscription.stream.name!r} was deleted"))
        if self._subscriptions:
            for stream, shard in notice.ends:
                for subscription in self._subscriptions.get(stream, ()):
                    subscription.touch(shard)

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        self._pump.schedule(action, delay)

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Commit in this thread until `event` is set, so that no other thread has to be waited for."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with SHORT_TURNS:
            while not event.is_set():
                self.check_usable()
                with DeferredInterrupt():
                    self._drive(event.is_set)
                if event.is_set():
                    break
                # Nothing was pending here: another thread commits it, or a retry is due.
                left = 0.05 if deadline is None else min(0.05, deadline - time.monotonic())
                if left <= 0:
                    return False
                event.wait(left)
        return True

    def check_usable(self) -> None:
        self._liveness.check()

    def check_writable(self) -> None:
        return None

    def close(self) -> None:
        if self._liveness.end():
            self._coordinator.close()
            self._pump.close()
            self.log.close()
            for subscriptions in tuple(self._subscriptions.values()):
                for subscription in subscriptions:
                    subscription.end(self._liveness.closed_error())

    def _abandon_after_fork(self) -> None:
        self.log.abandon_after_fork()


class Pump:
    """One thread for what has no thread of its own: scheduled actions, and commits nobody waits for."""

    def __init__(self, drive: Callable[[], None]) -> None:
        self._drive = drive
        self._lock = threading.Condition()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._wanted = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mainstem-pump", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something was submitted."""
        with self._lock:
            self._wanted = True
            self._lock.notify()

    def schedule(self, action: Callable[[], None], delay: float) -> None:
        with self._lock:
            heapq.heappush(self._timers, (time.monotonic() + delay, next(self._order), action))
            self._lock.notify()

    def close(self) -> None:
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._stopping or self._wanted or self._due()):
                    self._lock.wait(self._timers[0][0] - time.monotonic() if self._timers else None)
                if self._stopping:
                    return
                self._wanted = False
                actions = []
                while self._due():
                    actions.append(heapq.heappop(self._timers)[2])
            for action in (*actions, self._drive):
                self._guarded(action)

    def _guarded(self, action: Callable[[], object]) -> None:
        """An action that fails must not take those after it along: nobody else does them."""
        try:
            action()
        except Exception as error:
            if not self._stopping:
                event = Event("a background task failed", error=type(error).__name__, reason=error)
                logger.error(event, exc_info=_is_bug(error))

    def _due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] <= time.monotonic()


def _is_bug(error: Exception) -> bool:
    """Whether the place in the code is of interest: an error of ours says all there is to say."""
    return not isinstance(error, MainstemError)


class FolderPort(ReadingPort):
    """A log that another process writes, read from its folder. Any thread. Writes are refused."""

    def __init__(self, path: Path) -> None:
        folder = Folder(path, LocalDisk())
        folder.require()
        if not folder.ledger.exists():
            raise FolderUnusable(
                f"{path} has no {folder.ledger.name}, and who only reads cannot make it anew: open the folder once for "
                f"writing (mainstem serve --data {path}), and it is rebuilt from the blocks"
            )
        self._folder = folder
        self._ledger = SqliteLedgerReader(folder.ledger)
        try:
            self._ledger.require_format()
        except FolderUnusable:
            self._ledger.close()
            raise
        self._schemas = KnownSchemas(self._ledger.load_schema)
        self._selections = Selections(self._schemas.get)
        self._reader = LogReader(self._ledger, folder.blocks)
        self._lookup = Lookup(self._ledger, self._reader, self._schemas)
        self._runs = Runs(self._lookup.require, self._reader, self._selections, path)
        self._liveness = Liveness("hub", lambda: None)
        self._epoch = self._ledger.epoch()
        self._replaced = self._ledger.replaced
        self._watch = FolderWatch(self._ledger.data_version)
        # Why this hub is of no use any more, though nobody closed it.
        self._stale: FolderUnusable | None = None

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        self.check_usable()
        call = checked(call)
        if isinstance(call, ListAccessCall | ExplainAccessCall):
            answer = AccessAdministration(ReadRows(self._ledger)).handle(call)
        elif isinstance(call, RunsCall):
            answer = self._runs.handle(call)
        else:
            answer = self._lookup.handle(call)
        self._check_epoch()
        if isinstance(call, StatisticsCall):
            counters = {**folder_figures(self._folder, self._ledger), **answer.counters}
            return Answer(counters=counters)
        return answer

    def _check_epoch(self) -> None:
        """Blocks that are open here are not those of a restored folder that came into this one's place."""
        if self._ledger.replaced != self._replaced:
            epoch, self._replaced = self._ledger.epoch(), self._ledger.replaced
            if epoch != self._epoch:
                self._stale = FolderUnusable(
                    f"{self._folder.path} was restored from a backup under this hub (epoch {epoch}, it was "
                    f"{self._epoch}); open it again"
                )
        self.check_usable()

    def no_appends(self) -> ReadOnly:
        return ReadOnly("this hub only reads")

    def schema(self, schema: int) -> Schema:
        self.check_usable()
        return self._schemas.get(schema)

    def schema_at_hand(self, schema: int) -> Schema | None:
        return self._schemas.at_hand(schema)

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> "FolderSubscription":
        row = self._reader.require_stream(stream.id)
        feed = feed_of(self._reader, row, offsets, ends, self._selections, query, window_us, self._schemas.get)
        return FolderSubscription(feed, self._ledger, self._check_epoch, self._watch)

    def check_usable(self) -> None:
        self._liveness.check()
        if self._stale is not None:
            raise self._stale

    def check_writable(self) -> None:
        raise ReadOnly(
            f"{self._folder.path} is open for reading only: another process writes it, or read_only=True was given"
        )

    def close(self) -> None:
        if self._liveness.end():
            self._watch.close()
            self._reader.close()
            self._ledger.close()
            self._folder.blocks.close()


def _results(result: Outcomes | MainstemError, count: int) -> list[AppendResult]:
    if isinstance(result, MainstemError):
        return [result] * count
    found: list[AppendResult] = []
    for outcome in result:
        if isinstance(outcome, Rejected):
            found.append(outcome.error)
        else:
            assert isinstance(outcome, Appended)
            found.append(outcome.base)
    return found
