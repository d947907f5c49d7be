"""A table with the partitions of the stream: every shard is written straight to its own, and no row changes hands."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import mainstem
from mainstem.core.placement import shards_for
from mainstem.spark.jobs.warehouse import warehouse
from tests.spark.lakes import table_of

pytestmark = pytest.mark.xdist_group("spark")

SHARDS = 8
ROWS = 200_000


@pytest.mark.mechanism("S90")
@pytest.mark.slow("200,000 rows, loaded and shuffled")
def test_shards_become_partitions_without_an_exchange(tmp_path, spark):
    """Counted by Spark itself: rows written to a shuffle. With other buckets than the stream's all of them go through
    one, because seven of eight belong to another bucket than their shard's."""
    with mainstem.open(tmp_path / "log") as hub, hub.producer() as producer:
        hub.streams.create("orders", shards=SHARDS, schema={"id": "int64", "x": "int64"}, key="id")
        ids = pa.array(range(ROWS), pa.int64())
        producer.send_batch("orders", pa.table({"id": ids, "x": ids}))
    before = _last_stage(spark)
    done = warehouse(tmp_path / "log", "orders", tmp_path / "t", partition="shard", spark=spark)
    assert done.rows_written == ROWS
    assert _exchanged(spark, before) == 0
    found = table_of(tmp_path / "t")
    keys = pa.array([str(number).encode() for number in found["id"].to_pylist()], pa.binary())
    assert found["_shard"].to_pylist() == shards_for(keys, SHARDS, "crc32", 0).tolist()
    files = [path.split("/")[-2] for path in DeltaTable(str(tmp_path / "t")).file_uris()]
    assert set(files) == {f"_shard={shard}" for shard in range(SHARDS)}
    # The control: the same stream into buckets that are not its own, so that rows go where they belong by a shuffle.
    buckets = f"SELECT id, _shard AS shard, pmod(hash(id), {SHARDS}) AS bucket FROM orders"
    sql = f"SELECT /*+ REPARTITION({SHARDS}, bucket) */ * FROM ({buckets})"
    done = warehouse(tmp_path / "log", "orders", tmp_path / "other", sql=sql, spark=spark)
    assert done.rows_written == ROWS
    assert _exchanged(spark, before) == ROWS
    other = table_of(tmp_path / "other")
    assert pc.sum(pc.not_equal(other["bucket"], other["shard"])).as_py() == pytest.approx(ROWS * 7 / 8, rel=0.01)
    assert sorted(other["id"].to_pylist()) == list(range(ROWS))


def _last_stage(spark) -> int:
    return max((stage.stageId() for stage in _stages(spark)), default=-1)


def _exchanged(spark, after: int) -> int:
    """Rows that tasks have handed over to others in the stages after this one."""
    return sum(stage.shuffleWriteRecords() for stage in _stages(spark) if stage.stageId() > after)


def _stages(spark) -> list:
    """Those that the session remembers: the last thousand."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    store = context.statusStore()
    defaults = [getattr(store, f"stageList$default${place}")() for place in range(2, 6)]
    stages = store.stageList(None, *defaults)
    return [stages.apply(index) for index in range(stages.size())]
