"""The authority: says who somebody is, and whether they may. One for all doors of a server."""

import shlex
import threading
from typing import Final

from mainstem.access.action import Action
from mainstem.access.policy import NO_RULE, Policy
from mainstem.access.principal import ANONYMOUS, Principal
from mainstem.access.store import AccessStore
from mainstem.access.token import DIGEST_BYTES, is_same, parse
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import Forbidden, Unauthenticated
from mainstem.transport.guarding import Explanation

_NOBODY = bytes(DIGEST_BYTES)
# Actions whose name is no verb.
_VERBS: Final = {Action.GROUP: "read as a member of"}


class Authority:
    """Any thread. It follows its store: a change is in force for the next question.

    Who keeps a connection asks `is_current` now and then: a token may have been revoked, or be over, or the first
    principal may have come.
    """

    def __init__(self, store: AccessStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._version = store.version
        self._policy = Policy(store.rows())

    @property
    def version(self) -> int:
        """Changes whenever an answer may be another than before, but for tokens whose time is over."""
        return self._store.version

    @property
    def policy(self) -> Policy:
        """What is in force now."""
        if self._store.version != self._version:
            with self._lock:
                # First which, then what: what is found is at least as new.
                version = self._store.version
                if version != self._version:
                    self._policy = Policy(self._store.rows())
                    self._version = version
        return self._policy

    @property
    def is_guarded(self) -> bool:
        """Whether somebody has to be known to do anything."""
        return self.policy.is_guarded

    def authenticate(self, token: str = "", *, certificate: str = "", is_local: bool = False) -> Principal:
        """Who shows this token, or has this name in a certificate that TLS has verified; Unauthenticated if nobody.

        `is_local` says that the client is on this machine: until the first principal exists it is ANONYMOUS, whatever
        it shows, and may do everything.
        """
        policy = self.policy
        if not policy.is_guarded and is_local:
            return ANONYMOUS
        if token:
            return self._holder(policy, token)
        if certificate and policy.is_known(certificate):
            return Principal(certificate)
        if certificate:
            raise Unauthenticated(
                f"the certificate is of {certificate[:80]!r}, whom no rule names; an administrator can: mainstem "
                "access allow NAME ACTION STREAM"
            )
        raise Unauthenticated(
            "this server wants a token: set MAINSTEM_TOKEN or token_file, pass token= to connect, or send the header "
            "Authorization: Bearer TOKEN over HTTP; an administrator makes one: mainstem token create NAME"
        )

    def is_current(self, principal: Principal) -> bool:
        """Whether the principal is still who it was when it was authenticated."""
        policy = self.policy
        if principal == ANONYMOUS:
            return not policy.is_guarded
        if principal.token:
            row = policy.tokens.get(principal.token)
            return row is not None and row.is_valid(self._clock.now_us())
        return policy.is_known(principal.name)

    def allow(self, principal: Principal, action: Action, stream: str = "") -> None:
        """Forbidden, with the reason, if the principal may not; Unauthenticated if it is nobody."""
        found = self.policy.explain(principal, action, stream)
        if found.is_allowed:
            return
        if principal == ANONYMOUS and self.is_guarded:
            raise Unauthenticated("this server wants a token by now: connect anew with one")
        raise Forbidden(_refusal(principal, action, stream, found))

    def allow_for_any(self, principal: Principal, action: Action) -> None:
        """The same for what is asked about all streams at once: who may for none is refused."""
        if not self.policy.may_for_any(principal, action):
            kind = "group" if action is Action.GROUP else "stream"
            raise Forbidden(
                f"{principal} may not {_VERBS.get(action, action)} any {kind}: {NO_RULE}; an administrator can: "
                f"mainstem access allow {principal} {action} {kind.upper()}"
            )

    def may(self, principal: Principal, action: Action, stream: str = "") -> bool:
        return self.policy.explain(principal, action, stream).is_allowed

    def explain(self, principal: Principal, action: Action, stream: str = "") -> Explanation:
        """Whether, and by which rule."""
        return self.policy.explain(principal, action, stream)

    def _holder(self, policy: Policy, token: str) -> Principal:
        id_, digest = parse(token)
        row = policy.tokens.get(id_)
        # Compared in any case: how long this takes does not say whether there is such an id.
        if not is_same(digest, row.digest if row is not None else _NOBODY) or row is None:
            raise Unauthenticated(
                "this token is not known here; is it of another server? An administrator makes one: mainstem token "
                "create NAME"
            )
        if row.revoked_us:
            raise Unauthenticated(f"token {id_} was revoked; ask an administrator for another")
        if not row.is_valid(self._clock.now_us()):
            raise Unauthenticated(f"the time of token {id_} is over; ask an administrator for another")
        return Principal(row.principal, id_)


def _refusal(principal: Principal, action: Action, stream: str, found: Explanation) -> str:
    where = f" {stream!r}" if stream else " the server"
    hint = ""
    if found.reason == NO_RULE:
        hint = f"; an administrator can: mainstem access allow {principal} {action} {shlex.quote(stream or '*')}"
    return f"{principal} may not {action}{where}: {found.reason}{hint}"
