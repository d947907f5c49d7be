"""The Spark job of the demonstration as its parent sees it: a process that says how it goes."""

import contextlib
import dataclasses
import importlib.util
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from mainstem.core.errors import MainstemError, Unavailable
from mainstem.demo.pipeline import PipelineOptions
from mainstem.demo.revenue import Takings, cents_of

_SHOWN: Final = 4
_END_SECONDS: Final = 240.0


# A window that the job has written: where it begins, in microseconds, its orders, its cents, and which part of them was
# made in sessions.
Window = tuple[int, int, int, float]


@dataclass(frozen=True, slots=True)
class PipelineState:
    """How the job stands."""

    is_up: bool = False
    rows: int = 0
    # How far its time has come, in microseconds; 0 if it has not begun.
    watermark_us: int = 0
    windows: int = 0
    orders: int = 0
    cents: int = 0
    newest: tuple[Window, ...] = ()
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
        self._newest: deque[Window] = deque(maxlen=_SHOWN)
        self.state = PipelineState()
        self._is_done = False
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
            case "batch":
                self._newest.extend((row[0], row[1], row[2], row[3]) for row in said["rows"])
                self.state = dataclasses.replace(
                    self.state,
                    windows=self.state.windows + len(said["rows"]),
                    orders=self.state.orders + sum(row[1] for row in said["rows"]),
                    cents=self.state.cents + sum(row[2] for row in said["rows"]),
                    newest=tuple(self._newest),
                )
            case "failed":
                self.state = dataclasses.replace(self.state, failure=said["reason"])
            case _:
                self._is_done = True

    def finish(self, end_us: int) -> None:
        """Nothing comes before `end_us` any more: have everything written up to there, and end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{end_us}\n".encode())
            self._process.stdin.close()
        self._thread.join(_END_SECONDS)
        if not self._is_done:
            raise Unavailable(f"the Spark job did not end as it should: {self.state.failure or 'it takes too long'}")
        self._process.wait(_END_SECONDS)

    def kill(self) -> None:
        """End it at once, if it runs."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def read_table(table: Path) -> dict[int, Takings]:
    """What the table says, read by DuckDB: by the beginning of the window, its orders and cents."""
    import duckdb
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        return {}
    revenue = DeltaTable(str(table)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("revenue", revenue)
        rows = connection.execute(
            "SELECT epoch_us(start), sum(orders)::BIGINT, sum(revenue) FROM revenue GROUP BY ALL"
        ).fetchall()
    return {start: Takings(orders, cents_of(amount)) for start, orders, amount in rows}
