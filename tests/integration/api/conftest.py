"""The same tests over both hubs: the log in this process, and the log behind a real server."""

from collections.abc import Iterator

import pytest

import mainstem
from mainstem.consume.record import Record
from mainstem.hub.hub import Hub
from mainstem.testing.server import ServerProcess


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module; each test leaves it without streams."""
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
    """An open hub on a log without streams."""
    if kind == "embedded":
        with mainstem.open(f"{tmp_path}/data") as hub:
            yield hub
        return
    server: ServerProcess = request.getfixturevalue("shared_server")
    with mainstem.connect(server.url) as hub:
        yield hub
    with mainstem.connect(server.url) as cleaner:
        for stream in cleaner.streams.list():
            cleaner.streams.delete(stream.name)


def read_all(hub: Hub, stream: str) -> list[Record]:
    """Every record of a stream that is there now."""
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return list(consumer)


def values(hub: Hub, stream: str) -> list[bytes | None]:
    return [record.value for record in read_all(hub, stream)]
