"""The HTTP listener: whether the process lives, whether it serves, and what it counts."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mainstem.core.errors import MainstemError
from mainstem.core.plain import one_line
from mainstem.server.metrics import CONTENT_TYPE

_BACKLOG: Final = 128


class HttpListener:
    """Serves `/healthz` (the process answers), `/readyz` (it takes clients) and `/metrics`. The loop's thread only.

    A server whose disk is full is ready and says so: taken out of service it could neither be read nor be trimmed. One
    that has met damage in its ledger is not: it needs a restart, which rebuilds it.
    Metrics are gathered in a thread of their own, so that neither the loop nor a call waits for them; who asks while
    that is under way gets the same page.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        is_ready: Callable[[], bool],
        metrics: Callable[[], str],
        is_disk_full: Callable[[], bool] = lambda: False,
        damage: Callable[[], str] = lambda: "",
    ) -> None:
        self._is_ready = is_ready
        self._is_disk_full = is_disk_full
        self._damage = damage
        self._metrics = metrics
        self._metrics_pool = ThreadPoolExecutor(1, thread_name_prefix="mainstem-metrics")
        self._gathering: asyncio.Future[str] | None = None
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._serve_metrics),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, access_log=False, lifespan="off")
        self._server = _Embedded(config)
        self._sockets = list(sockets)
        for bound in self._sockets:
            # From now on who connects is served, if only in a moment: `ready` may be said before uvicorn has begun.
            bound.listen(_BACKLOG)

    async def serve(self) -> None:
        try:
            await self._server.serve(sockets=self._sockets)
        finally:
            self._metrics_pool.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        self._server.should_exit = True

    async def _healthz(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, request: Request) -> JSONResponse:
        if damage := self._damage():
            return JSONResponse({"status": "damaged", "reason": one_line(damage)}, status_code=503)
        if self._is_ready():
            return JSONResponse({"status": "ready", **({"disk": "full"} if self._is_disk_full() else {})})
        return JSONResponse({"status": "stopping"}, status_code=503)

    async def _serve_metrics(self, request: Request) -> Response:
        if self._gathering is None or self._gathering.done():
            loop = asyncio.get_running_loop()
            self._gathering = loop.run_in_executor(self._metrics_pool, self._metrics)
        # A client that goes away must not take the page from the others.
        try:
            page = await asyncio.shield(self._gathering)
        except (MainstemError, OSError) as error:
            # The log is closed already, or its disk does not answer questions.
            return Response(f"{one_line(str(error))}\n", status_code=503, media_type="text/plain")
        return Response(page, headers={"content-type": CONTENT_TYPE})


class _Embedded(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has one owner of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
