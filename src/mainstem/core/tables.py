"""Tables of users (Arrow, pandas, polars) as batches of records."""

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidPayload
from mainstem.core.layouts import ARROW_ERRORS, BIT_OF, FULL_SCHEMA, HEADERS_TYPE, TIMESTAMP_TYPE, narrow, refuse
from mainstem.core.limits import BATCH_RECORDS_MAX, PAYLOAD_RAW_BYTES_MAX


def as_batches(data: Any) -> list[pa.RecordBatch]:
    """A table of any kind as batches, each in its narrowest layout and small enough to be one payload.

    Takes pyarrow tables and batches, pandas and polars frames and whatever else speaks the Arrow C stream interface.
    Columns: `value`, required; `key`, `headers` and `timestamp` if wanted; no others.
    """
    try:
        table = as_table(data)
        names = table.schema.names
        if "value" not in names:
            raise InvalidPayload(f"column 'value' is missing; the columns are {names}")
        if len(set(names)) != len(names):
            raise InvalidPayload(f"a column occurs twice; the columns are {names}")
        columns = {name: _cast(name, table.column(name)) for name in names}
        table = pa.table({name: columns[name] for name in FULL_SCHEMA.names if name in columns})
        return [narrow(dict(zip(piece.schema.names, piece.columns, strict=True))) for piece in as_pieces(table)]
    except ARROW_ERRORS as error:
        refuse(error)


def as_pieces(table: pa.Table) -> list[pa.RecordBatch]:
    """A table as batches, each small enough to be one payload."""
    table.validate()
    if table.nbytes <= PAYLOAD_RAW_BYTES_MAX:
        table = table.combine_chunks()  # many tiny batches would cost more than one copy
    return [piece for batch in table.to_batches(max_chunksize=BATCH_RECORDS_MAX) for piece in _halves(batch)]


def cast_envelope(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column `_key`, `_headers` or `_timestamp` of a table of rows in the type it has in a batch."""
    try:
        return _cast(name.removeprefix("_"), column)
    except ARROW_ERRORS as error:
        refuse(error)


def _halves(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch in pieces that fit one payload; a single record that does not is refused later, by its size."""
    if batch.nbytes <= PAYLOAD_RAW_BYTES_MAX // 2 or batch.num_rows == 1:
        return [batch]
    half = batch.num_rows // 2
    return _halves(batch.slice(0, half)) + _halves(batch.slice(half))


def from_user(data: Any, headers: str, is_checked_later: Callable[[pa.Table], bool]) -> pa.Table:
    """A table as a user hands it over. Every value is looked at, unless somebody does that later, before any is read:
    only what Arrow calls valid can be read without harm."""
    try:
        table = as_table(data, headers)
        table.validate()
        table = _with_whole_dictionaries(table)
        if not is_checked_later(table):
            table.validate(full=True)
    except ARROW_ERRORS as error:
        refuse(error)
    return table


def _with_whole_dictionaries(table: pa.Table) -> pa.Table:
    """The table with one chunk where several that follow each other share a dictionary: it is then looked at once."""
    for index, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) and column.num_chunks > 1:
            runs = [list(run) for _, run in groupby(column.chunks, key=_dictionary_place)]
            table = table.set_column(index, table.field(index), pa.chunked_array(map(_joined, runs), column.type))
    return table


def _dictionary_place(array: pa.DictionaryArray) -> Any:
    values = array.dictionary
    buffers = [buffer and (buffer.address, buffer.size) for buffer in values.buffers()]
    return len(values), values.offset, buffers


def _joined(arrays: list[pa.DictionaryArray]) -> pa.DictionaryArray:
    first = arrays[0]
    if len(arrays) == 1:
        return first
    indices = pa.concat_arrays([array.indices for array in arrays])
    return pa.DictionaryArray.from_arrays(indices, first.dictionary, ordered=first.type.ordered, safe=False)


def as_table(data: Any, headers: str = "headers") -> pa.Table:
    """Whatever users call a table. `headers` is the name of its column of headers."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    # Before the stream interface, which pandas speaks too but then adds its index as a column.
    if any(kind.__module__.partition(".")[0] == "pandas" for kind in type(data).__mro__) and hasattr(data, "columns"):
        return _from_pandas(data, headers)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    raise InvalidPayload(f"expected a pyarrow table or batch, a pandas or polars frame, not {type(data).__name__}")


def _from_pandas(frame: Any, name: str) -> pa.Table:
    # pandas has no map type: left to itself pyarrow would make a struct with a field for every header name.
    if name not in frame.columns or frame[name].dtype != object:
        return pa.Table.from_pandas(frame, preserve_index=False)
    column = frame[name]
    headers = [None if missing else each for each, missing in zip(column, column.isna(), strict=True)]
    table = pa.Table.from_pandas(frame.drop(columns=[name]), preserve_index=False)
    return table.append_column(name, pa.array(headers, HEADERS_TYPE))


def _cast(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """One column in the type it has in a batch."""
    kind = column.type
    if name not in BIT_OF:
        raise InvalidPayload(f"column {name!r} is not accepted; the columns are {', '.join(FULL_SCHEMA.names)}")
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), FULL_SCHEMA.field(name).type)])
    if name == "timestamp":
        return _cast_timestamp(column)
    if name == "headers":
        return pa.chunked_array([_cast_headers(chunk) for chunk in column.chunks], HEADERS_TYPE)
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if not any(accepts(kind) for accepts in _BYTES_LIKE):
        raise InvalidPayload(f"column {name!r} is {kind}; accepted are binary and string of any kind")
    return column.cast(pa.binary())


_BYTES_LIKE: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)


def _cast_timestamp(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        raise InvalidPayload(f"column 'timestamp' is {column.type}; accepted are timestamps of any unit and zone")
    # Nanoseconds may lose digits; from seconds and milliseconds only an overflow could, and that is an error.
    return column.cast(TIMESTAMP_TYPE, safe=column.type.unit != "ns")


_ENTRY_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])


def _cast_headers(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_map(kind):
        return array.cast(HEADERS_TYPE)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or kind.value_type.names != ["key", "value"]:
        raise InvalidPayload(
            f"column 'headers' is {kind}; accepted are map<string, binary> and list<struct<key, value>>"
        )
    pairs = array.cast(pa.list_(_ENTRY_TYPE))
    # pyarrow ends the process when it makes a map whose entries or names are null.
    if pairs.values.null_count or pairs.values.field("key").null_count:
        raise InvalidPayload("column 'headers' has an entry without a name")
    # A map is stored as just such a list; only the type differs.
    headers = pa.Array.from_buffers(
        HEADERS_TYPE, len(pairs), pairs.buffers()[:2], pairs.null_count, pairs.offset, [pairs.values]
    )
    headers.validate(full=True)
    return headers
