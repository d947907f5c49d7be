"""Fixtures for pytest: a log for every test, in its own process or behind a server.

Add to your `conftest.py`:

    pytest_plugins = ["mainstem.testing.fixtures"]

and ask for `mainstem_hub`, an embedded hub in the test's temporary folder, or `mainstem_server`, a server process that
can be killed and started again (`mainstem.connect(mainstem_server.url)`). Both are new for each test and closed after.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainstem.hub.hub import Hub, open_folder
from mainstem.testing.server import ServerProcess


@pytest.fixture
def mainstem_hub(tmp_path: Path) -> Iterator[Hub]:
    """An embedded hub on an empty folder."""
    with open_folder(tmp_path / "mainstem") as hub:
        yield hub


@pytest.fixture
def mainstem_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server on an empty folder, started."""
    with ServerProcess(tmp_path / "mainstem-server") as server:
        yield server
