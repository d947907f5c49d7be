"""What tests of Spark share: streams with rows whose sums are known, and batches that are torn out of them."""

import os
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

import mainstem
from mainstem.log.ledger.base import Entry
from mainstem.log.ledger.sqlite.reader import SqliteLedgerReader

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


def entry_of(folder: Path, stream: str, shard: int, offset: int) -> Entry:
    """The entry of the batch that has this record: where it lies."""
    with closing(SqliteLedgerReader(folder / "ledger.db")) as ledger:
        row = ledger.stream_named(stream)
        assert row is not None
        return ledger.entries_from(row.id, shard, offset, 1)[0]


def overwrite(folder: Path, block: int, position: int, length: int) -> None:
    """Zeros in place of bytes of a block, which the ledger does not notice."""
    with (folder / "blocks" / f"{block:016d}.block").open("r+b") as file:
        file.seek(position)
        file.write(bytes(length))


def tear_out(folder: Path, stream: str, shard: int, offset: int) -> Entry:
    """Overwrite the batch that has this record; the entry that the ledger has of it."""
    entry = entry_of(folder, stream, shard, offset)
    overwrite(folder, entry.block, entry.position, entry.length)
    return entry


def make_half_spoilt(folder: Path) -> None:
    """A log with a stream `wide` of 30 rows, `id` and `n` from 0 on. Between them is a wide column `blob` that cannot
    be read, of no batch: whoever asks for it too meets a loss."""
    with mainstem.open(folder) as hub, hub.producer() as producer:
        hub.streams.create("wide", schema={"id": "int64", "blob": "binary", "n": "int64"})
        for first in range(0, 30, 10):
            ids = range(first, first + 10)
            blobs = [os.urandom(20_000) for _ in ids]
            producer.send_batch("wide", pa.table({"id": ids, "blob": blobs, "n": ids}))
            producer.flush()
    for first in range(0, 30, 10):
        entry = entry_of(folder, "wide", 0, first)
        assert (entry.base, entry.end) == (first, first + 10)
        overwrite(folder, entry.block, entry.position + entry.length // 2, 1_000)
