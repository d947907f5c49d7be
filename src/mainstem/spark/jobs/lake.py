"""A Delta table in a folder, written without a JVM: the files that tasks wrote become rows in one commit.

The commit carries the number of the job's load as the version of an application transaction. delta-rs accepts the same
number twice, so it is looked up in the very version that is committed to; of two that commit at once, it lets only one
through. Both together: a load is in the table once. Whoever gives a load up makes use of the same: it takes the marker
of the attempt away, then commits the job's number once more (`fence`). A run that saw the marker had opened the table
before that, so its commit fails; one that opens it later sees none.

delta-rs leaves it to the file system when what it wrote is on disk. After every commit it is made so: the files that
came with it, the folders that name them, what the log says of them.
"""

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, Transaction

from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.errors import SchemaMismatch, TableUnusable
from mainstem.core.limits import MIB
from mainstem.core.plain import one_line
from mainstem.log.disk import LocalDisk, sync_dir
from mainstem.spark.jobs.bounds import is_unbounded, unbounded
from mainstem.spark.jobs.columns import missing_columns, renamed
from mainstem.spark.jobs.manifest import ATTEMPTS, require_marker
from mainstem.spark.jobs.part_files import WrittenFile, checksummed
from mainstem.spark.jobs.tasks import OnStep, no_step

# What pathlib leaves of one.
_ADDRESS: Final = re.compile(r"[A-Za-z0-9+.-]{2,}:/")
# In a folder's name, what delta-rs reads as another character, or panics at.
_UNREADABLE: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\]")
# What a load's commit says of it, beside its number.
START_NOTE: Final = "mainstem.start"
END_NOTE: Final = "mainstem.end"
ATTEMPT_NOTE: Final = "mainstem.attempt"
DELETED_COLUMN: Final = "_deleted"
KEY_COLUMN: Final = "_key"
# Rows are added to those that are there, or take the place of those of their keys. A table keeps its mode.
Mode = Literal["append", "upsert"]
_MODE_PROPERTY: Final = "mainstem.mode"
# Columns of which some file has no bounds in the table's log, and those of which all have. Of a table of which nothing
# is said those are the first ones: of as many delta-rs writes bounds where it merges or compacts.
_UNBOUNDED_PROPERTY: Final = "mainstem.unbounded"
_BOUNDED_PROPERTY: Final = "delta.dataSkippingStatsColumns"
_BOUNDED_MAX: Final = 32
# Of a partition with more files under this size than the count, the small ones are made into one.
SMALL_BYTES: Final = 32 * MIB
SMALL_FILES_MAX: Final = 8
# From this age on a vacuum looks at all files, not only at those that the log still knows to be let go; also at those
# that no commit names yet.
_WHOLE_VACUUM_HOURS: Final = 24
# A run that is killed leaves one commit at most that is not known to be on disk; the next one sees to it first.
_LEFT_MAX: Final = 4
_DISK: Final = LocalDisk()


@dataclass(frozen=True, slots=True)
class Changed:
    """What a load did to a table: rows that are new or took the place of others, and rows that went away. Of a merge
    also the files that it wrote, which have the rows beside those, too."""

    written: int
    deleted: int
    files: tuple[WrittenFile, ...] = ()


class Lake:
    """The table in `folder`; it need not exist yet. One thread."""

    def __init__(self, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        if _ADDRESS.match(str(folder)):
            raise TableUnusable(f"{folder} is an address; a table is in a folder that this machine and Spark's see")
        if found := _UNREADABLE.search(str(folder.absolute())):
            raise TableUnusable(
                f"{folder}: delta-rs cannot read {found[0]} in the name of a folder as it is; give the table a folder "
                "without"
            )
        self.folder = folder
        self._clock = clock
        # Whether commits of killed runs are on disk.
        self._is_checked = False
        # Of the attempt whose load is being committed: once it is gone, nothing is.
        self._marker: Path | None = None

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
        return self._note_of(number, job, END_NOTE)

    def attempt_of(self, number: int, job: str) -> str | None:
        """The attempt that committed a load, as its commit says; None if the table's history has it no more."""
        return self._note_of(number, job, ATTEMPT_NOTE)

    def _note_of(self, number: int, job: str, note: str) -> str | None:
        found = self._commit_of(number, job).get(note)
        return None if found is None else str(found)

    def merged(self, number: int, job: str, newest: int | None = None) -> "Changed | None":
        """What the merge of a load did, as its commit says; None if it was none, or is not in the table's history any
        more, nor among its so many `newest` commits."""
        commit = self._commit_of(number, job, newest)
        if commit.get("operation") != "MERGE":
            return None
        return _changed(commit["operationMetrics"], self._added(int(commit["version"])))

    def _commit_of(self, number: int, job: str, newest: int | None = None) -> dict[str, Any]:
        """What the table's history says of the commit of a load; nothing if it has it no more."""
        for commit in self._table().history(newest):
            if commit.get("mainstem.job") == job and commit.get("mainstem.number") == number:
                return commit
        return {}

    def jobs(self) -> set[str]:
        """The jobs of which it has loads, as far as the table's history goes back."""
        return {str(commit["mainstem.job"]) for commit in self._table().history() if "mainstem.job" in commit}

    @property
    def mode(self) -> str | None:
        """How rows come to it; None if nobody knows."""
        return self._mode(self._table())

    def ends(self) -> list[str]:
        """The cursors up to which loads went, of every job, as far as the table's history goes back."""
        return [str(commit[END_NOTE]) for commit in self._table().history() if END_NOTE in commit]

    @property
    def has_files(self) -> bool:
        """Whether it may have rows."""
        return self.exists and bool(self.at(self.version)[1])

    @property
    def version(self) -> int:
        return int(self._table().version())

    def schema(self) -> pa.Schema:
        """Its columns, those of its partitions among them."""
        return _plain(pa.schema(self._table().schema().to_arrow()))

    def renamed(self, rows: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """What it calls columns of these rows that were renamed since it got them; see columns.py."""
        return renamed(rows, self.schema().names, aliases) if self.exists else {}

    def at(self, version: int) -> tuple[pa.Schema, list[Path]]:
        """The columns that the table had in a version, and its files then."""
        with _translated(self.folder):
            table = DeltaTable(str(self.folder), version=version)
        paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
        schema = _plain(pa.schema(table.schema().to_arrow()))
        return schema, [self.folder.absolute() / unquote(path) for path in paths]

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str], mode: Mode = "append") -> pa.Schema:
        """Make the table if there is none, add columns that it lacks; the columns that it then has. Doing it again
        changes nothing, so a kill after it does no harm."""
        if not self.exists:
            self._require_free()
            _DISK.make_dirs(self.folder.absolute())
            with _translated(self.folder):
                DeltaTable.create(
                    str(self.folder),
                    Schema.from_arrow(schema),
                    "ignore",
                    list(partition_by),
                    configuration={_MODE_PROPERTY: mode},
                    raise_if_key_not_exists=False,
                )
            self.make_durable()
        self.require_kind(partition_by, mode)
        lacks = missing_columns(self.schema(), schema)
        if lacks:
            # The files that are there say nothing of them.
            self._leave_unbounded([field.name for field in lacks])
            table = self._table()
            fields = [Field.from_json(field.to_json()) for field in Schema.from_arrow(pa.schema(lacks)).fields]
            before = table.version()
            with _translated(self.folder):
                table.alter.add_columns(fields)
            self.make_durable(before)
        return self.schema()

    def require_kind(self, partition_by: Sequence[str], mode: Mode) -> None:
        """TableUnusable if the table is there and has other partitions, or rows come to it in another way."""
        if not self.exists:
            return
        table = self._table()
        has = list(table.metadata().partition_columns)
        if has != list(partition_by):
            raise TableUnusable(
                f"table {self.folder} is partitioned by {', '.join(has) or 'nothing'}, not by "
                f"{', '.join(partition_by) or 'nothing'}; give the partition that it has, or another folder"
            )
        if (known := self._mode(table)) not in (None, mode):
            what = {"append": "every record that was loaded", "upsert": "one row for each key"}
            raise TableUnusable(
                f"table {self.folder} has {what[str(known)]} (mode {known}), and this job would write {what[mode]} "
                f"(mode {mode}); give the mode that it has (warehouse --mode {known}), or another folder"
            )

    def _mode(self, table: DeltaTable) -> str | None:
        """How rows come to it; None if nobody knows. Tables that were made before that was noted tell it by what was
        done with them."""
        noted = table.metadata().configuration.get(_MODE_PROPERTY)
        if noted is not None:
            return str(noted)
        loads = [commit for commit in table.history() if "mainstem.job" in commit]
        if any(commit.get("operation") == "MERGE" for commit in loads):
            return "upsert"
        return "append" if loads and KEY_COLUMN not in self.schema().names else None

    def _require_free(self) -> None:
        """A folder of something else does not become a table."""
        others = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        strangers = sorted(name for name in others if name not in ("_mainstem", "_delta_log"))
        if strangers:
            raise TableUnusable(f"{self.folder} is no Delta table and not empty: it has {strangers[0]!r}; give another")

    def append(
        self,
        files: Collection[WrittenFile],
        job: str,
        number: int,
        notes: dict[str, Any],
        *,
        overwrite: bool = False,
        since: int | None = None,
        can_repeat: bool = False,
    ) -> int:
        """Make these files, which are on disk, part of the table in its load `number`; the table's version. With
        `overwrite` they take the place of everything that was in it: TableUnusable if another job has loaded something
        `since` that version. `can_repeat` is for a table that does not decide about the load: it may have its number
        from a run that was killed before the other got it."""
        inside = self._inside()
        self._leave_unbounded({name for file in files for name in unbounded(file.stats, inside)})
        table = self._table_to_commit()
        before = table.version()
        _require_next(table, self.folder, job, number, can_repeat=can_repeat)
        if since is not None and since < before:
            _require_alone(table, self.folder, job, before - since)
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
        return self.make_durable(before, {file.path for file in files})

    def upsert(self, rows: pa.Table, job: str, number: int, notes: dict[str, Any]) -> "Changed":
        """Put rows in the place of those of their keys; a row with `_deleted` takes that of its key away. No key occurs
        twice in `rows`."""
        self._leave_unbounded([name for name in rows.column_names if is_unbounded(rows[name])])
        table = self._table_to_commit()
        before = table.version()
        _require_next(table, self.folder, job, number)
        with _translated(self.folder):
            done = (
                table.merge(
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
        last = self.make_durable(before)
        return self.merged(number, job, last - before) or _changed(done, ())

    @contextlib.contextmanager
    def committing(self, marker: Path) -> Iterator[None]:
        """What is committed meanwhile is of the attempt with this marker."""
        self._marker = marker
        try:
            yield
        finally:
            self._marker = None

    def fence(self, job: str) -> None:
        """Who has opened the table to commit a load of this job, and has not yet, fails."""
        if not self.exists:
            return
        table = self._table()
        before = table.version()
        number = table.transaction_version(job) or 0
        with _translated(self.folder):
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                list(table.metadata().partition_columns),
                commit_properties=CommitProperties(app_transactions=[Transaction(job, number)]),
            )
        self.make_durable(before)

    def _table_to_commit(self) -> DeltaTable:
        """The table as it is now, of which the next version is to be committed. The marker is looked for after it was
        opened: see `fence`."""
        table = self._table()
        if self._marker is not None:
            require_marker(self._marker, self.folder)
        return table

    def _added(self, version: int) -> tuple[WrittenFile, ...]:
        """The files that a commit made part of the table, of those that are still there."""
        found = []
        for add in _adds(self._commit(version)):
            path, stats = unquote(add["path"]), add["stats"]
            with contextlib.suppress(FileNotFoundError):
                size, crc32c = checksummed(self.folder / path)
                rows = json.loads(stats)["numRecords"]
                found.append(WrittenFile(path, rows, size, crc32c, add["partitionValues"], stats))
        return tuple(found)

    def _inside(self) -> list[pa.Field]:
        """The columns that its files have: not those of its partitions."""
        partition_by = self._table().metadata().partition_columns
        return [field for field in self.schema() if field.name not in partition_by]

    def _commit(self, version: int) -> Path:
        return self.folder / "_delta_log" / f"{version:020d}.json"

    def _leave_unbounded(self, names: Collection[str]) -> None:
        """From now on nobody writes or expects bounds of these columns, which some files lack: delta-rs cannot write
        them where it compacts, and its data set for Arrow takes a bound that is missing for one that no row keeps."""
        if not names:
            return
        table = self._table()
        known = table.metadata().configuration.get(_UNBOUNDED_PROPERTY)
        left = sorted({*(json.loads(known) if known else ()), *names})
        # A column further behind does not move up: files that are there may have no bounds of it.
        bounded = [name for name in self.schema().names[:_BOUNDED_MAX] if name not in left]
        said = {
            _UNBOUNDED_PROPERTY: json.dumps(left),
            _BOUNDED_PROPERTY: ",".join(f"`{name.replace('`', '``')}`" for name in bounded),
        }
        if said.items() <= table.metadata().configuration.items():
            return
        before = table.version()
        with _translated(self.folder):
            table.alter.set_table_properties(said, raise_if_not_exists=False)
        self.make_durable(before)

    def compact(self, file_bytes: int, on_step: OnStep = no_step) -> int:
        """Make large files of many small ones, partition by partition; how many are gone. Readers and loads that run
        meanwhile are not disturbed. It says "compacted" of each partition, before that is on disk."""
        table = self._table()
        before = table.version()
        found = pa.table(table.get_add_actions(flatten=True))
        names = list(table.metadata().partition_columns)
        keys = [f"partition.{name}" for name in names]
        small = found.filter(pc.less(found["size_bytes"], min(SMALL_BYTES, file_bytes // 2)))
        if not keys:
            crowded: list[dict[str, Any]] = [{}] * (small.num_rows > SMALL_FILES_MAX)
        else:
            counted = small.group_by(keys).aggregate([("path", "count")])
            crowded = counted.filter(pc.greater(counted["path_count"], SMALL_FILES_MAX)).to_pylist()
        gone = 0
        for place, row in enumerate(crowded, 1):
            filters = [(name, "=", _value_text(row[f"partition.{name}"])) for name in names]
            with _translated(self.folder):
                metrics = table.optimize.compact(
                    filters or None, target_size=file_bytes, min_commit_interval=timedelta(0)
                )
            on_step("compacted", place, len(crowded))
            before = self.make_durable(before)
            gone += int(metrics["numFilesRemoved"])
        return gone

    def vacuum(self, hours: int, on_step: OnStep = no_step) -> int:
        """Delete files that the table has not needed for so many hours; how many. Versions from before cannot be read
        then. Files that a running load has not committed yet stay: they are younger than a day, or were written under
        the marker of an attempt. It says "vacuumed" before that is on disk."""
        # Before the table is opened: what is committed after that, it does not know.
        is_whole = hours >= _WHOLE_VACUUM_HOURS and not any(self.folder.glob(f"{ATTEMPTS}/*"))
        table = self._table()
        before = table.version()
        vacuum = partial(table.vacuum, hours, enforce_retention_duration=False, full=is_whole)
        with _translated(self.folder):
            # It names those that an earlier vacuum has deleted, too, for as long as the log knows them.
            gone = [path for path in vacuum(dry_run=True) if (self.folder / path).exists()]
            vacuum(dry_run=False)
        on_step("vacuumed", 1, 1)
        self.make_durable(before)
        return len(gone)

    def make_durable(self, since: int | None = None, known: Collection[str] = ()) -> int:
        """Make every commit after version `since`, the last one if not said, survive a power cut, with the files that
        it added; the newest version of the table. Files that are `known` are on disk already."""
        version = self.version
        first = (version if since is None else since + 1) - (0 if self._is_checked else _LEFT_MAX)
        log = self.folder / "_delta_log"
        # The commits, and with them what sums the log up.
        notes = [log / name for name in sorted(os.listdir(log)) if _version_of(name) >= max(0, first)]
        added = {unquote(add["path"]) for note in notes if note.suffix == ".json" for add in _adds(note)}
        folders = {
            self.folder.absolute().parent,
            self.folder,
            *(self.folder / up for path in added for up in Path(path).parents),
        }
        for place in (*(self.folder / path for path in sorted(added.difference(known))), *folders, *notes):
            # What a later commit has taken away again may be gone by now.
            with contextlib.suppress(FileNotFoundError):
                sync_dir(place)
        with contextlib.suppress(FileNotFoundError):
            sync_dir(log / "_last_checkpoint")
        sync_dir(log)
        self._is_checked = True
        return version

    def _table(self) -> DeltaTable:
        with _translated(self.folder):
            return DeltaTable(str(self.folder))


def _properties(job: str, number: int, notes: dict[str, Any]) -> CommitProperties:
    said = {"mainstem.job": job, "mainstem.number": number, **notes}
    return CommitProperties(custom_metadata=said, app_transactions=[Transaction(job, number)])


def _changed(metrics: dict[str, Any], files: tuple[WrittenFile, ...]) -> Changed:
    """As delta-rs counts it."""
    written = metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"]
    return Changed(int(written), int(metrics["num_target_rows_deleted"]), files)


def _require_next(table: DeltaTable, folder: Path, job: str, number: int, *, can_repeat: bool = False) -> None:
    """A load is committed only to a version of the table that has not got it."""
    if (table.transaction_version(job) or 0) >= number + can_repeat:
        raise TableUnusable(
            f"table {folder} has load {number} of this job already: another run has committed it; run the job again"
        )


def _require_alone(table: DeltaTable, folder: Path, job: str, newest: int) -> None:
    """Rows that another job has loaded meanwhile are not replaced: it would not load them again."""
    for commit in table.history(newest):
        if commit.get("mainstem.job", job) != job:
            raise TableUnusable(
                f"table {folder} got rows of another job ({commit['mainstem.job']}) while this one made those that "
                "were to take their place; nothing was replaced, run it again"
            )


def _version_of(name: str) -> int:
    """Of which version a file of the table's log is; -1 if of none."""
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else -1


def _actions(commit: Path) -> Iterator[dict[str, Any]]:
    """What a commit says; nothing if the table's log has it no more."""
    with contextlib.suppress(FileNotFoundError):
        yield from map(json.loads, commit.read_text().splitlines())


def _adds(commit: Path) -> Iterator[dict[str, Any]]:
    """The files that a commit made part of the table."""
    return (action["add"] for action in _actions(commit) if "add" in action)


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
