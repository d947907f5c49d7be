"""Some columns of stored batches: only their bytes are read, and what is wrong with them is told as ever."""

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from mainstem.consume.feed import Feed
from mainstem.consume.selection import Selection
from mainstem.consume.view import View
from mainstem.core import layouts, payload, pieces, statistics
from mainstem.core.batch import FetchedBatch
from mainstem.core.errors import DataLoss
from mainstem.core.pieces import FetchedPart, Part
from mainstem.core.schema import Schema
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.disk import LocalDisk
from mainstem.log.ledger.base import Entry, StreamRow
from mainstem.log.reader import LogReader
from tests.unit.log.keeping import DAY, Keeping
from tests.unit.log.typed import FIRST, Rows

COUNT = 6_000


@pytest.fixture
def rows(tmp_path):
    keeping = Keeping(tmp_path / "data")
    yield Rows(keeping)
    keeping.log.close()


def some(first: int = 0, count: int = COUNT) -> list[dict[str, object]]:
    """Rows that hardly compress."""
    chance = random.Random(first)
    return [
        {"id": f"{chance.getrandbits(64):x}", "n": chance.getrandbits(40), "tags": [f"{chance.getrandbits(32):x}"]}
        for _ in range(count)
    ]


def part_of(rows: Rows, *names: str) -> Part:
    schema_id = rows.keeping.row(rows.stream).schema_id
    beside = layouts.HAS_TIMESTAMP | layouts.HAS_OFFSETS
    return Part(schema_id, FIRST, Schema(pa.schema([FIRST.field(name) for name in names])), beside)


class Watched(LogReader):
    """A cold reader that counts the bytes it reads, and may be made to read all of a batch."""

    def __init__(self, rows: Rows, *, in_parts: bool = True) -> None:
        log = rows.keeping.log
        super().__init__(log.ledger, log._folder.blocks)
        self.bytes = 0
        self._in_parts = in_parts

    def _read_part(self, entry: Entry, part: Part) -> FetchedPart | None:
        return super()._read_part(entry, part) if self._in_parts else None

    def _read_block(self, block: int, position: int, length: int) -> bytes:
        self.bytes += length
        return super()._read_block(block, position, length)


def walk(reader: LogReader, row: StreamRow, offset: int, part: Part | None) -> list[FetchedBatch]:
    return list(reader.walk(row, 0, offset, can_skip=lambda entry, filters: False, part=part))


def read(rows: Rows, part: Part | None = None, reader: LogReader | None = None) -> list[FetchedBatch]:
    row = rows.keeping.row(rows.stream)
    reader = reader or Watched(rows)
    offset, found = reader.shard(rows.stream, 0).start, []
    while batches := walk(reader, row, offset, part):
        found += batches
        offset = batches[-1].end
    return found


def values(rows: Rows, batches: list[FetchedBatch], name: str) -> dict[int, object]:
    """A column by offset."""
    found: dict[int, object] = {}
    for fetched in batches:
        header = fetched.header
        if not header.count:
            continue
        schema = fetched.schema if isinstance(fetched, FetchedPart) else rows.contents.schema(header.schema_id)
        batch = payload.decode(header.encoding, header.layout, header.count, header.raw_len, fetched.payload, schema)
        distances = batch.column("_offset").to_pylist() if header.layout & layouts.HAS_OFFSETS else range(header.count)
        found.update(
            (fetched.base + at, value) for at, value in zip(distances, batch.column(name).to_pylist(), strict=True)
        )
    return found


def test_only_the_bytes_of_the_columns_are_read(rows):
    for number in range(3):
        rows.write(*some(number))
    whole, narrow = Watched(rows), Watched(rows)
    everything, part = read(rows, None, whole), read(rows, part_of(rows, "n"), narrow)
    assert all(isinstance(batch, FetchedPart) for batch in part)
    assert [(batch.base, batch.end) for batch in part] == [(batch.base, batch.end) for batch in everything]
    assert values(rows, part, "n") == values(rows, everything, "n")
    assert narrow.bytes < whole.bytes / 2
    # What somebody else read a moment ago is at hand.
    read(rows, part_of(rows, "n"), narrow)
    assert narrow.disk_reads == 6


def test_small_batches_and_those_of_other_schemas_are_read_whole(rows):
    rows.write(*some(0, 100))
    rows.write(*some(1, 100))
    rows.write_json(*some(2, 2_000))
    rows.write_tombstones(b"a", b"b")
    found = read(rows, part_of(rows, "n"))
    assert not any(isinstance(batch, FetchedPart) for batch in found)
    assert found == read(rows)


def test_batches_from_before_there_were_pieces_are_read_whole(rows, monkeypatch):
    monkeypatch.setattr(pieces, "collect", lambda *_: b"")
    rows.write(*some())
    monkeypatch.undo()
    rows.write(*some(1))
    first, second = rows.entries()
    assert statistics.pieces_in(first.statistics) is None
    assert statistics.pieces_in(second.statistics) is not None
    before, after = read(rows, part_of(rows, "n"))
    assert (type(before), type(after)) == (FetchedBatch, FetchedPart)
    assert rows.check_statistics() == 2


def outcome(rows: Rows, part: Part | None) -> object:
    """What a cold reader gets or is told of the first batch."""
    log = rows.keeping.log
    reader = LogReader(log.ledger, LocalBlocks(rows.keeping.path / "blocks", LocalDisk()))
    try:
        batches = walk(reader, rows.keeping.row(rows.stream), 3, part)
        return values(rows, batches[:1], "n")
    except DataLoss as loss:
        return str(loss), loss.facts()


def test_a_flipped_bit_is_told_as_by_who_reads_everything(rows):
    """In what was asked for, or in front of it. Elsewhere in the payload it does not matter to this reader."""
    rows.write(*some())
    rows.write(*some(1))
    entry = rows.entries()[0]
    path = rows.keeping.path / "blocks" / f"{entry.block:016d}.block"
    sound = path.read_bytes()
    part, truth = part_of(rows, "n"), outcome(rows, None)
    assert outcome(rows, part) == truth
    payload_at = entry.position + 136 + statistics.length_of(entry.statistics)
    (fetched,) = rows.keeping.log.reader.load(rows.keeping.row(rows.stream), [entry])
    table = fetched.header.statistics[statistics.pieces_in(entry.statistics)]
    head, *columns = pieces.parse(table, fetched.header)
    chance = random.Random(3)
    regions = {
        "header": (entry.position, entry.position + 136),
        "statistics": (entry.position + 136, payload_at),
        "head": (payload_at + head.begin, payload_at + head.end),
        **{name: (payload_at + at.begin, payload_at + at.end) for name, at in zip(FIRST.names, columns, strict=True)},
    }
    for region, (begin, end) in regions.items():
        for _ in range(12):
            data = bytearray(sound)
            data[chance.randrange(begin, end)] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            told = outcome(rows, None)
            assert isinstance(told, tuple), region
            assert outcome(rows, part) == (truth if region in ("id", "tags") else told), region
    # Cut short, and gone.
    path.write_bytes(sound[: payload_at + columns[1].begin + 5])
    assert outcome(rows, part) == outcome(rows, None) != truth
    path.unlink()
    assert outcome(rows, part) == outcome(rows, None) != truth
    path.write_bytes(sound)


def test_damage_in_one_batch_leaves_the_others(rows):
    for number in range(3):
        rows.write(*some(number))
    second = rows.entries()[1]
    path = rows.keeping.path / "blocks" / f"{second.block:016d}.block"
    data = bytearray(path.read_bytes())
    data[second.position + 300 + statistics.length_of(second.statistics)] ^= 1
    path.write_bytes(data)
    reader, row, part = Watched(rows), rows.keeping.row(rows.stream), part_of(rows, "n")
    assert [batch.base for batch in walk(reader, row, 0, part)] == [0]
    with pytest.raises(DataLoss) as told:
        walk(reader, row, COUNT, part)
    assert (told.value.first, told.value.last) == (COUNT, 2 * COUNT - 1)
    assert [batch.base for batch in walk(reader, row, 2 * COUNT, part)] == [2 * COUNT]


def test_what_upkeep_stores_anew_has_pieces(tmp_path):
    """Merged, compacted and moved: the same columns come out, with the offsets that are left."""
    keeping = Keeping(tmp_path / "data")
    rows = Rows(keeping, cleanup="compact")
    for number in range(40):
        rows.write(*some(number, 200))
    twice = some(50)
    rows.write(*twice)
    rows.write(*[{**row, "n": 1} for row in twice[: COUNT // 2]])
    before = values(rows, read(rows), "n")
    keeping.keep(DAY)
    whole, part = read(rows), read(rows, part_of(rows, "n", "tags"))
    after = values(rows, whole, "n")
    assert len(after) < len(before)
    assert after.items() <= before.items()
    assert values(rows, part, "n") == after
    assert values(rows, part, "tags") == values(rows, whole, "tags")
    narrowed = [batch for batch in part if isinstance(batch, FetchedPart)]
    assert any(batch.header.layout & layouts.HAS_OFFSETS for batch in narrowed)
    keeping.log.close()


QUESTIONS = [
    ("", ["n"]),
    ("", ["tags", "id"]),
    ("", ["_key", "n"]),
    ("", ["_offset"]),
    ("", ["_timestamp", "_shard", "n"]),
    ("", ["_headers", "id"]),
    ("n < 300000000000", ["id"]),
    ("n < 300000000000", ["n", "tags"]),
    ("id > 'c' AND _offset > 50", ["tags"]),
    ("_key > 'c'", ["n"]),
    ("n < 0", ["id"]),
    ("_timestamp > TIMESTAMP '1980-01-01'", ["n"]),
    ("n IS NOT NULL", ["id", "n", "tags"]),
    ("n < 300000000000", None),
]


@pytest.mark.parametrize(("where", "names"), QUESTIONS, ids=[str(at) for at in range(len(QUESTIONS))])
@pytest.mark.parametrize("key", [("id",), ()], ids=["key of columns", "own key"])
def test_every_question_is_answered_as_from_whole_batches(tmp_path, where, names, key):
    keeping = Keeping(tmp_path / "data")
    rows = Rows(keeping, key=key)
    for number in range(2):
        made = some(number)
        now = keeping.clock.now_us()
        beside: dict[str, Any] = {} if key else {"keys": [b"%x" % at for at in range(COUNT)]}
        headers = [[("h", b"%d" % at)] for at in range(COUNT)]
        rows.write(*made, headers=headers, times=[now + at for at in range(COUNT)], **beside)
    rows.write_json(*some(7, 50))
    row = keeping.row(rows.stream)
    view = View(FIRST, row.schema_id, columns=names, key=key, schema_of=keeping.log.schema)

    def answer(*, in_parts: bool) -> tuple[list[object], int]:
        selection = Selection(view, where, schema_of=keeping.log.schema)
        reader = Watched(rows, in_parts=in_parts)
        feed = Feed(reader, row, [0], [len(rows.written)], lambda: selection)
        found: list[object] = []
        while not feed.is_done:
            for fetched in feed.read(1 << 20):
                offsets = view.offsets(fetched) if fetched.header.count else ()
                if len(offsets):
                    columns = view.decode_kept(_sent(fetched)).columns
                    made = view.assemble(columns, view.names, 0, offsets, fetched.header.time_low)
                    found += zip(offsets, made.to_pylist(), strict=True)
        return found, reader.bytes

    (whole, all_bytes), (part, some_bytes) = answer(in_parts=False), answer(in_parts=True)
    assert part == whole
    assert bool(part) == (where != "n < 0")
    if names is not None and len(names) == 1 and where != "n < 0":
        assert some_bytes < all_bytes


def _sent(fetched: FetchedBatch) -> FetchedBatch:
    """As a client gets it: the columns of its view, and nothing that says so."""
    return FetchedBatch(fetched.base, msgspec.structs.replace(fetched.header), fetched.payload)
