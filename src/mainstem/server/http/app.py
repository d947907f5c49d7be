"""The application: a request finds its row in the table of routes, passes the gate, and is answered."""

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mainstem.access.bucket import Turnstile
from mainstem.core.errors import InternalError, InvalidSetting, MainstemError, ProtocolError, ServerStopping
from mainstem.core.events import Event
from mainstem.core.limits import HTTP_HEAD_SHARE_BYTES
from mainstem.server.door import Door, Visitor
from mainstem.server.http import openapi
from mainstem.server.http.bodies import BodyBudget
from mainstem.server.http.gate import Gate
from mainstem.server.http.groups import GroupRoutes
from mainstem.server.http.posts import Posts
from mainstem.server.http.probes import Probes
from mainstem.server.http.problems import HttpRefusal, answer, refusal
from mainstem.server.http.reads import AnswerBudget, Lost, Reads
from mainstem.server.http.renderings import EVENTS, media_type_of
from mainstem.server.http.routes import ROUTES, Row
from mainstem.server.http.sending import ABORT, Connection, Unfinished
from mainstem.server.http.streams import StreamRoutes
from mainstem.server.http.tails import Tails
from mainstem.server.server import HTTP_COUNTERS, Server

logger = logging.getLogger("mainstem.server")

Handler = Callable[[Request, Visitor, str], Awaitable[Any]]


class HttpApp:
    """Answers requests. The loop's thread."""

    def __init__(self, server: Server, metrics: Callable[[], str], door: Door) -> None:
        self._server = server
        self._probes = Probes(server, metrics)
        self._gate = Gate(door, Turnstile(server.settings.connects_per_second, server.clock))
        self._unfinished = Unfinished()
        self._under_way = 0
        self._requests = 0
        self._failed = 0
        budget = self._bodies = BodyBudget(self._unfinished)
        self._posts = Posts(server, budget)
        answers = self._answers = AnswerBudget()
        self._reads = Reads(server, answers, self._unfinished)
        self.tails = Tails(server, answers)
        streams, groups = StreamRoutes(server, budget), GroupRoutes(server, budget)
        self._document = msgspec.json.encode(openapi.document(server.name.partition(" ")[2]))
        self._handlers: dict[str, Handler] = {
            "livez": self._probes.livez,
            "readyz": self._probes.readyz,
            "metrics": self._probes.metrics,
            "openapi": self._openapi,
            "docs": self._docs,
            "list_streams": streams.list_all,
            "get_stream": streams.get,
            "create_stream": streams.create,
            "alter_stream": streams.alter,
            "delete_stream": streams.delete,
            "trim_stream": streams.trim,
            "erase_key": streams.erase,
            "list_schemas": streams.schemas,
            "set_schema": streams.set_schema,
            "list_groups": groups.list_all,
            "get_group": groups.get,
            "reset_group": groups.reset,
            "commit_cursor": groups.commit,
            "delete_group": groups.delete,
            "post_records": self._posts.post,
            "read_records": self._read,
            "find_records": self._reads.find,
        }
        self._paths = _Paths()

    @property
    def is_busy(self) -> bool:
        """Whether requests are to be answered that will come to an end by themselves."""
        return self._under_way > self.tails.count

    def counters(self) -> dict[str, int]:
        """For whoever watches the server. Any thread."""
        counts = (self._requests, self._failed, self.tails.count, self._bodies.used, self._answers.used)
        return dict(zip(HTTP_COUNTERS, counts, strict=True))

    def stop(self) -> None:
        """The server is stopping: nobody is kept who would not come to an end."""
        self.tails.stop()
        self._unfinished.stop()

    def close(self) -> None:
        self._posts.close()
        self._probes.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        connection: Connection = scope[ABORT]
        self._under_way += 1
        try:
            with ExitStack() as held:
                response = await self._respond(request, held)
                if not connection.is_known and _head_bytes(request) > HTTP_HEAD_SHARE_BYTES and response is not None:
                    # What its head has taken is free when the connection is over.
                    response.headers["connection"] = "close"
                self._requests += 1
                self._failed += getattr(response, "status_code", 200) >= 400
                if response is not None:
                    await response(scope, receive, send)
        finally:
            self._under_way -= 1

    async def _respond(self, request: Request, held: ExitStack) -> Any:
        try:
            _check_framing(request)
            row, name = self._paths.find(request)
            visitor = self._gate.admit(request, row, name)
            if not row.is_open:
                _check_parameters(request, row)
            # Who asks several things at once is as much as several who are connected.
            visitor.hold("connections", 1)
            held.callback(visitor.let_go, "connections", 1)
            if self._server.is_stopping and not row.is_open:
                raise ServerStopping("the server is stopping")
            return await self._handlers[row.handler](request, visitor, name)
        except ClientDisconnect:
            return None
        except Lost as lost:
            return answer(lost.error, cursor=str(lost.cursor))
        except _Ambiguous as error:
            return answer(error, closes=True)
        except (HttpRefusal, MainstemError) as error:
            return answer(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception(Event("a request failed", method=request.method, path=request.url.path))
            return answer(InternalError(f"the server failed: {type(error).__name__}"))

    # What the server says of itself.

    async def _openapi(self, request: Request, visitor: Visitor, name: str) -> Response:
        return Response(self._document, media_type="application/json")

    async def _docs(self, request: Request, visitor: Visitor, name: str) -> Response:
        return Response(openapi.PAGE, media_type="text/html", headers={"content-security-policy": _PAGE_POLICY})

    async def _read(self, request: Request, visitor: Visitor, name: str) -> Any:
        if media_type_of(request, events=True) == EVENTS:
            return await self.tails.tail(request, visitor, name)
        return await self._reads.read(request, visitor, name)


class _Ambiguous(HttpRefusal):
    """A request of which two readers could see different ends: what follows it is not read."""


def _check_framing(request: Request) -> None:
    if (version := request.scope["http_version"]) not in _VERSIONS:
        raise _Ambiguous(505, ProtocolError(f"HTTP/{version} is not spoken here; use HTTP/1.1"))
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        raise _Ambiguous(400, ProtocolError("a request has a Content-Length or a Transfer-Encoding, not both"))


def _head_bytes(request: Request) -> int:
    lines = sum(len(name) + len(text) for name, text in request.headers.raw)
    return lines + len(request.scope["path"]) + len(request.scope["query_string"])


def _check_parameters(request: Request, row: Row) -> None:
    """Whoever misspells a parameter is told so, instead of getting something else than it asked for."""
    given = request.query_params
    known = [parameter.name for parameter in row.parameters if parameter.place == "query"]
    unknown = set(given) - set(known)
    if unknown:
        there = f"there are {', '.join(known)}" if known else f"{row.method} {row.path} takes none"
        raise InvalidSetting(f"there is no parameter {min(unknown)[:40]!r}; {there}")
    twice = next((name for name in given if len(given.getlist(name)) > 1), None)
    if twice is not None:
        raise InvalidSetting(f"{twice} is given twice")


class _Paths:
    """Finds the row of a request."""

    def __init__(self) -> None:
        self._plain: dict[str, dict[str, Row]] = {}
        self._named: dict[tuple[str, str], dict[str, Row]] = {}
        for row in ROUTES:
            begin, name, end = row.path.partition("{name}")
            found = self._named.setdefault((begin, end), {}) if name else self._plain.setdefault(begin, {})
            found[row.method] = row

    def find(self, request: Request) -> tuple[Row, str]:
        """The row, and the stream or group that the path names."""
        path = request.scope["path"]
        rows, name = self._plain.get(path), ""
        if rows is None and (match := _NAMED.fullmatch(path)) is not None:
            rows, name = self._named.get((match[1], match[3])), match[2]
        if rows is None:
            raise refusal(404, f"there is no {path[:100]!r}; /docs says what there is")
        # A HEAD is a GET whose answer has no body.
        row = rows.get("GET" if request.method == "HEAD" else request.method)
        if row is None:
            methods = ", ".join([*rows, "HEAD"] if "GET" in rows else rows)
            raise refusal(405, f"{path[:100]} takes {methods}", allow=methods)
        return row, name


_VERSIONS: Final = frozenset(("1.0", "1.1"))
_NAMED: Final = re.compile(r"(/[a-z]+/)([^/]+)((?:/[a-z]+)?)")
_SCRIPT: Final = openapi.PAGE.partition("<script>")[2].partition("</script>")[0]
_STYLE: Final = openapi.PAGE.partition("<style>")[2].partition("</style>")[0]


def _hash_of(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_PAGE_POLICY: Final = (
    f"default-src 'none'; connect-src 'self'; script-src {_hash_of(_SCRIPT)}; style-src {_hash_of(_STYLE)}; "
    "frame-ancestors 'none'; base-uri 'none'"
)
