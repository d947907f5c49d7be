"""The commands of the operations guide run as they stand and print what it shows.

A section (`## ...`) is one session in an empty folder. In a `console` block a line that begins with `$ ` is a command,
and what follows it is the output it has to have; without any, the output does not matter. `...` stands for anything in
a line, and alone in a line for any number of lines. Every command must end with code 0.
"""

import ast
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CURL = f"""#!{sys.executable}
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[-1], timeout=20).read().decode(), end="")
"""


def sections() -> dict[str, list[tuple[str, list[str]]]]:
    """Commands with the output that is shown, by the title of their section."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        commands: list[tuple[str, list[str]]] = []
        for line in "".join(BLOCK.findall(section)).splitlines():
            if line.startswith("$ "):
                commands.append((line.removeprefix("$ "), []))
            else:
                commands[-1][1].append(line)
        if commands:
            found[section.splitlines()[0]] = commands
    return found


def pattern(shown: list[str]) -> str:
    """A regular expression for the whole output."""
    parts = []
    for line in shown:
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(re.escape(part) for part in line.split("...")) + r" *\n")
    return "".join(parts)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def script(commands: list[tuple[str, list[str]]], ports: list[int]) -> str:
    """All commands in one shell, each followed by a line with its number and exit code."""
    lines = ["exec 2>&1"]
    for number, (command, _) in enumerate(commands):
        # The ports of the guide are the default ones; those of a test are free ones.
        for documented, free in zip(("127.0.0.1:7070", "127.0.0.1:7071"), ports, strict=True):
            command = command.replace(documented, f"127.0.0.1:{free}")
        # On a line of its own, also after output that does not end one.
        lines += [command, f"printf '\\n=== {number} %d\\n' $?"]
    return "\n".join(lines) + "\n"


def environment(folder: Path, ports: list[int]) -> dict[str, str]:
    programs = folder / "bin"
    programs.mkdir()
    (programs / "mainstem").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mainstem "$@"\n')
    if shutil.which("curl") is None:
        (programs / "curl").write_text(CURL)
    for program in programs.iterdir():
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSTEM_", "NOTIFY_"))}
    return kept | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "MAINSTEM_LISTEN": f"127.0.0.1:{ports[0]}",
        "MAINSTEM_HTTP": f"127.0.0.1:{ports[1]}",
        "MAINSTEM_URL": f"mainstem://127.0.0.1:{ports[0]}",
    }


@pytest.mark.slow("starts servers and a dozen commands")
@pytest.mark.parametrize("title", sections())
def test_a_section_runs(tmp_path, title):
    commands = sections()[title]
    ports = free_ports(2)
    work = tmp_path / "work"
    work.mkdir()
    shell = subprocess.Popen(
        ["bash", "-c", script(commands, ports)],
        cwd=work,
        env=environment(tmp_path, ports),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=100)
    finally:
        # Servers that a section leaves running.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    left = printed
    for number, (command, shown) in enumerate(commands):
        ended = re.search(rf"^=== {number} (\d+)\n", left, re.MULTILINE)
        assert ended is not None, f"$ {command}\n{left}"
        output, left = left[: ended.start()].removesuffix("\n"), left[ended.end() :]
        output = output if not output or output.endswith("\n") else f"{output}\n"
        assert ended[1] == "0", f"$ {command}\n{output}"
        # What a test has other ports for is shown with those of the guide.
        for documented, free in zip(("127.0.0.1:7070", "127.0.0.1:7071"), ports, strict=True):
            output = output.replace(f"127.0.0.1:{free}", documented)
        assert not shown or re.fullmatch(pattern(shown), output), f"$ {command}\n{output}"


def test_every_field_of_a_log_line_is_in_the_guide():
    used = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Event":
                used |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    table = PAGE.read_text(encoding="utf-8").split("| field | meaning |")[1].split("\n\n")[0]
    assert used - set(re.findall(r"`(\w+)`", table)) == set()


def test_there_is_something_to_run():
    assert len(sections()) >= 3
    assert sum(map(len, sections().values())) >= 12


@pytest.mark.parametrize(
    ("shown", "output", "fits"),
    [
        (["ready ..."], "ready {}\n", True),
        (["ready ..."], "steady {}\n", False),
        (["a", "...", "z"], "a\nb\nc\nz\n", True),
        (["a", "...", "z"], "a\nz\n", True),
        (["a", "..."], "a\n", True),
        (["a"], "a\nb\n", False),
        (["(1 + 1)"], "(1 + 1)\n", True),
    ],
)
def test_how_output_is_compared(shown, output, fits):
    assert bool(re.fullmatch(pattern(shown), output)) is fits
