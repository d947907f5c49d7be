"""Statistics on their way: into the frame, the ledger and back, and past readers who do not ask for them."""

import functools

import msgspec
import pytest

from mainstem.core import statistics
from mainstem.core.batch import Batch
from mainstem.core.errors import DataLoss, InvalidSchema
from mainstem.core.limits import STATISTICS_BYTES_MAX, STATISTICS_RECORDS_MIN, STATISTICS_STORED_BYTES_MIN
from mainstem.core.schema import Schema
from mainstem.log.blocks.local import LocalBlocks
from mainstem.log.contents import Contents
from mainstem.log.disk import LocalDisk
from mainstem.log.log import Log, LogOptions
from mainstem.log.reader import LogReader
from mainstem.log.scan import BlockScanner
from mainstem.log.walk import FoundFrame, FrameWalk
from tests.unit.log.keeping import Keeping, damage
from tests.unit.log.parts import NOW_US, append, make_batch, make_keyed_batch, make_stream
from tests.unit.log.typed import FIRST, Rows, row_batch

COUNT = STATISTICS_RECORDS_MIN


@pytest.fixture
def keeping(tmp_path):
    found = Keeping(tmp_path / "data")
    yield found
    found.log.close()


@pytest.fixture
def log(keeping):
    return keeping.log


def keyed(stream: int, first: int = 0, count: int = COUNT, time_us: int = NOW_US) -> Batch:
    records = [(b"key %d" % number, b"value", time_us + number) for number in range(first, first + count)]
    return make_keyed_batch(records, stream=stream)


def described(batch: Batch) -> Batch:
    return Contents().described(batch)


def test_small_batches_have_no_statistics():
    assert not described(keyed(1, count=COUNT - 1)).header.statistics
    assert described(keyed(1)).header.statistics
    # A few large records are worth it too.
    assert described(make_batch([bytes(STATISTICS_STORED_BYTES_MIN)] * 2)).header.statistics


def test_columns_at_hand_say_the_same_as_the_payload_and_go_no_further():
    for count in (COUNT - 1, COUNT):
        batch = keyed(1, count=count)
        at_hand = Batch(batch.header, batch.payload, Contents().decode(batch.header, batch.payload))
        assert described(at_hand) == described(batch)
        assert described(at_hand).columns is None


def test_rows_at_hand_are_not_opened_again(monkeypatch):
    def schema_of(schema: int) -> Schema:
        return FIRST

    contents = Contents(schema_of, key=("id",), schema_id=1)
    rows = [{"id": f"id {number}", "n": number, "tags": []} for number in range(COUNT)]
    batch = row_batch(rows, FIRST, 1, stream=1, times=[NOW_US] * COUNT)
    at_hand = Batch(batch.header, batch.payload, contents.decode(batch.header, batch.payload))
    known = contents.described(batch)
    monkeypatch.setattr(Contents, "decode", None)
    monkeypatch.setattr(Contents, "_described_columns", None)
    assert contents.described(at_hand) == known


def test_what_is_known_of_records_without_a_schema():
    batch = described(keyed(1))
    known = statistics.parse(batch.header.statistics, None)
    assert (known["_timestamp"].low, known["_timestamp"].high) == (NOW_US, NOW_US + COUNT - 1)
    may_contain = known["_key"].may_contain
    assert may_contain is not None
    assert all(may_contain(b"key %d" % number) for number in range(COUNT))
    assert not may_contain(b"key")
    plain = described(make_batch([b"x"] * COUNT)).header.statistics
    assert list(statistics.parse(plain, None)) == ["_timestamp"]
    assert len(plain) < 64


def test_a_schema_that_nobody_knows_is_told():
    batch = row_batch([{"id": "a"}] * COUNT, FIRST, 9, stream=1, times=[NOW_US] * COUNT)
    with pytest.raises(InvalidSchema, match="no schema has id 9"):
        Contents().described(batch)


def test_a_batch_with_statistics_is_an_entry_of_its_own(log):
    stream = make_stream(log)
    tiny = make_batch([b"x"], stream=stream)
    large = described(keyed(stream))
    append(log, tiny, tiny, large, large, tiny, tiny)
    entries = log.ledger.entries_from(stream, 0, 0, 100)
    assert [(entry.base, entry.span, bool(entry.statistics)) for entry in entries] == [
        (0, 2, False),
        (2, COUNT, True),
        (2 + COUNT, COUNT, True),
        (2 + 2 * COUNT, 2, False),
    ]
    assert entries[1].statistics == statistics.summary(large.header.statistics)
    assert len(entries[1].statistics) < 100 < len(large.header.statistics)
    assert log.reader.statistics_of(entries[1]) == large.header.statistics
    assert log.reader.statistics_of(entries[0]) == b""


def test_readers_get_records_without_statistics(log):
    stream = make_stream(log)
    large = described(keyed(stream))
    append(log, large)
    row = log.ledger.load_stream(stream)
    assert row is not None
    for reader in (log.reader, LogReader(log.ledger, log._folder.blocks)):
        (fetched,) = reader.read(row, 0, 0)
        assert fetched.header == msgspec.structs.replace(large.header, statistics=b"")
        assert bytes(fetched.payload) == large.payload
    (whole,) = log.reader.load(row, log.ledger.entries_from(stream, 0, 0, 1))
    assert whole.header == large.header


def test_statistics_are_read_once_and_then_at_hand(log):
    stream = make_stream(log)
    append(log, described(keyed(stream)))
    reader = LogReader(log.ledger, log._folder.blocks)
    (entry,) = log.ledger.entries_from(stream, 0, 0, 1)
    found = [reader.statistics_of(entry) for _ in range(5)]
    assert len(set(found)) == 1
    assert found[0]
    assert reader.disk_reads == 1


def test_statistics_that_cannot_be_read_say_nothing(keeping):
    """The batch has to be read then, and that says what is the matter."""
    log = keeping.log
    stream = make_stream(log)
    append(log, described(keyed(stream)))
    (entry,) = log.ledger.entries_from(stream, 0, 0, 1)
    path = keeping.path / "blocks" / f"{entry.block:016d}.block"
    sound = path.read_bytes()
    for position in (entry.position + 20, entry.position + 136, entry.position + 400):
        data = bytearray(sound)
        data[position] ^= 1
        path.write_bytes(data)
        reader = LogReader(log.ledger, log._folder.blocks)
        assert reader.statistics_of(entry) == b""
        with pytest.raises(DataLoss):
            reader.read(keeping.row(stream), 0, 0)
    path.write_bytes(sound)
    # A damaged record does not hide what is known of it.
    damage(keeping, entry)
    assert LogReader(log.ledger, log._folder.blocks).statistics_of(entry)
    path.unlink()
    assert LogReader(log.ledger, LocalBlocks(path.parent, LocalDisk())).statistics_of(entry) == b""


def test_statistics_come_back_from_the_blocks(keeping):
    stream = keeping.create()
    largest = bytes(range(256)) * (STATISTICS_BYTES_MAX // 256)
    head = statistics._HEAD.pack(1, 0, 0, 1, len(largest))
    batches = [keyed(stream, count=3), described(keyed(stream)), make_batch([b"x"], stream=stream)]
    huge = msgspec.structs.replace(batches[2].header, statistics=head + largest[8:])
    for _ in range(6):
        append(keeping.log, *batches, Batch(huge, batches[2].payload))
    before = keeping.entries(stream)
    assert sum(statistics.length_of(entry.statistics) == STATISTICS_BYTES_MAX for entry in before) == 6
    assert keeping.info(stream).statistics_bytes == 6 * (STATISTICS_BYTES_MAX + len(batches[1].header.statistics))
    blocks = keeping.log._folder.blocks
    for block in blocks.list():
        # The doctor and salvage walk over them as recovery does.
        walk = FrameWalk(functools.partial(blocks.read, block), blocks.size(block), block)
        assert all(isinstance(frame, FoundFrame) for frame in walk.frames())
        assert list(BlockScanner(blocks, block).flushes())
    keeping.reopen(without_ledger=True)
    assert list(keeping.entries(stream)) == list(before)


def test_a_block_is_full_with_statistics_too(tmp_path):
    """They take room in a block like records do."""
    log = Log(tmp_path / "data", LogOptions(block_bytes=256 << 10))
    try:
        stream = make_stream(log)
        for _ in range(40):
            statistic = statistics._HEAD.pack(1, 0, 0, 1, 32 << 10).ljust(32 << 10, b"\0")
            header = msgspec.structs.replace(make_batch(stream=stream).header, statistics=statistic)
            append(log, Batch(header, make_batch(stream=stream).payload))
        assert len(log._folder.blocks.list()) >= 5
    finally:
        log.close()


def test_rows_are_described_by_their_own_schema(keeping):
    rows = Rows(keeping)
    rows.write(*({"id": f"k{number}", "n": number} for number in range(COUNT)))
    rows.write(*({"id": f"k{number}", "n": number} for number in range(3)))
    assert rows.check_statistics() == 1
    assert rows.read() == rows.written


def test_what_is_known_does_not_depend_on_the_columns_that_were_opened(tmp_path):
    """An embedded writer opens only those of which something is to be known; their places are those of the schema."""
    keeping = Keeping(tmp_path / "data")
    rows = Rows(keeping)
    made = [{"tags": [f"{number}"], "n": number, "id": f"{number:x}"} for number in range(COUNT)]
    schema_id = keeping.row(rows.stream).schema_id
    batch = row_batch(made, FIRST, schema_id, stream=rows.stream, times=[NOW_US] * COUNT)
    for contents in (
        rows.contents,
        rows.contents._replace(key=(), indexed=("n", "id")),
        Contents(rows.contents.schema_of),
    ):
        described = contents.described(batch)
        whole = contents.with_statistics(batch.header, contents.decode(batch.header, batch.payload))
        assert described.header == whole
    keeping.log.close()
