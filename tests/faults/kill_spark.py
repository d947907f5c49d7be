"""A streaming query of Spark into a stream, with its driver and its tasks killed at every step of the sink.

Each trial is one life of a driver: it takes up its checkpoint, and at a step that is chosen by the trial the JVM gets
SIGKILL, alone, so that the Python process at the step goes on without it, or together with that process; or only a task
does. Trials take turns between a server and a folder that nobody serves. A last life does what is left of both. Then
every row is in the stream once, and nothing is left behind.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.spark.sink import StreamSink, stream_sink
from mainstem.spark.source import MainstemSource
from mainstem.spark.write_options import write_options
from mainstem.testing import planted
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults.stamped import check_kept
from tests.faults.trials import Trials

STREAM = "orders"
ROOT: Final = Path(__file__).parents[2]
# The steps of the sink, and who dies there. Those that follow a commit first: there a batch is run again.
STEPS: Final = (
    ("after the commit", "jvm and process"),
    ("before the commit", "jvm"),
    ("after writing", "jvm and process"),
    ("while writing", "process"),
    ("before the clearing", "jvm and process"),
    ("before writing", "jvm"),
    ("after writing", "process"),
    ("before the commit", "jvm and process"),
    ("while writing", "jvm and process"),
)
_FILES_PER_LIFE: Final = 3
_ROWS_PER_FILE: Final = 40
_LIFE_SECONDS_MAX: Final = 300


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one kill."""
    result = Trials()
    rng = random.Random(f"kill spark {seed}")
    with ServerProcess(folder / "served") as server:
        pipelines = [
            _Pipeline(folder / "through", server.folder, server.url),
            _Pipeline(folder / "beside", folder / "alone", str(folder / "alone")),
        ]
        try:
            for trial in range(trials):
                step, victim = STEPS[(trial // 2 + seed - 1) % len(STEPS)]
                _live(folder, [pipelines[trial % 2]], rng.randrange(_FILES_PER_LIFE), step, victim)
                result.trials += 1
            begun = pipelines[: max(1, min(trials, 2))]
            _live(folder, begun)
            for pipeline in begun:
                for text in pipeline.check(result):
                    result.add_finding(f"seed {seed}: {text}")
        except (ServerFailed, MainstemError, AssertionError, subprocess.TimeoutExpired) as error:
            result.add_finding(f"seed {seed}: {type(error).__name__}: {error}\n{server.stderr()}")
    check_kept(result, folder / "served", f"seed {seed}")
    return result


def _live(folder: Path, pipelines: list["_Pipeline"], after: int = 0, step: str = "", victim: str = "") -> None:
    """One life of a driver, which is killed at a step of the batch `after` so many of this life."""
    number = len(list(folder.glob("life-*.log"))) + 1
    marker = folder / f"struck-{number}"
    life = {
        "queries": [pipeline.query() for pipeline in pipelines],
        "strike": {"step": step, "victim": victim, "after": after, "marker": str(marker)},
    }
    told = folder / f"life-{number}.log"
    with told.open("wb") as log:
        child = subprocess.Popen(
            planted.command("tests.faults.kill_spark", json.dumps(life)),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = child.wait(_LIFE_SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    said = told.read_text(errors="replace")[-4_000:]
    assert not step or marker.exists(), f"life {number} did not come to the step {step!r}: {said}"
    assert code == 0 or step, f"the last life ended with {code}: {said}"


class _Pipeline:
    """Files, a query, its checkpoint and the log that it writes to."""

    def __init__(self, folder: Path, data: Path, hub: str) -> None:
        self._folder = folder
        self._data = data
        self._hub = hub
        self._rows = 0
        (folder / "files").mkdir(parents=True)
        with self._opened() as opened:
            opened.streams.create(STREAM, schema={"id": "int64", "text": "string"}, key="id", shards=2)

    def _opened(self) -> Hub:
        return mainstem.connect(self._hub) if "://" in self._hub else mainstem.open(self._hub)

    def query(self) -> dict[str, str]:
        """What a driver needs to know, which finds more to do than the last one."""
        for _ in range(_FILES_PER_LIFE):
            self._add_file()
        files, checkpoint = self._folder / "files", self._folder / "checkpoint"
        return {"hub": self._hub, "files": str(files), "checkpoint": str(checkpoint)}

    def _add_file(self) -> None:
        lines = [
            json.dumps({"id": number, "text": f"row {number}"})
            for number in range(self._rows, self._rows + _ROWS_PER_FILE)
        ]
        part = self._folder / "part"
        part.write_text("\n".join(lines))
        part.rename(self._folder / "files" / f"{self._rows:09}.json")
        self._rows += _ROWS_PER_FILE

    def check(self, result: Trials) -> Iterator[str]:
        """What is wrong with what came out."""
        with self._opened() as opened, opened.consumer(STREAM, start="earliest", follow=False) as consumer:
            found = Counter(number for batch in consumer.batches() for number in batch.to_arrow()["id"].to_pylist())
        result.acknowledged += self._rows
        missing = [number for number in range(self._rows) if number not in found]
        twice = [number for number, count in found.items() if count > 1]
        result.lost += len(missing)
        result.duplicated += sum(found[number] - 1 for number in twice)
        if missing:
            yield f"{self._hub}: {len(missing)} rows are missing, the first is {missing[0]}"
        if twice:
            yield f"{self._hub}: {len(twice)} rows came twice, the first is {twice[0]}"
        left = [str(path) for path in (self._data / "staging").rglob("*") if path.is_file()]
        if left:
            yield f"left behind: {left}"


class KillingSource(MainstemSource):
    """The source and sink of the product, but for a process that dies at one step."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        given = dict(self.options)
        strike = json.loads(given.pop("strike"))
        return _KillingSink(stream_sink(write_options(given), schema, overwrite=overwrite), strike)


class _KillingSink(DataSourceStreamArrowWriter):
    def __init__(self, sink: StreamSink, strike: dict[str, Any]) -> None:
        self._sink = sink
        self._strike = strike

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._come_to("before writing")
        message = self._sink.write(self._half(iterator))
        self._come_to("after writing")
        return message

    def _half(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            self._come_to("while writing")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._come_to("before the commit")
        destination = self._sink._destination
        clear = type(destination).discard_up_to

        def come_and_clear(*args: Any) -> None:
            self._come_to("before the clearing")
            clear(*args)

        type(destination).discard_up_to = come_and_clear  # type: ignore[method-assign, assignment]
        self._sink.commit(messages, batchId)
        self._come_to("after the commit")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._sink.abort(messages, batchId)

    def _come_to(self, step: str) -> None:
        if step != self._strike["step"] or not self._is_its_turn():
            return
        if "jvm" in self._strike["victim"]:
            os.kill(self._strike["jvm"], signal.SIGKILL)
        if "process" in self._strike["victim"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_its_turn(self) -> bool:
        """Once in a life, after some times in which the step was come to."""
        marker = Path(self._strike["marker"])
        for turn in range(self._strike["after"] + 1):
            path = marker if turn == self._strike["after"] else marker.with_name(f"{marker.name}.{turn}")
            try:
                path.open("x").close()
            except FileExistsError:
                continue
            return path == marker
        return False


def main(life: dict[str, Any]) -> None:
    """One life of a driver."""
    import mainstem.spark

    spark = mainstem.spark.session("killed", "local[2,4]", {"spark.ui.enabled": False, "spark.driver.memory": "1g"})
    spark.dataSource.register(KillingSource)
    jvm: Any = spark._jvm
    strike = {**life["strike"], "jvm": jvm.ProcessHandle.current().pid()}
    for given in life["queries"]:
        rows = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 1).json(given["files"])
        writing = rows.writeStream.format("killing").trigger(availableNow=True)
        options = {"hub": given["hub"], "stream": STREAM, "checkpointLocation": given["checkpoint"]}
        writing.options(**options, strike=json.dumps(strike)).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    # Under its own name, so that workers find the class where it is.
    from tests.faults.kill_spark import main as main_of_module

    main_of_module(json.loads(sys.argv[1]))
