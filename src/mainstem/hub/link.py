"""The link of a hub to its server: one connection, made again whenever it breaks.

It greets the server, keeps to what both agreed on, sends heartbeats and notices silence. What messages say is the
business of whoever made it.
"""

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import urlsplit

from mainstem.core.clock import Clock
from mainstem.core.errors import (
    ConnectionLost,
    InvalidRequest,
    InvalidSetting,
    MainstemError,
    ProtocolError,
    QuotaExceeded,
)
from mainstem.core.events import Event
from mainstem.core.identity import RANDOMNESS, program_name
from mainstem.core.redaction import redacted
from mainstem.transport.connection import SCRATCH_BYTES, FramedConnection
from mainstem.transport.credentials import Credentials
from mainstem.transport.retry import Backoff, GiveUp, RetryPolicy
from mainstem.transport.wire import VERSION, VERSION_MIN, Hello, Kind, Message, Welcome, pack

logger = logging.getLogger("mainstem.hub")

_PORT_DEFAULT: Final = 7070
TLS_SCHEME: Final = "mainstems"
_TICK_SECONDS: Final = 0.25
_CONNECT_SECONDS: Final = 5.0
# Reconnecting never gives up by itself: what waits has deadlines of its own.
_RECONNECT = RetryPolicy(attempt_timeout=_CONNECT_SECONDS, deadline=1e9, attempts_max=None, base=0.05, cap=2.0)


class Link:
    """A connection that comes back. For the I/O thread; others may look at `connection`, `is_ready`, `welcomed` and
    `first_error`, and at `where`, which says which server it is."""

    def __init__(
        self,
        address: tuple[str, int],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_message: Callable[[Message], None],
        *,
        on_tick: Callable[[float], None],
        linger_seconds: float,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host, self._port = address
        self._credentials = credentials or Credentials(environ={})
        self._tls = tls
        # What is said in the greeting, read anew for every connection.
        self._token = ""
        self.where = f"{self._host}:{self._port}"
        self._loop = loop
        self._clock = clock
        self._on_message = on_message
        self._on_tick = on_tick
        # How long the end waits for a server that does not take the last bytes.
        self.linger_seconds = linger_seconds
        # Set once the server has greeted us, or it is known that it will not: `first_error` says why.
        self.welcomed = threading.Event()
        self.first_error: MainstemError | None = None
        self.connection: FramedConnection | None = None
        # Whether the server of this connection has greeted us.
        self.is_ready = False
        # Of the log behind it, and of the protocol, as agreed when it was greeted last.
        self._log_uuid = ""
        self.epoch = 0
        self.version = VERSION_MIN
        self._heartbeat = 5.0
        self._idle_timeout = 15.0
        self._was_welcomed = False
        # For how many seconds the server does not want to see us.
        self._sent_away = 0.0
        self.stopping = asyncio.Event()
        self._lost = asyncio.Event()

    async def run(self) -> None:
        """Stay connected until `stopping` is set."""
        scratch = bytearray(SCRATCH_BYTES)
        ticker = asyncio.ensure_future(self._tick())
        try:
            await self._reconnect_until_stopped(scratch)
        finally:
            ticker.cancel()
        if self.connection is not None:
            # What was handed over still leaves, if the server takes it.
            self.connection.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), self.linger_seconds)

    def accept(self, welcome: Welcome) -> bool:
        """Go on as the server says; whether its log was restored from a backup meanwhile. InvalidRequest if it is
        another log than before."""
        if self._log_uuid and welcome.log != self._log_uuid:
            raise InvalidRequest(
                f"{self.where} serves another log than before ({welcome.log}, not {self._log_uuid}); connect anew"
            )
        if self._log_uuid:
            logger.warning(Event("connected again", server=self.where))
        is_restored = self.epoch not in (0, welcome.epoch)
        if is_restored:
            logger.warning(Event("the log was restored from a backup", server=self.where, epoch=welcome.epoch))
        assert self.connection is not None
        self.connection.allow_large()
        self._log_uuid, self.epoch = welcome.log, welcome.epoch
        self.version = welcome.version
        self._heartbeat, self._idle_timeout = welcome.heartbeat, welcome.idle_timeout
        self.first_error = None
        self._was_welcomed = self.is_ready = True
        return is_restored

    def refuse(self, error: MainstemError) -> None:
        """The server does not want us, or not yet."""
        if isinstance(error, QuotaExceeded) and error.retry_after:
            self._sent_away = error.retry_after
            if not self._log_uuid:
                # Whoever waits for the hub waits on, if it has the time.
                self.first_error = error
                return
        if self._log_uuid:
            logger.warning(Event("server refuses the connection", server=self.where, reason=error))
        else:
            # Whoever wanted the hub is told.
            self.first_error = error
            self.welcomed.set()

    def not_understood(self, what: str, version: int) -> ProtocolError:
        """Why something cannot be sent to a server that is too old for it."""
        return ProtocolError(
            f"{self.where} speaks protocol version {self.version}, this client {VERSION_MIN} to {VERSION}; this "
            f"{what} needs version {version}: upgrade the server"
        )

    async def _reconnect_until_stopped(self, scratch: bytearray) -> None:
        attempt = 0
        while not self.stopping.is_set():
            self._lost.clear()
            if await self._connect(scratch):
                await _first_of(self._lost.wait(), self.stopping.wait())
                attempt = 0 if self._was_welcomed else attempt
            attempt += 1
            if not self.stopping.is_set():
                delay = Backoff(_RECONNECT, RANDOMNESS).next_delay(min(attempt, 20))
                assert not isinstance(delay, GiveUp)
                if self._sent_away:
                    # When it said, and a little later, each by another little.
                    delay, self._sent_away = self._sent_away + min(delay, 0.1), 0.0
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), delay)

    async def _connect(self, scratch: bytearray) -> bool:
        self._was_welcomed = False
        try:
            self._token = self._credentials.token()
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._loop.create_connection(
                    lambda: self._new_connection(scratch), self._host, self._port, ssl=self._tls
                )
        except InvalidSetting as error:
            self.refuse(error)
            return False
        except ssl.SSLCertVerificationError as error:
            self.refuse(InvalidSetting(_not_trusted(self.where, error)))
            return False
        except (OSError, TimeoutError) as error:
            self.first_error = self.first_error if self._log_uuid else ConnectionLost(_reason(error))
            return False
        return True

    def _new_connection(self, scratch: bytearray) -> FramedConnection:
        return FramedConnection(
            scratch,
            on_open=self._on_open,
            on_message=self._on_message,
            on_blocked=lambda is_blocked: None,
            on_lost=self._on_lost,
        )

    def _on_open(self, connection: FramedConnection) -> None:
        self.connection = connection
        connection.send(pack(Kind.HELLO, 0, Hello(VERSION_MIN, VERSION, program_name(), self._token)))

    def _on_lost(self, error: BaseException | None) -> None:
        if self.is_ready and not self.stopping.is_set():
            logger.warning(Event("connection lost; trying again", server=self.where))
        if not self._was_welcomed and not self._log_uuid and self.first_error is None and self._tls is None:
            self.first_error = ConnectionLost(
                f"the connection ended before anybody greeted; if the server speaks TLS, use {TLS_SCHEME}://"
            )
        self.is_ready = False
        self.connection = None
        self._lost.set()

    async def _tick(self) -> None:
        """Heartbeats out, silence noticed; deadlines are others' business."""
        pinged = 0.0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = self._clock.monotonic()
            connection = self.connection
            if connection is not None:
                if now - connection.heard_at > self._idle_timeout:
                    logger.warning(Event("server silent; reconnecting", server=self.where, seconds=self._idle_timeout))
                    connection.abort()
                elif self.is_ready and now - pinged > self._heartbeat:
                    pinged = now
                    connection.ping()
            self._on_tick(now)


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _not_trusted(where: str, error: ssl.SSLCertVerificationError) -> str:
    return (
        f"{where} shows a certificate that is not trusted: {error.verify_message}; give the authority that signed it: "
        "ca=, --tls-ca FILE, or MAINSTEM_TLS_CA"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or error}"
    return "no answer" if isinstance(error, TimeoutError) else str(getattr(error, "strerror", None) or error)


def address_of(url: str) -> tuple[str, int]:
    """Host and port of mainstem://host:port or mainstems://host:port; InvalidSetting if it is none."""
    if not isinstance(url, str):
        raise InvalidSetting(f"an address is text like mainstem://host:port, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:
        raise InvalidSetting(redacted(f"{url!r} is not an address: {error}; expected mainstem://host:port")) from None
    if parts.username or parts.password:
        raise InvalidSetting(
            f"{redacted(repr(url))} has a user or password in it, which would show up in logs; expected "
            "mainstem://host:port, and a token from token_file or the variable MAINSTEM_TOKEN"
        )
    is_ours = parts.scheme in ("mainstem", TLS_SCHEME)
    if not is_ours or not host or parts.path not in ("", "/") or parts.query:
        raise InvalidSetting(f"{redacted(repr(url))} is not an address; expected mainstem://host:port")
    return host, port or _PORT_DEFAULT
