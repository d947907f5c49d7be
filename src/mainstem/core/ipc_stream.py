"""Arrow IPC streams from outside, taken apart message by message before pyarrow sees any of it.

    schema         one message, then
    record batch   any number of them, each checked by `message.inspect`, then by every value
    end            the length 0, or the end of the body

Of the types of Arrow those are taken that a schema of a stream may have. Dictionaries are not: whoever sends them casts
its columns first.
"""

import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from mainstem.core.batch import Buffer
from mainstem.core.errors import InvalidPayload, InvalidSchema, MainstemError, RecordTooLarge
from mainstem.core.gathering import Gathering
from mainstem.core.layouts import ARROW_ERRORS, METADATA_FIELDS, Shape, refuse, shape_of_columns
from mainstem.core.limits import BATCH_RECORDS_MAX, HTTP_BODY_BYTES_MAX, SCHEMA_BYTES_MAX
from mainstem.core.message import Peeked, inspect, peek
from mainstem.core.plain import one_line
from mainstem.core.schema import Schema

_CONTINUATION: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = struct.Struct("<i")
_PREFIX_BYTES: Final = 8


class IpcReader:
    """Makes batches of a stream that comes in pieces. One thread."""

    def __init__(self, bytes_max: int = HTTP_BODY_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # What is no whole message yet, and how many bytes are needed to go on.
        self._gathering = Gathering()
        self._needed = _PREFIX_BYTES
        self._shape: Shape | None = None
        self._is_over = False

    def feed(self, *pieces: Buffer) -> Iterator[pa.RecordBatch]:
        """The batches that are complete with these bytes. InvalidPayload if it is no such stream."""
        for piece in pieces:
            self._gathering.add(piece)
        if self._gathering.size < self._needed:
            return
        buffer = self._gathering.whole()
        at = 0
        while not self._is_over and (found := self._next(buffer, at)) is not None:
            peeked, length = found
            if peeked is not None:
                batch = self._take(buffer.slice(at, length), peeked)
                if batch is not None:
                    yield batch
            at += length
        self._gathering.drop(at)

    def finish(self) -> None:
        """The body has ended: so must the stream."""
        if self._shape is None or (self._gathering.size and not self._is_over):
            raise InvalidPayload("the Arrow stream is cut short")

    def _next(self, buffer: pa.Buffer, at: int) -> tuple[Peeked | None, int] | None:
        """What the message is that begins there, None for the end mark, and how long it is; None if it is not complete,
        and then `_needed` says what is."""
        left = buffer.size - at
        self._needed = _PREFIX_BYTES
        if left < self._needed:
            return None
        prefix = buffer.slice(at, _PREFIX_BYTES).to_pybytes()
        (metadata_len,) = _LENGTH.unpack_from(prefix, 4)
        if prefix[:4] != _CONTINUATION:
            raise InvalidPayload("this is no Arrow IPC stream (a file of Arrow is another format)")
        if not metadata_len:
            self._is_over = True
            return None, _PREFIX_BYTES
        limit = SCHEMA_BYTES_MAX if self._shape is None else self._shape.metadata_bytes_max
        if not 0 < metadata_len <= limit:
            raise InvalidPayload(f"a message of the Arrow stream has {metadata_len} bytes of metadata, over {limit}")
        self._needed = _PREFIX_BYTES + metadata_len
        if left < self._needed:
            return None
        peeked = self._peek(buffer.slice(at + _PREFIX_BYTES, metadata_len).to_pybytes())
        self._needed += peeked.body_len
        return None if left < self._needed else (peeked, self._needed)

    def _peek(self, metadata: bytes) -> Peeked:
        try:
            peeked = peek(metadata)
        except struct.error:
            raise InvalidPayload("a message of the Arrow stream points outside itself") from None
        if not 0 <= peeked.body_len <= self._bytes_max:
            raise RecordTooLarge(f"a message of the Arrow stream has a body of {peeked.body_len} bytes")
        return peeked

    def _take(self, message: pa.Buffer, peeked: Peeked) -> pa.RecordBatch | None:
        if self._shape is None:
            if not peeked.is_schema:
                raise InvalidPayload("an Arrow stream begins with its schema")
            self._shape = _shape(message.to_pybytes())
            return None
        if peeked.is_dictionary:
            raise InvalidPayload("columns with a dictionary are not taken: cast them to the type of their values first")
        if not peeked.is_batch:
            raise InvalidPayload("after its schema an Arrow stream has record batches only")
        if not peeked.rows:
            return None
        return self._checked(message, peeked, self._shape)

    def _checked(self, message: pa.Buffer, peeked: Peeked, shape: Shape) -> pa.RecordBatch:
        if not 0 < peeked.rows <= BATCH_RECORDS_MAX:
            raise InvalidPayload(f"a batch has 1 to {BATCH_RECORDS_MAX} rows, not {peeked.rows}")
        try:
            size = inspect(message, shape, peeked.codec_id, peeked.rows)
        except struct.error:
            raise InvalidPayload("a message of the Arrow stream points outside itself") from None
        if size > self._bytes_max:
            raise RecordTooLarge(
                f"a batch of {size} bytes when it is decompressed; at most {self._bytes_max} are taken"
            )
        try:
            batch = pa.ipc.read_record_batch(message, shape.schema)
            batch.validate(full=True)
        except ARROW_ERRORS as error:
            refuse(error)
        return batch


def _shape(message: bytes) -> Shape:
    try:
        return _shape_of(pa.ipc.read_schema(pa.py_buffer(message)))
    except MainstemError:
        raise
    except Exception as error:  # noqa: BLE001  # pyarrow's errors share no root of their own
        raise InvalidPayload(f"the Arrow stream has no schema that can be read: {one_line(str(error), 200)}") from None


def _shape_of(found: pa.Schema) -> Shape:
    own = [field for field in found if field.name not in METADATA_FIELDS]
    beside = [field for field in found if field.name in METADATA_FIELDS]
    for field in beside:
        if not field.type.equals(METADATA_FIELDS[field.name]):
            raise InvalidPayload(f"column {field.name!r} is {METADATA_FIELDS[field.name]}, not {field.type}")
    try:
        allowed = Schema(pa.schema(own)).arrow
    except InvalidSchema as error:
        raise InvalidPayload(f"the columns of the Arrow stream: {error}") from None
    for field in own:
        if not allowed.field(field.name).type.equals(field.type):
            raise InvalidPayload(
                f"column {field.name!r} is {field.type}, which is not taken as it is: cast it to "
                f"{allowed.field(field.name).type} first"
            )
    return shape_of_columns(pa.schema([field.remove_metadata() for field in found]))
