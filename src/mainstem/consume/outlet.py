"""The way out of the log into another program: pieces of bytes into a file descriptor, and how many were taken.

Problem. A reader that ends early (`... | head -1000`) leaves bytes in the pipe that it never read, and may have read
more into its own buffer than it used. A cursor saved "after the last record written" would skip those records.

Idea. An *exact* outlet puts one piece at a time into a pipe shrunk to a single slot, and the next one only when that
slot is empty again. The reader can then have taken at most what it asked for, and what lies in the pipe when it goes
away, which the kernel tells, was not taken. This costs a hand-over per record; an outlet that is not exact fills the
pipe with whatever it has. Where the system cannot say what lies in a pipe, and for anything but a pipe, what was
written counts as taken.
"""

import array
import fcntl
import itertools
import os
import select
import stat
import termios
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

# One slot of a pipe; a write of this size never blocks once poll says that there is room.
_SLOT_BYTES: Final = select.PIPE_BUF
_POLL_MS: Final = 200
_SETTLE_MS: Final = 1_000


class Outlet:
    """A file descriptor to write pieces to. One thread.

    `put` returns how many of the pieces it was given were written whole; fewer means that the reader has gone
    (`is_gone`) or `stopped()` became true. After the last `put`, `settle` says whether the last piece was taken.
    """

    def __init__(self, fd: int, *, exact: bool = False, stopped: Callable[[], bool] = lambda: False) -> None:
        self._fd = fd
        self._stopped = stopped
        self._is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._slots_before = _shrink(fd) if exact and self._is_pipe else None
        self.is_gone = False

    @property
    def is_exact(self) -> bool:
        return self._slots_before is not None

    def put(self, pieces: Sequence[bytes]) -> int:
        """Write the pieces in order; how many went out whole."""
        if not self.is_exact:
            written = self._write(b"".join(pieces))
            return bisect_right(list(itertools.accumulate(map(len, pieces))), written)
        for count, piece in enumerate(pieces):
            if not self._put_exactly(piece):
                return count
        return len(pieces)

    def _put_exactly(self, piece: bytes) -> bool:
        view = memoryview(piece)
        while view:
            if not self._await_room():
                return False
            written = self._write(view[:_SLOT_BYTES])
            if self.is_gone:
                return False
            view = view[written:]
        return True

    def _await_room(self) -> bool:
        while True:
            events = self._events(_POLL_MS)
            if events & select.POLLERR:
                self.is_gone = True
            if self.is_gone or self._stopped():
                return False
            if events:
                return True

    def _write(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        done = 0
        try:
            while done < len(view):
                done += os.write(self._fd, view[done:])
        except BrokenPipeError:
            self.is_gone = True
        return done

    def look(self) -> bool:
        """Whether somebody still reads; for the times when there is nothing to write."""
        if self._is_pipe and self._events(0) & select.POLLERR:
            self.is_gone = True
        return not self.is_gone

    def settle(self) -> bool:
        """Whether the last piece written was taken; waits a moment for a reader that is still there."""
        if not self.is_exact:
            return True
        events = self._events(_SETTLE_MS)
        self.is_gone = self.is_gone or bool(events & select.POLLERR)
        return not (self.is_gone and _unread(self._fd))

    def close(self) -> None:
        """Give the pipe its size back. The descriptor stays open: it is the caller's."""
        if self._slots_before is not None:
            _resize(self._fd, self._slots_before)

    def _events(self, timeout_ms: int) -> int:
        found = self._poll.poll(timeout_ms)
        return found[0][1] if found else 0


def _shrink(fd: int) -> int | None:
    """Make a pipe hold one piece; its size before, or None where that cannot be done."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return None
    before = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    return before if _resize(fd, _SLOT_BYTES) else None


def _resize(fd: int, size: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
    except OSError:
        return False
    return True


def _unread(fd: int) -> int:
    """How many bytes lie in a pipe."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]
