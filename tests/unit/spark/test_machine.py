"""What a process has of its machine: no more than its container, its service or `taskset` gives it."""

import os
from pathlib import Path

import pytest

from mainstem.spark import machine

MIB = 1 << 20


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000"}, 4),
        ({"cpu.max": "200000 100000"}, 2),
        # As the JVM has it.
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "900000 100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"system.slice/lake.service/cpu.max": "100000 100000"}, 1),
        # A limit holds for all that is below it.
        ({"system.slice/cpu.max": "200000 100000", "system.slice/lake.service/cpu.max": "max 100000"}, 2),
        ({"system.slice/other.service/cpu.max": "100000 100000"}, 4),
    ],
)
def test_cores(tmp_path, files, cores):
    own = put(tmp_path, {"own": "4:memory:/elsewhere\n0::/system.slice/lake.service"}) / "own"
    assert machine.cores(put(tmp_path / "cgroup", files), own) == cores


@pytest.mark.parametrize(
    ("files", "mib"),
    [
        ({"memory.max": str(512 * MIB)}, 512),
        ({"memory/memory.limit_in_bytes": str(300 * MIB)}, 300),
        ({"memory.max": "max", "system.slice/lake.service/memory.max": str(200 * MIB)}, 200),
        ({"system.slice/memory.max": str(100 * MIB), "system.slice/lake.service/memory.max": str(200 * MIB)}, 100),
        ({}, None),
        ({"memory.max": "max"}, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory(tmp_path, files, mib):
    own = put(tmp_path, {"own": "0::/system.slice/lake.service"}) / "own"
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = machine.memory_bytes(put(tmp_path / "cgroup", files), own)
    assert found == (there if mib is None else mib * MIB)


def test_where_there_are_no_cgroups(tmp_path):
    assert machine.cores(tmp_path / "none", tmp_path / "none") == 4
    assert machine.cores() >= 1
    assert machine.memory_bytes() > MIB
