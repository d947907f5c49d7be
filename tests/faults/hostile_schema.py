"""Hostile schemas to the review before they are kept: a schema that rows can have, or InvalidSchema, soon.

In a child process, so that a crash is a finding and not the end of the run.
"""

from pathlib import Path

from tests.faults.hostile_payload import run_in_child
from tests.faults.trials import Trials


def run(seed: int, trials: int, folder: Path) -> Trials:
    return run_in_child("tests.fuzz.schema_fuzz", seed, trials)
