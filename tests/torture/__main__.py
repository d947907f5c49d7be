"""Runs the fault suites at their full counts, going on where the last run stopped.

Chunks of a suite run in processes of their own, so that even a crash is a finding; two at a time, except for suites
that measure times. Stop it whenever you like: what is complete is in docs/results/faults.csv.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.places import temporary_folder
from tests.faults.suites import SUITES
from tests.faults.trials import Trials
from tests.torture.results import ROOT, Results, Row, code_version

CHUNK_SECONDS_MAX = 1_200
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a suite: the trials of one seed."""

    suite: str
    seed: int
    trials: int


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    if options.chunk:
        suite, seed, trials = options.chunk
        return _run_here(Chunk(suite, int(seed), int(trials)), options.folder)
    torture = Torture(options)
    if options.list:
        torture.print_table()
        return 0
    return torture.run()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}; all without any")
    parser.add_argument("--minutes", type=float, help="begin no chunk after this time")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first chunk (default 0)")
    parser.add_argument("--once", action="store_true", help="one chunk of each suite, done before or not")
    parser.add_argument("--list", action="store_true", help="show what was done for this code, and end")
    parser.add_argument("--folder", type=Path, help="where data folders go, instead of memory and the temporary folder")
    parser.add_argument("--chunk", nargs=3, metavar=("SUITE", "SEED", "TRIALS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"there is no suite {name}; choose from {', '.join(SUITES)}")
    return options


class Torture:
    """One run over the chosen suites. One thread; chunks are processes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._names: list[str] = options.suites or list(SUITES)
        self._results = Results()
        self._commit = code_version()
        self._findings: list[str] = []
        self._started = time.monotonic()

    def run(self) -> int:
        print(f"code {self._commit}, {len(self._names)} suites, first seed {self._options.seed}", flush=True)
        chunks = [chunk for name in self._names for chunk in self._chunks(name)]
        alone = [chunk for chunk in chunks if SUITES[chunk.suite].measures]
        together = [chunk for chunk in chunks if not SUITES[chunk.suite].measures]
        self._run_all(together, WORKERS)
        self._run_all(alone, 1)
        self.print_table()
        for text in self._findings:
            print(f"FINDING {text}")
        return 1 if self._findings or self._has_findings() else 0

    def _chunks(self, name: str) -> list[Chunk]:
        """What is left to do of a suite. Seeds go on from those of earlier runs."""
        suite = SUITES[name]
        done = [] if self._options.once else self._results.of(self._commit, name)
        seeds = {row.seed for row in done}
        left = suite.chunk if self._options.once else suite.full - sum(row.trials for row in done)
        chunks: list[Chunk] = []
        seed = self._options.seed
        while left > 0:
            if seed not in seeds:
                # A chunk is never shortened: what its trials are may depend on how many there are.
                chunks.append(Chunk(name, seed, suite.chunk))
                left -= suite.chunk
            seed += 1
        return chunks

    def _run_all(self, chunks: list[Chunk], workers: int) -> None:
        waiting = list(chunks)
        running: dict[Future[Row], Chunk] = {}
        with ThreadPoolExecutor(workers) as pool:
            while (waiting and not self._is_over()) or running:
                while waiting and len(running) < workers and not self._is_over():
                    chunk = waiting.pop(0)
                    running[pool.submit(self._run, chunk)] = chunk
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    running.pop(future)
                    self._report(future.result(), len(waiting) + len(running))

    def _is_over(self) -> bool:
        minutes = self._options.minutes
        return minutes is not None and time.monotonic() - self._started > 60 * minutes

    def _report(self, row: Row, left: int) -> None:
        self._results.append(row)
        verdict = "ok" if not row.findings else f"{row.findings} FINDINGS"
        print(
            f"{row.suite:16} seed {row.seed:<4} {row.trials:>10,} trials {row.acknowledged:>14,} acknowledged  "
            f"worst {row.worst_seconds:6.3f} s  in {row.seconds:6.1f} s  {verdict}  ({left} chunks left)",
            flush=True,
        )

    def _run(self, chunk: Chunk) -> Row:
        started = time.monotonic()
        result = _run_in_process(chunk, self._options.folder)
        for text in result.findings:
            self._findings.append(f"{chunk.suite} seed {chunk.seed}: {text}")
        return Row(
            self._commit,
            datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            chunk.suite,
            chunk.seed,
            result.trials,
            result.acknowledged,
            result.lost,
            result.duplicated,
            result.findings_count,
            round(result.worst_seconds, 3),
            round(time.monotonic() - started, 1),
        )

    def _has_findings(self) -> bool:
        return any(row.findings for name in self._names for row in self._results.of(self._commit, name))

    def print_table(self) -> None:
        print(
            f"\n{'suite':16} {'done':>11} {'of':>11} {'acknowledged':>15} {'lost':>5} {'dup':>5} {'findings':>8} worst"
        )
        for name in self._names:
            rows = self._results.of(self._commit, name)
            print(
                f"{name:16} {sum(row.trials for row in rows):>11,} {SUITES[name].full:>11,} "
                f"{sum(row.acknowledged for row in rows):>15,} {sum(row.lost for row in rows):>5} "
                f"{sum(row.duplicated for row in rows):>5} {sum(row.findings for row in rows):>8} "
                f"{max((row.worst_seconds for row in rows), default=0.0):.3f} s"
            )


def _run_in_process(chunk: Chunk, folder: Path | None) -> Trials:
    command = [sys.executable, "-m", "tests.torture", "--chunk", chunk.suite, str(chunk.seed), str(chunk.trials)]
    if folder is not None:
        command += ["--folder", str(folder)]
    try:
        child = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=CHUNK_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return _failed(f"not done after {CHUNK_SECONDS_MAX} s")
    if child.returncode:
        return _failed(f"ended with {child.returncode}: {child.stderr.decode(errors='replace')[-3_000:]}")
    return Trials(**json.loads(child.stdout.splitlines()[-1]))


def _failed(text: str) -> Trials:
    result = Trials()
    result.add_finding(text)
    return result


def _run_here(chunk: Chunk, folder: Path | None) -> int:
    """The inside of a chunk's process: one JSON line on standard output."""
    logging.getLogger("mainstem").setLevel(logging.CRITICAL)
    suite = SUITES[chunk.suite]
    with temporary_folder(on_disk=suite.on_disk, parent=folder) as place:
        result = suite.run(chunk.seed, chunk.trials, place)
    facts = {name: getattr(result, name) for name in Trials.__slots__}
    os.write(1, json.dumps(facts).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
