"""The audit: whether everything that was sent to a stream is in the log, and in the tables made of it, by windows.

Producers that count (`hub.producer(counts="1m")`, the setting `http_counts`) say how many records they sent, by the
times of the records. The job reads the stream, and the tables, counts what is there, and compares. It says up to when
all of it agrees, and names every window and tier after that which differs. Records that cannot be read are missing, and
where they stood is said too.

What a run says is of the log and of the tables that it was given, and of no others: the stream is verified as far as
the one of all of them that is so least. A run begins where its own had come to.

A run has a manifest: *planned* with the cursors between which it reads, *written* with what it has counted, *done* when
the stream says it. A run that was killed while it counted is done anew by the next; what one had counted and could not
say any more is said by the next, which goes on from there.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import mainstem
from mainstem.core import windows
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.durations import microseconds
from mainstem.core.errors import DataLoss, InvalidRequest, InvalidSetting, SchemaMismatch, TableUnusable
from mainstem.core.plain import one_line
from mainstem.core.times import from_us, to_us
from mainstem.core.windows import WINDOW_US_MAX, WINDOW_US_MIN, Tally
from mainstem.hub.counted import sent_counts, verified_tiers
from mainstem.hub.hub import Hub
from mainstem.spark.jobs.lake import Lake
from mainstem.spark.jobs.manifest import Manifest, Manifests, notes_folder
from mainstem.spark.jobs.owners import require_each
from mainstem.spark.jobs.reconciliation import READ, Reconciliation, reconcile, summed, tier_counts, window_of
from mainstem.spark.jobs.tasks import Answer, OnStep, no_step, parts_of, run_parts
from mainstem.spark.jobs.trimmed import BEGINNING_US, left_of
from mainstem.spark.origin import Access, forget_near, opened
from mainstem.spark.session import session
from mainstem.spark.slices import OnLoss, Slice, balance, read, slices_of
from mainstem.transport.counting import (
    COUNTS_STREAM,
    LOG_TIER,
    TIER_CHARS_MAX,
    TIERS_PER_CALL_MAX,
    NoteVerifiedCall,
    Verified,
)
from mainstem.transport.port import GetStreamCall, Port, StreamInfo

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

SETTLE: Final = "10m"
# The column of a table that has the times of the records, as the warehouse job writes it.
TIME_COLUMN: Final = "_timestamp"
# The address of a folder of this machine; pathlib leaves one slash of those after the scheme.
_OF_FILE: Final = re.compile(r"file:(//(localhost)?)?/", re.IGNORECASE)
# What the files of a Delta table do not have as its rows do: rows that were deleted are still in them, and columns have
# other names.
_NOT_IN_FILES: Final = {"deletionVectors": "deletion vectors", "columnMapping": "column mapping"}
# Records that cannot be read: their shard, the first offset, the one after the last.
Lost = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit found. `is_published`: it is kept of the log and of the tables that were named, and the folder
    `manifests` has what was found. `lost` are records that cannot be read any more: shard, first offset, the one after
    the last. `behind` are tables that were not named and are verified less far, and how far: no further is the stream,
    whatever this audit found."""

    reconciliation: Reconciliation
    is_published: bool
    manifests: str = ""
    lost: tuple[Lost, ...] = ()
    behind: Mapping[str, int] = field(default_factory=dict)

    @property
    def verified_through(self) -> datetime:
        return from_us(self.reconciliation.verified_through_us)

    @property
    def is_good(self) -> bool:
        return not self.reconciliation.differing

    def as_json(self) -> dict[str, object]:
        """For programs."""
        found = self.reconciliation
        return {
            "stream": found.stream,
            "window_seconds": found.window_us / 1_000_000,
            "windows": found.windows,
            "verified_through": _iso(found.verified_through_us),
            "published": self.is_published,
            "differing": [
                {
                    "window": _iso(line.start_us),
                    "tier": line.tier,
                    "expected": line.expected,
                    "seen": line.seen,
                    "difference": line.difference,
                    "verdict": line.verdict,
                }
                for line in found.differing
            ],
            "behind": {table: _iso(through_us) for table, through_us in self.behind.items()},
            "unreadable": [{"shard": shard, "first": first, "last": end - 1} for shard, first, end in self.lost],
        }


def audit(
    hub: str | Path,
    stream: str,
    *,
    tables: Sequence[str | Path] = (),
    forget: Sequence[str | Path] = (),
    time: str = TIME_COLUMN,
    window: str | timedelta | None = None,
    settle: str | timedelta = SETTLE,
    since: datetime | None = None,
    publish: bool = True,
    manifests: str | Path | None = None,
    token: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    certificate_key: str | None = None,
    spark: "SparkSession | None" = None,
    on_step: OnStep = no_step,
    clock: Clock = SYSTEM_CLOCK,
) -> AuditResult:
    """Compare what producers say they sent to a stream with what is there; see AuditResult.

    `hub` is a folder or an address. `tables` are Delta tables made of the stream; `time` is the column of theirs that
    has the time of the record. Windows count that ended `settle` ago, from `since` on, else from where the last audits
    of the log and of these tables had come to; `window` is their length, else the longest in which a producer counts.
    What retention has trimmed is not compared, nor what is from before the first counts that are kept.

    With `publish` the result is kept: the `verified_through` of the stream is that of the log, or of the table that is
    verified least of all that were ever named, but for those that were named in `forget`. A manifest of the run is in
    the folder `manifests`, see `notes_folder`. Without `publish` nothing is kept.
    """
    about = _About.of(tables, forget)
    if since is not None and since.tzinfo is None:
        raise InvalidSetting("since: a time needs a time zone, for example datetime(2026, 1, 31, tzinfo=UTC)")
    asked_us = None if window is None else _window_us(window)
    settle_us = microseconds(settle, "settle (--settle)")
    shown = {"token": token, "token_file": token_file, "ca": ca, "certificate": certificate, "key": certificate_key}
    access = Access.to(str(hub), **shown)
    port = opened(access)
    info = port.call(GetStreamCall(stream)).streams[0]
    if "compact" in info.cleanup:
        raise InvalidRequest(
            f"stream {stream!r} is compacted: records go from it on purpose, so there is nothing to audit"
        )
    audited = _Audit(access, port, Hub(port, str(hub)), info, on_step, clock)
    if not publish:
        compared = audited.compared(spark, about, time, asked_us, settle_us, since)
        return AuditResult(compared.reconciliation, False, lost=compared.lost, behind=compared.behind)
    notes = Manifests(notes_folder(manifests), f"audit-{info.uuid}")
    with notes.locked():
        audited.settle(notes)
        compared = audited.compared(spark, about, time, asked_us, settle_us, since, notes)
        audited.publish(notes, compared)
    return AuditResult(compared.reconciliation, True, str(notes.folder), compared.lost, compared.behind)


@dataclass(frozen=True, slots=True)
class _About:
    """What an audit is about besides the log: tables by their names, as they were given, and the names of those that
    count no more."""

    tables: Mapping[str, str]
    forgotten: tuple[str, ...]

    @classmethod
    def of(cls, tables: Sequence[str | Path], forget: Sequence[str | Path]) -> "_About":
        given = map(_plain, tables)
        found = cls(
            {_name_of(table): table for table in given}, tuple(dict.fromkeys(map(_name_of, map(_plain, forget))))
        )
        for name in (*found.tables, *found.forgotten):
            if len(name) > TIER_CHARS_MAX:
                raise InvalidSetting(f"the name of a table has at most {TIER_CHARS_MAX:,} characters: {name[:60]}...")
        if max(len(found.tiers), len(found.forgotten)) > TIERS_PER_CALL_MAX:
            raise InvalidSetting(f"an audit is of {TIERS_PER_CALL_MAX - 1} tables at most; make several")
        if both := found.tables.keys() & set(found.forgotten):
            raise InvalidSetting(f"table {min(both)} cannot be compared and forgotten by the same audit")
        return found

    @property
    def tiers(self) -> tuple[str, ...]:
        return LOG_TIER, *self.tables


@dataclass(frozen=True, slots=True)
class _Compared:
    """What was found, the records that could not be read, the manifest that has it, if one is kept, and tables that are
    verified less far."""

    reconciliation: Reconciliation
    lost: tuple[Lost, ...]
    manifest: Manifest | None
    behind: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Audit:
    """One audit of a stream as it is now. One thread."""

    access: Access
    port: Port
    hub: Hub
    info: StreamInfo
    on_step: OnStep
    clock: Clock

    def settle(self, notes: Manifests) -> None:
        """Finish what a run before was killed at. What it had found is said, good or bad, of the tiers of which nothing
        was said since that run began; what it had only begun is given up."""
        last = notes.last()
        if last is not None and last.state == "planned":
            notes.give_up(last)
        elif last is not None and last.state == "written":
            since = {tier for tier, (at_us, _) in self._told().items() if at_us >= last.planned_us}
            self._say(last, since)
            self._done(notes, last)
        self.on_step("settled", 1, 1)

    def compared(
        self,
        spark: "SparkSession | None",
        about: _About,
        time: str,
        asked_us: int | None,
        settle_us: int,
        since: datetime | None,
        notes: Manifests | None = None,
    ) -> _Compared:
        """What was sent beside what is there; with `notes` a manifest says so."""
        counts = sent_counts(self.hub, self.info.name)
        if not counts:
            raise InvalidRequest(
                f"no producer has counted what it sent to {self.info.name!r}; open producers with "
                "hub.producer(counts='1m'), and servers that take records by HTTP with --http-counts 1m"
            )
        told = self._verified(about)
        # Before the stream is read for hours.
        for name, table in about.tables.items():
            with _telling_to_forget(table) if name in told else contextlib.nullcontext():
                _opened_table(table, time)
                # Jobs write to folders only.
                if "://" not in table:
                    require_each(Lake(Path(table)), self.info)
        length = window_of(counts, asked_us)
        settled_us = windows.start_of(self.clock.now_us() - settle_us, length)
        first_us = max(
            self._chosen_us(since, about, told, length),
            # Nobody counted before that; and of windows from before the first counts that are kept some may be gone.
            windows.start_of(min(count.start_us for count in counts), length),
            self._whole_us(COUNTS_STREAM, length),
            self._whole_us(self.info.name, length),
        )
        spark = spark or session()
        parts = parts_of(spark)
        # Retention may trim something while this runs, which then is not compared.
        found = slices_of(self.port, self.access, self.info, parts=parts, on_loss=lambda loss: None)
        wanted = [piece for piece in found if piece.time_high_us >= first_us]
        manifest = None if notes is None else self._begun(notes, wanted, about)
        there = 1 + len(about.tables)
        self.on_step("load", 0, there)
        read_tally, lost = _tally_of_stream(spark, wanted, parts, length, self.on_step)
        tiers = {READ: read_tally}
        versions: dict[str, int] = {}
        for place, table in enumerate(about.tables.values(), 1):
            self.on_step("load", place, there)
            tier = f"table {table}"
            tiers[tier], versions[tier] = _tally_of_table(spark, table, time, length, self.on_step)
        self.on_step("load", there, there)
        first_us = min(max(first_us, self._whole_us(self.info.name, length)), settled_us)
        result = reconcile(
            self.info.name,
            summed(counts, length),
            tiers,
            window_us=length,
            first_us=first_us,
            settled_us=settled_us,
        )
        if notes is not None and manifest is not None:
            manifest = msgspec.structs.replace(
                manifest,
                state="written",
                rows_read=sum(tiers[READ].values()),
                lost=lost,
                tiers=tier_counts(result, versions),
                verified_through_us=result.verified_through_us,
                windows_differing=result.windows_differing,
            )
            notes.advance(manifest)
            self.on_step("written", manifest.number, manifest.number)
        others = {tier: said.through_us for tier, said in told.items() if tier not in (*about.tiers, *about.forgotten)}
        behind = {tier: through_us for tier, through_us in others.items() if through_us < result.verified_through_us}
        return _Compared(result, lost, manifest, behind)

    def _told(self) -> dict[str, tuple[int, Verified]]:
        return verified_tiers(self.hub, self.info.name)

    def _verified(self, about: _About) -> dict[str, Verified]:
        """What was said last of each tier that counts. InvalidSetting if a table was never named that is to count no
        more."""
        told = {tier: said for tier, (_, said) in self._told().items() if tier in said.tiers}
        for table in about.forgotten:
            if table not in told:
                tables = ", ".join(sorted(told.keys() - {LOG_TIER})) or "none"
                raise InvalidSetting(
                    f"no audit of {self.info.name!r} has named table {table}; those that were named: {tables}"
                )
        return told

    def _chosen_us(self, since: datetime | None, about: _About, told: Mapping[str, Verified], window_us: int) -> int:
        """Where the first window begins that somebody wants to have compared: of a tier of which nothing was said yet
        it is the very first."""
        if since is not None:
            return windows.start_of(to_us(since), window_us)
        throughs = (told[tier].through_us if tier in told else BEGINNING_US for tier in about.tiers)
        return windows.start_of(min(throughs), window_us)

    def _whole_us(self, name: str, window_us: int) -> int:
        """Where the first window begins of which no record of a stream was trimmed: after those that are as late as
        one that was trimmed can be."""
        while True:
            found = self.port.call(GetStreamCall(name)).streams[0]
            # Trimmed in this very moment: it begins elsewhere now.
            with contextlib.suppress(DataLoss):
                latest = max(left_of(self.port, found, shard).latest_us for shard in range(found.shards))
                return latest if latest == BEGINNING_US else windows.start_of(latest, window_us) + window_us

    def _begun(self, notes: Manifests, wanted: Sequence[Slice], about: _About) -> Manifest:
        last = notes.last()
        start = list(self.info.ends)
        for piece in wanted:
            start[piece.shard] = min(start[piece.shard], piece.first)
        manifest = notes.begin(
            Manifest(
                job="audit",
                stream=self.info.name,
                number=1 if last is None else last.number + 1,
                attempt="",
                state="planned",
                start=self._cursor(start),
                end=self._cursor(self.info.ends),
                planned_us=self.clock.now_us(),
                tables=tuple(about.tables),
                forgotten=about.forgotten,
            )
        )
        self.on_step("planned", manifest.number, manifest.number)
        return manifest

    def publish(self, notes: Manifests, compared: _Compared) -> None:
        """Have the stream say what was found."""
        assert compared.manifest is not None, "of a run with manifests"
        self._say(compared.manifest)
        self.on_step("committed", compared.manifest.number, compared.manifest.number)
        self._done(notes, compared.manifest)

    def _say(self, manifest: Manifest, but: Collection[str] = ()) -> None:
        """What a manifest has of its tiers, but for some."""
        tiers = tuple(tier for tier in (LOG_TIER, *manifest.tables) if tier not in but)
        forgotten = tuple(table for table in manifest.forgotten if table not in but)
        if not tiers and not forgotten:
            return
        call = NoteVerifiedCall(
            self.info.name,
            manifest.verified_through_us,
            manifest.windows_differing,
            uuid=self.info.uuid,
            tiers=tiers,
            forgotten=forgotten,
        )
        if self.access.url:
            self.port.call(call)
            return
        with mainstem.open(self.access.data, read_only=False) as hub:
            hub._port.call(call)

    def _done(self, notes: Manifests, manifest: Manifest) -> None:
        notes.advance(msgspec.structs.replace(manifest, state="done", done_us=self.clock.now_us()))
        self.on_step("done", manifest.number, manifest.number)

    def _cursor(self, offsets: Sequence[int]) -> str:
        return str(mainstem.Cursor(self.info.uuid, self.info.epoch, tuple(offsets)))


def _plain(table: str | Path) -> str:
    """A table as it was given, but for the address of a folder of this machine: that is the folder."""
    text = str(table)
    return unquote(text[found.end() - 1 :]) if (found := _OF_FILE.match(text)) else text


def _name_of(table: str | Path) -> str:
    """The name of a table, the same from whatever folder it is named."""
    plain = _plain(table)
    return plain if "://" in plain else os.path.abspath(plain)


def _window_us(window: str | timedelta) -> int:
    found = microseconds(window, "window (--window)")
    if not WINDOW_US_MIN <= found <= WINDOW_US_MAX:
        raise InvalidSetting(f"window (--window) is between 1 second and 24 hours, not {window}")
    return found


def _tally_of_stream(
    spark: "SparkSession", wanted: Sequence[Slice], parts: int, window_us: int, on_step: OnStep
) -> tuple[Tally, tuple[Lost, ...]]:
    """The records of slices by window, each read, and those that cannot be."""
    work = balance(wanted, parts)

    def count(part: int) -> Answer:
        # What an audit before this one has read is in the memory of the process, and perhaps nowhere else any more.
        for origin in {piece.origin for piece in work[part]}:
            forget_near(origin)
        losses: list[DataLoss] = []
        tally = windows.total(_tally_of_slice(piece, window_us, losses.append) for piece in work[part])
        # Trimmed ones went as they should.
        lost = tuple((loss.shard, loss.first, loss.last + 1) for loss in losses if loss.reason != "trimmed")
        return Answer(tally=tally, lost=lost)

    answers = run_parts(spark, len(work), count, on_step)
    lost = sorted(each for answer in answers for each in answer.lost)
    return windows.total(answer.tally for answer in answers), tuple(lost)


def _tally_of_slice(piece: Slice, window_us: int, on_loss: OnLoss) -> Tally:
    # A record that is no row of the stream's schema is there all the same.
    batches = read(piece, [TIME_COLUMN], on_bad="keep", on_loss=on_loss)
    return windows.total(_tally_of(batch.column(TIME_COLUMN), window_us) for batch in batches)


def _tally_of_table(
    spark: "SparkSession", path: str, time_column: str, window_us: int, on_step: OnStep
) -> tuple[Tally, int]:
    """The rows of a Delta table by window, each read, and the version of it that they are of."""
    table = _opened_table(path, time_column)
    # As addresses, paths of a folder have signs for what they have letters for.
    files = table.file_uris() if "://" in path else [*map(str, Lake(Path(path)).at(table.version())[1])]

    def count(part: int) -> Answer:
        try:
            return Answer(tally=_tally_of_file(files[part], time_column, window_us))
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"table {path}: column {time_column!r} has no times ({one_line(str(error), 200)})", path=time_column
            ) from error

    answers = run_parts(spark, len(files), count, on_step)
    return windows.total(answer.tally for answer in answers), table.version()


def _tally_of_file(path: str, time_column: str, window_us: int) -> Tally:
    """The rows of one file of a table."""
    file = pq.ParquetFile(path)
    if time_column not in file.schema_arrow.names:
        # From before the table had the column: its rows have no time.
        return {}
    batches = file.iter_batches(columns=[time_column])
    return windows.total(_tally_of(batch.column(0), window_us) for batch in batches)


@contextlib.contextmanager
def _telling_to_forget(table: str) -> Iterator[None]:
    """Of a table that is no more what earlier audits have compared: the stream is held back until it is forgotten."""
    try:
        yield
    except SchemaMismatch:
        # The table is there; another column was asked for.
        raise
    except (TableUnusable, InvalidRequest) as error:
        raise type(error)(
            f"{error}. Earlier audits have compared this table, and the stream is verified no further than it was; if "
            f"it counts no more, take it out with forget (--forget {table})"
        ) from error.__cause__


def _opened_table(path: str, time_column: str) -> "DeltaTable":
    """A table of which each file has its rows, with their times in a column of this name."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        raise TableUnusable(f"there is no Delta table in {path}") from None
    except DeltaError as error:
        raise TableUnusable(f"table {path}: {one_line(str(error))}") from error
    features = {*(table.protocol().reader_features or ())}
    # Of tables from before there were features a property says it.
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    for feature in sorted(features & _NOT_IN_FILES.keys()):
        raise TableUnusable(
            f"table {path} has {_NOT_IN_FILES[feature]}, so its rows cannot be counted in its files; take that from it "
            f"(ALTER TABLE ... DROP FEATURE {feature}), or name a copy of it that was made without"
        )
    names = [field.name for field in table.schema().fields]
    if time_column not in names:
        raise SchemaMismatch(
            f"table {path} has no column {time_column!r}, which has the times of the records; name the one that has, "
            f"of {', '.join(names)}",
            path=time_column,
        )
    if time_column in table.metadata().partition_columns:
        raise SchemaMismatch(
            f"table {path} is partitioned by {time_column!r}, which is of many records and has not the time of each; "
            f"name the column that has",
            path=time_column,
        )
    return table


def _tally_of(times: pa.Array, window_us: int) -> Tally:
    """A row without a time is in no window."""
    found = times.cast(pa.timestamp("us", "UTC")).drop_null().cast(pa.int64())
    if not len(found):
        return {}
    values = found.to_numpy(zero_copy_only=False)
    return windows.tally(int(values.min()), int(values.max()), len(values), values, window_us)


def _iso(time_us: int) -> str:
    return from_us(time_us).isoformat()
