"""A server in a process of its own, which never outlives the one that started it.

The child is this module run as a program. It serves as `mainstem serve` does; beside that it waits for its standard
input to end, which the kernel brings about when the parent is gone, however that ended.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from mainstem.core import settings
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import MainstemError, Unavailable
from mainstem.demo.child import NotReady, ServerChild

_LOG_LINES_SHOWN = 3


class DemoServer:
    """Starts, kills, restarts and stops one server. One thread. Log lines go to `log_path`."""

    def __init__(self, flags: Mapping[str, str], log_path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._flags = dict(flags)
        self._log_path = log_path
        self._clock = clock
        self._child: ServerChild | None = None
        self.addresses: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"mainstem://{self.addresses['data']}"

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        command = [sys.executable, "-m", "mainstem.demo.server_process", json.dumps(self._flags)]
        try:
            # A process group of its own: Ctrl-C is for us; the server is stopped when everything was read back.
            self._child = ServerChild(command, self._log_path, self._clock, stdin=subprocess.PIPE, process_group=0)
        except NotReady as error:
            raise Unavailable(f"the server did not start: {self.last_words() or error}") from None
        self.addresses = self._child.addresses

    def restart(self) -> None:
        """Start it again on the same addresses."""
        names = {"data": "listen", "http": "http"}
        self._flags |= {names[name]: address for name, address in self.addresses.items()}
        self.start()

    def kill(self) -> None:
        """End it at once, as a power cut would (SIGKILL)."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def stop(self) -> None:
        """Let it finish (SIGTERM)."""
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def is_running(self) -> bool:
        return self._child is not None and self._child.exit_code is None

    def last_words(self) -> str:
        """The end of its log lines, on one line."""
        try:
            lines = self._log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return " | ".join(lines[-_LOG_LINES_SHOWN:])


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
