"""The gate of one connection: who is at its other end, and what that one may do."""

from dataclasses import dataclass

from mainstem.access.action import Action
from mainstem.access.audit import Audit
from mainstem.access.authority import Authority
from mainstem.access.principal import ANONYMOUS, Principal
from mainstem.core.errors import Forbidden, MainstemError, QuotaExceeded, Unauthenticated
from mainstem.server.permits import Demand


@dataclass(frozen=True, slots=True)
class Reader:
    """Says of a stream whether a principal may read it, at the time when it is asked. Any thread."""

    authority: Authority
    principal: Principal

    def __call__(self, stream: str) -> bool:
        return self.authority.may(self.principal, Action.READ, stream)


class Gate:
    """Asks the authority, remembers its answers while they hold, and tells the audit what was refused. One thread.

    Without a principal nothing may be asked.
    """

    def __init__(self, authority: Authority, audit: Audit) -> None:
        self._authority = authority
        self._audit = audit
        self.address = ""
        self._version = -1
        # Streams that may be written, by their ids, which are never those of others.
        self._writable: set[int] = set()
        self.principal: Principal | None = None

    def open(self, token: str, certificate: str, address: str, *, is_local: bool) -> Principal:
        """Let somebody in; Unauthenticated if it is not known who that is."""
        self.address = address
        self._version = self._authority.version
        try:
            self.principal = self._authority.authenticate(token, certificate=certificate, is_local=is_local)
        except Unauthenticated as error:
            self._audit.refuse(ANONYMOUS, address, "connect", "", str(error))
            raise
        return self.principal

    @property
    def is_stale(self) -> bool:
        """Whether what is in force has changed since somebody looked."""
        return self._version != self._authority.version

    def look(self) -> bool:
        """Unauthenticated if the one at the other end is nobody any more; else whether its rights may be others than at
        the last look."""
        principal = self._known()
        is_changed = self.is_stale
        if is_changed:
            self._version = self._authority.version
            self._writable.clear()
        if not self._authority.is_current(principal):
            error = Unauthenticated(
                f"token {principal.token} is not valid any more: it was revoked, or its time is over"
                if principal.token
                else "this server wants a token by now: connect anew with one"
                if principal == ANONYMOUS
                else f"no rule names {principal}, whose certificate this is, any more"
            )
            self._audit.refuse(principal, self.address, "stay", "", str(error))
            raise error
        return is_changed

    def check(self, action: Action, stream: str) -> None:
        """Forbidden if the principal may not."""
        try:
            self._authority.allow(self._known(), action, stream)
        except MainstemError as error:
            self._note(action, stream, error)
            raise

    def check_demand(self, demand: Demand, *, is_missing: bool = False) -> None:
        """The same for what a call demands; `is_missing` says that its stream is not there."""
        if demand.is_for_any:
            try:
                self._authority.allow_for_any(self._known(), demand.action)
            except MainstemError as error:
                self._note(demand.action, "*", error)
                raise
            return
        assert isinstance(demand.stream, str), "a name, by now"
        action = demand.if_missing if is_missing and demand.if_missing is not None else demand.action
        self.check(action, demand.stream)

    def may(self, action: Action, stream: str) -> bool:
        """Without a word to anybody."""
        return self._authority.may(self._known(), action, stream)

    def reader(self) -> Reader:
        """To be asked by others than the gate's thread."""
        return Reader(self._authority, self._known())

    def write_refusal(self, stream: int, name: str) -> Forbidden | Unauthenticated | None:
        """Why the principal may not write to a stream; None if it may."""
        if stream in self._writable:
            return None
        try:
            self.check(Action.WRITE, name)
        except (Forbidden, Unauthenticated) as error:
            return error
        self._writable.add(stream)
        return None

    def is_writable(self, stream: int) -> bool:
        """Whether it is known that the principal may write to it."""
        return stream in self._writable

    def note_quota(self, action: str, error: QuotaExceeded) -> None:
        """The principal was refused something because it has had too much. How long it is to wait is another time with
        every refusal, and would make each of them one of its own."""
        self._audit.refuse(self._known(), self.address, action, "", str(error).partition(";")[0])

    def _known(self) -> Principal:
        assert self.principal is not None, "the connection was not let in"
        return self.principal

    def _note(self, action: str, stream: str, error: MainstemError) -> None:
        self._audit.refuse(self._known(), self.address, action, stream, str(error))
