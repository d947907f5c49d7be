"""Producers that write stamped values and tell everything, and a reader that reads everything back, for the checker."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mainstem.core.errors import DataLoss, MainstemError
from mainstem.hub.hub import Hub
from mainstem.testing.history import History, Report
from mainstem.testing.stamp import stamp
from tests.faults.trials import Trials

BURST_MAX = 200


class Teller(Protocol):
    """Where a producer says what it does: a `History`, or a pipe to the process that has one."""

    def sent(self, producer: int, sequences: Sequence[int]) -> None: ...

    def acked(self, producer: int, sequences: Sequence[int], shard: Sequence[int], offsets: Sequence[int]) -> None: ...


class PipeTeller:
    """Tells over a pipe, unbuffered: what was told before a kill has been told."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sent(self, producer: int, sequences: Sequence[int]) -> None:
        self._say(["sent", producer, sequences[0], len(sequences)])

    def acked(self, producer: int, sequences: Sequence[int], shard: Sequence[int], offsets: Sequence[int]) -> None:
        self._say(["acked", producer, list(sequences), list(shard), list(offsets)])

    def _say(self, words: list[Any]) -> None:
        os.write(self._descriptor, json.dumps(words).encode() + b"\n")


def take_told(told: bytes, history: History) -> None:
    """Put what a `PipeTeller` said into a history; a last line without an end was cut off by the kill."""
    for line in told.split(b"\n")[:-1]:
        what, producer, *rest = json.loads(line)
        if what == "sent":
            history.sent(producer, list(range(rest[0], rest[0] + rest[1])))
        else:
            history.acked(producer, *rest)


class StampedProducer:
    """Sends bursts of stamped values to one stream and waits for each burst. One thread."""

    def __init__(self, hub: Hub, stream: str, number: int, teller: Teller, **options: Any) -> None:
        self._producer = hub.producer(**options)
        self._stream = stream
        self._number = number
        self._teller = teller
        self._random = random.Random(number)
        self._next = 0

    def burst(self) -> int:
        """Send some records and wait until all are acknowledged; how many. A send that fails stays unknown."""
        count = self._random.choice((1, 1, 5, 30, BURST_MAX))
        size = self._random.choice((16, 40, 100, 1_000))
        sequences = list(range(self._next, self._next + count))
        self._next += count
        self._teller.sent(self._number, sequences)
        keyed = self._random.random() < 0.5
        acks = [
            self._producer.send(
                self._stream, stamp(self._number, sequence, size), key=b"%d" % (sequence % 7) if keyed else None
            )
            for sequence in sequences
        ]
        placed = [ack.result() for ack in acks]
        self._teller.acked(self._number, sequences, [shard for shard, _ in placed], [offset for _, offset in placed])
        return count

    def close(self) -> None:
        try:
            self._producer.close()
        except MainstemError:
            return


def read_back(hub: Hub, stream: str, history: History, reader: int) -> None:
    """Read a stream from its beginning to its end into the history."""
    for shard in range(hub.streams.get(stream).shards):
        history.positioned(reader, shard, 0)
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        while True:
            try:
                for batch in consumer.batches():
                    offsets = np.arange(batch.offset, batch.offset + batch.count)
                    history.read(reader, batch.shard, offsets, batch.to_arrow().column("value"))
                return
            except DataLoss as loss:
                history.excused(loss.shard, loss.first, loss.last)


def check_kept(result: Trials, folder: Path, name: str) -> None:
    """A kill leaves the ledger usable as it is: a rebuild takes long, and says that something is wrong."""
    if list(folder.glob("damaged-*")):
        result.add_finding(f"{name}: the ledger was rebuilt after nothing but kills")


def count_report(result: Trials, report: Report, name: str) -> None:
    """Add what the checker found to the result of a suite. Told losses are findings here: nothing was damaged."""
    result.acknowledged += report.acked
    result.lost += report.lost + report.unseen + report.excused
    result.duplicated += report.duplicated
    if not report.ok or report.excused:
        result.add_finding(f"{name}: {report}")
