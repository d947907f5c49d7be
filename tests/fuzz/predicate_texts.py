"""Random rows with every kind of value, and random predicates about them that DuckDB and Mainstem must agree on.

What they do not agree on, by intention, is avoided here and said in docs/predicates.md: arithmetic that overflows a
type, numbers above 2^53 beside floats that are written with an exponent, casts of odd texts.
"""

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

WORDS = [
    "",
    " ",
    "a",
    "A",
    "ab",
    "abc",
    "Abc",
    "b%",
    "a_c",
    "Äö",
    "äÖ",
    "日本",
    "e\u0301",
    "x" * 40,
    "🙂",
    "a\nb",
    "\\",
    "'q'",
    "NULL",
    "12",
    "-1e999",
    "2023-02-29 10:00",
]
BYTES = [b"", b"\x00", b"\xff", b"abc", b"ab", "Äö".encode(), b"\xff\xfe", b"a" * 40]
NUMBERS = [0, 1, -1, 2, 7, 100, 127, -128, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.1, 1.0, 1.5, -2.5, 1e300, -1e-300, math.inf, -math.inf, math.nan, 2.0**53, 3.4e38]
MOMENTS = [
    dt.datetime.fromisoformat("1970-01-01T00:00:00"),
    dt.datetime.fromisoformat("1969-12-31T23:59:59.999999"),
    dt.datetime.fromisoformat("2024-02-29T12:30:00"),
    dt.datetime.fromisoformat("2026-01-31T00:00:00.000001"),
    dt.datetime.fromisoformat("0001-01-01T00:00:00"),
    dt.datetime.fromisoformat("9999-12-31T23:59:59"),
]
DECIMALS = [Decimal(text) for text in ("0.00", "0.10", "1.50", "-1.50", "2.51", "9999999.99", "-9999999.99", "100.00")]

SCHEMA = pa.schema(
    [
        ("small", pa.int64()),  # for arithmetic that never overflows
        ("n8", pa.int8()),
        ("n32", pa.int32()),
        ("n64", pa.int64()),
        ("u16", pa.uint16()),
        ("u64", pa.uint64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("cents", pa.decimal128(9, 2)),
        ("name", pa.string()),
        ("other", pa.string()),
        ("raw", pa.binary()),
        ("yes", pa.bool_()),
        ("moment", pa.timestamp("us")),
        ("second", pa.timestamp("s")),
        ("day", pa.date32()),
        ("box", pa.struct([("n", pa.int64()), ("deep", pa.struct([("name", pa.string())]))])),
    ]
)


def rows(chance: random.Random, count: int) -> pa.RecordBatch:
    """Rows of the schema above; a third of the values is missing in some columns, none in others."""

    def column(make: Any) -> list[Any]:
        missing = chance.choice((0.0, 0.3))
        return [None if chance.random() < missing else make() for _ in range(count)]

    def within(low: int, high: int) -> int:
        number = chance.choice(NUMBERS)
        return number if low <= number <= high else chance.randint(max(low, -9), min(high, 9))

    def moment() -> dt.datetime:
        return chance.choice(MOMENTS)

    columns = {
        "small": column(lambda: chance.randint(-9, 9)),
        "n8": column(lambda: within(-128, 127)),
        "n32": column(lambda: within(-(2**31), 2**31 - 1)),
        "n64": column(lambda: within(-(2**63), 2**63 - 1)),
        "u16": column(lambda: within(0, 2**16 - 1)),
        "u64": column(lambda: chance.choice((0, 1, 7, 2**63, 2**64 - 1))),
        "f32": column(lambda: min(chance.choice(FLOATS), 3.4e38) if chance.random() < 0.9 else math.nan),
        "f64": column(lambda: chance.choice(FLOATS)),
        "cents": column(lambda: chance.choice(DECIMALS)),
        "name": column(lambda: chance.choice(WORDS)),
        "other": column(lambda: chance.choice(WORDS[:8])),
        "raw": column(lambda: chance.choice(BYTES)),
        "yes": column(lambda: chance.random() < 0.5),
        "moment": column(moment),
        "second": column(lambda: moment().replace(microsecond=0)),
        "day": column(lambda: moment().date()),
        "box": column(
            lambda: {
                "n": chance.choice((None, 1, 2)),
                "deep": chance.choice((None, {"name": chance.choice(WORDS[:6])}, {"name": None})),
            }
        ),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Texts:
    """Hands out random predicates. One thread."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def predicate(self, depth: int = 3) -> str:
        return self._condition(depth)

    def _one(self, *choices: str) -> str:
        return self._chance.choice(choices)

    def _condition(self, depth: int) -> str:
        simple = [
            self._compared,
            self._compared,
            self._listed,
            self._between,
            self._like,
            self._null_test,
            lambda _: "yes",
            self._truth,
            self._distinct,
            self._called,
        ]
        if depth <= 0 or self._chance.random() < 0.3:
            return self._chance.choice(simple)(depth)
        word = self._one("AND", "OR", "NOT", "AND", "OR")
        if word == "NOT":
            return f"NOT ({self._condition(depth - 1)})"
        return f"({self._condition(depth - 1)}) {word} ({self._condition(depth - 1)})"

    def _pair(self, depth: int) -> tuple[str, str]:
        """Two values that can be compared."""
        return self._chance.choice(
            [
                lambda: (self.number(depth), self.number(depth)),
                lambda: (self._one("n8", "n32", "n64", "small", "u16"), self._whole()),
                lambda: (
                    self._one("n8", "n32", "small", "cents"),
                    self._one("1.5", "-0.1", "2", "0.10", "-1.505", "127.9"),
                ),
                lambda: (self._one("f64", "f32"), self._one("0.1", "1.5", "0", "-1", "-2.5")),
                lambda: ("f64", self._one("f64", "f32", "small", "n64", "cents", "1e300", "1.5e0")),
                lambda: ("cents", self._one("cents", "small", "n32", "1.5", "f64")),
                lambda: (self.text(depth), self.text(depth)),
                lambda: ("raw", self._one("raw", "'ab'::BLOB", "'abc'::BLOB")),
                lambda: ("yes", self._one("yes", "TRUE", "FALSE")),
                lambda: (self.moment(depth), self.moment(depth)),
                lambda: ("moment", self._one("'2024-02-29 12:30:00'", "'1970-01-01'", "'2026-01-31T00:00:00.000001'")),
                lambda: ("day", self._one("DATE '2024-02-29'", "'1970-01-01'", "moment", "day")),
                lambda: ("u64", self._one("u64", "18446744073709551615", "0", "7", "u16")),
                lambda: ("box.n", self._one("1", "small", "NULL")),
                lambda: ("box.deep.name", self.text(depth)),
            ]
        )()

    def number(self, depth: int) -> str:
        if depth <= 0 or self._chance.random() < 0.5:
            return self._one("small", "small", "n8", "cents", "f64", "3", "-2", "0", "1.5", "length(name)", "box.n")
        one, other = self._one("small", "3", "0", "-7", "box.n"), self._one("small", "2", "-1", "5")
        return self._one(
            f"({one} {self._one('+', '-', '*', '/', '%')} {other})",
            f"(f64 {self._one('+', '-', '*')} {self._one('f64', '1.5', 'small')})",
            f"(cents {self._one('+', '-', '*')} {self._one('cents', 'small', '2', '1.25')})",
            "-small",
            "abs(small)",
            "abs(cents)",
            f"floor({self._one('f64', 'cents')})",
            f"ceil({self._one('f64', 'cents')})",
            f"coalesce(small, {one})",
            f"nullif(small, {other})",
            f"CASE WHEN {self._condition(0)} THEN {one} WHEN yes THEN {other} ELSE small END",
            f"CASE small WHEN 1 THEN {one} ELSE {other} END",
            f"{self._one('year', 'month', 'day')}({self._one('moment', 'day')})",
            f"{self._one('hour', 'minute')}(moment)",
        )

    def text(self, depth: int) -> str:
        if depth <= 0 or self._chance.random() < 0.5:
            return self._one("name", "other", self._quoted(), self._quoted())
        inner = self.text(depth - 1)
        return self._one(
            f"lower({inner})",
            f"upper({inner})",
            f"trim({inner})",
            f"ltrim({inner})",
            f"rtrim({inner})",
            f"substring({inner}, {self._chance.randint(1, 4)}, {self._chance.randint(0, 4)})",
            f"substring({inner}, {self._chance.randint(1, 4)})",
            f"({inner} || other)",
            f"coalesce(name, {inner})",
            f"nullif(name, {inner})",
            f"CASE WHEN yes THEN {inner} END",
        )

    def moment(self, depth: int) -> str:
        return self._one(
            "moment",
            "second",
            "day",
            "TIMESTAMP '2024-02-29 12:30:00'",
            "DATE '1970-01-01'",
            "(moment + INTERVAL '90' MINUTE)",
            "(moment - INTERVAL 1 DAY)",
            "(TIMESTAMP '2026-01-31 00:00:00.000001' - INTERVAL '1' MICROSECOND)",
            "CAST(moment AS DATE)",
            "CAST(day AS TIMESTAMP)",
        )

    def _quoted(self) -> str:
        return "'" + self._chance.choice(WORDS).replace("'", "''") + "'"

    def _whole(self) -> str:
        return str(self._chance.choice((*NUMBERS, 300, 3_000_000_000)))

    def _compared(self, depth: int) -> str:
        left, right = self._pair(depth)
        return f"{left} {self._one('=', '<>', '<', '<=', '>', '>=', '!=')} {right}"

    def _distinct(self, depth: int) -> str:
        left, right = self._pair(depth)
        return f"{left} IS {self._one('', 'NOT ')}DISTINCT FROM {right}"

    def _listed(self, depth: int) -> str:
        name, items = self._chance.choice(
            [
                ("small", [str(number) for number in range(-3, 4)] + ["NULL"]),
                ("n64", [str(number) for number in NUMBERS]),
                ("name", [self._quoted() for _ in range(6)] + ["other"]),
                ("f64", ["0", "1.5", "-2.5", "0.1", "7"]),
                ("cents", ["1.5", "0.1", "2.51", "7"]),
                ("day", ["DATE '1970-01-01'", "DATE '2024-02-29'"]),
            ]
        )
        chosen = [self._chance.choice(items) for _ in range(self._chance.choice((1, 2, 7, 20)))]
        return f"{name} {self._one('', 'NOT ')}IN ({', '.join(chosen)})"

    def _between(self, depth: int) -> str:
        name = self._one("small", "n32", "cents", "f64")
        return f"{name} {self._one('', 'NOT ')}BETWEEN {self._chance.randint(-9, 2)} AND {self._chance.randint(-2, 99)}"

    def _like(self, depth: int) -> str:
        pattern = "".join(
            self._chance.choice(("a", "b", "A", "%", "_", "c", "Ä", "!%", "!_", "\\", "日"))
            for _ in range(self._chance.randint(0, 5))
        )
        word = self._one("LIKE", "LIKE", "ILIKE", "NOT LIKE")
        escape = " ESCAPE '!'" if "!" in pattern or self._chance.random() < 0.2 else ""
        return f"{self.text(1)} {word} '{pattern}'{escape}"

    def _null_test(self, depth: int) -> str:
        name = self._one(*SCHEMA.names, "box.n", "box.deep", "box.deep.name", self.text(1), self.number(1))
        return f"{name} IS {self._one('', 'NOT ')}NULL"

    def _truth(self, depth: int) -> str:
        return f"({self._condition(0)}) IS {self._one('', 'NOT ')}{self._one('TRUE', 'FALSE')}"

    def _called(self, depth: int) -> str:
        return f"{self._one('starts_with', 'ends_with', 'contains')}({self.text(1)}, {self._quoted()})"
