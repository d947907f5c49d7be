"""The appends of a connection: looked at batch by batch, handed to the log in their order, answered."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from mainstem.access.quotas import PAUSE_SECONDS_MAX
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
from mainstem.core.limits import APPEND_RAW_BYTES_MAX, MIB, PAYLOAD_RAW_BYTES_MAX
from mainstem.log.batcher import Outcomes, Submission
from mainstem.log.coordinator import committed_answer
from mainstem.log.flush import Appended, Rejected, Staged
from mainstem.log.transactions import DeliveryNumber, Writer
from mainstem.server.pending import PendingAppend, wire_errors
from mainstem.transport.wire import Append, Kind, Message, Stage, wire_error
from mainstem.transport.wire import Appended as WireAppended

if TYPE_CHECKING:
    from mainstem.server.server import Server
    from mainstem.server.session import Session

# Unanswered bytes of one connection; beyond this it is not read until some are answered.
_IN_FLIGHT_BYTES_MAX: Final = 16 * MIB
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


class Appends:
    """What a session writes. The loop's thread only; completions arrive through the server's `deliver`."""

    def __init__(self, server: "Server", session: "Session") -> None:
        self._server = server
        self._session = session
        self._gate = session.gate
        self._toll = session.toll
        self._in_flight = 0
        self._in_flight_bytes = 0
        # Those that wait because the log has too much pending already.
        self._waiting: deque[PendingAppend] = deque()
        # Whether one is being looked at, in several turns of the loop, and some batches of it by another thread.
        self.is_admitting = False
        self._aside: asyncio.Future[list[_LookedAt]] | None = None
        # One that waits for its turn by a quota, and what is done then.
        self._held_back: tuple[asyncio.TimerHandle, Callable[[], None]] | None = None
        # Those that were answered, and the bytes of their batches as they are stored.
        self.count = 0
        self.bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether everything that was asked has been answered."""
        return self._in_flight == 0 and not self._waiting and not self.is_admitting

    @property
    def has_waiting(self) -> bool:
        """Whether some are still to be handed to the log."""
        return bool(self._waiting)

    def forget(self) -> None:
        """The client is gone: nobody hears what becomes of them."""
        self._waiting.clear()
        self.is_admitting = False
        if self._aside is not None:
            # It may still be in line, with its bytes.
            self._aside.cancel()
        self.hold_back_no_longer()

    def take(self, message: Message) -> None:
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
                self._server.guard.check_stage(self._gate, append)
            grant = self._toll.charge_write(append, timeout if not is_acknowledged else min(timeout, PAUSE_SECONDS_MAX))
        except (Forbidden, QuotaExceeded, Unauthenticated) as error:
            if isinstance(error, QuotaExceeded):
                self._gate.note_quota("write", error)
            self._refuse_all(pending, error)
            return
        if grant.wait > 0:
            self._hold_back(grant.wait, pending, message)
        else:
            self._admit(pending, self._allowed(pending, message))

    def _hold_back(self, seconds: float, pending: PendingAppend, message: Message) -> None:
        """Look at an append when it is its turn: what came before it, on other connections, is being paid for. Else
        whoever is slowed down would connect anew."""
        self._pause_admission()
        quotas, principal, size = self._server.guard.quotas, self._gate.principal, sum(map(len, message.payloads))
        assert principal is not None
        quotas.add(principal, "memory_bytes", size)

        def go_on() -> None:
            self._held_back = None
            quotas.let_go(principal, "memory_bytes", size)
            self._admit_more(pending, self._allowed(pending, message))

        self._held_back = asyncio.get_running_loop().call_later(seconds, go_on), go_on

    def hold_back_no_longer(self) -> None:
        if self._held_back is not None:
            timer, go_on = self._held_back
            timer.cancel()
            go_on()

    def _allowed(self, pending: PendingAppend, message: Message) -> _Batches:
        """The batches of an append, without those that may not be written, whose errors are noted."""
        batches = enumerate(zip(message.header.batches, message.payloads, strict=True))
        refusals = self._write_refusals(message.header)
        return self._without_refused(pending, batches, refusals) if refusals else batches

    def _write_refusals(self, append: Append | Stage) -> dict[int, MainstemError]:
        """Why batches of which streams may not be written. Of a stream that does not exist the gateway tells."""
        refusals: dict[int, MainstemError] = {}
        for stream in {header.stream for header in append.batches}:
            if not self._gate.is_writable(stream) and (row := self._server.log.ledger.load_stream(stream)) is not None:
                refusal = self._gate.write_refusal(stream, row.name)
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
        assert self._session.connection is not None
        self.is_admitting = True
        self._session.connection.pause("admission")

    def _admit_more(
        self, pending: PendingAppend, batches: _Batches, looked_at: Callable[[], list[_LookedAt]] = list
    ) -> None:
        if not self.is_admitting:
            return  # the client is gone
        self.is_admitting = False
        assert self._session.connection is not None
        try:
            for index, header, admitted in looked_at():
                pending.take(index, header, admitted)
            self._admit(pending, batches)
        except Exception as error:  # as for a message that is handled at once
            self._session.connection.fail(
                ProtocolError(f"this message could not be handled: {type(error).__name__}: {error}")
            )
            raise
        if not self.is_admitting:
            self._session.connection.resume("admission")

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
        connection = self._session.connection
        if connection is not None:
            if self._waiting or self._in_flight_bytes > _IN_FLIGHT_BYTES_MAX or self._toll.holds_too_much():
                connection.pause("appends")
            else:
                connection.resume("appends")

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
                self._in_flight += 1
                self._in_flight_bytes += pending.size
                if self._gate.principal is not None:
                    self._server.guard.quotas.add(self._gate.principal, "memory_bytes", pending.size)
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
            delivery=DeliveryNumber(staging.job, staging.number),
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
        self._in_flight -= 1
        self._in_flight_bytes -= pending.size
        if self._gate.principal is not None:
            self._server.guard.quotas.let_go(self._gate.principal, "memory_bytes", pending.size)
        self.count += 1
        self.bytes += pending.size
        if isinstance(result, MainstemError):
            self._refuse(pending, result)
        else:
            self.answer_append(pending, result)
        is_paced = self._in_flight_bytes + pending.size > _IN_FLIGHT_BYTES_MAX or self._server.guard.quotas.are_set
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
        self._session.send(Kind.APPENDED, pending.id, WireAppended(bases, wire_errors(errors) if errors else {}))

    def _answer_commit(self, pending: PendingAppend, outcomes: Outcomes) -> None:
        """All of a transaction, or none of it."""
        outcome = outcomes[0] if outcomes else Rejected(next(iter(pending.errors.values()), _nothing_to_commit()))
        if isinstance(outcome, Rejected):
            self._session.send(Kind.ERROR, pending.id, wire_error(outcome.error))
        else:
            self._session.send(Kind.ANSWER, pending.id, committed_answer(outcome))


def _nothing_to_commit() -> InvalidRequest:
    return InvalidRequest("a transaction without batches is committed by a call")


def _too_busy() -> DeadlineExceeded:
    return DeadlineExceeded("the server was too busy to take the batch in time")
