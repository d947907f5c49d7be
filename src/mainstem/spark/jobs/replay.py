"""The job `replay`: history once more, through a function or a query, into a table or another stream.

A mistake in what was made of a stream is corrected by making it again. The range is of time, so it has an end, and its
records are those of that time, however late they came. A replay that was killed goes on where its last load ended; one
that is run again adds nothing but records that came late meanwhile. One that is run again and is not the same any
more is refused: what is there of it is neither gone on with nor taken for what is asked now.
"""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mainstem.core.errors import DataLoss, InvalidSetting
from mainstem.spark.destination import Destination
from mainstem.spark.jobs.comparing import Compared
from mainstem.spark.jobs.comparing import compare as compare_versions
from mainstem.spark.jobs.copying import Copying
from mainstem.spark.jobs.delivering import Delivering, Redelivery
from mainstem.spark.jobs.history import GO_ON, PLACE_COLUMNS, History, OnBad, OnLoss, Wanted
from mainstem.spark.jobs.lake import KEY_COLUMN, Lake
from mainstem.spark.jobs.loading import Attempt, JobResult, Loading, Write, Written
from mainstem.spark.jobs.loads import Load, check_load_rows
from mainstem.spark.jobs.making import Function, Making
from mainstem.spark.jobs.owners import require_own
from mainstem.spark.jobs.part_files import FILE_BYTES, check_file_bytes
from mainstem.spark.jobs.partitions import By, Partitioning
from mainstem.spark.jobs.recipe import code_digest, digest
from mainstem.spark.jobs.records_copied import Copier
from mainstem.spark.jobs.tasks import OnStep, no_step
from mainstem.spark.jobs.warehouse import LOAD_ROWS
from mainstem.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Beside what every job does about records that are gone: rows of the table that were made of them may go, too.
OnReplayLoss = OnLoss | Literal["drop"]
_DROP: Final = (
    "nothing was replaced, because rows of the table that were made of them could not be made again: use another table "
    "with on_loss='skip' (--on-loss skip), or let them go with on_loss='drop' (--on-loss drop)"
)


def replay(
    hub: str | Path,
    stream: str,
    table: str | Path,
    *,
    since: datetime,
    until: datetime,
    sql: str | None = None,
    function: Function | str | None = None,
    name: str | None = None,
    replace: bool = False,
    into: str | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    partition: By = "none",
    time: str | None = None,
    on_bad: OnBad = "raise",
    on_loss: OnReplayLoss = "raise",
    load_rows: int | None = None,
    file_bytes: int | None = None,
    compare: bool = True,
    key: Sequence[str] | None = None,
    token: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    certificate_key: str | None = None,
    spark: "SparkSession | None" = None,
    on_step: OnStep = no_step,
) -> JobResult:
    """Run the records from `since` to before `until`, by their own time, through `function` or `sql` into the Delta
    table in folder `table`.

    `function` gets Arrow batches with the stream's columns and _key, _shard, _offset, _timestamp, and gives batches or
    tables; as text it is "module:name". `sql` is a query over the stream by its name, which sees one load at a time.
    Neither: the records as they are. In a stream with a schema tombstones come to neither of the two.

    `into` is the name of a stream of the same hub to which rows are delivered instead; the folder then has the replay's
    manifests. A load whose rows the stream has already is recognised there. Tombstones are tombstones there.

    With `replace` everything is one load that takes the place of what is in the table: readers see the old rows or the
    new ones, and the old ones stay as the table's version before. `compared` of the result says how many are different,
    unless `compare` is False; `key` are the columns that tell rows apart in that, the stream's key if not said.

    Without it, rows are added, load by load; `name` then tells replays into one table apart: another name is another
    replay, which adds its rows too.

    `on_loss="skip"` goes on without records of that time that the stream has no more. With `replace` a table that has
    rows then stays as it is; `on_loss="drop"` replaces them all the same.
    """
    _check_range(since, until)
    # A time is the same in every zone, and so is what says that a replay is the same.
    since, until = since.astimezone(UTC), until.astimezone(UTC)
    _check_given(stream, name, into, key, sql, function, partition, replace=replace, on_loss=on_loss)
    _check_used(replace=replace, into=into, load_rows=load_rows, file_bytes=file_bytes, compare=compare, key=key)
    file_bytes = FILE_BYTES if file_bytes is None else file_bytes
    check_file_bytes(file_bytes)
    check_load_rows(load_rows)
    partitioning = Partitioning(partition, time)
    found = _found(function) if isinstance(function, str) else function
    shown = {"token": token, "token_file": token_file, "ca": ca, "certificate": certificate, "key": certificate_key}
    # Before the stream is looked up: what other jobs load from here on may be of later records.
    seen = _version(Path(table)) if replace else None
    history = History(hub, stream, **shown)
    is_copy = into is not None and sql is None and function is None and bool(history.info.schema_bytes)
    names = history.names(columns, _beside(history, into, sql, function))
    passes = on_loss == "drop" or (on_loss == "skip" and not (replace and Lake(Path(table)).has_files))
    about_loss: OnLoss = "skip" if passes else "raise"
    wanted = Wanted(names, _within(since, until, where), on_bad, about_loss, is_deleted=is_copy)
    _check_moved(partitioning, history, wanted, sql, found)
    destination = None if into is None else Destination(history.access, into)
    # A stream that was deleted and made anew has nothing of what was delivered to the one before it.
    what = (history.info.uuid, since, until, sql, where, destination and destination.look_up().uuid)
    # What takes the place of everything goes on with nothing: whatever its range, it tidies up behind any other.
    told = (history.info.uuid, "replace") if replace else (*what, _text(function))
    job = f"replay-{name or digest(*told)}"
    recipe = digest(*what, columns and tuple(columns), code_digest(found))
    kind = Loading if destination is None else partial(Redelivery, destination)
    loading = kind("replay", history, Path(table), name=job, recipe=recipe, on_step=on_step, on_loss=about_loss)
    if destination is not None:
        destination.check_free()
    else:
        loading.lake.require_kind(partitioning.columns, "append")
    if replace:
        require_own(loading.lake, Path(table), history.info, "replay")
    spark = spark or session()
    making = Making(spark, history, wanted, on_step=on_step, sql=sql, function=found)
    work: Delivering | Copying
    if destination is not None:
        copier = Copier(history.info.key) if is_copy else None
        work = Delivering(making, destination, job=job, copier=copier, on_step=on_step)
    else:
        work = Copying(
            making, loading.lake, partitioning, job=job, file_bytes=file_bytes, overwrite=replace, since=seen
        )
        work.check()
    if replace:
        if key:
            _check_key(key, making.schema.names)

        def compared(before: int, after: int) -> Compared:
            on_step("compare", 0, 1)
            names = loading.lake.renamed(making.schema.names, history.aliases)
            told_by = [names.get(name, name) for name in key or history.info.key]
            told = compare_versions(spark, loading.lake, before, after, told_by)
            on_step("compare", 1, 1)
            return told

        chosen = "" if where is None else f" for which {where} is true"
        none = f"there are no records from {since.isoformat()} to before {until.isoformat()}{chosen}"
        # What comes after that the next run of `warehouse` loads, whatever its time.
        reached = Loading("warehouse", history, Path(table), on_step=on_step).reached()
        if reached is not None:
            none += " among those that warehouse has loaded"
        end = tuple(map(min, history.info.ends, reached or history.info.ends))
        write = partial(_unless_empty, loading, work.write, none)
        with _words_of_replacing() if loading.lake.has_files else contextlib.nullcontext():
            return loading.run_whole(since, end, write, work.commit, compared if compare else None)
    return loading.run(since, work.write, work.commit, offsets_max=load_rows or LOAD_ROWS)


def _check_used(
    *,
    replace: bool,
    into: str | None,
    load_rows: int | None,
    file_bytes: int | None,
    compare: bool,
    key: Sequence[str] | None,
) -> None:
    """Nothing is given that would change nothing."""
    if load_rows is not None and replace:
        raise InvalidSetting(
            "load_rows (--load-rows) has no effect with replace (--replace), which makes one load of everything: leave "
            "one of them out"
        )
    if file_bytes is not None and into is not None:
        raise InvalidSetting(
            "file_bytes (--file-size) has no effect with into (--into), which writes no table: leave one of them out"
        )
    if not compare and not replace:
        raise InvalidSetting(
            "compare=False (--no-compare) has no effect without replace (--replace), which alone compares: leave it out"
        )
    if not compare and key is not None:
        raise InvalidSetting(
            "key (--key) is for the comparison, which compare=False (--no-compare) leaves out: leave one of them out"
        )


def _beside(history: History, into: str | None, sql: str | None, function: Function | str | None) -> tuple[str, ...]:
    """What comes along with the columns of a row. Records that are only delivered keep their key, headers and time, not
    their place."""
    if into is None or sql is not None or function is not None:
        return (*PLACE_COLUMNS, KEY_COLUMN)
    return (KEY_COLUMN, "_headers", "_timestamp") if history.info.schema_bytes else ()


@contextlib.contextmanager
def _words_of_replacing() -> Iterator[None]:
    """What is gone is not passed over where rows would go with it."""
    try:
        yield
    except DataLoss as loss:
        raise DataLoss(str(loss).replace(GO_ON, _DROP), **loss.facts()) from loss.__cause__


def _unless_empty(loading: Loading, write: Write, none: str, load: Load, attempt: Attempt) -> Written:
    """Write a load that is to take the place of what is in a table. One without records leaves it as it is."""
    written = write(load, attempt)
    if not any(answer.rows_read for answer in written.answers) and loading.lake.has_files:
        loading.give_up(attempt)
        raise InvalidSetting(f"{none}, and table {loading.lake.folder} has rows; nothing was replaced")
    return written


def _check_given(
    stream: str,
    name: str | None,
    into: str | None,
    key: Sequence[str] | None,
    sql: str | None,
    function: Function | str | None,
    partition: str,
    *,
    replace: bool,
    on_loss: str,
) -> None:
    """InvalidSetting where one thing that was asked for excludes another."""
    if replace and name is not None:
        raise InvalidSetting("name tells replays apart that add to a table; replace=True adds nothing")
    if key is not None and not replace:
        raise InvalidSetting("key tells rows apart where two versions are compared, which replace=True does")
    if into is not None and (replace or partition != "none"):
        raise InvalidSetting("into delivers rows to a stream, which has nothing to replace and no partitions")
    if into == stream:
        raise InvalidSetting(f"a replay of {stream!r} into itself would read what it writes; name another stream")
    if sql is not None and function is not None:
        raise InvalidSetting("give sql or a function, not both")
    if on_loss == "drop" and not replace:
        raise InvalidSetting("on_loss='drop' is of replace=True, which lets rows of the table go; use on_loss='skip'")


def _check_key(key: Sequence[str], names: Sequence[str]) -> None:
    for name in key:
        if name not in names:
            raise InvalidSetting(
                f"key: the rows have no column {name!r} to tell them apart by; there are {', '.join(names)}"
            )


def _check_moved(partitioning: Partitioning, history: History, wanted: Wanted, *makers: object) -> None:
    """Whether rows that are only moved can be partitioned is known before Spark starts."""
    if all(maker is None for maker in makers):
        partitioning.check(history.schema(wanted))


def _check_range(since: datetime, until: datetime) -> None:
    for what, time in (("since", since), ("until", until)):
        if time.tzinfo is None:
            raise InvalidSetting(f"{what}: a time needs a time zone, for example datetime(2026, 1, 31, tzinfo=UTC)")
    if since >= until:
        raise InvalidSetting(
            f"since (--since) must be before until (--until): {since.isoformat()} is not before {until.isoformat()}"
        )


def _version(table: Path) -> int:
    lake = Lake(table)
    return lake.version if lake.exists else -1


def _within(since: datetime, until: datetime, where: str | None) -> str:
    first, end = since.isoformat(" "), until.isoformat(" ")
    times = f"_timestamp >= TIMESTAMP '{first}' AND _timestamp < TIMESTAMP '{end}'"
    return times if where is None else f"{times} AND ({where})"


def _text(function: Function | str | None) -> str:
    if function is None or isinstance(function, str):
        return function or ""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(type(function)))}"


def _found(path: str) -> Function:
    """The function that "module:name" names."""
    module, _, name = path.partition(":")
    try:
        found: Function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSetting(
            f"function {path!r} cannot be found ({error}); give it as module:name, in a module that this process and "
            "Spark's workers can import"
        ) from None
    if not callable(found):
        raise InvalidSetting(f"function {path!r} is {type(found).__name__}, not a function")
    return found
