"""The page about predicates says what they are: its examples run, its functions and limits are those of the code."""

import re
from pathlib import Path

import pyarrow as pa

from mainstem.core.layouts import HEADERS_TYPE
from mainstem.core.limits import (
    KIB,
    PREDICATE_BYTES_MAX,
    PREDICATE_DEPTH_MAX,
    PREDICATE_JOINS_MAX,
    PREDICATE_PATTERN_CHARS_MAX,
    PREDICATE_TOKENS_MAX,
    PREDICATE_WORDS_MAX,
)
from mainstem.core.predicate import Predicate
from mainstem.core.predicate.functions import ALIASES, FUNCTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "predicates.md").read_text()
SCHEMA = pa.schema(
    [
        ("amount", pa.float64()),
        ("country", pa.string()),
        ("currency", pa.string()),
        ("status", pa.string()),
        ("day", pa.date32()),
        ("customer", pa.struct([("address", pa.struct([("city", pa.string())]))])),
        ("_headers", HEADERS_TYPE),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_examples():
    (lines,) = blocks("sql")
    for line in lines.splitlines():
        Predicate.parse(line).bind(SCHEMA)
    (program,) = blocks("python")
    exec(program, {})


def test_functions():
    table = PAGE.split("| function | gives |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)\(", table)) == {*FUNCTIONS, "coalesce", "nullif", "now"}
    others = PAGE.split("are other names of these")[0].rsplit("\n\n", 1)[1]
    assert set(re.findall(r"`(\w+)`", others)) == set(ALIASES)


def test_limits():
    said = " ".join(PAGE.split("## Limits")[1].split("##")[0].split())
    assert f"more than {PREDICATE_BYTES_MAX // KIB} KiB, more than {PREDICATE_TOKENS_MAX:,} words, signs and" in said
    assert f"of which {PREDICATE_WORDS_MAX} may be other than values and commas" in said
    assert f"deeper than {PREDICATE_DEPTH_MAX}." in said
    assert f"at most {PREDICATE_PATTERN_CHARS_MAX} characters" in said
    assert f"at most {PREDICATE_JOINS_MAX} `||`" in said
