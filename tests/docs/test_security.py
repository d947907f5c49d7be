"""What the page about security shows in Python runs, and says what it says."""

from tests.docs.test_guide import ROOT, blocks, run


def test_the_example_runs(tmp_path):
    ((language, text),) = blocks(ROOT / "docs" / "security.md")
    assert language == "python"
    path = tmp_path / "security.py"
    path.write_text(text, encoding="utf-8")
    done = run(tmp_path, path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[1:] == [
        "the rule 'allow alice read orders' allows it",
        "the rule 'deny * delete orders' denies it",
    ]
