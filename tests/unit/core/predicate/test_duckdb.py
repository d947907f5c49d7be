"""The same predicates about the same rows, here and in DuckDB: the same answer for every row, also where it is NULL."""

import random

import duckdb
import pyarrow as pa
import pytest

from mainstem.core.predicate import Predicate
from tests.fuzz.predicate_texts import SCHEMA, Texts, rows

ROWS = 40
PREDICATES = 250


@pytest.mark.parametrize("seed", range(4))
def test_duckdb_agrees(seed):
    chance = random.Random(seed)
    texts = Texts(chance)
    batch = rows(chance, ROWS)
    with duckdb.connect() as database:
        # Division by zero is NULL.
        database.execute("SET ieee_floating_point_ops = false; SET error_on_division_by_zero = false")
        database.register("arrow", pa.Table.from_batches([batch]))
        database.execute("CREATE TABLE records AS SELECT * FROM arrow")
        for number in range(PREDICATES):
            text = texts.predicate()
            expected = [row[0] for row in database.execute(f"SELECT ({text}) FROM records").fetchall()]
            found = Predicate.parse(text).bind(SCHEMA).mask(batch).to_pylist()
            assert found == expected, f"seed {seed}, predicate {number}: {text}"
