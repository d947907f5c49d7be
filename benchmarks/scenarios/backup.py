"""How long a backup takes: the first of a large folder, the next one when little is new, and the way back."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import product
from benchmarks.child import Talk
from benchmarks.harness import BenchmarkError, check, run_child, scratch
from benchmarks.scenarios.base import Metrics, Scenario, Settings, Target, ours

FOLDER_BYTES = 5_000_000_000
RECORD_BYTES = 100_000
NEW_RECORDS = 100


def run_first(settings: Settings) -> Metrics:
    folder = _large_folder(settings.data, settings.count(FOLDER_BYTES))
    with scratch(settings.data, "backup") as place:
        took = _timed("backup", place / "saved", folder)
        size = _size(place / "saved")
    return {"seconds": took, "mb_per_s": size / took / 1e6}


def run_next(settings: Settings) -> Metrics:
    folder = _large_folder(settings.data, settings.count(FOLDER_BYTES))
    with scratch(settings.data, "backup") as place:
        _timed("backup", place / "saved", folder)
        run_child("benchmarks.scenarios.backup:write", folder=str(folder), count=NEW_RECORDS)
        took = _timed("backup", place / "saved", folder)
    return {"seconds": took}


def run_restore(settings: Settings) -> Metrics:
    folder = _large_folder(settings.data, settings.count(FOLDER_BYTES))
    with scratch(settings.data, "backup") as place:
        _timed("backup", place / "saved", folder)
        size = _size(place / "saved")
        took = _timed("restore", place / "saved", place / "back")
        shutil.rmtree(place / "saved")
    return {"seconds": took, "mb_per_s": size / took / 1e6}


def write(talk: Talk, folder: str, count: int) -> dict[str, int]:
    """Records that no compression makes smaller, straight into a folder."""
    import mainstem

    with mainstem.open(folder) as hub, hub.producer(compression=None) as producer:
        hub.streams.create(product.STREAM, exist_ok=True)
        for _ in range(count):
            producer.send(product.STREAM, os.urandom(RECORD_BYTES))
    return {"records": count}


def _timed(command: str, backup: Path, data: Path) -> float:
    """Seconds of the whole command, from the start of its process to its end."""
    start = time.perf_counter()
    program = [*product.command(), command, str(backup), "--data", str(data)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"mainstem {command} failed: {done.stderr.strip()}")
    return time.perf_counter() - start


def _size(folder: Path) -> int:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    check(size > 0, f"nothing is in {folder}")
    return size


@functools.cache
def _large_folder(data: Path, size: int) -> Path:
    """Built once an invocation; removed when the interpreter ends."""
    folder = tempfile.TemporaryDirectory(prefix="bench-large-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(folder)
    path = Path(folder.name) / "data"
    run_child("benchmarks.scenarios.backup:write", timeout_s=1_800, folder=str(path), count=size // RECORD_BYTES)
    return path


_KEPT: list[tempfile.TemporaryDirectory[str]] = []

SCENARIO = Scenario(
    name="backup",
    title=f"Backup and restore of a folder of {FOLDER_BYTES / 1e9:.0f} GB",
    cases=(
        ours("first backup", run_first, "the whole command, into an empty folder on the same disk, durable"),
        ours("next backup", run_next, f"into the same folder, {NEW_RECORDS * RECORD_BYTES / 1e6:.0f} MB are new"),
        ours("restore", run_restore, "every byte checked, durable, a new epoch begun"),
    ),
    shown=("mb_per_s", "seconds"),
    targets=(
        Target("first backup", "mb_per_s", 200),
        Target("next backup", "seconds", 2, at_most=True),
    ),
    rounds_max=3,
)
