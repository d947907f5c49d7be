"""The formats in which rows leave: dicts, lines of JSON, CSV, Arrow, Parquet, Avro files.

How a value is written as text is said in `texts`, and what it is in a dict in `dicts`; Avro files are made in
`containers`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core.errors import RecordTooLarge
from mainstem.core.limits import FORMATTED_BYTES_MAX, MIB
from mainstem.registry.dicts import python_values
from mainstem.registry.texts import csv_texts, object_texts, shown_range
from mainstem.registry.types import is_nested

# About how much text is made at once.
_PIECE_BYTES: Final = 16 * MIB


def to_dicts(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as dicts."""
    names = batch.schema.names
    columns = [python_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if names else []


def to_ndjson(batch: pa.RecordBatch | pa.Table) -> bytes:
    """The rows as lines of JSON. RecordTooLarge if they would be more than FORMATTED_BYTES_MAX: take pieces then."""
    return _joined(ndjson_pieces(batch))


def ndjson_pieces(batch: pa.RecordBatch | pa.Table) -> Iterator[bytes]:
    """The same text in pieces of whole lines, some 16 MiB each."""
    for piece in _pieces(batch):
        yield _joined_texts(object_texts(piece.schema, piece.columns, end="}\n"))


def to_csv(batch: pa.RecordBatch | pa.Table, header: bool = True) -> bytes:
    """The rows as CSV. Text stands in quotes, always: a field that is null is empty and has none."""
    return _joined(csv_pieces(batch, header))


def csv_pieces(batch: pa.RecordBatch | pa.Table, header: bool = True) -> Iterator[bytes]:
    """The same text in pieces of whole lines, some 16 MiB each."""
    if header:
        quoted = ['"' + name.replace('"', '""') + '"' for name in batch.schema.names]
        yield (",".join(quoted) + "\n").encode()
    for piece in _pieces(batch):
        cells = [part for column in piece.columns for part in (csv_texts(column), ",")]
        yield _joined_texts(pc.binary_join_element_wise(*cells[:-1], "\n", ""))


def to_arrow_stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """The rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def to_avro_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, name: str = "row") -> bytes:
    """The rows as an Avro container file."""
    from mainstem.registry.containers import write_avro

    return write_avro(batches, schema, name=name)


def to_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """The rows as a Parquet file."""
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    with pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


# In pieces, so that no text is larger than a column of Arrow can be, nor than the limit.


def _pieces(batch: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    for whole in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
        yield from _halves(whole)


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    size = sum(_text_bytes(field, column) for field, column in zip(batch.schema, batch.columns, strict=True))
    if size > _PIECE_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _halves(batch.slice(0, half))
        yield from _halves(batch.slice(half))
    elif size > FORMATTED_BYTES_MAX:
        raise RecordTooLarge(f"a row could be {size} bytes as text; at most {FORMATTED_BYTES_MAX} are written")
    elif batch.num_rows:
        yield batch


def _text_bytes(field: pa.Field, array: pa.Array) -> int:
    """How large the text of these values may be, names included."""
    kind = array.type
    own = len(array) * (2 * len(field.name) + 8)
    if pa.types.is_struct(kind):
        return own + sum(_text_bytes(part, array.field(index)) for index, part in enumerate(kind))
    if pa.types.is_map(kind):
        start, end = shown_range(array)
        keys, items = array.keys.slice(start, end - start), array.items.slice(start, end - start)
        return own + _text_bytes(kind.key_field, keys) + _text_bytes(kind.item_field, items)
    if is_nested(kind):
        start, end = shown_range(array)
        return own + _text_bytes(kind.value_field, array.values.slice(start, end - start))
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return own + 6 * int(array.nbytes)
    return own + 32 * len(array) if not pa.types.is_decimal(kind) else own + 84 * len(array)


def _joined_texts(texts: pa.StringArray) -> bytes:
    """All texts of an array, one behind the other: as they stand in its memory."""
    _, ends, data = texts.buffers()
    bounds = np.frombuffer(ends, np.int32)[[texts.offset, texts.offset + len(texts)]]
    return bytes(data.slice(int(bounds[0]), int(bounds[1] - bounds[0]))) if data is not None else b""


def _joined(pieces: Iterator[bytes]) -> bytes:
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > FORMATTED_BYTES_MAX:
            raise RecordTooLarge(f"these rows are more than {FORMATTED_BYTES_MAX} bytes as text; take them in pieces")
        found.append(piece)
    return b"".join(found)
