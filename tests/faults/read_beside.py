"""Readers in another process on the folder of a writer that is killed again and again: nothing missed, nothing twice.

They hold SQLite's shared memory while writers come and go, so that a new writer meets a ledger that others have open.
"""

import random
import threading
import time
from pathlib import Path

import numpy as np

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing.history import History
from tests.faults.kill_embedded import SHARDS, WritingProcess
from tests.faults.stamped import check_kept, count_report
from tests.faults.trials import Trials

READERS = 2
_STREAM = "beside"
_LIFE_SECONDS_MAX = 0.5
_CATCH_UP_SECONDS_MAX = 4.0


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one kill; the readers live through all of them."""
    result = Trials()
    rng = random.Random(f"read beside {seed}")
    place = folder / "beside"
    history = History()
    with mainstem.open(place) as hub:
        hub.streams.create(_STREAM, shards=SHARDS)
    readers = [_Reader(place, history, number) for number in range(READERS)]
    try:
        for trial in range(trials):
            with WritingProcess(place, _STREAM, first_producer=trial * 10) as writer:
                time.sleep(rng.uniform(0.0, _LIFE_SECONDS_MAX))
                writer.kill_into(history)
            result.trials += 1
        # What the last writer had written and not yet entered in the ledger becomes visible when the next one starts.
        with mainstem.open(place, read_only=False) as hub:
            ends = hub.streams.get(_STREAM).ends
    except MainstemError as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {error}")
        ends = ()
    except AssertionError as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {error}")
        ends = ()
    deadline = time.monotonic() + _CATCH_UP_SECONDS_MAX
    for reader in readers:
        wrong = reader.finish(ends, deadline)
        if wrong:
            result.add_finding(f"seed {seed}, reader {reader.number}: {wrong}")
    check_kept(result, place, f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    return result


class _Reader:
    """A hub that only reads, and follows the stream in a thread of its own."""

    def __init__(self, folder: Path, history: History, number: int) -> None:
        self.number = number
        self._folder = folder
        self._history = history
        self._got = [0] * SHARDS
        self._stopping = threading.Event()
        self._error = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self, ends: tuple[int, ...], deadline: float) -> str:
        """Let it catch up and end it; what went wrong, or nothing."""
        while self._thread.is_alive() and tuple(self._got) != ends and time.monotonic() < deadline:
            time.sleep(0.02)
        self._stopping.set()
        self._thread.join()
        if not self._error and ends and tuple(self._got) != ends:
            return f"it stands at {self._got}, the stream ends at {ends}"
        return self._error

    def _run(self) -> None:
        try:
            with mainstem.open(self._folder, read_only=True) as hub:
                self._follow(hub)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def _follow(self, hub: Hub) -> None:
        for shard in range(SHARDS):
            self._history.positioned(self.number, shard, 0)
        with hub.consumer(_STREAM, start="earliest") as consumer:
            while not self._stopping.is_set():
                batch = consumer.poll_batch(timeout=0.1)
                if batch is not None:
                    offsets = np.arange(batch.offset, batch.end)
                    self._history.read(self.number, batch.shard, offsets, batch.to_arrow().column("value"))
                    self._got[batch.shard] = batch.end
