"""Tokens, rules and quotas from the outside: made, listed, taken back. One answer for every door."""

import logging
import threading
from collections.abc import Mapping
from typing import Final

from mainstem.access import store
from mainstem.access.action import ALL, Action, check_action
from mainstem.access.authority import Authority
from mainstem.access.pattern import check_pattern
from mainstem.access.policy import Policy
from mainstem.access.principal import Principal, check_principal_name
from mainstem.access.store import AccessStore, RowKey, TokenRow, encode_row, quota_key
from mainstem.access.token import DIGEST_BYTES, is_same, is_token_id
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import InvalidRequest, InvalidSetting, Refused
from mainstem.core.events import Event
from mainstem.core.limits import ACCESS_ROWS_MAX, LIST_BYTES_MAX, SCOPES_PER_TOKEN_MAX
from mainstem.core.names import check_stream_name
from mainstem.transport.guarding import (
    AccessCall,
    CreateTokenCall,
    DeleteQuotaCall,
    DeleteRuleCall,
    ExplainAccessCall,
    ListAccessCall,
    Quota,
    RevokeTokenCall,
    Rule,
    SetQuotaCall,
    SetRuleCall,
)
from mainstem.transport.port import Answer

logger = logging.getLogger("mainstem.access")

_QUOTA_MAX: Final = 1 << 50
# A row in an answer beside its bytes.
_ROW_BYTES: Final = 64


class AccessAdministration:
    """Carries out what is asked about access. Any thread; changes take turns.

    No change leaves a log that is guarded without somebody who can change that again. The first token is therefore an
    administrator's.
    """

    def __init__(self, rows: AccessStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = rows
        self._clock = clock
        self._lock = threading.Lock()
        self._authority = Authority(rows, clock)

    @property
    def is_guarded(self) -> bool:
        """Whether there is a principal."""
        return self._authority.is_guarded

    def handle(self, call: AccessCall) -> Answer:
        """Whether who asks may was looked at before."""
        match call:
            case ListAccessCall():
                return self._list(call)
            case ExplainAccessCall():
                return self._explain(call)
            case CreateTokenCall():
                self._create_token(call)
            case RevokeTokenCall():
                self._revoke_token(call.id)
            case SetRuleCall():
                rule = _checked_rule(call.rule)
                self._change({(store.RULE, rule.text): encode_row(self._dated(rule))})
                logger.info(Event("rule set", rule=rule.text))
            case DeleteRuleCall():
                missing = f"there is no rule {call.rule.text!r}; mainstem access list shows them"
                self._delete((store.RULE, call.rule.text), missing)
                logger.info(Event("rule deleted", rule=call.rule.text))
            case SetQuotaCall():
                quota = _checked_quota(call.quota)
                self._change({quota_key(quota.principal, quota.measure): encode_row(quota)})
                logger.info(Event("quota set", principal=quota.principal, measure=quota.measure, limit=quota.limit))
            case DeleteQuotaCall():
                missing = f"{call.principal} has no quota of {call.measure} of its own; mainstem quota list shows them"
                self._delete(quota_key(call.principal, call.measure), missing)
                logger.info(Event("quota deleted", principal=call.principal, measure=call.measure))
        return Answer()

    def _create_token(self, call: CreateTokenCall) -> None:
        check_principal_name(call.principal)
        if not is_token_id(call.id) or len(call.digest) != DIGEST_BYTES:
            raise InvalidRequest("a token has an id of 16 hexadecimal digits and the SHA-256 of a secret")
        if len(call.scopes) > SCOPES_PER_TOKEN_MAX or len(call.rules) > SCOPES_PER_TOKEN_MAX:
            raise InvalidRequest(f"a token has at most {SCOPES_PER_TOKEN_MAX} scopes, and as many rules come with it")
        for scope in call.scopes:
            check_action(scope.action)
            check_pattern(scope.pattern)
        now_us = self._clock.now_us()
        if call.expires_us and call.expires_us <= now_us:
            raise InvalidSetting("the token would be over before it begins")
        row = TokenRow(call.digest, call.principal, call.scopes, now_us, call.expires_us)
        changes: dict[RowKey, bytes | None] = {(store.TOKEN, call.id): encode_row(row)}
        for rule in call.rules:
            if rule.principal != call.principal:
                raise InvalidRequest(f"a rule that comes with a token of {call.principal} is about {call.principal}")
            changes[store.RULE, _checked_rule(rule).text] = encode_row(self._dated(rule))
        with self._lock:
            known = self._authority.policy.tokens.get(call.id)
            if known is not None:
                if is_same(known.digest, call.digest):
                    return  # the same call again
                raise InvalidRequest("there is a token of this id already; draw another")
            self._store_checked(changes)
        logger.info(Event("token created", token=call.id, principal=call.principal))

    def _revoke_token(self, id_: str) -> None:
        with self._lock:
            row = self._authority.policy.tokens.get(id_)
            if row is None:
                raise InvalidRequest(f"there is no token {id_[:40]!r}; mainstem token list shows them")
            if row.revoked_us:
                return
            revoked = TokenRow(
                row.digest, row.principal, row.scopes, row.created_us, row.expires_us, self._clock.now_us()
            )
            self._store_checked({(store.TOKEN, id_): encode_row(revoked)})
        logger.info(Event("token revoked", token=id_, principal=row.principal))

    def _delete(self, key: RowKey, missing: str) -> None:
        with self._lock:
            if key not in self._store.rows():
                raise InvalidRequest(missing)
            self._store_checked({key: None})

    def _change(self, changes: Mapping[RowKey, bytes | None]) -> None:
        with self._lock:
            self._store_checked(changes)

    def _store_checked(self, changes: Mapping[RowKey, bytes | None]) -> None:
        """With the lock held."""
        now_us = self._clock.now_us()
        rows = dict(self._store.rows())
        for key, value in changes.items():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        before, after = self._authority.policy, Policy(rows)
        if after.is_guarded:
            _check_administrator(before, after, now_us)
        changes = {**changes, **self._room(rows, now_us)}
        self._store.change(changes)

    def _room(self, rows: Mapping[RowKey, bytes], now_us: int) -> dict[RowKey, None]:
        """The oldest tokens that are of no use any more, if there are too many rows with them."""
        excess = len(rows) - ACCESS_ROWS_MAX
        if excess <= 0:
            return {}
        tokens = [(key, store.decode_token(value)) for key, value in rows.items() if key[0] == store.TOKEN]
        over = sorted((row.created_us, key) for key, row in tokens if not row.is_valid(now_us))
        if len(over) < excess:
            raise InvalidRequest(f"there are {ACCESS_ROWS_MAX} tokens, rules and quotas, which is the limit")
        return {key: None for _, key in over[:excess]}

    def _dated(self, rule: Rule) -> Rule:
        return Rule(rule.effect, rule.principal, rule.action, rule.pattern, self._clock.now_us())

    def _list(self, call: ListAccessCall) -> Answer:
        rows = sorted(
            (key[1], value) for key, value in self._store.rows().items() if key[0] == call.kind and key[1] > call.after
        )
        size, count = 0, 0
        for name, value in rows:
            size += len(name) + len(value) + _ROW_BYTES
            if count and size > LIST_BYTES_MAX:
                break
            count += 1
        more, rows = count < len(rows), rows[:count]
        match call.kind:
            case "token":
                return Answer(tokens=tuple(store.decode_token(value).info(name) for name, value in rows), more=more)
            case "rule":
                return Answer(rules=tuple(store.decode_rule(value) for _, value in rows), more=more)
            case "quota":
                return Answer(quotas=tuple(store.decode_quota(value) for _, value in rows), more=more)

    def _explain(self, call: ExplainAccessCall) -> Answer:
        action = check_action(call.action)
        if action == ALL:
            raise InvalidSetting("explain one action, not all of them")
        if call.stream:
            check_stream_name(call.stream, reserved=True)
        who = Principal(check_principal_name(call.principal))
        return Answer(explanation=self._authority.explain(who, Action(action), call.stream))


def _check_administrator(before: Policy, after: Policy, now_us: int) -> None:
    """One whose token has an end would leave nobody when it is over, without any change."""
    if not before.is_guarded and not after.has_administrator(now_us, lasting=True):
        raise Refused(
            "the first token must be an administrator's and not expire, else nobody could change anything any more: "
            "mainstem token create NAME --admin"
        )
    for lasting in (False, True):
        if before.has_administrator(now_us, lasting=lasting) and not after.has_administrator(now_us, lasting=lasting):
            raise Refused(
                f"this would leave nobody who may administer the log{' with a token that does not expire' * lasting}; "
                "make another administrator first: mainstem token create NAME --admin"
            )


def _checked_rule(rule: Rule) -> Rule:
    check_principal_name(rule.principal, is_everybody_allowed=True)
    check_action(rule.action)
    check_pattern(rule.pattern)
    return rule


def _checked_quota(quota: Quota) -> Quota:
    check_principal_name(quota.principal, is_everybody_allowed=True)
    if not 1 <= quota.limit <= _QUOTA_MAX:
        raise InvalidSetting(f"a quota is a number from 1 to {_QUOTA_MAX}, not {quota.limit}")
    if quota.mode == "sample" and quota.measure not in ("write_bytes", "read_bytes"):
        raise InvalidSetting("a share can be kept of write_bytes and read_bytes; use mode 'limit' or 'block'")
    return quota
