"""Rows for a stream with a schema out of files and pipes: JSON by line or frame, CSV, and Parquet as tables.

The columns decide what a cell of CSV is: a number, a time, a text; a struct, list or map is written in it as JSON. An
empty cell is null, or an empty text where the column cannot be null.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import msgspec
import pyarrow as pa

from mainstem.core.schema import METADATA_COLUMNS, Schema
from mainstem.produce import rows as records


class TypedRow(NamedTuple):
    """A row to send, and which one of the input it is."""

    number: int
    value: bytes | Mapping[str, Any] | None
    key: bytes | str | None = None


def json_lines(blocks: Iterable[bytes], key_field: str | None = None) -> Iterator[TypedRow]:
    """Each line a JSON object. Empty lines are passed over."""
    for number, line in enumerate(records.split_lines(blocks), 1):
        text = records.without_mark(line) if number == 1 else line
        if text.strip():
            key = None if key_field is None else records.key_in(number, text, key_field)
            yield TypedRow(number, text, key)


def frames(blocks: Iterable[bytes]) -> Iterator[TypedRow]:
    """Each frame a JSON object."""
    for number, row in enumerate(records.frames(blocks), 1):
        yield TypedRow(number, row.value)


def csv_rows(file: IO[bytes], schema: Schema, key_field: str | None = None) -> Iterator[TypedRow]:
    """The first line names the fields; each cell becomes a value of its column."""
    takers = {field.name: _cell_taker(field) for field in schema.arrow}
    for number, cells in records.csv_cells(file):
        # A name that the schema does not have is refused with the rest of the row.
        row = {name: takers[name](text) if name in takers else text for name, text in cells.items()}
        yield TypedRow(number, row, None if key_field is None else records.key_of(cells, key_field))


def _cell_taker(field: pa.Field) -> Callable[[str], Any]:
    """What makes a value of a cell. What is none stays text, which the check of the row refuses with its path."""
    kind, is_nullable = field.type, field.nullable
    make: Callable[[str], Any] = str
    if pa.types.is_nested(kind):
        make = msgspec.json.decode
    elif pa.types.is_boolean(kind):
        make = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False}.__getitem__
    elif pa.types.is_integer(kind):
        make = int
    elif pa.types.is_floating(kind):
        make = float
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)

    def take(text: str) -> Any:
        if not text and (is_nullable or not is_text):
            return None
        try:
            return make(text)
        except (KeyError, ValueError, msgspec.DecodeError):
            return text

    return take


def parquet_schema(file: IO[bytes]) -> pa.Schema:
    """The columns of a Parquet file, read from its end; the file then stands where it stood."""
    import pyarrow.parquet as pq

    place = file.tell()
    with records.readable_parquet():
        schema = pq.ParquetFile(file).schema_arrow
    file.seek(place)
    return pa.schema([field for field in schema if field.name not in METADATA_COLUMNS])


def parquet(file: IO[bytes]) -> Iterator[pa.Table]:
    """The rows of a Parquet file, as tables. The file must be seekable."""
    import pyarrow.parquet as pq

    with records.readable_parquet():
        for batch in pq.ParquetFile(file).iter_batches():
            yield pa.table(batch)
