"""What a record must be, checked where it is made: in the caller's own call."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import index as whole_number
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.core import payload, placement, tables
from mainstem.core.batch import TIME_US_MAX, TIME_US_MIN
from mainstem.core.errors import InvalidRecord, InvalidRequest, InvalidSetting, RecordTooLarge
from mainstem.core.keys import key_of
from mainstem.core.limits import (
    BATCH_RECORDS_MAX,
    HEADER_BYTES_MAX,
    HEADERS_PER_RECORD_MAX,
    KEY_BYTES_MAX,
    PAYLOAD_RAW_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from mainstem.core.times import to_us
from mainstem.produce.row_batches import keys_of, longest
from mainstem.registry.rows import RowConverter
from mainstem.transport.port import StreamInfo

_VALUE_HINT = "encode it first, for example with json.dumps(row).encode()"
_KEY_HINT = "give bytes, text or a whole number"

Envelope = tuple[bytes | None, list[tuple[str, bytes]] | None, int | None]


def check_value(stream: str, value: Any) -> bytes | None:
    """The value of a record without a schema as it is stored, or InvalidRecord."""
    if isinstance(value, Mapping):
        raise InvalidRecord(
            f"stream {stream!r} has no schema, so its records are bytes and not rows: give it one with "
            f"hub.streams.set_schema({stream!r}, ...), or encode the row with json.dumps(row).encode()"
        )
    return _bytes_of(stream, "value", value, _VALUE_HINT)


def check_envelope(stream: str, key: Any, headers: Any, timestamp: Any) -> Envelope:
    """Key, headers and time as they are stored, or InvalidRecord with the argument that is wrong."""
    return _key_of(stream, key), _headers_of(stream, headers), _time_of(stream, timestamp)


def check_shard(stream: StreamInfo, shard: Any) -> int:
    """The shard that was asked for, or what is wrong with it."""
    try:
        if isinstance(shard, bool):
            raise TypeError
        found = whole_number(shard)
    except TypeError:
        raise InvalidSetting(f"stream {stream.name!r}: shard is a whole number, not {shard!r:.40}") from None
    if not 0 <= found < stream.shards:
        has = "1 shard, number 0" if stream.shards == 1 else f"{stream.shards} shards, 0 to {stream.shards - 1}"
        raise InvalidRequest(f"stream {stream.name!r} has {has}; there is no shard {found}")
    if "compact" in stream.cleanup:
        raise InvalidRequest(
            f"stream {stream.name!r} is compacted by key, each shard for itself: in another shard than that of its key "
            "an older record would stay beside a newer one; leave the shard out"
        )
    return found


def headers_size(headers: list[tuple[str, bytes]] | None) -> int:
    return sum(len(name.encode()) + len(value) for name, value in headers) if headers else 0


def columns(values: list[Any], keys: list[Any] | None) -> list[pa.RecordBatch]:
    """Many records as batches, each small enough to be one payload."""
    table: dict[str, pa.Array] = {"value": _column("value", values)}
    if keys is not None:
        table["key"] = _column("key", keys)
    return tables.as_batches(pa.table(table))


def key_array(keys: list[Any]) -> pa.Array:
    """The keys of many records as a column."""
    return _column("key", keys)


def check_atomic(
    stream: StreamInfo, batches: Sequence[pa.RecordBatch], shard: int | None = None, *, is_rows: bool = False
) -> int | None:
    """An atomic table is one batch of one shard; the shard, if its keys choose one. Rows without a key follow them.
    If a shard was asked for, its keys do not matter."""
    if len(batches) > 1:
        raise RecordTooLarge(
            f"an atomic batch holds at most {BATCH_RECORDS_MAX} records and {PAYLOAD_RAW_BYTES_MAX // 2} bytes; "
            "split the table"
        )
    if not batches or stream.shards == 1 or shard is not None:
        return None
    column = keys_of(stream, batches[0], is_rows=is_rows)
    if column is None:
        return None
    found = set(placement.shards_for(column.drop_null(), stream.shards, stream.hash, 0).tolist())
    if len(found) > 1:
        raise InvalidRequest(
            f"an atomic batch must belong to one shard; the keys of this table belong to {len(found)} of "
            f"the {stream.shards} shards of {stream.name!r}: send one table per shard, or leave the keys out"
        )
    return found.pop() if found else None


def check_keyed(stream: str, cleanup: str, has_keys: bool) -> None:
    """Of a compacted stream the newest record of every key stays: every record must have one."""
    if not has_keys and "compact" in cleanup:
        raise InvalidRecord(f"stream {stream!r} is compacted by key: every record needs a key")


def check_row(stream: StreamInfo, rows: RowConverter, row: Sequence[Any], size: int, key: bytes | None) -> None:
    """What its stream asks of a row that fits the schema: a key if it is compacted, and none that is too long."""
    own = key
    if stream.key and (size > KEY_BYTES_MAX // 2 or "compact" in stream.cleanup):
        own = _key_of(stream.name, key_of(dict(zip(rows.arrow.names, row, strict=True)), stream.key))
    check_keyed(stream.name, stream.cleanup, own is not None)


def check_own_key(stream: StreamInfo, rows: RowConverter, row: Sequence[Any], key: bytes) -> None:
    """The key of this row is made of its columns: one that is given, as with a copy of a record, must be that one."""
    if key != key_of(dict(zip(rows.arrow.names, row, strict=True)), stream.key):
        raise InvalidRecord(
            f"stream {stream.name!r}: the key of a row is made of {', '.join(stream.key)}, and the one that is "
            "given is another; leave it out"
        )


def check_size(
    stream: str, size: int, key: bytes | None, headers: list[tuple[str, bytes]] | None, bytes_max: int
) -> int:
    """The bytes of a record whose value has `size` of them, or RecordTooLarge."""
    size += len(key or b"") + headers_size(headers)
    if size > bytes_max:
        raise RecordTooLarge(f"stream {stream!r}: a record of {size} bytes; record_bytes_max is {bytes_max}")
    return size


def has_keys(batch: pa.RecordBatch) -> bool:
    """Whether every record of a batch has a key."""
    return "key" in batch.schema.names and not batch.column("key").null_count


def check_batches(stream: str, batches: Sequence[pa.RecordBatch]) -> None:
    """The limits of a record, for every row of a table, by whole columns."""
    first = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        # Tables are split until a batch fits: one that does not is a single record.
        if batch.nbytes > RECORD_BYTES_MAX and (size := _record_size(batch)) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"stream {stream!r}: record {first} of the table is {size} bytes; "
                f"record_bytes_max is {RECORD_BYTES_MAX}"
            )
        first += batch.num_rows
        names = batch.schema.names
        if "key" in names:
            _check_key_column(stream, batch.column("key"))
        if "headers" in names:
            _check_header_column(stream, batch.column("headers"))
        for time_us in payload.time_range(batch) or ():
            _time_of(stream, time_us)


def check_row_batch(stream: str, batch: pa.RecordBatch, keys: pa.BinaryArray | None) -> None:
    """The limits of a record, for every row of a batch of rows."""
    if batch.nbytes > RECORD_BYTES_MAX:
        payload.check_record_bytes(batch)
    if keys is not None:
        _check_key_column(stream, keys)
    if "_headers" in batch.schema.names:
        _check_header_column(stream, batch.column("_headers"))
    for time_us in payload.row_time_range(batch) or ():
        _time_of(stream, time_us)


def _check_key_column(stream: str, keys: pa.BinaryArray) -> None:
    # No key is longer than all of them.
    if keys.nbytes > KEY_BYTES_MAX and (size := longest(keys)) > KEY_BYTES_MAX:
        raise _key_too_large(stream, size)


def _record_size(batch: pa.RecordBatch) -> int:
    """Key, value and headers of the only record of a batch."""
    (row,) = batch.select([name for name in batch.schema.names if name != "timestamp"]).to_pylist()
    return len(row["value"] or b"") + len(row.get("key") or b"") + headers_size(row.get("headers"))


def _check_header_column(stream: str, column: pa.MapArray) -> None:
    bounds = column.offsets.to_numpy()
    most = int(np.diff(bounds).max())
    if most > HEADERS_PER_RECORD_MAX:
        raise _too_many_headers(stream, most)
    names, values = (pc.fill_null(pc.binary_length(part), 0).to_numpy() for part in (column.keys, column.items))
    ends = np.concatenate(([0], np.cumsum(names.astype(np.int64) + values)))
    if int(np.diff(ends[bounds]).max()) > HEADER_BYTES_MAX:
        raise _headers_too_large(stream)


def _key_too_large(stream: str, size: int) -> RecordTooLarge:
    return RecordTooLarge(f"stream {stream!r}: a key of {size} bytes; at most {KEY_BYTES_MAX} are allowed")


def _too_many_headers(stream: str, count: int) -> RecordTooLarge:
    return RecordTooLarge(f"stream {stream!r}: {count} headers; at most {HEADERS_PER_RECORD_MAX} are allowed")


def _headers_too_large(stream: str) -> RecordTooLarge:
    return RecordTooLarge(f"stream {stream!r}: the headers of a record are over {HEADER_BYTES_MAX} bytes")


def _bytes_of(stream: str, name: str, value: Any, hint: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRecord(f"stream {stream!r}: {name} must be bytes or None, not {type(value).__name__}; {hint}")


def _key_of(stream: str, key: Any) -> bytes | None:
    try:
        key = _plain_key(key)
    except UnicodeEncodeError:
        raise InvalidRecord(f"stream {stream!r}: key {key[:40]!r} is not Unicode text") from None
    found = _bytes_of(stream, "key", key, _KEY_HINT)
    if found is not None and len(found) > KEY_BYTES_MAX:
        raise _key_too_large(stream, len(found))
    return found


def _plain_key(key: Any) -> Any:
    """Texts and whole numbers as the bytes that stand for them; anything else as it is."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    return key


def _headers_of(stream: str, headers: Any) -> list[tuple[str, bytes]] | None:
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidRecord(
            f"stream {stream!r}: headers must be a mapping of text to bytes, not {type(headers).__name__}"
        )
    if len(headers) > HEADERS_PER_RECORD_MAX:
        raise _too_many_headers(stream, len(headers))
    pairs = [_header_of(stream, name, value) for name, value in headers.items()]
    if headers_size(pairs) > HEADER_BYTES_MAX:
        raise _headers_too_large(stream)
    return pairs


def _header_of(stream: str, name: Any, value: Any) -> tuple[str, bytes]:
    if not isinstance(name, str):
        raise InvalidRecord(f"stream {stream!r}: a header's name must be text, not {type(name).__name__}")
    _encoded(stream, "header's name", name)
    if isinstance(value, str):
        return name, _encoded(stream, f"header {name!r}", value)
    if not isinstance(value, bytes | bytearray):
        raise InvalidRecord(f"stream {stream!r}: header {name!r} must be bytes or text, not {type(value).__name__}")
    return name, bytes(value)


def _time_of(stream: str, timestamp: Any) -> int | None:
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidRecord(f"stream {stream!r}: a timestamp needs a time zone, for example datetime.now(UTC)")
        return to_us(timestamp)
    if isinstance(timestamp, int) and not isinstance(timestamp, bool) and TIME_US_MIN <= timestamp <= TIME_US_MAX:
        return timestamp
    raise InvalidRecord(
        f"stream {stream!r}: timestamp must be a datetime or microseconds since 1970, from the year 1 to 9999, "
        f"not {timestamp!r}"
    )


def _encoded(stream: str, name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord(f"stream {stream!r}: {name} {text[:40]!r} is not Unicode text") from None


def _column(name: str, items: list[Any]) -> pa.Array:
    """Values or keys of many records; keys may be texts and whole numbers, as in `send`."""
    found = [
        item if item is None or type(item) is bytes else _item(name, index, item) for index, item in enumerate(items)
    ]
    if max(map(len, filter(None, found)), default=0) > RECORD_BYTES_MAX:
        index, size = next((at, len(item)) for at, item in enumerate(found) if item and len(item) > RECORD_BYTES_MAX)
        raise RecordTooLarge(f"{name} {index} is {size} bytes; record_bytes_max is {RECORD_BYTES_MAX}")
    return pa.array(found, pa.binary())


def _item(name: str, index: int, item: Any) -> bytes:
    try:
        plain = _plain_key(item) if name == "key" else item
    except UnicodeEncodeError:
        raise InvalidRecord(f"key {index}, {item[:40]!r}, is not Unicode text") from None
    if isinstance(plain, bytes):
        return plain
    hint = _KEY_HINT if name == "key" else _VALUE_HINT
    raise InvalidRecord(f"{name} {index} must be bytes or None, not {type(item).__name__}; {hint}")
