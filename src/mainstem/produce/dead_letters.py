"""Dead letters: rows that do not fit the schema of their stream, kept with the reason in a stream beside it.

The dead letters of `orders` are records of `orders.dead`, which has no schema and one shard, and is made when the first
one comes. A letter is the row as JSON, or the bytes that came; its key, headers and time are those of the record. These
headers say what was wrong:

    dead.error      what does not fit, and why
    dead.path       the field, empty if it is no row at all
    dead.stream     the stream it was sent to
    dead.schema     the version of the schema that it does not fit
    dead.time       when it was kept, ISO 8601

Headers of the record that have these names, or `dead.kind`, are left out.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mainstem.core.errors import SchemaMismatch
from mainstem.core.limits import ERROR_TEXT_CHARS_MAX
from mainstem.transport.port import StreamInfo

SUFFIX: Final = ".dead"
RETENTION_US: Final = 30 * 24 * 3600 * 1_000_000
ERROR: Final = "dead.error"
PATH: Final = "dead.path"
STREAM: Final = "dead.stream"
SCHEMA: Final = "dead.schema"
TIME: Final = "dead.time"
# Of a record that is no letter, but says what became of letters.
KIND: Final = "dead.kind"
OWN_HEADERS: Final = frozenset((ERROR, PATH, STREAM, SCHEMA, TIME, KIND))


def dead_stream_of(stream: str) -> str:
    """The name of the stream that has the dead letters of another."""
    return stream + SUFFIX


def letter_headers(
    headers: Iterable[tuple[str, bytes]], stream: StreamInfo, error: SchemaMismatch, now_us: int
) -> list[tuple[str, bytes]]:
    """The headers of a letter: those of its record but for the names above, and what was wrong."""
    said = {
        ERROR: str(error)[:ERROR_TEXT_CHARS_MAX],
        PATH: error.path,
        STREAM: stream.name,
        SCHEMA: str(stream.schema_version),
        TIME: datetime.fromtimestamp(now_us / 1e6, UTC).isoformat(),
    }
    kept = [(name, value) for name, value in headers if name not in OWN_HEADERS]
    return kept + [(name, text.encode(errors="replace")) for name, text in said.items()]


def letter_value(row: Any) -> bytes:
    """The row as it can be kept: bytes as they came, the rest as JSON, with texts for what JSON does not have."""
    if isinstance(row, bytes | bytearray | memoryview):
        return bytes(row)
    if isinstance(row, str):
        return row.encode(errors="replace")
    try:
        return json.dumps(_named(row), default=str, ensure_ascii=False).encode(errors="replace")
    except (TypeError, ValueError, RecursionError):
        return repr(row).encode(errors="replace")


def _named(row: Any) -> Any:
    return {str(name): value for name, value in row.items()} if isinstance(row, Mapping) else row
