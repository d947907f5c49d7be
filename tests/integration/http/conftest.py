"""A server process that serves HTTP, and a small client with nothing but the standard library."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.testing.server import ServerProcess
from tests.integration.http.client import Client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("http") / "data", "--http", "127.0.0.1:0") as found:
        yield found


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may kill."""
    with ServerProcess(tmp_path / "data", "--http", "127.0.0.1:0") as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.http) as found:
        yield found
