"""A link between clients and a server that can be held up and cut, for tests of what happens to answers on the way.

    with Link(server.address) as link, mainstem.connect(f"mainstem://{link.address}") as hub:
        ...
        link.hold_answers()     # requests still arrive, and are carried out; nobody hears of it
        server.kill()
        link.cut()              # both sides see the connection break

A lost answer is the hard case for exactly once: the client sends again what the server has already done.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

_PIECE_BYTES: Final = 64 << 10
_WAIT_SECONDS_MAX: Final = 10.0


class Link:
    """Forwards connections on a free port of this machine to `target`. Any thread; a context manager.

    While the target refuses, so does the link: a connection is accepted and ended at once.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._answers_flow = asyncio.Event()
        self._answers_flow.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="mainstem-link", daemon=True)

    def hold_answers(self) -> None:
        """From here on nothing gets from the server to a client."""
        self._call(self._answers_flow.clear)

    def release_answers(self) -> None:
        self._call(self._answers_flow.set)

    def cut(self) -> None:
        """Break every connection; what was held back is lost. New connections are let through."""
        self._call(self._abort)
        self._call(self._answers_flow.set)

    def __enter__(self) -> "Link":
        self._thread.start()
        listener = socket.create_server(("127.0.0.1", 0))
        # Connections inherit it. asyncio does it only for sockets that were made with the protocol's number.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._run(self._listen(listener))
        return self

    def __exit__(self, *exc: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the link's own thread.

    async def _listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._connect, sock=listener)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._abort()
        self._answers_flow.set()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
            self._writers.add(far)
            requests = asyncio.ensure_future(self._forward(reader, far, holds=False))
            answers = asyncio.ensure_future(self._forward(far_reader, writer, holds=True))
            # Whichever side ends first ends both.
            await asyncio.wait((requests, answers), return_when=asyncio.FIRST_COMPLETED)
            requests.cancel()
            answers.cancel()
        except OSError:
            pass  # the target is not there
        except asyncio.CancelledError:
            pass  # the link ends; asyncio of Python 3.11 would report a handler that was cancelled as an error
        finally:
            for end in (writer, far):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, holds: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                if holds:
                    await self._answers_flow.wait()
                writer.write(piece)
                await writer.drain()

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    # From other threads.

    def _call(self, action: Callable[[], object]) -> None:
        done: Future[None] = Future()

        def act() -> None:
            action()
            done.set_result(None)

        self._loop.call_soon_threadsafe(act)
        done.result(_WAIT_SECONDS_MAX)

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_SECONDS_MAX)
