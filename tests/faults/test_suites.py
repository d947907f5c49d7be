"""A slice of every fault suite, and the proof that its planted bugs turn it red."""

import logging

import pytest

from mainstem.testing import planted
from tests.faults import restart_large
from tests.faults.suites import SUITES

SLICES = [name for name, suite in SUITES.items() if suite.slice]
PLANTED = [(name, bug) for name, suite in SUITES.items() for bug in suite.bugs]
# A bug that shows itself by chance gets this many chances.
ROUNDS = 10


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What a log says about damage is of no interest here: there is so much of it."""
    caplog.set_level(logging.CRITICAL, "mainstem")


@pytest.mark.slow("starts, kills and damages things many times")
@pytest.mark.parametrize("name", SLICES)
def test_nothing_acknowledged_suffers(name, tmp_path):
    suite = SUITES[name]
    result = suite.run(1, suite.slice, tmp_path)
    assert result.findings == []
    assert result.trials >= suite.slice
    assert (result.lost, result.duplicated) == (0, 0)


def test_a_large_folder_is_served_again_at_once(tmp_path):
    """The full size is a gigabyte; this one only shows that the suite works."""
    result = restart_large.run(1, 1, tmp_path, megabytes=4)
    assert (result.findings, result.trials) == ([], 1)


@pytest.mark.slow("repeats a suite until chance has shown the bug")
@pytest.mark.parametrize(("name", "bug"), PLANTED)
def test_a_planted_bug_turns_the_suite_red(name, bug, tmp_path):
    suite = SUITES[name]
    trials = 0
    with planted.BUGS[bug]():
        for seed in range(1, ROUNDS + 1):
            place = tmp_path / str(seed)
            place.mkdir()
            result = suite.run(seed, suite.bugs[bug], place)
            trials += result.trials
            if result.findings:
                return
    pytest.fail(f"{bug} was not noticed in {trials} trials of {name}")
