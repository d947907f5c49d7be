"""One Spark session for all tests of Spark: it takes seconds to start."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mainstem.spark
from mainstem.spark import origin
from mainstem.testing.server import ServerProcess

# Spark starts a process for everything that it does; beside a busy test on each core they take their time.
SECONDS_MAX = 400
SOURCE = Path(__file__).parents[2] / "src"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def spark(tmp_path_factory) -> Iterator[SparkSession]:
    """A local session of two cores, as users get it, but for the user interface and the place of its files."""
    scratch = tmp_path_factory.mktemp("spark")
    # Python workers are started by the JVM, which knows nothing of pytest's path.
    paths = (str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    made = mainstem.spark.session(
        "tests",
        "local[2,4]",
        {
            "spark.ui.enabled": False,
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "2g",
        },
    )
    yield made
    for query in made.streams.active:
        with contextlib.suppress(Exception):
            query.stop()
    made.stop()
    _end_jvm()


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    """Where jobs that have no table keep their manifests: not with those of whoever runs the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mainstem"


@pytest.fixture(autouse=True)
def kept_ports() -> Iterator[None]:
    """A driver keeps its ports. Those to servers that have ended with their test would go on trying, and say so beside
    what a later test prints."""
    yield
    for access, folder in list(origin._PORTS._open):
        if not folder:
            origin._PORTS.drop(access, folder)


@pytest.fixture
def server(tmp_path) -> Iterator[ServerProcess]:
    """A server on an empty folder."""
    with ServerProcess(tmp_path / "data") as started:
        yield started


def _end_jvm() -> None:
    """Spark leaves its JVM behind for the next session of the process."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
