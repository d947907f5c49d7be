"""One flipped bit in every kind of file: the doctor tells it, names the file, blames no other, and leaves no trace.

What must be told: every byte of a block but the padding behind a payload; whatever makes a start put the ledger aside
or refuse; a snapshot that could not be restored; a `mainstem.json` that cannot be read. Some trials have two lives of
the log behind the flip, some none: the doctor also looks at folders without a ledger.
"""

import random
import shutil
from pathlib import Path

from mainstem.core.clock import SystemClock
from mainstem.core.errors import FolderUnusable, LedgerDamaged
from mainstem.log.doctor import examine
from mainstem.log.finding import Finding, Severity
from mainstem.log.folder import parse_identity
from mainstem.log.frame import BLOCK_HEADER_BYTES, parse_header
from mainstem.log.ledger.sqlite import SqliteLedger
from mainstem.log.log import Log
from mainstem.log.surroundings import Surroundings
from tests.faults.flips import SEED, STEPS, flipped, regions
from tests.faults.folders import FolderImage, session
from tests.faults.script import TINY
from tests.faults.trials import Trials

_ROOMY = Surroundings(1 << 40, 1 << 41, "ext4", is_temporary=False, writer=None)


class _Hasty(SystemClock):
    """Nobody writes here: what is wrong at once is wrong later."""

    def sleep(self, seconds: float) -> None:
        pass


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    made = session(SEED, STEPS)
    places = regions()
    kinds = sorted(places)
    rng = random.Random(f"examined {seed}")
    for trial in range(trials):
        region = rng.choice(places[kinds[trial % len(kinds)]])
        position, bit = rng.randrange(region.begin, region.end), rng.randrange(8)
        image = flipped(made.image, region.file, position, bit)
        if region.file.startswith("blocks/") and rng.random() < 0.2:
            image = image.without("ledger.db")
        place = folder / "examined"
        image.put(place)
        for text in _judge(place, image, made.image, region.file, position):
            result.add_finding(f"bit {bit} of byte {position} of {region.file} ({region.kind}): {text}")
        shutil.rmtree(place)
        result.trials += 1
        result.acknowledged += made.state.acknowledged
    return result


def _judge(place: Path, image: FolderImage, sound: FolderImage, file: str, position: int) -> list[str]:
    found = [finding for finding in _examined(place) if finding.severity > Severity.NOTE]
    wrong = []
    if FolderImage.take(place).files != image.files:
        wrong.append("the doctor changed a file")
    has_ledger = "ledger.db" in image.files
    suspects = {file, "ledger.db"} if file.startswith("ledger.db") or not has_ledger else {file}
    # A start that is refused names the file in its words.
    others = [finding for finding in found if finding.file not in suspects and Path(file).stem not in finding.what]
    if others:
        wrong.append(f"another file is blamed: {others[0]}")
    is_told = any(finding.file in suspects or finding.code == "start-refused" for finding in found)
    if has_ledger and not is_told and _must_be_told(place, sound, file, position):
        wrong.append("nothing is told")
    return wrong


def _examined(place: Path) -> list[Finding]:
    return examine(place, deep=True, clock=_Hasty(), surroundings=_ROOMY).findings


def _must_be_told(place: Path, sound: FolderImage, file: str, position: int) -> bool:
    if file.startswith("blocks/"):
        return not _is_padding(sound.files[file], int(Path(file).stem), position)
    if file.startswith("snapshots/"):
        return not _is_usable(place / file)
    if file == "mainstem.json":
        return parse_identity((place / file).read_bytes()) is None
    return _start_complains(place)


def _is_padding(content: bytes, block: int, position: int) -> bool:
    at = BLOCK_HEADER_BYTES
    while at < len(content):
        header = parse_header(content, at, at, block)
        if position < at + header.total_len:
            return position >= at + header.header_len + header.stored_len
        at += header.total_len
    return False


def _is_usable(snapshot: Path) -> bool:
    try:
        ledger = SqliteLedger(snapshot)
    except (LedgerDamaged, FolderUnusable):
        return False
    try:
        ledger.check_pages()
        return True
    except LedgerDamaged:
        return False
    finally:
        ledger.close()


def _start_complains(place: Path) -> bool:
    """Whether the next start puts the ledger aside, or is refused."""
    try:
        Log(place, TINY).close()
    except FolderUnusable:
        return True
    return bool(list(place.glob("damaged-*")))
