"""The demonstration from start to end, without a screen: `mainstem demo` shows what happens here."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

import mainstem
from mainstem.core.checksum import crc32c
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor
from mainstem.core.errors import InternalError, Unavailable
from mainstem.demo.account import ROW, Fault, Rows, Verdict, compare, plant
from mainstem.demo.events import STREAMS, closing_events, read_stamp
from mainstem.demo.follower import Follower, Newest
from mainstem.demo.pipeline import LATE_SECONDS, LATE_SECONDS_KILLED, REVENUE_STREAM, PipelineOptions
from mainstem.demo.pipeline_process import PipelineProcess, PipelineState
from mainstem.demo.revenue import RevenueVerdict, compare_revenue, taken
from mainstem.demo.revenue_reader import RevenueState, StreamWatch, TableWatch, read_stream, read_table
from mainstem.demo.server_process import DemoServer
from mainstem.demo.writer import LENGTH, READY

WRITERS = 3
SHARDS = 4
_END_SECONDS = 60.0
# How far ahead the events are that end a stream, and the time that the Spark job then has to reach.
_CLOSING_US = 60_000_000
_CLOSED_US = 30_000_000
assert max(LATE_SECONDS, LATE_SECONDS_KILLED) * 1_000_000 < _CLOSING_US - _CLOSED_US, "its watermark comes there"
# The columns of what the Spark job writes.
_REVENUE = {
    "start": "timestamp",
    "orders": "int64",
    "revenue": "decimal(20, 2)",
    "in_sessions": "decimal(20, 2)",
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What may be chosen. `flags` are settings of the server by name; without `data` the folder is temporary."""

    rate: float = 20_000.0
    seed: int = 1
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stand: totals since the start, delays since the last sample."""

    seconds: float
    acknowledged: tuple[int, ...]
    received: int
    delay_p50_ms: float | None
    delay_p99_ms: float | None
    # Per stream: the newest acknowledged offset of each shard, None before the first.
    offsets: tuple[tuple[int | None, ...], ...]
    newest: tuple[Newest, ...]


class Acknowledgements:
    """What the writers report. Each is read by a thread of its own; looked at from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[Rows] = []
        self._counts = [0] * len(STREAMS)
        self._newest: dict[tuple[int, int], int] = {}

    def read_from(self, pipe: IO[bytes], is_ready: threading.Event) -> bool:
        """Take a writer's report to its end; whether it came to a proper one."""
        while len(head := pipe.read(LENGTH.size)) == LENGTH.size:
            (count,) = LENGTH.unpack(head)
            if count == READY:
                is_ready.set()
                continue
            if not count:
                return True
            data = pipe.read(count * ROW.itemsize)
            if len(data) < count * ROW.itemsize:
                return False
            self._add(np.frombuffer(data, dtype=ROW))
        return False

    def _add(self, rows: Rows) -> None:
        sure = rows[rows["known"] == 1]
        with self._lock:
            self._rows.append(rows)
            for stream in range(len(STREAMS)):
                of_stream = sure[sure["stream"] == stream]
                self._counts[stream] += len(of_stream)
                for shard in np.unique(of_stream["shard"]).tolist():
                    newest = int(of_stream["offset"][of_stream["shard"] == shard].max())
                    self._newest[stream, shard] = max(newest, self._newest.get((stream, shard), 0))

    def counts(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(self._counts)

    def offsets(self) -> tuple[tuple[int | None, ...], ...]:
        with self._lock:
            return tuple(
                tuple(self._newest.get((stream, shard)) for shard in range(SHARDS)) for stream in range(len(STREAMS))
            )

    def rows(self) -> Rows:
        with self._lock:
            return np.concatenate([np.empty(0, dtype=ROW), *self._rows])


class WriterProcess:
    """One writer and the thread that reads its report."""

    def __init__(self, arguments: Mapping[str, Any], log: IO[bytes], acknowledgements: Acknowledgements) -> None:
        self.number: int = arguments["number"]
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-m", "mainstem.demo.writer", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        self._is_complete = False
        self.is_ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(acknowledgements,), daemon=True)
        self._thread.start()

    def _listen(self, acknowledgements: Acknowledgements) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            self._is_complete = acknowledgements.read_from(pipe, self.is_ready)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask_to_stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def finish(self) -> bool:
        """Wait for its end; whether it said all."""
        self._thread.join(_END_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        return self._is_complete and self._process.returncode == 0

    def kill(self) -> None:
        self.ask_to_stop()
        self._process.kill()
        self._process.wait()
        self._thread.join()


class Demonstration:
    """A server, writers and followers. One thread; close it, or use it as a context manager.

    `start`, then `sample` as often as wanted, `kill_server` if wanted, `finish_writing`, `read_back`.
    """

    def __init__(self, options: DemoOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._folder = Path(tempfile.mkdtemp(prefix="mainstem-demo-"))
        defaults = {"data": str(self._folder / "data"), "listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
        self.flags = defaults | dict(options.flags)
        self.server = DemoServer(self.flags, self._folder / "server.log", clock)
        self._acknowledgements = Acknowledgements()
        self._writers: list[WriterProcess] = []
        self._followers: list[Follower] = []
        self._starts: list[Cursor] = []
        self._pipeline: PipelineProcess | None = None
        self._table = self._folder / "revenue"
        self._revenue_start: Cursor | None = None
        self._watches: tuple[StreamWatch, TableWatch] | None = None
        self._read_rows: Rows = np.empty(0, dtype=ROW)
        self._hub: Any = None
        self._begun = clock.monotonic()

    @property
    def is_temporary(self) -> bool:
        return "data" not in self._options.flags

    def start(self) -> None:
        self.server.start()
        self._hub = hub = mainstem.connect(self.server.url)
        for name in STREAMS:
            info = hub.streams.create(name, shards=SHARDS, exist_ok=True)
            if info.shards != SHARDS:
                raise Unavailable(f"the stream {name!r} in this folder has {info.shards} shards; use another --data")
            start = Cursor(info.uuid, info.epoch, info.ends)
            self._starts.append(start)
            follower = Follower(hub.consumer(name, start=start), self._clock)
            follower.start()
            self._followers.append(follower)
        with (self._folder / "writers.log").open("ab") as log:
            for number in range(1, WRITERS + 1):
                arguments = {
                    "url": self.server.url,
                    "number": number,
                    "rate": self._options.rate / WRITERS,
                    "seed": self._options.seed,
                }
                self._writers.append(WriterProcess(arguments, log, self._acknowledgements))
        self._await_writers()
        self._begun = self._clock.monotonic()

    def start_pipeline(self, drop: tuple[int, int] | None = None, *, is_killed: bool = False) -> None:
        """Start the Spark job beside it all, which takes a while to join; `drop` is an order that it leaves out. It
        waits longer for what is late where the server is going to be killed."""
        info = self._hub.streams.create(REVENUE_STREAM, schema=_REVENUE, exist_ok=True)
        self._revenue_start = Cursor(info.uuid, info.epoch, info.ends)
        self._watches = (
            StreamWatch(self._hub.consumer(REVENUE_STREAM, start=self._revenue_start)),
            TableWatch(self._table),
        )
        for watch in self._watches:
            watch.start()
        options = PipelineOptions(
            url=self.server.url,
            starts=tuple(map(str, self._starts)),
            table=str(self._table),
            checkpoint=str(self._folder / "checkpoint"),
            drop=drop,
            late_seconds=LATE_SECONDS_KILLED if is_killed else LATE_SECONDS,
        )
        with (self._folder / "pipeline.log").open("ab") as log:
            self._pipeline = PipelineProcess(options, log)

    @property
    def pipeline(self) -> PipelineState | None:
        """How the Spark job stands, if there is one."""
        return None if self._pipeline is None else self._pipeline.state

    @property
    def revenue(self) -> RevenueState:
        """What is in the table and in the stream that the Spark job writes, as far as it was read."""
        if self._watches is None:
            return RevenueState()
        stream, table = self._watches
        return RevenueState(table.windows, stream.windows)

    def close_streams(self) -> None:
        """Send the events that push the Spark job's watermark past the end, and have it write everything. After
        `read_back`."""
        assert self._pipeline is not None
        now_us = self._clock.now_us()
        with self._hub.producer() as producer:
            for event in closing_events():
                at = now_us + _CLOSING_US
                producer.send(STREAMS[event.stream], event.value, key=event.key, timestamp=at)
        self._pipeline.finish(now_us + _CLOSED_US)

    def has_pipeline_ended(self, seconds: float) -> bool:
        """Whether the Spark job has written everything; waits so long for that. Raises if it has failed."""
        assert self._pipeline is not None
        if not self._pipeline.has_ended(seconds):
            return False
        self._stop_watching()
        return True

    def _stop_watching(self) -> None:
        for watch in self._watches or ():
            watch.stop()

    def compare_revenue(self) -> tuple[RevenueVerdict, RevenueVerdict]:
        """The table and the stream, each read once more, beside what the producers took."""
        took = taken(self._acknowledgements.rows(), self._read_rows)
        with self._hub.consumer(REVENUE_STREAM, start=self._revenue_start, follow=False) as consumer:
            told = read_stream(consumer)
        return compare_revenue("table", took, read_table(self._table)), compare_revenue("stream", took, told)

    def _await_writers(self) -> None:
        for writer in self._writers:
            while not writer.is_ready.wait(0.1):
                self._check()

    @property
    def seconds(self) -> float:
        """Since it has begun."""
        return self._clock.monotonic() - self._begun

    def sample(self) -> Sample:
        """How things stand now. Raises if a part of it has failed."""
        self._check()
        delays = np.concatenate([follower.delays_us() for follower in self._followers])
        p50, p99 = np.percentile(delays, [50, 99]) / 1_000 if len(delays) else (None, None)
        newest = sorted(record for follower in self._followers for record in list(follower.newest)[-4:])
        return Sample(
            seconds=self.seconds,
            acknowledged=self._acknowledgements.counts(),
            received=sum(follower.count for follower in self._followers),
            delay_p50_ms=p50,
            delay_p99_ms=p99,
            offsets=self._acknowledgements.offsets(),
            newest=tuple(newest),
        )

    def _check(self) -> None:
        if not self.server.is_running():
            raise Unavailable(f"the server has ended: {self.server.last_words()}")
        for writer in self._writers:
            if not writer.is_running():
                raise Unavailable(f"producer {writer.number} has ended: {self._writer_words()}")
        for reader in (*self._followers, *(self._watches or ())):
            if reader.error is not None:
                raise reader.error

    def kill_server(self) -> None:
        """End the server without warning and start it again on the same folder and port."""
        self.server.kill()
        self.server.restart()

    def finish_writing(self) -> None:
        """Let the writers end, with everything they sent answered."""
        for writer in self._writers:
            writer.ask_to_stop()
        for writer in self._writers:
            if not writer.finish():
                raise InternalError(f"producer {writer.number} did not end as it should: {self._writer_words()}")
        for follower in self._followers:
            follower.stop()
        self._writers.clear()
        self._followers.clear()

    def read_back(self, fault: Fault | None = None) -> Verdict:
        """Read everything since the start and compare it with what was acknowledged; `fault` is planted in between."""
        read = self._read_rows = np.concatenate([np.empty(0, dtype=ROW), *self._read()])
        if fault is not None:
            read = plant(read, fault)
        return compare(self._acknowledgements.rows(), read, STREAMS)

    def _read(self) -> Iterator[Rows]:
        for stream, (name, start) in enumerate(zip(STREAMS, self._starts, strict=True)):
            with self._hub.consumer(name, start=start, follow=False) as consumer:
                for batch in consumer.batches():
                    placed = enumerate(batch.values(), batch.offset)
                    rows = np.array([_row(stream, batch.shard, offset, value) for offset, value in placed], ROW)
                    # Those of writer 0 only end the stream.
                    yield rows[(rows["writer"] != 0) | (rows["number"] != 0)]

    def _writer_words(self) -> str:
        text = (self._folder / "writers.log").read_text(errors="replace")
        return " | ".join(text.splitlines()[-3:]) or "it said nothing"

    def close(self) -> None:
        """Stop everything and remove the temporary folder."""
        for writer in self._writers:
            writer.kill()
        for follower in self._followers:
            follower.stop()
        self._stop_watching()
        if self._pipeline is not None:
            self._pipeline.kill()
        if self._hub is not None:
            self._hub.close()
        self.server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Demonstration":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _row(stream: int, shard: int, offset: int, value: bytes | None) -> tuple[int, ...]:
    stamp = read_stamp(value)
    writer, number = (0, 1) if stamp is None else (stamp.writer, stamp.number)
    return stream, 1, shard, writer, crc32c(value or b""), offset, number, 0, 0
