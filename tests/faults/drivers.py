"""Drivers of Spark as processes, and a cluster for those that have executors of their own.

A driver starts Spark, says that it is ready, and then does what it is told, line by line. Spark takes seconds to start,
so the next driver is started while one works.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark

from mainstem.spark.java import find_java
from mainstem.testing import planted
from tests.faults.striking import VARIABLE

ROOT: Final = Path(__file__).parents[2]
_PATHS: Final = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
_QUIET: Final = ROOT / "src" / "mainstem" / "spark" / "log4j2.properties"
_LIFE_SECONDS_MAX: Final = 180.0
_START_SECONDS_MAX: Final = 120.0
# Small heaps that are not made ready before they are needed: several JVMs share the machine.
_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"


class DriverFailed(Exception):
    """A driver did not start, or did not do what it was told; the message ends with what it said."""


class Driver:
    """One life of a driver. One thread."""

    def __init__(self, module: str, folder: Path, master: str) -> None:
        self._log = folder / f"driver-{len(list(folder.glob('driver-*.log'))) + 1}.log"
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                planted.command(module, master),
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": _PATHS,
                    "SPARK_LAUNCHER_OPTS": _JAVA,
                    "SPARK_LOCAL_DIRS": str(folder / "scratch"),
                    VARIABLE: str(folder / "strikes"),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def tell(self, orders: dict[str, Any]) -> None:
        """Have it begin; waits until Spark has started."""
        if self._heard(_START_SECONDS_MAX) != "ready":
            raise DriverFailed(f"the driver did not start: {self.said()}")
        self.tell_more(orders)

    def tell_more(self, orders: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(orders).encode() + b"\n")
        self._child.stdin.flush()

    def answer(self) -> str:
        """What it says when it has done what it was told, "" if it ended instead."""
        return self._heard(_LIFE_SECONDS_MAX)

    def _heard(self, seconds: float) -> str:
        out = self._child.stdout
        assert out is not None
        deadline, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise DriverFailed(f"nothing was heard for {seconds:g} s: {self.said()}")
            piece = os.read(out.fileno(), 4_096)
            if not piece:
                return ""
            line += piece
        return line.decode().strip()

    def said(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line[:300] for line in lines if not line.startswith("\tat "))[-2_000:]

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._child.wait()


class Drivers:
    """Drivers for one life each; the next one is started beside. As a context manager it ends what is left."""

    def __init__(self, module: str, folder: Path, masters: list[str]) -> None:
        self._module = module
        self._folder = folder
        self._masters = masters
        self._started: list[Driver] = []

    @contextmanager
    def told(self, orders: dict[str, Any]) -> Iterator[Driver]:
        """A driver that has begun, until the block ends."""
        driver = self._started.pop() if self._started else self._start()
        try:
            driver.tell(orders)
            if self._masters:
                self._started.append(self._start())
            yield driver
        finally:
            driver.end()

    def _start(self) -> Driver:
        return Driver(self._module, self._folder, self._masters.pop(0))

    def __enter__(self) -> "Drivers":
        return self

    def __exit__(self, *exc: object) -> None:
        for driver in self._started:
            driver.end()


def be_driver(
    name: str, master: str, obey: Callable[[Any, dict[str, Any]], None], config: dict[str, object] | None = None
) -> None:
    """Inside the process: start Spark, then obey line by line."""
    import mainstem.spark

    settings: dict[str, object] = {
        "spark.ui.enabled": False,
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{_JAVA} -Dlog4j2.configurationFile=file:{_QUIET}",
        "spark.default.parallelism": 2,
        "spark.sql.shuffle.partitions": 2,
        **(config or {}),
    }
    if master.startswith("spark:"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": 1,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _JAVA,
            "spark.executorEnv.PYTHONPATH": _PATHS,
            f"spark.executorEnv.{VARIABLE}": os.environ[VARIABLE],
            # An executor that dies takes with it what it has shuffled.
            "spark.task.maxFailures": 8,
            "spark.stage.maxConsecutiveAttempts": 8,
        }
    spark = mainstem.spark.session(name, master, settings)
    print("ready", flush=True)
    for line in sys.stdin:
        obey(spark, json.loads(line))
        print("done", flush=True)
    spark.stop()


def driver_pids(spark: Any) -> dict[str, int]:
    """The two processes of this driver."""
    return {"jvm": spark._jvm.ProcessHandle.current().pid(), "driver": os.getpid()}


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and two workers with a core each, on loopback; the master's address."""
    logs = folder / "cluster"
    logs.mkdir(exist_ok=True)
    with ExitStack() as stack:
        master = stack.enter_context(_daemon(logs, "master", "master.Master", "--port", "0"))
        for worker in ("first", "second"):
            stack.enter_context(_daemon(logs, worker, "worker.Worker", "--cores", "1", "--memory", "1g", master))
        yield master


@contextmanager
def _daemon(logs: Path, name: str, kind: str, *arguments: str) -> Iterator[str]:
    """A process of Spark's own, ended with the block; the address that it said, if it said one."""
    log = logs / f"{name}.log"
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYTHONPATH": _PATHS,
        "SPARK_LAUNCHER_OPTS": _JAVA,
        "SPARK_WORKER_DIR": str(logs / f"work of {name}"),
        "SPARK_LOCAL_DIRS": str(logs / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JAVA,
    }
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(program), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            env=environment,
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + _START_SECONDS_MAX
        ready = r"Starting Spark master at (spark://\S+)|Successfully registered with master"
        while not (found := re.search(ready, log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise DriverFailed(f"{kind} ({name}) did not start: {log.read_text()[-3_000:]}")
            time.sleep(0.1)
        yield found[1] or ""
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
