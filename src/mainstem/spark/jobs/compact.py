"""Compact: old records of a stream go from blocks into large Parquet files, and readers do not notice.

    compact("mainstem://127.0.0.1:7070", "orders", older_than="3h")

The process that writes the log plans and commits; Spark tasks make the files, each of one range of offsets of one
shard, in the log's own folder, which they must see. What a kill leaves is nothing that counts: the ledger says what is
cold, and the next run goes on there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.durations import microseconds
from mainstem.core.errors import FolderUnusable, MainstemError, Refused
from mainstem.hub.embedded import LogPort
from mainstem.hub.remote import RemotePort
from mainstem.log.cold_maker import cold_files, open_cooler
from mainstem.log.folder import has_log
from mainstem.spark.origin import Access
from mainstem.spark.session import session
from mainstem.transport.port import ColdFile, ColdPlan, ColdTask, CoolCall, PlanColdCall, Port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How many tasks are under way before their files are committed, for each core of the session.
_TASKS_PER_CORE: Final = 2
_CONNECT_SECONDS: Final = 10.0
# After Scribe's measurements: of all that is read, 99 % was written within so long.
OLDER_THAN: Final = "3h"

# How far a run is: a word for the step, what is done of it, and of how much.
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a run has done: the files that are swapped in, and how many ranges others had changed meanwhile, or could
    not be read; those are left as they are."""

    stream: str
    files: tuple[ColdFile, ...] = ()
    ranges_left: int = 0

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def compact(
    hub: str,
    stream: str,
    *,
    spark: "SparkSession | None" = None,
    older_than: str = OLDER_THAN,
    file_bytes_min: int | None = None,
    on_step: OnStep = lambda step, done, total: None,
    clock: Clock = SYSTEM_CLOCK,
    **credentials: str | None,
) -> CompactReport:
    """Put the records of a stream that are older than `older_than` into Parquet files, but for what is too little for
    one: less than `file_bytes_min` as stored (1 MiB).

    `hub` is the address of the server that writes the log, or a folder that nobody writes; `credentials` are those of
    `Access`. FolderUnusable if the log's folder is not to be seen from here.
    """
    before_us = clock.now_us() - microseconds(older_than)
    spark = session() if spark is None else spark
    files: list[ColdFile] = []
    left = 0
    given = {name: value for name, value in credentials.items() if value}
    with closing(_opened(Access.to(hub, **given))) as port:
        while True:
            plan = _planned(port, PlanColdCall(stream, before_us, file_bytes_min))
            swapped, refused = _run(port, stream, spark, plan, on_step)
            files += swapped
            left += refused
            # What could not be swapped is planned again as it is now, as long as something goes on.
            if not swapped:
                return CompactReport(stream, tuple(files), left)


def _opened(access: Access) -> Port:
    """The log as who may change it."""
    if access.data:
        if not has_log(Path(access.data)):
            raise FolderUnusable(f"there is no log in {access.data}")
        return LogPort(Path(access.data))
    return RemotePort(access.url, _CONNECT_SECONDS, credentials=access.credentials())


def _planned(port: Port, call: PlanColdCall) -> ColdPlan:
    """What there is to do, in a folder that is here: files are made where they are to be."""
    plan = port.call(call).cold
    assert plan is not None, "the answer to this call"
    with open_cooler(Path(plan.folder), plan.log):
        return plan


def _run(port: Port, stream: str, spark: "SparkSession", plan: ColdPlan, on_step: OnStep) -> tuple[list[ColdFile], int]:
    """Do the tasks of a plan, some at a time."""
    swapped: list[ColdFile] = []
    refused = done = 0
    width = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    for begin in range(0, len(plan.tasks), width):
        tasks = plan.tasks[begin : begin + width]
        on_step("write", done, len(plan.tasks))
        for task, made in zip(tasks, _made(spark, plan, tasks), strict=True):
            for file in made or ():
                try:
                    port.call(CoolCall(stream, file))
                except Refused:
                    refused += 1
                else:
                    swapped.append(file)
            refused += made is None
            done += 1
            with suppress(MainstemError):
                port.call(CoolCall(stream, abandon=task.block))
            on_step("write", done, len(plan.tasks))
    return swapped, refused


def _made(spark: "SparkSession", plan: ColdPlan, tasks: Sequence[ColdTask]) -> list[list[ColdFile] | None]:
    """The files of each task; None for one whose entries have changed, or cannot be read."""
    head = msgspec.msgpack.encode(msgspec.structs.replace(plan, tasks=()))
    rows = [msgspec.msgpack.encode(task) for task in tasks]

    def make(some: Iterable[bytes]) -> Iterator[bytes]:
        planned = msgspec.msgpack.decode(head, type=ColdPlan)
        for row in some:
            yield _make(planned, msgspec.msgpack.decode(row, type=ColdTask))

    answers = spark.sparkContext.parallelize(rows, len(rows)).mapPartitions(make).collect()
    return [msgspec.msgpack.decode(answer, type=list[ColdFile] | None) for answer in answers]


def _make(plan: ColdPlan, task: ColdTask) -> bytes:
    """In a task of Spark: the files of one range."""
    with open_cooler(Path(plan.folder), plan.log) as maker:
        try:
            return msgspec.msgpack.encode(list(maker.make(plan, task)))
        except FolderUnusable:
            raise
        except MainstemError:
            # Replaced meanwhile, trimmed, deleted, or damaged: as it is it stays, and its readers are told.
            return msgspec.msgpack.encode(None)


def read_cold(spark: "SparkSession", folder: str | Path, stream: str) -> "DataFrame | None":
    """What of a stream in a data folder is in cold files, by Spark's own reader of Parquet; None if nothing is.

    Rows have `_offset` and `_timestamp` beside their columns (without a schema: `timestamp`), sorted by key in each
    file. Rows of an older schema have null in what came later.
    """
    paths = [str(file.path) for file in cold_files(Path(folder), stream)]
    return spark.read.option("mergeSchema", "true").parquet(*paths) if paths else None
