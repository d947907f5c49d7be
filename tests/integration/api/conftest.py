"""The same tests over both hubs: the log in this process, and the log behind a real server."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import mainstem
from mainstem.consume.record import Record
from mainstem.hub.embedded import LogPort
from mainstem.hub.hub import Hub
from mainstem.log.log import LogOptions
from mainstem.log.upkeep import Pace
from mainstem.testing.server import ServerProcess


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module; each test leaves it without streams and groups."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server
        # Shown by pytest when a test of the module failed.
        print(server.stderr())


@pytest.fixture(params=["embedded", "remote"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which hub it is, for the few things that differ."""
    found: str = request.param
    return found


@pytest.fixture
def hub(kind: str, request: pytest.FixtureRequest, tmp_path: object) -> Iterator[Hub]:
    """An open hub on a log without streams and groups."""
    if kind == "embedded":
        with mainstem.open(f"{tmp_path}/data") as hub:
            yield hub
        return
    server: ServerProcess = request.getfixturevalue("shared_server")
    with mainstem.connect(server.url) as hub:
        yield hub
    with mainstem.connect(server.url) as cleaner:
        for group in cleaner.groups.list():
            cleaner.groups.delete(group.name)
        for stream in cleaner.streams.list():
            cleaner.streams.delete(stream.name)


def read_all(hub: Hub, stream: str) -> list[Record]:
    """Every record of a stream that is there now."""
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return list(consumer)


def values(hub: Hub, stream: str) -> list[bytes | None]:
    return [record.value for record in read_all(hub, stream)]


# A log that is kept as hard as it can be.

SETTINGS = (
    *("--upkeep-interval", "50ms", "--upkeep-percent", "100", "--free-after", "0s", "--rewrite-after", "0s"),
    *("--hot-tail-bytes", "1MiB", "--block-bytes", "1MiB", "--snapshot-bytes", "1MiB", "--checkpoint-bytes", "64KiB"),
)
OPTIONS = LogOptions(
    hot_tail_bytes=1 << 20,
    block_bytes=1 << 20,
    snapshot_bytes=1 << 20,
    checkpoint_bytes=64 << 10,
    pace=Pace(interval=0.05, free_after=0.0, rewrite_after=0.0, share=1.0),
)


@dataclass
class Kept:
    """A log that is kept as hard as it can be."""

    hub: Hub
    data: Path

    def blocks_bytes(self) -> int:
        sizes = []
        for path in (self.data / "blocks").iterdir():
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue
        return sum(sizes)

    def come_to(self, is_so: Callable[[], bool], seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, self.hub.statistics()
            time.sleep(0.02)

    def cool(self) -> None:
        """Fill the memory of newest records with others: what was written before is read from disk."""
        self.hub.streams.create("filler", exist_ok=True)
        with self.hub.producer() as producer:
            for number in range(12):
                producer.send("filler", noise(number, 100_000))


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hasty") / "data", *SETTINGS) as server:
        yield server
        print(server.stderr())


@pytest.fixture
def kept(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    if kind == "embedded":
        with Hub(LogPort(tmp_path / "data", OPTIONS), "kept") as hub:
            yield Kept(hub, tmp_path / "data")
        return
    server: ServerProcess = request.getfixturevalue("hasty_server")
    with mainstem.connect(server.url) as hub:
        yield Kept(hub, server.folder)
        for stream in hub.streams.list():
            hub.streams.delete(stream.name)


def noise(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)
