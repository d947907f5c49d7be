"""A posting: the rows of one request, parsed as its body comes, and then written together or not at all.

Rows go the way of every producer's rows, with the same checks, into a producer whose batches are gathered here instead
of being sent. What is gathered becomes one submission to the log, so it is one flush: all of it is durable, or nothing.

Usual rows take a short way, many at a time. Where that meets anything unusual, the rows of that piece go one by one,
which knows the line of what is wrong.
"""

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from mainstem.core import payload
from mainstem.core.batch import Batch, Buffer
from mainstem.core.errors import InvalidRecord, InvalidRequest, RecordTooLarge
from mainstem.core.ipc_stream import IpcReader
from mainstem.core.layouts import binary_array
from mainstem.core.limits import (
    APPEND_RAW_BYTES_MAX,
    FLUSH_BATCHES_MAX,
    JSON_ROWS_BYTES_MAX,
    KIB,
    MIB,
    PAYLOAD_RAW_BYTES_MAX,
    PENDING_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from mainstem.core.schema import Schema
from mainstem.produce import rows as records
from mainstem.produce import typed_rows
from mainstem.produce.intake import Intake
from mainstem.produce.json_array import BLANKS, JsonArray
from mainstem.produce.options import ProducerOptions
from mainstem.produce.producer import Producer
from mainstem.produce.typed_rows import TypedRow
from mainstem.registry.rows import RowConverter, converter_of
from mainstem.transport.port import AppendDone, Port, StreamInfo

# Rows that go one by one are taken so many at a time.
_ROWS_AT_ONCE: Final = 2_000
# Rows of several pieces travel in one batch of about this size.
_GATHERED_BYTES: Final = 1 * MIB
assert 2 * _GATHERED_BYTES <= PAYLOAD_RAW_BYTES_MAX


_RAISING: Final = ProducerOptions(batch_bytes=PAYLOAD_RAW_BYTES_MAX // 2, buffer_bytes=2 * APPEND_RAW_BYTES_MAX)
_KEEPING: Final = msgspec.structs.replace(_RAISING, on_bad="dead_letter")


class Posting:
    """The rows of one request to one stream. One thread at a time.

    `port` knows the streams; nothing is sent to it but what makes `<stream>.dead` where a row goes there. `finished`
    makes of each batch what is to be written, as it comes.
    """

    def __init__(
        self,
        port: Port,
        stream: StreamInfo,
        *,
        on_bad: str,
        unit: str = "line",
        finished: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        options = _KEEPING if on_bad == "dead_letter" else _RAISING
        self.stream = stream
        self._gathered = _Gathered(port, finished)
        self._producer = Producer(self._gathered, options, known=[stream])
        self._intake = Intake(self._producer, stream.name, unit)
        self._schema = Schema.parse(stream.schema_bytes) if stream.schema_bytes else None
        # Rows that passed the short way and wait to be one batch.
        self._tables: list[pa.RecordBatch] = []
        self._tables_bytes = 0

    @property
    def converter(self) -> RowConverter | None:
        """What makes rows of JSON; None if the stream has no schema."""
        return None if self._schema is None else converter_of(self._schema)

    def take(self, rows: Iterable[Any]) -> None:
        """Rows one by one, and tables."""
        self._ship()
        self._intake.take(rows)
        self._gathered.check()

    def take_columns(self, batch: pa.RecordBatch) -> None:
        """Rows that were proven, as columns of the schema."""
        self._check_sizes(batch)
        self._tables.append(batch)
        self._tables_bytes += batch.nbytes
        if self._tables_bytes >= _GATHERED_BYTES:
            self._ship()

    def take_values(self, values: list[bytes | None], keys: list[bytes | None] | None) -> None:
        """Records of a stream without a schema."""
        bytes_max = self._gathered.record_bytes_max
        if (size := max(map(len, filter(None, values)), default=0)) > bytes_max:
            raise RecordTooLarge(f"a record of {size} bytes; record_bytes_max is {bytes_max}")
        ack = self._producer.send_many(self.stream.name, values, keys)
        self._intake.note(ack.chunks)
        self._gathered.check()

    def take_table(self, batch: pa.RecordBatch) -> None:
        """Rows, or records, as columns."""
        self._check_sizes(batch)
        self.take([batch])

    def _check_sizes(self, batch: pa.RecordBatch) -> None:
        """A server may take smaller records than a producer would send."""
        bytes_max = self._gathered.record_bytes_max
        if batch.nbytes > bytes_max:
            payload.check_record_bytes(batch, bytes_max)

    def _ship(self) -> None:
        if self._tables:
            tables, self._tables, self._tables_bytes = self._tables, [], 0
            self._intake.take([pa.Table.from_batches(tables)])
            self._gathered.check()

    def finish(self) -> Sequence[Batch]:
        """All batches of the request, for the stream and for its dead letters."""
        self._ship()
        self._intake.finish()
        self._gathered.check()
        return self._gathered.batches

    @property
    def left_out(self) -> int:
        """How many rows a quota left out."""
        return self._producer.left_out

    @property
    def share(self) -> float:
        """Which share of the rows was to be kept."""
        return self._gathered.write_share

    @property
    def kept(self) -> float:
        """Which part of them was."""
        return 1.0 - self.left_out / max(1, self._intake.sent)

    @property
    def dead(self) -> int:
        """How many rows are dead letters."""
        return self._intake.dead


class _Gathered:
    """A port that keeps what is appended. It says of every batch that it has place 0: its real place comes later."""

    checks_values = True

    def __init__(self, port: Port, finished: Callable[[Batch], Batch]) -> None:
        self._port = port
        self._finished = finished
        self.record_bytes_max = port.record_bytes_max
        self.write_share = port.write_share
        self.batches: list[Batch] = []
        self._raw = self._stored = 0

    def check(self) -> None:
        """Whether it still fits one flush."""
        if self._raw > APPEND_RAW_BYTES_MAX or self._stored > PENDING_BYTES_MAX // 2:
            raise RecordTooLarge(
                f"the rows of this request are {self._raw} bytes, {self._stored} compressed; at most "
                f"{APPEND_RAW_BYTES_MAX} and {PENDING_BYTES_MAX // 2} are written together: send fewer at a time"
            )
        if len(self.batches) > FLUSH_BATCHES_MAX:
            raise RecordTooLarge(
                f"the rows of this request are {len(self.batches)} batches; at most {FLUSH_BATCHES_MAX} are written "
                "together: send fewer at a time"
            )

    def append(self, batches: Sequence[Batch], timeout: float, done: AppendDone) -> None:
        self.batches += map(self._finished, batches)
        self._raw += sum(batch.header.raw_len for batch in batches)
        self._stored += sum(batch.header.stored_len for batch in batches)
        done([0] * len(batches))

    def can_take(self) -> bool:
        return True

    def append_unacknowledged(self, batches: Sequence[Batch]) -> bool:
        raise InvalidRequest("a posting is always acknowledged")

    def schedule(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """What gathers is taken when it is full, or at the end."""

    def wait(self, event: Any, timeout: float | None) -> bool:
        return bool(event.wait(timeout))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


# ------------------------------------------------------------------------------------------------------------- formats


class Reader(Protocol):
    """Takes a body as it comes and puts its rows into a posting. One thread at a time."""

    # How much of a body is worth a call.
    feed_bytes: int

    def feed(self, *pieces: Buffer) -> None:
        """More of the body. Does no more work than that is worth."""
        ...

    def finish(self) -> Iterator[None]:
        """The body is complete: do the rest, in steps."""
        ...


class NdjsonReader:
    """Each line a JSON object: a row, or a record as `mainstem tail --output json` writes it; the first line says
    which. Empty lines are passed over."""

    feed_bytes = 512 * KIB

    def __init__(self, posting: Posting) -> None:
        self._posting = posting
        self._rest = b""
        self._lines = _Objects(posting, "line")
        self._number = 1

    def feed(self, *pieces: Buffer) -> None:
        text = b"".join((self._rest, *pieces))
        end = text.rfind(b"\n")
        if end < 0:
            self._rest = text
            if len(text) > RECORD_BYTES_MAX:
                raise RecordTooLarge(f"line {self._number} is longer than record_bytes_max, {RECORD_BYTES_MAX} bytes")
            return
        self._rest = text[end + 1 :]
        self._take(text[:end])

    def finish(self) -> Iterator[None]:
        rest, self._rest = self._rest, b""
        if rest:
            self._take(rest)
        yield

    def _take(self, text: bytes) -> None:
        lines = text.split(b"\n")
        if self._number == 1:
            lines[0] = records.without_mark(lines[0])
        first, self._number = self._number, self._number + len(lines)
        self._lines.take(first, lines)


class JsonReader:
    """A JSON array of rows, or a single one."""

    feed_bytes = 512 * KIB

    def __init__(self, posting: Posting) -> None:
        self._objects = _Objects(posting, "row")
        # One of them, when it is known what it is.
        self._array: JsonArray | None = None
        self._single = bytearray()

    def feed(self, *pieces: Buffer) -> None:
        text = b"".join(pieces)
        if self._array is None and not self._single:
            text = text.lstrip(BLANKS)
            if text.startswith(b"["):
                self._array, text = JsonArray(), text[1:]
        if self._array is None:
            self._single += text
            if len(self._single) > RECORD_BYTES_MAX:
                raise RecordTooLarge(f"row 1 is longer than record_bytes_max, {RECORD_BYTES_MAX} bytes")
            return
        taken = self._array.count
        for texts in self._array.feed(text):
            for begin in range(0, len(texts), _JSON_AT_ONCE):
                self._objects.take(taken + begin + 1, texts[begin : begin + _JSON_AT_ONCE])
            taken += len(texts)

    def finish(self) -> Iterator[None]:
        if self._array is not None:
            self._array.finish()
        else:
            text = bytes(self._single)
            try:
                _decode_raw(text)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise InvalidRecord(f"the body is not JSON: {error}") from None
            self._objects.take(1, [text])
        yield


class CsvReader:
    """CSV whose first line names the columns."""

    feed_bytes = 2 * MIB

    def __init__(self, posting: Posting) -> None:
        self._posting = posting
        self._text = bytearray()

    def feed(self, *pieces: Buffer) -> None:
        self._text += b"".join(pieces)

    def finish(self) -> Iterator[None]:
        file = io.BytesIO(bytes(self._text))
        self._text.clear()
        schema = self._posting._schema
        rows: Iterator[Any] = records.csv_rows(file) if schema is None else typed_rows.csv_rows(file, schema)
        while taken := list(islice(rows, _ROWS_AT_ONCE)):
            self._posting.take(taken)
            yield


class ArrowReader:
    """An Arrow IPC stream: the columns of the schema, or those of a record."""

    feed_bytes = 2 * MIB

    def __init__(self, posting: Posting) -> None:
        self._posting = posting
        self._reader = IpcReader()

    def feed(self, *pieces: Buffer) -> None:
        for batch in self._reader.feed(*pieces):
            self._posting.take_table(batch)

    def finish(self) -> Iterator[None]:
        self._reader.finish()
        yield


READERS: Final[dict[str, Callable[[Posting], Reader]]] = {
    "application/x-ndjson": NdjsonReader,
    "application/jsonl": NdjsonReader,
    "application/json": JsonReader,
    "text/csv": CsvReader,
    "application/vnd.apache.arrow.stream": ArrowReader,
}
_JSON_AT_ONCE: Final = 10_000
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The usual record of a stream without a schema."""

    value: str | None
    key: str | None = None


class _Object(msgspec.Struct, gc=False):
    """Any object: its fields are looked over, and left."""


_BETWEEN_OBJECTS: Final = re.compile(rb"\}\s*,\s*\{")
_decode_plain: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[_Plain]).decode
_decode_objects: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[_Object]).decode


class _Objects:
    """Texts that are each an object of JSON, on their way into a posting. `unit` is what they are counted in."""

    def __init__(self, posting: Posting, unit: str) -> None:
        self._posting = posting
        self._unit = unit
        # What makes records of them, as the first one says.
        self._typed: Callable[[bytes], records.Row] | None = None
        self._untyped: Callable[[Any, bytes], records.Row] | None = None
        self._size = 0

    def take(self, first: int, texts: list[bytes]) -> None:
        """The next ones; `first` is the number of the first of them."""
        numbers: Sequence[int] = range(first, first + len(texts))
        if not all(texts) or any(map(bytes.isspace, texts)):
            kept = [(number, text) for number, text in zip(numbers, texts, strict=True) if text.strip()]
            numbers, texts = [number for number, _ in kept], [text for _, text in kept]
        if not texts:
            return
        if max(map(len, texts)) > RECORD_BYTES_MAX:
            number = next(number for number, text in zip(numbers, texts, strict=True) if len(text) > RECORD_BYTES_MAX)
            raise RecordTooLarge(f"{self._unit} {number} is longer than record_bytes_max, {RECORD_BYTES_MAX} bytes")
        if self._posting.converter is None:
            self._take_untyped(numbers, texts)
        else:
            self._take_typed(self._posting.converter, numbers, texts)

    def _take_typed(self, converter: RowConverter, numbers: Sequence[int], texts: list[bytes]) -> None:
        self._typed = self._typed or typed_rows.reader_of(texts[0], converter.schema)
        values = binary_array(texts)
        size = converter.json_size(values)
        self._size += size
        if self._size > APPEND_RAW_BYTES_MAX:
            raise RecordTooLarge(
                f"these rows are over {APPEND_RAW_BYTES_MAX} bytes with all they leave out: send fewer at a time"
            )
        if size > JSON_ROWS_BYTES_MAX and len(texts) > 1:
            self._size -= size
            half = len(texts) // 2
            self._take_typed(converter, numbers[:half], texts[:half])
            self._take_typed(converter, numbers[half:], texts[half:])
            return
        if self._typed is typed_rows.as_it_is:
            batch, bad = converter.from_json(values, is_first_enough=True)
            if not bad:
                self._posting.take_columns(batch)
                return
        self._posting.take(self._typed_rows(numbers, texts))

    def _typed_rows(self, numbers: Sequence[int], texts: list[bytes]) -> Iterator[TypedRow]:
        read = self._typed
        assert read is not None
        for number, text in zip(numbers, texts, strict=True):
            with records.place(f"{self._unit} {number}"):
                row = read(text)
            yield TypedRow(number, *row)

    def _take_untyped(self, numbers: Sequence[int], texts: list[bytes]) -> None:
        if self._untyped is None:
            with records.place(f"{self._unit} {numbers[0]}"):
                self._untyped = records.maker_of(texts[0])
        is_records = self._untyped is records.record_of
        found: list[Any] = []
        if not _BETWEEN_OBJECTS.search(b"\n".join(texts)):
            with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                found = (_decode_plain if is_records else _decode_objects)(b"[" + b",".join(texts) + b"]")
        # As many objects as texts, and no text has the end of one and the beginning of the next: each text is one.
        if len(found) != len(texts):
            self._posting.take(self._untyped_rows(numbers, texts))
        elif not is_records:
            self._posting.take_values([text.strip() for text in texts], None)
        else:
            values = [None if record.value is None else record.value.encode() for record in found]
            keys = [None if record.key is None else record.key.encode() for record in found]
            self._posting.take_values(values, keys if any(key is not None for key in keys) else None)

    def _untyped_rows(self, numbers: Sequence[int], texts: list[bytes]) -> Iterator[records.Row]:
        assert self._untyped is not None
        for number, text in zip(numbers, texts, strict=True):
            with records.place(f"{self._unit} {number}"):
                yield self._untyped(records.decode_row(text), text.strip())
