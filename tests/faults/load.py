"""Producers and a follower that live through whatever happens to the log they use."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from mainstem.hub.hub import Hub
from mainstem.testing.history import History
from tests.faults.stamped import StampedProducer

PRODUCERS = 3
SHARDS = 3
_FOLLOWER = 1

Connect = Callable[[], AbstractContextManager[Hub]]
Work = tuple[Callable[[int], None], int]


class Load:
    """Producers and a follower, each with a thread and a connection of its own, on one stream of `SHARDS` shards.

    `pause`: seconds that a producer rests after each burst. `timeout`: when it gives a record up.
    """

    producers = PRODUCERS
    # So many more share one connection, and with it the batches of what is small.
    companions = 0
    shards = SHARDS

    def __init__(
        self, connect: Connect, stream: str, history: History, *, pause: float = 0.0, timeout: float = 60.0
    ) -> None:
        self._connect = connect
        self._stream = stream
        self._history = history
        self._pause = pause
        self._timeout = timeout
        self._stopping = threading.Event()
        self._producers_done = threading.Event()
        self.errors: list[str] = []
        # Bursts that were acknowledged, of each producer; records that reached the follower.
        self.bursts = [0] * (self.producers + self.companions)
        self.followed = 0
        self._producers = [threading.Thread(target=self._guarded, args=work, daemon=True) for work in self._producing()]
        self._follower = threading.Thread(target=self._guarded, args=(self._follow, 0), daemon=True)
        for thread in (*self._producers, self._follower):
            thread.start()

    def stop(self) -> None:
        """Let the producers finish what they are at, then the follower catch up."""
        self._stopping.set()
        for thread in self._producers:
            thread.join()
        self._producers_done.set()
        self._follower.join()

    def leave(self) -> None:
        """The log is of no use any more: let everybody come to their end by themselves."""
        self._stopping.set()
        self._producers_done.set()

    def _producing(self) -> list[Work]:
        """What is done until `stop`, each in a thread of its own."""
        together = [(self._produce_together, self.producers)] if self.companions else []
        return [*((self._produce, number) for number in range(self.producers)), *together]

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except Exception as error:
            name = getattr(work, "__name__", "produce together")
            self.errors.append(f"{name} {number} got {type(error).__name__}: {error}")

    def _produce(self, number: int) -> None:
        with self._connect() as hub:
            self._write(hub, number)

    def _produce_together(self, first: int) -> None:
        with self._connect() as hub:
            threads = [
                threading.Thread(target=self._guarded, args=(partial(self._write, hub), number), daemon=True)
                for number in range(first, first + self.companions)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _write(self, hub: Hub, number: int) -> None:
        producer = StampedProducer(hub, self._stream, number, self._history, delivery_timeout=self._timeout)
        while not self._stopping.is_set():
            producer.burst()
            self.bursts[number] += 1
            time.sleep(self._pause)
        producer.close()

    def _follow(self, number: int) -> None:
        with self._connect() as hub:
            for shard in range(self.shards):
                self._history.positioned(_FOLLOWER, shard, 0)
            got = [0] * self.shards
            with hub.consumer(self._stream, start="earliest") as consumer:
                while not (self._producers_done.is_set() and tuple(got) == hub.streams.get(self._stream).ends):
                    batch = consumer.poll_batch(timeout=0.2)
                    if batch is None:
                        continue
                    offsets = np.arange(batch.offset, batch.offset + batch.count)
                    self._history.read(_FOLLOWER, batch.shard, offsets, batch.to_arrow().column("value"))
                    got[batch.shard] = batch.end
                    self.followed += batch.count


class CompanionLoad(Load):
    """The same, and several producers of one hub that travel together."""

    companions = 3
