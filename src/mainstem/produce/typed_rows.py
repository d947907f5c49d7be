"""Rows for a stream with a schema out of files and pipes: JSON by line or frame, CSV, and Parquet or Avro as tables.

A line of JSON is a row, or what `mainstem tail --output json` writes of a record: an object whose `value` is the row,
with `key`, `headers` and `timestamp` beside it. The first line decides which of the two all are; it is a row if the
schema has all of its names. Rows of JSON and CSV may have the columns `_key`, `_headers` and `_timestamp`, which are
then those of the record; `_shard` and `_offset` are passed over. Where the key is made of columns, one that is given
must be that one.

The columns decide what a cell of CSV is: a number, a time, a text; a struct, list or map is written in it as JSON. A
cell with nothing in it is null, or an empty text where the column cannot be null.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from mainstem.core.errors import InvalidRecord
from mainstem.core.schema import METADATA_COLUMNS, Schema, aliases_of
from mainstem.produce import rows as records
from mainstem.produce.cells import bytes_cell, csv_cells

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode
_NOT_JSON: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_NULL: Final = msgspec.Raw(b"null")
_METADATA: Final = frozenset(METADATA_COLUMNS)


class TypedRow(NamedTuple):
    """A row to send, and which one of the input it is."""

    number: int
    value: bytes | Mapping[str, Any] | None
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str] | None = None
    timestamp: datetime | int | None = None


def json_lines(blocks: Iterable[bytes], schema: Schema, key_field: str | None = None) -> Iterator[TypedRow]:
    """Each line a JSON object. Empty lines are passed over."""
    read: Callable[[bytes], records.Row] | None = None
    for number, line in enumerate(records.split_lines(blocks), 1):
        text = records.without_mark(line) if number == 1 else line
        if not text.strip():
            continue
        if key_field is not None:
            yield TypedRow(number, text, records.key_in(number, text, key_field))
            continue
        if read is None:
            read = reader_of(text, schema)
        if read is as_it_is:
            yield TypedRow(number, text)
            continue
        with records.place(f"line {number}"):
            row = read(text)
        yield TypedRow(number, *row)


def reader_of(line: bytes, schema: Schema) -> Callable[[bytes], records.Row]:
    """What makes records of lines like this one."""
    try:
        names = set(_decode_fields(line))
    except _NOT_JSON:
        return as_it_is  # whatever it is, the check of the row says so
    if records.is_records(names) and names - _known(schema):
        return _of_record
    return _of_flat if names & _METADATA else as_it_is


def _known(schema: Schema) -> set[str]:
    return {name for field in schema.arrow for name in (field.name, *aliases_of(field))}


def as_it_is(line: bytes) -> records.Row:
    return records.Row(line)


def _fields(line: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_fields(line)
    except _NOT_JSON as error:
        raise InvalidRecord(f"not a JSON object ({error})") from None


def _decoded(name: str, raw: msgspec.Raw) -> Any:
    """A field, of which only the end was looked for before."""
    try:
        return _decode_json(raw)
    except _NOT_JSON as error:
        raise InvalidRecord(f"field {name!r} is not JSON ({error})") from None


def _of_record(line: bytes) -> records.Row:
    """What `tail --output json` writes: the value is JSON of a row, as it stands or in a text, or null."""
    fields = _fields(line)
    beside = {name: _decoded(name, raw) for name, raw in fields.items() if name != "value"}
    value = fields.get("value", _NULL)
    raw = bytes(value)
    found = records.record_of({**beside, "value": None} if "value" in fields else beside)
    if found.value is not None or raw == b"null":
        return found  # bytes that were no row where they come from, or a tombstone
    return found._replace(value=_decoded("value", value).encode() if raw[:1] == b'"' else raw)


def _of_flat(line: bytes) -> records.Row:
    """A row with what belongs to its record beside its own columns."""
    fields = _fields(line)
    beside = {name: _decoded(name, fields.pop(name)) for name in _METADATA & fields.keys()}
    return _with_metadata(_encode_json(fields), beside)


def _with_metadata(value: Any, beside: Mapping[str, Any]) -> records.Row:
    record = {name.removeprefix("_"): given for name, given in beside.items()}
    return records.record_of({**record, "value": None})._replace(value=value)


def frames(blocks: Iterable[bytes]) -> Iterator[TypedRow]:
    """Each frame a JSON object."""
    for number, row in enumerate(records.frames(blocks), 1):
        yield TypedRow(number, row.value)


def csv_rows(file: IO[bytes], schema: Schema, key_field: str | None = None) -> Iterator[TypedRow]:
    """The first line names the fields; each cell becomes a value of its column."""
    takers = {field.name: _cell_taker(field) for field in schema.arrow}
    for number, cells in csv_cells(file):
        # A name that the schema does not have is refused with the rest of the row.
        row = {
            name: takers[name](text) if name in takers else text
            for name, text in cells.items()
            if name not in _METADATA
        }
        if key_field is not None:
            yield TypedRow(number, row, records.key_of(cells, key_field))
        elif len(row) == len(cells):
            yield TypedRow(number, row)
        else:
            with records.place(f"line {number}"):
                found = _with_metadata(row, _metadata_cells(cells))
            yield TypedRow(number, *found)


def _metadata_cells(cells: Mapping[str, str | None]) -> dict[str, Any]:
    beside: dict[str, Any] = {name: cells[name] for name in _METADATA & cells.keys()}
    return {**beside, "_key": bytes_cell(beside.get("_key"))}


_BOOLS: Final = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False}


def _cell_taker(field: pa.Field) -> Callable[[str | None], Any]:
    """What makes a value of a cell. What is none stays text, which the check of the row refuses with its path."""
    kind = field.type
    make: Callable[[str], Any] = str
    if pa.types.is_nested(kind):
        make = _decode_json
    elif pa.types.is_boolean(kind):
        make = _BOOLS.__getitem__
    elif pa.types.is_integer(kind) or pa.types.is_duration(kind):
        make = int
    elif pa.types.is_floating(kind):
        make = float
    elif pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        make = bytes_cell
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    # Programs that put quotes around everything have no other way to say null, but for a text.
    nothing = "" if is_text and not field.nullable else None

    def take(text: str | None) -> Any:
        if not text and (text is None or not is_text):
            return nothing
        try:
            return make(text)
        except (KeyError, ValueError, RecursionError, msgspec.DecodeError):
            return text

    return take


def parquet_schema(file: IO[bytes]) -> pa.Schema:
    """The columns of a Parquet file, read from its end; the file then stands where it stood."""
    from mainstem.produce.parquet import ParquetSource

    place = file.tell()
    schema = ParquetSource(file).schema
    file.seek(place)
    return _without_metadata(schema)


def avro_schema(file: IO[bytes]) -> pa.Schema:
    """The same of an Avro file."""
    from mainstem.registry.containers import read_avro

    place = file.tell()
    schema = read_avro(file)[0]
    file.seek(place)
    return _without_metadata(schema)


def _without_metadata(schema: Collection[pa.Field]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in _METADATA])


def parquet(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, as tables. The file must be seekable."""
    from mainstem.produce.parquet import ParquetSource

    return ParquetSource(file).batches()


def avro(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of an Avro file, as tables. It may be a pipe."""
    from mainstem.registry.containers import read_avro

    return read_avro(file)[1]
