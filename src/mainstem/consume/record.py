"""What a reader gets: a record, or a batch of them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.core import layouts, payload
from mainstem.core.batch import FetchedBatch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        return _EPOCH + timedelta(microseconds=self.timestamp_us)


class RecordBatch:
    """Records `offset` to `offset + count - 1` of one shard. Decoded when first looked into; then immutable."""

    __slots__ = ("_decoded", "_fetched", "_skip", "count", "offset", "shard", "stream")

    def __init__(self, stream: str, fetched: FetchedBatch, start: int, end: int | None) -> None:
        self._fetched = fetched
        self._skip = max(0, start - fetched.base)
        stop = fetched.end if end is None else min(end, fetched.end)
        self.stream = stream
        self.shard = fetched.header.shard
        self.offset = fetched.base + self._skip
        self.count = stop - self.offset
        self._decoded: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<RecordBatch {self.stream} shard {self.shard} offsets {self.offset} to {self.offset + self.count - 1}>"

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.offset + self.count

    def to_arrow(self, *, metadata: bool = False) -> pa.RecordBatch:
        """Columns key, value, headers, timestamp; with `metadata` also _shard, _offset, _timestamp, _key, _headers."""
        header = self._fetched.header
        batch = layouts.widen(self._narrow(), header.layout, header.time_low)
        if not metadata:
            return batch
        extra = {
            "_shard": pa.repeat(pa.scalar(self.shard, pa.int32()), self.count),
            "_offset": pa.array(range(self.offset, self.end), pa.int64()),
            "_timestamp": batch.column("timestamp"),
            "_key": batch.column("key"),
            "_headers": batch.column("headers"),
        }
        return pa.RecordBatch.from_arrays([*batch.columns, *extra.values()], names=[*batch.schema.names, *extra])

    def last(self, count: int) -> "RecordBatch":
        """The last `count` records as a batch of their own."""
        return RecordBatch(self.stream, self._fetched, self.end - count, self.end)

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
        offsets = range(self.offset, self.end)
        return iter(list(map(Record, values, keys, repeat(self.shard), offsets, times, headers)))

    def _narrow(self) -> pa.RecordBatch:
        if self._decoded is None:
            header = self._fetched.header
            whole = payload.decode(header.encoding, header.layout, header.count, header.raw_len, self._fetched.payload)
            self._decoded = whole.slice(self._skip, self.count)
        return self._decoded


def _headers(pairs: list[tuple[str, bytes]] | None) -> dict[str, bytes] | None:
    return None if pairs is None else dict(pairs)
