"""Fetched batches of rows, of JSON and of bytes, made with few words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.consume.record import RecordBatch
from mainstem.consume.selection import Selection
from mainstem.consume.view import View
from mainstem.core import layouts
from mainstem.core.batch import Batch, FetchedBatch
from mainstem.core.schema import Schema
from mainstem.log.ledger.base import StreamRow
from tests.unit.log.parts import encode_batch, make_row_batch

SCHEMA = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())]))
SCHEMA_ID = 7


def stream_row(id_: int = 1) -> StreamRow:
    return StreamRow(id_, f"{id_:032x}", "orders", 1, "crc32", 0, SCHEMA_ID, 0, 0, 0)


def rows_of(
    rows: Sequence[Mapping[str, Any]],
    *,
    schema: Schema = SCHEMA,
    schema_id: int = SCHEMA_ID,
    base: int = 0,
    span: int = 0,
    **beside: Any,
) -> FetchedBatch:
    """Rows as a batch of a schema, with what is given beside them."""
    return fetched(make_row_batch(rows, schema, schema_id, shard=2, span=span, **beside), base)


def records_of(values: Sequence[bytes | None], base: int = 0, **columns: Any) -> FetchedBatch:
    """Bytes, with keys, headers and timestamps if they are given."""
    return fetched(encode_batch(layouts.build(list(values), **columns), shard=2), base)


def fetched(batch: Batch, base: int = 0) -> FetchedBatch:
    return FetchedBatch(base, batch.header, batch.payload)


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
