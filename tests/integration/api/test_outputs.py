"""What is read in every format, from batches and from what was found: the same rows, and schemas that are true."""

import csv
import io
import time
from collections.abc import Iterator
from typing import Any

import fastavro
import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mainstem
from mainstem.consume.tabular import Tabular
from mainstem.hub.hub import Hub

ROWS: list[dict[str, Any]] = [{"id": 1, "name": ""}, {"id": 2, "name": None}]
NOTHING: dict[str, Any] = {"id": None, "name": None}


@pytest.fixture
def hub(tmp_path) -> Iterator[Hub]:
    with mainstem.open(tmp_path / "log") as hub:
        hub.streams.create("orders", schema={"id": "int64 not null", "name": "text"}, key="id")
        with hub.producer() as producer:
            for row in ROWS:
                producer.send("orders", row)
            producer.send("orders", None, key=b"1")
        yield hub


def check(found: Tabular, rows: list[dict[str, Any]]) -> None:
    """Every format has the rows, and no column is called never null that has one."""
    arrow = found.to_arrow()
    arrow.validate(full=True)
    assert all(field.nullable for field in arrow.schema)
    assert arrow.to_pylist() == found.to_dicts() == found.to_polars().to_dicts() == rows
    assert len(found.to_pandas()) == len(rows)
    assert [msgspec.json.decode(line) for line in found.to_ndjson().splitlines()] == rows
    assert len(list(csv.DictReader(io.StringIO(found.to_csv().decode())))) == len(rows)
    assert list(fastavro.reader(io.BytesIO(found.to_avro()))) == rows
    assert pq.read_table(io.BytesIO(found.to_parquet())).to_pylist() == rows
    assert len(found.to_csv(metadata=True).splitlines()) == len(rows) + 1
    assert found.to_arrow(metadata=True).schema.names == ["id", "name", *(f"_{name}" for name in METADATA)]


METADATA = ("shard", "offset", "timestamp", "key", "headers")


def test_batches_and_what_was_found_have_the_same_outputs(hub):
    with hub.consumer("orders", start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            assert batch.to_arrow().schema == consumer.columns
            check(batch, [ROWS[offset] if offset < 2 else NOTHING for offset in batch.offsets()])
    check(hub.find("orders", "true"), [*ROWS, NOTHING])
    check(hub.find("orders", "id = 7"), [])


def test_a_column_that_is_never_null_is_still_refused_in_rows(hub):
    with hub.producer() as producer, pytest.raises(mainstem.SchemaMismatch, match="id must be int64"):
        producer.send("orders", {"id": None})


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_a_schema_is_inferred_of_every_table_that_is_taken(hub, frame):
    hub.streams.create("any")
    texts = {
        pd.DataFrame: pd.Categorical(["x", "y"]),
        pl.DataFrame: pl.Series(["x", "y"], dtype=pl.Categorical),
    }.get(frame, pa.array(["x", "y"]).dictionary_encode())
    with hub.producer() as producer:
        producer.send_batch("any", frame({"id": [1, 2], "name": texts, "_key": ["a", "b"]}), infer=True)
    found = hub.find("any", "true")
    assert found.to_dicts() == [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}]
    assert [record.key for record in found] == [b"a", b"b"]


def test_a_dictionary_of_a_million_values(hub):
    """Also in many chunks that share it, and each is looked at in the time of its own rows."""
    count = 1_000_000
    hub.streams.create("words", schema={"id": "int64", "word": "text"}, index=["word"])
    words = pa.array(np.char.add("word-", np.arange(count).astype(str)).tolist())
    indices = pa.array(np.arange(count, dtype=np.int32))
    whole = pa.table({"id": np.arange(count), "word": pa.DictionaryArray.from_arrays(indices, words)})
    chunks = [pa.DictionaryArray.from_arrays(indices.slice(place, 1), words) for place in range(1_000)]
    begun = time.monotonic()
    with hub.producer() as producer:
        producer.send_batch("words", whole)
        producer.send_batch("words", pa.table({"id": np.arange(1_000), "word": pa.chunked_array(chunks)}))
    assert hub.find("words", "word = 'word-777777'").to_dicts() == [{"id": 777_777, "word": "word-777777"}]
    assert len(hub.find("words", "word = 'word-7'")) == 2
    assert len(hub.find("words", "id >= 999000").to_pandas()) == 1_000
    assert time.monotonic() - begun < 5  # a second; ten if every chunk has the dictionary looked through
