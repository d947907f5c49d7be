"""A Kafka broker of one node (KRaft), and Spark's connector for it: jars from Maven Central, fetched by Maven.

They are kept in `build/jars`, so Maven is asked once. The broker runs as it is shipped, with four
partitions a topic and a heap of 1 GB.

Of Spark 4.3 the connector is not there yet, nor is the piece of it that handles tokens newer than 4.0: these are the
newest that there are, and Spark 4.3 runs them. (No token is used.)
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.harness import REPOSITORY, BenchmarkError, Process, free_port

KAFKA = "4.1.0"
CONNECTOR = "4.2.0"
BROKER_JARS = (f"org.apache.kafka:kafka_2.13:{KAFKA}",)
# Without what they depend on: Spark has the rest itself.
CONNECTOR_JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    f"org.apache.kafka:kafka-clients:{KAFKA}",
    "org.apache.commons:commons-pool2:2.12.1",
)
PARTITIONS = 4
READY_TIMEOUT_S = 60.0
FETCH_TIMEOUT_S = 600.0
CLUSTER_ID = "bWFpbnN0ZW0tYmVuY2gtMQ"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmark</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/kafka
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


def available() -> str | None:
    """None, or what is missing here. Whether the jars can be had is known when they are fetched."""
    if shutil.which("java") is None:
        return "needs: Java 17 or newer on the path"
    if shutil.which("mvn") is None and not all(_folder(name).is_dir() for name in ("broker", "connector")):
        return "needs: apt-get install maven (Debian, Ubuntu) or brew install maven"
    return None


def connector_jars() -> list[Path]:
    return _fetched("connector", CONNECTOR_JARS, alone=True)


class Broker(Process):
    """One broker on an empty folder and a free port. Use it in a ``with`` block."""

    def __init__(self, folder: Path) -> None:
        jars = _fetched("broker", BROKER_JARS, alone=False)
        classes = ["java", "-Xmx1g", "-cp", ":".join(map(str, jars))]
        port = free_port()
        settings = folder / "kafka.properties"
        settings.write_text(PROPERTIES.format(port=port, controller=free_port(), folder=folder, partitions=PARTITIONS))
        _run([*classes, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)], READY_TIMEOUT_S)
        super().__init__([*classes, "kafka.Kafka", settings])
        self.address = f"127.0.0.1:{port}"
        try:
            self._wait_until_accepting(port)
        except BaseException:
            self.stop()
            raise

    @property
    def title(self) -> str:
        return "Kafka"

    def _wait_until_accepting(self, port: int) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise BenchmarkError(f"Kafka did not accept within {READY_TIMEOUT_S:g} s{self.errors()}")


def _folder(name: str) -> Path:
    return REPOSITORY / "build" / "jars" / f"{name}-{KAFKA}-{CONNECTOR}"


def _fetched(name: str, coordinates: tuple[str, ...], *, alone: bool) -> list[Path]:
    """The jars, by Maven unless they are here. A folder is whole or not there."""
    folder = _folder(name)
    if not folder.is_dir():
        work = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        parts = [DEPENDENCY.format(*each.split(":"), ALONE if alone else "") for each in coordinates]
        (work / "pom.xml").write_text(POM.format(dependencies="".join(parts)))
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
        _run(["mvn", "-q", "-B", "-f", str(work / "pom.xml"), *copy], FETCH_TIMEOUT_S)
        (work / "jars").rename(folder)
        shutil.rmtree(work)
    return sorted(folder.glob("*.jar"))


def _run(command: list[str], timeout_s: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise BenchmarkError(
            f"{command[0]} ended with status {done.returncode}\n{(done.stdout + done.stderr)[-2_000:]}"
        )
