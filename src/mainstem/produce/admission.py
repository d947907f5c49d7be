"""What a record must be, checked where it is made: in the caller's own call."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from mainstem.core import payload, placement
from mainstem.core.errors import InvalidRecord, InvalidRequest, RecordTooLarge
from mainstem.core.limits import (
    BATCH_RECORDS_MAX,
    HEADER_BYTES_MAX,
    HEADERS_PER_RECORD_MAX,
    KEY_BYTES_MAX,
    PAYLOAD_RAW_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from mainstem.transport.port import StreamInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_US_MAX = 1 << 62

Checked = tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None, int | None]


def check_record(stream: str, value: Any, key: Any, headers: Any, timestamp: Any) -> Checked:
    """The record as it is stored, or InvalidRecord with the argument that is wrong."""
    return (
        _bytes_of(stream, "value", value, "encode it first, for example with json.dumps(row).encode()"),
        _key_of(stream, key),
        _headers_of(stream, headers),
        _time_of(stream, timestamp),
    )


def headers_size(headers: list[tuple[str, bytes]] | None) -> int:
    return sum(len(name) + len(value) for name, value in headers) if headers else 0


def columns(values: list[Any], keys: list[Any] | None) -> list[pa.RecordBatch]:
    """Many records as batches, each small enough to be one payload."""
    _check_column("value", values)
    if keys is not None:
        _check_column("key", keys)
    table: dict[str, pa.Array] = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        table["key"] = pa.array(keys, pa.binary())
    return payload.as_batches(pa.table(table))


def check_atomic(stream: StreamInfo, batches: Sequence[pa.RecordBatch]) -> None:
    """An atomic table is one batch of one shard."""
    if len(batches) > 1:
        raise RecordTooLarge(
            f"an atomic batch holds at most {BATCH_RECORDS_MAX} records and {PAYLOAD_RAW_BYTES_MAX} bytes; "
            "split the table"
        )
    if batches and stream.shards > 1 and "key" in batches[0].schema.names:
        keys = batches[0].column("key").to_pylist()
        found = set(placement.shards_for(keys, stream.shards, stream.hash, 0).tolist())
        if len(found) > 1:
            raise InvalidRequest(
                f"an atomic batch must belong to one shard; the keys of this table belong to {len(found)} of "
                f"the {stream.shards} shards of {stream.name!r}: send one table per shard, or leave the keys out"
            )


def _bytes_of(stream: str, name: str, value: Any, hint: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRecord(f"stream {stream!r}: {name} must be bytes or None, not {type(value).__name__}; {hint}")


def _key_of(stream: str, key: Any) -> bytes | None:
    if isinstance(key, str):
        key = key.encode()
    elif isinstance(key, int) and not isinstance(key, bool):
        key = b"%d" % key
    found = _bytes_of(stream, "key", key, "give bytes, text or a whole number")
    if found is not None and len(found) > KEY_BYTES_MAX:
        raise RecordTooLarge(f"stream {stream!r}: a key of {len(found)} bytes; at most {KEY_BYTES_MAX} are allowed")
    return found


def _headers_of(stream: str, headers: Any) -> list[tuple[str, bytes]] | None:
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidRecord(
            f"stream {stream!r}: headers must be a mapping of text to bytes, not {type(headers).__name__}"
        )
    if len(headers) > HEADERS_PER_RECORD_MAX:
        raise RecordTooLarge(f"stream {stream!r}: {len(headers)} headers; at most {HEADERS_PER_RECORD_MAX} are allowed")
    pairs = [_header_of(stream, name, value) for name, value in headers.items()]
    if headers_size(pairs) > HEADER_BYTES_MAX:
        raise RecordTooLarge(f"stream {stream!r}: headers over {HEADER_BYTES_MAX} bytes")
    return pairs


def _header_of(stream: str, name: Any, value: Any) -> tuple[str, bytes]:
    if not isinstance(name, str):
        raise InvalidRecord(f"stream {stream!r}: a header's name must be text, not {type(name).__name__}")
    if isinstance(value, str):
        return name, value.encode()
    if not isinstance(value, bytes | bytearray):
        raise InvalidRecord(f"stream {stream!r}: header {name!r} must be bytes or text, not {type(value).__name__}")
    return name, bytes(value)


def _time_of(stream: str, timestamp: Any) -> int | None:
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidRecord(f"stream {stream!r}: a timestamp needs a time zone, for example datetime.now(UTC)")
        delta = timestamp - _EPOCH
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if isinstance(timestamp, int) and not isinstance(timestamp, bool) and abs(timestamp) <= _TIME_US_MAX:
        return timestamp
    raise InvalidRecord(
        f"stream {stream!r}: timestamp must be a datetime or microseconds since 1970, not {timestamp!r}"
    )


def _check_column(name: str, items: list[Any]) -> None:
    for item in items:
        if item is not None and type(item) is not bytes:
            raise InvalidRecord(f"{name} must be bytes or None, not {type(item).__name__}")
        if item is not None and len(item) > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"a {name} of {len(item)} bytes; at most {RECORD_BYTES_MAX} are allowed")
