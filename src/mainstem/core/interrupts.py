"""Ctrl-C waits until a step that must not be cut in two is over.

Python raises KeyboardInterrupt between any two instructions of the main thread. In an embedded hub that thread
commits; an interrupt in the middle would leave the log in doubt, and it would have to refuse everything after. In a
producer it would lose a parcel between two lists. So during such a step SIGINT is noted, and its handler is called
afterwards. That is as long as the disk takes for a commit, or for two where another thread's is under way: a few
milliseconds, but with a disk that hangs Ctrl-C hangs too. Waiting for anything else than the disk is no such step.
"""

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, without its conversions to enums
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGINT = int(signal.SIGINT)


class DeferredInterrupt:
    """A context manager for one step. Does nothing outside the main thread, where no signal arrives. Nests."""

    def __init__(self) -> None:
        self._previous: Any = None
        self._noted: tuple[int, FrameType | None] | None = None
        self._active = False

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            self._previous = _signal.getsignal(_SIGINT)
            if callable(self._previous):
                _signal.signal(_SIGINT, self._note)
                self._active = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = (number, frame)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            _signal.signal(_SIGINT, self._previous)
            if self._noted is not None:
                self._previous(*self._noted)
