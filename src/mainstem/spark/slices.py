"""Slices: a stream cut into pieces that many processes read at once, and the reading of one.

    plan = slices_of(port, access, info, first=offsets)    # from rows of the ledger, without reading a record
    parts = balance(plan, 8)                               # as many lists, of about the same bytes
    for batch in read(parts[0][0]): ...                    # anywhere: a slice can be pickled

A slice is a range of offsets of one shard, so who reads all slices of a plan has every record once, however often one
is read again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import pyarrow as pa

from mainstem.consume.consumer import Consumer, OnBad
from mainstem.core.cursor import Cursor
from mainstem.core.errors import DataLoss, InvalidCursor
from mainstem.core.limits import MIB
from mainstem.core.schema import METADATA_COLUMNS
from mainstem.spark.generations import stops
from mainstem.spark.origin import Access, Origin, opened_near
from mainstem.transport.port import Answer, GetStreamCall, Port, Run, RunsCall, StreamInfo

# Told of records that are gone, by who goes on without them.
OnLoss = Callable[[DataLoss], None]
# Of one slice before it is balanced: small enough that parts come out even, large enough to be read in one go.
_SLICE_BYTES: Final = 4 * MIB
# Batches smaller than this are put together: each costs Spark as much as a hundred rows.
COALESCED_ROWS: Final = 16_384
COALESCED_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets `first` to before `end` of a shard of the stream with this UUID, in this epoch of its log: about `rows`
    records in `bytes` of blocks, none later than `time_high_us`, all of one `generation` of the stream's shards."""

    origin: Origin
    stream: str
    uuid: str
    epoch: int
    generation: int
    shard: int
    first: int
    end: int
    rows: int
    bytes: int
    time_high_us: int = 0


def slices_of(
    port: Port,
    access: Access,
    info: StreamInfo,
    first: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    *,
    where: str = "",
    parts: int = 1,
    on_loss: OnLoss | None = None,
) -> list[Slice]:
    """The slices of a stream from `first` to before `end`, an offset for each shard: all that is there if not said.

    What the ledger knows to hold no match for `where` is left out. With more `parts` slices are smaller, so that they
    can be balanced. DataLoss says what was trimmed; `on_loss` is told instead, and the rest is planned.
    """
    firsts = info.starts if first is None else (*first, *(0,) * (info.shards - len(first)))
    ends = info.ends if end is None else (*end, *(0,) * (info.shards - len(end)))
    there = sum(map(int.__sub__, info.ends, info.starts))
    wanted = sum(max(0, each - begin) for begin, each in zip(firsts, ends, strict=True))
    # About, but enough to have several slices for each part.
    run_bytes = min(_SLICE_BYTES, max(1, info.bytes * wanted // (8 * max(1, parts) * max(1, there))))
    found: list[Slice] = []
    at = _kept(info, firsts, ends, on_loss)
    for generation, stop in enumerate(stops(ends, info.generations)):
        for shard, limit in enumerate(stop):
            if at[shard] < limit:
                call = RunsCall(info.name, shard, at[shard], limit, run_bytes, where)
                found += _of_shard(port, access, info, generation, call, on_loss)
        at = tuple(map(max, at, stop))
    return found


def _kept(info: StreamInfo, first: Sequence[int], end: Sequence[int], on_loss: OnLoss | None) -> tuple[int, ...]:
    """Where each shard begins that is read from `first` to before `end`. What was trimmed of it is told as one range,
    whatever changes of shards are in it; what is trimmed after this look is met where its runs are asked for."""
    found = list(first)
    for shard, start in enumerate(info.starts):
        gone = min(start, end[shard])
        if found[shard] < gone:
            loss = DataLoss(stream=info.name, shard=shard, first=found[shard], last=gone - 1)
            if on_loss is None:
                raise loss
            on_loss(loss)
            found[shard] = gone
    return tuple(found)


def runs_of(port: Port, call: RunsCall, on_loss: OnLoss | None = None) -> Iterator[tuple[Run, Answer]]:
    """The runs of a shard, page by page, each with the answer that it came with."""
    at = call.first
    while at < call.end:
        try:
            answer = port.call(msgspec.structs.replace(call, first=at))
        except DataLoss as loss:
            if on_loss is None:
                raise
            on_loss(loss)
            at = loss.last + 1
            continue
        for run in answer.runs:
            yield run, answer
        if not answer.more or answer.offsets[0] <= at:
            return
        at = answer.offsets[0]


def _of_shard(
    port: Port, access: Access, info: StreamInfo, generation: int, call: RunsCall, on_loss: OnLoss | None
) -> Iterator[Slice]:
    for run, answer in runs_of(port, call, on_loss):
        yield Slice(
            origin=Origin(access, answer.folder, answer.word, answer.flush),
            stream=info.name,
            uuid=info.uuid,
            epoch=info.epoch,
            generation=generation,
            shard=call.shard,
            first=run.first,
            end=run.end,
            rows=run.records,
            bytes=run.bytes,
            time_high_us=run.time_high_us,
        )


def balance(slices: Iterable[Slice], parts: int) -> list[list[Slice]]:
    """The slices as `parts` lists of about the same bytes, or fewer. They are cut in the order of their places, so that
    a list is one stretch of a shard where that is possible, and those next to each other are made one. The records of a
    key are in order, list by list."""
    ordered = sorted(slices, key=_place)
    total = sum(piece.bytes for piece in ordered)
    found: dict[int, list[Slice]] = {}
    before = 0
    for piece in ordered:
        # By its middle: so it is never further out of its list than in it.
        found.setdefault((2 * before + piece.bytes) * parts // (2 * total), []).append(piece)
        before += piece.bytes
    return [joined(part) for part in found.values()]


def _place(piece: Slice) -> tuple[str, int, int, int]:
    return piece.uuid, piece.generation, piece.shard, piece.first


def joined(slices: Iterable[Slice]) -> list[Slice]:
    """In the order of their places, those that are next to each other made one."""
    found: list[Slice] = []
    for piece in sorted(slices, key=_place):
        last = found[-1] if found else None
        if last is not None and _place(replace(last, first=last.end)) == _place(piece):
            found[-1] = replace(
                last,
                origin=max(last.origin, piece.origin, key=lambda origin: origin.flush),
                end=piece.end,
                rows=last.rows + piece.rows,
                bytes=last.bytes + piece.bytes,
                time_high_us=max(last.time_high_us, piece.time_high_us),
            )
        else:
            found.append(piece)
    return found


def extents(slices: Iterable[Slice]) -> dict[int, tuple[int, int]]:
    """By shard, of one stream: the first offset of its slices, and where they end."""
    found: dict[int, tuple[int, int]] = {}
    for piece in slices:
        first, end = found.get(piece.shard, (piece.first, piece.end))
        found[piece.shard] = min(first, piece.first), max(end, piece.end)
    return found


def read(
    piece: Slice,
    columns: Sequence[str] | None = None,
    where: str = "",
    *,
    on_bad: OnBad = "raise",
    on_loss: OnLoss | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a slice as batches of the stream's newest schema: these columns, all if that is None; also _shard,
    _offset, _timestamp, _key and _headers may be named. Records of older schemas are promoted, JSON is made rows of. A
    tombstone is a row of nulls.

    DataLoss says what of the slice is gone; `on_loss` is told instead, and reading goes on behind it.
    """
    port, info = look_up(piece)
    names = _names(info)
    wanted = names if columns is None else list(columns)
    is_whole = wanted[: len(names)] == names
    chosen = None if is_whole else wanted
    with consumer_of(piece, port, info, where=where or None, columns=chosen, on_bad=on_bad) as consumer:
        yield from _coalesced(_batches(consumer, piece.end, wanted, is_whole, on_loss))


def look_up(piece: Slice) -> tuple[Port, StreamInfo]:
    """The port to read a slice by, and its stream. InvalidCursor if another has its name by now."""
    port = opened_near(piece.origin)
    info = port.call(GetStreamCall(piece.stream)).streams[0]
    if info.uuid != piece.uuid:
        raise InvalidCursor(
            f"stream {piece.stream!r} was deleted and created again since this read was planned; begin it anew"
        )
    return port, info


def consumer_of(
    piece: Slice, port: Port, info: StreamInfo, *, where: str | None, columns: Sequence[str] | None, on_bad: OnBad
) -> Consumer:
    """A consumer of a slice and nothing else, with what `look_up` found."""
    offsets, ends = list(info.ends), list(info.ends)
    offsets[piece.shard], ends[piece.shard] = piece.first, piece.end
    cursor = Cursor(piece.uuid, piece.epoch, tuple(offsets))
    # Of a slice nothing is left out: Spark would not know.
    return Consumer(port, piece.stream, cursor, ends=ends, where=where, columns=columns, on_bad=on_bad, whole=True)


def _names(info: StreamInfo) -> list[str]:
    schema = info.schema
    return ["key", "value", "headers", "timestamp"] if schema is None else list(schema.names)


def _batches(
    consumer: Consumer, end: int, wanted: Sequence[str], is_whole: bool, on_loss: OnLoss | None
) -> Iterator[pa.RecordBatch]:
    has_metadata = is_whole and any(name in METADATA_COLUMNS for name in wanted)
    while True:
        try:
            for batch in consumer.batches():
                yield batch.to_arrow(metadata=has_metadata).select(wanted)
        except DataLoss as loss:
            # The rest of what was trimmed is told by who reads it.
            own = DataLoss(**{**loss.facts(), "last": min(loss.last, end - 1)})
            if on_loss is None:
                raise own from None
            on_loss(own)
            continue
        return


def _coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches together, as long as they are of one schema."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and batch.schema != waiting[0].schema:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= COALESCED_ROWS or size >= COALESCED_BYTES:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
