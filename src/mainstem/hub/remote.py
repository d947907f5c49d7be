"""A log behind a connection. One connection and one thread per hub, however many producers and consumers it has.

The link reconnects by itself. What was not answered when it broke is sent again, in the same order and with the same
sequence numbers; the server recognises what it has already. Subscriptions go on from the batch after the last one that
arrived.

A server whose disk is full refuses appends. The hub then lets everything that is under way be answered, keeps what was
refused and what comes after it, and knocks with the first of them now and then; when that is taken, all others follow,
in the same order.
"""

import asyncio
import atexit
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from mainstem.core.batch import Batch, Buffer
from mainstem.core.callbacks import check_may_wait
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import (
    Busy,
    ConnectionLost,
    DataLoss,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    MainstemError,
    ProtocolError,
    QuotaExceeded,
    Unauthenticated,
    UnknownStream,
)
from mainstem.core.events import Event
from mainstem.core.identity import RANDOMNESS
from mainstem.core.known_schemas import KnownSchemas
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.hub.link import TLS_SCHEME, Link, address_of
from mainstem.hub.liveness import Liveness
from mainstem.hub.requests import (
    GATHER_BYTES,
    AppendRequest,
    Awaited,
    CallRequest,
    PendingAppend,
    Request,
    RequestIds,
    StageRequest,
    WholeRequest,
    gather,
)
from mainstem.hub.stall import Stall
from mainstem.hub.subscription import RemoteSubscription
from mainstem.transport import retry
from mainstem.transport.credentials import Credentials
from mainstem.transport.loop import new_loop
from mainstem.transport.port import (
    Answer,
    Answered,
    AppendDone,
    Call,
    DeleteStreamCall,
    EndReached,
    EpochChanged,
    Query,
    SchemaCall,
    StreamInfo,
    checked,
)
from mainstem.transport.retry import Attempt, RetryPolicy, RetryRatio
from mainstem.transport.sharing import CommitTransactionCall, Staging
from mainstem.transport.wire import Append, Credit, Kind, Message, Share, Welcome, error_from, pack

logger = logging.getLogger("mainstem.hub")

_EXIT_SECONDS: Final = 1.0
# How long the end of a hub waits for a server that does not take the last bytes, and for its thread.
_LINGER_SECONDS: Final = 20.0
_END_SECONDS: Final = 22.0
# How long small appends wait for company while others are under way. The last answer ends the wait, unless so many came
# together that a crowd is writing: then every turn is worth its price on both sides only if it carries a few.
_GATHER_SECONDS: Final = 0.006
_CROWD: Final = 3
_CALL = RetryPolicy(attempt_timeout=10.0, deadline=30.0, attempts_max=None, cap=2.0)


class RemotePort:
    """The hub's side of a server. Any thread may call; the fields below the line belong to the I/O thread."""

    def __init__(
        self, url: str, timeout: float, clock: Clock = SYSTEM_CLOCK, credentials: Credentials | None = None
    ) -> None:
        address = address_of(url)
        credentials = credentials or Credentials()
        is_tls = url.lower().startswith(f"{TLS_SCHEME}:")
        if not is_tls:
            credentials.require_private(address[0])
        # Before anything is begun: what is wrong with them is said at once.
        credentials.token()
        tls = credentials.context() if is_tls else None
        self._clock = clock
        # What the server said when it was greeted last.
        self.record_bytes_max = RECORD_BYTES_MAX
        self.checks_values = True
        # Which share of its records it wants.
        self.write_share = 1.0
        self._liveness = Liveness("hub", self._forget_thread)
        self._loop = new_loop()
        self._link = Link(
            address,
            self._loop,
            clock,
            self._on_message,
            on_tick=self._expire,
            linger_seconds=_LINGER_SECONDS,
            credentials=credentials,
            tls=tls,
        )
        self._where = self._link.where
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="mainstem-io", daemon=True)
        self._is_exiting = False
        self._ids = RequestIds()
        self._retries = RetryRatio(clock)
        self._schemas = KnownSchemas(self._load_schema)
        # Handed over by any thread: what to do at the next turn, and appends in the order of their sequence numbers.
        self._actions: deque[Callable[[], None]] = deque()
        self._appends: deque[PendingAppend] = deque()
        # Whether a turn is on its way already; whether the next one comes by itself, with an answer or a moment later.
        self._is_woken = False
        self._is_gathering = False
        # The I/O thread's own from here on.
        self._requests: dict[int, Request] = {}
        self._appends_in_flight = 0
        self._stall = Stall(self._where)
        self._knock_timer: asyncio.TimerHandle | None = None
        self._turn_timer: asyncio.TimerHandle | None = None
        self._is_crowd = False
        self._subscriptions: dict[int, RemoteSubscription] = {}
        self._thread.start()
        _open_ports.add(self)
        self._await_welcome(timeout)

    def _await_welcome(self, timeout: float) -> None:
        if self._link.welcomed.wait(timeout) and self._link.first_error is None:
            return
        error = self._link.first_error
        self.close()
        if error is not None and not error.retriable:
            raise error
        if isinstance(error, Busy):
            raise Busy(f"{self._where}: {error}")
        if isinstance(error, QuotaExceeded):
            raise QuotaExceeded(f"{self._where}: {error}", retry_after=error.retry_after)
        reason = f" ({error})" if error is not None else ""
        raise ConnectionLost(
            f"no Mainstem server answered at {self._where} within {timeout:g} s{reason}; start one with: mainstem serve"
        )

    # Port.

    def call(self, call: Call, timeout: float | None = None) -> Answer:
        self.check_usable()
        check_may_wait("this call")
        call = checked(call)
        sent_before = 0

        def once(attempt: Attempt) -> Answer:
            nonlocal sent_before
            result = self._await(partial(CallRequest, call), attempt.timeout)
            if isinstance(result, Answer):
                return result
            error, sent = result
            sent_before += sent
            if isinstance(call, DeleteStreamCall) and isinstance(error, UnknownStream) and sent_before > 1:
                # An attempt before this one did it; only its answer was lost.
                return Answer()
            raise error

        policy = _CALL if timeout is None else replace(_CALL, deadline=min(max(timeout, 0.001), _CALL.deadline))
        answer = retry.call(once, policy=policy, clock=self._clock, randomness=RANDOMNESS, ratio=self._retries)
        for stream in answer.streams:
            # Whoever looks a stream up needs its schema next.
            if stream.schema_bytes and self._schemas.at_hand(stream.schema_id) is None:
                self._schemas.add(stream.schema_id, Schema.parse(stream.schema_bytes))
        return answer

    def _await(self, request: Callable[[float, Callable[[Any], None]], Request], timeout: float) -> Any:
        """What comes of a request, given its deadline and what to do with the answer."""
        answer = Awaited()
        self._soon(self._begin, request(self._clock.monotonic() + timeout, answer.set))
        # The I/O thread keeps the deadline; the rest is for the case that it has ended meanwhile.
        if not answer.wait(timeout + _END_SECONDS):
            raise DeadlineExceeded(f"{self._where} did not answer in time")
        return answer.result

    def ask(self, call: Call, timeout: float, done: Answered) -> None:
        self.check_usable()

        def on_answer(result: Any) -> None:
            done(result if isinstance(result, Answer) else result[0])

        self._soon(self._begin, CallRequest(checked(call), self._clock.monotonic() + timeout, on_answer))

    def schema(self, schema: int) -> Schema:
        self.check_usable()
        return self._schemas.get(schema)

    def schema_at_hand(self, schema: int) -> Schema | None:
        return self._schemas.at_hand(schema)

    def _load_schema(self, schema: int) -> Schema:
        return self.call(SchemaCall(schema)).schemas[0].schema

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        append = PendingAppend(batches, self._clock.monotonic() + timeout, done)
        # Through one queue, whoever ships: what another thread has handed over before must leave before.
        self._appends.append(append)
        is_large = append.size > GATHER_BYTES
        if is_large and threading.current_thread() is self._thread:
            # At once: the server can write it while the next one is encoded.
            self._send_appends()
        elif is_large or not self._is_gathering:
            self._wake()

    def stage(self, staging: Staging, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        self._soon(self._begin, StageRequest(staging, batches, self._clock.monotonic() + timeout, done))

    def commit_whole(
        self, staging: Staging, batches: Sequence[Batch], call: CommitTransactionCall, timeout: float
    ) -> Answer:
        self.check_usable()
        check_may_wait("a commit")
        # Sent again over the next connection if this one breaks; tried again if the server says so.
        policy = replace(_CALL, attempt_timeout=timeout, deadline=timeout)

        def once(attempt: Attempt) -> Answer:
            result = self._await(partial(WholeRequest, staging, batches, call), attempt.timeout)
            if isinstance(result, Answer):
                return result
            raise result[0]

        return retry.call(once, policy=policy, clock=self._clock, randomness=RANDOMNESS, ratio=self._retries)

    def can_take(self) -> bool:
        connection = self._link.connection
        return self._link.is_ready and connection is not None and not connection.is_blocked

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        if not self.can_take():
            return False
        header = Append([batch.header for batch in batches], False)
        buffers = pack(Kind.APPEND, 0, header, [batch.payload for batch in batches])
        self._soon(self._send, buffers)
        return True

    def subscribe(
        self,
        stream: StreamInfo,
        offsets: Sequence[int],
        ends: Sequence[int] | None,
        prefetch_bytes: int,
        query: Query | None = None,
        window_us: int | None = None,
    ) -> RemoteSubscription:
        self.check_usable()
        subscription = RemoteSubscription(
            self._ids.next(),
            stream,
            offsets,
            ends,
            prefetch_bytes,
            query,
            window_us,
            give_credit=self._give_credit,
            remove=self._end_subscription,
        )
        self._soon(self._add_subscription, subscription)
        return subscription

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        if delay:
            self._soon(self._loop.call_later, delay, action)
            return
        self._actions.append(action)
        if not self._is_gathering:
            self._wake()

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        return event.wait(timeout)

    def check_usable(self) -> None:
        self._liveness.check()

    def check_writable(self) -> None:
        return None

    def close(self) -> None:
        if not self._liveness.end():
            return
        thread, self._thread = self._thread, None
        self._soon(self._stop)
        if thread is not None:
            thread.join(timeout=_END_SECONDS)

    def stop_at_exit(self) -> None:
        """The interpreter is about to end: a thread in the event loop's native code must not outlive it."""
        thread = self._thread
        if thread is not None:
            # Daemon threads that wait for us end with the process; an error would only make them complain.
            self._is_exiting = True
            self._link.linger_seconds = _EXIT_SECONDS / 2
            self._soon(self._stop)
            thread.join(timeout=_EXIT_SECONDS)

    def _forget_thread(self) -> None:
        """In a child made by fork: the thread was not copied, and its sockets are the parent's."""
        self._thread = None

    def _soon(self, action: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: everything was failed already
            self._loop.call_soon_threadsafe(action, *args)

    def _wake(self) -> None:
        """Have the I/O thread take a turn, unless one is on its way."""
        if not self._is_woken:
            self._is_woken = True
            if threading.current_thread() is self._thread:
                self._loop.call_soon(self._take_turn)
            else:
                self._soon(self._take_turn)

    # The I/O thread.

    def _take_turn(self) -> None:
        """Do what was handed over and send all appends that wait, in few messages.

        While an append is under way, small ones gather for the next turn: many producers of one hub share messages, and
        a lone one does not wait.
        """
        self._is_woken = False
        # What is handed over meanwhile is taken along, or found by the look at the end.
        self._is_gathering = True
        if self._turn_timer is not None:
            self._turn_timer.cancel()
            self._turn_timer = None
        for _ in range(len(self._actions)):
            self._actions.popleft()()
        waiting = len(self._appends)
        self._is_crowd = waiting >= _CROWD
        self._send_appends()
        if waiting and self._appends_in_flight:
            self._turn_timer = self._loop.call_later(_GATHER_SECONDS, self._take_turn)
            return
        self._is_gathering = False
        if self._actions or self._appends:
            self._wake()

    def _send_appends(self) -> None:
        while self._appends:
            self._begin(gather(self._appends))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        reason: MainstemError = self._liveness.closed_error()
        try:
            self._loop.run_until_complete(self._link.run())
        except Exception as error:  # the hub is of no use without this thread, and must say so
            logger.exception(Event("the I/O thread of the hub failed", server=self._where))
            reason = self._link.first_error = InternalError(
                f"the hub failed: {type(error).__name__}: {error}; connect anew"
            )
            self._liveness.end(reason)
        finally:
            if not self._is_exiting:
                self._fail_all(reason)
            self._link.welcomed.set()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _on_message(self, message: Message) -> None:
        match message.kind:
            case Kind.APPENDED | Kind.ANSWER:
                self._answer(message.id, message.header)
            case Kind.BATCHES:
                subscription = self._subscriptions.get(message.id)
                if subscription is not None:
                    subscription.receive(message.header, message.payloads)
            case Kind.MARK:
                subscription = self._subscriptions.get(message.id)
                if subscription is not None:
                    subscription.mark(message.header)
            case Kind.END:
                subscription = self._subscriptions.get(message.id)
                if subscription is not None:
                    subscription.finish(EndReached())
            case Kind.ERROR:
                self._on_error(message.id, error_from(message.header))
            case Kind.WELCOME:
                self._on_welcome(message.header)
            case Kind.SHARE:
                self._on_share(message.header)
            case Kind.GOODBYE:
                logger.info(Event("server says goodbye", server=self._where, reason=message.header.reason))
            case _:
                raise ProtocolError(f"a server does not send {Kind(message.kind).name.lower()} messages")

    def _on_welcome(self, welcome: Welcome) -> None:
        try:
            is_restored = self._link.accept(welcome)
        except InvalidRequest as error:
            self._fail_all(error)
            raise
        if is_restored:
            self._schemas.clear()
        self.record_bytes_max, self.write_share = welcome.record_bytes_max, 1.0
        for id_, request in list(self._requests.items()):
            if isinstance(request, AppendRequest) and self._stall.refusal is not None:
                request.is_under_way = False
            else:
                self._send_request(id_, request)
        self._look_at_stall()
        for subscription in list(self._subscriptions.values()):
            self._add_subscription(subscription)
        self._link.welcomed.set()

    def _on_share(self, header: Share) -> None:
        if header.share < 1.0 <= self.write_share:
            logger.warning(Event("over the quota: of what is written a share is kept", share=header.share))
        elif header.share >= 1.0 > self.write_share:
            logger.warning(Event("within the quota again: all that is written is kept"))
        self.write_share = header.share
        self._send(pack(Kind.SHARE, 0, header))

    def _on_error(self, id_: int, error: MainstemError) -> None:
        subscription = self._subscriptions.get(id_)
        if subscription is not None:
            if isinstance(error, DataLoss):
                subscription.lose(error)
            else:
                subscription.finish(error)
        elif id_ in self._requests:
            self._forget(id_).fail(error)
        elif id_ == 0:
            if isinstance(error, Unauthenticated):
                # To wait would not help; what is asked later may, if the token is another one by then.
                self._fail_all(error)
            self._link.refuse(error)

    def _begin(self, request: Request) -> None:
        if self._link.stopping.is_set():
            request.fail(self._liveness.closed_error())
            return
        id_ = self._ids.next()
        self._requests[id_] = request
        self._appends_in_flight += request.is_append
        if not (request.is_append and self._stall.refusal is not None):
            self._send_request(id_, request)

    def _send_request(self, id_: int, request: Request) -> None:
        """Send it if there is a server, or fail it if that would not understand it."""
        if not self._link.is_ready or self._link.connection is None:
            return
        if request.version > self._link.version:
            self._forget(id_).fail(self._link.not_understood(request.name, request.version))
        else:
            self._link.connection.send(request.pack(id_, self._clock.monotonic()))

    def _answer(self, id_: int, answer: Any) -> None:
        request = self._requests.get(id_)
        if request is None:
            return
        # What the first one builds on is not to come any more: its errors are final.
        first = next((other for other, waiting in self._requests.items() if waiting.is_append), id_)
        is_finished = request.answer(answer, is_stalled=self._stall.refusal is not None and first != id_)
        if is_finished:
            self._forget(id_)
            if self._is_gathering and not self._appends_in_flight and not self._is_crowd:
                self._wake()
        if isinstance(request, AppendRequest):
            if request.refusal is not None:
                self._stall.begin(request.refusal)
            self._look_at_stall(is_taken=is_finished and request.is_written)

    # A full disk on the other side.

    def _look_at_stall(self, *, is_taken: bool = False) -> None:
        """If no answer is to come any more: knock after a pause, or go on if the last one was that something was
        written. What is refused for another reason, because its stream was deleted, says nothing about the disk."""
        if self._stall.refusal is None:
            return
        appends = [(id_, request) for id_, request in self._requests.items() if isinstance(request, AppendRequest)]
        if any(request.is_under_way for _, request in appends):
            return
        if is_taken or not appends:
            self._stall.end(is_taken=is_taken)
            for id_, request in appends:
                self._send_request(id_, request)
        elif self._knock_timer is None:
            self._knock_timer = self._loop.call_later(self._stall.delay(), self._knock)

    def _knock(self) -> None:
        self._knock_timer = None
        first = next(((id_, request) for id_, request in self._requests.items() if request.is_append), None)
        if first is None:
            self._look_at_stall()
        else:
            self._send_request(*first)

    def _forget(self, id_: int) -> Request:
        request = self._requests.pop(id_)
        self._appends_in_flight -= request.is_append
        return request

    def _send(self, buffers: Sequence[Buffer]) -> None:
        if self._link.is_ready and self._link.connection is not None:
            self._link.connection.send(buffers)

    def _add_subscription(self, subscription: "RemoteSubscription") -> None:
        if self._link.epoch not in (0, subscription.epoch):
            # Its offsets may be of other records; whoever reads has to look.
            self._subscriptions.pop(subscription.id, None)
            subscription.finish(EpochChanged())
            return
        if self._link.is_ready and subscription.version > self._link.version:
            subscription.finish(self._link.not_understood("consumer", subscription.version))
            return
        self._subscriptions[subscription.id] = subscription
        self._send(subscription.subscribe_message())

    def _end_subscription(self, id_: int) -> None:
        """From any thread: the reader wants no more."""
        self._soon(self._remove_subscription, id_)

    def _remove_subscription(self, id_: int) -> None:
        if self._subscriptions.pop(id_, None) is not None:
            self._send(pack(Kind.UNSUBSCRIBE, id_))

    def _give_credit(self, id_: int, count: int) -> None:
        """From any thread: the reader took this much."""
        self._soon(self._send, pack(Kind.CREDIT, id_, Credit(count)))

    def _expire(self, now: float) -> None:
        is_late = False
        # Of a copy: whoever hears that one has failed may send the next.
        for id_, request in list(self._requests.items()):
            if request.expire(now, self._where, self._stall.refusal):
                self._forget(id_)
                is_late = True
        if is_late:
            self._look_at_stall()

    def _stop(self) -> None:
        self._link.stopping.set()

    def _fail_all(self, error: MainstemError) -> None:
        requests, self._requests = self._requests, {}
        self._appends_in_flight = 0
        for request in requests.values():
            request.fail(error)
        for subscription in self._subscriptions.values():
            subscription.finish(error)
        self._subscriptions.clear()


# Hubs that were not closed when the process ends. Their thread is a daemon, so that it never keeps a process from
# ending; but a daemon that is inside the loop's native code when the interpreter is torn down can crash it.
_open_ports: "weakref.WeakSet[RemotePort]" = weakref.WeakSet()


@atexit.register
def _stop_all_at_exit() -> None:
    for port in list(_open_ports):
        port.stop_at_exit()
