"""What notebooks show: escaped, one line a cell, never much."""

import pyarrow as pa

from mainstem.consume.record import Record, RecordBatch
from mainstem.core.markup import cut, table
from mainstem.core.schema import Schema, described
from tests.unit.consume.rows import numbered, rows_of, view


def test_a_table_is_escaped_and_bounded():
    shown = table("<b>", [f"c{n}" for n in range(30)], [["<script>"] * 30] * 100)
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert shown.count("<tr>") == 51
    assert shown.count("<th>") == 20
    assert "10 more columns" in shown


def test_cells_are_short_and_of_one_line():
    assert cut(None) == ""
    assert cut("x" * 500) == "x" * 79 + "…"
    assert cut(b"caf\xc3\xa9\xff") == "café\\xff"
    assert cut("a\nb\x1b[31m") == r"a\nb\x1b[31m"


def test_a_schema_shows_its_columns():
    schema = Schema(pa.schema([described(pa.field("id", pa.int64(), nullable=False), default=1, doc="<id>")]))
    shown = schema._repr_html_()
    assert "&lt;id&gt;" in shown
    assert "int64" in shown
    assert "<td>no</td>" in shown
    wide = Schema(pa.schema([(f"c{n}", pa.int64()) for n in range(100)]))
    assert repr(wide).endswith("c19: int64, and 80 more>")


def test_a_batch_shows_its_first_rows():
    shown = RecordBatch("orders", numbered(100), 0, None, view())._repr_html_()
    assert shown.count("<tr>") == 11
    assert "the first 10 of 100" in shown


def test_a_record_shows_its_fields():
    batch = RecordBatch("orders", rows_of([{"id": 1, "name": "<x>"}]), 0, None, view())
    (record,) = batch.records()
    assert isinstance(record, Record)
    shown = record._repr_html_()
    assert "&lt;x&gt;" in shown
    assert "record 2:0" in shown
