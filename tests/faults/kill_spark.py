"""Frames of Spark into streams, with drivers, executors and tasks killed at every step of the sink.

Four pipelines write: a streaming query and frames with a `transactionId` each, through a server and beside a folder
that nobody serves. Each trial is one kill, of one of these:

- a driver: its JVM gets SIGKILL when every pipeline has come to one step of the sink, alone, so that the Python
  processes at the step go on without it, or together with them; the next driver takes up what is left;
- an executor of a cluster, with one pipeline at one step of a task;
- a Python process of an executor, likewise.

A last life does what is left. Then every row is in its stream once, and nothing is left behind or open.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import mainstem
from mainstem.core.errors import MainstemError
from mainstem.hub.hub import Hub
from mainstem.log import staging
from mainstem.spark.sink import BatchSink, StreamSink, batch_sink, stream_sink
from mainstem.spark.source import MainstemSource
from mainstem.spark.write_options import write_options
from mainstem.testing.server import ServerFailed, ServerProcess
from tests.faults import striking
from tests.faults.drivers import Driver, DriverFailed, Drivers, be_driver, cluster, driver_pids
from tests.faults.stamped import check_kept
from tests.faults.trials import Trials

_IN_TASKS: Final = ("before writing", "while writing", "after writing")
# Only where the destination is a folder: inside the commit that copies what was staged into the log.
_IN_FOLDERS: Final = ("before copying", "while copying", "copied", "before closing")
STEPS: Final = (
    # Those that follow a commit first: there a batch is run again.
    "after the commit",
    "before the clearing",
    "before closing",
    "copied",
    "while copying",
    "before copying",
    "before the commit",
    *_IN_TASKS,
)
PIPELINES: Final = ("query served", "query beside", "frames served", "frames beside")
# Who dies at a step: first drivers, each a life of its own, then what one driver on a cluster lives through.
DRIVER_KILLS: Final = tuple((step, victims) for victims in ("jvm self", "jvm") for step in STEPS)
CLUSTER_KILLS: Final = (
    *((step, striking.EXECUTOR, pipeline) for step in _IN_TASKS for pipeline in PIPELINES),
    *((step, "self", pipeline) for step, pipeline in zip((*_IN_TASKS, "while writing"), PIPELINES, strict=True)),
)
CHUNK: Final = len(DRIVER_KILLS) + len(CLUSTER_KILLS)
_ROWS_PER_FILE: Final = 40


def run(seed: int, trials: int, folder: Path) -> Trials:
    """Each trial is one kill. `CHUNK` of them are every gap."""
    result = Trials()
    try:
        with ServerProcess(folder / "served") as server:
            try:
                _Chunk(seed, folder, server, result).run(trials)
            except (MainstemError, DriverFailed) as error:
                result.add_finding(f"seed {seed}: {type(error).__name__}: {error}\n{server.stderr()}")
    except ServerFailed as error:
        result.add_finding(f"seed {seed}: {error}")
    check_kept(result, folder / "served", f"seed {seed}")
    return result


class _Chunk:
    """The trials of one seed. One thread."""

    def __init__(self, seed: int, folder: Path, server: ServerProcess, result: Trials) -> None:
        self._seed = seed
        self._rng = random.Random(f"kill spark {seed}")
        self._folder = folder
        self._server = server
        self._result = result
        self._strikes = folder / "strikes"
        self._pipelines = {name: _Pipeline(name, folder, server) for name in PIPELINES}

    def run(self, trials: int) -> None:
        lives = [DRIVER_KILLS[(trial + self._seed - 1) % len(DRIVER_KILLS)] for trial in range(trials)]
        lives = lives[: len(DRIVER_KILLS)]
        with Drivers("tests.faults.kill_spark", self._folder, ["local[4,4]"] * (len(lives) + 1)) as drivers:
            for step, victims in lives:
                self._kill_driver(drivers, step, victims)
            if trials > len(lives):
                self._kill_on_cluster(trials - len(lives))
            before = open_parts(self._server.url)
            with drivers.told({"queries": [each.query() for each in self._pipelines.values()]}) as driver:
                if driver.answer() != "done":
                    self._result.add_finding(f"seed {self._seed}: the last life failed: {driver.said()}")
        for pipeline in self._pipelines.values():
            for text in pipeline.check(self._result):
                self._result.add_finding(f"seed {self._seed}: {text}")
        # What killed tasks have left ends by its time, which a few trials do not wait for.
        for text in left_open(self._server.url, before if trials < CHUNK else 0):
            self._result.add_finding(f"seed {self._seed}: {text}")

    def _kill_driver(self, drivers: Drivers, step: str, victims: str) -> None:
        names = [name for name in PIPELINES if step not in _IN_FOLDERS or name.endswith("beside")]
        # The batch that the life before did not come to the end of, or one after it.
        steps = {name: (step, self._rng.randrange(2)) for name in names}
        for name, (_, after) in steps.items():
            self._pipelines[name].add_files(after)
            self._pipelines[name].kills += 1
        orders = {"queries": [self._pipelines[name].query() for name in names], **self._armed(steps, victims)}
        with drivers.told(orders) as driver:
            driver.answer()
            self._count(orders, driver)

    def _kill_on_cluster(self, trials: int) -> None:
        with cluster(self._folder) as master:
            driver = Driver("tests.faults.kill_spark", self._folder, master)
            try:
                driver.tell({"queries": []})
                driver.answer()
                for trial in range(trials):
                    step, victims, name = CLUSTER_KILLS[trial % len(CLUSTER_KILLS)]
                    self._pipelines[name].add_files(1)
                    orders = {"queries": [self._pipelines[name].query()], **self._armed({name: (step, 0)}, victims)}
                    driver.tell_more(orders)
                    if driver.answer() != "done":
                        raise DriverFailed(f"{name}, without its {victims} {step}: {driver.said()}")
                    self._count(orders, driver)
            finally:
                driver.end()

    def _armed(self, steps: dict[str, tuple[str, int]], victims: str) -> dict[str, Any]:
        return {"number": self._result.trials, "steps": steps, "victims": victims}

    def _count(self, orders: dict[str, Any], driver: Driver) -> None:
        number, steps, victims = (orders[name] for name in ("number", "steps", "victims"))
        wrong = striking.missed(self._strikes, number, steps, victims)
        if wrong:
            said = f"{', '.join(wrong)}: {driver.said()}"
            self._result.add_finding(f"seed {self._seed} trial {number}, {victims}, {steps}: {said}")
        self._result.trials += 1


def left_open(url: str, allowed: int = 0) -> list[str]:
    """What a server still keeps for somebody who is gone, when what ends by its time has ended."""
    deadline = time.monotonic() + striking.PART_SECONDS + 10
    while (found := open_parts(url)) > allowed and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"{found} parts are still open, {allowed} were before"] if found > allowed else []


def open_parts(url: str) -> int:
    with mainstem.connect(url) as hub:
        counts = hub.statistics()
    assert counts["transactions_open"] or not counts["transactions_staged_bytes"]
    return counts["transactions_open"]


class _Pipeline:
    """Files, what reads them, and the stream that it writes to."""

    def __init__(self, name: str, folder: Path, server: ServerProcess) -> None:
        self.name = name
        is_served = name.endswith("served")
        self._folder = folder / name
        self._data = server.folder if is_served else folder / f"{name} log"
        self._hub = server.url if is_served else str(self._data)
        self._stream = name.partition(" ")[0]
        self._rows = 0
        # Drivers that died with it.
        self.kills = 0
        for part in ("files", "done"):
            (self._folder / part).mkdir(parents=True)
        with self._opened() as opened:
            opened.streams.create(self._stream, schema={"id": "int64", "text": "string"}, key="id", shards=2)
        self.add_files(1)

    def _opened(self) -> Hub:
        return mainstem.connect(self._hub) if "://" in self._hub else mainstem.open(self._hub)

    def query(self) -> dict[str, str]:
        """What a driver needs to know."""
        return {"name": self.name, "hub": self._hub, "stream": self._stream, "folder": str(self._folder)}

    def add_files(self, count: int) -> None:
        for _ in range(count):
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
        with self._opened() as opened, opened.consumer(self._stream, start="earliest", follow=False) as consumer:
            found = Counter(number for batch in consumer.batches() for number in batch.to_arrow()["id"].to_pylist())
        result.acknowledged += self._rows
        missing = [number for number in range(self._rows) if number not in found]
        twice = [number for number, count in found.items() if count > 1]
        result.lost += len(missing)
        result.duplicated += len(twice)
        if missing:
            yield f"{self.name}: {len(missing)} rows are missing, the first is {missing[0]}"
        if twice:
            yield f"{self.name}: {len(twice)} rows came twice, the first is {twice[0]}"
        left = self._staged()
        if left and self.name == "frames beside":
            # A frame that is written again is another run: what the killed one has staged ends by its age.
            if len({path.parent for path in left}) > self.kills:
                yield f"left behind by more than {self.kills} runs that were killed: {left}"
            staging.collect(self._data, time.time_ns() // 1_000 + 2 * staging.STAGED_SECONDS_MAX * 1_000_000)
            left = self._staged()
        if left:
            yield f"left behind: {left}"

    def _staged(self) -> list[Path]:
        return [path for path in (self._data / staging.FOLDER).rglob("*") if path.is_file()]


# ------------------------------------------------------------------------------------------------------ the sink


class KillingSource(MainstemSource):
    """The source and sink of the product, but for steps between its steps."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        come = self._come()
        return _KillingBatchSink(batch_sink(write_options(self._given()), schema, overwrite=overwrite), come)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        come = self._come()
        return _KillingStreamSink(stream_sink(write_options(self._given()), schema, overwrite=overwrite), come)

    def _given(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name not in ("strikes", "party")}

    def _come(self) -> "_Come":
        return _Come(self.options["party"], self.options["strikes"])


class _Come:
    """Comes to the steps of a pipeline, in any process. Can be pickled."""

    _is_prepared = False

    def __init__(self, party: str, strikes: str) -> None:
        self._party = party
        self._strikes = strikes

    def __call__(self, step: str) -> None:
        striking.come_to(self._party, step, self._strikes)

    def prepare(self) -> None:
        """Put steps into the commit too, once in a process, which commits for one pipeline only."""
        from mainstem.hub import folder_staging
        from mainstem.hub.embedded import LogPort
        from mainstem.spark.destination import Destination

        _Come.now = self
        if _Come._is_prepared:
            return
        _Come._is_prepared = True
        striking.shorten_parts()
        # Every batch goes into the log by itself, so that a kill meets some that are there and some that are not.
        folder_staging._COPIED_BYTES = 1  # type: ignore[misc]
        striking.wrap(folder_staging, "_copy", _coming("copied"), _coming("before copying"))
        striking.wrap(folder_staging._Copying, "add", _coming_when_staged)
        striking.wrap(LogPort, "close", _coming(""), _coming("before closing"))
        striking.wrap(Destination, "discard_up_to", _coming(""), _coming("before the clearing"))

    # Whoever works in this process.
    now: "_Come"


def _coming(step: str) -> Callable[..., None]:
    return lambda *_: _Come.now(step)


def _coming_when_staged(copying: Any, _: Any) -> None:
    copying._wait(0)
    _Come.now("while copying")


def _written(sink: StreamSink | BatchSink, come: _Come, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    def half() -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            come("while writing")

    come.prepare()
    come("before writing")
    message = sink.write(half())
    come("after writing")
    return message


class _KillingStreamSink(DataSourceStreamArrowWriter):
    def __init__(self, sink: StreamSink, come: _Come) -> None:
        self._sink = sink
        self._come = come

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _written(self._sink, self._come, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._come.prepare()
        self._come("before the commit")
        self._sink.commit(messages, batchId)
        self._come("after the commit")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._sink.abort(messages, batchId)


class _KillingBatchSink(DataSourceArrowWriter):
    def __init__(self, sink: BatchSink, come: _Come) -> None:
        self._sink = sink
        self._come = come

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _written(self._sink, self._come, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._come.prepare()
        self._come("before the commit")
        self._sink.commit(messages)
        self._come("after the commit")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages)


# ---------------------------------------------------------------------------------------------------- the driver


def obey(spark: Any, orders: dict[str, Any]) -> None:
    """Do what is left of some pipelines, all at once."""
    spark.dataSource.register(KillingSource)
    strikes = Path(os.environ[striking.VARIABLE])
    striking.disarm(strikes)
    if "steps" in orders:
        striking.arm(strikes, orders["number"], orders["steps"], orders["victims"], driver_pids(spark))
    failed: list[BaseException] = []

    def work(query: dict[str, str]) -> None:
        try:
            # Spark looks for a source in the session of the thread.
            spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
            (_run_query if query["name"].startswith("query") else _write_frames)(spark, query, str(strikes))
        except BaseException as error:  # told below
            failed.append(error)

    threads = [Thread(target=work, args=(query,), daemon=True) for query in orders["queries"]]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failed:
        time.sleep(0.02)
    if failed:
        # The others may wait for it.
        raise failed[0]


def _run_query(spark: Any, query: dict[str, str], strikes: str) -> None:
    folder = Path(query["folder"])
    files = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 1)
    writing = files.json(str(folder / "files")).writeStream.format("killing").trigger(availableNow=True)
    options = {"hub": query["hub"], "stream": query["stream"], "party": query["name"], "strikes": strikes}
    writing.options(**options, checkpointLocation=str(folder / "checkpoint")).start().awaitTermination()


def _write_frames(spark: Any, query: dict[str, str], strikes: str) -> None:
    """Every file that is not known to be written, under a transaction of its own."""
    folder = Path(query["folder"])
    options = {"hub": query["hub"], "stream": query["stream"], "party": query["name"], "strikes": strikes}
    for path in sorted((folder / "files").iterdir()):
        done = folder / "done" / path.stem
        if not done.exists():
            rows = spark.read.schema("id bigint, text string").json(str(path))
            rows.write.format("killing").mode("append").options(**options, transactionId=path.stem).save()
            done.touch()


if __name__ == "__main__":
    # Under its own name, so that workers find the class where it is.
    from tests.faults.kill_spark import obey as obey_of_module

    be_driver("kill_spark", sys.argv[1], obey_of_module)
