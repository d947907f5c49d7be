"""A slice of every fault suite, and the proof that its planted bug turns it red."""

import logging

import pytest

from mainstem.testing import planted
from tests.faults.suites import SUITES

SLICES = [name for name, suite in SUITES.items() if suite.slice]
PLANTED = [(name, bug) for name, suite in SUITES.items() for bug in suite.bugs]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What a log says about damage is of no interest here: there is so much of it."""
    caplog.set_level(logging.CRITICAL, "mainstem")


@pytest.mark.parametrize("name", SLICES)
def test_nothing_acknowledged_suffers(name, tmp_path):
    suite = SUITES[name]
    result = suite.run(1, suite.slice, tmp_path)
    assert result.findings == []
    assert result.trials >= suite.slice
    assert (result.lost, result.duplicated) == (0, 0)


@pytest.mark.parametrize(("name", "bug"), PLANTED)
def test_a_planted_bug_turns_the_suite_red(name, bug, tmp_path):
    suite = SUITES[name]
    with planted.BUGS[bug]():
        result = suite.run(1, suite.bugs[bug], tmp_path)
    assert result.findings, f"{bug} was not noticed in {result.trials} trials of {name}"
