"""The HTTP listener: whether the process lives and whether it serves."""

import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mainstem.core.kinds import Address


class HttpListener:
    """Serves `/healthz` (the process answers) and `/readyz` (it takes clients). The loop's thread only.

    A server whose disk is full is ready and says so: taken out of service it could neither be read nor be trimmed.
    """

    def __init__(
        self, address: Address, is_ready: Callable[[], bool], is_disk_full: Callable[[], bool] = lambda: False
    ) -> None:
        self._is_ready = is_ready
        self._is_disk_full = is_disk_full
        routes = [Route("/healthz", self._healthz), Route("/readyz", self._readyz)]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, access_log=False, lifespan="off")
        self._server = _Embedded(config)
        self._socket = _bind(address)

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def serve(self) -> None:
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

    async def _healthz(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, request: Request) -> JSONResponse:
        if self._is_ready():
            return JSONResponse({"status": "ready", **({"disk": "full"} if self._is_disk_full() else {})})
        return JSONResponse({"status": "stopping"}, status_code=503)


class _Embedded(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has one owner of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address.host, address.port))
    listener.set_inheritable(False)
    return listener
