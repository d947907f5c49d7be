"""Who may do what, for administrators: tokens, rules and quotas of a log."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import InvalidSetting
from mainstem.core.times import to_us
from mainstem.transport.guarding import (
    CreateTokenCall,
    DeleteQuotaCall,
    DeleteRuleCall,
    Effect,
    ExplainAccessCall,
    Explanation,
    ListAccessCall,
    Measure,
    Mode,
    Quota,
    RevokeTokenCall,
    Rule,
    Scope,
    SetQuotaCall,
    SetRuleCall,
    TokenInfo,
)
from mainstem.transport.port import Answer, Port


class NewToken:
    """A token that was just made. `secret` is the token itself: it is nowhere else, and not shown by accident."""

    __slots__ = ("id", "principal", "secret")

    def __init__(self, id_: str, principal: str, secret: str) -> None:
        self.id = id_
        self.principal = principal
        self.secret = secret

    def __repr__(self) -> str:
        return f"<NewToken {self.id} of {self.principal}>"


class Access:
    """Tokens, rules and quotas. Any thread. A server wants the right to `admin` for all of it; whoever has the folder
    has it.

    Nobody needs a token until the first one exists; from then on nothing is allowed that no rule allows.
    """

    def __init__(self, port: Port, clock: Clock = SYSTEM_CLOCK) -> None:
        self._port = port
        self._clock = clock

    def create_token(
        self,
        principal: str,
        *,
        admin: bool = False,
        allow: Iterable[str] = (),
        scopes: Iterable[str] = (),
        expires: datetime | timedelta | None = None,
    ) -> NewToken:
        """A token of a principal. `admin` allows the principal everything; the first token must be such a one.

        `allow` are rules that come with it, such as "read:orders" or "write:sensors.*"; `scopes`, written the same way,
        restrict what this token can be used for, whatever the principal may do. `expires` is when it is over.
        """
        from mainstem.access.token import mint

        rules = [Rule("allow", principal, "all")] if admin else []
        rules += [Rule("allow", principal, scope.action, scope.pattern) for scope in map(_scope, _several(allow))]
        made = mint()
        chosen = tuple(map(_scope, _several(scopes)))
        self._port.call(
            CreateTokenCall(made.id, made.digest, principal, chosen, self._expiry_us(expires), tuple(rules))
        )
        return NewToken(made.id, principal, made.secret)

    def revoke_token(self, id: str) -> None:  # noqa: A002  # what it is
        """Nobody is who shows this token any more. Connections that were opened with it end within seconds."""
        self._port.call(RevokeTokenCall(id))

    def tokens(self) -> list[TokenInfo]:
        """All tokens, also those that are over or revoked; never what they are."""
        return [token for answer in self._pages("token", _last_token) for token in answer.tokens]

    def allow(self, principal: str, action: str, stream: str = "*") -> None:
        """A rule: the principal, or with "*" every one, may do this to streams whose names match; `*` in them stands
        for any characters. Actions are read, write, create, alter, delete, describe, group, admin and all."""
        self._port.call(SetRuleCall(Rule("allow", principal, action, stream)))

    def deny(self, principal: str, action: str, stream: str = "*") -> None:
        """A rule that says no. It wins over every rule that allows."""
        self._port.call(SetRuleCall(Rule("deny", principal, action, stream)))

    def delete_rule(self, effect: Effect, principal: str, action: str, stream: str = "*") -> None:
        """The rule is not in force any more."""
        self._port.call(DeleteRuleCall(Rule(effect, principal, action, stream)))

    def rules(self) -> list[Rule]:
        return [rule for answer in self._pages("rule", _last_rule) for rule in answer.rules]

    def explain(self, principal: str, action: str, stream: str = "") -> Explanation:
        """Whether the principal may do this, and by which rule."""
        explanation = self._port.call(ExplainAccessCall(principal, action, stream)).explanation
        assert explanation is not None
        return explanation

    def set_quota(self, principal: str, measure: Measure, limit: int, *, mode: Mode = "limit") -> None:
        """At most `limit` of `measure` for a principal, with "*" for each that has none of its own.

        `write_bytes`, `write_requests`, `read_bytes` and `read_requests` are for a second; `connections` and
        `memory_bytes` are what there may be at one time. What is over it waits ("limit"), is refused ("block"), or a
        share of it is kept ("sample"; of bytes a second).
        """
        self._port.call(SetQuotaCall(Quota(principal, measure, limit, mode)))

    def delete_quota(self, principal: str, measure: Measure) -> None:
        self._port.call(DeleteQuotaCall(principal, measure))

    def quotas(self) -> list[Quota]:
        return [quota for answer in self._pages("quota", _last_quota) for quota in answer.quotas]

    def _pages(self, kind: Literal["token", "rule", "quota"], last: Callable[[Answer], str]) -> Iterator[Answer]:
        after = ""
        while True:
            answer = self._port.call(ListAccessCall(kind, after))
            yield answer
            if not answer.more:
                return
            after = last(answer)

    def _expiry_us(self, expires: datetime | timedelta | None) -> int:
        if expires is None:
            return 0
        if isinstance(expires, timedelta):
            return self._clock.now_us() + round(expires.total_seconds() * 1_000_000)
        if expires.tzinfo is None:
            raise InvalidSetting("expires is a datetime with a time zone, or a timedelta from now")
        return to_us(expires)


def _last_token(answer: Answer) -> str:
    return answer.tokens[-1].id


def _last_rule(answer: Answer) -> str:
    return answer.rules[-1].text


def _last_quota(answer: Answer) -> str:
    return f"{answer.quotas[-1].principal} {answer.quotas[-1].measure}"


def _several(given: Iterable[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else tuple(given)


def _scope(text: str) -> Scope:
    """Of "read:orders". Who forgets the stream does not mean every one."""
    if not isinstance(text, str):
        raise InvalidSetting(f"what is allowed is text like read:orders, not {type(text).__name__}")
    action, _, pattern = text.partition(":")
    if not pattern:
        raise InvalidSetting(
            f"{text[:40]!r} does not say for which streams; write {action[:40]}:NAME, or '{action[:40]}:*' for all"
        )
    return Scope(action, pattern)
