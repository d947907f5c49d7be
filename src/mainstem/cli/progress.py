"""How far a long copy or a job is, on a terminal; nothing where nobody watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# What the step `load` of a job counts; records if not said.
_COUNTED: Final = {
    # The log is one, each table another.
    "audit": "parts compared",
    "compact": "ranges of records",
}
# Steps after the last load, in words.
_DOING: Final = {
    "compact": "making large files of small ones",
    "compare": "comparing with the version before",
    "vacuum": "deleting files that the table needs no more",
}


@contextmanager
def byte_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Something to call with the bytes that are done and the bytes there are."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def job_progress(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Something to call with a step of a job, what is done of it, and of how much."""
    if not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        whole = bar.add_task(f"{name}: starting Spark", total=None)
        tasks = bar.add_task("tasks of Spark", total=None, visible=False)

        def on_step(step: str, done: int, total: int) -> None:
            if step == "load":
                bar.update(whole, description=f"{name}: {_COUNTED.get(name, 'records')}", completed=done, total=total)
            elif step in ("write", "wrote"):
                bar.update(tasks, completed=done, total=total, visible=True)
            elif step in _DOING:
                bar.update(whole, description=f"{name}: {_DOING[step]}")

        yield on_step
