"""Crash clones: what may survive a power cut, and only that."""

import random

from mainstem.testing.crash import (
    LEDGER_FAULTS,
    PAGE_BYTES,
    PIECES_EXHAUSTIVE_MAX,
    SUBSETS_SAMPLED,
    CrashPoint,
    LedgerFiles,
    RecordingDisk,
)

RNG = random.Random(7)


def recorded(folder, size=3 * PAGE_BYTES):
    """A block that is created, gets a header and then `size` bytes; the points of these operations."""
    (folder / "blocks").mkdir(parents=True)
    disk = RecordingDisk(folder)
    file = disk.create(folder / "blocks" / "1.block")
    file.write_durably([b"header"], 0)
    file.write_durably([b"x" * size], 6)
    file.close()
    return disk.points


def clones(point, place):
    """The content of the block in every clone of a point, None where it is absent."""
    for number, kept in enumerate(point.subsets(RNG)):
        folder = place / str(number)
        point.build(folder, kept, LedgerFiles(), random.Random(2))  # this seed lengthens no file
        path = folder / "blocks" / "1.block"
        yield path.read_bytes() if path.exists() else None


def test_a_new_file_is_there_or_not(tmp_path):
    created, *_ = recorded(tmp_path / "data")
    assert list(clones(created, tmp_path / "clones")) == [None, b""]


def test_a_small_write_is_there_or_not(tmp_path):
    _, header, _ = recorded(tmp_path / "data")
    assert list(clones(header, tmp_path / "clones")) == [b"", b"header"]


def test_any_pages_of_a_large_write_may_be_there(tmp_path):
    *_, write = recorded(tmp_path / "data")
    # The bytes begin behind the header, so they touch one page more.
    assert [len(piece.data) for piece in write.pieces] == [PAGE_BYTES - 6, PAGE_BYTES, PAGE_BYTES, 6]
    found = list(clones(write, tmp_path / "clones"))
    assert len(set(found)) == 16
    assert all(content.startswith(b"header") for content in found)
    assert b"header" in found
    assert b"header" + b"x" * 3 * PAGE_BYTES in found
    hole = b"header" + bytes(PAGE_BYTES - 6) + b"x" * PAGE_BYTES
    assert hole in found


def test_many_pieces_are_sampled(tmp_path):
    *_, write = recorded(tmp_path / "data", size=(PIECES_EXHAUSTIVE_MAX + 5) * PAGE_BYTES)
    subsets = list(write.subsets(RNG))
    assert len(subsets) == SUBSETS_SAMPLED
    assert not any(subsets[0])
    assert all(subsets[1])


def test_a_file_is_renamed_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "data"
    (folder / "snapshots").mkdir(parents=True)
    disk = RecordingDisk(folder)
    (folder / "snapshots" / "a.part").write_bytes(b"y" * 5 * PAGE_BYTES)
    disk.replace(folder / "snapshots" / "a.part", folder / "snapshots" / "a.db")
    for number, kept in enumerate(disk.points[0].subsets(RNG)):
        clone = tmp_path / "clones" / str(number)
        disk.points[0].build(clone, kept, LedgerFiles(), RNG)
        whole = clone / "snapshots" / "a.db"
        assert not whole.exists() or whole.read_bytes() == b"y" * 5 * PAGE_BYTES
        assert whole.exists() == kept[-1]


def test_what_was_there_before_is_durable(tmp_path):
    recorded(tmp_path / "data")
    disk = RecordingDisk(tmp_path / "data")
    disk.open(tmp_path / "data" / "blocks" / "1.block").sync()
    (content,) = clones(disk.points[0], tmp_path / "clones")
    assert content == b"header" + b"x" * 3 * PAGE_BYTES


def test_faults_of_the_ledger_need_no_ledger():
    point = CrashPoint(0, "", 0, {}, (), {}, [LedgerFiles(), LedgerFiles(b"db" * 4_096, b"wal" * 9_000, b"shm")])
    for fault in LEDGER_FAULTS.values():
        for _ in range(20):
            assert isinstance(fault(point, RNG), LedgerFiles)
    empty = CrashPoint(0, "", 0, {}, (), {}, [LedgerFiles()])
    for fault in LEDGER_FAULTS.values():
        fault(empty, RNG)
