"""Ctrl-C waits until a step that must not be cut in two is over.

Python raises KeyboardInterrupt between any two instructions of the main thread. In an embedded hub that thread
commits; an interrupt in the middle would leave the log in doubt, and it would have to refuse everything after. In a
producer it would lose a parcel between two lists. So during such a step SIGINT is noted, and its handler is called
afterwards. That is as long as the disk takes for a commit, or for two where another thread's is under way: a few
milliseconds, but with a disk that hangs Ctrl-C hangs too. Waiting for anything else than the disk is no such step.
"""

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, without its conversions to enums
import os
import signal
import threading
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any

_SIGINT = int(signal.SIGINT)


class DeferredInterrupt:
    """A context manager for one step. Does nothing outside the main thread, where no signal arrives. Nests."""

    # Asking for it takes longer than the rest, and only a fork changes it.
    _main_thread = threading.main_thread().ident
    # Of the class, until there is more to say: most of these are for other threads, and should cost nothing.
    _previous: Any = None
    _noted: tuple[int, FrameType | None] | None = None
    _active = False

    def __enter__(self) -> None:
        if get_ident() == self._main_thread:
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


def _note_main_thread() -> None:
    """In a child made by fork the thread that forked is the main thread."""
    DeferredInterrupt._main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_note_main_thread)
