"""The selection: which records of a stream a reader wants and which of their columns, found next to the data.

After Scribe's read proxy. A batch goes through up to three sieves, each dearer than the one before:

    summary     ranges of columns, in the ledger's row: the batch is never read
    filter      bloom filters of the key and of indexed columns, in front of the batch in its block
    rows        the columns that the predicate needs are decoded; others only if a row matches

What is left of a batch covers the same offsets as before, so that positions move on.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.consume.view import Decoded, View
from mainstem.core import layouts, payload, pieces, statistics
from mainstem.core.batch import BatchHeader, FetchedBatch
from mainstem.core.errors import IncompatibleSchema, InvalidPayload, MainstemError, RecordTooLarge
from mainstem.core.limits import PAYLOAD_RAW_BYTES_MAX, READ_RECORD_BYTES_MAX
from mainstem.core.pieces import FetchedPart, Part
from mainstem.core.schema import METADATA_COLUMNS, Schema
from mainstem.core.statistics import Range
from mainstem.registry.promotion import Promotion, promotion
from mainstem.registry.rows import BadRow

if TYPE_CHECKING:
    from mainstem.core.predicate import BoundPredicate

# So many readers must want the same before what one of them gets is kept for the others.
_READERS_SHARING: Final = 2
# Of so many schemas of a stream it is remembered what they have of a predicate's columns.
_ASKED_MAX: Final = 64
_METADATA: Final = frozenset(METADATA_COLUMNS)


class Place(Protocol):
    """What is known of stored records without opening them: a row of the ledger."""

    @property
    def shard(self) -> int: ...

    @property
    def base(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def time_high(self) -> int: ...

    @property
    def schema_id(self) -> int: ...

    @property
    def statistics(self) -> bytes: ...


# What is left of a batch.
Selected = Sequence[FetchedBatch]


class Tally:
    """Of what several readers want: how many batches were made, and how often another reader got one."""

    def __init__(self) -> None:
        self.made = self.shared = 0


class Selection:
    """A predicate and a view of one stream, bound once and shared by all readers who ask for the same. Any thread.

    `compression` is for what leaves this process. InvalidPredicate, InvalidSetting if it cannot be bound.
    """

    def __init__(
        self,
        view: View,
        where: str = "",
        *,
        schema_of: Callable[[int], Schema] | None = None,
        compression: str | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.view = view
        self.is_plain = not where and view.columns is None
        # Who reads with it now.
        self.readers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._predicate = _bind(where, view) if where else None
        # What is wanted: of the same batches, the same is left for all who want the same.
        self.wanted = (view.schema_id, where, view.columns, view.key)
        self._schema_of = schema_of
        self._compression = compression
        self.tally = tally or Tally()
        times = {"_timestamp"} if view.schema is not None else {"_timestamp", "timestamp"}
        self._asks_place = self._predicate is not None and not times.union(("_shard", "_offset")).isdisjoint(
            self._predicate.columns
        )
        # Whether all that is asked about are columns of rows.
        self._asks_rows = (
            view.schema is not None and self._predicate is not None and _METADATA.isdisjoint(self._predicate.columns)
        )
        # By schema: see `_ask`.
        self._asked: dict[int, tuple[pa.Schema | None, list[tuple[str, str]]]] = {}
        # The columns of a batch that are needed to say which records match, and those that are given; None: all.
        self._given = self._stored_of_given()
        self._tested = self._given if self._predicate is None else self._stored(self._predicate.columns)
        # What is needed of batches of the view's schema; None: all, or it has none.
        self.part = self._part()
        # Whether that is given as it is. A key may have to be made of columns.
        self._is_taken = self._predicate is None and "_key" not in (view.columns or ())

    @property
    def is_shared(self) -> bool:
        """Whether several readers want the same now."""
        return len(self.readers) >= _READERS_SHARING

    # Whether a batch must be opened at all.

    def can_skip(self, place: Place, filters: Callable[[], bytes]) -> bool:
        """Whether no record here can match. `filters` brings the whole statistics, of which the place has a part."""
        predicate = self._predicate
        if predicate is None:
            return False
        # This is asked of every row of the ledger: nothing is looked at that the predicate does not ask for.
        ranges = self._place(place.shard, place.base, place.end, None, place.time_high) if self._asks_place else {}
        if not place.statistics:
            return bool(ranges) and not predicate.may_match(ranges)
        known = self._known(place.schema_id, place.statistics)
        ranges.update(known)
        if not predicate.may_match(ranges):
            return True
        if not any(name in known and known[name].has_filter for name in predicate.indexed):
            return False
        ranges.update(self._known(place.schema_id, filters()))
        return not predicate.may_match(ranges)

    def can_skip_batch(self, fetched: FetchedBatch) -> bool:
        """The same of a batch that is in memory, by its header."""
        predicate, header = self._predicate, fetched.header
        if predicate is None or not self._asks_place:
            return False
        return not predicate.may_match(
            self._place(header.shard, fetched.base, fetched.end, header.time_low, header.time_high)
        )

    def _place(self, shard: int, base: int, end: int, time_low: int | None, time_high: int) -> dict[str, Range]:
        """What is known of records by where they stand."""
        found = {
            "_shard": Range(shard, shard, has_null=False),
            "_offset": Range(base, end - 1, has_null=False),
            "_timestamp": Range(time_low, time_high, has_null=False),
        }
        if self.view.schema is None:
            found["timestamp"] = found["_timestamp"]
        return found

    def _known(self, schema_id: int, found: bytes) -> dict[str, Range]:
        """What statistics say of the columns that the predicate asks for, under its names for them. Those that cannot
        be read say nothing: the records are still there to be looked at."""
        if not found:
            return {}
        asked = self._asked.get(schema_id)
        if asked is None:
            if len(self._asked) >= _ASKED_MAX:
                self._asked.clear()
            asked = self._asked[schema_id] = self._ask(schema_id)
        arrow, names = asked
        try:
            known = statistics.parse(found, arrow)
            return {name: found_range for name, source in names if (found_range := known.get(source)) is not None}
        except InvalidPayload:
            return {}

    def _ask(self, schema_id: int) -> tuple[pa.Schema | None, list[tuple[str, str]]]:
        """The schema of batches, and which of their columns the predicate's columns are, where their values are the
        same."""
        assert self._predicate is not None
        view = self.view
        own = {"_key": "_key", "_timestamp": "_timestamp"}
        if view.schema is None:
            arrow, sources = None, {**own, "key": "_key", "timestamp": "_timestamp"}
        elif not schema_id:
            arrow, sources = None, own
        elif schema_id == view.schema_id:
            arrow, sources = view.schema.arrow, {**own, **{name: name for name in view.schema.names}}
        elif self._schema_of is None:
            arrow, sources = None, own
        else:
            way = promotion(self._schema_of(schema_id), view.schema)
            arrow, sources = way.old.arrow, {**own, **_sources(way)}
        return arrow, [(name, sources[name]) for name in self._predicate.columns if name in sources]

    # What is in it.

    def apply(self, fetched: FetchedBatch) -> Selected:
        """What of a batch is wanted. One that is wanted as it is stays as it is."""
        header = fetched.header
        is_whole = self.is_plain and not self._is_to_convert(header)
        if not header.count or is_whole or (self._is_taken and isinstance(fetched, FetchedPart)):
            return (fetched,)
        self.tally.made += self.is_shared
        return self._apply(fetched)

    def needs(self, header: BatchHeader) -> bool:
        """Whether a batch has to go through `apply`."""
        return not self.is_plain or self._is_to_convert(header)

    def _is_to_convert(self, header: BatchHeader) -> bool:
        """Values that are JSON are made columns of if several readers want them so: one of them can do it himself."""
        return not header.schema_id and self.view.schema is not None and self.is_shared

    def _apply(self, fetched: FetchedBatch) -> Selected:
        try:
            return self._narrow(fetched) if self._predicate is None else self._filter(fetched)
        except IncompatibleSchema:
            # The reader finds it out as well, and says where.
            return (fetched,)
        except MainstemError as error:
            if self.is_plain:
                # A reader without others would have got it like that.
                return (fetched,)
            header = fetched.header
            if not isinstance(error, RecordTooLarge) or header.count < 2 or header.schema_id == self.view.schema_id:
                raise
        # Its rows are too much to be made at once.
        schema = self._schema_of(header.schema_id) if header.schema_id and self._schema_of is not None else None
        return [batch for half in halves(fetched, schema) for batch in self._apply(half)]

    def _narrow(self, fetched: FetchedBatch) -> Sequence[FetchedBatch]:
        """All records of a batch, with the wanted columns."""
        if (taken := self._take(fetched)) is not None:
            return [taken]
        decoded = self.view.decode(fetched, self._tested)
        if self.view.columns is None and decoded.tombstones is not None:
            return [fetched]
        if decoded.bad:
            return self._fitting(fetched, None, lambda: self._pack_around(fetched, decoded))
        return self._fitting(fetched, None, lambda: self._pack(fetched, decoded.columns, None))

    def _filter(self, fetched: FetchedBatch) -> Selected:
        """The records of a batch for which the predicate is true, and those that are no rows but could be meant: what
        becomes of these is for the reader to say."""
        header = fetched.header
        is_own = header.schema_id == self.view.schema_id
        # Where no column can be opened alone, all are at hand.
        is_open = is_own and not payload.is_by_buffer(header.encoding)
        decoded = self.view.decode(fetched, None if is_open else self._tested)
        tombstones = decoded.tombstones if self.view.columns is None else None
        mask = self._match(fetched, decoded)
        count = mask.true_count
        if not count:
            left: Sequence[FetchedBatch] = [nothing(header.stream, header.shard, fetched.base, fetched.end)]
        elif count == len(mask) and self.view.columns is None and is_own:
            left = [fetched]
        elif (decoded.bad or tombstones is not None) and _holds_any(mask, decoded.bad, tombstones):
            # In columns there is no place for what is no row, and nothing would tell a tombstone from a row of nulls.
            left = self._as_stored(fetched, mask)
        else:
            some = mask if count < len(mask) else None
            try:
                columns = decoded.columns if is_open else self._rest(fetched, decoded)
            except IncompatibleSchema:
                # They match, and cannot be read: the reader says so of these, not of others.
                return self._as_stored(fetched, some)
            left = self._fitting(fetched, some, lambda: self._pack(fetched, columns, some))
        return left

    def _fitting(
        self, fetched: FetchedBatch, mask: pa.BooleanArray | None, make: Callable[[], list[FetchedBatch]]
    ) -> list[FetchedBatch]:
        """What is made for the reader; if a row of it is too large for a payload, the records as they are stored."""
        try:
            return make()
        except (InvalidPayload, RecordTooLarge):
            # Rows of the reader's own schema do not grow, and it expects only the wanted columns of them.
            if fetched.header.schema_id == self.view.schema_id:
                raise
            return self._as_stored(fetched, mask)

    def _as_stored(self, fetched: FetchedBatch, mask: pa.BooleanArray | None) -> list[FetchedBatch]:
        """The records where `mask` is true, of another schema than the reader's, for him to make rows of."""
        if mask is None or mask.true_count == len(mask):
            return [fetched]
        stored = fetched.header.schema_id
        view = View(self._schema_of(stored) if stored and self._schema_of is not None else None, stored)
        return Selection(view, compression=self._compression)._pack(fetched, view.decode(fetched).columns, mask)

    def _take(self, fetched: FetchedBatch) -> FetchedBatch | None:
        """All records of a batch with the wanted columns as they are stored; None if they have to be looked into."""
        if self.part is None or not self._is_taken or fetched.header.schema_id != self.part.schema_id:
            return None
        return pieces.take(fetched, self.part)

    def _rest(self, fetched: FetchedBatch, decoded: Decoded) -> pa.RecordBatch:
        """All columns that are given, of a batch of which those that the predicate needs were decoded."""
        header, schema = fetched.header, self.view.schema
        if schema is None:
            there = set(layouts.SCHEMAS[header.layout].names)
        elif header.schema_id:
            there = {*schema.names, *(field.name for bit, field in layouts.ROW_FIELDS if header.layout & bit)}
        else:
            return decoded.columns
        given = there if self._given is None else there & self._given
        if given <= set(decoded.columns.schema.names):
            return decoded.columns
        return self.view.decode(fetched, self._given).columns

    def _match(self, fetched: FetchedBatch, decoded: Decoded) -> pa.BooleanArray:
        """For every record of a batch, whether the predicate is true for it, or may be for what is no row."""
        assert self._predicate is not None
        header = fetched.header
        offsets: Sequence[int] | np.ndarray = ()
        if "_offset" in self._predicate.columns:
            offsets = fetched.base + _distances(decoded.columns, self.view)
        table = decoded.columns
        # One that names no column still has to know how many rows there are. Rows of the view's schema are as they are.
        if self._predicate.columns and not (self._asks_rows and header.schema_id == self.view.schema_id):
            table = self.view.assemble(table, self._predicate.columns, header.shard, offsets, header.time_low)
        found = self._predicate.mask(table)
        if decoded.bad and not _METADATA.issuperset(self._predicate.columns):
            mask = found.fill_null(False).to_numpy(zero_copy_only=False).copy()
            for row in decoded.bad:
                mask[row.index] = self._may_match(fetched, decoded, row.index)
            return pa.array(mask)
        return found

    def _may_match(self, fetched: FetchedBatch, decoded: Decoded, index: int) -> bool:
        """Whether the predicate could be true for a record of which only what is beside its row is known."""
        assert self._predicate is not None
        if _METADATA.isdisjoint(self._predicate.columns):
            return True
        columns, header = decoded.columns.slice(index, 1), fetched.header
        offset = fetched.base + (
            int(_distances(columns, self.view)[0]) if header.layout & layouts.HAS_OFFSETS else index
        )
        beside = self.view.assemble(columns, ("_key", "_timestamp"), header.shard, (), header.time_low)
        time, key = beside.column("_timestamp").cast(pa.int64())[0].as_py(), beside.column("_key")[0].as_py()
        known = self._place(header.shard, offset, offset + 1, time, time)
        return self._predicate.may_match({**known, "_key": Range(key, key, key is None, key is None)})

    def _stored(self, names: Iterable[str]) -> frozenset[str]:
        """The columns of a batch, as its layout calls them, that these columns of the view are made of; and what is
        always told of a record."""
        view = self.view
        if view.schema is None:
            own = {"_key": "key", "_headers": "headers", "_timestamp": "timestamp"}
            found = {own.get(name, name) for name in names} | {"timestamp", "offset"}
            return frozenset(found - {"_shard", "_offset"})
        found = {name for name in names if name != "_shard"} | {"_timestamp", "_offset"}
        return frozenset(found | set(view.key) if "_key" in found else found)

    def _stored_of_given(self) -> frozenset[str] | None:
        """The same of the columns that are given, and of one that stands in where only metadata is."""
        view = self.view
        if view.columns is None:
            return None
        return self._stored((*view.columns, *(() if view.kept is None else view.kept.names)))

    def _part(self) -> Part | None:
        view = self.view
        if view.schema is None or self._given is None or self._tested is None:
            return None
        needed = self._given | self._tested
        kept = Schema(pa.schema([field for field in view.schema.arrow if field.name in needed]))
        beside = sum(bit for bit, field in layouts.ROW_FIELDS if field.name in needed)
        return Part(view.schema_id, view.schema, kept, beside)

    # What is left of it.

    def _pack(self, fetched: FetchedBatch, columns: pa.RecordBatch, mask: pa.BooleanArray | None) -> list[FetchedBatch]:
        """Batches of the wanted columns of the records where `mask` is true, which cover the same offsets."""
        if mask is None:
            offsets = fetched.base + _distances(columns, self.view)
        else:
            # What is null is no match, nor among these.
            places = pc.indices_nonzero(mask)
            columns = columns.take(places)
            gaps = ("offset" if self.view.schema is None else "_offset") in columns.schema.names
            distances = _distances(columns, self.view) if gaps else places.to_numpy().astype(np.int64)
            offsets = fetched.base + distances
        return self._encode(fetched.header, self._keep(columns), offsets, fetched.base, fetched.end)

    def _keep(self, columns: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that leave, without offsets, by the names of their layout."""
        view, names = self.view, columns.schema.names
        asked = view.columns
        if view.schema is None:
            count = columns.num_rows
            kept: dict[str, Any] = {}
            for name, other in (("key", "_key"), ("headers", "_headers")):
                if name in names and (asked is None or name in asked or other in asked):
                    kept[name] = columns.column(name)
            is_asked = asked is None or "value" in asked
            kept["value"] = columns.column("value") if is_asked else pa.nulls(count, pa.binary())
        else:
            assert view.kept is not None
            kept = {name: columns.column(name) for name in view.kept.names}
            if asked is not None and "_key" in asked:
                kept["_key"] = view.keys(columns)
            elif asked is None and "_key" in names:
                kept["_key"] = columns.column("_key")
            if "_headers" in names and (asked is None or "_headers" in asked):
                kept["_headers"] = columns.column("_headers")
        if view.time_name in names:
            kept[view.time_name] = columns.column(view.time_name)
        return kept

    def _encode(
        self, header: BatchHeader, kept: dict[str, pa.Array], offsets: np.ndarray, base: int, end: int
    ) -> list[FetchedBatch]:
        count = len(offsets)
        view = self.view
        columns = dict(kept)
        if count != end - base:
            columns["offset" if view.schema is None else "_offset"] = pa.array((offsets - base).astype(np.uint32))
        if view.schema is None:
            fields = layouts.SCHEMAS[sum(layouts.BIT_OF[name] for name in columns)]
        else:
            assert view.kept is not None
            layout = sum(bit for bit, field in layouts.ROW_FIELDS if field.name in columns)
            fields = layouts.shape_of(layout, view.kept).schema
        batch = pa.RecordBatch.from_arrays([columns[name] for name in fields.names], schema=fields)
        # Columns of a newer schema or of JSON, and keys made of columns, may take more than what they were made of.
        is_as_stored = header.schema_id == view.schema_id and view.columns is None
        bytes_max = PAYLOAD_RAW_BYTES_MAX // 2
        if count > 1 and not (is_as_stored and header.raw_len <= bytes_max) and batch.nbytes > bytes_max:
            return self._encode_halves(header, kept, offsets, base, end)
        encoded = payload.encode(batch, self._compression, view.kept, READ_RECORD_BYTES_MAX)
        left = msgspec.structs.replace(
            encoded.header_like(header), schema_id=view.schema_id, span=end - base if count != end - base else 0
        )
        return [FetchedBatch(base, left, encoded.payload)]

    def _encode_halves(
        self, header: BatchHeader, kept: dict[str, pa.Array], offsets: np.ndarray, base: int, end: int
    ) -> list[FetchedBatch]:
        half = len(offsets) // 2
        middle = int(offsets[half])
        first = {name: column.slice(0, half) for name, column in kept.items()}
        second = {name: column.slice(half) for name, column in kept.items()}
        return [
            *self._encode(header, first, offsets[:half], base, middle),
            *self._encode(header, second, offsets[half:], middle, end),
        ]

    def _pack_around(self, fetched: FetchedBatch, decoded: Decoded) -> list[FetchedBatch]:
        """All of a batch, where some values are no rows: these as they are stored, for the reader to say so."""
        columns = decoded.columns
        offsets = _distances(columns, self.view) + fetched.base
        is_bad = np.zeros(len(offsets), bool)
        is_bad[[row.index for row in decoded.bad]] = True
        edges = [0, *(np.flatnonzero(np.diff(is_bad)) + 1).tolist(), len(is_bad)]
        records = View(None).decode(fetched).columns
        packed: list[FetchedBatch] = []
        for first, stop in pairwise(edges):
            base = fetched.base if first == 0 else int(offsets[first])
            end = fetched.end if stop == len(is_bad) else int(offsets[stop])
            if is_bad[first]:
                packed += _AS_BYTES._encode(
                    fetched.header, _columns_of(records.slice(first, stop - first)), offsets[first:stop], base, end
                )
            else:
                kept = self._keep(columns.slice(first, stop - first))
                packed += self._encode(fetched.header, kept, offsets[first:stop], base, end)
        return packed


def halves(fetched: FetchedBatch, schema: Schema | None = None) -> list[FetchedBatch]:
    """A batch of this schema as it is stored, in two pieces or more, which cover the same offsets."""
    view = View(schema, fetched.header.schema_id)
    columns = view.decode(fetched).columns
    stored = Selection(view)
    offsets = fetched.base + _distances(columns, view)
    return stored._encode_halves(fetched.header, stored._keep(columns), offsets, fetched.base, fetched.end)


def cut_out(fetched: FetchedBatch, begin: int, end: int, schema: Schema | None) -> list[FetchedBatch]:
    """Of a batch of this schema as it is stored, what stands from one offset to before another."""
    number, shard = fetched.header.stream, fetched.header.shard
    if not fetched.header.count:
        return [nothing(number, shard, begin, end)]
    view = View(schema, fetched.header.schema_id)
    columns = view.decode(fetched).columns
    offsets = fetched.base + _distances(columns, view)
    first, stop = np.searchsorted(offsets, (begin, end)).tolist()
    if first == stop:
        return [nothing(number, shard, begin, end)]
    stored = Selection(view)
    return stored._encode(
        fetched.header, stored._keep(columns.slice(first, stop - first)), offsets[first:stop], begin, end
    )


def _bind(where: str, view: View) -> "BoundPredicate":
    # Who has no readers with predicates does without: it takes a moment to load.
    from mainstem.core.predicate import Predicate

    return Predicate.parse(where).bind(view.all)


def nothing(stream: int, shard: int, base: int, end: int) -> FetchedBatch:
    """What stands for offsets none of whose records is wanted."""
    return FetchedBatch(base, BatchHeader(stream, shard, *(0,) * 13, span=end - base), b"")


def _holds_any(mask: pa.BooleanArray, bad: Sequence[BadRow], tombstones: np.ndarray | None) -> bool:
    """Whether something that is no row is among the records where `mask` is true."""
    found = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return any(found[row.index] for row in bad) or (tombstones is not None and bool((found & tombstones).any()))


def _sources(way: Promotion) -> dict[str, str]:
    """Columns whose values are exactly those of a column of an older schema, and of which."""
    found = {}
    for name in way.unchanged:
        source = way.sources[name]
        assert source is not None
        # Where nulls get a default, it is in no statistics.
        if way.new.field(name).nullable or not way.old.field(source).nullable:
            found[name] = source
    return found


def _distances(columns: pa.RecordBatch, view: View) -> np.ndarray:
    """How far each record is from the first offset of its batch."""
    name = "offset" if view.schema is None else "_offset"
    if name in columns.schema.names:
        found: np.ndarray = columns.column(name).to_numpy().astype(np.int64)
        return found
    return np.arange(columns.num_rows, dtype=np.int64)


def _columns_of(records: pa.RecordBatch) -> dict[str, pa.Array]:
    return {
        name: column for name, column in zip(records.schema.names, records.columns, strict=True) if name != "offset"
    }


_AS_BYTES: Final = Selection(View(None))
