"""A slice of every fault suite, and the proof that its planted bugs turn it red."""

import logging
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainstem.testing import planted
from tests.faults import cut, kill_jobs, kill_spark, striking
from tests.faults.mounts import can_mount
from tests.faults.places import temporary_folder
from tests.faults.suites import SUITES

PLANTED = [(name, bug) for name, suite in SUITES.items() for bug in suite.bugs]
# A bug that shows itself by chance gets this many chances.
ROUNDS = 10


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What a log says about damage is of no interest here: there is so much of it."""
    caplog.set_level(logging.CRITICAL, "mainstem")


@pytest.mark.slow("starts, kills and damages things many times")
@pytest.mark.parametrize("name", SUITES)
def test_nothing_acknowledged_suffers(name):
    suite = SUITES[name]
    with temporary_folder(on_disk=suite.on_disk) as place:
        result = suite.run_small(1, suite.slice, place)
    assert result.findings == []
    assert result.trials >= suite.slice
    assert (result.lost, result.duplicated) == (0, 0)


def test_every_byte_is_cut():
    assert cut.count() <= SUITES["cut"].full


def test_every_gap_of_spark_is_met_twice():
    jobs, sink = SUITES["kill_jobs"], SUITES["kill_spark"]
    assert all(suite.chunk == of.CHUNK for suite, of in ((jobs, kill_jobs), (sink, kill_spark)))
    assert all(suite.full >= max(60, 2 * suite.chunk) for suite in (jobs, sink))
    every = {(job, step) for job, steps in kill_jobs.JOBS.items() for step in (*steps, striking.TASK)}
    for seed in range(20):
        lives = [kill_jobs.gaps(seed, life) for life in range(kill_jobs.DRIVER_KILLS)]
        assert {gap for steps in lives for gap in steps.items()} == every
    assert {step for step, _ in kill_spark.DRIVER_KILLS} == set(kill_spark.STEPS)
    copied = set(kill_spark.COPY_STEPS.values())
    assert len(copied) == len(kill_spark.STEPS), "each of them in a life"
    # It writes through a server, where a commit copies nothing.
    assert copied == {*kill_spark.STEPS, *kill_spark.SOURCE_STEPS} - set(kill_spark.IN_FOLDERS)
    executors = {(step, name) for step, victim, name in kill_spark.CLUSTER_KILLS if victim == striking.EXECUTOR}
    assert len(executors) == 3 * len(kill_spark.PIPELINES) + 1


def test_a_step_at_which_nobody_is_killed_is_told():
    reported = {job: {*steps} - {kill_jobs.DELETING} for job, steps in kill_jobs.JOBS.items()}
    assert kill_jobs.unlike_table(reported) == []
    reported["append"].add("tidied")
    reported["into"].remove("delivered")
    told = ["append reports 'tidied', and nobody is killed there", "into never reports 'delivered'"]
    assert kill_jobs.unlike_table(reported) == told
    del reported["audit"]
    assert len(kill_jobs.unlike_table(reported)) == 2 + len(kill_jobs.JOBS["audit"])


def test_the_page_says_how_often_each_suite_tries():
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    told = {name: int(count.replace(",", "")) for name, count in re.findall(r"(?m)^\| `(\w+)` .* ([\d,]+) \|$", page)}
    assert told == {name: suite.full for name, suite in SUITES.items()}


def test_a_strike_that_killed_nobody_is_told(tmp_path):
    steps = {"job": ("write", 1)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        striking.arm(tmp_path, 0, steps, "child", {"child": child.pid})
        striking.come_to("job", "planned", tmp_path)
        striking.come_to("job", "write", tmp_path)
        assert striking.missed(tmp_path, 0, steps, "child") == ["job did not come to 'write'"]
        striking.come_to("job", "write", tmp_path)
        assert child.wait(10) == -signal.SIGKILL
    assert striking.missed(tmp_path, 0, steps, "child") == []
    assert striking.missed(tmp_path, 0, steps, "child executor") == ["no executor was struck"]


def test_every_suite_has_a_slice_and_a_bug_that_turns_it_red():
    assert [name for name, suite in SUITES.items() if not (suite.slice and suite.bugs)] == []


@pytest.mark.slow("repeats a suite until chance has shown the bug")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "bug"), PLANTED)
def test_a_planted_bug_turns_the_suite_red(name, bug):
    assert is_noticed(name, bug, SUITES[name].bugs[bug])


@pytest.mark.slow("repeats a suite until chance has shown the bug")
def test_a_write_that_is_not_synced_is_seen_when_the_power_goes():
    """Crash clones cannot show it: they believe what the log calls durable."""
    if not can_mount():
        pytest.skip("cutting the power of a file system needs the right to mount one; enable: sudo make test")
    assert is_noticed("power_loss", "ack_before_sync", 3)


def is_noticed(name, bug, trials):
    suite = SUITES[name]
    with planted.BUGS[bug]():
        for seed in range(1, ROUNDS + 1):
            with temporary_folder(on_disk=suite.on_disk) as place:
                if suite.run_small(seed, trials, place).findings:
                    return True
    return False
