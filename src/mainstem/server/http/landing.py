"""Large bodies on their way from the socket into the memory where they are wanted, with no copy in between."""

import asyncio
from typing import Any

from mainstem.server.http.bodies import Arrived


class Landing(asyncio.BufferedProtocol):
    """Stands in for the protocol of a connection while the rest of a body of known length comes: the socket is read
    into the body's memory, and not beyond its end. The loop's thread.

    The protocol's `on_landed` hears how many bytes have come, and everything else that happens to the connection is
    for the protocol as ever.
    """

    def __init__(self, protocol: Any, arrived: Arrived) -> None:
        self._protocol = protocol
        self._arrived = arrived

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._arrived.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.on_landed(nbytes, is_enough=self._arrived.landed(nbytes))

    def eof_received(self) -> bool | None:
        return bool(self._protocol.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
