"""How Scribe keeps what is old: apart from what is new, and in sorted runs."""

import functools
import heapq
import math
import random
from collections.abc import Sequence

import pyarrow.parquet as pq
import pytest

from mainstem.consume.record import RecordBatch
from mainstem.log import cold
from mainstem.log.cold_maker import Cooler, cold_files
from mainstem.log.frame import is_cold
from mainstem.log.log import LogOptions
from mainstem.log.reader import LogReader
from tests.unit.log.keeping import HOUR, SECOND_US, Keeping, Seen

# As a log keeps it: large blocks, and no memory of what was written.
OPTIONS = LogOptions(hot_tail_bytes=0)
MINUTE = 60.0
# Between two batches.
INTERVAL = 6 * MINUTE


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


def hot_share(keeping: Keeping, stream: int, read: Sequence[float], written: Sequence[Seen]) -> float:
    """Which part of the bytes that are read, a batch as it was written at a time, is in blocks that are not cold."""
    reader = LogReader(keeping.log.ledger, keeping.log._folder.blocks)
    row = keeping.row(stream)
    hot = total = 0
    for age in read:
        number = len(written) - 1 - int(age // INTERVAL)
        wanted = written[number]
        (entry,) = keeping.log.ledger.entries_from(stream, 0, min(wanted), 1)
        found = {
            record.offset: (record.key, record.value)
            for fetched in reader.read(row, 0, min(wanted), 1)
            for record in RecordBatch(row.name, fetched, min(wanted), None).records()
            if record.offset in wanted
        }
        assert found == wanted
        size = sum(len(key or b"") + len(value or b"") for key, value in found.values())
        total += size
        hot += 0 if is_cold(entry.block) else size
    return hot / total


@pytest.mark.mechanism("S37")
def test_s37_what_is_old_lies_apart_and_few_read_it(tmp_path):
    """A day of records, a batch every 6 minutes, of sizes that differ. The ordinary blocks have room for 3 hours of
    them: nearly all bytes that are read come from there, and the others are the same from cold files. With everything
    cold, whatever its age, none do."""
    keeping = Keeping(tmp_path / "data", OPTIONS)
    chance = random.Random(3)
    written: list[Seen] = []
    try:
        stream = keeping.create()
        for number in range(240):
            pairs = [(b"k%d" % (record % 7), chance.randbytes(chance.randrange(100))) for record in range(20)]
            keeping.write(stream, *pairs)
            written.append({20 * number + record: pair for record, pair in enumerate(pairs)})
            keeping.clock.advance(INTERVAL)
        room = sum(entry.length for entry in keeping.entries(stream)[-round(3 * HOUR / INTERVAL) - 1 :])
        cool(keeping, stream, keeping.clock.now_us() - round(3 * HOUR * SECOND_US))
        kinds = [is_cold(entry.block) for entry in keeping.entries(stream)]
        assert kinds == sorted(kinds, reverse=True)
        assert any(kinds)
        assert sum(entry.length for entry in keeping.entries(stream) if not is_cold(entry.block)) <= room
        read = ages(500)
        assert hot_share(keeping, stream, read, written) >= 0.95
        # The control: a split that does not look at the age.
        cool(keeping, stream, 1 << 60)
        assert hot_share(keeping, stream, read, written) < 0.05
        assert keeping.read(stream) == {offset: pair for batch in written for offset, pair in batch.items()}
    finally:
        keeping.log.close()


# S91: a cold file is a sorted run.

RUNS, ROWS = 500, 1_000
UNSORTED = 100


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
        table = pq.read_table(file.path, columns=["key", "_offset"])
        assert sorted(table.column("_offset").to_pylist()) == list(range(ROWS))
        assert (file.base, file.end, file.count) == (0, ROWS, ROWS)
        found.append(table.column("key").to_pylist())
    return found


def runs_of(tmp_path, name: str, count: int) -> list[list[bytes]]:
    """A batch in each of so many shards, which become files."""
    keeping = Keeping(tmp_path / name, OPTIONS)
    try:
        stream, chance = keeping.create(shards=count), random.Random(91)
        for shard in range(count):
            keeping.write(stream, *((b"%012d" % chance.randrange(10**12), b"v") for _ in range(ROWS)), shard=shard)
        cool(keeping, stream, 1 << 60)
        return runs(keeping)
    finally:
        keeping.log.close()


def merged(found: list[list[bytes]]) -> tuple[list[bytes], int]:
    """All keys by a merge, and how many comparisons it took."""
    Counted.comparisons = 0
    keys = [counted.key for counted in heapq.merge(*(map(Counted, run) for run in found))]
    return keys, Counted.comparisons


def sorted_all(found: list[list[bytes]]) -> tuple[list[bytes], int]:
    """The same by sorting all of them."""
    Counted.comparisons = 0
    keys = [counted.key for counted in sorted(Counted(key) for run in found for key in run)]
    return keys, Counted.comparisons


def comparisons_max(found: list[list[bytes]]) -> float:
    return 1.2 * len(found) * ROWS * math.log2(len(found))


@pytest.mark.mechanism("S91")
@pytest.mark.slow("600 files of 1,000 rows, merged by keys that count")
def test_s91_sorted_files_are_merged_and_not_sorted_again(tmp_path, monkeypatch):
    """A merge of the files has all keys in their order, and takes no more comparisons than a merge may. Files in the
    order of their offsets are no runs: merged they are in no order, and whoever sorts them takes more than that."""
    found = runs_of(tmp_path, "sorted", RUNS)
    keys, comparisons = merged(found)
    assert len(found) == RUNS
    assert keys == sorted(key for run in found for key in run)
    assert comparisons <= comparisons_max(found)
    # The control.
    monkeypatch.setattr(cold, "_sort_names", lambda records: ["_offset"])
    found = runs_of(tmp_path, "unsorted", UNSORTED)
    assert len(found) == UNSORTED
    in_order, comparisons = sorted_all(found)
    assert merged(found)[0] != in_order
    assert comparisons > comparisons_max(found)
