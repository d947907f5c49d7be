"""The page about groups and transactions runs as it stands: its programs, its commands, and what these print."""

import re
from pathlib import Path

import pytest

from tests.docs.test_guide import ROOT, run
from tests.docs.test_operations import pattern

BLOCK = re.compile(r"^```(python|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "groups.md").read_text(encoding="utf-8")


def shown(text: str) -> list[tuple[str, list[str]]]:
    """Commands with the output that they are to have."""
    commands: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line.removeprefix("$ "), []))
        else:
            commands[-1][1].append(line)
    return commands


@pytest.mark.slow("runs the whole page, with a server, a program that is killed and some commands")
def test_the_page_runs(tmp_path: Path) -> None:
    paths: list[Path] = []
    expected: dict[Path, list[str]] = {}
    for number, (language, text) in enumerate(BLOCK.findall(PAGE)):
        path = tmp_path / f"{number:02d}.{'py' if language == 'python' else 'sh'}"
        if language == "console":
            outputs = [tmp_path / f"{number:02d}-{index}.out" for index in range(len(shown(text)))]
            expected |= dict(zip(outputs, (output for _, output in shown(text)), strict=True))
            lines = zip(shown(text), outputs, strict=True)
            text = "".join(f"{command} > {output} 2>&1\n" for (command, _), output in lines)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    done = run(tmp_path, *paths)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert expected
    for path, output in expected.items():
        assert re.fullmatch(pattern(output), path.read_text()), path.read_text()
