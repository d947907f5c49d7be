"""What the page about security shows in Python runs, and says what it says."""

import pytest

from tests.docs.test_guide import ROOT, blocks, run

EACH = "Quota(principal='*', measure='connections', limit=50, mode='limit')"
SENSORS = "Quota(principal='sensors', measure='write_bytes', limit=5000000, mode='sample')"
SAID = [
    ["the rule 'allow alice read orders' allows it", "the rule 'deny * delete orders' denies it"],
    [f"[{EACH}, {SENSORS}]"],
]


@pytest.mark.parametrize("number", range(len(SAID)))
def test_the_examples_run(tmp_path, number):
    found = [text for language, text in blocks(ROOT / "docs" / "security.md") if language == "python"]
    assert len(found) == len(SAID)
    path = tmp_path / "security.py"
    path.write_text(found[number], encoding="utf-8")
    done = run(tmp_path, path)
    assert done.returncode == 0, done.stderr[-3000:]
    # Before it there may be what the program says of its log.
    assert done.stdout.splitlines()[-len(SAID[number]) :] == SAID[number]
