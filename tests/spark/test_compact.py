"""The job `compact` on Spark, against a real server."""

import pyarrow as pa
import pytest

import mainstem
from mainstem.core.errors import FolderLocked, FolderUnusable
from mainstem.log.cold_maker import cold_files
from mainstem.spark.jobs.compact import compact, read_cold

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
def test_compacted_by_tasks_of_spark(spark, server):
    write(server.url)
    before = seen(server.url)
    report = compact(server.url, "orders", spark=spark, older_than="0s", file_bytes_min=1)
    assert report.records == ROWS
    assert report.ranges_left == 0
    assert seen(server.url) == before
    files = cold_files(server.folder, "orders")
    assert {file.path.name for file in files} == {f"{file.block:016d}.parquet" for file in report.files}
    # Spark's own reader of Parquet, over the same records.
    cold = read_cold(spark, server.folder, "orders")
    assert cold is not None
    (row,) = cold.selectExpr("count(*)", "sum(id)", "count(distinct _offset)", "max(if(id = 17, name, ''))").collect()
    assert tuple(row) == (ROWS, ROWS * (ROWS - 1) // 2, max(offset for _, offset, _, _ in before) + 1, "n17")
    # Nothing is left to do.
    assert not compact(server.url, "orders", spark=spark, older_than="0s", file_bytes_min=1).files


def test_a_folder_that_a_server_writes_is_refused(spark, server):
    write(server.url, shards=1)
    with pytest.raises(FolderUnusable, match="no log"):
        compact(str(server.folder / "nothing"), "orders", spark=spark)
    with pytest.raises(FolderLocked, match=r"mainstem\.connect"):
        compact(str(server.folder), "orders", spark=spark)
