"""The view of a reader: which columns it gets of a stream, whatever its batches were written with.

A stream with a schema may hold batches of several kinds: rows of its newest schema, rows of older ones, and values that
are JSON, from before it had a schema or from clients that send bytes. A view turns each into the columns of one schema.
A stream without one has the columns key, value, headers, timestamp.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from mainstem.core import layouts, payload
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import InternalError, InvalidSetting, RecordTooLarge, SchemaMismatch
from mainstem.core.keys import key_column
from mainstem.core.layouts import HEADERS_TYPE, TIMESTAMP_TYPE
from mainstem.core.limits import PROMOTED_BYTES_MAX
from mainstem.core.names import check_named_once
from mainstem.core.pieces import FetchedPart
from mainstem.core.schema import METADATA_COLUMNS, Schema
from mainstem.registry.promotion import promotion
from mainstem.registry.rows import BadRow, converter_of

# What every record has beside its row, as columns.
METADATA_SCHEMA: Final = pa.schema(
    [
        ("_shard", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIMESTAMP_TYPE),
        ("_key", pa.binary()),
        ("_headers", HEADERS_TYPE),
    ]
)
assert tuple(METADATA_SCHEMA.names) == METADATA_COLUMNS
# How a batch of records without a schema calls what one of rows has under these names.
_COMPANIONS: Final = {"_key": "key", "_headers": "headers", "_timestamp": "timestamp", "_offset": "offset"}


def with_metadata(columns: pa.Schema) -> pa.Schema:
    """The columns, and those that every record has and that are not among them."""
    return pa.schema([*columns, *(field for field in METADATA_SCHEMA if field.name not in columns.names)])


class Decoded(NamedTuple):
    """A batch opened: its columns, as a batch of its layout has them, and the rows that could not be made.

    `tombstones` says of every record whether it is one, None if none is: its row looks like one of nulls.
    """

    columns: pa.RecordBatch
    bad: Sequence[BadRow] = ()
    tombstones: np.ndarray | None = None


class View:
    """The columns that one reader gets: all of `schema`, or those named. Immutable; any thread.

    `schema_of` looks up the schemas of older batches. InvalidSetting for a column that is not there.
    """

    def __init__(
        self,
        schema: Schema | None,
        schema_id: int = 0,
        *,
        columns: Sequence[str] | None = None,
        key: Sequence[str] = (),
        schema_of: Callable[[int], Schema] | None = None,
    ) -> None:
        self.schema = schema
        self.schema_id = schema_id
        self.columns = None if columns is None else tuple(columns)
        self.key = tuple(key)
        self._schema_of = schema_of
        rows = layouts.FULL_SCHEMA if schema is None else schema.arrow
        # Everything that can be asked for. A tombstone is read as a row of nulls, whatever the schema says of rows.
        self.all = pa.schema([*(field.with_nullable(True) for field in rows), *METADATA_SCHEMA])
        if self.columns is not None:
            _check_columns(self.columns, self.all.names)
        self.names = list(rows.names) if self.columns is None else list(self.columns)
        # What the reader gets.
        self.given = pa.schema([self.all.field(name) for name in self.names])
        self.time_name = "timestamp" if schema is None else "_timestamp"
        # What batches of this schema have once only the named columns are left of them.
        self.kept = schema if schema is None or self.columns is None else _part(schema, self.columns)

    # From stored batches.

    def decode(self, fetched: FetchedBatch, names: Collection[str] | None = None) -> Decoded:
        """All columns of a batch as it is stored, as rows of the schema; or at least these of them, where the batch has
        them."""
        header = fetched.header
        if header.schema_id == self.schema_id:
            return Decoded(_open(fetched, self.schema, names))
        if self.schema is None:
            raise SchemaMismatch(
                f"offset {fetched.base} of shard {header.shard}: the stream got a schema after this consumer was "
                "opened, and it asked for columns of records without one; open it again"
            )
        if not header.schema_id:
            return self._convert(_open(fetched, None, None))
        if self._schema_of is None:
            raise InternalError(f"schema {header.schema_id} of a batch is not known")
        way = promotion(self._schema_of(header.schema_id), self.schema)
        if names is None:
            return Decoded(way.apply(_open(fetched, way.old, None)))
        assert self.kept is not None
        wanted = {name for name in names if name in self.schema.names} or {self.kept.names[0]}
        beside = {name for name in names if name in METADATA_COLUMNS}
        return Decoded(way.apply(_open(fetched, way.old, {*way.needed(wanted), *beside}), wanted))

    def fits_at_once(self, fetched: FetchedBatch) -> bool:
        """Whether all rows of a batch that is JSON may be made together: a little text may become much. Of any other
        batch, and of a single record, this says nothing."""
        header = fetched.header
        if header.schema_id or self.schema is None or header.count < 2:
            return True
        converter = converter_of(self.schema)
        if converter.json_size_max(header.count, header.raw_len) <= PROMOTED_BYTES_MAX:
            return True
        return converter.json_size(_open(fetched, None, ("value",)).column("value")) <= PROMOTED_BYTES_MAX

    def decode_kept(self, fetched: FetchedBatch) -> Decoded:
        """The columns of a batch that has only those of the view left."""
        if fetched.header.schema_id == self.schema_id:
            return Decoded(_open(fetched, self.kept, None))
        return self.decode(fetched)

    def offsets(self, fetched: FetchedBatch) -> list[int]:
        """The offset of every record of a batch that covers more than it has."""
        header = fetched.header
        if not header.count:
            return []
        if not header.layout & layouts.HAS_OFFSETS:
            return list(range(fetched.base, fetched.base + header.count))
        if header.schema_id == self.schema_id:
            schema = self.kept
        else:
            schema = self._schema_of(header.schema_id) if header.schema_id and self._schema_of is not None else None
        name = "offset" if schema is None else "_offset"
        distances = _open(fetched, schema, (name,)).column(name).to_numpy()
        found: list[int] = (distances.astype(np.int64) + fetched.base).tolist()
        return found

    def _convert(self, records: pa.RecordBatch) -> Decoded:
        """Rows of values that are JSON. What is beside the value stays."""
        assert self.schema is not None
        converter, values = converter_of(self.schema), records.column("value")
        if (size := converter.json_size(values)) > PROMOTED_BYTES_MAX:
            raise RecordTooLarge(
                f"{len(values)} records are rows of about {size} bytes; at most {PROMOTED_BYTES_MAX} are made of JSON "
                "at once"
            )
        rows, bad = converter.from_json(values, is_stored=True)
        tombstones = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        arrays, fields = list(rows.columns), [field.remove_metadata() for field in self.schema.arrow]
        for field in _ROW_FIELDS:
            if _COMPANIONS[field.name] in records.schema.names:
                arrays.append(records.column(_COMPANIONS[field.name]))
                fields.append(field)
        return Decoded(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), bad, tombstones)

    # To what a reader sees.

    def assemble(
        self, columns: pa.RecordBatch, names: Iterable[str], shard: int, offsets: Sequence[int] | np.ndarray, time: int
    ) -> pa.RecordBatch:
        """Columns by name, metadata among them, for the records that stand at these offsets; `time` is that of records
        without their own. They are of the types that `all` says."""
        arrays: dict[str, Any] = {}
        for name in names:
            arrays[name] = self._column(columns, name, shard, offsets, time)
        fields = [self.all.field(name) for name in arrays]
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))

    def _column(
        self, columns: pa.RecordBatch, name: str, shard: int, offsets: Sequence[int] | np.ndarray, time: int
    ) -> pa.Array:
        count = columns.num_rows
        if name == "_shard":
            return pa.array(np.full(count, shard, np.int32))
        if name == "_offset":
            # Whoever counts up has no list of them.
            counted = np.arange(offsets.start, offsets.stop, offsets.step) if isinstance(offsets, range) else offsets
            return pa.array(counted, pa.int64())
        if name == "_key":
            return self.keys(columns)
        stored = name if self.schema is not None else _COMPANIONS.get(name, name)
        if stored == self.time_name:
            return _times(columns, stored, time)
        if stored not in columns.schema.names:
            return pa.nulls(count, self.all.field(name).type)
        return columns.column(stored)

    def keys(self, columns: pa.RecordBatch) -> pa.BinaryArray:
        """The key of every record."""
        stored = "_key" if self.schema is not None else "key"
        names = columns.schema.names
        if stored in names:
            return columns.column(stored)
        if self.key and all(name in names for name in self.key):
            return key_column(columns, self.key)
        return pa.nulls(columns.num_rows, pa.binary())


_ROW_FIELDS: Final = (layouts.ROW_KEY, layouts.ROW_HEADERS, layouts.ROW_TIMESTAMP, layouts.ROW_OFFSET)


def _open(fetched: FetchedBatch, schema: Schema | None, names: Collection[str] | None) -> pa.RecordBatch:
    header = fetched.header
    if isinstance(fetched, FetchedPart):
        schema = fetched.schema
    stored = (header.encoding, header.layout, header.count, header.raw_len, fetched.payload)
    if names is None:
        return payload.decode(*stored, schema)
    has = layouts.shape_of(header.layout, schema).schema.names
    wanted = {name for name in names if name in has}
    # A batch without columns would not know how many rows it has.
    return payload.decode_columns(*stored, schema, wanted or {has[0]})


def _times(columns: pa.RecordBatch, name: str, time: int) -> pa.Array:
    count = columns.num_rows
    if name not in columns.schema.names:
        # Not pa.repeat of a scalar: making one imports pandas where that is installed.
        return pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, pa.py_buffer(np.full(count, time, np.int64))])
    found = columns.column(name)
    return found.fill_null(pa.scalar(time, TIMESTAMP_TYPE)) if found.null_count else found


def _part(schema: Schema, columns: Sequence[str]) -> Schema:
    fields = [field for field in schema.arrow if field.name in columns]
    # Where only metadata is asked for, one column still says how many rows there are.
    return Schema(pa.schema(fields or [schema.arrow.field(0)]))


def _check_columns(columns: Sequence[str], names: Sequence[str]) -> None:
    if not columns:
        raise InvalidSetting("columns: name at least one, or leave it out to get all")
    for name in columns:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InvalidSetting(f"columns: there is no column {name!r}{hint} The columns are {', '.join(names)}")
    check_named_once("columns", columns)
