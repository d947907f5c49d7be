"""Mutated and random messages to the reader of the native protocol: only ProtocolError may come out."""

from pathlib import Path

from tests.faults.trials import Trials
from tests.fuzz import wire_fuzz


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials(trials=trials)
    try:
        report = wire_fuzz.run(seed, trials)
    except BaseException as error:
        result.add_finding(f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
        return result
    # Both ends must have been exercised, or the mutations have become too mild or too wild to tell anything.
    if trials >= 1_000 and min(report["taken"], report["refused"]) < trials // 20:
        result.add_finding(f"the mutations tell nothing any more: {report}")
    return result
