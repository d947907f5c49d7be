"""The job `snapshot`: the newest row of each key as of a cursor, tombstones apart.

    <folder>/rows          a Delta table: the newest row of each key
    <folder>/tombstones    a Delta table: keys whose newest record is a tombstone

Both are replaced as a whole by every run; the commit of `rows` is the one that counts, and names the version of the
other that belongs to it. Who takes the rows and then reads the stream from the snapshot's cursor has everything:
nothing is missing and nothing comes twice.

With `since` it is a consolidated delta: of everything that happened after that cursor, only the last of each key. Who
had the state of then puts the rows in, takes the tombstones' keys out, and has the state of the end.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.cursor import Cursor
from mainstem.core.errors import InvalidCursor, InvalidSetting
from mainstem.spark.generations import Generations
from mainstem.spark.jobs.columns import table_schema
from mainstem.spark.jobs.history import PLACE_COLUMNS, History, OnBad, OnLoss, Start, Tally, Wanted
from mainstem.spark.jobs.lake import DELETED_COLUMN, KEY_COLUMN, Changed, Lake
from mainstem.spark.jobs.loading import Attempt, JobResult, Loading, Written, vacuum_hours, vacuumed
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.newest import GENERATION_COLUMN
from mainstem.spark.jobs.owners import require_own
from mainstem.spark.jobs.part_files import PartFiles, Target
from mainstem.spark.jobs.record_frame import RecordFrame
from mainstem.spark.jobs.tasks import Answer, OnStep, no_step, parts_of
from mainstem.spark.jobs.upserting import check_names, newest_records
from mainstem.spark.session import session
from mainstem.spark.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = "rows"
TOMBSTONES: Final = "tombstones"
# The version of the tombstones' table that belongs to a commit of the rows.
TOMBSTONES_NOTE: Final = "mainstem.tombstones"


def snapshot(
    hub: str | Path,
    stream: str,
    folder: str | Path,
    *,
    at: Cursor | str | None = None,
    since: Cursor | str | None = None,
    columns: Sequence[str] | None = None,
    on_bad: OnBad = "raise",
    on_loss: OnLoss = "raise",
    vacuum: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    certificate_key: str | None = None,
    spark: "SparkSession | None" = None,
    on_step: OnStep = no_step,
) -> JobResult:
    """The newest row of each key of a stream, in `folder`; see the module for what is there.

    `at` is the cursor up to which records count, the stream's end if not said; the result's `end` is that cursor. Of
    one from before the end all records from before it are needed: DataLoss says which were trimmed, InvalidCursor that
    the stream was compacted.
    `since` leaves out what was before it. Both may be text, as results have them. `rows_deleted` of the result are the
    tombstones. `on_bad="skip"` passes over records that are no rows, or have no key, and counts them. `vacuum` is an
    age ("7d"): files of snapshots from longer ago are deleted.
    """
    hours = vacuum_hours(vacuum)
    shown = {"token": token, "token_file": token_file, "ca": ca, "certificate": certificate, "key": certificate_key}
    history = History(hub, stream, **shown)
    end = tuple(history.info.ends) if at is None else _offsets(history, "at", at)
    first = None if since is None else _offsets(history, "since", since)
    if first is not None and any(begin > stop for begin, stop in zip(first, end, strict=True)):
        raise InvalidSetting("since is a later cursor than at: a snapshot is of what came after since, up to at")
    if not (history.info.key or history.info.schema is None):
        raise InvalidSetting(f"stream {stream!r} has no key: there is no newest row of each (streams.create(key=...))")
    names = history.names(columns, (KEY_COLUMN, *PLACE_COLUMNS))
    check_names(history, names)
    wanted = Wanted(names, None, on_bad, on_loss, is_deleted=True)
    place = Path(folder)
    tombstones = Lake(place / TOMBSTONES)
    loading = Loading(
        "snapshot", history, place / ROWS, notes=place, beside=[tombstones], on_step=on_step, on_loss=on_loss
    )
    if not loading.lake.number_of(loading.name):
        require_own(loading.lake, place, history.info, "snapshot")
    past = None if end == tuple(history.info.ends) else end
    _require_past(history, past)
    work = _Snapshot(spark or session(), history, wanted, loading.lake, tombstones, loading.name, on_step, past)
    start: Start = "earliest"
    if first is not None:
        start = history.cursor(first)
    elif past is not None and at is not None:
        # What was trimmed since is of that state, too. Shards that came after it had nothing.
        start = history.cursor([0] * len(_parsed(at).offsets))
    result = loading.run_whole(start, end, work.write, work.commit)
    return vacuumed(result, hours, on_step, loading.lake, tombstones)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """One snapshot written and committed."""

    spark: "SparkSession"
    history: History
    wanted: Wanted
    rows: Lake
    tombstones: Lake
    job: str
    on_step: OnStep
    # Where the shards stood then, if it is of a state from before the stream's end.
    past: tuple[int, ...] | None

    def write(self, load: Load, attempt: Attempt) -> Written:
        tasks = self.history.cut(load, self.wanted, parts_of(self.spark))
        read_schema = self.history.schema(self.wanted)
        table = pa.schema([field for field in table_schema(read_schema) if field.name != DELETED_COLUMN])
        apart = pa.schema([table.field(name) for name in (KEY_COLUMN, *PLACE_COLUMNS)])
        targets = (attempt.target(self.rows, table), attempt.target(self.tombstones, apart))
        self.on_step("prepared", 0, 0)
        wanted, generations = self.wanted, _generations(self.history)

        def records(pieces: Sequence[Slice], tally: Tally) -> Iterator[pa.RecordBatch]:
            return newest_records(pieces, wanted, read_schema, generations, tally)

        schema = read_schema.append(pa.field(GENERATION_COLUMN, pa.int32()))
        frame = RecordFrame(self.spark, tasks, schema, records, self.on_step)
        written = Written(frame.write(_newest(frame.rows), partial(_write, targets)))
        # The log may have been compacted while it was read.
        _require_past(self.history, self.past)
        return written

    def commit(self, written: Written, number: int, notes: dict[str, Any]) -> Changed:
        version = self.tombstones.append(written.apart, self.job, number, notes, overwrite=True, can_repeat=True)
        self.on_step("tombstones", number, number)
        self.rows.append(written.files, self.job, number, {**notes, TOMBSTONES_NOTE: version}, overwrite=True)
        return Changed(written.rows, sum(file.rows for file in written.apart))


def _offsets(history: History, name: str, cursor: Cursor | str) -> tuple[int, ...]:
    """Where a cursor is in every shard."""
    try:
        return history.offsets(_parsed(cursor))
    except InvalidCursor as error:
        raise InvalidCursor(f"{name}: {error}") from None


def _parsed(cursor: Cursor | str) -> Cursor:
    return Cursor.parse(cursor) if isinstance(cursor, str) else cursor


def _require_past(history: History, past: Sequence[int] | None) -> None:
    """InvalidCursor if the log was compacted, and the state is not one of now."""
    try:
        if past is not None:
            history.require_uncompacted(past)
    except InvalidCursor as error:
        raise InvalidCursor(f"at: {error}") from None


def _newest(records: "DataFrame") -> "DataFrame":
    """Of all records of a key the newest, by the same order as `newest_of`; Spark spills where they are many."""
    from pyspark.sql import functions

    order = functions.struct(GENERATION_COLUMN, "_offset", "_shard")
    whole = functions.struct(*(f"`{name}`" for name in records.columns))
    return records.groupBy(KEY_COLUMN).agg(functions.max_by(whole, order).alias("newest")).select("newest.*")


def _generations(history: History) -> Generations:
    """What decides between records of a key in two shards."""
    return history.info.generations


def _write(targets: tuple[Target, Target], part: int, batches: Iterable[pa.RecordBatch]) -> Answer:
    """Write the records of a partition, each to one of two tables."""
    with PartFiles(targets[0], part) as rows, PartFiles(targets[1], part) as tombstones:
        for batch in batches:
            is_deleted = batch.column(DELETED_COLUMN)
            rows.write(batch.filter(pc.invert(is_deleted)))
            tombstones.write(batch.filter(is_deleted))
    kept = sum(file.rows for file in rows.written)
    return Answer(tuple(rows.written), rows_written=kept, apart=tuple(tombstones.written))
