"""How Scribe keeps what is old: apart from what is new, and in sorted runs."""

import functools
import heapq
import math
import random
from collections.abc import Sequence

import pyarrow.parquet as pq
import pytest

from mainstem.log import cold, cold_maker, cold_plan
from mainstem.log.cold_maker import Cooler, cold_files
from mainstem.log.frame import is_cold
from mainstem.log.log import LogOptions
from mainstem.log.reader import LogReader
from tests.unit.log.keeping import HOUR, SECOND_US, Keeping

# As a log keeps it: large blocks, and no memory of what was written.
OPTIONS = LogOptions(hot_tail_bytes=0)
MINUTE = 60.0


def cool(keeping: Keeping, stream: int, before_us: int) -> None:
    plan = keeping.log.cooling.plan(keeping.row(stream), before_us, 1)
    maker = Cooler(keeping.log.ledger, keeping.log._folder.blocks, keeping.log.schemas.get, keeping.clock)
    for task in plan.tasks:
        for file in maker.make(plan, task):
            keeping.log.cooling.commit(file)


# S37: where a record lies follows from its age.


def ages(count: int) -> list[float]:
    """How old what is read was, as Scribe measured it: 85 % under 20 minutes, 14 % up to 3 hours, 1 % older."""
    chance = random.Random(37)
    spans = [(0.0, 20 * MINUTE), (20 * MINUTE, 3 * HOUR), (3 * HOUR, 24 * HOUR)]
    return [chance.uniform(*spans[chance.choices((0, 1, 2), (85, 14, 1))[0]]) for _ in range(count)]


def hot_share(keeping: Keeping, stream: int, read: Sequence[float]) -> float:
    """Which part of what is read, a few records at a time, is in blocks that are not cold."""
    reader = LogReader(keeping.log.ledger, keeping.log._folder.blocks)
    row, now_us = keeping.row(stream), keeping.clock.now_us()
    hot = total = 0
    for age in read:
        time_us = now_us - round(age * SECOND_US)
        entry = keeping.log.ledger.entry_at_time(stream, 0, time_us)
        if entry is None:
            continue
        assert reader.read(row, 0, reader.offset_at_time(row, 0, time_us), 1)
        total += 1
        hot += not is_cold(entry.block)
    return hot / total


@pytest.mark.mechanism("S37")
def test_s37_what_is_old_lies_apart_and_few_read_it(tmp_path):
    """A day of records, a batch every 6 minutes. With those of 3 hours in ordinary blocks nearly all that is read comes
    from there, and the rest is the same from cold files. With everything cold, whatever its age, nothing does."""
    keeping = Keeping(tmp_path / "data", OPTIONS)
    try:
        stream = keeping.create()
        for number in range(240):
            keeping.write(stream, *((b"k%d" % (record % 7), b"%d %d" % (number, record)) for record in range(20)))
            keeping.clock.advance(6 * MINUTE)
        seen, read = keeping.read(stream), ages(500)
        cool(keeping, stream, keeping.clock.now_us() - round(3 * HOUR * SECOND_US))
        kinds = [is_cold(entry.block) for entry in keeping.entries(stream)]
        assert kinds == sorted(kinds, reverse=True)
        assert any(kinds)
        hot_rows = sum(entry.count for entry in keeping.entries(stream) if not is_cold(entry.block))
        assert hot_rows <= 31 * 20
        assert hot_share(keeping, stream, read) >= 0.95
        assert keeping.read(stream) == seen
        # The control: a split that does not look at the age.
        cool(keeping, stream, 1 << 60)
        assert hot_share(keeping, stream, read) < 0.05
        assert keeping.read(stream) == seen
    finally:
        keeping.log.close()


# S91: a cold file is a sorted run.

RUNS, ROWS = 60, 200


@functools.total_ordering
class Counted:
    """A key that counts how often it is compared."""

    comparisons = 0

    def __init__(self, key: bytes) -> None:
        self.key = key

    def __lt__(self, other: "Counted") -> bool:
        Counted.comparisons += 1
        return self.key < other.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]


def runs(keeping: Keeping) -> list[list[bytes]]:
    """The keys of each cold file in the order of its rows; each has the offsets of one batch, all of them."""
    found = []
    for file in cold_files(keeping.path, "orders"):
        table = pq.read_table(file.path)
        assert sorted(table.column("_offset").to_pylist()) == list(range(file.base, file.end))
        assert file.count == ROWS
        found.append(table.column("key").to_pylist())
    return found


def merged(tmp_path, name: str) -> tuple[list[bytes], list[list[bytes]]]:
    keeping = Keeping(tmp_path / name, OPTIONS)
    try:
        stream, chance = keeping.create(), random.Random(91)
        for _ in range(RUNS):
            keeping.write(stream, *((b"%012d" % chance.randrange(10**12), b"v") for _ in range(ROWS)))
        cool(keeping, stream, 1 << 60)
        found = runs(keeping)
        Counted.comparisons = 0
        return [counted.key for counted in heapq.merge(*(map(Counted, run) for run in found))], found
    finally:
        keeping.log.close()


@pytest.mark.mechanism("S91")
def test_s91_sorted_files_are_merged_and_not_sorted_again(tmp_path, monkeypatch):
    gathered = cold_plan.gathered
    # One batch is a file: then the bound on its bytes decides what a run is.
    monkeypatch.setattr(cold_maker, "gathered", lambda entries, low: one_by_one(gathered, entries, low))
    keys, found = merged(tmp_path, "sorted")
    assert len(found) == RUNS
    assert keys == sorted(key for run in found for key in run)
    assert Counted.comparisons <= 1.2 * RUNS * ROWS * math.log2(RUNS)
    # The control: files in the order of their offsets, which are no runs.
    monkeypatch.setattr(cold, "_sort_names", lambda records: ["_offset"])
    keys, found = merged(tmp_path, "unsorted")
    assert keys != sorted(key for run in found for key in run)


def one_by_one(gathered, entries, bytes_min):
    for pair in entries:
        yield from gathered([pair], bytes_min)
