"""A real cluster, a master and two workers as processes of their own: it reads, follows and writes, and does jobs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

import mainstem
from mainstem.log.folder import LOCK_NOTE
from mainstem.spark.java import find_java
from tests.faults.drivers import cluster
from tests.spark.parts import SCHEMA, fill

pytestmark = pytest.mark.xdist_group("spark")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
# What the page has to see whether a cluster works.
(CHECK,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
JOB = """
import sys
from datetime import UTC, datetime
import mainstem.spark
from mainstem.spark.jobs.replay import replay
from mainstem.spark.jobs.warehouse import warehouse
from pyspark.sql import functions as f

def place(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        pass
    yield pa.record_batch({"place": [os.getcwd()]})

def doubled(rows):
    import pyarrow as pa
    import pyarrow.compute as pc
    return pa.table({"id": rows["id"], "twice": pc.multiply(rows["id"], 2)})

hub, folder = sys.argv[1:]
spark = mainstem.spark.session()
print("at", spark.conf.get("spark.master"), spark.conf.get("spark.sql.python.filterPushdown.enabled"))
rows = spark.read.format("mainstem").option("hub", hub).option("partitions", 4).load("orders")
print("sum", *rows.agg(f.count("*"), f.sum("id")).first())
print("tasks", rows.rdd.getNumPartitions())
# Every executor works in a folder of its own.
print("places", rows.mapInArrow(place, "place string").distinct().count())
rows.where("id < 100").write.format("mainstem").mode("append").option("hub", hub).save("some")
reading = spark.readStream.format("mainstem").options(hub=hub, startingOffsets="earliest", group="cluster")
copying = reading.load("orders").writeStream.format("mainstem").trigger(availableNow=True)
copying = copying.options(hub=hub, checkpointLocation=folder + "/checkpoint")
assert copying.start("copies").awaitTermination(120)
print("loaded", warehouse(hub, "orders", folder + "/table", spark=spark).rows_written)
since, until = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
again = replay(hub, "orders", folder + "/again", since=since, until=until, function=doubled, spark=spark)
print("replayed", again.rows_written)
spark.stop()
"""


@pytest.mark.slow("starts a cluster of Spark: four JVMs, and two drivers")
def test_a_standalone_cluster_reads_follows_writes_and_does_jobs_through_the_server(tmp_path, server, monkeypatch):
    """By a program that was submitted: the session is the one that `spark-submit` has decided. Executors have Java and
    the token of their worker's environment, and the Python of the driver's."""
    with mainstem.connect(server.url) as hub:
        fill(hub, count=20_000)
        for stream in ("some", "copies"):
            hub.streams.create(stream, shards=2, schema=SCHEMA)
        token = hub.access.create_token("root", admin=True).secret
    monkeypatch.setenv("MAINSTEM_TOKEN", token)
    # What they are told is not asked.
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    # Executors see the folder, but not that it is the server's: so they have to ask the server.
    (server.folder / LOCK_NOTE).unlink()
    with cluster(tmp_path) as master:
        done = submitted(tmp_path, master, JOB, server.url, str(tmp_path))
        checked = submitted(tmp_path, master, CHECK, server.url, "orders")
    assert f"at {master} true" in done
    assert f"sum 20000 {20_000 * 19_999 // 2}" in done
    assert "places 2" in done
    for said, table, column, factor in (("loaded", "table", "id", 1), ("replayed", "again", "twice", 2)):
        assert f"{said} 20000" in done
        found = DeltaTable(str(tmp_path / table)).to_pyarrow_table()[column].to_pylist()
        assert sorted(found) == [factor * number for number in range(20_000)]
    assert not (server.folder / LOCK_NOTE).exists()
    with mainstem.connect(server.url) as hub:
        assert ids(hub, "some") == list(range(100))
        assert ids(hub, "copies") == list(range(20_000))
        assert hub.groups.get("cluster").records == 0
    # One for each batch at most, and the log may have merged them to one for each shard meanwhile.
    assert int(done.split("tasks ")[1].split()[0]) in range(2, 5)

    # A line for each of the two executors.
    names, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in checked.splitlines() if "|" in line]
    executors = [dict(zip(names, line, strict=True)) for line in lines]
    assert len({executor["folder"] for executor in executors}) == len(executors) == 2
    assert {(executor["python"], executor["mainstem"]) for executor in executors} == {
        (sys.executable, mainstem.__version__)
    }
    assert sum(int(executor["sum(rows)"]) for executor in executors) == 20_000
    # Nor in what Spark's processes have written.
    for said in (done, checked, *(log.read_text(errors="replace") for log in logs(tmp_path))):
        assert token.rpartition("_")[2] not in said


def submitted(folder: Path, master: str, program: str, *arguments: str) -> str:
    """What a program says that is submitted to a cluster."""
    script = folder / "program.py"
    script.write_text(program)
    java = os.environ["SPARK_DAEMON_JAVA_OPTS"]
    done = subprocess.run(
        [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            *("--master", master, "--conf", "spark.ui.enabled=false", "--executor-memory", "512m"),
            *("--conf", f"spark.executor.extraJavaOptions={java}", "--conf", f"spark.local.dir={folder}"),
            # Work begins when both workers have an executor.
            *("--conf", "spark.cores.max=2", "--conf", "spark.scheduler.minRegisteredResourcesRatio=1"),
            *(str(script), *arguments),
        ],
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT / "src"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


def logs(folder: Path) -> list[Path]:
    """Of the master, the workers and their executors."""
    found = [path for path in (folder / "cluster").rglob("*") if path.name == "stderr" or path.suffix == ".log"]
    assert len(found) >= 5
    return found


def ids(hub: mainstem.Hub, stream: str) -> list[int]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return sorted(number for batch in consumer.batches() for number in batch.to_arrow()["id"].to_pylist())
