"""Renderings: rows as the bytes of an answer, batch by batch, in the format that its reader asked for."""

from collections.abc import Iterator
from typing import Any, Final, Protocol

import pyarrow as pa
from starlette.requests import Request

from mainstem.registry import formats
from mainstem.server.http.problems import refusal

_ARROW_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Rendering(Protocol):
    """Makes the bytes of one answer. One thread at a time."""

    def begin(self, schema: pa.Schema) -> Iterator[bytes]: ...

    def rows(self, batch: pa.RecordBatch) -> Iterator[bytes]: ...

    def end(self) -> Iterator[bytes]: ...


class NdjsonRendering:
    """A JSON object a line."""

    def begin(self, schema: pa.Schema) -> Iterator[bytes]:
        yield from ()

    def rows(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        return formats.ndjson_pieces(batch)

    def end(self) -> Iterator[bytes]:
        yield from ()


class JsonRendering:
    """An array of objects."""

    def __init__(self) -> None:
        self._is_first = True

    def begin(self, schema: pa.Schema) -> Iterator[bytes]:
        yield b"["

    def rows(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for lines in formats.ndjson_pieces(batch):
            # No text of JSON has a newline in it.
            yield (b"" if self._is_first else b",\n") + lines[:-1].replace(b"\n", b",\n")
            self._is_first = False

    def end(self) -> Iterator[bytes]:
        yield b"]\n"


class CsvRendering:
    """The names of the columns, then a line a row; text stands in quotes, null is nothing."""

    def begin(self, schema: pa.Schema) -> Iterator[bytes]:
        return formats.csv_pieces(pa.RecordBatch.from_pylist([], schema))

    def rows(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        return formats.csv_pieces(batch, header=False)

    def end(self) -> Iterator[bytes]:
        yield from ()


class ArrowRendering:
    """An Arrow IPC stream."""

    def begin(self, schema: pa.Schema) -> Iterator[bytes]:
        yield schema.serialize().to_pybytes()

    def rows(self, batch: pa.RecordBatch) -> Iterator[Any]:
        # Not copied: the buffer lives as long as this look at it.
        yield memoryview(batch.serialize())

    def end(self) -> Iterator[bytes]:
        yield _ARROW_END


class ParquetRendering:
    """A Parquet file: row groups go out as they are full."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._writer: Any = None

    def begin(self, schema: pa.Schema) -> Iterator[bytes]:
        import pyarrow.parquet

        self._writer = pyarrow.parquet.ParquetWriter(self._sink, schema, compression="zstd")
        return self._sink.take()

    def rows(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        self._writer.write_batch(batch)
        return self._sink.take()

    def end(self) -> Iterator[bytes]:
        self._writer.close()
        return self._sink.take()


class _Sink:
    """A file that is only written."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._at = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._at += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def take(self) -> Iterator[bytes]:
        pieces, self._pieces = self._pieces, []
        return iter(pieces)


EVENTS: Final = "text/event-stream"
RENDERINGS: Final[dict[str, type[Any]]] = {
    "application/x-ndjson": NdjsonRendering,
    "application/json": JsonRendering,
    "text/csv": CsvRendering,
    "application/vnd.apache.arrow.stream": ArrowRendering,
    "application/vnd.apache.parquet": ParquetRendering,
}
# What browsers send is some hundred; to go through a whole head of it would hold up everybody else.
_ACCEPT_CHARS_MAX: Final = 1_024
_ALIASES: Final = {"application/jsonl": "application/x-ndjson"}


def media_type_of(request: Request, *, events: bool) -> str:
    """What the reader likes best of what there is: the first of the highest quality, NDJSON if it has no wish."""
    offered = [*RENDERINGS, EVENTS] if events else list(RENDERINGS)
    accept = ",".join(request.headers.getlist("accept")) or "*/*"
    if len(accept) > _ACCEPT_CHARS_MAX:
        raise refusal(400, f"an Accept of {len(accept)} characters; at most {_ACCEPT_CHARS_MAX} are read")
    wishes = sorted((_wish(part) for part in accept.split(",")), key=lambda wish: -wish[1])
    for name, quality in wishes:
        if quality <= 0:
            break
        name = _ALIASES.get(name, name)
        found = next((kind for kind in offered if _matches(name, kind)), None)
        if found is not None:
            return found
    raise refusal(406, f"there is no {accept[:100]!r}; there are {', '.join(offered)}")


def _wish(part: str) -> tuple[str, float]:
    name, *parameters = (text.strip().lower() for text in part.split(";"))
    quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
    try:
        return name, float(quality)
    except ValueError:
        return name, 0.0


def _matches(wish: str, kind: str) -> bool:
    return wish in (kind, "*/*") or (wish.endswith("/*") and kind.startswith(wish[:-1]))
