"""How long one waits: for the first record of a long stream, for a server to accept, for the import."""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import product
from benchmarks.child import Talk
from benchmarks.harness import BenchmarkError, check, run_child, scratch
from benchmarks.scenarios.base import Case, Metrics, Scenario, Settings, Target, ours

ENTRIES = 1_000_000
OPENS = 50
IMPORTS = 10
ENTRIES_BUILDER: str | None = "benchmarks.entries:build"
"""The child function ``module:function(talk, folder, stream, count)`` that makes a data folder with a stream of
``count`` entries, cheaper than by as many flushes of a server. None: the cases that need the folder are left out."""

IMPORT_PROGRAM = "import time; start = time.perf_counter(); import mainstem; print(time.perf_counter() - start)"


def run_first_record(settings: Settings) -> Metrics:
    with product.Server(_entries_folder(settings.data, settings.count(ENTRIES))) as server:
        waited = run_child("benchmarks.scenarios.open:first_records", url=server.url)["waited_ms"]
    return {"first_record_ms": statistics.median(waited)}


def first_records(talk: Talk, url: str) -> dict[str, list[float]]:
    import mainstem

    waited = []
    with mainstem.connect(url) as hub:
        for _ in range(OPENS):
            start = time.perf_counter()
            with hub.consumer(product.STREAM, start="earliest", follow=False) as consumer:
                record = next(iter(consumer))
                waited.append((time.perf_counter() - start) * 1e3)
            check(record.offset == 0, f"the first record has offset {record.offset:,}")
    return {"waited_ms": waited}


def run_serve(settings: Settings) -> Metrics:
    with scratch(settings.data, "open") as folder, product.Server(folder) as server:
        return {"seconds": server.ready_s}


def run_serve_long(settings: Settings) -> Metrics:
    with product.Server(_entries_folder(settings.data, settings.count(ENTRIES))) as server:
        return {"seconds": server.ready_s}


def run_import(settings: Settings) -> Metrics:
    return {"seconds": statistics.median(_import_s() for _ in range(IMPORTS))}


def _import_s() -> float:
    done = subprocess.run([sys.executable, "-c", IMPORT_PROGRAM], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"import mainstem failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


@functools.cache
def _entries_folder(data: Path, count: int) -> Path:
    """Built once an invocation, because it takes long and is only read; removed when the interpreter ends."""
    assert ENTRIES_BUILDER is not None
    folder = tempfile.TemporaryDirectory(prefix="bench-entries-", dir=data, ignore_cleanup_errors=True)
    _KEPT.append(folder)
    run_child(ENTRIES_BUILDER, timeout_s=1_800, folder=f"{folder.name}/data", stream=product.STREAM, count=count)
    return Path(folder.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _needs_entries(case: Case) -> Case:
    missing = case.missing or (None if ENTRIES_BUILDER else "nothing builds a stream of a million entries yet")
    return Case(case.name, case.run, missing, case.note)


SCENARIO = Scenario(
    name="open",
    title="Waiting for the first record, the server and the import",
    cases=(
        _needs_entries(
            ours("first record", run_first_record, f"of a stream of {ENTRIES:,} entries; median of {OPENS} opens")
        ),
        ours("serve", run_serve, "from starting the program until it says ready, empty folder"),
        _needs_entries(ours("serve, long stream", run_serve_long, f"the same, a stream of {ENTRIES:,} entries")),
        ours("import mainstem", run_import, f"in a new interpreter; median of {IMPORTS}"),
    ),
    shown=("first_record_ms", "seconds"),
    targets=(
        Target("first record", "first_record_ms", 5, at_most=True),
        Target("serve", "seconds", 1, at_most=True),
        Target("serve, long stream", "seconds", 1, at_most=True),
        Target("import mainstem", "seconds", 0.3, at_most=True),
    ),
)
