"""`mainstem top` as a process: in a pipe, as JSON, and live in a terminal."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from tests.integration.cli.conftest import COMMAND, environment

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


def test_one_page(cli, name):
    cli.run("stream", "create", name, "--shards", "2")
    cli.run("write", name, stdin=b"a\nb\nc\n")
    text = cli.out("top", "--once", "--interval", "0.1")
    assert any(line.split()[:3] == [name[:48], "2", "3"] for line in text.splitlines()), text
    assert "\x1b" not in text
    assert cli.out("top", "--interval", "0.1").splitlines()[0].split()[0] == text.splitlines()[0].split()[0]


def test_json(cli, name):
    cli.run("stream", "create", name)
    cli.run("write", name, stdin=b"a\nb\n")
    found = json.loads(cli.out("top", "--json", "--interval", "0.1"))
    (info,) = [info for info in found["streams"] if info["name"] == name]
    assert info["ends"] == [2]
    assert str(info["id"]) in found["rates"]["streams"]
    assert found["counters"]["blocks"] >= 1
    assert (found["connections"] is None) == ("--data" in cli.where)


def test_what_cannot_be(local):
    assert "there is no log in data" in local.error("top", "--once", code=5)
    assert "two logs" in local.error("top", "--url", "mainstem://127.0.0.1:1", code=2)
    local.where = []
    assert "127.0.0.1:1" in local.error("top", "--url", "mainstem://127.0.0.1:1", code=4)
    assert "--interval" in local.error("top", "--interval", "0", code=2)


class Terminal:
    """The command in a terminal of a given size."""

    def __init__(self, arguments: list[str], folder: str, rows: int, columns: int) -> None:
        self.master, slave = pty.openpty()
        self._size(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TERM="xterm-256color"),
            start_new_session=True,
        )
        self.seen = ""

    def _size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, text: str, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < until, self.seen[-3000:]
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 1 << 16).decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        """Its exit code; the terminal is as it was."""
        try:
            until = time.monotonic() + 20
            while self.process.poll() is None:
                assert time.monotonic() < until
                if select.select([self.master], [], [], 0.05)[0]:
                    self.seen += os.read(self.master, 1 << 16).decode(errors="replace")
            while select.select([self.master], [], [], 0)[0]:
                self.seen += os.read(self.master, 1 << 16).decode(errors="replace")
            assert termios.tcgetattr(self.slave) == self.before
            # Out of the alternate screen, and with a cursor.
            assert self.seen.rindex("\x1b[?1049l") > self.seen.rindex("\x1b[?1049h")
            assert self.seen.rindex("\x1b[?25h") > self.seen.rindex("\x1b[?25l")
            return self.process.returncode
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.master)
            os.close(self.slave)


@pytest.mark.parametrize(("how", "code"), [("q", 0), ("ctrl-c", 0), ("term", 143)])
def test_live_until_it_is_ended(remote, name, how, code):
    remote.run("stream", "create", name)
    remote.run("write", name, stdin=b"a\nb\n")
    terminal = Terminal(["top", "--interval", "0.2", *remote.where], str(remote.folder), 40, 150)
    terminal.read_until("STREAM")
    # A second page, with rates.
    terminal.read_until("in 0 rec/s")
    if how == "q":
        terminal.press(b"xq")
    elif how == "ctrl-c":
        terminal.process.send_signal(signal.SIGINT)
    else:
        terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == code


def test_a_tiny_terminal(remote, name):
    remote.run("stream", "create", name)
    terminal = Terminal(["top", "--interval", "0.2", *remote.where], str(remote.folder), 4, 12)
    terminal.read_until("mainstem")
    time.sleep(0.5)
    terminal.press(b"q")
    assert terminal.end() == 0
