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
        if name.startswith((b"MAINSTEM_", b"API")):
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


KILLED = """
import os, sys
import mainstem
from mainstem.produce.transaction import Transaction

place, left = sys.argv[1], int(sys.argv[2])

def dying(method, is_before):
    def call(self, *arguments):
        global left
        left -= 1
        if is_before and left == 0:
            os.kill(os.getpid(), 9)
        method(self, *arguments)
        if left == 0:
            os.kill(os.getpid(), 9)
    return call

if place != "nowhere":
    name = "advance" if place == "between" else "commit"
    is_before = place != "after it"
    setattr(Transaction, name, dying(getattr(Transaction, name), is_before))
hub = mainstem.open("./shop")
"""


@pytest.mark.slow("five processes, one after the other")
def test_the_worked_example_is_exactly_once_wherever_it_is_killed(tmp_path):
    """Read, transform and write, as the guide has it, killed before a commit, after one, and between its steps."""
    import mainstem

    (example,) = (text for _, text in blocks(ROOT / "docs" / "guide.md") if "tx.advance(consumer)" in text)
    loop = example[example.index("with hub.consumer") : example.index("assert ")]
    with mainstem.open(tmp_path / "shop") as hub:
        hub.streams.create("orders", shards=3)
        hub.streams.create("sizes")
        with hub.producer(batch_bytes=1_024) as producer:
            for number in range(1_006):
                producer.send("orders", b"x" * number, key=b"%d" % number)
    for place, count in (("before it", 2), ("between", 3), ("after it", 1), ("before it", 1), ("nowhere", 0)):
        command = [sys.executable, "-c", KILLED + loop, place, str(count)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == (0 if place == "nowhere" else -9), done.stderr
    with mainstem.open(tmp_path / "shop") as hub, hub.consumer("sizes", start="earliest", follow=False) as consumer:
        assert sorted(int(record.value) for record in consumer) == list(range(1_006))
