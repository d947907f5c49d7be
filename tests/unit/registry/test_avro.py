"""Avro: schemas both ways, files both ways, and files that mean harm."""

import contextlib
import io
import json
import random
import tracemalloc
import zlib
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from mainstem.core.errors import InvalidPayload, InvalidSchema, MainstemError, RecordTooLarge
from mainstem.core.limits import AVRO_BLOCK_BYTES_MAX, SCHEMA_FIELDS_MAX
from mainstem.produce import rows
from mainstem.registry import containers
from mainstem.registry.avro import from_avro, to_avro
from mainstem.registry.containers import read_avro
from mainstem.registry.formats import to_avro_file
from mainstem.registry.forms import as_schema
from tests.unit.registry import samples


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    named = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": "row", "fields": named, **more}


KIND = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "street", "type": "string"}, {"name": "kind", "type": KIND}],
}


@pytest.mark.parametrize(
    ("avro", "kind"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bytes", pa.binary()),
        ("string", pa.string()),
        ({"type": "string"}, pa.string()),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "int", "logicalType": "time-millis"}, pa.time32("ms")),
        ({"type": "long", "logicalType": "time-micros"}, pa.time64("us")),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("ms", "UTC")),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("ms")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, pa.decimal128(10, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, pa.decimal256(50, 0)),
        (
            {"type": "fixed", "name": "d", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2},
            pa.decimal128(10, 2),
        ),
        ({"type": "fixed", "name": "md5", "size": 16}, pa.binary(16)),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "long", "logicalType": "of-our-own"}, pa.int64()),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.string()),
        ({"type": "array", "items": "long"}, pa.list_(pa.field("item", pa.int64(), nullable=False))),
        ({"type": "array", "items": ["null", "long"]}, pa.list_(pa.int64())),
        ({"type": "map", "values": ["long", "null"]}, pa.map_(pa.string(), pa.int64())),
        (record("int"), pa.struct([pa.field("f0", pa.int32(), nullable=False)])),
    ],
    ids=str,
)
def test_a_type(avro, kind):
    inner = {**avro, "name": "inner"} if isinstance(avro, dict) and avro["type"] == "record" else avro
    schema = from_avro(record(inner, ["null", "int"]))
    assert schema.arrow.field("f0").equals(pa.field("f0", kind, nullable=False))
    assert schema.arrow.field("f1").nullable


def test_names_aliases_defaults_and_docs():
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    given = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "from", "type": ADDRESS, "doc": "where it begins"},
            {"name": "to", "type": ["null", "Address"], "default": None},
            {"name": "kind", "type": "shop.Kind", "default": "A", "aliases": ["sort"]},
            {"name": "raw", "type": "bytes", "default": "\u00ff\u0000"},
            {"name": "price", "type": [price, "null"], "default": "\u0001\u0000"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1000},
            {"name": "tags", "type": {"type": "map", "values": "int"}, "default": {"a": 1}},
        ],
    }
    address = {"type": {"street": "text not null", "kind": "text not null"}}
    expected = as_schema(
        {
            "from": {**address, "nullable": False, "doc": "where it begins"},
            "to": address,
            "kind": {"type": "text not null", "default": "A", "aliases": ["sort"]},
            "raw": {"type": "bytes not null", "default": b"\xff\x00"},
            "price": {"type": "decimal(9, 2)", "default": "2.56"},
            "at": {"type": "timestamp[ms, UTC] not null", "default": "1970-01-01T00:00:01Z"},
            "tags": {"type": "map", "keys": "text", "values": "int32 not null", "nullable": False, "default": {"a": 1}},
        }
    )
    assert (
        from_avro(given) == from_avro(json.dumps(given)) == as_schema(given) == as_schema(json.dumps(given)) == expected
    )
    assert from_avro(to_avro(expected)) == expected


def test_every_schema_goes_there_and_back():
    for seed in range(150):
        schema = as_schema(samples.schema(random.Random(seed)))
        made = to_avro(schema, "orders")
        fastavro.parse_schema(made)
        assert from_avro(json.loads(json.dumps(made))) == schema, seed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (record("null"), "column 'f0' is always null"),
        (record(["null", "int", "string"]), "column 'f0' is a union of 2 types"),
        (record(["null"]), "column 'f0' is a union of 0 types"),
        (record({"type": "array", "items": ["int", "string"]}), r"column 'f0\[\]' is a union"),
        (record({"type": "array", "items": "null"}), r"column 'f0\[\]' is always null"),
        (record(["null", "row"]), "column 'f0' is of the type 'row', which contains it"),
        (record({"type": "array", "items": "row"}), "which contains it"),
        (record("unknown"), "no Avro schema: UnknownType"),
        (record({"type": "fixed", "name": "x", "size": 0}), "column 'f0'"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 100}), "1 to 76 digits"),
        (record({"type": "bytes", "logicalType": "decimal"}), "1 to 76 digits"),
        (record({"type": "long", "arrowType": "string"}), "arrowType 'string' is not stored as long"),
        (record({"type": "array", "items": "int", "arrowSize": -5}), "arrowSize"),
        ({"type": "record", "name": "r", "fields": [{"name": "_offset", "type": "int"}]}, "use another"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": "x"}]}, "no Avro schema"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": 1 << 40}]}, "column 'a'"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "aliases": 5}]}, "aliases"),
        ({"type": "record", "name": "r", "fields": []}, "at least one column"),
        ({"type": "record", "fields": []}, "no Avro schema"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "an Avro schema of rows is a record"),
        ('"string"', "a record"),
        ("{", "no JSON"),
        ("[" * 50_000, "no JSON"),
    ],
)
def test_what_cannot_be_columns_is_told_with_its_path(given, words):
    with pytest.raises(InvalidSchema, match=words) as error:
        from_avro(given)
    assert len(str(error.value)) < 500


def test_a_schema_that_unfolds_without_end():
    """Twelve records, each with the one before in four fields: 4^12 columns in a page of JSON."""
    inner: Any = record("int", name="r0")
    for number in range(1, 13):
        inner = record(inner, *[f"r{number - 1}"] * 3, name=f"r{number}")
    with pytest.raises(InvalidSchema, match=f"more than {SCHEMA_FIELDS_MAX} fields|nested deeper"):
        from_avro(inner)
    deep: Any = "int"
    for _ in range(1_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidSchema, match="levels"):
        from_avro(record(deep))


# Files


def table_of(data: bytes) -> list[Any]:
    return [row for batch in read_avro(data)[1] for row in samples.rows(batch)]


def test_a_file_goes_there_and_back():
    for seed in range(80):
        rng = random.Random(seed)
        schema = as_schema(samples.schema(rng))
        batches = [samples.batch(rng, schema.arrow) for _ in range(2)]
        data = to_avro_file(batches, schema.arrow)
        assert as_schema(read_avro(data)[0]) == schema, seed
        assert table_of(data) == [row for batch in batches for row in samples.rows(batch)], seed
        assert len(list(fastavro.reader(io.BytesIO(data)))) == sum(batch.num_rows for batch in batches)


ROWS = [{"f0": number, "f1": f"text {number}" if number % 3 else None} for number in range(5_000)]
SCHEMA = record("long", ["null", "string"])


def file_of(codec: str = "null", rows: Any = ROWS) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, SCHEMA, rows, codec=codec)
    return sink.getvalue()


def built(codec: str, *blocks: tuple[int, bytes]) -> bytes:
    """A file of blocks that are as they are given: a number of rows and compressed bytes."""
    sync = bytes(16)
    sink = io.BytesIO()
    meta = {"avro.schema": json.dumps(SCHEMA).encode(), "avro.codec": codec.encode()}
    fastavro.schemaless_writer(sink, {"type": "map", "values": "bytes"}, meta)
    made = [b"Obj\x01", sink.getvalue(), sync]
    for count, block in blocks:
        made += [varint(count), varint(len(block)), block, sync]
    return b"".join(made)


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_files_of_others(codec):
    assert table_of(file_of(codec)) == ROWS


@pytest.mark.parametrize(("codec", "packed_by"), [("snappy", "snappy"), ("zstandard", "zstd")])
def test_other_codecs(codec, packed_by):
    rows = io.BytesIO()
    for row in ROWS:
        fastavro.schemaless_writer(rows, SCHEMA, row)
    plain = rows.getvalue()
    packed = bytes(pa.compress(plain, codec=packed_by, asbytes=True))
    block = packed + zlib.crc32(plain).to_bytes(4, "big") if codec == "snappy" else packed
    assert table_of(built(codec, (len(ROWS), block))) == ROWS
    with pytest.raises(InvalidPayload, match=r"does not decompress|checksum"):
        table_of(built(codec, (len(ROWS), block[:-1] + b"x")))
    with pytest.raises(InvalidPayload):
        table_of(built(codec, (len(ROWS), b"")))


def test_a_codec_that_is_not_read():
    with pytest.raises(InvalidPayload, match="codec 'bzip2' is not read here; use null, deflate, snappy, zstandard"):
        read_avro(file_of("bzip2"))


def bomb(codec: str, size: int) -> bytes:
    """A file of one block that says to be one row and decompresses to `size` zeros."""
    if codec == "deflate":
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        stream.compress(bytes(1 << 20))
        stream.flush(zlib.Z_FULL_FLUSH)
        piece = stream.compress(bytes(1 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)
        return built(codec, (1, piece * (size >> 20) + stream.flush()))
    packed = bytes(pa.compress(bytes(size), codec=codec.replace("zstandard", "zstd"), asbytes=True))
    return built(codec, (1, packed + bytes(4 if codec == "snappy" else 0)))


@pytest.mark.parametrize(("codec", "size"), [("deflate", 8 << 30), ("zstandard", 1 << 28), ("snappy", 1 << 27)])
def test_a_file_that_decompresses_to_very_much(codec, size):
    data = bomb(codec, size)
    assert len(data) < AVRO_BLOCK_BYTES_MAX
    tracemalloc.start()
    try:
        _, batches = read_avro(data)
        with pytest.raises(RecordTooLarge, match=f"more than {AVRO_BLOCK_BYTES_MAX} bytes in a block"):
            list(batches)
        assert tracemalloc.get_traced_memory()[1] < 6 * AVRO_BLOCK_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_a_file_is_read_up_to_its_limit(monkeypatch):
    monkeypatch.setattr(containers, "AVRO_FILE_BYTES_MAX", 30_000)
    with pytest.raises(RecordTooLarge, match="decompresses to more than"):
        table_of(file_of("deflate"))


@pytest.mark.parametrize(
    ("count", "block", "words"),
    [
        (1 << 60, b"\x02\x00", "cannot have"),
        (-5, b"\x02\x00", "cannot have"),
        (1, b"\x02\x02" + varint(1 << 40), "a row of an Avro file cannot be read"),
        (1, b"\x02\x00\x00", "1 bytes behind its last row"),
        (2, b"\x02\x00", "a row of an Avro file cannot be read"),
        (1, b"\x02\x02\x02\xff", "a row of an Avro file cannot be read"),
    ],
)
def test_blocks_that_lie(count, block, words):
    with pytest.raises(InvalidPayload, match=words):
        table_of(built("null", (count, block)))


def test_damaged_files_are_errors_and_never_crashes():
    rng = random.Random(7)
    whole = file_of("deflate", ROWS[:50])
    for data in (b"", b"Obj", b"Obj\x01", whole[:40], whole[:-1], b"PAR1" + whole):
        with pytest.raises(MainstemError):
            table_of(data)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(MainstemError):
            table_of(bytes(damaged))


def test_a_file_too_large_to_hold_is_refused(monkeypatch):
    monkeypatch.setattr(containers, "FORMATTED_BYTES_MAX", 10_000)
    rng = random.Random(1)
    batch = pa.record_batch({"a": [rng.randbytes(100) for _ in range(1_000)]})
    with pytest.raises(RecordTooLarge, match="take them in pieces"):
        to_avro_file([batch, batch], batch.schema)


def test_a_file_may_have_columns_that_are_always_null():
    """Streams without a schema take them as JSON, others as nulls of their own column; no schema is made of them."""
    raw = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "null"}]}
    file = io.BytesIO()
    fastavro.writer(file, raw, [{"id": 1, "n": None}, {"id": 2, "n": None}])
    schema, batches = read_avro(file.getvalue())
    assert (schema.names, schema.field("n").type) == (["id", "n"], pa.null())
    assert [batch.to_pylist() for batch in batches] == [[{"id": 1, "n": None}, {"id": 2, "n": None}]]
    file.seek(0)
    assert [row.value for row in rows.avro(file)] == [b'{"id":1,"n":null}', b'{"id":2,"n":null}']
    with pytest.raises(InvalidSchema, match="column 'n' is always null; give it the type"):
        from_avro(raw)


def test_what_avro_has_no_place_for():
    far = pa.record_batch({"a": pa.array([1 << 62], pa.timestamp("s"))})
    with pytest.raises(InvalidPayload, match="a time that Avro has no number for"):
        to_avro_file([far], far.schema)
    twice = pa.record_batch({"a": pa.array([[("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int8()))})
    with pytest.raises(InvalidPayload, match="a key twice"):
        to_avro_file([twice], twice.schema)
