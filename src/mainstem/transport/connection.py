"""One framed connection on an event loop, the same on both sides: messages in, buffers out, silence noticed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from mainstem.core.batch import Buffer
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import MainstemError, ProtocolError
from mainstem.transport.wire import Kind, Message, MessageReader, ReceiveBudget, pack, wire_error

# Received bytes of all connections of a loop go through one buffer of this size.
SCRATCH_BYTES: Final = 256 << 10
# More than this is not held back until the end of the turn.
_TURN_BYTES_MAX: Final = 32 << 10
# More unsent bytes than this and the connection counts as blocked.
_WRITE_HIGH_BYTES: Final = 64 << 10


class FramedConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection. Its loop's thread only.

    The owner gives three callbacks. `on_message` gets every message but PING and PONG; a MainstemError it raises is
    sent to the peer and ends the connection. `on_blocked(bool)` says when the peer stops and starts to take bytes.
    `on_lost` is called once. While the peer takes nothing, nothing more is read from it either: whoever asks and does
    not listen cannot make us hold answers without end.
    """

    def __init__(
        self,
        scratch: bytearray,
        *,
        on_open: Callable[["FramedConnection"], None],
        on_message: Callable[[Message], None],
        on_blocked: Callable[[bool], None],
        on_lost: Callable[[BaseException | None], None],
        clock: Clock = SYSTEM_CLOCK,
        budget: ReceiveBudget | None = None,
    ) -> None:
        self._reader = MessageReader(scratch, budget)
        self._on_open = on_open
        self._on_message = on_message
        self._on_blocked = on_blocked
        self._on_lost = on_lost
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._paused_by: set[str] = set()
        self.is_blocked = False
        self.heard_at = clock.monotonic()
        self.error: MainstemError | None = None

    # Called by the owner.

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send soon: what is sent in one turn of the loop leaves in one system call, unless it is much."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing += buffers
        self._outgoing_bytes += sum(map(len, buffers))
        if self._outgoing_bytes > _TURN_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        buffers, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
        if buffers and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(cast("Any", buffers))

    def allow_large(self) -> None:
        self._reader.allow_large()

    def pause(self, reason: str) -> None:
        """Read nothing until every reason to pause is gone."""
        if not self._paused_by and self._transport is not None:
            self._transport.pause_reading()
        self._paused_by.add(reason)

    def resume(self, reason: str) -> None:
        if reason in self._paused_by:
            self._paused_by.discard(reason)
            if not self._paused_by and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def ping(self) -> None:
        self.send(pack(Kind.PING, 0))

    def fail(self, error: MainstemError) -> None:
        """Tell the peer what is wrong, then end the connection."""
        self.error = self.error or error
        self.send(pack(Kind.ERROR, 0, wire_error(error)))
        self.close()

    def close(self) -> None:
        """Send what is still to be sent, then end the connection."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_paused(self) -> bool:
        """Whether it is us who do not listen."""
        return bool(self._paused_by)

    @property
    def unsent_bytes(self) -> int:
        return self._outgoing_bytes + self._transport.get_write_buffer_size() if self._transport is not None else 0

    def peer_name(self) -> str:
        found = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{found[0]}:{found[1]}" if found else "unknown peer"

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._clock.monotonic()
        try:
            for message in self._reader.received(nbytes):
                if message.kind == Kind.PING:
                    self.send(pack(Kind.PONG, 0))
                elif message.kind != Kind.PONG:
                    self._on_message(message)
        except MainstemError as error:
            self.fail(error)
        except Exception as error:
            self.fail(ProtocolError(f"this message could not be handled: {type(error).__name__}: {error}"))
            raise

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_blocked = True
        self.pause("blocked")
        self._on_blocked(True)

    def resume_writing(self) -> None:
        self.is_blocked = False
        self.resume("blocked")
        self._on_blocked(False)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self._reader.release()
        self._on_lost(exc)
