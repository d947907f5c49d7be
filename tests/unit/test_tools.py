"""The scripts in tools/ refuse what they should."""

import json
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"

LIST = """id,system,name,paper,as,note
A1,Alpha,First,x,built,
A2,Alpha,Second,x,adapted,It differs.
A3,Alpha,Third,x,,
B1,Beta,Fourth,x,built,
"""


@pytest.fixture
def mechanisms(monkeypatch, tmp_path):
    """`tools/mechanisms.py` over a list of four; call it with (id, outcome) pairs for its exit status."""
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.delitem(sys.modules, "mechanisms", raising=False)
    import mechanisms

    monkeypatch.setattr(mechanisms, "LIST", tmp_path / "mechanisms.csv")
    (tmp_path / "mechanisms.csv").write_text(LIST)

    def run(*outcomes: tuple[str, str]) -> int:
        tests = [{"test": f"test_{name}", "ids": [name], "outcome": outcome} for name, outcome in outcomes]
        (tmp_path / "report.json").write_text(json.dumps({"tests": tests}))
        return mechanisms.main([str(tmp_path / "report.json")])

    return run


def test_mechanisms_counts_ways_apart_and_names_the_missing(mechanisms, capsys):
    assert mechanisms(("A1", "passed"), ("A2", "passed"), ("B1", "skipped")) == 1
    said = capsys.readouterr()
    assert "claims that B1 is built, and no passing test demonstrates it" in said.err
    lines = [line.split() for line in said.out.splitlines()]
    assert ["Alpha", "3", "1", "1", "0", "0"] in lines
    assert ["Beta", "1", "0", "0", "0", "1"] in lines
    assert ["B1", "Fourth", "(built)"] in lines


def test_mechanisms_has_nothing_to_say_when_all_is_demonstrated(mechanisms, capsys):
    assert mechanisms(("A1", "passed"), ("A2", "passed"), ("B1", "passed")) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ([("A1", "passed"), ("A1", "failed")], "a test of A1 failed"),
        ([("Z9", "passed")], "does not list"),
        ([("A3", "passed")], "still blank"),
    ],
)
def test_mechanisms_refuses(mechanisms, capsys, outcomes, message):
    assert mechanisms(*outcomes) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT AND Zlib", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-only OR MIT", True),
        ("", False),
    ],
)
def test_licences_reads_expressions(monkeypatch, expression, allowed):
    monkeypatch.syspath_prepend(TOOLS)
    import licences

    assert licences.is_allowed(expression) is allowed


# In pieces, so that this file does not name an index itself.
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pip install --extra-" + "index-url somewhere x", 1),
        ("index-" + "url = somewhere", 1),
        ("uv pip install --index https:" + "//somewhere x", 1),
        ("mainstem stream create orders --index country", 0),
        ("--no-emit-index-url --generate-hashes", 0),
        ("see https://packages.example/" + "simple/numpy", 1),
        ("https://keepachangelog.com/en/1.1.0/", 0),
    ],
)
def test_addresses_finds_an_index(monkeypatch, tmp_path, text, found):
    monkeypatch.syspath_prepend(TOOLS)
    import addresses

    (tmp_path / "file").write_text(text)
    assert len(list(addresses.matches(tmp_path / "file"))) == found


@pytest.fixture
def again(monkeypatch, tmp_path):
    """`tools/again.py` in a folder of its own, with the names of failed tests; gives its exit status."""
    monkeypatch.syspath_prepend(TOOLS)
    import again

    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_some.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")

    def run(*failed: str) -> int:
        (tmp_path / "failures.txt").write_text("\n".join(failed))
        return again.main("failures.txt")

    return run


@pytest.mark.slow("starts pytest")
def test_again_names_what_passes_alone(again, capfd):
    assert again("test_some.py::test_good") == 0
    out = capfd.readouterr().out
    assert "1 passed" in out
    assert out.index("passed alone, failed above") < out.index("  test_some.py::test_good")


@pytest.mark.slow("starts pytest")
def test_again_believes_a_second_failure(again):
    assert again("test_some.py::test_good", "test_some.py::test_bad") == 1


def test_again_gives_no_second_try_to_faults_nor_to_many(again, capfd):
    assert again("tests/faults/test_suites.py::test_nothing_acknowledged_suffers[cut]") == 1
    assert again("tests/integration/mechanisms/test_scribe_groups.py::test_s82") == 1
    assert again(*["test_some.py::test_good"] * 6) == 1
    assert capfd.readouterr().out == ""


def test_again_knows_its_final_tests_by_their_names(again):
    """A test that is called otherwise by now would get a second try without anybody having said so."""
    import again as tool

    for name in tool.FINAL:
        file, _, test = name.partition("::")
        assert f"\ndef {test}" in (TOOLS.parent / file).read_text(), name


def test_again_without_a_report_means_that_something_worse_happened(again, tmp_path):
    (tmp_path / "failures.txt").unlink(missing_ok=True)
    import again as tool

    assert tool.main("failures.txt") == 1
