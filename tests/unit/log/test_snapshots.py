"""Snapshots of the ledger: taken while SQLite works on it, restored when it is gone."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from mainstem.core.batch import Buffer
from mainstem.log.disk import LocalDisk, LocalFile
from mainstem.log.log import Log
from mainstem.log.snapshots import Snapshots
from mainstem.testing.disk import DiskLayer, FailingDisk
from tests.faults.reading import judge
from tests.faults.script import TINY, Script, State, play


def test_a_snapshot_leaves_sqlite_its_locks(tmp_path):
    """To close any file takes away the locks a process holds on it; SQLite's tell others that the ledger is in use."""
    if not Path("/proc/locks").exists():
        pytest.skip("the kernel does not list its locks; enable: run on Linux")
    log = Log(tmp_path / "data", TINY)
    play(log, Script(1, 10).steps, State())
    before = _locks(tmp_path / "data" / "ledger.db")
    snapshots = Snapshots(tmp_path / "data" / "snapshots", LocalDisk())
    snapshots.take(tmp_path / "data" / "ledger.db")
    assert before
    assert _locks(tmp_path / "data" / "ledger.db") == before
    log.close()
    snapshots.close()


def test_the_newest_two_are_kept_and_restored(tmp_path):
    script, state = Script(3, 120), State()
    log = Log(tmp_path / "data", TINY)
    play(log, script.steps, state)
    log.close()
    snapshots = Snapshots(tmp_path / "data" / "snapshots", LocalDisk())
    assert len(snapshots.numbers()) == 2
    assert snapshots.restore(tmp_path / "restored.db") == snapshots.numbers()[0]
    (tmp_path / "data" / "ledger.db").unlink()
    assert judge(tmp_path / "data", [state], go_on=True).wrong == []


def test_a_damaged_snapshot_is_passed_over(tmp_path):
    log = Log(tmp_path / "data", TINY)
    play(log, Script(3, 120).steps, State())
    log.close()
    snapshots = Snapshots(tmp_path / "data" / "snapshots", LocalDisk())
    newest, older = snapshots.numbers()
    content = bytearray(snapshots.path(newest).read_bytes())
    content[len(content) // 2] ^= 1
    snapshots.path(newest).write_bytes(content)
    assert snapshots.restore(tmp_path / "restored.db") == older


class UnreadableFile(LocalFile):
    """Opens, and gives nothing."""

    def read(self, position: int, length: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


class UnreadableDisk(LocalDisk):
    """A bad sector under one file."""

    def __init__(self, bad: Path) -> None:
        self._bad = bad

    def open(self, path: Path) -> LocalFile:
        return UnreadableFile(path, os.O_RDONLY) if path == self._bad else super().open(path)


def test_a_snapshot_that_cannot_be_read_is_passed_over(tmp_path):
    log = Log(tmp_path / "data", TINY)
    play(log, Script(3, 120).steps, State())
    log.close()
    newest, older = Snapshots(tmp_path / "data" / "snapshots", LocalDisk()).numbers()
    bad = tmp_path / "data" / "snapshots" / f"ledger-{newest:016d}.db"
    assert Snapshots(bad.parent, UnreadableDisk(bad)).restore(tmp_path / "restored.db") == older


def test_a_full_disk_is_no_damage_of_a_snapshot(tmp_path):
    """Passing over sound snapshots because their copy cannot be written would only make the rebuild longer."""
    log = Log(tmp_path / "data", TINY)
    play(log, Script(3, 120).steps, State())
    log.close()
    full = FailingDisk(at=1, error=errno.ENOSPC, kinds=("write",), leaves="part")
    with pytest.raises(OSError, match="No space left"):
        Snapshots(tmp_path / "data" / "snapshots", full).restore(tmp_path / "restored.db")


def test_a_snapshot_that_cannot_be_written_is_tried_again_later(tmp_path):
    """Nothing but the copy is missing: the log goes on, and what was begun is in nobody's way."""
    log = Log(tmp_path / "data", TINY, disk=NoRoomForSnapshot())
    state = State()
    play(log, Script(3, 120).steps, state)
    log.close()
    assert Snapshots(tmp_path / "data" / "snapshots", LocalDisk()).numbers()
    assert judge(tmp_path / "data", [state], go_on=True).wrong == []


class NoRoomForSnapshot(DiskLayer):
    """Full when the first snapshot is half written."""

    has_struck = False

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        if path.parent.name != "snapshots" or self.has_struck:
            super().write_new(path, pieces)
            return
        self.has_struck = True
        self.inner.write_new(path, [next(iter(pieces))[:100]])
        raise OSError(errno.ENOSPC, "No space left on device (injected)", str(path))


def _locks(path: Path) -> list[list[str]]:
    inode = os.stat(path).st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return sorted(line.split()[1:4] for line in lines if f":{inode} " in line)
