"""The HTTP listener: uvicorn in the server's own loop, with limits for connections that it has none for."""

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

import h11
import uvicorn
from h11._readers import ContentLengthReader
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mainstem.core.errors import Busy, MainstemError, ProtocolError
from mainstem.core.limits import (
    HTTP_BODY_AHEAD_BYTES,
    HTTP_HEAD_BYTES_MAX,
    HTTP_HEAD_SECONDS_MAX,
    HTTP_HEAD_SHARE_BYTES,
    KIB,
)
from mainstem.server.acceptor import TlsAcceptor
from mainstem.server.http.bodies import Arrived, cannot_land
from mainstem.server.http.heads import HeadBudget, HeadBuffer
from mainstem.server.http.landing import Landing
from mainstem.server.http.problems import HttpRefusal, answer, head_too_large
from mainstem.server.http.routes import ROUTES
from mainstem.server.http.sending import ABORT, Connection

_errors = logging.getLogger("mainstem.server.http")
_errors.setLevel(logging.ERROR)

_BACKLOG: Final = 1_024
_KEEP_ALIVE_SECONDS: Final = 60
# How long answers may take once the listener stops.
_STOP_SECONDS: Final = 5
# Who finds all places taken by requests under way may still ask whether the server lives.
_PROBES: Final = frozenset(row.path for row in ROUTES if row.is_open and not row.action)
_PROBES_MAX: Final = 16
# Smaller pieces of an answer are copied sooner than they are written one by one.
_PASSED_BYTES_MIN: Final = 32 * KIB


class HttpListener:
    """Serves an application on sockets that are bound already, with TLS if there is a context for it; `turn_away` hears
    of certificates that cannot be believed. The loop's thread only."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        app: ASGIApp,
        connections_max: int,
        tls: ssl.SSLContext | None = None,
        turn_away: Callable[[str, str], None] = lambda address, reason: None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=partial(GuardedProtocol, connections_max, HeadBudget(), {}),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            # Who connects is who asks: nobody is believed who says to ask for somebody else.
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HTTP_HEAD_BYTES_MAX,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            backlog=_BACKLOG,
        )
        config.load()
        # Not by its files: whoever has made it loads them anew when they change.
        config.ssl = tls
        self._server = _Embedded(config, connections_max, turn_away)
        self._sockets = list(sockets)
        for bound in self._sockets:
            # From now on who connects is served, if only in a moment: `ready` may be said before uvicorn has begun.
            bound.listen(_BACKLOG)

    async def serve(self) -> None:
        await self._server.serve(sockets=self._sockets)

    def stop(self) -> None:
        self._server.should_exit = True


class _Embedded(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has one owner of signals."""

    def __init__(self, config: uvicorn.Config, connections_max: int, turn_away: Callable[[str, str], None]) -> None:
        super().__init__(config)
        self._connections_max = connections_max
        self._turn_away = turn_away

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn has it, but that who connects must greet in TLS in time, and counts before."""
        config = self.config
        new = partial(
            cast("Callable[..., asyncio.Protocol]", config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state={},
        )
        loop, connections = asyncio.get_running_loop(), self.server_state.connections
        if config.ssl is not None:
            acceptor = TlsAcceptor(
                sockets or (),
                new,
                config.ssl,
                self._connections_max,
                connected=lambda: len(connections),
                turn_away=self._turn_away,
            )
            self.servers = [cast("asyncio.Server", acceptor)]
        else:
            self.servers = [
                await loop.create_server(new, sock=bound, backlog=config.backlog) for bound in sockets or ()
            ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GuardedProtocol(H11Protocol):
    """A connection whose requests must come in time, and of which there are not too many.

    The rest of a body that was refused is read and left, so that its sender hears why; for as long as the head of the
    next request may take.

    Where all places are taken, who comes gets that of whoever has asked for nothing for longest: those who connect and
    say nothing keep nobody out. `idle` are all those, in this order.
    """

    def __init__(
        self,
        connections_max: int,
        heads: HeadBudget,
        idle: "dict[GuardedProtocol, None]",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        conn: Any = self.conn
        conn._receive_buffer = HeadBuffer()
        self._connections_max = connections_max
        self._heads = heads
        # Of the budget.
        self._head_bytes = 0
        self._idle = idle
        # Whether all places were taken when it came: then it may only ask whether the server lives, while that lasts.
        self._is_beyond = False
        self._head_timer: asyncio.TimerHandle | None = None
        # What there is to say about requests that are no HTTP was answered.
        self.logger = _errors
        self._plain_app = self.app
        self.app = self._run

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ABORT] = self._connection
        _take_apart(scope)
        self._is_beyond &= len(self.connections) > self._connections_max
        if self._is_beyond and scope["path"] not in _PROBES:
            await answer(self._busy(), closes=True)(scope, receive, send)
            return
        arrived = Arrived.of(scope)
        arrived.begin_landing = partial(self._begin_landing, arrived)

        async def receive_all() -> Message:
            message = await receive()
            if arrived.size and message["type"] == "http.request":
                message["body"] = arrived.take(message["body"])
            return message

        try:
            await self._plain_app(scope, receive_all, partial(self._send_piece, self.cycle, send))
        finally:
            # What it held is free now, as above.
            arrived.begin_landing = cannot_land

    async def _send_piece(self, cycle: Any, send: Send, message: Message) -> None:
        """Send something of an answer; a large piece of its body as it is, which would be copied on the usual way."""
        body = message.get("body", b"")
        if len(body) < _PASSED_BYTES_MIN or not message.get("more_body") or cycle.scope["method"] == "HEAD":
            await send(message)
            return
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if not cycle.disconnected:
            self.transport.writelines(cycle.conn.send_with_data_passthrough(h11.Data(data=body)))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = Connection(transport, self.flow)
        while len(self.connections) > self._connections_max and self._idle:
            next(iter(self._idle))._give_way()
        self._is_beyond = len(self.connections) > self._connections_max
        if len(self.connections) > self._connections_max + _PROBES_MAX:
            self._refuse(self._busy())
        else:
            self._await_head()

    def _give_way(self) -> None:
        """To somebody who may have something to ask."""
        self.connections.discard(self)
        self._forget_head()
        cycle: Any = self.cycle
        if cycle is None:
            self._refuse(self._busy())
        else:
            self.transport.close()

    def _busy(self) -> Busy:
        return Busy(f"{self._connections_max} clients are connected, which is the limit (connections_max)")

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._hold_head(0)
        super().connection_lost(exc)
        # What it held is free now, and not when somebody looks for what refers to itself.
        self.app = self._plain_app

    def data_received(self, data: bytes) -> None:
        if self._take_body(data):
            return
        super().data_received(data)
        if self._is_between_requests:
            self._await_head()
        else:
            self._forget_head()
        self._look_at_head()

    def on_response_complete(self) -> None:
        # What may still come of a body nobody wants.
        if isinstance(self.transport.get_protocol(), Landing):
            self.transport.set_protocol(self)
        self._forget_request()
        super().on_response_complete()
        if self._is_between_requests and not self.transport.is_closing():
            self._idle.setdefault(self)
        # Of the next request something may have come already.
        self._look_at_head()

    def _forget_request(self) -> None:
        """It is answered: what it said is not kept until the next one comes."""
        self.headers = []
        self.scope = self.cycle.scope = {}  # type: ignore[typeddict-item]

    def _look_at_head(self) -> None:
        """Count what there is of a head that is not complete."""
        conn: Any = self.conn
        size = len(conn._receive_buffer) if self._is_between_requests and not self.transport.is_closing() else 0
        if size:
            self._await_head()
        if not self._hold_head(max(0, size - HTTP_HEAD_SHARE_BYTES)):
            # Not told why: what is held for it would be held on until it has heard.
            self.transport.abort()

    def _hold_head(self, size: int) -> bool:
        if not self._heads.change(self._head_bytes, size):
            return False
        self._head_bytes = size
        return True

    def _take_body(self, data: bytes) -> bool:
        """Hand on bytes from the middle of a body whose length is known, as they came: h11 would copy them three times.
        Where that is not what they are, and for the end of the body, h11 has its say."""
        conn: Any = self.conn
        reader = conn._reader
        if (
            type(reader) is not ContentLengthReader
            or not len(data) < reader._remaining
            or conn._receive_buffer
            or conn.our_state is h11.DONE
        ):
            return False
        reader._remaining -= len(data)
        cycle = self.cycle
        if cycle.body:
            # What came with the head was not taken yet; this is behind it.
            cycle.body += data
            is_enough = len(cycle.body) > HTTP_BODY_AHEAD_BYTES
        else:
            is_enough = Arrived.of(cast("Scope", cycle.scope)).add(data)
        if is_enough:
            self.flow.pause_reading()
        cycle.message_event.set()
        return True

    def _begin_landing(self, arrived: Arrived) -> bool:
        """Have the rest of a body read into its memory, if it is of known length and not here yet."""
        conn: Any = self.conn
        cycle: Any = self.cycle
        reader = conn._reader
        if (
            type(reader) is not ContentLengthReader
            or not reader._remaining
            or conn._receive_buffer
            or Arrived.of(cycle.scope) is not arrived
            or self.transport.is_closing()
        ):
            return False
        if cycle.body:
            arrived.add(bytes(cycle.body))
            cycle.body = bytearray()
        self.transport.set_protocol(Landing(self, arrived))
        return True

    def on_landed(self, count: int, *, is_enough: bool) -> None:
        """So many bytes of the body have come into its memory."""
        conn: Any = self.conn
        conn._reader._remaining -= count
        if not conn._reader._remaining:
            self.transport.set_protocol(self)
            # h11 finds that the body is complete.
            self.handle_events()
        elif is_enough:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    @property
    def _is_between_requests(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _await_head(self) -> None:
        """A request must begin, and its head be complete, in time."""
        if self._head_timer is None and not self.transport.is_closing():
            self._idle.setdefault(self)
            self._head_timer = self.loop.call_later(HTTP_HEAD_SECONDS_MAX, self._on_late)

    def _forget_head(self) -> None:
        """It is complete, or nobody waits for it any more."""
        self._idle.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_late(self) -> None:
        self._head_timer = None
        if self._is_between_requests:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            # Who asked takes none of the answer.
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._refuse(head_too_large() if hint == 431 else ProtocolError("this is no request of HTTP/1.1"))

    def _refuse(self, error: MainstemError | HttpRefusal) -> None:
        """Answer with an error, if nothing was answered yet, and end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = answer(error, closes=True)
            head = h11.Response(status_code=response.status_code, headers=response.raw_headers)
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                sent = self.conn.send(event)
                if sent:
                    self.transport.write(sent)
        if not self._is_between_requests:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def _take_apart(scope: Scope) -> None:
    """A target that is a whole address, as for a proxy, names the host as well; then that counts (RFC 9112)."""
    found = _ABSOLUTE.fullmatch(scope["path"])
    if found is not None:
        scope["path"] = found[2] or "/"
        scope["headers"] = [
            *((name, text) for name, text in scope["headers"] if name != b"host"),
            (b"host", found[1].encode(errors="replace")),
        ]


_ABSOLUTE: Final = re.compile(r"https?://([^/?#]+)(/.*)?", re.IGNORECASE | re.DOTALL)
