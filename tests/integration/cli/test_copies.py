"""A stream of rows copied through a pipe: what `tail` writes, `write` takes."""

from datetime import UTC, datetime
from typing import Any

import pytest

import mainstem

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")

SCHEMA = {
    "id": "int64 not null",
    "name": "text",
    "price": "decimal(10, 2)",
    "data": "bytes",
    "length": "duration",
    "tags": ["text"],
}
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "", "price": "9.50", "data": b"\xff", "length": 1500, "tags": ["a", None, ""]},
    {"id": 2, "name": None, "price": None, "data": b"", "length": None, "tags": None},
    {"id": 3, "name": 'ä\n","', "price": "0.00", "data": b"x", "length": 0, "tags": []},
]
TAIL = "--start earliest --no-follow"


@pytest.fixture
def cli(local, name):
    with mainstem.open(local.folder / "data") as hub:
        for stream, key in (
            (name, None),
            (f"{name}.copy", None),
            (f"{name}.keyed", "id"),
            (f"{name}.keyed.copy", "id"),
        ):
            hub.streams.create(stream, schema=SCHEMA, key=key)
        with hub.producer() as producer:
            for row in ROWS:
                time = datetime(2026, 1, row["id"], tzinfo=UTC)
                producer.send(name, row, key=b"k%d" % row["id"], headers={"h": b"\xfe"}, timestamp=time)
                producer.send(f"{name}.keyed", row, headers={"h": b"x"}, timestamp=time)
            producer.send(f"{name}.keyed", None, key=b"1")
    return local


def read(cli, name):
    with (
        mainstem.open(cli.folder / "data", read_only=True) as hub,
        hub.consumer(name, start="earliest", follow=False) as it,
    ):
        return [(each.value, each.key, each.headers, each.timestamp) for each in it]


def copy(cli, name, output, form):
    data = f"--data {cli.folder / 'data'}"
    cli.shell(
        f"mainstem tail {name} {TAIL} {data} {output} > piped && mainstem write {name}.copy {data} {form} < piped"
    )


@pytest.mark.parametrize(
    "output",
    ["json", "json --columns id,name,price,data,length,tags,_key,_headers,_timestamp,_shard,_offset"],
    ids=["whole", "columns"],
)
def test_json_has_everything_of_a_record(cli, name, output):
    copy(cli, name, f"--output {output}", "")
    assert read(cli, f"{name}.copy") == read(cli, name)


def test_json_of_a_stream_with_tombstones_and_keys_of_columns(cli, name):
    copy(cli, f"{name}.keyed", "--output json", "")
    found = read(cli, f"{name}.keyed.copy")
    assert found == read(cli, f"{name}.keyed")
    assert found[-1][:2] == (None, b"1")


@pytest.mark.parametrize("form", ["raw", "csv", "avro"])
def test_rows_alone(cli, name, form):
    copy(cli, name, f"--output {form}", "" if form == "raw" else f"--format {form}")
    assert [row for row, *_ in read(cli, f"{name}.copy")] == [row for row, *_ in read(cli, name)]


@pytest.mark.parametrize("form", ["csv", "avro"])
def test_columns_of_records_are_those_of_the_copy(cli, name, form):
    columns = ",".join([*SCHEMA, "_key", "_headers", "_timestamp", "_offset"])
    copy(cli, name, f"--output {form} --columns {columns}", f"--format {form}")
    assert read(cli, f"{name}.copy") == read(cli, name)


def test_avro_by_its_ending_with_its_schema(cli, name):
    data = f"--data {cli.folder / 'data'}"
    cli.shell(f"mainstem tail {name} {TAIL} {data} --output avro > rows.avro && mainstem stream create lake {data}")
    cli.run("write", "lake", "rows.avro", "--infer")
    assert [row for row, *_ in read(cli, "lake")] == [row for row, *_ in read(cli, name)]
    cli.run("stream", "create", "bare")
    cli.run("write", "bare", "rows.avro", "--key", "id")
    assert [(len(value) > 20, key) for value, key, *_ in read(cli, "bare")] == [
        (True, b"1"),
        (True, b"2"),
        (True, b"3"),
    ]
    (cli.folder / "cut.avro").write_bytes((cli.folder / "rows.avro").read_bytes()[:-10])
    assert "cut.avro: block 1 of the Avro file" in cli.error("write", "lake", "cut.avro", code=1)
