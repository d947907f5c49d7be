"""The guide and the example of the README run as they stand."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Runs one file after the other with the same names, and hands variables that a shell block exports to those after it.
RUNNER = """
import os, subprocess, sys
names = {"__name__": "__main__"}
for path in sys.argv[1:]:
    print("---", path, flush=True)
    if path.endswith(".py"):
        exec(compile(open(path).read(), path, "exec"), names)
        continue
    subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", f'source "{path}"; env -0 > variables'], check=True)
    for line in open("variables", "rb").read().split(b"\\0"):
        name, found, value = line.partition(b"=")
        if name.startswith(b"MAINSTEM_"):
            os.environb[name] = value
"""


def blocks(path: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def environment(folder: Path) -> dict[str, str]:
    """`mainstem` is the command of this interpreter, installed or not."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "mainstem").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mainstem "$@"\n')
    (programs / "mainstem").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
    return kept | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def run(folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    work = folder / "work"
    work.mkdir()
    try:
        return subprocess.run(
            [sys.executable, "-c", RUNNER, *map(str, paths)],
            cwd=work,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    finally:
        if (work / "server.pid").exists():
            _kill(int((work / "server.pid").read_text()))


def _kill(pid: int) -> None:
    """End the server the guide has started, if a failed block left it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.slow("runs the whole guide, with a server and some twenty commands")
def test_the_guide_runs(tmp_path):
    paths = []
    for number, (language, text) in enumerate(blocks(ROOT / "docs" / "guide.md"), 1):
        path = tmp_path / f"{number:02d}.{'py' if language == 'python' else 'sh'}"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    assert len(paths) > 15
    done = run(tmp_path, *paths)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_example_of_the_readme_runs(tmp_path):
    ((language, text),) = blocks(ROOT / "README.md")
    assert language == "python"
    assert len([line for line in text.splitlines() if line.strip() and not line.startswith("import")]) == 9
    path = tmp_path / "readme.py"
    path.write_text(text, encoding="utf-8")
    done = run(tmp_path, path)
    assert done.returncode == 0, done.stderr[-3000:]
    shard = done.stdout.splitlines()[1].strip("()").split(",")[0]
    assert done.stdout.splitlines()[1:] == [f"({shard}, 0)", f"{shard} 0 b'user-7' b'/pricing'"]
