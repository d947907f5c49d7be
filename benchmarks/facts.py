"""What a reader must know about the machine and the versions to judge a number; nothing that names the machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS
from mainstem.core.errors import MissingRequirement
from mainstem.spark.java import find_java

LIBRARIES = ("mainstem", "pyarrow", "apsw", "uvloop", "msgspec", "numpy", "pyspark", "deltalake")


def machine(data: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        # A local suffix of the kernel's release may name its builder.
        "kernel": f"{platform.system()} {re.split(r'[^0-9.]', platform.release())[0].rstrip('.')}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "filesystem": filesystem(data),
        "fdatasync_ms": round(_fdatasync_ms(data), 3),
    }
    return {**facts, "versions": versions()}


def versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    with contextlib.suppress(MissingRequirement):
        found["java"] = str(find_java().version)
    for peer in PEERS.values():
        if peer.available() is None:
            found.update(peer.versions())
    return found


def filesystem(folder: Path) -> str:
    """The type of file system that holds a folder, by the longest mount point above it."""
    target, best, kind = str(folder.resolve()), "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fdatasync_ms(folder: Path, count: int = 50) -> float:
    """Median time of appending 4 KiB and syncing: what every durable acknowledgement pays at least once."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(count):
            start = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3
