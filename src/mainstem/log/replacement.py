"""The same records, stored anew: fewer and larger batches, or without some of the records. Decides nothing.

Offsets never change. Where records are left out, a batch covers more offsets than it has records (its `span`), and a
column says which are left; where none is left, an entry without bytes says so.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from mainstem.core import layouts, payload
from mainstem.core.batch import BatchHeader, FetchedBatch
from mainstem.core.errors import InvalidPayload
from mainstem.core.limits import BATCH_RECORDS_MAX, MIB
from mainstem.core.message import plain_columns
from mainstem.log.contents import Contents, is_worth_statistics, offsets_of, times_of
from mainstem.log.flush import ReplaceEntries, Replacement
from mainstem.log.ledger.base import Entry
from mainstem.log.ledger.rules.replacement import fingerprint

# What a batch that is made anew grows to: large enough to be read fast, small enough to be read for one record.
_BATCH_BYTES: Final = 1 * MIB
# What a record takes beside its columns: its time, and its distance from the first offset.
_RECORD_BYTES: Final = 12
# Records that are taken apart at a time, uncompressed; at least one batch.
_GROUP_RAW_BYTES: Final = 16 * MIB
# Distances between offsets of one batch are stored in 32 bits.
_SPAN_MAX: Final = (1 << 32) - 1
_COMPRESSION: Final = "lz4"


class Upshot(NamedTuple):
    """Up to where the merger and compaction are done with a shard, and by when the old bytes should be off the disk."""

    rewrite_us: int
    merged: int = 0
    compacted: int = 0


class Records(NamedTuple):
    """Records of neighbouring offsets by column, `first` to `stop - 1`, of which some may be missing.

    `columns` are those of a layout without times and offsets: of records without a schema, or of rows of one.
    """

    first: int
    stop: int
    offsets: np.ndarray
    times: np.ndarray
    generation: int
    columns: dict[str, pa.Array]
    schema_id: int = 0
    contents: Contents = Contents()

    @property
    def keys(self) -> pa.BinaryArray | None:
        """The key of every record, null where it has none; None if none has."""
        return self.contents.keys(self.schema_id, self.batch) if self.columns else None

    @property
    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(self.columns.values()), names=list(self.columns))

    def take(self, kept: np.ndarray) -> "Records":
        """Those records of which `kept` says so; they still stand for the same offsets."""
        mask = pa.array(kept)
        columns = {name: column.filter(mask) for name, column in self.columns.items()}
        return self._replace(offsets=self.offsets[kept], times=self.times[kept], columns=columns)

    def split(self, cuts: Iterable[int]) -> Iterator["Records"]:
        """The same in pieces that begin at these offsets, which are in order."""
        for first, stop in pairwise((self.first, *cuts, self.stop)):
            yield self.take((self.offsets >= first) & (self.offsets < stop))._replace(first=first, stop=stop)


def moved(old: Sequence[Entry], batches: Sequence[FetchedBatch], upshot: Upshot) -> Replacement:
    """The batches of these entries as they are, elsewhere, in as few entries as can be."""
    entries: list[tuple[int, int]] = []
    begin = 0
    for index in range(1, len(batches) + 1):
        if index == len(batches) or not _may_share(batches[index - 1].header, batches[index].header):
            entries.append((batches[index - 1].end - batches[begin].base, index - begin))
            begin = index
    return _replacement(old, entries, batches, upshot)


def _may_share(before: BatchHeader, after: BatchHeader) -> bool:
    """Whether two batches may be of one entry: that has one schema, and one with statistics has one batch."""
    return before.schema_id == after.schema_id and not (before.statistics or after.statistics)


def remade(old: Sequence[Entry], pieces: Iterable[Records], upshot: Upshot) -> Replacement:
    """These records, which are what is left of the entries, in batches of a good size. The pieces follow each other,
    and each is let go of before the next is asked for."""
    entries: list[tuple[int, int]] = []
    batches: list[FetchedBatch] = []
    for records in pieces:
        if not len(records.offsets):
            entries.append((records.stop - records.first, 0))
            continue
        made = list(batches_of(old[0].stream, old[0].shard, records))
        entries += [(batch.end - batch.base, int(batch.header.count > 0)) for batch in made]
        batches += [batch for batch in made if batch.header.count]
    return _replacement(old, entries, batches, upshot)


def _replacement(
    old: Sequence[Entry], entries: Sequence[tuple[int, int]], batches: Sequence[FetchedBatch], upshot: Upshot
) -> Replacement:
    command = ReplaceEntries(
        stream=old[0].stream,
        shard=old[0].shard,
        base=old[0].base,
        end=old[-1].end,
        rows=len(old),
        fingerprint=fingerprint(old),
        entries=tuple(entries),
        merged=upshot.merged,
        compacted=upshot.compacted,
        rewrite_us=upshot.rewrite_us,
    )
    return Replacement(command, tuple(batches))


# Taking apart.


def grouped(
    batches: Sequence[FetchedBatch],
    barriers: Collection[int],
    target: Callable[[int], int] = int,
    contents: Contents = Contents(),  # noqa: B008  # immutable
) -> list[Sequence[FetchedBatch]]:
    """The batches in groups that can be in memory uncompressed: a few stored bytes may be very many. The schemas of a
    group have one target, or are one. It stands on one side of every barrier, its offsets without records too: readers
    wait with a batch that reaches over a barrier, and so with what it has from before it."""
    cut = [piece for batch in batches for piece in _cut(batch, barriers, contents)]
    groups: list[Sequence[FetchedBatch]] = []
    begin = size = 0
    schema_id: int | None = None
    for index, batch in enumerate(cut):
        header = batch.header
        # What only stands for offsets without a record goes with any schema.
        is_other = header.count and schema_id is not None and target(header.schema_id) != schema_id
        if index > begin and (is_other or batch.base in barriers or size + header.raw_len > _GROUP_RAW_BYTES):
            groups.append(cut[begin:index])
            begin, size, schema_id = index, 0, None
        size += header.raw_len
        schema_id = target(header.schema_id) if header.count else schema_id
    groups.append(cut[begin:])
    return groups


def barriers_in(batch: FetchedBatch, barriers: Collection[int]) -> list[int]:
    """Those that a batch reaches over, in order. Earlier versions made such batches, also with records."""
    return sorted({barrier for barrier in barriers if batch.base < barrier < batch.end})


def _cut(batch: FetchedBatch, barriers: Collection[int], contents: Contents) -> list[FetchedBatch]:
    """The batch, in pieces if it reaches over barriers; none of them does."""
    inside = barriers_in(batch, barriers)
    if not inside:
        return [batch]
    made: list[FetchedBatch] = []
    stream, shard = batch.header.stream, batch.header.shard
    for records in records_of([batch], contents).split(inside):
        if len(records.offsets):
            made += batches_of(stream, shard, records)
        else:
            made.append(_gap(stream, shard, records.first, records.stop))
    return made


_COMPANIONS: Final = (layouts.ROW_KEY, layouts.ROW_HEADERS)
_PLAIN_FIELDS: Final = tuple(layouts.FULL_SCHEMA.field(name) for name in ("key", "value", "headers"))


def records_of(
    batches: Sequence[FetchedBatch],
    contents: Contents = Contents(),  # noqa: B008  # immutable
    paced: Callable[[Iterable[FetchedBatch]], Iterable[FetchedBatch]] = iter,
) -> Records:
    """The records of batches of a group that follow each other, as rows of their one schema, or of their one target.
    `paced` gives the same batches, and may rest between them."""
    schema_ids = {batch.header.schema_id for batch in batches if batch.header.count}
    schema_id = contents.target(max(schema_ids)) if len(schema_ids) > 1 else max(schema_ids, default=0)
    schema = contents.schema(schema_id)
    fields = _PLAIN_FIELDS if schema is None else (*layouts.shape_of(0, schema).schema, *_COMPANIONS)
    parts = list(_parts(paced(batches), contents, schema_id, {field.name for field in fields}))
    used = [field for field in fields if any(field.name in part.columns for part in parts)]
    return Records(
        first=batches[0].base,
        stop=batches[-1].end,
        offsets=_joined([part.offsets for part in parts]),
        times=_joined([part.times for part in parts]),
        generation=max(batch.header.generation for batch in batches),
        columns={field.name: _column(field, parts) for field in used},
        schema_id=schema_id,
        contents=contents,
    )


class _Part(NamedTuple):
    offsets: np.ndarray
    times: np.ndarray
    columns: dict[str, pa.Array]


def _parts(batches: Iterable[FetchedBatch], contents: Contents, schema_id: int, names: set[str]) -> Iterator[_Part]:
    """The records of each batch; of a run of tiny ones together. Those are looked into without pyarrow, a call of which
    takes longer than they are worth, and gives the interpreter away."""
    run: list[tuple[FetchedBatch, list[list[bytes]]]] = []
    for batch in batches:
        columns = _plain(batch)
        if run and (columns is None or batch.header.layout != run[0][0].header.layout or batch.base != run[-1][0].end):
            yield _joined_run(run)
            run = []
        if columns is not None:
            run.append((batch, columns))
        elif batch.header.count:
            decoded = contents.decode_as(schema_id, batch.header, batch.payload)
            named = {name: decoded.column(name) for name in decoded.schema.names if name in names}
            yield _Part(offsets_of(batch, decoded), times_of(batch.header, decoded), named)
    if run:
        yield _joined_run(run)


def _plain(batch: FetchedBatch) -> list[list[bytes]] | None:
    header = batch.header
    if header.schema_id or header.encoding != payload.RAW or header.layout > layouts.HAS_KEY:
        return None
    if not 0 < header.count < layouts.FEW:
        return None
    return plain_columns(header.layout, header.count, bytes(batch.payload))


def _joined_run(run: Sequence[tuple[FetchedBatch, list[list[bytes]]]]) -> _Part:
    first, last = run[0][0], run[-1][0]
    names = ("key", "value") if first.header.layout else ("value",)
    columns = {
        name: layouts.binary_array([value for _, found in run for value in found[index]])
        for index, name in enumerate(names)
    }
    times = np.repeat([batch.header.time_low for batch, _ in run], [batch.header.count for batch, _ in run])
    return _Part(np.arange(first.base, last.end, dtype=np.int64), times.astype(np.int64), columns)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _column(field: pa.Field, parts: Sequence[_Part]) -> pa.Array:
    name, kind = field.name, field.type
    return pa.concat_arrays(
        [part.columns[name] if name in part.columns else pa.nulls(len(part.offsets), kind) for part in parts]
    )


# Putting together.


class Making(NamedTuple):
    """How batches are made: compressed by which codec, and with statistics or without."""

    compression: str | None = _COMPRESSION
    is_described: bool = True


_STORED: Final = Making()


def batches_of(stream: int, shard: int, records: Records, making: Making = _STORED) -> Iterator[FetchedBatch]:
    """Batches of about the same size that together stand for all the offsets; perhaps some without records."""
    count = len(records.offsets)
    cuts = _cuts(records)
    # A batch stands for its own offsets and for those without a record up to the next batch, the first also for those
    # before it. No batch may stand for more than its distances can tell.
    for begin, end in pairwise(cuts):
        first = records.first if begin == 0 else int(records.offsets[begin])
        stop = records.stop if end == count else int(records.offsets[end])
        assert stop - first <= _SPAN_MAX, "what is stored anew at a time covers fewer offsets"
        yield from _fitting(stream, shard, records, begin, end, first, stop, making)


def _fitting(
    stream: int, shard: int, records: Records, begin: int, end: int, first: int, stop: int, making: Making
) -> Iterator[FetchedBatch]:
    """One batch of these records, or several where one would be over the limit. A record that fitted only without a
    column of offsets gets none, and what is without records around it stands alone."""
    try:
        made = _batch(stream, shard, records, begin, end, first, stop, making)
    except InvalidPayload:
        offset = int(records.offsets[begin])
        if end - begin > 1:
            middle = (begin + end) // 2
            cut = int(records.offsets[middle])
            yield from _fitting(stream, shard, records, begin, middle, first, cut, making)
            yield from _fitting(stream, shard, records, middle, end, cut, stop, making)
            return
        if stop - first == 1:
            raise
        if first < offset:
            yield _gap(stream, shard, first, offset)
        yield _batch(stream, shard, records, begin, end, offset, offset + 1, making)
        if offset + 1 < stop:
            yield _gap(stream, shard, offset + 1, stop)
        return
    yield made


def _gap(stream: int, shard: int, first: int, stop: int) -> FetchedBatch:
    return FetchedBatch(first, BatchHeader(stream, shard, *(0,) * 13, span=stop - first), b"")


def _cuts(records: Records) -> list[int]:
    """Where batches begin and end: a batch is full when the next record would make it too large."""
    # And a bit for every column, which says whether there is a value.
    others = _RECORD_BYTES + (len(records.columns) + 7) // 8
    ends = np.cumsum(payload.record_sizes(records.batch, payload.OFFSET_BYTES) + others)
    cuts = [0]
    while cuts[-1] < len(ends):
        begin = cuts[-1]
        full = (int(ends[begin - 1]) if begin else 0) + _BATCH_BYTES
        end = max(begin + 1, int(np.searchsorted(ends, full, side="right")))
        cuts.append(min(end, begin + BATCH_RECORDS_MAX))
    return cuts


def _batch(
    stream: int, shard: int, records: Records, begin: int, end: int, first: int, stop: int, making: Making
) -> FetchedBatch:
    count = end - begin
    times = records.times[begin:end]
    columns = {name: column.slice(begin, count) for name, column in records.columns.items()}
    low, high = int(times.min()), int(times.max())
    prefix = "_" if records.schema_id else ""
    if low != high:
        own = pa.Array.from_buffers(layouts.TIMESTAMP_TYPE, count, [None, pa.py_buffer(times.copy())])
        columns[f"{prefix}timestamp"] = own
    if stop - first != count:
        distances = (records.offsets[begin:end] - first).astype(np.uint32)
        columns[f"{prefix}offset"] = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(distances)])
    schema = records.contents.schema(records.schema_id)
    batch = layouts.narrow(columns) if schema is None else layouts.narrow_rows(columns, schema)
    encoded = payload.encode(batch, making.compression, schema)
    header = encoded.header(
        stream=stream,
        shard=shard,
        schema_id=records.schema_id,
        generation=records.generation,
        time_low=low,
        time_high=high,
        span=stop - first if stop - first != count else 0,
    )
    if making.is_described and is_worth_statistics(header):
        table = records.contents.pieces(header, encoded.payload)
        header = records.contents.with_statistics(header, batch, pieces=table)
    return FetchedBatch(first, header, encoded.payload)
