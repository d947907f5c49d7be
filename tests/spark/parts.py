"""What tests of Spark share: streams with rows whose sums are known."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string()), ("day", pa.timestamp("us", "UTC"))])
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def rows(first: int, count: int, days: int = 30) -> pa.Table:
    """Rows whose ids follow each other, and whose days go on with them, `days` in all of the table."""
    ids = np.arange(first, first + count, dtype=np.int64)
    step = timedelta(days=days) / count
    return pa.table(
        {
            "id": pa.array(ids),
            "x": pa.array(ids * 0.5),
            "v": pa.array([f"value {number}" for number in ids]),
            "day": pa.array([BEGIN + step * index for index in range(count)], pa.timestamp("us", "UTC")),
        },
        schema=SCHEMA,
    )


def fill(
    hub, stream: str = "orders", count: int = 10_000, *, shards: int = 2, batch: int = 500, first: int = 0, **options
) -> None:
    """A stream of rows, in batches of about so many."""
    hub.streams.create(stream, shards=shards, schema=SCHEMA, exist_ok=True, **options)
    append(hub, stream, first, count, batch)


def append(hub, stream: str, first: int, count: int, batch: int = 500) -> None:
    with hub.producer() as producer:
        table = rows(first, count)
        for at in range(0, count, batch):
            producer.send_batch(stream, table.slice(at, batch))
            producer.flush()
