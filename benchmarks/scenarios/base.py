"""What a scenario is: cases that run in turn, the metrics they give, and the targets those are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import product
from benchmarks.harness import Summary

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line decided."""

    data: Path
    quick: bool = False

    def count(self, full: int) -> int:
        """A number of messages or seconds, smaller for a quick look."""
        return max(1, full // 5) if self.quick else full


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is run once per round. ``run`` raises BenchmarkError when its number must not count."""

    name: str
    run: Callable[[Settings], Metrics]
    missing: str | None = None  # why it cannot run here
    note: str = ""  # how it is driven
    is_peer: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A bound the median of one metric of one case is held to."""

    case: str
    metric: str
    bound: float
    at_most: bool = False

    def is_met(self, summary: Summary) -> bool:
        return summary.median <= self.bound if self.at_most else summary.median >= self.bound


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our median over a peer's, from the same interleaved run. `bound`: what it has to be at least."""

    ours: str
    peer: str
    metric: str = "msg_per_s"
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named set of cases. ``shown`` are the metrics of the table, most important first."""

    name: str
    title: str
    cases: tuple[Case, ...]
    shown: tuple[str, ...]
    targets: tuple[Target, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    rounds_max: int = 100


def ours(name: str, run: Callable[[Settings], Metrics], note: str = "") -> Case:
    return Case(name, run, product.available(), note)
