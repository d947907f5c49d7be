"""Every fault suite: how much of it `make test` and `make torture` run, and which planted bug must turn it red."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults import (
    backup_damage,
    backup_kill,
    crash_points,
    crowd,
    crowd_http,
    crowd_tls,
    cut,
    disk_full,
    examined,
    flips,
    fsync_fails,
    fuzz_bodies,
    fuzz_guarded,
    fuzz_guarded_http,
    fuzz_http,
    fuzz_predicate,
    fuzz_server,
    fuzz_wire,
    hostile_payload,
    hostile_schema,
    kill_compact,
    kill_embedded,
    kill_groups,
    kill_http,
    kill_jobs,
    kill_server,
    kill_spark,
    kill_transactions,
    kill_upkeep,
    ledger_lost,
    mixes,
    more_shards,
    power_loss,
    read_beside,
    rebalances,
    rebalances_simulated,
    restart_large,
    schema_changes,
    two_writers,
    upgrade_kill,
)
from tests.faults.trials import Trials


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite and its counts.

    `slice` trials run in `make test`, `full` in `make torture`, there in chunks of `chunk`. `bugs` maps each planted
    bug that must turn it red to the trials that are likely to. `measures` says that it times something and must run
    alone; `on_disk` that it needs a real disk, where memory would do for the others. `run_slice` is for a suite whose
    trials are too large for `make test`.
    """

    run: Callable[[int, int, Path], Trials]
    slice: int
    full: int
    chunk: int
    bugs: dict[str, int]
    measures: bool = False
    on_disk: bool = False
    run_slice: Callable[[int, int, Path], Trials] | None = None

    @property
    def run_small(self) -> Callable[[int, int, Path], Trials]:
        """What runs in `make test`."""
        return self.run_slice or self.run


SUITES: dict[str, Suite] = {
    "crash_points": Suite(
        crash_points.run,
        slice=150,
        full=20_000,
        chunk=4_000,
        bugs={"ack_before_write": 20, "skip_payload_check": 80, "skip_dedupe": 20, "trust_ledger": 60},
    ),
    "power_loss": Suite(power_loss.run, slice=2, full=200, chunk=40, bugs={"ack_before_write": 3}, on_disk=True),
    "cut": Suite(cut.run, slice=300, full=144_000, chunk=12_000, bugs={"believe_blocks": 20}),
    "flips": Suite(flips.run, slice=152, full=10_000, chunk=2_500, bugs={"ignore_checksum": 38}),
    "examined": Suite(examined.run, slice=100, full=10_000, chunk=2_500, bugs={"ignore_checksum": 38}),
    "ledger_lost": Suite(ledger_lost.run, slice=60, full=2_000, chunk=1_000, bugs={"trust_ledger": 60}),
    "fsync_fails": Suite(fsync_fails.run, slice=80, full=2_000, chunk=1_000, bugs={"swallow_write_error": 15}),
    "two_writers": Suite(two_writers.run, slice=10, full=200, chunk=200, bugs={"skip_lock": 5}),
    "upgrade_kill": Suite(
        upgrade_kill.run, slice=60, full=2_000, chunk=500, bugs={"upgrade_before_backup": 10, "keep_in_place": 30}
    ),
    "kill_embedded": Suite(kill_embedded.run, slice=2, full=50, chunk=25, bugs={"ack_before_write": 2}, on_disk=True),
    "read_beside": Suite(read_beside.run, slice=3, full=50, chunk=25, bugs={"stale_reader": 2}, on_disk=True),
    "kill_server": Suite(
        kill_server.run, slice=2, full=200, chunk=40, bugs={"skip_dedupe": 3}, measures=True, on_disk=True
    ),
    "disk_full": Suite(
        disk_full.run,
        slice=2,
        full=50,
        chunk=10,
        bugs={"fence_when_full": 1},
        measures=True,
        on_disk=True,
    ),
    "restart_large": Suite(
        restart_large.run,
        slice=1,
        full=3,
        chunk=3,
        bugs={"replay_everything": 1},
        measures=True,
        on_disk=True,
        run_slice=restart_large.run_small,
    ),
    "mixes": Suite(
        mixes.run,
        slice=3,
        full=1_000,
        chunk=100,
        bugs={"compact_too_much": 3, "free_too_early": 3, "filter_too_little": 1},
    ),
    "more_shards": Suite(more_shards.run, slice=6, full=500, chunk=50, bugs={"run_ahead": 1}),
    "schema_changes": Suite(schema_changes.run, slice=6, full=300, chunk=50, bugs={"forget_aliases": 6}),
    "kill_upkeep": Suite(
        kill_upkeep.run, slice=1, full=100, chunk=25, bugs={"compact_too_much": 2}, measures=True, on_disk=True
    ),
    "kill_compact": Suite(
        kill_compact.run, slice=1, full=100, chunk=25, bugs={"sweep_too_much": 3}, measures=True, on_disk=True
    ),
    "kill_groups": Suite(
        kill_groups.run, slice=2, full=150, chunk=25, bugs={"believe_members": 6}, measures=True, on_disk=True
    ),
    "kill_transactions": Suite(
        kill_transactions.run,
        slice=5,
        full=150,
        chunk=30,
        bugs={"write_beside_transactions": 1},
        measures=True,
        on_disk=True,
    ),
    "kill_spark": Suite(
        kill_spark.run,
        slice=1,
        full=2 * kill_spark.CHUNK,
        chunk=kill_spark.CHUNK,
        bugs={"forget_deliveries": 1, "publish_what_is_planned": 1},
        measures=True,
        on_disk=True,
    ),
    "kill_jobs": Suite(
        kill_jobs.run,
        slice=1,
        full=3 * kill_jobs.CHUNK,
        chunk=kill_jobs.CHUNK,
        bugs={"forget_loads": 0},
        measures=True,
        on_disk=True,
    ),
    "rebalances": Suite(
        rebalances.run, slice=2, full=20, chunk=20, bugs={"forget_cursors": 2}, measures=True, on_disk=True
    ),
    "rebalances_simulated": Suite(rebalances_simulated.run, slice=50, full=500, chunk=50, bugs={"forget_cursors": 10}),
    "backup_damage": Suite(backup_damage.run, slice=150, full=10_000, chunk=2_500, bugs={"restore_unchecked": 20}),
    "backup_kill": Suite(
        backup_kill.run, slice=4, full=200, chunk=50, bugs={"copy_in_place": 12}, measures=True, on_disk=True
    ),
    "fuzz_wire": Suite(fuzz_wire.run, slice=100_000, full=10_000_000, chunk=2_500_000, bugs={"trust_messages": 1_000}),
    "fuzz_server": Suite(
        fuzz_server.run,
        slice=10_000,
        full=200_000,
        chunk=100_000,
        bugs={"end_on_garbage": 1_000, "stumble_over_schemas": 1_000, "believe_json": 1_000},
        measures=True,
    ),
    "fuzz_guarded": Suite(
        fuzz_guarded.run,
        slice=5_000,
        full=100_000,
        chunk=50_000,
        bugs={"allow_everything": 1_000, "end_on_garbage": 1_000},
        measures=True,
    ),
    "crowd": Suite(crowd.run, slice=500, full=5_000, chunk=5_000, bugs={"wait_for_ever": 50}, measures=True),
    "fuzz_http": Suite(
        fuzz_http.run, slice=2_000, full=100_000, chunk=25_000, bugs={"stumble_over_limits": 2_000}, measures=True
    ),
    "fuzz_guarded_http": Suite(
        fuzz_guarded_http.run, slice=1_000, full=100_000, chunk=25_000, bugs={"allow_everything": 1_000}, measures=True
    ),
    "fuzz_bodies": Suite(
        fuzz_bodies.run, slice=3_000, full=2_000_000, chunk=100_000, bugs={"stumble_over_arrow": 2_000}
    ),
    "crowd_http": Suite(
        crowd_http.run, slice=300, full=5_000, chunk=5_000, bugs={"hoard_for_connections": 300}, measures=True
    ),
    "crowd_tls": Suite(
        crowd_tls.run, slice=150, full=2_000, chunk=1_000, bugs={"hoard_for_connections": 150}, measures=True
    ),
    "kill_http": Suite(
        kill_http.run, slice=2, full=100, chunk=10, bugs={"forget_keys": 2}, measures=True, on_disk=True
    ),
    "fuzz_predicate": Suite(
        fuzz_predicate.run,
        slice=3_000,
        full=1_000_000,
        chunk=100_000,
        bugs={"predicates_without_limits": 500, "overflow_fails_the_batch": 500},
        measures=True,
    ),
    "hostile_payload": Suite(
        hostile_payload.run, slice=5_000, full=2_000_000, chunk=500_000, bugs={"trust_payloads": 20_000}
    ),
    "hostile_schema": Suite(hostile_schema.run, slice=150, full=50_000, chunk=10_000, bugs={"believe_metadata": 150}),
}
