"""A server in a process of its own, which never outlives the one that started it.

The child is this module run as a program. It serves as `mainstem serve` does; beside that it waits for its standard
input to end, which the kernel brings about when the parent is gone, however that ended.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from mainstem.core import settings
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import MainstemError, Unavailable

START_SECONDS = 30.0
STOP_SECONDS = 20.0
_LOG_LINES_SHOWN = 3


class ServerProcess:
    """Starts, kills, restarts and stops one server. One thread. Log lines go to `log_path`."""

    def __init__(self, flags: Mapping[str, str], log_path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._flags = dict(flags)
        self._log_path = log_path
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self.addresses: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"mainstem://{self.addresses['data']}"

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                [sys.executable, "-m", "mainstem.demo.server_process", json.dumps(self._flags)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for us; the server is stopped when everything was read back.
                process_group=0,
            )
        word, _, rest = self._first_line().partition(" ")
        if word != "ready":
            self.kill()
            raise Unavailable(f"the server did not start: {self.last_words() or 'it said nothing'}")
        self.addresses = json.loads(rest)

    def restart(self) -> None:
        """Start it again on the same addresses."""
        names = {"data": "listen", "http": "http"}
        self._flags |= {names[name]: address for name, address in self.addresses.items()}
        self.start()

    def kill(self) -> None:
        """End it at once, as a power cut would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def stop(self) -> int:
        """Let it finish (SIGTERM); its exit code."""
        process = self._process
        if process is None:
            return 0
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._forget()
        return code

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        """The end of its log lines, on one line."""
        try:
            lines = self._log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return " | ".join(lines[-_LOG_LINES_SHOWN:])

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        stdout = self._process.stdout
        deadline = self._clock.monotonic() + START_SECONDS
        while self._clock.monotonic() < deadline:
            if select.select([stdout], [], [], 0.1)[0]:
                return stdout.readline().decode()
        return ""

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def main(flags_json: str) -> int:
    """The child: serve until told to stop, or until the parent is gone."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    from mainstem.server.main import run

    # Where it listens and keeps its data is given; other settings may come from variables or the file, as for `serve`.
    try:
        return run(settings.load(json.loads(flags_json), os.environ).settings)
    except MainstemError as error:
        print(error, file=sys.stderr)  # noqa: T201  # the log of the child
        return 1


def _follow_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
