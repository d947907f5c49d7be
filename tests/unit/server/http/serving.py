"""A server with a real guard that serves HTTP in the test's own process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainstem.access.token import Minted
from mainstem.core.kinds import Address
from mainstem.server.http.app import HttpApp
from mainstem.server.http.listener import HttpListener
from mainstem.server.sockets import address_of, bind
from tests.integration.http.client import Answer, Client
from tests.unit.server.guarded import Guarded
from tests.unit.server.parts import create, run, serving

STREAM = "orders"
SCHEMA = {"id": "int64", "text": "string"}


class GuardedHttp(Guarded):
    """A guarded server that has HTTP, too. `app` is the loop's thread's."""

    http = ""
    app: HttpApp

    def ask(self, token: Minted | str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        with Client(self.http) as client:
            return client.ask(method, path, body, **self.known(token), **headers)

    def known(self, token: Minted | str) -> dict[str, str]:
        secret = token if isinstance(token, str) else token.secret
        return {"authorization": f"Bearer {secret}"} if secret else {}

    def refusals(self) -> int:
        return self.rig.server.guard.audit.refused


def guarded(path: Path, test: Callable[[GuardedHttp], None], **settings: Any) -> None:
    """Run a test, in a thread of its own, against a server that has the stream `orders`."""

    async def serve() -> None:
        async with serving(path, **settings) as rig:
            await create(await (await rig.connect()).hello(), STREAM)
            server = GuardedHttp(rig)
            sockets = bind(Address("127.0.0.1", 0))
            server.app = HttpApp(rig.server, lambda: "metrics\n", rig.server.guard)
            server.http = address_of(sockets)
            listener = HttpListener(sockets, server.app, 100)
            listening = asyncio.ensure_future(listener.serve())
            try:
                await asyncio.to_thread(test, server)
            finally:
                server.app.stop()
                listener.stop()
                await listening
                server.app.close()

    run(serve)
