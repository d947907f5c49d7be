"""Snapshots of the ledger: taken while SQLite works on it, restored when it is gone."""

import os
from pathlib import Path

import pytest

from mainstem.log.disk import LocalDisk
from mainstem.log.log import Log
from mainstem.log.snapshots import Snapshots
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


def _locks(path: Path) -> list[list[str]]:
    inode = os.stat(path).st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return sorted(line.split()[1:4] for line in lines if f":{inode} " in line)
