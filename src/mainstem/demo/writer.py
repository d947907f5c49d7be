"""A producer in a process of its own: sends events at a rate and reports every acknowledgement.

Standard output carries the report: a length in rows (u32, little-endian), then that many rows as `account.ROW`. The
length `READY` alone says that it is connected, the length 0 that all is said. When standard input ends, it sends no
more, waits for what is under way, and ends.
"""

import json
import os
import signal
import struct
import sys
import threading
from collections import deque
from typing import Any

import numpy as np

import mainstem
from mainstem.core.checksum import crc32c
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import MainstemError
from mainstem.demo.account import ROW
from mainstem.demo.events import STREAMS, Event, events

LENGTH = struct.Struct("<I")
READY = 0xFFFF_FFFF
_TICK_SECONDS = 0.02


class Writer:
    """Sends events of one writer. One thread."""

    def __init__(self, producer: Any, number: int, rate: float, seed: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._producer = producer
        self._number = number
        self._rate = rate
        self._clock = clock
        self._events = events(number, np.random.default_rng([seed, number]))
        self._open: deque[tuple[Any, Event, int]] = deque()

    def run(self, stopped: threading.Event) -> None:
        begun = self._clock.monotonic()
        sent = 0
        while not stopped.is_set():
            due = int((self._clock.monotonic() - begun) * self._rate)
            # After a stall it goes on at its rate; it does not make up for lost time in one burst.
            for _ in range(min(due - sent, int(self._rate * 10 * _TICK_SECONDS) + 1)):
                self._send(next(self._events))
            sent = due
            self._report(everything=False)
            self._clock.sleep(_TICK_SECONDS)
        self._report(everything=True)
        _put(b"", 0)

    def _send(self, event: Event) -> None:
        now_us = self._clock.now_us()
        ack = self._producer.send(STREAMS[event.stream], event.value, key=event.key, timestamp=now_us)
        self._open.append((ack, event, now_us))

    def _report(self, *, everything: bool) -> None:
        rows = []
        while self._open and (everything or self._open[0][0].done()):
            ack, event, now_us = self._open.popleft()
            known = 1
            try:
                shard, offset = ack.result()
            except MainstemError:
                # Sent, and nobody knows whether it arrived.
                known = shard = offset = 0
            place = (event.stream, known, shard, self._number, crc32c(event.value), offset, event.number)
            rows.append((*place, now_us, event.cents))
        if rows:
            _put(np.array(rows, dtype=ROW).tobytes(), len(rows))


def _put(data: bytes, count: int) -> None:
    sys.stdout.buffer.write(LENGTH.pack(count) + data)
    sys.stdout.buffer.flush()


def main(arguments_json: str) -> int:
    """The child process."""
    # Ctrl-C is for the parent, which then ends our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopped = threading.Event()
    threading.Thread(target=_follow_parent, args=(stopped,), daemon=True).start()
    arguments = json.loads(arguments_json)
    with mainstem.connect(arguments.pop("url")) as hub, hub.producer() as producer:
        _put(b"", READY)
        Writer(producer, **arguments).run(stopped)
    return 0


def _follow_parent(stopped: threading.Event) -> None:
    while os.read(0, 1):
        pass
    stopped.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
