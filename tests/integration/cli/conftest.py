"""The command line as a user runs it: real processes, in a temporary folder, without variables of this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "mainstem"]
TIMEOUT_S = 60


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | variables


class Cli:
    """Runs commands in one folder; `url` or `data`, if set, is added to those that take it."""

    def __init__(self, folder: Path, where: Sequence[str] = ()) -> None:
        self.folder = folder
        self.where = list(where)

    def run(
        self, *arguments: str, code: int = 0, stdin: bytes = b"", where: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end and require its exit code."""
        done = subprocess.run(
            [*COMMAND, *arguments, *(self.where if where else ())],
            check=False,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment(**variables),
        )
        assert done.returncode == code, (arguments, done.returncode, done.stderr.decode()[-2000:])
        return done

    def out(self, *arguments: str, **options) -> str:
        return self.run(*arguments, **options).stdout.decode()

    def error(self, *arguments: str, code: int, **options) -> str:
        """The one line on standard error of a command that fails."""
        text = self.run(*arguments, code=code, **options).stderr.decode()
        assert text.count("\n") == 1, text
        assert "Traceback" not in text
        return text.strip()

    def start(self, *arguments: str, where: bool = True, **options) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments, *(self.where if where else ())], cwd=self.folder, env=environment(), **options
        )

    def shell(self, line: str) -> str:
        """Run a pipeline in bash; `mainstem` is the command with the log it works on."""
        mainstem = f'mainstem() {{ "{sys.executable}" -m mainstem "$@" {" ".join(self.where)}; }}\n'
        done = subprocess.run(
            ["bash", "-c", mainstem + line],
            check=False,
            cwd=self.folder,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return done.stdout.decode()


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[str]:
    """The url of a server that the tests of this process share."""
    folder = tmp_path_factory.mktemp("server")
    command = [*COMMAND, "serve", "--data", "data", "--listen", "127.0.0.1:0", "--http", "off"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, env=environment())
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line.startswith("ready "), (folder / "log").read_text()
    yield f"mainstem://{json.loads(line.removeprefix('ready '))['data']}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, (folder / "log").read_text()
    process.stdout.close()


@pytest.fixture
def remote(tmp_path, server) -> Cli:
    """Commands that ask the shared server. Streams need names of their own."""
    return Cli(tmp_path, ["--url", server])


@pytest.fixture
def local(tmp_path) -> Cli:
    """Commands that work on a folder themselves."""
    return Cli(tmp_path, ["--data", "data"])


@pytest.fixture(params=["remote", "local"])
def cli(request) -> Cli:
    """Both ways."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def name(request) -> str:
    """A stream name that no other test uses."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-100:]
