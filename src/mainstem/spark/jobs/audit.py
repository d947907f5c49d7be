"""The audit: whether everything that was sent to a stream is in the log, and in the tables made of it, by windows.

Producers that count (`hub.producer(counts="1m")`, the setting `http_counts`) say how many records they sent, by the
times of the records. The job reads the stream, and the tables, counts what is there, and compares. It says up to when
all of it agrees, as `verified_through` of the stream, and names every window and tier after that which differs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
from mainstem.spark.jobs.reconciliation import READ, Reconciliation, reconcile, summed, window_of
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
    """What an audit found. `is_published`: the stream says `verified_through` from now on."""

    reconciliation: Reconciliation
    is_published: bool

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
    not compared. With `publish` the result is kept as `verified_through` of the stream.
    """
    access = Access.to(str(hub), token=token or "", token_file=token_file or "", ca=ca or "")
    port = opened(access)
    reading = Hub(port, str(hub))
    info = port.call(GetStreamCall(stream)).streams[0]
    if "compact" in info.cleanup:
        raise InvalidRequest(
            f"stream {stream!r} is compacted: records go from it on purpose, so there is nothing to audit"
        )
    counts = sent_counts(reading, stream)
    if not counts:
        raise InvalidRequest(
            f"no producer has counted what it sent to {stream!r}; open producers with hub.producer(counts='1m'), and "
            "servers that take records by HTTP with --http-counts 1m"
        )
    length = window_of(counts, None if window is None else _window_us(window))
    settled_us = windows.start_of(clock.now_us() - microseconds(settle), length)
    first_us = min(_first_us(reading, info, since, length), settled_us)
    spark = spark or session()
    tiers = {READ: _tally_of_stream(spark, port, access, info, first_us, length, on_step)}
    for table in tables:
        tiers[f"table {table}"] = _tally_of_table(spark, str(table), time, length, on_step)
    found = reconcile(stream, summed(counts, length), tiers, window_us=length, first_us=first_us, settled_us=settled_us)
    if publish:
        _publish(port, access, found)
    return AuditResult(found, publish)


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


def _publish(port: Port, access: Access, found: Reconciliation) -> None:
    differing = len({line.start_us for line in found.differing})
    call = NoteVerifiedCall(found.stream, found.verified_through_us, differing)
    if access.url:
        port.call(call)
        return
    with mainstem.open(access.data, read_only=False) as hub:
        hub._port.call(call)


def _tally_of_stream(
    spark: "SparkSession",
    port: Port,
    access: Access,
    info: StreamInfo,
    first_us: int,
    window_us: int,
    on_step: OnStep,
) -> Tally:
    """The records of a stream by window, each read."""
    parts = parts_of(spark)
    wanted = [piece for piece in slices_of(port, access, info, parts=parts) if piece.time_high_us >= first_us]
    work = balance(wanted, parts)

    def count(index: int) -> Tally:
        return windows.total(_tally_of_slice(piece, window_us) for piece in work[index])

    return _counted(spark, len(work), count, on_step)


def _tally_of_slice(piece: Slice, window_us: int) -> Tally:
    return windows.total(_tally_of(batch.column(TIME_COLUMN), window_us) for batch in read(piece, [TIME_COLUMN]))


def _tally_of_table(spark: "SparkSession", path: str, time_column: str, window_us: int, on_step: OnStep) -> Tally:
    """The rows of a Delta table by window, each read."""
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

    return _counted(spark, len(files), count, on_step)


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
