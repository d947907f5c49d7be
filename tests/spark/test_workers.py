"""Processes that Spark keeps: what was imported into them is not looked through after every task."""

import contextlib
import gc
import io
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

import mainstem
from mainstem.spark.origin import Access, Origin, opened, opened_near
from mainstem.spark.slices import slices_of
from mainstem.spark.workers import is_worker
from mainstem.transport.port import GetStreamCall
from tests.spark.parts import fill

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def access(tmp_path) -> Access:
    with mainstem.open(tmp_path / "log") as hub:
        fill(hub, count=10)
    return Access.to(str(tmp_path / "log"))


@pytest.mark.slow("Spark starts processes for what it is asked first")
def test_a_worker_that_opened_a_log_has_put_its_imports_out_of_sight(spark, access):
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            opened(access)
            yield pa.RecordBatch.from_pydict({"worker": [is_worker()], "frozen": [gc.get_freeze_count()]})

    found = spark.range(0, 1, 1, 1).mapInArrow(look, "worker BOOLEAN, frozen LONG").first()
    assert found.worker
    # Pyspark, pyarrow and this project: far more than that.
    assert found.frozen > 10_000


@pytest.mark.slow("Spark starts processes for what it is asked first")
def test_a_worker_that_opened_a_log_writes_no_stack_of_a_closed_connection(spark, access):
    """Spark's daemon writes one where a LIMIT ends a task."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            opened(access)
            said = []
            for error in (BrokenPipeError(), ValueError("wrong")):
                with contextlib.redirect_stderr(io.StringIO()) as caught:
                    try:
                        raise error
                    except (BrokenPipeError, ValueError):
                        # As the daemon does.
                        vars(sys.modules["__main__"])["traceback"].print_exc()
                said.append(caught.getvalue())
            yield pa.RecordBatch.from_pydict({"said": said})

    closed, wrong = (row.said for row in spark.range(0, 1, 1, 1).mapInArrow(look, "said STRING").collect())
    assert closed == ""
    assert "ValueError: wrong" in wrong


@pytest.mark.slow("Spark starts processes for what it is asked first")
def test_a_task_reads_the_folder_of_a_server_that_it_sees(spark, server):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=10)
    access = Access.to(server.url)
    port = opened(access)
    place = slices_of(port, access, port.call(GetStreamCall("orders")).streams[0])[0].origin
    # Control: of a server that has not said where its folder is.
    places = [place, Origin(access)]

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"port": [type(opened_near(each)).__name__ for each in places]})

    found = spark.range(0, 1, 1, 1).mapInArrow(look, "port STRING").collect()
    assert [row.port for row in found] == ["FolderPort", "RemotePort"]


def test_the_process_of_the_user_is_left_alone(tmp_path):
    with mainstem.open(tmp_path / "log"):
        pass
    before = gc.get_freeze_count()
    opened(Access.to(str(tmp_path / "log")))
    assert not is_worker()
    assert gc.get_freeze_count() == before
