"""Columns taken out of a payload, from all of it or from its pieces: the same bytes, and none that were not checked."""

import random
from itertools import accumulate

import msgspec
import pyarrow as pa
import pytest

from mainstem.core import layouts, payload, pieces
from mainstem.core.batch import BatchHeader, Buffer, FetchedBatch
from mainstem.core.errors import InvalidPayload
from mainstem.core.limits import PIECE_BYTES_MIN, PIECES_STORED_BYTES_MIN
from mainstem.core.pieces import FetchedPart, Part
from mainstem.core.schema import Schema
from tests.unit.core.test_payload_columns import SCHEMA, rows

COMPRESSIONS = (None, "lz4", "zstd")
BESIDE = layouts.HAS_HEADERS | layouts.HAS_TIMESTAMP
SOME = (
    ["number"],
    ["pairs"],
    ["nested", "empty"],
    ["two", "code"],
    ["flag", "money"],
    ["number", "money"],
    SCHEMA.names,
)


def stored(batch: pa.RecordBatch, schema: Schema, compression: str | None) -> FetchedBatch:
    made = payload.encode(batch, compression, schema)
    header = made.header(stream=1, shard=0, schema_id=7, generation=0, time_low=0, time_high=9)
    return FetchedBatch(100, header, made.payload)


def wide(count: int) -> pa.RecordBatch:
    batch = rows(count).append_column("_headers", pa.array([[("h", b"1")]] * count, layouts.HEADERS_TYPE))
    return batch.append_column("_timestamp", pa.array(range(count), layouts.TIMESTAMP_TYPE))


def part(names: list[str], beside: int = BESIDE) -> Part:
    return Part(7, SCHEMA, Schema(pa.schema([SCHEMA.field(name) for name in names])), beside)


class Asked:
    """A payload that notes which of its bytes are asked for."""

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, begin: int, end: int) -> bytes:
        self.ranges.append((begin, end))
        return self._data[begin:end]

    @property
    def bytes(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


def opened(found: FetchedPart) -> pa.RecordBatch:
    header = found.header
    sizes = (header.encoding, header.layout, header.count, header.raw_len)
    return payload.check(*sizes, found.payload, layouts=16, schema=found.schema)


@pytest.mark.parametrize("count", [1, 50, 5_000])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_columns_are_taken_out_as_they_are_stored(compression, count):
    """What is left is a payload like any other, which passes every check; nothing is compressed anew."""
    batch = wide(count)
    fetched = stored(batch, SCHEMA, compression)
    for names in SOME:
        for beside in (0, layouts.HAS_TIMESTAMP, BESIDE):
            wanted = part(names, beside)
            taken = pieces.take(fetched, wanted)
            if fetched.header.encoding in (payload.LZ4, payload.ZSTD):
                assert taken is None
                continue
            assert taken is not None
            assert (taken.base, taken.end, taken.schema) == (fetched.base, fetched.end, wanted.kept)
            assert (taken.header.encoding, taken.header.layout) == (fetched.header.encoding, beside)
            assert opened(taken).equals(batch.select(layouts.shape_of(beside, wanted.kept).schema.names)), names


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_from_pieces_comes_the_same(compression):
    fetched = stored(wide(20_000), SCHEMA, compression)
    table = pieces.collect(fetched.header, fetched.payload, SCHEMA)
    assert len(table) == 8 * (1 + len(SCHEMA.names) + 2)
    for names in SOME:
        wanted = part(names)
        found = pieces.read(fetched.base, fetched.header, table, wanted, Asked(fetched.payload))
        assert found == pieces.take(fetched, wanted)
        asked = Asked(fetched.payload)
        pieces.read(fetched.base, fetched.header, table, part(names, 0), asked)
        if len(names) == 1:
            assert asked.bytes < len(fetched.payload) / 2, names


def test_columns_that_lie_near_each_other_are_one_read():
    fetched = stored(wide(20_000), SCHEMA, None)
    table = pieces.collect(fetched.header, fetched.payload, SCHEMA)
    for names, reads in ((["number", "text"], 2), (["number", "money"], 3), (SCHEMA.names, 2)):
        asked = Asked(fetched.payload)
        pieces.read(0, fetched.header, table, part(names, layouts.HAS_OFFSETS), asked)
        assert len(asked.ranges) == reads, names


def test_a_damaged_byte_is_found_by_whoever_reads_its_column():
    """And by nobody else: what is not read cannot hurt."""
    fetched = stored(wide(2_000), SCHEMA, None)
    table = pieces.collect(fetched.header, fetched.payload, SCHEMA)
    found = pieces.parse(table, fetched.header)
    names = [*SCHEMA.names, "_headers", "_timestamp"]
    chance = random.Random(5)
    for place, piece in enumerate(found):
        damaged = bytearray(fetched.payload)
        damaged[chance.randrange(piece.begin, piece.end)] ^= 1 << chance.randrange(8)
        for name in SCHEMA.names:
            wanted = part([name], 0)

            def read(wanted: Part = wanted, data: bytearray = damaged) -> FetchedPart:
                return pieces.read(0, fetched.header, table, wanted, Asked(data))

            if place == 0 or names[place - 1] == name:
                with pytest.raises(InvalidPayload, match="checksum"):
                    read()
            else:
                assert opened(read()).equals(wide(2_000).select([name]))


def test_pieces_of_another_payload_are_not_used():
    fetched = stored(wide(2_000), SCHEMA, None)
    other = stored(wide(2_001), SCHEMA, None)
    table = pieces.collect(fetched.header, fetched.payload, SCHEMA)
    whole = pieces.collect(other.header, other.payload, SCHEMA)
    wrong: list[tuple[BatchHeader, bytes]] = [
        (fetched.header, whole),
        (fetched.header, table[:-8]),
        (fetched.header, table[:-1]),
        (fetched.header, b""),
        (msgspec.structs.replace(fetched.header, encoding=payload.ZSTD), table),
        (msgspec.structs.replace(fetched.header, layout=0), table),
    ]
    for header, bad in wrong:
        with pytest.raises(InvalidPayload):
            pieces.read(0, header, bad, part(["number"]), Asked(fetched.payload))

    def short(begin: int, end: int) -> bytes:
        return bytes(fetched.payload[begin : end - 1])

    with pytest.raises(InvalidPayload):
        pieces.read(0, fetched.header, table, part(["number"]), short)


def test_the_checksums_follow_each_other_to_that_of_the_whole():
    fetched = stored(wide(2_000), SCHEMA, "lz4")
    found = pieces.parse(pieces.collect(fetched.header, fetched.payload, SCHEMA), fetched.header)
    assert found[-1].crc == fetched.header.payload_crc
    lengths = [piece.end - piece.begin for piece in found]
    assert [piece.end for piece in found] == list(accumulate(lengths))
    assert found[-1].end == len(fetched.payload)


def columns(count: int, values: int) -> tuple[Schema, pa.RecordBatch]:
    schema = Schema(pa.schema([(f"c{n}", pa.int64()) for n in range(count)]))
    chance = random.Random(1)
    data = [[chance.getrandbits(60) for _ in range(values)] for _ in range(count)]
    return schema, pa.RecordBatch.from_arrays([pa.array(column) for column in data], schema=schema.arrow)


@pytest.mark.parametrize(
    ("count", "values", "has"),
    [
        (2, PIECES_STORED_BYTES_MIN // 16, True),
        (2, PIECES_STORED_BYTES_MIN // 32, False),
        (1, PIECES_STORED_BYTES_MIN // 8, False),
        (300, PIECE_BYTES_MIN // 8 + 8, True),
        (300, PIECE_BYTES_MIN // 16, False),
    ],
)
def test_only_large_batches_of_several_columns_have_pieces(count: int, values: int, has: bool):
    schema, batch = columns(count, values)
    fetched = stored(batch, schema, None)
    assert bool(pieces.collect(fetched.header, fetched.payload, schema)) == has


def test_what_was_compressed_together_has_none(monkeypatch):
    fetched = stored(wide(400), SCHEMA, "zstd")
    assert fetched.header.encoding == payload.ZSTD
    monkeypatch.setattr(pieces, "PIECES_STORED_BYTES_MIN", 0)
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 0)
    assert pieces.collect(fetched.header, fetched.payload, SCHEMA) == b""
