"""Processes, clocks and counters: everything a scenario needs to take one honest number.

Every server, producer and consumer is a process of its own. A child is one function of this package, run by
``python -m benchmarks.child module:function``; it talks with its parent in JSON lines over its standard streams:

    child -> parent   {"event": "ready"}, ...         ``talk.say(...)``, read with ``child.expect("ready")``
    parent -> child   {"go_ns": 123}, ...             ``child.send(...)``, read with ``talk.hear()``
    child -> parent   {"event": "result", ...}        what the function returned, read with ``child.result()``

Times that cross a process are ``time.monotonic_ns()``: CLOCK_MONOTONIC, one clock for the whole machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STDERR_TAIL_BYTES = 4_000


class BenchmarkError(Exception):
    """A run that must not count: a child failed, a deadline passed, or what was received is not what was sent."""


def check(condition: bool, message: str) -> None:
    """Void the run, with a reason, unless the condition holds."""
    if not condition:
        raise BenchmarkError(message)


# Numbers ------------------------------------------------------------------------------------------------------------


def percentiles(
    values: Sequence[float] | np.ndarray, ranks: Sequence[float] = (50, 90, 99, 99.9, 100)
) -> dict[str, float]:
    """Percentiles that are observed values, as HDR histograms report them: the smallest value at or above each rank."""
    found = np.percentile(np.asarray(values, dtype=np.float64), ranks, method="inverted_cdf")
    return {("max" if rank == 100 else f"p{rank:g}"): float(value) for rank, value in zip(ranks, found, strict=True)}


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and range of one metric over the rounds."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(float(np.median(values)), float(min(values)), float(max(values)), len(values))

    @property
    def spread(self) -> float:
        """The range as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


# Counters of processes ----------------------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """The process and everything it started that still runs."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its threads, its descendants and those of them already reaped."""
    total = 0
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            # The command name, field 2, may hold spaces: count from its closing bracket.
            fields = Path(f"/proc/{each}/stat").read_bytes().rpartition(b")")[2].split()
            total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / TICKS_PER_SECOND


def rss_bytes(pid: int) -> int:
    """The resident memory of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def rss_peak_bytes(pid: int) -> int:
    """The sum of the peaks of resident memory of a process and its descendants, as the kernel kept them."""
    total = 0
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
    return total


def _busy_seconds() -> float:
    """Time any core of the machine was not idle, by whomever."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields[:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_SECOND


def _own_seconds() -> float:
    """CPU time of this process and of the children it has waited for."""
    return sum(os.times()[:4])


class Stopwatch:
    """Wall time and CPU time of one window: this process's, and that of the processes it is told to watch.

    Used in the process whose loop is timed. ``stop`` may be called once.
    """

    def __init__(self, watch: Sequence[int] = ()) -> None:
        self._watch = tuple(watch)
        self._watched = {pid: cpu_seconds(pid) for pid in self._watch}
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._own = usage.ru_utime + usage.ru_stime
        self._start = time.perf_counter()

    def stop(self) -> dict[str, float]:
        wall = time.perf_counter() - self._start
        usage = resource.getrusage(resource.RUSAGE_SELF)
        own = usage.ru_utime + usage.ru_stime - self._own
        watched = sum(cpu_seconds(pid) - before for pid, before in self._watched.items())
        return {"wall_s": wall, "client_cpu_s": own, "server_cpu_s": watched, "cpu_s": own + watched}


# What a child does when its function has returned: end processes of its own, so that their time is known as its.
AT_END: list[Callable[[], None]] = []


class Noise:
    """How many cores others kept busy while a case ran; every process of the case must be reaped when it is read."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_seconds(), _own_seconds(), time.perf_counter()

    def cores(self) -> float:
        wall = time.perf_counter() - self._start
        foreign = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return max(0.0, foreign / wall)


def wait_until_calm(timeout_s: float, cores_max: float = 0.2, window_s: float = 0.5) -> None:
    """Wait, within limits, until others leave the machine alone. A run says for itself how calm it was."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        noise = Noise()
        time.sleep(window_s)
        if noise.cores() <= cores_max:
            return


# Processes ----------------------------------------------------------------------------------------------------------


class Process:
    """A started program whose output lines are read with deadlines and whose errors are shown when it fails.

    One thread may use it. Leaving the ``with`` block ends the process: politely, then for certain.
    """

    def __init__(
        self, command: Sequence[str | Path], *, cwd: Path = REPOSITORY, env: dict[str, str] | None = None
    ) -> None:
        self.command = [str(part) for part in command]
        self.started_at = time.perf_counter()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=10_000)
        self._popen = subprocess.Popen(
            self.command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.pid = self._popen.pid
        threading.Thread(target=self._pump, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def line(self, timeout_s: float) -> str:
        """The next line of its standard output."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise BenchmarkError(f"{self.title}: no word within {timeout_s:g} s{self.errors()}") from None
        if line is None:
            raise BenchmarkError(f"{self.title}: ended with status {self._popen.wait()}{self.errors()}")
        return line

    def write(self, line: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def stop(self, timeout_s: float = 20.0) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        self._popen.wait()
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def kill(self) -> None:
        """End it as nobody expects."""
        self._popen.kill()

    def errors(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - STDERR_TAIL_BYTES))
        text = self._errors.read().decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    @property
    def title(self) -> str:
        return Path(self.command[0]).name

    def _pump(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)


class Child(Process):
    """One function of this package in a process of its own; the module's text has what the two say to each other."""

    def __init__(self, function: str, **arguments: Any) -> None:
        self._function = function
        super().__init__([sys.executable, "-m", "benchmarks.child", function])
        self.send(arguments)

    @property
    def title(self) -> str:
        return self._function

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps(message))

    def expect(self, event: str, timeout_s: float = 120.0) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.line(timeout_s))
        if message["event"] == "error":
            raise BenchmarkError(f"{self.title}: {message['text']}")
        check(message["event"] == event, f"{self.title}: said {message['event']!r} instead of {event!r}")
        return message

    def result(self, timeout_s: float = 300.0) -> dict[str, Any]:
        return self.expect("result", timeout_s)


def run_child(function: str, *, timeout_s: float = 300.0, **arguments: Any) -> dict[str, Any]:
    """Run one function in a process of its own and return what it returned."""
    with Child(function, **arguments) as child:
        return child.result(timeout_s)


def free_port() -> int:
    """A port of the loopback that nobody has now, for servers that cannot choose one themselves."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder for one run's data, on the disk under measurement, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{prefix}-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
