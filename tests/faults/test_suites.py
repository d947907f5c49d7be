"""A slice of every fault suite, and the proof that its planted bugs turn it red."""

import logging

import pytest

from mainstem.testing import planted
from tests.faults import cut
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


def test_every_suite_has_a_slice_and_a_bug_that_turns_it_red():
    assert [name for name, suite in SUITES.items() if not (suite.slice and suite.bugs)] == []


@pytest.mark.slow("repeats a suite until chance has shown the bug")
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
