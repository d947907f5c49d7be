"""The rules of the suite hold, with and without workers."""

import json
from pathlib import Path

import pytest

from tests import suite_rules

pytestmark = pytest.mark.slow("each test starts pytest, some with workers, in child processes")

MARKERS = "[pytest]\nmarkers =\n    mechanism(*ids): x\n    slow(reason): x\n"

SKIPPED = """
import pytest
@pytest.mark.skip("needs a server; enable: make server")
def test_needs_server(): pass
@pytest.mark.xfail
def test_known(): assert False
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with only the rules in it, outside CI unless a test says otherwise."""
    monkeypatch.delenv("CI", raising=False)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(Path(suite_rules.__file__).read_text())
    pytester.makefile(".ini", pytest=MARKERS)
    return pytester


def test_a_skip_is_named_with_its_command(suite):
    suite.makepyfile(SKIPPED)
    result = suite.runpytest_subprocess()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*.py (1): needs a server", "    to enable: make server"])


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_skip_fails_the_run_in_ci(suite, monkeypatch, workers):
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(SKIPPED, test_module_level="import pytest\npytest.skip('no x', allow_module_level=True)")
    result = suite.runpytest_subprocess("-n", workers)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["FAILED: 2 skipped; with CI set every test must run"])


def test_a_slow_test_needs_a_reason(suite, monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("SUITE_SLOW_SECONDS", "0.01")
    suite.makepyfile("""
        import time, pytest
        def test_silent(): time.sleep(0.1)
        def test_in_vain(): time.sleep(0.1); assert False
        @pytest.mark.slow("sleeps")
        def test_explained(): time.sleep(0.1)
    """)
    result = suite.runpytest_subprocess("-p", "xdist", "-n", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*0.1 s*::test_silent", "FAILED: 1 over 0.06 s without a reason"])
    result.stdout.no_fnmatch_line("*0.1 s*::test_explained")
    result.stdout.no_fnmatch_line("*0.1 s*::test_in_vain")


def test_a_slow_mark_without_reason_is_refused(suite):
    suite.makepyfile("import pytest\n@pytest.mark.slow\ndef test_x(): pass")
    result = suite.runpytest_subprocess()
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*say why it is slow*"])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_mechanisms_are_reported_with_their_outcome(suite, workers):
    suite.makepyfile("""
        import pytest
        @pytest.mark.mechanism("S1", "K2")
        def test_good(): pass
        @pytest.mark.xdist_group("measure")
        @pytest.mark.mechanism("S4")
        def test_bad(): assert False
        @pytest.mark.mechanism("S5")
        def test_skipped(): pytest.skip("later")
        def test_unmarked(): pass
    """)
    suite.runpytest_subprocess("-n", workers, "--dist", "loadgroup", "--mechanisms-report", "out/report.json")
    tests = json.loads((suite.path / "out/report.json").read_text())["tests"]
    assert [(test["ids"], test["outcome"]) for test in tests] == [
        (["S4"], "failed"),
        (["K2", "S1"], "passed"),
        (["S5"], "skipped"),
    ]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_failures_are_named_as_pytest_takes_them(suite, workers):
    suite.makepyfile(
        test_some="""
        import pytest
        def test_good(): pass
        @pytest.mark.parametrize("name", ["a@b", "c"])
        def test_bad(name): assert name == "c"
        @pytest.mark.xdist_group("measure")
        def test_grouped(): assert False
    """
    )
    suite.runpytest_subprocess("-n", workers, "--dist", "loadgroup", "--failures-report", "out/failures.txt")
    failures = set((suite.path / "out/failures.txt").read_text().splitlines())
    assert failures == {"test_some.py::test_bad[a@b]", "test_some.py::test_grouped"}


@pytest.mark.parametrize(
    "other", ["pytest.skip('later')", "os.kill(os.getpid(), 9)", "time.sleep(1)"], ids=["skip", "crash", "slow"]
)
def test_failures_beside_something_worse_have_no_second_try(suite, monkeypatch, other):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("SUITE_SLOW_SECONDS", "0.1")
    suite.makepyfile(f"import os, time, pytest\ndef test_bad(): assert False\ndef test_other(): {other}")
    (suite.path / "failures.txt").write_text("of the last run")
    assert suite.runpytest_subprocess("-n", "1", "--failures-report", "failures.txt").ret == 1
    assert not (suite.path / "failures.txt").exists()
