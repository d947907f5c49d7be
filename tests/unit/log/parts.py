"""Real parts of the log, made with few words: batches, and everything between a folder and a batcher."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.core import layouts, payload
from mainstem.core.batch import Batch, Buffer, FetchedBatch
from mainstem.core.identity import new_stream_uuid
from mainstem.core.schema import Schema
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.disk import LocalDisk, LocalFile
from mainstem.log.flush import Appended, CreateStream, Outcome
from mainstem.log.frame import FlushWriter, Place
from mainstem.log.log import Log, Waiter

NOW_US = 1_767_225_600_000_000
# Records of tests are of NOW_US, whatever the day they run.
FOREVER_US = 1000 * 365 * 86_400_000_000
LOG_UUID = "0123456789abcdef" * 2


def encode_batch(
    decoded: pa.RecordBatch, schema: Schema | None = None, *, compression: str | None = "lz4", **fields: Any
) -> Batch:
    """A batch of stream 1 as a producer would encode it. `fields` are those of its header that are others."""
    encoded = payload.encode(decoded, compression, schema)
    header = encoded.header(stream=1, shard=0, schema_id=0, generation=0, time_low=NOW_US, time_high=NOW_US)
    return Batch(msgspec.structs.replace(header, **fields), encoded.payload)


def make_batch(
    values: Sequence[bytes | None] = (b"x",),
    *,
    stream: int = 1,
    shard: int = 0,
    producer: int = 0,
    epoch: int = 0,
    sequence: int = 0,
    generation: int = 0,
    times: tuple[int, int] = (NOW_US, NOW_US),
    compression: str | None = None,
) -> Batch:
    """A batch of bytes alone."""
    return encode_batch(
        layouts.build(list(values)),
        compression=compression,
        stream=stream,
        shard=shard,
        producer=producer,
        producer_epoch=epoch,
        sequence=sequence,
        generation=generation,
        time_low=times[0],
        time_high=times[1],
    )


# A record of a stream with keys: key, value, time.
KeyedRecord = tuple[bytes | None, bytes | None, int]


def make_keyed_batch(
    records: Sequence[KeyedRecord],
    *,
    stream: int = 1,
    shard: int = 0,
    producer: int = 0,
    sequence: int = 0,
    headers: Sequence[layouts.Headers | None] | None = None,
    times: Sequence[int | None] | None = None,
) -> Batch:
    """A batch with keys. Its times are those of the records unless others are given, of which some may be None."""
    keys, values, own = (list(column) for column in zip(*records, strict=True))
    column = own if times is None and len(set(own)) > 1 else times
    return encode_batch(
        layouts.build(values, keys, headers, column),
        stream=stream,
        shard=shard,
        producer=producer,
        sequence=sequence,
        time_low=min(own),
        time_high=max(own),
    )


def make_row_batch(
    rows: Sequence[Mapping[str, Any]],
    schema: Schema,
    schema_id: int,
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Any] | None = None,
    times: Sequence[int | None] | None = None,
    distances: Sequence[int] | None = None,
    **fields: Any,
) -> Batch:
    """Rows of a schema with those columns beside them that are given. `distances` is of a batch of which records are
    missing."""
    decoded = pa.RecordBatch.from_pylist(list(rows), schema=layouts.shape_of(0, schema).schema)
    columns = dict(zip(decoded.schema.names, decoded.columns, strict=True))
    beside = {"_key": keys, "_headers": headers, "_timestamp": times, "_offset": distances}
    for _, field in layouts.ROW_FIELDS:
        if (given := beside[field.name]) is not None:
            columns[field.name] = pa.array(given, field.type)
    return encode_batch(layouts.narrow_rows(columns, schema), schema, schema_id=schema_id, **fields)


def values_of(batch: Batch | FetchedBatch) -> list[bytes | None]:
    """The records of a batch, decoded and checked."""
    header = batch.header
    found = payload.check(header.encoding, header.layout, header.count, header.raw_len, bytes(batch.payload))
    return found.column("value").to_pylist()


def make_stream(log: Log, name: str = "orders", shards: int = 1) -> int:
    """A new stream; its id."""
    return log.execute(CreateStream(new_stream_uuid(), name, shards, "crc32", FOREVER_US, NOW_US)).stream


def append(log: Log, *batches: Batch) -> list[Outcome]:
    """Append in one submission and wait."""
    waiter = Waiter()
    log.append(batches, waiter.set)
    return waiter.wait(log.batcher)


def append_values(log: Log, stream: int, *values: bytes, shard: int = 0) -> int:
    """One batch without a producer; its base."""
    (outcome,) = append(log, make_batch(values, stream=stream, shard=shard))
    assert isinstance(outcome, Appended)
    return outcome.base


class WatchedDisk(LocalDisk):
    """A local disk that calls `before_write(path)` before every durable write, which may wait or raise."""

    def __init__(self, before_write: Callable[[Path], None]) -> None:
        self._before_write = before_write

    def create(self, path: Path) -> LocalFile:
        return _WatchedFile(super().create(path), self._before_write)


class _WatchedFile(LocalFile):
    def __init__(self, file: LocalFile, before_write: Callable[[Path], None]) -> None:
        self.path, self._fd = file.path, file._fd
        self._before_write = before_write

    def write_durably(self, buffers: Sequence[Buffer], position: int) -> None:
        self._before_write(self.path)
        super().write_durably(buffers, position)


def make_blocks(path: Path) -> LocalBlocks:
    """A block store in a new folder."""
    folder = path / "blocks"
    folder.mkdir(parents=True, exist_ok=True)
    return LocalBlocks(folder, LocalDisk())


def make_place(block: int = 1, flush: int = 1, applied: int = 0) -> Place:
    return Place(block, 1, 1, flush, applied)


def flush_bytes(batches: Sequence[Batch], *, block: int = 1, flush: int = 1, position: int = 64) -> bytes:
    """One whole flush with its commit frame, as it lies in a block."""
    writer = FlushWriter(make_place(block, flush), position)
    for batch in batches:
        writer.add_data(batch.header, batch.payload)
    writer.add_commit(NOW_US, 0, 0)
    return b"".join(bytes(buffer) for buffer in writer.buffers)
