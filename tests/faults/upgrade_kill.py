"""The upgrade of the golden folder of format 1, cut short anywhere: all of its records, and it as it was before.

Most trials are crash clones (see mainstem.testing.crash); some are a child process that gets SIGKILL at its n-th disk
operation. Some are cut short a second time, while they go on.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path

from mainstem.core.errors import MainstemError
from mainstem.log.folder import FORMAT
from mainstem.log.ledger.sqlite import format_without_wal
from mainstem.log.log import Log
from mainstem.testing import planted
from mainstem.testing.crash import LEDGER_FAULTS, CrashPoint, RecordingDisk
from mainstem.testing.disk import KillingDisk
from tests.faults.places import temporary_folder
from tests.faults.trials import Trials
from tests.formats import golden

# One in this many trials is a kill of a real process.
KILL_EVERY = 6
# One in this many is cut short again.
TWICE_EVERY = 5
# An upgrade has fewer operations than this; a kill beyond them is one in the first moments after it.
OPERATIONS_MAX = 25


def run(seed: int, trials: int, folder: Path) -> Trials:
    """`trials` upgrades that were cut short."""
    result = Trials()
    rng = random.Random(f"upgrade {seed}")
    points = _record(planted.active())
    for trial in range(trials):
        place = folder / "upgrade"
        if trial % KILL_EVERY == KILL_EVERY - 1:
            name = _kill(place, rng)
        else:
            name = _clone(points, place, rng)
            if trial % TWICE_EVERY == 0:
                name += _again(place, rng)
        started = time.perf_counter()
        wrong = _wrong(place)
        result.took(time.perf_counter() - started)
        result.trials += 1
        result.acknowledged += sum(shard["records"] for stream in golden.streams(1) for shard in stream["shards"])
        for text in wrong:
            result.lost += "records" in text
            result.add_finding(f"seed {seed}, trial {trial} ({name}): {text}")
        shutil.rmtree(place)
    return result


# ------------------------------------------------------------------------------------------------- what was left


def _wrong(folder: Path) -> list[str]:
    """Everything that is not as it must be once the folder is opened again."""
    try:
        wrong = _wrong_records(folder)
    except MainstemError as error:
        return [f"refused: {error}"]
    if json.loads((folder / "mainstem.json").read_text())["format"] != FORMAT:
        wrong.append("it does not say its format")
    return wrong + [f"{golden.BACKUP}: {text}" for text in _wrong_backup(folder / golden.BACKUP)]


def _wrong_records(folder: Path) -> list[str]:
    log = Log(folder, golden.OPTIONS, clock=golden.clock(1))
    try:
        wrong = [] if golden.content(log) == golden.streams(1) else ["other records than before"]
        return wrong + golden.misremembered(log, 1)
    finally:
        log.close()


def _wrong_backup(kept: Path) -> list[str]:
    """It must be a data folder of format 1 with everything in it."""
    if not kept.exists():
        return ["it is not there"]
    if not (kept / "mainstem.json").exists() or json.loads((kept / "mainstem.json").read_text())["format"] != 1:
        return ["it says another format"]
    if format_without_wal(kept / "ledger.db") not in (1, None):
        return ["its ledger was upgraded"]
    try:
        return _wrong_records(kept)
    except MainstemError as error:
        return [f"refused: {error}"]


# ---------------------------------------------------------------------------------------------------- cut short


@lru_cache(maxsize=2)
def _record(bugs: tuple[str, ...]) -> list[CrashPoint]:
    """Every moment of an upgrade."""
    with temporary_folder() as folder:
        path = golden.unpack(1, folder / "data")
        recorder = RecordingDisk(path)
        with recorder.watching_ledger():
            Log(path, golden.OPTIONS, clock=golden.clock(1), disk=recorder).close()
        return recorder.points


def _clone(points: list[CrashPoint], place: Path, rng: random.Random) -> str:
    point, fault = rng.choice(points), rng.choice(list(LEDGER_FAULTS))
    chance = rng.choice((0.0, 0.5, 1.0))
    kept = tuple(rng.random() < chance for _ in point.pieces)
    point.build(place, kept, LEDGER_FAULTS[fault](point, rng), rng)
    return f"{point.what}, ledger {fault}, kept {''.join('01'[bit] for bit in kept) or '-'}"


def _again(place: Path, rng: random.Random) -> str:
    """Replace the clone by a clone of how it goes on."""
    recorder = RecordingDisk(place)
    try:
        with recorder.watching_ledger():
            Log(place, golden.OPTIONS, clock=golden.clock(1), disk=recorder).close()
    except MainstemError:
        return ""  # the verdict on the clone as it is will say so
    if not recorder.points:
        return ""
    shutil.rmtree(place)
    return f", then {_clone(recorder.points, place, rng)}"


def _kill(place: Path, rng: random.Random) -> str:
    golden.unpack(1, place)
    at, leaves = rng.randint(1, OPERATIONS_MAX), rng.choice(("nothing", "part", "all"))
    command = planted.command("tests.faults.upgrade_kill", str(place), str(at), leaves)
    subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60, check=False)
    return f"killed at operation {at} leaving {leaves}"


if __name__ == "__main__":
    Log(
        Path(sys.argv[1]),
        golden.OPTIONS,
        clock=golden.clock(1),
        disk=KillingDisk(at=int(sys.argv[2]), leaves=sys.argv[3]),  # type: ignore[arg-type]
    ).close()
