"""Frames of Spark into streams, with drivers, executors and tasks killed at every step of the sink.

Five pipelines write: a streaming query of files and frames with a `transactionId` each, through a server and beside a
folder that nobody serves; and a query that copies a stream of the server into another and is a group. Each trial is one
kill, of one of these:

- a driver: its JVM gets SIGKILL when every pipeline has come to a step of the sink, or the copy to one of the source,
  alone, so that the Python processes at the step go on without it, or together with them; the next driver takes up what
  is left. Where the step is one of an abort, tasks of the batch have failed as often as Spark tries them;
- an executor of a cluster, with one pipeline at one step of a task;
- a Python process of an executor, likewise.

The group is never ahead of what the copy has. A last life does what is left. Then every row is in its stream once, the
group has nothing left to read, and nothing is left behind or open.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import mainstem
from mainstem.core.errors import MainstemError, UnknownGroup
from mainstem.hub.hub import Hub
from mainstem.log import staging
from mainstem.spark.options import ReadOptions, read_options
from mainstem.spark.progress import QueryOffset
from mainstem.spark.sink import BatchSink, StreamSink, batch_sink, stream_sink
from mainstem.spark.source import MainstemSource
from mainstem.spark.stream import StreamReader
from mainstem.spark.write_options import write_options
from mainstem.testing import planted
from mainstem.testing.server import ServerFailed, ServerProcess
from mainstem.transport.port import StreamInfo
from tests.faults import striking
from tests.faults.drivers import Driver, DriverFailed, Drivers, be_driver, cluster, driver_pids
from tests.faults.stamped import check_kept
from tests.faults.trials import Trials

_IN_TASKS: Final = ("before writing", "while writing", "after writing")
# Only where the destination is a folder: inside the commit that copies what was staged into the log.
IN_FOLDERS: Final = ("before copying", "while copying", "copied", "before closing")
# Only of a batch of which tasks fail: between what is let go by name and what is behind it, and where all is.
_IN_ABORTS: Final = ("after the abort", "while aborting")
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
    *_IN_ABORTS,
)
COPY: Final = "copy served"
PIPELINES: Final = ("query served", "query beside", "frames served", "frames beside", COPY)
# Where the copy stands when the others are at each of the steps: in what it asks its source, or at one of theirs.
SOURCE_STEPS: Final = ("planned", "published", "before publishing", "before planning")
COPY_STEPS: Final = dict(
    zip(
        STEPS,
        (*SOURCE_STEPS, "after the commit", "before the clearing", "before the commit", *_IN_TASKS, *_IN_ABORTS),
        strict=True,
    )
)
# Who dies at a step: first drivers, each a life of its own, then what one driver on a cluster lives through.
DRIVER_KILLS: Final = tuple((step, victims) for victims in ("jvm self", "jvm") for step in STEPS)
_READING: Final = "while reading"
CLUSTER_KILLS: Final = (
    *((step, striking.EXECUTOR, pipeline) for step in _IN_TASKS for pipeline in PIPELINES),
    (_READING, striking.EXECUTOR, COPY),
    *zip((*_IN_TASKS, "while writing", _READING), ["self"] * len(PIPELINES), PIPELINES, strict=True),
)
CHUNK: Final = len(DRIVER_KILLS) + len(CLUSTER_KILLS)
_ROWS_PER_FILE: Final = 40
# What the copy reads, and as whom.
SOURCE: Final = "source"
GROUP: Final = "copier"


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
        with Drivers("tests.faults.kill_spark", self._folder, ["local[6,4]"] * (len(lives) + 1)) as drivers:
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
        names = [name for name in PIPELINES if name == COPY or step not in IN_FOLDERS or name.endswith("beside")]
        # The batch that the life before did not come to the end of, or one after it.
        steps = {name: self._placed(COPY_STEPS[step] if name == COPY else step) for name in names}
        for name, (_, after) in steps.items():
            # What is published is the end of a batch that is done: one more for the next life.
            self._pipelines[name].add_files(after + (name == COPY))
            self._pipelines[name].kills += 1
        orders = {"queries": [self._pipelines[name].query() for name in names], **self._armed(steps, victims)}
        with drivers.told(orders) as driver:
            driver.answer()
            self._count(orders, driver)

    def _placed(self, step: str) -> tuple[str, int]:
        """A step, and how many batches come to it before that one. A query ends with one that is aborted."""
        return step, 0 if step in _IN_ABORTS else self._rng.randrange(2)

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
        for text in self._pipelines[COPY].told_too_early():
            self._result.add_finding(f"seed {self._seed} trial {number}, {victims}, {steps}: {text}")
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
    """Files, or a stream, what reads them, and the stream that it writes to."""

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
            for stream in (self._stream, *([SOURCE] if name == COPY else [])):
                opened.streams.create(stream, schema={"id": "int64", "text": "string"}, key="id", shards=2)
        self.add_files(1)

    def _opened(self) -> Hub:
        return mainstem.connect(self._hub) if "://" in self._hub else mainstem.open(self._hub)

    def query(self) -> dict[str, str]:
        """What a driver needs to know."""
        return {"name": self.name, "hub": self._hub, "stream": self._stream, "folder": str(self._folder)}

    def add_files(self, count: int) -> None:
        for _ in range(count):
            rows = [
                {"id": number, "text": f"row {number}"} for number in range(self._rows, self._rows + _ROWS_PER_FILE)
            ]
            if self.name == COPY:
                with self._opened() as opened, opened.producer() as producer:
                    producer.send_many(SOURCE, rows)
            else:
                part = self._folder / "part"
                part.write_text("\n".join(map(json.dumps, rows)))
                part.rename(self._folder / "files" / f"{self._rows:09}.json")
            self._rows += _ROWS_PER_FILE

    def told_too_early(self) -> Iterator[str]:
        """What the group of the copy says to be done, and is not."""
        with self._opened() as opened:
            # First: what was a batch then may be done a moment later.
            told = self._rows - self._left(opened)
            done = opened.streams.get(self._stream).records
        if told > done:
            yield f"the group has {told} records behind it, and {done} came out"

    def _left(self, opened: Hub) -> int:
        """The lag of the group, in records."""
        try:
            return opened.groups.get(GROUP).records
        except UnknownGroup:
            return self._rows

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
        if self.name == COPY:
            with self._opened() as opened:
                left = self._left(opened)
            if left:
                yield f"{self.name}: nothing is left to copy, and the group lags by {left} records"
        files = self._staged()
        if files and self.name == "frames beside":
            # A frame that is written again is another run: what the killed one has staged ends by its age.
            if len({path.parent for path in files}) > self.kills:
                yield f"left behind by more than {self.kills} runs that were killed: {files}"
            staging.collect(self._data, time.time_ns() // 1_000 + 2 * staging.STAGED_SECONDS_MAX * 1_000_000)
            files = self._staged()
        if files:
            yield f"left behind: {files}"

    def _staged(self) -> list[Path]:
        return [path for path in (self._data / staging.FOLDER).rglob("*") if path.is_file()]


# ------------------------------------------------------------------------------------------- the source and the sink


class KillingSource(MainstemSource):
    """The source and sink of the product, but for steps between its steps."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamReader(self, schema: StructType) -> StreamReader:
        # This process was started by Spark, which knows nothing of bugs.
        for bug in {*filter(None, self.options["bugs"].split(","))}.difference(planted.active()):
            _bugs.enter_context(planted.BUGS[bug]())
        return _KillingReader(read_options(self._given(), streaming=True), schema, self._come())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        come = self._come()
        return _KillingBatchSink(batch_sink(write_options(self._given()), schema, overwrite=overwrite), come)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        come = self._come()
        return _KillingStreamSink(stream_sink(write_options(self._given()), schema, overwrite=overwrite), come)

    def _given(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name not in ("strikes", "party", "bugs")}

    def _come(self) -> "_Come":
        return _Come(self.options["party"], self.options["strikes"])


# For as long as the process lives.
_bugs: Final = ExitStack()


class _Come:
    """Comes to the steps of a pipeline, in any process. Can be pickled."""

    _is_prepared = False

    def __init__(self, party: str, strikes: str) -> None:
        self._party = party
        self._strikes = strikes

    def __call__(self, step: str) -> None:
        striking.come_to(self._party, step, self._strikes)

    @property
    def is_to_abort(self) -> bool:
        return striking.step_of(self._party, self._strikes) in _IN_ABORTS

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
        striking.wrap(Destination, "discard", _coming("while aborting"))

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
    task: Any = TaskContext.get()
    if come.is_to_abort and task.partitionId() == 0:
        # What it has staged nobody is told of.
        raise RuntimeError("this task is to fail")
    return message


def _aborted(come: _Come, abort: Callable[..., None], *given: Any) -> None:
    come.prepare()
    abort(*given)
    come("after the abort")


class _KillingReader(StreamReader):
    """Asked by Spark in a process of its own, a child of the JVM, but for `read`."""

    def __init__(self, options: ReadOptions, schema: StructType, come: _Come) -> None:
        super().__init__(options, schema)
        self._come = come

    def _first(self, info: StreamInfo) -> QueryOffset:
        self._come("before publishing")
        found = super()._first(info)
        self._come("published")
        return found

    def _published(self, info: StreamInfo, first: QueryOffset, before: QueryOffset) -> tuple[QueryOffset, bool]:
        self._come("before publishing")
        found = super()._published(info, first, before)
        self._come("published")
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._come("before planning")
        found = super().partitions(start, end)
        self._come("planned")
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            self._come(_READING)


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
        _aborted(self._come, self._sink.abort, messages, batchId)


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
        _aborted(self._come, self._sink.abort, messages)


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
            WORK[query["name"].partition(" ")[0]](spark, query, str(strikes))
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
    files = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 1)
    _follow(files.json(str(Path(query["folder"]) / "files")), query, strikes)


def _run_copy(spark: Any, query: dict[str, str], strikes: str) -> None:
    reading = spark.readStream.schema("id bigint, text string").format("killing").options(**_options(query, strikes))
    reading = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger=_ROWS_PER_FILE, group=GROUP)
    _follow(reading.options(stream=SOURCE, bugs=",".join(planted.active())).load(), query, strikes)


def _follow(rows: Any, query: dict[str, str], strikes: str) -> None:
    writing = rows.writeStream.format("killing").trigger(availableNow=True).options(**_options(query, strikes))
    writing.option("checkpointLocation", str(Path(query["folder"]) / "checkpoint")).start().awaitTermination()


def _options(query: dict[str, str], strikes: str) -> dict[str, str]:
    return {"hub": query["hub"], "stream": query["stream"], "party": query["name"], "strikes": strikes}


def _write_frames(spark: Any, query: dict[str, str], strikes: str) -> None:
    """Every file that is not known to be written, under a transaction of its own."""
    folder = Path(query["folder"])
    for path in sorted((folder / "files").iterdir()):
        done = folder / "done" / path.stem
        if not done.exists():
            rows = spark.read.schema("id bigint, text string").json(str(path))
            writing = rows.write.format("killing").mode("append").options(**_options(query, strikes))
            writing.option("transactionId", path.stem).save()
            done.touch()


WORK: Final = {"query": _run_query, "copy": _run_copy, "frames": _write_frames}


if __name__ == "__main__":
    # Under its own name, so that workers find the class where it is.
    from tests.faults.kill_spark import obey as obey_of_module

    be_driver("kill_spark", sys.argv[1], obey_of_module)
