"""Records as bytes for a pipe: text for people, JSON for programs, the bare values; ended by a newline or framed.

JSON keeps everything: bytes that are UTF-8 are text, others are `{"base64": "..."}`, a tombstone's value is null. What
`json` writes, `mainstem write --format ndjson` reads back as the same records. The value of a row is an object with its
columns, a bare one the JSON of the row; where only some columns were asked for, that is all there is of a record. Bytes
that are no row of the stream's schema are shown as they are, in JSON as `undecoded`.

Text escapes what a terminal would obey and what could pass for something else: control characters and marks that turn
the direction of text, bytes that are not UTF-8 (`\\xff`), the backslash itself, and a key or value that reads like the
words for none (`\\-`, `\\(deleted)`).

A frame is the length as u32, little-endian, then that many bytes. A tombstone among bare values is the length
0xFFFFFFFF without bytes; in lines it is an empty one.
"""

import base64
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import msgspec

from mainstem.consume.record import Record, RecordBatch

Render = Callable[[RecordBatch], list[bytes]]

# One piece for each record.
OUTPUTS: Final = ("text", "json", "raw")
FRAME_NONE: Final = 0xFFFF_FFFF
_LENGTH = struct.Struct("<I")
# The backslash, control characters, line separators, marks that turn the direction of text, and what stands for a byte
# that is not UTF-8.
_UNSAFE = re.compile("[\\\\\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]")
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NO_KEY: Final = "-"
_NO_VALUE: Final = "(deleted)"
_encode_json = msgspec.json.Encoder().encode


def renderer(output: str, *, framed: bool, columns: bool = False) -> Render:
    """How batches become pieces, one for each record; of some `columns`, or of everything."""
    bodies = _row_lines if columns else {"text": _texts, "json": _jsons, "raw": _raws}[output]
    if framed:
        return lambda batch: [_frame(body) for body in bodies(batch)]
    return lambda batch: [(body or b"") + b"\n" for body in bodies(batch)]


def _frame(body: bytes | None) -> bytes:
    return _LENGTH.pack(FRAME_NONE) if body is None else _LENGTH.pack(len(body)) + body


def _row_lines(batch: RecordBatch) -> list[bytes | None]:
    """The JSON of every row; a line of it has no line break within."""
    return [*batch.to_ndjson().split(b"\n")[:-1]]


def _with_rows(batch: RecordBatch) -> Iterator[tuple[Record, bytes | None]]:
    """Every record, and its row as JSON if it is one."""
    records = list(batch.records())
    if not any(isinstance(record.value, dict) for record in records):
        return zip(records, repeat(None))
    rows = zip(records, _row_lines(batch), strict=True)
    return ((record, None if record.value is None else line) for record, line in rows)


def _raws(batch: RecordBatch) -> list[bytes | None]:
    return [record.undecoded or record.value if row is None else row for record, row in _with_rows(batch)]


def _texts(batch: RecordBatch) -> list[bytes | None]:
    return [_text(record, row) for record, row in _with_rows(batch)]


def _text(record: Record, row: bytes | None) -> bytes:
    time = record.timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    key = _shown(record.key, _NO_KEY)
    value = _shown(record.undecoded or record.value, _NO_VALUE) if row is None else _shown_row(row)
    return f"{time}\t{record.shard}:{record.offset}\t{key}\t{value}".encode()


def _shown_row(row: bytes) -> str:
    """JSON escapes control characters itself, and its backslashes mean what they say."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", row.decode())


def _shown(data: bytes | None, none: str) -> str:
    """Bytes as one line that no terminal can be hurt with; `none` says that there are none."""
    if data is None:
        return none
    text = _UNSAFE.sub(_escaped, data.decode("utf-8", "surrogateescape"))
    return f"\\{text}" if text == none else text


def _escaped(found: re.Match[str]) -> str:
    point = ord(found[0])
    if 0xDC80 <= point <= 0xDCFF:
        return f"\\x{point - 0xDC00:02x}"
    return f"\\u{point:04x}" if 0x80 <= point < 0x100 else found[0].encode("unicode_escape").decode()


def _jsons(batch: RecordBatch) -> list[bytes | None]:
    return [_json(record, row) for record, row in _with_rows(batch)]


def _json(record: Record, row: bytes | None) -> bytes:
    content = {
        "shard": record.shard,
        "offset": record.offset,
        "timestamp": record.timestamp.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "key": _plain(record.key),
        "value": _plain(record.value) if row is None else msgspec.Raw(row),
        "headers": _plain_headers(record.headers),
    }
    if record.undecoded is not None:
        content["undecoded"] = _plain(record.undecoded)
    return _encode_json(content)


def _plain_headers(headers: Mapping[str, bytes] | None) -> dict[str, Any] | None:
    return None if headers is None else {name: _plain(value) for name, value in headers.items()}


def _plain(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
