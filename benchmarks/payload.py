"""The messages that are sent, and the proof that exactly they arrived, in order.

Message ``i`` is ``pool[i % POOL_COUNT]``: four bytes of its place in the pool, random bytes up to half of its size, a
constant rest (OpenMessaging's randomBytesRatio of 0.5). The pool is larger than the window of a fast compressor, so
that no message can be stored as a copy of an earlier one, and its length is prime, so that no batch size divides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from typing import Any

import numpy as np

from benchmarks.harness import check

POOL_COUNT = 65_521
SEED = 7


@cache
def pool_array(size: int) -> np.ndarray:
    """The pool as rows of bytes; not to be written to."""
    assert size >= 8
    rows = np.full((POOL_COUNT, size), ord("."), dtype=np.uint8)
    rows[:, :4] = np.arange(POOL_COUNT, dtype="<u4").view(np.uint8).reshape(-1, 4)
    random_bytes = size // 2 - 4
    rows[:, 4 : 4 + random_bytes] = np.random.default_rng(SEED).integers(
        0, 256, (POOL_COUNT, random_bytes), dtype=np.uint8
    )
    return rows


def pool(size: int) -> list[bytes]:
    data = pool_array(size).tobytes()
    return [data[start : start + size] for start in range(0, len(data), size)]


def messages(count: int, size: int) -> Iterator[bytes]:
    """The first ``count`` messages. The pool is built before the first one is asked for."""
    return islice(cycle(pool(size)), count)


class Receipt:
    """Collects what a reader received and says whether it is what one producer sent.

    Holds the place of every message per shard; ``verify`` proves that each shard rose in send order, that together
    they hold messages 0 to ``count`` - 1 once each, and (for each ``content_every``-th piece) every byte.
    Not for use by two threads.
    """

    def __init__(self, size: int, content_every: int = 1) -> None:
        self._size, self._content_every = size, content_every
        self._pool = pool_array(size)
        self._places: dict[int, list[np.ndarray]] = {}
        self._pieces = 0
        self.count = 0

    def add_arrow(self, shard: int, column: Any) -> None:
        """A column of binary values, chunked or not."""
        for chunk in getattr(column, "chunks", [column]):
            width = np.int64 if str(chunk.type).startswith("large_") else np.int32
            _, offsets_buffer, data = chunk.buffers()
            offsets = np.frombuffer(offsets_buffer, dtype=width)[chunk.offset : chunk.offset + len(chunk) + 1]
            check(bool(np.all(np.diff(offsets) == self._size)), f"a message is not {self._size} bytes long")
            if len(chunk):
                self._add(shard, np.frombuffer(data, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])])

    def add_values(self, shard: int, values: list[bytes]) -> None:
        check(all(len(value) == self._size for value in values), f"a message is not {self._size} bytes long")
        if values:
            self._add(shard, np.frombuffer(b"".join(values), dtype=np.uint8))

    def _add(self, shard: int, data: np.ndarray) -> None:
        rows = data.reshape(-1, self._size)
        places = np.ascontiguousarray(rows[:, :4]).view("<u4").reshape(-1)
        check(bool(np.all(places < POOL_COUNT)), "a message carries an impossible place")
        if self._pieces % self._content_every == 0:
            check(bool(np.array_equal(self._pool[places], rows)), "a message's bytes changed on the way")
        self._places.setdefault(shard, []).append(places)
        self._pieces += 1
        self.count += len(places)

    def verify(self, count: int) -> None:
        check(self.count == count, f"{self.count:,} messages received, {count:,} sent")
        seen = np.zeros(count, dtype=bool)
        for shard, pieces in self._places.items():
            numbers = _unrolled(np.concatenate(pieces).astype(np.int64))
            check(int(numbers[-1]) < count, f"shard {shard} holds messages out of order or twice")
            seen[numbers] = True
        check(bool(seen.all()), "messages are missing or out of order")


def _unrolled(places: np.ndarray) -> np.ndarray:
    """Message numbers from places that wrap: one step back is read as one step forward through the end of the pool.

    A reordered or repeated message therefore pushes the last number past the count, which ``verify`` refuses. (A gap
    longer than the pool between two messages of one shard would be misread, and refused too.)
    """
    steps = np.diff(places, prepend=places[0]) % POOL_COUNT
    steps[1:][steps[1:] == 0] = POOL_COUNT
    return places[0] + np.cumsum(steps)
