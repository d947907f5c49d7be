"""Parquet files read a piece at a time, however much is in them.

A few kilobytes of Parquet can stand for gigabytes: a page of zeros compresses to nothing, and a dictionary says a long
text once for a million rows. So a row group that claims more than PARQUET_GROUP_BYTES_MAX is refused before any of it
is decompressed; texts and bytes are read with their dictionaries, which take no more than they do in the file; and rows
become plain columns in pieces of some 32 MiB. Values of a fixed length are always plain, and count as such.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidRecord, MainstemError, RecordTooLarge
from mainstem.core.limits import BATCH_RECORDS_MAX, MIB, PARQUET_GROUP_BYTES_MAX
from mainstem.registry.columns import sizes_at

_PIECE_BYTES: Final = 32 * MIB
# So many rows at once of a column in which every text says only how it differs from the one before; fewer if one of
# them could be so long that they were more than this.
_DELTA_ROWS: Final = 128
_DELTA_BYTES: Final = 1024 * MIB
_ROWS_MAX: Final = 1 << 16
_READ_BYTES: Final = 1 * MIB
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
assert _ROWS_MAX <= BATCH_RECORDS_MAX


class ParquetSource:
    """The rows of a Parquet file, which must be seekable. InvalidRecord if it is none, also while rows are taken."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow.parquet as pq

        with _readable():
            metadata = pq.read_metadata(file)
            widths = [_width(metadata.schema.column(index)) for index in range(metadata.num_columns)]
            groups = [_Group(metadata.row_group(index), widths) for index in range(metadata.num_row_groups)]
            _check_groups(groups)
            self._rows = min([_ROWS_MAX, *(group.rows_at_once for group in groups)])
            file.seek(0)
            self._reader = pq.ParquetFile(
                file, read_dictionary=_with_dictionary(metadata), pre_buffer=False, buffer_size=_READ_BYTES
            )
            # The columns, without dictionaries.
            self.schema = pa.schema([_plain(field) for field in self._reader.schema_arrow])

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, of all columns or some."""
        wanted = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        with _readable():
            for batch in self._reader.iter_batches(batch_size=self._rows, columns=columns):
                for piece in _halves(batch):
                    yield piece.cast(wanted)


@contextmanager
def _readable() -> Iterator[None]:
    """What pyarrow says of a file that it cannot read, as an error of ours."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, MainstemError):
            raise
        raise InvalidRecord(f"not a Parquet file that can be read: {error}") from None


class _Group:
    """A row group as it says that it is; `widths` are those of its columns."""

    def __init__(self, group: Any, widths: Sequence[int]) -> None:
        chunks = [group.column(index) for index in range(group.num_columns)]
        unpacked = [
            max(chunk.total_uncompressed_size, chunk.num_values * width)
            for chunk, width in zip(chunks, widths, strict=True)
        ]
        # About how large it is in memory, its dictionaries kept.
        self.bytes = int(max(group.total_byte_size, sum(unpacked)))
        # However few values there are said to be, a row takes this.
        row_bytes = max(sum(unpacked) // max(group.num_rows, 1), sum(widths))
        self.rows_at_once = int(max(1, min(_ROWS_MAX, _PIECE_BYTES // max(row_bytes, 1))))
        # No text is longer than all that the column says.
        longest = max((chunk.total_uncompressed_size for chunk in chunks if _is_delta(chunk)), default=0)
        if longest:
            self.rows_at_once = int(max(1, min(self.rows_at_once, _DELTA_ROWS, _DELTA_BYTES // longest)))


def _check_groups(groups: Sequence[_Group]) -> None:
    for number, group in enumerate(groups):
        if group.bytes > PARQUET_GROUP_BYTES_MAX:
            raise RecordTooLarge(
                f"row group {number} of the Parquet file is {group.bytes} bytes when it is decompressed, over "
                f"{PARQUET_GROUP_BYTES_MAX}; write the file anew with fewer rows in a group"
            )


def _width(column: Any) -> int:
    """What a value of a column takes in memory at least. Of texts and bytes that is their place."""
    return int(column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[column.physical_type])


def _is_delta(chunk: Any) -> bool:
    return chunk.physical_type == "BYTE_ARRAY" and any(name.startswith("DELTA") for name in chunk.encodings)


def _with_dictionary(metadata: Any) -> list[str]:
    """All columns of texts and bytes that can be read with a dictionary, whether they say that they have one or not."""
    places = range(metadata.num_columns)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    delta = {place for group in groups for place in places if _is_delta(group.column(place))}
    columns = [metadata.schema.column(place) for place in places if place not in delta]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _plain(field: pa.Field) -> pa.Field:
    """The field without dictionaries."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        return field.with_type(kind.value_type)
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_plain(part) for part in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_plain(kind.key_field), _plain(kind.item_field)))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_plain(kind.value_field)))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(_plain(kind.value_field)))
    if pa.types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(_plain(kind.value_field), kind.list_size))
    return field


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces that are not large without dictionaries, either."""
    if batch.num_rows > 1 and sum(map(_plain_bytes, batch.columns)) > _PIECE_BYTES:
        half = batch.num_rows // 2
        yield from _halves(_part(batch, 0, half))
        yield from _halves(_part(batch, half, batch.num_rows))
    elif batch.num_rows:
        yield batch


def _part(batch: pa.RecordBatch, first: int, stop: int) -> pa.RecordBatch:
    """Some rows. Of what is nested a slice would still have the items of all rows, and a cast go through them."""
    places = pa.array(range(first, stop), pa.int32())
    arrays = [
        column.take(places) if pa.types.is_nested(column.type) else column.slice(first, stop - first)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _plain_bytes(array: pa.Array) -> int:
    """How many bytes the values of an array are without dictionaries."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return int(sizes_at(array.dictionary, array.indices).sum())
    if pa.types.is_struct(kind):
        return sum(map(_plain_bytes, array.flatten()))
    if pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_plain_bytes(part.slice(first, last - first)) for part in (array.keys, array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _plain_bytes(array.flatten())
    return int(array.nbytes)
