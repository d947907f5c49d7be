"""Records out of lines, frames and rows, however the bytes are cut."""

import io
import itertools
import json
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core.errors import InvalidRecord, RecordTooLarge
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.produce import rows
from mainstem.produce.cells import csv_cells
from mainstem.produce.rows import Row


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The same bytes in pieces, as a pipe may bring them."""
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [piece for begin, end in zip([0, *ends], ends, strict=False) if (piece := data[begin:end])]


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line)), st.lists(st.integers(0, 100)))
def test_lines_do_not_depend_on_how_they_come(values, places):
    data = b"".join(value + b"\n" for value in values)
    assert list(rows.split_lines(cut(data, places))) == values


@given(st.lists(st.none() | st.binary(max_size=8)), st.lists(st.integers(0, 100)))
def test_frames_do_not_depend_on_how_they_come(values, places):
    data = b"".join(
        b"\xff\xff\xff\xff" if value is None else len(value).to_bytes(4, "little") + value for value in values
    )
    assert [row.value for row in rows.frames(cut(data, places))] == values


def test_a_line_without_end_is_refused_before_it_fills_memory():
    endless = (b"x" * (1 << 20) for _ in iter(int, 1))
    with pytest.raises(RecordTooLarge, match="line 3 is longer than record_bytes_max"):
        list(rows.split_lines(itertools.chain([b"one\ntwo\n"], endless)))
    with pytest.raises(RecordTooLarge, match="line 2 is longer"):
        list(rows.split_lines([b"one\n", b"x" * RECORD_BYTES_MAX, b"x\nthree\n"]))
    assert len(next(rows.split_lines([b"x" * RECORD_BYTES_MAX]))) == RECORD_BYTES_MAX


GUESSES = {
    ("a.NDJSON", b"", None): "ndjson",
    ("a.jsonl", b"", None): "ndjson",
    ("a.csv", b"PAR1", None): "csv",
    ("a.parquet", b"", None): "parquet",
    ("a.log", b"PAR1", None): "parquet",
    ("a.log", b"{", None): "lines",
    ("0", b"{", "id"): "ndjson",
}


@pytest.mark.parametrize("case", GUESSES)
def test_the_format_is_guessed_from_the_name_then_the_first_bytes(case):
    assert rows.guess_format(*case) == GUESSES[case]


def test_rows_with_the_columns_of_a_record_are_records():
    text = b'{"value":"v","key":null,"timestamp":1,"shard":3,"offset":9}\n'
    text += b'{"value":{"a":1},"headers":{"h":{"base64":"AA=="}}}'
    assert list(rows.ndjson([text])) == [Row(b"v", None, None, 1), Row(b'{"a":1}', None, {"h": b"\0"}, None)]


def test_the_first_row_decides():
    with pytest.raises(InvalidRecord, match=r"line 2: the field 'x' is none of a record's, unlike in the first row"):
        list(rows.ndjson([b'{"value":"v"}\n{"value":"v","x":1}']))
    plain = list(rows.ndjson([b'{"x":1}\n{"value":"v"}']))
    assert [row.value for row in plain] == [b'{"x":1}', b'{"value":"v"}']


def test_a_key_field_makes_rows_of_everything():
    (row,) = rows.ndjson([b'{"value":"v","key":"k"}'], "key")
    assert row == Row(b'{"value":"v","key":"k"}', "k")


KEYS = {'"text"': "text", "7": b"7", "1.5": b"1.5", "true": b"true", "null": None}


@pytest.mark.parametrize("text", KEYS)
def test_keys_are_texts_or_numbers(text):
    (row,) = rows.ndjson([b'{"k":%s}' % text.encode()], "k")
    assert row.key == KEYS[text]


@pytest.mark.parametrize("text", [b'{"k":[1]}', b'{"k":{}}', b"{}"])
def test_other_keys_are_refused(text):
    with pytest.raises(InvalidRecord, match="line 1: "):
        list(rows.ndjson([text], "k"))


def test_in_csv_of_records_nothing_is_null_and_quotes_are_an_empty_text():
    text = (
        b'key,value,timestamp,headers\nk,v,2026-01-01T00:00:00Z,"{""h"":""1""}"\n,,,\n"","","",""\nk,,,\n'
        b'"{""base64"":""/w==""}","{""base64"":""/w==""}",,\n'
    )
    time = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(rows.csv_rows(io.BytesIO(text))) == [
        Row(b"v", b"k", {"h": b"1"}, time),
        Row(None),
        Row(b"", b""),
        Row(None, b"k"),
        Row(b"\xff", b"\xff"),
    ]


@pytest.mark.parametrize(
    "line",
    ["a,,b", ',"",', '"","",""', '"a,"","",b","",', '"x\n,"""","",",,""', '""""," ""x",', 'a"b,"",', '"\r\n","",'],
)
def test_cells_of_csv_are_null_only_without_quotes(line):
    """Against a parser by hand, which goes through the letters one by one."""
    expected, at = [], 0
    while at <= len(line):
        if line[at : at + 1] == '"':
            end = at + 1
            while line[end] != '"' or line[end + 1 : end + 2] == '"':
                end += 2 if line[end] == '"' else 1
            expected.append(line[at + 1 : end].replace('""', '"'))
            at = end + 2
        else:
            end = line.find(",", at) if "," in line[at:] else len(line)
            expected.append(line[at:end] or None)
            at = end + 1
    names = "abcdef"[: len(expected)]
    ((_, cells),) = csv_cells(io.BytesIO(f"{','.join(names)}\n{line}\n".encode()))
    assert list(cells.values()) == expected


def test_an_empty_line_is_a_null_where_there_is_one_column():
    assert [cells for _, cells in csv_cells(io.BytesIO(b'a\n\n""\nx\n'))] == [{"a": None}, {"a": ""}, {"a": "x"}]
    assert [number for number, _ in csv_cells(io.BytesIO(b"a,b\n\n1,2\n"))] == [3]


@pytest.mark.parametrize(("row", "problem"), [(b"1", "fewer"), (b"1,2,3", "more")])
def test_a_row_of_csv_has_as_many_fields_as_there_are_names(row, problem):
    with pytest.raises(InvalidRecord, match=f"line 3: {problem} fields than the 2 names"):
        list(rows.csv_rows(io.BytesIO(b"a,b\n1,2\n" + row + b"\n")))


CSV_PROBLEMS = {
    b'a\n"x" y\n': "line 2: not CSV",
    b"\xff,b\n": "line 1 or one after it: not UTF-8 text",
    b'value,headers\nv,"{"\n': "line 2: headers are not JSON",
}


@pytest.mark.parametrize("text", CSV_PROBLEMS)
def test_what_is_wrong_with_csv_is_said_by_line(text):
    with pytest.raises(InvalidRecord, match=CSV_PROBLEMS[text]):
        list(rows.csv_rows(io.BytesIO(text)))


def test_a_byte_order_mark_is_no_part_of_a_row():
    text = b'\xef\xbb\xbf{"a":1}\n'
    assert list(rows.ndjson([text])) == [Row(b'{"a":1}')]


def test_half_of_a_surrogate_pair_is_named():
    with pytest.raises(InvalidRecord, match=r"line 1: not JSON \(half of a surrogate pair"):
        list(rows.ndjson([rb'{"a":"\ud800"}']))


def test_a_field_named_twice_is_refused():
    with pytest.raises(InvalidRecord, match="'a' twice"):
        list(rows.csv_rows(io.BytesIO(b"a,b,a\n1,2,3\n")))


def test_a_field_of_csv_may_be_as_long_as_a_record():
    (row,) = rows.csv_rows(io.BytesIO(b"value\n" + b"x" * 500_000 + b"\n"))
    assert row.value == b"x" * 500_000


@pytest.mark.parametrize(
    "field", ['"timestamp":"noon"', '"timestamp":"2026-01-01"', '"headers":[1]', '"key":{"base64":"?"}']
)
def test_bad_fields_of_a_record_are_refused(field):
    with pytest.raises(InvalidRecord, match="line 1: "):
        list(rows.ndjson([b'{"value":"v",%s}' % field.encode()]))


def parquet(table: pa.Table, key: str | None = None) -> list[Row]:
    file = io.BytesIO()
    pq.write_table(table, file)
    return list(rows.parquet(file, key))


@pytest.fixture(params=["with pandas", "without pandas"])
def _pandas(request, monkeypatch):
    """pyarrow hands nanoseconds to pandas where it is installed, and fails where it is not."""
    if request.param == "without pandas":
        monkeypatch.setitem(sys.modules, "pandas", None)
    else:
        pytest.importorskip("pandas")


@pytest.mark.usefixtures("_pandas")
def test_nanoseconds_of_parquet_are_times_to_the_microsecond():
    stamps = pa.array([1_769_860_800_123_456_789], pa.timestamp("ns", "UTC"))
    table = pa.table(
        {
            "at": stamps,
            "plain": stamps.cast(pa.timestamp("ns")),
            "took": pa.array([1_500], pa.duration("ns")),
            "time": pa.array([1_500], pa.time64("ns")),
            "all": pa.array([[1_500]], pa.list_(pa.timestamp("ns"))),
            "deep": pa.array([{"at": 1_500}], pa.struct([("at", pa.timestamp("ns"))])),
        }
    )
    (row,) = parquet(table)
    assert json.loads(row.value or b"") == {
        "at": "2026-01-31T12:00:00.123456Z",
        "plain": "2026-01-31T12:00:00.123456",
        "took": "PT0.000001S",
        "time": "00:00:00.000001",
        "all": ["1970-01-01T00:00:00.000001"],
        "deep": {"at": "1970-01-01T00:00:00.000001"},
    }


def test_what_json_has_no_word_for():
    table = pa.table(
        {
            "bytes": [b"text", b"\xff"],
            "number": [float("nan"), float("-inf")],
            "nested": pa.array([[b"\xff"], []], pa.list_(pa.binary())),
        }
    )
    assert [json.loads(row.value or b"") for row in parquet(table)] == [
        {"bytes": "text", "number": None, "nested": [{"base64": "/w=="}]},
        {"bytes": {"base64": "/w=="}, "number": None, "nested": []},
    ]
    assert [row.key for row in parquet(table, "bytes")] == [b"text", b"\xff"]
    with pytest.raises(InvalidRecord, match="row 1: the field 'number' is nan; a key is"):
        parquet(table, "number")


def test_a_time_that_cannot_be_is_refused():
    with pytest.raises(InvalidRecord, match="date value out of range"):
        parquet(pa.table({"at": pa.array([2**62], pa.timestamp("us"))}))


@given(st.binary())
def test_any_bytes_are_rows_or_refused(data):
    for parse in (rows.ndjson, rows.frames):
        try:
            list(parse([data]))
        except (InvalidRecord, RecordTooLarge):
            continue
    try:
        list(rows.csv_rows(io.BytesIO(data)))
    except InvalidRecord:
        return
