"""What a job reads: a stretch of a stream between two cursors, in pieces that tasks read by themselves.

The driver looks the stream up once: its ends and its newest schema are of one moment, so every record before those ends
can be read in that schema, whatever is written or changed meanwhile.
"""

import bisect
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

import mainstem
from mainstem.consume.places import offsets_of
from mainstem.consume.view import METADATA_SCHEMA, View
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidSetting
from mainstem.spark.jobs.lake import DELETED_COLUMN
from mainstem.spark.jobs.loads import Load

if TYPE_CHECKING:
    from mainstem.consume.record import RecordBatch
    from mainstem.hub.hub import Hub
    from mainstem.transport.port import StreamInfo

Start = Literal["earliest", "latest"] | datetime | Cursor
OnBad = Literal["raise", "skip"]
OnLoss = Literal["raise", "skip"]
# Beside the columns of a row, what says where a record stands.
PLACE_COLUMNS: Final = ("_shard", "_offset", "_timestamp")
# The connections of this process to logs, by their sources: a worker does one task after the other.
_HUBS: "dict[Source, Hub]" = {}


@dataclass(frozen=True, slots=True)
class Source:
    """Which stream of which log, and what it takes to read it. `hub` is a folder or an address. It is sent to workers;
    a token is not shown."""

    hub: str
    stream: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca: str | None = None

    def open(self) -> "Hub":
        """A hub of one's own, to read from."""
        if "://" in self.hub:
            return mainstem.connect(self.hub, token=self.token, token_file=self.token_file, ca=self.ca)
        if any((self.token, self.token_file, self.ca)):
            raise InvalidSetting("token, token_file and ca are for a server; a folder needs none")
        return mainstem.open(self.hub, read_only=True)

    def shared(self) -> "Hub":
        """The hub that all tasks of this process use."""
        if self not in _HUBS:
            _HUBS[self] = self.open()
        return _HUBS[self]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of every record is wanted. `columns` are names of rows and of what is beside them; None is every column of
    the rows. `is_deleted` adds `_deleted`: whether the record is a tombstone."""

    columns: tuple[str, ...] | None = None
    where: str | None = None
    on_bad: OnBad = "raise"
    on_loss: OnLoss = "raise"
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets `first` to before `end` of one shard."""

    shard: int
    first: int
    end: int


class Tally:
    """What was met on the way: how many records were read, how many were no rows, which ranges were gone."""

    def __init__(self) -> None:
        self.rows = 0
        self.undecoded = 0
        self.lost: list[tuple[int, int, int]] = []


class History:
    """A stream as it was at one moment. One thread; close it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._hub = source.open()
        try:
            self.info: StreamInfo = self._hub.streams.get(source.stream)
        except BaseException:
            self._hub.close()
            raise

    def cursor(self, offsets: Sequence[int]) -> Cursor:
        return Cursor(self.info.uuid, self.info.epoch, tuple(offsets))

    def offsets(self, start: Start) -> tuple[int, ...]:
        """Where a start is in every shard. InvalidCursor if it is a cursor of something else."""
        if isinstance(start, Cursor):
            return tuple(offsets_of(start, self.info))
        if start == "earliest":
            return self.info.starts
        if start == "latest":
            return self.info.ends
        with self._hub.consumer(self.source.stream, start=start, follow=False) as consumer:
            found = consumer.cursor.offsets
        return tuple(min(offset, end) for offset, end in zip(found, self.info.ends, strict=False))

    def schema(self, wanted: Wanted) -> pa.Schema:
        """The columns of what is wanted."""
        rows = View(self.info.schema).given
        names = rows.names if wanted.columns is None else wanted.columns
        known = pa.schema([*rows, *(field for field in METADATA_SCHEMA if field.name not in rows.names)])
        for name in names:
            if name not in known.names:
                raise InvalidSetting(
                    f"stream {self.info.name!r} has no column {name!r}; there are {', '.join(known.names)}"
                )
        found = pa.schema([known.field(name) for name in names])
        return found.append(pa.field(DELETED_COLUMN, pa.bool_())) if wanted.is_deleted else found

    def close(self) -> None:
        self._hub.close()

    def __enter__(self) -> "History":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def lost_before(load_start: Sequence[int], starts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Ranges that a job stood before and that the stream has no more: shard, first, and the one after the last."""
    return [
        (shard, at, start)
        for shard, (at, start) in enumerate(zip(load_start, starts, strict=True))
        if at < start
    ]


def require_kept(stream: str, lost: Sequence[tuple[int, int, int]], on_loss: OnLoss) -> None:
    """DataLoss names the first range that is gone, unless that is to be passed over."""
    if lost and on_loss == "raise":
        shard, first, end = lost[0]
        raise DataLoss(
            f"stream {stream!r} shard {shard}: records {first} to {end - 1} were trimmed before this job read them; "
            "run it with on_loss='skip' to go on after them, and keep them longer next time (retention)",
            stream=stream,
            shard=shard,
            first=first,
            last=end - 1,
        )


def cut(load: Load, parts: int) -> list[list[Stretch]]:
    """A load as the work of at most so many tasks of about the same size. What one task has of a shard is in one piece,
    where possible."""
    size = max(1, -(-load.offsets // max(1, parts)))
    tasks: list[list[Stretch]] = [[]]
    room = size
    for shard, (first, end) in enumerate(zip(load.start, load.end, strict=True)):
        while first < end:
            if not room:
                tasks.append([])
                room = size
            stop = min(end, first + room)
            tasks[-1].append(Stretch(shard, first, stop))
            room -= stop - first
            first = stop
    return [task for task in tasks if task]


def read(source: Source, stretch: Stretch, wanted: Wanted, schema: pa.Schema, tally: Tally) -> Iterator[pa.RecordBatch]:
    """The records of a stretch, with the columns of `schema`, in the order of their offsets."""
    hub = source.shared()
    info = hub.streams.get(source.stream)
    offsets = list(info.ends)
    offsets[stretch.shard] = stretch.first
    start = Cursor(info.uuid, info.epoch, tuple(offsets))
    columns = None if wanted.where is None else wanted.columns
    consumer = hub.consumer(
        source.stream, start=start, follow=False, where=wanted.where, columns=columns, on_bad=wanted.on_bad
    )
    with contextlib.closing(consumer):
        while consumer.cursor.offsets[stretch.shard] < stretch.end:
            try:
                batch = consumer.poll_batch(None)
            except DataLoss as loss:
                if loss.shard == stretch.shard and loss.first < stretch.end:
                    if wanted.on_loss == "raise":
                        raise
                    tally.lost.append((loss.shard, loss.first, min(loss.last + 1, stretch.end)))
                continue
            if batch is None:
                break
            if batch.shard == stretch.shard and batch.offset < stretch.end:
                rows = _rows(batch, stretch.end, wanted).select(schema.names)
                tally.rows += rows.num_rows
                yield rows
    tally.undecoded += consumer.undecoded


def _rows(batch: "RecordBatch", end: int, wanted: Wanted) -> pa.RecordBatch:
    """The columns of a batch up to an offset."""
    rows = batch.to_arrow(metadata=True)
    if wanted.is_deleted:
        rows = rows.append_column(DELETED_COLUMN, pa.array(batch.tombstones()))
    return rows if batch.end <= end else rows.slice(0, bisect.bisect_left(batch.offsets(), end))
