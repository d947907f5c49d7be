"""Fuzzed predicates: what becomes of a text is a mask or `InvalidPredicate`, and never takes more than a moment.

Run it for as long as wanted with `python -m tests.fuzz.predicate_fuzz SEED COUNT`; a failure names the text.
"""

import json
import random
import sys
import time
from collections import Counter

import pyarrow as pa

from mainstem.core.errors import InvalidPredicate
from mainstem.core.layouts import HEADERS_TYPE
from mainstem.core.predicate import Predicate, grammar
from tests.fuzz.predicate_texts import SCHEMA, Texts, rows

SECONDS_MAX = 0.05
_REPEATS = 4
# Nesting as deep as the limit allows.
_DEEP = 31
_SEEDS = (
    "_headers['tenant'] = 't3' AND _key LIKE 'user-%'",
    "_timestamp > now() - INTERVAL '1' HOUR",
    "n64 + n64 > 0 OR n64 * n64 < 0 OR -n64 > 0 OR abs(n64) > n64 - 1",
    "u64 + 1 > 5 AND u64 % 7 = 1 AND u64 * u64 <> n64",
    "cents * cents * cents * cents > 1.5 AND round(cents, 1) = 1.5",
    "CAST(name AS BIGINT) = 1 OR CAST(raw AS TEXT) = 'abc' OR CAST(f64 AS TINYINT) = 3",
    "CAST(name AS TIMESTAMP) > moment OR CAST(name AS DATE) = day OR TRY_CAST(name AS DOUBLE) = 1e3",
    "second + INTERVAL '1' MICROSECOND > moment AND moment - second < INTERVAL 5 DAYS AND day + 1 > day",
    "raw = x'ff' AND raw || raw || 'x' <> x'00' AND octet_length(raw) > length(raw)",
    '"name" ILIKE \'%ä_\' ESCAPE \'!\' AND "box"."deep"."name" IS NOT DISTINCT FROM NULL',
    "f64 % f64 = 0 OR f32 / 0 > 1 OR f64 IN (0, 1, 2, 3, 4, 5) OR 1e308 * f64 > 0",
    "small IN (1, 2, 3, NULL) AND n8 NOT BETWEEN -1 AND 200.5",
)
# What takes longest to bind and to evaluate for the words that it has.
_COSTLY = (
    "name::timestamp > moment",
    "name::bigint > 1",
    "moment > '2024-01-01 10:00'",
    "DATE '2024-01-01' = DATE '2024-02-01'",
    "name ILIKE 'a_b%c'",
    "2.5 * 3 > 1",
    "CASE WHEN yes THEN 1 END = 1",
    "u64 = n64",
)
_ODD = (
    "'",
    '"',
    "(",
    ")",
    "[",
    "]",
    "--",
    "/*",
    ";",
    "?",
    ":x",
    "\\",
    "\0",
    "é",
    "\u202e",
    "🙂",
    "1e9",
    ".",
    "''",
    "x'f'",
)


class Mutator:
    """Hands out texts: valid ones, changed ones, monsters, garbage. One thread."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._texts = Texts(self._chance)
        self._words = [*grammar._Where.Tokenizer.KEYWORDS, *SCHEMA.names, "f", "1", "'s'", "cast", "try_cast", "year"]

    def next(self) -> str:
        what = self._chance.randrange(10)
        if what < 3:
            return self._valid()
        if what < 6:
            return self._changed(self._valid())
        if what < 8:
            return " ".join(self._chance.choice(self._words) for _ in range(self._chance.randint(1, 12)))
        if what == 8:
            return self._garbage()
        return self._monster()

    def _valid(self) -> str:
        if self._chance.random() < 0.4:
            return self._chance.choice(_SEEDS)
        return self._texts.predicate(self._chance.randint(0, 2))

    def _changed(self, text: str) -> str:
        for _ in range(self._chance.randint(1, 3)):
            at = self._chance.randrange(len(text) + 1)
            until = min(len(text), at + self._chance.randint(0, 6))
            piece = self._chance.choice((*_ODD, self._chance.choice(self._words), text[at:until], ""))
            text = text[:at] + piece + text[until:]
        return text

    def _garbage(self) -> str:
        size = self._chance.randint(0, 60)
        if self._chance.random() < 0.5:
            return self._chance.randbytes(size).decode("latin-1")
        return "".join(
            chr(self._chance.choice((32, 39, 40, 41, 0x301, 0x4E00, 0x1F600, 0xD7FF, 97))) for _ in range(size)
        )

    def _monster(self) -> str:
        """A word repeated in a shape that parsers find hard."""
        word, other = self._chance.choice(self._words), self._chance.choice(self._words)
        deep, many = self._chance.randint(1, _DEEP + 3), self._chance.randint(1, 400)
        return self._chance.choice(
            (
                f"{word}(" * deep + "small" + ")" * deep,
                f"{word}(small, " * deep + "1" + ")" * deep,
                f"{word}[" * deep + "1" + "]" * deep,
                f"({word} " * deep + other + ")" * deep,
                f"small {word} (" * deep + other + ")" * deep,
                f"{word}({other} " * deep + "small" + ")" * deep,
                f"cast({word} " * deep + "small" + " as int)" * deep,
                f"case {word} when " * deep + other + " then 1 end" * deep,
                f"{word} " * many,
                f"small {word} " * many + other,
                f"small::{word} " * many,
                f"{word} {other} " * many,
                f"{word}<" * many,
                f"{word}." * many + other,
                f"name LIKE '{'%_' * self._chance.randint(1, 140)}{word.replace(chr(39), '')}'",
                f"small IN ({', '.join(['1'] * self._chance.choice((10, 490, 30_000)))})",
                " OR ".join([f"name = '{word.replace(chr(39), '')}'"] * self._chance.choice((10, 240, 5_000))),
                "+".join(["small"] * many) + " > 1",
                " AND ".join([self._chance.choice(_COSTLY)] * self._chance.choice((40, 80, 120))),
                "'" + "x" * self._chance.choice((10, 16_000, 200_000)),
            )
        )


def tiny_batch(seed: int) -> pa.RecordBatch:
    batch = rows(random.Random(seed), 3)
    more = {
        "_headers": pa.array([[("tenant", b"t3")], None, [("x", None)]], HEADERS_TYPE),
        "_key": pa.array([b"user-1", None, b"\xff"], pa.binary()),
        "_timestamp": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
    }
    for name, column in more.items():
        batch = batch.append_column(name, column)
    return batch


def judge(text: str, batch: pa.RecordBatch) -> bool:
    """Whether the text is a predicate. Anything but InvalidPredicate comes out."""
    try:
        bound = Predicate(text, grammar.parse(text)).bind(batch.schema)
    except InvalidPredicate:
        return False
    mask = bound.mask(batch)
    assert isinstance(mask, pa.BooleanArray)
    assert len(mask) == batch.num_rows
    bound.may_match({})
    return True


def run(seed: int, count: int) -> dict[str, float]:
    """How many were predicates and how many refused; raises with the text if anything else happens."""
    mutator, report, slowest = Mutator(seed), Counter[str](), 0.0
    batch = tiny_batch(seed)
    judge("small = 1", batch)  # what is loaded or made once is not counted
    for number in range(count):
        text = mutator.next()
        try:
            seconds, valid = _timed(text, batch)
            for _ in range(_REPEATS):
                # Time is counted also while a busy machine gives none, or a slow one: what it takes is the least.
                if seconds <= SECONDS_MAX:
                    break
                seconds = min(seconds, _timed(text, batch)[0])
            assert seconds <= SECONDS_MAX, f"{seconds * 1e3:.0f} ms of CPU time"
        except BaseException as error:
            error.add_note(f"seed {seed}, text {number}: {text[:2_000]!r}")
            raise
        slowest = max(slowest, seconds)
        report["valid" if valid else "refused"] += 1
    return {"valid": report["valid"], "refused": report["refused"], "slowest": slowest}


def _timed(text: str, batch: pa.RecordBatch) -> tuple[float, bool]:
    began = time.thread_time()
    valid = judge(text, batch)
    return time.thread_time() - began, valid


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
