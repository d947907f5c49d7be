"""The ledger gone, old, or put together from pieces of different age: rebuilt to the same offsets.

Where the blocks it would be rebuilt from are gone as well, the log refuses and names the range, or, if a snapshot
covers them, tells readers what is missing.
"""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from mainstem.testing.crash import LedgerFiles
from tests.faults.folders import FolderImage, Session, session
from tests.faults.reading import judge
from tests.faults.trials import Trials

SEEDS = (12, 13, 10)
STEPS = 60
GO_ON_EVERY = 3

Loss = Callable[[Session, random.Random], FolderImage]


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"ledger lost {seed}")
    losses = {**REBUILT, **REFUSED}
    for trial in range(trials):
        name = list(losses)[trial % len(losses)]
        made = session(SEEDS[trial // len(losses) % len(SEEDS)], STEPS)
        place = folder / "lost"
        losses[name](made, rng).put(place)
        may_refuse = name in REFUSED
        verdict = judge(
            place,
            [made.state],
            refusal_allowed=may_refuse,
            losses_allowed=may_refuse,
            go_on=trial % GO_ON_EVERY == 0 and not may_refuse,
        )
        shutil.rmtree(place)
        result.trials += 1
        result.acknowledged += made.state.acknowledged
        result.took(verdict.seconds)
        wrong = [*verdict.wrong]
        if verdict.refusal and not re.search(r"(flush|flushes) \d+", verdict.refusal):
            wrong.append(f"refused without naming the range: {verdict.refusal}")
        for text in wrong:
            result.lost += "nobody said so" in text
            result.add_finding(f"seed {seed}, trial {trial} ({name}): {text}")
    return result


# ------------------------------------------------------------------------- the blocks are all there: made good


def _deleted(made: Session, rng: random.Random) -> FolderImage:
    return made.image.without("ledger.db")


def _older_copy(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_ledger(rng.choice(made.ledgers))


def _older_copy_without_shm(made: Session, rng: random.Random) -> FolderImage:
    older = rng.choice(made.ledgers)
    return made.image.with_ledger(LedgerFiles(older.db, older.wal))


def _older_db_newer_wal(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_ledger(LedgerFiles(rng.choice(made.ledgers).db, made.ledgers[-1].wal))


def _newer_db_older_wal(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_ledger(LedgerFiles(made.ledgers[-1].db, rng.choice(made.ledgers).wal))


def _wal_removed(made: Session, rng: random.Random) -> FolderImage:
    return made.image.without("ledger.db-wal", "ledger.db-shm")


def _db_removed(made: Session, rng: random.Random) -> FolderImage:
    image = made.image.without("ledger.db")
    return image.with_file("ledger.db-wal", made.image.files["ledger.db-wal"])


def _shm_garbage(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_file("ledger.db-shm", rng.randbytes(32_768))


def _db_empty(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_file("ledger.db", b"")


def _db_garbage(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_file("ledger.db", rng.randbytes(len(made.image.files["ledger.db"])))


def _db_cut(made: Session, rng: random.Random) -> FolderImage:
    whole = made.image.files["ledger.db"]
    return made.image.with_file("ledger.db", whole[: rng.randrange(len(whole))])


def _snapshot_damaged(made: Session, rng: random.Random) -> FolderImage:
    """The ledger is gone, and every snapshot, or only the newest, is damaged."""
    image = made.image.without("ledger.db")
    for name in image.snapshots if rng.random() < 0.5 else image.snapshots[-1:]:
        content = bytearray(image.files[name])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        image = image.with_file(name, bytes(content[: len(content) if rng.random() < 0.7 else len(content) // 2]))
    return image


REBUILT: dict[str, Loss] = {
    "deleted": _deleted,
    "older copy": _older_copy,
    "older copy, no shm": _older_copy_without_shm,
    "older db, newer WAL": _older_db_newer_wal,
    "newer db, older WAL": _newer_db_older_wal,
    "WAL removed": _wal_removed,
    "db removed": _db_removed,
    "shm garbage": _shm_garbage,
    "db empty": _db_empty,
    "db garbage": _db_garbage,
    "db cut": _db_cut,
    "snapshot damaged": _snapshot_damaged,
}


# -------------------------------------------------------------------------- blocks are missing too: refused, or told


def _without_a_block(made: Session, rng: random.Random) -> FolderImage:
    """A block in the middle is gone, and the ledger too."""
    return made.image.without("ledger.db", rng.choice(made.image.blocks[:-1]))


def _without_a_block_or_snapshot(made: Session, rng: random.Random) -> FolderImage:
    return _without_a_block(made, rng).without("snapshots/")


def _older_and_without_a_block(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_ledger(rng.choice(made.ledgers)).without(rng.choice(made.image.blocks[:-1]))


def _without_any_block(made: Session, rng: random.Random) -> FolderImage:
    """Blocks and ledger are gone; mainstem.json, or snapshots, or both are left of the earlier life."""
    left = made.image.without("ledger.db", "blocks/")
    return left.without(*rng.choice(((), ("mainstem.json",), ("snapshots/",))))


def _older_without_any_block(made: Session, rng: random.Random) -> FolderImage:
    return made.image.with_ledger(rng.choice(made.ledgers)).without("blocks/")


REFUSED: dict[str, Loss] = {
    "block and ledger gone": _without_a_block,
    "block, ledger, snapshots gone": _without_a_block_or_snapshot,
    "block gone, ledger older": _older_and_without_a_block,
    "all blocks and ledger gone": _without_any_block,
    "all blocks gone, ledger older": _older_without_any_block,
}
