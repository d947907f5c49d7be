"""The server process from start to end: `run` is what `mainstem serve` calls."""

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import uvloop

from mainstem.core.clock import SYSTEM_CLOCK
from mainstem.core.errors import InvalidSetting, MainstemError
from mainstem.core.events import Event
from mainstem.core.heap import give_back_freed_memory, keep_freed_memory
from mainstem.core.hosts import is_loopback
from mainstem.core.kinds import Address
from mainstem.core.log_lines import configure_logging, log_failed_threads
from mainstem.core.settings import Settings
from mainstem.server.server import Server
from mainstem.server.service_manager import notify
from mainstem.server.sockets import address_of, bind
from mainstem.transport.tls import ServerTls

logger = logging.getLogger("mainstem.server")

# The exit code of a process whose disk or ledger failed, as sysexits calls an I/O error.
EXIT_IO_ERROR: Final = 74
# Commit threads and the loop share the interpreter; a shorter turn keeps an acknowledgement from waiting 5 ms for one.
_SWITCH_INTERVAL: Final = 0.0005
# How often memory that was freed and not used again goes back: so seldom that it costs nothing.
_GIVE_BACK_SECONDS: Final = 60.0


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Raises MainstemError if it cannot start."""
    configure_logging(settings)
    log_failed_threads()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    keep_freed_memory()
    threading.Thread(target=_give_back_memory, name="mainstem-memory", daemon=True).start()
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    if settings.listen is None:
        raise InvalidSetting("listen is off: there is nothing to serve; give --listen an address")
    with ExitStack() as opened:
        # Before the folder is touched, which may be a new one.
        sockets = _bind(opened, settings.listen, f"{settings.listen}", "--listen")
        http_sockets = _bind(opened, settings.http, f"{settings.http} for HTTP", "--http, or off")
        return await _serve_on(settings, sockets, http_sockets)


def _bind(opened: ExitStack, address: Address | None, where: str, other: str) -> list[socket.socket]:
    try:
        return [opened.enter_context(found) for found in bind(address)] if address is not None else []
    except OSError as error:
        raise InvalidSetting(f"cannot listen on {where}: {error.strerror}; choose another {other}") from error


async def _serve_on(settings: Settings, sockets: Sequence[socket.socket], http_sockets: Sequence[socket.socket]) -> int:
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    server = Server(settings, name=f"mainstem {_version()}", tls=tls)
    server.on_failure = _end_process
    try:
        _require_guarded(server)
    except InvalidSetting:
        server.log.close()
        raise
    try:
        await server.start(sockets)
    except OSError as error:
        # Two processes may bind one port; only the first can listen there.
        await server.stop()
        raise InvalidSetting(
            f"cannot listen on {settings.listen}: {error.strerror}; choose another --listen"
        ) from error
    ready = {"data": address_of(sockets)}
    app = http = http_task = None
    if http_sockets:
        from mainstem.server.http.app import HttpApp
        from mainstem.server.http.listener import HttpListener
        from mainstem.server.metrics import Exposition

        exposition = Exposition(settings, server.name, server.log, server.counters, server.groups)
        app = HttpApp(server, exposition.render, server.guard)
        server.is_http_busy, server.http_counters = (lambda: app.is_busy), app.counters
        context = None if tls is None else tls.context
        http = HttpListener(http_sockets, app, settings.connections_max, context, server.guard.turn_away)
        ready["http"] = address_of(http_sockets)
        http_task = asyncio.ensure_future(http.serve())
    stopped = _on_signals()
    _settle_memory()
    logger.info(Event("serving", version=_version(), data=settings.data, listen=ready["data"], http=ready.get("http")))
    sys.stdout.write(f"ready {json.dumps(ready)}\n")
    sys.stdout.flush()
    notify("READY", f"serving {settings.data} on {ready['data']}")
    name = await stopped
    begun = SYSTEM_CLOCK.monotonic()
    logger.info(Event("stopping; clients are answered first", signal=name))
    notify("STOPPING", "answering clients")
    if app is not None:
        app.stop()
    await server.stop()
    if app is not None and http is not None and http_task is not None:
        http.stop()
        await http_task
        app.close()
    logger.info(Event("stopped", seconds=SYSTEM_CLOCK.monotonic() - begun))
    return 0


def _give_back_memory() -> None:
    """After an hour of large messages a server need not have their memory for good."""
    never = threading.Event()
    while not never.wait(_GIVE_BACK_SECONDS):
        give_back_freed_memory()


def _require_guarded(server: Server) -> None:
    """Who listens where other machines can connect knows who may."""
    settings = server.settings
    if server.guard.is_guarded:
        return
    for name, address in (("listen", settings.listen), ("http", settings.http)):
        if address is not None and not is_loopback(address.host):
            raise InvalidSetting(
                f"{name} = '{address}' would let everybody in, as there is no token yet. Make one first: mainstem "
                f"token create NAME --admin --data {settings.data}"
            )


def _settle_memory() -> None:
    """What exists now stays: keep it out of every later collection of garbage, which would stop commits and pushes
    for tens of milliseconds. What comes after rarely has cycles, so it is looked at less often than usual."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _on_signals() -> "asyncio.Future[str]":
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()

    def stop(name: str) -> None:
        if not stopped.done():
            stopped.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    return stopped


def _end_process(error: MainstemError) -> None:
    """Nothing may be acknowledged any more: end at once, whatever else is under way. The next start replays."""
    logger.critical(Event("the log failed; the process ends", exit_code=EXIT_IO_ERROR, reason=error))
    logging.shutdown()
    os._exit(EXIT_IO_ERROR)


def _version() -> str:
    try:
        return version("mainstem")
    except PackageNotFoundError:
        return "unknown"
