"""The cold block: old records of one shard as a Parquet file, whose bytes are frames of a block as well.

    0       block header, 64 bytes, which begins with PAR1
    64      a command frame that says the schema of the rows, if they have one
    then    a moved frame of encoding 6: statistics as of any batch; its payload are the row groups
    last    a frame of kind 7: its payload are zeros, then the metadata of the Parquet file, its length, PAR1

Parquet finds everything by its place in the file, so any reader of Parquet reads it, and passes over the headers of
frames; whoever walks, checks or copies blocks follows the frames, and passes over Parquet. Each byte is covered by the
checksum of a frame, and nothing of it is interpreted before that is right.

A file holds one range of offsets, small enough to be in memory. Its rows have the columns of a batch (`layouts`), and
behind them `_timestamp` and `_offset` (records without a schema: `timestamp` and `_offset`). They are sorted by key,
then by offset, and the metadata says so; without keys they are in the order of their offsets. Who reads the stream gets
them in that order, as ordinary batches.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainstem.core import layouts
from mainstem.core.batch import BatchHeader, Buffer
from mainstem.core.checksum import crc32c
from mainstem.core.errors import InvalidPayload
from mainstem.core.limits import COLD_STORED_BYTES_MAX, PAYLOAD_STORED_BYTES_MAX
from mainstem.log.contents import Contents
from mainstem.log.flush import DescribeSchema, encode_command
from mainstem.log.frame import (
    ALIGNMENT,
    BLOCK_HEADER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES_MAX,
    PARQUET_ENCODING,
    BlockHeader,
    FlushWriter,
    FrameDamaged,
    FrameHeader,
    FrameKind,
    Place,
    claimed_header_len,
    parse_header,
    payload_of,
    statistics_of,
)
from mainstem.log.replacement import Records

# Rows of one row group: a reader of Parquet that looks for a key passes over the others.
_GROUP_ROWS: Final = 128 << 10
_OFFSET: Final = pa.field("_offset", pa.int64(), nullable=False)
# Of a Parquet file, behind its metadata: how long that is, and the magic.
_TRAILER_BYTES: Final = 8
_MAGIC_BYTES: Final = 4
# The whole file: two frames with payloads, one that says a schema, and headers.
FILE_BYTES_MAX: Final = COLD_STORED_BYTES_MAX + 2 * PAYLOAD_STORED_BYTES_MAX + 3 * HEADER_BYTES_MAX


class ColdBlock(NamedTuple):
    """A cold block whose every frame is right: its header, the frame with the records, and the bytes."""

    header: BlockHeader
    frame: FrameHeader
    statistics: bytes
    data: Buffer

    @property
    def base(self) -> int:
        """The first offset that it stands for."""
        return self.frame.producer


# Writing.


def pack(header: BlockHeader, applied: int, stream: int, shard: int, records: Records) -> list[Buffer]:
    """The bytes of a cold block. InvalidPayload if the records do not fit into one, or are none."""
    contents, schema = records.contents, records.contents.schema(records.schema_id)
    if not len(records.offsets):
        raise InvalidPayload("a cold file without records")
    place = Place(header.block, header.ledger_epoch, header.writer_epoch, header.first_flush, applied)
    frames = FlushWriter(place, BLOCK_HEADER_BYTES)
    if schema is not None:
        frames.add_command(encode_command(DescribeSchema(records.schema_id, schema.serialized)), header.created_us)
    described = contents.with_statistics(_header_of(stream, shard, records), records.batch)
    groups, end = _parquet(records, frames.end + FRAME_BYTES + len(described.statistics))
    if len(groups) > COLD_STORED_BYTES_MAX or len(end) > PAYLOAD_STORED_BYTES_MAX:
        raise InvalidPayload(f"{len(groups)} bytes are too many for one cold file")
    stored = msgspec.structs.replace(described, stored_len=len(groups), payload_crc=crc32c(groups))
    frames.add_moved(records.first, stored, groups)
    frames.add_parquet_end(bytes(-len(end) % ALIGNMENT) + bytes(end), header.created_us)
    return [header.pack(), *frames.buffers]


def _header_of(stream: int, shard: int, records: Records) -> BatchHeader:
    count, span = len(records.offsets), records.stop - records.first
    return BatchHeader(
        stream=stream,
        shard=shard,
        count=count,
        encoding=PARQUET_ENCODING,
        layout=0,
        schema_id=records.schema_id,
        raw_len=records.batch.nbytes,
        stored_len=0,
        payload_crc=0,
        producer=0,
        producer_epoch=0,
        sequence=0,
        generation=records.generation,
        time_low=int(records.times.min()),
        time_high=int(records.times.max()),
        span=span if span != count else 0,
    )


def _parquet(records: Records, position: int) -> tuple[memoryview, memoryview]:
    """Row groups for this position of a file, and the end of the file, which may stand anywhere behind them."""
    table = _table(records)
    order = _sort_names(records)
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out,
        table.schema,
        compression="zstd",
        write_page_index=True,
        # For who reads the file as Parquet: readers of the stream check frames.
        write_page_checksum=True,
        sorting_columns=pq.SortingColumn.from_ordering(table.schema, [(name, "ascending") for name in order]),
    ) as writer:
        # It has written its magic, where the header of the block will stand, and goes on where the stream ends.
        out.write(bytes(position - _MAGIC_BYTES))
        if len(order) > 1:
            table = table.take(pc.sort_indices(table, [(name, "ascending") for name in order]))
        writer.write_table(table, row_group_size=_GROUP_ROWS)
    data = memoryview(out.getvalue())
    length = int.from_bytes(data[-_TRAILER_BYTES:-_MAGIC_BYTES], "little")
    split = len(data) - _TRAILER_BYTES - length
    return data[position:split], data[split:]


def _table(records: Records) -> pa.Table:
    count = len(records.offsets)
    times = pa.Array.from_buffers(layouts.TIMESTAMP_TYPE, count, [None, pa.py_buffer(records.times.copy())])
    offsets = pa.Array.from_buffers(_OFFSET.type, count, [None, pa.py_buffer(records.offsets.copy())])
    fields = [pa.field(name, column.type) for name, column in records.columns.items()]
    time_name = layouts.ROW_TIMESTAMP.name if records.schema_id else "timestamp"
    fields += [pa.field(time_name, layouts.TIMESTAMP_TYPE, nullable=False), _OFFSET]
    return pa.Table.from_arrays([*records.columns.values(), times, offsets], schema=pa.schema(fields))


def _sort_names(records: Records) -> list[str]:
    """The columns by which the rows of a file are sorted: those of the key, then the offset."""
    contents = records.contents
    names: Sequence[str] = ()
    if records.schema_id and contents.key:
        names = contents.names_in(records.schema_id, contents.key)
    elif (own := layouts.ROW_KEY.name if records.schema_id else "key") in records.columns:
        names = (own,)
    return [*names, _OFFSET.name]


# Reading.


def parse(data: Buffer, block: int) -> ColdBlock:
    """The cold block of this number; FrameDamaged if a byte of it is not what was written."""
    header = BlockHeader.parse(bytes(data[:BLOCK_HEADER_BYTES]))
    if header.block != block:
        raise FrameDamaged(0, f"this is block {header.block}")
    position, found = BLOCK_HEADER_BYTES, []
    while position < len(data):
        length = claimed_header_len(data, position)
        frame = parse_header(memoryview(data)[position : position + length], 0, position, block)
        payload_of(data, position, frame)
        found.append(frame)
        if any(data[position + frame.header_len + frame.stored_len : position + frame.total_len]):
            raise FrameDamaged(position, "padding that is not zero")
        position += frame.total_len
    kinds = [frame.kind for frame in found]
    if position != len(data) or kinds[-2:] != [FrameKind.MOVED, FrameKind.PARQUET_END]:
        raise FrameDamaged(position, "a cold block ends with its records and with the end of a Parquet file")
    records = found[-2]
    if records.encoding != PARQUET_ENCODING:
        raise FrameDamaged(records.position, f"encoding {records.encoding} in a cold block")
    return ColdBlock(header, records, statistics_of(data, records.position, records), data)


def records_in(block: ColdBlock, contents: Contents) -> Records:
    """The records of a cold block, in the order of their offsets. FrameDamaged if they are not what its frame says:
    the checksums are right, so whoever wrote it was mistaken."""
    frame = block.frame
    try:
        table = pq.ParquetFile(pa.BufferReader(block.data)).read()
        schema = contents.schema(frame.schema_id)
        columns = _columns(table, layouts.FULL_SCHEMA if schema is None else layouts.shape_of(0, schema).schema)
    except layouts.ARROW_ERRORS as error:
        raise FrameDamaged(frame.position, f"not the Parquet file that was written: {error}") from error
    names = ("timestamp", _OFFSET.name) if schema is None else (layouts.ROW_TIMESTAMP.name, _OFFSET.name)
    times, offsets = (_numbers(columns.pop(name, None), frame) for name in names)
    order = _order_of(offsets, block.base, frame)
    if order is not None:
        # Column by column: of a whole batch it takes twice as long.
        places = _places(order)
        columns = {name: column.take(places) for name, column in columns.items()}
        times, offsets = times[order], offsets[order]
    return Records(
        first=block.base,
        stop=block.base + frame.span,
        offsets=offsets,
        times=times,
        generation=frame.generation,
        columns=columns,
        schema_id=frame.schema_id,
        contents=contents,
    )


# Not `to_numpy` and `pa.array`: their first call imports pandas where that is installed, and a reader waits for that.


def _numbers(column: pa.Array | None, frame: FrameHeader) -> np.ndarray:
    """The times or the offsets of all rows."""
    if column is None or column.type not in (_OFFSET.type, layouts.TIMESTAMP_TYPE) or column.null_count:
        raise FrameDamaged(frame.position, "rows without a time, or without an offset")
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


def _places(order: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])


def _columns(table: pa.Table, schema: pa.Schema) -> dict[str, pa.Array]:
    """The columns as arrays of the types that batches have: Parquet names the items of lists in its own way."""
    kinds = {field.name: field.type for field in (*schema, layouts.ROW_KEY, layouts.ROW_HEADERS)}
    columns: dict[str, pa.Array] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        kind = kinds.get(name, column.type)
        columns[name] = column if column.type.equals(kind, check_metadata=True) else column.cast(kind)
    return columns


def _order_of(offsets: np.ndarray, base: int, frame: FrameHeader) -> np.ndarray | None:
    """In which order the rows have rising offsets; None if they stand in it."""
    count, order = len(offsets), None
    if count > 1 and (np.diff(offsets) <= 0).any():
        places = offsets - base
        if frame.span == count and 0 <= places.min() <= places.max() < count:
            # One row for each offset: where each belongs is known without sorting.
            order = np.zeros(count, np.int64)
            order[places] = np.arange(count)
        else:
            order = np.argsort(offsets)
    sorted_ = offsets if order is None else offsets[order]
    is_rising = bool((np.diff(sorted_) > 0).all())
    if not 0 < count == frame.count or not is_rising or sorted_[0] < base or sorted_[-1] >= base + frame.span:
        raise FrameDamaged(frame.position, "the offsets of the rows are not those of the file")
    return order
