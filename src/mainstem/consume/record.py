"""What a reader gets: a record, or a batch of them."""

import bisect
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from mainstem.consume.tabular import Tabular
from mainstem.consume.view import Decoded, View, with_metadata
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import IncompatibleSchema
from mainstem.core.markup import cut, table
from mainstem.core.times import from_us
from mainstem.registry.rows import BadRow

_AS_BYTES: Final = View(None)
# Of a batch that is shown.
_SHOWN_ROWS: Final = 10


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `value` is the row as a dict where the stream has a schema, else bytes; None for a tombstone.

    `undecoded` is set where a row could not be made of what was stored: its bytes. `stream` is the name of the stream.
    """

    value: Any
    key: bytes | None
    shard: int
    offset: int
    timestamp_us: int
    headers: dict[str, bytes] | None
    undecoded: bytes | None = None
    stream: str = ""

    @property
    def timestamp(self) -> datetime:
        """When it was written, as its producer says."""
        return from_us(self.timestamp_us)

    def _repr_html_(self) -> str:
        return table(f"record {self.shard}:{self.offset}", ["", ""], self._shown())

    def _shown(self) -> list[tuple[str, str]]:
        row = self.value if isinstance(self.value, dict) else {"value": self.value}
        beside = {"key": self.key, "time": self.timestamp.isoformat(), "headers": self.headers}
        return [(name, cut(value)) for name, value in (*row.items(), *beside.items())]


class RecordBatch(Tabular):
    """`count` records of one shard, from `offset` to before `end`. Decoded when first looked into; then immutable.

    Their offsets follow each other without a gap, unless the stream is compacted, records were erased, or only some
    were asked for.
    """

    __slots__ = (
        "_columns",
        "_fetched",
        "_offsets",
        "_opened",
        "_skip",
        "_view",
        "count",
        "end",
        "offset",
        "shard",
        "stream",
    )

    def __init__(self, stream: str, fetched: FetchedBatch, start: int, end: int | None, view: View = _AS_BYTES) -> None:
        self._fetched = fetched
        self._view = view
        # The whole of what was fetched, and what of it belongs to this batch.
        self._opened: Decoded | None = None
        self._columns: pa.RecordBatch | None = None
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
        offsets = self._view.offsets(self._fetched)
        self._skip = bisect.bisect_left(offsets, start)
        self._offsets = offsets[self._skip : bisect.bisect_left(offsets, self.end)]
        self.count = len(self._offsets)
        self.offset = self._offsets[0] if self._offsets else self.end

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<RecordBatch {self.stream} shard {self.shard} offsets {self.offset} to {self.end - 1}>"

    def _repr_html_(self) -> str:
        rows = [[cut(value) for value in row.values()] for row in self.first(_SHOWN_ROWS).to_dicts()]
        more = f", the first {_SHOWN_ROWS} of {self.count}" if self.count > _SHOWN_ROWS else ""
        caption = f"{self.stream} shard {self.shard} offsets {self.offset} to {self.end - 1}{more}"
        return table(caption, self._view.names, rows)

    def offsets(self) -> Sequence[int]:
        """The offset of every record."""
        return range(self.offset, self.offset + self.count) if self._offsets is None else self._offsets

    # As columns.

    def to_arrow(self, *, metadata: bool = False) -> pa.RecordBatch:
        view = self._view
        names = with_metadata(view.given).names if metadata else view.names
        return view.assemble(self._narrow(), names, self.shard, self.offsets(), self._fetched.header.time_low)

    def select(self, names: Sequence[str]) -> pa.RecordBatch:
        """These columns alone, _shard, _offset, _timestamp, _key and _headers among them: what is not named is not
        made."""
        offsets, time = self.offsets(), self._fetched.header.time_low
        return self._view.assemble(self._narrow(), names, self.shard, offsets, time)

    # As records.

    def values(self) -> list[Any]:
        """The values alone, as fast as they can be had: bytes, or a dict for every row."""
        columns = self._narrow()
        if self._view.schema is not None:
            return self._rows()
        found: list[bytes | None] = columns.column("value").to_pylist()
        return found

    def records(self) -> Iterator[Record]:
        """The records one by one. The iterator knows how many are left (`__length_hint__`)."""
        view, time = self._view, self._fetched.header.time_low
        columns = self._narrow()
        names = columns.schema.names
        headers_name = "headers" if view.schema is None else "_headers"
        keys: Any = repeat(None)
        headers: Any = repeat(None)
        times: Any = repeat(time)
        if view.schema is not None or "key" in names:
            keys = view.keys(columns).to_pylist()
        if headers_name in names:
            headers = map(_headers, columns.column(headers_name).to_pylist())
        if view.time_name in names:
            found = columns.column(view.time_name).cast(pa.int64())
            times = (found.fill_null(time) if found.null_count else found).to_pylist()
        made = map(
            Record,
            self.values(),
            keys,
            repeat(self.shard),
            self.offsets(),
            times,
            headers,
            repeat(None),
            repeat(self.stream),
        )
        bad = self.undecoded()
        if bad:
            stored = self._stored_values()
            records = list(made)
            for row in bad:
                records[row.index] = msgspec.structs.replace(records[row.index], undecoded=stored[row.index])
            return iter(records)
        return iter(list(made))

    def _rows(self) -> list[Any]:
        """Every row as a dict; None for a tombstone, and for what is no row. A row of nulls is one."""
        rows: list[Any] = self.to_dicts()
        assert self._opened is not None
        if self._view.columns is None:
            tombstones = self._opened.tombstones
            found = () if tombstones is None else np.flatnonzero(tombstones[self._skip : self._skip + self.count])
            for index in (*found, *(row.index for row in self.undecoded())):
                rows[index] = None
        return rows

    def tombstones(self) -> np.ndarray:
        """Of every record, whether it is a tombstone: as columns it looks like a row of nulls."""
        columns = self._narrow()
        assert self._opened is not None
        if self._view.schema is None:
            return np.asarray(columns.column("value").is_null().to_numpy(zero_copy_only=False))
        if self._opened.tombstones is None:
            return np.zeros(self.count, bool)
        return self._opened.tombstones[self._skip : self._skip + self.count]

    # Rows that could not be made.

    def undecoded(self) -> Sequence[BadRow]:
        """Which records are no rows of the schema, by their places in the batch, and why: their bytes are JSON of
        something else, or no JSON. IncompatibleSchema if they are rows of an older schema that cannot be read in the
        newest one."""
        if self._view.schema is None or self._fetched.header.schema_id == self._view.schema_id or not self.count:
            return ()
        self._narrow()
        assert self._opened is not None
        own = range(self._skip, self._skip + self.count)
        return [BadRow(row.index - self._skip, row.path, row.reason) for row in self._opened.bad if row.index in own]

    def _stored_values(self) -> list[bytes | None]:
        raw = _AS_BYTES.decode(self._fetched).columns.column("value")
        found: list[bytes | None] = raw.slice(self._skip, self.count).to_pylist()
        return found

    # Parts.

    def first(self, count: int) -> "RecordBatch":
        """The first `count` records as a batch of their own; all if there are no more."""
        return self if self.count <= count else self.slice(0, count)

    def last(self, count: int) -> "RecordBatch":
        """The last `count` records as a batch of their own; all if there are no more."""
        return self if self.count <= count else self.slice(self.count - count, self.count)

    def slice(self, start: int, stop: int) -> "RecordBatch":
        """The records from the `start`-th to before the `stop`-th, as a batch of their own. It covers all offsets up to
        the next record; the last part of a batch covers all that the batch does."""
        start, stop, _ = slice(start, stop).indices(self.count)
        stop = max(start, stop)
        offsets = self.offsets()
        found = RecordBatch.__new__(RecordBatch)
        found.stream, found.shard = self.stream, self.shard
        found._fetched, found._view, found._opened = self._fetched, self._view, self._opened
        found._skip = self._skip + start
        found._columns = None if self._columns is None else self._columns.slice(start, stop - start)
        found._offsets = None if self._offsets is None else self._offsets[start:stop]
        found.end = self.end if stop >= self.count else offsets[stop]
        found.count = stop - start
        found.offset = offsets[start] if stop > start else found.end
        return found

    def _narrow(self) -> pa.RecordBatch:
        if self._columns is None:
            if self._opened is None:
                self._opened = self._open()
            self._columns = self._opened.columns.slice(self._skip, self.count)
        return self._columns

    def _open(self) -> Decoded:
        try:
            return self._view.decode_kept(self._fetched)
        except IncompatibleSchema as error:
            offsets = self.offsets()
            which = f"row {offsets[0]}" if self.count == 1 else f"rows {offsets[0]} to {offsets[-1]}"
            raise IncompatibleSchema(
                f"stream {self.stream!r} shard {self.shard}: {which} cannot be read in the newest schema: {error}; "
                "read other columns of them (columns=), set a schema in which the new column has another name, or "
                "pass over them with on_bad='skip'"
            ) from None


def _headers(pairs: list[tuple[str, bytes]] | None) -> dict[str, bytes] | None:
    return None if pairs is None else dict(pairs)
