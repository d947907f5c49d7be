"""A real cluster: a master and two workers, as processes of their own, read a stream of a server."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

import mainstem
from mainstem.log.folder import LOCK_NOTE
from mainstem.spark.java import find_java
from tests.spark.parts import SCHEMA, fill

pytestmark = pytest.mark.xdist_group("spark")

SOURCE = Path(__file__).parents[2] / "src"
START_SECONDS_MAX = 120
JOB = """
import sys
import mainstem.spark
from pyspark.sql import functions as f
hub, checkpoint = sys.argv[1:]
spark = mainstem.spark.session()
print("at", spark.conf.get("spark.master"), spark.conf.get("spark.sql.python.filterPushdown.enabled"))
rows = spark.read.format("mainstem").option("hub", hub).option("partitions", 4).load("orders")
print("sum", *rows.agg(f.count("*"), f.sum("id")).first())
print("tasks", rows.rdd.getNumPartitions())
rows.where("id < 100").write.format("mainstem").mode("append").option("hub", hub).save("some")
reading = spark.readStream.format("mainstem").options(hub=hub, startingOffsets="earliest", group="cluster")
copying = reading.load("orders").writeStream.format("mainstem").options(hub=hub, checkpointLocation=checkpoint)
assert copying.trigger(availableNow=True).start("copies").awaitTermination(120)
spark.stop()
"""


@contextmanager
def daemon(folder: Path, kind: str, *arguments: str) -> Iterator[str]:
    """A process of Spark's own, ended with the block; what it said when it was ready."""
    log = folder / f"{kind.rpartition('.')[2].lower()}-{len(list(folder.iterdir()))}.log"
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(SOURCE),
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(program), kind, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            env=environment,
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (
            ready := re.search(
                r"Starting Spark master at (spark://\S+)|(Successfully registered) with master", log.read_text()
            )
        ):
            assert process.poll() is None, log.read_text()[-3_000:]
            assert time.monotonic() < deadline, log.read_text()[-3_000:]
            time.sleep(0.1)
        yield ready[1] or ""
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.mark.slow("starts a cluster of Spark: four JVMs")
def test_a_standalone_cluster_reads_follows_and_writes_through_the_server(tmp_path, server):
    """By a program that was submitted: the session is the one that `spark-submit` has decided."""
    with mainstem.connect(server.url) as hub:
        fill(hub, count=20_000)
        for stream in ("some", "copies"):
            hub.streams.create(stream, shards=2, schema=SCHEMA)
    # Executors see the folder, but not that it is the server's: so they have to ask the server.
    (server.folder / LOCK_NOTE).unlink()
    logs = tmp_path / "logs"
    logs.mkdir()
    worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g")
    with (
        daemon(logs, "org.apache.spark.deploy.master.Master", "--port", "0") as master,
        daemon(logs, *worker, master),
        daemon(logs, *worker, master),
    ):
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(SOURCE),
        }
        java = os.environ["SPARK_DAEMON_JAVA_OPTS"]
        script = tmp_path / "job.py"
        script.write_text(JOB)
        done = subprocess.run(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                *("--master", master, "--conf", "spark.ui.enabled=false", "--executor-memory", "512m"),
                *("--conf", f"spark.executor.extraJavaOptions={java}", "--conf", f"spark.local.dir={tmp_path}"),
                *(str(script), server.url, str(tmp_path / "checkpoint")),
            ],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert f"at {master} true" in done.stdout
    assert f"sum 20000 {20_000 * 19_999 // 2}" in done.stdout
    assert not (server.folder / LOCK_NOTE).exists()
    with mainstem.connect(server.url) as hub:
        assert ids(hub, "some") == list(range(100))
        assert ids(hub, "copies") == list(range(20_000))
        assert hub.groups.get("cluster").records == 0
    # One for each batch at most, and the log may have merged them to one for each shard meanwhile.
    assert int(done.stdout.split("tasks ")[1].split()[0]) in range(2, 5)


def ids(hub: mainstem.Hub, stream: str) -> list[int]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return sorted(number for batch in consumer.batches() for number in batch.to_arrow()["id"].to_pylist())
