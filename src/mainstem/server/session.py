"""One client's connection as the server sees it: requests in, answers out."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from mainstem.access.action import Action
from mainstem.access.quotas import FREELY, PAUSE_SECONDS_MAX, Grant
from mainstem.consume.feed import Feed
from mainstem.core.batch import Batch, BatchHeader
from mainstem.core.errors import (
    Busy,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    MainstemError,
    ProtocolError,
    QuotaExceeded,
    RecordTooLarge,
    ServerStopping,
    Unauthenticated,
)
from mainstem.core.events import Event
from mainstem.core.limits import (
    APPEND_RAW_BYTES_MAX,
    CALLS_IN_FLIGHT_MAX,
    CLIENT_NAME_CHARS_MAX,
    CREDIT_BYTES_MAX,
    ERROR_TEXT_CHARS_MAX,
    ERROR_TEXTS_CHARS_MAX,
    MEMBER_REQUESTS_MAX,
    MESSAGE_BYTES_MAX,
    MIB,
    PAYLOAD_RAW_BYTES_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
    WINDOW_US_MAX,
    WINDOW_US_MIN,
)
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.coordinator import committed_answer
from mainstem.log.flush import Appended, Rejected, Staged
from mainstem.log.transactions import Writer
from mainstem.server.gate import Gate
from mainstem.server.subscription import PushSubscription
from mainstem.transport.connection import FramedConnection
from mainstem.transport.port import Answer, CommitCall, GetStreamCall, MembershipCall
from mainstem.transport.sharing import CommitTransactionCall, Staging
from mainstem.transport.wire import (
    VERSION,
    VERSION_MIN,
    VERSION_OF_ACCESS,
    VERSION_OF_SHARDS,
    Append,
    Credit,
    Goodbye,
    Hello,
    Kind,
    Message,
    Share,
    Stage,
    Subscribe,
    Welcome,
    WireError,
    pack,
    wire_error,
)
from mainstem.transport.wire import Appended as WireAppended

if TYPE_CHECKING:
    from mainstem.server.server import Server

logger = logging.getLogger("mainstem.server")

# Unanswered bytes of one connection; beyond this it is not read until some are answered.
_IN_FLIGHT_BYTES_MAX: Final = 16 * MIB
# By how much, of itself, a share must change for the client to be told.
_SHARE_STEP: Final = 0.02
# Why nothing is read of who has used up its quota.
_QUOTA: Final = "quota"
# Who has so much unanswered is told to come back instead of waiting for its turn here.
_HELD_BACK_BYTES_MAX: Final = 64 * MIB
# How long before its deadline a client is told that the disk is full.
_HEARD_SECONDS: Final = 1.0
# How long the batches of one message are looked at before everybody else has a turn.
_ADMIT_SECONDS: Final = 0.005
# After so many of them, none of which takes long, somebody looks at the clock.
_LOOKS_AT_CLOCK: Final = 4
# So many batches may each be as large as one can be.
_PLAIN_BATCHES_MAX: Final = APPEND_RAW_BYTES_MAX // PAYLOAD_RAW_BYTES_MAX


# The batches of a message, with their places in it, and what was found of one.
_Placed = tuple[int, tuple[BatchHeader, bytes]]
_Batches = Iterator[_Placed]
_LookedAt = tuple[int, BatchHeader, Batch | MainstemError]


class PendingAppend:
    """An append request: which batches were refused at the door, which wait for their flush."""

    __slots__ = (
        "acknowledge",
        "admitted",
        "commit",
        "deadline",
        "errors",
        "id",
        "patience",
        "places",
        "size",
        "staging",
        "total",
    )

    def __init__(
        self,
        id_: int,
        acknowledge: bool,
        total: int,
        deadline: float,
        patience: float = 0.0,
        staging: Staging | None = None,
        commit: CommitTransactionCall | None = None,
    ) -> None:
        self.id = id_
        # Which part of a transaction it is, if it is one; and its commit, if it is all of one.
        self.staging = staging
        self.commit = commit
        self.acknowledge = acknowledge
        self.total = total
        self.deadline = deadline
        # Until when it may wait for room on the disk: the client should hear the reason before it gives up.
        self.patience = patience
        self.admitted: list[Batch] = []
        self.places: list[int] = []
        self.errors: dict[int, MainstemError] = {}
        self.size = 0

    def take(self, index: int, header: BatchHeader, admitted: Batch | MainstemError) -> None:
        """What was found of the batch at this place."""
        if isinstance(admitted, MainstemError):
            self.errors[index] = admitted
        else:
            self.admitted.append(admitted)
            self.places.append(index)
            self.size += header.stored_len


class Session:
    """State of one connection. The loop's thread only; completions arrive through the server's `deliver`."""

    def __init__(self, server: "Server", id_: int = 0) -> None:
        self._server = server
        self.id = id_
        self.connection: FramedConnection | None = None
        self.subscriptions: dict[int, PushSubscription] = {}
        self._reads = server.new_read_line()
        self.in_flight_bytes = 0
        self.in_flight = 0
        self._calls_in_flight = 0
        # Requests of members of groups that wait for an answer.
        self._members_waiting = 0
        # Appends that wait because the log has too much pending already.
        self._waiting: deque[PendingAppend] = deque()
        # Whether an append is being looked at, in several turns of the loop, and some batches of it by another thread.
        self._is_admitting = False
        # How often it was slowed down by a quota, and not yet sped up again.
        self._slowed = 0
        # Which share of its records the client was told to keep, and which it says that it keeps.
        self._share_told = self._share_kept = 1.0
        self._aside: asyncio.Future[list[_LookedAt]] | None = None
        # An append that waits for its turn by a quota, and what is done then.
        self._held_back: tuple[asyncio.TimerHandle, Callable[[], None]] | None = None
        self._welcomed = False
        self.gate = Gate(server.guard.authority, server.guard.audit)
        # Whether it is among the connections of its principal.
        self.is_counted = False
        # Of the protocol, as agreed with the client.
        self._version = VERSION_MIN
        self.opened_at = server.clock.monotonic()
        self.connected_us = server.clock.now_us()
        # What it calls itself: anything.
        self.client = ""
        self.address = ""
        # Appends that were answered, and the bytes of their batches as they are stored.
        self.appends = 0
        self.append_bytes = 0
        self._handlers: dict[int, Callable[[Message], None]] = {
            Kind.CALL: self._on_call,
            Kind.APPEND: self._on_append,
            Kind.STAGE: self._on_append,
            Kind.SUBSCRIBE: self._on_subscribe,
            Kind.CREDIT: self._on_credit,
            Kind.UNSUBSCRIBE: self._on_unsubscribe,
            Kind.SHARE: self._on_share,
        }

    @property
    def is_welcomed(self) -> bool:
        return self._welcomed

    @property
    def is_idle(self) -> bool:
        """Whether everything that was asked has been answered."""
        return self.in_flight == 0 and not self._waiting and not self._is_admitting

    @property
    def has_waiting(self) -> bool:
        """Whether appends are still to be handed to the log."""
        return bool(self._waiting)

    # From the connection.

    def on_open(self, connection: FramedConnection) -> None:
        self.connection = connection
        self.address = connection.peer
        self._server.on_session_open(self)

    def on_message(self, message: Message) -> None:
        if not self._welcomed:
            self._on_hello(message)
            return
        if self.gate.is_stale:
            self.look_at_rights()
        handler = self._handlers.get(message.kind)
        if handler is None:
            raise ProtocolError(f"a client does not send {Kind(message.kind).name.lower()} messages")
        handler(message)

    def on_blocked(self, is_blocked: bool) -> None:
        if is_blocked:
            return
        for id_, subscription in tuple(self.subscriptions.items()):
            if self.connection is None or self.connection.is_blocked:
                return
            # The next time others come first: else whoever was there first would get everything.
            self.subscriptions[id_] = self.subscriptions.pop(id_)
            subscription.push()

    def on_lost(self, error: BaseException | None) -> None:
        for subscription in self.subscriptions.values():
            subscription.end()
            self._server.unfollow(subscription)
        self.subscriptions.clear()
        self._waiting.clear()
        self._is_admitting = False
        if self._aside is not None:
            # It may still be in line, with its bytes.
            self._aside.cancel()
        self._hold_back_no_longer()
        self._server.on_session_lost(self)

    def look_at_rights(self) -> None:
        """What may be done may have changed: Unauthenticated if that is everything, and who may not read any more is
        not sent anything more."""
        if not self.gate.look():
            return
        for id_, subscription in tuple(self.subscriptions.items()):
            try:
                self.gate.check(Action.READ, subscription.stream_name)
            except MainstemError as error:
                del self.subscriptions[id_]
                subscription.end(error)
                self._server.unfollow(subscription)

    # Requests.

    def _on_hello(self, message: Message) -> None:
        hello = message.header
        if not isinstance(hello, Hello):
            raise ProtocolError("the first message must be hello")
        version = min(hello.version_max, VERSION)
        if version < max(hello.version_min, VERSION_MIN):
            raise ProtocolError(
                f"the client speaks protocol versions {hello.version_min} to {hello.version_max}, this server "
                f"{VERSION_MIN} to {VERSION}; upgrade the older side"
            )
        self.client = hello.client[:CLIENT_NAME_CHARS_MAX]
        assert self.connection is not None
        self._server.let_in(self, hello.token)
        self._welcomed = True
        self._version = version
        logger.debug(Event("client connected", client=self.client, address=self.address, principal=self.gate.principal))
        self.connection.allow_large()
        settings, log = self._server.settings, self._server.log
        welcome = Welcome(
            version,
            self._server.name,
            log.uuid,
            log.epoch,
            settings.heartbeat,
            settings.idle_timeout,
            MESSAGE_BYTES_MAX,
            settings.record_bytes_max,
        )
        self._send(Kind.WELCOME, message.id, welcome)

    def _on_call(self, message: Message) -> None:
        call = message.header
        try:
            self._server.guard.check_call(self.gate, call)
            answer = self._server.lookup(call) if isinstance(call, GetStreamCall) else None
        except MainstemError as error:
            self._send(Kind.ERROR, message.id, wire_error(error))
            return
        if answer is not None:
            self._send(Kind.ANSWER, message.id, answer)
            return
        if isinstance(call, MembershipCall | CommitCall):
            self._on_member(message.id, call)
            return
        self.in_flight += 1
        self._calls_in_flight += 1
        if self._calls_in_flight >= CALLS_IN_FLIGHT_MAX and self.connection is not None:
            self.connection.pause("calls")
        self._server.run_call(self, call, partial(self._answer_call, message.id))

    def _on_member(self, id_: int, call: MembershipCall | CommitCall) -> None:
        """A member's request is answered when there is something to say, and holds nobody up meanwhile."""
        if self._members_waiting >= MEMBER_REQUESTS_MAX:
            self._send(Kind.ERROR, id_, wire_error(Busy(f"{MEMBER_REQUESTS_MAX} requests of members wait already")))
            return
        self._members_waiting += 1
        self.in_flight += 1
        self._server.run_member_call(self, call, partial(self._answer_member, id_))

    def _answer_member(self, id_: int, answer: Answer | MainstemError) -> None:
        self.in_flight -= 1
        self._members_waiting -= 1
        if isinstance(answer, MainstemError):
            self._send(Kind.ERROR, id_, wire_error(answer))
        else:
            self._send(Kind.ANSWER, id_, answer)

    def _answer_call(self, id_: int, answer: Answer | MainstemError) -> None:
        self.in_flight -= 1
        self._calls_in_flight -= 1
        if self.connection is not None:
            self.connection.resume("calls")
        if isinstance(answer, MainstemError):
            self._send(Kind.ERROR, id_, wire_error(answer))
        else:
            self._send(Kind.ANSWER, id_, answer)

    def _on_append(self, message: Message) -> None:
        append: Append | Stage = message.header
        staging, commit = (append.staging, append.commit) if isinstance(append, Stage) else (None, None)
        is_acknowledged = isinstance(append, Stage) or append.acknowledge
        now = self._server.clock.monotonic()
        timeout = append.timeout_ms / 1000 if append.timeout_ms else 3600.0
        patience = now + timeout - min(_HEARD_SECONDS, timeout / 4) if is_acknowledged else 0.0
        deadline = now + timeout
        pending = PendingAppend(message.id, is_acknowledged, len(append.batches), deadline, patience, staging, commit)
        if pending.total > _PLAIN_BATCHES_MAX and sum([header.raw_len for header in append.batches]) > (
            APPEND_RAW_BYTES_MAX
        ):
            self._refuse_bulk(pending)
            return
        try:
            if isinstance(append, Stage):
                self._server.guard.check_stage(self.gate, append)
            grant = self._charge_write(append, timeout if not is_acknowledged else min(timeout, PAUSE_SECONDS_MAX))
        except (Forbidden, QuotaExceeded, Unauthenticated) as error:
            if isinstance(error, QuotaExceeded):
                self.gate.note_quota("write", error)
            self._refuse_all(pending, error)
            return
        if grant.wait > 0:
            self._hold_back(grant.wait, pending, message)
        else:
            self._admit(pending, self._allowed(pending, message))

    def _charge_write(self, append: Append | Stage, patience: float) -> Grant:
        """Count what is written, and read nothing more for as long as the quota of who writes it says."""
        quotas, principal = self._server.guard.quotas, self.gate.principal
        if not quotas.are_set or principal is None:
            return FREELY
        if quotas.held(principal, "memory_bytes") > _HELD_BACK_BYTES_MAX:
            patience = 0.0
        size = sum([header.stored_len for header in append.batches])
        # Of a transaction nothing is left out.
        share = 1.0 if isinstance(append, Stage) else self._share_kept
        grant = quotas.charge(principal, "write", size, size / share, patience)
        self._slow_down(min(grant.pause, PAUSE_SECONDS_MAX))
        self._tell_share(grant.share)
        return grant

    def _hold_back(self, seconds: float, pending: PendingAppend, message: Message) -> None:
        """Look at an append when it is its turn: what came before it, on other connections, is being paid for. Else
        whoever is slowed down would connect anew."""
        self._pause_admission()
        quotas, principal, size = self._server.guard.quotas, self.gate.principal, sum(map(len, message.payloads))
        assert principal is not None
        quotas.add(principal, "memory_bytes", size)

        def go_on() -> None:
            self._held_back = None
            quotas.let_go(principal, "memory_bytes", size)
            self._admit_more(pending, self._allowed(pending, message))

        self._held_back = asyncio.get_running_loop().call_later(seconds, go_on), go_on

    def _hold_back_no_longer(self) -> None:
        if self._held_back is not None:
            timer, go_on = self._held_back
            timer.cancel()
            go_on()

    def _allowed(self, pending: PendingAppend, message: Message) -> _Batches:
        """The batches of an append, without those that may not be written, whose errors are noted."""
        batches = enumerate(zip(message.header.batches, message.payloads, strict=True))
        refusals = self._write_refusals(message.header)
        return self._without_refused(pending, batches, refusals) if refusals else batches

    def _tell_share(self, share: float) -> None:
        """Have the client keep another share of what it writes, if the difference is worth a word."""
        told = self._share_told
        if self._version >= VERSION_OF_ACCESS and (abs(share - told) > _SHARE_STEP * told or share >= 1.0 > told):
            self._share_told = share
            self._send(Kind.SHARE, 0, Share(share))

    def look_at_share(self) -> None:
        """Who was told to keep a share may write so little by now that nothing of it arrives."""
        if self._share_told < 1.0 and self.gate.principal is not None:
            self._tell_share(self._server.guard.quotas.share(self.gate.principal, "write"))

    def _on_share(self, message: Message) -> None:
        """The client keeps a share from now on. One that it was not told is not believed."""
        share: Share = message.header
        self._share_kept = max(share.share, self._share_told)

    def _slow_down(self, seconds: float) -> None:
        if seconds > 0 and self.connection is not None:
            self._slowed += 1
            self.connection.pause(_QUOTA)
            asyncio.get_running_loop().call_later(seconds, self._speed_up)

    def _speed_up(self) -> None:
        self._slowed -= 1
        if not self._slowed and self.connection is not None:
            self.connection.resume(_QUOTA)

    def _charge_read(self, size: int, offered: int) -> Grant:
        """Count what is pushed, and what would have been if nothing had been left out."""
        quotas = self._server.guard.quotas
        if not quotas.are_set or self.gate.principal is None:
            return FREELY
        try:
            return quotas.charge(self.gate.principal, "read", size, offered)
        except QuotaExceeded as error:
            self.gate.note_quota("read", error)
            raise

    def _turn_to_read(self) -> float:
        """In how many seconds who begins to read is sent something."""
        quotas = self._server.guard.quotas
        if not quotas.are_set or self.gate.principal is None:
            return 0.0
        try:
            return quotas.turn(self.gate.principal, "read")
        except QuotaExceeded as error:
            self.gate.note_quota("read", error)
            raise

    def _write_refusals(self, append: Append | Stage) -> dict[int, MainstemError]:
        """Why batches of which streams may not be written. Of a stream that does not exist the gateway tells."""
        refusals: dict[int, MainstemError] = {}
        for stream in {header.stream for header in append.batches}:
            if not self.gate.is_writable(stream) and (row := self._server.log.ledger.load_stream(stream)) is not None:
                refusal = self.gate.write_refusal(stream, row.name)
                if refusal is not None:
                    refusals[stream] = refusal
        return refusals

    def _without_refused(
        self, pending: PendingAppend, batches: _Batches, refusals: dict[int, MainstemError]
    ) -> _Batches:
        for index, (header, payload) in batches:
            if (refusal := refusals.get(header.stream)) is not None:
                pending.errors[index] = refusal
            else:
                yield index, (header, payload)

    def _refuse_bulk(self, pending: PendingAppend) -> None:
        error = RecordTooLarge(
            f"the {pending.total} batches of this append are over {APPEND_RAW_BYTES_MAX} bytes once they are "
            "decompressed; send fewer at a time"
        )
        self._refuse_all(pending, error)

    def _refuse_all(self, pending: PendingAppend, error: MainstemError) -> None:
        self._server.gateway.note_refused(pending.total)
        pending.errors = dict.fromkeys(range(pending.total), error)
        self._waiting.append(pending)
        self._server.submit_soon(self)

    def _admit(self, pending: PendingAppend, batches: _Batches) -> None:
        """Look at batches for a moment; if that was not enough, others have their turn before it goes on. One that
        takes long is looked at aside. Meanwhile no message of this client is handled, so appends keep their order."""
        gateway, clock = self._server.gateway, self._server.clock
        until = clock.monotonic() + _ADMIT_SECONDS
        for index, (header, payload) in batches:
            if gateway.is_long(header):
                self._admit_aside(pending, batches, (index, (header, payload)))
                return
            pending.take(index, header, gateway.admit(header, payload, acknowledge=pending.acknowledge))
            if index % _LOOKS_AT_CLOCK == 0 and index + 1 < pending.total and clock.monotonic() >= until:
                self._pause_admission()
                asyncio.get_running_loop().call_soon(self._admit_more, pending, batches)
                return
        self._waiting.append(pending)
        self._server.submit_soon(self)

    def _admit_aside(self, pending: PendingAppend, batches: _Batches, first: _Placed) -> None:
        """Have a batch looked at by another thread, and those after it for as long as they would be here."""
        self._pause_admission()
        gateway, clock = self._server.gateway, self._server.clock

        def look() -> list[_LookedAt]:
            until = clock.monotonic() + _ADMIT_SECONDS
            found: list[_LookedAt] = []
            for index, (header, payload) in chain((first,), batches):
                found.append((index, header, gateway.admit(header, payload, acknowledge=pending.acknowledge)))
                if clock.monotonic() >= until:
                    break
            return found

        def go_on(looked_at: "asyncio.Future[list[_LookedAt]]") -> None:
            self._aside = None
            self._admit_more(pending, batches, looked_at.result)

        self._aside = asyncio.get_running_loop().run_in_executor(self._server.admission_pool, look)
        self._aside.add_done_callback(go_on)

    def _pause_admission(self) -> None:
        assert self.connection is not None
        self._is_admitting = True
        self.connection.pause("admission")

    def _admit_more(
        self, pending: PendingAppend, batches: _Batches, looked_at: Callable[[], list[_LookedAt]] = list
    ) -> None:
        if not self._is_admitting:
            return  # the client is gone
        self._is_admitting = False
        assert self.connection is not None
        try:
            for index, header, admitted in looked_at():
                pending.take(index, header, admitted)
            self._admit(pending, batches)
        except Exception as error:  # as for a message that is handled at once
            self.connection.fail(ProtocolError(f"this message could not be handled: {type(error).__name__}: {error}"))
            raise
        if not self._is_admitting:
            self.connection.resume("admission")

    def submit_waiting(self) -> bool:
        """Hand waiting appends to the log, in order, as far as it takes them; whether it took all. The caller wakes the
        log afterwards."""
        while self._waiting:
            pending = self._waiting[0]
            if not self._try_submit(pending):
                break
            self._waiting.popleft()
        self.pace()
        return not self._waiting

    def expire_waiting(self) -> None:
        """Refuse the first of the waiting appends if their time is over."""
        now = self._server.clock.monotonic()
        while self._waiting and self._waiting[0].deadline <= now:
            self._refuse(self._waiting.popleft(), _too_busy())

    def pace(self) -> None:
        """Read on only when no append waits and not too much is unanswered."""
        connection = self.connection
        if connection is not None:
            if self._waiting or self.in_flight_bytes > _IN_FLIGHT_BYTES_MAX or self._holds_too_much():
                connection.pause("appends")
            else:
                connection.resume("appends")

    def _holds_too_much(self) -> bool:
        """Whether what its principal has unanswered, on all connections, is over its quota of memory."""
        quotas, principal = self._server.guard.quotas, self.gate.principal
        return quotas.are_set and principal is not None and quotas.is_over(principal, "memory_bytes")

    def _try_submit(self, pending: PendingAppend) -> bool:
        if self._server.is_stopping:
            self._refuse(pending, ServerStopping("the server is stopping; the batch was not written"))
        elif pending.staging is not None and pending.errors:
            # All of a part, or nothing.
            self._refuse(pending, next(iter(pending.errors.values())))
        elif not pending.admitted:
            self.answer_append(pending, [])
        else:
            try:
                self._submit(pending)
            except Busy:
                if self._server.clock.monotonic() < pending.deadline:
                    return False
                self._refuse(pending, _too_busy())
            except MainstemError as error:
                self._refuse(pending, error)
            else:
                self.in_flight += 1
                self.in_flight_bytes += pending.size
                if self.gate.principal is not None:
                    self._server.guard.quotas.add(self.gate.principal, "memory_bytes", pending.size)
        return True

    def _submit(self, pending: PendingAppend) -> None:
        done = partial(self._server.complete, self, pending)
        staging, log = pending.staging, self._server.log
        if staging is None:
            log.batcher.submit(Submission(pending.admitted, done, pending.patience), wake=False)
            return
        if pending.commit is not None:
            self._server.coordinator.commit_whole(pending.commit, pending.admitted, done, patience=pending.patience)
            return
        log.stage(
            staging.transaction,
            staging.index,
            pending.admitted,
            done,
            timeout=staging.seconds,
            writer=Writer(staging.writer, staging.epoch),
            patience=pending.patience,
        )
        # What was staged before is answered at once, and no flush tells of it.
        self._server.deliver_soon()

    def _refuse(self, pending: PendingAppend, error: MainstemError) -> None:
        for index in pending.places:
            pending.errors[index] = error
        pending.places, pending.admitted = [], []
        self.answer_append(pending, [])

    def finish_append(self, pending: PendingAppend, result: Outcomes | MainstemError) -> None:
        """The flush with this request's batches is committed."""
        self.in_flight -= 1
        self.in_flight_bytes -= pending.size
        if self.gate.principal is not None:
            self._server.guard.quotas.let_go(self.gate.principal, "memory_bytes", pending.size)
        self.appends += 1
        self.append_bytes += pending.size
        if isinstance(result, MainstemError):
            self._refuse(pending, result)
        else:
            self.answer_append(pending, result)
        is_paced = self.in_flight_bytes + pending.size > _IN_FLIGHT_BYTES_MAX or self._server.guard.quotas.are_set
        if self._waiting or is_paced:
            self._server.submit_soon(self)

    def answer_append(self, pending: PendingAppend, outcomes: Outcomes) -> None:
        if not pending.acknowledge:
            return
        if pending.commit is not None:
            self._answer_commit(pending, outcomes)
            return
        bases = [-1] * pending.total
        errors = pending.errors
        for index, outcome in zip(pending.places, outcomes, strict=True):
            if isinstance(outcome, Rejected):
                errors[index] = outcome.error
            elif isinstance(outcome, Staged):
                bases[index] = 0
            else:
                assert isinstance(outcome, Appended)
                bases[index] = outcome.base
                if outcome.duplicate:
                    self._server.batches_repeated += 1
        self._send(Kind.APPENDED, pending.id, WireAppended(bases, _wire_errors(errors) if errors else {}))

    def _answer_commit(self, pending: PendingAppend, outcomes: Outcomes) -> None:
        """All of a transaction, or none of it."""
        outcome = outcomes[0] if outcomes else Rejected(next(iter(pending.errors.values()), _nothing_to_commit()))
        if isinstance(outcome, Rejected):
            self._send(Kind.ERROR, pending.id, wire_error(outcome.error))
        else:
            self._send(Kind.ANSWER, pending.id, committed_answer(outcome))

    def _on_subscribe(self, message: Message) -> None:
        subscribe: Subscribe = message.header
        if message.id in self.subscriptions or not message.id:
            raise ProtocolError(f"subscription {message.id} exists already, or has no id")
        try:
            if len(self.subscriptions) >= SUBSCRIPTIONS_PER_CONNECTION_MAX:
                raise InvalidRequest(f"at most {SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions on one connection")
            server = self._server
            row = server.log.reader.require_stream(subscribe.stream)
            self.gate.check(Action.READ, row.name)
            if self._version < VERSION_OF_SHARDS and len(subscribe.offsets) != row.shards:
                raise InvalidRequest(f"stream {row.name!r} has {row.shards} shards; give one offset for each")
            if subscribe.window_us and not WINDOW_US_MIN <= subscribe.window_us <= WINDOW_US_MAX:
                raise InvalidRequest(f"a window has {WINDOW_US_MIN} to {WINDOW_US_MAX} microseconds, or 0")
            query = subscribe.query
            select = None if query is None else partial(server.selections.get, row, query)
            feed = Feed(
                server.log.reader,
                row,
                subscribe.offsets,
                subscribe.ends,
                select,
                is_plain=query is not None and query.is_plain,
                window_us=subscribe.window_us,
                schema_of=server.log.schema,
                clock=server.clock,
            )
        except MainstemError as error:
            self._send(Kind.ERROR, message.id, wire_error(error))
            return
        assert self.connection is not None
        credit = min(subscribe.credit, CREDIT_BYTES_MAX)
        subscription = PushSubscription(
            self.connection,
            message.id,
            feed,
            credit,
            server.log.hot,
            server.push_encoder,
            self._reads,
            self._version,
            server.pushed,
            server.reads_under_way,
            server.clock,
            self._charge_read,
            self._turn_to_read,
        )
        self.subscriptions[message.id] = subscription
        server.follow(subscription)
        subscription.push()

    def _on_credit(self, message: Message) -> None:
        subscription = self.subscriptions.get(message.id)
        if subscription is not None:
            credit: Credit = message.header
            subscription.add_credit(credit.bytes)
            subscription.push()

    def _on_unsubscribe(self, message: Message) -> None:
        subscription = self.subscriptions.pop(message.id, None)
        if subscription is not None:
            subscription.end()
            self._server.unfollow(subscription)

    def mark(self) -> None:
        """Tell the readers of this connection how far the time has come."""
        for subscription in tuple(self.subscriptions.values()):
            subscription.mark(self._server.log.batcher.settled_us)

    # To the connection.

    def say_goodbye(self) -> None:
        self._hold_back_no_longer()
        self._send(Kind.GOODBYE, 0, Goodbye("the server is stopping"))

    def _send(self, kind: Kind, id_: int, header: Any) -> None:
        if self.connection is not None:
            self.connection.send(pack(kind, id_, header))


def _nothing_to_commit() -> InvalidRequest:
    return InvalidRequest("a transaction without batches is committed by a call")


def _too_busy() -> DeadlineExceeded:
    return DeadlineExceeded("the server was too busy to take the batch in time")


def _wire_errors(errors: dict[int, MainstemError]) -> dict[int, WireError]:
    """The errors of one request. If they are many their texts are short, so that the answer is not too long."""
    chars_max = min(ERROR_TEXT_CHARS_MAX, ERROR_TEXTS_CHARS_MAX // len(errors))
    return {index: wire_error(error, chars_max) for index, error in errors.items()}
