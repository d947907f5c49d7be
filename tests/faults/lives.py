"""Logs that die and live again: an embedded hub, at any operation of its disk, and a server, by `kill -9`."""

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.log.log import Log, LogOptions
from mainstem.log.upkeep import Pace
from mainstem.testing.disk import FailingDisk, Leaves
from mainstem.testing.link import Link
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.trials import Trials

# Small enough that a short life rolls blocks, checkpoints the ledger and takes snapshots; nothing dead is kept.
OPTIONS = LogOptions(
    block_bytes=64 << 10,
    hot_tail_bytes=16 << 10,
    checkpoint_bytes=64 << 10,
    snapshot_bytes=96 << 10,
    pace=Pace(interval=0.05, free_after=0.0, rewrite_after=0.0, share=1.0),
)
# The same for a server.
ARGUMENTS = (
    *("--block-bytes", "64KiB", "--hot-tail-bytes", "1MiB", "--checkpoint-bytes", "64KiB", "--snapshot-bytes", "1MiB"),
    *("--upkeep-interval", "50ms", "--upkeep-percent", "100", "--free-after", "300ms", "--rewrite-after", "1s"),
)
_LEAVES: tuple[Leaves, ...] = ("nothing", "part", "all")
_OPERATIONS_MAX = 400
_JOIN_SECONDS_MAX = 120.0


class LivesTrial(Protocol):
    """A trial of a log that dies. `history` has what was done in it, `wrong` what came of it and should not have."""

    wrong: list[str]
    history: list[str]

    @property
    def acknowledged(self) -> int: ...

    def play(self) -> None: ...

    def end(self) -> None: ...


def run_trials(
    title: str, seed: int, trials: int, folder: Path, begin: Callable[[int, random.Random, Path], LivesTrial]
) -> Trials:
    """Trials one after the other, each in a folder of its own. An error that is not of a log is one of the trial."""
    result = Trials()
    for trial in range(trials):
        place = folder / f"{title.replace(' ', '-')}-{trial}"
        work = begin(trial, random.Random(f"{title} {seed} {trial}"), place)
        try:
            work.play()
        except Exception as error:
            work.wrong.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, MainstemError | AssertionError | ServerFailed):
                raise
        finally:
            work.end()
            shutil.rmtree(place, ignore_errors=True)
        result.trials += 1
        result.acknowledged += work.acknowledged
        for text in work.wrong:
            result.lost += "is missing" in text
            result.duplicated += "came twice" in text
            result.add_finding(f"seed {seed}, trial {trial}, after {work.history[-8:]}: {text}")
    return result


class Lives:
    """One folder and the hub that is open on it now. One thread; upkeep is done when `keep` is called, never else."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.count = 0
        self._rng = rng
        self._open(strike_at=0)

    def _open(self, strike_at: int) -> None:
        disk = FailingDisk(at=strike_at, leaves=self._rng.choice(_LEAVES))
        self._log_port = LogPort(self.folder, OPTIONS, disk=disk)
        # Its thread would make every trial another one.
        self._log_port.log.upkeep.close()
        self.hub = Hub(self._log_port, str(self.folder), self._rng)
        self.count += 1

    @property
    def log(self) -> Log:
        return self._log_port.log

    @property
    def has_failed(self) -> bool:
        """Whether the hub is dead: nothing is written any more."""
        return self._log_port.log.batcher.failure is not None

    def play(
        self, steps: Sequence[Callable[[], None]], count: int, history: list[str], next_life: Callable[[], None]
    ) -> None:
        """So many of the steps, in random order. `next_life` is called after one in which the hub has died."""
        for _ in range(count):
            step = self._rng.choice(steps)
            history.append(step.__name__.strip("_"))
            try:
                step()
            except (MainstemError, OSError) as error:
                if not self.has_failed and "injected" not in str(error):
                    raise
            if self.has_failed:
                history.append("died")
                next_life()

    def keep(self) -> None:
        """All the upkeep there is to do, or only its first steps."""
        upkeep = self._log_port.log.upkeep
        if self._rng.random() < 0.5:
            upkeep.run_until_idle()
        else:
            for _ in zip(range(self._rng.randrange(1, 8)), upkeep.round(), strict=False):
                pass

    def end(self) -> None:
        """A hub that has failed writes nothing more when it is closed, as if the process had been killed."""
        with contextlib.suppress(MainstemError):
            self.hub.close()

    def next(self, *, is_last: bool = False) -> None:
        """End this life and begin another, which is struck down as well, now and then while it begins."""
        self.end()
        strike_at = 0 if is_last or self._rng.random() < 0.3 else self._rng.randrange(1, _OPERATIONS_MAX)
        try:
            self._open(strike_at)
        except (MainstemError, OSError):
            if not strike_at:
                raise
            self._open(strike_at=0)


class Served:
    """A server, a link to it that loses answers, and threads that live through whatever happens to both.

    What goes wrong in a thread is in `wrong`.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.wrong: list[str] = []
        self._rng = rng
        self._stack = contextlib.ExitStack()
        self._server = self._stack.enter_context(ServerProcess(folder / "data", *ARGUMENTS))
        self._link = self._stack.enter_context(Link(self._server.address))
        # One that is not cut.
        self.hub = self._stack.enter_context(mainstem.connect(self._server.url))

    def connect(self) -> Hub:
        return mainstem.connect(f"mainstem://{self._link.address}")

    def start(self, work: Callable[[Any], None], what: Any = None) -> threading.Thread:
        def guarded() -> None:
            try:
                work(what)
            except Exception as error:
                self.wrong.append(f"{work.__name__} got {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(_JOIN_SECONDS_MAX)
            assert not thread.is_alive(), "a thread does not come to its end"

    def disturb(self, change: Callable[[Any], None]) -> None:
        """Some changes, with connections cut and answers lost meanwhile; then a kill, mostly in the middle of one."""
        for _ in range(self._rng.randrange(1, 4)):
            time.sleep(self._rng.uniform(0.05, 0.25))
            if self._rng.random() < 0.6:
                self._link.hold_answers()
            change(None)
            if self._rng.random() < 0.7:
                self._link.cut()
            else:
                self._link.release_answers()
        changing = [self.start(change)] if self._rng.random() < 0.7 else []
        time.sleep(self._rng.uniform(0.0, 0.02))
        self._server.kill()
        self._link.cut()
        self._server.start()
        self.join(changing)

    def end(self) -> None:
        self._stack.close()
