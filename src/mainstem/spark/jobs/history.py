"""What a job reads: a stretch of a stream between two cursors, in pieces that tasks read by themselves.

The driver looks the stream up once: its ends and its newest schema are of one moment, so every record before those ends
can be read in that schema, whatever is written or changed meanwhile.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from mainstem.consume.consumer import Consumer
from mainstem.consume.places import offsets_at
from mainstem.consume.view import METADATA_SCHEMA, View
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidCursor, InvalidSetting, SchemaMismatch
from mainstem.core.names import check_named_once
from mainstem.core.schema import aliases_of
from mainstem.core.times import to_us
from mainstem.spark.jobs.lake import DELETED_COLUMN
from mainstem.spark.jobs.loads import Load
from mainstem.spark.jobs.trimmed import trimmed_since
from mainstem.spark.origin import Access, opened
from mainstem.spark.slices import Slice, balance, consumer_of, look_up, slices_of
from mainstem.transport.port import GetStreamCall

if TYPE_CHECKING:
    from mainstem.transport.port import StreamInfo

Start = Literal["earliest", "latest"] | datetime | Cursor
OnBad = Literal["raise", "skip"]
OnLoss = Literal["raise", "skip"]
# A range that is gone: shard, first, and the one after the last.
Lost = tuple[int, int, int]
# Beside the columns of a row, what says where a record stands.
PLACE_COLUMNS: Final = ("_shard", "_offset", "_timestamp")
# What can be done about records that are gone.
GO_ON: Final = "run the job with on_loss='skip' (--on-loss skip) to go on after them"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of every record is wanted. `columns` are names of rows and of what is beside them; None is every column of
    the rows. `is_deleted` adds `_deleted`: whether the record is a tombstone. `is_rows` leaves tombstones out."""

    columns: tuple[str, ...] | None = None
    where: str | None = None
    on_bad: OnBad = "raise"
    on_loss: OnLoss = "raise"
    is_deleted: bool = False
    is_rows: bool = False


class Tally:
    """What was met on the way: how many records were read, how many were no rows, or had no key where a job is of keys,
    which ranges were gone."""

    def __init__(self) -> None:
        self.rows = 0
        self.undecoded = 0
        self.without_key = 0
        self.lost: list[Lost] = []


class History:
    """A stream as it was at one moment. One thread."""

    def __init__(self, hub: object, stream: str, **credentials: str | None) -> None:
        self.access = Access.to(str(hub), **credentials)
        self._port = opened(self.access)
        self.info: StreamInfo = self._port.call(GetStreamCall(stream)).streams[0]
        # Ranges that were gone when a load was cut, since that was last asked.
        self._lost: list[Lost] = []

    @property
    def aliases(self) -> dict[str, list[str]]:
        """Other names of its columns, of those that have some."""
        fields = [] if self.info.schema is None else list(self.info.schema.arrow)
        return {field.name: found for field in fields if (found := aliases_of(field))}

    def cursor(self, offsets: Sequence[int]) -> Cursor:
        return Cursor(self.info.uuid, self.info.epoch, tuple(offsets))

    def offsets(self, start: Start | str) -> tuple[int, ...]:
        """Where a start is in every shard. InvalidCursor if it is a cursor of something else. A time of which records
        may be trimmed begins before what is left."""
        found = self._since(start) if isinstance(start, datetime) else offsets_at(self._port, start, self.info)
        return tuple(min(offset, end) for offset, end in zip(found, self.info.ends, strict=False))

    def _since(self, time: datetime) -> Sequence[int]:
        while True:
            info = self._port.call(GetStreamCall(self.info.name)).streams[0]
            found = offsets_at(self._port, time, info)
            # Trimmed in this very moment: more of it may be gone.
            with contextlib.suppress(DataLoss):
                firsts = trimmed_since(self._port, info, found, to_us(time))
                return [at if first is None else first for at, first in zip(found, firsts, strict=False)]

    def cut(self, load: Load, wanted: "Wanted", parts: int) -> list[list[Slice]]:
        """A load as the work of at most so many tasks, of about the same bytes; none if nothing in it is wanted. What
        was trimmed since the stream was looked up is DataLoss, or left out and told by `pop_lost`."""

        def note(loss: DataLoss) -> None:
            self._lost.append((loss.shard, loss.first, min(loss.last + 1, load.end[loss.shard])))

        pieces = slices_of(
            self._port,
            self.access,
            self.info,
            load.start,
            load.end,
            where=wanted.where or "",
            parts=parts,
            on_loss=note if wanted.on_loss == "skip" else None,
        )
        return balance(pieces, parts)

    def stored_bytes(self, load: Load) -> int:
        """About how many bytes of the log a load is."""
        pieces = slices_of(self._port, self.access, self.info, load.start, load.end, on_loss=lambda loss: None)
        return sum(piece.bytes for piece in pieces)

    def names(self, columns: Sequence[str] | None, beside: Sequence[str]) -> tuple[str, ...]:
        """The columns to read: these, or all of the rows, and what is to be `beside` them."""
        check_named_once("columns", columns or ())
        names = list(self.schema(Wanted()).names if columns is None else columns)
        return (*names, *(name for name in beside if name not in names))

    def require_uncompacted(self, end: Sequence[int]) -> None:
        """InvalidCursor if the log may lack records from before `end` because there are newer ones of their keys. Up to
        where a shard is compacted only the log knows: any record that it lacks counts."""
        info = self._port.call(GetStreamCall(self.info.name, details=True)).streams[0]
        if "compact" not in info.cleanup:
            return
        for shard, missing in enumerate(info.missing[: len(end)]):
            if missing and info.starts[shard] < end[shard] < self.info.ends[shard]:
                raise InvalidCursor(
                    f"the cursor stands at offset {end[shard]} of shard {shard} of {info.name!r}, which was compacted: "
                    f"{missing} records are gone from it because their keys have newer ones, perhaps from after the "
                    "cursor, so what the stream said then is not known any more; what it says now is"
                )

    def pop_lost(self) -> list[Lost]:
        """What `cut` had to leave out since this was asked last."""
        lost, self._lost = self._lost, []
        return lost

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


def lost_before(load_start: Sequence[int], starts: Sequence[int]) -> list[Lost]:
    """Ranges that a job stood before and that the stream has no more."""
    return [(shard, at, start) for shard, (at, start) in enumerate(zip(load_start, starts, strict=True)) if at < start]


def require_kept(stream: str, lost: Sequence[Lost], on_loss: OnLoss, since: datetime | None = None) -> None:
    """DataLoss names the first range that is gone, unless that is to be passed over. Of what is wanted `since` a time
    it is not known which records of the range are of it."""
    if lost and on_loss == "raise":
        shard, first, end = lost[0]
        perhaps = "" if since is None else f", and some of them may be of {since.isoformat()} or later"
        raise DataLoss(
            f"stream {stream!r} shard {shard}: records {first} to {end - 1} were trimmed before this job read "
            f"them{perhaps}; {GO_ON}, and keep them longer next time (retention)",
            stream=stream,
            shard=shard,
            first=first,
            last=end - 1,
        )


def read_all(pieces: Sequence[Slice], wanted: Wanted, schema: pa.Schema, tally: Tally) -> Iterator[pa.RecordBatch]:
    """The records of slices, one after the other."""
    for piece in pieces:
        yield from read(piece, wanted, schema, tally)


def read(piece: Slice, wanted: Wanted, schema: pa.Schema, tally: Tally) -> Iterator[pa.RecordBatch]:
    """The records of a slice, with the columns of `schema`, in the order of their offsets."""
    port, info = look_up(piece)
    # Of columns that were chosen next to the data nobody can tell which were of tombstones.
    is_chosen = wanted.where is not None and not (wanted.is_deleted or wanted.is_rows)
    columns = wanted.columns if is_chosen else None
    with consumer_of(piece, port, info, where=wanted.where, columns=columns, on_bad=wanted.on_bad) as consumer:
        yield from _batches(consumer, piece, wanted, schema, tally)
    tally.undecoded += consumer.undecoded


def _batches(
    consumer: Consumer, piece: Slice, wanted: Wanted, schema: pa.Schema, tally: Tally
) -> Iterator[pa.RecordBatch]:
    # A column of the stream's may have the same name.
    names = schema.names[:-1] if wanted.is_deleted else schema.names
    while True:
        try:
            batch = consumer.poll_batch(None)
        except DataLoss as loss:
            if wanted.on_loss == "raise":
                raise
            tally.lost.append((loss.shard, loss.first, min(loss.last + 1, piece.end)))
            continue
        if batch is None:
            return
        try:
            rows = batch.select(names)
        except KeyError as error:
            raise SchemaMismatch(
                f"stream {piece.stream!r} got a schema without the column {error} while this job ran; run it again"
            ) from None
        if wanted.is_deleted:
            rows = rows.append_column(DELETED_COLUMN, pa.array(batch.tombstones()))
        tally.rows += rows.num_rows
        yield rows.filter(pa.array(~batch.tombstones())) if wanted.is_rows else rows
