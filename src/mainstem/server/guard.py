"""The guard of a server: one for all its listeners. Who is this, may they, how much of it, and who was refused."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mainstem.access.action import Action
from mainstem.access.acts import details_of, is_act, name_of
from mainstem.access.administration import AccessAdministration
from mainstem.access.audit import RETENTION_BYTES as AUDIT_RETENTION_BYTES
from mainstem.access.audit import RETENTION_US as AUDIT_RETENTION_US
from mainstem.access.audit import Audit, AuditRecord
from mainstem.access.authority import Authority
from mainstem.access.policy import AUDIT_STREAM
from mainstem.access.principal import ANONYMOUS, Principal
from mainstem.access.quotas import Direction, Quotas
from mainstem.core.clock import Clock
from mainstem.core.errors import Forbidden, MainstemError, QuotaExceeded
from mainstem.core.events import Event
from mainstem.core.hosts import is_loopback
from mainstem.log.access_rows import AccessRows
from mainstem.log.log import Log
from mainstem.log.own_stream import OwnStream
from mainstem.server.door import Held
from mainstem.server.gate import Gate
from mainstem.server.permits import KEY_TRANSACTION_MIN, Demand, demands_of, demands_of_stage
from mainstem.transport.port import Answer, Call, ListStreamsCall, SchemaCall
from mainstem.transport.sharing import CommitPartsCall, CommitTransactionCall, ListGroupsCall
from mainstem.transport.wire import Stage

logger = logging.getLogger("mainstem.server")


class Guard:
    """Answers for one log. The loop's thread, where nothing else is said. It is a Door.

    `ask_more` carries out a call anew, for lists of which too little may be seen.
    """

    def __init__(self, log: Log, ask_more: Callable[[Call], Answer], clock: Clock) -> None:
        self._log = log
        self._ask_more = ask_more
        self.administration = AccessAdministration(AccessRows(log), clock)
        self.authority = Authority(AccessRows(log), clock)
        self.quotas = Quotas(lambda: self.authority.policy, clock)
        self.audit = Audit(clock)
        self._audit_stream = OwnStream(log, AUDIT_STREAM, AUDIT_RETENTION_US, AUDIT_RETENTION_BYTES)

    @property
    def is_guarded(self) -> bool:
        return self.authority.is_guarded

    def admit(self, token: str, certificate: str, address: str) -> "GuardedVisitor":
        gate = Gate(self.authority, self.audit)
        gate.open(token, certificate, address, is_local=is_loopback(address))
        return GuardedVisitor(self, gate)

    def turn_away(self, address: str, reason: str) -> None:
        self.audit.refuse(ANONYMOUS, address, "connect", "", reason)

    def check_stage(self, gate: Gate, stage: Stage) -> None:
        """Forbidden if who sends a part of a transaction, or all of one, may not have it written as such."""
        for demand in demands_of_stage(stage):
            self._check_demand(gate, demand)
        if stage.commit is not None:
            self.check_call(gate, stage.commit)

    def check_call(self, gate: Gate, call: Call) -> None:
        """Forbidden if who asks may not have this. Any thread."""
        for demand in demands_of(call):
            self._check_demand(gate, demand)
        if not isinstance(call, CommitTransactionCall | CommitPartsCall):
            return
        if call.transaction >= KEY_TRANSACTION_MIN:
            raise Forbidden(
                f"transaction {call.transaction:x}: numbers over 2^62 are those of keys; draw a smaller one"
            )
        if self.authority.is_guarded:
            # What was allowed when it was staged may not be by now.
            parts = [part for part, _ in call.parts] if isinstance(call, CommitPartsCall) else []
            for stream in self._log.transactions.streams(call.transaction, *parts):
                self._check_demand(gate, Demand(Action.WRITE, stream))

    def _check_demand(self, gate: Gate, demand: Demand) -> None:
        if isinstance(demand.stream, int):
            row = self._log.ledger.load_stream(demand.stream)
            if row is not None:  # else it is refused for that
                gate.check(demand.action, row.name)
            return
        is_missing = demand.if_missing is not None and self._log.ledger.stream_named(demand.stream) is None
        gate.check_demand(demand, is_missing=is_missing)

    def seen(self, principal: Principal, address: str, call: Call, answer: Answer) -> Answer:
        """The answer to a call that was carried out, without what the principal may not see. What was done is recorded.
        Not in the loop's thread."""
        is_guarded = self.authority.is_guarded
        if is_act(call, answer, is_guarded=is_guarded):
            self.record([self.audit.act(principal, address, name_of(call), details_of(call))])
        if is_guarded and isinstance(call, ListStreamsCall):
            return self._seen_streams(principal, call, answer)
        if is_guarded and isinstance(call, ListGroupsCall):
            return self._seen_groups(principal, answer)
        if is_guarded and isinstance(call, SchemaCall) and not self._sees_schema(principal, call.id):
            raise Forbidden(f"{principal} may not describe a stream that has schema {call.id}")
        return answer

    def record(self, records: Sequence[AuditRecord]) -> None:
        """Write to the audit. Not in the loop's thread. That it cannot be written is itself said, and stops nobody."""
        try:
            self._audit_stream.append([record.value for record in records], [record.key for record in records])
        except MainstemError as error:
            logger.error(Event("the audit could not be written", records=len(records), reason=error))

    def _seen_streams(self, principal: Principal, call: ListStreamsCall, answer: Answer) -> Answer:
        """The streams of a list that the principal may see; at least one, if there is one, since by the last of them
        the client asks for more."""
        may = self.authority.may
        while True:
            seen = [row for row in answer.streams if may(principal, Action.DESCRIBE, row.name)]
            if seen or not answer.more:
                return msgspec.structs.replace(answer, streams=tuple(seen))
            answer = self._ask_more(ListStreamsCall(answer.streams[-1].id, call.oldest))

    def _seen_groups(self, principal: Principal, answer: Answer) -> Answer:
        """The same of groups."""
        while True:
            seen = [row for row in answer.groups if self.authority.may(principal, Action.GROUP, row.name)]
            if seen or not answer.more:
                return msgspec.structs.replace(answer, groups=tuple(seen))
            answer = self._ask_more(ListGroupsCall(answer.groups[-1].name))

    def _sees_schema(self, principal: Principal, schema: int) -> bool:
        """Whether a stream that the principal may describe has, or had, this schema."""
        ledger = self._log.ledger
        seen = [
            row
            for row in ledger.list_streams()
            if row.schema_id and not row.deleted_us and self.authority.may(principal, Action.DESCRIBE, row.name)
        ]
        return any(row.schema_id == schema for row in seen) or any(
            version.schema_id == schema for row in seen for version in ledger.load_versions(row.id)
        )


class GuardedVisitor:
    """Somebody whom the guard has let in. It is a Visitor; any thread."""

    def __init__(self, guard: Guard, gate: Gate) -> None:
        self._guard = guard
        self._gate = gate
        assert gate.principal is not None
        self._principal = gate.principal

    @property
    def name(self) -> str:
        return str(self._principal)

    def check(self, action: str, name: str) -> None:
        self._gate.look()
        self._gate.check(Action(action), name)

    def check_any(self, action: str) -> None:
        self._gate.look()
        self._gate.check_demand(Demand(Action(action), is_for_any=True))

    def check_call(self, call: Call) -> None:
        self._gate.look()
        self._guard.check_call(self._gate, call)

    def seen(self, call: Call, answer: Answer) -> Answer:
        return self._guard.seen(self._principal, self._gate.address, call, answer)

    def begin(self, direction: Direction) -> None:
        with self._noted(direction):
            self._guard.quotas.begin(self._principal, direction)

    def share(self, direction: Direction) -> float:
        return self._guard.quotas.share(self._principal, direction)

    def charge(
        self, direction: Direction, size: int, offered: float | None = None, *, has_begun: bool = False
    ) -> float:
        with self._noted(direction):
            quotas = self._guard.quotas
            return quotas.charge_bytes(self._principal, direction, size, offered, has_begun=has_begun)

    def hold(self, measure: Held, count: int) -> None:
        with self._noted("connect" if measure == "connections" else "write"):
            self._guard.quotas.hold(self._principal, measure, count)

    def let_go(self, measure: Held, count: int) -> None:
        self._guard.quotas.let_go(self._principal, measure, count)

    @contextlib.contextmanager
    def _noted(self, action: str) -> Iterator[None]:
        try:
            yield
        except QuotaExceeded as error:
            self._gate.note_quota(action, error)
            raise
