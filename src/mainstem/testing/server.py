"""A real server process for a test: any free port, its own folder, its log lines shown when it fails.

    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        server.kill()
        server.start()

It comes back on the same folder and the same port, so that clients find it again.
"""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from mainstem.testing import planted

READY_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 30.0
_STDERR_SHOWN_BYTES: Final = 4_000


class ServerFailed(Exception):
    """The server did not start, or ended by itself; the message ends with the last of its log lines."""


class ServerProcess:
    """`mainstem serve` on one folder. One thread. As a context manager it starts, and stops when the block ends.

    The first start takes any free port and every later one the same, so that clients find it again. Its standard error
    goes to a file next to the folder, and the end of it into every exception.
    """

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.address = "127.0.0.1:0"
        # From the start of the process until it said that it accepts.
        self.start_seconds = 0.0
        self._arguments = arguments
        self._environment = environment or {}
        self._stderr = folder.with_name(folder.name + ".stderr")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mainstem://{self.address}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> "ServerProcess":
        """Start it and wait until it accepts connections."""
        assert not self.is_running, "it runs already"
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = planted.command(
            "mainstem",
            *("serve", "--data", str(self.folder), "--listen", self.address, "--http", "off", "--kafka", "off"),
            *self._arguments,
        )
        started = time.perf_counter()
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, **self._environment}
            )
        ready = self._read_ready(started + READY_SECONDS_MAX)
        self.start_seconds = time.perf_counter() - started
        self.address = json.loads(ready)["data"]
        return self

    def kill(self) -> None:
        """`kill -9`, and wait until the process is gone."""
        process = self._running()
        process.kill()
        process.wait()
        self._close()

    def stop(self) -> int:
        """SIGTERM, as an operator stops it; the exit code."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerFailed(f"the server did not stop within {STOP_SECONDS_MAX} s\n{self.stderr()}") from None
        finally:
            self._close()
        return code

    def memory_bytes(self) -> int:
        """The process's resident memory (Linux)."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def stderr(self) -> str:
        """The end of what it has said on standard error."""
        return self._stderr.read_bytes()[-_STDERR_SHOWN_BYTES:].decode(errors="replace")

    def __enter__(self) -> "ServerProcess":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        if self.is_running:
            self.stop()
        self._close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed("the server was not started")
        code = self._process.poll()
        if code is not None:
            raise ServerFailed(f"the server ended by itself with {code}\n{self.stderr()}")
        return self._process

    def _read_ready(self, deadline: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.perf_counter()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._process.kill()
                self._process.wait()
                raise ServerFailed(f"the server was not ready within {READY_SECONDS_MAX} s\n{self.stderr()}")
            piece = os.read(self._process.stdout.fileno(), 4_096)
            if not piece:
                code = self._process.wait()
                self._close()
                raise ServerFailed(f"the server ended with {code} before it was ready\n{self.stderr()}")
            line += piece
        word, _, addresses = line.decode().partition(" ")
        if word != "ready":
            self._process.kill()
            raise ServerFailed(f"the server said {line!r} instead of ready\n{self.stderr()}")
        return addresses

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
