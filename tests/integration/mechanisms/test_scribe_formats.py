"""The output formats of Scribe: whatever form rows were written in, a reader names the one it wants."""

import io
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet
import pytest

import mainstem
from mainstem.hub.hub import Hub
from mainstem.registry import formats
from mainstem.registry.containers import read_avro
from mainstem.registry.forms import as_schema
from mainstem.registry.rows import RowConverter
from mainstem.testing.server import ServerProcess
from tests.integration.mechanisms.rig import embedded

SCHEMA = as_schema(
    {
        "id": "int64 not null",
        "text": "string",
        "number": "float64",
        "large": "uint64",
        "price": "decimal(20, 4)",
        "raw": "binary",
        "at": "timestamp",
        "tags": ["string"],
        "labels": "map<string, int64>",
        "place": {"city": "string", "height": "float32"},
    }
)
NUMBERS = [0.1, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e300, 2.0]
TEXTS = ["", "plain", 'ä € 😀 "quoted" \\ \n\t,\x00', "NaN", "null"]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
COUNT = 2_000


def row(number: int) -> dict[str, Any]:
    """One of many rows: every field is null now and then."""

    def unless_null(place: int, value: Any) -> Any:
        return None if (number + place) % 11 == 0 else value

    return {
        "id": [number, (1 << 63) - 1, -(1 << 63)][number % 3],
        "text": unless_null(1, TEXTS[number % len(TEXTS)]),
        "number": unless_null(2, NUMBERS[number % len(NUMBERS)]),
        "large": unless_null(3, (1 << 64) - 1 - number),
        "price": unless_null(4, Decimal(f"{number}.1234")),
        "raw": unless_null(5, [b"text", b"\xff\x00", b""][number % 3]),
        "at": unless_null(6, BEGAN + timedelta(microseconds=number)),
        "tags": unless_null(7, ["ä", None, ""][: number % 4]),
        "labels": unless_null(8, {"größe": number, "": None}),
        "place": unless_null(9, {"city": "Köln", "height": None if number % 2 else 0.5}),
    }


def comparable(value: Any) -> Any:
    """NaN equal to itself, 0.0 different from -0.0, pairs as the map they are."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return value


# Ways in


def write_rows(hub: Hub, stream: str, rows: list[dict[str, Any]]) -> None:
    with hub.producer() as producer:
        for each in rows:
            producer.send(stream, each)


def write_json(hub: Hub, stream: str, rows: list[dict[str, Any]]) -> None:
    """JSON as another program would write it, by the conventions of docs/schemas.md."""
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    made: dict[str, Callable[[Any], Any]] = {
        "number": lambda value: value if math.isfinite(value) else words[str(value)],
        "raw": lambda value: {"base64": "/wA="} if value == b"\xff\x00" else value.decode(),
        "price": str,
        "at": datetime.isoformat,
    }
    with hub.producer() as producer:
        for each in rows:
            changed = {name: make(each[name]) for name, make in made.items() if each[name] is not None}
            producer.send(stream, json.dumps({**each, **changed}, allow_nan=False))


def write_arrow(hub: Hub, stream: str, rows: list[dict[str, Any]]) -> None:
    listed = [{**each, "labels": each["labels"] and list(each["labels"].items())} for each in rows]
    with hub.producer() as producer:
        producer.send_batch(stream, pa.Table.from_pylist(listed, schema=SCHEMA.arrow))


WRITERS = {"rows": write_rows, "json": write_json, "arrow": write_arrow}

# Ways out: each gives the rows as dicts, after it has decoded the format it asked for


def batches(hub: Hub, stream: str) -> Iterator[pa.RecordBatch]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        for batch in consumer.batches():
            yield batch.to_arrow()


def read_records(hub: Hub, stream: str) -> list[Any]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        return [record.value for record in consumer]


def read_json(hub: Hub, stream: str) -> list[Any]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        text = b"".join(batch.to_ndjson() for batch in consumer.batches())
    return decoded_json(text.decode().removesuffix("\n").split("\n"))


def decoded_json(lines: list[str]) -> list[Any]:
    found, bad = RowConverter(SCHEMA).from_json(pa.array([line.encode() for line in lines], pa.binary()))
    assert list(bad) == []
    return formats.to_dicts(found)


def read_csv(hub: Hub, stream: str) -> list[Any]:
    with hub.consumer(stream, start="earliest", follow=False) as consumer:
        text = b"".join(batch.to_csv(header=False) for batch in consumer.batches()).decode()
    rows = [dict(zip(SCHEMA.names, cells, strict=True)) for cells in csv_rows(text)]
    return formats.to_dicts(RowConverter(SCHEMA).to_batch([decoded_cells(each) for each in rows]))


CELL = re.compile(r'("(?:[^"]|"")*"|[^",\n]*)([,\n])')


def csv_rows(text: str) -> Iterator[list[str | None]]:
    """The cells of CSV. Unlike that of Python, this reader knows an empty text, in quotes, from a null, without."""
    cells: list[str | None] = []
    for found in CELL.finditer(text):
        cell = found[1]
        cells.append(cell[1:-1].replace('""', '"') if cell.startswith('"') else cell or None)
        if found[2] == "\n":
            yield cells
            cells = []


def decoded_cells(cells: dict[str, str | None]) -> dict[str, Any]:
    found: dict[str, Any] = dict(cells)
    for name in ("id", "large", "tags", "labels", "place"):
        found[name] = json.loads(cells[name] or "null")
    found["number"] = None if cells["number"] is None else float(cells["number"])
    raw = cells["raw"]
    found["raw"] = json.loads(raw) if raw is not None and raw.startswith("{") else raw
    return found


# As they are read: there may be tombstones, whatever the schema says of rows.
COLUMNS = pa.schema([field.with_nullable(True) for field in SCHEMA.arrow])


def read_arrow(hub: Hub, stream: str) -> list[Any]:
    data = formats.to_arrow_stream(batches(hub, stream), COLUMNS)
    return formats.to_dicts(pa.ipc.open_stream(data).read_all())


def read_parquet(hub: Hub, stream: str) -> list[Any]:
    data = formats.to_parquet(batches(hub, stream), COLUMNS)
    return formats.to_dicts(pyarrow.parquet.read_table(pa.BufferReader(data)).cast(SCHEMA.arrow))


def read_avro_file(hub: Hub, stream: str) -> list[Any]:
    data = formats.to_avro_file(batches(hub, stream), COLUMNS)
    assert len(list(fastavro.reader(io.BytesIO(data)))) == COUNT  # others can read it, too
    return formats.to_dicts(pa.Table.from_batches(list(read_avro(data)[1]), COLUMNS))


READERS: dict[str, Callable[[Hub, str], list[Any]]] = {
    "rows": read_records,
    "json": read_json,
    "arrow": read_arrow,
    "csv": read_csv,
    "parquet": read_parquet,
    "avro": read_avro_file,
}


@contextmanager
def served(path: Path) -> Iterator[Hub]:
    with ServerProcess(path / "data") as server, mainstem.connect(server.url) as hub:
        yield hub


HUBS = {"embedded": embedded, "served": served}


@pytest.mark.mechanism("S8")
@pytest.mark.slow("2,000 rows are written in three forms, and each is read in six")
@pytest.mark.parametrize("kind", HUBS)
def test_s8(tmp_path, kind):
    """Two thousand rows, written as rows, as JSON and as Arrow; each read as rows, JSON, Arrow, CSV, Parquet and Avro:
    18 times the same values, nulls, letters of all kinds, 64-bit numbers, NaN and infinities among them. The JSON that
    Python makes of the same rows when nobody knows their types loses most of them."""
    rows = [row(number) for number in range(COUNT)]
    expected = [comparable(each) for each in rows]
    with HUBS[kind](tmp_path) as hub:
        for form, write in WRITERS.items():
            hub.streams.create(form, schema=SCHEMA)
            write(hub, form, rows)
            for wanted, read in READERS.items():
                assert [comparable(each) for each in read(hub, form)] == expected, (form, wanted)
        naive = [json.dumps(each, default=str) for each in read_records(hub, "rows")]
        same = sum(comparable(json.loads(text)) == each for text, each in zip(naive, expected, strict=True))
        assert same < COUNT // 10
        converter = RowConverter(SCHEMA)
        _, bad = converter.from_json(pa.array([text.encode() for text in naive], pa.binary()))
        assert len(bad) > COUNT // 10


@pytest.mark.mechanism("S8")
def test_s8_bytes_have_no_rows(tmp_path):
    """A stream of bytes cannot be read by its columns: that is told when it is opened. And a record that is no row,
    from before the stream had a schema, comes out as it is, among rows."""
    with embedded(tmp_path) as hub:
        hub.streams.create("mixed")
        with hub.producer() as producer:
            producer.send("mixed", b'{"a": 1}')
            producer.send("mixed", b"no row at all")
        with pytest.raises(mainstem.MainstemError, match=r"schema|column"):
            hub.consumer("mixed", start="earliest", columns=["a"])
        hub.streams.set_schema("mixed", {"a": "int64"})
        with hub.producer() as producer:
            producer.send("mixed", {"a": 2})
        with hub.consumer("mixed", start="earliest", follow=False, on_bad="keep") as consumer:
            found = [(record.value, record.undecoded) for record in consumer]
        assert found == [({"a": 1}, None), (None, b"no row at all"), ({"a": 2}, None)]
        # Unless the reader wants to hear of it.
        with hub.consumer("mixed", start="earliest", follow=False) as consumer:
            assert next(iter(consumer)).value == {"a": 1}
            with pytest.raises(mainstem.MainstemError, match="record 1 is no row"):
                list(consumer)
