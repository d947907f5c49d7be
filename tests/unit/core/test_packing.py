"""Messages whose buffers are each compressed by themselves: right to every reader; what does not shrink is left."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from mainstem.core import layouts, packing, payload
from mainstem.core.message import locate
from mainstem.core.schema import Schema

FLAT = Schema(
    pa.schema(
        [
            ("number", pa.int64()),
            ("random", pa.float64()),
            ("text", pa.string()),
            ("flag", pa.bool_()),
            ("code", pa.binary(3)),
            ("bytes", pa.binary()),
            ("day", pa.date32()),
            ("money", pa.decimal128(12, 2)),
        ]
    )
)
NESTED = Schema(pa.schema([("number", pa.int64()), ("tags", pa.list_(pa.string()))]))


def flat(count: int, *, nulls: bool = True) -> pa.RecordBatch:
    rng = np.random.default_rng(7)

    def some(values: list[object]) -> list[object]:
        return [None if nulls and n % 11 == 0 else value for n, value in enumerate(values)]

    columns = [
        pa.array(some([n % 100 for n in range(count)]), pa.int64()),
        pa.array(rng.random(count)),
        pa.array(some([f"value {n % 50}" for n in range(count)]), pa.string()),
        pa.array(some([n % 2 == 0 for n in range(count)]), pa.bool_()),
        pa.array(some([b"abc"] * count), pa.binary(3)),
        pa.array(some([rng.bytes(n % 9) for n in range(count)]), pa.binary()),
        pa.array(some([n % 1000 for n in range(count)]), pa.int32()).cast(pa.date32()),
        pa.array(some([n % 10 for n in range(count)]), pa.int64())
        .cast(pa.decimal128(19, 0))
        .cast(pa.decimal128(12, 2)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=layouts.shape_of(0, FLAT).schema)


def stored(made: payload.Encoded, schema: Schema) -> tuple[int, int, int, int, bytes, Schema]:
    return made.encoding, made.layout, made.count, made.raw_len, made.payload, schema


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("nulls", [True, False])
@pytest.mark.parametrize("count", [4_000, 60_000])
def test_every_reader_finds_what_was_packed(compression, nulls, count):
    batch = flat(count, nulls=nulls)
    assert packing.flat_buffers(batch) is not None
    made = payload.encode(batch, compression, FLAT)
    assert payload.is_by_buffer(made.encoding)
    assert payload.decode(*stored(made, FLAT)).equals(batch)
    some = payload.decode_columns(*stored(made, FLAT), ["text", "random"])
    assert some.equals(batch.select(["random", "text"]))
    # As from outside: every length, then every value.
    checked = payload.check(made.encoding, made.layout, made.count, made.raw_len, made.payload, schema=FLAT)
    assert checked.equals(batch)
    # And by Arrow alone.
    shape = layouts.shape_of(0, FLAT)
    assert pa.ipc.open_stream(shape.opening + made.payload).read_next_batch().equals(batch)


def test_what_does_not_shrink_stays_as_it_is():
    batch = flat(60_000, nulls=False)
    made = payload.encode(batch, "lz4", FLAT)
    shape = layouts.shape_of(0, FLAT)
    message = pa.py_buffer(made.payload)
    found = locate(message, message.size, shape, payload.codec_id_of(made.encoding), made.count)

    def claimed(column: str) -> int:
        buffer = shape.starts[shape.schema.get_field_index(column)][1] + 1
        return struct.unpack_from("<q", made.payload, found.body_at + found.buffers[2 * buffer])[0]

    assert claimed("random") == -1
    assert claimed("number") == 8 * 60_000
    # Nobody copies it to read it.
    inside = range(message.address, message.address + message.size)
    whole = payload.decode(*stored(made, FLAT))
    assert whole.column("random").buffers()[1].address in inside
    assert whole.column("number").buffers()[1].address not in inside


def test_a_batch_that_does_not_shrink_is_stored_plain():
    schema = Schema(pa.schema([("random", pa.float64())]))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(np.random.default_rng(3).random(50_000))], schema=layouts.shape_of(0, schema).schema
    )
    made = payload.encode(batch, "lz4", schema)
    assert made.encoding == payload.RAW
    assert payload.decode(*stored(made, schema)).equals(batch)


def test_slices_are_packed_or_left_to_arrow():
    """What begins in the middle of a byte, or of a text, takes a copy."""
    batch = flat(30_000)
    for begin in (0, 8, 5, 10_001):
        piece = batch.slice(begin, 9_000)
        made = payload.encode(piece, "lz4", FLAT)
        assert payload.decode(*stored(made, FLAT)).equals(piece), begin
    numbers = Schema(pa.schema([("number", pa.int64()), ("random", pa.float64())]))
    columns = flat(30_000, nulls=False).select(["number", "random"])
    columns = pa.RecordBatch.from_arrays(columns.columns, schema=layouts.shape_of(0, numbers).schema)
    for begin in (0, 5, 10_001):
        piece = columns.slice(begin, 9_000)
        assert packing.flat_buffers(piece) is not None
        made = payload.encode(piece, "lz4", numbers)
        assert payload.decode(*stored(made, numbers)).equals(piece), begin


def test_columns_with_parts_are_left_to_arrow():
    rows = [{"number": n % 10, "tags": ["a", None] * (n % 3)} for n in range(20_000)]
    batch = pa.RecordBatch.from_pylist(rows, schema=layouts.shape_of(0, NESTED).schema)
    assert packing.flat_buffers(batch) is None
    made = payload.encode(batch, "lz4", NESTED)
    assert payload.is_by_buffer(made.encoding)
    assert payload.decode(*stored(made, NESTED)).equals(batch)
