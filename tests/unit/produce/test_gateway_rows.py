"""Admission of rows: a client's word for them counts for nothing."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from mainstem.core import layouts, payload, pieces, statistics
from mainstem.core.batch import Batch
from mainstem.core.errors import (
    InvalidPayload,
    InvalidRecord,
    InvalidRequest,
    InvalidSchema,
    MainstemError,
    RecordTooLarge,
    SchemaMismatch,
)
from mainstem.core.limits import JSON_BATCH_RECORDS_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX
from mainstem.core.schema import Schema
from mainstem.log.ledger.base import StreamRow, VersionRow
from mainstem.produce.gateway import Gateway
from mainstem.produce.row_batches import with_envelope
from mainstem.registry.rows import RowConverter
from tests.unit.log.parts import NOW_US, encode_batch

OLD = Schema(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
NEW = Schema(
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
)
OTHER = Schema(pa.schema([("x", pa.int64())]))
SCHEMAS = {1: OLD, 2: NEW, 3: OTHER}
VERSIONS = [VersionRow(0, 1, 1, NOW_US), VersionRow(0, 2, 2, NOW_US)]
PAIRS = [b'"%d": null' % number for number in range(99)]


def stream(number: int, name: str, **fields: Any) -> StreamRow:
    row = StreamRow(number, "0" * 32, name, 1, "crc32", 0, 0, 1, NOW_US, 0)
    return row._replace(schema_id=2, schema_version=2, **fields)


ROWS = {
    1: stream(1, "orders"),
    2: stream(2, "keyed", key=("name",)),
    3: stream(3, "state", key=("name",), cleanup="compact"),
    4: StreamRow(4, "0" * 32, "plain", 1, "crc32", 0, 0, 1, NOW_US, 0),
}


@pytest.fixture
def asked() -> list[int]:
    return []


@pytest.fixture
def gateway(asked: list[int]) -> Gateway:
    def versions_of(number: int) -> list[VersionRow]:
        asked.append(number)
        return VERSIONS

    return Gateway(ROWS.get, RECORD_BYTES_MAX, SCHEMAS.__getitem__, versions_of)


def sent(batch: pa.RecordBatch, of: int, number: int = 1, **fields: Any) -> Batch:
    """A batch as a client sends it."""
    schema = SCHEMAS.get(of)
    times = payload.time_range(batch) if schema is None else payload.row_time_range(batch)
    low, high = times or (NOW_US, NOW_US)
    known = {"stream": number, "schema_id": of, "producer": 7, "generation": 1, "time_low": low, "time_high": high}
    return encode_batch(batch, schema, compression=None, **known | fields)


def rows(*values: dict[str, Any] | None, schema_id: int = 2, keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    return with_envelope(RowConverter(SCHEMAS[schema_id]).to_batch(list(values)), keys, None, None)


def records(*values: bytes | None, keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    return layouts.build(list(values), keys)


def verdict(gateway: Gateway, batch: Batch) -> Batch | MainstemError:
    return gateway.admit(batch.header, bytes(batch.payload), acknowledge=True)


def refusal(gateway: Gateway, batch: Batch, kind: type[MainstemError]) -> str:
    found = verdict(gateway, batch)
    assert isinstance(found, kind), found
    return str(found)


def test_rows_of_every_version_of_the_schema_are_admitted(gateway, asked):
    for _ in range(3):
        assert isinstance(verdict(gateway, sent(rows({"id": 1, "name": "x"}), 2)), Batch)
        assert isinstance(verdict(gateway, sent(rows({"id": 1}, schema_id=1), 1)), Batch)
    assert asked == [1], "what was found out once is known"


def test_what_takes_long_to_look_through_is_looked_at_aside(gateway, monkeypatch):
    def is_long(size: int, of: int, number: int, **fields: Any) -> bool:
        header = sent(records(b"x"), of=0, number=number, raw_len=size, **fields).header
        return gateway.is_long(msgspec.structs.replace(header, schema_id=of))

    assert [is_long(size << 10, 0, 4) for size in (1_024, 2_049)] == [False, True]
    assert [is_long(size << 10, 0, 4, layout=layouts.HAS_KEY) for size in (200, 257)] == [False, True]
    assert [is_long(size << 10, 2, 1) for size in (60, 500, 513)] == [False, False, True]
    assert is_long(10, 0, 1), "JSON is to be read"
    monkeypatch.setitem(SCHEMAS, 2, Schema(pa.schema([(f"column_{n}", pa.int64()) for n in range(100)])))
    assert [is_long(size << 10, 2, 1) for size in (60, 65)] == [False, True]
    assert not is_long(65 << 10, 99, 5), "neither the stream nor the schema is known"


def test_a_schema_that_is_not_the_streams_is_refused(gateway):
    assert "no version" in refusal(gateway, sent(rows({"x": 1}, schema_id=3), 3), InvalidSchema)
    assert "'plain'" in refusal(gateway, sent(rows({"x": 1}, schema_id=3), 3, 4), InvalidSchema)
    refusal(gateway, sent(rows({"id": 1}), 2, schema_id=9), InvalidSchema)


def test_what_is_no_schema_of_a_stream_is_asked_for_once(asked):
    found, versions = dict(ROWS), list(VERSIONS)

    def versions_of(number: int) -> list[VersionRow]:
        asked.append(number)
        return versions

    gateway = Gateway(found.get, RECORD_BYTES_MAX, SCHEMAS.__getitem__, versions_of)
    for number in range(3, 50):
        refusal(gateway, sent(rows({"id": 1}), 2, schema_id=number), InvalidSchema)
    assert asked == [1]
    # The stream gets a version, which is known a moment before it can be looked up.
    found[1] = found[1]._replace(schema_id=4, schema_version=3)
    refusal(gateway, sent(rows({"x": 1}, schema_id=3), 3), InvalidSchema)
    versions.append(VersionRow(0, 3, 3, NOW_US))
    assert isinstance(verdict(gateway, sent(rows({"x": 1}, schema_id=3), 3)), Batch)
    assert isinstance(verdict(gateway, sent(rows({"id": 1}), 2)), Batch)
    assert asked == [1, 1, 1]


def test_the_schemas_of_many_streams_are_forgotten(asked, monkeypatch):
    monkeypatch.setattr("mainstem.produce.gateway._KNOWN_MAX", 6)
    versions_of = {1: VERSIONS, 2: VERSIONS, 3: VERSIONS}
    gateway = Gateway(
        ROWS.get, RECORD_BYTES_MAX, SCHEMAS.__getitem__, lambda number: asked.append(number) or versions_of[number]
    )
    for number in (1, 2, 2, 3, 3, 1, 1):
        refusal(gateway, sent(rows({"id": 1}), 2, number, schema_id=9), InvalidSchema)
    assert asked == [1, 2, 3, 1]


def test_rows_that_say_they_are_of_another_version_are_refused(gateway):
    refusal(gateway, sent(rows({"id": 1, "name": "x"}), 2, schema_id=1), InvalidPayload)
    refusal(gateway, sent(rows({"id": 1}, schema_id=1), 1, schema_id=2), InvalidPayload)
    refusal(gateway, sent(records(b"{}"), 0, schema_id=2), InvalidPayload)


def test_nulls_where_there_must_be_none_and_times_nobody_can_show(gateway):
    found = verdict(gateway, sent(rows({"id": 1}, None), 2))
    assert isinstance(found, SchemaMismatch)
    assert found.path == "id"
    assert str(found) == "stream 'orders': id must be int64, not null (row 1)"
    batch = rows({"id": 1})
    wrong = batch.set_column(2, batch.schema.field(2), pa.array([2**62], batch.schema.field(2).type))
    assert "out of range" in refusal(gateway, sent(wrong, 2), SchemaMismatch)


def test_a_key_beside_the_key_columns_is_refused(gateway):
    assert isinstance(verdict(gateway, sent(rows({"id": 1}, keys=[b"k"]), 2)), Batch)
    assert "made of name" in refusal(gateway, sent(rows({"id": 1}, keys=[b"k"]), 2, 2), InvalidRecord)


def test_limits_of_keys_made_of_columns(gateway):
    long = rows({"id": 1, "name": "x" * (KEY_BYTES_MAX + 1)})
    assert isinstance(verdict(gateway, sent(long, 2)), Batch)
    assert "key" in refusal(gateway, sent(long, 2, 2), RecordTooLarge)
    assert "needs a key" in refusal(gateway, sent(rows({"id": 1}), 2, 3), InvalidRecord)
    assert isinstance(verdict(gateway, sent(rows({"id": 1, "name": "x"}), 2, 3)), Batch)


def test_a_row_over_the_limit_is_refused(gateway):
    strict = Gateway(ROWS.get, 10_000, SCHEMAS.__getitem__, lambda _: VERSIONS)
    refusal(strict, sent(rows({"id": 1, "name": "x" * 20_000}), 2), RecordTooLarge)


def test_times_of_rows_are_those_the_header_says(gateway):
    batch = with_envelope(rows({"id": 1}, {"id": 2}), None, None, [NOW_US, NOW_US + 5])
    assert isinstance(verdict(gateway, sent(batch, 2)), Batch)
    refusal(gateway, sent(batch, 2, time_high=NOW_US + 6), InvalidPayload)


def test_bytes_in_a_stream_of_rows_are_json_that_fits(gateway):
    assert isinstance(verdict(gateway, sent(records(b'{"id": 1}', b'{"id": 2, "name": "x"}'), 0)), Batch)
    found = verdict(gateway, sent(records(*[b'{"id": 1}'] * 100, b'{"id": "x"}', b"bad"), 0))
    assert isinstance(found, SchemaMismatch)
    assert (found.path, str(found)) == ("id", "stream 'orders': record 100: id must be int64, not text 'x'")
    assert isinstance(verdict(gateway, sent(records(b"bad"), 0, 4)), Batch), "where there is no schema nobody asks"


def test_tombstones_in_a_stream_of_rows_have_a_key(gateway):
    assert isinstance(verdict(gateway, sent(records(None, None, keys=[b"a", b"b"]), 0)), Batch)
    assert isinstance(verdict(gateway, sent(records(None, b'{"id": 1}', keys=[b"a", None]), 0)), Batch)
    assert "tombstone" in refusal(gateway, sent(records(None), 0), InvalidRecord)
    assert "tombstone" in refusal(gateway, sent(records(None, None, keys=[b"a", None]), 0), InvalidRecord)


def test_json_has_the_key_of_its_row(gateway):
    values = (b'{"id": 1, "name": "a"}', None, b'{"id": 2}')
    assert isinstance(verdict(gateway, sent(records(*values, keys=[b"a", b"z", None]), 0, 2)), Batch)
    assert "made of name" in refusal(gateway, sent(records(*values, keys=[b"b", b"z", None]), 0, 2), InvalidRecord)
    assert "made of name" in refusal(gateway, sent(records(values[0]), 0, 2), InvalidRecord)


def test_much_json_is_refused_before_it_is_read(gateway):
    many = records(*[b"{}"] * (JSON_BATCH_RECORDS_MAX + 1))
    assert "smaller" in refusal(gateway, sent(many, 0), RecordTooLarge)
    refusal(gateway, sent(records(b'{"id": 1, "name": "%s"}' % (b"x" * (2 << 20))), 0), RecordTooLarge)


@pytest.mark.parametrize(
    ("kinds", "text", "few"),
    [
        ([pa.list_(pa.int64(), 1_000)], b"{}", 500),
        ([pa.int64()] * 1_000, b"{}", 200),
        ([pa.bool_()] * 1_000, b"{}", 200),
        ([pa.list_(pa.struct([("a", pa.bool_())]))], b'{"c0": [{}%s]}' % (b",{}" * 9_999), 6),
        ([pa.list_(pa.list_(pa.int64(), 8_000))], b'{"c0": [null%s]}' % (b" , null" * 99), 2),
        ([pa.list_(pa.struct([("a", pa.binary(60_000))]))], b'{"c0": [{}%s]}' % (b",{}" * 99), 2),
        ([pa.map_(pa.string(), pa.binary(60_000))], b'{"c0": {%s}}' % b",".join(PAIRS), 2),
        ([pa.map_(pa.string(), pa.binary(60_000))], b'{"c0": [%s]}' % b",".join([b'["a", null]'] * 99), 2),
    ],
    ids=lambda value: str(value)[:30],
)
def test_json_of_which_little_becomes_much_is_refused_before_it_is_read(kinds, text, few):
    schema = Schema(pa.schema([(f"c{place}", kind) for place, kind in enumerate(kinds)]))
    gateway = Gateway(ROWS.get, RECORD_BYTES_MAX, lambda _: schema, lambda _: VERSIONS)
    assert isinstance(verdict(gateway, sent(records(*[text] * few), 0)), Batch)
    before = pa.total_allocated_bytes()
    assert "send fewer" in refusal(gateway, sent(records(*[text] * (8 * few)), 0), RecordTooLarge)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_what_is_the_servers_to_give_is_not_taken_from_a_client(gateway):
    for fields in ({"transaction": 5}, {"statistics": b"12345678"}, {"span": 5}):
        refusal(gateway, sent(rows({"id": 1}), 2, **fields), InvalidRequest)


def test_layouts_that_only_the_log_writes_are_refused(gateway):
    batch = rows({"id": 1})
    batch = batch.append_column(layouts.ROW_OFFSET, pa.array([0], pa.uint32()))
    refusal(gateway, sent(batch, 2), InvalidPayload)


def test_a_large_batch_of_rows_has_pieces_and_one_that_was_changed_is_refused(gateway):
    """Whatever was changed: what says where its pieces are, or what is in them."""
    large = rows(*({"id": number, "name": f"{number * 0x9E3779B97F4A7C15:x}"} for number in range(8_000)))
    batch = sent(large, 2)
    admitted = verdict(gateway, batch)
    assert isinstance(admitted, Batch)
    where = statistics.pieces_in(admitted.header.statistics)
    assert where is not None
    table = admitted.header.statistics[where]
    assert pieces.checksum(table) == batch.header.payload_crc
    assert len(pieces.parse(table, admitted.header)) == 1 + len(NEW.names)
    for position in (0, 4, 7, 30, 200, 1_000, len(batch.payload) // 2, len(batch.payload) - 1):
        data = bytearray(batch.payload)
        data[position] ^= 0x81
        assert "changed on the way" in refusal(gateway, Batch(batch.header, bytes(data)), InvalidPayload)
