"""The WAL's checksum chain, against files that SQLite itself wrote."""

import struct
from pathlib import Path

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.ledger import wal

PAGE = 4096
FRAME = wal.FRAME_HEADER_BYTES + PAGE


class Database:
    """A database in WAL mode that never checkpoints by itself; `wal` reads its log as it lies on disk."""

    def __init__(self, folder: Path, page_bytes: int = PAGE) -> None:
        self.path = folder / "ledger.db"
        self.connection = apsw.Connection(str(self.path))
        self.frames = 0
        self.connection.pragma("page_size", page_bytes)
        self.connection.pragma("journal_mode", "wal")
        # In place of SQLite's own hook, which would checkpoint.
        self.connection.set_wal_hook(self._on_commit)
        self.connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, text)")

    def _on_commit(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        self.frames = frames
        return apsw.SQLITE_OK

    @property
    def log(self) -> Path:
        return Path(f"{self.path}-wal")

    def wal(self) -> bytes:
        return self.log.read_bytes()

    def commit(self, times: int = 1, text: str = "x" * 3000) -> None:
        for _ in range(times):
            self.connection.execute("INSERT INTO t(text) VALUES (?)", (text,))

    def restart(self) -> None:
        """Checkpoint everything, so that the next commit starts the WAL again from its first byte."""
        self.connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


@pytest.fixture
def database(tmp_path):
    database = Database(tmp_path)
    yield database
    database.connection.close()


def committed(data: bytes) -> list[int]:
    """The frames that end a commit, counted from 1, by the file's own words."""
    count = (len(data) - wal.HEADER_BYTES) // FRAME
    return [i + 1 for i in range(count) if struct.unpack_from(">I", data, wal.HEADER_BYTES + i * FRAME + 4)[0]]


def test_a_whole_wal_is_valid(database):
    database.commit(20)
    report = wal.verify(database.log)
    assert report.last_commit_frame == database.frames == (len(database.wal()) - 32) // FRAME
    assert report.damaged_at is None
    assert wal.verify(database.wal(), frames_expected=database.frames) == report


@pytest.mark.parametrize("page_bytes", [512, 1024, 8192, 65536])
def test_every_page_size(tmp_path, page_bytes):
    database = Database(tmp_path, page_bytes)
    database.commit(5, "y" * 10_000)
    report = wal.verify(database.log)
    assert report == wal.WalReport(database.frames, None)
    database.connection.close()


def test_chunks_make_no_difference(database, monkeypatch):
    database.commit(10)
    whole = wal.verify(database.log)
    monkeypatch.setattr(wal, "_CHUNK_BYTES", 3 * FRAME)
    assert wal.verify(database.log) == whole
    damaged = bytearray(database.wal())
    damaged[32 + 2 * FRAME + 100] ^= 1
    assert wal.verify(damaged).damaged_at == 32 + 2 * FRAME


def test_big_endian_checksums():
    """SQLite writes the order of its machine; this is what one on a big-endian machine would write."""
    page = bytes(range(256)) * 2
    header = struct.pack(">6I", 0x377F0683, 3_007_000, 512, 0, 7, 8)
    state = scalar_checksum(header, (0, 0), ">")
    data = header + struct.pack(">2I", *state)
    for number in (1, 2):
        head = struct.pack(">2I", number, number)
        state = scalar_checksum(head + page, state, ">")
        data += head + struct.pack(">4I", 7, 8, *state) + page
    assert wal.verify(data).last_commit_frame == 2


def scalar_checksum(data: bytes, state: tuple[int, int], order: str) -> tuple[int, int]:
    """The sum as SQLite's documentation gives it."""
    s0, s1 = state
    for x, y in struct.iter_unpack(order + "2I", data):
        s0 = (s0 + x + s1) & 0xFFFFFFFF
        s1 = (s1 + y + s0) & 0xFFFFFFFF
    return s0, s1


@given(st.binary(min_size=8, max_size=400).map(lambda data: data[: len(data) // 8 * 8]))
def test_the_weighted_sum_is_the_stepwise_sum(data):
    words = np.frombuffer(data, "<u4").astype(np.uint32)
    weighted = wal._contributions(words[None, :], wal._weights(len(words)))[0]
    assert tuple(weighted.tolist()) == scalar_checksum(data, (0, 0), "<")


# Damage


def test_every_kind_of_flip_behind_which_a_commit_lies_is_damage(database):
    database.commit(8)
    data = database.wal()
    last = committed(data)[-1]
    kinds = {
        "page number": 0,
        "commit": 4,
        "salt 1": 8,
        "salt 2": 13,
        "sum 0": 16,
        "sum 1": 23,
        "page": 24,
        "end": FRAME - 1,
    }
    for frame in range(last - 1):
        for kind, place in kinds.items():
            position = wal.HEADER_BYTES + frame * FRAME
            damaged = bytearray(data)
            damaged[position + place] ^= 0x10
            report = wal.verify(damaged)
            assert report.damaged_at == position, (frame, kind)
            assert report.last_commit_frame <= frame


def test_a_flip_in_the_last_frame_is_damage_for_who_knows_better(database):
    database.commit(4)
    data = database.wal()
    last = committed(data)[-1]
    position = wal.HEADER_BYTES + (last - 1) * FRAME
    for place in range(0, FRAME, 97):
        damaged = bytearray(data)
        damaged[position + place] ^= 1
        report = wal.verify(damaged)
        assert report.damaged_at is None
        assert report.last_commit_frame < last
        assert wal.verify(damaged, frames_expected=last).damaged_at == position


def test_a_flip_in_the_header_is_damage(database):
    database.commit()
    data = database.wal()
    for place in range(wal.HEADER_BYTES):
        damaged = bytearray(data)
        damaged[place] ^= 1
        report = wal.verify(damaged)
        assert report == wal.WalReport(0, 0)


def test_sqlite_drops_the_commits_whose_loss_is_reported(tmp_path, database):
    """The reason for all this: SQLite opens the damaged pair of files without a word and with fewer rows."""
    database.commit(10)
    damaged = bytearray(database.wal())
    position = wal.HEADER_BYTES + 5 * FRAME
    damaged[position + 200] ^= 1
    (tmp_path / "copy.db").write_bytes(database.path.read_bytes())
    (tmp_path / "copy.db-wal").write_bytes(damaged)
    copy = apsw.Connection(str(tmp_path / "copy.db"))
    assert copy.execute("SELECT count(*) FROM t").get < 10
    copy.close()
    assert wal.verify(damaged).damaged_at == position


def test_a_truncated_tail_keeps_what_is_whole(database):
    database.commit(6)
    data = database.wal()
    ends = committed(data)
    for length in range(wal.HEADER_BYTES, len(data), 509):
        report = wal.verify(data[:length])
        whole = (length - wal.HEADER_BYTES) // FRAME
        assert report == wal.WalReport(max([end for end in ends if end <= whole], default=0), None)
        expected = wal.verify(data[:length], frames_expected=ends[-1])
        assert expected.damaged_at == wal.HEADER_BYTES + whole * FRAME


def test_an_empty_wal_is_not_damage(tmp_path):
    for source in (b"", b"\0" * 31, tmp_path / "missing-wal"):
        report = wal.verify(source)
        assert report == wal.WalReport(0, None)
        assert wal.verify(source, frames_expected=1).damaged_at == 0


# What looks like damage and is not


def test_frames_from_before_a_restart_are_not_damage(database):
    database.commit(20)
    length = len(database.wal())
    database.restart()
    database.commit(2)
    assert len(database.wal()) == length
    report = wal.verify(database.log)
    assert report == wal.WalReport(database.frames, None, has_restarted=True)
    assert database.frames < 10


def test_damage_in_front_of_old_frames_is_still_found(database):
    database.commit(20)
    database.restart()
    database.commit(3)
    damaged = bytearray(database.wal())
    damaged[32 + FRAME + 500] ^= 4
    assert wal.verify(damaged).damaged_at == 32 + FRAME


def test_frames_of_a_rolled_back_transaction_are_not_damage(database):
    """A transaction larger than the page cache writes frames before it commits. They stay behind when it does not."""
    database.commit(2)
    database.connection.pragma("cache_size", 5)
    database.connection.execute("BEGIN")
    database.commit(100)
    database.connection.execute("ROLLBACK")
    assert wal.verify(database.log) == wal.WalReport(database.frames, None)
    database.commit(1)
    data = database.wal()
    report = wal.verify(data, frames_expected=database.frames)
    assert report.last_commit_frame == database.frames
    salts = data[16:24]
    assert data[wal.HEADER_BYTES + (database.frames + 2) * FRAME :][8:16] == salts, "the case was not made"
    assert report.damaged_at is None
