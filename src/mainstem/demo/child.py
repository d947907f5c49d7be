"""One life of a server process, from its start over its `ready` line to its end.

The demonstration, `mainstem bench` and the test kit start servers of different kinds; how one is awaited, stopped and
killed is here.
"""

import contextlib
import json
import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mainstem.core.clock import SYSTEM_CLOCK, Clock

READY_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 30.0


class NotReady(Exception):
    """The process ended, or said something else, or nothing, instead of being ready; the message says which."""


class ServerChild:
    """A server that runs `command`, with `options` for Popen. One thread. Its standard error is added to `log_path`.

    It accepts connections once the object exists, at `addresses`, as its `ready` line told; otherwise NotReady is
    raised and the process is gone.
    """

    def __init__(self, command: Sequence[str], log_path: Path, clock: Clock = SYSTEM_CLOCK, **options: Any) -> None:
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, **options)  # noqa: S603
        try:
            self.addresses: dict[str, str] = self._read_ready(clock)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

    def stop(self) -> int:
        """SIGTERM, as an operator stops it; its exit code. One that takes too long is killed, which the code tells."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        return self.kill()

    def kill(self) -> int:
        """End it at once (SIGKILL), if it still runs, and let go of it; its exit code."""
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code

    def _read_ready(self, clock: Clock) -> Any:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = clock.monotonic() + READY_SECONDS_MAX
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - clock.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise NotReady(f"the server was not ready within {READY_SECONDS_MAX:g} s")
            piece = os.read(stdout.fileno(), 4_096)
            if not piece:
                raise NotReady(f"the server ended with {self._process.wait()} before it was ready")
            line += piece
        word, _, addresses = line.decode(errors="replace").partition(" ")
        if word != "ready":
            raise NotReady(f"the server said {line!r} instead of ready")
        return json.loads(addresses)
