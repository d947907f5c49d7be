"""Random predicates of the part of the language that SQLite shares, and what SQLite selects by them.

It has no booleans, decimals and NaN, compares without types and divides whole numbers to whole ones: expressions keep
to what both mean alike.
"""

import random
import sqlite3
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

PLAIN_COLUMNS: Final = ["small", "n64", "name", "other", "f64"]


class PlainTexts:
    """Random predicates of the part of the language that SQLite shares."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def predicate(self, depth: int) -> str:
        if depth and self._chance.random() < 0.7:
            word = self._chance.choice(("AND", "OR", "NOT"))
            if word == "NOT":
                return f"NOT ({self.predicate(depth - 1)})"
            return f"({self.predicate(depth - 1)}) {word} ({self.predicate(depth - 1)})"
        sign = self._chance.choice(("=", "<>", "<", "<=", ">", ">="))
        low = self._chance.randint(-9, 9)
        return self._chance.choice(
            (
                f"small {sign} {low}",
                f"small * 2 + 1 {sign} {low}",
                f"n64 {sign} small",
                f"name {sign} other",
                f"name {sign} 'ab'",
                f"small BETWEEN {low} AND {low + 4}",
                f"small NOT IN ({low}, {low + 1}, NULL)",
                f"name IN ('a', 'abc', '', 'b%', '{low}')",
                "name LIKE 'ab%'",
                "name || other = 'aa'",
                "name IS NULL",
                "coalesce(small, 3) = 3",
                f"f64 {sign} {low}.5",
                f"CASE WHEN small > {low} THEN 1 ELSE 0 END = 1",
                f"length(name) {sign} {abs(low)}",
                f"abs(small) {sign} {low}",
            )
        )


def without_nan(batch: pa.RecordBatch) -> pa.RecordBatch:
    """SQLite takes NaN for NULL: so does this."""
    numbers = batch.column("f64")
    place = batch.schema.get_field_index("f64")
    return batch.set_column(place, "f64", pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers))


def select_with_sqlite(batch: pa.RecordBatch, texts: list[str]) -> list[list[int]]:
    """For each predicate, the places of the rows of PLAIN_COLUMNS for which it is true."""
    database = sqlite3.connect(":memory:")
    try:
        # It does not know capitals in LIKE otherwise.
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute("CREATE TABLE records (small INTEGER, n64 INTEGER, name TEXT, other TEXT, f64 REAL)")
        values = zip(*batch.to_pydict().values(), strict=True)
        database.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", values)
        asked = (f"SELECT rowid FROM records WHERE {text} ORDER BY rowid" for text in texts)
        return [[row - 1 for (row,) in database.execute(question)] for question in asked]
    finally:
        database.close()
