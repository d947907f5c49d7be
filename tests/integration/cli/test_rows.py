"""`mainstem write` into a stream with a schema, and `mainstem redrive`: rows of every format, and what does not fit."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mainstem

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
ROW = {"id": 1, "city": "Köln", "price": Decimal("9.50"), "day": date(2026, 1, 31), "tags": ["a", "b"]}
LINE = '{"id": 1, "city": "Köln", "price": "9.50", "day": "2026-01-31", "tags": ["a", "b"]}\n'.encode()


@pytest.fixture
def cli(local, name):
    with mainstem.open(local.folder / "data") as hub:
        hub.streams.create(name, schema=SCHEMA)
    return local


def read(cli, name):
    with (
        mainstem.open(cli.folder / "data", read_only=True) as hub,
        hub.consumer(name, start="earliest", follow=False) as consumer,
    ):
        return list(consumer)


def rows(cli, name):
    return [record.value for record in read(cli, name)]


def test_ndjson_and_lines_are_rows(cli, name):
    done = cli.run("write", name, stdin=LINE + b"\n" + b'{"id": 2}')
    assert b"2 records written" in done.stderr
    cli.run("write", name, "--format", "ndjson", "--key", "id", stdin=b'\xef\xbb\xbf{"id": 3}\n')
    records = read(cli, name)
    assert records[0].value == ROW
    assert [record.value["id"] for record in records] == [1, 2, 3]
    assert [record.key for record in records] == [None, None, b"3"]


def test_a_row_that_does_not_fit_is_named_by_line_and_path(cli, name):
    (cli.folder / "rows.ndjson").write_bytes(LINE + b'\n{"id": 2, "tags": ["a", 5]}\n')
    text = cli.run("write", name, "rows.ndjson", code=1).stderr.decode()
    assert f"rows.ndjson: line 3: stream '{name}': tags[1] must be string, not number 5" in text
    assert "1 record is in" in text


def test_csv_cells_are_values_of_their_columns(cli, name):
    text = 'id,city,price,day,tags\n1,Köln,9.50,2026-01-31,"[""a"", ""b""]"\n2,,,,\n'
    (cli.folder / "rows.csv").write_text(text, encoding="utf-8")
    cli.run("write", name, "rows.csv")
    assert rows(cli, name) == [ROW, {**dict.fromkeys(SCHEMA.names), "id": 2}]
    (cli.folder / "bad.csv").write_text("id,city\n3,a\nx,b\n", encoding="utf-8")
    text = cli.run("write", name, "bad.csv", code=1).stderr.decode()
    assert f"bad.csv: line 3: stream '{name}': id must be int64, not text 'x'" in text
    (cli.folder / "bad.csv").write_text("id,town\n3,a\n", encoding="utf-8")
    assert "town is not a field of the schema" in cli.run("write", name, "bad.csv", code=1).stderr.decode()


def test_parquet_columns_by_name(cli, name):
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    table = pa.table({"id": pa.array([1, 2], pa.int16()), "city": ["a", None], "_timestamp": [moment, moment]})
    pq.write_table(table, cli.folder / "rows.parquet")
    cli.run("write", name, "rows.parquet")
    assert [(record.value["id"], record.timestamp) for record in read(cli, name)] == [(1, moment), (2, moment)]
    pq.write_table(pa.table({"id": ["x"]}), cli.folder / "bad.parquet")
    assert "id must be int64, not string" in cli.run("write", name, "bad.parquet", code=1).stderr.decode()


def test_dead_letters_and_redrive(cli, name):
    lines = b'{"id": 1}\n{"id": "x"}\nnonsense\n{"id": 2, "land": "DE"}\n{"id": 3}\n'
    done = cli.run("write", name, "--on-bad", "dead_letter", stdin=lines)
    assert b"2 records written" in done.stderr
    assert f"3 rows did not fit and went to {name}.dead".encode() in done.stderr
    assert [row["id"] for row in rows(cli, name)] == [1, 3]

    fixed = b'{"_dead_offset": 0, "id": 7}\n{"_dead_offset": 9, "id": 8}\n'
    (cli.folder / "fixed.ndjson").write_bytes(fixed)
    # A row that stands for no letter is told by the exit code, too.
    done = cli.run("redrive", name, "--input", "-", stdin=fixed, code=1)
    assert "1 row would be put back" in done.stderr.decode()
    assert "--yes does it" in done.stderr.decode()
    assert "1\tonce: id must be int64, not text 'x'" in done.stdout.decode()
    assert [row["id"] for row in rows(cli, name)] == [1, 3]

    done = cli.run("redrive", name, "--yes", "--input", "fixed.ndjson", code=1)
    assert f"1 row put back into {name}" in done.stderr.decode()
    assert "2 rows still not fitting" in done.stderr.decode()
    assert "no open dead letter has the offset of 1 row: 9" in done.stderr.decode()
    assert [row["id"] for row in rows(cli, name)] == [1, 3, 7]

    with mainstem.open(cli.folder / "data") as hub:
        hub.streams.set_schema(name, SCHEMA.append(pa.field("land", pa.string())))
    cli.run("redrive", name, "--yes")
    done = cli.run("redrive", name, "--yes")
    assert "0 rows put back" in done.stderr.decode()
    assert [row["land"] for row in rows(cli, name)] == [None, None, None, "DE"]


def test_wrong_usage_is_told(cli, name):
    assert "use raise or dead_letter" in cli.error("write", name, "--on-bad", "drop", code=2)
    assert "has no dead letters" in cli.error("redrive", name, code=3)
    (cli.folder / "fixed.ndjson").write_text('{"id": 7}\n')
    assert "line 1: it has no _dead_offset" in cli.error("redrive", name, "--input", "fixed.ndjson", code=1)
    assert "standard input: line 1: not a JSON" in cli.error(
        "redrive", name, "--input", "-", stdin=b"id,city\n", code=1
    )
    with mainstem.open(cli.folder / "data") as hub:
        hub.streams.create("keyed", schema=SCHEMA, key="city")
    assert "made of city" in cli.error("write", "keyed", "--format", "ndjson", "--key", "id", code=2, stdin=LINE)


def test_a_schema_can_be_inferred_from_the_input(cli, name):
    cli.run("stream", "create", "fresh")
    cli.run("write", "fresh", "--format", "ndjson", "--infer", stdin=b'{"a": 1, "b": "x"}\n{"a": 2}\n')
    assert rows(cli, "fresh") == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    cli.run("stream", "create", "lake")
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), cli.folder / "rows.parquet")
    cli.run("write", "lake", "rows.parquet", "--infer")
    assert rows(cli, "lake") == [{"a": 1, "b": "x"}]
    cli.run("stream", "create", "text")
    assert "--infer is for NDJSON" in cli.error("write", "text", "--infer", code=2, stdin=b"line\n")
    assert json.loads(cli.out("stream", "show", "text", "--json"))["records"] == 0


def test_a_key_of_several_columns_is_erased_by_its_values(cli, name):
    with mainstem.open(cli.folder / "data") as hub:
        hub.streams.create("pairs", schema=SCHEMA, key=["city", "id"])
    cli.run("write", "pairs", stdin=b'{"id": 7, "city": "Ulm"}\n{"id": 8, "city": "Ulm"}\n')
    assert "erased 1 record of pairs" in cli.out("stream", "erase", "pairs", "Ulm", "7", "--yes")
    assert "made of city, id" in cli.error("stream", "erase", "pairs", "Ulm", "7", "8", "--yes", code=1)
