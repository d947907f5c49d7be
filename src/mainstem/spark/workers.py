"""Processes that Spark keeps for task after task: what is done once in each."""

import gc
import sys
import threading
import traceback
from types import SimpleNamespace
from typing import Final

from mainstem.core.heap import keep_freed_memory

# The program of such a process. It collects garbage after every task.
_DAEMON: Final = "pyspark.daemon"

_lock = threading.Lock()
_is_prepared = False


def prepare_worker() -> None:
    """What was imported is not garbage, and looking through it takes 50 ms of a core after every task, of which a
    micro-batch has several: put it out of the collector's sight, once. Keep the memory of one batch for the next. And
    say nothing of a closed connection. Only in a process of Spark's: another belongs to the user."""
    global _is_prepared  # noqa: PLW0603
    with _lock:
        if _is_prepared or not is_worker():
            return
        _is_prepared = True
    _say_nothing_of_closed_connections()
    keep_freed_memory()
    gc.collect()
    gc.freeze()


def _say_nothing_of_closed_connections() -> None:
    """Where a LIMIT is reached, or a task has failed, Spark closes the connections of the other tasks, and its daemon
    writes a stack for each, which is on the terminal of a session on one machine. There is nothing to do about them."""
    program = sys.modules["__main__"]

    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()

    vars(program)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": print_exc})


def is_worker() -> bool:
    """Whether Spark started this process, for tasks, plans or commits."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
