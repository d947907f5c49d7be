"""Compact: old records of a stream go from blocks into large Parquet files, and readers do not notice.

    compact("mainstem://127.0.0.1:7070", "orders", older_than="3h")

The process that writes the log plans and commits; Spark tasks make the files, each of one range of offsets of one shard,
in the log's own folder, which they must see. What a kill leaves is nothing that counts: the ledger says what is cold,
and the next run goes on there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.durations import microseconds
from mainstem.core.errors import FolderUnusable, MainstemError, Refused
from mainstem.log.cold_maker import cold_files, open_cooler
from mainstem.transport.port import ColdFile, ColdPlan, ColdTask, CoolCall, PlanColdCall, Port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How many tasks are under way before their files are committed, for each core of the session.
_TASKS_PER_CORE: Final = 2
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
    port: Port,
    stream: str,
    *,
    spark: "SparkSession",
    older_than: str = OLDER_THAN,
    file_bytes_min: int | None = None,
    on_step: OnStep = lambda step, done, total: None,
    clock: Clock = SYSTEM_CLOCK,
) -> CompactReport:
    """Put the records of a stream that are older than `older_than` into Parquet files, but for what is too little for
    one: less than `file_bytes_min` as stored (1 MiB)."""
    before_us = clock.now_us() - microseconds(older_than)
    files: list[ColdFile] = []
    left = 0
    while True:
        plan = port.call(PlanColdCall(stream, before_us, file_bytes_min)).cold
        assert plan is not None
        _require_folder(plan)
        swapped, refused = _run(port, stream, spark, plan, on_step)
        files += swapped
        left += refused
        # What could not be swapped is planned again as it is now, as long as something goes on.
        if not swapped:
            return CompactReport(stream, tuple(files), left)


def _require_folder(plan: ColdPlan) -> None:
    """The log's folder is here: its files are made where they are to be."""
    with open_cooler(Path(plan.folder), plan.log):
        pass


def _run(
    port: Port, stream: str, spark: "SparkSession", plan: ColdPlan, on_step: OnStep
) -> tuple[list[ColdFile], int]:
    """Do the tasks of a plan, some at a time."""
    swapped: list[ColdFile] = []
    refused = done = 0
    width = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    for begin in range(0, len(plan.tasks), width):
        tasks = plan.tasks[begin : begin + width]
        on_step("compact", done, len(plan.tasks))
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
            on_step("compact", done, len(plan.tasks))
    return swapped, refused


def _made(spark: "SparkSession", plan: ColdPlan, tasks: Sequence[ColdTask]) -> list[list[ColdFile] | None]:
    """The files of each task; None for one whose entries have changed, or cannot be read."""
    head = msgspec.msgpack.encode(msgspec.structs.replace(plan, tasks=()))
    rows = [msgspec.msgpack.encode(task) for task in tasks]

    def make(some: Iterator[bytes]) -> Iterator[bytes]:
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


def read_cold(spark: "SparkSession", port: Port, stream: str) -> "DataFrame | None":
    """What of a stream is in cold files, by Spark's own reader of Parquet; None if nothing is.

    Rows have `_offset` and `_timestamp` beside their columns (without a schema: `timestamp`), sorted by key in each
    file. Old rows have the columns of their schema; what newer ones have more is null in them.
    """
    plan = port.call(PlanColdCall(stream, 0)).cold
    assert plan is not None
    paths = [str(file.path) for file in cold_files(Path(plan.folder), plan.log, stream)]
    return spark.read.option("mergeSchema", "true").parquet(*paths) if paths else None
