"""Whether a hub may still be used: not closed, and not the copy that a fork made of it."""

import os
import weakref
from collections.abc import Callable

from mainstem.core.errors import Closed, ForkedHub, MainstemError

_hubs: "weakref.WeakSet[Liveness]" = weakref.WeakSet()


class Liveness:
    """Open, closed, or inherited through fork. Any thread."""

    def __init__(self, what: str, after_fork: Callable[[], None]) -> None:
        self._what = what
        self._after_fork = after_fork
        self._error: MainstemError | None = None
        _hubs.add(self)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def end(self, reason: MainstemError | None = None) -> bool:
        """Mark as closed, or as failed; False if it was before, or is not ours to close."""
        if self._error is not None:
            return False
        self._error = reason or self.closed_error()
        return True

    def closed_error(self) -> Closed:
        return Closed(f"this {self._what} is closed; open another")

    def on_fork(self) -> None:
        self._error = ForkedHub(
            f"this {self._what} belongs to the parent process; a child made by fork opens its own "
            "(mainstem.open(..., read_only=True) or mainstem.connect(...))"
        )
        self._after_fork()


def _mark_inherited() -> None:
    for hub in list(_hubs):
        hub.on_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_inherited)
