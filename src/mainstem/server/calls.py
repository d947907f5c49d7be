"""Calls: administration that waits for a flush or for the disk, carried out away from the loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mainstem.core.errors import InternalError, MainstemError
from mainstem.core.events import Event
from mainstem.transport.port import Answer, Call

logger = logging.getLogger("mainstem.server")

Answered = Callable[[Answer | MainstemError], None]


class CallQueue:
    """Carries out one call at a time, one of each client in turn: who asks much waits for its own. The loop's thread
    only. How much one client may ask is its session's business."""

    def __init__(self, carry_out: Callable[[Call], Answer]) -> None:
        self._carry_out = carry_out
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mainstem-call")
        # Clients in the order of their turns, each with its calls in the order they came.
        self._waiting: dict[Hashable, deque[tuple[Call, Answered]]] = {}
        self.is_busy = False

    def add(self, client: Hashable, call: Call, answered: Answered) -> None:
        self._waiting.setdefault(client, deque()).append((call, answered))
        self._begin_next()

    def forget(self, client: Hashable) -> None:
        """The client is gone: what has not begun is not carried out."""
        self._waiting.pop(client, None)

    def refuse(self, error: MainstemError) -> None:
        """Answer everything that has not begun with an error."""
        waiting, self._waiting = self._waiting, {}
        for calls in waiting.values():
            for _, answered in calls:
                answered(error)

    def close(self) -> None:
        """Begin nothing more; what has begun is not waited for."""
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin_next(self) -> None:
        if self.is_busy or not self._waiting:
            return
        client = next(iter(self._waiting))
        calls = self._waiting.pop(client)
        call, answered = calls.popleft()
        if calls:
            self._waiting[client] = calls
        self.is_busy = True
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._carry_out, call)
        future.add_done_callback(partial(self._finish, call, answered))

    def _finish(self, call: Call, answered: Answered, future: "asyncio.Future[Answer]") -> None:
        self.is_busy = False
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            answered(future.result())
        elif isinstance(error, MainstemError):
            answered(error)
        else:
            logger.error(Event("a call failed", call=type(call).__name__), exc_info=error)
            answered(InternalError(f"the server failed to carry this out: {type(error).__name__}: {error}"))
        self._begin_next()
