"""Every construct of the language on the same four rows: T true, F false, and . where it is unknown."""

import datetime as dt
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from math import inf, nan

import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidPredicate
from mainstem.core.layouts import HEADERS_TYPE
from mainstem.core.limits import (
    PREDICATE_BYTES_MAX,
    PREDICATE_DEPTH_MAX,
    PREDICATE_JOINS_MAX,
    PREDICATE_PATTERN_CHARS_MAX,
    PREDICATE_TOKENS_MAX,
    PREDICATE_WORDS_MAX,
)
from mainstem.core.predicate import Predicate
from mainstem.testing.clock import SimulatedClock

YEAR_2024 = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
YEAR_1960 = dt.datetime(1960, 1, 1, 1, tzinfo=dt.UTC)
YEAR_2030 = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)

ROWS = pa.RecordBatch.from_pydict(
    {
        "tiny": pa.array([1, -128, 127, None], pa.int8()),
        "n": pa.array([1, -(2**63), 2**63 - 1, None], pa.int64()),
        "u": pa.array([1, 0, 2**64 - 1, None], pa.uint64()),
        "f": pa.array([1.5, nan, inf, None]),
        "g": pa.array([0.1, nan, -0.0, None], pa.float32()),
        "cents": pa.array([Decimal("1.50"), Decimal("-9.99"), Decimal(0), None], pa.decimal128(5, 2)),
        "s": pa.array(["abc", "", "Äö", None]),
        "raw": pa.array([b"abc", b"", b"\xff", None], pa.binary()),
        "at": pa.array([YEAR_2024, YEAR_1960, YEAR_2030, None], pa.timestamp("us", "UTC")),
        "sec": pa.array([1, -1, 2**40, None], pa.timestamp("s")),
        "nano": pa.array([1, -1, 2**40, None], pa.timestamp("ns", "Europe/Berlin")),
        "day": pa.array([YEAR_2024.date(), YEAR_1960.date(), YEAR_2030.date(), None], pa.date32()),
        "day64": pa.array([YEAR_2024.date(), YEAR_1960.date(), YEAR_2030.date(), None], pa.date64()),
        "clock": pa.array([1, 2, 3, None], pa.time32("ms")),
        "span": pa.array([1, -1, 3, None], pa.duration("s")),
        "fixed": pa.array([b"ab", b"cd", b"ef", None], pa.binary(2)),
        "yes": pa.array([True, False, True, None]),
        "box": pa.array([{"a": 1, "in": {"x": "q"}}, {"a": None, "in": None}, None, {"a": 5, "in": {"x": "z"}}]),
        "_headers": pa.array([[("t", b"t3"), ("t", b"t4")], [("x", None)], None, [("t", b"t3")]], HEADERS_TYPE),
        "list": pa.array([[1], [], None, [2]]),
        "Mixed Case": pa.array([1, 2, 3, 4]),
        "digits": pa.array(["12", " -7 ", "9223372036854775808", "1.5"]),
        "large": pa.array(["1e308", "-1e309", "1_0", ".5e1"]),
        "moments": pa.array(["2024-02-29", "2023-02-29", "2024-01-01T10:00:00+02:00", "2024-01-01 10:00"]),
    }
)
SAID = {"T": True, "F": False, ".": None}

LANGUAGE = """
tiny = 1                                       TFF.
tiny <> 1                                      FTT.
tiny != 1                                      FTT.
tiny > 1.5                                     FFT.
tiny >= 1                                      TFT.
tiny < 1.5                                     TTF.
1.5 < tiny                                     FFT.
tiny < 300                                     TTT.
tiny = 300                                     FFF.
tiny > -129                                    TTT.
n > 9223372036854775807                        FFF.
n < 9223372036854775808                        TTT.
n < 1e300                                      TTT.
u > -1                                         TTT.
u = 18446744073709551615                       FFT.
u = n                                          TFF.
n < f                                          TTT.
f > 1                                          TTT.
f < 2                                          TFF.
f = f                                          TTT.
f > f                                          FFF.
f >= f                                         TTT.
f IS NOT DISTINCT FROM f                       TTTT
g = 0.1                                        TFF.
g = 0                                          FFT.
g < 1e-1                                       FFT.
g IN (0, 1, 2, 3, 4)                           FFT.
g IN (0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16) FFT.
tiny NOT IN (1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,NULL,127) F.F.
cents = 1.5                                    TFF.
cents > 1.499                                  TFF.
cents = 1.501                                  FFF.
cents < 100000000                              TTT.
cents > 1e0                                    TFF.
cents = n                                      FFF.
s = 'abc'                                      TFF.
s > 'a'                                        TFT.
s = raw                                        TTF.
raw = 'abc'                                    TFF.
raw = x'ff'                                    FFT.
s < x'ff'                                      TTT.
fixed = 'ab'                                   TFF.
yes                                            TFT.
NOT yes                                        FTF.
yes = TRUE                                     TFT.
yes < TRUE                                     FTF.
yes IS TRUE                                    TFTF
yes IS FALSE                                   FTFF
yes IS NOT TRUE                                FTFT
yes AND NULL                                   .F..
yes OR NULL                                    T.T.
yes AND FALSE                                  FFFF
yes OR TRUE                                    TTTT
NULL                                           ....
TRUE                                           TTTT
tiny = NULL                                    ....
tiny IS NULL                                   FFFT
tiny IS NOT NULL                               TTTF
tiny IS DISTINCT FROM 1                        FTTT
tiny IS NOT DISTINCT FROM 1                    TFFF
tiny IS DISTINCT FROM NULL                     TTTF
tiny IS DISTINCT FROM n                        FTTF
tiny IN (1, 127)                               TFT.
tiny IN (1, NULL)                              T...
tiny NOT IN (1, NULL)                          F...
tiny IN (1, 2, 3, 4, 5, 300, 1.5)              TFF.
tiny IN (n, 127)                               TFT.
s IN ('abc', '', 'x', 'y')                     TTF.
tiny BETWEEN 0 AND 100                         TFF.
tiny NOT BETWEEN 0 AND 100                     FTT.
n + 1 > 0                                      TF..
n - 1 < 0                                      F.F.
n * n > 0                                      T...
n * -1 < 0                                     T.T.
-n > 0                                         F.F.
abs(n) > 0                                     T.T.
abs(tiny) = 128                                FTF.
u + 1 > 5                                      FFT.
u - 2 < 0                                      TTF.
u % 2 = 1                                      TF..
n % 2 = 1                                      TFT.
n % -1 = 0                                     TTT.
tiny % 3 = -2                                  FTF.
n % 0 = 1                                      ....
n / 0 = 1                                      ....
tiny / 2 = 0.5                                 TFF.
f / 0 > 1                                      ....
f % 1 = 0.5                                    TFF.
cents * 2 = 3                                  TFF.
cents + n > 0                                  TFT.
cents - 0.001 = 1.499                          TFF.
cents / 2 = 0.75                               TFF.
-cents = 9.99                                  FTF.
round(cents, 1) = 1.5                          TFF.
round(cents) = -10                             FTF.
round(f) = 2                                   TFF.
floor(cents) = -10                             FTF.
ceil(f) = 2                                    TFF.
s LIKE 'a%'                                    TFF.
s LIKE '%c'                                    TFF.
s LIKE '%b%'                                   TFF.
s LIKE 'a_c'                                   TFF.
s LIKE '__'                                    FFT.
s LIKE 'a%c'                                   TFF.
s LIKE '%'                                     TTT.
s LIKE ''                                      FTF.
s NOT LIKE '%b%'                               FTT.
s ILIKE 'ÄÖ'                                   FFT.
s ILIKE 'A%'                                   TFF.
s LIKE 'a!_c' ESCAPE '!'                       FFF.
'a_c' LIKE 'a!_c' ESCAPE '!'                   TTTT
s LIKE NULL                                    ....
raw LIKE 'a%c'                                 TFF.
raw LIKE '_'                                   FFT.
s || 'x' = 'abcx'                              TFF.
raw || 'x' = 'abcx'                            TFF.
s || NULL = 'x'                                ....
length(s) = 2                                  FFT.
octet_length(s) = 4                            FFT.
length(raw) = 1                                FFT.
lower(s) = 'äö'                                FFT.
upper(s) = 'ABC'                               TFF.
trim('  x ') = 'x'                             TTTT
ltrim('  x ') = 'x '                           TTTT
rtrim('  x ') = '  x'                          TTTT
substring(s, 2) = 'bc'                         TFF.
substring(s, 1, 1) = 'Ä'                       FFT.
starts_with(s, 'ab')                           TFF.
ends_with(s, 'ö')                              FFT.
contains(raw, x'ff')                           FFT.
coalesce(tiny, 0) = 0                          FFFT
coalesce(s, raw) = 'abc'                       TFF.
nullif(tiny, 1) IS NULL                        TFFT
CASE WHEN n > 0 THEN 'x' WHEN n < 0 THEN 'y' END = 'y'   FTF.
CASE tiny WHEN 1 THEN 10 WHEN 127 THEN 2.5 END > 5       T.F.
CASE WHEN yes THEN at ELSE '2024-01-01' END = at         TFT.
abs(u) > 1                                     FFT.
coalesce(at, '2000-01-01') < '2010-01-01'      FTFT
at < TIMESTAMP '9999-12-31' + INTERVAL 9999 DAY TTT.
at > '2024-01-01'                              FFT.
at = TIMESTAMP '2024-01-01 01:00:00+01:00'     TFF.
at >= '2024-01-01T00:00:00Z'                   TFT.
at > day                                       FTF.
at - day = INTERVAL '1' HOUR                   FTF.
at + INTERVAL 1 DAY > '2030-01-01'             FFT.
sec > '1970-01-01 00:00:00.5'                  TFT.
sec = '1970-01-01 00:00:00.5'                  FFF.
nano > '1970-01-01'                            TFT.
nano > sec                                     FT..
nano = '1970-01-01 00:00:00.000000001'         TFF.
nano < TIMESTAMP '1970-01-01T01:00:00.000000001+01:00' FTF.
at = TIMESTAMP '2024-01-01 00:00:00.000000001' FFF.
at < TIMESTAMP '2024-01-01 00:00:00.0000001Z'  TTF.
sec - INTERVAL '1' SECOND = '1970-01-01'       TFF.
day = '2024-01-01'                             TFF.
day < TIMESTAMP '2024-01-01 00:00:01'          TTF.
day + 1 = DATE '2024-01-02'                    TFF.
day - DATE '2023-12-31' = 1                    TFF.
day64 = DATE '2024-01-01'                      TFF.
day64 = day                                    TTT.
day64 + 1 > day                                TTT.
clock = '00:00:00.001'                         TFF.
span > INTERVAL '0' SECOND                     TFT.
span + INTERVAL 1 WEEK > span                  TTT.
year(at) = 1960                                FTF.
month(day) = 1                                 TTT.
day(at) = 1                                    TTT.
hour(at) = 1                                   FTF.
minute(nano) = 59                              FTF.
second(clock) = 0                              TTT.
CAST(at AS DATE) = DATE '1960-01-01'           FTF.
CAST(sec AS DATE) < DATE '1970-01-01'          FTF.
CAST(day AS TIMESTAMP) = at                    TFT.
CAST(raw AS TEXT) = 'abc'                      TF..
CAST(s AS BINARY) = x'c384c3b6'                FFT.
CAST(n AS TEXT) = '1'                          TFF.
CAST(digits AS BIGINT) > 0                     TF..
digits::double > 0                             TFTT
large::double > 1                              T..T
TRY_CAST(digits AS TINYINT) = -7               FT..
CAST(moments AS DATE) = DATE '2024-02-29'      T...
CAST(moments AS TIMESTAMP) = '2024-01-01 08:00' F.TF
CAST(f AS BIGINT) = 2                          T...
CAST(cents AS INTEGER) = 2                     TFF.
CAST(n AS INTEGER) IS NULL                     FTTT
CAST(yes AS INTEGER) = 1                       TFT.
CAST('TRUE' AS BOOLEAN)                        TTTT
box.a = 1                                      T..F
box.in.x = 'q'                                 T..F
box IS NULL                                    FFTF
box.a IS NULL                                  FTTF
_headers['t'] = 't3'                           F..T
_headers['t'] LIKE 't%'                        T..T
_headers['t'] IS NULL                          FTTF
list IS NULL                                   FFTF
"Mixed Case" = 1                               TFFF
"mixed case" = 1                               TFFF
S = 'abc'                                      TFF.
1 + 1.5 = 2.5                                  TTTT
1 / 0 = 1                                      ....
NOT NOT yes                                    TFT.
tiny = 1 OR tiny = 127 AND n < 0               TFF.
"""
CASES = [(line[:-4].strip(), line[-4:]) for line in LANGUAGE.strip().splitlines()]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_language(text, expected):
    """The same for a batch, for single rows, and for a table of slices."""
    bound = Predicate.parse(text).bind(ROWS.schema)
    wanted = [SAID[letter] for letter in expected]
    assert bound.mask(ROWS).to_pylist() == wanted
    assert [bound.mask(ROWS.slice(row, 1))[0].as_py() for row in range(4)] == wanted
    table = pa.concat_tables(
        [pa.Table.from_batches([ROWS.slice(1, 2)]), pa.Table.from_batches([ROWS.slice(0, 0), ROWS])]
    )
    assert bound.mask(table.select(bound.columns) if bound.columns else table).to_pylist() == [*wanted[1:3], *wanted]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("tiny =", "a value is missing behind '=' at character 6"),
        ("= 1", "a value is missing before '=' at character 1"),
        ("tiny = 1 OR", "a condition is missing behind 'OR' at character 10"),
        ("tiny = 1 OR AND n = 1", "a condition is missing behind 'OR' at character 10"),
        ("s NOT LIKE", "a value is missing behind 'LIKE' at character 7"),
        ("NOT IN (1)", "a value is missing before 'IN' at character 5"),
        ("n = -", "a value is missing behind '-' at character 5"),
        ("n IN (1,, 2)", "a value is missing before ',' at character 9"),
        ("n IN (, 2)", "a value is missing before ',' at character 7"),
        ("n IN (1, )", "a value is missing before ')' at character 10"),
        ("tiny = 1 tiny", "'tiny' at character 10 is not expected there; conditions are joined with AND or OR"),
        ("s REGEXP 'x'", "'REGEXP' at character 3 is not expected there"),
        ("(tiny = 1", "'(' at character 1 is not closed; ) is missing"),
        ("tiny = 1)", "')' at character 9 closes nothing"),
        ("(tiny = 1]", "']' at character 10 closes nothing"),
        ("CASE WHEN yes THEN 1 = 1", "'CASE' at character 1 is not closed; END is missing"),
        ("n BETWEEN 5", "BETWEEN takes two values: BETWEEN 1 AND 5"),
        ("n BETWEEN 5 6", "BETWEEN takes two values with AND between them"),
        ("n BETWEEN 5 6 AND yes", "BETWEEN takes two values with AND between them"),
        ("trim(BOTH 'x' FROM s) = 'y'", "the values of trim(...) are separated by commas"),
        ("EXTRACT(week FROM at) = 1", "no function 'EXTRACT' at character 1; write year(x), month(x), day(x), hour(x)"),
        ("extract(year, at) = 1", "there is no function 'extract'; write year(x)"),
        ("sum(n) = 1", "without aggregates"),
        ("CURRENT_TIMESTAMP > at", "write now()"),
        ("WHERE n = 1", "leave out the word"),
        ("s = 'it's'", "the text that begins at character 10 has no end; a quote inside a text is written twice"),
        ('"n = 1', "the name that begins at character 1 has no end"),
        ("raw = x'fg'", "hexadecimal digits (character 7)"),
        ("yes = 1", "write TRUE or FALSE"),
        ("day = 5", "write it like '2026-01-31'"),
        ("day = DATE '2026-02-30'", "'2026-02-30' cannot be read as date; write it like '2026-01-31'"),
        ("raw = 5", "or as bytes like x'ff'"),
        ("x'ff' + 1 = 2", "x'ff' is binary"),
        ("now() - '1 hour' < at", "write a length of time like INTERVAL '90' MINUTE"),
        ("_headers.t = 't3'", "name the key of a map like _headers['t']"),
        ("list[0] = 1", "of a list a predicate can only say whether it is NULL"),
        ("round(f, 'x') = 1", "round takes whole number as its second value; 'x' is string"),
        ("tiny", "column 'tiny' is int8; compare it"),
        ("zzz = 1", "there is no column 'zzz'; text stands in single quotes; there are tiny, n"),
        ("tinny = 1", "did you mean 'tiny'"),
        ("box.b = 1", "column 'box' has no field 'b'"),
        ("n.b = 1", "column 'n' is int64; only a struct has fields"),
        ("n = '1'", "column 'n' is int64 and cannot be compared with '1', which is string; write numbers"),
        ("s = 1", "column 's' is string"),
        ("yes = 1", "column 'yes' is bool"),
        ("box = 1", "name a field of it"),
        ("list = 1", "column 'list' is list"),
        ("list[1] = 1", "only a map has keys"),
        ("_headers[1] = 'x'", "the keys of column '_headers' are string"),
        ("_headers[s] = 'x'", "must be a constant"),
        ("at = 'yesterday'", "column 'at' is timestamp[us, tz=UTC], and 'yesterday' is no timestamp"),
        ("clock = '25:00'", "column 'clock' is time32[ms]"),
        ("DATE '2023-02-29' = day", "'2023-02-29' cannot be read as date"),
        ("CAST('x' AS BIGINT) = 1", "'x' cannot be read as bigint"),
        ("CAST(f AS TEXT) = '1'", "column 'f' is double and cannot be cast to text"),
        ("CAST(n AS UUID) = 1", "CAST knows the types"),
        ("CAST(s AS VARCHAR(3)) = 'x'", "( is not possible after 'VARCHAR'"),
        ("s + 1 = 2", "join text with ||"),
        ("at + at = at", "+ does not go with them"),
        ("cents % 2 = 1", "% takes whole numbers or floats"),
        ("n || 'x' = 'y'", "|| joins text; column 'n' is int64"),
        ("-s = 1", "- takes a number"),
        ("NOT n", "NOT needs conditions"),
        ("n AND yes", "AND needs conditions"),
        ("s LIKE s", "must be a constant text"),
        ("n LIKE '1'", "LIKE takes text"),
        ("raw ILIKE 'a'", "ILIKE takes text"),
        ("s LIKE 'x!' ESCAPE '!'", "ends with its escape character"),
        ("s LIKE 'x' ESCAPE 'ab'", "ESCAPE takes one character"),
        ("lower(raw) = 'x'", "CAST(... AS TEXT)"),
        ("lower(s, s) = 'x'", "lower takes 1 value, not 2"),
        ("nullif(s) = 'x'", "nullif takes 2 values"),
        ("lowe(s) = 'x'", "did you mean lower?"),
        ("date(at) = day", "there is no function 'date'"),
        ("substring(s, 0) = 'x'", "substring takes a place from 1 on"),
        ("substring(s, n) = 'x'", "substring takes a constant there; column 'n' is none"),
        ("round(f, 99) = 1", "at most 18 digits"),
        ("round(n, -1) = 1", "takes no negative digits"),
        ("contains(s, raw)", "contains takes a constant there"),
        ("coalesce(s, n) = 'x'", "they do not go together"),
        ("CASE WHEN yes THEN 1 ELSE 'x' END = 1", "they do not go together"),
        ("at > now() - INTERVAL '1' MONTH", "months and years have no fixed length"),
        ("at > now() - INTERVAL 'x' HOUR", "INTERVAL takes a number and a unit"),
        ("span > INTERVAL '999999999999' WEEK", "is too long"),
        ("n = 1e999", "larger than every float"),
        ("x'f' = raw", "hexadecimal"),
        ("n IS 5", "IS takes NULL"),
        ("n = 1; n = 2", "without ;"),
        ("n = 1 -- x", "comments"),
        ("n /* x */ = 1", "comments"),
        ("n = (SELECT 1)", "subqueries"),
        ("n IN (SELECT 1)", "subqueries"),
        ("sum(n) OVER () = 1", "window functions"),
        ("n = ?", "parameters"),
        ("n = :a", "':' is not possible"),
        ("n = @a", "parameters"),
        ("x -> x = 1", "lambdas"),
        ("n = {a: 1}", "{ is not possible"),
        ("n & 1 = 1", "'&' is not possible"),
        ("count(*) = 1", "without aggregates"),
        ("(n, u) = (1, 2)", "TUPLE"),
        ("n = [1]", "ARRAY"),
        ("n IN u", "IN takes at least one value, in parentheses"),
        ("s = 'a' 'b'", "CONCAT"),
        ("s = 'unfinished", "the text that begins at character 5 has no end"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(InvalidPredicate) as refused:
        Predicate.parse(text).bind(ROWS.schema)
    assert message in str(refused.value)


def test_decimals_that_arrow_cannot_compute_with_are_refused():
    with pytest.raises(InvalidPredicate, match="negative scale"):
        Predicate.parse("x = 100").bind(pa.schema([("x", pa.decimal128(5, -2))]))


@pytest.mark.parametrize("count", [1, 40])
def test_texts_are_read_alike_however_many_there_are(count):
    """Few are matched one by one, many at once."""
    texts = [
        "2024-02-29",
        "2023-02-29",
        " 2024-02-29 10:00Z",
        "2024-02-29T12:00+02:00",
        "x",
        "2024-02-29 10:00:00.5",
        None,
    ]
    said = ["2024-02-29", None, "2024-02-29 10:00", "2024-02-29 10:00", None, "2024-02-29 10:00:00.5", None]
    for text, expected in zip(texts, said, strict=True):
        rows = pa.RecordBatch.from_pydict({"text": pa.array([text] * count, pa.string())})
        right = f"TIMESTAMP '{expected}'" if expected else "NULL"
        bound = Predicate.parse(f"CAST(text AS TIMESTAMP) IS NOT DISTINCT FROM {right}").bind(rows.schema)
        assert bound.mask(rows).to_pylist() == [True] * count
    for text, number in (("12", 12), ("+7", 7), ("1.5", None), ("", None), ("9" * 19, None), (None, None)):
        rows = pa.RecordBatch.from_pydict({"text": pa.array([text] * count, pa.string())})
        right = "NULL" if number is None else str(number)
        bound = Predicate.parse(f"CAST(text AS BIGINT) IS NOT DISTINCT FROM {right}").bind(rows.schema)
        assert bound.mask(rows).to_pylist() == [True] * count


def test_names_that_differ_in_capitals_only_must_be_exact():
    schema = pa.schema([("a", pa.int64()), ("A", pa.int64()), ("order", pa.int64()), ("timestamp", pa.int64())])
    assert Predicate.parse("A = 1").bind(schema).columns == ("A",)
    with pytest.raises(InvalidPredicate, match="there is no column 'b'"):
        Predicate.parse("b = 1").bind(schema)
    with pytest.raises(InvalidPredicate, match="'bB' and 'Bb' differ in capitals only"):
        Predicate.parse("bb = 1").bind(pa.schema([("bB", pa.int64()), ("Bb", pa.int64())]))
    # Words of SQL that the language does not need are names like others.
    assert Predicate.parse("order = 1 AND timestamp = 2").bind(schema).columns == ("order", "timestamp")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("n = 1 " + " " * PREDICATE_BYTES_MAX, PREDICATE_BYTES_MAX),
        ("n IN (" + "1," * PREDICATE_TOKENS_MAX + "1)", PREDICATE_TOKENS_MAX),
        (" OR ".join(["yes"] * PREDICATE_WORDS_MAX), PREDICATE_WORDS_MAX),
        ("(" * (PREDICATE_DEPTH_MAX + 1) + "yes" + ")" * (PREDICATE_DEPTH_MAX + 1), PREDICATE_DEPTH_MAX),
        ("NOT " * (PREDICATE_DEPTH_MAX + 1) + "yes", PREDICATE_DEPTH_MAX),
        ("CASE WHEN " * (PREDICATE_DEPTH_MAX + 1) + "yes", PREDICATE_DEPTH_MAX),
        ("+".join("n" * (PREDICATE_DEPTH_MAX + 5)) + " > 1", PREDICATE_DEPTH_MAX),
        (f"s LIKE '{'%_' * PREDICATE_PATTERN_CHARS_MAX}'", PREDICATE_PATTERN_CHARS_MAX),
        ("||".join("s" * (PREDICATE_JOINS_MAX + 2)) + " = 'x'", PREDICATE_JOINS_MAX),
    ],
    ids=["bytes", "tokens", "words", "brackets", "signs", "case", "sum", "pattern", "joins"],
)
def test_limits(text, limit):
    with pytest.raises(InvalidPredicate, match=str(limit)):
        Predicate.parse(text).bind(ROWS.schema)


@pytest.mark.parametrize(
    "opening", ["date(", "timestamp(", "int[", "null[", "f(n limit ", "map(int, ", "n::int[", "array<"]
)
def test_no_text_takes_exponential_time(opening):
    """What a parser of all of SQL would read twice, as a type and as a call, at each of thirty levels."""
    Predicate.parse("tiny = 1")  # the parser is loaded
    began = time.thread_time()
    with pytest.raises(InvalidPredicate):
        Predicate.parse(opening * 30 + "n").bind(ROWS.schema)
    with pytest.raises(InvalidPredicate):
        Predicate.parse(opening * 30 + "n" + (")" if "(" in opening else "]") * 30).bind(ROWS.schema)
    assert time.thread_time() - began < 2.5


def test_as_much_as_the_limits_allow():
    many = " OR ".join(["tiny = 1"] * (PREDICATE_WORDS_MAX // 3))
    assert Predicate.parse(many).bind(ROWS.schema).mask(ROWS).to_pylist() == [True, False, False, None]
    deep = "(" * (PREDICATE_DEPTH_MAX - 1) + "yes" + ")" * (PREDICATE_DEPTH_MAX - 1)
    assert Predicate.parse(deep).bind(ROWS.schema).mask(ROWS).to_pylist() == [True, False, True, None]


def test_what_a_predicate_says_of_itself():
    predicate = Predicate.parse("box.a = 1 AND n > 5")
    assert predicate.text == "box.a = 1 AND n > 5"
    assert predicate.columns == {"box", "n"}
    bound = predicate.bind(ROWS.schema)
    assert bound.columns == ("n", "box")
    assert Predicate.parse(predicate.text) is predicate
    assert repr(predicate) == "<Predicate box.a = 1 AND n > 5>"
    assert repr(bound) == "<BoundPredicate box.a = 1 AND n > 5>"
    with pytest.raises(InvalidPredicate, match="a predicate is text"):
        Predicate.parse(5)  # type: ignore[arg-type]


def test_now_is_when_it_was_bound():
    clock = SimulatedClock()
    bound = Predicate.parse("at <= now() AND at > now() - INTERVAL 1 SECOND").bind(ROWS.schema, clock=clock)
    moment = clock.now_us()
    rows = pa.RecordBatch.from_pydict({"at": pa.array([moment, moment + 1, moment - 10**6], pa.timestamp("us", "UTC"))})
    assert bound.mask(rows).to_pylist() == [True, False, False]
    clock.advance(5)
    assert bound.mask(rows).to_pylist() == [True, False, False]


def test_no_rows():
    for text in ("n = 1", "TRUE", "s LIKE 'a_'", "n + n * n % 7 > 1", "CAST(digits AS BIGINT) = 1"):
        bound = Predicate.parse(text).bind(ROWS.schema)
        assert len(bound.mask(ROWS.slice(0, 0))) == 0
        assert len(bound.mask(pa.Table.from_batches([], ROWS.schema))) == 0


def test_many_threads():
    bound = Predicate.parse("n * n > 0 OR s LIKE 'a_c' OR f > 1").bind(ROWS.schema)
    expected = bound.mask(ROWS).to_pylist()
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(lambda _: bound.mask(ROWS).to_pylist(), range(200)))


def test_the_parser_is_loaded_with_the_first_predicate():
    program = """if True:
        import sys
        import mainstem
        from mainstem.core.predicate import Predicate
        assert "sqlglot" not in sys.modules
        Predicate.parse("a = 1")
        assert "sqlglot" in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)
