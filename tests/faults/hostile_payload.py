"""Mutated payloads to the check that stands before pyarrow: a valid batch or InvalidPayload, no crash, bounded memory.

In a child process, so that a crash is a finding and not the end of the run.
"""

import json
import subprocess
from pathlib import Path

from mainstem.testing import planted
from tests.faults.trials import Trials


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials(trials=trials)
    command = planted.command("tests.fuzz.payload_fuzz", str(seed), str(trials))
    child = subprocess.run(command, capture_output=True, check=False)
    if child.returncode:
        last = child.stderr.decode(errors="replace")[-1_500:]
        result.add_finding(f"seed {seed}: ended with {child.returncode}: {last}")
        return result
    report = json.loads(child.stdout)
    if trials >= 10_000 and min(report.get("valid", 0), report.get("refused", 0)) < trials // 100:
        result.add_finding(f"the mutations tell nothing any more: {report}")
    return result
