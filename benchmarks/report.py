"""What is printed while rounds run and when they end, and what is kept of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness import Summary
from benchmarks.scenarios.base import Scenario

RESULTS = Path(__file__).resolve().parent / "results"
SPREAD_MAX = 0.25
NOISE_CORES_MAX = 0.5

Run = dict[str, Any]
"""One run of one case: scenario, case, round, metrics or error, noise_cores."""


def summaries(runs: Iterable[Run], scenario: str, case: str) -> dict[str, Summary]:
    metrics = [run["metrics"] for run in runs if (run["scenario"], run["case"]) == (scenario, case) and run["metrics"]]
    return {name: Summary.of([each[name] for each in metrics]) for name in (metrics[0] if metrics else ())}


def print_facts(console: Console, facts: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    console.print(
        f"{facts['cores']} cores ({facts['processor']}), {facts['memory_gb']} GB, {facts['kernel']}, "
        f"{facts['python']}, {facts['filesystem']}, fdatasync of 4 KiB {facts['fdatasync_ms']} ms\n{versions}\n",
        highlight=False,
    )


def print_run(console: Console, scenario: Scenario, run: Run) -> None:
    head = f"{scenario.name:<15}{run['case']:<24}round {run['round']}  "
    if run["error"]:
        console.print(f"{head}[red]does not count:[/red] {escape(run['error'])}", highlight=False)
        return
    figures = "  ".join(
        f"{amount(name, run['metrics'][name])}" for name in scenario.shown[:3] if name in run["metrics"]
    )
    console.print(f"{head}{figures}", highlight=False)


def print_scenario(console: Console, scenario: Scenario, runs: list[Run]) -> None:
    """The table of one scenario, how each case is driven and what is to be said of its figures, and the ratios."""
    table = Table(title=scenario.title, title_justify="left", title_style="bold", pad_edge=False)
    for column in ("case", "metric", "median", "min to max", "target", "met"):
        table.add_column(column, justify="right" if column in ("median", "min to max", "target") else "left")
    notes = []
    for case in scenario.cases:
        found = summaries(runs, scenario.name, case.name)
        remarks = _remarks(scenario, case.name, found, runs)
        if not found:
            remarks = f"not measured: {case.missing or remarks or 'not chosen'}"
        notes.append((case.name, "; ".join(text for text in (case.note, remarks) if text)))
        _add_rows(table, scenario, case.name, found)
    if table.row_count:
        console.print(table)
    else:
        console.print(f"[bold]{scenario.title}[/bold]")
    for name, note in notes:
        if note:
            console.print(f"  {name}: {note}", highlight=False)
    for line in ratios(scenario, runs):
        bound = "" if line["bound"] is None else f", target ≥ {line['bound']:g}, met: {'yes' if line['met'] else 'no'}"
        console.print(
            f"  {line['ours']} / {line['peer']}: {line['ratio']:.2f}x in {LABELS[line['metric']]}{bound}",
            highlight=False,
        )
    console.print()


def _add_rows(table: Table, scenario: Scenario, case: str, found: dict[str, Summary]) -> None:
    for index, metric in enumerate(name for name in scenario.shown if name in found):
        summary = found[metric]
        target = next((t for t in scenario.targets if (t.case, t.metric) == (case, metric)), None)
        bound = f"{'≤' if target.at_most else '≥'} {amount(metric, target.bound)}" if target else ""
        met = ("[green]yes[/green]" if target.is_met(summary) else "[red]no[/red]") if target else ""
        span = f"{amount(metric, summary.low)} to {amount(metric, summary.high)}" if summary.count > 1 else ""
        table.add_row("" if index else case, LABELS[metric], amount(metric, summary.median), span, bound, met)
    if found:
        table.add_section()


def ratios(scenario: Scenario, runs: list[Run]) -> list[dict[str, Any]]:
    lines = []
    for ratio in scenario.ratios:
        ours = summaries(runs, scenario.name, ratio.ours).get(ratio.metric)
        peer = summaries(runs, scenario.name, ratio.peer).get(ratio.metric)
        if ours and peer and peer.median:
            found = ours.median / peer.median
            met = None if ratio.bound is None else found >= ratio.bound
            lines.append({**asdict(ratio), "ratio": found, "met": met})
    return lines


def _remarks(scenario: Scenario, case: str, found: dict[str, Summary], runs: list[Run]) -> str:
    """Why a figure deserves doubt: voided rounds, a busy machine, a wide spread."""
    mine = [run for run in runs if (run["scenario"], run["case"]) == (scenario.name, case)]
    words = []
    if failed := [run["error"] for run in mine if run["error"]]:
        words.append(f"{len(failed)} of {len(mine)} rounds void ({escape(failed[-1].splitlines()[0])})")
    if mine and (noise := Summary.of([run["noise_cores"] for run in mine]).median) > NOISE_CORES_MAX:
        words.append(f"noisy: others used {noise:.1f} cores")
    head = next((found[name] for name in scenario.shown if name in found), None)
    if head and head.count > 1 and head.spread > SPREAD_MAX:
        words.append(f"spread {head.spread:.0%}")
    return "; ".join(words)


# Units ----------------------------------------------------------------------------------------------------------------

LABELS = {
    "msg_per_s": "messages/s",
    "open_msg_per_s": "messages/s, not guarded",
    "cost_percent": "slower than that by, %",
    "cpu_cost_percent": "more CPU than that by, %",
    "rows_per_s": "rows/s",
    "msg_per_cpu_s": "messages per CPU-second",
    "rows_per_cpu_s": "rows per CPU-second of the server",
    "kb_per_tail": "server memory of one",
    "mb_per_s": "MB/s",
    "delivered_mb_per_s": "delivered MB/s",
    "reads_ratio": "bytes read, times those for one",
    "cpu_ratio": "server CPU per GB, times that for one",
    "cpu_s_per_gb": "server CPU seconds per GB",
    "one_cpu_s_per_gb": "the same for one",
    "client_cores": "client cores",
    "server_cores": "server cores",
    "server_rss_mb": "server peak memory",
    "p50_ms": "p50",
    "p99_ms": "p99",
    "p99_9_ms": "p99.9",
    "max_ms": "max",
    "whole_p50_ms": "p50 of all of it",
    "sent_p50_ms": "p50 from the send itself",
    "sent_p99_ms": "p99 from the send itself",
    "seconds": "seconds",
    "leave_s": "seconds, one leaves",
    "join_s": "seconds, one joins",
    "kill_s": "seconds, one is killed",
    "start_s": "seconds, all join",
    "first_record_ms": "first record",
    "times_sooner": "times as fast as reading all",
    "times_parquet": "times as fast as Spark with Parquet",
    "times_parquet_synced": "times as fast as Spark with Parquet that is synced",
    "folder_rows_per_s": "rows/s, into a folder",
    "folder_times_parquet": "times as fast as Spark with Parquet, into a folder",
    "computed_rows_per_s": "rows/s, computed and dropped",
    "times_json": "times as fast as Spark's JSON reader",
    "times_rows": "times as fast as a source of rows",
    "times_kafka": "times as fast as Spark's Kafka source",
    "kafka_rows_per_s": "rows/s, Kafka",
    "rows_per_spark_cpu_s": "rows per CPU-second of Spark and its workers",
    "times_parquet_cpu": "CPU of Spark with Parquet, times ours",
    "times_kafka_cpu": "CPU of Spark's Kafka source, brokers apart, times ours",
    "times_all": "times as fast as all columns",
    "near_s": "seconds, next to the data",
    "far_s": "seconds, reading all",
    "find_ms": "found",
    "absent_ms": "not there",
    "slowest_ms": "slowest",
    "opened_percent": "batches opened, %",
    "read_percent": "bytes read, %",
    "share_of_idle": "share of the rate without",
    "idle_p99_ms": "p99 without",
    "work_per_s": "upkeep per second",
    "ledger_mb": "ledger",
    "times_faster": "times as fast as unmerged",
    "times_tiny": "times as fast as tiny batches",
    "made_rows_per_s": "rows/s made into files",
    "share_of_bytes": "bytes, times those before",
    "times_one": "times as fast as one",
    "times_possible": "times that can be",
    "one_msg_per_s": "messages/s of one",
    "one_client_cores": "client cores of one",
    "one_server_cores": "server cores of one",
    "rows": "rows",
}


def amount(metric: str, value: float) -> str:
    """A value with its unit, short enough for a table."""
    if "msg_per_" in metric or "rows_per_" in metric:
        return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.1f} k" if value >= 1e3 else f"{value:.0f}"
    if metric.endswith("_ms"):
        return f"{value:.2f} ms"
    if metric.endswith("rss_mb"):
        return f"{value:.0f} MB"
    if metric.endswith("mb_per_s"):
        return f"{value:.0f} MB/s"
    if metric == "kb_per_tail":
        return f"{value:.0f} KB"
    if metric == "ledger_mb":
        return f"{value:.1f} MB"
    if metric in ("work_per_s", "rows"):
        return f"{value:,.0f}"
    return f"{value:.3f} s" if metric == "seconds" else f"{value:.2f}"


# Files ----------------------------------------------------------------------------------------------------------------


def document(
    facts: dict[str, Any], scenarios: list[Scenario], runs: list[Run], settings: dict[str, Any]
) -> dict[str, Any]:
    """Everything about one invocation, ready for JSON."""
    return {
        "time": _now(),
        "machine": facts,
        "settings": settings,
        "scenarios": [_scenario_document(scenario, runs) for scenario in scenarios],
        "runs": runs,
    }


def _scenario_document(scenario: Scenario, runs: list[Run]) -> dict[str, Any]:
    found = {case.name: summaries(runs, scenario.name, case.name) for case in scenario.cases}
    cases = {
        case.name: {
            "note": case.note,
            "remarks": _remarks(scenario, case.name, found[case.name], runs),
            "is_peer": case.is_peer,
            "metrics": {
                name: {"median": each.median, "min": each.low, "max": each.high, "rounds": each.count}
                for name, each in found[case.name].items()
            },
        }
        for case in scenario.cases
        if found[case.name]
    }
    targets = [
        {**asdict(target), "met": target.is_met(found[target.case][target.metric])}
        for target in scenario.targets
        if target.metric in found[target.case]
    ]
    return {
        "name": scenario.name,
        "title": scenario.title,
        "time": _now(),
        "cases": cases,
        "targets": targets,
        "ratios": ratios(scenario, runs),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def joined(before: dict[str, Any] | None, report: dict[str, Any]) -> dict[str, Any]:
    """What was measured now, and of what was measured before the scenarios that were not, each with its own time."""
    if before is None:
        return report
    again = {scenario["name"] for scenario in report["scenarios"]}
    kept = [{"time": before["time"], **old} for old in before["scenarios"] if old["name"] not in again]
    runs = [run for run in before["runs"] if run["scenario"] not in again]
    return {**report, "scenarios": [*report["scenarios"], *kept], "runs": [*report["runs"], *runs]}


def read_json(path: Path) -> dict[str, Any] | None:
    """A report that was written; None if there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def write_raw(report: dict[str, Any]) -> Path:
    """Keep the raw runs of this invocation, one file each time."""
    path = RESULTS / f"{report['time'].replace(':', '')}.json"
    write_json(path, report)
    return path


def write_json(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
