"""One flipped bit in every kind of file: detected and named, or made good from the blocks, or harmless.

Never returned as data, never dropped without a word. Half of the trials in blocks and snapshots also lack the ledger,
so that every byte is read again by recovery. The log was closed, so its last block has a footer, which tells damage of
the last flush from a write that a power cut tore.
"""

import random
import shutil
import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from mainstem.core.errors import MainstemError
from mainstem.log.frame import BLOCK_HEADER_BYTES, FrameHeader, FrameKind, parse_header
from mainstem.log.log import Log
from tests.faults.folders import FolderImage, session
from tests.faults.reading import Verdict, judge
from tests.faults.script import TINY, commit, further
from tests.faults.trials import Trials

SEED = 12
STEPS = 60
GO_ON_EVERY = 6
# One in this many trials is in the WAL of a log that is running.
LIVE_EVERY = 20
# Enough for the WAL to be checkpointed once or twice.
_LIVE_STEPS_MAX = 40


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of one kind: where a bit may flip. Of a block, `frame` is where the frame begins that they are in."""

    kind: str
    file: str
    begin: int
    end: int
    frame: int = 0


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    made = session(SEED, STEPS)
    places = regions()
    kinds = sorted(places)
    rng = random.Random(f"flips {seed}")
    for trial in range(trials):
        if trial % LIVE_EVERY == LIVE_EVERY - 1:
            _flip_live(result, f"seed {seed}, trial {trial}", folder / "live", rng)
            continue
        kind = kinds[trial % len(kinds)]
        region = rng.choice(places[kind])
        position, bit = rng.randrange(region.begin, region.end), rng.randrange(8)
        is_source = region.file.startswith(("blocks/", "snapshots/"))
        without_ledger = is_source and rng.random() < 0.5
        image = flipped(made.image, region.file, position, bit)
        place = folder / "flip"
        (image.without("ledger.db") if without_ledger else image).put(place)
        verdict = judge(place, [made.state], refusal_allowed=True, losses_allowed=True, go_on=trial % GO_ON_EVERY == 0)
        shutil.rmtree(place)
        result.trials += 1
        result.acknowledged += made.state.acknowledged
        result.took(verdict.seconds)
        for text in [*verdict.wrong, *_unnamed(region, verdict)]:
            result.lost += "nobody said so" in text
            name = f"bit {bit} of byte {position} of {region.file} ({kind}{', no ledger' if without_ledger else ''})"
            result.add_finding(f"{name}: {text}")
    return result


def _flip_live(result: Trials, name: str, folder: Path, rng: random.Random) -> None:
    """Flip a bit of the WAL under a log that is writing it, and let it write on until its next checkpoint."""
    made = session(SEED, STEPS)
    made.image.put(folder)
    state = made.state.copy()
    steps = further(state)
    log = Log(folder, TINY)
    wal = folder / "ledger.db-wal"
    # Close to a checkpoint, and in its newest pages: older ones are written again before it comes.
    while wal.stat().st_size < rng.uniform(0.8, 1.0) * TINY.checkpoint_bytes:
        step = next(steps)
        state.apply(step)
        commit(log, step)
    position, bit = rng.randrange(wal.stat().st_size // 2, wal.stat().st_size), rng.randrange(8)
    with wal.open("r+b") as file:
        file.seek(position)
        old = file.read(1)[0]
        file.seek(position)
        file.write(bytes([old ^ 1 << bit]))
    states = [state.copy()]
    try:
        for step in islice(steps, _LIVE_STEPS_MAX):
            state.apply(step)
            commit(log, step)
            states = [state.copy()]
    except MainstemError:
        # The step that met the damage was not acknowledged; it may be there.
        states.append(state)
    log.close()
    verdict = judge(folder, states, go_on=True)
    shutil.rmtree(folder)
    result.trials += 1
    result.acknowledged += states[0].acknowledged
    for text in verdict.wrong:
        result.lost += "nobody said so" in text
        result.add_finding(f"{name}, bit {bit} of byte {position} of the WAL in use: {text}")


def flipped(image: FolderImage, name: str, position: int, bit: int) -> FolderImage:
    content = bytearray(image.files[name])
    content[position] ^= 1 << bit
    return image.with_file(name, bytes(content))


def _unnamed(region: Region, verdict: Verdict) -> list[str]:
    """A refusal names the file, and in a block the byte where the damaged frame begins."""
    if not verdict.refusal or "format" in verdict.refusal:
        return []
    if Path(region.file).stem not in verdict.refusal:
        return [f"refused without naming the file: {verdict.refusal}"]
    if region.file.endswith(".block") and f"at byte {region.frame}:" not in verdict.refusal:
        return [f"refused without naming byte {region.frame}, where the damage is: {verdict.refusal}"]
    return []


@lru_cache(maxsize=1)
def regions() -> dict[str, list[Region]]:
    """Where bits are flipped, by kind; each kind gets as many trials as any other."""
    image = session(SEED, STEPS).image
    found: dict[str, list[Region]] = {}
    for name, content in image.files.items():
        for region in _block_regions(image, name) if name.endswith(".block") else _plain_regions(name, content):
            if region.begin < region.end:
                found.setdefault(region.kind, []).append(region)
    # The end of a Parquet file is none of a block.
    wanted = {f"{kind.name.lower()} header" for kind in FrameKind if kind != FrameKind.PARQUET_END}
    assert wanted <= found.keys(), f"the session has no {wanted - found.keys()}"
    return found


def _plain_regions(name: str, content: bytes) -> list[Region]:
    kind = "snapshot" if name.startswith("snapshots/") else name
    whole = Region(kind, name, 0, len(content))
    if name.endswith(".db"):
        # The first page decides how the others are read.
        return [whole, Region(f"{kind}, first page", name, 0, 100)]
    if name.endswith("-wal"):
        frame = 24 + struct.unpack_from(">I", content, 8)[0] if content else 1
        heads = [Region(f"{kind}, frame header", name, at, at + 24) for at in range(32, len(content) - 24, frame)]
        return [whole, Region(f"{kind}, header", name, 0, min(32, len(content))), *heads]
    return [whole]


def _block_regions(image: FolderImage, name: str) -> list[Region]:
    content, number = image.files[name], int(Path(name).stem)
    frames: list[FrameHeader] = []
    at = BLOCK_HEADER_BYTES
    while at < len(content):
        frames.append(parse_header(content, at, at, number))
        at += frames[-1].total_len
    regions = [Region("block header", name, 0, BLOCK_HEADER_BYTES)]
    for frame in frames:
        kind = FrameKind(frame.kind).name.lower()
        middle, end = frame.position + frame.header_len, frame.position + frame.total_len
        regions.append(Region(f"{kind} header", name, frame.position, middle, frame.position))
        regions.append(Region(f"{kind} payload", name, middle, end, frame.position))
    return regions
