"""A Delta table in a folder, written without a JVM: the files that tasks wrote become rows in one commit.

The commit carries the number of the job's load as the version of an application transaction. delta-rs accepts the same
number twice, so it is looked up first; of two that commit at once, it lets only one through. Both together: a load is
in the table once.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, Transaction

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import SchemaMismatch, TableUnusable
from mainstem.core.limits import MIB
from mainstem.core.plain import one_line
from mainstem.log.disk import sync_dir
from mainstem.spark.jobs.columns import missing_columns
from mainstem.spark.jobs.part_files import WrittenFile

# What pathlib leaves of one.
_ADDRESS: Final = re.compile(r"[A-Za-z0-9+.-]{2,}:/")
# What a load's commit says of it, beside its number.
START_NOTE: Final = "mainstem.start"
END_NOTE: Final = "mainstem.end"
DELETED_COLUMN: Final = "_deleted"
KEY_COLUMN: Final = "_key"
# Of a partition with more files under this size than the count, the small ones are made into one.
SMALL_BYTES: Final = 32 * MIB
SMALL_FILES_MAX: Final = 8


class Lake:
    """The table in `folder`; it need not exist yet. One thread."""

    def __init__(self, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        if _ADDRESS.match(str(folder)):
            raise TableUnusable(f"{folder} is an address; a table is in a folder that this machine and Spark's see")
        self.folder = folder
        self._clock = clock

    @property
    def exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self.folder))

    def number_of(self, job: str) -> int:
        """How many loads of a job the table has."""
        if not self.exists:
            return 0
        return self._table().transaction_version(job) or 0

    def end_of(self, number: int, job: str) -> str | None:
        """The cursor up to which a load went, as its commit says; None if the table's history has it no more."""
        for commit in self._table().history():
            if commit.get("mainstem.job") == job and commit.get("mainstem.number") == number:
                found = commit.get(END_NOTE)
                return None if found is None else str(found)
        return None

    @property
    def version(self) -> int:
        return int(self._table().version())

    def schema(self) -> pa.Schema:
        """Its columns, those of its partitions among them."""
        return _plain(pa.schema(self._table().schema().to_arrow()))

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """Make the table if there is none, add columns that it lacks; the columns that it then has. Doing it again
        changes nothing, so a kill after it does no harm."""
        if not self.exists:
            self._require_free()
            self.folder.mkdir(parents=True, exist_ok=True)
            with _translated(self.folder):
                DeltaTable.create(str(self.folder), Schema.from_arrow(schema), "ignore", list(partition_by))
        table = self._table()
        has = list(table.metadata().partition_columns)
        if has != list(partition_by):
            raise TableUnusable(
                f"table {self.folder} is partitioned by {', '.join(has) or 'nothing'}, not by "
                f"{', '.join(partition_by) or 'nothing'}; give the partition that it has, or another folder"
            )
        lacks = missing_columns(self.schema(), schema)
        if lacks:
            fields = [Field.from_json(field.to_json()) for field in Schema.from_arrow(pa.schema(lacks)).fields]
            with _translated(self.folder):
                table.alter.add_columns(fields)
        return self.schema()

    def _require_free(self) -> None:
        """A folder of something else does not become a table."""
        others = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        strangers = sorted(name for name in others if name not in ("_mainstem", "_delta_log"))
        if strangers:
            raise TableUnusable(f"{self.folder} is no Delta table and not empty: it has {strangers[0]!r}; give another")

    def append(
        self, files: Iterable[WrittenFile], job: str, number: int, notes: dict[str, Any], *, overwrite: bool = False
    ) -> int:
        """Make these files part of the table, in its load `number`; the table's version. With `overwrite` they take the
        place of everything that was in it."""
        table = self._table()
        now_ms = self._clock.now_us() // 1_000
        actions = [AddAction(file.path, file.bytes, file.partition, now_ms, True, file.stats) for file in files]
        with _translated(self.folder):
            table.create_write_transaction(
                list(actions),
                "overwrite" if overwrite else "append",
                table.schema(),
                list(table.metadata().partition_columns),
                commit_properties=_properties(job, number, notes),
            )
        return self._settled()

    def upsert(self, rows: pa.Table, job: str, number: int, notes: dict[str, Any]) -> dict[str, Any]:
        """Put rows in the place of those of their keys; a row with `_deleted` takes that of its key away. No key occurs
        twice in `rows`. What was done, as delta-rs counts it."""
        with _translated(self.folder):
            done = (
                self._table()
                .merge(
                    rows,
                    f"t.{KEY_COLUMN} = s.{KEY_COLUMN}",
                    source_alias="s",
                    target_alias="t",
                    commit_properties=_properties(job, number, notes),
                )
                .when_matched_delete(f"s.{DELETED_COLUMN}")
                .when_matched_update_all(except_cols=[DELETED_COLUMN])
                .when_not_matched_insert_all(f"NOT s.{DELETED_COLUMN}", except_cols=[DELETED_COLUMN])
                .execute()
            )
        if self.number_of(job) < number:  # nothing was changed, and that was not noted
            self.append([], job, number, notes)
        self._settled()
        return done

    def compact(self, file_bytes: int) -> int:
        """Make large files of many small ones, partition by partition; how many are gone. Readers and loads that run
        meanwhile are not disturbed."""
        table = self._table()
        found = pa.table(table.get_add_actions(flatten=True))
        names = list(table.metadata().partition_columns)
        keys = [f"partition.{name}" for name in names]
        small = found.filter(pa.compute.less(found["size_bytes"], min(SMALL_BYTES, file_bytes // 2)))
        if not keys:
            crowded: list[dict[str, Any]] = [{}] * (small.num_rows > SMALL_FILES_MAX)
        else:
            counted = small.group_by(keys).aggregate([("path", "count")])
            crowded = counted.filter(pa.compute.greater(counted["path_count"], SMALL_FILES_MAX)).to_pylist()
        gone = 0
        for row in crowded:
            filters = [(name, "=", _value_text(row[f"partition.{name}"])) for name in names]
            with _translated(self.folder):
                metrics = table.optimize.compact(
                    filters or None, target_size=file_bytes, min_commit_interval=timedelta(0)
                )
            gone += int(metrics["numFilesRemoved"])
        return gone

    def _settled(self) -> int:
        """Make the newest commit survive a power cut: delta-rs leaves that to the file system."""
        version = self.version
        log = self.folder / "_delta_log"
        sync_dir(log / f"{version:020d}.json")
        sync_dir(log)
        return version

    def _table(self) -> DeltaTable:
        with _translated(self.folder):
            return DeltaTable(str(self.folder))


def _properties(job: str, number: int, notes: dict[str, Any]) -> CommitProperties:
    said = {"mainstem.job": job, "mainstem.number": number, **notes}
    return CommitProperties(custom_metadata=said, app_transactions=[Transaction(job, number)])


def _value_text(value: object) -> str:
    return "" if value is None else str(value)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without what only says how Delta keeps a column."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


@contextlib.contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Errors of delta-rs as ours."""
    try:
        yield
    except CommitFailedError as error:
        raise TableUnusable(
            f"table {folder} was changed by somebody else at the same moment; run the job again "
            f"({one_line(str(error))})"
        ) from error
    except DeltaError as error:
        raise TableUnusable(f"table {folder}: {one_line(str(error))}") from error
    except pa.ArrowException as error:
        raise SchemaMismatch(f"table {folder}: {one_line(str(error))}") from error
