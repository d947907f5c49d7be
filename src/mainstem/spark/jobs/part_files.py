"""The files that one task writes for a table: Parquet, one partition each, of a sensible size, durable when closed.

A file's name begins with the attempt it belongs to. While an attempt may still write, a marker with its name is in the
table's folder of notes; who gives an attempt up takes the marker away first, then deletes its files. A task makes its
file first and looks for the marker then: either the file is found by who deletes, or the marker is found missing. So a
worker that outlives its driver leaves nothing behind.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.core.checksum import crc32c_extended
from mainstem.core.errors import InvalidSetting, TableUnusable
from mainstem.core.identity import new_stream_uuid
from mainstem.core.limits import MIB
from mainstem.log.disk import sync_dir
from mainstem.spark.jobs.bounds import footer_statistics
from mainstem.spark.jobs.columns import as_table_rows
from mainstem.spark.jobs.partitions import Partition, Partitioning

FILE_BYTES: Final = 128 * MIB
_FILE_BYTES_MIN: Final = MIB
# What is gathered of a partition before it is written as a row group.
_GROUP_ROWS: Final = 256 * 1024
_GROUP_BYTES: Final = 64 * MIB
# What a task gathers of all partitions together; beyond it the one with the most is written.
_GATHERED_BYTES_MAX: Final = 128 * MIB
# Files of a task that are open at once; the one that was not written to for longest is closed for another.
_OPEN_MAX: Final = 64
# Offsets and times grow by little: as differences they take next to nothing.
_GROWING: Final = ("_offset", "_timestamp")
_CHUNK_BYTES: Final = 4 * MIB


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that belongs to no commit yet. `path` is relative to the table; `stats` as the table's log has them."""

    path: str
    rows: int
    bytes: int
    crc32c: int
    partition: dict[str, str | None]
    stats: str


@dataclass(frozen=True, slots=True)
class Target:
    """Where a task writes: the table's folder, the attempt and its marker, the columns and the partitions. Workers get
    it."""

    folder: str
    attempt: str
    marker: str
    schema: pa.Schema
    partitioning: Partitioning
    file_bytes: int = FILE_BYTES
    # A folder in that of the table, for files that only carry rows to a merge.
    within: str = ""
    # What columns of the rows are called in the files, if not the same.
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_schema(self) -> pa.Schema:
        """Partition columns are in the names of folders, not in the files."""
        return pa.schema([field for field in self.schema if field.name not in self.partitioning.columns])


def check_file_bytes(file_bytes: int) -> None:
    """InvalidSetting for files so small that a table would be nothing but files."""
    if file_bytes < _FILE_BYTES_MIN:
        raise InvalidSetting(
            f"file_bytes (--file-size) must be at least {_FILE_BYTES_MIN:,} bytes (1MiB), not {file_bytes:,}: every "
            "file costs each reader of the table"
        )


def write_parts(target: Target, part: int, batches: Iterable[pa.RecordBatch]) -> tuple[list[WrittenFile], int]:
    """Write the rows of one task; its files, and how many rows there were."""
    with PartFiles(target, part) as files:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            files.write(batch)
    return files.written, rows


class PartFiles:
    """The files of one task, in each partition one or more. Rows are gathered by partition, and a file is opened only
    for a row group: memory is bounded, and files are few, however many partitions there are. One thread; leaving the
    block closes them, an error deletes them."""

    def __init__(self, target: Target, part: int) -> None:
        self._target = target
        self._part = part
        # A task that is tried again, or by two at once, has other files each time.
        self._task = new_stream_uuid()[:8]
        self._gathered: dict[Partition, _Gathered] = {}
        # Of all partitions together.
        self.gathered_bytes = 0
        self._open: OrderedDict[Partition, _PartFile] = OrderedDict()
        self._made = 0
        self.written: list[WrittenFile] = []

    @property
    def open_files(self) -> int:
        return len(self._open)

    def write(self, rows: pa.RecordBatch) -> None:
        schema, names = self._target.file_schema, self._target.names
        for partition, part in self._target.partitioning.split(rows):
            gathered = self._gathered.setdefault(partition, _Gathered())
            called = part.rename_columns([names.get(name, name) for name in part.schema.names]) if names else part
            self.gathered_bytes += gathered.add(as_table_rows(called, schema))
            if gathered.is_group():
                self._write_group(partition)
            while self.gathered_bytes >= _GATHERED_BYTES_MAX:
                self._write_group(max(self._gathered, key=lambda each: self._gathered[each].bytes))

    def _write_group(self, partition: Partition) -> None:
        gathered = self._gathered.pop(partition)
        self.gathered_bytes -= gathered.bytes
        file = self._file(partition)
        file.write(gathered.batches)
        if file.is_full(self._target.file_bytes):
            self._close(partition)

    def _file(self, partition: Partition) -> "_PartFile":
        if partition in self._open:
            self._open.move_to_end(partition)
            return self._open[partition]
        if len(self._open) >= _OPEN_MAX:
            self._close(next(iter(self._open)))
        name = f"{self._target.attempt}-{self._part:05d}-{self._task}-{self._made:04d}.parquet"
        self._made += 1
        file = _PartFile(self._target, partition, name)
        self._open[partition] = file
        return file

    def _close(self, partition: Partition) -> None:
        self.written.append(self._open[partition].close())
        del self._open[partition]

    def _finish(self) -> None:
        """Write what is gathered, close what is open, and make the names durable, in all folders up to the table's."""
        for partition in list(self._gathered):
            self._write_group(partition)
            if partition in self._open:
                self._close(partition)
        for partition in list(self._open):
            self._close(partition)
        place = Path(self._target.folder)
        for folder in {up for file in self.written for up in Path(file.path).parents}:
            sync_dir(place / folder)

    def _discard(self) -> None:
        for file in self._open.values():
            file.discard()
        for done in self.written:
            Path(self._target.folder, done.path).unlink(missing_ok=True)

    def __enter__(self) -> "PartFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self._finish()
        except BaseException:
            self._discard()
            raise


class _Gathered:
    """Rows of one partition that are in no file yet."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.bytes = 0

    def add(self, rows: pa.RecordBatch) -> int:
        """How many bytes more there are."""
        size = rows.nbytes
        self.batches.append(rows)
        self.rows += rows.num_rows
        self.bytes += size
        return int(size)

    def is_group(self) -> bool:
        return self.rows >= _GROUP_ROWS or self.bytes >= _GROUP_BYTES


class _PartFile:
    """One file that is being written."""

    def __init__(self, target: Target, partition: Partition, name: str) -> None:
        self._partition = partition
        self._schema = target.file_schema
        self._path = "/".join(filter(None, (target.within, partition.path, name)))
        self._place = Path(target.folder, self._path)
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._sink = pa.OSFile(str(self._place), "wb")
        if not Path(target.marker).exists():
            self._sink.close()
            self._place.unlink(missing_ok=True)
            raise TableUnusable(
                f"attempt {target.attempt} to write {target.folder} was given up: another run has taken its place"
            )
        growing = [name for name in _GROWING if name in self._schema.names]
        others = [name for name in self._schema.names if name not in growing]
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=others or False,
            column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED") or None,
        )

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """These rows as one row group."""
        table = pa.Table.from_batches(batches, self._schema)
        self._writer.write_table(table, row_group_size=max(1, len(table)))

    def is_full(self, file_bytes: int) -> bool:
        return bool(self._sink.tell() >= file_bytes)

    def close(self) -> WrittenFile:
        """Its content is durable then; its name is not."""
        self._writer.close()
        self._sink.close()
        sync_dir(self._place)
        size, checksum = checksummed(self._place)
        footer = pq.read_metadata(self._place)
        # As it is, not escaped: delta-rs reads some escaped characters beyond U+FFFF as others.
        stats = json.dumps(footer_statistics(footer), separators=(",", ":"), ensure_ascii=False)
        return WrittenFile(self._path, footer.num_rows, size, checksum, dict(self._partition.values), stats)

    def discard(self) -> None:
        self._writer.close()
        self._sink.close()
        self._place.unlink(missing_ok=True)


def checksummed(path: Path) -> tuple[int, int]:
    """The size of a file and its checksum."""
    size = checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            checksum = crc32c_extended(checksum, chunk)
    return size, checksum
