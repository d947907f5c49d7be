"""The rules of the suite, as a pytest plugin: skips are named, slow tests explain themselves, mechanisms are counted.

- A skipped test is listed at the end with its reason. A reason that ends in `enable: <command>` has the command shown
  on a line of its own. When the variable `CI` is set, any skip fails the run: there, everything must have run.
- A test that takes more than `SLOW_SECONDS` without `@pytest.mark.slow("why")` is listed; in CI one over
  `SLOW_SECONDS_MAX` fails the run.
- `--mechanisms-report PATH` writes which tests carry `@pytest.mark.mechanism(...)` and how each ended, as JSON:
  `{"tests": [{"test": node id, "ids": [...], "outcome": "passed" | "failed" | "skipped" | "not run"}]}`.
- `--failures-report PATH` writes the tests that failed, a node id a line, if that is all that went wrong: nothing is
  written beside a broken rule, a crashed worker or a broken collection. `tools/again.py` tries them once more.

Under pytest-xdist the workers collect and the controller reports: a worker hands its marks over when it ends
(`workeroutput`), and the controller hears every outcome through the usual reports.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SLOW_SECONDS = float(os.environ.get("SUITE_SLOW_SECONDS", "5"))
SLOW_SECONDS_MAX = 6 * SLOW_SECONDS
ENABLE = "enable:"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mechanisms-report", metavar="PATH", help="write the outcome of each mechanism test as JSON")
    parser.addoption("--failures-report", metavar="PATH", help="write the tests that failed, to try them once more")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    config.pluginmanager.register(WorkerRules(config) if is_worker else SuiteRules(config), "suite-rules")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("slow"):
            if not (len(mark.args) == 1 and isinstance(mark.args[0], str) and mark.args[0].strip()):
                raise pytest.UsageError(
                    f'{item.nodeid}: say why it is slow, as in @pytest.mark.slow("starts a server")'
                )
        for mark in item.iter_markers("mechanism"):
            if not mark.args or not all(isinstance(arg, str) for arg in mark.args):
                raise pytest.UsageError(f'{item.nodeid}: name the mechanisms, as in @pytest.mark.mechanism("S1", "K2")')


@dataclass(slots=True)
class Marks:
    """What the rules need to know of the collected tests, by node id."""

    mechanisms: dict[str, list[str]] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, items: list[pytest.Item]) -> "Marks":
        marks = cls()
        for item in items:
            if ids := [name for mark in item.iter_markers("mechanism") for name in mark.args]:
                marks.mechanisms[item.nodeid] = sorted(set(ids))
            if item.get_closest_marker("slow"):
                marks.slow.add(item.nodeid)
        return marks

    def add(self, mechanisms: dict[str, list[str]], slow: list[str]) -> None:
        self.mechanisms.update(mechanisms)
        self.slow.update(slow)


class WorkerRules:
    """The part inside an xdist worker: hands the marks to the controller when the worker ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]  # set by xdist

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        marks = Marks.of(session.items)
        self._output["suite_rules"] = {"mechanisms": marks.mechanisms, "slow": sorted(marks.slow)}


class SuiteRules:
    """The part that judges: gathers reports, then writes the summary and the exit status. Used by one thread."""

    def __init__(self, config: pytest.Config) -> None:
        self._report_path: str | None = config.getoption("--mechanisms-report")
        self._failures_path: str | None = config.getoption("--failures-report")
        self._has_crashed = False
        self._in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false", "no")
        self._marks = Marks()
        self._seconds: dict[str, float] = defaultdict(float)
        # The worst outcome over setup, call and teardown.
        self._outcomes: dict[str, str] = {}
        # (file, reason) -> how many tests; a whole module skipped at import counts as one.
        self._skips: dict[tuple[str, str], int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skips[report.nodeid.split("::")[0], _skip_reason(report)] += 1
        self._has_crashed |= str(report.when) == "???"  # what xdist says of the test that a worker died of
        worse = ["passed", "skipped", "failed"]
        before = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = max(before, report.outcome, key=worse.index)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skips[report.nodeid, _skip_reason(report)] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        handed_over = getattr(node, "workeroutput", {}).get("suite_rules")
        if handed_over:
            self._marks.add(**handed_over)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        own = Marks.of(getattr(session, "items", []))
        self._marks.add(own.mechanisms, sorted(own.slow))
        if self._report_path is not None:
            self._write_report(Path(self._report_path))
        if any(self._verdicts()) and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._failures_path is not None:
            self._write_failures(Path(self._failures_path), session.exitstatus)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        if self._skips:
            terminalreporter.section("skipped suites")
            for line in self._skip_lines():
                write(line)
        if slow := self._unexplained(SLOW_SECONDS):
            terminalreporter.section(f'over {SLOW_SECONDS:g} s without @pytest.mark.slow("why")')
            for name in slow:
                write(f"{self._seconds[name]:7.1f} s  {name}")
        for verdict in self._verdicts():
            write(f"FAILED: {verdict}", red=True, bold=True)

    def _skip_lines(self) -> Iterator[str]:
        for (suite, reason), count in sorted(self._skips.items()):
            why, _, command = reason.partition(ENABLE)
            yield f"{suite} ({count}): {why.strip(' ;,.') or reason}"
            yield f"    to enable: {command.strip()}" if command else "    (the reason names no command)"

    def _unexplained(self, limit: float) -> list[str]:
        slow = [name for name, seconds in self._seconds.items() if seconds > limit and name not in self._marks.slow]
        # One that failed may have waited for what never came.
        passed = [name for name in slow if self._outcomes[name] == "passed"]
        return sorted(passed, key=self._seconds.__getitem__, reverse=True)

    def _verdicts(self) -> Iterator[str]:
        if not self._in_ci:
            return
        if self._skips:
            yield f"{sum(self._skips.values())} skipped; with CI set every test must run"
        if slow := self._unexplained(SLOW_SECONDS_MAX):
            yield f"{len(slow)} over {SLOW_SECONDS_MAX:g} s without a reason"

    def _write_report(self, path: Path) -> None:
        tests = [
            {"test": name, "ids": ids, "outcome": self._outcomes.get(name, "not run")}
            for name, ids in sorted(self._marks.mechanisms.items())
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"tests": tests}, indent=2) + "\n")

    def _write_failures(self, path: Path, status: int) -> None:
        path.unlink(missing_ok=True)
        failed = [_without_group(name) for name, outcome in self._outcomes.items() if outcome == "failed"]
        if failed and status == pytest.ExitCode.TESTS_FAILED and not self._has_crashed and not any(self._verdicts()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{name}\n" for name in failed))


def _without_group(name: str) -> str:
    """xdist adds `@group` to the name of a grouped test, behind its parameters."""
    return name.rpartition("@")[0] if name.rfind("@") > name.rfind("]") and "::" in name.rpartition("@")[0] else name


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where_and_why = report.longrepr
    text = where_and_why[2] if isinstance(where_and_why, (tuple, list)) else str(where_and_why)
    return str(text).removeprefix("Skipped: ")
