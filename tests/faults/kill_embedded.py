"""`kill -9` of a process with an embedded hub, in the middle of its writing. What it was told must be there.

The folder is kept through several kills, so that recovery meets what earlier lives left; then all of it is read again.
"""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing import planted
from mainstem.testing.history import History
from tests.faults.stamped import PipeTeller, StampedProducer, check_kept, count_report, read_back, take_told
from tests.faults.trials import Trials

LIVES_PER_FOLDER = 5
PRODUCERS = 3
SHARDS = 3
_LIFE_SECONDS_MAX = 0.4


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"kill embedded {seed}")
    place = folder / "embedded"
    histories: list[tuple[str, History]] = []
    for trial in range(trials):
        stream = f"life-{trial}"
        histories.append((stream, _live_and_die(place, stream, rng)))
        result.trials += 1
        name = f"seed {seed}, kill {trial}"
        is_last = len(histories) == LIVES_PER_FOLDER or trial == trials - 1
        started = time.perf_counter()
        try:
            with mainstem.open(place, read_only=False) as hub:
                result.took(time.perf_counter() - started)
                _check(hub, histories[-1:], result, name, reader=0)
                if is_last:
                    _check_again(hub, histories, result, name)
        except MainstemError as error:
            result.add_finding(f"{name}: {type(error).__name__}: {error}")
            is_last = True
        if is_last:
            check_kept(result, place, name)
            shutil.rmtree(place)
            histories = []
    return result


def _check(hub: Hub, histories: list[tuple[str, History]], result: Trials, name: str, reader: int) -> None:
    known = {info.name for info in hub.streams.list()}
    for stream, history in histories:
        if stream in known:
            read_back(hub, stream, history, reader)
        count_report(result, history.check(), f"{name}, stream {stream}")


def _check_again(hub: Hub, histories: list[tuple[str, History]], result: Trials, name: str) -> None:
    """Everything of this folder once more, by another reader; what was counted is not counted twice."""
    again = Trials()
    _check(hub, histories, again, name, reader=1)
    for text in again.findings:
        result.add_finding(f"read again: {text}")


def _live_and_die(folder: Path, stream: str, rng: random.Random) -> History:
    """Let a child write until it is killed; what it said by then."""
    history = History()
    with WritingProcess(folder, stream) as writer:
        time.sleep(rng.uniform(0, _LIFE_SECONDS_MAX))
        writer.kill_into(history)
    return history


class WritingProcess:
    """A child process with an embedded hub whose producers write to one stream until it is killed. One thread."""

    def __init__(self, folder: Path, stream: str, first_producer: int = 0) -> None:
        command = planted.command("tests.faults.kill_embedded", str(folder), stream, str(first_producer))
        self._told: list[bytes] = []
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._child.stdout is not None
        self._first = self._child.stdout.readline()
        self._reading = threading.Thread(target=lambda out=self._child.stdout: self._told.append(out.read()))
        self._reading.start()

    def kill_into(self, history: History) -> None:
        """Kill it, and put what it said by then into the history."""
        is_alive = self._child.poll() is None
        self._child.kill()
        self._reading.join()
        assert self._child.stderr is not None
        error = self._child.stderr.read().decode()
        assert self._first == b"open\n", f"the writing process ended by itself: {error}"
        assert is_alive, f"the writing process ended by itself: {error}"
        take_told(b"".join(self._told), history)

    def __enter__(self) -> "WritingProcess":
        return self

    def __exit__(self, *exc: object) -> None:
        self._child.kill()
        self._reading.join()
        self._child.communicate()


def _child(folder: Path, stream: str, first_producer: int) -> None:
    hub = mainstem.open(folder, read_only=False)
    hub.streams.create(stream, shards=SHARDS, exist_ok=True)
    os.write(1, b"open\n")

    def write(number: int) -> None:
        producer = StampedProducer(hub, stream, number, PipeTeller(1))
        while True:
            producer.burst()

    threads = [threading.Thread(target=write, args=(first_producer + number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _child(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
