"""How much of this machine a process has: a container, a service or `taskset` may give it less than there is."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")


def cores(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """As many as the JVM counts, which are those of `local[*]`: a part of a core counts as one."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_text(folder / "cpu.max").split() for folder in _folders(cgroups, own)]
    quotas.append([_text(cgroups / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")])
    # Without a limit it is "max", or -1.
    return min([there, *(-(-int(quota[0]) // int(quota[1])) for quota in quotas if quota and quota[0].isdigit())])


def memory_bytes(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_text(folder / "memory.max") for folder in _folders(cgroups, own)]
    limits.append(_text(cgroups / "memory" / "memory.limit_in_bytes"))
    return min([there, *(int(limit) for limit in limits if limit.isdigit())])


def _folders(cgroups: Path, own: Path) -> Iterator[Path]:
    """Of a container, and of a service in it or outside of one, with all that it is in: version 2 of cgroups."""
    yield cgroups
    for line in _text(own).splitlines():
        if line.startswith("0::"):
            path = Path(line.removeprefix("0::").lstrip("/"))
            yield from (cgroups / folder for folder in (path, *path.parents))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
