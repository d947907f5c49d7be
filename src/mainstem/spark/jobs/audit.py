"""The audit: whether everything that was sent to a stream is in the log, and in the tables made of it, by windows.

Producers that count (`hub.producer(counts="1m")`, the setting `http_counts`) say how many records they sent, by the
times of the records. The job reads the stream, and the tables, counts what is there, and compares. It says up to when
all of it agrees, as `verified_through` of the stream, and names every window and tier after that which differs.

A run has a manifest: *planned* with the cursors between which it reads, *written* with what it has counted, *done* when
the stream says it. A run that was killed while it counted is done anew by the next; what one had counted and could not
say any more is said by the next, which goes on from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import mainstem
from mainstem.core import windows
from mainstem.core.clock import SYSTEM_CLOCK, Clock
from mainstem.core.durations import microseconds
from mainstem.core.errors import InvalidRequest, InvalidSetting, SchemaMismatch
from mainstem.core.times import from_us, to_us
from mainstem.core.windows import WINDOW_US_MAX, WINDOW_US_MIN, Tally
from mainstem.hub.counted import sent_counts, verified
from mainstem.hub.hub import Hub
from mainstem.spark.jobs.manifest import Manifest, Manifests, notes_folder
from mainstem.spark.jobs.reconciliation import READ, Reconciliation, reconcile, summed, tier_counts, window_of
from mainstem.spark.jobs.tasks import Answer, OnStep, no_step, parts_of, run_parts
from mainstem.spark.origin import Access, opened
from mainstem.spark.session import session
from mainstem.spark.slices import Slice, balance, read, slices_of
from mainstem.transport.counting import NoteVerifiedCall
from mainstem.transport.port import GetStreamCall, Port, StreamInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE: Final = "10m"
# The column of a table that has the times of the records, as the warehouse job writes it.
TIME_COLUMN: Final = "_timestamp"
# Nobody has counted a record from before.
_BEGINNING_US: Final = -(1 << 60)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit found. `is_published`: the stream says `verified_through` from now on, and the folder `manifests`
    has what was found."""

    reconciliation: Reconciliation
    is_published: bool
    manifests: str = ""

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
        }


def audit(
    hub: str | Path,
    stream: str,
    *,
    tables: Sequence[str | Path] = (),
    time: str = TIME_COLUMN,
    window: str | timedelta | None = None,
    settle: str | timedelta = SETTLE,
    since: datetime | None = None,
    publish: bool = True,
    manifests: str | Path | None = None,
    token: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    spark: "SparkSession | None" = None,
    on_step: OnStep = no_step,
    clock: Clock = SYSTEM_CLOCK,
) -> AuditResult:
    """Compare what producers say they sent to a stream with what is there; see AuditResult.

    `hub` is a folder or an address. `tables` are Delta tables made of the stream; `time` is the column of theirs that
    has the time of the record. Windows count that ended `settle` ago, from `since` on, else from where the last audit
    had come to; `window` is their length, else the longest in which a producer counts. What retention has trimmed is
    not compared. With `publish` the result is kept as `verified_through` of the stream, and a manifest of the run is in
    the folder `manifests`, see `notes_folder`; without it nothing is kept.
    """
    access = Access.to(str(hub), token=token or "", token_file=token_file or "", ca=ca or "")
    port = opened(access)
    info = port.call(GetStreamCall(stream)).streams[0]
    if "compact" in info.cleanup:
        raise InvalidRequest(
            f"stream {stream!r} is compacted: records go from it on purpose, so there is nothing to audit"
        )
    audited = _Audit(access, port, Hub(port, str(hub)), info, on_step, clock)
    if not publish:
        return AuditResult(audited.compared(spark, tables, time, window, settle, since).reconciliation, False)
    notes = Manifests(notes_folder(manifests), f"audit-{info.uuid}")
    with notes.locked():
        audited.settle(notes)
        compared = audited.compared(spark, tables, time, window, settle, since, notes)
        audited.publish(notes, compared)
    return AuditResult(compared.reconciliation, True, str(notes.folder))


@dataclass(frozen=True, slots=True)
class _Compared:
    """What was found, and the manifest that has it, if one is kept."""

    reconciliation: Reconciliation
    manifest: Manifest | None


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
        """Finish what a run before was killed at. What it had found is said, unless another has found more meanwhile;
        what it had only begun is given up."""
        last = notes.last()
        if last is not None and last.state == "planned":
            notes.give_up(last)
        elif last is not None and last.state == "written":
            known = verified(self.hub).get(self.info.name)
            if known is None or known.through_us < last.verified_through_us:
                self._say(last)
            self._done(notes, last)
        self.on_step("settled", 1, 1)

    def compared(
        self,
        spark: "SparkSession | None",
        tables: Sequence[str | Path],
        time: str,
        window: str | timedelta | None,
        settle: str | timedelta,
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
        length = window_of(counts, None if window is None else _window_us(window))
        settled_us = windows.start_of(self.clock.now_us() - microseconds(settle), length)
        first_us = min(_first_us(self.hub, self.info, since, length), settled_us)
        spark = spark or session()
        parts = parts_of(spark)
        found = slices_of(self.port, self.access, self.info, parts=parts)
        wanted = [piece for piece in found if piece.time_high_us >= first_us]
        manifest = None if notes is None else self._begun(notes, wanted)
        tiers = {READ: _tally_of_stream(spark, wanted, parts, length, self.on_step)}
        versions: dict[str, int] = {}
        for table in tables:
            tier = f"table {table}"
            tiers[tier], versions[tier] = _tally_of_table(spark, str(table), time, length, self.on_step)
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
                tiers=tier_counts(result, versions),
                verified_through_us=result.verified_through_us,
                windows_differing=result.windows_differing,
            )
            notes.advance(manifest)
            self.on_step("written", manifest.number, manifest.number)
        return _Compared(result, manifest)

    def _begun(self, notes: Manifests, wanted: Sequence[Slice]) -> Manifest:
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

    def _say(self, manifest: Manifest) -> None:
        call = NoteVerifiedCall(self.info.name, manifest.verified_through_us, manifest.windows_differing)
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


def _window_us(window: str | timedelta) -> int:
    found = microseconds(window)
    if not WINDOW_US_MIN <= found <= WINDOW_US_MAX:
        raise InvalidSetting(f"window is between 1 second and 24 hours, not {window}")
    return found


def _first_us(hub: Hub, info: StreamInfo, since: datetime | None, window_us: int) -> int:
    """Where the first window begins that is compared: not before all of it can be read."""
    if since is not None:
        chosen = windows.start_of(to_us(since), window_us)
    else:
        last = verified(hub).get(info.name)
        chosen = windows.start_of(last.through_us if last else _BEGINNING_US, window_us)
    if not any(info.starts):
        return chosen
    # Records near the first that is left may be gone: the windows after its own are whole.
    return max(chosen, windows.start_of(_first_left_us(hub, info), window_us) + window_us)


def _first_left_us(hub: Hub, info: StreamInfo) -> int:
    """The highest time of the first records that are left in the shards that were trimmed."""
    found = [_BEGINNING_US]
    for shard, (start, end) in enumerate(zip(info.starts, info.ends, strict=True)):
        if not start or start == end:
            continue
        offsets = list(info.ends)
        offsets[shard] = start
        cursor = mainstem.Cursor(info.uuid, info.epoch, tuple(offsets))
        with hub.consumer(info.name, start=cursor, follow=False, columns=["_timestamp"]) as consumer:
            batch = next(iter(consumer.batches()), None)
            if batch is not None:
                times = batch.to_arrow().column("_timestamp").cast(pa.int64())
                found.append(max(times.to_pylist()))
    return max(found)


def _tally_of_stream(
    spark: "SparkSession", wanted: Sequence[Slice], parts: int, window_us: int, on_step: OnStep
) -> Tally:
    """The records of slices by window, each read."""
    work = balance(wanted, parts)

    def count(index: int) -> Tally:
        return windows.total(_tally_of_slice(piece, window_us) for piece in work[index])

    return _counted(spark, len(work), count, on_step)


def _tally_of_slice(piece: Slice, window_us: int) -> Tally:
    return windows.total(_tally_of(batch.column(TIME_COLUMN), window_us) for batch in read(piece, [TIME_COLUMN]))


def _tally_of_table(
    spark: "SparkSession", path: str, time_column: str, window_us: int, on_step: OnStep
) -> tuple[Tally, int]:
    """The rows of a Delta table by window, each read, and the version of it that they are of."""
    from deltalake import DeltaTable

    table = DeltaTable(path)
    names = [field.name for field in table.schema().fields]
    if time_column not in names:
        raise SchemaMismatch(
            f"table {path} has no column {time_column!r}, which has the times of the records; name the one that has, "
            f"of {', '.join(names)}",
            path=time_column,
        )
    files = table.file_uris()

    def count(index: int) -> Tally:
        file = pq.ParquetFile(files[index])
        return windows.total(
            _tally_of(batch.column(0), window_us) for batch in file.iter_batches(columns=[time_column])
        )

    return _counted(spark, len(files), count, on_step), table.version()


def _tally_of(times: pa.Array, window_us: int) -> Tally:
    """A row without a time is in no window."""
    found = times.cast(pa.timestamp("us", "UTC")).drop_null().cast(pa.int64())
    if not len(found):
        return {}
    values = found.to_numpy(zero_copy_only=False)
    return windows.tally(int(values.min()), int(values.max()), len(values), values, window_us)


def _counted(spark: "SparkSession", parts: int, count: Callable[[int], Tally], on_step: OnStep) -> Tally:
    """The sum of so many tallies, each made by a task."""
    answers = run_parts(spark, parts, lambda part: Answer(tally=count(part)), on_step)
    return windows.total(answer.tally for answer in answers)


def _iso(time_us: int) -> str:
    return from_us(time_us).isoformat()
