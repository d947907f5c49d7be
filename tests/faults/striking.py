"""Strikes: processes of Spark's that get SIGKILL at a step that was chosen before, and a note of who did.

Several *parties* (a query, a job) run at once, in any process. Each waits when it comes to its step; when all stand
there, the last one kills the victims. So one kill meets a gap of each of them, and a strike whose victims nobody has
seen die is no strike.

As a program, this is the process from which Spark makes its Python workers, with steps inside the tasks of jobs
(`spark.python.daemon.module`).
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

# Where the strikes of a run are, for every process of Spark's.
VARIABLE: Final = "MAINSTEM_TESTS_STRIKES"
# The step of a job that is inside its tasks.
TASK: Final = "task"
EXECUTOR: Final = "executor"
# Parts that nobody commits end by their time: here soon enough to be seen.
PART_SECONDS: Final = 45.0
_MEETING_SECONDS_MAX: Final = 60.0
_DEATH_SECONDS_MAX: Final = 10.0
_LOOK_SECONDS: Final = 0.01


# Who strikes.


def arm(folder: Path, number: int, steps: dict[str, tuple[str, int]], victims: str, pids: dict[str, int]) -> None:
    """From now on each party waits at its step, after having passed it so many times, and then the victims die: those
    of `pids` by their names, "self", which is every process at the step, and "executor", in which the last one runs."""
    place = folder / str(number)
    place.mkdir(parents=True, exist_ok=True)
    armed = {"place": str(place), "steps": steps, "victims": victims.split(), "pids": pids}
    part = folder / "part"
    part.write_text(json.dumps(armed))
    part.rename(folder / "armed")


def disarm(folder: Path) -> None:
    (folder / "armed").unlink(missing_ok=True)


def come_to(party: str, step: str, folder: str | Path | None = None) -> None:
    """Wait here for the others, and do not come back, if a strike says so."""
    armed = _armed(folder)
    chosen, after = armed["steps"].get(party, (None, 0))
    if chosen != step:
        return
    place = Path(armed["place"])
    if (place / "struck").exists() or not _is_its_turn(place / party, after):
        return
    if armed["victims"] == ["jvm"]:
        # What has lost its driver goes on for as long as it can.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if _have_come(place, armed["steps"]):
        _strike(place, armed)


def comes_last(party: str, step: str) -> bool:
    """Whether this party is to come to this step, once all others stand at theirs: what comes then is met while it goes
    on. One party of a strike may come last."""
    if step_of(party) != step:
        return False
    armed = _armed()
    return _have_come(Path(armed["place"]), armed["steps"].keys() - {party})


def step_of(party: str, folder: str | Path | None = None) -> str | None:
    """To which step a party is to come; None if to none."""
    found: str | None = _armed(folder)["steps"].get(party, (None, 0))[0]
    return found


def _armed(folder: str | Path | None = None) -> dict[str, Any]:
    """The strike of now; one of nobody if there is none."""
    armed: dict[str, Any] = {"steps": {}}
    if folder := folder or os.environ.get(VARIABLE):
        with contextlib.suppress(FileNotFoundError):
            armed = json.loads((Path(folder) / "armed").read_text())
    return armed


def _have_come(place: Path, parties: Iterable[str]) -> bool:
    deadline = time.monotonic() + _MEETING_SECONDS_MAX
    while not all((place / party).exists() for party in parties):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _is_its_turn(marker: Path, after: int) -> bool:
    for turn in range(after + 1):
        path = marker if turn == after else marker.with_name(f"{marker.name}.{turn}")
        with contextlib.suppress(FileExistsError):
            with path.open("x") as note:
                note.write(str(os.getpid()))
            return turn == after
    return False


def _strike(place: Path, armed: dict[str, Any]) -> None:
    pids = {**armed["pids"], EXECUTOR: _executor()}
    with contextlib.suppress(FileExistsError), (place / "struck").open("x") as note:
        chosen = {name: pids[name] for name in armed["victims"] if name != "self"}
        note.write(json.dumps({name: [pid, _command_line(pid)] for name, pid in chosen.items()}))
        note.flush()
        for name, pid in chosen.items():
            if name != "driver":
                os.kill(pid, signal.SIGKILL)
        # Last: it may be this process.
        if "driver" in chosen:
            os.kill(chosen["driver"], signal.SIGKILL)
    if "self" in armed["victims"]:
        os.kill(os.getpid(), signal.SIGKILL)


def _executor() -> int:
    """The process of Spark's that has started the one that has made this one."""
    return _parent(os.getppid())


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


# Who looks afterwards.


def missed(folder: Path, number: int, parties: dict[str, tuple[str, int]], victims: str) -> list[str]:
    """Why a strike was none: who did not come, who did not die."""
    place = folder / str(number)
    absent = [
        f"{party} did not come to {step!r}" for party, (step, _) in parties.items() if not (place / party).exists()
    ]
    if absent:
        return absent
    try:
        struck: dict[str, tuple[int, str]] = json.loads((place / "struck").read_text())
    except (FileNotFoundError, ValueError):
        return ["nobody was struck"]
    wrong = [f"no {name} was struck" for name in victims.split() if name != "self" and name not in struck]
    pids = {name: pid for name, (pid, _) in struck.items()}
    if "self" in victims.split():
        pids |= {f"the process of {party}": int((place / party).read_text()) for party in parties}
    wrong += [f"{name} ({pid}) lives on" for name, pid in pids.items() if not _is_gone(pid)]
    if EXECUTOR in struck and "CoarseGrainedExecutorBackend" not in struck[EXECUTOR][1]:
        wrong.append(f"what was struck is no executor: {struck[EXECUTOR]}")
    return wrong


def _is_gone(pid: int) -> bool:
    deadline = time.monotonic() + _DEATH_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


# In the workers of jobs.


def prepare_worker() -> None:
    """Put steps into what tasks of jobs do."""
    from mainstem.log.cold_maker import Cooler
    from mainstem.spark.jobs import audit, delivering
    from mainstem.spark.jobs.part_files import PartFiles

    shorten_parts()
    wrap(PartFiles, "write", lambda files, *_: come_to(_job_of(Path(files._target.folder)), TASK))
    wrap(audit, "_tally_of_slice", lambda *_: come_to("audit", TASK))
    wrap(delivering, "stage", lambda *_: come_to("into", TASK))
    make = Cooler.make

    def make_and_come(self: Any, *args: Any) -> Iterator[Any]:
        for file in make(self, *args):
            come_to("compact", TASK)
            yield file

    _set(Cooler, "make", make_and_come)


def wrap(owner: Any, name: str, after: Callable[..., None], before: Callable[..., None] | None = None) -> None:
    """Have something done after each call of a function, with what it was called with, and before it."""
    whole = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        if before is not None:
            before(*args)
        found = whole(*args, **options)
        after(*args)
        return found

    _set(owner, name, wrapped)


def shorten_parts() -> None:
    from mainstem.produce.parts import Part
    from mainstem.spark import destination

    _set(destination, "Part", partial(Part, seconds=PART_SECONDS))


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _job_of(table: Path) -> str:
    """The name of the job that writes a table: that of its folder, or of the folder that has its tables."""
    return table.parent.name if table.name in ("rows", "tombstones") else table.name


def main() -> None:
    from pyspark import daemon

    # In the worker, not before: what is imported there starts threads.
    wrap(daemon, "worker", _nothing, before=lambda *_: prepare_worker())
    daemon.manager()


def _nothing(*_: Any) -> None:
    pass


if __name__ == "__main__":
    from tests.faults.striking import main as main_of_module

    main_of_module()
