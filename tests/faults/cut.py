"""A block of 64 KiB cut at every byte: everything acknowledged is there, or the log says which file ends where.

Two blocks are cut in turn: the newest, whose end the ledger knows, and a sealed one, whose readers are told what is
gone.
"""

import shutil
from pathlib import Path

from tests.faults.folders import FolderImage, session
from tests.faults.reading import Verdict, judge
from tests.faults.trials import Trials

SEED = 12
STEPS = 48
# Prime to any size of a block, and far from its divisors: trials of a small run are spread over the whole block.
_STRIDE = 40_503


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Trial i of seed s is cut number s * trials + i of a fixed order of all cuts of both blocks."""
    result = Trials()
    made = session(SEED, STEPS)
    blocks = _chosen(made.image)
    for trial in range(seed * trials, seed * trials + trials):
        name = blocks[trial % 2]
        whole = made.image.files[name]
        position = trial // 2 * _STRIDE % len(whole)
        place = folder / "cut"
        made.image.with_file(name, whole[:position]).put(place)
        verdict = judge(place, [made.state], refusal_allowed=True, losses_allowed=True)
        shutil.rmtree(place)
        result.trials += 1
        result.acknowledged += made.state.acknowledged
        result.took(verdict.seconds)
        for text in [*verdict.wrong, *_unnamed(name, verdict)]:
            result.lost += "nobody said so" in text
            result.add_finding(f"{name} cut at byte {position}: {text}")
    return result


def count() -> int:
    """How many cuts there are."""
    image = session(SEED, STEPS).image
    return 2 * max(len(image.files[name]) for name in _chosen(image))


def _chosen(image: FolderImage) -> tuple[str, str]:
    """The newest block, and the largest sealed one."""
    *sealed, newest = image.blocks
    return newest, max(sealed, key=lambda name: len(image.files[name]))


def _unnamed(name: str, verdict: Verdict) -> list[str]:
    """A refusal that does not say which file, and where."""
    if not verdict.refusal or (Path(name).name in verdict.refusal and any(map(str.isdigit, verdict.refusal))):
        return []
    return [f"refused without saying where: {verdict.refusal}"]
