"""The Spark job of the demonstration as its parent sees it: a process that says how it goes."""

import contextlib
import dataclasses
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

from mainstem.core.clock import SYSTEM_CLOCK as CLOCK
from mainstem.core.errors import MainstemError, Unavailable
from mainstem.demo.pipeline import PipelineOptions

_END_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class PipelineState:
    """How the job stands, as it says itself. What it has written is for others to read."""

    is_up: bool = False
    rows: int = 0
    # How far its time has come, in microseconds; 0 if it has not begun.
    watermark_us: int = 0
    failure: str = ""


def missing_requirement() -> str:
    """Why the job cannot run here, if it cannot."""
    for package in ("pyspark", "deltalake", "duckdb"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install 'mainstem[spark]'"
    from mainstem.spark.java import find_java

    try:
        find_java()
    except MainstemError as error:
        return str(error)
    return ""


class PipelineProcess:
    """Starts the job, listens to it, and has it end. One thread; `state` may be looked at from any."""

    def __init__(self, options: PipelineOptions, log: IO[bytes]) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-m", "mainstem.demo.pipeline", json.dumps(dataclasses.asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=0,
        )
        self.state = PipelineState()
        self._is_done = False
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                self._take(json.loads(line))
        if not self._is_done and not self.state.failure:
            self.state = dataclasses.replace(self.state, failure="its process has ended")

    def _take(self, said: Mapping[str, Any]) -> None:
        match said["event"]:
            case "up":
                self.state = dataclasses.replace(self.state, is_up=True)
            case "progress":
                rows = self.state.rows + said["rows"]
                self.state = dataclasses.replace(self.state, rows=rows, watermark_us=said["watermark_us"])
            case "failed":
                self.state = dataclasses.replace(self.state, failure=said["reason"])
            case _:
                self._is_done = True

    def finish(self, end_us: int) -> None:
        """Nothing comes before `end_us` any more: have everything written up to there, and end, see `has_ended`."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{end_us}\n".encode())
            self._process.stdin.close()
        self._deadline = CLOCK.monotonic() + _END_SECONDS

    def has_ended(self, seconds: float) -> bool:
        """After `finish`: whether everything is written; waits so long for that. Raises if it failed."""
        self._thread.join(seconds)
        if self._thread.is_alive() and CLOCK.monotonic() < self._deadline:
            return False
        if not self._is_done:
            raise Unavailable(f"the Spark job did not end as it should: {self.state.failure or 'it takes too long'}")
        self._process.wait(_END_SECONDS)
        return True

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
