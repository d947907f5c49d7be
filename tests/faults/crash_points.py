"""A crash at every write, sync, rename and commit of a scripted session, with every subset of what was under way.

Most trials are crash clones (see mainstem.testing.crash); some are real: a child process plays the session and gets
SIGKILL at its n-th disk operation, before, in the middle of, or after it.
"""

import errno
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from mainstem.core.errors import DiskFull, MainstemError
from mainstem.log.disk import DiskFile
from mainstem.log.log import Log
from mainstem.testing import planted
from mainstem.testing.crash import LEDGER_FAULTS, CrashPoint, RecordingDisk
from mainstem.testing.disk import BudgetDisk, KillingDisk
from tests.faults.places import temporary_folder
from tests.faults.reading import Verdict, judge
from tests.faults.script import TINY, Script, State, Step, commit, play
from tests.faults.trials import Trials

STEPS = 90
# One in this many trials is a kill of a real process, which takes a hundred times as long.
KILL_EVERY = 200
# One in this many clones is also written to and opened again.
GO_ON_EVERY = 4
# How often each checkpoint is left half done.
CHECKPOINT_TRIALS = 60
# How often the disk fills up before a step, and what is free otherwise.
FILL_CHANCE = 0.3
_PLENTY = 1 << 39
_TINY = replace(TINY, free_bytes_min=0, ballast_bytes=0)
# One in this many crashes a second time, while the first crash is being recovered from.
TWICE_EVERY = 9


def run(seed: int, trials: int, folder: Path) -> Trials:
    """`trials` crashes, spread over all points of the session of this seed."""
    result = Trials()
    try:
        session = _record(seed, planted.active())
    except AssertionError as error:
        result.add_finding(f"seed {seed}: even without a crash {error}")
        return result
    rng = random.Random(f"crash points {seed}")
    clones = _clones(session, rng)
    for trial in range(trials):
        place = folder / "clone"
        if trial % KILL_EVERY == KILL_EVERY - 1:
            name, verdict, state = _kill(seed, rng, place)
        else:
            point, kept, fault = next(clones)
            point.build(place, kept, LEDGER_FAULTS[fault](point, rng), rng)
            states = [session.state_after(point.mark), session.state_after(point.mark + 1)]
            name, state = f"point {point.number} ({point.what}), ledger {fault}, kept {_bits(kept)}", states[0]
            if trial % TWICE_EVERY == 0:
                name += _crash_again(place, rng)
            verdict = judge(place, states, go_on=trial % GO_ON_EVERY == 0)
        _count(result, f"seed {seed}, trial {trial}: {name}", verdict, state)
        shutil.rmtree(place)
    return result


def _count(result: Trials, name: str, verdict: Verdict, state: State) -> None:
    result.trials += 1
    result.acknowledged += state.acknowledged
    result.took(verdict.seconds)
    for text in verdict.wrong:
        result.lost += "nobody said so" in text
        result.add_finding(f"{name}: {text}")


def _bits(kept: tuple[bool, ...]) -> str:
    return "".join("01"[bit] for bit in kept) or "-"


# ----------------------------------------------------------------------------------------------------------- clones


class Session:
    """A recorded run: its script and its crash points."""

    def __init__(self, script: Script, points: list[CrashPoint]) -> None:
        self.points = points
        self._states: dict[int, State] = {}
        self._script = script

    def state_after(self, steps: int) -> State:
        steps = min(steps, len(self._script.steps))
        if steps not in self._states:
            self._states[steps] = self._script.state_after(steps)
        return self._states[steps]


@lru_cache(maxsize=2)
def _record(seed: int, bugs: tuple[str, ...]) -> Session:
    script = Script(seed, STEPS, others=True)
    with temporary_folder() as folder:
        path = folder / "data"
        done = [0]

        def on_step() -> None:
            done[0] += 1

        disk = FillingDisk(seed)
        recorder = RecordingDisk(path, mark=lambda: done[0], inner=disk)
        state = State()
        with recorder.watching_ledger():
            # Two lives of the writer, the second after a clean close. In the second the disk fills up now and then.
            for steps in (script.steps[: STEPS * 2 // 3], script.steps[STEPS * 2 // 3 :]):
                log = Log(path, _TINY, disk=recorder)
                play_on(log, steps, state, disk, on_step)
                log.close()
                disk.begin_filling()
    return Session(script, recorder.points)


class FillingDisk(BudgetDisk):
    """A disk that is filled up to a random byte now and then; every other time it does not even take a cut."""

    def __init__(self, seed: int) -> None:
        super().__init__(free=_PLENTY)
        self._random = random.Random(f"filling {seed}")
        self._is_filling = False

    def begin_filling(self) -> None:
        self._is_filling = True

    def maybe_fill(self) -> None:
        if self._is_filling and self._random.random() < FILL_CHANCE:
            self.free = self._random.randrange(8_000)

    def truncate(self, path: Path, file: DiskFile, size: int) -> None:
        if self._random.random() < 0.5:
            raise OSError(errno.ENOSPC, "No space left on device (injected)", str(path))
        super().truncate(path, file, size)


def play_on(log: Log, steps: Sequence[Step], state: State, disk: FillingDisk, on_step: Callable[[], None]) -> None:
    """Carry out the steps, each again if the disk was full, after somebody has freed it."""
    for step in steps:
        disk.maybe_fill()
        expected = state.apply(step)
        bases = None
        while bases is None:
            try:
                bases = commit(log, step)
            except DiskFull:
                disk.free = _PLENTY
                time.sleep(0.01)
        assert bases == expected, f"the log answered {bases}, expected {expected}"
        on_step()


def _clones(session: Session, rng: random.Random) -> Iterator[tuple[CrashPoint, tuple[bool, ...], str]]:
    """All points in turn, each time with its next subset and another fault of the ledger's files, without an end."""
    faults = list(LEDGER_FAULTS)
    while True:
        waiting = {point.number: _shuffled(point, rng) for point in session.points}
        turn = 0
        while waiting:
            numbers = list(waiting)
            rng.shuffle(numbers)
            for number in numbers:
                kept = next(waiting[number], None)
                if kept is None:
                    del waiting[number]
                    continue
                point = session.points[number]
                is_half = point.what == "checkpoint" and rng.random() < 0.8
                yield point, kept, "half_checkpoint" if is_half else faults[(number + turn) % len(faults)]
            turn += 1


def _shuffled(point: CrashPoint, rng: random.Random) -> Iterator[tuple[bool, ...]]:
    # What a checkpoint leaves is not a matter of our pieces but of SQLite's: it is tried as often as a large write.
    subsets = list(point.subsets(rng)) * (CHECKPOINT_TRIALS if point.what == "checkpoint" else 1)
    rng.shuffle(subsets)
    return iter(subsets)


def _crash_again(folder: Path, rng: random.Random) -> str:
    """Replace the clone in `folder` by a clone of its recovery."""
    recorder = RecordingDisk(folder)
    try:
        with recorder.watching_ledger():
            Log(folder, TINY, disk=recorder).close()
    except MainstemError:
        return ""  # the verdict on the clone as it is will say so
    if not recorder.points:
        return ""
    point, fault = rng.choice(recorder.points), rng.choice(list(LEDGER_FAULTS))
    kept = tuple(rng.random() < 0.5 for _ in point.pieces)
    shutil.rmtree(folder)
    point.build(folder, kept, LEDGER_FAULTS[fault](point, rng), rng)
    return f", then {point.number} of its recovery ({point.what}), ledger {fault}, kept {_bits(kept)}"


# ------------------------------------------------------------------------------------------------------------ kills


def _kill(seed: int, rng: random.Random, folder: Path) -> tuple[str, Verdict, State]:
    """Let a child play the session and die at a random operation; judge what it left."""
    at, leaves = rng.randint(1, 150), rng.choice(("nothing", "part", "all"))
    command = planted.command("tests.faults.crash_points", str(seed), str(folder), str(at), leaves)
    child = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
    done = len(child.stdout.split())
    script = Script(seed, STEPS, others=True)
    states = [script.state_after(done), script.state_after(done + 1)]
    verdict = judge(folder, states, go_on=True)
    if list(folder.glob("damaged-*")):
        verdict.wrong.append("the ledger was rebuilt after a mere kill")
    return f"killed at operation {at} leaving {leaves}", verdict, states[0]


def _child(seed: int, folder: Path, at: int, leaves: str) -> None:
    script = Script(seed, STEPS, others=True)
    log = Log(folder, TINY, disk=KillingDisk(at=at, leaves=leaves))  # type: ignore[arg-type]
    play(log, script.steps, State(), lambda: print("done", flush=True))
    log.close()


if __name__ == "__main__":
    _child(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
