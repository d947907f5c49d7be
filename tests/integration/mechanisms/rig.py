"""What the experiments share: servers, slow and counting links, percentiles, embedded hubs with chosen options.

An experiment measures; its test says what the figure must be, and then measures again with the mechanism switched off,
to show that the figure depends on it.
"""

import asyncio
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mainstem
from mainstem.consume.consumer import Consumer
from mainstem.consume.record import Record
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.log.log import LogOptions
from mainstem.testing import planted
from mainstem.testing.link import Link


class SlowLink(Link):
    """A link on which every byte takes `delay` seconds, however many are on the way; it counts what passes."""

    def __init__(self, target: str, delay: float = 0.0) -> None:
        super().__init__(target)
        self._delay = delay
        self.requests_bytes = 0
        self.answers_bytes = 0

    def __enter__(self) -> "SlowLink":
        super().__enter__()
        return self

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, holds: bool) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        deliver = asyncio.ensure_future(self._deliver(pieces, writer, holds))
        try:
            while piece := await reader.read(64 << 10):
                if holds:
                    self.answers_bytes += len(piece)
                else:
                    self.requests_bytes += len(piece)
                pieces.put_nowait((self._loop.time() + self._delay, piece))
        except OSError:
            return
        finally:
            deliver.cancel()

    async def _deliver(
        self, pieces: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter, holds: bool
    ) -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if holds:
                await self._answers_flow.wait()
            writer.write(piece)


@contextmanager
def embedded(path: Path, **options: Any) -> Iterator[Hub]:
    """An embedded hub whose log has these options, also those that `mainstem.open` keeps to itself."""
    with Hub(LogPort(path, LogOptions(**options)), str(path)) as hub:
        yield hub


_RUN = "import runpy; runpy.run_module('mainstem', run_name='__main__', alter_sys=True)"


@contextmanager
def changed_servers(change: str) -> Iterator[None]:
    """Servers that are started inside the block execute `change` first, to do without a mechanism."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planted, "command", lambda _, *rest: [sys.executable, "-c", f"{change}\n{_RUN}", *rest])
        yield


def percentile(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def read_all(hub: Hub, stream: str) -> list[Record]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return list(consumer)


def values(hub: Hub, stream: str) -> list[bytes]:
    return [record.value or b"" for record in read_all(hub, stream)]


def take(consumer: Consumer, count: int) -> list[bytes]:
    """The values of the next records of a follower; each must come within ten seconds."""
    found: list[bytes] = []
    for _ in range(count):
        record = consumer.poll(10)
        assert record is not None, f"nothing came after {len(found)} of {count}"
        found.append(record.value or b"")
    return found


def repeats(found: Iterable[bytes]) -> int:
    """How many records are there more than once, counted once for each time too many."""
    seen = list(found)
    return len(seen) - len(set(seen))


def counters(url: str) -> dict[str, int]:
    """The server's counters, asked for over a connection of its own."""
    with mainstem.connect(url) as hub:
        return hub.statistics()
