"""`mainstem write`: every format, and what is wrong with an input said by line."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


ROWS = [{"id": 1, "city": "Köln", "amount": 9.5}, {"id": 2, "city": None, "amount": 1e6}]


def written(cli, name):
    """(key, value) of every record."""
    text = cli.out("tail", name, "--start", "earliest", "--no-follow", "--output", "json")
    return [(record["key"], record["value"]) for record in map(json.loads, text.splitlines())]


@pytest.fixture
def cli(local, name):
    local.run("stream", "create", name)
    return local


def test_lines_with_keys(cli, name):
    cli.run("write", name, "--key-separator", r"\t", stdin=b"a\t1\nb\t2\t3\n\t4")
    assert written(cli, name) == [("a", "1"), ("b", "2\t3"), ("", "4")]


def test_lines_are_kept_as_they_are(cli, name):
    cli.run("write", name, stdin=b"\n  two \r\n\nlast")
    assert [value for _, value in written(cli, name)] == ["", "  two \r", "", "last"]


def test_ndjson_rows_keep_their_text_and_give_their_key(cli, name):
    cli.run("write", name, "--key", "id", stdin=b'{"id": 7, "x":[1]}\n\n{"id":"seven"}\n')
    assert written(cli, name) == [("7", '{"id": 7, "x":[1]}'), ("seven", '{"id":"seven"}')]


def test_csv_by_its_ending(cli, name):
    (cli.folder / "rows.csv").write_text('\ufeffid,city\n1,Köln\n2,"a, b"\n', encoding="utf-8")
    cli.run("write", name, "rows.csv", "--key", "city")
    assert [(key, json.loads(value)) for key, value in written(cli, name)] == [
        ("Köln", {"id": "1", "city": "Köln"}),
        ("a, b", {"id": "2", "city": "a, b"}),
    ]


@pytest.mark.parametrize("through", ["file", "pipe"])
def test_parquet_rows(cli, name, through):
    pq.write_table(pa.Table.from_pylist(ROWS), cli.folder / "rows.parquet")
    if through == "file":
        cli.run("write", name, "rows.parquet", "--key", "id")
    else:
        cli.run("write", name, "--key", "id", stdin=(cli.folder / "rows.parquet").read_bytes())
    assert [(key, json.loads(value)) for key, value in written(cli, name)] == [("1", ROWS[0]), ("2", ROWS[1])]


def test_parquet_with_our_columns_holds_records(cli, name):
    table = pa.table({"key": [b"a", None], "value": [b"\x00\x01", b"text"], "offset": [5, 6]})
    pq.write_table(table, cli.folder / "records.parquet")
    cli.run("write", name, "records.parquet")
    assert written(cli, name) == [("a", "\0\1"), (None, "text")]


def test_an_empty_input_writes_nothing(cli, name):
    assert cli.run("write", name).stderr.decode() == f"0 records written to {name}\n"


BAD = {
    "not json": (["--format", "ndjson"], b'{"a":1}\n{oops\n', 1, "line 2: not JSON"),
    "no object": (["--format", "ndjson"], b"[1]\n", 1, "line 1: not a JSON object"),
    "no key": (["--key", "id"], b'{"id":1}\n{"x":2}\n', 1, "line 2: there is no field 'id'"),
    "no key at all": (["--key", "id"], b'{"x":2}\n', 1, "there is no field 'id' to take the key from; there are x"),
    "no separator": (["--key-separator", ":"], b"a:1\nb\n", 1, "line 2 has no key"),
    "cut frame": (["--format", "frames"], b"\x05\0\0\0abc", 1, "frame 1 is cut short"),
    "huge frame": (["--format", "frames"], b"\xfe\xff\xff\xff", 1, "frame 1 claims 4294967294 bytes"),
    "no parquet": (["--format", "parquet"], b"PAR1 and then nothing", 1, "not a Parquet file"),
    "csv with more": (["--format", "csv"], b"a,b\n1,2,3\n", 1, "more fields than the 2 names"),
    "csv not text": (["--format", "csv"], b"a,b\n\xff,2\n", 1, "not CSV"),
    "format": (["--format", "xml"], b"", 2, "--format xml: use one of lines,"),
    "key of lines": (["--format", "lines", "--key", "id"], b"", 2, "--key needs fields"),
    "separator of csv": (["--format", "csv", "--key-separator", ":"], b"", 2, "--key-separator is for lines"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_input_is_refused_with_its_place(cli, name, case):
    options, stdin, code, text = BAD[case]
    assert text in cli.error("write", name, *options, code=code, stdin=stdin)


def test_what_was_written_before_an_error_is_said(cli, name):
    error = cli.error("write", name, "--format", "ndjson", code=1, stdin=b'{"a":1}\n' * 3 + b"no\n")
    assert "line 4: not JSON" in error
    assert len(written(cli, name)) == 3


def test_a_file_that_is_not_there(cli, name):
    assert "No such file" in cli.error("write", name, "nothing.csv", code=1)
