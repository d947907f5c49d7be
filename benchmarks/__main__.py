"""``python -m benchmarks [names...]``: run scenarios in interleaved rounds and report medians, ranges and targets."""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks import facts, plots, report
from benchmarks.harness import REPOSITORY, BenchmarkError, Noise, wait_until_calm
from benchmarks.report import Run
from benchmarks.scenarios import SCENARIOS, Case, Scenario, Settings

MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")


def main() -> None:
    arguments = _arguments()
    console = Console(width=max(120, Console().width))
    scenarios = [SCENARIOS[name] for name in arguments.names or SCENARIOS]
    settings = Settings(data=_data_folder(arguments.data), quick=arguments.quick)
    machine = facts.machine(settings.data)
    report.print_facts(console, machine)
    runs: list[Run] = []
    for scenario in scenarios:
        runs += _run_rounds(console, scenario, settings, arguments)
    console.print()
    for scenario in scenarios:
        report.print_scenario(console, scenario, runs)
    options = {"rounds": arguments.rounds, "quick": arguments.quick, "cases": arguments.cases}
    _keep(console, report.document(machine, scenarios, runs, options), arguments)


def _run_rounds(console: Console, scenario: Scenario, settings: Settings, arguments: argparse.Namespace) -> list[Run]:
    """A, B, C, A, B, C, ...: a slow minute of the machine then falls on every case alike."""
    chosen = [case for case in scenario.cases if fnmatch.fnmatch(case.name, arguments.cases)]
    for case in chosen:
        if case.missing:
            console.print(f"{scenario.name:<15}{case.name:<24}left out: {case.missing}", highlight=False)
    runs = []
    for number in range(1, min(arguments.rounds, scenario.rounds_max) + 1):
        for case in chosen:
            if not case.missing:
                wait_until_calm(arguments.calm)
                runs.append(_run_once(scenario, case, number, settings))
                report.print_run(console, scenario, runs[-1])
    return runs


def _run_once(scenario: Scenario, case: Case, number: int, settings: Settings) -> Run:
    noise, started = Noise(), time.time()
    run: Run = {
        "scenario": scenario.name,
        "case": case.name,
        "round": number,
        "started": started,
        "metrics": None,
        "error": None,
    }
    try:
        run["metrics"] = case.run(settings)
    except BenchmarkError as error:
        run["error"] = str(error)
    return {**run, "noise_cores": noise.cores()}


def _keep(console: Console, document: dict[str, object], arguments: argparse.Namespace) -> None:
    paths = [report.write_raw(document)]
    if arguments.json:
        report.write_json(arguments.json, document)
        paths.append(arguments.json)
    if arguments.save:
        folder = REPOSITORY / "docs" / "results"
        saved = folder / "bench.json"
        report.write_json(saved, report.joined(report.read_json(saved), document))
        paths += [saved, *plots.draw(document, folder)]
    for path in paths:
        shown = path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
        console.print(f"wrote {shown}", highlight=False)


def _data_folder(given: Path | None) -> Path:
    """Where the servers keep their data: a disk, because syncing to memory costs nothing and means nothing."""
    folder = given or Path(tempfile.gettempdir())
    if given is None and facts.filesystem(folder) in MEMORY_FILESYSTEMS:
        folder = report.RESULTS
    if facts.filesystem(folder) in MEMORY_FILESYSTEMS:
        raise SystemExit("benchmarks: the data folder is kept in memory; name one on a disk with --data")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run benchmark scenarios in interleaved rounds."
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"scenarios, all by default: {', '.join(SCENARIOS)}")
    parser.add_argument("--rounds", type=int, default=5, help="how often each case runs (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the messages and seconds: a look, not a result"
    )
    parser.add_argument(
        "--cases", default="*", metavar="PATTERN", help="only the cases whose name matches, for example 'nats*'"
    )
    parser.add_argument(
        "--calm",
        type=float,
        default=0,
        metavar="SECONDS",
        help="wait so long at most for a calm machine before each run",
    )
    parser.add_argument(
        "--data", type=Path, help="folder on the disk to measure (default: the system's temporary folder)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there too")
    parser.add_argument("--save", action="store_true", help="put it into docs/results/bench.json and its pictures")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in SCENARIOS]:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


if __name__ == "__main__":
    main()
