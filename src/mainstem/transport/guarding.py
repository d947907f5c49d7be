"""Who may do what, as it is asked and told: tokens, rules and quotas, and the calls that change them."""

from typing import Literal

import msgspec

Effect = Literal["allow", "deny"]
# What a quota limits: bytes and requests each second, or how much there may be at one time.
Measure = Literal["write_bytes", "write_requests", "read_bytes", "read_requests", "connections", "memory_bytes"]
# What happens to what is over it: nothing more is taken; it waits; a share of it is kept.
Mode = Literal["block", "limit", "sample"]


class Rule(msgspec.Struct, frozen=True):
    """`principal` may, or may not, do `action` to the streams that `pattern` matches. "*" stands for every principal,
    "all" for every action. The pattern is a name, in which `*` stands for any characters."""

    effect: Effect
    principal: str
    action: str
    pattern: str = "*"
    created_us: int = 0

    @property
    def text(self) -> str:
        """The rule as people read it; two that say the same have the same."""
        return f"{self.effect} {self.principal} {self.action} {self.pattern}"


class Scope(msgspec.Struct, frozen=True):
    """What a token can be used for at most, whatever its principal may do."""

    action: str
    pattern: str = "*"

    @property
    def text(self) -> str:
        return f"{self.action}:{self.pattern}"


class TokenInfo(msgspec.Struct, frozen=True):
    """A token as its administrator sees it: whose it is, never what it is. Times are 0 where there is none."""

    id: str
    principal: str
    scopes: tuple[Scope, ...] = ()
    created_us: int = 0
    expires_us: int = 0
    revoked_us: int = 0


class Quota(msgspec.Struct, frozen=True):
    """At most `limit` of something for a principal; "*" is each that has no quota of its own for it."""

    principal: str
    measure: Measure
    limit: int
    mode: Mode = "limit"


class Explanation(msgspec.Struct, frozen=True):
    """Whether something is allowed, and by which rule; `rule` is empty where none decided."""

    is_allowed: bool
    reason: str
    rule: str = ""


class CreateTokenCall(msgspec.Struct, frozen=True, tag="create_token"):
    """A new token. Whoever asks has drawn the secret, and only says its SHA-256: it is nowhere but with its owner, and
    a repeated call is recognised. `rules` come into force with it."""

    id: str
    digest: bytes
    principal: str
    scopes: tuple[Scope, ...] = ()
    expires_us: int = 0
    rules: tuple[Rule, ...] = ()


class RevokeTokenCall(msgspec.Struct, frozen=True, tag="revoke_token"):
    """From now on nobody is who shows this token."""

    id: str


class SetRuleCall(msgspec.Struct, frozen=True, tag="set_rule"):
    """The rule is in force. Again: nothing changes."""

    rule: Rule


class DeleteRuleCall(msgspec.Struct, frozen=True, tag="delete_rule"):
    """The rule is not in force any more."""

    rule: Rule


class SetQuotaCall(msgspec.Struct, frozen=True, tag="set_quota"):
    """The quota takes the place of the one that the principal had for the same."""

    quota: Quota


class DeleteQuotaCall(msgspec.Struct, frozen=True, tag="delete_quota"):
    principal: str
    measure: Measure


class ListAccessCall(msgspec.Struct, frozen=True, tag="list_access"):
    """Answered with tokens, rules or quotas in the order of their keys, those behind `after`, as many as fit; `more`
    says whether others follow."""

    kind: Literal["token", "rule", "quota"]
    after: str = ""


class ExplainAccessCall(msgspec.Struct, frozen=True, tag="explain_access"):
    """Answered with whether a principal may do something to a stream, or to the log as a whole, and why."""

    principal: str
    action: str
    stream: str = ""


AccessCall = (
    CreateTokenCall
    | RevokeTokenCall
    | SetRuleCall
    | DeleteRuleCall
    | SetQuotaCall
    | DeleteQuotaCall
    | ListAccessCall
    | ExplainAccessCall
)
