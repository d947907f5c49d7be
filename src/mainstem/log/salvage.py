"""What a block file holds, read without a ledger, and written to Parquet files: one, and one more for each schema.

The block may be cut, its header gone, frames in the middle damaged: everything whose checksums hold is taken, and what
does not is counted and named by its bytes. Where records have which offsets is known

- from the footer, if the block has one that can be read: it also says which batches the log took, so that refused and
  repeated ones are left out;
- from moved frames, which carry their offsets themselves;
- not of staged frames that the footer does not name: their transaction was committed in another block, or never;
- else not at all: the offset is null, and the order is that of the file.

Schemas of rows are said in the block before the first of them; where that is damaged, whoever calls may tell them. Rows
of a schema that nobody knows are counted as damaged.

Names of streams are told by whoever calls, or by the block itself if it is the first one of its log: ids count from 1
in the order in which streams were created.

The file may be anything, also made to harm: every length is compared with its limit before anything is read for it,
and every payload is checked as if it came from the network.
"""

import contextlib
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.core.errors import FolderUnusable, InvalidPayload, InvalidRequest, MainstemError
from mainstem.core.layouts import (
    FULL_SCHEMA,
    HEADERS_TYPE,
    ROW_HEADERS,
    ROW_KEY,
    SHAPES,
    TIMESTAMP_TYPE,
    widen,
    widen_rows,
)
from mainstem.core.limits import FLUSH_BATCHES_MAX, SHARDS_PER_STREAM_MAX
from mainstem.core.payload import check
from mainstem.core.schema import Schema
from mainstem.log import cold
from mainstem.log.contents import Contents
from mainstem.log.disk import LocalDisk
from mainstem.log.flush import Command, CreateStream, DeleteStream, DescribeSchema, decode_command
from mainstem.log.frame import (
    ALIGNMENT,
    BATCH_KINDS,
    BLOCK_HEADER_BYTES,
    FRAME,
    FRAME_BYTES,
    FRAME_MAGIC,
    HEADER_BYTES_MAX,
    BlockHeader,
    FrameDamaged,
    FrameHeader,
    FrameKind,
    is_cold,
    parse_header,
)
from mainstem.log.ledger.inspector import LedgerInspector
from mainstem.log.replacement import Records
from mainstem.log.walk import DamagedRange, FoundFrame, FrameWalk

SALVAGED_SCHEMA: Final = pa.schema(
    [
        ("stream_id", pa.int64()),
        ("stream", pa.string()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("timestamp", TIMESTAMP_TYPE),
        ("flush", pa.int64()),
    ]
)
# What rows have beside their columns. A column of a schema that has one of the last names keeps it, and ours gets a
# longer one.
_ROW_PLACE: Final = (
    ("_shard", pa.int32()),
    ("_offset", pa.int64()),
    ("_key", pa.binary()),
    ("_headers", HEADERS_TYPE),
    ("_timestamp", TIMESTAMP_TYPE),
    ("_stream_id", pa.int64()),
    ("_stream", pa.string()),
    ("_flush", pa.int64()),
)
_FOOTER_ROW: Final = struct.Struct("<6q")
# A row group is written when it has so many records or bytes.
_GROUP_RECORDS: Final = 64 << 10
_GROUP_BYTES: Final = 32 << 20
# Damaged places that are named one by one.
_DAMAGES_SHOWN: Final = 100
# How far the file is searched for a frame that says which block it is.
_WINDOW_BYTES: Final = 4 << 20
# Ids, offsets and numbers of flushes above this are of no log.
_NUMBER_MAX: Final = 1 << 62
_Found = TypeVar("_Found")
_MAGIC: Final = FRAME_MAGIC.to_bytes(4, "little")


class SalvagedBatch(NamedTuple):
    """Records of one batch with all columns, the offset of the first if that is known, and the schema of rows."""

    header: FrameHeader
    base: int | None
    records: pa.RecordBatch
    schema: Schema | None = None


@dataclass(slots=True)
class SalvageReport:
    """What was found in a block."""

    block: int
    bytes: int = 0
    has_footer: bool = False
    batches: int = 0
    records: int = 0
    records_without_offset: int = 0
    # Batches that the log refused or had already, as the footer tells.
    batches_left_out: int = 0
    # Batches of transactions of which this block does not say whether they were committed. They are taken.
    batches_staged: int = 0
    damaged_count: int = 0
    damaged_bytes: int = 0
    # (first byte, byte after the last, why) of the first ones.
    damaged: list[tuple[int, int, str]] = field(default_factory=list)
    # Files that rows were written to, by the ids of their schemas, and how many of the records those are.
    row_files: dict[int, str] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)

    def note(self, begin: int, end: int, reason: str) -> None:
        self.damaged_count += 1
        self.damaged_bytes += end - begin
        if len(self.damaged) < _DAMAGES_SHOWN:
            self.damaged.append((begin, end, reason))


class _Row(NamedTuple):
    """An entry of the footer."""

    stream: int
    shard: int
    base: int
    span: int
    position: int
    length: int


class Salvage:
    """One block file, read once for what describes it and once for its records. One thread; close it."""

    def __init__(
        self, path: Path, names: Mapping[int, str] | None = None, schemas: Mapping[int, Schema] | None = None
    ) -> None:
        if path.is_dir():
            raise InvalidRequest(f"{path} is a folder; name one block file, as in data/blocks/{1:016d}.block")
        self._file = LocalDisk().open(path)
        self._schemas: dict[int, Schema] = dict(schemas or {})
        try:
            self._open(path, names or {})
        except BaseException:
            self._file.close()
            raise

    def _open(self, path: Path, names: Mapping[int, str]) -> None:
        self._size = self._file.size()
        header = self._block_header()
        block = header.block if isinstance(header, BlockHeader) else self._block_of_a_frame(path)
        self.report = SalvageReport(block, self._size)
        if isinstance(header, FrameDamaged):
            self.report.note(0, min(BLOCK_HEADER_BYTES, self._size), header.reason)
        self._walk = FrameWalk(self._file.read, self._size, block)
        self._rows: list[_Row] = []
        self._starts: list[int] = []
        # The entry that was looked at last, and where its frames have which base.
        self._row: _Row | None = None
        self._bases: dict[int, int] = {}
        self.names = dict(names)
        # Streams that were created in this block and not deleted, by name.
        self._taken: dict[str, int] = {}
        self._survey(is_first=isinstance(header, BlockHeader) and header.first_flush == 1)

    def _block_header(self) -> BlockHeader | FrameDamaged:
        try:
            return BlockHeader.parse(self._file.read(0, BLOCK_HEADER_BYTES))
        except FrameDamaged as error:
            return error

    def _block_of_a_frame(self, path: Path) -> int:
        """The number of the block, as the first frame says whose checksum holds and that stands where it says."""
        position = 0
        while position + FRAME_BYTES <= self._size:
            data = self._file.read(position, _WINDOW_BYTES + HEADER_BYTES_MAX)
            at = data.find(_MAGIC)
            while 0 <= at <= _WINDOW_BYTES and at + FRAME_BYTES <= len(data):
                claimed = FrameHeader._make(FRAME.unpack_from(data, at))
                if claimed.position == position + at and (position + at) % ALIGNMENT == 0:
                    try:
                        return parse_header(data, at, position + at, claimed.block).block
                    except FrameDamaged:
                        pass
                at = data.find(_MAGIC, at + 1)
            position += _WINDOW_BYTES
        raise FolderUnusable(f"{path} is not a block: no frame of one is in its {self._size} bytes")

    def _survey(self, *, is_first: bool) -> None:
        """Read all headers, and the payloads of footer and commands."""
        created = 0
        for header in self._walk.headers(BLOCK_HEADER_BYTES, self._size):
            if header.kind not in (FrameKind.FOOTER, FrameKind.COMMAND):
                continue
            frame = next(self._walk.frames(header.position))
            if isinstance(frame, DamagedRange):
                continue
            if header.kind == FrameKind.FOOTER:
                self._take_footer(frame)
                continue
            try:
                command = decode_command(frame.payload)
            except msgspec.MsgspecError:
                continue
            if isinstance(command, DescribeSchema):
                with contextlib.suppress(MainstemError):
                    self._schemas[command.id] = Schema.parse(command.schema)
            elif is_first:
                created = self._take_name(command, created)

    def _take_footer(self, frame: FoundFrame) -> None:
        if len(frame.payload) % _FOOTER_ROW.size:
            return
        rows = [_Row._make(row) for row in _FOOTER_ROW.iter_unpack(frame.payload)]
        # Rows without bytes stand for records that were compacted away.
        sane = (row for row in rows if row.length > 0 and row.base >= 0 and 0 < row.span <= _NUMBER_MAX - row.base)
        self._rows = sorted(sane, key=lambda row: row.position)
        self._starts = [row.position for row in self._rows]
        self.report.has_footer = True

    def _take_name(self, command: Command, created: int) -> int:
        """Streams get the next id when they are created, unless one of that name is there."""
        if isinstance(command, CreateStream) and command.name not in self._taken:
            created += 1
            self.names.setdefault(created, command.name)
            self._taken[command.name] = created
        elif isinstance(command, DeleteStream):
            self._taken = {name: stream for name, stream in self._taken.items() if stream != command.stream}
        return created

    def batches(self) -> Iterator[SalvagedBatch]:
        """Every batch whose bytes are what was written; the report grows on the way."""
        report = self.report
        for found in self._walk.frames():
            if isinstance(found, DamagedRange):
                report.note(found.begin, found.end, found.reason)
                continue
            header = found.header
            if header.kind not in BATCH_KINDS:
                continue
            base = self._base(header)
            if base is None and header.kind == FrameKind.STAGED:
                report.batches_staged += 1
            elif base is None and report.has_footer:
                report.batches_left_out += 1
                continue
            schema = self._schemas.get(header.schema_id)
            try:
                if schema is None and header.schema_id:
                    raise InvalidPayload(f"rows of schema {header.schema_id}, which the block does not say")
                records = self._cold(header, schema) if is_cold(report.block) else _records(found, schema)
            except MainstemError as error:
                report.note(header.position, header.position + header.total_len, str(error))
                continue
            report.batches += 1
            report.records += len(records)
            if schema is not None:
                report.rows[header.schema_id] = report.rows.get(header.schema_id, 0) + len(records)
            report.records_without_offset += len(records) if base is None else 0
            yield SalvagedBatch(header, base, records, schema)

    def _cold(self, header: FrameHeader, schema: Schema | None) -> pa.RecordBatch:
        """The records of a cold block, of which every frame must be right, in the order of their offsets."""
        if self._size > cold.FILE_BYTES_MAX:
            raise InvalidPayload(f"{self._size} bytes are more than a cold block can have")
        data = self._file.read(0, self._size)
        try:
            found = cold.records_in(cold.parse(data, header.block), Contents(lambda _: _known(schema)))
        except FrameDamaged as error:
            raise InvalidPayload(str(error)) from error
        return _cold_records(found, schema)

    def _base(self, header: FrameHeader) -> int | None:
        if header.kind == FrameKind.MOVED:
            return header.producer
        row = self._row_at(header.position)
        if row is None or (row.stream, row.shard) != (header.stream, header.shard):
            return None
        if row is not self._row:
            self._row, self._bases = row, self._bases_of(row)
        return self._bases.get(header.position)

    def _row_at(self, position: int) -> _Row | None:
        index = bisect_right(self._starts, position) - 1
        if index < 0:
            return None
        row = self._rows[index]
        return row if position < row.position + row.length else None

    def _bases_of(self, row: _Row) -> dict[int, int]:
        """The base of each frame of an entry: counted from its front, and behind a damaged header from its end."""
        stop = min(row.position + row.length, self._size)
        # An entry is of one flush.
        headers = list(islice(self._walk.headers(row.position, stop), FLUSH_BATCHES_MAX))
        bases: dict[int, int] = {}
        base, expected = row.base, row.position
        for header in headers:
            if header.position != expected:
                break
            bases[header.position] = base
            base, expected = base + header.span, header.position + header.total_len
        end, expected = row.base + row.span, row.position + row.length
        for header in reversed(headers):
            if header.position in bases or header.position + header.total_len != expected:
                break
            end, expected = end - header.span, header.position
            bases[header.position] = end
        return bases

    def close(self) -> None:
        self._file.close()


def write_parquet(salvage: Salvage, output: Path) -> SalvageReport:
    """Write all records of a block to a new file, a row group at a time, and rows to one for each schema, named after
    that (`out.schema-7.parquet` beside `out.parquet`). Nothing is at a path before all of them are whole."""
    files = _Files(output)
    try:
        files.open(None, 0)
        for batch in salvage.batches():
            files.add(batch, salvage.names.get(batch.header.stream))
        salvage.report.row_files = files.finish()
    finally:
        files.give_up()
    return salvage.report


class _Files:
    """The Parquet files of one salvage, each under another name until all are whole."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._files: dict[int, _RowGroups] = {}

    def open(self, schema: Schema | None, schema_id: int) -> "_RowGroups":
        path = self._output
        if schema is not None:
            path = path.with_name(f"{path.stem}.schema-{schema_id}{path.suffix}")
        if path.exists():
            raise InvalidRequest(f"{path} is there already; name another file")
        made = self._files[schema_id] = _RowGroups(path, SALVAGED_SCHEMA if schema is None else _row_schema(schema))
        return made

    def add(self, batch: SalvagedBatch, name: str | None) -> None:
        schema_id = batch.header.schema_id
        file = self._files.get(schema_id) or self.open(batch.schema, schema_id)
        file.add(_with_place(batch, name) if batch.schema is None else _rows_with_place(batch, name), batch.header)

    def finish(self) -> dict[int, str]:
        """All of them are whole; the names of those with rows."""
        for file in self._files.values():
            file.close()
        for file in self._files.values():
            os.replace(file.part, file.path)
        return {schema_id: str(file.path) for schema_id, file in self._files.items() if schema_id}

    def give_up(self) -> None:
        for file in self._files.values():
            file.close(is_complete=False)
            file.part.unlink(missing_ok=True)


class _RowGroups:
    """A Parquet file that grows by row groups."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self._schema = schema
        try:
            self.part.touch()
        except OSError as error:
            error.filename = str(path)  # the name that was given
            raise
        self._writer: pq.ParquetWriter | None = pq.ParquetWriter(self.part, schema, compression="zstd")
        self._gathered: list[pa.RecordBatch] = []
        self._records = self._bytes = 0

    def add(self, records: pa.RecordBatch, header: FrameHeader) -> None:
        self._gathered.append(records)
        self._records, self._bytes = self._records + len(records), self._bytes + header.raw_len
        if self._records >= _GROUP_RECORDS or self._bytes >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        assert self._writer is not None
        self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema))
        self._gathered, self._records, self._bytes = [], 0, 0

    def close(self, *, is_complete: bool = True) -> None:
        if self._writer is not None:
            if is_complete and self._gathered:
                self._write()
            self._writer.close()
            self._writer = None


def names_beside(block: Path) -> dict[int, str]:
    """The names of streams, if the block lies in a data folder whose ledger, or a copy of it, can be read."""
    return _asked_beside(block, lambda ledger: {row.id: row.name for row in ledger.list_streams()})


def schemas_beside(block: Path) -> dict[int, Schema]:
    """The same for schemas."""
    return _asked_beside(block, LedgerInspector.list_schemas)


def _asked_beside(block: Path, ask: Callable[[LedgerInspector], dict[int, _Found]]) -> dict[int, _Found]:
    folder = block.absolute().parent.parent
    for path in (folder / "ledger.db", *sorted((folder / "snapshots").glob("ledger-*.db"), reverse=True)):
        if not path.is_file():
            continue
        try:
            ledger = LedgerInspector(path)
        except MainstemError:
            continue
        try:
            ledger.check_pages()
            ledger.format()
            return ask(ledger)
        except (MainstemError, KeyError):
            continue
        finally:
            ledger.close()
    return {}


def _row_schema(schema: Schema) -> pa.Schema:
    names = set(schema.names)
    return pa.schema([*schema.arrow, *((_free(name, names), kind) for name, kind in _ROW_PLACE)])


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _records(frame: FoundFrame, schema: Schema | None) -> pa.RecordBatch:
    """The records of a frame with all columns, and a last one, if it has it: how far each is from the base."""
    header = frame.header
    own_base = header.producer if header.kind == FrameKind.MOVED else 0
    if max(header.stream, header.flush, own_base) > _NUMBER_MAX or header.shard > SHARDS_PER_STREAM_MAX:
        raise InvalidPayload("the frame has numbers that no log has")
    batch = check(
        header.encoding,
        header.layout,
        header.count,
        header.raw_len,
        bytes(frame.payload),
        layouts=len(SHAPES),
        schema=schema,
    )
    if schema is not None:
        return widen_rows(batch, schema, header.time_low)
    records = widen(batch, header.layout, header.time_low)
    if "offset" in batch.schema.names:
        records = records.append_column("offset", batch.column("offset"))
    return records


def _known(schema: Schema | None) -> Schema:
    assert schema is not None, "rows have one, and who has none is not asked for it"
    return schema


def _cold_records(records: Records, schema: Schema | None) -> pa.RecordBatch:
    """Records of a cold block with all columns, as `_records` has them."""
    count = len(records.offsets)
    times = pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, pa.py_buffer(records.times.copy())])
    distances = pa.array((records.offsets - records.first).astype(np.uint32))
    names: tuple[str, ...] = ("key", "value", "headers")
    beside = {"timestamp": times, "offset": distances}
    if schema is None:
        kinds = {name: FULL_SCHEMA.field(name).type for name in names}
    else:
        names, beside = (*schema.names, "_key", "_headers"), {"_timestamp": times, "_offset": distances}
        kinds = {"_key": ROW_KEY.type, "_headers": ROW_HEADERS.type}
    columns = [records.columns[name] if name in records.columns else pa.nulls(count, kinds[name]) for name in names]
    return pa.RecordBatch.from_arrays([*columns, *beside.values()], names=[*names, *beside])


def _with_place(batch: SalvagedBatch, name: str | None) -> pa.RecordBatch:
    header, records, count = batch.header, batch.records, len(batch.records)
    columns: dict[str, Any] = {
        "stream_id": _repeated(header.stream, count),
        "stream": pa.array([name] * count, pa.string()),
        "shard": pa.array(np.full(count, header.shard, np.int32)),
        "offset": pa.nulls(count, pa.int64()) if batch.base is None else _offsets(batch.base, records),
        "flush": _repeated(header.flush, count),
    }
    columns |= {column: records.column(column) for column in FULL_SCHEMA.names}
    return pa.RecordBatch.from_arrays([columns[name] for name in SALVAGED_SCHEMA.names], schema=SALVAGED_SCHEMA)


def _rows_with_place(batch: SalvagedBatch, name: str | None) -> pa.RecordBatch:
    assert batch.schema is not None
    header, rows, count = batch.header, batch.records, len(batch.records)
    place: dict[str, Any] = {
        "_shard": pa.array(np.full(count, header.shard, np.int32)),
        "_offset": pa.nulls(count, pa.int64()) if batch.base is None else _offsets(batch.base, rows, "_offset"),
        "_stream_id": _repeated(header.stream, count),
        "_stream": pa.array([name] * count, pa.string()),
        "_flush": _repeated(header.flush, count),
    }
    columns = [rows.column(index) for index in range(len(batch.schema.names))]
    # Not by name: a column of the row may have one of these.
    own = {column: rows.column(column) for column in ("_key", "_headers", "_timestamp")}
    columns += [place[column] if column in place else own[column] for column, _ in _ROW_PLACE]
    return pa.RecordBatch.from_arrays(columns, schema=_row_schema(batch.schema))


def _offsets(base: int, records: pa.RecordBatch, column: str = "offset") -> pa.Array:
    if column in records.schema.names:
        return pa.array(records.column(column).to_numpy().astype(np.int64) + base)
    return pa.array(np.arange(base, base + len(records), dtype=np.int64))


def _repeated(number: int, count: int) -> pa.Array:
    return pa.array(np.full(count, number, np.int64))
