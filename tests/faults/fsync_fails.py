"""A disk error at every place where the log writes: nothing is acknowledged after it, and everything before it is kept.

Sites are the operations of a scripted session, of the disk and of the ledger. Each is made to fail once, with EIO or
ENOSPC, leaving nothing, half or all of its bytes; what comes after works again, because a disk that recovers is the
harder case. After ENOSPC the log must go on, as if the step had not been tried. Where a small file system can be
mounted, it is also really filled up.
"""

import errno
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from mainstem.core.errors import DiskFull, MainstemError
from mainstem.log import batcher
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.log.log import Log, LogOptions
from mainstem.testing.disk import FailingDisk, Leaves
from tests.faults.mounts import can_mount, small_disk
from tests.faults.places import temporary_folder
from tests.faults.reading import judge
from tests.faults.script import TINY, Script, State, Step, commit
from tests.faults.trials import Trials

STEPS = 60
ERRORS = (errno.EIO, errno.ENOSPC)
LEAVES: tuple[Leaves, ...] = ("nothing", "part", "all")
# One in this many trials fills a real file system.
FULL_EVERY = 10
# After a write that found no room, the log tries again within this time.
FULL_SECONDS_MAX = 5.0


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Sites in turn, from one that the seed chooses."""
    result = Trials()
    rng = random.Random(f"fsync fails {seed}")
    script = Script(seed % 5, STEPS)
    operations, commits = _sites(seed % 5)
    for trial in range(trials):
        place = folder / "failed"
        site = (seed * trials + trial) % (operations + commits)
        if trial % FULL_EVERY == FULL_EVERY - 1 and can_mount():
            name, done, wrong = _fill_up(script, place, rng)
        elif site < operations:
            error, leaves = rng.choice(ERRORS), rng.choice(LEAVES)
            disk = FailingDisk(at=site + 1, error=error, leaves=leaves)
            name = f"{errno.errorcode[error]} at operation {site + 1}, leaving {leaves}"
            done, wrong = _play(script, place, disk, partial(_fences, disk, error))
        else:
            error = rng.choice(ERRORS)
            name = f"{errno.errorcode[error]} at change {site - operations + 1} of the ledger"
            with _failing_ledger(site - operations + 1, error) as ledger:
                done, wrong = _play(script, place, None, partial(_has_struck, ledger))
        verdict = judge(place, [script.state_after(done), script.state_after(done + 1)], go_on=True)
        _remove(place)
        result.trials += 1
        result.acknowledged += script.state_after(done).acknowledged
        result.took(verdict.seconds)
        for text in [*wrong, *verdict.wrong]:
            result.lost += "nobody said so" in text
            result.add_finding(f"seed {seed}, trial {trial}: {name}: {text}")
    return result


def _play(
    script: Script,
    folder: Path,
    disk: FailingDisk | None,
    has_failed: Callable[[], bool],
    *,
    options: LogOptions = TINY,
    patience: float = FULL_SECONDS_MAX,
) -> tuple[int, list[str]]:
    """Play on through the failure, as a careless caller would; how many steps were acknowledged, and what is wrong.

    A step for which there is no room is tried again for so many seconds; then the session is over.
    """
    wrong: list[str] = []
    done = 0
    try:
        log = Log(folder, options, disk=disk)
    except (OSError, MainstemError):
        return done, wrong
    state = State()
    # Whether it had failed when each step was answered.
    failed_by_then: list[bool] = []
    for step in script.steps:
        try:
            bases = _commit_where_room_is(log, step, lambda: failed_by_then.append(has_failed()), patience)
        except DiskFull as error:
            if patience:
                wrong.append(f"step {done} found no room for {patience} s: {error}")
            break
        except MainstemError:
            continue
        except AssertionError as error:
            wrong.append(f"step {done}: {error}")
            break
        if failed_by_then[-1]:
            wrong.append(f"step {done} was acknowledged after the failure")
            break
        if bases != state.apply(step):
            wrong.append(f"step {done} got {bases}")
        done += 1
    try:
        log.close()
    except Exception as error:
        wrong.append(f"close raised {type(error).__name__}: {error}")
    return done, wrong


def _commit_where_room_is(log: Log, step: Step, on_answer: Callable[[], None], patience: float) -> list[int]:
    """Commit a step; again if the disk is full, until it is not."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return commit(log, step, on_answer)
        except DiskFull:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def _fences(disk: FailingDisk, error: int) -> bool:
    """Whether the operation that failed is one the log may not go on after: a snapshot may fail, a block may not."""
    is_fatal = error != errno.ENOSPC and disk.has_struck
    return is_fatal and disk.calls[disk._at - 1].path.suffix == ".block"


@lru_cache(maxsize=8)
def _sites(seed: int) -> tuple[int, int]:
    """How many operations and how many changes of the ledger the session of a seed has."""
    with temporary_folder() as folder:
        disk = FailingDisk(at=0)
        with _failing_ledger(0) as ledger:
            _play(Script(seed, STEPS), folder / "data", disk, lambda: False)
        return len(disk.calls), len(ledger.calls)


@dataclass(slots=True)
class _FailingLedger:
    calls: list[str] = field(default_factory=list)
    has_struck: bool = False
    error: int = errno.EIO


def _has_struck(ledger: _FailingLedger) -> bool:
    return ledger.has_struck and ledger.error != errno.ENOSPC


@contextmanager
def _failing_ledger(at: int, error: int = errno.EIO) -> Iterator[_FailingLedger]:
    """The `at`-th commit or checkpoint of a ledger fails before it did anything."""
    state = _FailingLedger(error=error)
    originals = {name: getattr(SqliteLedger, name) for name in ("store", "checkpoint")}

    def failing(name: str) -> Callable[..., Any]:
        def method(ledger: SqliteLedger, *args: Any) -> Any:
            state.calls.append(name)
            if len(state.calls) == at:
                state.has_struck = True
                raise OSError(error, f"{os.strerror(error)} (injected)", str(ledger.path))
            return originals[name](ledger, *args)

        return method

    for name in originals:
        setattr(SqliteLedger, name, failing(name))
    try:
        yield state
    finally:
        for name, original in originals.items():
            setattr(SqliteLedger, name, original)


def _fill_up(script: Script, folder: Path, rng: random.Random) -> tuple[str, int, list[str]]:
    """Play on a file system that is too small; afterwards its content is moved to one that is not."""
    kib = rng.randrange(200, 1_400)
    # To the last byte, or only to the watermark.
    options = rng.choice((TINY, replace(TINY, free_bytes_min=0, ballast_bytes=8 << 10)))
    with small_disk(folder.with_name("full"), kib << 10) as full, _short_patience():
        done, wrong = _play(script, full / "data", None, lambda: False, options=options, patience=0.0)
        if (full / "data").exists():
            shutil.copytree(full / "data", folder)
    return f"a disk of {kib} KiB", done, wrong


@contextmanager
def _short_patience() -> Iterator[None]:
    """Nobody frees this disk, so a ledger that has no room gives up soon."""
    usual = batcher._LEDGER_SECONDS_MAX
    batcher._LEDGER_SECONDS_MAX = 0.2  # type: ignore[misc]
    try:
        yield
    finally:
        batcher._LEDGER_SECONDS_MAX = usual  # type: ignore[misc]


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
