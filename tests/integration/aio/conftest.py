"""The same tests for a log in this process, one behind a real server, and one that is only read; on both kinds of
loops."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

import mainstem
import mainstem.aio
from mainstem.aio.hub import Opening
from mainstem.testing.server import ServerProcess

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
Open = Callable[[], Opening[mainstem.aio.Hub]]

SECONDS = 60.0


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module; each test leaves it without streams."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server
        # Shown by pytest when a test of the module failed.
        print(server.stderr())


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def run() -> Run[Any]:
    """Runs a coroutine in an event loop of its own, for no longer than a minute."""
    return in_loop


def in_loop(main: Coroutine[Any, Any, T], kind: str = "asyncio") -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if kind == "uvloop" else None) as runner:
        return runner.run(asyncio.wait_for(main, SECONDS))


@pytest.fixture(params=["embedded", "remote"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def open_hub(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens a log without streams."""
    if kind == "embedded":
        yield lambda: mainstem.aio.open(tmp_path / "data")
        return
    server: ServerProcess = request.getfixturevalue("shared_server")
    yield lambda: mainstem.aio.connect(server.url)
    with mainstem.connect(server.url) as cleaner:
        for stream in cleaner.streams.list():
            cleaner.streams.delete(stream.name)
