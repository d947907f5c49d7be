"""A client's line: what it asks of threads that all clients share, so that who asks much waits for its own."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Line(Executor):
    """Hands one client's work to the threads, in order, no more than `width` pieces of it at a time. Any thread.

    The threads take what comes first. So with a line for each client they serve all in turn: nobody has more than
    `width` pieces before those of another. The thread that has done one hands over the next, and is not idle until the
    loop finds the time.
    """

    def __init__(self, pool: Executor, width: int) -> None:
        self._pool = pool
        self._width = width
        self._lock = threading.Lock()
        # What the threads have, begun or not; fewer than `width` only if nothing waits.
        self._handed_over: set[Future[Any]] = set()
        self._waiting: deque[tuple[Executor, Future[Any], Callable[[], Any]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the next piece would have to wait for another of this client's."""
        return len(self._handed_over) >= self._width

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        return self.submit_to(self._pool, fn, *args, **kwargs)

    def submit_to(self, pool: Executor, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """The same for other threads than the line's own."""
        future: Future[_T]
        with self._lock:
            if len(self._handed_over) < self._width:
                future = pool.submit(fn, *args, **kwargs)
                self._handed_over.add(future)
            else:
                future = Future()
                self._waiting.append((pool, future, partial(fn, *args, **kwargs)))
        future.add_done_callback(self._on_done)
        return future

    def cancel(self) -> None:
        """The client is gone: what has not begun is not done."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            handed_over = tuple(self._handed_over)
        for future in (*(future for _, future, _ in waiting), *handed_over):
            future.cancel()

    def _on_done(self, done: Future[Any]) -> None:
        """It has come to its end, or was cancelled."""
        with self._lock:
            if done not in self._handed_over:
                return
            self._handed_over.remove(done)
            while self._waiting:
                pool, future, piece = self._waiting.popleft()
                if not future.cancelled():
                    self._handed_over.add(future)
                    break
            else:
                return
        # Threads that were told to end take nothing more, and nobody waits for it.
        with contextlib.suppress(RuntimeError):
            pool.submit(_fulfil, future, piece)


def _fulfil(future: Future[_T], piece: Callable[[], _T]) -> None:
    """Do a piece of work that had to wait, as the threads do those that had not."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = piece()
    except BaseException as error:  # noqa: BLE001  # it is told to who asked
        future.set_exception(error)
        del future  # else the error, which knows this frame, would keep itself
    else:
        future.set_result(result)
