"""Rows put in the place of older ones of their keys: the table has one row for each key, or none."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.core.errors import InvalidSetting, UndecodedRecords
from mainstem.spark.generations import Generations
from mainstem.spark.jobs.columns import as_table_rows, merged_schema, table_schema, with_names
from mainstem.spark.jobs.history import PLACE_COLUMNS, History, Tally, Wanted, read
from mainstem.spark.jobs.lake import DELETED_COLUMN, KEY_COLUMN, Changed, Lake
from mainstem.spark.jobs.loading import Attempt, Written
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.newest import GENERATION_COLUMN, newest_batches, newest_of, with_generation
from mainstem.spark.jobs.part_files import FILE_BYTES, Target, write_parts
from mainstem.spark.jobs.partitions import Partitioning
from mainstem.spark.jobs.tasks import Answer, OnStep, parts_of, run_parts
from mainstem.spark.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Next to the manifests: what is here is no part of the table.
_STAGED: Final = "_mainstem/staged"


# What stands beside the rows while the newest is found, and in the table.
_OWN_NAMES: Final = (*PLACE_COLUMNS, KEY_COLUMN, DELETED_COLUMN, GENERATION_COLUMN)


def check_names(history: History, names: Sequence[str]) -> None:
    """InvalidSetting if a column of the stream has a name that a job of keys uses. Tables and Spark take it for the
    same in capitals."""
    columns = {*history.schema(Wanted()).names}
    for name in names:
        if name in columns and name.lower() in _OWN_NAMES:
            raise InvalidSetting(
                f"stream {history.info.name!r} has a column {name!r}, and {name.lower()} is a name that this job uses "
                "itself: leave the column out with columns (--columns), or give it another name"
            )


class Upserting:
    """Loads merged into a table, for one run of a job. Tasks find the newest record of each key in what they read; the
    driver has those of one load in memory. One thread."""

    def __init__(
        self, spark: "SparkSession", history: History, wanted: Wanted, lake: Lake, *, job: str, on_step: OnStep
    ) -> None:
        self._spark = spark
        self._history = history
        self._wanted = wanted
        self._lake = lake
        self._job = job
        self._on_step = on_step
        self._read_schema = history.schema(wanted)

    def write(self, load: Load, attempt: Attempt) -> Written:
        """The newest record of each key of a load, as files that are no part of the table."""
        tasks = self._history.cut(load, self._wanted, parts_of(self._spark))
        rows = table_schema(self._read_schema)
        names = self._lake.renamed(rows.names, attempt.aliases)
        table = with_names(rows, names)
        self._lake.prepare(pa.schema([field for field in table if field.name != DELETED_COLUMN]), [], "upsert")
        self._on_step("prepared", 0, 0)
        staged = pa.schema([*table, pa.field(GENERATION_COLUMN, pa.int32())])
        folder = str(self._lake.folder.absolute())
        target = Target(folder, attempt.name, attempt.marker, staged, Partitioning("none"), FILE_BYTES, _STAGED, names)
        work = partial(_stage, tasks, self._wanted, self._read_schema, self._history.info.generations, target)
        return Written(run_parts(self._spark, len(tasks), work, self._on_step), is_staged=True)

    def commit(self, written: Written, number: int, notes: dict[str, Any]) -> Changed:
        """Merge what was staged."""
        tables = [pq.read_table(self._lake.folder / file.path, partitioning=None) for file in written.files]
        if not tables:
            self._lake.append([], self._job, number, notes)
            return Changed(0, 0)
        newest = newest_of(pa.concat_tables(tables)).drop_columns([GENERATION_COLUMN])
        # Every column of the table, so that nothing of an older row stays where these have no value.
        schema = merged_schema(self._lake.schema(), newest.schema)
        rows = pa.Table.from_batches([as_table_rows(batch, schema) for batch in newest.to_batches()], schema)
        return self._lake.upsert(rows, self._job, number, notes)


def _stage(
    tasks: Sequence[Sequence[Slice]],
    wanted: Wanted,
    read_schema: pa.Schema,
    generations: Generations,
    target: Target,
    part: int,
) -> Answer:
    """One task: read its slices, write the newest record of each key."""
    tally = Tally()
    records = newest_records(tasks[part], wanted, read_schema, generations, tally)
    files, count = write_parts(target, part, records)
    return Answer(tuple(files), tally.rows, count, tally.undecoded, tuple(tally.lost), without_key=tally.without_key)


def newest_records(
    pieces: Sequence[Slice], wanted: Wanted, read_schema: pa.Schema, generations: Generations, tally: Tally
) -> Iterator[pa.RecordBatch]:
    """The newest record of each key of these slices, with its generation; of very many keys, perhaps older ones
    before it."""
    records = (
        with_generation(_keyed(batch, piece, wanted, tally), piece.shard, generations)
        for piece in pieces
        for batch in read(piece, wanted, read_schema, tally)
    )
    for table in newest_batches(records):
        yield from table.to_batches()


def _keyed(rows: pa.RecordBatch, piece: Slice, wanted: Wanted, tally: Tally) -> pa.RecordBatch:
    """The records that have a key. One that has none is in no table of keys: UndecodedRecords names it, unless such are
    to be passed over. (A tombstone always has one.)"""
    keys = rows.column(KEY_COLUMN)
    if not keys.null_count:
        return rows
    if wanted.on_bad == "raise":
        first = rows.column("_offset")[keys.is_null().index(True).as_py()].as_py()
        raise UndecodedRecords(
            f"stream {piece.stream!r} shard {piece.shard}: record {first} has no key, and the table has one row for "
            "each; run the job with on_bad='skip' (--on-bad skip) to pass over such records, or make every record a "
            "row (warehouse, mode='append')",
            stream=piece.stream,
            shard=piece.shard,
            first=first,
            last=first,
            reason="no key",
        )
    tally.without_key += keys.null_count
    return rows.filter(keys.is_valid())
