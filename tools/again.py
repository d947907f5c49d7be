"""Tries the few tests that failed beside all others once more, alone: `make test` runs it.

Most tests talk to real processes against a real clock, and on a busy machine one of thousands may wait too long. A test
that passes alone does not fail the run, but is named loudly: it leans on the machine's speed and wants mending. There
is no second try for what looks for records that are lost or doubled (what it finds once is found), for planted bugs
(one that is not noticed once may not be noticed when it is a real one), nor where many failed (that is no accident).
"""

import subprocess
import sys
from pathlib import Path

MOST = 5
FINAL = (
    "tests/faults/test_suites.py::",
    "tests/integration/api/test_connection.py::test_a_killed_server_loses_nothing_and_repeats_nothing",
    "tests/integration/api/test_connection.py::test_gathered_appends_survive_a_killed_server",
    "tests/integration/api/test_full_disk.py::test_many_in_flight_arrive_once_and_in_order",
    "tests/integration/api/test_groups.py::test_members_go_on_when_the_server_was_killed",
    "tests/integration/api/test_groups.py::test_what_a_killed_member_had_is_read_before_reading_ends",
    "tests/integration/api/test_processes.py::test_what_was_acknowledged_before_a_kill_is_there",
    "tests/integration/api/test_reading_rows.py::test_a_killed_server_costs_a_filtered_reader_nothing",
    "tests/integration/api/test_redrive_killed.py::",
    "tests/integration/api/test_sharing_faults.py::test_a_commit_whose_answer_died_with_the_server",
    "tests/integration/api/test_transactions.py::test_small_ones_happen_once_while_the_server_is_killed",
    "tests/integration/api/test_transactions.py::test_what_a_killed_server_had_not_committed_is_aborted",
    "tests/integration/api/test_upkeep_under_load.py::test_nobody_misses_or_repeats_anything",
    "tests/integration/cli/test_demo.py::test_killing_the_server_loses_nothing",
    "tests/integration/http/test_idempotency.py::test_killed_in_the_middle_of_requests",
    "tests/integration/mechanisms/test_kafka_log.py::test_k30_kills",
    "tests/integration/mechanisms/test_scribe_delivery.py::test_s76_s77_lost_answers",
    "tests/integration/mechanisms/test_scribe_delivery.py::test_s77",
    "tests/integration/mechanisms/test_scribe_groups.py::test_s82",
    "tests/integration/mechanisms/test_scribe_order.py::test_s81_killed",
    "tests/integration/mechanisms/test_scribe_writing.py::test_s5",
    "tests/spark/test_restart.py::test_nothing_is_lost_and_nothing_twice",
    "tests/spark/test_sink.py::test_a_batch_that_is_run_again_is_taken_once",
    "tests/spark/test_warehouse.py::test_a_load_that_is_killed_and_run_again_changes_nothing",
    "tests/spark/test_warehouse.py::test_a_run_that_is_cut_short_anywhere_is_done_once",
    "tests/unit/log/test_cooling_crash.py::",
    "tests/unit/log/test_full_disk.py::test_at_every_byte_at_which_the_disk_is_full",
    "tests/unit/log/test_recovery.py::",
    "tests/unit/log/test_transactions_crash.py::",
)


def main(report: str) -> int:
    try:
        failed = Path(report).read_text().splitlines()
    except FileNotFoundError:
        return 1  # something else than failing tests ended the run; pytest has said what
    if len(failed) > MOST or any(name.startswith(FINAL) for name in failed):
        return 1
    print(f"\n{len(failed)} failed beside the others; once more, alone:", flush=True)
    status = subprocess.call([sys.executable, "-m", "pytest", "-n", "0", *failed])
    if status == 0:
        print("\npassed alone, failed above; mend what makes them depend on how busy the machine is:")
        for name in failed:
            print(f"  {name}")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
