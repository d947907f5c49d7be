"""Records out of files and pipes: lines, frames, NDJSON, CSV, Parquet and Avro, a piece at a time.

A row of NDJSON, CSV, Parquet or Avro becomes the JSON of that row, and `key_field` names the field whose text is the
key. What JSON has no word for, a row of the last two says like this: bytes as in `mainstem tail --output json`, times
as ISO 8601 to the microsecond, decimals as text, NaN and infinities as null.

A table whose columns are ours instead (`value`, and if wanted `key`, `headers`, `timestamp`; `shard` and `offset` are
passed over) holds whole records, as `mainstem tail --output json` writes them. Which of the two it is, the first row
decides, so that one row that happens to look different is an error and not a record of another shape.
"""

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any, Final, NamedTuple

import msgspec

from mainstem.core.errors import InvalidRecord, RecordTooLarge
from mainstem.core.limits import RECORD_BYTES_MAX
from mainstem.produce.cells import bytes_cell, csv_cells

FORMATS: Final = ("lines", "ndjson", "csv", "parquet", "avro", "frames")
_OURS: Final = frozenset(("key", "value", "headers", "timestamp"))
_PASSED_OVER: Final = frozenset(("shard", "offset"))
# Bytes of a record that were no row where it comes from, in place of its value.
_UNDECODED: Final = "undecoded"
_FRAME_NONE: Final = 0xFFFF_FFFF
_LENGTH = struct.Struct("<I")
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# So many rows of a table are objects of Python at once.
_ROWS_AT_ONCE: Final = 8_192
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class Row(NamedTuple):
    """A record to send."""

    value: bytes | None
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str] | None = None
    timestamp: datetime | int | None = None


def guess_format(name: str, head: bytes, key_field: str | None) -> str:
    """By the file's ending, else by how it begins; lines if nothing says otherwise. A key field needs rows."""
    endings = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".parquet": "parquet", ".avro": "avro"}
    found = next((form for ending, form in endings.items() if name.lower().endswith(ending)), None)
    if found is None and head.startswith(b"PAR1"):
        found = "parquet"
    if found is None and head.startswith(b"Obj\x01"):
        found = "avro"
    return found or ("ndjson" if key_field is not None else "lines")


# ----------------------------------------------------------------------------------------------------- bytes and lines


def split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a byte stream without their newline; the last one may lack it."""
    rest = b""
    number = 1
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        # Only these two can be longer than a block.
        if whole and len(whole[0]) > RECORD_BYTES_MAX:
            raise _line_too_long(number)
        if len(rest) > RECORD_BYTES_MAX:
            yield from whole
            raise _line_too_long(number + len(whole))
        yield from whole
        number += len(whole)
    if rest:
        yield rest


def _line_too_long(number: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"line {number} is longer than record_bytes_max, {RECORD_BYTES_MAX} bytes; is it text with newlines?"
    )


def lines(blocks: Iterable[bytes], separator: bytes | None = None) -> Iterator[Row]:
    """Each line a value; with a separator, what stands before the first one is the key."""
    if separator is None:
        yield from map(Row, split_lines(blocks))
        return
    for number, line in enumerate(split_lines(blocks), 1):
        key, found, value = line.partition(separator)
        if not found:
            raise InvalidRecord(
                f"line {number} has no key: the separator {separator.decode(errors='replace')!r} is not in it"
            )
        yield Row(value, key)


def frames(blocks: Iterable[bytes]) -> Iterator[Row]:
    """Each frame a value: its length as u32, little-endian, then that many bytes; 0xFFFFFFFF is a tombstone."""
    held = b""
    number = 1
    for block in blocks:
        held += block
        at = 0
        while len(held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, at)
            begin = at + _LENGTH.size
            if length == _FRAME_NONE:
                yield Row(None)
                at = begin
            elif length > RECORD_BYTES_MAX:
                raise RecordTooLarge(f"frame {number} claims {length} bytes; record_bytes_max is {RECORD_BYTES_MAX}")
            elif len(held) - begin < length:
                break
            else:
                yield Row(held[begin : begin + length])
                at = begin + length
            number += 1
        held = held[at:]
    if held:
        raise InvalidRecord(f"frame {number} is cut short: {len(held)} bytes are left over")


# ---------------------------------------------------------------------------------------------------------------- rows


def ndjson(blocks: Iterable[bytes], key_field: str | None = None) -> Iterator[Row]:
    """Each line a JSON object. Empty lines are passed over."""
    to_row: Callable[[Mapping[str, Any], bytes], Row] | None = None
    for number, line in enumerate(split_lines(blocks), 1):
        if number == 1:
            line = without_mark(line)
        if not line.strip():
            continue
        with place(f"line {number}"):
            row = decode_row(line)
            to_row = to_row or _row_maker(row.keys(), key_field)
            yield to_row(row, line.strip())


def csv_rows(file: IO[bytes], key_field: str | None = None) -> Iterator[Row]:
    """The first line names the fields; every value stays text, as it stands in the file; null where nothing stands."""
    to_row: Callable[[Mapping[str, Any], bytes], Row] | None = None
    for number, row in csv_cells(file):
        to_row = to_row or _row_maker(row, key_field)
        with place(f"line {number}"):
            if to_row is record_of:
                row = {**row, **{name: bytes_cell(row[name]) for name in ("key", "value") if name in row}}
            yield to_row(row, b"")


def parquet(file: IO[bytes], key_field: str | None = None) -> Iterator[Any]:
    """Rows of a Parquet file; or, if its columns are ours, tables for `send_batch`. The file must be seekable."""
    from mainstem.produce.parquet import ParquetSource

    source = ParquetSource(file)
    if is_records(names := source.schema.names, key_field):
        return source.batches([name for name in names if name in _OURS])
    return _of_columns(source.schema, source.batches(), key_field)


def avro(file: IO[bytes], key_field: str | None = None) -> Iterator[Any]:
    """The same of an Avro file, which may be a pipe."""
    from mainstem.registry.containers import read_avro

    schema, batches = read_avro(file)
    if is_records(names := schema.names, key_field):
        return (batch.select([name for name in names if name in _OURS]) for batch in batches)
    return _of_columns(schema, batches, key_field)


def _of_columns(schema: Any, batches: Iterable[Any], key_field: str | None) -> Iterator[Row]:
    import pyarrow as pa

    to_row = _row_maker(schema.names, key_field)
    coarse = pa.schema([field.with_type(_coarse(field.type)) for field in schema])
    number = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, _ROWS_AT_ONCE):
            for row in _python_rows(batch.slice(begin, _ROWS_AT_ONCE), coarse):
                number += 1
                with place(f"row {number}"):
                    yield to_row(row, _as_json(_plain(row)))


def _python_rows(batch: Any, schema: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    try:
        found: list[dict[str, Any]] = batch.cast(schema, safe=False).to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidRecord(f"a row that Python has no values for: {error}") from None
    return found


def _coarse(kind: Any) -> Any:
    """The type with microseconds for nanoseconds, which Python's times cannot hold: pyarrow would hand them to pandas,
    if that happens to be installed."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_coarse(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_coarse(kind.key_type), _coarse(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_coarse(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_coarse(kind.value_type)))
    return kind


def _plain(given: Any) -> Any:
    """The same with bytes as JSON can say them: text where they are UTF-8, else `{"base64": "..."}`."""
    if isinstance(given, dict):
        return {name: _plain(value) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return [_plain(value) for value in given]
    if not isinstance(given, bytes):
        return given
    try:
        return given.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(given).decode()}


class place:  # noqa: N801  # reads as a statement
    """Says where in the input an error arose."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidRecord):
            raise InvalidRecord(f"{self._where}: {error}") from None


def maker_of(line: bytes) -> Callable[[Mapping[str, Any], bytes], Row]:
    """What makes records of rows like this line of JSON."""
    return _row_maker(decode_row(line).keys(), None)


def decode_row(line: bytes) -> Mapping[str, Any]:
    """The row in a line of JSON."""
    try:
        row = _decode_json(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # The decoder takes half of a surrogate pair for the end of the text.
        reason = "half of a surrogate pair, or cut short" if _SURROGATE.search(line) else error
        raise InvalidRecord(f"not JSON ({reason}); --format lines takes it as it is") from None
    if not isinstance(row, dict):
        raise InvalidRecord("not a JSON object; --format lines takes it as it is")
    return row


def _row_maker(names: Iterable[str], key_field: str | None) -> Callable[[Mapping[str, Any], bytes], Row]:
    """How the rows of this input become records, as the names in its first row tell."""
    names = list(names)
    if is_records(names, key_field):
        return record_of
    if key_field is None:
        return lambda row, text: Row(text or _as_json(row))
    if key_field not in names:
        raise InvalidRecord(f"there is no field {key_field!r} to take the key from; there are {', '.join(names[:20])}")
    return lambda row, text: Row(text or _as_json(row), key_of(row, key_field))


def is_records(names: Iterable[str], key_field: str | None = None) -> bool:
    """Whether rows with these names are whole records."""
    found = set(names)
    return key_field is None and "value" in found and found <= {*_OURS, *_PASSED_OVER, _UNDECODED}


def _as_json(row: Any) -> bytes:
    try:
        return _encode_json(row)
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"cannot be written as JSON: {error}") from None


def without_mark(line: bytes) -> bytes:
    """The first line of a file without the mark that some editors put there."""
    return line.removeprefix(_BYTE_ORDER_MARK)


def key_in(number: int, line: bytes, field: str) -> str | bytes | None:
    """The key of a row that is a line of JSON."""
    with place(f"line {number}"):
        return key_of(decode_row(line), field)


def key_of(row: Mapping[str, Any], field: str) -> str | bytes | None:
    """The field of a row that is its key."""
    if field not in row:
        raise InvalidRecord(f"there is no field {field!r} to take the key from")
    key = row[field]
    if key is None or isinstance(key, str | bytes):
        return key
    if isinstance(key, dict | list):
        raise InvalidRecord(f"the field {field!r} is a {type(key).__name__}; a key is a text or a number")
    if isinstance(key, float) and not math.isfinite(key):
        raise InvalidRecord(f"the field {field!r} is {key}; a key is a text or a number")
    return _encode_json(key).strip(b'"')


def record_of(row: Mapping[str, Any], text: bytes = b"") -> Row:
    """The record that a row with our names says. A value that is JSON stays as it stands in `text`, if that is given:
    digits that a number of Python does not have are kept."""
    strange = row.keys() - _OURS - _PASSED_OVER - {_UNDECODED}
    if strange or "value" not in row:
        problem = f"the field {min(strange)!r} is none of a record's" if strange else "there is no field 'value'"
        raise InvalidRecord(f"{problem}, unlike in the first row")
    given = row["value"] if row.get(_UNDECODED) is None else row[_UNDECODED]
    value = _bytes_of(given)
    if text and given is row["value"] and _is_json(given):
        value = bytes(_decode_fields(text)["value"])
    return Row(value, _bytes_of(row.get("key")), _headers_of(row.get("headers")), _time_of(row))


def _is_json(given: Any) -> bool:
    """Whether a value is neither text nor bytes, so that its JSON is what is kept."""
    return isinstance(given, int | float | list) or (isinstance(given, dict) and given.keys() != {"base64"})


def _bytes_of(given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, dict) and given.keys() == {"base64"}:
        try:
            return base64.b64decode(given["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise InvalidRecord("a field of base64 that is not base64") from None
    return _as_json(given)


def _headers_of(given: Any) -> dict[str, bytes] | None:
    if given is None or given == "":
        return None
    if isinstance(given, str):
        try:
            given = _decode_json(given)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRecord(f"headers are not JSON ({error})") from None
    if not isinstance(given, dict):
        raise InvalidRecord("headers are an object of names and values")
    return {name: _bytes_of(value) or b"" for name, value in given.items()}


def _time_of(row: Mapping[str, Any]) -> datetime | int | None:
    given = row.get("timestamp")
    if given is None or isinstance(given, int):
        return given
    if given == "":
        return None
    try:
        found = datetime.fromisoformat(str(given))
    except ValueError:
        raise InvalidRecord(f"timestamp {str(given)[:40]!r} is no time; write 2026-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        raise InvalidRecord(f"timestamp {given!r} has no time zone; write 2026-01-31T12:00:00Z")
    return found
