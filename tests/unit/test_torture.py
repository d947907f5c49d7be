"""The torture runner: it goes on where it stopped, and only for the code it was."""

import argparse
import subprocess
import sys

import pytest

from tests.faults.suites import SUITES
from tests.torture import __main__ as torture
from tests.torture.results import Results, Row, code_version


def row(**changes):
    values = {
        "commit": "abc",
        "date": "2026-01-01T00:00:00Z",
        "suite": "cut",
        "seed": 0,
        "trials": 12_000,
        "acknowledged": 5,
        "lost": 0,
        "duplicated": 0,
        "findings": 0,
        "worst_seconds": 0.25,
        "seconds": 10.5,
    }
    return Row(**{**values, **changes})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A runner with an empty table of results, for the code `abc`."""
    monkeypatch.setattr(torture, "code_version", lambda: "abc")
    monkeypatch.setattr(torture, "Results", lambda: Results(tmp_path / "results" / "faults.csv"))
    return torture.Torture(argparse.Namespace(suites=["cut"], minutes=None, seed=0, once=False, folder=None))


def test_rows_come_back_as_they_were(tmp_path):
    results = Results(tmp_path / "faults.csv")
    assert results.rows() == []
    results.append(row())
    results.append(row(seed=1, suite="flips"))
    assert results.rows() == [row(), row(seed=1, suite="flips")]
    assert results.of("abc", "flips") == [row(seed=1, suite="flips")]
    assert results.of("other", "flips") == []


def test_a_new_run_covers_the_full_count(run):
    chunks = run._chunks("cut")
    assert sum(chunk.trials for chunk in chunks) >= SUITES["cut"].full
    assert [chunk.seed for chunk in chunks] == list(range(len(chunks)))


def test_a_run_goes_on_with_the_seeds_that_are_left(run):
    run._results.append(row(seed=0))
    run._results.append(row(seed=2))
    run._results.append(row(seed=3, commit="other"))
    chunks = run._chunks("cut")
    assert [chunk.seed for chunk in chunks[:3]] == [1, 3, 4]
    assert sum(chunk.trials for chunk in chunks) >= SUITES["cut"].full - 2 * 12_000


def test_nothing_is_left_when_all_is_done(run):
    run._results.append(row(trials=SUITES["cut"].full))
    assert run._chunks("cut") == []
    assert run.run() == 0


def test_an_earlier_finding_still_fails_the_run(run):
    run._results.append(row(trials=SUITES["cut"].full, findings=1))
    assert run.run() == 1


def test_a_chunk_that_crashes_is_a_finding(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = torture._run_in_process(torture.Chunk("cut", 0, 1), None)
    assert result.findings_count == 1


def test_a_chunk_reports_what_its_suite_found():
    result = torture._run_in_process(torture.Chunk("fuzz_wire", 3, 2_000), None)
    assert (result.trials, result.findings) == (2_000, [])


def test_the_list_names_every_suite():
    command = [sys.executable, "-m", "tests.torture", "--list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert all(name in listed for name in SUITES)


def test_the_code_has_a_version():
    assert len(code_version()) >= 7
