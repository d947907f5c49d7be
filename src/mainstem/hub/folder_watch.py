"""Looking for changes of a folder that another process writes, once for all who wait for one."""

import threading
from collections.abc import Callable
from typing import Final

# A reader of a folder that another process writes asks SQLite this often whether something changed, slower when idle.
POLL_SECONDS_MIN: Final = 0.0005
POLL_SECONDS_MAX: Final = 0.02


class FolderWatch:
    """Calls those who wait when the version of a folder is not the one they know. Any thread.

    Its own thread begins with the first who waits, and looks only while somebody does.
    """

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def call_when_changed(self, known: int, call: Callable[[], None]) -> None:
        """Call once, from any thread, when the version is another one than `known`, or cannot be asked any more."""
        with self._changed:
            if not self._is_closed:
                self._waiting.append((known, call))
                self._begin()
                return
        call()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mainstem-watch", daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        pause = POLL_SECONDS_MIN
        while not self._is_closed:
            changed = self._take_changed()
            for call in changed:
                call()
            pause = POLL_SECONDS_MIN if changed else min(pause * 1.1, POLL_SECONDS_MAX)
            with self._changed:
                if not self._is_closed:
                    self._changed.wait(pause if self._waiting else None)
        for _, call in self._waiting:
            call()

    def _take_changed(self) -> list[Callable[[], None]]:
        try:
            version = self._version()
        except Exception:  # noqa: BLE001  # who is called asks, too, and learns why
            version = -1
        with self._changed:
            waiting, self._waiting = self._waiting, []
            self._waiting += [one for one in waiting if one[0] == version]
        return [call for known, call in waiting if known != version]
