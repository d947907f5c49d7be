"""The pieces of a payload: its columns, each of which can be read and proven right without the others.

    for each piece:
         0    4 length      u32
         4    4 crc         crc32c of the payload up to the end of this piece, u32

The first piece is all that stands before the first column, then there is one for each column of the batch, in order.
Together they are the payload, so the last checksum is that of the whole. A piece is right if the checksum before it,
carried on over its bytes, is its own. Pieces are noted beside the statistics of large batches of rows; where columns
were compressed together there are none.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from mainstem.core.batch import BatchHeader, Buffer, FetchedBatch
from mainstem.core.checksum import crc32c_extended
from mainstem.core.errors import InvalidPayload
from mainstem.core.layouts import Shape, shape_of
from mainstem.core.limits import PIECE_BYTES_MIN, PIECES_STORED_BYTES_MIN
from mainstem.core.message import Located, column_bounds, inspect, locate, narrowed
from mainstem.core.payload import Encoded, codec_id_of, has_columns_apart, row_template
from mainstem.core.schema import Schema

_PIECE: Final = struct.Struct("<II")
# Bytes between two pieces that are cheaper to read along than to skip.
_GAP_BYTES_MAX: Final = 16 << 10


class Part(NamedTuple):
    """Some columns of the batches of one schema, and what of a record is wanted beside its row: bits of a layout."""

    schema_id: int
    schema: Schema
    kept: Schema
    layouts: int


class FetchedPart(FetchedBatch, frozen=True, gc=False):
    """A batch of rows of which only some columns were brought, those of `schema`. Its header is of what is here."""

    schema: Schema


class Piece(NamedTuple):
    """Where a piece is in its payload, and the checksums up to its begin and up to its end."""

    begin: int
    end: int
    crc_before: int
    crc: int

    def check(self, data: Buffer) -> Buffer:
        """The bytes of this piece, if that is what they are; else InvalidPayload."""
        if len(data) != self.end - self.begin or crc32c_extended(self.crc_before, data) != self.crc:
            raise InvalidPayload("a piece's checksum does not match")
        return data


def collect(header: BatchHeader, data: Buffer, schema: Schema) -> bytes:
    """The pieces of a batch of rows, which nobody may have looked at yet; b"" if it is small, or its columns cannot be
    read alone, or it is not one."""
    size = len(data)
    if size < PIECES_STORED_BYTES_MIN or not has_columns_apart(header.encoding):
        return b""
    try:
        shape = shape_of(header.layout, schema)
        found = locate(pa.py_buffer(data), size, shape, codec_id_of(header.encoding), header.count)
    except (InvalidPayload, struct.error):
        return b""
    if len(shape.schema) < 2 or size < PIECE_BYTES_MIN * len(shape.schema):
        return b""
    view, crc, table = memoryview(data), 0, bytearray()
    for begin, end in pairwise((0, *column_bounds(found, shape, size))):
        crc = crc32c_extended(crc, view[begin:end])
        table += _PIECE.pack(end - begin, crc)
    return bytes(table)


def checksum(table: bytes) -> int:
    """The checksum of the payload that these are the pieces of."""
    return int(_PIECE.unpack_from(table, len(table) - _PIECE.size)[1])


def parse(table: Buffer, header: BatchHeader) -> list[Piece]:
    """The pieces of the batch of this header; InvalidPayload if these are not its own."""
    found: list[Piece] = []
    at = crc = 0
    if len(table) % _PIECE.size:
        raise InvalidPayload("a table of pieces that is cut short")
    for length, after in _PIECE.iter_unpack(table):
        found.append(Piece(at, at + length, crc, after))
        at, crc = at + length, after
    if (at, crc) != (header.stored_len, header.payload_crc):
        raise InvalidPayload("the pieces of another payload")
    return found


def take(fetched: FetchedBatch, part: Part) -> FetchedPart | None:
    """Of a batch only these columns, their bytes as they are: nothing is decompressed. None where that cannot be,
    because all of it was compressed together."""
    header = fetched.header
    if not has_columns_apart(header.encoding):
        return None
    message, shape = pa.py_buffer(fetched.payload), shape_of(header.layout, part.schema)
    found = locate(message, message.size, shape, codec_id_of(header.encoding), header.count)
    columns = list(pairwise(column_bounds(found, shape, message.size)))
    view = memoryview(fetched.payload)
    return _made(fetched.base, header, part, found, shape, lambda place: view[slice(*columns[place])])


def read(
    base: int, header: BatchHeader, table: Buffer, part: Part, payload: Callable[[int, int], Buffer]
) -> FetchedPart:
    """The same of a batch whose payload is elsewhere: `payload` brings its bytes from one place to another. Only what
    is needed is asked for and checked. InvalidPayload if something is not what was stored."""
    shape, codec = shape_of(header.layout, part.schema), codec_id_of(header.encoding)
    head, *columns = parse(table, header)
    if len(columns) != len(shape.schema) or not has_columns_apart(header.encoding):
        raise InvalidPayload("the pieces of another payload")
    message = pa.py_buffer(head.check(payload(head.begin, head.end)))
    found = locate(message, header.stored_len, shape, codec, header.count)
    names = shape_of(header.layout & part.layouts, part.kept).schema.names
    places = sorted(shape.schema.get_field_index(name) for name in names)
    brought: dict[int, Buffer] = {}
    for run in _near(places, columns):
        begin = columns[run[0]].begin
        data = memoryview(payload(begin, columns[run[-1]].end))
        for place in run:
            piece = columns[place]
            brought[place] = piece.check(data[piece.begin - begin : piece.end - begin])
    return _made(base, header, part, found, shape, brought.__getitem__)


def _near(places: Sequence[int], columns: Sequence[Piece]) -> list[list[int]]:
    """Columns grouped where little stands between them, so that one read brings several."""
    runs: list[list[int]] = []
    for place in places:
        if runs and columns[place].begin - columns[runs[-1][-1]].end <= _GAP_BYTES_MAX:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _made(
    base: int,
    header: BatchHeader,
    part: Part,
    found: Located,
    shape: Shape,
    column_of: Callable[[int], Buffer],
) -> FetchedPart:
    layout = header.layout & part.layouts
    template = row_template(header.encoding, layout, part.kept)
    message = narrowed(found, shape, header.count, template, column_of)
    raw_len = inspect(pa.py_buffer(message), template.shape, codec_id_of(header.encoding), header.count)
    encoded = Encoded(header.encoding, layout, header.count, raw_len, message)
    return FetchedPart(base, encoded.header_like(header), message, part.kept)
