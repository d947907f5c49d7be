"""Fuzzed predicates to parser, binder and evaluation: only InvalidPredicate may come out, within 50 ms of CPU time."""

from pathlib import Path

from tests.faults.trials import Trials
from tests.fuzz import predicate_fuzz


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials(trials=trials)
    try:
        report = predicate_fuzz.run(seed, trials)
    except BaseException as error:
        result.add_finding(f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
        return result
    result.worst_seconds = report["slowest"]
    # Both ends must have been exercised, or the texts have become too mild or too wild to tell anything.
    if trials >= 1_000 and min(report["valid"], report["refused"]) < trials // 20:
        result.add_finding(f"the texts tell nothing any more: {report}")
    return result
