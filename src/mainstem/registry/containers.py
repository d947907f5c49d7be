"""Avro container files: written for others, and read from them with care.

A file is a head with the schema and a mark, then blocks of rows, each compressed for itself and followed by the mark.
What a file says of its size is compared with a limit before it is believed: a block is decompressed up to
AVRO_BLOCK_BYTES_MAX and no further, has no more rows than bytes, and becomes columns piece by piece.
"""

import binascii
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final

import pyarrow as pa

from mainstem.core.errors import InvalidPayload, InvalidSchema, MainstemError, RecordTooLarge
from mainstem.core.limits import (
    AVRO_BLOCK_BYTES_MAX,
    AVRO_FILE_BYTES_MAX,
    BATCH_RECORDS_MAX,
    FORMATTED_BYTES_MAX,
    MIB,
)
from mainstem.core.plain import one_line
from mainstem.registry.avro import avro_columns, to_avro
from mainstem.registry.avro_values import from_avro_values, to_avro_values
from mainstem.registry.schema_json import read_schema_json

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
# So many bytes of a block are objects of Python at once; each takes some hundred times as much then.
_PIECE_BYTES: Final = 1 * MIB
_VARINT_BYTES_MAX: Final = 10


def write_avro(batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, name: str = "row") -> bytes:
    """Rows as an Avro file; RecordTooLarge if it would be more than FORMATTED_BYTES_MAX."""
    import fastavro

    sink = io.BytesIO()
    writer = fastavro.write.Writer(sink, to_avro(schema, name), codec="deflate")
    for batch in batches:
        for row in to_avro_values(batch.to_struct_array()):
            writer.write(row)
        if sink.tell() > FORMATTED_BYTES_MAX:
            raise RecordTooLarge(f"these rows are more than {FORMATTED_BYTES_MAX} bytes as Avro; take them in pieces")
    writer.flush()
    return sink.getvalue()


def read_avro(data: bytes | IO[bytes]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns of an Avro file, which may come through a pipe, and its rows. InvalidPayload if it is none, also
    while they are taken."""
    import fastavro

    file = io.BytesIO(data) if isinstance(data, bytes) else data
    if file.read(len(_MAGIC)) != _MAGIC:
        raise InvalidPayload("no Avro file: it does not begin with 'Obj' and 1")
    try:
        meta: Any = fastavro.schemaless_reader(file, {"type": "map", "values": "bytes"}, None)
        text = meta["avro.schema"]
        codec = meta.get("avro.codec", b"null").decode()
    except Exception as error:  # noqa: BLE001  # fastavro's errors share no root
        raise InvalidPayload(f"no Avro file: its head cannot be read: {one_line(str(error), 100)}") from None
    if codec not in _CODECS:
        raise InvalidPayload(f"the Avro codec {one_line(codec, 40)!r} is not read here; use {', '.join(_CODECS)}")
    raw = read_schema_json(text, "the schema of the Avro file")
    if not isinstance(raw, dict):
        raise InvalidSchema("the schema of the Avro file is no record")
    schema = avro_columns(raw)
    return schema, _batches(file, file.read(_SYNC_BYTES), _CODECS[codec], raw, schema)


def _batches(
    file: IO[bytes], sync: bytes, decompress: Callable[[bytes, int], bytes], raw: Any, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    import fastavro

    stored: Any = fastavro.parse_schema(_as_stored(raw))
    kind = pa.struct(list(schema))
    left = AVRO_FILE_BYTES_MAX
    number = 0
    while (first := file.read(1)) != b"":
        number += 1
        count, size = _varint(file, first, number), _varint(file, file.read(1), number)
        block = file.read(size) if 0 <= size <= AVRO_BLOCK_BYTES_MAX else b""
        if len(block) != size or file.read(_SYNC_BYTES) != sync:
            raise InvalidPayload(f"block {number} of the Avro file, of {size} bytes, is damaged or too large")
        rows = decompress(block, min(left, AVRO_BLOCK_BYTES_MAX))
        left -= len(rows)
        if not 0 <= count <= min(len(rows), BATCH_RECORDS_MAX):
            raise InvalidPayload(f"a block of an Avro file has {len(rows)} bytes, and cannot have {count} rows")
        yield from _rows(rows, count, stored, kind)


def _rows(data: bytes, count: int, stored: Any, kind: pa.DataType) -> Iterator[pa.RecordBatch]:
    import fastavro

    source, begun = io.BytesIO(data), 0
    found: list[Any] = []
    for number in range(1, count + 1):
        try:
            found.append(fastavro.schemaless_reader(source, stored, None))
        except Exception as error:  # noqa: BLE001  # fastavro's errors share no root
            raise InvalidPayload(f"a row of an Avro file cannot be read: {one_line(repr(error), 100)}") from None
        if number == count or source.tell() - begun >= _PIECE_BYTES:
            yield _batch(found, kind)
            found, begun = [], source.tell()
    if source.tell() != len(data):
        raise InvalidPayload(f"a block of an Avro file has {len(data) - source.tell()} bytes behind its last row")


def _batch(rows: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_struct_array(pa.array(from_avro_values(rows, kind), kind))
    except MainstemError:
        raise
    except Exception as error:  # noqa: BLE001  # pyarrow's errors share no root either
        raise InvalidPayload(f"the rows of an Avro file do not fit its schema: {one_line(str(error), 100)}") from None


def _as_stored(raw: Any) -> Any:
    """A schema without logical types: rows are read as the numbers and bytes that are stored."""
    if isinstance(raw, dict):
        return {name: _as_stored(value) for name, value in raw.items() if name != "logicalType"}
    return [_as_stored(each) for each in raw] if isinstance(raw, list) else raw


def _varint(file: IO[bytes], first: bytes, block: int) -> int:
    number, shift, byte = 0, 0, first
    while byte and shift < 7 * _VARINT_BYTES_MAX:
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7
        byte = file.read(1)
    raise InvalidPayload(f"block {block} of the Avro file is damaged: a number has no end")


# Each takes a compressed block and how large it may become.


def _stored(block: bytes, limit: int) -> bytes:
    return block if len(block) <= limit else _too_large(limit)


def _inflated(block: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(-15)
    try:
        found = stream.decompress(block, limit + 1)
    except zlib.error as error:
        raise InvalidPayload(f"a block of an Avro file does not decompress: {error}") from None
    if len(found) > limit:
        return _too_large(limit)
    if not stream.eof:
        raise InvalidPayload("a block of an Avro file does not decompress: it ends too early")
    return found


def _unsnapped(block: bytes, limit: int) -> bytes:
    data, checksum = block[:-4], block[-4:]
    size, shift = 0, 0
    for byte in data[:5]:  # how large it becomes stands in front
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > limit:
        return _too_large(limit)
    try:
        found = bytes(pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise InvalidPayload(f"a block of an Avro file does not decompress: {error}") from None
    if binascii.crc32(found).to_bytes(4, "big") != checksum:
        raise InvalidPayload("a block of an Avro file fails its checksum")
    return found


def _unzstd(block: bytes, limit: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
            found = bytes(stream.read(limit + 1))
    except (pa.ArrowException, OSError) as error:
        raise InvalidPayload(f"a block of an Avro file does not decompress: {error}") from None
    return found if len(found) <= limit else _too_large(limit)


def _too_large(limit: int) -> bytes:
    raise RecordTooLarge(f"an Avro file decompresses to more than {limit} bytes in a block; smaller blocks are read")


_CODECS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "null": _stored,
    "deflate": _inflated,
    "snappy": _unsnapped,
    "zstandard": _unzstd,
}
