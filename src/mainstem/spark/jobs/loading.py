"""The loop that jobs share: from the last load to the end of the stream, load by load, each exactly once.

    settled   what a run before left behind is finished or given up
    begun     the first run has said where it begins
    planned   the manifest says from where to where
    written   the tasks' files are on disk, the manifest names them
    committed the table has them, and the load's number
    done      the manifest says so

A kill between any two leaves what `Manifests` describes; the next run goes on from there.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.cursor import Cursor
from mainstem.core.durations import microseconds
from mainstem.core.errors import InvalidSetting, TableUnusable
from mainstem.core.times import from_us, to_us
from mainstem.spark.jobs.columns import with_names
from mainstem.spark.jobs.comparing import Compared
from mainstem.spark.jobs.history import History, OnLoss, Start, lost_before, require_kept
from mainstem.spark.jobs.lake import ATTEMPT_NOTE, END_NOTE, START_NOTE, Changed, Lake
from mainstem.spark.jobs.loads import Bound, Load, plan_loads
from mainstem.spark.jobs.manifest import Beginning, Manifest, Manifests, require_marker
from mainstem.spark.jobs.part_files import FILE_BYTES, Target, WrittenFile
from mainstem.spark.jobs.partitions import Partitioning
from mainstem.spark.jobs.tasks import Answer, OnStep
from mainstem.spark.jobs.words import in_words_of_jobs

_NO_PARTITIONS: Final = Partitioning("none")


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a run has done. `start` and `end` are cursors of the stream: `end` is where the next run begins."""

    job: str
    stream: str
    table: str
    loads: int
    rows_read: int
    rows_written: int
    rows_deleted: int
    undecoded: int
    lost: tuple[tuple[int, int, int], ...]
    files: int
    bytes: int
    start: str
    end: str
    table_version: int
    seconds: float
    manifests: str
    # Of a replay that took the place of what was in its table.
    compared: Compared | None = None
    # Files that were deleted because the table had not needed them for long.
    vacuumed: int = 0
    # Records that were passed over because they have no key, in a table of keys.
    without_key: int = 0
    # The stream that rows were delivered to, where it was one; `table` then has the manifests alone.
    into: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a load: its name, the file that is there as long as it may write, and the load's number; and other
    names of the stream's columns, under which a table may have them."""

    name: str
    marker: str
    number: int
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def target(
        self,
        lake: Lake,
        rows: pa.Schema,
        partitioning: Partitioning = _NO_PARTITIONS,
        file_bytes: int = FILE_BYTES,
    ) -> Target:
        """Where its tasks write rows of these columns, once the table has them."""
        names = lake.renamed(rows.names, self.aliases)
        kept = with_names(rows, names)
        has = lake.prepare(kept, partitioning.columns)
        # Columns that the table has and these rows lack are null in it: files need not have them.
        kept = pa.schema([has.field(name) for name in kept.names])
        place = str(lake.folder.absolute())
        return Target(place, self.name, self.marker, kept, partitioning, file_bytes, names=names)


@dataclass(frozen=True, slots=True)
class Written:
    """What the tasks of a load have done, and what is to be committed of it."""

    answers: Sequence[Answer]
    # Files that become part of the table; those of an upsert only carry its rows to the merge.
    is_staged: bool = False
    # Of rows that are delivered to a stream: what the log has of them to know them again.
    checksum: str = ""

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        return tuple(file for answer in self.answers for file in answer.files)

    @property
    def rows(self) -> int:
        """Rows in the files, or delivered: what the tasks say."""
        return sum(answer.rows_written for answer in self.answers)

    @property
    def apart(self) -> tuple[WrittenFile, ...]:
        """Files of another table."""
        return tuple(file for answer in self.answers for file in answer.apart)


# Write a load under an attempt, whose marker is there; commit what was written as a load's number, and say what that
# changed.
Write = Callable[[Load, "Attempt"], Written]
Commit = Callable[[Written, int, dict[str, Any]], Changed]
# What is different between two versions of the table.
Compare = Callable[[int, int], Compared]


class Loading:
    """The loads of one job into one table. One thread."""

    def __init__(
        self,
        job: str,
        history: History,
        table: Path,
        *,
        on_step: OnStep,
        on_loss: OnLoss = "raise",
        name: str | None = None,
        notes: Path | None = None,
        beside: Sequence[Lake] = (),
        recipe: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._history = history
        self._on_step = on_step
        self._on_loss = on_loss
        self._clock = clock
        self._job = job
        self._recipe = recipe
        # Of the job in the table's log: another stream, or one that was made anew, is another job.
        self.name = name or f"{job}-{history.info.uuid}"
        self.lake = Lake(table, clock)
        # Other tables, which are committed before it: they may have files of a load that it has not.
        self._beside = beside
        self.manifests = Manifests(notes or table, self.name)

    def run(
        self,
        start: Start | str,
        write: Write,
        commit: Commit,
        *,
        offsets_max: int,
        bytes_max: int | None = None,
    ) -> JobResult:
        """Load everything from where the last load ended, or from `start` if there was none; as text that is an end of
        the stream, or how long ago. No load has more offsets, or bytes of the log, than said."""
        began = self._clock.monotonic()
        info = self._history.info
        with self.manifests.locked():
            number = self._settled()
            self._require_same(number)
            place = self._place(number, start)
            stop = tuple(info.ends)
            first, _ = self._kept(place, None if number else start, stop)
            total = max(0, sum(stop) - sum(first))
            done: list[Manifest] = []
            again = self._again(number)
            begin = first
            if again:
                begin = tuple(map(max, again[-1].end, info.starts))
            bound = Bound(offsets_max, bytes_max, self._history.stored_bytes)
            at = place
            for load in itertools.chain(again, plan_loads(begin, stop, info.generations, bound)):
                self._on_step("load", max(0, sum(load.start) - sum(first)), total)
                # What is gone of a load that is done as it was planned is told by who cuts it.
                lost = lost_before(at, load.start)
                done.append(self._load(load, number + len(done) + 1, lost, write, commit))
                at = load.end
            self._on_step("load", total, total)
        return self._result(done, place, stop if done else place, self._clock.monotonic() - began)

    def run_whole(
        self, start: Start, end: Sequence[int], write: Write, commit: Commit, compare: Compare | None = None
    ) -> JobResult:
        """One load of everything from `start` to `end`, whatever was loaded before. `compare` tells what is different
        between two versions of the table, if it was there before."""
        began = self._clock.monotonic()
        told = None
        with self.manifests.locked():
            number = self._settled()
            before = -1 if compare is None else self._before(number)
            first, lost = self._kept(self._history.offsets(start), start, end)
            total = sum(end) - sum(first)
            self._on_step("load", 0, total)
            done = self._load(Load(first, tuple(end)), number + 1, lost, write, commit, compare_with=before)
            self._on_step("load", total, total)
            if compare is not None and before >= 0:
                told = compare(before, done.table_version)
                self.manifests.advance(msgspec.structs.replace(done, compare_with=-1))
        result = self._result([done], first, end, self._clock.monotonic() - began)
        return dataclasses.replace(result, compared=told)

    def reached(self) -> tuple[int, ...] | None:
        """Where the loads that the table has end, which may be behind the stream as it was looked up; None if it has
        none."""
        number = self.lake.number_of(self.name)
        if not number:
            return None
        offsets = Cursor.parse(self._end(number)).offsets
        return (*offsets, *(0,) * (self._history.info.shards - len(offsets)))

    def give_up(self, attempt: Attempt) -> None:
        """A load that was begun and written comes to nothing."""
        begun = self.manifests.get(attempt.number)
        if begun is not None and begun.attempt == attempt.name:
            self.manifests.give_up(begun, self._beside_files())

    def _before(self, number: int) -> int:
        """The version of the table that a load in its place is compared with: that from before the last load, if a run
        was killed that had not told yet what is different, and that version can still be read."""
        last = self.manifests.get(number)
        if last is not None and last.recipe == self._recipe and last.compare_with >= 0:
            with contextlib.suppress(TableUnusable):
                if all(path.exists() for path in self.lake.at(last.compare_with)[1]):
                    return last.compare_with
        return self._version()

    def _again(self, number: int) -> list[Load]:
        """A load that must be done as it was planned: of none where the table says which it has."""
        return []

    def _settled(self) -> int:
        """How many loads the table has, once what a run before left behind is dealt with."""
        number = self.lake.number_of(self.name)
        if number:
            self._check_last(number)
        self._stop(number)
        self.manifests.settle(number, self._clock.now_us(), self._beside_files())
        self._on_step("settled", number, number)
        return number

    def _stop(self, number: int) -> None:
        """A load above those that the table has is not committed any more: its run, if it is still there because the
        lock does not hold, fails at that. What it has committed by then stays."""
        begun = self.manifests.get(number + 1)
        if begun is not None:
            self.manifests.stop(begun.attempt)
            for lake in (self.lake, *self._beside):
                lake.fence(self.name)
            if self.lake.number_of(self.name) > number:
                raise TableUnusable(
                    f"another run of this job writes {self.lake.folder} now; wait until it has ended, then run this one"
                )

    def _check_last(self, number: int) -> None:
        """What the table has is on disk, and the manifest of its last load is of the run that committed it."""
        self.lake.make_durable()
        last = self.manifests.get(number)
        if last is None or last.state == "done":
            return
        committed = self.lake.attempt_of(number, self.name)
        if committed is not None and committed != last.attempt:
            self.manifests.stop(committed)
            self.manifests.give_up(last, self._beside_files())
        elif (changed := self.lake.merged(number, self.name)) is not None:
            counts = {"rows_written": changed.written, "rows_deleted": changed.deleted, "files": changed.files}
            self.manifests.advance(msgspec.structs.replace(last, **counts))

    def _beside_files(self) -> list[str]:
        """What the newest versions of the other tables name: who reads them needs it until a load takes its place."""
        return [str(path) for lake in self._beside if lake.exists for path in lake.at(lake.version)[1]]

    def _require_same(self, number: int) -> None:
        """What is done of a job is not gone on with by another of its name, nor taken for what that would do."""
        last = self.manifests.get(number)
        if last is not None and last.recipe not in ("", self._recipe):
            raise InvalidSetting(
                f"this {self._job} was run before with another range, query, columns or function, or the function has "
                "other code now, or a stream of it was deleted and made anew; what it made then is noted in "
                f"{self.lake.folder}: give it another name (--name) to add its rows to those, or use another folder; "
                "replace (--replace) puts its rows in the place of a table's"
            )

    def _kept(
        self, place: Sequence[int], start: Start | str | None, end: Sequence[int]
    ) -> tuple[tuple[int, ...], list[tuple[int, int, int]]]:
        """Where a load that goes to `end` can begin, and what is gone before that: of a start, if it is one. DataLoss
        unless it may be passed over."""
        starts = tuple(map(min, self._history.info.starts, end))
        lost = lost_before(place, starts)
        meant = None if start is None else self._meant(start)
        since = meant if isinstance(meant, datetime) else None
        require_kept(self._history.info.name, lost, self._on_loss, since)
        return tuple(max(at, kept) for at, kept in zip(place, starts, strict=True)), lost

    def _place(self, number: int, start: Start | str) -> tuple[int, ...]:
        """Where the loads that the table has end."""
        return self._history.offsets(Cursor.parse(self._end(number))) if number else self._first(start)

    def _end(self, number: int) -> str:
        """The cursor up to which the last load went."""
        manifest = self.manifests.get(number)
        is_done = manifest is not None and manifest.state == "done"
        text = manifest.end if manifest is not None and is_done else self.lake.end_of(number, self.name)
        if text is None:
            raise TableUnusable(
                f"table {self.lake.folder} has {number} loads of this stream, and neither its history nor "
                f"{self.manifests.folder} says where the last one ended; write to a new table"
            )
        return text

    def _first(self, start: Start | str) -> tuple[int, ...]:
        """Where the first run began, if it was asked for this start: while no load is done, nothing else says so, and
        the same start may be another place by now."""
        noted = self.manifests.beginning()
        asked = str(start.astimezone(UTC) if isinstance(start, datetime) and start.tzinfo is not None else start)
        if noted is not None and noted.asked == asked and noted.start:
            return self._history.offsets(Cursor.parse(noted.start))
        meant = self._meant(start)
        found = self._history.offsets(meant)
        # What comes before such a time is not wanted: where it will be is not known yet.
        is_ahead = isinstance(meant, datetime) and to_us(meant) > self._clock.now_us()
        self.manifests.begin_at(Beginning(asked, "" if is_ahead else str(self._history.cursor(found))))
        return found

    def _meant(self, start: Start | str) -> Start | str:
        """A start of which how long ago is a time."""
        if isinstance(start, datetime | Cursor) or start == "earliest" or start == "latest":
            return start
        try:
            ago_us = microseconds(start)
        except InvalidSetting:
            raise InvalidSetting(
                f'start must be "earliest", "latest", a datetime, how long ago ("15m"), or a Cursor, not {start!r}'
            ) from None
        return from_us(max(0, self._clock.now_us() - ago_us))

    def _load(
        self,
        load: Load,
        number: int,
        lost: Sequence[tuple[int, int, int]],
        write: Write,
        commit: Commit,
        *,
        compare_with: int = -1,
    ) -> Manifest:
        start, end = str(self._history.cursor(load.start)), str(self._history.cursor(load.end))
        manifest = self.manifests.begin(
            Manifest(
                job=self._job,
                stream=self._history.info.name,
                number=number,
                attempt="",
                state="planned",
                start=start,
                end=end,
                planned_us=self._clock.now_us(),
                recipe=self._recipe,
                compare_with=compare_with,
            )
        )
        self._on_step("planned", number, number)
        marker = self.manifests.marker(manifest.attempt).absolute()
        try:
            with in_words_of_jobs():
                written = write(load, Attempt(manifest.attempt, str(marker), number, self._history.aliases))
        except (Exception, KeyboardInterrupt):
            # What was planned stays planned; of what tasks were done with nothing can be of use.
            self.manifests.end(manifest.attempt, ())
            raise
        manifest = msgspec.structs.replace(
            manifest,
            state="written",
            files=() if written.is_staged else (*written.files, *written.apart),
            # What is staged are no rows of the table yet: the merge says how many it makes of them.
            rows_written=0 if written.is_staged else written.rows,
            checksum=written.checksum,
            **_counts(written.answers, [*lost, *self._history.pop_lost()]),
        )
        # The manifest may be of another attempt by now.
        require_marker(marker, self.lake.folder)
        self.manifests.advance(manifest)
        self._on_step("written", number, number)
        require_marker(marker, self.lake.folder)
        with in_words_of_jobs(), self._committing(marker):
            changed = commit(written, number, {START_NOTE: start, END_NOTE: end, ATTEMPT_NOTE: manifest.attempt})
        self._on_step("committed", number, number)
        manifest = msgspec.structs.replace(
            manifest,
            state="done",
            files=changed.files or manifest.files,
            rows_written=changed.written,
            rows_deleted=changed.deleted,
            table_version=self._version(),
            done_us=self._clock.now_us(),
        )
        self.manifests.advance(manifest)
        self._on_step("done", number, number)
        return manifest

    @contextlib.contextmanager
    def _committing(self, marker: Path) -> Iterator[None]:
        with contextlib.ExitStack() as lakes:
            for lake in (self.lake, *self._beside):
                lakes.enter_context(lake.committing(marker))
            yield

    def _version(self) -> int:
        return self.lake.version if self.lake.exists else -1

    def _result(self, done: Sequence[Manifest], start: Sequence[int], end: Sequence[int], seconds: float) -> JobResult:
        return JobResult(
            job=self._job,
            stream=self._history.info.name,
            table=str(self.lake.folder),
            loads=len(done),
            rows_read=sum(manifest.rows_read for manifest in done),
            rows_written=sum(manifest.rows_written for manifest in done),
            rows_deleted=sum(manifest.rows_deleted for manifest in done),
            undecoded=sum(manifest.undecoded for manifest in done),
            without_key=sum(manifest.without_key for manifest in done),
            lost=tuple(lost for manifest in done for lost in manifest.lost),
            files=sum(len(manifest.files) for manifest in done),
            bytes=sum(manifest.bytes_written for manifest in done),
            start=str(self._history.cursor(start)),
            end=str(self._history.cursor(end)),
            table_version=self._version(),
            seconds=seconds,
            manifests=str(self.manifests.folder),
        )


def vacuum_hours(age: str | None) -> int | None:
    """An age such as "7d" in hours; None if there is none."""
    return None if age is None else math.ceil(microseconds(age, "vacuum (--vacuum)") / 3_600_000_000)


def vacuumed(result: JobResult, hours: int | None, on_step: OnStep, *lakes: Lake) -> JobResult:
    """With what their tables have not needed for so long deleted, if that is said."""
    if hours is None:
        return result
    on_step("vacuum", 0, 1)
    gone = sum(lake.vacuum(hours, on_step) for lake in lakes if lake.exists)
    on_step("vacuum", 1, 1)
    return dataclasses.replace(result, vacuumed=gone, table_version=lakes[0].version if lakes[0].exists else -1)


def _counts(answers: Iterable[Answer], lost: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    found = list(answers)
    return {
        "rows_read": sum(answer.rows_read for answer in found),
        "undecoded": sum(answer.undecoded for answer in found),
        "without_key": sum(answer.without_key for answer in found),
        "lost": (*lost, *(gone for answer in found for gone in answer.lost)),
    }
