"""A cold block: the same records out as in, whatever their types, and no byte that is not covered."""

import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.core import layouts
from mainstem.core.errors import InvalidPayload
from mainstem.core.schema import Schema
from mainstem.log import cold
from mainstem.log.cold_maker import _require_same
from mainstem.log.contents import Contents
from mainstem.log.frame import COLD_BLOCK_FIRST, BlockHeader, FrameDamaged
from mainstem.log.frame_check import FrameCheck
from mainstem.log.replacement import Records
from tests.unit.log.parts import LOG_UUID, NOW_US

BLOCK = COLD_BLOCK_FIRST + 5
HEADER = BlockHeader(BLOCK, bytes.fromhex(LOG_UUID), 2, 1, 77, NOW_US)
SCHEMA_ID = 3

# A type, and values of it of which some are at its edges.
TYPES: dict[str, tuple[pa.DataType, list[object]]] = {
    "bool": (pa.bool_(), [True, False]),
    **{
        f"int{bits}": (getattr(pa, f"int{bits}")(), [-(1 << bits - 1), 0, (1 << bits - 1) - 1])
        for bits in (8, 16, 32, 64)
    },
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), [0, 5, (1 << bits) - 1]) for bits in (8, 16, 32, 64)},
    "float32": (pa.float32(), [0.5, float("nan"), float("-inf"), -0.0]),
    "float64": (pa.float64(), [1e300, float("nan"), float("inf"), -0.0]),
    "string": (pa.string(), ["", "ä\0b", "x" * 300]),
    "binary": (pa.binary(), [b"", b"\0\xff", b"y" * 300]),
    "fixed": (pa.binary(4), [b"abcd", b"\0" * 4]),
    "date32": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "date64": (pa.date64(), [date(1970, 1, 1), date(2030, 5, 6)]),
    **{f"time {unit}": (pa.time32(unit), [time(0, 0), time(23, 59, 59)]) for unit in ("s", "ms")},
    **{f"time {unit}": (pa.time64(unit), [time(0, 0), time(23, 59, 59, 999_999)]) for unit in ("us", "ns")},
    **{
        f"timestamp {unit} {zone}": (
            pa.timestamp(unit, zone),
            [datetime(1970, 1, 1, tzinfo=UTC if zone else None), datetime(2200, 1, 2, tzinfo=UTC if zone else None)],
        )
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin")
    },
    **{f"duration {unit}": (pa.duration(unit), [timedelta(0), timedelta(days=-3)]) for unit in ("s", "ms", "us", "ns")},
    "decimal128": (pa.decimal128(20, 3), [Decimal("-1.234"), Decimal("99999999999999999.999")]),
    "decimal256": (pa.decimal256(60, 10), [Decimal(0), Decimal("-12345678901234567890123456789.5")]),
    "list": (pa.list_(pa.int32()), [[], [1, None, 3]]),
    "named list": (pa.list_(pa.field("thing", pa.string(), nullable=False)), [[], ["a", "b"]]),
    "fixed list": (pa.list_(pa.float64(), 2), [[1.0, 2.0], [float("nan"), 0.0]]),
    "struct": (
        pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.struct([("c", pa.string())])))]),
        [{"a": 1, "b": [{"c": "x"}, None]}, {"a": None, "b": None}],
    ),
    "map": (pa.map_(pa.string(), pa.float64()), [[], [("k", 1.5), ("k", None)]]),
}


def records(columns: dict[str, pa.Array], contents: Contents, schema_id: int, count: int, *, gaps: bool) -> Records:
    chance = random.Random(count)
    offsets = sorted(chance.sample(range(1_000, 1_000 + 2 * count), count)) if gaps else range(1_000, 1_000 + count)
    times = np.array([NOW_US + chance.randrange(10**9) for _ in range(count)], np.int64)
    stop = 1_000 + (2 * count if gaps else count)
    return Records(1_000, stop, np.array(offsets, np.int64), times, 4, columns, schema_id, contents)


def packed(given: Records) -> bytes:
    return b"".join(cold.pack(HEADER, 76, 9, 2, given))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_every_type_come_back(name, gaps):
    kind, values = TYPES[name]
    schema = Schema(pa.schema([("id", pa.int64()), ("x", kind)]))
    chance = random.Random(name)
    columns = {
        "id": pa.array([chance.randrange(50) for _ in range(100)], pa.int64()),
        "x": pa.array([chance.choice([*values, None]) for _ in range(100)], kind),
    }
    given = records(columns, Contents(lambda _: schema, ("id",), (), SCHEMA_ID), SCHEMA_ID, 100, gaps=gaps)
    data = packed(given)
    found = cold.records_in(cold.parse(data, BLOCK), given.contents)
    _require_same(found, given)
    assert layouts.narrow_rows(found.columns, schema).schema.equals(layouts.shape_of(0, schema).schema)
    table = pq.read_table(pa.BufferReader(data))
    assert table.column("id").to_pylist() == sorted(columns["id"].to_pylist())
    assert sorted(table.column("_offset").to_pylist()) == given.offsets.tolist()


def test_records_without_a_schema_come_back():
    headers = [[("a", b"1"), ("b", None)], [], None] * 40
    columns = {
        "key": pa.array([b"k%d" % (number % 9) if number % 5 else None for number in range(120)], pa.binary()),
        "value": pa.array([b"v%d" % number if number % 7 else None for number in range(120)], pa.binary()),
        "headers": pa.array(headers, layouts.HEADERS_TYPE),
    }
    given = records(columns, Contents(), 0, 120, gaps=True)
    found = cold.parse(packed(given), BLOCK)
    _require_same(cold.records_in(found, Contents()), given)
    frame = found.frame
    assert (frame.stream, frame.shard, found.base, frame.span, frame.count) == (9, 2, 1_000, 240, 120)
    assert (frame.time_low, frame.time_high, frame.generation) == (given.times.min(), given.times.max(), 4)
    assert found.statistics
    bare = records({"value": columns["value"]}, Contents(), 0, 120, gaps=False)
    _require_same(cold.records_in(cold.parse(packed(bare), BLOCK), Contents()), bare)


def test_a_block_without_records_is_refused():
    with pytest.raises(InvalidPayload, match="without records"):
        packed(records({"value": pa.array([], pa.binary())}, Contents(), 0, 0, gaps=False))


def test_what_walks_blocks_finds_it_whole_and_every_other_byte_wrong():
    given = records(
        {"value": pa.array([b"%d" % number for number in range(50)], pa.binary())}, Contents(), 0, 50, gaps=False
    )
    data = packed(given)
    check = FrameCheck(BLOCK)
    check.add(data)
    assert check.is_sound()
    for place in range(len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 1 << place % 8
        with pytest.raises(FrameDamaged):
            cold.parse(wrong, BLOCK)
    for length in range(0, len(data), 13):
        with pytest.raises(FrameDamaged):
            cold.parse(data[:length], BLOCK)
    with pytest.raises(FrameDamaged, match="this is block"):
        cold.parse(data, BLOCK + 1)
    with pytest.raises(FrameDamaged):
        cold.parse(data + bytes(8), BLOCK)
