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
from mainstem.spark.java import find_java
from tests.spark.parts import fill

pytestmark = pytest.mark.xdist_group("spark")

SOURCE = Path(__file__).parents[2] / "src"
START_SECONDS_MAX = 120
JOB = """
import os, sys
import mainstem.spark
from pyspark.sql import functions as f
master, hub = sys.argv[1:]
java = os.environ["SPARK_DAEMON_JAVA_OPTS"]
config = {"spark.ui.enabled": False, "spark.executor.memory": "512m", "spark.executor.extraJavaOptions": java}
spark = mainstem.spark.session("cluster", master, config)
rows = spark.read.format("mainstem").option("hub", hub).option("partitions", 4).load("orders")
print("sum", *rows.agg(f.count("*"), f.sum("id")).first())
print("tasks", rows.rdd.getNumPartitions())
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
def test_a_standalone_cluster_reads_a_stream(tmp_path, server):
    with mainstem.connect(server.url) as hub:
        fill(hub, count=20_000)
    logs = tmp_path / "logs"
    logs.mkdir()
    worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g")
    with (
        daemon(logs, "org.apache.spark.deploy.master.Master", "--port", "0") as master,
        daemon(logs, *worker, master),
        daemon(logs, *worker, master),
    ):
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        done = subprocess.run(
            [sys.executable, "-c", JOB, master, server.url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert f"sum 20000 {20_000 * 19_999 // 2}" in done.stdout, done.stderr[-3_000:]
    # One for each batch at most, and the log may have merged them to one for each shard meanwhile.
    assert int(done.stdout.split("tasks ")[1]) in range(2, 5)
