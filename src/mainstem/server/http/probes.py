"""Probes: whether the process lives, whether it serves, and what it counts. Whoever can connect may ask."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mainstem.core.errors import MainstemError
from mainstem.core.plain import one_line
from mainstem.server.door import Visitor
from mainstem.server.metrics import CONTENT_TYPE


class State(Protocol):
    """What a server knows of itself. `damage` is in words, empty if there is none."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def is_disk_full(self) -> bool: ...

    @property
    def damage(self) -> str: ...


class Probes:
    """Answers them. The loop's thread only.

    A server whose disk is full is ready and says so: taken out of service it could neither be read nor be trimmed. One
    that has met damage in its ledger is not: it needs a restart, which rebuilds it. Metrics are gathered in a thread of
    their own, so that neither the loop nor a call waits for them; who asks while that is under way gets the same page.
    """

    def __init__(self, state: State, metrics: Callable[[], str]) -> None:
        self._state = state
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mainstem-metrics")
        self._gathering: asyncio.Future[str] | None = None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def livez(self, request: Request, visitor: Visitor, name: str) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(self, request: Request, visitor: Visitor, name: str) -> Response:
        if damage := self._state.damage:
            return JSONResponse({"status": "damaged", "reason": one_line(damage)}, status_code=503)
        if self._state.is_ready:
            return JSONResponse({"status": "ready", **({"disk": "full"} if self._state.is_disk_full else {})})
        return JSONResponse({"status": "stopping"}, status_code=503)

    async def metrics(self, request: Request, visitor: Visitor, name: str) -> Response:
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.get_running_loop().run_in_executor(self._pool, self._metrics)
        # A client that goes away must not take the page from the others.
        try:
            page = await asyncio.shield(self._gathering)
        except (MainstemError, OSError) as error:
            # The log is closed already, or its disk does not answer questions.
            return Response(f"{one_line(str(error))}\n", status_code=503, media_type="text/plain")
        return Response(page, headers={"content-type": CONTENT_TYPE})
