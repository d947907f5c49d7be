"""Old records in Parquet files: the same for every reader, whoever was killed when, and gone when they are erased."""

import random
import shutil
import threading
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from mainstem.core.errors import DataLoss, DiskFull, FolderUnusable, InvalidRequest, Refused
from mainstem.core.limits import MIB
from mainstem.log import cold_maker, cold_plan
from mainstem.log.administration import Administration
from mainstem.log.backup import back_up
from mainstem.log.cold_maker import Cooler, open_cooler
from mainstem.log.doctor import examine
from mainstem.log.finding import Severity
from mainstem.log.frame import is_cold
from mainstem.log.ledger.base import Entry
from mainstem.log.reader import LogReader
from mainstem.log.restore import restore
from mainstem.log.salvage import Salvage, write_parquet
from mainstem.registry import compatibility
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.disk import BudgetDisk, FailingDisk
from mainstem.transport.port import ColdFile, ColdPlan, EraseKeyCall
from tests.unit.log.keeping import DAY, HOUR, SECOND_US, Keeping, marker, pass_time, set_barrier
from tests.unit.log.typed import Rows, make_rows

ALL_US = 1 << 60


@pytest.fixture
def keeping(tmp_path):
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


def made(keeping: Keeping, stream: int, before_us: int = ALL_US, bytes_min: int = 1) -> tuple[ColdPlan, list[ColdFile]]:
    """The cold files of a stream, written and not yet swapped in."""
    plan = keeping.log.cooling.plan(keeping.row(stream), before_us, bytes_min)
    maker = Cooler(keeping.log.ledger, keeping.log._folder.blocks, keeping.log.schemas.get, keeping.clock)
    return plan, [file for task in plan.tasks for file in maker.make(plan, task)]


def cool(keeping: Keeping, stream: int, before_us: int = ALL_US, bytes_min: int = 1) -> list[ColdFile]:
    files = made(keeping, stream, before_us, bytes_min)[1]
    for file in files:
        keeping.log.cooling.commit(file)
    return files


def cold_path(keeping: Keeping, entry: Entry | ColdFile) -> Path:
    return keeping.path / "blocks" / f"{entry.block:016d}.parquet"


def cold_files(keeping: Keeping) -> set[str]:
    """Those that are swapped in, and parts."""
    return {path.name for path in (keeping.path / "blocks").iterdir() if path.suffix in (".parquet", ".part")}


def fill(keeping: Keeping, stream: int, flushes: int = 50, *, first: int = 0, shard: int = 0) -> None:
    chance = random.Random(flushes + first)
    for number in range(first, first + flushes):
        pairs = [
            (b"k%03d" % chance.randrange(100) if chance.random() < 0.9 else None, marker(number * 10 + index, 40))
            for index in range(10)
        ]
        keeping.write(stream, *pairs, (b"k%03d" % chance.randrange(100), None), shard=shard)
        keeping.clock.advance(1)


# What is in a file.


def test_a_reader_sees_the_same_before_and_after(keeping):
    stream = keeping.create()
    fill(keeping, stream)
    seen = keeping.read(stream)
    (file,) = cool(keeping, stream)
    (entry,) = keeping.entries(stream)
    assert (entry.base, entry.end, entry.count, entry.block) == (0, 550, 550, file.block)
    assert is_cold(entry.block)
    assert keeping.read(stream) == seen
    assert keeping.read(stream, cold=False) == seen
    assert keeping.rebuilt() == [seen]
    fill(keeping, stream, 3, first=50)
    after = keeping.read(stream)
    assert {offset: pair for offset, pair in after.items() if offset < 550} == seen
    keeping.reopen()
    assert keeping.read(stream) == after


def test_any_reader_of_parquet_reads_the_file(keeping):
    """It begins and ends as a Parquet file does; its rows are sorted by key, and its metadata says so."""
    stream = keeping.create()
    fill(keeping, stream)
    seen = keeping.read(stream)
    (file,) = cool(keeping, stream)
    data = cold_path(keeping, file).read_bytes()
    assert data[:4] == data[-4:] == b"PAR1"
    table = pq.read_table(cold_path(keeping, file))
    rows = table.to_pylist()
    assert {row["_offset"]: (row["key"], row["value"]) for row in rows} == seen
    assert [row["key"] for row in rows if row["key"] is not None] == sorted(
        row["key"] for row in rows if row["key"] is not None
    )
    keys = [(row["key"] is None, row["key"] or b"", row["_offset"]) for row in rows]
    assert keys == sorted(keys)
    group = pq.ParquetFile(cold_path(keeping, file)).metadata.row_group(0)
    names = [group.column(sorting.column_index).path_in_schema for sorting in group.sorting_columns]
    assert names == ["key", "_offset"]


def test_rows_of_a_schema_keep_their_types(keeping):
    rows, chance = Rows(keeping), random.Random(1)
    for _ in range(20):
        rows.write(*make_rows(chance, 30))
    rows.write_tombstones(b"1", b"2")
    rows.set_second()
    for _ in range(20):
        rows.write(*make_rows(chance, 30))
    seen = rows.read()
    assert len(cool(keeping, rows.stream)) == 3
    assert all(is_cold(entry.block) for entry in rows.entries())
    assert rows.read() == seen
    keeping.reopen(without_ledger=True)
    assert rows.read() == seen


def test_only_what_is_old_and_enough_is_cooled(keeping):
    stream = keeping.create(shards=2)
    fill(keeping, stream, 20)
    middle_us = keeping.clock.now_us()
    fill(keeping, stream, 20, first=20)
    fill(keeping, stream, 1, first=40, shard=1)
    assert not keeping.log.cooling.plan(keeping.row(stream), ALL_US, MIB).tasks
    (file,) = cool(keeping, stream, middle_us, bytes_min=2_000)
    assert (file.shard, file.base, file.end) == (0, 0, 220)
    assert [is_cold(entry.block) for entry in keeping.entries(stream)] == [True, *[False] * 20]
    # What is cold stays as it is; the rest follows when it is old.
    (file,) = cool(keeping, stream, bytes_min=2_000)
    assert (file.shard, file.base, file.end) == (0, 220, 440)
    assert not cool(keeping, stream, bytes_min=2_000)


def test_a_file_stands_on_one_side_of_a_barrier(keeping, monkeypatch):
    stream = keeping.create()
    fill(keeping, stream, 12)
    seen = keeping.read(stream)
    set_barrier(keeping, monkeypatch, stream, 110)
    files = cool(keeping, stream)
    assert [(file.base, file.end) for file in files] == [(0, 110), (110, 132)]
    assert keeping.read(stream) == seen


def test_a_file_over_a_barrier_is_refused(keeping, monkeypatch):
    stream = keeping.create()
    fill(keeping, stream, 12)
    seen = keeping.read(stream)
    _, (file,) = made(keeping, stream)
    set_barrier(keeping, monkeypatch, stream, 110)
    with pytest.raises(Refused, match="barrier"):
        keeping.log.cooling.commit(file)
    assert not cold_files(keeping)
    assert keeping.read(stream) == seen


def test_files_are_bounded(keeping, monkeypatch):
    gathered = cold_plan.gathered
    monkeypatch.setattr(cold_maker, "gathered", lambda entries, bytes_min: gathered(entries, bytes_min, 4_000))
    stream = keeping.create()
    fill(keeping, stream)
    seen = keeping.read(stream)
    files = cool(keeping, stream)
    assert len(files) > 3
    assert [file.base for file in files[1:]] == [file.end for file in files[:-1]]
    assert keeping.read(stream) == seen


# Others meanwhile.


def test_readers_read_while_entries_are_swapped(keeping):
    stream = keeping.create()
    fill(keeping, stream, 100)
    seen = keeping.read(stream)
    over, wrong, rounds = threading.Event(), [], []

    def reads() -> None:
        while not over.is_set():
            if keeping.read(stream) != seen:
                wrong.append(1)
            rounds.append(1)

    reader = threading.Thread(target=reads)
    reader.start()
    try:
        for before in range(10, 110, 10):
            cool(keeping, stream, keeping.clock.now_us() - (100 - before) * SECOND_US)
    finally:
        over.set()
        reader.join()
    assert rounds
    assert not wrong
    assert keeping.read(stream) == seen


def test_what_others_have_changed_is_not_swapped(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    _, (file,) = made(keeping, stream)
    keeping.log.upkeep.erase(keeping.row(stream), b"k001")
    seen = keeping.read(stream)
    with pytest.raises(Refused, match="replaced by others"):
        keeping.log.cooling.commit(file)
    assert cold_files(keeping) == set()
    assert keeping.read(stream) == seen
    with pytest.raises(InvalidRequest, match="no cold file"):
        keeping.log.cooling.commit(file)


def test_a_file_that_is_not_what_was_planned_is_refused(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    seen = keeping.read(stream)
    _, (file,) = made(keeping, stream)
    part = keeping.path / "blocks" / f"{file.block:016d}-{file.part}.part"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 4
    part.write_bytes(content)
    with pytest.raises(InvalidRequest, match="not what was written"):
        keeping.log.cooling.commit(file)
    assert not part.exists()
    _, (file,) = made(keeping, stream)
    keeping.reopen()
    with pytest.raises(Refused, match="not planned by this process"):
        keeping.log.cooling.commit(file)
    assert cold_files(keeping) == set()
    assert keeping.read(stream) == seen


def test_a_task_that_is_tried_again_does_not_write_over_the_first_try(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    seen = keeping.read(stream)
    plan, (file,) = made(keeping, stream)
    maker = Cooler(keeping.log.ledger, keeping.log._folder.blocks, keeping.log.schemas.get, keeping.clock)
    (again,) = maker.make(plan, plan.tasks[0])
    assert again.block == file.block
    assert again.part != file.part
    keeping.log.cooling.commit(file)
    with pytest.raises(Refused, match="there already"):
        keeping.log.cooling.commit(again)
    for word in ("0" * 16, "../../../etc/passwd", ""):
        with pytest.raises(InvalidRequest, match="no cold file"):
            keeping.log.cooling.commit(msgspec.structs.replace(file, part=word))
    keeping.log.cooling.abandon(plan.tasks[0].block)
    assert cold_files(keeping) == {f"{file.block:016d}.parquet"}
    assert keeping.read(stream) == seen


def test_numbers_are_never_given_twice_whatever_the_clock_says(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    (first,) = cool(keeping, stream)
    fill(keeping, stream, 5, first=5)
    keeping.reopen()
    keeping.clock = keeping.log.clock = SimulatedClock(keeping.clock.now_us() - 10**12)
    keeping.log.cooling._clock = keeping.clock
    (second,) = cool(keeping, stream)
    assert second.block > first.block


def test_an_abandoned_task_leaves_nothing(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    plan, _ = made(keeping, stream)
    assert cold_files(keeping)
    keeping.log.cooling.abandon(plan.tasks[0].block)
    assert not cold_files(keeping)
    # Of who was killed the next plan for the stream finds it, or after a day any other.
    _, (file,) = made(keeping, stream)
    keeping.log.cooling.plan(keeping.row(stream), 0)
    assert not cold_files(keeping)
    with pytest.raises(Refused, match="plan again"):
        keeping.log.cooling.commit(file)
    made(keeping, stream)
    other = keeping.create("other")
    keeping.log.cooling.plan(keeping.row(other), 0)
    assert cold_files(keeping)
    keeping.clock.advance(DAY)
    keeping.log.cooling.plan(keeping.row(other), 0)
    assert not cold_files(keeping)


def test_a_file_that_finds_no_room_for_its_commit_is_gone(tmp_path):
    """The disk is full to the last byte when a file is to be swapped in: nothing has happened, and the bytes of the
    file are free at once. Later the same records are planned anew."""
    disk = BudgetDisk(free=1 << 30)
    keeping = Keeping(tmp_path / "data", disk=disk)
    try:
        stream = keeping.create()
        fill(keeping, stream)
        seen = keeping.read(stream)
        (file,) = made(keeping, stream)[1]
        disk.free = 0
        with pytest.raises(DiskFull):
            keeping.log.cooling.commit(file)
        assert cold_files(keeping) == set()
        assert disk.free >= file.bytes
        assert not any(is_cold(entry.block) for entry in keeping.entries(stream))
        with pytest.raises(InvalidRequest, match="there is no cold file"):
            keeping.log.cooling.commit(file)
        disk.free = 1 << 30
        keeping.clock.advance(60)
        assert len(cool(keeping, stream)) == 1
        assert keeping.read(stream) == seen
    finally:
        keeping.log.close()


def test_a_file_whose_commit_has_no_known_end_is_kept_until_the_next_start(tmp_path):
    """The disk fails after the flush was written: it may be durable, and here it is."""
    disk = FailingDisk(at=0, kinds=("write",), leaves="all")
    keeping = Keeping(tmp_path / "data", disk=disk)
    stream = keeping.create()
    fill(keeping, stream)
    seen = keeping.read(stream)
    (file,) = made(keeping, stream)[1]
    disk._at = len(disk.calls) + 1
    with pytest.raises(FolderUnusable):
        keeping.log.cooling.commit(file)
    assert cold_files(keeping) == {cold_path(keeping, file).name}
    keeping.reopen()
    try:
        assert [entry.block for entry in keeping.entries(stream)] == [file.block]
        assert keeping.read(stream) == seen
    finally:
        keeping.log.close()


def test_what_an_erasure_overtakes_goes_with_it(keeping):
    stream = keeping.create()
    fill(keeping, stream, 5)
    made(keeping, stream)
    administration = Administration(keeping.log, check_schema=compatibility.check)
    administration.handle(EraseKeyCall("orders", b"k001"))
    assert not cold_files(keeping)


def test_another_process_makes_the_files(keeping):
    stream = keeping.create()
    fill(keeping, stream)
    seen = keeping.read(stream)
    plan = keeping.log.cooling.plan(keeping.row(stream), ALL_US, 1)
    with open_cooler(Path(plan.folder), plan.log) as maker:
        files = [file for task in plan.tasks for file in maker.make(plan, task)]
    for file in files:
        keeping.log.cooling.commit(file)
    assert all(is_cold(entry.block) for entry in keeping.entries(stream))
    assert keeping.read(stream) == seen


# What becomes of files.


def test_an_erased_key_goes_from_cold_files_too(keeping):
    stream = keeping.create()
    fill(keeping, stream)
    secret = marker(7_000, 500)
    keeping.write(stream, (b"secret", secret), (b"other", b"v"))
    (file,) = cool(keeping, stream)
    keeping.collect()
    assert secret in pq.read_table(cold_path(keeping, file)).column("value").to_pylist()
    seen = {offset: pair for offset, pair in keeping.read(stream).items() if pair[0] != b"secret"}
    assert keeping.log.upkeep.erase(keeping.row(stream), b"secret") == 1
    assert keeping.read(stream) == seen
    pass_time(keeping, HOUR)
    assert not keeping.on_disk(secret)
    assert not cold_files(keeping)
    assert keeping.read(stream) == seen
    assert keeping.rebuilt() == [seen]


def test_retention_lets_cold_files_go(keeping):
    stream = keeping.create(retention_us=round(10 * DAY * SECOND_US))
    fill(keeping, stream)
    cool(keeping, stream)
    keeping.clock.advance(11 * DAY)
    keeping.write(stream, (b"k", b"new"))
    keeping.collect()
    assert not cold_files(keeping)
    assert list(keeping.read(stream)) == [550]
    assert keeping.rebuilt() == [keeping.read(stream)]


def test_the_blocks_of_cooled_records_are_freed(keeping):
    stream = keeping.create()
    fill(keeping, stream, 300)
    before = set(keeping.files())
    seen = keeping.read(stream)
    cool(keeping, stream)
    keeping.roll()
    keeping.collect()
    assert not before.intersection(keeping.files())
    assert keeping.read(stream) == seen
    keeping.reopen()
    assert keeping.read(stream) == seen


def test_a_compacted_stream_is_compacted_in_cold_files(keeping):
    stream = keeping.create(cleanup="compact")
    for number in range(30):
        keeping.write(stream, *((b"k%d" % (record % 7), b"%d" % number) for record in range(10)))
        if number == 20:
            cool(keeping, stream)
    keeping.keep()
    keeping.keep(HOUR)
    assert keeping.read(stream) == {290 + index: (b"k%d" % (index % 7), b"29") for index in range(3, 10)}
    keeping.collect()
    assert not cold_files(keeping)


def test_a_backup_has_cold_files(keeping, tmp_path):
    stream = keeping.create()
    fill(keeping, stream, 20)
    cool(keeping, stream)
    back_up(keeping.path, tmp_path / "backup")
    fill(keeping, stream, 20, first=20)
    cool(keeping, stream)
    seen = keeping.read(stream)
    # Only what is new is copied: a cold file, the newest block, the ledger.
    report = back_up(keeping.path, tmp_path / "backup")
    assert report.copied_files <= 3
    keeping.log.close()
    restore(tmp_path / "backup", tmp_path / "restored")
    other = Keeping(tmp_path / "restored")
    try:
        assert [is_cold(entry.block) for entry in other.entries(stream)] == [True, True]
        assert other.read(stream) == seen
    finally:
        other.log.close()
    (name, *_) = sorted(cold_files(keeping))
    path = keeping.path / "blocks" / name
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    with pytest.raises(FolderUnusable, match=name):
        back_up(keeping.path, tmp_path / "another")


# Damage.


def test_every_flipped_bit_is_told_and_never_returned(keeping):
    stream = keeping.create()
    fill(keeping, stream, 10)
    seen = keeping.read(stream)
    cool(keeping, stream)
    fill(keeping, stream, 1, first=90)
    entry = keeping.entries(stream)[0]
    path = cold_path(keeping, entry)
    sound = path.read_bytes()
    chance = random.Random(3)
    places = sorted({*range(0, 320, 7), *(chance.randrange(len(sound)) for _ in range(150)), len(sound) - 1})
    for place in places:
        content = bytearray(sound)
        content[place] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        reader = LogReader(keeping.log.ledger, keeping.log._folder.blocks)
        with pytest.raises(DataLoss) as told:
            reader.read(keeping.row(stream), 0, 3)
        assert (told.value.first, told.value.last) == (3, 109), place
        assert path.name in str(told.value), place
        assert reader.read(keeping.row(stream), 0, 110)
    path.write_bytes(sound)
    assert {offset: pair for offset, pair in keeping.read(stream).items() if offset < 110} == seen


def test_a_cut_or_missing_file_is_told(keeping):
    stream = keeping.create()
    fill(keeping, stream, 10)
    cool(keeping, stream)
    (entry,) = keeping.entries(stream)
    path = cold_path(keeping, entry)
    sound = path.read_bytes()
    for length in (0, 60, 300, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(DataLoss, match="0 to 109"):
            LogReader(keeping.log.ledger, keeping.log._folder.blocks).read(keeping.row(stream), 0, 0)
    keeping.log._folder.blocks.remove(entry.block)
    with pytest.raises(DataLoss, match="missing"):
        LogReader(keeping.log.ledger, keeping.log._folder.blocks).read(keeping.row(stream), 0, 0)


def test_the_doctor_names_a_damaged_file(keeping):
    stream = keeping.create()
    fill(keeping, stream, 10)
    cool(keeping, stream)
    keeping.log.close()
    assert examine(keeping.path, deep=True).worst < Severity.DAMAGE
    (name,) = cold_files(keeping)
    path = keeping.path / "blocks" / name
    sound = path.read_bytes()
    for place in (5, 100, len(sound) // 2, len(sound) - 5):
        content = bytearray(sound)
        content[place] ^= 1
        path.write_bytes(content)
        told = [found for found in examine(keeping.path, deep=True).findings if found.severity == Severity.DAMAGE]
        assert [name in found.file for found in told[:1]] == [True], place
    path.write_bytes(sound[:-20])
    assert examine(keeping.path).worst == Severity.DAMAGE
    path.unlink()
    assert "block-missing" in {found.code for found in examine(keeping.path).findings}


def test_a_file_is_salvaged_without_a_ledger(keeping, tmp_path):
    stream = keeping.create()
    fill(keeping, stream, 10)
    seen = keeping.read(stream)
    (file,) = cool(keeping, stream)
    alone = tmp_path / "alone.parquet"
    shutil.copy(cold_path(keeping, file), alone)
    salvage = Salvage(alone)
    try:
        report = write_parquet(salvage, tmp_path / "out.parquet")
    finally:
        salvage.close()
    assert (report.records, report.damaged_count) == (110, 0)
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert {row["offset"]: (row["key"], row["value"]) for row in rows} == seen
