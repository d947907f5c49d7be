"""Parquet files that say much in little: read by pieces, or refused before they are decompressed."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.core.errors import RecordTooLarge
from mainstem.core.limits import MIB
from mainstem.produce import parquet, rows
from mainstem.produce.parquet import ParquetSource


def written(table: pa.Table, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file


def test_a_long_text_that_is_said_once_comes_in_pieces():
    """Some kilobytes that are 60 GiB: the rows that are asked for are made, and no others."""
    text = pa.array(["x" * MIB])
    places = pa.array([0] * 60_000, pa.int32())
    flat = pa.DictionaryArray.from_arrays(places, text)
    nested = pa.ListArray.from_arrays(pa.array(range(60_001), pa.int32()), flat)
    file = written(pa.table({"flat": flat, "nested": nested}), store_schema=False)
    assert len(file.getvalue()) < 2 * MIB
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    batches = ParquetSource(file).batches()
    for _ in range(3):
        batch = next(batches)
        assert 0 < batch.nbytes <= 64 * MIB
        assert batch.schema.types == [pa.string(), pa.list_(pa.field("element", pa.string()))]
        assert pool.bytes_allocated() - before < 256 * MIB


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd", "brotli"])
def test_a_row_group_that_claims_too_much_is_refused(codec, monkeypatch):
    monkeypatch.setattr(parquet, "PARQUET_GROUP_BYTES_MAX", 8 * MIB)
    file = written(pa.table({"z": [bytes(MIB)] * 20}), compression=codec, use_dictionary=False, row_group_size=10)
    with pytest.raises(RecordTooLarge, match=r"row group 0 of the Parquet file is .* fewer rows in a group"):
        list(rows.parquet(file))
    file = written(pa.table({"z": [bytes(MIB)] * 20}), compression=codec, use_dictionary=False, row_group_size=5)
    assert len(list(rows.parquet(file))) == 20


def test_a_list_with_more_items_than_fit_is_refused(monkeypatch):
    monkeypatch.setattr(parquet, "PARQUET_GROUP_BYTES_MAX", 8 * MIB)
    items = pa.array([[7] * (2 * MIB)])
    file = written(pa.table({"l": items}))
    assert len(file.getvalue()) < 64 * 1024
    with pytest.raises(RecordTooLarge, match="row group 0"):
        ParquetSource(file)


def test_a_long_value_of_fixed_length_that_is_said_once_is_refused(monkeypatch):
    """It is read without its dictionary: some hundred bytes that are 20 MiB."""
    monkeypatch.setattr(parquet, "PARQUET_GROUP_BYTES_MAX", 8 * MIB)
    value = pa.array([bytes(10_000)], pa.binary(10_000))
    table = pa.table({"f": pa.concat_arrays([value] * 2_000)})
    file = written(table, compression="zstd")
    assert len(file.getvalue()) < 2_000
    with pytest.raises(RecordTooLarge, match="row group 0 of the Parquet file is 20000000 bytes"):
        ParquetSource(file)
    monkeypatch.undo()
    file = written(pa.table({"f": pa.concat_arrays([value] * 10_000)}), compression="zstd")
    batches = list(ParquetSource(file).batches())
    assert max(batch.nbytes for batch in batches) <= 40 * MIB
    assert sum(batch.num_rows for batch in batches) == 10_000


def test_a_group_of_large_rows_among_small_ones_is_read_by_its_own_size():
    file = io.BytesIO()
    small, large = pa.table({"l": [[7]] * 100_000}), pa.table({"l": [list(range(10_000))] * 1_000})
    with pq.ParquetWriter(file, small.schema) as writer:
        writer.write_table(small)
        writer.write_table(large)
    assert ParquetSource(file)._rows * 10_000 * 8 <= 32 * MIB


def test_a_dictionary_that_is_not_spoken_of_is_kept_all_the_same():
    """Which encodings a column says that it has is what its writer wanted to say. Here they are changed to others."""
    table = pa.table({"s": pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), ["x" * MIB])})
    data = written(table, store_schema=False, compression="zstd").getvalue()
    assert pq.read_metadata(io.BytesIO(data)).row_group(0).column(0).encodings == ("PLAIN", "RLE", "RLE_DICTIONARY")
    # A list of three numbers, in zigzag: PLAIN, RLE, RLE_DICTIONARY.
    lying = data.replace(b"\x35\x00\x06\x10", b"\x35\x00\x06\x00")
    assert pq.read_metadata(io.BytesIO(lying)).row_group(0).column(0).encodings == ("PLAIN", "RLE", "PLAIN")
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    batch = next(ParquetSource(io.BytesIO(lying)).batches())
    assert 0 < batch.nbytes <= 64 * MIB
    assert pool.bytes_allocated() - before < 256 * MIB


def test_the_longer_texts_can_be_that_only_say_how_they_differ_the_fewer_come(monkeypatch):
    monkeypatch.setattr(parquet, "_DELTA_BYTES", MIB)
    values = [f"{'x' * 100_000}{number}" for number in range(100)]
    file = written(pa.table({"s": values}), use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY"})
    assert max(batch.nbytes for batch in ParquetSource(file).batches()) <= MIB


def test_texts_that_only_say_how_they_differ_come_in_few_rows():
    values = [f"{'x' * 100_000}{number}" for number in range(1_000)]
    file = written(pa.table({"s": values}), use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY"})
    batches = list(ParquetSource(file).batches())
    assert max(batch.num_rows for batch in batches) <= 128
    assert [value for batch in batches for value in batch.column("s").to_pylist()] == values


def test_rows_of_every_shape_come_back():
    table = pa.table(
        {
            "list": pa.array([["a", "b"], None, ["a", None]] * 100),
            "struct": pa.array([{"x": "a"}, None, {"x": None}] * 100),
            "map": pa.array([[("k", "v")], None, []] * 100, pa.map_(pa.string(), pa.string())),
            "fixed": pa.array([["a", "b"], None, ["c", None]] * 100, pa.list_(pa.string(), 2)),
            "dictionary": pa.array(["x", "y", None] * 100).dictionary_encode(),
            "number": pa.array([1, None, 2**63 - 1] * 100),
        }
    )
    found = pa.Table.from_batches(list(ParquetSource(written(table)).batches()))
    assert found.to_pylist() == table.to_pylist()
    assert not any(map(pa.types.is_dictionary, found.schema.types))
