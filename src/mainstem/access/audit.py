"""The audit: who was refused what, and who changed what, as records of the stream `_audit`.

A record is JSON; its key is the principal. Every administrative act is one. Refusals of the same thing within a second
are one record that says how many there were: whoever knocks a million times fills no disk. Nobody's refusals take the
place of another's: each principal has room of its own, and so have, together, all who are not known.

    {"event": "refused", "principal": "alice", "address": "127.0.0.1:4711", "action": "read", "stream": "orders",
     "reason": "no rule allows it", "count": 3, "first": "2026-...", "last": "2026-..."}
    {"event": "act", "principal": "root", "address": "...", "act": "create_token", "details": {...}, "last": "2026-..."}
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from mainstem.access.principal import Principal
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.redaction import redacted

RETENTION_US: Final = 90 * 24 * 3600 * 1_000_000
# By then, more was written than anybody reads. Who is not known can add 5 kB each second: that takes days.
RETENTION_BYTES: Final = 4 << 30
# Different refusals of one principal between two times that they are written; the rest are one record together.
REFUSALS_MAX: Final = 20
# The same of all who are not known, which costs them nothing.
ANONYMOUS_REFUSALS_MAX: Final = 10
# Principals whose refusals are told apart; those of the rest are one record together.
PRINCIPALS_MAX: Final = 50
_TEXT_CHARS_MAX: Final = 300


class AuditRecord(NamedTuple):
    """A record to write."""

    key: bytes
    value: bytes


class _Refusal(NamedTuple):
    principal: str
    action: str
    stream: str
    reason: str


@dataclass(slots=True)
class _Count:
    address: str
    first_us: int
    last_us: int
    count: int = 0


_OTHERS: Final = "others were refused too, more than are named one by one"


class Audit:
    """Gathers refusals until somebody writes them. Any thread."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By the names of principals; empty for who is not known, None for those who are too many.
        self._refusals: dict[str | None, dict[_Refusal, _Count]] = {}
        # Since the start.
        self.refused = 0

    def refuse(self, principal: Principal, address: str, action: str, stream: str, reason: str) -> None:
        """Somebody was told no. The address is that of the first in a while."""
        refusal = _Refusal(principal.name, _cut(action), _cut(stream), _cut(redacted(reason)))
        now_us = self._clock.now_us()
        with self._lock:
            self.refused += 1
            refusal, refusals = self._room(refusal)
            count = refusals.get(refusal)
            if count is None:
                count = refusals[refusal] = _Count(_cut(address), now_us, now_us)
            count.count += 1
            count.last_us = now_us

    def _room(self, refusal: _Refusal) -> tuple[_Refusal, dict[_Refusal, _Count]]:
        """Where the refusal is counted, and as what. With the lock held."""
        name = refusal.principal
        if name and name not in self._refusals and len(self._refusals) >= PRINCIPALS_MAX:
            return _Refusal("", "", "", _OTHERS), self._refusals.setdefault(None, {})
        refusals = self._refusals.setdefault(name, {})
        if refusal not in refusals and len(refusals) >= (REFUSALS_MAX if name else ANONYMOUS_REFUSALS_MAX):
            refusal = _Refusal(name, "", "", _OTHERS)
        return refusal, refusals

    def take(self) -> list[AuditRecord]:
        """What was refused since the last time."""
        with self._lock:
            refusals, self._refusals = self._refusals, {}
        return [
            _record(
                event="refused",
                principal=refusal.principal,
                address=count.address,
                action=refusal.action,
                stream=refusal.stream,
                reason=refusal.reason,
                count=count.count,
                first=_iso(count.first_us),
                last=_iso(count.last_us),
            )
            for of_one in refusals.values()
            for refusal, count in of_one.items()
        ]

    def act(self, principal: Principal, address: str, act: str, details: Mapping[str, Any]) -> AuditRecord:
        """The record of something that was done."""
        said = {name: _cut(redacted(str(value))) for name, value in details.items()}
        return _record(
            event="act",
            principal=principal.name,
            address=_cut(address),
            act=act,
            details=said,
            last=_iso(self._clock.now_us()),
        )


def _record(**fields: Any) -> AuditRecord:
    return AuditRecord(fields["principal"].encode(), json.dumps(fields, ensure_ascii=False).encode(errors="replace"))


def _iso(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="milliseconds")


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 1]}…"
