"""Where tokens, rules and quotas are kept: the interface, and one in memory.

A row has a kind, a key that is unique within it, and bytes. The log's ledger keeps them (docs/security.md says why), so
they are as durable as the records, in every backup, and the same for every door.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from mainstem.transport.guarding import Quota, Rule, Scope, TokenInfo

TOKEN, RULE, QUOTA = "token", "rule", "quota"

RowKey = tuple[str, str]


class AccessStore(Protocol):
    """Any thread. `version` changes with every change, so that others see when to look again, for nothing."""

    @property
    def version(self) -> int: ...

    def rows(self) -> Mapping[RowKey, bytes]:
        """All of them, as they are now."""
        ...

    def change(self, changes: Mapping[RowKey, bytes | None]) -> None:
        """All of these or none, durable when this returns; None takes a row away."""
        ...


class MemoryStore:
    """Rows that last as long as the process: for tests, and for doors that guard nothing of value."""

    def __init__(self) -> None:
        self.version = 0
        self._rows: dict[RowKey, bytes] = {}

    def rows(self) -> Mapping[RowKey, bytes]:
        return self._rows

    def change(self, changes: Mapping[RowKey, bytes | None]) -> None:
        rows = dict(self._rows)
        for key, value in changes.items():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        self._rows, self.version = rows, self.version + 1


class TokenRow(msgspec.Struct, frozen=True):
    """A token as it is kept: not the secret, only what tells whether somebody has it."""

    digest: bytes
    principal: str
    scopes: tuple[Scope, ...] = ()
    created_us: int = 0
    expires_us: int = 0
    revoked_us: int = 0

    def info(self, id_: str) -> TokenInfo:
        return TokenInfo(id_, self.principal, self.scopes, self.created_us, self.expires_us, self.revoked_us)

    def is_valid(self, now_us: int) -> bool:
        return not self.revoked_us and (not self.expires_us or now_us < self.expires_us)


encode_row = msgspec.msgpack.Encoder().encode
decode_token = msgspec.msgpack.Decoder(TokenRow).decode
decode_rule = msgspec.msgpack.Decoder(Rule).decode
decode_quota = msgspec.msgpack.Decoder(Quota).decode


def quota_key(principal: str, measure: str) -> RowKey:
    return QUOTA, f"{principal} {measure}"
