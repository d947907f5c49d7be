"""A crash at every write, rename, sync and commit of a run in which records become cold: every record is there as it
was, whatever was swapped, and no file is left that nothing points to.

A step is one flush that readers can see at most, so a folder that was left during step n holds what was there after n
or after n + 1 steps.
"""

import math
import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from mainstem.core.errors import Refused
from mainstem.log.cold_maker import Cooler
from mainstem.log.flush import TrimShard
from mainstem.log.frame import is_cold
from mainstem.log.log import Log, LogOptions
from mainstem.log.upkeep import Pace, merging
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.crash import LEDGER_FAULTS, RecordingDisk
from tests.unit.log.keeping import Keeping, Seen
from tests.unit.log.test_transactions_crash import chosen, flaws

PACE = Pace(interval=1.0, free_after=1.0, rewrite_after=1.0, share=1.0)
TINY = LogOptions(
    block_bytes=64 << 10, checkpoint_bytes=96 << 10, snapshot_bytes=160 << 10, hot_tail_bytes=0, pace=PACE
)

# Blocks are freed here, and who then brings an old ledger back is refused, cold files or not.
FAULTS = [name for name in LEDGER_FAULTS if not name.startswith("older")]


def kept(path: Path, disk: RecordingDisk | None, clock: SimulatedClock) -> Keeping:
    found = Keeping.__new__(Keeping)
    found.path, found.clock, found._options = path, clock, TINY
    found.log = Log(path, TINY, disk=disk, clock=clock)
    return found


class Run:
    """What is done to a log, and what must be read of it after each step."""

    def __init__(self, folder: Path) -> None:
        self.states: list[Seen] = [{}]
        self.clock = SimulatedClock()
        recorder = RecordingDisk(folder, mark=lambda: len(self.states) - 1)
        with recorder.watching_ledger():
            self.keeping = kept(folder, recorder, self.clock)
            self._steps()
            self.keeping.log.close()
        self.points = recorder.points

    def _steps(self) -> None:
        keeping, chance = self.keeping, random.Random(5)
        stream = keeping.create()
        for turn in range(3):
            for _ in range(8):
                pairs = [(b"k%d" % chance.randrange(9), chance.randbytes(400)) for _ in range(6)]
                keeping.write(stream, *pairs)
                self._note()
                keeping.clock.advance(1)
            self._cool(stream, is_refused=turn == 1)
            keeping.roll()
            keeping.keep(5)
            self._note()
        keeping.log.upkeep.erase(keeping.row(stream), b"k3")
        self._note()
        keeping.log.execute(TrimShard(stream, 0, 10))
        keeping.log.upkeep.look_at((stream, 0))
        self._note()
        for _ in range(4):
            keeping.keep(5)
        self._note()

    def _cool(self, stream: int, *, is_refused: bool) -> None:
        """The second time what was made is overtaken by an erasure."""
        keeping = self.keeping
        plan = keeping.log.cooling.plan(keeping.row(stream), 1 << 60, 1)
        maker = Cooler(keeping.log.ledger, keeping.log._folder.blocks, keeping.log.schemas.get, keeping.clock)
        files = [file for task in plan.tasks for file in maker.make(plan, task)]
        assert files
        if is_refused:
            keeping.log.upkeep.erase(keeping.row(stream), b"k5")
            self._note()
        for file in files:
            try:
                keeping.log.cooling.commit(file)
            except Refused:
                assert is_refused
        self._note()

    def _note(self) -> None:
        # The copy of the ledger is made by a thread of its own; waiting for it keeps a run the same every time.
        self.keeping.log._maintenance.close()
        self.states.append(self.keeping.read(1))


def is_between(found: Seen, states: list[Seen]) -> bool:
    """One of them, or on the way from one to the next: an erasure goes through the entries one after the other."""
    return found in states or any(
        after.items() <= found.items() <= before.items() for before, after in pairwise(states)
    )


def check(folder: Path, states: list[Seen], clock: SimulatedClock) -> str:
    """What is wrong with a folder that was left between two states; empty if nothing is."""
    keeping = kept(folder, None, clock)
    try:
        if keeping.log.ledger.load_stream(1) is None:
            return "" if {} in states else "the stream is gone"
        if not is_between(keeping.read(1), states):
            return "holds neither"
        # A file goes before its row: a row of which nothing is alive may be without.
        known = {block for block in keeping.blocks() if is_cold(block)}
        alive = {block for block in known if keeping.blocks()[block].live_bytes}
        there = {int(path.name[:16]) for path in (folder / "blocks").iterdir() if path.suffix != ".block"}
        if not alive <= there <= known:
            return f"the ledger knows the cold files {sorted(known)}, there are {sorted(there)}"
    finally:
        keeping.log.close()
    return flaws(folder)


@pytest.mark.slow("opens a folder for every write, rename, sync and commit of a run")
def test_a_crash_anywhere_leaves_every_record_and_no_orphan(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_QUIET_SECONDS", math.inf)
    run, draw = Run(tmp_path / "run"), random.Random(8)
    assert {"replace"} <= {point.what.split(" ")[0] for point in run.points if ".parquet" in point.what}
    wrong = []
    for point in run.points:
        fault = draw.choice(FAULTS)
        clone = tmp_path / "clone"
        point.build(clone, chosen(point, draw), LEDGER_FAULTS[fault](point, draw), draw)
        if said := check(clone, run.states[max(0, point.mark - 1) : point.mark + 2], run.clock):
            wrong.append(f"point {point.number} ({point.what}), ledger {fault}: {said}")
        shutil.rmtree(clone)
    assert wrong == []
