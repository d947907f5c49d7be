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
