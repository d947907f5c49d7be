"""Rebalances of 50 members on the injected clock: crashes, freezes, lost messages, restarts, more shards."""

from pathlib import Path

from tests.faults.trials import Trials
from tests.unit.cluster.simulation import ROUGH, Violation, World, rebalances

MEMBERS = 50
SHARDS = 200


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one rebalance; all of a run are of one group."""
    result = Trials()
    world = World(seed, ROUGH, members=MEMBERS, shards=SHARDS)
    try:
        rebalances(world, trials, members=MEMBERS)
    except (Violation, AssertionError) as error:
        result.add_finding(f"seed {seed}, at {world.now:.1f} s: {error}")
    result.trials = trials
    result.acknowledged = sum(world.ledger.cursors.values())
    return result
