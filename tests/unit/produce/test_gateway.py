"""Admission: what a client claims of a batch is proven before it reaches the disk."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from mainstem.core import layouts, payload, statistics
from mainstem.core.batch import TIME_US_MAX, TIME_US_MIN, Batch, BatchHeader, Buffer
from mainstem.core.checksum import crc32c
from mainstem.core.errors import (
    InvalidPayload,
    InvalidRequest,
    MainstemError,
    RecordTooLarge,
    StreamDeleted,
    UnknownStream,
)
from mainstem.core.limits import HEADER_BYTES_MAX, HEADERS_PER_RECORD_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX
from mainstem.log.ledger.base import StreamRow
from mainstem.produce.gateway import Gateway
from tests.unit.log.parts import NOW_US, make_batch, make_keyed_batch

ROWS = {
    1: StreamRow(1, "0" * 32, "orders", 2, "crc32", 0, 0, 1, NOW_US, 0),
    2: StreamRow(2, "1" * 32, "gone", 1, "crc32", 0, 0, 1, NOW_US, NOW_US),
}


@pytest.fixture
def gateway():
    return Gateway(ROWS.get, RECORD_BYTES_MAX)


def changed(batch: Batch, **fields: object) -> BatchHeader:
    return msgspec.structs.replace(batch.header, **fields)


def sound() -> Batch:
    return make_batch([b"a", b"b", None], producer=7)


def refused(
    gateway: Gateway, header: BatchHeader, data: Buffer, kind: type[MainstemError], acknowledge: bool = True
) -> str:
    verdict = gateway.admit(header, bytes(data), acknowledge=acknowledge)
    assert isinstance(verdict, kind), verdict
    return str(verdict)


def test_a_sound_batch_is_admitted_as_it_came(gateway):
    batch = sound()
    assert gateway.admit(batch.header, bytes(batch.payload), acknowledge=True) == batch
    assert gateway.refused == gateway.unknown_streams == 0


def test_an_unknown_stream_is_counted(gateway):
    batch = sound()
    refused(gateway, changed(batch, stream=9), batch.payload, UnknownStream)
    assert (gateway.refused, gateway.unknown_streams) == (1, 1)


def test_a_deleted_stream_and_a_missing_shard(gateway):
    batch = sound()
    assert "gone" in refused(gateway, changed(batch, stream=2), batch.payload, StreamDeleted)
    assert "no shard 2" in refused(gateway, changed(batch, shard=2), batch.payload, InvalidRequest)


def test_a_batch_has_a_producer_exactly_if_it_wants_an_answer(gateway):
    batch = sound()
    anonymous = changed(batch, producer=0)
    refused(gateway, anonymous, batch.payload, InvalidRequest)
    refused(gateway, batch.header, batch.payload, InvalidRequest, acknowledge=False)
    assert isinstance(gateway.admit(anonymous, bytes(batch.payload), acknowledge=False), Batch)


@pytest.mark.parametrize("fields", [{"schema_id": 1}, {"transaction": 5}, {"statistics": b"12345678"}])
def test_what_is_the_servers_to_give_is_not_taken_from_a_client(gateway, fields):
    batch = sound()
    refused(gateway, changed(batch, **fields), batch.payload, InvalidRequest)


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 2},
        {"count": 4},
        {"count": 0},
        {"count": 2**32 - 1},
        {"encoding": 0},
        {"encoding": 2},
        {"encoding": 9},
        {"layout": 1},
        {"layout": 8},
        {"raw_len": 1},
        {"raw_len": 2**31},
        {"time_low": NOW_US - 1},
    ],
)
def test_a_header_that_does_not_fit_its_payload_is_refused(gateway, fields):
    batch = sound()
    refused(gateway, changed(batch, **fields), batch.payload, InvalidPayload)


def test_every_flipped_bit_is_refused(gateway):
    batch = sound()
    data = bytes(batch.payload)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x04
        assert "checksum" in refused(gateway, batch.header, bytes(damaged), InvalidPayload)


def test_a_lying_checksum_does_not_help(gateway):
    """The client computed it over bytes that are no batch."""
    batch = sound()
    for data in (b"", b"x" * len(batch.payload), bytes(batch.payload)[:-8], bytes(len(batch.payload))):
        header = changed(batch, payload_crc=crc32c(data), stored_len=len(data))
        refused(gateway, header, data, InvalidPayload)


def timed(times: list[int], **claimed: int) -> tuple[BatchHeader, bytes]:
    return built(layouts.build([b"v"] * len(times), timestamps=times), None, **claimed)


def built(table: pa.RecordBatch, compression: str | None = None, **claimed: int) -> tuple[BatchHeader, bytes]:
    encoded = payload.encode(table, compression)
    batch = make_batch([b"v"], producer=7)
    header = changed(
        batch,
        count=encoded.count,
        layout=encoded.layout,
        encoding=encoded.encoding,
        raw_len=encoded.raw_len,
        stored_len=len(encoded.payload),
        payload_crc=crc32c(encoded.payload),
        **claimed,
    )
    return header, encoded.payload


def test_the_range_of_times_is_what_the_records_say(gateway):
    good = timed([50, 10, 90], time_low=10, time_high=90)
    assert isinstance(gateway.admit(*good, acknowledge=True), Batch)
    for low, high in ((10, 89), (11, 90), (0, 100), (90, 10)):
        assert "times" in refused(gateway, *timed([50, 10, 90], time_low=low, time_high=high), InvalidPayload)


@pytest.mark.parametrize("time_us", [TIME_US_MIN - 1, TIME_US_MAX + 1, 1 << 62, -(1 << 62)])
def test_a_time_that_no_reader_can_have_is_refused(gateway, time_us):
    """In the header of a batch without times of its own, tiny or not, and in the column of one that has them."""
    for values in ([b"v"], [b"v"] * 100):
        batch = make_batch(values, producer=7, times=(time_us, time_us))
        assert "years 1 to 9999" in refused(gateway, batch.header, batch.payload, InvalidPayload)
    refused(gateway, *timed([0, time_us], time_low=min(0, time_us), time_high=max(0, time_us)), InvalidPayload)
    refused(gateway, *timed([time_us], time_low=time_us, time_high=time_us), InvalidPayload)


@pytest.mark.parametrize("time_us", [TIME_US_MIN, 0, TIME_US_MAX])
def test_every_time_that_a_reader_can_have_is_admitted(gateway, time_us):
    datetime(1970, 1, 1) + timedelta(microseconds=time_us)  # noqa: DTZ001  # no zone shifts it over the edge
    batch = make_batch([b"v"], producer=7, times=(time_us, time_us))
    assert isinstance(gateway.admit(batch.header, bytes(batch.payload), acknowledge=True), Batch)
    assert isinstance(gateway.admit(*timed([time_us], time_low=time_us, time_high=time_us), acknowledge=True), Batch)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("count", [1, 100])
def test_the_limits_of_a_record_hold_for_every_client(gateway, compression, count):
    """Ours checks them too, but the bytes may come from another."""

    def verdict(keys: Any = None, headers: Any = None) -> Batch | MainstemError:
        keys = None if keys is None else [b"k"] * (count - 1) + [keys]
        headers = None if headers is None else [None] * (count - 1) + [headers]
        table = layouts.build([b"v"] * count, keys=keys, headers=headers)
        return gateway.admit(*built(table, compression), acknowledge=True)

    most = [(f"{number}", b"") for number in range(HEADERS_PER_RECORD_MAX)]
    assert isinstance(verdict(keys=b"k" * KEY_BYTES_MAX), Batch)
    assert isinstance(verdict(headers=most), Batch)
    assert isinstance(verdict(headers=[("n", b"v" * (HEADER_BYTES_MAX - 1))]), Batch)
    assert "a key of" in str(verdict(keys=b"k" * (KEY_BYTES_MAX + 1)))
    assert "257 headers" in str(verdict(headers=[*most, ("one more", b"")]))
    assert "headers of a record" in str(verdict(headers=[("n", b"v" * HEADER_BYTES_MAX)]))


def test_a_record_over_the_servers_limit_is_refused():
    strict = Gateway(ROWS.get, 10_000)
    for size, is_fine in ((9_000, True), (11_000, False)):
        batch = make_batch([b"x", b"y" * size], producer=7)
        verdict = strict.admit(batch.header, bytes(batch.payload), acknowledge=True)
        assert isinstance(verdict, Batch) if is_fine else isinstance(verdict, RecordTooLarge)


def test_a_payload_of_many_small_records_may_be_larger_than_one_record():
    strict = Gateway(ROWS.get, 10_000)
    batch = make_batch([b"y" * 1_000] * 50, producer=7)
    assert isinstance(strict.admit(batch.header, bytes(batch.payload), acknowledge=True), Batch)


def test_a_compressed_batch_is_admitted_as_it_came(gateway):
    for compression in ("zstd", "lz4"):
        batch = make_batch([b"abc" * 1_000] * 10, producer=7, compression=compression)
        assert len(batch.payload) < batch.header.raw_len
        assert gateway.admit(batch.header, bytes(batch.payload), acknowledge=True) == batch


def test_what_is_known_of_a_batch_is_found_out_here(gateway):
    """The payload stays what the client sent; only large batches are worth it."""
    small = make_keyed_batch([(b"k", b"v", NOW_US)] * 100, producer=7)
    assert gateway.admit(small.header, bytes(small.payload), acknowledge=True) == small
    large = make_keyed_batch([(b"key %d" % number, b"v", NOW_US) for number in range(2_000)], producer=7)
    admitted = gateway.admit(large.header, bytes(large.payload), acknowledge=True)
    assert isinstance(admitted, Batch)
    assert admitted.payload == large.payload
    assert msgspec.structs.replace(admitted.header, statistics=b"") == large.header
    known = statistics.parse(admitted.header.statistics, None)
    assert known["_timestamp"].low == NOW_US
    may_contain = known["_key"].may_contain
    assert may_contain is not None
    assert may_contain(b"key 1999")
    assert not may_contain(b"key 2000")
