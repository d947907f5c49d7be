"""The way of an answer to its reader, who may be slow, or gone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.types import Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from mainstem.core.errors import MainstemError
from mainstem.core.events import Event
from mainstem.core.limits import HTTP_SEND_SECONDS_MAX
from mainstem.transport.tls import common_name

logger = logging.getLogger("mainstem.server")

# A reader that takes longer for a piece is slow.
SLOW_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 1.0
# Under this name the scope of a request has what ends its connection at once.
ABORT: Final = "mainstem.abort"


class CutOff(Exception):
    """The connection is over: nothing more can be sent."""


class Sender:
    """Sends one answer. A reader that takes none of it for a minute is left. One task."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.connection: Connection = scope[ABORT]

    @property
    def is_head_only(self) -> bool:
        """Whether nobody wants the body."""
        return bool(self._scope["method"] == "HEAD")

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        raw = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
        await self._hand_on({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, pieces: Sequence[Any], on_slow: Callable[[], Awaitable[None]] | None = None) -> None:
        """Send them one after the other. `on_slow` is called if the reader takes its time, while it is waited for. That
        the reader is gone is found also where there is nothing to send."""
        if self.connection.is_gone():
            raise CutOff
        for piece in pieces:
            if len(piece):
                if on_slow is not None and not await self._is_taken(SLOW_SECONDS):
                    call, on_slow = on_slow, None
                    await call()
                await self._hand_on({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def cut_off(self, reason: MainstemError | str) -> None:
        """End the connection in the middle of the answer, so that nobody takes it for whole."""
        logger.warning(Event("an answer was cut off", path=self._scope["path"], reason=str(reason)))
        self.connection.abort()
        # The connection learns of it in the next turn of the loop.
        await asyncio.sleep(0.001)

    async def _hand_on(self, message: dict[str, Any]) -> None:
        if not await self._is_taken(HTTP_SEND_SECONDS_MAX):
            await self.cut_off(f"its reader took nothing for {HTTP_SEND_SECONDS_MAX} s")
            raise CutOff
        await self._send(message)
        if self.connection.is_gone():
            raise CutOff

    async def _is_taken(self, seconds: float) -> bool:
        """Whether the reader takes so much of what was sent that more can be, within so many seconds."""
        if not self.connection.is_blocked:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self.connection.unblocked()
        except TimeoutError:
            return False
        return True


class Connection:
    """What a handler may know of the connection that its request came by."""

    def __init__(self, transport: Any, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        # Whether it is one of those that were let in, and whether it is known who asks.
        self.is_let_in = False
        self.is_known = False

    @property
    def certificate(self) -> str:
        """The common name in the certificate that TLS has verified; empty if there is none."""
        return common_name(self._transport.get_extra_info("peercert"))

    @property
    def is_blocked(self) -> bool:
        """Whether so much waits to be taken at the other end that no more should be sent."""
        return bool(self._flow.write_paused)

    async def unblocked(self) -> None:
        """When that is over, or the connection is."""
        await self._flow.drain()

    def abort(self) -> None:
        self._transport.abort()

    def is_gone(self) -> bool:
        return bool(self._transport.is_closing())


class Unfinished(set[Connection]):
    """Connections on which an answer or a body is on its way. The loop's thread."""

    _is_over = False

    def add(self, connection: Connection) -> None:
        super().add(connection)
        if self._is_over:
            connection.abort()

    def stop(self) -> None:
        """The server is stopping: they have a moment to come to their end, and then are cut off."""
        asyncio.get_running_loop().call_later(_STOP_SECONDS, self._cut_off)

    def _cut_off(self) -> None:
        self._is_over = True
        for connection in tuple(self):
            connection.abort()
