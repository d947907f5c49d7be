"""Payloads: round trips of every layout and encoding, and refusal of everything that is not one."""

import contextlib
import datetime as dt
import json
import os
import struct

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import layouts, message, payload, tables
from mainstem.core.errors import InvalidPayload, RecordTooLarge
from mainstem.core.limits import BATCH_RECORDS_MAX, PAYLOAD_RAW_BYTES_MAX, RECORD_BYTES_MAX

COMPRESSIONS = (None, "zstd", "lz4")


def parts(encoded):
    return encoded.encoding, encoded.layout, encoded.count, encoded.raw_len, encoded.payload


def rows(batch):
    return batch.to_pylist()


def by_buffer(batch, name):
    """The payload in the codec's per-buffer encoding, whatever its size."""
    codec = payload._CODECS[name]
    shape = layouts.SHAPES[layouts.layout_of(batch.schema)]
    packed = payload._compress_buffers(batch, codec, shape)
    raw_len = message.inspect(packed, shape, codec.flatbuffer_id, batch.num_rows)
    layout = layouts.layout_of(batch.schema)
    return codec.by_buffer, layout, batch.num_rows, raw_len, packed.to_pybytes()


def whole(batch, name):
    """The payload in the codec's whole-message encoding, whatever its size."""
    codec = payload._CODECS[name]
    message = batch.serialize()
    layout = layouts.layout_of(batch.schema)
    return codec.whole, layout, batch.num_rows, message.size, codec.codec.compress(message, asbytes=True)


def full_batch(count=3):
    return layouts.build(
        [b"value %d" % i for i in range(count)],
        [b"key %d" % i for i in range(count)],
        [{"trace": b"%d" % i, "who": b"me"} for i in range(count)],
        [1_700_000_000_000_000 + i for i in range(count)],
    )


def every_encoding(batch):
    yield parts(payload.encode(batch, None))
    for name in ("zstd", "lz4"):
        yield whole(batch, name)
        yield by_buffer(batch, name)


# Round trips

blobs = st.binary(max_size=40)
headers_of_one = st.none() | st.lists(st.tuples(st.text(max_size=8), st.none() | blobs), max_size=3)


@st.composite
def batches(draw):
    count = draw(st.integers(1, 30))

    def column(element):
        return draw(st.none() | st.lists(element, min_size=count, max_size=count))

    return layouts.build(
        draw(st.lists(st.none() | blobs, min_size=count, max_size=count)),
        column(st.none() | blobs),
        column(headers_of_one),
        column(st.integers(-(2**62), 2**62)),
    )


@given(batches())
def test_every_encoding_gives_the_batch_back(batch):
    for encoded in every_encoding(batch):
        assert payload.check(*encoded).equals(batch)
        assert payload.decode(*encoded).equals(batch)


@given(batches(), st.data())
def test_a_slice_is_encoded_without_its_neighbours(batch, data):
    start = data.draw(st.integers(0, batch.num_rows - 1))
    piece = batch.slice(start, data.draw(st.integers(1, batch.num_rows - start)))
    for encoded in every_encoding(piece):
        assert payload.check(*encoded).equals(piece)


@pytest.mark.parametrize("layout", range(8))
def test_build_chooses_the_narrowest_layout(layout):
    batch = layouts.build(
        [b"a", None],
        [None, b"k"] if layout & layouts.HAS_KEY else [None, None],
        [None, {"h": "text"}] if layout & layouts.HAS_HEADERS else [None, None],
        [5, 6] if layout & layouts.HAS_TIMESTAMP else None,
    )
    assert layouts.layout_of(batch.schema) == layout
    assert payload.encode(batch, None).layout == layout


def test_build_takes_timestamps_as_an_array():
    times = pa.array([1, 2], layouts.TIMESTAMP_TYPE)
    assert layouts.build([b"a", b"b"], timestamps=times).column("timestamp").equals(times)


@pytest.mark.parametrize(
    "columns",
    [
        ([1],),
        ([b"a"], [b"k", b"l"]),
        ([b"a"], None, [{"h": 1.5}]),
        ([b"a"], None, [[(None, b"no name")]]),
        ([b"a"], None, [7]),
        ([b"a"], None, None, ["yesterday"]),
        ([b"a"], None, None, [2**63]),
    ],
)
def test_build_refuses_what_is_not_a_record(columns):
    with pytest.raises(InvalidPayload):
        layouts.build(*columns)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_encoding_follows_the_size(compression):
    codec = payload._CODECS[compression]
    text = [json.dumps({"id": i, "name": "somebody"}).encode() for i in range(10_000)]
    assert payload.encode(layouts.build(text[:5]), compression).encoding == payload.RAW
    assert payload.encode(layouts.build(text[:500]), compression).encoding == codec.whole
    large = payload.encode(layouts.build(text), compression)
    assert large.encoding == codec.by_buffer
    assert len(large.payload) < large.raw_len / 2
    assert payload.check(*parts(large)).equals(layouts.build(text))
    assert payload.encode(layouts.build(text), None).encoding == payload.RAW


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("count", [20, 10_000])
def test_what_does_not_shrink_is_stored_as_it_is(compression, count):
    noise = layouts.build([os.urandom(100) for _ in range(count)])
    encoded = payload.encode(noise, compression)
    assert encoded.encoding == payload.RAW
    assert payload.check(*parts(encoded)).equals(noise)


def test_encode_refuses_what_no_reader_would_accept():
    with pytest.raises(InvalidPayload, match="records, not 0"):
        payload.encode(layouts.build([]), None)
    with pytest.raises(InvalidPayload, match="records, not"):
        payload.encode(layouts.build([None] * (BATCH_RECORDS_MAX + 1)), None)
    with pytest.raises(RecordTooLarge, match=f"record_bytes_max is {RECORD_BYTES_MAX}"):
        payload.encode(layouts.build([b"", b"x" * (RECORD_BYTES_MAX + 1)]), None)
    with pytest.raises(InvalidPayload, match="bytes uncompressed"):
        payload.encode(layouts.build([b"x" * (1 << 20)] * (1 + (PAYLOAD_RAW_BYTES_MAX >> 20))), None)
    with pytest.raises(InvalidPayload, match="'zstd', 'lz4' or None"):
        payload.encode(layouts.build([b"x" * 2000]), "gzip")
    with pytest.raises(InvalidPayload, match="columns"):
        payload.encode(pa.record_batch({"value": pa.array(["text"])}), None)
    with pytest.raises(InvalidPayload, match="columns"):
        payload.encode(pa.record_batch({"value": [b""], "other": [b""]}), None)


def test_widen_fills_in_what_is_absent():
    batch = layouts.build([b"a", b"b"])
    wide = layouts.widen(batch, 0, 1_000_000)
    assert wide.schema.equals(layouts.FULL_SCHEMA)
    second = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert rows(wide) == [
        {"key": None, "value": b"a", "headers": None, "timestamp": second},
        {"key": None, "value": b"b", "headers": None, "timestamp": second},
    ]
    assert wide.column("value").buffers()[2].address == batch.column("value").buffers()[2].address


def test_widen_gives_a_null_timestamp_the_time_of_the_batch():
    times = pa.array([None, 7], layouts.TIMESTAMP_TYPE)
    batch = layouts.build([b"a", b"b"], timestamps=times)
    assert layouts.widen(batch, 4, 3).column("timestamp").cast(pa.int64()).to_pylist() == [3, 7]


def test_widen_keeps_a_full_batch_as_it_is():
    batch = full_batch()
    assert layouts.widen(batch, 7, 0).equals(batch)


# Refusals


def test_every_truncation_is_refused():
    for encoded in every_encoding(full_batch()):
        *header, data = encoded
        for length in range(len(data)):
            with pytest.raises(InvalidPayload):
                payload.check(*[*header, data[:length]])
            encoding, layout, count, _ = header
            if encoding == payload.RAW and length:
                with pytest.raises(InvalidPayload):
                    payload.check(encoding, layout, count, length, data[:length])


def test_trailing_bytes_are_refused():
    for encoded in every_encoding(full_batch()):
        *header, data = encoded
        with pytest.raises(InvalidPayload):
            payload.check(*[*header, data + b"\0" * 8])
    encoding, layout, count, raw_len, data = parts(payload.encode(full_batch(), None))
    with pytest.raises(InvalidPayload):
        payload.check(encoding, layout, count, raw_len + 8, data + b"\0" * 8)


def test_a_lying_header_is_refused():
    for encoded in every_encoding(full_batch()):
        for field in range(4):
            for other in (-1, 0, 1, 2, 4, 5, 6, 8, 255, 2**31, 2**63):
                lie = list(encoded)
                if lie[field] == other:
                    continue
                lie[field] = other
                with pytest.raises(InvalidPayload):
                    payload.check(*lie)
        for difference in (-8, -1, 1, 8):
            lie = list(encoded)
            lie[3] += difference
            with pytest.raises(InvalidPayload):
                payload.check(*lie)


def test_every_number_of_the_metadata_is_checked():
    """Hostile numbers at every 8-byte place of the metadata: each changes nothing that is read, or is refused."""
    batch = full_batch()
    for encoded in (parts(payload.encode(batch, None)), by_buffer(batch, "zstd"), by_buffer(batch, "lz4")):
        *header, data = encoded
        metadata_len = struct.unpack_from("<i", data, 4)[0]
        for at in range(0, 8 + metadata_len, 8):
            for number in (-(2**63), -(2**40), -8, -1, 2**20 + 8, 2**31, 2**40, 2**62, 2**63 - 1):
                changed = bytearray(data)
                struct.pack_into("<q", changed, at, number)
                with contextlib.suppress(InvalidPayload):
                    assert payload.check(*[*header, bytes(changed)]).equals(batch)


@pytest.mark.parametrize("name", ["zstd", "lz4"])
@pytest.mark.parametrize("claim", [0, 1, 17, 1 << 20, PAYLOAD_RAW_BYTES_MAX, 2**40, 2**63 - 1, -1, -2, -(2**63)])
def test_a_lying_uncompressed_length_is_refused(name, claim):
    batch = layouts.build([b"abc" * 100])
    encoding, layout, count, raw_len, data = by_buffer(batch, name)
    body_at = 8 + struct.unpack_from("<i", data, 4)[0]
    original = struct.unpack_from("<q", data, body_at)[0]
    assert original == 8  # the two offsets of one value
    changed = bytearray(data)
    struct.pack_into("<q", changed, body_at, claim)
    for claimed_len in (raw_len, raw_len - original + claim):
        before = pa.total_allocated_bytes()
        with pytest.raises(InvalidPayload):
            payload.check(encoding, layout, count, claimed_len, bytes(changed))
        assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_a_length_beyond_the_compressed_data_is_refused(name):
    """LZ4 as pyarrow calls it accepts a length that is too long; the rest would be whatever the memory held before."""
    encoding, layout, count, raw_len, data = whole(full_batch(), name)
    for extra in (1, 8, 4096):
        with pytest.raises(InvalidPayload, match="does not decompress"):
            payload.check(encoding, layout, count, raw_len + extra, data)
        with pytest.raises(InvalidPayload, match="does not decompress"):
            payload.decode(encoding, layout, count, raw_len + extra, data)


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_a_bomb_does_not_go_off(name):
    codec = payload._CODECS[name]
    bomb = codec.codec.compress(bytes(256 << 20), asbytes=True)
    peak = pa.default_memory_pool().max_memory()
    for raw_len in (1_000, PAYLOAD_RAW_BYTES_MAX, 256 << 20):
        with pytest.raises(InvalidPayload):
            payload.check(codec.whole, 0, 1, raw_len, bomb)
    assert pa.default_memory_pool().max_memory() - peak <= PAYLOAD_RAW_BYTES_MAX + (1 << 20)


@pytest.mark.parametrize("layout", range(8))
def test_another_layout_is_refused(layout):
    encoding, actual, count, raw_len, data = parts(payload.encode(full_batch(), None))
    if layout != actual:
        with pytest.raises(InvalidPayload):
            payload.check(encoding, layout, count, raw_len, data)


def refuse(batch, match):
    message = batch.serialize()
    layout = sum(bit for name, bit in (("key", 1), ("headers", 2), ("timestamp", 4)) if name in batch.schema.names)
    with pytest.raises((InvalidPayload, RecordTooLarge), match=match):
        payload.check(payload.RAW, layout, batch.num_rows, message.size, message.to_pybytes())


def test_other_messages_are_refused():
    schema = layouts.SCHEMAS[0].serialize().to_pybytes()
    with pytest.raises(InvalidPayload, match="not a record batch"):
        payload.check(payload.RAW, 0, 1, len(schema), schema)
    sink = pa.BufferOutputStream()
    dictionary = pa.record_batch({"value": pa.array([b"a", b"a"]).dictionary_encode()})
    with pa.ipc.new_stream(sink, dictionary.schema) as writer:
        writer.write_batch(dictionary)
    stream = sink.getvalue()
    message = pa.ipc.read_message(stream.slice(dictionary.schema.serialize().size)).serialize().to_pybytes()
    with pytest.raises(InvalidPayload, match="version 5"):
        payload.check(payload.RAW, 0, 2, len(message), message)
    refuse(pa.record_batch({"value": pa.array([b"view of a long value"], pa.binary_view())}), "record batch lacks")


def test_custom_metadata_is_refused():
    sink = pa.BufferOutputStream()
    batch = layouts.build([b"a"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={"a": "b"})
    stream = sink.getvalue().to_pybytes()[len(layouts.SHAPES[0].opening) : -8]
    with pytest.raises(InvalidPayload, match="plain record batch"):
        payload.check(payload.RAW, 0, 1, len(stream), stream)


def test_values_that_leave_their_buffer_are_refused():
    offsets = pa.py_buffer(np.array([0, 4, 2, 5], np.int32).tobytes())
    array = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"01234")])
    refuse(pa.RecordBatch.from_arrays([array], schema=layouts.SCHEMAS[0]), "not a batch of records")


def test_header_names_that_are_not_text_are_refused():
    names = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xff\xfe")]
    )
    headers = pa.MapArray.from_arrays([0, 1], names, pa.array([b"v"], pa.binary()))
    refuse(pa.RecordBatch.from_arrays([pa.array([b"v"]), headers], schema=layouts.SCHEMAS[2]), "not a batch of records")


@pytest.mark.parametrize("entry", [{"key": None, "value": b"v"}, None])
def test_a_header_without_a_name_is_refused(entry):
    """pyarrow would not write such a map, but a list of pairs looks the same."""
    pairs = pa.array([[entry]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    refuse(pa.record_batch({"value": [b"v"], "headers": pairs}), "no name")


def test_a_record_over_the_limit_is_refused_by_the_reader_too():
    half = RECORD_BYTES_MAX // 2
    complaint = f"record 1 is {RECORD_BYTES_MAX + 1} bytes"
    refuse(layouts.build([b"", b"v" * half], [None, b"k" * half + b"k"]), complaint)
    refuse(layouts.build([b"", b"v" * half], None, [None, {"n": b"h" * half}]), complaint)
    fits = parts(payload.encode(layouts.build([b"v" * half], [b"k" * half]), None))
    assert payload.check(*fits).num_rows == 1


def test_decode_wraps_every_error():
    for encoded in every_encoding(full_batch()):
        *header, data = encoded
        with pytest.raises(InvalidPayload):
            payload.decode(*[*header, data[: len(data) // 2]])
        with pytest.raises(InvalidPayload):
            payload.decode(header[0], header[1], header[2] + 1, header[3], data)
        with pytest.raises(InvalidPayload):
            payload.decode(*[9, *header[1:], data])


def test_reading_shares_the_payload():
    encoding, layout, count, raw_len, data = parts(payload.encode(layouts.build([b"x" * 1000] * 1000), None))
    before = pa.total_allocated_bytes()
    batch = payload.check(encoding, layout, count, raw_len, memoryview(data))
    assert pa.total_allocated_bytes() == before
    assert batch.column(0)[999].as_py() == b"x" * 1000


# Tables

TABLE = {
    "value": [b"a", None, b"c"],
    "key": ["x", "y", None],
    "timestamp": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 3,
}


@pytest.mark.parametrize(
    "data",
    [
        pa.table(TABLE),
        pa.record_batch(TABLE),
        pd.DataFrame(TABLE),
        pd.DataFrame(TABLE, index=["any", "index", "at all"]),
        pl.DataFrame(TABLE),
    ],
    ids=["table", "batch", "pandas", "pandas with index", "polars"],
)
def test_as_batches_takes_tables_of_every_kind(data):
    (batch,) = tables.as_batches(data)
    assert layouts.layout_of(batch.schema) == layouts.HAS_KEY | layouts.HAS_TIMESTAMP
    assert batch.column("value").to_pylist() == [b"a", None, b"c"]
    assert batch.column("key").to_pylist() == [b"x", b"y", None]
    assert batch.column("timestamp").to_pylist() == TABLE["timestamp"]


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[("a", b"1")], None, []], layouts.HEADERS_TYPE),
        pa.array([[("a", "1")], None, []], pa.map_(pa.large_string(), pa.string())),
        pa.array([[{"key": "a", "value": b"1"}], None, []]),
        pa.array([[{"key": "a", "value": "1"}], None, []]),
        pa.chunked_array([[[{"key": "a", "value": "1"}]], [None, []]]),
    ],
    ids=["map", "map of text", "structs", "structs of text", "chunks"],
)
def test_as_batches_takes_headers_in_many_forms(headers):
    (batch,) = tables.as_batches(pa.table({"headers": headers, "value": [b""] * 3}))
    assert batch.column("headers").to_pylist() == [[("a", b"1")], None, []]
    payload.check(*parts(payload.encode(batch, None)))


def test_as_batches_takes_headers_of_frames():
    pairs = [[{"key": "a", "value": b"1"}], None, []]
    (from_polars,) = tables.as_batches(pl.DataFrame({"value": [b""] * 3, "headers": pairs}))
    assert from_polars.column("headers").to_pylist() == [[("a", b"1")], None, []]
    frame = pd.DataFrame({"value": [b""] * 3, "headers": [{"a": "1"}, None, {}]})
    (from_pandas,) = tables.as_batches(frame)
    assert from_pandas.column("headers").to_pylist() == [[("a", b"1")], None, []]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_as_batches_takes_timestamps_of_any_unit_and_zone(unit, zone):
    times = pa.array([1_700_000_000], pa.timestamp("s", zone)).cast(pa.timestamp(unit, zone))
    (batch,) = tables.as_batches(pa.table({"value": [b""], "timestamp": times}))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_000_000]


def test_as_batches_drops_digits_of_nanoseconds_but_refuses_an_overflow():
    fine = pa.array([1_999], pa.timestamp("ns"))
    (batch,) = tables.as_batches(pa.table({"value": [b""], "timestamp": fine}))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1]
    far = pa.array([2**60], pa.timestamp("s"))
    with pytest.raises(InvalidPayload):
        tables.as_batches(pa.table({"value": [b""], "timestamp": far}))


def test_as_batches_takes_categories_and_nulls():
    table = pa.table({"value": pa.nulls(2), "key": pa.array(["a", "a"]).dictionary_encode(), "headers": pa.nulls(2)})
    (batch,) = tables.as_batches(table)
    assert rows(batch) == [{"key": b"a", "value": None}] * 2


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (pa.table({"key": [b""]}), "'value' is missing"),
        (pa.table({"value": [1]}), "'value' is int64; accepted are binary and string"),
        (pa.table({"value": [b""], "colour": ["red"]}), "'colour' is not accepted; the columns are key, value"),
        (pa.table({"value": [b""], "timestamp": [1]}), "'timestamp' is int64; accepted are timestamps"),
        (pa.table({"value": [b""], "headers": [{"a": b"1"}]}), "'headers' is struct.*accepted are map"),
        (pa.table({"value": [b""], "headers": [[{"key": None, "value": b"1"}]]}), "without a name"),
        (pa.table({"value": [b""], "headers": [[None, {"key": "a", "value": b"1"}]]}), "without a name"),
        (pa.Table.from_arrays([pa.array([b""])] * 2, names=["value", "value"]), "occurs twice"),
        ([{"value": b""}], "not list"),
        (7, "not int"),
        (pd.DataFrame({"value": [object()]}), "not a batch"),
    ],
)
def test_as_batches_names_what_is_wrong(data, match):
    with pytest.raises(InvalidPayload, match=match):
        tables.as_batches(data)


def test_as_batches_cuts_what_is_too_long_for_one_batch():
    many = tables.as_batches(pa.table({"value": pa.nulls(BATCH_RECORDS_MAX + 1)}))
    assert [batch.num_rows for batch in many] == [BATCH_RECORDS_MAX, 1]
    heavy = tables.as_batches(pa.table({"value": pa.array([b"x" * (1 << 20)] * 100)}))
    assert sum(batch.num_rows for batch in heavy) == 100
    assert all(payload.encode(batch, None).raw_len <= PAYLOAD_RAW_BYTES_MAX for batch in heavy)
    assert tables.as_batches(pa.table({"value": pa.array([], pa.binary())})) == []


def test_as_batches_joins_small_chunks():
    table = pa.table({"value": pa.chunked_array([[b"a"], [b"b"], [b"c"]])})
    assert [batch.num_rows for batch in tables.as_batches(table)] == [3]
