"""`kill -9` of a server under load, again and again on one folder, with producers and a follower that live through it.

Producers retry by themselves; what they were told must be there once, in order, and the follower must miss nothing and
see nothing twice. Before every other kill the answers are held up for a moment, and between kills connections are cut
the same way: what the server has done by then, its clients do not know, and send again.
"""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.testing.history import History
from mainstem.testing.link import Link
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.stamped import StampedProducer, check_kept, count_report, read_back
from tests.faults.trials import Trials

PRODUCERS = 3
SHARDS = 3
START_SECONDS_MAX = 2.0
_LIFE_SECONDS_MAX = 0.6
_HELD_SECONDS_MAX = 0.05
_FOLLOWER, _READER = 1, 2
_STREAM = "through-kills"


def run(seed: int, trials: int, folder: Path) -> Trials:
    result = Trials()
    rng = random.Random(f"kill server {seed}")
    history = History()
    try:
        with ServerProcess(folder / "killed") as server, Link(server.address) as link:
            with mainstem.connect(server.url) as hub:
                hub.streams.create(_STREAM, shards=SHARDS)
                load = _Load(f"mainstem://{link.address}", history)
                for trial in range(trials):
                    for _ in range(rng.randrange(3)):
                        # The connections break, the server does not.
                        time.sleep(rng.uniform(0.0, _LIFE_SECONDS_MAX / 3))
                        _lose_answers(link, rng)
                        link.cut()
                    time.sleep(rng.uniform(0.05, _LIFE_SECONDS_MAX))
                    if trial % 2 == 0:
                        _lose_answers(link, rng)
                    server.kill()
                    link.cut()
                    server.start()
                    result.trials += 1
                    result.took(server.start_seconds)
                    if server.start_seconds > START_SECONDS_MAX:
                        result.add_finding(f"seed {seed}, kill {trial}: restart took {server.start_seconds:.1f} s")
                load.stop()
                read_back(hub, _STREAM, history, _READER)
            for text in load.errors:
                result.add_finding(f"seed {seed}: {text}")
    except (ServerFailed, MainstemError) as error:
        result.add_finding(f"seed {seed}, kill {result.trials}: {error}")
    check_kept(result, folder / "killed", f"seed {seed}")
    count_report(result, history.check(), f"seed {seed}")
    return result


def _lose_answers(link: Link, rng: random.Random) -> None:
    """Hold answers up for a moment; those of that moment will be lost when the link is cut."""
    link.hold_answers()
    time.sleep(rng.uniform(0.0, _HELD_SECONDS_MAX))


class _Load:
    """Producers and a follower, each with a thread and a connection of its own, through every kill."""

    def __init__(self, url: str, history: History) -> None:
        self._url = url
        self._history = history
        self._stopping = threading.Event()
        self._producers_done = threading.Event()
        self.errors: list[str] = []
        self._producers = [
            threading.Thread(target=self._guarded, args=(self._produce, number)) for number in range(PRODUCERS)
        ]
        self._follower = threading.Thread(target=self._guarded, args=(self._follow, 0))
        for thread in (*self._producers, self._follower):
            thread.start()

    def stop(self) -> None:
        """Let the producers finish what they are at, then the follower catch up."""
        self._stopping.set()
        for thread in self._producers:
            thread.join()
        self._producers_done.set()
        self._follower.join()

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except Exception as error:
            self.errors.append(f"{work.__name__} {number} got {type(error).__name__}: {error}")

    def _produce(self, number: int) -> None:
        with mainstem.connect(self._url) as hub:
            producer = StampedProducer(hub, _STREAM, number, self._history, delivery_timeout=60.0)
            while not self._stopping.is_set():
                producer.burst()
            producer.close()

    def _follow(self, number: int) -> None:
        with mainstem.connect(self._url) as hub:
            for shard in range(SHARDS):
                self._history.positioned(_FOLLOWER, shard, 0)
            got = [0] * SHARDS
            with hub.consumer(_STREAM, start="earliest") as consumer:
                while not (self._producers_done.is_set() and tuple(got) == hub.streams.get(_STREAM).ends):
                    batch = consumer.poll_batch(timeout=0.2)
                    if batch is None:
                        continue
                    offsets = np.arange(batch.offset, batch.offset + batch.count)
                    self._history.read(_FOLLOWER, batch.shard, offsets, batch.to_arrow().column("value"))
                    got[batch.shard] = batch.offset + batch.count
