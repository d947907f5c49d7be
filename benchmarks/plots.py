"""One picture per scenario: medians as bars, the range of the rounds as whiskers, targets as lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.report import LABELS

OURS, THEIRS, TARGET = "#2f6f9f", "#a9b4bd", "#c0562f"


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``bench-<scenario>.svg`` and ``.png`` for every scenario that has a figure; returns the files."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "mainstem"
    folder.mkdir(parents=True, exist_ok=True)
    return [path for scenario in report["scenarios"] if scenario["cases"] for path in _draw_scenario(scenario, folder)]


def _draw_scenario(scenario: dict[str, Any], folder: Path) -> list[Path]:
    """One panel for each metric that has a target."""
    from matplotlib import pyplot

    panels = {metric: _cases_with(scenario, metric) for metric in _metrics(scenario)}
    rows = [len(cases) for cases in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels),
        figsize=(8, sum(0.9 + 0.45 * count for count in rows)),
        height_ratios=[count + 1 for count in rows],
        layout="constrained",
        squeeze=False,
    )
    for axis, (metric, cases) in zip(axes[:, 0], panels.items(), strict=True):
        _draw_panel(axis, metric, cases, scenario["targets"])
    axes[0, 0].set_title(scenario["title"], loc="left", fontsize=11)
    paths = [folder / f"bench-{scenario['name']}.{kind}" for kind in ("svg", "png")]
    figure.savefig(paths[0], metadata={"Date": None, "Creator": None})
    figure.savefig(paths[1], dpi=150, metadata={"Software": None})
    pyplot.close(figure)
    return paths


def _draw_panel(axis: Any, metric: str, cases: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    names = list(cases)[::-1]
    found = [cases[name]["metrics"][metric] for name in names]
    axis.barh(
        names,
        [each["median"] for each in found],
        xerr=[[each["median"] - each["min"] for each in found], [each["max"] - each["median"] for each in found]],
        color=[THEIRS if cases[name]["is_peer"] else OURS for name in names],
        error_kw={"elinewidth": 1, "capsize": 3},
    )
    bounds = [(target["case"], target["bound"]) for target in targets if target["metric"] == metric]
    for name, bound in bounds:
        row = names.index(name)
        axis.plot([bound, bound], [row - 0.45, row + 0.45], color=TARGET, linewidth=2)
    axis.set_xlabel(f"{LABELS[metric]} (bar: median, whiskers: range{', line: target' if bounds else ''})")
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}")


def _metrics(scenario: dict[str, Any]) -> list[str]:
    """The metrics that have a target, else the first metric of the first case."""
    first_case = next(iter(scenario["cases"].values()))
    return list(dict.fromkeys(target["metric"] for target in scenario["targets"])) or [
        next(iter(first_case["metrics"]))
    ]


def _cases_with(scenario: dict[str, Any], metric: str) -> dict[str, Any]:
    """The cases a panel of a metric shows: those held to it, and the peers, to compare."""
    held = {target["case"] for target in scenario["targets"] if target["metric"] == metric}
    return {
        name: case
        for name, case in scenario["cases"].items()
        if metric in case["metrics"] and (name in held or case["is_peer"] or not held)
    }
