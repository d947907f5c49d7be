"""A crash at every write, sync and commit of a run with transactions: each is there with all of its records and
cursors, or with nothing of it, and its client can find out which.

The run is a script, the same for the same seed. A step is one flush at most, so a folder that was left during step n
holds what was there after n or after n + 1 steps.
"""

import copy
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mainstem.core.batch import Batch
from mainstem.core.errors import UnknownTransaction
from mainstem.log.flush import (
    Appended,
    Assigned,
    GroupCursors,
    Outcome,
    Rejected,
    Staged,
    TransactionCommitted,
)
from mainstem.log.ledger.inspector import LedgerInspector
from mainstem.log.log import Log, LogOptions, Waiter
from mainstem.testing.crash import LEDGER_FAULTS, CrashPoint, RecordingDisk
from tests.unit.log.parts import append, make_batch, make_stream, values_of

# Small enough that a run rolls blocks, checkpoints the ledger and takes snapshots.
TINY = LogOptions(block_bytes=64 << 10, checkpoint_bytes=96 << 10, snapshot_bytes=160 << 10, hot_tail_bytes=16 << 10)
SHARDS = ((1, 0), (1, 1), (2, 0))
MEMBER = 77
STEPS = 30

Offsets = tuple[tuple[int, int, int, int], ...]
Step = tuple[Any, ...]


@dataclass
class State:
    """What the log must hold: the values of every shard, the group's cursors, and which transactions it committed."""

    streams: int = 0
    records: dict[tuple[int, int], list[bytes | None]] = field(default_factory=lambda: {key: [] for key in SHARDS})
    cursors: dict[tuple[int, int], int] = field(default_factory=dict)
    committed: dict[int, tuple[int, Offsets]] = field(default_factory=dict)
    # What is staged in those that are open: of no effect.
    staged: dict[int, list[tuple[int, int, list[bytes]]]] = field(default_factory=dict)

    def visible(self) -> tuple[object, ...]:
        return ({key: values for key, values in self.records.items() if key[0] <= self.streams}, self.cursors)

    def apply(self, step: Step) -> object:
        """What the log must answer."""
        kind, *rest = step
        match kind:
            case "create":
                self.streams += 1
                return None
            case "assign":
                self.cursors = {key: self.cursors.get(key, 0) for key in ((1, 0), (1, 1))}
                return tuple((*key, offset) for key, offset in self.cursors.items())
            case "append":
                key, values = rest
                base = len(self.records[key])
                self.records[key] += values
                return base
            case "stage":
                self.staged.setdefault(rest[0], []).extend(rest[2])
                return len(rest[2])
            case "abort":
                del self.staged[rest[0]]
                return True
            case "commit":
                return self._commit(*rest)
        return None

    def _commit(self, transaction: int, cursors: dict[tuple[int, int], int]) -> Offsets:
        batches = self.staged.pop(transaction)
        before = {key: len(values) for key, values in self.records.items()}
        for stream, shard, values in batches:
            self.records[stream, shard] += values
        self.cursors.update(cursors)
        touched = sorted({(stream, shard) for stream, shard, _ in batches})
        made = tuple((*key, before[key], len(self.records[key]) - before[key]) for key in touched)
        self.committed[transaction] = (len(batches), made)
        return made


def script(seed: int) -> list[Step]:
    draw = random.Random(f"transactions {seed}")
    steps: list[Step] = [("create", "orders", 2), ("create", "totals", 1), ("assign", 1)]
    state = State()
    for first in steps:
        state.apply(first)
    stagings: dict[int, int] = {}

    def values(size: int = 600) -> list[bytes]:
        return [draw.randbytes(draw.randint(1, size)) for _ in range(draw.randint(1, 3))]

    while len(steps) < STEPS:
        chance = draw.random()
        if chance < 0.2:
            step: Step = ("append", draw.choice(SHARDS), values())
        elif chance < 0.6 or not state.staged:
            transaction = draw.choice([*state.staged, len(steps) + 100])
            index = stagings.get(transaction, 0)
            stagings[transaction] = index + 1
            size = 8_000 if draw.random() < 0.3 else 600
            places = [draw.choice(SHARDS) for _ in range(draw.randint(1, 4))]
            step = ("stage", transaction, index, [(*place, values(size)) for place in places])
        elif chance < 0.65:
            step = ("abort", draw.choice(list(state.staged)))
        elif chance < 0.72:
            step = ("roll",)
        else:
            cursors = {
                key: draw.randint(offset, len(state.records[key]))
                for key, offset in state.cursors.items()
                if draw.random() < 0.7
            }
            step = ("commit", draw.choice(list(state.staged)), cursors)
        state.apply(step)
        steps.append(step)
    return steps


def play(log: Log, step: Step, batches: int) -> object:
    """Carry out a step; what the log answers, in the words of the model."""
    kind, *rest = step
    match kind:
        case "create":
            make_stream(log, *rest)
        case "assign":
            (assigned,) = outcomes(log.groups.assign, log, "g", rest[0], [(1, 0, MEMBER), (1, 1, MEMBER)])
            assert isinstance(assigned, Assigned), assigned
            return assigned.cursors
        case "append":
            (stream, shard), values = rest
            (appended,) = append(log, made(stream, shard, values))
            assert isinstance(appended, Appended), appended
            return appended.base
        case "stage":
            transaction, index, places = rest
            found = outcomes(log.stage, log, transaction, index, [made(*place) for place in places])
            assert all(isinstance(outcome, Staged) for outcome in found), found
            return len(found)
        case "abort":
            return log.abort_transaction(rest[0])
        case "commit":
            transaction, cursors = rest
            (committed,) = commit(log, transaction, batches, cursors)
            assert isinstance(committed, TransactionCommitted), committed
            assert not committed.duplicate
            return committed.offsets
        case "roll":
            log.batcher.request_roll()
            log.commit_nothing()
    return None


def made(stream: int, shard: int, values: list[bytes]) -> Batch:
    return make_batch(values, stream=stream, shard=shard)


def outcomes(call: Any, log: Log, *arguments: Any) -> list[Outcome]:
    waiter = Waiter()
    call(*arguments, waiter.set)
    return waiter.wait(log.batcher)


def commit(log: Log, transaction: int, batches: int, cursors: dict[tuple[int, int], int]) -> list[Outcome]:
    moved = [GroupCursors("g", MEMBER, tuple((*key, offset) for key, offset in cursors.items()))] if cursors else []
    return outcomes(log.commit_transaction, log, transaction, batches, moved)


def visible(log: Log) -> tuple[object, ...]:
    """What readers see, and the cursors of the group."""
    records: dict[tuple[int, int], list[bytes | None]] = {}
    for row in log.ledger.list_streams():
        for shard in range(row.shards):
            found: list[bytes | None] = []
            records[row.id, shard] = found
            while batches := log.reader.read(row, shard, len(found)):
                for batch in batches:
                    assert batch.base == len(found)
                    found += values_of(batch)
    group = log.ledger.group_named("g")
    shards = [] if group is None else log.ledger.list_group_shards(group.id)
    return records, {key: row.offset for key, row in shards}


class Recorded:
    """A run, its crash points, and the state after each of its steps."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.states = [State()]
        recorder = RecordingDisk(folder, mark=lambda: len(self.states) - 1)
        with recorder.watching_ledger():
            log = Log(folder, TINY, disk=recorder)
            for step in script(seed):
                state = copy.deepcopy(self.states[-1])
                batches = len(state.staged.get(step[1], ())) if step[0] == "commit" else 0
                expected = state.apply(step)
                assert play(log, step, batches) == expected, step
                # The copy of the ledger is made by a thread of its own; waiting for it keeps a run the same every time.
                log._maintenance.close()
                self.states.append(state)
            assert visible(log) == self.states[-1].visible()
            log.close()
        self.points = recorder.points


def check(folder: Path, states: list[State]) -> str:
    """What is wrong with a folder that was left between two states; empty if nothing is."""
    log = Log(folder, TINY)
    try:
        found = visible(log)
        state = next((state for state in reversed(states) if state.visible() == found), None)
        if state is None:
            return f"holds neither: {found}"
        for transaction, (batches, offsets) in state.committed.items():
            again = commit(log, transaction, batches, {})
            if again != [TransactionCommitted(offsets, duplicate=True)]:
                return f"transaction {transaction} was committed to {offsets}, and is told {again}"
        for transaction, staged in state.staged.items():
            (outcome,) = commit(log, transaction, len(staged), {})
            # If both states look the same, the later one may be the one that is there.
            is_there = any(transaction in other.committed for other in states)
            is_refused = isinstance(outcome, Rejected) and isinstance(outcome.error, UnknownTransaction)
            if not (is_refused or is_there):
                return f"transaction {transaction} was open, and is told {outcome}"
        if visible(log) != found:
            return "what is told again has changed something"
        if state.streams == 2:
            (appended,) = append(log, made(2, 0, [b"next"]))
            if appended != Appended(len(state.records[2, 0])):
                return f"the next record got {appended}"
    finally:
        log.close()
    return flaws(folder)


def flaws(folder: Path) -> str:
    """Rows that contradict each other."""
    ledger = LedgerInspector(folder / "ledger.db")
    try:
        view = ledger.look()
    finally:
        ledger.close()
    wrong = list(view.flaws)
    for row in view.blocks.values():
        live = view.block_sums[row.id].bytes if row.id in view.block_sums else 0
        if row.live_bytes != live:
            wrong.append(f"block {row.id} has {live} live bytes, its row says {row.live_bytes}")
    return "; ".join(wrong)


def test_a_script_has_everything_in_it():
    kinds = {step[0] for seed in range(3) for step in script(seed)}
    assert kinds == {"create", "assign", "append", "stage", "abort", "roll", "commit"}


@pytest.mark.slow("opens a folder for every write, sync and commit of a run")
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_anywhere_leaves_all_of_a_transaction_or_nothing(tmp_path, seed):
    run = Recorded(seed, tmp_path / "run")
    draw = random.Random(f"clones {seed}")
    assert any(point.what == "commit" for point in run.points)
    wrong = []
    for point in run.points:
        fault = draw.choice(list(LEDGER_FAULTS))
        kept = chosen(point, draw)
        clone = tmp_path / "clone"
        point.build(clone, kept, LEDGER_FAULTS[fault](point, draw), draw)
        states = run.states[point.mark : point.mark + 2]
        if said := check(clone, states):
            wrong.append(f"point {point.number} ({point.what}), ledger {fault}: {said}")
        shutil.rmtree(clone)
    assert wrong == []


def chosen(point: CrashPoint, draw: random.Random) -> tuple[bool, ...]:
    """Which pieces are there: none, all, or any."""
    chance = draw.choice((0.0, 1.0, 0.5))
    return tuple(draw.random() < chance for _ in point.pieces)


def test_a_rebuild_from_the_blocks_alone_comes_to_the_same(tmp_path):
    run = Recorded(7, tmp_path / "run")
    for file in (tmp_path / "run").glob("ledger.db*"):
        file.unlink()
    shutil.rmtree(tmp_path / "run" / "snapshots")
    assert check(tmp_path / "run", run.states[-1:]) == ""
