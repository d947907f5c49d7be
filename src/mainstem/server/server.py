"""The server: one log, one event loop, a thread that commits and one that helps it, many sessions."""

import asyncio
import contextlib
import itertools
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from mainstem.access.bucket import Turnstile
from mainstem.cluster.options import GroupOptions
from mainstem.consume.runs import Runs
from mainstem.consume.selections import Selections
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    Busy,
    MainstemError,
    ProtocolError,
    QuotaExceeded,
    ServerStopping,
    Unauthenticated,
    UnknownStream,
)
from mainstem.core.events import Event
from mainstem.core.hosts import is_loopback
from mainstem.core.limits import RECEIVE_SECONDS_MAX
from mainstem.core.settings import Settings
from mainstem.log.administration import Administration
from mainstem.log.batcher import FlushNotice, Outcomes
from mainstem.log.coordinator import Coordinator
from mainstem.log.disk import Disk
from mainstem.log.log import Log, LogOptions
from mainstem.log.upkeep import Pace
from mainstem.produce.gateway import Gateway
from mainstem.registry import compatibility
from mainstem.registry.promotion import lossless
from mainstem.server.acceptor import TlsAcceptor
from mainstem.server.calls import Answered, CallQueue
from mainstem.server.clients import count_followers, list_connections
from mainstem.server.counts import HttpCounts
from mainstem.server.guard import Guard
from mainstem.server.line import Line
from mainstem.server.session import Session
from mainstem.server.subscription import PushEncoder, PushTotals, ReadsUnderWay
from mainstem.transport.connection import SCRATCH_BYTES, FramedConnection
from mainstem.transport.guarding import AccessCall
from mainstem.transport.port import (
    Answer,
    Call,
    CommitCall,
    ConnectionsCall,
    GetStreamCall,
    MembershipCall,
    RunsCall,
    StatisticsCall,
)
from mainstem.transport.sharing import (
    DeleteGroupCall,
    GetGroupCall,
    GroupInfo,
    HoldGroupCall,
    ListGroupsCall,
    ResetGroupCall,
)
from mainstem.transport.tls import ServerTls
from mainstem.transport.wire import ReceiveBudget

logger = logging.getLogger("mainstem.server")
T = TypeVar("T")

_READ_THREADS: Final = 2
# Long looks at what clients send: one at a time, so that at most one batch is decompressed for them, and the loop has
# no more than one rival for the interpreter.
_ADMISSION_THREADS: Final = 1
_BACKLOG: Final = 1_024
_TICK_SECONDS: Final = 1.0
HTTP_COUNTERS: Final = (
    "http_requests",
    "http_requests_failed",
    "http_tails",
    "http_body_bytes",
    "http_answer_bytes",
)
# A connection must say hello within this time.
_HELLO_SECONDS: Final = 5.0


class Submitter(Protocol):
    """Who hands appends to the log in its turn: a session, or a request over HTTP. The loop's thread."""

    @property
    def has_waiting(self) -> bool:
        """Whether appends are still to be handed over."""
        ...

    def submit_waiting(self) -> bool:
        """Hand them over, in order, as far as the log takes them; whether it took all."""
        ...

    def expire_waiting(self) -> None:
        """Refuse those whose time is over."""
        ...

    def pace(self) -> None:
        """Take no more while some wait."""
        ...

    def finish_append(self, pending: Any, result: Outcomes | MainstemError) -> None:
        """The flush with this append is committed."""
        ...


class Follower(Protocol):
    """Who is told that a stream has grown. The loop's thread."""

    @property
    def stream(self) -> int: ...

    def touch(self, shard: int) -> None: ...

    def push(self) -> None: ...

    def end_deleted(self) -> None: ...


class Pending(Protocol):
    """An append that was handed over."""

    size: int


class Server:
    """Serves one log over the native protocol. Its loop's thread only, but for `complete` and the flush listener.

    The commit threads put what they finished into `_completed` and wake the loop once per flush; the loop answers and
    pushes.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        name: str,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.settings = settings
        self.tls = tls
        self.name = name
        self.clock = clock
        options = LogOptions(
            block_bytes=settings.block_bytes,
            hot_tail_bytes=settings.hot_tail_bytes,
            checkpoint_bytes=settings.checkpoint_bytes,
            snapshot_bytes=settings.snapshot_bytes,
            pace=Pace(
                interval=settings.upkeep_interval,
                free_after=settings.free_after,
                rewrite_after=settings.rewrite_after,
                share=settings.upkeep_percent / 100,
            ),
            free_bytes_min=settings.free_bytes_min,
            ballast_bytes=settings.ballast_bytes,
        )
        self.log = Log(settings.data, options, clock=clock, disk=disk, promote=lossless)
        self._administration = Administration(
            self.log,
            check_schema=compatibility.check,
            retention_us=round(settings.retention * 1_000_000),
            auto_create_shards=settings.auto_create_shards if settings.auto_create else 0,
        )
        times = GroupOptions(
            heartbeat=settings.group_heartbeat,
            session_timeout=settings.group_session_timeout,
            revocation_timeout=settings.group_revocation_timeout,
            rebalance_interval=settings.group_rebalance_interval,
        )
        self.coordinator = Coordinator(self.log, times)
        self.guard = Guard(self.log, self.carry_out, clock)
        self._rights_version = self.guard.authority.version
        self._audit_pool = ThreadPoolExecutor(1, thread_name_prefix="mainstem-audit")
        self._auditing: asyncio.Future[None] | None = None
        window_us = round(settings.http_counts * 1_000_000)
        self.http_counts = HttpCounts(self.log, self.carry_out, self._audit_pool, window_us, clock)
        self.gateway = Gateway(
            self.log.ledger.load_stream, settings.record_bytes_max, self.log.schema, self.log.ledger.load_versions
        )
        self.push_encoder = PushEncoder()
        self.reads_under_way = ReadsUnderWay()
        self.selections = Selections(self.log.schema, "lz4")
        self._runs = Runs(self._administration.require, self.log.reader, self.selections, settings.data, self.log.word)
        self._read_pool = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="mainstem-read")
        self.admission_pool = ThreadPoolExecutor(_ADMISSION_THREADS, thread_name_prefix="mainstem-admit")
        self._calls = CallQueue(self.carry_out)
        self._scratch = bytearray(SCRATCH_BYTES)
        self._receive_budget = ReceiveBudget()
        self._sessions: set[Session] = set()
        self._turnstile = Turnstile(settings.connects_per_second, clock)
        # Sessions with appends to submit at the end of this turn of the loop.
        self._submitting: dict[Submitter, None] = {}
        # Sessions whose appends found the log full, first come first served: nobody who comes later gets before them.
        self._in_line: dict[Submitter, None] = {}
        self._followers: dict[int, set[Follower]] = {}
        self._completed: deque[tuple[Submitter, Pending, Outcomes | MainstemError]] = deque()
        self._notices: deque[FlushNotice] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[asyncio.AbstractServer | TlsAcceptor] = []
        self._ticker: asyncio.Task[None] | None = None
        self._threads: list[threading.Thread] = []
        self.is_stopping = False
        # The same, for who waits.
        self.stop_begun = asyncio.Event()
        self.is_ready = False
        # Whether HTTP has requests to answer, and what it counts.
        self.is_http_busy: Callable[[], bool] = lambda: False
        self.http_counters: Callable[[], dict[str, int]] = lambda: dict.fromkeys(HTTP_COUNTERS, 0)
        self.on_failure: Callable[[MainstemError], None] = lambda error: None
        # Batches that were sent again although they had arrived, and got the answer of the first time.
        self.batches_repeated = 0
        self.pushed = PushTotals()
        self._started_us = clock.now_us()
        self._connections_total = 0
        self._connections_refused = 0
        self._session_ids = itertools.count(1)
        self._appends = 0
        self._append_bytes = 0

    # Life.

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Commit, and listen on sockets that are bound already."""
        loop = self._loop = asyncio.get_running_loop()
        self.log.batcher.add_listener(self._on_flush)
        self.log.batcher.on_failure = self._on_log_failure
        batcher = self.log.batcher
        for name, body in (("mainstem-commit", batcher.run), ("mainstem-commit-help", batcher.help)):
            thread = threading.Thread(target=body, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self.log.upkeep.start()
        if self.tls is not None:
            limit = self.settings.connections_max
            self._listeners.append(
                TlsAcceptor(
                    sockets,
                    self._new_connection,
                    self.tls.context,
                    limit,
                    connected=lambda: len(self._sessions),
                    turn_away=self.guard.turn_away,
                )
            )
        else:
            for bound in sockets:
                self._listeners.append(await loop.create_server(self._new_connection, sock=bound, backlog=_BACKLOG))
        self._ticker = loop.create_task(self._tick())
        self.is_ready = True

    async def stop(self) -> None:
        """Drain: refuse new work, answer what was taken, then close everything."""
        self.is_stopping, self.is_ready = True, False
        self.stop_begun.set()
        if self._ticker is not None:
            self._ticker.cancel()
        for listener in self._listeners:
            listener.close()
        for session in self._sessions:
            session.say_goodbye()
        self._calls.refuse(_stopping())
        self.coordinator.refuse(_stopping())
        self.log.batcher.lose_patience()
        self._serve_line()
        deadline = self.clock.monotonic() + self.settings.drain_timeout
        while self._is_draining() and self.clock.monotonic() < deadline:  # noqa: ASYNC110  # many sessions, once
            await asyncio.sleep(0.005)
        for session in tuple(self._sessions):
            if session.connection is not None:
                session.connection.close()
        await asyncio.sleep(0)
        self._calls.close()
        for pool in (self.admission_pool, self._read_pool):
            pool.shutdown(wait=True, cancel_futures=True)
        if records := self.guard.audit.take():
            await asyncio.get_running_loop().run_in_executor(self._audit_pool, self.guard.record, records)
        await asyncio.get_running_loop().run_in_executor(None, self.http_counts.close)
        self._audit_pool.shutdown(wait=True)
        self.coordinator.close()
        await asyncio.get_running_loop().run_in_executor(None, self.log.close)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def _is_draining(self) -> bool:
        return (
            self._calls.is_busy
            or self.is_http_busy()
            or any(
                not session.is_idle or (session.connection is not None and session.connection.unsent_bytes)
                for session in self._sessions
            )
        )

    def _on_log_failure(self, error: MainstemError) -> None:
        """In a commit thread: the log acknowledged its last. Whoever waits learns it from the broken connection and
        asks the next life of this server."""
        self.on_failure(error)

    @property
    def damage(self) -> str:
        """What is known to be wrong with the ledger, in words; empty if nothing is."""
        return "" if self.log.ledger_damage is None else str(self.log.ledger_damage)

    @property
    def is_disk_full(self) -> bool:
        return self.log.space.is_told_full

    # Connections.

    def _new_connection(self) -> FramedConnection:
        session = Session(self, next(self._session_ids))
        return FramedConnection(
            self._scratch,
            on_open=session.on_open,
            on_message=session.on_message,
            on_blocked=session.on_blocked,
            on_lost=session.on_lost,
            clock=self.clock,
            budget=self._receive_budget,
            reads_while_blocked=False,
        )

    def on_session_open(self, session: Session) -> None:
        connection = session.connection
        assert connection is not None
        if len(self._sessions) >= self.settings.connections_max:
            self._connections_refused += 1
            connection.fail(
                Busy(f"{self.settings.connections_max} clients are connected, which is the limit (connections_max)")
            )
            return
        if wait := self._turnstile.enter():
            self._connections_refused += 1
            told = f"{self.settings.connects_per_second} clients a second are let in; come back in {wait:.3g} s"
            connection.fail(QuotaExceeded(told, retry_after=round(wait, 3)))
            return
        self._sessions.add(session)
        self._connections_total += 1

    @property
    def _refused_untold(self) -> int:
        return sum(listener.refused for listener in self._listeners if isinstance(listener, TlsAcceptor))

    def let_in(self, session: Session, token: str) -> None:
        """Find out who a client is; Unauthenticated if that is nobody, QuotaExceeded if it has too many connections."""
        connection = session.connection
        assert connection is not None
        principal = session.gate.open(
            token, connection.certificate, connection.peer, is_local=is_loopback(connection.peer_host)
        )
        try:
            self.guard.quotas.hold(principal, "connections", 1)
            session.is_counted = True
        except QuotaExceeded as error:
            session.gate.note_quota("connect", error)
            raise

    def on_session_lost(self, session: Session) -> None:
        self._sessions.discard(session)
        if session.is_counted and session.gate.principal is not None:
            session.is_counted = False
            self.guard.quotas.let_go(session.gate.principal, "connections", 1)
        self._in_line.pop(session.appends, None)
        self._calls.forget(session)
        connection = session.connection
        if connection is not None and connection.error is not None:
            logger.warning(
                Event(
                    "client disconnected", client=session.client, address=connection.peer, reason=str(connection.error)
                )
            )
        else:
            logger.debug(
                Event(
                    "client gone",
                    client=session.client,
                    address=session.address,
                    appends=session.appends.count,
                    seconds=self.clock.monotonic() - session.opened_at,
                )
            )
        session.connection = None

    async def _tick(self) -> None:
        """Once a second: drop who is silent, retry what waits, say how far the time has come."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = self.clock.monotonic()
            for session in tuple(self._sessions):
                self._guard(partial(self._look_at, session, now))
                self._guard(session.mark)
            self._guard(self._look_at_line)
            self._guard(self._look_at_rights)
            self._guard(self._write_audit)
            if self.tls is not None:
                self._guard(self.tls.look)
            # Also if nobody writes: it is logged when the disk becomes full and when it is no longer.
            self.log.space.look()

    def _guard(self, action: Callable[[], None]) -> None:
        """What fails for one client must not end what is done for all, once a second, for ever."""
        try:
            action()
        except Exception:
            logger.exception(Event("a regular task of the server failed"))

    def _look_at_rights(self) -> None:
        """Members of groups may find more, or less, by their patterns."""
        if self.guard.authority.version != self._rights_version:
            self._rights_version = self.guard.authority.version
            self.coordinator.look_at_rights()

    def _look_at(self, session: Session, now: float) -> None:
        connection = session.connection
        if connection is None:
            return
        silent = now - connection.heard_at
        if connection.error is not None:
            # It was told why, and had a moment to hear it.
            if now - connection.failed_at > _TICK_SECONDS:
                connection.abort()
        elif session.is_welcomed and not self._is_let_stay(session):
            return
        elif not session.is_welcomed and now - session.opened_at > _HELLO_SECONDS:
            connection.fail(ProtocolError(f"no hello within {_HELLO_SECONDS:g} s"))
        elif connection.is_overdue(now):
            connection.fail(ProtocolError(f"a message was not complete within {RECEIVE_SECONDS_MAX} s"))
        elif connection.is_paused:
            # What another connection of the same principal held may be free by now.
            session.appends.pace()
            # It may be asking whether we are there, and we do not read that.
            if not connection.is_blocked:
                connection.pong()
        elif silent > self.settings.idle_timeout:
            logger.info(
                Event("client silent; disconnected", client=session.client, address=connection.peer, seconds=silent)
            )
            connection.abort()

    def _is_let_stay(self, session: Session) -> bool:
        """Whether the client is still who it was; if not, it is told so."""
        connection = session.connection
        assert connection is not None
        try:
            session.look_at_rights()
        except Unauthenticated as error:
            connection.fail(error)
            return False
        session.toll.look_at_share()
        return True

    def _write_audit(self) -> None:
        """Have refusals written, in a thread of its own; those that come meanwhile wait for the next time."""
        if self._auditing is not None and not self._auditing.done():
            return
        records = self.guard.audit.take()
        if records:
            assert self._loop is not None
            self._auditing = self._loop.run_in_executor(self._audit_pool, self.guard.record, records)

    def _look_at_line(self) -> None:
        for session in tuple(self._in_line):
            session.expire_waiting()
        self._serve_line()

    # Calls.

    def lookup(self, call: GetStreamCall) -> Answer | None:
        """The answer from memory, without waiting for anything; None if that is not possible."""
        if call.details:
            return None
        try:
            return self._administration.find_in_memory(call.name)
        except UnknownStream:
            if call.auto_create and self.settings.auto_create:
                return None
            self.gateway.note_unknown()
            raise

    def run_call(self, session: Session, call: Call, answered: Answered) -> None:
        """Carry out a call that waits for a flush or for the disk, away from the loop."""
        if self.is_stopping:
            answered(_stopping())
            return
        principal = session.gate.principal
        assert principal is not None
        self._calls.add(session, call, answered, partial(self.guard.seen, principal, session.address, call))

    def run_member_call(self, session: Session, call: MembershipCall | CommitCall, answered: Answered) -> None:
        """Have a member's request answered, some time, in the loop."""
        if self.is_stopping:
            answered(_stopping())
            return
        try:
            if isinstance(call, CommitCall):
                self.coordinator.commit(call, partial(self._answer_soon, answered))
            else:
                self.coordinator.ask(call, partial(self._answer_soon, answered), session.gate.reader())
        except MainstemError as error:
            answered(error)

    def _answer_soon(self, answered: Answered, answer: Answer | MainstemError) -> None:
        """In any thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(answered, answer)

    def carry_out(self, call: Call) -> Answer:
        """Any thread but the loop's: it waits for the disk."""
        match call:
            case ListGroupsCall() | GetGroupCall() | ResetGroupCall() | DeleteGroupCall() | HoldGroupCall():
                return self.coordinator.call(call)
            case StatisticsCall():
                return Answer(counters=self.counters(), histograms=self.log.histograms(), server=self.name)
            case ConnectionsCall():
                return list_connections(tuple(self._sessions), call.after, self.clock.monotonic())
            case RunsCall():
                return self._runs.handle(call)
            case _ if isinstance(call, AccessCall):
                return self.guard.administration.handle(call)
            case _:
                return self._administration.handle(call)

    async def run_aside(self, client: Hashable, work: Callable[[], T], *, is_long: bool = False) -> T:
        """Do what waits for the disk in a thread of the calls, in the client's turn. Nothing is kept of the client,
        however it ends."""
        try:
            return await asyncio.wrap_future(self._calls.run(client, work, is_long=is_long))
        finally:
            self._calls.forget(client)

    def groups(self) -> list[GroupInfo]:
        """All groups of readers, without their shards. Any thread but the loop's."""
        found: list[GroupInfo] = []
        while True:
            answer = self.coordinator.call(ListGroupsCall(found[-1].name if found else ""))
            found += answer.groups
            if not answer.more:
                return found

    def counters(self) -> dict[str, int]:
        """What an operator may want to see of the server and its log. Any thread but the loop's: it asks the disk."""
        followers = count_followers(tuple(self._sessions), self.clock.monotonic())
        return {
            **self.log.counters(),
            **self.coordinator.counters(),
            "started_us": self._started_us,
            "connections": len(self._sessions),
            "connections_total": self._connections_total,
            "connections_refused": self._connections_refused + self._refused_untold,
            "subscriptions": followers.count,
            "followers_slow": followers.slow,
            "followers_blocked": followers.blocked,
            "follower_behind_records_max": followers.behind_max,
            "appends": self._appends,
            "append_bytes": self._append_bytes,
            "appends_in_line": len(self._in_line),
            "batches_pushed_hot": self.pushed.batches_hot,
            "batches_pushed_shared": self.pushed.batches_shared,
            "batches_pushed_disk": self.pushed.batches_disk,
            "records_pushed": self.pushed.records,
            "bytes_pushed": self.pushed.bytes,
            "unknown_streams": self.gateway.unknown_streams,
            "batches_refused": self.gateway.refused,
            "batches_repeated": self.batches_repeated,
            "batches_transcoded": self.selections.tally.made,
            "batches_transcoded_shared": self.selections.tally.shared,
            "transcoded_bytes": self.log.reader.shared.made_bytes,
            "receive_bytes": self._receive_budget.used,
            "requests_forbidden": self.guard.audit.refused,
            **self.http_counters(),
        }

    def new_read_line(self) -> Line:
        """For one client's reads from disk. It may keep all threads busy, as long as nobody else wants one."""
        return Line(self._read_pool, _READ_THREADS)

    # Flushes.

    def submit_soon(self, session: Submitter) -> None:
        """Submit what the session has waiting when everything that can be read now has been read: the messages of
        many clients become one flush, and the commit threads are woken once."""
        if not self._submitting:
            assert self._loop is not None
            self._loop.call_soon(self._submit)
        self._submitting[session] = None

    def _submit(self) -> None:
        sessions, self._submitting = self._submitting, {}
        for session in sessions:
            if self._in_line and session.has_waiting:
                session.pace()
                self._in_line.setdefault(session)
            elif not session.submit_waiting():
                self._in_line[session] = None
        self.log.batcher.wake()

    def _serve_line(self) -> None:
        """The log may have room again: try those who wait, in their order, up to the first that does not fit."""
        if not self._in_line:
            return
        while self._in_line:
            session = next(iter(self._in_line))
            if not session.submit_waiting():
                break
            del self._in_line[session]
        self.log.batcher.wake()

    def complete(self, session: Submitter, pending: Pending, result: Outcomes | MainstemError) -> None:
        """In a commit thread: these batches are committed. Delivered with the flush."""
        self._completed.append((session, pending, result))

    def _on_flush(self, notice: FlushNotice) -> None:
        """In a commit thread: wake the loop once for everything this flush finished."""
        self._notices.append(notice)
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            # The loop is closed: the process is ending, nobody is left to tell.
            return

    def deliver_soon(self) -> None:
        """Something may be finished without a flush."""
        assert self._loop is not None
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._completed:
            session, pending, result = self._completed.popleft()
            self._appends += 1
            self._append_bytes += pending.size
            session.finish_append(pending, result)
        self._serve_line()
        touched: set[Follower] = set()
        while self._notices:
            notice = self._notices.popleft()
            for stream in notice.deleted:
                for subscription in tuple(self._followers.get(stream, ())):
                    subscription.end_deleted()
            for stream, shard in notice.ends:
                for subscription in self._followers.get(stream, ()):
                    subscription.touch(shard)
                    touched.add(subscription)
        for subscription in touched:
            subscription.push()

    def follow(self, subscription: Follower) -> None:
        self._followers.setdefault(subscription.stream, set()).add(subscription)

    def unfollow(self, subscription: Follower) -> None:
        followers = self._followers.get(subscription.stream)
        if followers is not None:
            followers.discard(subscription)
            if not followers:
                del self._followers[subscription.stream]


def _stopping() -> ServerStopping:
    return ServerStopping("the server is stopping; this was not carried out")
