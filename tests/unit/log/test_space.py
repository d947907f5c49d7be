"""Room on the disk: when appends are refused and go on, the ballast, and how long the room will last."""

import logging
from pathlib import Path

import pytest

from mainstem.core.limits import MIB
from mainstem.log.space import Space
from mainstem.testing.clock import SimulatedClock
from mainstem.testing.disk import BudgetDisk

GIB = 1024 * MIB


class CountingDisk(BudgetDisk):
    """A counted disk that also counts how often it is asked."""

    asked = 0

    def free_bytes(self, path: Path) -> int:
        self.asked += 1
        return super().free_bytes(path)


class Rig:
    """A space of 256 MiB and a ballast of 64 MiB on a disk of 100 GiB, unless told otherwise."""

    def __init__(self, path: Path, free: int = 10 * GIB, total: int = 100 * GIB, ballast: int = 64 * MIB) -> None:
        self.path = path
        self.clock = SimulatedClock()
        self.disk = CountingDisk(free=free, total=total)
        self.space = Space(path, self.disk, self.clock, 256 * MIB, ballast)

    def later(self, seconds: float = 1.0) -> bool:
        self.clock.advance(seconds)
        return self.space.look()

    @property
    def has_ballast(self) -> bool:
        return (self.path / "ballast").exists()


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_below_the_watermark_the_log_is_full_and_well_above_it_no_longer(rig):
    assert not rig.space.is_full
    rig.disk.free = 256 * MIB - 1
    assert rig.later()
    rig.disk.free = 256 * MIB + 1
    assert rig.later()  # at the edge it would come and go
    rig.disk.free = 272 * MIB
    assert not rig.later()
    rig.disk.free = 256 * MIB
    assert not rig.later()


def test_it_is_logged_once_that_the_disk_is_full_and_once_that_it_is_not(rig, caplog):
    caplog.set_level(logging.WARNING, "mainstem.log")
    for free in (MIB, 2 * MIB, 3 * MIB, GIB, GIB):
        rig.disk.free = free
        rig.later()
    assert [record.getMessage().split(" reason=")[0] for record in caplog.records] == [
        "disk full: appends are refused until there is room",
        f"appends go on seconds=3.0 free_bytes={1 << 30}",
    ]


def test_a_refusal_says_how_much_is_free_where_and_what_to_do(rig):
    rig.disk.free = 100 * MIB
    rig.later()
    text = str(rig.space.refusal())
    for part in ("100.0 MiB are free", str(rig.path), "272.0 MiB", "free_bytes_min", "trim", "goes on by itself"):
        assert part in text
    assert rig.space.refused == 1


def test_the_file_system_is_asked_now_and_then_only(rig):
    before = rig.disk.asked
    for _ in range(100):
        rig.space.look()
    assert rig.disk.asked == before
    rig.clock.advance(0.1)
    for _ in range(100):
        rig.space.look()
    assert rig.disk.asked == before + 1
    rig.space.wrote(8 * MIB)
    rig.space.look()
    assert rig.disk.asked == before + 2


def test_on_a_small_file_system_watermark_and_ballast_are_parts_of_it(tmp_path):
    rig = Rig(tmp_path, free=64 * MIB, total=64 * MIB)
    assert rig.space.watermark == 8 * MIB
    assert (tmp_path / "ballast").stat().st_size == 2 * MIB
    assert not rig.space.is_full


def test_the_ballast_is_really_allocated_and_given_up_once(rig):
    assert (rig.path / "ballast").stat().st_blocks * 512 >= 64 * MIB
    assert rig.disk.free == 10 * GIB - 64 * MIB
    assert rig.space.release_ballast()
    assert not rig.has_ballast
    assert rig.disk.free == 10 * GIB
    assert not rig.space.release_ballast()


def test_the_ballast_is_made_anew_when_there_is_room_and_not_before(rig):
    rig.disk.free = 0
    rig.later()
    rig.space.release_ballast()
    rig.later()
    assert not rig.has_ballast
    # Its room is not for appends.
    rig.disk.free = 399 * MIB
    assert rig.later()
    assert not rig.has_ballast
    rig.disk.free = 400 * MIB
    assert not rig.later()
    assert rig.has_ballast


def test_the_ballast_of_an_earlier_life_is_used(tmp_path):
    (tmp_path / "ballast").write_bytes(bytes(100))
    rig = Rig(tmp_path, free=0)
    assert rig.space.is_full
    assert rig.space.release_ballast()
    assert not rig.has_ballast


def test_without_a_ballast_there_is_none(tmp_path):
    rig = Rig(tmp_path, ballast=0)
    assert not rig.has_ballast
    assert not rig.space.release_ballast()


def test_a_ballast_that_does_not_fit_is_no_harm(tmp_path, monkeypatch, caplog):
    def refuse(self: BudgetDisk, path: Path, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BudgetDisk, "allocate", refuse)
    rig = Rig(tmp_path)
    for _ in range(50):
        assert not rig.later()
    assert not rig.space.release_ballast()
    assert caplog.text.count("cannot be made") == 1


def test_a_write_that_finds_no_room_makes_the_log_full_however_much_seems_free(rig):
    """As with a quota. It is tried again after a while, each time in a row after twice as long, at most 2 s."""
    pauses = []
    for _ in range(8):
        rig.space.met_full()
        begun = rig.clock.monotonic()
        while rig.space.look():
            rig.clock.advance(0.05)
        pauses.append(round(rig.clock.monotonic() - begun, 2))
        assert rig.space.is_told_full
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0], abs=0.11)
    assert "a quota" in str(rig.space.refusal())
    rig.space.wrote(100)
    assert not rig.space.is_told_full
    rig.space.met_full()
    rig.clock.advance(0.1)
    assert not rig.space.look()


def test_the_time_until_full_follows_the_last_minute(tmp_path):
    rig = Rig(tmp_path, ballast=0)
    assert rig.space.seconds_until_full is None
    for _ in range(100):
        rig.disk.free -= 10 * MIB
        rig.later()
    left = (rig.disk.free - 256 * MIB) / (10 * MIB)
    assert rig.space.seconds_until_full == pytest.approx(left)
    for _ in range(70):
        rig.later()
    assert rig.space.seconds_until_full is None
    rig.disk.free = MIB
    rig.later()
    assert rig.space.seconds_until_full == 0.0


def test_a_file_system_that_does_not_answer_changes_nothing(rig, monkeypatch):
    def fail(path: Path) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(rig.disk, "free_bytes", fail)
    assert not rig.later()
    assert rig.space.free == 10 * GIB - 64 * MIB
