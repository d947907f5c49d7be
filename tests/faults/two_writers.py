"""A second process on a folder that is being written: refused, with the reason, and let in once the first is gone."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mainstem
from mainstem.core.errors import FolderLocked, ReadOnly
from mainstem.log.log import Log
from mainstem.testing import planted
from tests.faults.script import TINY
from tests.faults.trials import Trials

_ATTEMPTS_PER_HOLDER = 10


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one attempt; the holder is another process, killed or stopped now and then."""
    result = Trials()
    rng = random.Random(f"two writers {seed}")
    place = folder / "locked"
    while result.trials < trials:
        with _holder(place) as holder:
            for _ in range(min(_ATTEMPTS_PER_HOLDER, trials - result.trials)):
                wrong = rng.choice((_try_log, _try_hub, _try_reader))(place, holder.pid)
                result.trials += 1
                if wrong:
                    result.add_finding(f"seed {seed}, attempt {result.trials}: {wrong}")
        # The holder is gone, however it went: nothing of it is in the way.
        started = time.perf_counter()
        Log(place, TINY).close()
        result.took(time.perf_counter() - started)
    shutil.rmtree(place)
    return result


def _try_log(folder: Path, holder: int) -> str:
    try:
        Log(folder, TINY).close()
    except FolderLocked as refusal:
        return "" if f"process {holder}" in str(refusal) else f"refused without saying who: {refusal}"
    return "a second writer was let in"


def _try_hub(folder: Path, holder: int) -> str:
    try:
        mainstem.open(folder, read_only=False).close()
    except FolderLocked as refusal:
        return "" if f"process {holder}" in str(refusal) else f"refused without saying who: {refusal}"
    return "a second writing hub was let in"


def _try_reader(folder: Path, holder: int) -> str:
    """Without saying which, a hub may read; it may not write."""
    with mainstem.open(folder) as hub:
        try:
            hub.producer()
        except ReadOnly:
            return ""
    return "a hub on a locked folder gave a producer"


@contextmanager
def _holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        planted.command("tests.faults.two_writers", str(folder)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n", "the holder did not open the folder"
        yield child
    finally:
        child.kill()
        child.communicate()


if __name__ == "__main__":
    held = Log(Path(sys.argv[1]), TINY)
    print("open", flush=True)
    sys.stdin.read()
