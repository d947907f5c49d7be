"""`mainstem top`: a live page of a log for its operator."""

import contextlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.cli import hubs
from mainstem.cli.exits import ExitCode, UsageProblem
from mainstem.cli.flags import with_settings
from mainstem.cli.hubs import Data
from mainstem.core.clock import SYSTEM_CLOCK as CLOCK
from mainstem.core.errors import Closed, MainstemError
from mainstem.core.settings import Loaded

if TYPE_CHECKING:
    from mainstem.hub.hub import Hub
    from mainstem.hub.overview import Overview, Pace

_WIDTH_OF_PIPES = 120


@with_settings("top")
def top(
    loaded: Loaded,
    once: Annotated[bool, typer.Option("--once", help="Print one page and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one page as JSON and end.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="How often to look; rates are over this time.")
    ] = 1.0,
    data: Data = None,
) -> int:
    """Watch a log: streams, rates, sizes, connections, slow followers, ledger and disk.

    A page in the terminal, renewed every second; q or Ctrl-C ends it. Where standard output is no terminal, one page is
    printed. With --data a folder is looked at beside the process that writes it, which shows what can be known there.
    """
    from mainstem.cli.printing import print_json
    from mainstem.cli.top_page import page
    from mainstem.hub.overview import pace

    where = loaded.settings.url if data is None else data
    with hubs.reading(loaded, data) as hub:
        if json or once or not sys.stdout.isatty():
            earlier = hub.overview()
            CLOCK.sleep(interval)
            now = hub.overview()
            if json:
                print_json(_described(now, pace(earlier, now), where))
                return ExitCode.OK
            for line in page(now, pace(earlier, now), where, _width()):
                print(line.plain)
            return ExitCode.OK
        if not sys.stdin.isatty():
            raise UsageProblem("the live page takes its keys from standard input, which is no terminal; use --once")
        return _live(hub, where, interval)


def _width() -> int:
    return os.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_PIPES


def _live(hub: "Hub", where: str, interval: float) -> ExitCode:
    from rich.console import Console, Group
    from rich.live import Live

    from mainstem.cli.top_page import page
    from mainstem.hub.overview import pace

    console = Console()
    sampler = _Sampler(hub.overview, interval)
    # A terminal that we leave as it is now is of no use to anybody.
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: terminated.set())
    with (
        _quiet(),
        _keys() as wait_for_key,
        sampler,
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not terminated.is_set():
            sample = sampler.newest()
            if sample.now is not None:
                size = console.size
                flow = pace(sample.earlier, sample.now)
                lines = page(sample.now, flow, where, size.width, size.height, sample.problem)
                live.update(Group(*lines), refresh=True)
            key = wait_for_key(0.25)
            if key in ("q", "Q", "\x03"):
                break
    return ExitCode.TERMINATED if terminated.is_set() else ExitCode.OK


class _Sample:
    """What was seen last, and the time before; why there is nothing newer."""

    def __init__(self, now: "Overview | None", earlier: "Overview | None", problem: str) -> None:
        self.now = now
        self.earlier = earlier
        self.problem = problem


class _Sampler:
    """Looks at the log again and again in a thread of its own: a server that does not answer must not hold up the page.

    Looking takes at most a fifth of the time, however much there is to see.
    """

    def __init__(self, look: "Callable[[], Overview]", interval: float) -> None:
        self._look = look
        self._interval = interval
        self._sample = _Sample(None, None, "")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mainstem-top", daemon=True)

    def __enter__(self) -> "_Sampler":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()

    def newest(self) -> _Sample:
        return self._sample

    def _run(self) -> None:
        while not self._ended.is_set():
            begun = CLOCK.monotonic()
            last = self._sample
            try:
                self._sample = _Sample(self._look(), last.now, "")
            except Closed:
                return
            except Exception as error:  # noqa: BLE001  # a page that says so is better than one that stands still
                text = str(error) if isinstance(error, MainstemError) else f"{type(error).__name__}: {error}"
                self._sample = _Sample(last.now, last.earlier, f"no newer page: {text}")
            took = CLOCK.monotonic() - begun
            self._ended.wait(max(self._interval - took, 4 * took))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log lines would be written over the page, which tells the same."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _keys() -> "Iterator[Callable[[float], str]]":
    """Keys as they are pressed, unseen: a function that waits so many seconds for one. The terminal is put back."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return ""
        # Ready and nothing to read, or an error: the terminal is gone.
        try:
            return os.read(descriptor, 1).decode("ascii", "replace") or "q"
        except OSError:
            return "q"

    tty.setcbreak(descriptor)
    try:
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _described(now: "Overview", flow: "Pace | None", where: str) -> dict[str, Any]:
    import msgspec

    described: dict[str, Any] = msgspec.to_builtins(now)
    rates = None
    if flow is not None:
        rates = msgspec.to_builtins(flow)
        commits = flow.commits
        shares = (("p50", 0.5), ("p99", 0.99))
        rates["commits"] = commits and {name: commits.quantile(share) for name, share in shares}
        # JSON has text for names of fields.
        for part in ("streams", "appends"):
            rates[part] = {str(key): rate for key, rate in rates[part].items()}
    return {"where": where, **described, "rates": rates}
