"""Reading ahead: while a thread looks through what was read, another brings what comes next.

Reading and checking bytes lets go of the interpreter, so the two do not wait for each other. Nobody ever waits for a
reader that was there before: what has not begun when it is needed is done by whoever needs it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# One: beside those who look, more would only take the interpreter from each other.
_THREADS: Final = 1


class ReadAhead:
    """The thread that reads ahead for all readers of a log; it starts when it is first needed. Any thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="mainstem-ahead")

    def begin(self, work: Callable[[], T]) -> "Begun[T]":
        """Do this meanwhile, if the thread is free until it is needed."""
        try:
            return Begun(work, self._pool.submit(work))
        except RuntimeError:
            # It was closed: the work finds that out itself.
            return Begun(work, None)

    def close(self) -> None:
        """Waits for what it is doing."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Begun(Generic[T]):
    """Work whose result is needed soon. One thread."""

    def __init__(self, work: Callable[[], T], future: "Future[T] | None") -> None:
        self._work = work
        self._future = future

    def result(self) -> T:
        """What the work gives or raises, done here and now if nobody has begun it."""
        if self._future is None or self._future.cancel():
            return self._work()
        return self._future.result()

    def drop(self) -> None:
        """It is not needed any more."""
        if self._future is not None:
            self._future.cancel()
