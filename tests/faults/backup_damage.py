"""A backup that is damaged in any file: flipped, cut, longer, gone, or exchanged. It is refused and the file is named.

Nothing may be under the target's name afterwards; a backup without damage is restored to what the log was.
"""

import random
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from mainstem.core.errors import BackupUnusable
from mainstem.log.backup import back_up
from mainstem.log.restore import restore
from mainstem.testing import planted
from tests.faults.folders import FolderImage, session
from tests.faults.places import temporary_folder
from tests.faults.reading import judge
from tests.faults.trials import Trials

SEEDS = (12, 13)
STEPS = 60
# Every so many trials nothing is damaged, and the log must come back.
_SOUND_EVERY = 25

Damage = Callable[[bytes, random.Random, bytes], bytes | None]


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"backup damage {seed}")
    place, target = folder / "backup", folder / "restored"
    for trial in range(trials):
        number = trial % len(SEEDS)
        image = _backup(number, planted.active())
        what, name = "nothing", ""
        if trial % _SOUND_EVERY:
            what, name = rng.choice(list(DAMAGES)), rng.choice(sorted(image.files))
            image = _damaged(image, what, name, rng)
        _put(image, place)
        try:
            restore(place, target)
            refusal = ""
        except BackupUnusable as error:
            refusal = str(error)
        except Exception as error:
            refusal = f"{name} made it end with {type(error).__name__}: {error}"
            result.add_finding(f"seed {seed}, trial {trial}: {refusal}")
        for text in _wrong(name, refusal, target):
            result.add_finding(f"seed {seed}, trial {trial} ({what}): {text}")
        if not name and target.exists():
            made = session(SEEDS[number], STEPS)
            result.acknowledged += made.state.acknowledged
            wrong = judge(target, [made.state], go_on=True).wrong
            for text in wrong:
                result.add_finding(f"seed {seed}, trial {trial}: after a restore: {text}")
        result.trials += 1
        for path in (place, target, target.with_name("restored.restoring")):
            shutil.rmtree(path, ignore_errors=True)
    return result


def _wrong(name: str, refusal: str, target: Path) -> list[str]:
    if not name:
        return [f"a sound backup is refused: {refusal}"] if refusal else []
    if not refusal:
        return [f"{name} is damaged, and the backup was restored all the same"]
    wrong = [] if Path(name).name in refusal else [f"the refusal does not name {name}: {refusal}"]
    return [*wrong, "something is there in spite of it"] if target.exists() else wrong


# ---------------------------------------------------------------------------------------------------------- the damage


def _flipped(content: bytes, rng: random.Random, other: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def _cut(content: bytes, rng: random.Random, other: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def _longer(content: bytes, rng: random.Random, other: bytes) -> bytes:
    return content + rng.randbytes(rng.randint(1, 5_000))


def _zeroed(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """A page that never reached the disk."""
    at = rng.randrange(len(content)) & ~4095
    return content[:at] + bytes(min(4096, len(content) - at)) + content[at + 4096 :]


def _removed(content: bytes, rng: random.Random, other: bytes) -> None:
    return None


def _exchanged(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """What another file has."""
    return other


DAMAGES: dict[str, Damage] = {
    "flipped": _flipped,
    "cut": _cut,
    "longer": _longer,
    "zeroed": _zeroed,
    "removed": _removed,
    "exchanged": _exchanged,
}


def _damaged(image: FolderImage, what: str, name: str, rng: random.Random) -> FolderImage:
    whole = image.files[name]
    other = image.files[rng.choice(sorted(set(image.files) - {name}))]
    content = DAMAGES[what](whole, rng, other)
    if content == whole:
        content = None  # an empty page, or a file of the same content: then it goes
    return image.without(name) if content is None else image.with_file(name, content)


@lru_cache(maxsize=8)
def _backup(number: int, bugs: tuple[str, ...]) -> FolderImage:
    """The backup of a scripted log, made in two goes."""
    made = session(SEEDS[number], STEPS)
    with temporary_folder() as folder:
        made.image.put(folder / "data")
        back_up(folder / "data", folder / "backup")
        return FolderImage.take(folder / "backup")


def _put(image: FolderImage, place: Path) -> None:
    (place / "blocks").mkdir(parents=True)
    for name, content in image.files.items():
        (place / name).write_bytes(content)
