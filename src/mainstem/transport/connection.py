"""One framed connection on an event loop, the same on both sides: messages in, buffers out, silence noticed."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from mainstem.core.batch import Buffer
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import MainstemError, ProtocolError
from mainstem.core.limits import RECEIVE_SECONDS_MAX
from mainstem.transport.tls import common_name
from mainstem.transport.wire import Kind, Message, MessageReader, ReceiveBudget, pack, wire_error

# Received bytes of all connections of a loop go through one buffer of this size.
SCRATCH_BYTES: Final = 256 << 10
# More than this is not held back until the end of the turn.
_TURN_BYTES_MAX: Final = 32 << 10
# More unsent bytes than this and the connection counts as blocked.
_WRITE_HIGH_BYTES: Final = 64 << 10
# Why nothing is read.
_BLOCKED: Final = "blocked"
_MEMORY: Final = "memory"


class FramedConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection. Its loop's thread only.

    The owner gives four callbacks. `on_message` gets every message but PING and PONG; a MainstemError it raises is
    sent to the peer and ends the connection. `on_blocked(bool)` says when the peer stops and starts to take bytes.
    `on_lost` is called once.

    A client reads whatever happens: what can arrive is bounded by what it asked for. A server has
    `reads_while_blocked=False`: while the peer takes nothing, nothing more is read from it either, so whoever asks and
    does not listen cannot make us hold answers without end. Only one side may do so. If both did, each could wait for
    the other to read.
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
        reads_while_blocked: bool = True,
    ) -> None:
        self._reader = MessageReader(scratch, budget, self._on_wait)
        self._reads_while_blocked = reads_while_blocked
        self._on_open = on_open
        self._on_message = on_message
        self._on_blocked = on_blocked
        self._on_lost = on_lost
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._paused_by: set[str] = set()
        # Messages that came with the one that made us pause.
        self._held: Iterator[Message] | None = None
        # The incomplete message that `is_overdue` saw last, and since when it has been waited for.
        self._awaited = 0
        self._awaited_since = 0.0
        self.is_blocked = False
        self.heard_at = clock.monotonic()
        self.error: MainstemError | None = None
        # Who is at the other end, for people.
        self.peer = "unknown"
        self.peer_host = ""
        # The common name in the certificate that the peer has shown and TLS has verified; empty without one.
        self.certificate = ""
        self.failed_at = 0.0

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
        """Read nothing, and handle nothing that was read, until every reason to pause is gone."""
        if not self._paused_by and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused_by.add(reason)

    def resume(self, reason: str) -> None:
        if reason in self._paused_by:
            self._paused_by.discard(reason)
            if not self._paused_by:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        held = self._held
        if held is not None and self._can_read():
            self._held = None
            self._handle(held)
        if self._transport is not None and self._can_read():
            self._transport.resume_reading()

    def _can_read(self) -> bool:
        return not self._paused_by and self._transport is not None and not self._transport.is_closing()

    def ping(self) -> None:
        self.send(pack(Kind.PING, 0))

    def pong(self) -> None:
        """Show that we are there."""
        self.send(pack(Kind.PONG, 0))

    def fail(self, error: MainstemError) -> None:
        """Tell the peer what is wrong, then end the connection."""
        if self.error is None:
            self.error, self.failed_at = error, self._clock.monotonic()
        self.send(pack(Kind.ERROR, 0, wire_error(error)))
        self.close()

    def close(self) -> None:
        """Send what is still to be sent, then end the connection."""
        if self._transport is not None:
            self._flush()
            self._transport.close()
            self._reader.release()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_paused(self) -> bool:
        """Whether it is us who do not listen."""
        return bool(self._paused_by)

    def is_overdue(self, now: float) -> bool:
        """Whether the peer leaves a message unfinished, to be asked now and then. Time in which we do not read does not
        count, unless that is because the peer does not."""
        number = self._reader.incomplete
        if number != self._awaited or self._paused_by - {_BLOCKED}:
            self._awaited, self._awaited_since = number, now
        return number != 0 and now - self._awaited_since > RECEIVE_SECONDS_MAX

    @property
    def unsent_bytes(self) -> int:
        return self._outgoing_bytes + self._transport.get_write_buffer_size() if self._transport is not None else 0

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        found = transport.get_extra_info("peername")
        if found:
            self.peer, self.peer_host = f"{found[0]}:{found[1]}", found[0]
        self.certificate = common_name(transport.get_extra_info("peercert"))
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._clock.monotonic()
        try:
            messages = self._reader.received(nbytes)
        except MainstemError as error:
            self.fail(error)
        else:
            self._handle(iter(messages))

    def _handle(self, messages: Iterator[Message]) -> None:
        try:
            for message in messages:
                if message.kind == Kind.PING:
                    self.pong()
                elif message.kind != Kind.PONG:
                    self._on_message(message)
                # What is complete is handled, even if there is no memory for what follows.
                if self._paused_by and self._paused_by != {_MEMORY}:
                    self._held = messages
                    return
        except MainstemError as error:
            self.fail(error)
        except Exception as error:
            self.fail(ProtocolError(f"this message could not be handled: {type(error).__name__}: {error}"))
            raise

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_blocked = True
        if not self._reads_while_blocked:
            self.pause(_BLOCKED)
        self._on_blocked(True)

    def resume_writing(self) -> None:
        self.is_blocked = False
        self.resume(_BLOCKED)
        self._on_blocked(False)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = self._held = None
        self._reader.release()
        self._on_lost(exc)

    def _on_wait(self, waits: bool) -> None:
        """The reader has no memory for more of a message, or has it again."""
        if waits:
            self.pause(_MEMORY)
        else:
            self.resume(_MEMORY)
