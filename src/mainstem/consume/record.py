"""What a reader gets: a record, or a batch of them."""

import bisect
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.core import layouts, payload
from mainstem.core.batch import FetchedBatch
from mainstem.core.times import from_us


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `value` is None for a tombstone."""

    value: bytes | None
    key: bytes | None
    shard: int
    offset: int
    timestamp_us: int
    headers: dict[str, bytes] | None

    @property
    def timestamp(self) -> datetime:
        """When it was written, as its producer says."""
        return from_us(self.timestamp_us)


class RecordBatch:
    """`count` records of one shard, from `offset` to before `end`. Decoded when first looked into; then immutable.

    Their offsets follow each other without a gap, unless the stream is compacted or records were erased.
    """

    __slots__ = ("_decoded", "_fetched", "_offsets", "_skip", "count", "end", "offset", "shard", "stream")

    def __init__(self, stream: str, fetched: FetchedBatch, start: int, end: int | None) -> None:
        self._fetched = fetched
        self._decoded: pa.RecordBatch | None = None
        # The offset of every record, if there are gaps between them.
        self._offsets: list[int] | None = None
        self.stream = stream
        self.shard = fetched.header.shard
        self.end = fetched.end if end is None else min(end, fetched.end)
        self._skip = max(0, start - fetched.base)
        self.offset = fetched.base + self._skip
        self.count = max(0, self.end - self.offset)
        if fetched.header.span:
            self._leave_gaps(start)

    def _leave_gaps(self, start: int) -> None:
        """Find the records from `start` to before `end` among those that are left."""
        offsets = _offsets(self._fetched)
        self._skip = bisect.bisect_left(offsets, start)
        self._offsets = offsets[self._skip : bisect.bisect_left(offsets, self.end)]
        self.count = len(self._offsets)
        self.offset = self._offsets[0] if self._offsets else self.end

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<RecordBatch {self.stream} shard {self.shard} offsets {self.offset} to {self.end - 1}>"

    def offsets(self) -> Sequence[int]:
        """The offset of every record."""
        return range(self.offset, self.offset + self.count) if self._offsets is None else self._offsets

    def to_arrow(self, *, metadata: bool = False) -> pa.RecordBatch:
        """Columns key, value, headers, timestamp; with `metadata` also _shard, _offset, _timestamp, _key, _headers."""
        header = self._fetched.header
        batch = layouts.widen(self._narrow(), header.layout, header.time_low)
        if not metadata:
            return batch
        extra = {
            "_shard": pa.repeat(pa.scalar(self.shard, pa.int32()), self.count),
            "_offset": pa.array(self.offsets(), pa.int64()),
            "_timestamp": batch.column("timestamp"),
            "_key": batch.column("key"),
            "_headers": batch.column("headers"),
        }
        return pa.RecordBatch.from_arrays([*batch.columns, *extra.values()], names=[*batch.schema.names, *extra])

    def last(self, count: int) -> "RecordBatch":
        """The last `count` records as a batch of their own."""
        return RecordBatch(self.stream, self._fetched, self.offsets()[-count], self.end)

    def to_pandas(self) -> Any:
        """A pandas DataFrame of `to_arrow()`; pandas must be installed."""
        return self.to_arrow().to_pandas()

    def values(self) -> list[bytes | None]:
        """The values alone, as fast as they can be had."""
        found: list[bytes | None] = self._narrow().column("value").to_pylist()
        return found

    def records(self) -> Iterator[Record]:
        """The records one by one. The iterator knows how many are left (`__length_hint__`)."""
        header = self._fetched.header
        batch = self._narrow()
        values = batch.column("value").to_pylist()
        keys: Any = repeat(None)
        headers: Any = repeat(None)
        times: Any = repeat(header.time_low)
        if header.layout & layouts.HAS_KEY:
            keys = batch.column("key").to_pylist()
        if header.layout & layouts.HAS_HEADERS:
            headers = map(_headers, batch.column("headers").to_pylist())
        if header.layout & layouts.HAS_TIMESTAMP:
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        return iter(list(map(Record, values, keys, repeat(self.shard), self.offsets(), times, headers)))

    def _narrow(self) -> pa.RecordBatch:
        if self._decoded is None:
            header = self._fetched.header
            whole = payload.decode(header.encoding, header.layout, header.count, header.raw_len, self._fetched.payload)
            self._decoded = whole.slice(self._skip, self.count)
        return self._decoded


def _offsets(fetched: FetchedBatch) -> list[int]:
    """The offset of every record of a batch that has gaps."""
    header = fetched.header
    if not header.count:
        return []
    batch = payload.decode(header.encoding, header.layout, header.count, header.raw_len, fetched.payload)
    if not header.layout & layouts.HAS_OFFSETS:
        return list(range(fetched.base, fetched.base + header.count))
    return [fetched.base + distance for distance in batch.column("offset").to_pylist()]


def _headers(pairs: list[tuple[str, bytes]] | None) -> dict[str, bytes] | None:
    return None if pairs is None else dict(pairs)
