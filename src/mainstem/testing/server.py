"""A real server process for a test: any free port, its own folder, its log lines shown when it fails.

    with ServerProcess(tmp_path / "data") as server, mainstem.connect(server.url) as hub:
        server.kill()
        server.start()

It comes back on the same folder and the same port, so that clients find it again.
"""

import os
import signal
import time
from pathlib import Path
from typing import Final

from mainstem.demo.child import STOP_SECONDS_MAX, NotReady, ServerChild
from mainstem.testing import planted

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
        # Where HTTP is served, if an argument says that it is.
        self.http = ""
        # From the start of the process until it said that it accepts.
        self.start_seconds = 0.0
        self._arguments = arguments
        self._environment = environment or {}
        self._stderr = folder.with_name(folder.name + ".stderr")
        self._child: ServerChild | None = None

    @property
    def url(self) -> str:
        return f"mainstem{'s' * ('--tls-cert' in self._arguments)}://{self.address}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.exit_code is None

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
        try:
            self._child = ServerChild(command, self._stderr, env={**os.environ, **self._environment})
        except NotReady as error:
            raise ServerFailed(f"{error}\n{self.stderr()}") from None
        self.start_seconds = time.perf_counter() - started
        self.address = self._child.addresses["data"]
        self.http = self._child.addresses.get("http", "")
        return self

    def kill(self) -> None:
        """`kill -9`, and wait until the process is gone."""
        self._running().kill()
        self._child = None

    def stop(self) -> int:
        """SIGTERM, as an operator stops it; the exit code."""
        code = self._running().stop()
        self._child = None
        if code == -signal.SIGKILL:
            raise ServerFailed(f"the server did not stop within {STOP_SECONDS_MAX:g} s\n{self.stderr()}")
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
        elif self._child is not None:
            self._child.kill()

    def _running(self) -> ServerChild:
        if self._child is None:
            raise ServerFailed("the server was not started")
        code = self._child.exit_code
        if code is not None:
            raise ServerFailed(f"the server ended by itself with {code}\n{self.stderr()}")
        return self._child
