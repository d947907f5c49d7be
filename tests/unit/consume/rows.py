"""Fetched batches of rows, of JSON and of bytes, made with few words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.consume.record import RecordBatch
from mainstem.consume.selection import Selection
from mainstem.consume.view import View
from mainstem.core import layouts, payload
from mainstem.core.batch import BatchHeader, FetchedBatch
from mainstem.core.checksum import crc32c
from mainstem.core.schema import Schema
from mainstem.log.ledger.base import StreamRow
from tests.unit.log.parts import NOW_US

SCHEMA = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())]))
SCHEMA_ID = 7


def stream_row(id_: int = 1) -> StreamRow:
    return StreamRow(id_, f"{id_:032x}", "orders", 1, "crc32", 0, SCHEMA_ID, 0, 0, 0)


def fetched(batch: pa.RecordBatch, schema: Schema | None, schema_id: int, base: int = 0, span: int = 0) -> FetchedBatch:
    encoded = payload.encode(batch, "lz4", schema)
    header = BatchHeader(
        stream=1,
        shard=2,
        count=encoded.count,
        encoding=encoded.encoding,
        layout=encoded.layout,
        schema_id=schema_id,
        raw_len=encoded.raw_len,
        stored_len=len(encoded.payload),
        payload_crc=crc32c(encoded.payload),
        producer=0,
        producer_epoch=0,
        sequence=0,
        generation=0,
        time_low=NOW_US,
        time_high=NOW_US,
        span=span,
    )
    return FetchedBatch(base, header, encoded.payload)


def rows_of(
    rows: Sequence[Mapping[str, Any]],
    *,
    schema: Schema = SCHEMA,
    schema_id: int = SCHEMA_ID,
    base: int = 0,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Any] | None = None,
    times: Sequence[int | None] | None = None,
    distances: Sequence[int] | None = None,
    span: int = 0,
) -> FetchedBatch:
    """Rows as a batch of a schema. `distances` and `span` are of a batch of which records are missing."""
    beside = {
        "_key": None if keys is None else pa.array(keys, pa.binary()),
        "_headers": None if headers is None else pa.array(headers, layouts.HEADERS_TYPE),
        "_timestamp": None if times is None else pa.array(times, layouts.TIMESTAMP_TYPE),
        "_offset": None if distances is None else pa.array(distances, pa.uint32()),
    }
    given = {name: array for name, array in beside.items() if array is not None}
    fields = layouts.shape_of(sum(bit for bit, field in layouts.ROW_FIELDS if field.name in given), schema).schema
    table = pa.Table.from_pylist(list(rows), schema=schema.arrow).combine_chunks()
    columns = {name: table.column(name).combine_chunks() for name in schema.names} | given
    batch = pa.RecordBatch.from_arrays([columns[name] for name in fields.names], schema=fields)
    return fetched(batch, schema, schema_id, base, span)


def records_of(values: Sequence[bytes | None], base: int = 0, **columns: Any) -> FetchedBatch:
    """Bytes, with keys, headers and timestamps if they are given."""
    return fetched(layouts.build(list(values), **columns), None, 0, base)


def numbered(count: int, base: int = 0) -> FetchedBatch:
    """Rows whose id is their offset."""
    rows = [{"id": base + n, "name": f"n{(base + n) % 10}", "amount": (base + n) / 2} for n in range(count)]
    return rows_of(rows, base=base)


def view(columns: Sequence[str] | None = None, **options: Any) -> View:
    return View(SCHEMA, SCHEMA_ID, columns=columns, **options)


def read(batches: Sequence[FetchedBatch], through: View) -> list[tuple[int, Any]]:
    """The offset and value of every record, as a consumer would see them."""
    found: list[tuple[int, Any]] = []
    for batch in batches:
        seen = RecordBatch("orders", batch, batch.base, None, through)
        found += [(record.offset, record.value) for record in seen.records()] if seen.count else []
    return found


def select(batch: FetchedBatch, where: str = "", through: View | None = None) -> list[tuple[int, Any]]:
    """What a selection leaves of a batch; it must cover the same offsets."""
    through = through or view()
    left = Selection(through, where).apply(batch)
    assert covers(left, batch)
    return read(left, through)


def covers(batches: Sequence[FetchedBatch], whole: FetchedBatch) -> bool:
    edges = [(batch.base, batch.end) for batch in batches]
    joined = np.array([whole.base, *(edge for pair in edges for edge in pair), whole.end]).reshape(-1, 2)
    return bool((joined[:, 0] == joined[:, 1]).all())
