"""The policy: everything that is in force at one moment, and what follows from it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from mainstem.access import store
from mainstem.access.action import ALL, ALLOWED_BY, Action
from mainstem.access.pattern import is_match
from mainstem.access.principal import ANONYMOUS, EVERYBODY, Principal
from mainstem.access.store import RowKey, TokenRow
from mainstem.transport.counting import COUNTS_STREAM, VERIFIED_STREAM
from mainstem.transport.guarding import Explanation, Quota, Rule, Scope

AUDIT_STREAM: Final = "_audit"
# What nobody does to streams that the server writes. The audit is kept for as long as its retention says; what
# producers have sent, and what an audit made of that, may be deleted.
_NEVER_TO_COUNTS: Final = frozenset({Action.WRITE, Action.CREATE})
_NEVER: Final[Mapping[str, frozenset[Action]]] = {
    AUDIT_STREAM: frozenset({Action.WRITE, Action.DELETE, Action.CREATE}),
    COUNTS_STREAM: _NEVER_TO_COUNTS,
    VERIFIED_STREAM: _NEVER_TO_COUNTS,
}
# The reason that a rule could change.
NO_RULE: Final = "no rule allows it"
_LOOKING: Final = frozenset({Action.READ, Action.DESCRIBE})


class Policy:
    """Immutable; any thread. `is_guarded` from the first token or rule on: then whoever is not allowed is refused."""

    def __init__(self, rows: Mapping[RowKey, bytes]) -> None:
        self.tokens: dict[str, TokenRow] = {}
        self.quotas: dict[RowKey, Quota] = {}
        rules: defaultdict[str, list[Rule]] = defaultdict(list)
        for (kind, name), value in sorted(rows.items()):
            if kind == store.TOKEN:
                self.tokens[name] = store.decode_token(value)
            elif kind == store.RULE:
                rule = store.decode_rule(value)
                rules[rule.principal].append(rule)
            elif kind == store.QUOTA:
                self.quotas[kind, name] = store.decode_quota(value)
        self._rules = dict(rules)
        self.is_guarded = bool(self.tokens or self._rules)

    def rules_of(self, principal: str) -> list[Rule]:
        """Those that are about it, its own first."""
        return [*self._rules.get(principal, ()), *self._rules.get(EVERYBODY, ())]

    def is_known(self, principal: str) -> bool:
        """Whether a rule names it: then a certificate can be its. Nobody is everybody."""
        return principal != EVERYBODY and principal in self._rules

    def quota(self, principal: str, measure: str) -> Quota | None:
        own = self.quotas.get(store.quota_key(principal, measure))
        return own or self.quotas.get(store.quota_key(EVERYBODY, measure))

    def explain(self, principal: Principal, action: Action, stream: str) -> Explanation:
        """Whether it may, and why. A rule that denies wins over all that allow."""
        if action in _NEVER.get(stream, ()):
            return Explanation(False, f"{stream} is written by the server alone")
        if not self.is_guarded:
            return Explanation(True, "there is no principal yet, so whoever reaches the server may do everything")
        if principal == ANONYMOUS:
            return Explanation(False, "who asks is not known")
        rules = self.rules_of(principal.name)
        if denying := _first(rules, "deny", {action, ALL}, stream):
            return _decided(denying)
        scopes = self._scopes(principal)
        if scopes is not None and not any(
            scope.action in ALLOWED_BY[action] and _reaches(scope.action, scope.pattern, action, stream)
            for scope in scopes
        ):
            only = ", ".join(scope.text for scope in scopes)
            return Explanation(False, f"token {principal.token} is for {only} only; it takes another token")
        if allowing := _first(rules, "allow", ALLOWED_BY[action], stream):
            return _decided(allowing)
        # Who administers the log may look at what it keeps about itself.
        is_look = stream.startswith("_") and action in _LOOKING
        if is_look and (allowing := _first(rules, "allow", ALLOWED_BY[Action.ADMIN], "")):
            return _decided(allowing)
        return Explanation(False, NO_RULE)

    def may_for_any(self, principal: Principal, action: Action) -> bool:
        """Whether there is a rule that allows the action for some stream, whichever that is: then a list is answered,
        with those streams in it that the principal may see. Its token must be for that too."""
        if not self.is_guarded:
            return True
        scopes = self._scopes(principal)
        if scopes is not None and not any(scope.action in ALLOWED_BY[action] for scope in scopes):
            return False
        return principal != ANONYMOUS and any(
            rule.effect == "allow" and rule.action in ALLOWED_BY[action] for rule in self.rules_of(principal.name)
        )

    def has_administrator(self, now_us: int, *, lasting: bool = False) -> bool:
        """Whether somebody can still change the policy: with a token that is valid and reaches so far. A `lasting` one
        has no end."""
        return any(
            row.is_valid(now_us)
            and not (lasting and row.expires_us)
            and self.explain(Principal(row.principal, id_), Action.ADMIN, "").is_allowed
            for id_, row in self.tokens.items()
        )

    def _scopes(self, principal: Principal) -> Iterable[Scope] | None:
        row = self.tokens.get(principal.token)
        return row.scopes if row is not None and row.scopes else None


def _first(rules: Iterable[Rule], effect: str, actions: Iterable[str], stream: str) -> Rule | None:
    return next(
        (rule for rule in rules if rule.effect == effect and rule.action in actions and is_match(rule.pattern, stream)),
        None,
    )


def _reaches(scope: str, pattern: str, action: Action, stream: str) -> bool:
    """A scope for everything, or for administration, reaches what the log keeps about itself."""
    if is_match(pattern, stream):
        return True
    return stream.startswith("_") and action in _LOOKING and scope in (ALL, Action.ADMIN) and pattern == "*"


def _decided(rule: Rule) -> Explanation:
    verb = "allows" if rule.effect == "allow" else "denies"
    return Explanation(rule.effect == "allow", f"the rule {rule.text!r} {verb} it", rule.text)
