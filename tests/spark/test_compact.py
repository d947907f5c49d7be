"""The job `compact` on Spark, against a real server."""

import json

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.cursor import Cursor
from mainstem.core.errors import FolderLocked, FolderUnusable, TableUnusable
from mainstem.log.cold_maker import cold_files
from mainstem.spark.jobs.catalogue import loads_of
from mainstem.spark.jobs.compact import _made, compact, read_cold, span_of
from mainstem.spark.jobs.manifest import Manifests
from mainstem.spark.jobs.tasks import no_step
from mainstem.transport.port import ColdPlan, ColdTask
from tests.spark.lakes import CutShort, check_files, cut_at

pytestmark = pytest.mark.xdist_group("spark")

ROWS = 3_000


def write(url: str, *, shards: int = 2) -> None:
    with mainstem.connect(url) as hub:
        hub.streams.create("orders", shards=shards, schema={"id": "int64", "name": "string"}, key="id")
        with hub.producer() as producer:
            for first in range(0, ROWS, 100):
                ids = [(7 * number) % ROWS for number in range(first, first + 100)]
                producer.send_batch("orders", pa.table({"id": ids, "name": [f"n{number}" for number in ids]}))
                producer.flush()


def seen(url: str) -> list[tuple[int, int, int, str]]:
    with mainstem.connect(url) as hub, hub.consumer("orders", start="earliest", follow=False) as consumer:
        return sorted((one.shard, one.offset, one.value["id"], one.value["name"]) for one in consumer)


@pytest.mark.slow("runs tasks of Spark twice, and a query")
def test_compacted_by_tasks_of_spark(spark, server, state):
    write(server.url)
    before = seen(server.url)
    report = compact(server.url, "orders", spark=spark, older_than="0s", file_bytes_min=1)
    assert report.records == ROWS
    assert report.ranges_left == 0
    assert seen(server.url) == before
    files = cold_files(server.folder, "orders")
    assert {file.path.name for file in files} == {f"{file.block:016d}.parquet" for file in report.files}
    # Spark's own reader of Parquet, over the same records.
    cold = read_cold(spark, server.url, "orders")
    assert cold is not None
    assert sorted(map(tuple, cold.select("_shard", "_offset", "id", "name").collect())) == before
    # Nothing is left to do, and nothing is noted of it.
    assert not compact(server.url, "orders", spark=spark, older_than="0s", file_bytes_min=1).files

    # What was done is in the manifest: from where to where, how much, and every file with its checksum.
    (load,) = loads_of(state)
    assert (load.job, load.stream, load.number, load.state) == ("compact", "orders", 1, "done")
    assert (load.rows_read, load.rows_written, load.ranges_left) == (ROWS, ROWS, 0)
    ends = [max(offset for shard, offset, _, _ in before if shard == each) + 1 for each in range(2)]
    assert Cursor.parse(load.start).offsets == (0, 0)
    assert list(Cursor.parse(load.end).offsets) == ends
    check_files([load], server.folder)
    for file in load.files:
        assert json.loads(file.stats)["numRecords"] == file.rows


@pytest.mark.slow("runs tasks of Spark for every step that a run can be killed at")
@pytest.mark.parametrize("step", ["settled", "planned", "wrote", "written", "swap", "committed", "done"])
def test_a_run_that_was_killed_is_finished_by_the_next(spark, server, state, step):
    """Whatever the step, afterwards every record is in one file, and the manifests name every file that is there."""
    write(server.url)
    before = seen(server.url)
    given = {"spark": spark, "older_than": "0s", "file_bytes_min": 1}
    # Of the two files one is swapped in, and the other is not.
    with pytest.raises(CutShort):
        compact(server.url, "orders", on_step=cut_at(step, 2 if step == "swap" else 1), **given)
    compact(server.url, "orders", **given)
    assert seen(server.url) == before
    there = {file.path.name for file in cold_files(server.folder, "orders")}
    loads = list(loads_of(state))
    assert {load.state for load in loads} == {"done"}
    assert [load.number for load in loads] == list(range(1, len(loads) + 1))
    assert sorted(file.path.rpartition("/")[2] for load in loads for file in load.files) == sorted(there)
    assert sum(load.rows_written for load in loads) == ROWS
    assert not list((state / "_mainstem" / "attempts").iterdir())
    assert not list((server.folder / "blocks").glob("*.part"))


def test_a_range_that_stays_as_it_is_is_told_once(spark, server, state, monkeypatch):
    """Beside one that does not, after which everything is planned again."""
    write(server.url)

    def made(session, plan, tasks, on_step):
        return [
            None if task.shard else one for task, one in zip(tasks, _made(session, plan, tasks, on_step), strict=True)
        ]

    with monkeypatch.context() as patch:
        patch.setattr("mainstem.spark.jobs.compact._made", made)
        report = compact(server.url, "orders", spark=spark, older_than="0s", file_bytes_min=1)
    assert {file.shard for file in report.files} == {0}
    assert (report.loads, report.ranges_left) == (1, 1)
    (load,) = loads_of(state)
    assert (load.state, load.ranges_left) == ("done", 1)
    report = compact(server.url, "orders", spark=spark, older_than="0s", file_bytes_min=1)
    assert {file.shard for file in report.files} == {1}
    assert (report.loads, report.ranges_left) == (1, 0)
    assert [load.number for load in loads_of(state)] == [1, 2]


def test_one_run_at_a_time(spark, server, tmp_path):
    write(server.url, shards=1)
    with mainstem.connect(server.url) as hub:
        name = f"compact-{hub.streams.get('orders').uuid}"
    with Manifests(tmp_path / "notes", name).locked(), pytest.raises(TableUnusable, match="another run of this job"):
        compact(server.url, "orders", spark=spark, older_than="0s", manifests=tmp_path / "notes")


def test_what_a_task_meets_is_told_as_it_is(spark, server):
    """Not as a failure of Spark's, after it was tried again and again."""
    plan = ColdPlan(str(server.folder), "0" * 32, 1, 1, 1, ())
    with pytest.raises(FolderUnusable, match="is not the folder of log 0000"):
        _made(spark, plan, [ColdTask(1, 0, 0, 10, 1, 1, 1, 1)], no_step)


def test_the_cursors_of_a_load_stand_where_its_ranges_do():
    tasks = [ColdTask(1, shard, base, base + 10, 1, 1, 1, 1) for shard, base in ((1, 40), (1, 50), (3, 0))]
    assert span_of(tasks, (5, 6, 7)) == ([5, 40, 7, 0], [5, 60, 7, 10])
    assert span_of([], (5, 6)) == ([5, 6], [5, 6])


def test_a_folder_that_a_server_writes_is_refused(spark, server):
    write(server.url, shards=1)
    with pytest.raises(FolderUnusable, match="no log"):
        compact(str(server.folder / "nothing"), "orders", spark=spark)
    with pytest.raises(FolderLocked, match=r"server \(mainstem serve\), go through it by its address, such as"):
        compact(str(server.folder), "orders", spark=spark)
