"""The job `warehouse`: a stream becomes a Delta table, and stays one.

Every run loads what came since the last one. Where rows are only moved, Spark gives out pieces of the log and Python
workers copy them to Parquet; with `sql` the rows go through a query. In mode "upsert" the table has one row for each
key, the newest; a tombstone takes it away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mainstem.core.errors import InvalidSetting
from mainstem.core.limits import MIB
from mainstem.spark.jobs.copying import Copying
from mainstem.spark.jobs.history import PLACE_COLUMNS, History, OnBad, OnLoss, Start, Wanted
from mainstem.spark.jobs.lake import KEY_COLUMN, Mode
from mainstem.spark.jobs.loading import JobResult, Loading, vacuum_hours, vacuumed
from mainstem.spark.jobs.loads import check_load_rows
from mainstem.spark.jobs.making import Making
from mainstem.spark.jobs.owners import require_own
from mainstem.spark.jobs.part_files import FILE_BYTES, check_file_bytes
from mainstem.spark.jobs.partitions import SHARD_COLUMN, By, Partitioning
from mainstem.spark.jobs.tasks import OnStep, no_step
from mainstem.spark.jobs.upserting import Upserting, check_names
from mainstem.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Records of one load. An upsert's are in the driver's memory, the newest of each key: their bytes are bounded, too, as
# the log has them.
LOAD_ROWS: Final = 20_000_000
UPSERT_ROWS: Final = 2_000_000
UPSERT_BYTES: Final = 256 * MIB


def warehouse(
    hub: str | Path,
    stream: str,
    table: str | Path,
    *,
    mode: Mode = "append",
    partition: By = "none",
    time: str | None = None,
    sql: str | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    places: bool = True,
    start: Start | str = "earliest",
    on_bad: OnBad = "raise",
    on_loss: OnLoss = "raise",
    load_rows: int | None = None,
    file_bytes: int = FILE_BYTES,
    compact: bool = True,
    vacuum: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    certificate_key: str | None = None,
    spark: "SparkSession | None" = None,
    on_step: OnStep = no_step,
) -> JobResult:
    """Load what a stream has into the Delta table in folder `table`, from where the last run ended; see JobResult.

    `hub` is a folder or an address. The table has the stream's columns, or those of `columns`, or what `sql` makes of
    them; `where` takes some of the records. `places` adds _shard, _offset and _timestamp, so that every row says where
    it is from. `partition` is "day" or "hour" of the column `time`, the record's own time if not said, or "shard".
    Columns that the stream gets later are added to the table.

    `sql` is a query over the stream by its name; it sees the records of one load at a time, at most `load_rows`.
    `mode="upsert"` keeps the newest row of each key, in a table that has the key as `_key`; it takes no `where`.

    The first run begins at `start`: an end of the stream, a time, how long ago ("15m"), or a cursor. Runs after it go
    on where it ended, also if it loaded nothing; until something is loaded, another start takes its place.

    `on_bad="skip"` passes over records that are no rows of the schema, or have no key where the table is of keys, and
    `on_loss="skip"` over ranges that the stream has lost; all are counted in the result. `vacuum` is an age ("7d"):
    files that the table has not needed for so long are deleted at the end.
    """
    options = _Options(mode, partition, sql, tuple(columns) if columns is not None else None, where)
    options.check()
    check_file_bytes(file_bytes)
    check_load_rows(load_rows)
    partitioning = Partitioning(partition, time)
    hours = vacuum_hours(vacuum)
    shown = {"token": token, "token_file": token_file, "ca": ca, "certificate": certificate, "key": certificate_key}
    history = History(hub, stream, **shown)
    if mode == "upsert" and not (history.info.key or history.info.schema is None):
        raise InvalidSetting(
            f"stream {stream!r} has no key, so there is nothing to tell its rows apart by: mode='upsert' needs one "
            "(streams.create(key=...)); mode='append' does not"
        )
    names = options.names(history, places)
    if mode == "upsert":
        check_names(history, names)
    wanted = Wanted(names, where, on_bad, on_loss, is_deleted=mode == "upsert")
    if sql is None:
        # Before Spark starts; what a query makes, Spark alone knows.
        partitioning.check(history.schema(wanted))
    loading = Loading("warehouse", history, Path(table), on_step=on_step, on_loss=on_loss)
    loading.lake.require_kind(partitioning.columns, mode)
    if mode == "upsert" and not loading.lake.number_of(loading.name):
        require_own(loading.lake, Path(table), history.info, "warehouse")
    spark = spark or session()
    work: Upserting | Copying
    if mode == "upsert":
        work = Upserting(spark, history, wanted, loading.lake, job=loading.name, on_step=on_step)
    else:
        making = Making(spark, history, wanted, on_step=on_step, sql=sql)
        work = Copying(making, loading.lake, partitioning, job=loading.name, file_bytes=file_bytes)
        work.check()
    rows_max = load_rows or (UPSERT_ROWS if mode == "upsert" else LOAD_ROWS)
    bytes_max = UPSERT_BYTES if mode == "upsert" else None
    result = loading.run(start, work.write, work.commit, offsets_max=rows_max, bytes_max=bytes_max)
    # Also without a load: the run before may have been killed between its last one and this.
    if compact and loading.lake.exists:
        on_step("compact", 0, 1)
        loading.lake.compact(file_bytes, on_step)
        on_step("compact", 1, 1)
        result = replace(result, table_version=loading.lake.version)
    return vacuumed(result, hours, on_step, loading.lake)


@dataclass(frozen=True, slots=True)
class _Options:
    """What was asked for, checked before anything is begun."""

    mode: str
    partition: str
    sql: str | None
    columns: tuple[str, ...] | None
    where: str | None

    def check(self) -> None:
        if self.mode not in ("append", "upsert"):
            raise InvalidSetting(f"mode (--mode) must be 'append' or 'upsert', not {self.mode!r}")
        if self.mode == "upsert" and (self.partition != "none" or self.sql is not None):
            raise InvalidSetting("mode='upsert' takes neither partition nor sql: a row is replaced where its key is")
        if self.mode == "upsert" and self.where is not None:
            raise InvalidSetting(
                "mode='upsert' takes no where: a tombstone has no columns to ask for, and a row that is not chosen any "
                "more would leave the one before it in the table. Choose rows where the table is read; mode='append' "
                "takes where"
            )
        if self.sql is not None and self.columns is not None:
            raise InvalidSetting("give columns or sql, not both: a query names its columns itself")

    def names(self, history: History, places: bool) -> tuple[str, ...]:
        """The columns to read."""
        beside: tuple[str, ...] = ()
        if self.mode == "upsert" or self.sql is not None:
            beside = (*PLACE_COLUMNS, KEY_COLUMN)
        elif places:
            beside = PLACE_COLUMNS
        elif self.partition == "shard":
            beside = (SHARD_COLUMN,)
        return history.names(self.columns, beside)
