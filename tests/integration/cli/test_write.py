"""`mainstem write`: every format, and what is wrong with an input said by line."""

import json
import signal
import subprocess

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
    "csv with less": (["--format", "csv"], b"a,b\n1\n", 1, "line 2: fewer fields than the 2 names"),
    "csv not text": (["--format", "csv"], b"a,b\n\xff,2\n", 1, "not UTF-8 text"),
    "format": (["--format", "xml"], b"", 2, "--format xml: use one of lines,"),
    "key of lines": (["--format", "lines", "--key", "id"], b"", 2, "--key needs fields"),
    "separator of csv": (["--format", "csv", "--key-separator", ":"], b"", 2, "--key-separator is for lines"),
    "separator of parquet": (["--key-separator", ":"], b"PAR1", 2, "--key-separator is for lines, and the input is pa"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_input_is_refused_with_its_place(cli, name, case):
    options, stdin, code, text = BAD[case]
    error = cli.error("write", name, *options, code=code, stdin=stdin)
    assert text in error
    assert (f" in {name}" in error) == (len(written(cli, name)) > 0)


def test_what_was_written_before_an_error_is_said(cli, name):
    (cli.folder / "rows.ndjson").write_bytes(b'{"a":1}\n' * 3 + b"no\n")
    error = cli.error("write", name, "rows.ndjson", code=1)
    assert "rows.ndjson: line 4: not JSON" in error
    assert f"[3 records are in {name}; " in error
    assert len(written(cli, name)) == 3


def test_ctrl_c_says_how_many_records_are_there(cli, name):
    """The pipe stays open: `write` waits for more when it is interrupted."""
    with cli.start("write", name, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        follow = ("tail", name, "--start", "earliest", "-n", "2", "--output", "raw")
        assert cli.out(*follow) == "one\ntwo\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read().decode() == f"stopped; 2 records are in {name}\n"


def test_the_ending_of_a_file_wins_over_a_separator(cli, name):
    (cli.folder / "rows.csv").write_text("customer,page\ncarol,/home\n")
    error = cli.error("write", name, "rows.csv", "--key-separator", ",", code=2)
    assert "the input is csv; use --key FIELD, or --format lines" in error
    cli.run("write", name, "rows.csv", "--key-separator", ",", "--format", "lines")
    assert written(cli, name) == [("customer", "page"), ("carol", "/home")]


def test_a_file_that_is_not_there(cli, name):
    assert cli.error("write", name, "nothing.csv", code=1) == "mainstem: nothing.csv: No such file or directory"
    assert cli.error("write", name, ".", code=1) == "mainstem: .: Is a directory"


def test_a_stream_that_is_not_there(cli):
    assert "there is no stream 'nothing'" in cli.error("write", "nothing", code=3)
    assert "stream name '../x'" in cli.error("write", "../x", code=2)


def test_all_records_to_one_shard(local, name):
    local.run("stream", "create", name, "--shards", "3")
    local.run("write", name, "--shard", "2", "--key-separator", ":", stdin=b"a:1\nb:2\nc:3\n")
    pq.write_table(pa.table({"key": [b"d", b"e"], "value": [b"4", b"5"]}), local.folder / "rows.parquet")
    assert b"newest offsets 2:4" in local.run("write", name, "rows.parquet", "--shard", "2").stderr
    assert written(local, name) == [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")]
    refused = local.error("write", name, "--shard", "3", stdin=b"x\n", code=2)
    assert "has 3 shards, 0 to 2; there is no shard 3" in refused
