"""One evaluation for all: however rows are cut, the answer is the same, and it is the answer that databases give."""

import random
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mainstem.core.predicate import BoundPredicate, Predicate
from mainstem.core.predicate import bound as nodes
from tests.fuzz.predicate_texts import SCHEMA, Texts, rows
from tests.unit.core.predicate.plain_texts import PLAIN_COLUMNS, PlainTexts, select_with_sqlite, without_nan

ROWS = 50
EXPRESSIONS = 100
Caller = Callable[[BoundPredicate, pa.RecordBatch], list[bool | None]]


def by_batch(predicate: BoundPredicate, batch: pa.RecordBatch) -> list[bool | None]:
    """As a server asks: only the columns that it needs, decoded, for all rows."""
    return predicate.mask(batch.select(list(predicate.columns)) if predicate.columns else batch).to_pylist()


def by_row(predicate: BoundPredicate, batch: pa.RecordBatch) -> list[bool | None]:
    """As a consumer of single records would."""
    return [predicate.mask(batch.slice(row, 1))[0].as_py() for row in range(batch.num_rows)]


def by_table(predicate: BoundPredicate, batch: pa.RecordBatch) -> list[bool | None]:
    """As an engine would: a table of slices of a larger batch."""
    around = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]
    cuts = [around.slice(at, 7) for at in range(batch.num_rows, 2 * batch.num_rows, 7)]
    return predicate.mask(pa.Table.from_batches(cuts)).to_pylist()


CALLERS: tuple[Caller, ...] = (by_batch, by_row, by_table)


def pairs(seed: int) -> tuple[pa.RecordBatch, list[str]]:
    chance = random.Random(seed)
    texts = Texts(chance)
    return rows(chance, ROWS), [texts.predicate(2) for _ in range(EXPRESSIONS)]


def test_however_rows_are_cut(monkeypatch):
    """5,000 pairs of a row and an expression: the same of a whole batch, of single rows, of slices, and from DuckDB. If
    NULL is taken for false on the way, as a filter written by hand does, it differs."""
    batch, texts = pairs(93)
    bound = [Predicate.parse(text).bind(SCHEMA) for text in texts]
    found = [[caller(predicate, batch) for predicate in bound] for caller in CALLERS]
    assert found[0] == found[1] == found[2]
    assert ROWS * EXPRESSIONS >= 5_000
    with duckdb.connect() as database:
        database.execute("SET ieee_floating_point_ops = false; SET error_on_division_by_zero = false")
        database.register("arrow", pa.Table.from_batches([batch]))
        database.execute("CREATE TABLE records AS SELECT * FROM arrow")
        expected = [[row[0] for row in database.execute(f"SELECT ({text}) FROM records").fetchall()] for text in texts]
    assert found[0] == expected

    take_null_for_false(monkeypatch)
    other = [by_batch(predicate, batch) for predicate in bound]
    assert selected(other) != selected(found[0])


def take_null_for_false(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = nodes.Compared.evaluate

    def careless(self: nodes.Compared, rows: Any) -> Any:
        return pc.fill_null(careful(self, rows), False)

    monkeypatch.setattr(nodes.Compared, "evaluate", careless)


def selected(answers: list[list[bool | None]]) -> list[list[int]]:
    return [[row for row, answer in enumerate(each) if answer] for each in answers]


def test_sqlite_selects_the_same(monkeypatch):
    """100,000 pairs of a row and one of 30 expressions: the rows that SQLite selects. If what is
    unknown were false they would be others, under NOT."""
    chance = random.Random(7)
    batch = without_nan(rows(chance, 3_400).select(PLAIN_COLUMNS))
    texts = [PlainTexts(chance).predicate(3) for _ in range(30)]
    expected = select_with_sqlite(batch, texts)
    bound = [Predicate.parse(text).bind(batch.schema) for text in texts]
    assert selected([predicate.mask(batch).to_pylist() for predicate in bound]) == expected
    assert batch.num_rows * len(texts) >= 100_000
    take_null_for_false(monkeypatch)
    assert selected([predicate.mask(batch).to_pylist() for predicate in bound]) != expected
