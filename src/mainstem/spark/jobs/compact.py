"""Compact: old records of a stream go from blocks into large Parquet files, and readers do not notice.

    compact("mainstem://127.0.0.1:7070", "orders", older_than="3h")

The process that writes the log plans and commits; Spark tasks make the files, each of one range of offsets of one
shard, in the log's own folder, which they must see. Some tasks at a time are a load, which has a manifest: *planned*,
then *written* when its files are there and none is swapped in, then *done*. The ledger says what is cold: what a kill
leaves of a load is finished by the next run with the files that the ledger has, and the rest of it planned anew.
"""

import json
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor
from mainstem.core.durations import microseconds
from mainstem.core.errors import FolderUnusable, MainstemError, Refused
from mainstem.hub.embedded import LogPort
from mainstem.hub.remote import RemotePort
from mainstem.log.blocks.local import block_name
from mainstem.log.cold_maker import cold_files, open_cooler
from mainstem.log.folder import has_log
from mainstem.spark.cold_frame import read_cold
from mainstem.spark.jobs.manifest import Manifest, Manifests, notes_folder
from mainstem.spark.jobs.part_files import WrittenFile
from mainstem.spark.jobs.tasks import Answer, OnStep, context_of, no_step, run_parts
from mainstem.spark.origin import Access
from mainstem.spark.session import session
from mainstem.transport.port import (
    ColdFile,
    ColdPlan,
    ColdTask,
    CoolCall,
    GetStreamCall,
    PlanColdCall,
    Port,
    StreamInfo,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["OLDER_THAN", "CompactReport", "compact", "read_cold", "span_of"]

# How many tasks make one load, for each core of the session.
_TASKS_PER_CORE: Final = 2
_CONNECT_SECONDS: Final = 10.0
# After Scribe's measurements: of all that is read, 99 % was written within so long.
OLDER_THAN: Final = "3h"
# The files of a task, each with its checksum; None for one whose entries have changed, or cannot be read.
Made = list[tuple[ColdFile, int]] | None


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a run has done: the files that are swapped in, and how many ranges others had changed meanwhile, or could
    not be read; those are left as they are. `manifests` is the folder that has one of each load."""

    stream: str
    files: tuple[ColdFile, ...] = ()
    ranges_left: int = 0
    loads: int = 0
    manifests: str = ""

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
    older_than: str = OLDER_THAN,
    file_bytes_min: int | None = None,
    manifests: str | Path | None = None,
    token: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    certificate_key: str | None = None,
    spark: "SparkSession | None" = None,
    on_step: OnStep = no_step,
    clock: Clock = SYSTEM_CLOCK,
) -> CompactReport:
    """Put the records of a stream that are older than `older_than` into Parquet files, but for what is too little for
    one: less than `file_bytes_min` as stored (1 MiB).

    `hub` is the address of the server that writes the log, or a folder that nobody writes. FolderUnusable if the log's
    folder is not to be seen from here. `manifests` is the folder for what the run has done, see `notes_folder`.
    """
    before_us = clock.now_us() - microseconds(older_than, "older_than (--older-than)")
    spark = session() if spark is None else spark
    shown = {"token": token, "token_file": token_file, "ca": ca, "certificate": certificate, "key": certificate_key}
    with closing(_opened(Access.to(hub, **shown))) as port:
        info = port.call(GetStreamCall(stream)).streams[0]
        notes = Manifests(notes_folder(manifests), f"compact-{info.uuid}")
        with notes.locked():
            run = _Run(port, info, spark, notes, on_step, clock)
            call = PlanColdCall(stream, before_us, file_bytes_min)
            plan = _planned(port, call)
            run.settle(Path(plan.folder))
            # What could not be swapped is planned again as it is now, as long as something goes on.
            while run.do(plan):
                plan = _planned(port, call)
        return run.report()


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


class _Run:
    """The loads of one run. One thread, which holds the lock of the manifests."""

    def __init__(
        self,
        port: Port,
        info: StreamInfo,
        spark: "SparkSession",
        manifests: Manifests,
        on_step: OnStep,
        clock: Clock,
    ) -> None:
        self._port = port
        self._info = info
        self._spark = spark
        self._manifests = manifests
        self._on_step = on_step
        self._clock = clock
        # Of the last load there is.
        self._number = 0
        # Behind what was looked at: where the cursors of a load stand in shards that it has nothing of.
        self._place = list(info.starts)
        self._swapped: list[ColdFile] = []
        self._left = 0
        self._loads = 0

    def report(self) -> CompactReport:
        return CompactReport(
            self._info.name, tuple(self._swapped), self._left, self._loads, str(self._manifests.folder)
        )

    def settle(self, folder: Path) -> None:
        """Finish what a run before was killed at: of its files those count that the ledger has, and without any the
        load is given up. What it left in the log's folder went when the plan was made."""
        last = self._manifests.last()
        self._number = 0 if last is None else last.number
        if last is not None and last.state != "done":
            have = {file.path.name for file in cold_files(folder, self._info.name)}
            files = tuple(file for file in last.files if Path(file.path).name in have)
            if files:
                self._finish(last, files, last.ranges_left + len(last.files) - len(files))
            else:
                self._manifests.give_up(last)
                self._number -= 1
        self._on_step("settled", self._number, self._number)

    def do(self, plan: ColdPlan) -> bool:
        """Do the tasks of a plan, load by load; whether anything has changed."""
        before = len(self._swapped)
        # What an earlier round has left is in this plan again, unless it is not as it was.
        self._left = 0
        width = _TASKS_PER_CORE * context_of(self._spark).defaultParallelism
        for begin in range(0, len(plan.tasks), width):
            self._on_step("load", begin, len(plan.tasks))
            self._load(plan, plan.tasks[begin : begin + width])
            self._on_step("load", min(begin + width, len(plan.tasks)), len(plan.tasks))
        return len(self._swapped) > before

    def _load(self, plan: ColdPlan, tasks: Sequence[ColdTask]) -> None:
        start, self._place = span_of(tasks, self._place)
        self._number += 1
        manifest = self._manifests.begin(
            Manifest(
                job="compact",
                stream=self._info.name,
                number=self._number,
                attempt="",
                state="planned",
                start=self._cursor(start),
                end=self._cursor(self._place),
                planned_us=self._clock.now_us(),
            )
        )
        self._on_step("planned", self._number, self._number)
        made = _made(self._spark, plan, tasks, self._on_step)
        files = {file.block: _noted(file, checksum) for each in made for file, checksum in each or ()}
        manifest = msgspec.structs.replace(
            manifest,
            state="written",
            files=tuple(files.values()),
            rows_read=sum(file.rows for file in files.values()),
            ranges_left=sum(each is None for each in made),
        )
        self._manifests.advance(manifest)
        self._on_step("written", self._number, self._number)
        swapped = [file for each in made for file, _ in each or () if self._swap(file)]
        self._on_step("committed", self._number, self._number)
        for task in tasks:
            with suppress(MainstemError):
                self._port.call(CoolCall(self._info.name, abandon=task.block))
        left = manifest.ranges_left + len(files) - len(swapped)
        self._left += left
        if not swapped:
            # Nothing came of it, so it is no load.
            self._manifests.give_up(manifest)
            self._number -= 1
            return
        self._finish(manifest, tuple(files[file.block] for file in swapped), left)
        self._swapped += swapped
        self._loads += 1

    def _swap(self, file: ColdFile) -> bool:
        self._on_step("swap", self._number, self._number)
        try:
            self._port.call(CoolCall(self._info.name, file))
        except Refused:
            return False
        return True

    def _finish(self, manifest: Manifest, files: tuple[WrittenFile, ...], left: int) -> None:
        done = msgspec.structs.replace(
            manifest,
            state="done",
            files=files,
            rows_written=sum(file.rows for file in files),
            ranges_left=left,
            done_us=self._clock.now_us(),
        )
        self._manifests.advance(done)
        self._on_step("done", manifest.number, manifest.number)

    def _cursor(self, offsets: Sequence[int]) -> str:
        return str(Cursor(self._info.uuid, self._info.epoch, tuple(offsets)))


def span_of(tasks: Sequence[ColdTask], place: Sequence[int]) -> tuple[list[int], list[int]]:
    """Where the ranges of tasks begin and end in each shard; where there are none, both are the place given."""
    # The stream may have got more shards since the place was looked up.
    known = [*place, *(0 for _ in range(len(place), max((task.shard + 1 for task in tasks), default=0)))]
    start, end = list(known), list(known)
    for shard in {task.shard for task in tasks}:
        start[shard] = min(task.base for task in tasks if task.shard == shard)
        end[shard] = max(task.end for task in tasks if task.shard == shard)
    return start, end


def _noted(file: ColdFile, checksum: int) -> WrittenFile:
    """A cold file as a manifest has it."""
    stats = {"numRecords": file.records, "minValues": {"_offset": file.base}, "maxValues": {"_offset": file.end - 1}}
    path = f"blocks/{block_name(file.block)}"
    return WrittenFile(path, file.records, file.bytes, checksum, {"_shard": str(file.shard)}, json.dumps(stats))


def _made(spark: "SparkSession", plan: ColdPlan, tasks: Sequence[ColdTask], on_step: OnStep) -> list[Made]:
    """What each task makes."""
    head = msgspec.msgpack.encode(msgspec.structs.replace(plan, tasks=()))
    rows = [msgspec.msgpack.encode(task) for task in tasks]

    def make(part: int) -> Answer:
        planned = msgspec.msgpack.decode(head, type=ColdPlan)
        return Answer(staged=_make(planned, msgspec.msgpack.decode(rows[part], type=ColdTask)))

    answers = run_parts(spark, len(rows), make, on_step)
    return [msgspec.msgpack.decode(answer.staged, type=Made) for answer in answers]


def _make(plan: ColdPlan, task: ColdTask) -> bytes:
    """In a task of Spark: the files of one range."""
    with open_cooler(Path(plan.folder), plan.log) as maker:
        try:
            return msgspec.msgpack.encode([(file, maker.checksum(file)) for file in maker.make(plan, task)])
        except FolderUnusable:
            raise
        except MainstemError:
            # Replaced meanwhile, trimmed, deleted, or damaged: as it is it stays, and its readers are told.
            return msgspec.msgpack.encode(None)
