"""Mutated payloads to the check that stands before pyarrow: a valid batch or InvalidPayload, no crash, bounded memory.

In a child process, so that a crash is a finding and not the end of the run.
"""

import json
import subprocess
from pathlib import Path

from mainstem.testing import planted
from tests.faults.trials import Trials


def run(seed: int, trials: int, folder: Path) -> Trials:
    return run_in_child("tests.fuzz.payload_fuzz", seed, trials)


def run_in_child(module: str, seed: int, trials: int) -> Trials:
    """A module that takes a seed and a number of cases, and says how many of them were valid and refused."""
    result = Trials(trials=trials)
    child = subprocess.run(planted.command(module, str(seed), str(trials)), capture_output=True, check=False)
    if child.returncode:
        last = child.stderr.decode(errors="replace")[-1_500:]
        result.add_finding(f"seed {seed}: ended with {child.returncode}: {last}")
        return result
    report = json.loads(child.stdout)
    if trials >= 10_000 and min(report.get("valid", 0), report.get("refused", 0)) < trials // 100:
        result.add_finding(f"the mutations tell nothing any more: {report}")
    return result
