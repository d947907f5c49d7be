"""Whole batches in formats with columns, as others read them."""

import csv
import io

import fastavro
import pyarrow as pa
import pytest

from mainstem.consume.columnar import WRITERS

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROWS = [{"id": 1, "text": 'a\n"b",'}, {"id": None, "text": None}, {"id": 3, "text": ""}]


def written(output: str, *batches: list[dict]) -> bytes:
    sink = io.BytesIO()
    writer = WRITERS[output](sink, SCHEMA)
    for rows in batches:
        writer.write(pa.RecordBatch.from_pylist(rows, SCHEMA))
    writer.close()
    return sink.getvalue()


@pytest.mark.parametrize("batches", [(), (ROWS,), (ROWS[:1], [], ROWS[1:])], ids=["none", "one", "three"])
def test_what_others_read(batches):
    rows = [row for batch in batches for row in batch]
    assert pa.ipc.open_stream(written("arrow", *batches)).read_all().to_pylist() == rows
    assert list(fastavro.reader(io.BytesIO(written("avro", *batches)))) == rows
    lines = list(csv.reader(io.StringIO(written("csv", *batches).decode())))
    assert lines == [["id", "text"], *(["" if cell is None else str(cell) for cell in row.values()] for row in rows)]


def test_batches_are_out_when_they_are_written():
    """But for Avro, whose rows wait for the end."""
    for output in ("csv", "arrow", "avro"):
        sink = io.BytesIO()
        writer = WRITERS[output](sink, SCHEMA)
        before = sink.tell()
        writer.write(pa.RecordBatch.from_pylist(ROWS, SCHEMA))
        assert (sink.tell() > before) == (output != "avro")
        writer.close()
