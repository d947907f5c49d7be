"""Short turns for the interpreter while a commit is under way.

A thread that releases the interpreter lock for a system call gets it back only after the switch interval (5 ms) if
another thread is busy. A commit makes several such calls, so beside one busy user thread an acknowledgement would take
50 ms. While a thread waits for a commit, which it leads itself or which another thread has begun, the interval is
lowered for the whole process; the user's value comes back when nobody waits any more.
"""

import sys
import threading
from types import TracebackType
from typing import Final

_SHORT: Final = 0.0001


class ShortTurns:
    """A context manager; nests and may be entered by several threads at once: the last one out restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._original = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._original = sys.getswitchinterval()
                sys.setswitchinterval(min(_SHORT, self._original))
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                sys.setswitchinterval(self._original)


SHORT_TURNS = ShortTurns()
