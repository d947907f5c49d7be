"""Accepting with TLS: connections count from the moment that they are accepted.

Left to the loop, nobody would hear of a connection before its handshake is over: who never greets would have a file and
its memory beside every limit.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from mainstem.core.events import Event
from mainstem.transport.tls import HANDSHAKE_SECONDS_MAX

logger = logging.getLogger("mainstem.server")

# How many more than there may be are greeted at a time: they are told why they are refused. Others are only refused.
_TOLD_MAX: Final = 16
# Then those who are connected have their turn.
_ACCEPTED_AT_ONCE: Final = 64
# When nothing can be accepted, as there are no more files.
_REST_SECONDS: Final = 1.0
_BACKLOG: Final = 1_024
_STOP_SECONDS: Final = 1.0


class TlsAcceptor:
    """Listens on bound sockets, greets who comes, and hands over who greets back. The loop's thread; made there, too.

    `connected` says how many there are that were handed over and are not gone; with those who are being greeted they
    are about `connections_max` at most. `turn_away` hears of certificates that were shown and cannot be believed: the
    address, and why.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        new_protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        connections_max: int,
        connected: Callable[[], int],
        turn_away: Callable[[str, str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._new_protocol = new_protocol
        self._context = context
        self._connections_max = connections_max
        self._connected = connected
        self._turn_away = turn_away
        self._greeted: set[asyncio.Task[None]] = set()
        # How many nobody has told why.
        self.refused = 0
        for bound in self._sockets:
            bound.setblocking(False)
            bound.listen(_BACKLOG)
            self._listen(bound)

    def close(self) -> None:
        for bound in self._sockets:
            self._loop.remove_reader(bound)
            bound.close()
        self._sockets = []
        for greeting in self._greeted:
            greeting.cancel()

    async def wait_closed(self) -> None:
        if self._greeted:
            await asyncio.wait(self._greeted)

    def _listen(self, bound: socket.socket) -> None:
        if bound in self._sockets:
            self._loop.add_reader(bound, self._accept, bound)

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning(Event("nobody can be accepted for a moment", reason=error))
                self._loop.remove_reader(bound)
                self._loop.call_later(_REST_SECONDS, self._listen, bound)
                return
            if self._connected() + len(self._greeted) >= self._connections_max + _TOLD_MAX:
                self.refused += 1
                accepted.close()
                continue
            greeting = self._loop.create_task(self._greet(accepted, str(address[0])))
            self._greeted.add(greeting)
            greeting.add_done_callback(self._greeted.discard)

    async def _greet(self, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._loop.connect_accepted_socket(
                self._new_protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
                ssl_shutdown_timeout=_STOP_SECONDS,
            )
        except ssl.SSLCertVerificationError as error:
            self._turn_away(address, f"the certificate of the client is not trusted: {error.verify_message}")
        except OSError:
            # Who does not speak TLS, or not in time, is gone without a word.
            return
