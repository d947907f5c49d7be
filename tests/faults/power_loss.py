"""The power is cut while a process writes. What it was told must be there when the file system comes back.

A real cut where this process may mount: the folder is on an ext4 file system in a file, which is shut down without
writing back anything that was not synced. Elsewhere crash clones stand in for it.
"""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from mainstem.log.log import Log
from mainstem.testing import planted
from tests.faults import crash_points
from tests.faults.mounts import PowerImage, can_mount
from tests.faults.reading import judge
from tests.faults.script import TINY, Script, State, play
from tests.faults.trials import Trials

STEPS = 600
IMAGE_BYTES = 96 << 20
_LIFE_SECONDS_MAX = 0.5


def run(seed: int, trials: int, folder: Path) -> Trials:
    if not can_mount():
        return crash_points.run(seed, trials, folder)
    result = Trials()
    rng = random.Random(f"power loss {seed}")
    for trial in range(trials):
        script_seed = seed * 100_000 + trial
        with PowerImage(folder / "power", IMAGE_BYTES) as image:
            done = _live_and_lose_power(image, script_seed, rng)
            script = Script(script_seed, STEPS, floods=True)
            states = [script.state_after(done), script.state_after(done + 1)]
            verdict = judge(image.path / "data", states, go_on=True)
        result.trials += 1
        result.acknowledged += states[0].acknowledged
        result.took(verdict.seconds)
        for text in verdict.wrong:
            result.lost += "nobody said so" in text
            result.add_finding(f"seed {seed}, cut {trial} after {done} steps: {text}")
    return result


def _live_and_lose_power(image: PowerImage, seed: int, rng: random.Random) -> int:
    """Let a child write until the power goes; how many steps it was told are done."""
    child = subprocess.Popen(
        planted.command("tests.faults.power_loss", str(seed), str(image.path / "data")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n", "the writing process did not start"
    told: list[bytes] = []
    reading = threading.Thread(target=lambda out=child.stdout: told.append(out.read()))
    reading.start()
    time.sleep(rng.uniform(0, _LIFE_SECONDS_MAX))
    image.cut()
    child.kill()
    reading.join()
    child.wait()
    child.stdout.close()
    image.restore()
    return len(b"".join(told).splitlines())


def _child(seed: int, folder: Path) -> None:
    script = Script(seed, STEPS, floods=True)
    log = Log(folder, TINY)
    print("open", flush=True)
    play(log, script.steps, State(), lambda: print("done", flush=True))
    time.sleep(60)


if __name__ == "__main__":
    _child(int(sys.argv[1]), Path(sys.argv[2]))
