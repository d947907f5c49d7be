"""`mainstem schema`, `find`, and `tail` and `stream` where rows have a schema: in pipes, with exit codes."""

import csv
import io
import json
import threading

import fastavro
import pyarrow as pa
import pytest

import mainstem
from mainstem.cli.tail import _pour_columns

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")

COLUMNS = {"id": "int64", "customer": "string", "amount": {"type": "float64", "default": 0.0}}
ROWS = [
    {"id": 1, "customer": "ann", "amount": 9.5},
    {"id": 2, "customer": "bob", "amount": 200.0},
    {"id": 3, "customer": "ann\nand \u202eso on", "amount": None},
]
EARLIEST = ("--start", "earliest", "--no-follow")


@pytest.fixture
def typed(cli, name):
    """A stream with a schema and three rows."""
    (cli.folder / "columns.json").write_text(json.dumps(COLUMNS))
    made = cli.out("stream", "create", name, "--schema", "columns.json", "--key", "customer", "--index", "id")
    assert "rows of id, customer, amount (version 1, backward); key customer; index id\n" in made
    cli.run("write", name, stdin="".join(json.dumps(row) + "\n" for row in ROWS).encode())
    return cli


def tail(cli, name, *options):
    return cli.run("tail", name, *EARLIEST, *options).stdout


def test_rows_leave_in_every_format(typed, name):
    lines = tail(typed, name).decode().splitlines()
    assert [json.loads(line.split("\t")[3]) for line in lines] == ROWS
    assert "\u202e" not in lines[2]
    whole = [json.loads(line) for line in tail(typed, name, "--output", "json").splitlines()]
    assert [record["value"] for record in whole] == ROWS
    assert [record["key"] for record in whole] == [row["customer"] for row in ROWS]
    raw = tail(typed, name, "--output", "raw")
    assert [json.loads(line) for line in raw.splitlines()] == ROWS
    found = list(csv.DictReader(io.StringIO(tail(typed, name, "--output", "csv").decode())))
    assert [row["id"] for row in found] == ["1", "2", "3"]
    assert found[2]["customer"] == ROWS[2]["customer"]
    assert pa.ipc.open_stream(tail(typed, name, "--output", "arrow")).read_all().to_pylist() == ROWS
    assert list(fastavro.reader(io.BytesIO(tail(typed, name, "--output", "avro")))) == ROWS
    # What raw writes is what write takes.
    typed.run("write", name, stdin=raw)
    assert len(tail(typed, name, "--output", "raw").splitlines()) == 6


def test_where_columns_and_limit(typed, name):
    chosen = ("--where", "amount > 5 AND id >= 2", "--columns", "id,_offset")
    assert tail(typed, name, *chosen) == b'{"id":2,"_offset":1}\n'
    assert tail(typed, name, *chosen, "--output", "csv") == b'"id","_offset"\n2,1\n'
    assert tail(typed, name, "--limit", "2", "--output", "csv").count(b"\n") == 3
    assert tail(typed, name, "--columns", "id", "--limit", "1", "--output", "table").decode().split() == ["id", "1"]
    piped = typed.shell(f"mainstem tail {name} --start earliest --output csv | head -2")
    assert piped == '"id","customer","amount"\n1,"ann",9.5\n'


def test_an_empty_predicate_is_refused(typed, name):
    for output in ("raw", "csv"):
        said = typed.error("tail", name, *EARLIEST, "--where", "", "--output", output, code=2)
        assert "where is empty; leave it out" in said


def test_columns_that_become_others_end_the_output(tmp_path):
    """What was begun with one type cannot go on with another."""
    with mainstem.open(tmp_path / "data") as hub:
        hub.streams.create("orders", schema={"n": "int32"})

        def write_wider() -> None:
            hub.streams.set_schema("orders", {"n": "int64"})
            with hub.producer() as producer:
                producer.send("orders", {"n": 1 << 40})

        writer = threading.Timer(0.3, write_wider)
        writer.start()
        with pytest.raises(mainstem.IncompatibleSchema, match="'orders' has another schema now"):
            _pour_columns(hub, "orders", "earliest", True, None, None, "arrow", 1)
        writer.join()


def test_a_cursor_file_goes_on_behind_what_did_not_match(typed, name):
    for expected in (b'{"id":2}\n', b""):
        got = tail(typed, name, "--where", "id = 2", "--columns", "id", "--cursor-file", "place")
        assert got == expected
    typed.run("write", name, stdin=b'{"id": 2}\n')
    assert tail(typed, name, "--where", "id = 2", "--columns", "id", "--cursor-file", "place") == b'{"id":2}\n'


def test_find(typed, name):
    done = typed.run("find", name, "id = 2")
    assert [line.split() for line in done.stdout.decode().splitlines()] == [
        ["id", "customer", "amount"],
        ["2", "bob", "200.0"],
    ]
    assert done.stderr.decode().startswith("1 record; opened 1 batch, skipped 0, in ")
    assert typed.out("find", name, "id < 3", "--columns", "id", "--output", "json") == '{"id":1}\n{"id":2}\n'
    assert typed.out("find", name, "id < 3", "--limit", "1", "--output", "csv").count("\n") == 2
    nothing = typed.run("find", name, "id = 99", "--output", "json")
    assert (nothing.stdout, nothing.stderr.decode()[:9]) == (b"", "0 records")


def test_schemas_follow_each_other(typed, name):
    assert json.loads(typed.out("schema", "show", name)) == COLUMNS
    assert json.loads(typed.out("schema", "show", name, "--output", "avro"))["type"] == "record"
    assert typed.out("schema", "show", name, "--output", "arrow-text").startswith("id: int64\n")
    (typed.folder / "more.json").write_text(json.dumps(COLUMNS | {"note": "string"}))
    (typed.folder / "other.json").write_text(json.dumps(COLUMNS | {"id": "string"}))
    assert "could have it (backward)" in typed.out("schema", "check", name, "more.json")
    assert "id" in typed.error("schema", "check", name, "other.json", code=1)
    assert json.loads(typed.out("schema", "show", name)) == COLUMNS
    said = json.loads(typed.out("schema", "set", name, "more.json", "--compatibility", "full", "--json"))
    assert said == {"stream": name, "version": 2, "compatibility": "full"}
    assert "id" in typed.error("schema", "set", name, "other.json", code=5)
    assert json.loads(typed.out("schema", "show", name, "--version", "1")) == COLUMNS
    assert "versions 1 to 2" in typed.error("schema", "show", name, "--version", "3", code=3)
    assert [row["note"] for row in map(json.loads, tail(typed, name, "--output", "raw").splitlines())] == [None] * 3
    shown = json.loads(typed.out("stream", "show", name, "--json"))
    assert (shown["schema_version"], shown["key"], shown["index"]) == (2, ["customer"], ["id"])


def test_check_says_what_set_does(typed, name):
    """To the exit code: 1 and 5 for what the stream could not live with, 2 for what is no schema at all."""
    renamed = {"id": "int64", "buyer": {"type": "string", "aliases": ["customer"]}, "amount": COLUMNS["amount"]}
    for file, columns in (
        ("renamed", renamed),
        ("keyless", {"id": "int64"}),
        ("fractions", COLUMNS | {"customer": "float64"}),
        ("senseless", COLUMNS | {"customer": {"type": "string", "aliases": ["id"]}}),
        ("smaller", {"buyer": renamed["buyer"]}),
    ):
        (typed.folder / f"{file}.json").write_text(json.dumps(columns))
    for file, said, codes in (
        ("keyless", "'customer' is part of the key of", (1, 5)),
        ("fractions", "'customer'", (1, 5)),
        ("senseless", "a name may mean one field only", (2, 2)),
    ):
        assert said in typed.error("schema", "check", name, f"{file}.json", code=codes[0])
        assert said in typed.error("schema", "set", name, f"{file}.json", code=codes[1])
    assert "then its key is buyer, not customer\n" in typed.out("schema", "check", name, "renamed.json")
    assert typed.out("schema", "set", name, "renamed.json").endswith("\nits key is buyer, not customer\n")
    assert "then its index is empty, not id\n" in typed.out("schema", "check", name, "smaller.json")
    assert "its index is empty, not id\n" in typed.out("schema", "set", name, "smaller.json")


def test_more_shards(typed, name):
    shown = json.loads(typed.out("stream", "alter", name, "--shards", "3", "--json"))
    assert (shown["shards"], shown["generation"], shown["records"]) == (3, 1, 3)
    typed.error("stream", "alter", name, "--shards", "2", code=2)


def test_what_is_no_row_is_shown_or_counted(cli, name):
    cli.run("stream", "create", name)
    cli.run("write", name, stdin=b'{"id": 1}\nno row\n')
    cli.run("schema", "set", name, "-", stdin=b'{"id": "int64"}')
    lines = [json.loads(line) for line in tail(cli, name, "--output", "json").splitlines()]
    assert [(line["value"], line.get("undecoded")) for line in lines] == [({"id": 1}, None), (None, "no row")]
    assert tail(cli, name, "--output", "raw") == b'{"id":1}\nno row\n'
    assert tail(cli, name).splitlines()[1].endswith(b"\tno row")
    why = "record 1 is no row of its schema (is not JSON: Expecting value at character 0)"
    told = f"mainstem: 1 record of {name} left out: shard 0: {why}\n"
    done = cli.run("tail", name, *EARLIEST, "--output", "csv", code=1)
    assert (done.stdout, done.stderr.decode()) == (b'"id"\n1\n', told)
    chosen = cli.run("tail", name, *EARLIEST, "--where", "id = 1", "--output", "raw", code=1)
    assert (chosen.stdout, chosen.stderr.decode()) == (b'{"id":1}\n', told)
    assert cli.run("find", name, "id = 1", code=1).stderr.decode().endswith(told)


def test_rows_of_before_that_cannot_be_read_are_left_out_of_every_output(local):
    cli, name = local, "orders"
    with mainstem.open(local.folder / "data") as hub, hub.producer() as producer:
        hub.streams.create(name, schema={"a": "int8", "o": "text"}, compatibility="none")
        producer.send_many(name, [{"a": 1, "o": "x"}, {"a": 2, "o": "y"}]).result(10)
        hub.streams.set_schema(name, {"a": "int8", "o": "int64"})
        producer.send(name, {"a": 1, "o": 7}).result(10)
    why = "cannot be read in the newest schema: column 'o' is string in these rows and cannot be read as int64"
    text = cli.run("tail", name, *EARLIEST, "--output", "raw", code=1)
    assert text.stdout == b'{"a":1,"o":7}\n'
    assert text.stderr.decode() == f"mainstem: stream '{name}' shard 0: rows 0 to 1 {why}; going on after them\n"
    csv = cli.run("tail", name, *EARLIEST, "--output", "csv", code=1)
    assert (csv.stdout, csv.stderr.decode()) == (
        b'"a","o"\n1,7\n',
        f"mainstem: 2 records of {name} left out: shard 0: rows 0 to 1 {why}\n",
    )
    found = cli.run("find", name, "a = 1", "--output", "csv", code=1)
    assert found.stdout == b'"a","o"\n1,7\n'
    assert found.stderr.decode().endswith(f"mainstem: 1 record of {name} left out: shard 0: row 0 {why}\n")
    assert cli.run("find", name, "a = 1", "--columns", "a", "--output", "csv").stdout == b'"a"\n1\n1\n'


def test_wrong_usage(typed, name):
    assert "did you mean 'amount'?" in typed.error("tail", name, "--where", "amuont > 1", code=2)
    assert "there is no column 'x'. The columns are id, " in typed.error("tail", name, "--columns", "x", code=2)
    assert "as in id,amount" in typed.error("tail", name, "--columns", "id,,x", code=2)
    assert "use one of text, json, raw, csv" in typed.error("tail", name, "--output", "xml", code=2)
    assert "goes by single records" in typed.error("tail", name, "--output", "csv", "--frame", code=2)
    assert "add --no-follow" in typed.error("tail", name, "--output", "avro", code=2)
    assert "use one of json, csv" in typed.error("find", name, "id = 1", "--output", "text", code=2)
    assert "there is no stream 'none'" in typed.error("schema", "show", "none", code=3)
    assert "columns.txt: " in typed.error("schema", "set", name, "columns.txt", code=1)
    assert "standard input: " in typed.error("schema", "set", name, "-", stdin=b"{", code=2)
    typed.run("stream", "create", f"{name}-bytes")
    assert "has no schema" in typed.error("schema", "show", f"{name}-bytes", code=3)
