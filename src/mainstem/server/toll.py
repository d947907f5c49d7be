"""The toll of a connection: what its client writes and reads is counted, and it goes as fast as its quotas let it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mainstem.access.quotas import FREELY, PAUSE_SECONDS_MAX, Grant
from mainstem.core.errors import QuotaExceeded
from mainstem.core.limits import MIB
from mainstem.server.gate import Gate
from mainstem.transport.connection import FramedConnection
from mainstem.transport.wire import Append, Stage

if TYPE_CHECKING:
    from mainstem.server.server import Server

# By how much, of itself, a share must change for the client to be told.
_SHARE_STEP: Final = 0.02
# Why nothing is read of who has used up its quota.
_QUOTA: Final = "quota"
# Who has so much unanswered is told to come back instead of waiting for its turn here.
_HELD_BACK_BYTES_MAX: Final = 64 * MIB


class Toll:
    """Counts for one connection, and slows it down. The loop's thread only. `tell` says to the client which share of
    what it writes it is to keep."""

    def __init__(
        self,
        server: "Server",
        gate: Gate,
        connection_of: Callable[[], FramedConnection | None],
        tell: Callable[[float], None],
    ) -> None:
        self._server = server
        self._gate = gate
        self._connection_of = connection_of
        self._tell = tell
        # Whether the client understands what it is told.
        self.can_tell = False
        # How often it was slowed down by a quota, and not yet sped up again.
        self._slowed = 0
        # Which share of its records the client was told to keep, and which it says that it keeps.
        self._share_told = self._share_kept = 1.0

    def charge_write(self, append: Append | Stage, patience: float) -> Grant:
        """Count what is written, and read nothing more for as long as the quota of who writes it says."""
        quotas, principal = self._server.guard.quotas, self._gate.principal
        if not quotas.are_set or principal is None:
            return FREELY
        if quotas.held(principal, "memory_bytes") > _HELD_BACK_BYTES_MAX:
            patience = 0.0
        size = sum([header.stored_len for header in append.batches])
        # Of a transaction nothing is left out.
        share = 1.0 if isinstance(append, Stage) else self._share_kept
        grant = quotas.charge(principal, "write", size, size / share, patience)
        self._slow_down(min(grant.pause, PAUSE_SECONDS_MAX))
        self._tell_share(grant.share)
        return grant

    def charge_read(self, size: int, offered: int) -> Grant:
        """Count what is pushed, and what would have been if nothing had been left out."""
        quotas = self._server.guard.quotas
        if not quotas.are_set or self._gate.principal is None:
            return FREELY
        try:
            return quotas.charge(self._gate.principal, "read", size, offered)
        except QuotaExceeded as error:
            self._gate.note_quota("read", error)
            raise

    def turn_to_read(self) -> float:
        """In how many seconds who begins to read is sent something."""
        quotas = self._server.guard.quotas
        if not quotas.are_set or self._gate.principal is None:
            return 0.0
        try:
            return quotas.turn(self._gate.principal, "read")
        except QuotaExceeded as error:
            self._gate.note_quota("read", error)
            raise

    def holds_too_much(self) -> bool:
        """Whether what its principal has unanswered, on all connections, is over its quota of memory."""
        quotas, principal = self._server.guard.quotas, self._gate.principal
        return quotas.are_set and principal is not None and quotas.is_over(principal, "memory_bytes")

    def _tell_share(self, share: float) -> None:
        """Have the client keep another share of what it writes, if the difference is worth a word."""
        told = self._share_told
        if self.can_tell and (abs(share - told) > _SHARE_STEP * told or share >= 1.0 > told):
            self._share_told = share
            self._tell(share)

    def look_at_share(self) -> None:
        """Who was told to keep a share may write so little by now that nothing of it arrives."""
        if self._share_told < 1.0 and self._gate.principal is not None:
            self._tell_share(self._server.guard.quotas.share(self._gate.principal, "write"))

    def note_share(self, share: float) -> None:
        """The client keeps a share from now on. One that it was not told is not believed."""
        self._share_kept = max(share, self._share_told)

    def _slow_down(self, seconds: float) -> None:
        connection = self._connection_of()
        if seconds > 0 and connection is not None:
            self._slowed += 1
            connection.pause(_QUOTA)
            asyncio.get_running_loop().call_later(seconds, self._speed_up)

    def _speed_up(self) -> None:
        self._slowed -= 1
        connection = self._connection_of()
        if not self._slowed and connection is not None:
            connection.resume(_QUOTA)
